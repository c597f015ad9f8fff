//! Chapters 11 and 12: prompt tokens that are cached when many requests come and go, and the passes that a scheduler
//! makes.

use anyhow::Result;

use super::PAGE_SIZE;
use crate::chapters::ch06_paged::PageSlab;
use crate::chapters::ch11_prefix_cache::PrefixCache;
use crate::prefixes::Prefixes;
use crate::serving::schedule::StepLimits;
use crate::workload::arrivals::{Cost, LAYOUT, serve, tiny_llm};
use crate::workload::chain::{Chain, EvictionOrder};
use crate::workload::{PageCounters, Pages, Trace, run};

/// A trace that runs in a pool of pages.
#[derive(Clone, Copy)]
pub struct TraceRun {
    pub trace: Trace,
    pub requests: usize,
    /// Sequences that run at the same time, at most.
    pub running: usize,
    pub page_size: usize,
    /// The prefix cache: chapter 11's evicts tails first, and a chain as vLLM has it heads first; `None` for none.
    pub prefix_cache: Option<EvictionOrder>,
}

impl TraceRun {
    /// The whole trace in pages of 16 slots, as many sequences at a time as it says.
    pub fn of(trace: Trace, prefix_cache: Option<EvictionOrder>) -> Self {
        TraceRun { trace, requests: trace.n_requests(), running: trace.running(), page_size: PAGE_SIZE, prefix_cache }
    }

    /// Serves the requests in a pool of `n_pages`. `on_end` is called for each that finishes.
    pub fn run(self, n_pages: usize, on_end: impl FnMut()) -> Result<PageCounters> {
        let requests = self.trace.requests(self.requests);
        let prefixes: Option<Box<dyn Prefixes>> = match self.prefix_cache {
            Some(EvictionOrder::HeadsFirst) => {
                let mut chain = Chain::new(n_pages, self.page_size, EvictionOrder::HeadsFirst)?;
                return Ok(run(requests, self.running, &mut chain, on_end)?);
            }
            None => None,
            Some(EvictionOrder::TailsFirst) => Some(Box::new(PrefixCache::new(self.page_size)?)),
        };
        Ok(run(requests, self.running, &mut Pages::new(n_pages, self.page_size, prefixes)?, on_end)?)
    }
}

/// Passes of a model that serve the sixteen requests of tiny-llm from a pool of `n_pages`.
pub fn passes_for_sixteen(n_pages: usize, limits: StepLimits) -> Result<u64> {
    let slab = PageSlab::new(LAYOUT, PAGE_SIZE, n_pages)?;
    let prefixes = Box::new(PrefixCache::new(PAGE_SIZE)?);
    let served = serve(&tiny_llm(), &slab, prefixes, limits, Cost { step: 1, token: 1 }, || {})?;
    Ok(served.totals.steps)
}
