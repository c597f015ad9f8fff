//! The book's figures, recorded and not drawn.
//!
//! For each figure a short program runs the chapter's code, notes what the cache holds after every step, and draws
//! that: a picture of each state, in two widths, with what is said of it, in `book/src/figures/NAME.html`.
//!
//! `record` writes the files; `check` does the same work and compares. So a figure cannot disagree with the code.

mod chart;
mod departure;
mod figures;
mod models;
mod picture;
mod rows;
mod slab;
mod speculation;
mod words;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use crate::figures::Figure;

/// Records the book's figures from the chapters' code.
#[derive(Parser)]
enum Command {
    /// Run the code and write every figure
    Record,
    /// Fail if a committed figure is not what the code does
    Check,
    /// Record one figure from your own code and say where it departs from the reference's
    ///
    /// Takes each chapter that you have started from exercises/, and the others from solutions/. `cargo book --mine`
    /// does this for every figure whose chapters are green, and shows them in your own copy of the book.
    Mine {
        /// The figure, such as ch05_table: the name of its file in book/src/figures
        name: String,
        /// The folder for the figure
        #[arg(long, value_name = "FOLDER", default_value = "target/mine")]
        to: PathBuf,
    },
}

fn main() -> ExitCode {
    run(&Command::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(command: &Command) -> Result<ExitCode> {
    let root = root();
    match command {
        Command::Record => {
            for (path, text) in stale(&root, &figures::all()?) {
                fs::write(root.join(&path), text).with_context(|| format!("{path} cannot be written"))?;
                println!("wrote {path}");
            }
        }
        Command::Check => {
            let stale: Vec<String> = stale(&root, &figures::all()?).into_iter().map(|(path, _)| path).collect();
            ensure!(
                stale.is_empty(),
                "not what the code does:\n{}\nrun `cargo figures record` and look at the figures again",
                stale.join("\n")
            );
            println!("the figures are what the code does");
        }
        Command::Mine { name, to } => {
            departure::panic_in_a_line();
            println!("{}", departure::record(&root, name, to)?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files of the book that differ from what the code does, or are missing, and what should be in them.
fn stale(root: &Path, figures: &[Figure]) -> Vec<(String, String)> {
    let files = figures.iter().map(|figure| (path(figure.name), figure.html()));
    files.filter(|(path, text)| committed(root, path).ok().as_ref() != Some(text)).collect()
}

/// Where a figure lies in the repository.
fn path(name: &str) -> String {
    format!("book/src/figures/{name}.html")
}

/// A figure of the reference. Git may have changed the ends of its lines.
fn committed(root: &Path, path: &str) -> std::io::Result<String> {
    Ok(fs::read_to_string(root.join(path))?.replace("\r\n", "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_or_missing_file_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let figures = ["ch05_table", "ch02_copy"].map(|name| figures::run(figures::find(name).unwrap()).unwrap());
        let missing = stale(folder.path(), &figures);
        assert_eq!(missing.len(), 2);
        fs::create_dir_all(folder.path().join("book/src/figures")).unwrap();
        missing.iter().for_each(|(path, text)| fs::write(folder.path().join(path), text).unwrap());
        assert_eq!(stale(folder.path(), &figures), []);
        let (path, text) = &missing[0];
        fs::write(folder.path().join(path), text.replacen('3', "4", 1)).unwrap();
        assert_eq!(stale(folder.path(), &figures), missing[..1]);
    }
}
