//! Requests that come and go in a pool of pages, counted without a model, because where pages go does not depend on
//! their rows.
//!
//! A [trace](Trace) is a list of requests. A [`Replay`] serves them step by step with the pool, the page tables and a
//! prefix cache, without chapter 12's scheduler:
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
//!
//! Requests that [arrive](arrivals) at random are served by the scheduler, in simulated time.

pub mod arrivals;
mod traces;

pub use traces::{Trace, TraceDefaults, TraceRequest};

use crate::cache::CacheError;
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::PageTable;
use crate::english::plural;
use crate::prefix_cache::{PrefixCache, PrefixCacheKind};

/// The pool in which requests are replayed.
#[derive(Clone, Copy, Debug)]
pub struct Replay {
    pub n_pages: usize,
    pub page_size: usize,
    pub max_running: usize,
    pub prefix_cache: PrefixCacheKind,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReplayCounters {
    pub requests: u64,
    /// Times that each running sequence got a token.
    pub steps: u64,
    pub pages_allocated: u64,
    /// Pages that the prefix cache gave up for others.
    pub pages_evicted: u64,
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
pub enum WorkloadError {
    #[error("with 0 sequences running at a time no request is ever served: let at least 1 run")]
    NoneRuns,
    /// A request that not even the empty pool could hold.
    #[error(
        "request {number} needs {0} for its {1}, and the pool has {n_pages}; give the pool at least {0}",
        plural(*needed, "page"), plural(*tokens, "token")
    )]
    NeverFits { number: u64, tokens: usize, needed: usize, n_pages: usize },
    /// A lookup that leaves no token to compute.
    #[error("{cached} of {prompt} tokens of a prompt are said to be cached: at least one must be left to compute")]
    CachedTooMuch { cached: usize, prompt: usize },
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl Replay {
    /// Serves the requests until all have finished. `on_end` is called for each that does.
    pub fn run(
        self,
        requests: impl IntoIterator<Item = TraceRequest>,
        mut on_end: impl FnMut(),
    ) -> Result<ReplayCounters, WorkloadError> {
        if self.max_running == 0 {
            return Err(WorkloadError::NoneRuns);
        }
        let mut requests = requests.into_iter().peekable();
        let (pool, prefix_cache) = (PagePool::new(self.n_pages)?, self.prefix_cache.new_cache(self.page_size)?);
        let counters = ReplayCounters::default();
        let mut state = ReplayState { pool, prefix_cache, page_size: self.page_size, running: Vec::new(), counters };
        let (mut in_use, mut fragmentation) = (0, 0.0);
        loop {
            while state.running.len() < self.max_running
                && let Some(request) = requests.next_if(|next| state.has_room(next))
            {
                state.begin(request)?;
            }
            if state.running.is_empty() {
                // Not even the empty pool has room for the next one.
                let Some(TraceRequest { tokens, .. }) = requests.peek() else { break };
                let (tokens, number, n_pages) = (tokens.len(), state.counters.requests + 1, self.n_pages);
                let needed = tokens.div_ceil(self.page_size);
                return Err(WorkloadError::NeverFits { number, tokens, needed, n_pages });
            }
            state.step(&mut on_end)?;
            in_use += state.n_in_use() as u64;
            let slots: usize = state.running.iter().map(|(_, table)| table.slots()).sum();
            let tokens: usize = state.running.iter().map(|(_, table)| table.len()).sum();
            fragmentation += share((slots - tokens) as f64, slots as u64);
        }
        let mut counters = state.counters;
        counters.hit_rate = share(counters.cached_tokens as f64, counters.prompt_tokens);
        counters.utilisation = share(in_use as f64, counters.steps) / self.n_pages as f64;
        counters.fragmentation = share(fragmentation, counters.steps);
        Ok(counters)
    }
}

struct ReplayState {
    pool: PagePool,
    prefix_cache: Box<dyn PrefixCache>,
    page_size: usize,
    /// The sequences that have not finished, each with its pages.
    running: Vec<(TraceRequest, PageTable)>,
    counters: ReplayCounters,
}

impl ReplayState {
    /// Pages that running sequences have; a shared page counts once. All others are free, or can be evicted.
    fn n_in_use(&self) -> usize {
        self.pool.n_pages().saturating_sub(self.pool.n_free() + self.prefix_cache.n_evictable(&self.pool))
    }

    /// Whether a request finds all the pages that it needs beside those that the running sequences still lack.
    fn has_room(&self, request: &TraceRequest) -> bool {
        let pages = |request: &TraceRequest| request.tokens.len().div_ceil(self.page_size);
        let lacking = self.running.iter().map(|(request, table)| pages(request) - table.pages().len());
        pages(request) + lacking.sum::<usize>() <= self.pool.n_pages() - self.n_in_use()
    }

    fn begin(&mut self, request: TraceRequest) -> Result<(), WorkloadError> {
        let prompt = &request.tokens[..request.n_prompt];
        let mut table = self.prefix_cache.lookup(prompt, &mut self.pool)?;
        let cached = table.len();
        if cached >= prompt.len() {
            return Err(WorkloadError::CachedTooMuch { cached, prompt: prompt.len() });
        }
        self.counters.prompt_tokens += prompt.len() as u64;
        self.counters.cached_tokens += cached as u64;
        self.grow(&mut table, prompt.len() - cached)?;
        self.prefix_cache.insert(prompt, &mut table, &mut self.pool)?;
        self.running.push((request, table));
        Ok(())
    }

    /// Makes room for `n` more tokens of a sequence, if necessary by evicting pages.
    fn grow(&mut self, table: &mut PageTable, n: usize) -> Result<(), CacheError> {
        let (needed, free) = (table.pages_needed(n), self.pool.n_free());
        if needed > free {
            self.counters.pages_evicted += self.prefix_cache.evict(needed - free, &mut self.pool)? as u64;
        }
        table.grow(n, &mut self.pool)?;
        self.counters.pages_allocated += needed as u64;
        Ok(())
    }

    /// Each running sequence gets a token, and those that are complete finish.
    fn step(&mut self, on_end: &mut impl FnMut()) -> Result<(), WorkloadError> {
        self.counters.steps += 1;
        for (request, mut table) in std::mem::take(&mut self.running) {
            self.grow(&mut table, 1)?;
            self.running.push((request, table));
        }
        let is_complete = |(request, table): &mut (TraceRequest, PageTable)| table.len() == request.tokens.len();
        for (request, mut table) in self.running.extract_if(.., is_complete) {
            self.prefix_cache.insert(&request.tokens, &mut table, &mut self.pool)?;
            table.release(&mut self.pool)?;
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
