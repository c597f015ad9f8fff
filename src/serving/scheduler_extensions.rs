//! What chapter 12's scheduler is given: how the loop looks at it, and what a sequence can ask for beyond a place in
//! the queue.

use super::schedule::{ChunkInput, FinishReason, Finished, Running, ScheduleError, Sequence, SequenceId};
use crate::cache::{CacheError, KvCache, Rewind};
use crate::chapters::ch05_page_table::PageTable;
use crate::chapters::ch10_fork::ForkCache;
use crate::chapters::ch12_scheduler::{Scheduler, pages_needed};
use crate::prefix_cache::{PrefixCache, available_pages};

impl Scheduler {
    /// The waiting sequences, in the order in which they will run.
    pub fn waiting(&self) -> impl Iterator<Item = &Sequence> {
        self.waiting.iter()
    }

    /// The running sequences, oldest first, with their pages.
    pub fn running(&self) -> impl Iterator<Item = (&Sequence, &PageTable)> {
        self.running.iter().map(|running| (&running.sequence, running.cache.table()))
    }

    pub fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    pub fn prefix_cache(&self) -> &dyn PrefixCache {
        &*self.prefix_cache
    }

    /// What the model has to compute, which is the chunks of the plan in its order.
    pub fn inputs(&mut self) -> Vec<ChunkInput<'_>> {
        self.planned.inputs(&mut self.running)
    }

    /// Adds a request whose prompt is computed from its first token on, whatever the prefix cache holds.
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit).
    pub fn submit_without_lookup(
        &mut self,
        prompt: Vec<u32>,
        max_new_tokens: usize,
    ) -> Result<SequenceId, ScheduleError> {
        let id = self.submit(prompt, max_new_tokens)?;
        if let Some(sequence) = self.waiting.back_mut().filter(|sequence| sequence.id == id) {
            sequence.skips_prefix_cache = true;
        }
        Ok(id)
    }

    /// An id for a sequence that arrives now, and that [`submit_fork`](Self::submit_fork) brings later.
    pub fn reserve_id(&mut self) -> SequenceId {
        self.next_id += 1;
        SequenceId(self.next_id - 1)
    }

    /// Adds a sequence that arrived when its id [was reserved](Self::reserve_id). It runs at once, under the conditions
    /// of `admit`, with a fork of another sequence's cache or with what the prefix cache holds. Later arrivals make way
    /// for it, the newest first. If it doesn't fit even so, it waits before all of them, and lets go of the fork.
    ///
    /// # Errors
    /// [`ScheduleError::Cache`] if the prefix cache fails.
    pub fn submit_fork(&mut self, mut sequence: Sequence, fork: Option<ForkCache>) -> Result<(), ScheduleError> {
        if let Some(fork) = &fork {
            sequence.counters.forked_tokens = fork.len();
        }
        let cache = match fork {
            Some(fork) => fork,
            None => ForkCache::with_prefix(&self.slab, &mut *self.prefix_cache, sequence.lookup_tokens())?,
        };
        while !self.fits(&sequence, &cache)
            && let Some(mut newest) = self.running.pop_if(|running| running.sequence.id > sequence.id)
        {
            newest.sequence.counters.preemptions += 1;
            self.waiting.push_front(newest.sequence);
        }
        if self.fits(&sequence, &cache) {
            let index = self.running.partition_point(|running| running.sequence.id < sequence.id);
            let running = match sequence.counters.forked_tokens {
                0 => Running::start(sequence, cache),
                _ => Running { sequence, cache },
            };
            self.running.insert(index, running);
        } else {
            sequence.counters.forked_tokens = 0;
            let index = self.waiting.partition_point(|waiting| waiting.id < sequence.id);
            self.waiting.insert(index, sequence);
        }
        Ok(())
    }

    /// Whether it may run now: none that arrived earlier waits, and it finds the pages that it needs beyond its fork's.
    fn fits(&self, sequence: &Sequence, fork: &ForkCache) -> bool {
        let others = self.running().map(|(sequence, table)| pages_needed(sequence, table));
        let needed = pages_needed(sequence, fork.table()) + others.sum::<usize>();
        let is_next = self.waiting.front().is_none_or(|first| first.id > sequence.id);
        is_next
            && self.running.len() < self.limits.max_running
            && needed <= available_pages(&*self.prefix_cache, &self.slab)
    }

    /// Takes back the newest `n` tokens that a running sequence generated, and their rows. Returns those that are left.
    ///
    /// # Errors
    /// [`ScheduleError::UnknownSequence`] if none such runs, [`ScheduleError::Cache`] if it has generated fewer.
    pub fn rewind(&mut self, id: SequenceId, n: usize) -> Result<&[u32], ScheduleError> {
        let running = self.running.iter_mut().find(|running| running.sequence.id == id);
        let Running { sequence, cache } = running.ok_or(ScheduleError::UnknownSequence(id))?;
        let generated = sequence.new_tokens().len();
        if n > generated {
            return Err(CacheError::PastTheStart { n, len: generated }.into());
        }
        // The newest token that is left is computed in the next step.
        let len = sequence.tokens.len() - n;
        cache.rewind(cache.len().saturating_sub(len - 1))?;
        sequence.tokens.truncate(len);
        Ok(sequence.new_tokens())
    }

    /// [Cancels](Self::cancel) a sequence for this reason. If it has finished just now, only the reason changes.
    ///
    /// # Errors
    /// Those of `cancel`.
    pub fn finish(&mut self, id: SequenceId, reason: FinishReason) -> Result<(), ScheduleError> {
        if self.finished.iter().all(|finished| finished.sequence.id != id) {
            self.cancel(id)?;
        }
        let finished = self.finished.iter_mut().rfind(|finished| finished.sequence.id == id);
        finished.ok_or(ScheduleError::UnknownSequence(id))?.reason = reason;
        Ok(())
    }
}
