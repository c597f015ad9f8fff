//! `cargo course`: makes the stubs, and checks the course as a course.
//!
//! A reader who is stuck must be able to trust what was handed out: that the stub asks for what its checks ask for,
//! that the reference passes, that a wrong answer stays red and is told why. `stubs` makes exercises from solutions,
//! `check` reads the files, in a second, and `grade` does what readers do, mistakes included, in minutes.

mod check;
mod copy;
mod files;
mod grade;
mod mistakes;
mod protection;
mod run;
mod stubs;
mod tasks;

use std::num::NonZeroUsize;
use std::process::ExitCode;

use anyhow::{Error, Result};
use clap::{Parser, Subcommand};
use grade::Planted;
use page_by_page_course::chapters;

/// Make the course's stubs, and check the course as a course.
#[derive(Parser)]
#[command(name = "cargo course", version)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write exercises/ and exercises/chapters.txt from the marks in solutions/
    ///
    /// The docs of crates/course/src/marks.rs describe the marks.
    ///
    /// A file in exercises/ that a reader has started is never overwritten.
    Stubs,
    /// Read stubs, solutions, graders, snapshots, mistakes and the tasks of the pages, and say what doesn't fit
    /// together; if anything, exit with 1
    Check,
    /// Do what readers do, in copies of the repository: right work must be green, mistakes red with the expected first
    /// message; if not, exit with 1
    ///
    /// Takes minutes: each step compiles the crate with one more stub, solution or mistake in it. The copies and their
    /// builds stay in the target folder, so that the next run begins warm.
    Grade {
        /// Only these chapters, such as 4,5,6; what is tried with all chapters is left out
        #[arg(long = "chapter", value_name = "N", value_delimiter = ',')]
        chapters: Vec<usize>,
        /// Only the mistakes whose names have these words in them
        #[arg(long, value_name = "WORDS", requires = "chapters", conflicts_with = "every")]
        mistake: Option<String>,
        /// Only the first of every N mistakes; otherwise all
        #[arg(long, value_name = "N")]
        every: Option<NonZeroUsize>,
    },
}

fn main() -> ExitCode {
    let is_in_order = run(Arguments::parse().task).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        false
    });
    if is_in_order { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(task: Task) -> Result<bool> {
    let root = chapters::root().map_err(Error::msg)?;
    match task {
        Task::Stubs => {
            println!("{}", stubs::write(&root)?);
            Ok(true)
        }
        Task::Check => {
            let report = check::check(&root)?;
            report.0.iter().for_each(|finding| println!("{finding}"));
            println!("problems in the course: {}", report.0.len());
            Ok(report.0.is_empty())
        }
        Task::Grade { chapters, mistake, every } => {
            let planted = match mistake {
                Some(words) => Planted::Named(words),
                None => Planted::Every(every.map_or(1, NonZeroUsize::get)),
            };
            grade::grade(&root, &chapters, &planted)
        }
    }
}
