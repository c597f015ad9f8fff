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
mod mine;
mod names;
mod page;
mod publish;
mod render;
mod rendered;
mod serve;
mod watch;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};

use crate::address::Address;
use crate::check::Build;
use crate::mine::Mine;
use crate::publish::Out;

/// Read the book: render it, serve it on this computer and open it in the browser.
///
/// Without a subcommand the book stays served, and follows your edits, until you press Ctrl-C.
#[derive(Parser)]
#[command(name = "cargo book", bin_name = "cargo book", version)]
struct Arguments {
    #[command(subcommand)]
    task: Option<Task>,

    /// Show your own code in the figures: those whose chapters you have started and whose checks are green
    ///
    /// Makes your own copy of the book, in book/mine. Each figure says whose code it was recorded from, and where yours
    /// departs from the reference. Without a subcommand it follows your edits in exercises/, too.
    #[arg(long)]
    mine: bool,

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
        /// Make your own copy, in book/mine, with your own code in the figures
        #[arg(long, conflicts_with = "out")]
        mine: bool,
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
    let is_shown = matches!(arguments.task, None | Some(Task::Build { .. }));
    ensure!(is_shown || !arguments.mine, "--mine shows your own copy: cargo book --mine, or cargo book build --mine");
    let is_mine = arguments.mine || matches!(arguments.task, Some(Task::Build { mine: true, .. }));
    let mine = is_mine.then(|| Mine::new(&root));
    match &arguments.task {
        None => match serve::serve(&root, mine, arguments.port, !arguments.no_open)? {},
        Some(Task::Build { out: Some(out), site_url, add, .. }) => {
            ensure!(mine.is_none(), "--out publishes the book; your own copy is for you: cargo book build --mine");
            let out = Out::look_at(&root, out)?;
            build(&root, None, |build| {
                edition::make(&root, build, site_url.as_ref(), add.as_deref())?;
                out.publish(build.folder.path())?;
                println!("The book is in {}", out.folder().join("index.html").display());
                match site_url {
                    Some(address) => println!("It is made to be read at {address}"),
                    None => println!("{}", edition::LEFT_OUT),
                }
                Ok(())
            })
        }
        Some(Task::Build { .. }) => {
            let to = root.join(if is_mine { mine::COPY_FOLDER } else { publish::BUILD_FOLDER });
            build(&root, mine, |build| {
                publish::publish(build.folder.path(), &to)?;
                println!("The book is in {}", to.join("index.html").display());
                Ok(())
            })
        }
        Some(Task::Check) => build(&root, None, |_| {
            println!("The book is in order");
            Ok(())
        }),
        Some(Task::Commands { page, list }) => commands::run(&root, page.as_deref(), *list),
    }
}

/// Renders and checks the book, or the reader's copy, and does `then` with it if there is nothing to mend.
fn build(root: &Path, mut mine: Option<Mine>, then: impl FnOnce(&Build) -> Result<()>) -> Result<ExitCode> {
    let build = mine::build(root, mine.as_mut())?;
    if !build.findings.is_empty() {
        eprintln!("{}", build.findings);
        return Ok(ExitCode::FAILURE);
    }
    then(&build)?;
    Ok(ExitCode::SUCCESS)
}

/// The folder that holds `book/book.toml`: the current one or the nearest above it.
fn repository_root() -> Result<PathBuf> {
    let here = std::env::current_dir().context("the current folder is gone")?;
    let root = here.ancestors().find(|folder| folder.join("book/book.toml").is_file());
    root.map(Path::to_path_buf)
        .with_context(|| format!("no book/book.toml in {} or above it: run this inside the repository", here.display()))
}
