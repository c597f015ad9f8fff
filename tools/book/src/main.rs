//! `cargo book`: renders the book, checks it and shows it in the browser.
//!
//! Renders, because nothing but cargo should be needed to read the book; checks, because mdBook lets pass what would
//! strand a reader: a dead link, an empty block of code, a task that names a function that is not there.

mod about;
mod address;
mod check;
mod claims;
mod commands;
mod contents;
mod edition;
mod finding;
mod html;
mod http;
mod markdown;
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

use crate::address::Address;
use crate::publish::Out;

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
    ///
    /// With --out into a folder to be published, which needs nothing of the repository: it works from a web server, below
    /// any path, and opened as files. Each page has a description and its Markdown beside it, and llms.txt lists them.
    /// With --site-url there are canonical links, link previews and sitemap.xml, too.
    Build {
        /// Write into this folder, new, empty or of an earlier build; files of others in it stay
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
        /// Where the folder will be read, such as https://example.org/page-by-page/
        #[arg(long, value_name = "URL", requires = "out")]
        site_url: Option<Address>,
        /// Put the files of this folder beside the pages: preview.png becomes the picture of link previews,
        /// page-by-page.pdf is linked from every page (tools/publish/run makes both)
        #[arg(long, value_name = "FOLDER", requires = "out")]
        add: Option<PathBuf>,
    },
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
        Some(Task::Build { out: None, .. }) => build(&root, Some(&root.join(publish::BUILD_FOLDER))),
        Some(Task::Build { out: Some(out), site_url, add }) => {
            build_to_publish(&root, Out::look_at(&root, out)?, site_url.as_ref(), add.as_deref())
        }
        Some(Task::Check) => build(&root, None),
        Some(Task::Commands { page, list }) => commands::run(&root, page.as_deref(), *list),
    }
}

/// Renders and checks the book; publishes it in the folder `to` if there is nothing to mend.
fn build(root: &Path, to: Option<&Path>) -> Result<ExitCode> {
    let build = check::build(root)?;
    if !build.findings.is_empty() {
        eprintln!("{}", build.findings);
        return Ok(ExitCode::FAILURE);
    }
    match to {
        Some(to) => {
            publish::publish(build.folder.path(), to)?;
            println!("The book is in {}", to.join("index.html").display());
        }
        None => println!("The book is in order"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Renders and checks the book, and puts it with all that a published book needs in the folder `out`.
fn build_to_publish(root: &Path, out: Out, address: Option<&Address>, add: Option<&Path>) -> Result<ExitCode> {
    let build = check::build(root)?;
    if !build.findings.is_empty() {
        eprintln!("{}", build.findings);
        return Ok(ExitCode::FAILURE);
    }
    edition::make(root, &build, address, add)?;
    let index = out.folder().join("index.html");
    out.publish(build.folder.path())?;
    println!("The book is in {}", index.display());
    match address {
        Some(address) => println!("It is made to be read at {address}"),
        None => println!("{}", edition::left_out()),
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
