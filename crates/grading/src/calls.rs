//! The call in hand: should the learner's code panic in it, the failure names the call before anything else.
//!
//! A panic alone names a line, sometimes one of Rust's library or of the engine, and never the token, page or slot that
//! was in hand. With a call named, the failure begins so:
//!
//! ```text
//! extend(3) on 4 tokens, page size 4
//!   your code panicked (exercises/ch06_paged.rs:118): index out of bounds: …
//! ```

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::panic::{self, AssertUnwindSafe, Location, PanicHookInfo};
use std::sync::Once;
use std::thread;

use page_by_page::chapters::{self, CompiledChapter};
use page_by_page::panics;
use page_by_page::simulation::in_scheduler_call;

use crate::{limits, whose_code};

thread_local! {
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static QUIET: Cell<bool> = const { Cell::new(false) };
    /// Whether a `debug_assert!` made the last panic that was expected.
    static ONLY_DEBUG: Cell<bool> = const { Cell::new(false) };
    /// What the last panic inside a world said.
    static INSIDE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Stands for the message of a panic without one.
const NO_MESSAGE: &str = "no words";

/// A call that is being made, until this is dropped.
#[must_use = "the call is over when this is dropped"]
pub struct CallGuard;

/// Names the call that comes next: `extend(3) on 4 tokens`. Within another call, both are printed, the newest first.
pub fn enter_call(name: impl Into<String>) -> CallGuard {
    listen();
    let name = name.into();
    limits::call_begins(&name);
    CALLS.with_borrow_mut(|calls| calls.push(name));
    CallGuard
}

pub fn in_call<T>(name: impl Into<String>, call: impl FnOnce() -> T) -> T {
    let _call = enter_call(name);
    call()
}

/// The value of a call that there is no reason to refuse. If it is refused, that is said in the words of `same!`.
#[track_caller]
pub fn expect_ok<T, E: Debug>(name: impl AsRef<str>, call: impl FnOnce() -> Result<T, E>) -> T {
    let name = name.as_ref();
    in_call(name, call).unwrap_or_else(|error| {
        panic!("{name}\n  expected: Ok(…)\n  yours:    {:?}", Err::<(), E>(error));
    })
}

/// From the first call on, a panic is printed with its call; one within [`expect_panic`] is not printed at all.
pub fn listen() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if in_scheduler_call() {
                // The world makes a violation of it, and the check decides whether that is a failure.
                INSIDE.set(whose_words(panic));
            } else if QUIET.get() {
                ONLY_DEBUG.set(panic.location().is_some_and(is_in_debug_assert));
            } else {
                limits::failed(panics::message(panic.payload()).unwrap_or(NO_MESSAGE));
                // Once is enough, unless a backtrace is wanted.
                let is_explained = explain(panic);
                if std::env::var("RUST_BACKTRACE").is_ok_and(|value| value != "0") {
                    usual(panic);
                } else if let (false, Some(place)) = (is_explained, panic.location()) {
                    // As it usually is, without the advice to set a variable. insta has said all but its own place.
                    if !place.file().contains("insta") {
                        let thread = thread::current();
                        let name = thread.name().unwrap_or("a check");
                        eprintln!(
                            "\nthread '{name}' panicked at {place}:\n{}",
                            panics::message(panic.payload()).unwrap_or(NO_MESSAGE)
                        );
                    }
                }
                if let Some(note) = whose_code::yours_too() {
                    eprintln!("note: {note}");
                }
            }
        }));
    });
}

/// Makes a call that must panic, and gives the panic's message. Nothing is printed, because the panic is expected.
pub fn expect_panic<T>(call: impl FnOnce() -> T) -> Result<String, T> {
    listen();
    QUIET.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(call));
    QUIET.set(false);
    match outcome {
        Ok(value) => Err(value),
        Err(words) => Ok(panics::message(&*words).unwrap_or(NO_MESSAGE).to_string()),
    }
}

/// Makes a call that must panic, and in every build: a release build has neither `debug_assert!` nor checks of sums.
/// Gives the panic's message.
#[track_caller]
pub fn assert_panics<T: Debug>(what: &str, call: impl FnOnce() -> T) -> String {
    limits::call_begins(what);
    let words = expect_panic(call).unwrap_or_else(|value| panic!("{what} did not panic, and gave {value:?}"));
    if is_unwritten(&words) {
        fail_unwritten(words);
    }
    let only_debug = match words.ends_with(" with overflow") {
        true => Some("where Rust checks sums"),
        false => ONLY_DEBUG.get().then_some("where `debug_assert!` counts"),
    };
    if let Some(why) = only_debug {
        panic!("{what}\n  expected: a panic in every build\n  yours:    one in debug builds only, {why}: {words}");
    }
    words
}

/// Whether this place is in a `debug_assert!` of the reader's file.
fn is_in_debug_assert(place: &Location<'_>) -> bool {
    let is_file = |chapter: &&CompiledChapter| place.file().ends_with(&format!("exercises/{}.rs", chapter.name));
    let Some(text) = chapters::all().iter().find(is_file).map(|chapter| chapter.exercise) else { return false };
    let lines: usize = text.split_inclusive('\n').take(place.line() as usize - 1).map(str::len).sum();
    let Some((before, after)) = text.split_at_checked(lines + place.column() as usize - 1) else { return false };
    let is_open = |(_, rest): (&str, &str)| {
        ["!(", "_eq!(", "_ne!("].iter().any(|start| rest.starts_with(start)) && !rest.contains(';')
    };
    after.starts_with("debug_assert") || before.rsplit_once("debug_assert").is_some_and(is_open)
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        CALLS.with_borrow_mut(|calls| calls.pop());
    }
}

/// Puts the call before the panic's own words, unless a check has said what is wrong. Returns whether it did.
fn explain(panic: &PanicHookInfo<'_>) -> bool {
    let calls: Vec<String> = CALLS.with_borrow(|calls| calls.iter().rev().cloned().collect());
    let Some(words) = whose_words(panic) else { return false };
    let newest = limits::newest_call();
    match &calls[..] {
        _ if is_unwritten(&words) => eprintln!("{words}"),
        [] if newest.is_empty() => return false,
        // Something is dropped, say.
        [] => eprintln!("\nafter this: {newest}\n  {words}"),
        calls => eprintln!("\n{}\n  {words}", calls.join("\n  in ")),
    }
    true
}

/// Whose code panicked, where and why, unless it was a check.
fn whose_words(panic: &PanicHookInfo<'_>) -> Option<String> {
    let place = panic.location()?;
    let file = place.file();
    if is_in(file, "tests") || is_in(file, "grading") || file.contains("insta") {
        return None;
    }
    let words = panics::message(panic.payload()).unwrap_or(NO_MESSAGE);
    let at = match file.find("exercises/").or(file.find("solutions/")) {
        Some(start) => format!("{}:{}", &file[start..], place.line()),
        // A sum that overflows panics in Rust's library: the function that asked for it is what the reader looks for.
        None => caller().unwrap_or(file.into()),
    };
    if is_unwritten(words) {
        // The call does not matter: many checks get no further than this.
        let first = whose_code::grader().and_then(|chapter| chapter.tasks_left.first()).map_or(1, |(task, _)| *task);
        return Some(format!("{words} ({at}); begin with task {first}"));
    }
    let help = if words.contains("already borrowed") || words.contains("already mutably borrowed") {
        "\n  (RefCell lends to one writer, or to several readers: something of yours still held the slab when this \
         asked for it. A `borrow` or `borrow_mut` lasts as long as what it gives; `self.layout()` is a `borrow` too.)"
    } else {
        ""
    };
    Some(format!("{} ({at}): {words}{help}", whose_panic(whose_code::grader(), file)))
}

fn is_unwritten(words: &str) -> bool {
    words.starts_with("not yet implemented: ch")
}

/// Ends a check whose call to a world panicked, or was refused: says what was called, and what went wrong.
#[track_caller]
pub fn fail_inside(what: &str, refusal: String) -> ! {
    let words = INSIDE.take().unwrap_or(refusal);
    if is_unwritten(&words) {
        fail_unwritten(words);
    }
    panic!("{what}\n  {words}")
}

/// Ends a check whose call came to a `todo!`.
fn fail_unwritten(words: String) -> ! {
    limits::failed(&words);
    eprintln!("{words}");
    panic::resume_unwind(Box::new(words))
}

/// The innermost function of a chapter on the way to a panic: `finish of chapter ch15_simulation`.
fn caller() -> Option<String> {
    let trace = std::backtrace::Backtrace::force_capture().to_string();
    let path = trace.lines().find_map(|line| line.split_once("::chapters::").map(|(_, path)| path))?;
    let (chapter, function) = path.split_once("::")?;
    let function = function.split("::{{closure").next()?;
    Some(format!("in `{}` of {chapter}", function.trim_end_matches(">")))
}

fn is_in(file: &str, folder: &str) -> bool {
    file.split(['/', '\\']).any(|part| part == folder)
}

/// Whose code panicked in a grader: in the checks of chapter 7, `solutions/ch02_flat.rs` is not the reader's.
pub fn whose_panic(grader: Option<&CompiledChapter>, file: &str) -> String {
    let is_in = |folder| is_in(file, folder);
    let is_other = |chapter: &&CompiledChapter| {
        grader.is_some_and(|grader| grader.number != chapter.number) && file.ends_with(&format!("{}.rs", chapter.name))
    };
    match chapters::all().iter().find(is_other).map(|chapter| chapter.number) {
        Some(number) if is_in("solutions") => {
            format!(
                "the reference of chapter {number} panicked at what your code gave it, or at the state that it left"
            )
        }
        Some(number) if is_in("exercises") => {
            format!("your code of chapter {number} panicked, at what this chapter gave it or at the state that it left")
        }
        _ if is_in("solutions") || is_in("exercises") => "your code panicked".into(),
        _ if file.starts_with("src") => "the engine panicked at what your code gave it".into(),
        _ => "your code made Rust's library panic".into(),
    }
}
