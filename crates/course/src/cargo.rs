//! Runs cargo, and other programs, for the course: one list of environment variables, one way to follow the output, and
//! one to end a process together with everything it has started.

use std::io::{self, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Prefixes of variables that an outer cargo sets for the program it runs, and that would mislead an inner cargo.
const SET_BY_CARGO: [&str; 5] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_", "CARGO_PRIMARY_"];

/// Prefixes of variables that change what the checks do: insta's, ours, and those of CI services, which insta heeds.
const CHANGES_CHECKS: [&str; 5] = ["INSTA_", "PAGE_BY_PAGE_", "CARGO_PROFILE_", "CI", "GITHUB_ACTIONS"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Environment {
    /// The shell's, so that the result is the one of `cargo test` typed there.
    Shell,
    /// The same on every machine: without the variables that change what the checks do.
    Neutral,
}

pub fn cargo(folder: &Path, environment: Environment) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(folder);
    let is_removed = |name: &str| {
        let is_one_of = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        is_one_of(&SET_BY_CARGO) || environment == Environment::Neutral && is_one_of(&CHANGES_CHECKS)
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_removed(&name.to_string_lossy())) {
        cargo.env_remove(name);
    }
    cargo
}

#[derive(Clone, Debug)]
pub struct Ended {
    /// `None` if it was ended because its time was over.
    pub status: Option<ExitStatus>,
    pub output: String,
}

/// Runs a program without input to its end, or to the limit.
pub fn run(command: Command, limit: Duration) -> io::Result<Ended> {
    let mut process = start(command, Streams::Together)?;
    let (began, mut output) = (Instant::now(), String::new());
    loop {
        match process.lines.recv_timeout(limit.saturating_sub(began.elapsed())) {
            Ok(line) => output += &(line.text + "\n"),
            Err(RecvTimeoutError::Disconnected) => return Ok(Ended { status: process.wait(), output }),
            Err(RecvTimeoutError::Timeout) => return Ok(Ended { status: None, output }),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub text: String,
    /// Whether it came from standard error. False for all if both streams are read together.
    pub is_error: bool,
}

/// How the two output streams are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// Each line says where it came from. The order of lines from different streams isn't kept.
    Apart,
    /// As on a terminal, in the order in which they were written.
    Together,
}

/// A running program. It and everything it has started end when this is dropped.
pub struct Process {
    /// Its lines as it writes them, until it has written all.
    pub lines: Receiver<Line>,
    child: Child,
}

/// Starts a program without input, as the leader of a process group of its own.
pub fn start(mut command: Command, streams: Streams) -> io::Result<Process> {
    let (sender, lines) = channel();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let child = match streams {
        Streams::Together => {
            let (reader, writer) = io::pipe()?;
            let child = command.stdout(writer.try_clone()?).stderr(writer).spawn()?;
            read(reader, false, sender);
            child
        }
        Streams::Apart => {
            let mut child = command.spawn()?;
            if let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) {
                read(out, false, sender.clone());
                read(err, true, sender);
            }
            child
        }
    };
    Ok(Process { lines, child })
}

impl Process {
    pub fn wait(&mut self) -> Option<ExitStatus> {
        self.child.wait().ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            end_group(&self.child);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(unix)]
fn end_group(child: &Child) {
    use rustix::process::{Pid, Signal, kill_process_group};
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
}

#[cfg(not(unix))]
fn end_group(child: &Child) {
    let mut kill = Command::new("taskkill");
    let _ =
        kill.args(["/F", "/T", "/PID", &child.id().to_string()]).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Sends lines as they come. A carriage return ends one too: cargo's progress is written over itself.
fn read(from: impl Read + Send + 'static, is_error: bool, sender: Sender<Line>) {
    thread::spawn(move || {
        let (mut line, mut after_return) = (Vec::new(), false);
        for byte in BufReader::new(from).bytes().map_while(Result::ok) {
            match byte {
                // `\r\n` ends one line, not two.
                b'\n' if after_return => {}
                b'\n' | b'\r' => {
                    let text = String::from_utf8_lossy(&line).into_owned();
                    line.clear();
                    if sender.send(Line { text, is_error }).is_err() {
                        return;
                    }
                }
                _ => line.push(byte),
            }
            after_return = byte == b'\r';
        }
        if !line.is_empty() {
            let _ = sender.send(Line { text: String::from_utf8_lossy(&line).into_owned(), is_error });
        }
    });
}

/// cargo's own progress, such as `    Building [====>     ] 34/145: serde, syn`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Crates that are built, and how many there are.
    pub done: usize,
    pub of: usize,
    pub crates: String,
}

/// Asks cargo for lines that [`progress`] reads. By itself it only shows them at a terminal.
pub fn with_progress(cargo: &mut Command) {
    cargo.env("CARGO_TERM_PROGRESS_WHEN", "always").env("CARGO_TERM_PROGRESS_WIDTH", "120");
}

pub fn progress(line: &str) -> Option<Progress> {
    let (_, rest) = line.split_once("Building ")?.1.split_once("] ")?;
    let (count, crates) = rest.split_once(':').unwrap_or((rest, ""));
    let (done, of) = count.trim().split_once('/')?;
    Some(Progress { done: done.parse().ok()?, of: of.parse().ok()?, crates: crates.trim().to_string() })
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    #[test]
    fn lines_come_with_their_stream_or_in_their_order() {
        let lines = |streams| {
            let process = start(shell("printf 'a\\r\\nb\\n'; echo c >&2; printf d"), streams).unwrap();
            process.lines.iter().map(|line| (line.text, line.is_error)).collect::<Vec<_>>()
        };
        let mut apart = lines(Streams::Apart);
        apart.sort();
        let of = |text: &str, is_error| (text.to_string(), is_error);
        assert_eq!(apart, [of("a", false), of("b", false), of("c", true), of("d", false)]);
        assert_eq!(lines(Streams::Together), ["a", "b", "c", "d"].map(|text| of(text, false)));
    }

    #[test]
    fn what_a_program_has_started_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let begun = || {
            let mut command = shell("echo begun; (sleep 1; echo > late) & wait");
            command.current_dir(folder.path());
            command
        };
        let process = start(begun(), Streams::Apart).unwrap();
        assert_eq!(process.lines.recv().unwrap().text, "begun");
        drop(process);
        let Ended { status, output } = run(begun(), Duration::from_millis(500)).unwrap();
        assert_eq!((status, output.as_str()), (None, "begun\n"));
        thread::sleep(Duration::from_millis(1500));
        assert!(!folder.path().join("late").exists());
    }

    #[test]
    fn progress_is_read() {
        let of = |done, of, crates: &str| Some(Progress { done, of, crates: crates.into() });
        assert_eq!(progress("    Building [==>   ] 34/145: serde, syn(build)"), of(34, 145, "serde, syn(build)"));
        assert_eq!(progress("    Building [      ] 0/7"), of(0, 7, ""));
        for other in ["   Compiling serde v1.0", "    Building [==", "Building ] x/y: z", ""] {
            assert_eq!(progress(other), None, "{other}");
        }
    }
}
