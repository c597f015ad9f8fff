//! The book's figures, recorded and not drawn.
//!
//! For each figure a short program runs the chapter's code and notes what the cache says after every step: the *trace*.
//! A second function turns the trace, and nothing else, into a picture and its list of steps:
//!
//! ```text
//!   chapter code ── record ── trace ── draw ── fragment       book/src/figures/traces/NAME.json
//!                                                             book/src/figures/NAME.html
//! ```
//!
//! `record` writes both files; `check` does the same work and compares. So a figure cannot disagree with the code.

mod chart;
mod figures;
mod files;
mod fragment;
mod guesses;
mod runs;
mod slab;
mod svg;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Records the book's figures from the chapters' code.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the code and write every trace and figure
    Record,
    /// Fail if a committed trace or figure is not what the code does
    Check,
}

fn main() -> ExitCode {
    match run(&Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = files::of(&figures::all()?);
    match command {
        Command::Record => {
            for path in files::write(&root, &files)? {
                println!("wrote {path}");
            }
        }
        Command::Check => {
            files::compare(&root, &files)?;
            println!("{} files are what the code does", files.len());
        }
    }
    Ok(())
}
