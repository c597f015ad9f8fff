//! `cargo course`: makes the stubs, and checks the course as a course.
//!
//! A reader who is stuck must be able to trust what was handed out: that the stub asks for what its checks ask for, that the
//! reference passes, that a wrong answer stays red and is told why. `stubs` makes exercises from solutions, `check` reads the
//! files, in a second, and `grade` does what readers do, mistakes included, in minutes.

mod check;
mod files;
mod finding;
mod graders;
mod mistakes;
mod protection;
mod stubs;
mod tasks;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Error, Result};
use clap::{Parser, Subcommand};
use page_by_page_course::chapters;

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
    }
}
