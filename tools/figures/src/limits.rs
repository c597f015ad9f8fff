//! Bounds for a reader's code while a figure is recorded from it: it neither runs for ever nor eats the memory of the
//! machine, and it fails in one line.

use std::panic::{self, PanicHookInfo};
use std::thread;
use std::time::Duration;

use anyhow::Result;

/// How long a figure may take to record. The longest takes a few seconds.
pub const LONGEST: Duration = Duration::from_secs(30);

/// Bytes that may be held. Figures need less than a tenth of it.
#[cfg(target_os = "linux")]
const MOST_BYTES: u64 = 2 << 30;

/// Sets the bounds for the rest of this process.
///
/// # Errors
/// The system's, if it sets no bound for memory.
pub fn set() -> Result<()> {
    panic::set_hook(Box::new(|panicked| eprintln!("error: {}", in_a_line(panicked))));
    thread::spawn(|| {
        thread::sleep(LONGEST);
        eprintln!("error: still recording after {} s: does a loop of yours never end?", LONGEST.as_secs());
        std::process::exit(1);
    });
    limit_memory()
}

fn in_a_line(panicked: &PanicHookInfo<'_>) -> String {
    let place = panicked.location().map_or_else(String::new, |place| {
        // As it is compiled, the path of a chapter begins in src/.
        let file = place.file().replace('\\', "/");
        let file =
            ["exercises/", "solutions/"].iter().find_map(|folder| Some(&file[file.find(folder)?..])).unwrap_or(&file);
        format!(" ({file}:{})", place.line())
    });
    let message = panicked.payload_as_str().unwrap_or("without a word").replace('\n', " ");
    format!("the code panicked{place}: {message}")
}

#[cfg(target_os = "linux")]
fn limit_memory() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Data);
    let lowered = |limit: Option<u64>| Some(limit.map_or(MOST_BYTES, |limit| limit.min(MOST_BYTES)));
    Ok(setrlimit(Resource::Data, Rlimit { current: lowered(current), maximum: lowered(maximum) })?)
}

/// Elsewhere the limit in time has to do.
#[cfg(not(target_os = "linux"))]
fn limit_memory() -> Result<()> {
    Ok(())
}
