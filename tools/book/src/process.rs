//! Runs a program for at most so long, and keeps what it says.

use std::io::{Read, Seek};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// What a program came to.
pub struct Ended {
    /// None: it was ended, as its time was over.
    pub status: Option<ExitStatus>,
    /// All that it wrote.
    pub output: String,
}

/// Runs a program to its end or to the limit.
///
/// # Errors
/// When it cannot be started.
pub fn run(mut command: Command, limit: Duration) -> Result<Ended> {
    let mut log = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    // A group of its own, so that `stop` reaches what the program has started.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn().with_context(|| format!("starting {}", command.get_program().display()))?;
    let status = wait(&mut child, limit)?;
    log.rewind()?;
    let mut output = Vec::new();
    log.read_to_end(&mut output)?;
    Ok(Ended { status, output: String::from_utf8_lossy(&output).into_owned() })
}

fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let started = Instant::now();
    while started.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    stop(child);
    child.wait()?;
    Ok(None)
}

#[cfg(unix)]
fn stop(child: &mut Child) {
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
}

#[cfg(windows)]
fn stop(child: &mut Child) {
    let tree = child.id().to_string();
    let _ = Command::new("taskkill").args(["/F", "/T", "/PID", &tree]).status();
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_an_end_is_ended_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let mut shell = Command::new("sh");
        // What it starts would leave a file behind.
        shell.args(["-c", "echo begun; (sleep 2; echo > late) & wait"]).current_dir(folder.path());
        let Ended { status, output } = run(shell, Duration::from_millis(500)).unwrap();
        assert_eq!((status, output.as_str()), (None, "begun\n"));
        std::thread::sleep(Duration::from_millis(2500));
        assert!(!folder.path().join("late").exists());
    }
}
