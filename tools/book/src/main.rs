//! `cargo book`: renders the book, checks it and shows it in the browser.
//!
//! Renders, because nothing but cargo should be needed to read the book; checks, because mdBook lets pass what would
//! strand a reader: a dead link, an empty block of code, a task that names a function that is not there.

mod check;
mod citations;
mod claims;
mod commands;
mod contents;
mod description;
mod engine;
mod finding;
mod house_style;
mod html;
mod http;
mod markdown;
mod markup;
mod names;
mod own_copy;
mod page;
mod publish;
mod render;
mod rendered;
mod repository;
mod serve;
mod site;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Error, Result};
use clap::{Parser, Subcommand};
use page_by_page_course::chapters;

use crate::own_copy::OwnCopy;

/// Read the book: render it, serve it on this computer and open it in the browser.
///
/// Without a subcommand the book stays served, and follows your edits, until you press Ctrl-C.
#[derive(Parser)]
#[command(name = "cargo book", bin_name = "cargo book", args_conflicts_with_subcommands = true)]
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
    /// With --out into a folder to be published, which needs nothing of the repository: it works from a web server,
    /// below any path, and opened as files. Each page has a description and its Markdown beside it, and llms.txt lists
    /// them. With --site-url there are canonical links, link previews and sitemap.xml, too.
    Build {
        /// Write into this folder, new, empty or of an earlier build; files of others in it stay
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
        /// Where the folder will be read, such as https://example.org/page-by-page/
        #[arg(long, value_name = "URL", requires = "out", value_parser = site::site_url)]
        site_url: Option<String>,
        /// Where the repository can be read, such as https://github.com/owner/name: the pages link to it, and to their
        /// own source for an edit [default: the git remote `origin`, if that is a public address]
        #[arg(long, value_name = "URL", requires = "out", value_parser = repository::given)]
        repository: Option<String>,
        /// Put the files of this folder beside the pages: preview.png becomes the picture of link previews,
        /// page-by-page.pdf is linked from every page (tools/publish/run makes both)
        #[arg(long, value_name = "FOLDER", requires = "out")]
        add: Option<PathBuf>,
        /// Make your own copy, in book/mine, with your own code in the figures
        #[arg(long, conflicts_with = "out")]
        mine: bool,
    },
    /// Compile the engine that runs in the pages, for browsers
    ///
    /// Takes the reference's chapters where yours are untouched. Needs `rustup target add wasm32-unknown-unknown`, or
    /// Debian's packages rustc-web, rust-web-src and lld-19.
    Engine {
        /// Write this file instead of assets/engine.wasm
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// First run the tests of the kernels and of the engine's bits, under Node
        #[arg(long)]
        test: bool,
    },
    /// Run every command that the pages show and see that it works
    ///
    /// Takes the code blocks marked `console` and runs their lines that begin with `$ `, from the top of the
    /// repository, each once and for at most ten minutes. Blocks marked `console,norun` are left out.
    Commands,
}

fn main() -> ExitCode {
    run(&Arguments::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let root = chapters::root().map_err(Error::msg)?;
    match &arguments.task {
        None => match serve::serve(&root, arguments.mine, arguments.port, !arguments.no_open)? {},
        Some(Task::Build { out, site_url, repository, add, mine }) => {
            let mut own_copy = mine.then(|| OwnCopy::new(&root));
            let own = root.join(if own_copy.is_some() { own_copy::COPY_FOLDER } else { publish::BUILD_FOLDER });
            let remote = || out.as_ref().and_then(|_| repository::of_remote(&root));
            let repository = repository.clone().or_else(remote);
            let build = own_copy::build(&root, own_copy.as_mut(), repository.as_deref())?;
            if !build.findings.is_empty() {
                eprintln!("{}", build.findings);
                return Ok(ExitCode::FAILURE);
            }
            let fresh = build.folder.path();
            match out {
                Some(out) => {
                    site::make(&root, &build, site_url.as_deref(), add.as_deref())?;
                    publish::publish_into(fresh, out)?;
                }
                None => publish::publish(fresh, &own)?,
            }
            println!("The book is in {}", out.as_ref().unwrap_or(&own).join("index.html").display());
            Ok(ExitCode::SUCCESS)
        }
        Some(Task::Engine { out, test }) => {
            engine::make(&root, out.as_ref().unwrap_or(&root.join(engine::REFERENCE)), *test)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Task::Commands) => commands::run(&root),
    }
}
