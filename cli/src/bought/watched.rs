//! Runs a measure on code that may panic, refuse or never come back, and says then which checks know more.

use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use page_by_page::chapters::Chapter;

use super::measures::Line;
use crate::output::{mib, time};

/// What a measure may take.
#[derive(Clone, Copy)]
struct Most {
    time: Duration,
    /// Of memory, beside what there was.
    bytes: usize,
}

/// On an idle machine no measure takes a second, and none a tenth of the memory.
const MOST: Most = Most { time: Duration::from_secs(30), bytes: 2 << 30 };

/// What a measure does.
pub type Measure = fn() -> Result<Vec<Line>>;

/// Measures for `chapter`, on the code of `yours` and of the reference.
///
/// Where the code does not come back, the program ends with this error: the thread that it runs on cannot be stopped
/// otherwise.
pub fn watched(chapter: &Chapter, yours: &[&Chapter], measure: Measure) -> Result<Vec<Line>> {
    watched_within(MOST, chapter, yours, measure)
}

fn watched_within(most: Most, chapter: &Chapter, yours: &[&Chapter], measure: Measure) -> Result<Vec<Line>> {
    let panicked = Arc::new(Mutex::new(None));
    let usual = panic::take_hook();
    let noted = panicked.clone();
    // The first panic counts: others follow from it.
    panic::set_hook(Box::new(move |panic| {
        let file = panic.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        let words = panic.payload();
        let message = words.downcast_ref::<&str>().map(ToString::to_string).or(words.downcast_ref::<String>().cloned());
        let message = message.unwrap_or("no message".into());
        if let Ok(mut noted) = noted.lock() {
            noted.get_or_insert((file, message));
        }
    }));
    let outcome = on_its_own(most, measure);
    panic::set_hook(usual);
    let said = || panicked.lock().ok()?.clone();
    match outcome? {
        Outcome::Measured(lines) => Ok(lines),
        Outcome::Refused(error) => {
            Err(error.context(format!("chapter {} cannot be measured{}", chapter.number, asks(yours))))
        }
        Outcome::Panicked => {
            let (place, message) = said().unwrap_or_default();
            // The place tells whose checks know more, where it is in an exercise.
            let there: Vec<&Chapter> = yours.iter().copied().filter(|chapter| place.contains(chapter.name)).collect();
            let of = if there.is_empty() { yours } else { &there };
            bail!("chapter {} cannot be measured{}: the code panicked at {place}: {message}", chapter.number, asks(of))
        }
        Outcome::Endless(what) => {
            bail!("chapter {} cannot be measured{}: {what}; does a loop never end?", chapter.number, asks(yours))
        }
    }
}

/// What became of a measure.
enum Outcome {
    Measured(Vec<Line>),
    Refused(anyhow::Error),
    Panicked,
    /// It runs on.
    Endless(String),
}

/// Runs a measure in threads of its own, as many as this command computes with, and keeps an eye on time and memory.
fn on_its_own(most: Most, measure: Measure) -> Result<Outcome> {
    let (send, receive) = mpsc::channel();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(rayon::current_num_threads())
        .build()
        .context("cannot start a thread to measure on; give fewer with --threads")?;
    pool.spawn(move || {
        let outcome = panic::catch_unwind(AssertUnwindSafe(measure));
        // Nobody listens any more when it took too long.
        let _ = send.send(outcome);
    });
    let (start, before) = (Instant::now(), memory_held().unwrap_or(0));
    loop {
        match receive.recv_timeout(Duration::from_millis(20)) {
            Ok(Ok(Ok(lines))) => return Ok(Outcome::Measured(lines)),
            Ok(Ok(Err(error))) => return Ok(Outcome::Refused(error)),
            Ok(Err(_)) => return Ok(Outcome::Panicked),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(anyhow!("the thread that measures has ended")),
        }
        let held = memory_held().unwrap_or(0).saturating_sub(before);
        let what = match () {
            () if start.elapsed() > most.time => format!("it has not come back in {}", time(most.time)),
            () if held > most.bytes => format!("it has taken {} of memory", mib(held)),
            () => continue,
        };
        // To be dropped, a pool waits for its threads.
        std::mem::forget(pool);
        return Ok(Outcome::Endless(what));
    }
}

/// Bytes of memory that this program has; `None` where the system does not say.
fn memory_held() -> Option<usize> {
    let memory = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = memory.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix(" kB")?;
    Some(kib.parse::<usize>().ok()? << 10)
}

/// Whom to ask: the checks of the chapters that are the reader's.
fn asks(yours: &[&Chapter]) -> String {
    let tests: Vec<String> = yours.iter().map(|chapter| format!("--test {}", chapter.name)).collect();
    match tests.is_empty() {
        true => String::new(),
        false => format!(", run its checks first (cargo test --features solution {})", tests.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bought::measures::Number;
    use page_by_page::chapters::chapter;

    /// What is said when chapter 2 is measured so.
    fn says(most: Most, measure: Measure) -> String {
        match watched_within(most, chapter(2), &[chapter(1), chapter(2)], measure) {
            Ok(lines) => format!("{} lines", lines.len()),
            Err(error) => format!("{error:#}"),
        }
    }

    // One after the other: all panics of a program come to the same place.
    #[test]
    fn what_goes_wrong_names_the_checks() {
        let fine: Measure = || Ok(vec![Line { what: "rows", before: None, after: Number::Count(1) }]);
        assert_eq!(says(MOST, fine), "1 lines");
        let checks = "run its checks first (cargo test --features solution --test ch01_recompute --test ch02_flat): ";
        let refused = says(MOST, || bail!("no room"));
        assert_eq!(refused, format!("chapter 2 cannot be measured, {checks}no room"));

        let panicked = says(MOST, || panic!("row {} of 3", 7));
        let begins = format!("chapter 2 cannot be measured, {checks}the code panicked at cli/src");
        assert!(panicked.starts_with(&begins) && panicked.ends_with(": row 7 of 3"), "{panicked}");

        let soon = Most { time: Duration::from_millis(100), ..MOST };
        let endless = says(soon, || {
            std::thread::sleep(Duration::from_secs(5));
            Ok(Vec::new())
        });
        let ends = format!("{checks}it has not come back in 100.0 ms; does a loop never end?");
        assert!(endless.ends_with(&ends), "{endless}");

        if memory_held().is_some() {
            let little = Most { bytes: 64 << 20, ..MOST };
            let eats = says(little, || {
                let eaten = vec![1_u8; 96 << 20];
                std::thread::sleep(Duration::from_secs(5));
                Ok(vec![Line {
                    what: "",
                    before: None,
                    after: Number::Count(eaten.iter().map(|n| u64::from(*n)).sum()),
                }])
            });
            assert!(eats.contains("it has taken ") && eats.ends_with(" of memory; does a loop never end?"), "{eats}");
        }
        // It is as it was before.
        assert_eq!(says(MOST, fine), "1 lines");
    }
}
