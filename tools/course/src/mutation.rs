//! Mistakes that learners make, one list a chapter in `mutations/chNN_name.toml`: each turns the solution into a wrong
//! one that compiles, and the chapter's checks must notice.

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::course::{Chapter, Course};
use crate::finding::Report;

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

/// At most so many of a list, spread evenly over it; the first is always among them.
pub fn spread<T>(list: Vec<T>, at_most: usize) -> impl Iterator<Item = T> {
    let every = list.len().div_ceil(at_most).max(1);
    list.into_iter().step_by(every)
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
        let spread = |at_most| spread((0..10).collect(), at_most).collect::<Vec<usize>>();
        assert_eq!(spread(usize::MAX).len(), 10);
        assert_eq!(spread(10).len(), 10);
        assert_eq!(spread(4), [0, 3, 6, 9]);
        assert_eq!(spread(1), [0]);
    }

    #[test]
    fn a_mutation_finds_its_place_once() {
        let mutation = |find: &str, replace: &str| {
            let (name, find, replace) = ("x".into(), find.into(), replace.into());
            Mutation { name, find, replace, expect: None }.apply("a b a")
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
}
