//! What a run of the graders came to: which checks were red, what the first of them says, and what is wrong with that.

use page_by_page_course::chapters::Chapter;
use page_by_page_course::libtest::{Suite, TestOutcome, task_of};

pub struct CargoRun {
    pub success: bool,
    /// It was ended because nothing came for too long.
    pub hung: bool,
    pub suites: Vec<Suite>,
    pub output: String,
}

pub struct Red<'a> {
    pub test: &'a str,
    pub words: &'a str,
}

impl CargoRun {
    /// The red checks in the order in which a reader looks at them: by task, then those of the whole chapter.
    pub fn red(&self) -> Vec<Red<'_>> {
        let tests = self.suites.iter().flat_map(|suite| &suite.tests);
        let mut red: Vec<Red<'_>> = tests
            .filter_map(|(test, outcome)| match outcome {
                TestOutcome::Failed(words) => Some(Red { test, words }),
                _ => None,
            })
            .collect();
        red.sort_by_key(|red| (task_of(red.test).unwrap_or(u32::MAX), red.test));
        red
    }

    /// Why the checks did not run to their end, in a line.
    pub fn obstacle(&self) -> Option<String> {
        let error = self.output.lines().find(|line| line.starts_with("error")).or(self.output.lines().last());
        let error = error.unwrap_or("no output");
        if self.hung {
            return Some("does not come to an end".into());
        }
        if self.suites.is_empty() {
            return Some(format!("does not compile: {error}"));
        }
        let crashed = self.suites.iter().find(|suite| !suite.ended)?;
        Some(format!("the checks of {} crash: {error}", crashed.name))
    }

    /// Why these chapters aren't all green and the reader's: a grader didn't run, or a check is red or ignored, say.
    pub fn not_green(&self, chapters: &[Chapter]) -> Vec<String> {
        let mut problems: Vec<String> = self.obstacle().into_iter().collect();
        problems.extend(self.red().iter().map(|red| format!("{} is red: {}", red.test, red.says())));
        for chapter in chapters {
            let Some(suite) = self.suites.iter().find(|suite| suite.name == chapter.name) else {
                problems.push(format!("{} did not run", chapter.name));
                continue;
            };
            if suite.tests.get(&format!("whose_code::{}::is_yours", chapter.name)) != Some(&TestOutcome::Passed) {
                problems.push(format!("{} does not say that it is the reader's", chapter.name));
            }
            let ignored = suite.tests.iter().filter(|(_, outcome)| matches!(outcome, TestOutcome::Ignored(_)));
            problems.extend(ignored.map(|(test, _)| format!("{test} is ignored")));
        }
        if problems.is_empty() && !self.success {
            problems.push(format!("cargo fails: {}", self.output.lines().last().unwrap_or("no output")));
        }
        problems
    }

    /// A warning of the compiler about the reader's file.
    pub fn warning(&self, chapter: &Chapter) -> Option<String> {
        let lines: Vec<&str> = self.output.lines().collect();
        let place = lines.iter().position(|line| line.contains("--> exercises/") && line.contains(&chapter.name))?;
        let what = lines[..place].iter().rev().find(|line| line.starts_with("warning") || line.starts_with("error"))?;
        what.starts_with("warning").then(|| format!("compiles with a {what}"))
    }
}

impl Red<'_> {
    /// A transcript that differs from its snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.words.contains(" Snapshot Summary ")
    }

    /// What it says: the message, or in a line the beginning of the difference from a snapshot.
    pub fn says(&self) -> String {
        if self.is_snapshot() {
            let changed = self.words.lines().filter_map(|line| line.split_once('│').map(|(_, text)| text));
            let changed: Vec<&str> = changed.filter(|text| text.starts_with(['-', '+'])).take(2).collect();
            return format!("transcript: {}", changed.join("; "));
        }
        let lines =
            self.words.lines().map(str::trim).filter(|line| !line.is_empty() && !line.contains(" panicked at "));
        lines.collect::<Vec<_>>().join("\n           ")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const WHOSE: &str = "whose_code::ch01_sum::is_yours";

    fn run(passed: &[&str], failed: &[(&str, &str)]) -> CargoRun {
        let passed = passed.iter().map(|test| (test.to_string(), TestOutcome::Passed));
        let failed = failed.iter().map(|(test, words)| (test.to_string(), TestOutcome::Failed(words.to_string())));
        let tests: BTreeMap<String, TestOutcome> = passed.chain(failed).collect();
        let suite = Suite { name: "ch01_sum".into(), announced: tests.len(), tests, ended: true };
        CargoRun { success: true, hung: false, output: String::new(), suites: vec![suite] }
    }

    #[test]
    fn green_means_that_every_grader_ran_on_the_readers_code() {
        let chapters = ["ch01_sum", "ch02_double"].map(|name| Chapter::named(name).unwrap());
        let mut ignored = run(&["a", WHOSE], &[]);
        ignored.suites[0].tests.insert("b".into(), TestOutcome::Ignored("not started".into()));
        let mut crashed = run(&["a", WHOSE], &[]);
        crashed.suites[0].ended = false;
        for (run, n_chapters, problems) in [
            (run(&["a", WHOSE], &[]), 1, &[][..]),
            (run(&["a", WHOSE], &[("b", "no")]), 1, &["b is red: no"]),
            (run(&["a"], &[]), 1, &["ch01_sum does not say that it is the reader's"]),
            (run(&["a", WHOSE], &[]), 2, &["ch02_double did not run"]),
            (ignored, 1, &["b is ignored"]),
            (crashed, 1, &["the checks of ch01_sum crash: no output"]),
        ] {
            assert_eq!(run.not_green(&chapters[..n_chapters]), problems);
        }
    }

    #[test]
    fn the_first_red_check_is_the_one_of_the_lowest_task() {
        let run =
            run(&[], &[("checks::whole_oracle", ""), ("checks::task_2_b", ""), ("checks::task_1_z", ""), (WHOSE, "")]);
        let order: Vec<&str> = run.red().iter().map(|red| red.test).collect();
        assert_eq!(order, ["checks::task_1_z", "checks::task_2_b", "checks::whole_oracle", WHOSE]);
    }
}
