//! The command line: what it understands, how it says that something went wrong.
//!
//! Results go to standard output, everything else to standard error, so that `generate > story.txt` holds a story.

mod batch;
mod bench;

#[cfg(feature = "serve")]
mod chat;
mod conversation;
mod drafts;
mod gains;
mod generate;
mod input;
mod interrupt;
mod logits;
mod options;
mod output;
mod page_file;
mod require;
#[cfg(feature = "serve")]
mod serve;
mod simulate;
mod status;
mod story;
mod synth;
#[cfg(not(feature = "serve"))]
mod without_serve;
mod workload;

use std::ffi::OsStr;
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::builder::StyledStr;
use clap::error::{Error as UsageError, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use page_by_page::cache::kind::UnknownCache;
use page_by_page::escape;

use output::{count, say, thousands};

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
  cargo run --release --features solution -- generate
  cargo run --release --features solution -- generate \"The king had\" --kv flat
  cargo run -- status

The other examples leave out the `cargo run --release --features solution --` part.";

/// The commands as the help lists them.
const GROUPS: [(&str, &[&str]); 3] = [
    ("While you read and build", &["status", "generate", "story", "gains"]),
    ("Serving many requests", &["chat", "batch", "serve"]),
    ("Measuring and checking", &["bench", "workload", "simulate", "logits", "synth"]),
];

#[derive(Subcommand)]
enum Command {
    Generate(generate::Generate),
    Story(story::Story),
    #[cfg(feature = "serve")]
    Chat(chat::Chat),
    /// Chat with a model that was trained to (needs the feature `serve`)
    #[cfg(not(feature = "serve"))]
    Chat(without_serve::Missing),
    Batch(batch::Batch),
    #[cfg(feature = "serve")]
    Serve(serve::Serve),
    /// Serve the model to programs that speak OpenAI's protocol (needs the feature `serve`)
    #[cfg(not(feature = "serve"))]
    Serve(without_serve::Missing),
    Logits(logits::Logits),
    Synth(synth::Synth),
    Bench(bench::Bench),
    Workload(workload::Workload),
    Simulate(simulate::Simulate),
    Gains(gains::GainsCommand),
    Status(status::Status),
}

/// Runs the program: exit code 0 if all went well, 2 for a command that was not understood, 1 for the rest.
fn main() -> ExitCode {
    let parsed = with_groups(Cli::command()).try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
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
            .with_context(|| format!("cannot start {}; give fewer with --threads", count(threads, "thread")))?;
        // Inside the pool, work that is too small to share needs no other thread to be woken.
        pool.install(|| match self.command {
            Command::Generate(command) => command.run(),
            Command::Story(command) => command.run(),
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
            Command::Gains(command) => command.run(),
            Command::Status(command) => command.run(),
        })
    }
}

/// Lists the commands in groups: those of a reader first.
fn with_groups(command: clap::Command) -> clap::Command {
    let header = command.get_styles().get_header();
    let columns = output::columns_for_help();
    let mut groups = StyledStr::new();
    for (title, names) in GROUPS {
        let lines = names.iter().filter_map(|name| command.find_subcommand(name)).map(|subcommand| {
            let about = subcommand.get_about().map(StyledStr::to_string).unwrap_or_default();
            output::wrap(&format!("  {:<9} {about}", subcommand.get_name()), columns, 12).join("\n") + "\n"
        });
        groups.push_str(&format!("{header}{title}:{header:#}\n{}\n", lines.collect::<String>()));
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{header}Options:{header:#}\n{{options}}{{after-help}}"
    );
    command.help_template(template)
}

/// More threads for each core than this only wait for each other.
const THREADS_PER_CORE: usize = 4;

/// How many threads to compute with: the option, or else `RAYON_NUM_THREADS`, within reason.
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
    match cause.and_then(|cause| cause.downcast_ref::<UnknownCache>()) {
        Some(unknown) if error.kind() == ErrorKind::ValueValidation => say(&format!("error: {unknown}")),
        // A message that repeats arguments which a terminal would obey loses its colours.
        _ if error.use_stderr() && std::env::args_os().any(|argument| commands_a_terminal(&argument)) => {
            error.render().to_string().lines().for_each(say);
        }
        // Help and version come this way too, and go to standard output. If that is closed, there is nothing left to say.
        _ => drop(error.print()),
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
        return Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets").join(model);
    }
    model.into()
}
