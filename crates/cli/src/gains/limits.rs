//! Runs a measure on code that may panic, refuse or never return, and says then which checks know more.

use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use page_by_page::chapters::CompiledChapter;
use page_by_page::panics;

use crate::memory;
use crate::output::{mib, time};

#[derive(Clone, Copy)]
pub struct Limits {
    time: Duration,
    /// Bytes of memory, beyond what the program had before.
    bytes: usize,
}

/// On an idle machine no measure takes a second, and none a tenth of the memory.
pub const LIMITS: Limits = Limits { time: Duration::from_secs(30), bytes: 2 << 30 };

/// Counts for one chapter; returns the lines that `gains` shows.
pub type Measure = fn() -> Result<Vec<String>>;

/// Measures for a chapter, on the code of `yours` and of the reference.
///
/// If the code does not return, the program ends with this error, because a thread cannot be stopped in any other way.
pub fn measure_within(
    limits: Limits,
    number: usize,
    yours: &[&CompiledChapter],
    measure: Measure,
) -> Result<Vec<String>> {
    let panicked = Arc::new(OnceLock::new());
    let usual = panic::take_hook();
    let noted = panicked.clone();
    // The first panic counts, because others follow from it.
    panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        let message = panics::message(panic.payload()).unwrap_or("no message").to_string();
        let _ = noted.set((place, message));
    }));
    let outcome = on_its_own(limits, measure);
    panic::set_hook(usual);
    let (checks, error) = match outcome? {
        Ok(Ok(lines)) => return Ok(lines),
        Ok(Err(error)) => (asks(yours), error),
        Err(_) => {
            let (place, message) = panicked.get().cloned().unwrap_or_default();
            // A place in an exercise says whose checks know more.
            let there: Vec<&CompiledChapter> =
                yours.iter().copied().filter(|chapter| place.contains(chapter.name)).collect();
            let checks = asks(if there.is_empty() { yours } else { &there });
            (checks, anyhow!("the code panicked at {place}: {message}"))
        }
    };
    Err(error.context(format!("chapter {number} cannot be measured{checks}")))
}

/// Runs a measure in threads of its own, as many as this command computes with. Returns what it returns, the payload of
/// its panic, or an error if it runs on and has taken too much time or memory.
fn on_its_own(limits: Limits, measure: Measure) -> Result<thread::Result<Result<Vec<String>>>> {
    let (send, receive) = mpsc::channel();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(rayon::current_num_threads())
        .build()
        .context("cannot start a thread to measure on; give fewer with --threads")?;
    pool.spawn(move || {
        // If this took too long, the result has no receiver any more.
        let _ = send.send(panic::catch_unwind(AssertUnwindSafe(measure)));
    });
    let (start, before) = (Instant::now(), memory::held().unwrap_or(0));
    let taken = loop {
        match receive.recv_timeout(Duration::from_millis(20)) {
            Ok(ended) => return Ok(ended),
            Err(RecvTimeoutError::Disconnected) => bail!("the thread that measures has ended"),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let held = memory::held().unwrap_or(0).saturating_sub(before);
        if start.elapsed() > limits.time {
            break format!("it has not come back in {}", time(limits.time));
        }
        if held > limits.bytes {
            break format!("it has taken {} of memory", mib(held));
        }
    };
    // To be dropped, a pool waits for its threads.
    std::mem::forget(pool);
    Ok(Ok(Err(anyhow!("{taken}; does a loop never end?"))))
}

fn asks(yours: &[&CompiledChapter]) -> String {
    let tests: Vec<String> = yours.iter().map(|chapter| format!("--test {}", chapter.name)).collect();
    match tests.is_empty() {
        true => String::new(),
        false => format!(", run its checks first (cargo test --features solution {})", tests.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use page_by_page::chapters::chapter;

    fn message(limits: Limits, measure: Measure) -> String {
        match measure_within(limits, 2, &[chapter(1), chapter(2)], measure) {
            Ok(lines) => format!("{} lines", lines.len()),
            Err(error) => format!("{error:#}"),
        }
    }

    // One after the other, because all panics of a program come to the same hook.
    #[test]
    fn what_goes_wrong_names_the_checks() {
        let fine: Measure = || Ok(vec!["rows: 1".into()]);
        let checks = "run its checks first (cargo test --features solution --test ch01_recompute --test ch02_flat): ";
        let refused = message(LIMITS, || bail!("no room"));
        assert_eq!(refused, format!("chapter 2 cannot be measured, {checks}no room"));

        let panicked = message(LIMITS, || panic!("row {} of 3", 7));
        let begins = format!("chapter 2 cannot be measured, {checks}the code panicked at crates/cli/src");
        assert!(panicked.starts_with(&begins) && panicked.ends_with(": row 7 of 3"), "{panicked}");

        let endless: Measure = || {
            let eaten = vec![1_u8; 96 << 20];
            thread::sleep(Duration::from_secs(5));
            bail!("{}", eaten.iter().map(|n| u64::from(*n)).sum::<u64>())
        };
        let slow = message(Limits { time: Duration::from_millis(100), ..LIMITS }, endless);
        let ends = format!("{checks}it has not come back in 100.0 ms; does a loop never end?");
        assert!(slow.ends_with(&ends), "{slow}");
        if memory::held().is_some() {
            let large = message(Limits { bytes: 64 << 20, ..LIMITS }, endless);
            assert!(large.contains("it has taken "), "{large}");
        }
        // It is as it was before.
        assert_eq!(message(LIMITS, fine), "1 lines");
    }
}
