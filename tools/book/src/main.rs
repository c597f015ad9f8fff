//! `cargo book`: renders the book, checks it and shows it in the browser.
//!
//! Renders, because nothing but cargo should be needed to read the book; checks, because mdBook lets pass what would
//! strand a reader: a dead link, an empty block of code, a task that names a function that is not there.

mod check;
mod claims;
mod commands;
mod contents;
mod finding;
mod html;
mod http;
mod markup;
mod names;
mod page;
mod publish;
mod render;
mod rendered;
mod serve;
mod watch;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::check::Build;

/// Read the book: render it, serve it on this computer and open it in the browser.
///
/// Without a subcommand the book stays served, and follows your edits, until you press Ctrl-C.
#[derive(Parser)]
#[command(name = "cargo book", bin_name = "cargo book", version)]
struct Arguments {
    #[command(subcommand)]
    task: Option<Task>,

    /// The port to serve on; if it is taken, the next free one. 0 takes any free one
    #[arg(long, value_name = "N", default_value_t = 3000)]
    port: u16,

    /// Do not open a browser
    #[arg(long)]
    no_open: bool,
}

#[derive(Subcommand)]
enum Task {
    /// Render the book into book/html; exit with 1 if a check fails
    Build,
    /// Check the book and leave book/html alone; exit with 1 if a check fails
    Check,
    /// Run every command that the pages show and see that it works
    ///
    /// Takes the code blocks marked `console` and runs their lines that begin with `$ `, from the top of the repository,
    /// each once and for at most ten minutes. Blocks marked `console,norun` are left out.
    Commands {
        /// Only pages whose file name contains this, such as ch02
        page: Option<String>,
        /// Show the commands without running them
        #[arg(long)]
        list: bool,
    },
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
    let root = repository_root()?;
    match &arguments.task {
        None => match serve::serve(&root, arguments.port, !arguments.no_open)? {},
        Some(Task::Build) => build(&root, Some(&root.join(publish::BUILD_FOLDER))),
        Some(Task::Check) => build(&root, None),
        Some(Task::Commands { page, list }) => commands::run(&root, page.as_deref(), *list),
    }
}

/// Renders and checks the book; publishes it in the folder `to` if there is nothing to mend.
fn build(root: &Path, to: Option<&Path>) -> Result<ExitCode> {
    let Build { folder, findings } = check::build(root)?;
    if !findings.is_empty() {
        eprintln!("{findings}");
        return Ok(ExitCode::FAILURE);
    }
    match to {
        Some(to) => {
            publish::publish(folder.path(), to)?;
            println!("The book is in {}", to.join("index.html").display());
        }
        None => println!("The book is in order"),
    }
    Ok(ExitCode::SUCCESS)
}

/// The folder that holds `book/book.toml`: the current one or the nearest above it.
fn repository_root() -> Result<PathBuf> {
    let here = std::env::current_dir().context("the current folder is gone")?;
    let root = here.ancestors().find(|folder| folder.join("book/book.toml").is_file());
    root.map(Path::to_path_buf)
        .with_context(|| format!("no book/book.toml in {} or above it: run this inside the repository", here.display()))
}
