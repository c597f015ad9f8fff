//! Misconceptions that readers have, one list a chapter in `mistakes/chNN_name.toml`: each turns the solution into a wrong one
//! that compiles. The chapter's checks must notice, and the first failure that a reader sees must say what was expected here.

use std::path::Path;

use anyhow::{Context, Result};
use page_by_page_course::chapters::Chapter;
use serde::Deserialize;

use crate::files::{names, read};
use crate::finding::Report;
use crate::protection::SNAPSHOTS;

const FOLDER: &str = "tools/check/mistakes";

/// Mistakes for a chapter, so that its checks are known to be awake.
const AT_LEAST: usize = 12;

/// A mistake.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mistake {
    /// What the reader does, in a few words.
    pub name: String,
    /// A text that the solution holds exactly once.
    pub find: String,
    /// What the reader writes instead.
    pub replace: String,
    /// What the first failure says.
    pub expect: String,
    /// The chapter's transcript must be red: with this mistake it is tried whether a wrong transcript can be accepted.
    #[serde(default)]
    pub transcript: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mistake: Vec<Mistake>,
}

/// The mistakes of a chapter; none if it has no list.
pub fn of(root: &Path, chapter: &Chapter) -> Result<Vec<Mistake>> {
    let file = format!("{FOLDER}/{}.toml", chapter.name);
    if !root.join(&file).is_file() {
        return Ok(Vec::new());
    }
    let list: List =
        toml::from_str(&read(root, &file)?).with_context(|| format!("{file} is not a list of mistakes"))?;
    Ok(list.mistake)
}

impl Mistake {
    /// The wrong solution.
    ///
    /// # Errors
    /// What is wrong with the mistake itself.
    pub fn apply(&self, solution: &str) -> Result<String, String> {
        // A multi-line text in TOML ends with a line end that an indented line does not.
        let (find, replace) = (self.find.trim_end_matches('\n'), self.replace.trim_end_matches('\n'));
        let first = find.trim_start().lines().next().unwrap_or_default();
        match solution.matches(find).count() {
            _ if find.is_empty() => Err("finds the empty text".into()),
            0 => Err(format!("does not find its text, `{first}` …,")),
            1 if find == replace => Err("changes nothing".into()),
            1 => Ok(solution.replacen(find, replace, 1)),
            n => Err(format!("finds its text, `{first}` …, {n} times")),
        }
    }
}

/// Checks that a chapter's list fits its solution, without compiling anything.
pub fn check(root: &Path, chapter: &Chapter, solution: &str, report: &mut Report) {
    let file = format!("{FOLDER}/{}.toml", chapter.name);
    let mistakes = match of(root, chapter) {
        Ok(mistakes) => mistakes,
        Err(error) => return report.add(&file, 0, format!("{error:#}")),
    };
    if mistakes.len() < AT_LEAST {
        report.add(&file, 0, format!("has {} mistakes; at least {AT_LEAST} are wanted", mistakes.len()));
    }
    for Mistake { name, .. } in mistakes.iter().filter(|mistake| mistake.expect.is_empty()) {
        report.add(&file, 0, format!("`{name}` expects no words of the first failure"));
    }
    for mistake in &mistakes {
        if let Err(problem) = mistake.apply(solution) {
            report.add(&file, 0, format!("`{}` {problem} in {}", mistake.name, chapter.solution()));
        }
    }
    let short = chapter.name.split('_').next().unwrap_or_default();
    let has_snapshot = names(root, SNAPSHOTS, ".snap").iter().any(|name| name.starts_with(short));
    if has_snapshot && !mistakes.iter().any(|mistake| mistake.transcript) {
        report.add(&file, 0, "has no mistake with `transcript = true`, and the chapter has a transcript");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_finds_its_place_once() {
        for (find, replace, expected) in [
            ("b\n", "c\n", Ok("a c a")),
            ("a", "c", Err("finds its text, `a` …, 2 times")),
            ("d", "c", Err("does not find its text, `d` …,")),
            ("b", "b", Err("changes nothing")),
        ] {
            let (name, find, replace) = ("x".into(), find.into(), replace.into());
            let mistake = Mistake { name, find, replace, expect: String::new(), transcript: false };
            assert_eq!(mistake.apply("a b a"), expected.map(String::from).map_err(String::from));
        }
    }
}
