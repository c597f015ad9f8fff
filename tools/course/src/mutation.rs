//! Mistakes that learners make, one list a chapter in `mutations/chNN_name.toml`: each turns the solution into a wrong
//! one that compiles, and the chapter's checks must notice.

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::course::{Chapter, Course};
use crate::finding::Report;
use crate::protection::SNAPSHOTS;

const FOLDER: &str = "tools/course/mutations";

/// Mistakes for a chapter, so that its checks are known to be awake.
const AT_LEAST: usize = 6;

/// A mistake.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutation {
    /// What the learner does, in a few words.
    pub name: String,
    /// A text that the solution holds exactly once.
    pub find: String,
    /// What the learner writes instead.
    pub replace: String,
    /// What the failure must say, for instance a number that tells the reader where to look.
    pub expect: Option<String>,
    /// The chapter's transcript must be red: on this mistake it is tried whether a wrong transcript can be accepted.
    #[serde(default)]
    pub transcript: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutation: Vec<Mutation>,
}

fn file(chapter: &Chapter) -> String {
    format!("{FOLDER}/{}.toml", chapter.name)
}

/// The mistakes of a chapter; none if it has no list.
pub fn of(course: &Course, chapter: &Chapter) -> Result<Vec<Mutation>> {
    let file = file(chapter);
    if !course.has(&file) {
        return Ok(Vec::new());
    }
    let list: List =
        toml::from_str(&course.read(&file)?).with_context(|| format!("{file} is not a list of mutations"))?;
    Ok(list.mutation)
}

/// At most so many of a list, spread evenly over it; those of the transcript are always among them.
pub fn spread(list: Vec<Mutation>, at_most: usize) -> Vec<Mutation> {
    let (of_transcript, others): (Vec<_>, Vec<_>) = list.into_iter().partition(|mutation| mutation.transcript);
    let room = at_most.saturating_sub(of_transcript.len());
    let every = others.len().div_ceil(room.max(1)).max(1);
    of_transcript.into_iter().chain(others.into_iter().step_by(every).take(room)).collect()
}

/// The chapter has a transcript that its checks compare with.
fn has_snapshot(course: &Course, chapter: &Chapter) -> Result<bool> {
    let names = course.names(SNAPSHOTS, ".snap")?;
    Ok(names.iter().any(|name| name.starts_with(chapter.short())))
}

impl Mutation {
    /// The wrong solution.
    ///
    /// # Errors
    /// What is wrong with the mutation itself.
    pub fn apply(&self, solution: &str) -> Result<String, String> {
        // A multi-line text in TOML ends with a line end that an indented line does not.
        let (find, replace) = (self.find.trim_end_matches('\n'), self.replace.trim_end_matches('\n'));
        match solution.matches(find).count() {
            _ if find.is_empty() => Err("finds the empty text".into()),
            0 => Err(format!("does not find `{find}`")),
            1 if find == replace => Err("changes nothing".into()),
            1 => Ok(solution.replacen(find, replace, 1)),
            n => Err(format!("finds `{find}` {n} times, not once")),
        }
    }
}

/// Checks that each list fits its solution, without compiling anything.
pub fn check(course: &Course, chapters: &[Chapter], report: &mut Report) -> Result<()> {
    for chapter in chapters {
        let list = file(chapter);
        let mutations = match of(course, chapter) {
            Ok(mutations) => mutations,
            Err(error) => {
                report.add(&list, 0, format!("{error:#}"));
                continue;
            }
        };
        if mutations.len() < AT_LEAST {
            report.add(
                &list,
                0,
                format!("has {} mistakes of learners; at least {AT_LEAST} are wanted", mutations.len()),
            );
        }
        if !course.has(&chapter.solution()) {
            continue;
        }
        let solution = course.read(&chapter.solution())?;
        for mutation in &mutations {
            let name = &mutation.name;
            match mutation.apply(&solution) {
                Err(problem) => report.add(&list, 0, format!("`{name}` {problem} in {}", chapter.solution())),
                Ok(text) => {
                    if let Err(error) = syn::parse_file(&text) {
                        report.add(&list, 0, format!("`{name}` makes {} unreadable: {error}", chapter.solution()));
                    }
                }
            }
        }
        if !mutations.iter().any(|mutation| mutation.transcript) && has_snapshot(course, chapter)? {
            report.add(&list, 0, "has no mistake with `transcript = true`, and the chapter has a transcript");
        }
        for (index, mutation) in mutations.iter().enumerate() {
            if mutations[..index].iter().any(|earlier| earlier.name == mutation.name) {
                report.add(&list, 0, format!("has two mistakes called `{}`", mutation.name));
            }
        }
    }
    for name in course.names(FOLDER, ".toml")? {
        if !chapters.iter().any(|chapter| chapter.name == name) {
            report.add(format!("{FOLDER}/{name}.toml"), 0, format!("there is no chapter {name}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    #[test]
    fn mistakes_are_spread_over_the_list() {
        let list = |number: usize| Mutation {
            name: number.to_string(),
            find: String::new(),
            replace: String::new(),
            expect: None,
            transcript: number == 7,
        };
        let spread = |at_most| {
            let spread = spread((0..10).map(list).collect(), at_most);
            spread.into_iter().map(|mutation| mutation.name).collect::<Vec<String>>().join(" ")
        };
        assert_eq!(spread(usize::MAX), "7 0 1 2 3 4 5 6 8 9");
        assert_eq!(spread(10), "7 0 1 2 3 4 5 6 8 9");
        assert_eq!(spread(4), "7 0 3 6");
        assert_eq!(spread(1), "7");
        assert_eq!(spread(0), "7");
    }

    #[test]
    fn a_mutation_finds_its_place_once() {
        let mutation = |find: &str, replace: &str| {
            let (name, find, replace) = ("x".into(), find.into(), replace.into());
            Mutation { name, find, replace, expect: None, transcript: false }.apply("a b a")
        };
        assert_eq!(mutation("b", "c"), Ok("a c a".into()));
        assert_eq!(mutation("b\n", "c\n"), Ok("a c a".into()));
        assert!(mutation("a", "c").unwrap_err().contains("2 times"));
        assert!(mutation("d", "c").unwrap_err().contains("does not find"));
        assert!(mutation("b", "b").unwrap_err().contains("changes nothing"));
    }

    #[test]
    fn a_list_that_no_longer_fits_is_found() {
        let sample = Sample::new();
        sample.replace("solutions/ch02_double.rs", "number + number", "2 * number");
        sample.expect("tools/course/mutations/ch02_double.toml: `mistake 0` does not find `number + number`");

        let sample = Sample::new();
        sample.remove("tools/course/mutations/ch01_sum.toml");
        sample.expect("tools/course/mutations/ch01_sum.toml: has 0 mistakes of learners; at least 6 are wanted");
    }

    #[test]
    fn a_transcript_without_a_mistake_of_its_own_is_found() {
        let sample = Sample::new();
        sample.replace("tools/course/mutations/ch01_sum.toml", "transcript = true\n", "");
        let problem = "has no mistake with `transcript = true`, and the chapter has a transcript";
        sample.expect(&format!("tools/course/mutations/ch01_sum.toml: {problem}"));
    }
}
