//! Bounds for a learner's loops: none runs for ever, none eats the memory of the machine. And a count of allocations,
//! for promises such as "nothing is copied".

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once};
use std::thread;
use std::time::{Duration, Instant};

use crate::calls::{enter_call, in_call};

/// Bytes that all checks of a program may hold together. They need less than a tenth of it.
const MAX_BYTES: usize = 2 << 30;

/// How long a check may go on without a sign of life. The longest are silent for a second or two.
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// Calls `call`; the bytes that it asks the allocator for on this thread. What it gives back counts all the same.
pub fn allocated<T>(call: impl FnOnce() -> T) -> (T, usize) {
    let before = ASKED.get();
    let value = call();
    (value, ASKED.get() - before)
}

/// Calls `call`; the most bytes that this thread holds meanwhile, beyond those that it holds now.
pub fn most_held<T>(call: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD_HERE.get();
    MAX_HELD_HERE.set(before);
    let value = call();
    (value, (MAX_HELD_HERE.get() - before) as usize)
}

/// Makes a call that may ask the allocator for this many bytes, and says `why` no more are needed.
#[track_caller]
pub fn assert_allocates<T>(most: usize, what: impl AsRef<str>, why: &str, call: impl FnOnce() -> T) -> T {
    let what = what.as_ref();
    let (value, asked) = in_call(what, || allocated(call));
    assert!(asked <= most, "{what} asks the allocator for {asked} bytes\n  expected: at most {most}: {why}");
    value
}

thread_local! {
    /// Bytes that this thread has asked for.
    static ASKED: Cell<usize> = const { Cell::new(0) };
    /// Bytes that it holds, and the most since [`most_held`] began. What another thread gave it counts against it.
    static HELD_HERE: Cell<isize> = const { Cell::new(0) };
    static MAX_HELD_HERE: Cell<isize> = const { Cell::new(0) };
}

fn note_held_here(bytes: isize) {
    let held = HELD_HERE.try_with(|held| held.replace(held.get() + bytes) + bytes);
    let _ = held.map(|held| MAX_HELD_HERE.try_with(|most| most.set(most.get().max(held))));
}

static HELD: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with an eye on what it gives.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

impl Counting {
    fn note(&self, bytes: usize) {
        // A thread that is ending has no counts any more.
        let _ = ASKED.try_with(|asked| asked.set(asked.get() + bytes));
        note_held_here(bytes as isize);
        if HELD.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > MAX_BYTES {
            // No second alarm while this one is written.
            HELD.store(0, Ordering::Relaxed);
            let why = format!(
                "asks for {bytes} bytes more, and all checks together then hold over {} GiB: \
                 does a loop of yours never end, or is a size wrong?",
                MAX_BYTES >> 30
            );
            stop(thread::current().name(), &why);
        }
    }
}

// SAFETY: every call goes to the system's allocator as it came; beside it, only counters change.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.note(layout.size());
        // SAFETY: the caller keeps the promises of `GlobalAlloc::alloc`, and `System` asks for the same ones.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        note_held_here(-(layout.size() as isize));
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Bytes that a call may ask for, on average, if it is to cost the same however much there is. And some to begin with.
const BYTES_EACH: usize = 1 << 12;
const BYTES_ONCE: usize = 1 << 16;

/// How long all calls may take together. Calls that cost a few steps each take hundredths of a second.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// The processor time of this thread, which may have waited for seconds on a busy machine.
#[cfg(all(unix, not(miri)))]
fn time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Elsewhere the wall clock must do. Under Miri it stands still: there, what takes no time takes minutes.
#[cfg(any(not(unix), miri))]
fn time() -> Duration {
    if cfg!(miri) { Duration::ZERO } else { std::time::UNIX_EPOCH.elapsed().unwrap_or_default() }
}

/// Makes a call very often, on something very large, and holds it to the promise that it costs the same however much
/// there is. `call` gets the calls' numbers, from 0.
///
/// This is no stopwatch. A call that copies the whole list asks the allocator for it, and that is counted. A call that
/// only walks through the list asks for nothing, but would take minutes here, where others take hundredths of a second.
#[track_caller]
pub fn assert_constant_cost(what: &str, calls: usize, mut call: impl FnMut(usize)) {
    let _call = enter_call(what);
    let begin = time();
    let mut total = 0;
    for number in 0..calls {
        let ((), asked) = allocated(|| call(number));
        total += asked;
        assert!(
            total <= BYTES_ONCE + BYTES_EACH * (number + 1),
            "{what}: call number {number} asked for {asked} bytes of memory, all calls so far for {total}: \
             does it make a copy of everything?"
        );
        if number % 64 == 0 {
            heartbeat();
            assert!(
                time() - begin < TIME_LIMIT,
                "{what}: {number} of {calls} calls took more than {} seconds, and all of them should take a fraction \
                 of one: does each go through everything there is?",
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

/// Makes one call, on something very large, and holds it to the promise that it goes through that once: see
/// [`assert_constant_cost`].
#[track_caller]
pub fn assert_one_pass<T>(what: &str, call: impl FnOnce() -> T) -> T {
    let _call = enter_call(what);
    let begin = time();
    let value = call();
    let took = (time() - begin).as_secs();
    assert!(
        took < TIME_LIMIT.as_secs(),
        "{what}: took {took} seconds, and should take a fraction of one: does it go through everything again and again?"
    );
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

/// Whether a check has failed so far.
pub fn has_failed() -> bool {
    FAILED.lock().map_or(true, |failed| !failed.is_empty())
}

/// Ends the program; says which check went wrong and why, past the capture of output, after those that failed before.
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

/// When each running check last gave a sign of life.
static SIGNS: Mutex<BTreeMap<String, Instant>> = Mutex::new(BTreeMap::new());

fn signs() -> MutexGuard<'static, BTreeMap<String, Instant>> {
    SIGNS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The check of a thread. When the thread ends, no more signs are waited for.
struct Check(String);

impl Drop for Check {
    fn drop(&mut self) {
        signs().remove(&self.0);
    }
}

thread_local! {
    static CHECK: Check = Check(thread::current().name().unwrap_or("a check").into());
}

/// A sign of life from the check that runs on this thread. One that gives none for a minute ends the program.
///
/// `same!`, rows, dice, oracles and scripted models give it. A check that goes on for long without them calls it.
pub fn heartbeat() {
    static WATCH: Once = Once::new();
    // Miri takes a minute for many things.
    if cfg!(miri) {
        return;
    }
    WATCH.call_once(|| drop(thread::spawn(watch)));
    CHECK.with(|check| signs().insert(check.0.clone(), Instant::now()));
}

fn watch() {
    loop {
        thread::sleep(Duration::from_secs(1));
        let silent = signs().iter().find(|(_, last)| last.elapsed() > MAX_SILENCE).map(|(check, _)| check.clone());
        if let Some(check) = silent {
            let why = "has given no sign of life for a minute: does a loop of yours never end, or does it go through \
                       everything again and again?";
            stop(Some(&check), why);
        }
    }
}
