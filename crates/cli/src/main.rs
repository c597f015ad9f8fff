//! The command line: what it understands, how it says that something went wrong.
//!
//! Results go to standard output, everything else to standard error, so that `generate > story.txt` holds a story.

mod batch;
mod bench;
mod breaks;
mod conversation;
mod drafts;
mod gains;
mod generate;
mod input;
mod interrupt;
mod logits;
mod memory;
mod options;
mod output;
mod page_file;
mod requirements;
#[cfg_attr(feature = "serve", path = "serve.rs")]
#[cfg_attr(not(feature = "serve"), path = "without_serve.rs")]
mod serve;
mod simulate;
mod story;
mod synth;
mod workload;

use std::error::Error;
use std::ffi::OsStr;
use std::io;
use std::num::{NonZero, ParseIntError};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
#[cfg(unix)]
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::error::Error as UsageError;
use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};
use page_by_page::escape;

use output::{plural, say};

/// Run a language model whose memory you build yourself
#[derive(Parser)]
#[command(name = "page-by-page", version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Threads to compute with, at most four for each core [default: RAYON_NUM_THREADS, or one for each core]
    #[arg(long, global = true, display_order = 100, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

const EXAMPLES: &str = "\
Examples:
  cargo page generate
  cargo page generate \"The king had\" --kv flat

`cargo page` is short for `cargo run --release --features solution --`.";

#[derive(Subcommand)]
enum Command {
    Generate(generate::Generate),
    Story(story::Story),
    Gains(gains::GainsCommand),
    Break(breaks::Break),
    Chat(serve::Chat),
    Batch(batch::Batch),
    Serve(serve::Serve),
    Bench(bench::Bench),
    Workload(workload::Workload),
    Simulate(simulate::Simulate),
    Logits(logits::Logits),
    Synth(synth::Synth),
}

/// Runs the program: exit code 0 if all went well, 2 for a command that was not understood, 1 for the rest.
fn main() -> ExitCode {
    #[cfg(feature = "serve")]
    if std::env::args_os().skip(1).eq([serve::RENDERER]) {
        serve::be_renderer();
    }
    // A file that may not grow is an error of the write then, as a full disk is, and no silent end.
    #[cfg(unix)]
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let matches = take_negative_numbers(Cli::command()).try_get_matches();
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return wrong_usage(&error),
    };
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output_is_closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

impl Cli {
    fn run(self) -> Result<()> {
        let threads = threads(self.threads.map(usize::from));
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .with_context(|| format!("cannot start {}; give fewer with --threads", plural(threads, "thread")))?;
        // Inside the pool, work that is too small to share needs no other thread to be woken.
        pool.install(|| match self.command {
            Command::Generate(command) => command.run(),
            Command::Story(command) => command.run(),
            Command::Chat(command) => command.run(),
            Command::Batch(command) => command.run(),
            Command::Serve(command) => command.run(),
            Command::Logits(command) => command.run(),
            Command::Synth(command) => command.run(),
            Command::Bench(command) => command.run(),
            Command::Workload(command) => command.run(),
            Command::Simulate(command) => command.run(),
            Command::Gains(command) => command.run(),
            Command::Break(command) => command.run(),
        })
    }
}

/// More threads for each core than this only wait for each other.
const THREADS_PER_CORE: usize = 4;

/// How many threads to compute with: the option, or else `RAYON_NUM_THREADS`, within reason.
fn threads(option: Option<usize>) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let variable = || std::env::var("RAYON_NUM_THREADS").ok()?.parse().ok();
    option.or_else(variable).filter(|threads| *threads > 0).unwrap_or(cores).min(THREADS_PER_CORE * cores)
}

/// `--seed -5` is a number that is refused, not an unknown option.
fn take_negative_numbers(command: clap::Command) -> clap::Command {
    let takes_values = |arg: &Arg| arg.get_long().is_some() && arg.get_action().takes_values();
    let command = command.mut_args(|arg| if takes_values(&arg) { arg.allow_negative_numbers(true) } else { arg });
    command.mut_subcommands(take_negative_numbers)
}

fn wrong_usage(error: &UsageError) -> ExitCode {
    let is_no_number = error.source().is_some_and(|source| source.is::<ParseIntError>());
    // A message that repeats arguments which a terminal would obey loses its colours.
    if error.use_stderr() && (is_no_number || std::env::args_os().any(|argument| commands_a_terminal(&argument))) {
        let message =
            error.render().to_string().replace("invalid digit found in string", "expected a whole number from 0");
        message.lines().for_each(say);
    } else if let Err(failed) = error.print()
        && failed.kind() != io::ErrorKind::BrokenPipe
    {
        // Help and version, which go to standard output.
        say(&format!("error: {failed}"));
        return ExitCode::FAILURE;
    }
    ExitCode::from(error.exit_code() as u8)
}

/// True if standard output was closed early, as `head` does: that is no failure.
fn output_is_closed(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn commands_a_terminal(argument: &OsStr) -> bool {
    let argument = argument.to_string_lossy();
    escape::text(&argument) != argument
}

/// The folder that `--model` means: a folder, or the name of a bundled model.
fn model_dir(model: &Path) -> PathBuf {
    let bundled = ["storyteller", "storyteller-draft"].iter().any(|name| model.as_os_str() == *name);
    if bundled && !model.exists() {
        return Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets").join(model);
    }
    model.into()
}
