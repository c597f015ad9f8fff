//! What is being asked of the learner's code: should it panic, the failure says so before anything else.
//!
//! A panic alone names a line, sometimes one of Rust's library or of the engine, and never the token, page or slot that
//! was in hand. With a question set, the failure begins so:
//!
//! ```text
//! extend(3) on 4 tokens, page size 4
//!   your code panicked (exercises/ch06_paged.rs:118): index out of bounds: …
//! ```

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

use page_by_page::chapters::{self, Chapter};
use page_by_page::simulation::is_inside;

use super::{limits, whose_code};

thread_local! {
    static QUESTIONS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static QUIET: Cell<bool> = const { Cell::new(false) };
    /// What the last panic inside a world said.
    static INSIDE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A question that is being asked, until this is dropped.
#[must_use = "the question is over when this is dropped"]
pub struct Asking;

/// Notes what is asked next: `extend(3) on 4 tokens`. Within another question, both are printed, the newest first.
pub fn asking(question: impl Into<String>) -> Asking {
    listen();
    limits::alive();
    QUESTIONS.with_borrow_mut(|questions| questions.push(question.into()));
    Asking
}

pub fn ask<T>(question: impl Into<String>, call: impl FnOnce() -> T) -> T {
    let _asking = asking(question);
    call()
}

/// The answer to a question that there is no reason to refuse. If it is refused, that is said in the words of `same!`.
#[track_caller]
pub fn made<T, E: Debug>(question: impl AsRef<str>, call: impl FnOnce() -> Result<T, E>) -> T {
    let question = question.as_ref();
    ask(question, call).unwrap_or_else(|error| {
        panic!("{question}\n  expected: Ok(…)\n  yours:    {:?}", Err::<(), E>(error));
    })
}

/// From the first call on, a panic is printed with its question; one within [`quietly`] is not printed at all.
fn listen() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if is_inside() {
                // The world makes a violation of it, and the check decides whether that is a failure.
                INSIDE.set(whose_words(panic));
            } else if !QUIET.get() {
                limits::failed(words_of(panic));
                // Once is enough, unless a backtrace is wanted.
                if !explain(panic) || std::env::var("RUST_BACKTRACE").is_ok_and(|value| value != "0") {
                    usual(panic);
                }
                if let Some(note) = whose_code::yours_too() {
                    eprintln!("note: {note}");
                }
            }
        }));
    });
}

/// Makes a call that is to panic; `None` if it does. Such a panic is no news, so nothing is printed.
pub fn quietly<T>(call: impl FnOnce() -> T) -> Option<T> {
    listen();
    QUIET.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(call)).ok();
    QUIET.set(false);
    outcome
}

impl Drop for Asking {
    fn drop(&mut self) {
        QUESTIONS.with_borrow_mut(|questions| questions.pop());
    }
}

fn words_of<'a>(panic: &'a PanicHookInfo<'_>) -> &'a str {
    let payload = panic.payload();
    let words = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
    words.unwrap_or("no words")
}

/// Puts the question before the panic's own words, unless a check speaks: that has said what is wrong. Returns whether it did.
fn explain(panic: &PanicHookInfo<'_>) -> bool {
    let questions: Vec<String> = QUESTIONS.with_borrow(|questions| questions.iter().rev().cloned().collect());
    let Some(words) = whose_words(panic).filter(|_| !questions.is_empty()) else { return false };
    match is_unwritten(&words) {
        true => eprintln!("{words}"),
        false => eprintln!("\n{}\n  {words}", questions.join("\n  in ")),
    }
    true
}

/// Whose code panicked, where and why, unless it was a check.
fn whose_words(panic: &PanicHookInfo<'_>) -> Option<String> {
    let place = panic.location()?;
    let file = place.file();
    if file.starts_with("tests") || file.contains("insta") {
        return None;
    }
    let words = words_of(panic);
    let at = match file.find("exercises/").or(file.find("solutions/")) {
        Some(start) => format!("{}:{}", &file[start..], place.line()),
        // A sum that overflows panics in Rust's library: the function that asked for it is what the reader looks for.
        None => caller().unwrap_or(file.into()),
    };
    if is_unwritten(words) {
        // The question does not matter: many checks get no further than this.
        return Some(format!("{words} ({at}); begin with task 1"));
    }
    let help = if words.contains("already borrowed") || words.contains("already mutably borrowed") {
        "\n  (RefCell lends to one writer, or to several readers: something of yours still held the slab when this asked \
         for it. A `borrow` or `borrow_mut` lasts as long as what it gives; `self.layout()` is a `borrow` as well.)"
    } else {
        ""
    };
    Some(format!("{} ({at}): {words}{help}", whose_panic(env!("CARGO_CRATE_NAME"), file)))
}

fn is_unwritten(words: &str) -> bool {
    words.starts_with("not yet implemented: ch")
}

/// Ends a check whose call to a world panicked, or was refused: says what was asked, and what went wrong.
#[track_caller]
pub fn fail_inside(what: &str, refusal: String) -> ! {
    let words = INSIDE.take().unwrap_or(refusal);
    if is_unwritten(&words) {
        limits::failed(&words);
        eprintln!("{words}");
        panic::resume_unwind(Box::new(words));
    }
    panic!("{what}\n  {words}")
}

/// The innermost function of a chapter on the way to a panic: `finish of chapter ch15_simulation`.
fn caller() -> Option<String> {
    let trace = std::backtrace::Backtrace::force_capture().to_string();
    let path = trace.lines().find_map(|line| line.split_once("::chapters::").map(|(_, path)| path))?;
    let (chapter, function) = path.split_once("::")?;
    let function = function.split("::{{closure").next()?;
    Some(format!("in `{}` of {chapter}", function.trim_end_matches(">")))
}

/// Whose code panicked, in a grader of this name: `solutions/ch02_flat.rs` in the checks of chapter 7 is not the reader's.
pub fn whose_panic(grader: &str, file: &str) -> String {
    let chapters = chapters::all();
    let is_grader = chapters.iter().any(|chapter| chapter.name == grader);
    let of_file = |chapter: &&Chapter| chapter.name != grader && file.ends_with(&format!("{}.rs", chapter.name));
    let number = chapters.iter().find(of_file).filter(|_| is_grader).map(|chapter| chapter.number);
    let is_in = |folder: &str| file.split(['/', '\\']).any(|part| part == folder);
    match number {
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

/// Several refusals that are all right, or the only one: `one of [Err(…), Err(…)]`, `Err(…)`.
pub fn one_of<E: Debug>(refusals: &[E]) -> String {
    let mut refusals: Vec<Result<(), &E>> = refusals.iter().map(Err).collect();
    match refusals.len() {
        1 => format!("{:?}", refusals.remove(0)),
        _ => format!("one of {refusals:?}"),
    }
}
