//! Bounds for a learner's loops: none runs for ever, none eats the memory of the machine. And a count of allocations, for
//! promises such as "nothing is copied".

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::Debug;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use super::asking::asking;

/// Bytes that all checks of a program may hold together. They need less than a tenth of it.
const MOST_BYTES: usize = 2 << 30;

/// How long a check may go on without a sign of life. The longest are silent for a second or two.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);

/// What a call took from the allocator, on its own thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocated {
    /// How often memory was asked for, or asked to grow.
    pub times: usize,
    /// Bytes asked for, in all of these together. What was given back since counts all the same.
    pub bytes: usize,
}

/// Calls `call` and counts what it allocates on this thread.
pub fn allocated<T>(call: impl FnOnce() -> T) -> (T, Allocated) {
    let before = ASKED.get();
    let value = call();
    let after = ASKED.get();
    (value, Allocated { times: after.times - before.times, bytes: after.bytes - before.bytes })
}

thread_local! {
    /// All that this thread has asked for.
    static ASKED: Cell<Allocated> = const { Cell::new(Allocated { times: 0, bytes: 0 }) };
}

/// Bytes held by all threads.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with an eye on what it gives.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

impl Counting {
    /// Notes that a thread asks for `bytes`, in place of `before`.
    fn note(&self, before: usize, bytes: usize) {
        // A thread that is ending has no counts any more.
        let _ = ASKED.try_with(|asked| {
            let Allocated { times, bytes: earlier } = asked.get();
            asked.set(Allocated { times: times + 1, bytes: earlier + bytes });
        });
        let held = HELD.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) - before;
        HELD.fetch_sub(before, Ordering::Relaxed);
        if held > MOST_BYTES {
            // No second alarm while this one is written.
            HELD.store(0, Ordering::Relaxed);
            stop(
                thread::current().name(),
                &format!(
                    "asks for {bytes} bytes more, and all checks together then hold over {} GiB: \
                     does a loop of yours never end, or is a size wrong?",
                    MOST_BYTES >> 30
                ),
            );
        }
    }
}

// SAFETY: every call goes to the system's allocator as it came; beside it, only counters change.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.note(0, layout.size());
        // SAFETY: the caller keeps the promises of `GlobalAlloc::alloc`, and `System` asks for the same ones.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.note(0, layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        self.note(layout.size(), new_size);
        // SAFETY: as in `alloc`.
        unsafe { System.realloc(memory, layout, new_size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Bytes that a call may ask for, on average, if it is to cost the same however much there is. And some to begin with.
const BYTES_EACH: usize = 1 << 12;
const BYTES_ONCE: usize = 1 << 16;

/// How long all calls may take together. Calls that cost a few steps each take hundredths of a second.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// The time that this thread has taken, to be held to [`TIME_LIMIT`]. On a busy machine a thread can wait for seconds until
/// it is run, so where the system says how long it ran (Linux), only that counts.
struct Stopwatch {
    begin: Instant,
    ran_before: Option<Duration>,
}

impl Stopwatch {
    fn start() -> Self {
        Stopwatch { begin: Instant::now(), ran_before: Self::ran() }
    }

    /// How long this thread has been running in all.
    fn ran() -> Option<Duration> {
        if cfg!(miri) {
            return None;
        }
        let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        stat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    }

    /// The time taken, if it is over the limit.
    fn over_limit(&self) -> Option<Duration> {
        let over = |time: &Duration| !cfg!(miri) && *time >= TIME_LIMIT;
        let elapsed = Some(self.begin.elapsed()).filter(over)?;
        let ran = Self::ran().zip(self.ran_before).map(|(now, before)| now - before);
        Some(ran.unwrap_or(elapsed)).filter(over)
    }
}

/// Makes a call very often, on something very large, and holds it to the promise that it costs the same however much
/// there is. `call` gets the calls' numbers, from 0.
///
/// This is no stopwatch. A call that copies the whole list asks the allocator for it, and that is counted. A call that
/// only walks through the list asks for nothing, but would take minutes here, where others take hundredths of a second.
#[track_caller]
pub fn often(what: &str, calls: usize, mut call: impl FnMut(usize)) {
    let _asking = asking(what);
    let stopwatch = Stopwatch::start();
    let mut total = 0;
    for number in 0..calls {
        let ((), asked) = allocated(|| call(number));
        total += asked.bytes;
        assert!(
            total <= BYTES_ONCE + BYTES_EACH * (number + 1),
            "{what}: call number {number} asked for {} bytes of memory, all calls so far for {total}: \
             does it make a copy of everything?",
            asked.bytes
        );
        if number % 64 == 0 {
            alive();
            assert!(
                stopwatch.over_limit().is_none(),
                "{what}: {number} of {calls} calls took more than {} seconds, and all of them should take a fraction of \
                 one: does each go through everything there is?",
                TIME_LIMIT.as_secs()
            );
        }
    }
}

/// What `same!` does, for answers that come by the million: nothing is formatted unless they differ.
#[track_caller]
pub fn same_each<T: PartialEq + Debug>(yours: T, expected: T, what: impl FnOnce() -> String) {
    if yours != expected {
        let what = what();
        same!(yours, expected, "{what}");
    }
}

/// Makes one call, on something very large, and holds it to the promise that it goes through that once: see [`often`].
#[track_caller]
pub fn once<T>(what: &str, call: impl FnOnce() -> T) -> T {
    let _asking = asking(what);
    let stopwatch = Stopwatch::start();
    let value = call();
    if let Some(took) = stopwatch.over_limit() {
        panic!(
            "{what}: took {:.0} seconds, and should take a fraction of one: does it go through everything again and again?",
            took.as_secs_f64()
        );
    }
    value
}

/// The checks that have failed so far, each with its words. What they print is held back until all have ended.
static FAILED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Notes that the check of this thread fails: if another one ends the program, this is printed all the same.
pub fn failed(words: &str) {
    let check = thread::current().name().unwrap_or("a check").to_string();
    if let Ok(mut failed) = FAILED.lock() {
        failed.push(format!("{check}: {words}"));
    }
}

/// Ends the program; says which check went wrong, past the capture of output, and why. Those that failed before come first.
fn stop(check: Option<&str>, why: &str) -> ! {
    // This thread may be noting a failure just now.
    if let Ok(failed) = FAILED.try_lock() {
        for words in failed.iter() {
            let _ = writeln!(std::io::stderr(), "\nfailed: {words}");
        }
    }
    let _ = writeln!(std::io::stderr(), "\nerror: {} {why}", check.unwrap_or("a check"));
    // `exit` would wait for what other threads hold.
    std::process::abort()
}

/// When each running check last gave a sign of life, and its name.
static SIGNS: Mutex<Option<HashMap<ThreadId, (String, Instant)>>> = Mutex::new(None);

fn signs() -> MutexGuard<'static, Option<HashMap<ThreadId, (String, Instant)>>> {
    SIGNS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A sign of life from the check that runs on this thread. One that gives none for a minute ends the program.
///
/// `same!`, rows, dice, oracles and scripted models give it; a check that goes on for long without them calls it itself.
pub fn alive() {
    static WATCH: Once = Once::new();
    // Miri takes a minute for many things.
    if cfg!(miri) {
        return;
    }
    WATCH.call_once(|| drop(thread::spawn(watch)));
    THIS_CHECK.with(|check| {
        signs().get_or_insert_default().entry(check.thread).or_insert_with(check_name).1 = Instant::now();
    });
}

fn check_name() -> (String, Instant) {
    (thread::current().name().unwrap_or("a check").into(), Instant::now())
}

fn watch() {
    loop {
        thread::sleep(Duration::from_secs(1));
        let signs = signs().clone().unwrap_or_default();
        if let Some((check, _)) = signs.values().find(|(_, last)| last.elapsed() > LONGEST_SILENCE) {
            stop(
                Some(check),
                "has given no sign of life for a minute: does a loop of yours never end, or does it go through \
                 everything again and again?",
            );
        }
    }
}

thread_local! {
    static THIS_CHECK: ThisCheck = ThisCheck { thread: thread::current().id() };
}

/// Dropped when a check's thread ends: its signs are no longer waited for.
struct ThisCheck {
    thread: ThreadId,
}

impl Drop for ThisCheck {
    fn drop(&mut self) {
        signs().as_mut().map(|signs| signs.remove(&self.thread));
    }
}
