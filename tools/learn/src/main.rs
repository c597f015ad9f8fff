//! `cargo learn`: the companion at the reader's side.
//!
//! It watches `exercises/`. On each save it compiles, runs the checks of the task in hand, and shows one thing: the task, what
//! is green, the first failure in the check's own words, and where the page speaks of it. The rest is a key away. Hints and
//! questions are those of the page; nothing is written down twice.

mod app;
mod beside;
mod book;
mod bought;
mod checks;
mod compile;
mod course;
mod markdown;
mod plain;
mod reset;
mod runs;
mod terminal;
mod text;
mod view;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Parser;
use page_by_page_course::{lesson, record, stub};

use crate::app::App;
use crate::course::{Chapter, State};
use crate::record::{Record, Standing};

/// Learn: on each save, the checks of the task in hand, and the first thing to mend.
///
/// Edit the chapter's file in exercises/ in your own editor, beside this. Without a chapter it goes on where you left.
#[derive(Parser)]
#[command(name = "cargo learn", bin_name = "cargo learn", version)]
struct Arguments {
    /// The chapter to go to; otherwise the one you were in
    #[arg(value_name = "N")]
    chapter: Option<usize>,

    /// Check once and print plain lines; exit with 0 if the chapter is green, otherwise with 1
    ///
    /// This is also what happens where no terminal is, as in a pipe.
    #[arg(long)]
    once: bool,

    /// Seconds after which checks that are still running are ended
    #[arg(long, value_name = "S", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..))]
    time_limit: u64,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let root = course::repository_root()?;
    let chapters = course::chapters(&root)?;
    let (record, note) = Record::read(&root);
    let at = match arguments.chapter {
        Some(number) => match chapters.iter().position(|chapter| chapter.number == number) {
            Some(at) => at,
            None => bail!("no chapter {number}: the book has 1 to {}", chapters.len()),
        },
        None => where_left(&root, &chapters, &record),
    };
    let limit = Duration::from_secs(arguments.time_limit);
    if arguments.once || !terminal::is_there() {
        if let Some(note) = note {
            eprintln!("note: {note}");
        }
        return plain::run(&root, &chapters[at], limit);
    }
    App::new(root, chapters, at, record, note, limit).run()
}

/// The chapter that the record names; else the first that is started and not known to be green; else the first.
fn where_left(root: &std::path::Path, chapters: &[Chapter], record: &Record) -> usize {
    let named = record.at.as_ref().and_then(|at| chapters.iter().position(|chapter| chapter.name == *at));
    let is_open = |chapter: &Chapter| {
        chapter.read(root).is_ok_and(|exercise| {
            let is_current = record.standing(&chapter.name, &exercise.fingerprint) == Standing::Current;
            let is_green = record.chapters.get(&chapter.name).is_some_and(|ran| ran.checks().all_green());
            exercise.state == State::Started && !(is_current && is_green)
        })
    };
    named.or_else(|| chapters.iter().position(is_open)).unwrap_or(0)
}
