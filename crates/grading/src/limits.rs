//! Bounds for a learner's loops: none runs for ever, none eats the memory of the machine. And a count of allocations,
//! for promises such as "nothing is copied".

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Debug;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once};
use std::thread;
use std::time::Duration;

use crate::calls::{enter_call, in_call};

/// Bytes that all checks of a program may hold together. They need less than a tenth of it.
const MAX_BYTES: usize = 2 << 30;

/// Processor time that a check may take without a sign of life. None takes a quarter of a second.
const MAX_SILENCE: Duration = Duration::from_secs(10);

/// Calls `call`; the bytes that it asks the allocator for on this thread. What it gives back counts all the same.
pub fn allocated<T>(call: impl FnOnce() -> T) -> (T, usize) {
    let before = ASKED.get();
    let value = call();
    (value, ASKED.get() - before)
}

/// Calls `call`; the most bytes that this thread holds meanwhile, beyond those that it holds now.
pub fn peak_held<T>(call: impl FnOnce() -> T) -> (T, usize) {
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
    /// Bytes that it holds, and the most since [`peak_held`] began. What another thread gave it counts against it.
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
                "asks for {bytes} bytes more, and all checks together then hold over {} GiB: does a loop of yours \
                 never end, or is a size wrong?",
                MAX_BYTES >> 30
            );
            let call = CHECK.try_with(|check| check.0.newest_call.try_lock().map(|call| call.clone()).ok());
            stop(thread::current().name().unwrap_or("a check"), &call.ok().flatten().unwrap_or_default(), &why);
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
const TIME_LIMIT: Duration = Duration::from_secs(2);

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
                "{what}: the first {number} calls took more than {} seconds together, and all {calls} should take a \
                 fraction of one: does each go through everything there is?",
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

/// Makes one call, on something very large, that must go through it only once: see [`assert_constant_cost`].
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

pub fn has_failed() -> bool {
    FAILED.lock().map_or(true, |failed| !failed.is_empty())
}

/// Ends the program; says which check went wrong, why and where, uncaptured, after those that failed before.
fn stop(check: &str, call: &str, why: &str) -> ! {
    // This thread may be noting a failure just now.
    if let Ok(failed) = FAILED.try_lock() {
        for words in failed.iter() {
            let _ = writeln!(std::io::stderr(), "\nfailed: {words}");
        }
    }
    let _ = writeln!(std::io::stderr(), "\nerror: {check} {why}\n  the call that began last: {call}");
    // `exit` would wait for what other threads hold.
    std::process::abort()
}

/// A check that runs, as the watchdog sees it.
struct Check {
    name: String,
    /// The call that began last.
    newest_call: Mutex<String>,
    /// Its processor time when the watchdog first found it silent, and how many seconds ago that was; none after a sign.
    silent: Mutex<Option<(Duration, u32)>>,
    /// Where Linux keeps the processor time of the check's thread, in nanoseconds.
    schedstat: PathBuf,
}

static CHECKS: Mutex<Vec<Arc<Check>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The check of a thread, for as long as the thread lives.
struct RunningCheck(Arc<Check>);

impl Drop for RunningCheck {
    fn drop(&mut self) {
        lock(&CHECKS).retain(|check| !Arc::ptr_eq(check, &self.0));
    }
}

thread_local! {
    static CHECK: RunningCheck = {
        static WATCHDOG: Once = Once::new();
        // Miri takes a minute for many things.
        if !cfg!(miri) {
            WATCHDOG.call_once(|| drop(thread::spawn(watchdog)));
        }
        let name = thread::current().name().unwrap_or("a check").into();
        let thread = if cfg!(miri) { None } else { std::fs::read_link("/proc/thread-self").ok() };
        let schedstat = Path::new("/proc").join(thread.unwrap_or_default()).join("schedstat");
        let check = Arc::new(Check { name, newest_call: Mutex::default(), silent: Mutex::default(), schedstat });
        lock(&CHECKS).push(check.clone());
        RunningCheck(check)
    };
}

/// A sign of life from the check that runs on this thread. One that gives none for long ends the program.
///
/// `same!`, rows, rng, oracles and scripted models give it. A check that goes on for long without them calls it.
pub fn heartbeat() {
    CHECK.with(|check| *lock(&check.0.silent) = None);
}

/// A sign of life, and the call that begins.
pub fn call_begins(call: &str) {
    heartbeat();
    CHECK.with(|check| call.clone_into(&mut lock(&check.0.newest_call)));
}

/// The call of this thread that began last, and may have ended.
pub fn newest_call() -> String {
    CHECK.with(|check| lock(&check.0.newest_call).clone())
}

impl Check {
    /// Processor time so far, where that is known.
    fn time(&self) -> Duration {
        let text = std::fs::read_to_string(&self.schedstat).unwrap_or_default();
        Duration::from_nanos(text.split(' ').next().and_then(|time| time.parse().ok()).unwrap_or(0))
    }
}

/// Stops a check that is silent for too long. A second that goes by counts for a half at least: a check may wait for
/// what never comes, and not all systems tell the time of a thread.
fn watchdog() {
    loop {
        thread::sleep(Duration::from_secs(1));
        for check in lock(&CHECKS).iter() {
            let mut silent = lock(&check.silent);
            let (since, seconds) = silent.get_or_insert_with(|| (check.time(), 0));
            *seconds += 1;
            let taken = check.time().saturating_sub(*since).max(Duration::from_secs(1) * *seconds / 2);
            if taken > MAX_SILENCE {
                let why = "does a loop of yours never end, or does it go through everything again and again?";
                let why = format!("has given no sign of life for {seconds} seconds: {why}");
                stop(&check.name, &lock(&check.newest_call), &why);
            }
        }
    }
}
