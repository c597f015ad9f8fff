//! `workload`: requests that come and go in a pool of pages, counted without a model.

mod serving;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::prefixes::Prefixes;
use page_by_page::prefixes::chain::{Chain, FirstOut};
use page_by_page::workload::{PageCounters, Pages, Trace, run};
use serde::Serialize;

use crate::output::{Progress, Table, count, print, print_pretty_json, thousands};
use crate::require;

/// Count what pages and prefixes do for many requests, without a model
///
/// Sequences take pages, find what earlier ones left in the prefix cache, grow by a token a step, and end. No model computes:
/// where the pages go does not depend on what is in them. All counters are exact and the same on every machine.
#[derive(Args)]
pub struct Workload {
    #[command(subcommand)]
    trace: Requests,
}

#[derive(Subcommand)]
enum Requests {
    Shared(Many),
    Unique(Unique),
    Chats(Chats),
    Documents(Documents),
    Serving(serving::Serving),
}

/// Prompts that begin with the same 64 tokens, as with a system prompt
///
/// After them come 8 to 48 tokens of a user; 16 to 96 more are generated.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page workload shared
  page-by-page workload shared --no-prefix-cache")]
struct Many {
    #[command(flatten)]
    many: ManyOptions,
    #[command(flatten)]
    common: Common,
}

/// Prompts of 32 to 64 tokens that share nothing; 16 to 96 more are written
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page workload unique")]
struct Unique {
    #[command(flatten)]
    many: ManyOptions,
    #[command(flatten)]
    common: Common,
}

/// 20 chats that take turns, 6 times around
///
/// Each turn asks with all that was said in the chat so far and a new message of 8 to 48 tokens; 8 to 40 are written. All
/// chats begin with the same 64 tokens. A turn begins when the one before it has its answer.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page workload chats --pages 100,300,500")]
struct Chats {
    #[command(flatten)]
    common: Common,
}

/// 4 documents of 512 tokens, asked in turn, 20 times around
///
/// Each time a question of 10 tokens follows the document, and an answer of 32 is generated. The documents alone fill
/// 128 pages of 16 tokens.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page workload documents
  page-by-page workload documents --evict heads")]
struct Documents {
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct ManyOptions {
    /// Requests in all, at most 1,000,000
    #[arg(long, value_name = "N", default_value_t = 300)]
    requests: usize,
    /// Sequences that run at the same time, at most
    #[arg(long, value_name = "N", default_value_t = 16)]
    running: usize,
}

#[derive(Args)]
struct Common {
    /// Pages of the pool; several numbers, separated by commas, make several runs [default: 512 for shared and unique, 300
    /// for chats, 130 for documents]
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    pages: Vec<usize>,
    /// Slots in a page
    #[arg(long, value_name = "P", default_value_t = 16)]
    page_size: usize,
    /// Forget the pages of a sequence when it ends
    #[arg(long)]
    no_prefix_cache: bool,
    /// Which pages of a finished sequence are evicted first
    #[arg(long, value_name = "END", value_enum, default_value_t = Evict::Tails, conflicts_with = "no_prefix_cache")]
    evict: Evict,
    /// Print the counters as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Evict {
    /// Its last ones: what is left of it can still be found
    Tails,
    /// Its first ones, as in a queue of pages that are freed in the order of the text
    Heads,
}

/// Pages of a pool that is made in passing.
const MOST_PAGES: u64 = 10_000_000;
/// A larger page than this holds any text of any trace.
const MOST_SLOTS: u64 = 1_000_000;
/// More requests than this repeat what a million shows.
const MOST_REQUESTS: u64 = 1_000_000;

/// What a run is about, and what came of it in each pool.
#[derive(Serialize)]
struct Report {
    trace: &'static str,
    requests: usize,
    running: usize,
    page_size: usize,
    prefix_cache: bool,
    /// `None` without a prefix cache.
    evict: Option<Evict>,
    runs: Vec<Run>,
}

/// A run in one pool.
#[derive(Serialize)]
struct Run {
    pages: usize,
    #[serde(flatten)]
    counters: PageCounters,
}

impl Workload {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.trace {
            Requests::Shared(Many { many, common }) => common.run(Trace::Shared, many.requests, many.running),
            Requests::Unique(Unique { many, common }) => common.run(Trace::Unique, many.requests, many.running),
            Requests::Chats(Chats { common }) => common.run_whole(Trace::Chats),
            Requests::Documents(Documents { common }) => common.run_whole(Trace::Documents),
            Requests::Serving(command) => command.run(),
        }
    }
}

impl Common {
    /// A trace that has its own length.
    fn run_whole(self, trace: Trace) -> Result<()> {
        self.run(trace, trace.n_requests(), trace.running())
    }

    fn run(self, trace: Trace, requests: usize, running: usize) -> Result<()> {
        let pools = if self.pages.is_empty() { vec![trace.n_pages()] } else { self.pages.clone() };
        require::chapters(self.chapters())?;
        require::in_range(requests as u64, MOST_REQUESTS, "--requests", "a workload")?;
        require::in_range(self.page_size as u64, MOST_SLOTS, "--page-size", "a page")?;
        for n_pages in &pools {
            require::in_range(*n_pages as u64, MOST_PAGES, "--pages", "a pool")?;
        }
        let progress = Progress::new("counting", (requests * pools.len()) as u64);
        let run_in = |n_pages| {
            let (requests, told) = (trace.requests(requests), || progress.advance(1));
            let counters = match self.evict {
                Evict::Heads => {
                    let mut memory = Chain::new(n_pages, self.page_size, FirstOut::Heads)?;
                    run(requests, running, &mut memory, told)?
                }
                Evict::Tails => run(requests, running, &mut self.pages(n_pages)?, told)?,
            };
            anyhow::Ok(Run { pages: n_pages, counters })
        };
        let runs = pools.into_iter().map(run_in).collect::<Result<Vec<_>>>()?;
        drop(progress);
        let report = Report {
            trace: trace.name(),
            requests,
            running,
            page_size: self.page_size,
            prefix_cache: !self.no_prefix_cache,
            evict: (!self.no_prefix_cache).then_some(self.evict),
            runs,
        };
        match self.json {
            true => print_pretty_json(&report),
            false => print(&report.shown()),
        }
    }
}

impl Common {
    /// The chapters whose code it runs.
    fn chapters(&self) -> &'static [usize] {
        match (self.no_prefix_cache, self.evict) {
            (true, _) => &[4, 5],
            (false, Evict::Tails) => &[4, 5, 11],
            (false, Evict::Heads) => &[],
        }
    }

    /// The chapters' memory.
    fn pages(&self, n_pages: usize) -> Result<Pages> {
        let prefixes: Option<Box<dyn Prefixes>> = match self.no_prefix_cache {
            true => None,
            false => Some(Box::new(PrefixCache::new(self.page_size)?)),
        };
        Ok(Pages::new(n_pages, self.page_size, prefixes)?)
    }
}

impl Report {
    /// Lines for people: what ran, and a line of counters for each pool.
    fn shown(&self) -> String {
        let prefixes = match self.evict {
            None => "without the prefix cache",
            Some(Evict::Tails) => "with the prefix cache",
            Some(Evict::Heads) => "with a prefix cache that evicts heads first",
        };
        let about = format!(
            "{}: {}, at most {} at a time, pages of {}, {prefixes}\n",
            self.trace,
            count(self.requests, "request"),
            thousands(self.running),
            count(self.page_size, "slot"),
        );
        let mut table = Table::new(
            0,
            &["pages", "allocated", "evicted", "found", "of", "hit rate", "utilisation", "fragmentation", "steps"],
        );
        for Run { pages, counters } in &self.runs {
            table.line([
                thousands(*pages),
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
        about + "\n" + &table.render()
    }
}

/// A share of 0 to 1.
fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
