//! Reads the output of `cargo test`: which tests ran in which program, how each ended, and what it printed.
//!
//! ```text
//!      Running tests/ch02_flat.rs (target/debug/deps/ch02_flat-a3e9)
//! running 2 tests
//! test checks::task_1_adds ... FAILED
//! test checks::task_2_holds ... ok
//!
//! failures:
//!
//! ---- checks::task_1_adds stdout ----
//! sum of [1, 2]                                   what the test printed, up to the next heading
//!   expected: 3
//!
//! failures:
//!     checks::task_1_adds
//!
//! test result: FAILED. 1 passed; 1 failed; …
//! ```
//!
//! A test can print any of these lines itself. It can't make a test green that failed: the last list counts.

use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suite {
    /// The file in `tests/` without `.rs`; empty if cargo's line about it is missing.
    pub name: String,
    /// The number of tests it was going to run.
    pub announced: usize,
    /// The tests that ended, by name.
    pub tests: BTreeMap<String, TestOutcome>,
    /// Whether it printed its last line, as it does unless it crashed or was stopped.
    pub ended: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestOutcome {
    Passed,
    /// It failed, and printed this. Empty if the program was stopped before libtest showed it.
    Failed(String),
    /// It didn't run, for this reason.
    Ignored(String),
}

/// The test programs of a run, in order.
pub fn suites(output: &str) -> Vec<Suite> {
    let lines: Vec<&str> = output.lines().collect();
    let starts: Vec<usize> = (0..lines.len()).filter(|at| program(lines[*at]).is_some()).collect();
    let ends = starts.iter().skip(1).copied().chain([lines.len()]);
    let named = starts.iter().zip(ends).map(|(start, end)| {
        let name = program(lines[*start]).unwrap_or_default().to_string();
        Suite { name, ..read(&lines[start + 1..end]) }
    });
    named.collect()
}

/// The only test program of a run, without cargo's line about it.
pub fn suite(output: &str) -> Suite {
    read(&output.lines().collect::<Vec<_>>())
}

/// The task that a test is named after: `checks::task_2_rows_stay` → 2.
pub fn task_of(test: &str) -> Option<u32> {
    test.rsplit("::").next()?.strip_prefix("task_")?.split('_').next()?.parse().ok()
}

/// `     Running tests/ch01_sum.rs (target/debug/deps/…)` → `ch01_sum`
fn program(line: &str) -> Option<&str> {
    let file = line.trim_start().strip_prefix("Running tests")?.split(" (").next()?;
    Some(file.trim_start_matches(['/', '\\']).trim_end_matches(".rs"))
}

fn read(lines: &[&str]) -> Suite {
    let announced = |line: &str| line.strip_prefix("running ")?.split(' ').next()?.parse().ok();
    let Some((begin, n)) = lines.iter().enumerate().find_map(|(at, line)| Some((at, announced(line)?))) else {
        return Suite::default();
    };
    let last_result = lines.iter().rposition(|line| line.starts_with("test result: "));
    let mut suite = Suite { announced: n, ended: last_result.is_some(), ..Suite::default() };
    let lines = &lines[begin..last_result.unwrap_or(lines.len())];
    // Between the first `failures:` and the last stands what tests printed; after that, the names of all that failed.
    let first = lines.iter().position(|line| *line == "failures:").unwrap_or(lines.len());
    let last = lines.iter().rposition(|line| *line == "failures:").unwrap_or(lines.len());
    for (name, outcome) in lines[..first].iter().filter_map(|line| result(line)) {
        // A test that prints such a line can't turn another one green.
        if !matches!(suite.tests.get(name), Some(TestOutcome::Failed(_))) {
            suite.tests.insert(name.into(), outcome);
        }
    }
    let listed = if suite.ended { &lines[last..] } else { &[] };
    let listed: Vec<&str> = listed.iter().filter_map(|line| line.strip_prefix("    ")).collect();
    suite.tests.extend(listed.iter().map(|name| (name.to_string(), TestOutcome::Failed(String::new()))));
    for (name, words) in printed(&lines[first..last], &listed) {
        suite.tests.insert(name.into(), TestOutcome::Failed(words));
    }
    suite
}

/// What each failed test printed. A test may print the heading of another one, so only the first of a name counts.
fn printed<'l>(lines: &[&'l str], failed: &[&str]) -> Vec<(&'l str, String)> {
    let mut headings: Vec<(usize, &str)> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let name = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----"));
        if let Some(name) = name.filter(|name| failed.contains(name))
            && headings.iter().all(|(_, before)| before != &name)
        {
            headings.push((at, name));
        }
    }
    let ends = headings.iter().skip(1).map(|(at, _)| *at).chain([lines.len()]);
    headings.iter().zip(ends).map(|((at, name), end)| (*name, lines[at + 1..end].join("\n"))).collect()
}

/// `test checks::task_1_adds ... ok`
fn result(line: &str) -> Option<(&str, TestOutcome)> {
    // What a test prints past libtest, without a line end, stands before it.
    let from = line.find("test ")?;
    let (name, result) = line[from + "test ".len()..].split_once(" ... ")?;
    let name = name.strip_suffix(" - should panic").unwrap_or(name);
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == ':');
    let outcome = match result {
        "ok" => TestOutcome::Passed,
        "FAILED" => TestOutcome::Failed(String::new()),
        _ => TestOutcome::Ignored(result.strip_prefix("ignored")?.trim_start_matches(", ").into()),
    };
    is_name.then_some((name, outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = include_str!("../samples/tests.txt");

    #[test]
    fn each_program_has_its_tests_and_their_words() {
        for output in [OUTPUT.to_string(), OUTPUT.replace('\n', "\r\n")] {
            let suites = suites(&output);
            let [first, second, third] = &suites[..] else { panic!("{suites:?}") };
            assert_eq!((first.name.as_str(), first.announced, first.ended), ("ch01_sum", 3, true));
            // Neither a line nor a heading that a test prints changes how another one ended.
            assert_eq!(first.tests["checks::story"], TestOutcome::Passed);
            let TestOutcome::Failed(words) = &first.tests["checks::task_1_adds"] else { panic!() };
            assert!(words.starts_with("\nthread 'checks::task_1_adds'") && words.ends_with("stdout ----\nmine"));
            assert_eq!(first.tests["checks::transcript"], TestOutcome::Failed("-old\n".into()));
            let reason = "not started: edit exercises/ch02_double.rs".to_string();
            assert_eq!(second.tests["ch02_double"], TestOutcome::Ignored(reason));
            assert_eq!((third.announced, third.ended), (2, false), "it crashed");
            assert_eq!(third.tests["checks::a"], TestOutcome::Failed(String::new()));
        }
    }

    #[test]
    fn output_past_libtest_hides_no_result() {
        let loud = "running 2 tests\nhello test checks::a ... ok\ntest checks::b ... FAILED\ntest checks::b ... ok\n\n\
                    failures:\n\n---- checks::b stdout ----\nx\n\nfailures:\n    checks::b\n\ntest result: x\n";
        let suite = suite(loud);
        assert_eq!(suite.tests["checks::a"], TestOutcome::Passed);
        assert_eq!(suite.tests["checks::b"], TestOutcome::Failed("x\n".into()));
        assert_eq!(super::suite("error: no such file\nrunning x tests\n"), Suite::default());
    }
}
