//! `cargo course`: makes the stubs, and checks the course as a course.
//!
//! A reader who is stuck must be able to trust what was handed out: that the stub asks for what its checks ask for, that the
//! reference passes, that a wrong answer stays red and is told why. `stubs` makes exercises from solutions, `check` reads the
//! files, in a second, and `grade` does what readers do, mistakes included, in minutes.

mod check;
mod files;
mod finding;
mod grade;
mod graders;
mod mistakes;
mod protection;
mod run;
mod stubs;
mod tasks;
mod workshop;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Error, Result};
use clap::{Parser, Subcommand};
use page_by_page_course::chapters;

use crate::grade::Order;

/// Make the course's stubs, and check the course as a course.
#[derive(Parser)]
#[command(name = "cargo course", version)]
struct Arguments {
    #[command(subcommand)]
    task: Task,

    /// The repository; otherwise the nearest folder, from here upwards, that holds exercises/untouched.txt
    #[arg(long, global = true, value_name = "DIR")]
    root: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Task {
    /// Write exercises/ and exercises/untouched.txt from the marks in solutions/
    ///
    /// A comment such as `// ch06 task 2: scatter the rows` inside a function of a solution marks where the reader's part
    /// begins: in the stub, it and the rest of its block become `todo!("ch06 task 2: scatter the rows")`. What stands above
    /// it in the body is given.
    ///
    /// `// stub: let rows = 3;` stands only in the stub, without `// stub: `. Lines with ANCHOR go, and the module's docs get
    /// a last line with the command of the chapter's checks. Everything else is the same in solution and stub.
    ///
    /// A file in exercises/ that a reader has started is never overwritten.
    Stubs,
    /// Read stubs, solutions, graders, snapshots, mistakes and the tasks of the pages, and say what doesn't fit together; if anything, exit with 1
    Check,
    /// Do what readers do, in copies of the repository: right work must be green, mistakes red with the expected first message; if not, exit with 1
    ///
    /// Takes minutes: each step compiles the crate with one more stub, solution or mistake in it. The copies and their
    /// builds stay in the target folder, so that the next run begins warm.
    Grade {
        /// Only these chapters, such as 4,5,6; what is tried with all chapters is left out
        #[arg(long = "chapter", value_name = "N", value_delimiter = ',')]
        chapters: Vec<usize>,
        /// Only every third mistake, beginning with the first, the second or the third; otherwise all
        #[arg(long, value_name = "K", value_parser = clap::value_parser!(u8).range(1..=3))]
        third: Option<u8>,
        /// Copies to grade at the same time
        #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
        copies: u8,
        /// Where the copies and their builds go; otherwise target/course
        #[arg(long, value_name = "DIR")]
        target_dir: Option<PathBuf>,
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
    let root = arguments.root.map_or_else(chapters::root, Ok).map_err(Error::msg)?;
    match arguments.task {
        Task::Stubs => {
            println!("{}", stubs::write(&root)?);
            Ok(ExitCode::SUCCESS)
        }
        Task::Check => {
            let report = check::check(&root)?;
            println!("{report}");
            Ok(if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Task::Grade { chapters, third, copies, target_dir } => {
            let order = Order { chapters, third: third.map(usize::from), copies: copies.into(), target: target_dir };
            Ok(if grade::grade(&root, &order)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}
