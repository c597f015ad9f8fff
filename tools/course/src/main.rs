//! `cargo run -p course-tool`: checks the course as a course.
//!
//! A reader who is stuck must be able to trust what was handed out: that the stub asks for something that its checks
//! ask for too, that the reference passes, that a wrong answer stays red. `check` reads the files, in a second; `grade`
//! does what readers do, wrong answers included, in minutes; `record` tells the build which stubs are untouched.

mod check;
mod course;
mod finding;
mod grade;
mod leak;
mod listing;
mod mutation;
mod pages;
mod protection;
mod record;
mod standing;
mod surface;
mod tasks;
mod trial;
mod workshop;

#[cfg(test)]
mod sample;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use page_by_page_course::{lesson, stub};

use crate::course::Course;
use crate::grade::{Order, Verdict};

/// Check the course as a course: its stubs, its solutions, its graders.
#[derive(Parser)]
#[command(name = "course-tool", version)]
struct Arguments {
    #[command(subcommand)]
    task: Task,

    /// The repository; otherwise the nearest folder, from here upwards, that holds exercises/untouched.txt
    #[arg(long, global = true, value_name = "DIR")]
    root: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Task {
    /// Write the hashes of all stubs to exercises/untouched.txt
    ///
    /// Refuses a file in which somebody has begun to write: it would count as untouched, and the reference would be
    /// graded in its place.
    Record {
        /// Also record a stub that has fewer `todo!`s than the one recorded before
        #[arg(long)]
        fewer_tasks: bool,
    },
    /// Read stubs, solutions, graders, snapshots and the tasks of the pages, and say what does not fit together; if anything, exit with 1
    Check,
    /// Do what readers do, in a copy of the repository: right work must be green, wrong work red; if not, exit with 1
    ///
    /// Takes minutes: each step compiles the crate with one more stub, solution or mistake in it. The copy and its
    /// build stay in the target folder, so that the next run begins warm.
    Grade {
        /// Only this chapter; the steps about all chapters together are left out
        #[arg(long, value_name = "N")]
        chapter: Option<usize>,
        /// At most so many mistakes of each chapter, spread evenly over its list; otherwise all
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
        mistakes: Option<u16>,
        /// Where the copy and its build go; otherwise target/course
        #[arg(long, value_name = "DIR")]
        target_dir: Option<PathBuf>,
        /// Seconds after which the checks of one step, built and running, are ended and count as hung
        #[arg(long, value_name = "S", default_value_t = 120)]
        timeout: u64,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    let course = Course::find(arguments.root)?;
    match arguments.task {
        Task::Record { fewer_tasks } => {
            println!("{}", record::record(&course, fewer_tasks)?);
            Ok(ExitCode::SUCCESS)
        }
        Task::Check => {
            let report = check::check(&course)?;
            println!("{report}");
            Ok(if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Task::Grade { chapter, mistakes, target_dir, timeout } => {
            let mistakes = mistakes.map_or(usize::MAX, usize::from);
            let order = Order { chapter, mistakes, target_dir, timeout: Duration::from_secs(timeout) };
            Ok(match grade::grade(&course, &order)? {
                Verdict::Sound => ExitCode::SUCCESS,
                Verdict::Problems => ExitCode::FAILURE,
            })
        }
    }
}
