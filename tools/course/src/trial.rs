//! Runs cargo as a reader would, and reads what it says: which checks were red, and with which words.

use std::io::{PipeReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Where cargo runs.
pub struct Cargo {
    pub root: PathBuf,
    pub target: PathBuf,
    /// For the checks of a run; building takes what it takes.
    pub timeout: Duration,
}

/// What one run of cargo came to.
pub struct Trial {
    pub success: bool,
    /// It was ended, as its checks took longer than the timeout.
    pub hung: bool,
    /// All that it printed.
    pub output: String,
    /// The test programs that ran, in order.
    pub suites: Vec<Suite>,
}

/// What one test program said.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Suite {
    /// The file in `tests/`, without `.rs`.
    pub name: String,
    pub passed: Vec<String>,
    pub failed: Vec<Failure>,
    /// Each with the reason.
    pub ignored: Vec<(String, String)>,
    /// It came to its last line, as it does unless it crashed.
    pub ended: bool,
}

/// A check that was red.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    pub test: String,
    /// All that it said.
    pub message: String,
}

/// How Rust's own panics begin, wherever they come from: none says what was asked of the reader's code.
const RAW: [&str; 17] = [
    "already borrowed",
    "already mutably borrowed",
    "assertion ",
    "attempt to ",
    "called `Option::",
    "called `Result::",
    "capacity overflow",
    "chunk size must be ",
    "copy_from_slice: ",
    "explicit panic",
    "index out of bounds: ",
    "insertion index ",
    "internal error: entered unreachable code",
    "range ",
    "removal index ",
    "slice index ",
    "source slice length ",
];

impl Failure {
    /// What was wrong, in a line: the beginning of the message, or of the difference from a snapshot.
    pub fn says(&self) -> String {
        if self.is_snapshot() {
            let changed = self.message.lines().filter_map(|line| line.split_once('│').map(|(_, text)| text));
            let changed: Vec<&str> = changed.filter(|text| text.starts_with(['-', '+'])).take(2).collect();
            return format!("transcript: {}", changed.join("; "));
        }
        let mut lines = self.message.lines().skip_while(|line| line.trim().is_empty()).peekable();
        lines.next_if(|line| line.contains(" panicked at "));
        let end = |line: &str| line.is_empty() || line.starts_with("note: ") || line.starts_with("stack backtrace");
        let lines: Vec<&str> = lines.take_while(|line| !end(line)).take(3).map(str::trim).collect();
        match lines[..] {
            [] => self.message.lines().find(|line| !line.is_empty()).unwrap_or("nothing").to_string(),
            _ => lines.join("; "),
        }
    }

    /// Its first line says what the reader's code did. Otherwise it is a panic as it came, in the code that was called or
    /// in Rust's library, or a check that stumbled over what it was given.
    pub fn is_explained(&self) -> bool {
        let mut lines = self.message.lines().skip_while(|line| line.trim().is_empty());
        let Some(first) = lines.next() else { return false };
        let Some((_, place)) = first.split_once(" panicked at ") else {
            // A line that was written before the panic: of a check, or of the snapshot's difference.
            return true;
        };
        let ours = place.starts_with("tests/") || place.starts_with("tests\\");
        let words = lines.next().unwrap_or_default();
        self.is_snapshot() || ours && !RAW.iter().any(|raw| words.starts_with(raw))
    }

    /// It was a transcript that differed from its snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.message.contains("snapshot assertion for '")
    }
}

impl Trial {
    /// Everything compiled and the checks ran.
    pub fn ran(&self) -> bool {
        !self.suites.is_empty()
    }

    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.suites.iter().flat_map(|suite| &suite.failed)
    }

    /// The names of the checks that were red.
    pub fn red(&self) -> Vec<&str> {
        self.failures().map(|failure| failure.test.as_str()).collect()
    }

    /// Why the checks did not run to their end, in a line; None if they did.
    pub fn obstacle(&self) -> Option<String> {
        let first_error = || {
            let error = self.output.lines().find(|line| line.starts_with("error"));
            error.or(self.output.lines().last()).unwrap_or("no output").to_string()
        };
        if self.hung {
            return Some("does not come to an end".into());
        }
        if !self.ran() {
            return Some(format!("does not compile: {}", first_error()));
        }
        let crashed = self.suites.iter().find(|suite| !suite.ended)?;
        Some(format!("the checks of {} crash: {}", crashed.name, first_error()))
    }
}

impl Cargo {
    /// Runs `cargo test` with these arguments, and these variables in the environment.
    pub fn test(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Result<Trial> {
        self.run(&[&["test"], arguments].concat(), environment)
    }

    /// Runs a program that a run of `cargo test` has built; gives all that it printed.
    pub fn program(&self, name: &str, arguments: &[&str]) -> Result<String> {
        let path = self.target.join("debug").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
        let output = Command::new(&path).args(arguments).current_dir(&self.root).stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot run {}", path.display()))?;
        Ok(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
    }

    /// Runs cargo.
    pub fn run(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Result<Trial> {
        self.run_in(&self.root, arguments, environment)
    }

    /// Runs cargo with this working folder.
    pub fn run_in(&self, folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Result<Trial> {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(arguments).current_dir(folder).stdin(Stdio::null());
        // What the reader's shell does not have: traces of the cargo that runs this, and of CI, which insta heeds.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let prefixes = [
                "INSTA_",
                "PAGE_BY_PAGE_",
                "CARGO_PKG_",
                "CARGO_MANIFEST_",
                "CARGO_BIN_",
                "CARGO_CRATE_",
                "CARGO_PROFILE_",
            ];
            if prefixes.iter().any(|prefix| text.starts_with(prefix)) || text == "CI" || text == "GITHUB_ACTIONS" {
                command.env_remove(&name);
            }
        }
        command.env("CARGO_TARGET_DIR", &self.target).env("CARGO_TERM_COLOR", "never").env("NO_COLOR", "1");
        command.env("CARGO_INCREMENTAL", "1").env("RUST_BACKTRACE", "0");
        // Without optimisation across its parts the crate is as fast, and a change to one part rebuilds only that one:
        // 2 s instead of 9.
        command.env("CARGO_PROFILE_DEV_LTO", "off");
        command.envs(environment.iter().copied());

        let (reader, writer) = std::io::pipe()?;
        command.stdout(writer.try_clone()?).stderr(writer);
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().context("cannot run cargo")?;
        // Else the pipe would stay open at this end.
        drop(command);
        let output = Arc::new(Mutex::new(Vec::new()));
        let reading = thread::spawn({
            let output = output.clone();
            || read(reader, output)
        });
        let mut running_since = None;
        let (success, hung) = loop {
            if let Some(status) = child.try_wait()? {
                break (status.success(), false);
            }
            if running_since.is_none() && contains(&output, b" Running tests") {
                running_since = Some(Instant::now());
            }
            if running_since.is_some_and(|since| since.elapsed() > self.timeout) {
                end(&mut child)?;
                break (false, true);
            }
            thread::sleep(Duration::from_millis(20));
        };
        reading.join().expect("reading does not panic")?;
        let output = String::from_utf8_lossy(&output.lock().expect("nobody panics holding it")).replace("\r\n", "\n");
        let suites = read_suites(&output);
        Ok(Trial { success, hung, output, suites })
    }
}

/// Reads on until the other end is closed.
fn read(mut reader: PipeReader, output: Arc<Mutex<Vec<u8>>>) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        let n = reader.read(&mut buffer)?;
        if n == 0 {
            return Ok(());
        }
        output.lock().expect("nobody panics holding it").extend_from_slice(&buffer[..n]);
    }
}

fn contains(output: &Mutex<Vec<u8>>, text: &[u8]) -> bool {
    output.lock().expect("nobody panics holding it").windows(text.len()).any(|window| window == text)
}

/// Ends cargo and what it runs.
fn end(child: &mut Child) -> Result<()> {
    let id = child.id();
    let mut kill = if cfg!(windows) {
        let mut kill = Command::new("taskkill");
        kill.args(["/T", "/F", "/PID", &id.to_string()]);
        kill
    } else {
        let mut kill = Command::new("kill");
        kill.args(["-KILL", "--", &format!("-{id}")]);
        kill
    };
    let killed = kill.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !killed.is_ok_and(|status| status.success()) {
        child.kill()?;
    }
    child.wait()?;
    Ok(())
}

/// Reads the output of `cargo test`.
fn read_suites(output: &str) -> Vec<Suite> {
    let mut suites: Vec<Suite> = Vec::new();
    let mut in_messages = false;
    for line in output.lines() {
        if let Some(file) = line.trim_start().strip_prefix("Running tests") {
            // `Running tests/ch01_sum.rs (target/debug/deps/…)`
            let file = file.split(" (").next().unwrap_or(file);
            let name = file.trim_start_matches(['/', '\\']).trim_end_matches(".rs").to_string();
            suites.push(Suite { name, ..Suite::default() });
            in_messages = false;
            continue;
        }
        let Some(suite) = suites.last_mut() else { continue };
        if line.starts_with("test result: ") {
            suite.ended = true;
            in_messages = false;
        } else if let Some(test) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            suite.failed.retain(|failure| failure.test != test || !failure.message.is_empty());
            suite.failed.push(Failure { test: test.into(), message: String::new() });
            in_messages = true;
        } else if line == "failures:" {
            in_messages = false;
        } else if in_messages {
            if let Some(failure) = suite.failed.last_mut() {
                failure.message.push_str(line);
                failure.message.push('\n');
            }
        } else if let Some((test, outcome)) = line.strip_prefix("test ").and_then(|line| line.rsplit_once(" ... ")) {
            match outcome {
                "ok" => suite.passed.push(test.into()),
                "FAILED" => suite.failed.push(Failure { test: test.into(), message: String::new() }),
                _ => {
                    if let Some(reason) = outcome.strip_prefix("ignored") {
                        suite.ignored.push((test.into(), reason.trim_start_matches(", ").into()));
                    }
                }
            }
        }
    }
    suites
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
   Compiling page-by-page v0.1.0 (/somewhere)
    Finished `test` profile [optimized + debuginfo] target(s) in 2.08s
     Running tests/ch01_sum.rs (target/debug/deps/ch01_sum-a3e9)

running 6 tests
test checks::story ... ok
test checks::task_1_adds ... FAILED
test checks::transcript ... FAILED
test checks::twice ... FAILED
test checks::asks ... FAILED
test checks::stumbles ... FAILED

failures:

---- checks::task_1_adds stdout ----

thread 'checks::task_1_adds' (7) panicked at tests/ch01_sum.rs:7:5:
sum([1, 2])
  expected: 3
  yours:    2
note: run with `RUST_BACKTRACE=1`

---- checks::transcript stdout ----
━━━ Snapshot Summary ━━━
-old snapshot
+new results
────────────┬───────────
    1       │-sum 3
          1 │+sum 2
────────────┴───────────

thread 'checks::transcript' (8) panicked at /registry/insta-1.49.0/src/runtime.rs:734:13:
snapshot assertion for 'ch01_sums' failed in line 9

---- checks::twice stdout ----

thread 'checks::twice' (9) panicked at exercises/ch01_sum.rs:7:5:
index out of bounds
stack backtrace:
   0: somewhere

---- checks::asks stdout ----

grow(2)
  your code panicked (exercises/ch01_sum.rs:7): capacity overflow

thread 'checks::asks' (9) panicked at /rustc/raw_vec/mod.rs:28:5:
capacity overflow

---- checks::stumbles stdout ----

thread 'checks::stumbles' (9) panicked at tests/ch01_sum.rs:9:5:
called `Result::unwrap()` on an `Err` value: NoTokens

failures:
    checks::task_1_adds
    checks::transcript
    checks::twice

test result: FAILED. 1 passed; 5 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.08s

error: test failed, to rerun pass `--test ch01_sum`
     Running tests/ch02_double.rs (target/debug/deps/ch02_double-0b1c)

running 1 test
test ch02_double ... ignored, not started: edit exercises/ch02_double.rs

test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
     Running tests/ch03_crash.rs (target/debug/deps/ch03_crash-0b1c)

running 1 test
";

    #[test]
    fn the_output_of_cargo_test_is_read() {
        let suites = read_suites(OUTPUT);
        assert_eq!(suites.len(), 3);
        let [first, second, third] = &suites[..] else { panic!() };
        assert_eq!((first.name.as_str(), first.ended), ("ch01_sum", true));
        assert_eq!(first.passed, ["checks::story"]);
        assert_eq!(first.failed.len(), 5);
        assert_eq!(first.failed[0].test, "checks::task_1_adds");
        assert_eq!(first.failed[0].says(), "sum([1, 2]); expected: 3; yours:    2");
        assert!(first.failed[0].is_explained() && !first.failed[0].is_snapshot());
        assert_eq!(first.failed[1].says(), "transcript: -sum 3; +sum 2");
        assert!(first.failed[1].is_explained() && first.failed[1].is_snapshot());
        assert_eq!(first.failed[2].says(), "index out of bounds");
        assert!(!first.failed[2].is_explained());
        assert_eq!(first.failed[3].says(), "grow(2); your code panicked (exercises/ch01_sum.rs:7): capacity overflow");
        assert!(first.failed[3].is_explained());
        assert_eq!(first.failed[4].says(), "called `Result::unwrap()` on an `Err` value: NoTokens");
        assert!(!first.failed[4].is_explained(), "a check that stumbles explains nothing");
        let reason = "not started: edit exercises/ch02_double.rs".to_string();
        assert_eq!(second.ignored, [("ch02_double".to_string(), reason)]);
        assert_eq!((third.name.as_str(), third.ended), ("ch03_crash", false));
    }

    #[test]
    fn what_kept_the_checks_from_running_is_said() {
        let trial = |output: &str, hung: bool| {
            let trial = Trial { success: false, hung, output: output.into(), suites: read_suites(output) };
            trial.obstacle().unwrap_or_default()
        };
        assert_eq!(
            trial("   Compiling x\nerror[E0308]: mismatched types\n", false),
            "does not compile: error[E0308]: mismatched types"
        );
        assert_eq!(trial("     Running tests/a.rs (x)\n", true), "does not come to an end");
        assert!(trial("     Running tests/a.rs (x)\nerror: test failed\n", false).starts_with("the checks of a crash"));
    }
}
