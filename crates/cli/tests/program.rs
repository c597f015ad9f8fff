//! The program, run as people run it.

use std::io::Write;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use grading::snapshot_guard::assert_snapshots_are_kept;
use serde_json::Value;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_page-by-page");

pub struct Run {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    pub fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).expect("JSON on standard output")
    }

    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

/// A run under way, all three of its streams to be read and written here.
pub fn spawn(arguments: &[&str]) -> Child {
    start(Command::new(PROGRAM).args(arguments))
}

pub fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

pub fn run_with(arguments: &[&str], input: &[u8]) -> Run {
    finish(spawn(arguments), input)
}

pub fn finish(mut child: Child, input: &[u8]) -> Run {
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // In a thread, because results can fill their pipe while lines are written, and a refusing program reads nothing.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    Run::of(output)
}

/// The program with one of the shell's limits, where the system has it: `-v 1048576` is a GiB of address space, and `-f
/// 100` are files of at most 100 blocks, as on a disk that is full.
pub fn limited(limit: &str) -> Command {
    if cfg!(target_os = "linux") || cfg!(unix) && limit.starts_with("-f") {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit {limit}; exec \"$0\" \"$@\""), PROGRAM]);
        return shell;
    }
    Command::new(PROGRAM)
}

/// For how long a program may go on that is about to end: on a machine that is idle it takes a fraction of a second.
pub const LONGEST: Duration = Duration::from_secs(60);

/// Looks again and again until there is something; `None` if that takes longer than `most`.
pub fn eventually<T>(most: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    while begin.elapsed() < most {
        if let Some(found) = look() {
            return Some(found);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    None
}

/// How a program ends; `None` if it hangs, and had to be killed.
pub fn wait(child: &mut Child) -> Option<ExitStatus> {
    let status = eventually(LONGEST, || child.try_wait().unwrap());
    if status.is_none() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    status
}

/// What a program that is about to end has left to say, and how it ends.
#[track_caller]
pub fn ended(mut child: Child) -> Run {
    wait(&mut child).expect("still running");
    Run::of(child.wait_with_output().unwrap())
}

/// Sends a signal by its name, such as `-INT`, which is Ctrl-C.
pub fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

pub fn run(arguments: &[&str]) -> Run {
    run_with(arguments, b"")
}

#[track_caller]
pub fn ok(arguments: &[&str]) -> Run {
    let run = run(arguments);
    assert_eq!(run.code, Some(0), "exit code of {arguments:?}:\n{}", run.stderr);
    run
}

/// Plays a script, and compares what it gives with its file: `play` gets the file's lines, and returns them with all that
/// is printed now. To accept that, run `bash .ci/bless`.
#[track_caller]
pub fn check_script(scripts: &str, name: &str, play: impl FnOnce(&str) -> String) {
    assert_snapshots_are_kept();
    let folder = grading::root().join("crates/cli/tests").join(scripts);
    let snapshot = std::fs::read_to_string(folder.join(format!("{name}.snap"))).expect(name).replace("\r\n", "\n");
    let transcript = play(snapshot.splitn(3, "---\n").nth(2).expect("insta's header"));
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(folder);
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, transcript));
}
