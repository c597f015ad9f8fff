//! Requests that wait for their pages from the page file, while others compute.

use std::collections::VecDeque;

use super::{Engine, FinishedSequence};
use crate::cache::CacheError;
use crate::serving::disk_tier::DiskTier;

/// The page file under the prefix cache, if there is one, and the requests that wait for pages from it.
pub struct TierQueue<R> {
    tier: Option<DiskTier>,
    /// In the order of arrival, each with the ticket of the last pages that it needs.
    waiting: VecDeque<(u64, R)>,
}

impl<R> TierQueue<R> {
    /// No request waits. Without a page file, none ever does.
    pub fn new(tier: Option<DiskTier>) -> Self {
        TierQueue { tier, waiting: VecDeque::new() }
    }

    /// Asks for the pages of these prompts that memory lacks. Returns the ticket of the last ones, if there are any:
    /// [park](Self::park) the request until they have come.
    pub fn prefetch<'p>(
        &mut self,
        engine: &mut Engine<'_>,
        prompts: impl IntoIterator<Item = &'p [u32]>,
    ) -> Result<Option<u64>, CacheError> {
        let Some(tier) = &mut self.tier else { return Ok(None) };
        let mut last = None;
        for prompt in prompts {
            last = tier.prefetch(engine, prompt)?.or(last);
        }
        Ok(last)
    }

    /// Keeps a request until the pages of this ticket have been read.
    pub fn park(&mut self, ticket: u64, request: R) {
        self.waiting.push_back((ticket, request));
    }

    /// The requests whose pages have been read. Waits for the next pages if the engine has nothing else to do.
    pub fn take_ready(&mut self, engine: &mut Engine<'_>) -> Result<Vec<R>, CacheError> {
        let Some(tier) = &mut self.tier else { return Ok(Vec::new()) };
        let mut ready = Vec::new();
        // Pages come in the order in which they were asked for.
        let wait = engine.is_done() && !self.waiting.is_empty();
        for ticket in tier.take_loaded(engine, wait)? {
            if self.waiting.front().is_some_and(|(last, _)| *last == ticket) {
                ready.extend(self.waiting.pop_front().map(|(_, request)| request));
            }
        }
        Ok(ready)
    }

    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &R> {
        self.waiting.iter().map(|(_, request)| request)
    }

    /// Takes out all requests that wait; they can go on without the pages.
    pub fn take_all(&mut self) -> Vec<R> {
        self.waiting.drain(..).map(|(_, request)| request).collect()
    }

    /// [Writes](DiskTier::store) the full pages of a step.
    pub fn store(&mut self, engine: &mut Engine<'_>, finished: &[FinishedSequence]) -> Result<(), CacheError> {
        self.tier.as_mut().map_or(Ok(()), |tier| tier.store(engine, finished))
    }

    pub fn tier(&self) -> Option<&DiskTier> {
        self.tier.as_ref()
    }
}
