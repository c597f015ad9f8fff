//! The book's figures, recorded and not drawn.
//!
//! For each figure a short program runs the chapter's code, notes what the cache holds after every step, and draws that: a
//! picture, and a list of its steps in words, in `book/src/figures/NAME.html`.
//!
//! `record` writes the files; `check` does the same work and compares. So a figure cannot disagree with the code.
//!
//! `mine` records one figure from the chapters that the reader has started, for the reader's own copy of the book, and says
//! where it departs from the reference's. `cargo book --mine` runs it for every figure.

mod chart;
mod departure;
mod figures;
mod files;
mod layout;
mod limits;
mod mine;
mod models;
mod rows;
mod slab;
mod speculation;
mod svg;
mod words;

use std::path::{Path, PathBuf};
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
    /// Run the code and write every figure
    Record,
    /// Fail if a committed figure is not what the code does
    Check,
    /// Record one figure from your own code and say where it departs from the reference's
    ///
    /// Takes each chapter that you have started from exercises/, and the others from solutions/. `cargo book --mine` does
    /// this for every figure whose chapters are green, and shows them in your own copy of the book.
    Mine {
        /// The figure, such as ch05_table: the name of its file in book/src/figures
        name: String,
        /// The folder for the figure
        #[arg(long, value_name = "FOLDER", default_value = "target/mine")]
        to: PathBuf,
    },
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
    match command {
        Command::Record => {
            for path in files::write(&root, &files::of(&figures::all()?))? {
                println!("wrote {path}");
            }
        }
        Command::Check => {
            let files = files::of(&figures::all()?);
            files::compare(&root, &files)?;
            println!("{} files are what the code does", files.len());
        }
        Command::Mine { name, to } => {
            limits::set()?;
            println!("{}", mine::record(&root, name, to)?);
        }
    }
    Ok(())
}
