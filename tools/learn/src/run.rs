//! One run of a chapter's checks beside the screen: built, followed, ended when a newer one begins or when it takes too long.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use page_by_page_course::cargo::{self, Environment, Line, Process, Progress, Streams};
use page_by_page_course::chapters::Chapter;
use page_by_page_course::libtest::{self, Outcome};

use crate::checks::Verdict;
use crate::compiler::{Build, Diagnostic, is_progress, refusals};

/// Longer than any build.
const FOREVER: Duration = Duration::from_secs(24 * 3600);

/// How a run ended.
#[derive(Clone, Debug, Default)]
pub enum Ending {
    #[default]
    NotRun,
    /// It doesn't compile.
    Errors(Vec<Diagnostic>),
    /// Nothing was compiled, for the reason that cargo or `build.rs` gave.
    Refused(String),
    /// All checks ran.
    Checks,
    /// Not all checks ended, for this reason.
    CutOff(String),
}

/// What a run is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    Compiling(Option<Progress>),
    /// Another cargo is working in the same folder.
    Waiting,
    Checking,
}

/// An event of a run.
#[derive(Debug)]
pub enum News {
    Stage(Stage),
    Ended(Ending, Verdict),
}

/// What to check.
#[derive(Clone, Debug)]
pub struct Order {
    pub root: PathBuf,
    pub chapter: Chapter,
    /// libtest's filter: `task_1_`, or `--skip task_1_`.
    pub filter: Vec<String>,
    /// The longest time that the checks may take.
    pub limit: Duration,
}

/// Builds and runs checks, and sends the events. It ends when the result is dropped.
///
/// # Errors
/// If cargo can't be started, in a line.
pub fn start(order: Order, send: impl Fn(News) + Send + 'static) -> Result<Process, String> {
    let mut command = cargo::cargo(&order.root, Environment::Shell);
    command.args(["test", "--features", "solution", "--test", &order.chapter.name, "--message-format=json", "--"]);
    command.args(&order.filter);
    cargo::with_progress(&mut command);
    let (process, lines) = cargo::start(command, Streams::Apart).map_err(|error| {
        format!("cargo cannot be started ({error}): is it installed, and on the PATH? See https://rustup.rs")
    })?;
    let handle = process.clone();
    thread::spawn(move || {
        let (ending, verdict) = follow(&order, &process, &lines, &send);
        send(News::Ended(ending, verdict));
    });
    Ok(handle)
}

/// Reads to the end of the run, or to its time limit.
fn follow(order: &Order, process: &Process, lines: &Receiver<Line>, send: &dyn Fn(News)) -> (Ending, Verdict) {
    let file = order.chapter.exercise();
    let (mut build, mut printed, mut errors) = (Build::default(), String::new(), String::new());
    // Since when the checks run.
    let mut checking: Option<Instant> = None;
    loop {
        let left = checking.map_or(FOREVER, |since| order.limit.saturating_sub(since.elapsed()));
        let Line { text, is_error } = match lines.recv_timeout(left) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let (check, seconds) = (still_running(order, &printed), order.limit.as_secs());
                let number = order.chapter.number;
                let why = format!(
                    "{check} of chapter {number} was still running after {seconds} seconds, and was stopped. Is there a loop of \
                     yours that doesn't end?"
                );
                return (Ending::CutOff(why), Verdict::default());
            }
        };
        if let Some(progress) = cargo::progress(&text).filter(|_| is_error) {
            send(News::Stage(Stage::Compiling(Some(progress))));
        } else if is_error {
            if text.trim_start().starts_with("Blocking ") {
                send(News::Stage(Stage::Waiting));
            }
            errors += &(text + "\n");
        } else if checking.is_some() || !build.take(&text, &file) {
            printed += &(text + "\n");
        } else if build.has_succeeded {
            checking = Some(Instant::now());
            send(News::Stage(Stage::Checking));
        }
    }
    if checking.is_none() {
        let errors_of_rustc = build.errors();
        let ending = match errors_of_rustc.is_empty() {
            true => Ending::Refused(refusals(&errors)),
            false => Ending::Errors(errors_of_rustc),
        };
        return (ending, Verdict::default());
    }
    let suite = libtest::suite(&printed);
    let has_failed = suite.tests.values().any(|outcome| matches!(outcome, Outcome::Failed(_)));
    let is_success = process.wait().is_some_and(|status| status.success());
    if !suite.ended || suite.tests.len() != suite.announced || has_failed == is_success {
        return (Ending::CutOff(last_words(&errors)), Verdict::default());
    }
    (Ending::Checks, Verdict::of(&suite, order.chapter.number))
}

/// The check that has not ended. They begin in the order of their names, on several threads, so that it is the first that has
/// no result.
fn still_running(order: &Order, printed: &str) -> String {
    let grader = std::fs::read_to_string(order.root.join(order.chapter.grader())).unwrap_or_default();
    let words = grader.split(|c: char| !c.is_alphanumeric() && c != '_');
    let is_asked_for = |name: &&str| match &order.filter[..] {
        [skip, filter] if skip == "--skip" => !name.contains(filter.as_str()),
        filters => filters.iter().all(|filter| name.contains(filter.as_str())),
    };
    let names = words.filter(|word| word.starts_with("task_") || word.starts_with("whole_")).filter(is_asked_for);
    let has_ended = |name: &&str| printed.contains(&format!("::{name} ... "));
    names.filter(|name| !has_ended(name)).min().unwrap_or("a check").to_string()
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
