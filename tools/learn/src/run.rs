//! One run of a chapter's checks beside the screen: built, followed, ended when a newer one begins or when it takes too long.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use page_by_page_course::cargo::{self, Environment, Handle, Line, Progress, Running, Streams, TimedOut};
use page_by_page_course::chapters::Chapter;
use page_by_page_course::libtest::{self, Outcome};

use crate::checks::{Verdict, short};
use crate::compiler::{Build, Errors, refusals};

/// Longer than any build.
const FOREVER: Duration = Duration::from_secs(24 * 3600);

/// How a run ended.
#[derive(Clone, Debug, Default)]
pub enum Ending {
    #[default]
    NotRun,
    /// It doesn't compile.
    Errors(Errors),
    /// Nothing was compiled, for the reason that cargo or `build.rs` gave.
    Refused(String),
    /// All checks ran.
    Checks,
    /// Not all checks ended, for this reason.
    CutOff(String),
}

/// What a run has found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub ending: Ending,
    pub verdict: Verdict,
    pub n_warnings: usize,
}

impl From<Ending> for Report {
    fn from(ending: Ending) -> Self {
        Report { ending, ..Report::default() }
    }
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
    /// A check has ended: `task_1_adds`.
    Finished(String),
    Ended(Report),
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

/// A run; ended when it is dropped.
pub struct Run {
    handle: Handle,
    is_over: Arc<AtomicBool>,
}

impl Run {
    /// Builds and runs checks, and sends the events.
    ///
    /// # Errors
    /// If cargo can't be started, in a line.
    pub fn start(order: Order, send: impl Fn(News) + Send + 'static) -> Result<Run, String> {
        let mut command = cargo::cargo(&order.root, Environment::Shell);
        command.args(["test", "--features", "solution", "--test", &order.chapter.name]);
        command.arg("--message-format=json-diagnostic-rendered-ansi");
        command.arg("--").args(&order.filter);
        cargo::with_progress(&mut command);
        let running = Running::start(command, Streams::Apart).map_err(|error| {
            format!("cargo cannot be started ({error}): is it installed, and on the PATH? See https://rustup.rs")
        })?;
        let run = Run { handle: running.handle(), is_over: Arc::default() };
        let is_over = run.is_over.clone();
        thread::spawn(move || {
            let report = Listener::new(&order).follow(&running, &send);
            if !is_over.load(Ordering::Acquire) {
                send(News::Ended(report));
            }
        });
        Ok(run)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.handle.end();
    }
}

/// Everything a run has printed so far.
struct Listener<'o> {
    order: &'o Order,
    /// The reader's file, in which errors are looked for.
    file: String,
    build: Build,
    printed: String,
    errors: String,
    is_waiting: bool,
    /// Since when the checks run.
    checking: Option<Instant>,
}

impl<'o> Listener<'o> {
    fn new(order: &'o Order) -> Self {
        Listener {
            order,
            file: order.chapter.exercise(),
            build: Build::default(),
            printed: String::new(),
            errors: String::new(),
            is_waiting: false,
            checking: None,
        }
    }

    /// Reads to the end of the run, or to its time limit.
    fn follow(mut self, running: &Running, send: &dyn Fn(News)) -> Report {
        send(News::Stage(Stage::Compiling(None)));
        loop {
            let left = self.checking.map_or(FOREVER, |since| self.order.limit.saturating_sub(since.elapsed()));
            match running.line(left) {
                Ok(Some(Line { text, is_error: true })) => self.error(&text, send),
                Ok(Some(Line { text, .. })) => self.output(&text, send),
                Ok(None) => return self.report(running.wait()),
                Err(TimedOut) => {
                    running.handle().end();
                    let why = format!(
                        "The checks were stopped: they were still running after {} seconds. Is there a loop of yours that \
                         doesn't end?",
                        self.order.limit.as_secs()
                    );
                    return Report { verdict: self.verdict(), ..Ending::CutOff(why).into() };
                }
            }
        }
    }

    fn error(&mut self, line: &str, send: &dyn Fn(News)) {
        if let Some(progress) = cargo::progress(line) {
            return send(News::Stage(Stage::Compiling(Some(progress))));
        }
        if line.trim_start().starts_with("Blocking ") {
            self.is_waiting = true;
            send(News::Stage(Stage::Waiting));
        }
        self.errors.push_str(line);
        self.errors.push('\n');
    }

    fn output(&mut self, line: &str, send: &dyn Fn(News)) {
        if self.build.finished != Some(true) && self.build.take(line, &self.file) {
            if std::mem::take(&mut self.is_waiting) {
                send(News::Stage(Stage::Compiling(None)));
            }
            if self.build.finished == Some(true) {
                self.checking = Some(Instant::now());
                send(News::Stage(Stage::Checking));
            }
            return;
        }
        if let Some(name) = libtest::finished(line) {
            send(News::Finished(short(name).to_string()));
        }
        self.printed.push_str(line);
        self.printed.push('\n');
    }

    fn verdict(&self) -> Verdict {
        Verdict::of(&libtest::suite(&self.printed), self.order.chapter.number)
    }

    fn report(self, status: Option<ExitStatus>) -> Report {
        if self.build.finished != Some(true) {
            return match self.build.errors() {
                Some(errors) => Ending::Errors(errors).into(),
                None => Ending::Refused(refusals(&self.errors)).into(),
            };
        }
        let suite = libtest::suite(&self.printed);
        let has_failed = suite.tests.values().any(|outcome| matches!(outcome, Outcome::Failed(_)));
        let is_success = status.is_some_and(|status| status.success());
        let ending = if suite.ended && suite.tests.len() == suite.announced && has_failed != is_success {
            Ending::Checks
        } else {
            Ending::CutOff(match self.last_words() {
                words if words.is_empty() => format!(
                    "The checks ended too early: only {} of {} have a result.",
                    suite.tests.len(),
                    suite.announced
                ),
                words => words,
            })
        };
        Report { ending, verdict: self.verdict(), n_warnings: self.build.n_warnings() }
    }

    /// What the checks printed when they stopped themselves: a check that never ends, or takes too much memory, is named on
    /// standard error.
    fn last_words(&self) -> String {
        let lines: Vec<&str> = self.errors.lines().collect();
        let starts = |with: &str| lines.iter().position(|line| line.starts_with(with));
        let from = starts("failed: ").or(starts("error: ")).unwrap_or(0);
        let is_of_cargo = |line: &str| {
            ["error: test failed", "Caused by:", "  process didn't exit", "note: test exited"]
                .iter()
                .any(|start| line.starts_with(start))
        };
        let own: Vec<&str> = lines[from..].iter().copied().filter(|line| !is_of_cargo(line)).collect();
        refusals(&own.join("\n"))
    }
}
