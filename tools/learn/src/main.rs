//! `cargo learn`: the companion beside the reader's editor.
//!
//! It watches `exercises/`. On each save it compiles, runs the checks of the current task, then all others, and shows
//! one thing: the task, what is green, the first failure in the check's own words, and where the page explains it.
//! Everything else is a key away. Hints and questions come from the page.
//!
//! `app` holds the state, and runs the loop; `keys` answers keys; `current` is the chapter and its verdict; `run` runs
//! cargo; `view` draws.

mod app;
mod book;
mod checking;
mod compare;
mod compiler;
mod current;
mod keys;
mod list;
mod markdown;
mod plain;
mod program;
mod reset;
mod run;
mod terminal;
mod text;
mod verdict;
mod view;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Error, Result};
use clap::{Parser, Subcommand};
use page_by_page_course::chapters::{self, Chapter, ExerciseState};
use page_by_page_course::record::Record;

use crate::app::App;

/// Check a chapter each time you save it, and show the first failure.
///
/// Edit the chapter's file in exercises/ in your own editor beside this. Without a chapter it continues where you left
/// off.
#[derive(Parser)]
#[command(name = "cargo learn", bin_name = "cargo learn", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    task: Option<Task>,

    /// The chapter to open [default: where you left off]
    #[arg(value_name = "N", value_parser = number)]
    chapter: Option<usize>,

    /// Check once, print plain lines, and record the result; exit with 0 if the chapter is green, otherwise with 1
    ///
    /// The same happens without a terminal, as in a pipe.
    #[arg(long)]
    once: bool,

    /// Seconds after which checks that are still running are stopped
    #[arg(long, value_name = "S", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..))]
    time_limit: u64,
}

#[derive(Subcommand)]
enum Task {
    /// List all chapters: whose code runs, what the last run found, what is left to write
    #[command(visible_alias = "status")]
    List,
    /// Print the next hint for the task that you are at, after those that you have seen
    Hint {
        /// The chapter [default: where you left off]
        #[arg(value_name = "N", value_parser = number)]
        chapter: Option<usize>,
    },
}

/// The number of a chapter, which can be written like the name of its file: `6`, `06`, `ch06_paged`.
fn number(text: &str) -> Result<usize, String> {
    let digits = text.trim_start_matches("ch").split('_').next().unwrap_or_default();
    digits.parse().map_err(|_| {
        "a chapter is named by its number: `cargo learn 6` opens chapter 6, `cargo learn list` lists all, `cargo learn \
         hint 6` prints a hint"
            .into()
    })
}

fn main() -> ExitCode {
    run(&Arguments::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let root = chapters::root().map_err(Error::msg)?;
    let chapters = chapters::all(&root).map_err(Error::msg)?;
    let (record, note) = Record::read(&root);
    let number = match arguments.task {
        Some(Task::Hint { chapter }) => chapter,
        _ => arguments.chapter,
    };
    let at = match number {
        Some(number) => chapters
            .iter()
            .position(|chapter| chapter.number == number)
            .with_context(|| format!("no chapter {number}: the book has 1 to {}", chapters.len()))?,
        None => where_left(&root, &chapters, &record),
    };
    let limit = Duration::from_secs(arguments.time_limit);
    let is_plain = arguments.task.is_some() || arguments.once || !terminal::is_there();
    if let (true, Some(note)) = (is_plain, &note) {
        eprintln!("note: {note}");
    }
    match arguments.task {
        Some(Task::List) => plain::print(&list::text(&root, &chapters, &record), true),
        Some(Task::Hint { .. }) => plain::hint(&root, &chapters[at], record),
        None if is_plain => plain::run(&root, &chapters[at], limit, record),
        None => {
            let mut app = App::new(root, chapters, at, limit, record);
            app.note = note;
            app.run()
        }
    }
}

/// The chapter that the record names, else the first that is begun, else the first.
fn where_left(root: &Path, chapters: &[Chapter], record: &Record) -> usize {
    let named = record.at.as_ref().and_then(|at| chapters.iter().position(|chapter| chapter.name == *at));
    let is_begun = |chapter: &Chapter| chapter.read(root).is_ok_and(|exercise| exercise.state == ExerciseState::Begun);
    named.or_else(|| chapters.iter().position(is_begun)).unwrap_or(0)
}
