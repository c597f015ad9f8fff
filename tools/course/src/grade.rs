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

/// The share of the mistakes that must first be reported by a line which says what the reader's code did, in percent.
const EXPLAINED: usize = 95;

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
    let (log, rows) = (Log::new(), Vec::new());
    let mut grading = Grading { course, workshop, cargo, mistakes, all_tried: true, log, rows, snapshots };
    grading.untouched_with_reference(&chapters)?;
    grading.refusals(&chapters[0])?;
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
    /// No list was longer than that.
    all_tried: bool,
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
    /// What the first red check says, in a line; or what is wrong with this step.
    says: String,
    /// The first red check says what the reader's code did.
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
        self.log.end(all_green(&trial, chapters, |_| REFERENCES));
        Ok(())
    }

    /// Files that cannot be graded fairly stop the build, each with the advice that helps.
    fn refusals(&mut self, chapter: &Chapter) -> Result<()> {
        let file = chapter.stub();
        let stub = self.course.read(&file)?;
        let bad_byte = [stub.as_bytes(), b"// caf\xe9\n"].concat();
        let exit = stub + "\nfn end() { std::process::exit(0) }\n";
        for (name, content, says) in [
            ("a byte that is not UTF-8", Some(bad_byte), "not text in UTF-8: the byte 0xE9"),
            ("std::process::exit(0)", Some(exit.into_bytes()), "a chapter may not use std::process"),
            ("no file", None, "is missing: restore it with `git checkout"),
        ] {
            self.log.begin(format!("{} {name}", chapter.short()));
            match &content {
                Some(content) => self.workshop.put(&file, content)?,
                None => self.workshop.remove(&file)?,
            }
            let trial = self.cargo.test(&graders(std::slice::from_ref(chapter), &REFERENCE), &[])?;
            let mut problems = Vec::new();
            if trial.ran() || !trial.output.contains(says) {
                problems.push(format!("should stop the build with `{says}`"));
            }
            if content.is_some() && trial.output.contains("git checkout") {
                problems.push("advises to throw the file away".into());
            }
            self.log.end(outcome("stops the build", problems));
            self.workshop.restore_file(&file)?;
        }
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
        self.log.end(all_green(&trial, chapters, |_| YOURS));

        self.log.begin("the program's stories on all of them");
        let trial = self.cargo.test(&["--no-fail-fast", "--test", "stories"], &[])?;
        let mut problems: Vec<String> = trial.obstacle().into_iter().collect();
        problems.extend(trial.failures().map(|failure| format!("{} is red: {}", failure.test, failure.says())));
        let told: usize = trial.suites.iter().map(|suite| suite.passed.len()).sum();
        problems
            .extend(trial.suites.iter().flat_map(|suite| &suite.ignored).map(|(test, _)| format!("{test} is ignored")));
        self.log.end(outcome(format!("{told} green"), problems));
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
        let whose = |name: &str| if name == chapter.name { YOURS } else { REFERENCES };
        let mut outcome = all_green(&trial, all.unwrap_or(own), whose);
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
        self.stale(chapter, &stub)?;
        self.no_runs(chapter)?;

        let mutations = mutation::of(&self.course, chapter)?;
        self.all_tried &= mutations.len() <= self.mistakes;
        self.without_program()?;
        let mut protected = false;
        for mutation in mutation::spread(mutations, self.mistakes) {
            let trial = self.mistake(chapter, &mutation, &solution)?;
            if !protected && mutation.transcript && trial.is_some() {
                protected = true;
                self.snapshots_stay(chapter)?;
            }
        }
        Ok(())
    }

    /// Another file over the reader's, with an older date: cargo builds nothing, and the checks say so.
    fn stale(&mut self, chapter: &Chapter, stub: &str) -> Result<()> {
        self.log.begin(format!("{} another file, with an old date", chapter.short()));
        let file = chapter.stub();
        let (date, solved) = (self.workshop.date(&file)?, self.course.read(&file)?);
        self.workshop.put_dated(&file, stub.to_string() + STARTED, date - Duration::from_secs(24 * 3600))?;
        let trial = self.cargo.test(&graders(std::slice::from_ref(chapter), &REFERENCE), &[])?;
        let mut problems: Vec<String> = trial.obstacle().into_iter().collect();
        let check = format!("whose_code::{}::{YOURS}", chapter.name);
        let advice = format!("`touch {file}`");
        if !trial.failures().any(|failure| failure.test == check && failure.message.contains(&advice)) {
            problems.push(format!("{check} should be red and say {advice}"));
        }
        self.log.end(outcome("red, with the next step", problems));
        self.workshop.put_dated(&file, solved, date)
    }

    /// An oracle that is told to run no seed is not green.
    fn no_runs(&mut self, chapter: &Chapter) -> Result<()> {
        if !self.course.read(&chapter.grader())?.contains("seeds(") {
            return Ok(());
        }
        for runs in ["0", "many"] {
            self.log.begin(format!("{} PAGE_BY_PAGE_SEEDS={runs}", chapter.short()));
            let own = graders(std::slice::from_ref(chapter), &REFERENCE);
            let trial = self.cargo.test(&own, &[("PAGE_BY_PAGE_SEEDS", runs)])?;
            let mut problems: Vec<String> = trial.obstacle().into_iter().collect();
            let says = format!("PAGE_BY_PAGE_SEEDS is \"{runs}\": ");
            if !trial.failures().any(|failure| failure.message.contains(&says)) {
                problems.push(format!("no check says `{says}`"));
            }
            self.log.end(outcome("red", problems));
        }
        Ok(())
    }

    /// From here to the next restoring, only the graders are built, not the program: half of the time for each mistake.
    fn without_program(&self) -> Result<()> {
        let manifest = self.course.read("Cargo.toml")?;
        let without: String = manifest
            .lines()
            .map(|line| if line.starts_with("default-run = ") { "autobins = false" } else { line })
            .flat_map(|line| [line, "\n"])
            .collect();
        self.workshop.put("Cargo.toml", without)
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
        let mut failures: Vec<&Failure> = trial.failures().collect();
        failures.sort_by_key(|failure| reading_order(&failure.test));
        let red: Vec<String> = failures.iter().map(|failure| short_name(&failure.test)).collect();
        let first = failures.first();
        let explained = first.is_some_and(|first| first.is_explained());
        let says = first.map(|first| first.says()).unwrap_or_default();

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
        if problems.is_empty() && mutation.transcript && !trial.failures().any(Failure::is_snapshot) {
            problems.push("the transcript is green, and the list has `transcript = true`".into());
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
        let manifest = self.cargo.root.join("Cargo.toml");
        let manifest = manifest.to_str().context("the path of the copy is not UTF-8")?;
        let (inside, outside) = (self.cargo.root.clone(), std::env::temp_dir());
        let from_outside = vec!["test", "--manifest-path", manifest];
        let ways = [
            ("cargo test", vec!["test"], vec![], &inside),
            ("INSTA_UPDATE=always cargo test", vec!["test"], vec![("INSTA_UPDATE", "always")], &inside),
            ("INSTA_FORCE_PASS=1 cargo test", vec!["test"], vec![("INSTA_FORCE_PASS", "1")], &inside),
            ("INSTA_FORCE_UPDATE=1 cargo test", vec!["test"], vec![("INSTA_FORCE_UPDATE", "1")], &inside),
            ("INSTA_UPDATE=always, from outside", from_outside.clone(), vec![("INSTA_UPDATE", "always")], &outside),
            ("INSTA_FORCE_PASS=1, from outside", from_outside, vec![("INSTA_FORCE_PASS", "1")], &outside),
            ("cargo insta test --accept", vec!["insta", "test", "--accept"], vec![], &inside),
        ];
        for (name, command, environment, folder) in ways {
            self.log.begin(format!("{} snapshot: {name}", chapter.short()));
            if command[0] == "insta" && !has_cargo_insta {
                self.log.end(Ok("left out: cargo-insta is not installed".into()));
                continue;
            }
            self.workshop.reset_snapshots(&self.snapshots)?;
            let trial = self.cargo.run_in(folder, &[&command[..], &tests].concat(), &environment)?;
            let mut problems: Vec<String> = trial.obstacle().into_iter().collect();
            let refused = |failure: &Failure| failure.message.contains("tells insta to accept a wrong transcript");
            if trial.success || !trial.failures().any(|failure| failure.is_snapshot() || refused(failure)) {
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

    fn summary(&self, chapters: usize) -> Result<Verdict> {
        let mut out = std::io::stdout().lock();
        writeln!(out)?;
        for row in &self.rows {
            writeln!(out, "{}  {}", row.chapter, row.mistake)?;
            writeln!(out, "      {}", named(&row.red))?;
            writeln!(out, "      {}", shortened(&row.says, 160))?;
        }
        let caught: Vec<&Row> = self.rows.iter().filter(|row| !row.red.is_empty()).collect();
        writeln!(out, "\n{} of {} mistakes are caught", caught.len(), self.rows.len())?;
        let (explained, by_panic): (Vec<&Row>, Vec<&Row>) = caught.into_iter().partition(|row| row.explained);
        if !by_panic.is_empty() {
            writeln!(
                out,
                "{} of them are first reported by a panic that does not say what was asked:",
                by_panic.len()
            )?;
        }
        for row in by_panic {
            writeln!(out, "  {}  {}: {}", row.chapter, row.mistake, shortened(&row.says, 100))?;
        }
        let problem = too_few_explained(explained.len(), self.rows.len()).filter(|_| self.all_tried);
        let mut problems = self.log.problems.clone();
        problems.extend(problem);
        if !self.rows.is_empty() {
            let percent = 100.0 * explained.len() as f64 / self.rows.len() as f64;
            writeln!(out, "{percent:.1} % are first reported by a line that names what the reader's code did")?;
        }
        let minutes = self.log.started.elapsed().as_secs_f64() / 60.0;
        writeln!(out, "{minutes:.1} minutes")?;
        if problems.is_empty() {
            let what = if chapters == 1 { "1 chapter is".into() } else { format!("{chapters} chapters are") };
            writeln!(out, "{what} sound")?;
            return Ok(Verdict::Sound);
        }
        writeln!(out, "{} problems:", problems.len())?;
        for problem in &problems {
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

/// What is wrong if too few of the mistakes are first reported by a line that says what the reader's code did.
fn too_few_explained(explained: usize, mistakes: usize) -> Option<String> {
    (100 * explained < EXPLAINED * mistakes).then(|| {
        format!(
            "{explained} of {mistakes} mistakes are first reported by a line that names what the reader's code did: \
                 fewer than {EXPLAINED} %"
        )
    })
}

/// How a grader names the check that says whose code ran.
const YOURS: &str = "is_yours";
const REFERENCES: &str = "is_the_reference_not_yours";

/// Every grader ran, nothing was red or ignored, and each said whose code of which chapter it ran.
fn all_green(trial: &Trial, chapters: &[Chapter], whose: impl Fn(&str) -> &'static str) -> Outcome {
    let mut problems = complaints(trial, chapters);
    for suite in &trial.suites {
        let said: Vec<(&str, &str)> =
            suite.passed.iter().filter_map(|test| test.strip_prefix("whose_code::")?.split_once("::")).collect();
        for (chapter, word) in said.iter().filter(|(chapter, word)| *word != whose(chapter)) {
            problems.push(format!("{} says that {chapter} {word}, not that it {}", suite.name, whose(chapter)));
        }
        if !said.iter().any(|(chapter, _)| *chapter == suite.name) {
            problems.push(format!("{} does not say whose code it graded", suite.name));
        }
    }
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
    // Alone, or behind the question that the check asked.
    let says_todo = trial.failures().filter(|failure| failure.says().contains("not yet implemented: ch")).count();
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

/// The order in which a reader is told to look at red checks: by task, then those of the whole chapter.
fn reading_order(test: &str) -> (usize, String) {
    (tasks::of_test(test).unwrap_or(usize::MAX), test.into())
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
        let asked =
            "a sum of 1, 2\n  your code panicked (exercises/ch01_sum.rs:5): not yet implemented: ch01 task 1: a";
        let behind = trial(&[], &[("checks::task_1_a", asked), ("checks::task_2_b", asked)], "");
        assert!(stub_is_red(&behind, &chapter(), STUB).unwrap().is_ok());
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
        let green = |trial: &Trial, chapters: &[Chapter]| all_green(trial, chapters, |_| YOURS);
        let whose = "whose_code::ch01_sum::is_yours";
        assert_eq!(green(&trial(&["a", whose], &[], ""), &chapters), Ok("2 green".into()));
        assert!(green(&trial(&["a", whose], &[("b", "no")], ""), &chapters).is_err());
        assert!(green(&trial(&[], &[], ""), &chapters).is_err());
        let two = [chapter(), Chapter { name: "ch02_double".into() }];
        assert!(green(&trial(&["a", whose], &[], ""), &two).is_err());
        let mut ignored = trial(&["a", whose], &[], "");
        ignored.suites[0].ignored.push(("b".into(), "not started".into()));
        assert_eq!(green(&ignored, &chapters), Err(vec!["b of ch01_sum is ignored: not started".into()]));
    }

    #[test]
    fn green_says_whose_code_ran() {
        let chapters = [chapter()];
        let problem = |passed: &[&str], whose| all_green(&trial(passed, &[], ""), &chapters, |_| whose).unwrap_err();
        let nobodys = "ch01_sum does not say whose code it graded".to_string();
        assert_eq!(problem(&["a"], YOURS), [nobodys]);
        let reference = "whose_code::ch01_sum::is_the_reference_not_yours";
        let wrong = "ch01_sum says that ch01_sum is_the_reference_not_yours, not that it is_yours".to_string();
        assert_eq!(problem(&["a", reference], YOURS), [wrong]);
        assert_eq!(all_green(&trial(&["a", reference], &[], ""), &chapters, |_| REFERENCES), Ok("2 green".into()));
    }

    #[test]
    fn checks_are_read_by_task_then_those_of_the_whole_chapter() {
        let mut tests =
            ["whose_code::ch01_sum::is_yours", "checks::whole_oracle", "checks::task_2_b", "checks::task_1_z"];
        tests.sort_by_key(|test| reading_order(test));
        let first_to_last =
            ["checks::task_1_z", "checks::task_2_b", "checks::whole_oracle", "whose_code::ch01_sum::is_yours"];
        assert_eq!(tests, first_to_last);
    }

    #[test]
    fn nineteen_of_twenty_mistakes_must_be_explained() {
        assert_eq!(too_few_explained(19, 20), None);
        assert_eq!(too_few_explained(0, 0), None);
        assert!(too_few_explained(18, 19).unwrap().starts_with("18 of 19 mistakes are first reported by a line"));
    }
}
