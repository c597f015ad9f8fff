//! Chapters 11 and 12: prompt tokens that are cached when many requests come and go, and the passes that a scheduler
//! makes.

use anyhow::Result;

use super::PAGE_SIZE;
use crate::chapters::ch06_paged::PageSlab;
use crate::chapters::ch11_prefix_cache::PrefixTrie;
use crate::prefix_cache::PrefixCacheKind;
use crate::serving::schedule::StepLimits;
use crate::workload::arrivals::{LAYOUT, StepCost, simulate_arrivals, tiny_llm};
use crate::workload::{Replay, ReplayCounters, Trace, TraceDefaults};

/// A whole trace in a pool of `n_pages` pages of 16 slots, as many sequences at a time as it says.
pub fn replay(trace: Trace, n_pages: usize, prefix_cache: PrefixCacheKind) -> Result<ReplayCounters> {
    let TraceDefaults { n_requests, max_running, .. } = trace.defaults();
    let replay = Replay { n_pages, page_size: PAGE_SIZE, max_running, prefix_cache };
    Ok(replay.run(trace.requests(n_requests), || {})?)
}

/// Passes of a model that serve the sixteen requests of tiny-llm from a pool of `n_pages`.
pub fn steps_for_tiny_llm(n_pages: usize, limits: StepLimits) -> Result<u64> {
    let slab = PageSlab::new(LAYOUT, PAGE_SIZE, n_pages)?;
    let prefix_cache = Box::new(PrefixTrie::new(PAGE_SIZE)?);
    let served = simulate_arrivals(&tiny_llm(), &slab, prefix_cache, limits, StepCost { step: 1, token: 1 }, || {})?;
    Ok(served.totals.steps)
}
