//! `workload`: requests that come and go in a pool of pages, counted without a model.

mod serving;

use anyhow::Result;
use clap::{Args, Subcommand};
use page_by_page::prefix_cache::{EvictionOrder, PrefixCacheKind};
use page_by_page::workload::{Replay, Trace};

use crate::options::{ensure_in_range, named};
use crate::output::{Progress, Table, percent, plural, print, thousands};
use crate::requirements;

/// Count what pages and prefixes do for many requests, without a model
///
/// Sequences take pages, find what earlier ones left in the prefix cache, grow by a token a step, and end. No model
/// computes: where the pages go does not depend on what is in them. All counters are exact and the same on every
/// machine.
#[derive(Args)]
pub struct Workload {
    #[command(subcommand)]
    trace: TraceCommand,
}

#[derive(Subcommand)]
enum TraceCommand {
    /// Prompts that begin with the same 64 tokens, as with a system prompt
    ///
    /// After them come 8 to 48 tokens of a user; 16 to 96 more are generated.
    #[command(after_help = "\
Example:
  cargo page workload shared
  cargo page workload shared --no-prefix-cache")]
    Shared {
        /// Requests in all, at most 1,000,000
        #[arg(long, value_name = "N", default_value_t = Trace::Shared.defaults().n_requests)]
        requests: usize,
        /// Sequences that run at the same time, at most
        #[arg(long, value_name = "N", default_value_t = Trace::Shared.defaults().max_running)]
        max_running: usize,
        #[command(flatten)]
        common: Common,
    },
    /// 20 chats that take turns, 6 times around
    ///
    /// Each turn asks with all that was said in the chat so far and a new message of 8 to 48 tokens; 8 to 40 are
    /// written. All chats begin with the same 64 tokens. A turn begins when the one before it has its answer.
    #[command(after_help = "\
Example:
  cargo page workload chats --pages 100,300,500")]
    Chats(Common),
    /// 4 documents of 512 tokens, asked in turn, 20 times around
    ///
    /// Each time a question of 10 tokens follows the document, and an answer of 32 is generated. The documents alone
    /// fill 128 pages of 16 tokens.
    #[command(after_help = "\
Example:
  cargo page workload documents
  cargo page workload documents --evict heads")]
    Documents(Common),
    Serving(serving::Serving),
}

fn help_of_pages() -> String {
    let of_trace = Trace::ALL.map(Trace::defaults).map(|trace| format!("{} for {}", trace.n_pages, trace.name));
    let defaults = of_trace.join(", ");
    format!("Pages of the pool; several numbers, separated by commas, make several runs [default: {defaults}]")
}

#[derive(Args)]
struct Common {
    #[arg(long, value_name = "N,…", value_delimiter = ',', help = help_of_pages())]
    pages: Vec<usize>,
    /// Slots in a page
    #[arg(long, value_name = "P", default_value_t = 16)]
    page_size: usize,
    /// Forget the pages of a sequence when it ends
    #[arg(long)]
    no_prefix_cache: bool,
    /// Which pages of a finished sequence are evicted first: tails, its last ones, so that what is left of it can still
    /// be found, or heads, its first ones, as in a queue of pages that are freed in the order of the text
    #[arg(long, value_name = "END", value_parser = named(EVICTIONS), hide_possible_values = true,
        default_value = "tails", conflicts_with = "no_prefix_cache")]
    evict: EvictionOrder,
}

const EVICTIONS: [(&str, EvictionOrder); 2] =
    [("tails", EvictionOrder::TailsFirst), ("heads", EvictionOrder::HeadsFirst)];

const MAX_PAGES: u64 = 10_000_000;
/// A larger page than this holds any text of any trace.
const MAX_PAGE_SIZE: u64 = 1_000_000;
/// More requests than this repeat what a million shows.
const MAX_REQUESTS: u64 = 1_000_000;

impl Workload {
    pub fn run(self) -> Result<()> {
        match self.trace {
            TraceCommand::Shared { requests, max_running, common } => common.run(Trace::Shared, requests, max_running),
            TraceCommand::Chats(common) => common.run_whole(Trace::Chats),
            TraceCommand::Documents(common) => common.run_whole(Trace::Documents),
            TraceCommand::Serving(command) => command.run(),
        }
    }
}

impl Common {
    fn run_whole(self, trace: Trace) -> Result<()> {
        self.run(trace, trace.defaults().n_requests, trace.defaults().max_running)
    }

    fn run(self, trace: Trace, n_requests: usize, max_running: usize) -> Result<()> {
        let pools = if self.pages.is_empty() { vec![trace.defaults().n_pages] } else { self.pages.clone() };
        let (prefix_cache, chapter, which) = match self.evict {
            _ if self.no_prefix_cache => (PrefixCacheKind::None, 5, "without the prefix cache"),
            EvictionOrder::TailsFirst => (PrefixCacheKind::Trie, 11, "with the prefix cache"),
            // Chapter 11's trie can't.
            heads => (PrefixCacheKind::HashChain(heads), 5, "with a prefix cache that evicts heads first"),
        };
        requirements::ensure_started(&[chapter])?;
        ensure_in_range(n_requests as u64, MAX_REQUESTS, "--requests", "a workload")?;
        ensure_in_range(self.page_size as u64, MAX_PAGE_SIZE, "--page-size", "a page")?;
        for n_pages in &pools {
            ensure_in_range(*n_pages as u64, MAX_PAGES, "--pages", "a pool")?;
        }
        let progress = Progress::new("counting", (n_requests * pools.len()) as u64);
        let page_size = self.page_size;
        let heading =
            ["pages", "allocated", "evicted", "cached", "of", "hit rate", "utilisation", "fragmentation", "steps"];
        let mut table = Table::new(0, &heading);
        for n_pages in pools {
            let replay = Replay { n_pages, page_size, max_running, prefix_cache };
            let counters = replay.run(trace.requests(n_requests), || progress.advance(1))?;
            table.line([
                thousands(n_pages),
                thousands(counters.pages_allocated),
                thousands(counters.pages_evicted),
                thousands(counters.cached_tokens),
                thousands(counters.prompt_tokens),
                percent(counters.hit_rate),
                percent(counters.utilisation),
                percent(counters.fragmentation),
                thousands(counters.steps),
            ]);
        }
        drop(progress);
        print(&format!(
            "{}: {}, at most {} at a time, pages of {}, {which}\n\n{}",
            trace.defaults().name,
            plural(n_requests, "request"),
            thousands(max_running),
            plural(page_size, "slot"),
            table.render(),
        ))
    }
}
