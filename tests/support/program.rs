//! The program, run as people run it.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_page-by-page");

/// What a run left behind.
pub struct Run {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// The one JSON object on standard output.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).expect("JSON on standard output")
    }

    /// The JSON objects on standard output, one a line.
    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

/// A run under way, all three of its streams to be read and written here.
pub fn spawn(arguments: &[&str]) -> Child {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// A run with this on standard input.
pub fn run_with(arguments: &[&str], input: &[u8]) -> Run {
    let mut child = spawn(arguments);
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // Beside, as results may fill their pipe while lines are still written. Who is refused does not read.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let text = |bytes| String::from_utf8(bytes).expect("text in UTF-8");
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A run with nothing on standard input.
pub fn run(arguments: &[&str]) -> Run {
    run_with(arguments, b"")
}

/// A run in this folder, with nothing on standard input.
pub fn run_in(folder: &Path, arguments: &[&str]) -> Run {
    let output = Command::new(PROGRAM).args(arguments).current_dir(folder).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).expect("text in UTF-8");
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A run that must succeed.
#[track_caller]
pub fn ok(arguments: &[&str]) -> Run {
    let run = run(arguments);
    assert_eq!(run.code, Some(0), "exit code of {arguments:?}:\n{}", run.stderr);
    run
}
