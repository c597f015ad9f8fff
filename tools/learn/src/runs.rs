//! Runs cargo beside the screen: one run at a time, ended with all that it has started when a newer one begins.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::checks::{self, Printed};
use crate::compile::{self, Build, Errors};

/// How a run ended.
#[derive(Clone, Debug)]
pub enum Report {
    /// It does not compile.
    Errors(Errors),
    /// It was not even compiled; what cargo or `build.rs` says.
    Refused(String),
    /// The checks ran to their end.
    Checks { printed: Printed, n_warnings: usize, program: Option<PathBuf> },
    /// The checks did not come to their end; why, in the words that there are.
    CutOff { printed: Printed, why: String },
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Compiling,
    /// Another cargo is at work in the same folder.
    Waiting,
    Checking,
}

/// What a run tells, beside its number.
#[derive(Debug)]
pub enum News {
    Stage(Stage),
    /// What is being compiled: `tokenizers`.
    Compiling(String),
    /// A check has come to its end: `task_1_adds`.
    Through(String),
    Ended(Report),
}

/// What to check.
#[derive(Clone, Debug)]
pub struct Order {
    pub root: PathBuf,
    pub chapter: usize,
    /// `ch02_flat`
    pub name: String,
    /// What libtest is to leave out or in: `task_1_`, `--skip task_1_`.
    pub filter: Vec<String>,
    /// The checks may run so long.
    pub limit: Duration,
}

/// A run; ended when it is dropped.
pub struct Run {
    child: Arc<Mutex<Option<Child>>>,
    is_over: Arc<AtomicBool>,
}

/// cargo in the repository, so that `.cargo/config.toml` counts.
pub fn cargo(root: &Path) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = command(&cargo, root);
    // What `cargo run` has set for this program is about this program.
    let own = std::env::vars_os().map(|(name, _)| name).filter(|name| {
        let name = name.to_string_lossy();
        let own = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_", "CARGO_PRIMARY_"];
        own.iter().any(|own| name.starts_with(own))
    });
    for name in own {
        cargo.env_remove(name);
    }
    cargo
}

/// A program in the repository, to be read from, with all that it starts in a group of its own.
pub fn command(program: &OsStr, root: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    group(&mut command);
    command
}

#[cfg(unix)]
fn group(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
}

#[cfg(not(unix))]
fn group(_: &mut Command) {}

/// Ends a process and all that it has started.
#[cfg(unix)]
pub fn end(child: &mut Child) {
    use rustix::process::{Pid, Signal, kill_process_group};
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let _ = child.wait();
}

/// Ends a process and all that it has started.
#[cfg(not(unix))]
pub fn end(child: &mut Child) {
    let tree = child.id().to_string();
    let _ =
        Command::new("taskkill").args(["/F", "/T", "/PID", &tree]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let _ = child.kill();
    let _ = child.wait();
}

impl Run {
    /// Builds and runs checks; tells how it goes.
    ///
    /// # Errors
    /// If cargo cannot be started, in a line.
    pub fn start(order: Order, tell: impl Fn(News) + Send + 'static) -> Result<Run, String> {
        let mut command = cargo(&order.root);
        command.args(["test", "--features", "solution", "--test", &order.name]);
        command.arg("--message-format=json-diagnostic-rendered-ansi");
        command.arg("--").args(&order.filter);
        let mut child = command.spawn().map_err(|error| {
            format!("cargo cannot be started ({error}): is it installed, and on the PATH? See https://rustup.rs")
        })?;
        let (sender, lines) = channel();
        let readers = [
            child.stdout.take().map(|out| read(out, false, sender.clone())),
            child.stderr.take().map(|err| read(err, true, sender)),
        ];
        let run = Run { child: Arc::new(Mutex::new(Some(child))), is_over: Arc::default() };
        let (child, is_over) = (run.child.clone(), run.is_over.clone());
        thread::spawn(move || {
            let report = follow(&order, &lines, &child, &tell);
            readers.into_iter().flatten().for_each(|reader| drop(reader.join()));
            if !is_over.load(Ordering::Acquire) {
                tell(News::Ended(report));
            }
        });
        Ok(run)
    }

    /// Ends the run; it tells nothing any more.
    fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
        if let Ok(mut child) = self.child.lock()
            && let Some(mut child) = child.take()
        {
            end(&mut child);
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A line, and whether it came from standard error.
type Said = (String, bool);

fn read(from: impl Read + Send + 'static, is_error: bool, sender: Sender<Said>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_string();
            line.clear();
            if sender.send((text, is_error)).is_err() {
                return;
            }
        }
    })
}

/// Reads what the run says up to its end, or to the limit of its time.
fn follow(order: &Order, lines: &Receiver<Said>, child: &Mutex<Option<Child>>, tell: &dyn Fn(News)) -> Report {
    let file = format!("exercises/{}.rs", order.name);
    let (mut build, mut printed, mut errors) = (Build::default(), String::new(), String::new());
    let mut checking: Option<Instant> = None;
    let (mut is_hung, mut is_waiting) = (false, false);
    tell(News::Stage(Stage::Compiling));
    loop {
        let left = checking.map_or(Duration::from_secs(3600), |since| order.limit.saturating_sub(since.elapsed()));
        match lines.recv_timeout(left) {
            Ok((line, true)) => {
                let line_of_work = line.trim_start();
                if line_of_work.starts_with("Blocking ") {
                    is_waiting = true;
                    tell(News::Stage(Stage::Waiting));
                } else if let Some(what) = line_of_work.strip_prefix("Compiling ") {
                    tell(News::Compiling(what.split(' ').next().unwrap_or(what).to_string()));
                }
                errors.push_str(&line);
                errors.push('\n');
            }
            Ok((line, false)) => {
                if build.finished != Some(true) && build.take(&line, &file) {
                    if std::mem::take(&mut is_waiting) {
                        tell(News::Stage(Stage::Compiling));
                    }
                    if build.finished == Some(true) {
                        checking = Some(Instant::now());
                        tell(News::Stage(Stage::Checking));
                    }
                } else {
                    if let Some(name) = checks::has_ended(&line) {
                        tell(News::Through(name));
                    }
                    printed.push_str(&line);
                    printed.push('\n');
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if checking.is_some() => {
                is_hung = true;
                if let Ok(mut child) = child.lock()
                    && let Some(mut child) = child.take()
                {
                    end(&mut child);
                }
                break;
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    let status = child.lock().ok().and_then(|mut child| child.take()).and_then(|mut child| child.wait().ok());
    let report = Heard { build, printed, errors, is_hung, status };
    report.report(order)
}

/// All that a run said.
struct Heard {
    build: Build,
    printed: String,
    errors: String,
    is_hung: bool,
    status: Option<ExitStatus>,
}

impl Heard {
    fn report(self, order: &Order) -> Report {
        let is_good = self.status.is_some_and(|status| status.success());
        if self.build.finished != Some(true) {
            return match self.build.errors() {
                Some(errors) => Report::Errors(errors),
                None => Report::Refused(compile::refusals(&self.errors)),
            };
        }
        let printed = checks::read(&self.printed, order.chapter);
        if self.is_hung {
            let why = format!(
                "the checks were still running after {} seconds, and were ended: does a loop of yours never end?",
                order.limit.as_secs()
            );
            return Report::CutOff { printed, why };
        }
        let n_read: usize = printed.verdict.checks.values().map(Vec::len).sum();
        let has_red = printed
            .verdict
            .checks
            .values()
            .flatten()
            .any(|check| !matches!(check.outcome, checks::Outcome::Green | checks::Outcome::Ignored));
        if printed.ended && n_read == printed.announced && has_red != is_good {
            return Report::Checks { n_warnings: self.build.n_warnings(), printed, program: self.build.program };
        }
        // A check that never ends, or eats the memory, is ended by the checks themselves: they say which one on standard error.
        let said: Vec<&str> = self.errors.lines().collect();
        let from = said
            .iter()
            .position(|line| line.starts_with("failed: "))
            .or(said.iter().position(|line| line.starts_with("error: ")));
        let said = from.map_or(&said[..], |from| &said[from..]);
        let is_of_cargo = |line: &str| {
            line.starts_with("error: test failed")
                || line.starts_with("Caused by:")
                || line.starts_with("  process didn't exit")
                || line.starts_with("note: test exited")
        };
        let said: Vec<&str> = said.iter().copied().filter(|line| !is_of_cargo(line)).collect();
        let said = compile::refusals(&said.join("\n"));
        let why = match said.is_empty() {
            false => said,
            true => format!(
                "the checks ended before they were through: {} of {} have said how they went",
                n_read, printed.announced
            ),
        };
        Report::CutOff { printed, why }
    }
}
