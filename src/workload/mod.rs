//! Requests that come and go in a pool of pages, counted without a model, because where pages go does not depend on
//! their rows.
//!
//! A [trace](Trace) is a list of requests. A [page memory](PageMemory) keeps the pages. [`Pages`] does it with the
//! pool, the page tables and a prefix cache of the chapters, [`Chain`](chain::Chain) as vLLM keeps them. [`run`] serves
//! the requests of the one in the other, step by step, without chapter 12's scheduler:
//!
//! ```text
//!   requests begin while there is room      their cached prefixes are looked up, the rest of the prompt takes pages
//!   each sequence gets a token              at a page boundary it takes a page; an unused page is evicted for it
//!   sequences that are complete finish      their full pages stay cached for later ones, the others go back
//! ```
//!
//! A sequence begins only if the pages for all of its tokens, and for what the running ones still lack, are free or can
//! be evicted. So no step ever fails and no sequence is preempted; the price is room that stands empty. All counters
//! are exact and the same on every machine.

pub mod arrivals;
pub mod chain;
mod chapter_pages;
mod traces;

pub use chapter_pages::Pages;
pub use traces::{Trace, TraceRequest};

use serde::Serialize;

use crate::cache::CacheError;
use crate::english::count;

/// Where running sequences have their pages, and finished ones leave some. Its calls return [`CacheError`] if the pages
/// are not the pool's, or too few are free.
pub trait PageMemory {
    /// The pages of one sequence.
    type Table;

    /// Begins a sequence with the longest cached prefix of its prompt, which leaves at least one token to compute.
    /// Returns its pages and how many tokens they hold.
    fn begin(&mut self, prompt: &[u32]) -> Result<(Self::Table, usize), CacheError>;

    /// Makes room for `n` more tokens of a sequence, if necessary by evicting pages. Returns how many pages it took.
    fn grow(&mut self, table: &mut Self::Table, n: usize) -> Result<usize, CacheError>;

    /// Caches the full pages of a sequence for later ones. `tokens`: all that the pages hold.
    fn insert(&mut self, tokens: &[u32], table: &mut Self::Table) -> Result<(), CacheError>;

    /// Lets go of the pages of a sequence.
    fn end(&mut self, table: Self::Table) -> Result<(), CacheError>;

    /// Slots in a page.
    fn page_size(&self) -> usize;

    /// Pages in all.
    fn n_pages(&self) -> usize;

    /// Pages that running sequences have; a shared page counts once. All others are free, or can be evicted.
    fn n_in_use(&self) -> usize;

    /// Pages evicted so far.
    fn n_evicted(&self) -> u64;
}

/// What a run counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PageCounters {
    /// Requests served.
    pub requests: u64,
    /// Times that each running sequence got a token.
    pub steps: u64,
    /// Pages taken from the pool.
    pub pages_allocated: u64,
    /// Pages that the prefix cache gave up for others.
    pub pages_evicted: u64,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Prompt tokens that the prefix cache held.
    pub cached_tokens: u64,
    /// Cached tokens of all prompt tokens, 0 to 1.
    pub hit_rate: f64,
    /// Pages that running sequences have, of the pool's: the mean over all steps, 0 to 1, each taken after the
    /// sequences that finish have given theirs back. Pages that are only cached do not count.
    pub utilisation: f64,
    /// Empty slots in the pages of running sequences, of all their slots: the mean over all steps, 0 to 1.
    pub fragmentation: f64,
}

/// Why a run was refused, or stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the numbers are.
pub enum WorkloadError {
    /// No sequence may run.
    #[error("with 0 sequences running at a time no request is ever served: let at least 1 run")]
    NoneRuns,
    /// A request that not even the empty pool could hold.
    #[error(
        "request {number} needs {0} for its {1}, and the pool has {n_pages}; give the pool at least {0}",
        count(*needed, "page"), count(*tokens, "token")
    )]
    NeverFits { number: u64, tokens: usize, needed: usize, n_pages: usize },
    /// A lookup that leaves no token to compute.
    #[error("{cached} of {prompt} tokens of a prompt are said to be cached: at least one must be left to compute")]
    CachedTooMuch { cached: usize, prompt: usize },
    /// The pages went wrong.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// A sequence that runs.
struct ActiveSequence<T> {
    request: TraceRequest,
    table: T,
    /// Tokens that it holds.
    len: usize,
}

/// Serves the requests, at most `most_running` at a time, until all have finished. `on_end` is called for each that
/// does.
pub fn run<M: PageMemory>(
    requests: impl IntoIterator<Item = TraceRequest>,
    most_running: usize,
    memory: &mut M,
    mut on_end: impl FnMut(),
) -> Result<PageCounters, WorkloadError> {
    if most_running == 0 {
        return Err(WorkloadError::NoneRuns);
    }
    let mut requests = requests.into_iter().peekable();
    let mut run = Replay { memory, running: Vec::new(), sums: Sums::default(), counters: PageCounters::default() };
    let (mut in_use, mut fragmentation) = (0, 0.0);
    loop {
        while run.running.len() < most_running
            && let Some(request) = requests.next_if(|next| run.has_room(next))
        {
            run.begin(request)?;
        }
        if run.running.is_empty() {
            match requests.peek() {
                Some(next) => return Err(run.never_fits(next)),
                None => break,
            }
        }
        run.step(&mut on_end)?;
        in_use += run.memory.n_in_use() as u64;
        if run.sums.pages > 0 {
            let slots = (run.sums.pages * run.memory.page_size()) as f64;
            fragmentation += (slots - run.sums.tokens as f64) / slots;
        }
    }
    let Replay { memory, mut counters, .. } = run;
    counters.pages_evicted = memory.n_evicted();
    counters.hit_rate = share(counters.cached_tokens as f64, counters.prompt_tokens);
    counters.utilisation = share(in_use as f64, counters.steps) / memory.n_pages() as f64;
    counters.fragmentation = share(fragmentation, counters.steps);
    Ok(counters)
}

struct Replay<'a, M: PageMemory> {
    memory: &'a mut M,
    running: Vec<ActiveSequence<M::Table>>,
    sums: Sums,
    counters: PageCounters,
}

/// Sums over all running sequences: each change adds to them, so no step has to walk through all sequences.
#[derive(Default)]
struct Sums {
    tokens: usize,
    pages: usize,
    /// Pages that they do not have yet, and will need.
    lacking: usize,
}

impl<M: PageMemory> Replay<'_, M> {
    /// Whether a request finds all the pages that it needs beside those that are promised.
    fn has_room(&self, request: &TraceRequest) -> bool {
        let needed = request.tokens.len().div_ceil(self.memory.page_size());
        needed + self.sums.lacking <= self.memory.n_pages() - self.memory.n_in_use()
    }

    /// Why a request does not fit into a pool without any sequence.
    fn never_fits(&self, request: &TraceRequest) -> WorkloadError {
        let tokens = request.tokens.len();
        WorkloadError::NeverFits {
            number: self.counters.requests + 1,
            tokens,
            needed: tokens.div_ceil(self.memory.page_size()),
            n_pages: self.memory.n_pages(),
        }
    }

    fn begin(&mut self, request: TraceRequest) -> Result<(), WorkloadError> {
        let (n_prompt, page_size) = (request.n_prompt, self.memory.page_size());
        let prompt = &request.tokens[..n_prompt];
        let (mut table, cached) = self.memory.begin(prompt)?;
        if cached >= n_prompt {
            return Err(WorkloadError::CachedTooMuch { cached, prompt: n_prompt });
        }
        let taken = self.memory.grow(&mut table, n_prompt - cached)?;
        self.memory.insert(prompt, &mut table)?;
        self.counters.pages_allocated += taken as u64;
        self.counters.prompt_tokens += n_prompt as u64;
        self.counters.cached_tokens += cached as u64;
        let pages = n_prompt.div_ceil(page_size);
        self.sums.tokens += n_prompt;
        self.sums.pages += pages;
        self.sums.lacking += request.tokens.len().div_ceil(page_size) - pages;
        self.running.push(ActiveSequence { request, table, len: n_prompt });
        Ok(())
    }

    /// Each running sequence gets a token, and those that are complete finish.
    fn step(&mut self, on_end: &mut impl FnMut()) -> Result<(), WorkloadError> {
        let page_size = self.memory.page_size();
        for sequence in &mut self.running {
            self.counters.pages_allocated += self.memory.grow(&mut sequence.table, 1)? as u64;
            if sequence.len.is_multiple_of(page_size) {
                self.sums.pages += 1;
                self.sums.lacking -= 1;
            }
            sequence.len += 1;
        }
        self.sums.tokens += self.running.len();
        self.counters.steps += 1;
        for mut sequence in self.running.extract_if(.., |sequence| sequence.len == sequence.request.tokens.len()) {
            self.memory.insert(&sequence.request.tokens, &mut sequence.table)?;
            self.memory.end(sequence.table)?;
            self.sums.tokens -= sequence.len;
            self.sums.pages -= sequence.len.div_ceil(page_size);
            self.counters.requests += 1;
            on_end();
        }
        Ok(())
    }
}

/// A part of `whole`; 0 of nothing.
fn share(part: f64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part / whole as f64 }
}
