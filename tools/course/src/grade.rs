//! Plays what readers do, and sees what the graders say: green for right work, red for wrong, each for its own reason.
//!
//! A step costs a build, so the order is made for few of them. A chapter that is started for the first time builds the
//! whole crate; what follows in the same file builds little more than that file. Hence one chapter after the other:
//! the stub, the solution, the mistakes; and what runs without the feature at the end.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::course::{Chapter, Course};
use crate::mutation::{self, Mutation};
use crate::tasks;
use crate::trial::{Cargo, Failure, Trial};
use crate::workshop::Workshop;

/// What to grade.
pub struct Order {
    pub chapter: Option<usize>,
    /// Mistakes of each chapter, at most.
    pub mistakes: usize,
    pub target_dir: Option<PathBuf>,
    pub timeout: Duration,
}

pub enum Verdict {
    Sound,
    Problems,
}

/// Appended to a stub or a solution, so that it is not the untouched stub.
const STARTED: &str = "\n// Started.\n";

/// Grades all chapters, or one.
pub fn grade(course: &Course, order: &Order) -> Result<Verdict> {
    let target = match (&order.target_dir, std::env::var_os("CARGO_TARGET_DIR")) {
        (Some(folder), _) => folder.clone(),
        (None, Some(folder)) => PathBuf::from(folder).join("course"),
        (None, None) => course.root.join("target/course"),
    };
    std::fs::create_dir_all(&target).with_context(|| format!("cannot make the folder {}", target.display()))?;
    let lock = File::create(target.join("lock"))?;
    if lock.try_lock().is_err() {
        bail!("another run grades in {}: wait for it, or name another folder with --target-dir", target.display());
    }
    let workshop = Workshop::open(&course.root, &target.join("copy"))?;
    let cargo =
        Cargo { root: workshop.root.clone(), target: target.canonicalize()?.join("build"), timeout: order.timeout };
    // From here on only the copy counts: the repository may be edited meanwhile.
    let course = Course { root: workshop.root.clone() };
    let all = course.chapters()?;
    let mut chapters = all.clone();
    if let Some(number) = order.chapter {
        chapters.retain(|chapter| chapter.number() == Some(number));
        if chapters.is_empty() {
            let last = all.last().and_then(Chapter::number).unwrap_or(0);
            bail!("there is no chapter {number} (there are 1 to {last})");
        }
    }

    let snapshots = workshop.snapshots()?;
    let mistakes = order.mistakes;
    let mut grading = Grading { course, workshop, cargo, mistakes, log: Log::new(), rows: Vec::new(), snapshots };
    grading.untouched_with_reference(&chapters)?;
    for chapter in &chapters {
        let is_last = all.last() == Some(chapter);
        grading.chapter(chapter, if is_last && order.chapter.is_none() { Some(&all) } else { None })?;
        grading.workshop.restore()?;
    }
    grading.untouched_without_reference(&chapters)?;
    if order.chapter.is_none() {
        grading.all_solutions(&all)?;
        grading.workshop.restore()?;
    }
    grading.summary(chapters.len())
}

struct Grading {
    course: Course,
    workshop: Workshop,
    cargo: Cargo,
    /// Mistakes of each chapter, at most.
    mistakes: usize,
    log: Log,
    rows: Vec<Row>,
    /// The snapshots as they are handed out.
    snapshots: BTreeMap<String, Vec<u8>>,
}

/// A mistake and what came of it.
struct Row {
    chapter: String,
    mistake: String,
    red: Vec<String>,
    /// What the first red check says, in a line.
    says: String,
    /// Some check says what is wrong, rather than the code that it calls panicking.
    explained: bool,
}

/// The outcome of a step: what was seen, or what is wrong.
type Outcome = std::result::Result<String, Vec<String>>;

fn outcome(seen: impl Into<String>, problems: Vec<String>) -> Outcome {
    if problems.is_empty() { Ok(seen.into()) } else { Err(problems) }
}

/// The arguments that select the graders of some chapters.
fn graders<'a>(chapters: &'a [Chapter], first: &[&'a str]) -> Vec<&'a str> {
    let selected = chapters.iter().flat_map(|chapter| ["--test", chapter.name.as_str()]);
    first.iter().copied().chain(["--no-fail-fast"]).chain(selected).collect()
}

const REFERENCE: [&str; 2] = ["--features", "solution"];

impl Grading {
    /// A fresh clone, with the feature: the reference is graded, and passes.
    fn untouched_with_reference(&mut self, chapters: &[Chapter]) -> Result<()> {
        self.log.begin("untouched, with the reference");
        let trial = self.cargo.test(&graders(chapters, &REFERENCE), &[])?;
        self.log.end(all_green(&trial, chapters));
        Ok(())
    }

    /// A fresh clone, without: nothing to grade, and the reason given.
    fn untouched_without_reference(&mut self, chapters: &[Chapter]) -> Result<()> {
        self.log.begin("untouched, without the reference");
        let trial = self.cargo.test(&graders(chapters, &[]), &[])?;
        let mut problems = complaints(&trial, chapters);
        for suite in &trial.suites {
            let reasons: Vec<&str> = suite.ignored.iter().map(|(_, reason)| reason.as_str()).collect();
            if !matches!(reasons[..], [reason] if reason.starts_with("not started")) || !suite.passed.is_empty() {
                let problem = "should have one check, ignored with the reason `not started: …`";
                problems.push(format!("{} {problem}; ignored are {reasons:?}, {} ran", suite.name, suite.passed.len()));
            }
        }
        self.log.end(outcome("each ignored: not started", problems));
        Ok(())
    }

    /// Every stub solved, without the feature: only the reader's code is compiled.
    fn all_solutions(&mut self, chapters: &[Chapter]) -> Result<()> {
        self.log.begin("all solutions over their stubs, without the reference");
        for chapter in chapters {
            let solution = self.course.read(&chapter.solution())?;
            self.workshop.put(&chapter.stub(), &(solution + STARTED))?;
        }
        let trial = self.cargo.test(&graders(chapters, &[]), &[])?;
        self.log.end(all_green(&trial, chapters));
        Ok(())
    }

    /// One chapter started, all others as they are handed out. With `all`, the solution is graded with all chapters.
    fn chapter(&mut self, chapter: &Chapter, all: Option<&[Chapter]>) -> Result<()> {
        let own = std::slice::from_ref(chapter);
        let stub = self.course.read(&chapter.stub())?;
        let solution = self.course.read(&chapter.solution())?;

        self.log.begin(format!("{} stub, started", chapter.short()));
        self.workshop.put(&chapter.stub(), &(stub.clone() + STARTED))?;
        let trial = self.cargo.test(&graders(own, &REFERENCE), &[])?;
        self.log.end(stub_is_red(&trial, chapter, &stub)?);

        self.log.begin(format!("{} solution over its stub", chapter.short()));
        self.workshop.put(&chapter.stub(), &(solution.clone() + STARTED))?;
        let trial = self.cargo.test(&graders(all.unwrap_or(own), &REFERENCE), &[])?;
        let mut outcome = all_green(&trial, all.unwrap_or(own));
        if let Ok(seen) = &mut outcome {
            if let Some(warning) = warning(&trial, chapter) {
                outcome = Err(vec![warning]);
            } else if all.is_some() {
                *seen = format!("{seen}; all others untouched");
            }
        }
        self.log.end(outcome);
        if let Some(all) = all {
            self.status(chapter, all)?;
        }

        let mut protected = false;
        for mutation in mutation::spread(mutation::of(&self.course, chapter)?, self.mistakes) {
            let trial = self.mistake(chapter, &mutation, &solution)?;
            if !protected && trial.is_some_and(|trial| trial.failures().any(Failure::is_snapshot)) {
                protected = true;
                self.snapshots_stay(chapter)?;
            }
        }
        if !protected && self.reads_snapshot(chapter)? {
            self.log.begin(format!("{} snapshots", chapter.short()));
            self.log
                .end(Err(vec!["no mistake in the list turns the transcript red: its protection was not tried".into()]));
        }
        Ok(())
    }

    /// Whose code runs, as the command line tells it: the program that the checks were built with.
    fn status(&mut self, chapter: &Chapter, all: &[Chapter]) -> Result<()> {
        self.log.begin(format!("{} page-by-page status", chapter.short()));
        let help = self.cargo.program("page-by-page", &["--help"])?;
        if !help.lines().any(|line| line.trim_start().starts_with("status")) {
            self.log.end(Ok("left out: the command line has no `status`".into()));
            return Ok(());
        }
        let status = self.cargo.program("page-by-page", &["status"])?;
        let mut problems = Vec::new();
        for other in all {
            let number = other.number().unwrap_or(0).to_string();
            let whose = if other == chapter { "yours" } else { "reference" };
            let line = status.lines().find(|line| line.split_whitespace().next() == Some(&number));
            if !line.is_some_and(|line| line.contains(whose)) {
                problems.push(format!(
                    "should say that {} is {whose}: {}",
                    other.name,
                    line.unwrap_or("no line of it")
                ));
            }
        }
        self.log.end(outcome(format!("{} yours, the others the reference's", chapter.short()), problems));
        Ok(())
    }

    /// A wrong solution over its stub. Gives the trial if its checks ran.
    fn mistake(&mut self, chapter: &Chapter, mutation: &Mutation, solution: &str) -> Result<Option<Trial>> {
        self.log.begin(format!("{} mistake: {}", chapter.short(), mutation.name));
        let wrong = match mutation.apply(solution) {
            Ok(wrong) => wrong,
            Err(problem) => {
                self.log.end(Err(vec![problem]));
                return Ok(None);
            }
        };
        self.workshop.put(&chapter.stub(), &(wrong + STARTED))?;
        let trial = self.cargo.test(&graders(std::slice::from_ref(chapter), &REFERENCE), &[])?;
        let mut red: Vec<String> = trial.red().into_iter().map(short_name).collect();
        red.sort_by_key(|test| (tasks::of_test(test).is_none(), test.clone()));
        // The check that says most: one that explains, and of a task.
        let of_a_task = |failure: &Failure| tasks::of_test(&failure.test).is_some();
        let telling =
            trial.failures().min_by_key(|failure| (!failure.is_explained(), !of_a_task(failure), &failure.test));
        let explained = telling.is_some_and(Failure::is_explained);
        let says = telling.map(Failure::says).unwrap_or_default();

        let mut problems: Vec<String> = trial.obstacle().into_iter().collect();
        if problems.is_empty() && red.is_empty() {
            problems.push("no check notices".into());
        }
        if let Some(expected) = mutation.expect.as_ref().filter(|_| !red.is_empty()) {
            let said = trial.failures().any(|failure| failure.message.contains(expected.as_str()));
            if !said {
                problems.push(format!("is red, but no check says `{expected}`; the first says `{says}`"));
            }
        }
        let seen = if red.len() == 1 { "1 red".to_string() } else { format!("{} red", red.len()) };
        let says = if problems.is_empty() { says } else { problems.join("; ") };
        let (chapter, mistake) = (chapter.short().to_string(), mutation.name.clone());
        self.rows.push(Row { chapter, mistake, red, says, explained });
        let ran = problems.is_empty();
        self.log.end(outcome(seen, problems));
        Ok(ran.then_some(trial))
    }

    /// The mistake that is in place stays red by all usual ways to accept a snapshot, and nothing is written.
    fn snapshots_stay(&mut self, chapter: &Chapter) -> Result<()> {
        let has_cargo_insta = self.cargo.run(&["insta", "--version"], &[])?.success;
        let tests = [&REFERENCE[..], &["--test", &chapter.name]].concat();
        let ways = [
            ("cargo test", vec!["test"], vec![]),
            ("INSTA_UPDATE=always cargo test", vec!["test"], vec![("INSTA_UPDATE", "always")]),
            ("INSTA_FORCE_PASS=1 cargo test", vec!["test"], vec![("INSTA_FORCE_PASS", "1")]),
            ("cargo insta test --accept", vec!["insta", "test", "--accept"], vec![]),
        ];
        for (name, command, environment) in ways {
            self.log.begin(format!("{} snapshot: {name}", chapter.short()));
            if command[0] == "insta" && !has_cargo_insta {
                self.log.end(Ok("left out: cargo-insta is not installed".into()));
                continue;
            }
            self.workshop.reset_snapshots(&self.snapshots)?;
            let trial = self.cargo.run(&[&command[..], &tests].concat(), &environment)?;
            let mut problems: Vec<String> = trial.obstacle().into_iter().collect();
            if trial.success || !trial.failures().any(Failure::is_snapshot) {
                problems.push("turns a wrong transcript green".into());
            }
            let after = self.workshop.snapshots()?;
            let written = after.iter().filter(|(file, content)| self.snapshots.get(*file) != Some(content));
            let written: Vec<&str> = written.map(|(file, _)| file.as_str()).collect();
            if !written.is_empty() {
                problems.push(format!("writes {}", written.join(", ")));
            }
            self.log.end(outcome("stays red, nothing written", problems));
        }
        self.workshop.reset_snapshots(&self.snapshots)
    }

    /// A snapshot of the chapter exists.
    fn reads_snapshot(&self, chapter: &Chapter) -> Result<bool> {
        let names = self.course.names(crate::protection::SNAPSHOTS, ".snap")?;
        Ok(names.iter().any(|name| name.starts_with(chapter.short())))
    }

    fn summary(&self, chapters: usize) -> Result<Verdict> {
        let mut out = std::io::stdout().lock();
        writeln!(out)?;
        for row in &self.rows {
            writeln!(out, "{}  {}", row.chapter, row.mistake)?;
            writeln!(out, "      {}", named(&row.red))?;
            let by_panic = if row.explained { "" } else { "only a panic: " };
            writeln!(out, "      {by_panic}{}", shortened(&row.says, 160))?;
        }
        let caught = self.rows.iter().filter(|row| !row.red.is_empty());
        let by_panic = caught.clone().filter(|row| !row.explained).count();
        let caught = caught.count();
        let minutes = self.log.started.elapsed().as_secs_f64() / 60.0;
        writeln!(out, "\n{caught} of {} mistakes are caught, {by_panic} of them only by a panic", self.rows.len())?;
        writeln!(out, "{minutes:.1} minutes")?;
        if self.log.problems.is_empty() {
            let what = if chapters == 1 { "1 chapter is".into() } else { format!("{chapters} chapters are") };
            writeln!(out, "{what} sound")?;
            return Ok(Verdict::Sound);
        }
        writeln!(out, "{} problems:", self.log.problems.len())?;
        for problem in &self.log.problems {
            writeln!(out, "  {problem}")?;
        }
        Ok(Verdict::Problems)
    }
}

/// What should not be in a run that is green or ignored.
fn complaints(trial: &Trial, chapters: &[Chapter]) -> Vec<String> {
    let mut problems: Vec<String> = trial.obstacle().into_iter().collect();
    for failure in trial.failures() {
        problems.push(format!("{} is red: {}", short_name(&failure.test), failure.says()));
    }
    if trial.ran() && trial.suites.len() != chapters.len() {
        problems.push(format!("{} graders ran, not {}", trial.suites.len(), chapters.len()));
    }
    if problems.is_empty() && !trial.success {
        problems.push(format!("cargo fails: {}", trial.output.lines().last().unwrap_or("no output")));
    }
    problems
}

/// Every grader ran, and nothing was red or ignored.
fn all_green(trial: &Trial, chapters: &[Chapter]) -> Outcome {
    let mut problems = complaints(trial, chapters);
    for suite in &trial.suites {
        for (test, reason) in &suite.ignored {
            problems.push(format!("{test} of {} is ignored: {reason}", suite.name));
        }
        if suite.passed.is_empty() && suite.failed.is_empty() {
            problems.push(format!("{} has nothing to check", suite.name));
        }
    }
    let passed: usize = trial.suites.iter().map(|suite| suite.passed.len()).sum();
    outcome(format!("{passed} green"), problems)
}

/// A started stub compiles without a warning, is red, and each of its tasks is asked for by name.
fn stub_is_red(trial: &Trial, chapter: &Chapter, stub: &str) -> Result<Outcome> {
    let mut problems: Vec<String> = trial.obstacle().into_iter().collect();
    problems.extend(warning(trial, chapter));
    let parsed = syn::parse_file(stub).with_context(|| format!("{} is not Rust", chapter.stub()))?;
    let numbers = tasks::numbers(&parsed);
    for task in &numbers {
        let words = format!("{} task {task}", chapter.short());
        let asked = |failure: &Failure| {
            tasks::of_test(&failure.test) == Some(*task) || failure.message.contains(&format!("{words}:"))
        };
        if trial.ran() && !trial.failures().any(asked) {
            problems.push(format!("no red check is about {words}"));
        }
    }
    let says_todo = trial.failures().filter(|failure| failure.says().starts_with("not yet implemented: ch")).count();
    let red = trial.red().len();
    let green: usize = trial.suites.iter().map(|suite| suite.passed.len()).sum();
    if trial.ran() && says_todo == 0 {
        problems.push("no red check shows the text of a todo!".into());
    }
    Ok(outcome(format!("{red} red, {green} green; {} tasks, each red", numbers.len()), problems))
}

/// A warning of the compiler about the reader's file.
fn warning(trial: &Trial, chapter: &Chapter) -> Option<String> {
    let lines: Vec<&str> = trial.output.lines().collect();
    let place = lines.iter().position(|line| line.contains("--> exercises/") && line.contains(&chapter.name))?;
    let what = lines[..place].iter().rev().find(|line| line.starts_with("warning") || line.starts_with("error"))?;
    what.starts_with("warning").then(|| format!("compiles with a {what}"))
}

/// `checks::task_1_adds` → `task_1_adds`
fn short_name(test: &str) -> String {
    test.rsplit("::").next().unwrap_or(test).to_string()
}

/// The first of some names, and how many more.
fn named(tests: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown = tests.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match tests.len() {
        0 => "NOT CAUGHT".into(),
        n if n > SHOWN => format!("{n} red: {shown}, …"),
        n => format!("{n} red: {shown}"),
    }
}

fn shortened(text: &str, chars: usize) -> String {
    if text.chars().count() <= chars { text.into() } else { text.chars().take(chars - 1).chain(['…']).collect() }
}

/// A line for each step, with its time.
struct Log {
    started: Instant,
    step: Instant,
    label: String,
    problems: Vec<String>,
}

impl Log {
    fn new() -> Self {
        Log { started: Instant::now(), step: Instant::now(), label: String::new(), problems: Vec::new() }
    }

    fn begin(&mut self, label: impl Into<String>) {
        self.step = Instant::now();
        self.label = label.into();
        if std::io::stdout().is_terminal() {
            print!("        …  {}", self.label);
            let _ = std::io::stdout().flush();
        }
    }

    fn end(&mut self, outcome: Outcome) {
        let line_start = if std::io::stdout().is_terminal() { "\r" } else { "" };
        let seconds = self.step.elapsed().as_secs_f64();
        match outcome {
            Ok(seen) => println!("{line_start}{seconds:7.1} s  {}: {seen}", self.label),
            Err(problems) => {
                println!("{line_start}{seconds:7.1} s  {}: PROBLEM", self.label);
                for problem in problems {
                    println!("             {problem}");
                    self.problems.push(format!("{}: {problem}", self.label));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::Suite;

    const STUB: &str = "fn a() { todo!(\"ch01 task 1: a\") }\nfn b() { todo!(\"ch01 task 2: b\") }";

    fn chapter() -> Chapter {
        Chapter { name: "ch01_sum".into() }
    }

    fn trial(passed: &[&str], failed: &[(&str, &str)], output: &str) -> Trial {
        let failure = |(test, says): &(&str, &str)| Failure {
            test: test.to_string(),
            message: format!("thread '{test}' (1) panicked at tests/ch01_sum.rs:1:1:\n{says}\n"),
        };
        let suite = Suite {
            name: "ch01_sum".into(),
            passed: passed.iter().map(ToString::to_string).collect(),
            failed: failed.iter().map(failure).collect(),
            ignored: Vec::new(),
            ended: true,
        };
        Trial { success: failed.is_empty(), hung: false, output: output.into(), suites: vec![suite] }
    }

    #[test]
    fn each_task_of_a_stub_must_be_red() {
        let todo = "not yet implemented: ch01 task 1: a";
        let both = trial(&[], &[("checks::task_1_a", todo), ("checks::task_2_b", todo)], "");
        assert_eq!(stub_is_red(&both, &chapter(), STUB).unwrap(), Ok("2 red, 0 green; 2 tasks, each red".into()));
        let by_message = trial(&[], &[("story", todo), ("oracle", "not yet implemented: ch01 task 2: b")], "");
        assert!(stub_is_red(&by_message, &chapter(), STUB).unwrap().is_ok());
        let one = trial(&["checks::task_2_b"], &[("checks::task_1_a", todo)], "");
        assert_eq!(stub_is_red(&one, &chapter(), STUB).unwrap(), Err(vec!["no red check is about ch01 task 2".into()]));
    }

    #[test]
    fn a_stub_compiles_without_a_warning() {
        let output = "warning: unused variable: `x`\n --> exercises/ch01_sum.rs:3:4\n";
        let problem = warning(&trial(&[], &[], output), &chapter());
        assert_eq!(problem.as_deref(), Some("compiles with a warning: unused variable: `x`"));
        let elsewhere = "warning: unused variable: `x`\n --> src/model.rs:3:4\n";
        assert_eq!(warning(&trial(&[], &[], elsewhere), &chapter()), None);
    }

    #[test]
    fn green_means_that_every_grader_ran() {
        let chapters = [chapter()];
        assert_eq!(all_green(&trial(&["a", "b"], &[], ""), &chapters), Ok("2 green".into()));
        assert!(all_green(&trial(&["a"], &[("b", "no")], ""), &chapters).is_err());
        assert!(all_green(&trial(&[], &[], ""), &chapters).is_err());
        let two = [chapter(), Chapter { name: "ch02_double".into() }];
        assert!(all_green(&trial(&["a"], &[], ""), &two).is_err());
        let mut ignored = trial(&["a"], &[], "");
        ignored.suites[0].ignored.push(("b".into(), "not started".into()));
        assert_eq!(all_green(&ignored, &chapters), Err(vec!["b of ch01_sum is ignored: not started".into()]));
    }
}
