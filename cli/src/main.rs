//! The command line: what it understands, how it says that something went wrong.
//!
//! Results go to standard output, everything else to standard error, so that `generate > story.txt` holds a story.

mod batch;
mod bench;
mod bought;
#[cfg(feature = "serve")]
mod chat;
mod choosing;
mod drafting;
mod generate;
mod interrupt;
mod kv;
mod line;
mod logits;
mod memory;
#[cfg(not(feature = "serve"))]
mod missing;
mod page_file;
mod progress;
mod reading;
// Its writer is `cargo learn`, in tools/learn.
#[allow(dead_code)]
mod report;
mod saved;
#[cfg(feature = "serve")]
mod serve;
mod sharing;
mod simulate;
mod status;
mod synth;
mod talking;
mod tell;
mod workload;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::error::{Error as UsageError, ErrorKind};
use clap::{Parser, Subcommand};
use page_by_page::escape;

use report::{count, thousands};

/// Tell stories with a language model whose memory you build yourself
#[derive(Parser)]
#[command(name = "page-by-page", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Threads to compute with, at most four for each core [default: RAYON_NUM_THREADS, or one for each core]
    #[arg(long, global = true, display_order = 100, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

const EXAMPLES: &str = "\
Examples:
  cargo run --release --features solution -- generate
  cargo run --release --features solution -- generate \"The king had\" --kv flat
  cargo run -- status

The other examples leave out the `cargo run --release --features solution --` part.";

#[derive(Subcommand)]
enum Command {
    Generate(generate::Generate),
    Tell(tell::Tell),
    #[cfg(feature = "serve")]
    Chat(chat::Chat),
    /// Chat with a model that was trained to (needs the feature `serve`)
    #[cfg(not(feature = "serve"))]
    Chat(missing::Missing),
    Batch(batch::Batch),
    #[cfg(feature = "serve")]
    Serve(serve::Serve),
    /// Serve the model to programs that speak OpenAI's protocol (needs the feature `serve`)
    #[cfg(not(feature = "serve"))]
    Serve(missing::Missing),
    Logits(logits::Logits),
    Synth(synth::Synth),
    Bench(bench::Bench),
    Workload(workload::Workload),
    Simulate(simulate::Simulate),
    Bought(bought::BoughtCommand),
    Status(status::Status),
}

/// Runs the program: exit code 0 if all went well, 2 for a command that was not understood, 1 for the rest.
fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return wrong_usage(&error),
    };
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if reader_has_left(&error) => ExitCode::SUCCESS,
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
            .with_context(|| format!("cannot start {}; give fewer with --threads", count(threads, "thread")))?;
        // Inside the pool, work that is too small to share needs no other thread to be woken.
        pool.install(|| match self.command {
            Command::Generate(command) => command.run(),
            Command::Tell(command) => command.run(),
            #[cfg(feature = "serve")]
            Command::Chat(command) => command.run(),
            #[cfg(not(feature = "serve"))]
            Command::Chat(command) => command.run("chat"),
            Command::Batch(command) => command.run(),
            #[cfg(feature = "serve")]
            Command::Serve(command) => command.run(),
            #[cfg(not(feature = "serve"))]
            Command::Serve(command) => command.run("serve"),
            Command::Logits(command) => command.run(),
            Command::Synth(command) => command.run(),
            Command::Bench(command) => command.run(),
            Command::Workload(command) => command.run(),
            Command::Simulate(command) => command.run(),
            Command::Bought(command) => command.run(),
            Command::Status(command) => command.run(),
        })
    }
}

/// More threads for each core than this only wait for each other.
const THREADS_PER_CORE: usize = 4;

/// How many threads to compute with: as many as asked for, by the option or else by `RAYON_NUM_THREADS`, within reason.
fn threads(option: Option<usize>) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let variable = || std::env::var("RAYON_NUM_THREADS").ok()?.parse().ok();
    let asked = option.or_else(variable).filter(|threads| *threads > 0).unwrap_or(cores);
    let most = THREADS_PER_CORE * cores;
    if asked > most {
        say(&format!(
            "note: computing with {}, not {}: this machine has {}, and more than {THREADS_PER_CORE} for each would only \
             wait for each other",
            count(most, "thread"),
            thousands(asked),
            count(cores, "core")
        ));
    }
    asked.min(most)
}

fn wrong_usage(error: &UsageError) -> ExitCode {
    let cause = std::error::Error::source(error);
    match cause.and_then(|cause| cause.downcast_ref::<kv::UnknownKv>()) {
        Some(unknown) if error.kind() == ErrorKind::ValueValidation => say(&format!("error: {unknown}")),
        // What repeats arguments that a terminal would obey loses its colours.
        _ if error.use_stderr() && std::env::args_os().any(|argument| commands_a_terminal(&argument)) => {
            error.render().to_string().lines().for_each(say);
        }
        // Help and version come this way too, and go to standard output. Nobody is left to hear of a failure.
        _ => drop(error.print()),
    }
    ExitCode::from(error.exit_code() as u8)
}

/// True if standard output was closed early, as `head` does: that is no failure.
fn reader_has_left(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn commands_a_terminal(argument: &OsStr) -> bool {
    let argument = argument.to_string_lossy();
    escape::text(&argument) != argument
}

/// Writes a line to standard error, if anybody reads it. Whatever file or name a part of it is from: a terminal obeys none
/// of it.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{}", escape::message(line));
}

/// Writes text to standard output at once: as it is, or on a terminal with control characters shown as what they are.
fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let text = if out.is_terminal() { escape::text(text) } else { Cow::from(text) };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => error.into(),
        _ => anyhow::anyhow!("standard output: {error}"),
    })
}

/// The folder that `--model` means: a folder, or the name of a bundled model.
fn model_dir(model: &Path) -> PathBuf {
    let bundled = ["storyteller", "storyteller-draft"].iter().any(|name| model.as_os_str() == *name);
    if bundled && !model.exists() {
        return Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets").join(model);
    }
    model.into()
}
