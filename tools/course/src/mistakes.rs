//! Misconceptions that readers have, one list a chapter in `mistakes/chNN_name.toml`: each turns the solution into a
//! wrong one that compiles. The chapter's checks must notice, and the first failure must say what is expected here. The
//! page prints what stands between marks, `// ANCHOR: obvious`.
//!
//! ```toml
//! ['sharing adds no owner']
//! find = 'self.owners[page.index()] += 1;'
//! replace = 'self.owners[page.index()] += 0;'
//! expect = 'owners of page 0 after alloc and share twice'
//! ```

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use anyhow::{Context, Result};
use page_by_page_course::chapters::Chapter;
use page_by_page_course::source::{self, file_names};
use serde::Deserialize;

use crate::check::Report;
use crate::files::{files_below, read};
use crate::protection::SNAPSHOTS;

const FOLDER: &str = "tools/course/mistakes";

/// What writes a part of the checks' messages: their own library, and the engine with its errors.
const WRITE_MESSAGES: [&str; 2] = ["crates/grading/src", "src"];
/// And Rust itself.
const PANICS: &str = "index out of bounds: the len is but the index is; attempt to subtract with overflow";

/// Mistakes for a chapter, so that its checks are known to be awake.
const MIN_MISTAKES: usize = 12;

/// Stands for lines that are left out, in a text to find and in what replaces it.
const GAP: &str = "\n…";

/// A mistake. Its name in the list says what the reader does, in a few words.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlantedMistake {
    /// A text that the solution holds exactly once. A line `…` stands for all that follows, as far as the next line.
    find: String,
    /// What the reader writes instead, where `…` stands for the same lines; without it, the text stays.
    replace: Option<String>,
    /// Lines that the reader adds.
    before: Option<String>,
    after: Option<String>,
    pub expect: String,
    /// The chapter's transcript must be red: with this mistake it is tried whether a wrong transcript can be accepted.
    #[serde(default)]
    pub transcript: bool,
}

/// The mistakes of a chapter by their names; none if it has no list.
pub fn read_list(root: &Path, chapter: &Chapter) -> Result<BTreeMap<String, PlantedMistake>> {
    let file = format!("{FOLDER}/{}.toml", chapter.name);
    if !root.join(&file).is_file() {
        return Ok(BTreeMap::new());
    }
    toml::from_str(&read(root, &file)?).with_context(|| format!("{file} is not a list of mistakes"))
}

impl PlantedMistake {
    pub fn apply(&self, solution: &str) -> Result<String, String> {
        let PlantedMistake { find, replace, before, after, .. } = self;
        let text = replace.as_ref().unwrap_or(find);
        let written = [before.as_deref(), Some(text), after.as_deref()].into_iter().flatten();
        let written = written.collect::<Vec<_>>().join("\n");
        let (begin, end) = find.split_once(GAP).unwrap_or((find, ""));
        let (above, rest) = solution.split_once(begin).unwrap_or_default();
        let first = find.trim_start().lines().next().unwrap_or_default();
        match (solution.matches(begin).count(), rest.split_once(end)) {
            _ if find.is_empty() => Err("finds the empty text".into()),
            (0, _) | (_, None) => Err(format!("does not find its text, `{first}` …,")),
            (1, _) if *find == written => Err("changes nothing".into()),
            (1, Some((gap, below))) => Ok([above, &written.replace(GAP, gap), below].concat()),
            (n, _) => Err(format!("finds its text, `{first}` …, {n} times")),
        }
    }
}

/// Checks that a chapter's list fits its solution and the messages of its checks, without compiling anything.
pub fn check(root: &Path, chapter: &Chapter, solution: &str, grader: &str, report: &mut Report) -> Result<()> {
    let file = format!("{FOLDER}/{}.toml", chapter.name);
    let mistakes = read_list(root, chapter)?;
    if mistakes.len() < MIN_MISTAKES {
        report.add(&file, format!("has {} mistakes; at least {MIN_MISTAKES} are wanted", mistakes.len()));
    }
    let mut sources = format!("{solution} {grader} {PANICS}");
    for folder in WRITE_MESSAGES {
        for file in files_below(&root.join(folder))? {
            sources += &source::code(&read(root, &format!("{folder}/{file}"))?);
        }
    }
    let known: HashSet<&str> = words(&sources).collect();
    for (name, mistake) in &mistakes {
        if let Err(problem) = mistake.apply(solution) {
            report.add(&file, format!("`{name}` {problem} in {}", chapter.solution()));
        }
        if mistake.expect.is_empty() {
            report.add(&file, format!("`{name}` expects no words of the first failure"));
        }
        for word in words(&mistake.expect).filter(|word| !known.contains(word)) {
            report.add(&file, format!("`{name}` expects the word \"{word}\", which no message of the checks has"));
        }
    }
    let short = chapter.name.split('_').next().unwrap_or_default();
    let has_snapshot = file_names(root, SNAPSHOTS, ".snap").iter().any(|name| name.starts_with(short));
    if has_snapshot && !mistakes.values().any(|mistake| mistake.transcript) {
        report.add(&file, "has no mistake with `transcript = true`, and the chapter has a transcript");
    }
    Ok(())
}

/// The words of a message. Numbers are left out, because a check writes them when it runs.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty())
}
