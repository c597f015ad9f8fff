//! One run of a chapter's checks: built, followed, ended when a newer one begins or when it takes too long.

use std::path::{Path, PathBuf};
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use page_by_page_course::cargo::{self, Environment, Line, Process, Progress, Streams};
use page_by_page_course::chapters::Chapter;
use page_by_page_course::libtest::{self, TestOutcome};

use crate::compiler::{Build, Diagnostic, is_progress, refusals};
use crate::verdict::Verdict;

#[derive(Clone, Debug, Default)]
pub enum RunResult {
    #[default]
    NotRun,
    CompileErrors(Vec<Diagnostic>),
    /// Nothing was compiled, for the reason that cargo or `build.rs` gave.
    Refused(String),
    /// All checks ran.
    Finished(Verdict),
    /// Not all checks ended, for this reason.
    CutOff(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    Compiling(Option<Progress>),
    /// Another cargo is working in the same folder.
    Waiting,
    Checking,
}

/// A run. It ends when this is dropped.
pub struct CheckRun {
    root: PathBuf,
    chapter: Chapter,
    /// libtest's filter: `task_1_`, or `--skip task_1_`.
    filter: Vec<String>,
    time_limit: Duration,
    process: Process,
    pub stage: Stage,
    checking_since: Option<Instant>,
    build: Build,
    printed: String,
    errors: String,
}

impl CheckRun {
    /// Builds and runs the checks of a chapter, or those that pass the filter.
    pub fn start(root: &Path, chapter: &Chapter, filter: Vec<String>, time_limit: Duration) -> Result<Self, String> {
        let mut command = cargo::cargo(root, Environment::Shell);
        command.args(["test", "--features", "solution", "--test", &chapter.name, "--message-format=json", "--"]);
        command.args(&filter);
        cargo::with_progress(&mut command);
        let process = cargo::start(command, Streams::Apart).map_err(|error| {
            format!("cargo cannot be started ({error}): is it installed, and on the PATH? See https://rustup.rs")
        })?;
        Ok(CheckRun {
            root: root.into(),
            chapter: chapter.clone(),
            filter,
            time_limit,
            process,
            stage: Stage::Compiling(None),
            checking_since: None,
            build: Build::default(),
            printed: String::new(),
            errors: String::new(),
        })
    }

    /// Reads what came since the last call. Returns the result once the run is over.
    pub fn update(&mut self) -> Option<RunResult> {
        loop {
            match self.process.lines.try_recv() {
                Ok(line) => self.take(line),
                Err(TryRecvError::Disconnected) => return Some(self.result()),
                Err(TryRecvError::Empty) => {
                    let is_late = self.checking_since.is_some_and(|since| since.elapsed() >= self.time_limit);
                    return is_late.then(|| RunResult::CutOff(self.why_late()));
                }
            }
        }
    }

    fn take(&mut self, Line { text, is_error }: Line) {
        if let Some(progress) = cargo::progress(&text).filter(|_| is_error) {
            self.stage = Stage::Compiling(Some(progress));
        } else if is_error {
            if text.trim_start().starts_with("Blocking ") {
                self.stage = Stage::Waiting;
            }
            self.errors += &(text + "\n");
        } else if self.checking_since.is_some() || !self.build.take(&text, &self.chapter.exercise()) {
            self.printed += &(text + "\n");
        } else if self.build.has_succeeded {
            (self.checking_since, self.stage) = (Some(Instant::now()), Stage::Checking);
        }
    }

    /// The result of a run that printed all it will.
    fn result(&mut self) -> RunResult {
        if self.checking_since.is_none() {
            let errors = std::mem::take(&mut self.build).errors();
            return match errors.is_empty() {
                true => RunResult::Refused(refusals(&self.errors)),
                false => RunResult::CompileErrors(errors),
            };
        }
        let suite = libtest::suite(&self.printed);
        let has_failed = suite.tests.values().any(|outcome| matches!(outcome, TestOutcome::Failed(_)));
        let is_success = self.process.wait().is_some_and(|status| status.success());
        if !suite.ended || suite.tests.len() != suite.announced || has_failed == is_success {
            return RunResult::CutOff(last_words(&self.errors));
        }
        RunResult::Finished(Verdict::new(&suite, self.chapter.number))
    }

    fn why_late(&self) -> String {
        format!(
            "{} of chapter {} was still running after {} seconds, and was stopped. Is there a loop of yours that \
             doesn't end?",
            self.still_running(),
            self.chapter.number,
            self.time_limit.as_secs()
        )
    }

    /// The check that has not ended: they begin in the order of their names, so it is the first without a result.
    fn still_running(&self) -> String {
        let CheckRun { root, chapter, filter, .. } = self;
        let grader = std::fs::read_to_string(root.join(chapter.grader())).unwrap_or_default();
        let words = grader.split(|c: char| !c.is_alphanumeric() && c != '_');
        let is_asked_for = |name: &&str| match &filter[..] {
            [skip, filter] if skip == "--skip" => !name.contains(filter.as_str()),
            filters => filters.iter().all(|filter| name.contains(filter.as_str())),
        };
        let names = words.filter(|word| word.starts_with("task_") || word.starts_with("whole_")).filter(is_asked_for);
        let has_ended = |name: &&str| self.printed.contains(&format!("::{name} ... "));
        names.filter(|name| !has_ended(name)).min().unwrap_or("a check").to_string()
    }
}

/// What the checks printed when they stopped themselves: a check that never ends, or takes too much memory, is named on
/// standard error, after those that had failed before. Here it comes first.
fn last_words(errors: &str) -> String {
    const OF_CARGO: [&str; 4] = ["error: test failed", "Caused by:", "  process didn't exit", "note: test exited"];
    let is_own = |line: &&str| !is_progress(line) && OF_CARGO.iter().all(|start| !line.starts_with(start));
    let mut lines: Vec<&str> = errors.lines().filter(is_own).collect();
    let at = lines.iter().rposition(|line| line.starts_with("error: ")).unwrap_or(0);
    lines.rotate_left(at);
    let words = lines.join("\n").trim().trim_start_matches("error: ").replace("checks::", "");
    if words.is_empty() { "The checks ended too early.".into() } else { words }
}
