//! The scheduler as the engine uses it: chapter 12's, with plans that are checked and counted, and with what a sequence
//! can ask for beyond a place in the queue: to run with a fork, to take tokens back, to end for a reason of its own.
//!
//! The caller calls [`plan`](EngineScheduler::plan), computes with the model or only counts, and calls
//! [`settle`](EngineScheduler::settle). A plan that makes no progress is an error.

use serde::Serialize;

use super::EngineError;
use crate::cache::{CacheError, KvCache, Rewind};
use crate::chapters::ch06_paged::SharedSlab;
use crate::chapters::ch10_fork::ForkCache;
use crate::chapters::ch12_scheduler::{Scheduler, pages_needed};
use crate::prefix_cache::{PrefixCache, available_pages};
use crate::serving::schedule::{
    ChunkInput, FinishReason, Finished, NextToken, Running, ScheduleError, ScheduledChunk, Sequence, SequenceId,
    StepLimits,
};

/// A scheduler, and what its sequences have cost.
pub(crate) struct EngineScheduler {
    scheduler: Scheduler,
    /// Counts the steps and the finished sequences; [`totals`](Self::totals) adds the others.
    totals: EngineTotals,
    /// Steps since a sequence last got a token or finished.
    idle_steps: usize,
}

/// The pages of a pool, each counted once.
#[derive(Clone, Copy, Debug)]
pub struct PagesByState {
    pub free: usize,
    /// Owned by the prefix cache alone.
    pub cached: usize,
    pub used: usize,
}

/// What was done since the first sequence came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EngineTotals {
    /// Passes of the model that a plan asked for.
    pub steps: u64,
    pub computed_tokens: u64,
    /// Computed tokens that were computed a second time, after a preemption.
    pub recomputed_tokens: u64,
    pub new_tokens: u64,
    /// Sequences that lost their pages to an older one and waited again.
    pub preemptions: u64,
    /// Tokens of the prompts of all sequences that have run. A forked prompt counts once.
    pub prompt_tokens: u64,
    /// Prompt tokens that were looked up in the prefix cache: those of a prompt that is scored are not.
    pub looked_up_tokens: u64,
    /// Prompt tokens that the prefix cache held when the sequence first ran.
    pub cached_tokens: u64,
    /// Tokens that the prefix cache held when a preempted sequence ran again.
    pub cached_after_preemption: u64,
    pub peak_sequences: usize,
    /// Pages that sequences had at the same time, at most. A page that only the prefix cache owns is not counted.
    pub peak_pages: usize,
}

impl EngineTotals {
    fn add(&mut self, sequence: &Sequence) {
        let counters = &sequence.counters;
        self.recomputed_tokens += counters.recomputed_tokens;
        self.preemptions += counters.preemptions;
        if counters.computed_tokens > 0 {
            let prompt_tokens = (sequence.n_prompt - counters.forked_tokens) as u64;
            self.prompt_tokens += prompt_tokens;
            self.looked_up_tokens += if sequence.skips_prefix_cache { 0 } else { prompt_tokens };
            self.cached_tokens += counters.cached_tokens as u64;
        }
        self.cached_after_preemption += counters.cached_after_preemption as u64;
    }
}

impl EngineScheduler {
    pub(crate) fn new(
        slab: &SharedSlab,
        prefix_cache: Box<dyn PrefixCache>,
        limits: StepLimits,
    ) -> Result<Self, ScheduleError> {
        // No token ends a sequence by itself: whoever computes says when it ends.
        let scheduler = Scheduler::new(slab, prefix_cache, limits, &[])?;
        Ok(EngineScheduler { scheduler, totals: EngineTotals::default(), idle_steps: 0 })
    }

    /// To look at its sequences and pages.
    pub(crate) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    pub(super) fn prefix_cache_mut(&mut self) -> &mut dyn PrefixCache {
        &mut *self.scheduler.prefix_cache
    }

    pub(crate) fn totals(&self) -> EngineTotals {
        let mut totals = self.totals;
        let running = self.scheduler.running().map(|(sequence, _)| sequence);
        running.chain(self.scheduler.waiting()).for_each(|sequence| totals.add(sequence));
        totals
    }

    pub(crate) fn pages_by_state(&self) -> PagesByState {
        let slab = self.scheduler.slab.borrow();
        let (free, cached) = (slab.pool().n_free(), self.scheduler.prefix_cache().n_evictable(slab.pool()));
        PagesByState { free, cached, used: slab.pool().n_pages().saturating_sub(free + cached) }
    }

    pub(crate) fn submit(&mut self, prompt: Vec<u32>, max_new_tokens: usize) -> Result<SequenceId, ScheduleError> {
        self.scheduler.submit(prompt, max_new_tokens)
    }

    pub(super) fn skip_lookup(&mut self, id: SequenceId) {
        self.scheduler.skip_lookup(id);
    }

    /// An id for a sequence that arrives now, and that [`submit_fork`](Self::submit_fork) brings later.
    pub(super) fn reserve_id(&mut self) -> SequenceId {
        self.scheduler.next_id += 1;
        SequenceId(self.scheduler.next_id - 1)
    }

    /// Adds a sequence that arrived when its id [was reserved](Self::reserve_id). It runs at once, under the conditions
    /// of `admit`, with a fork of another sequence's cache or with what the prefix cache holds. Later arrivals make way
    /// for it, the newest first. If it doesn't fit even so, it waits before all of them, and lets go of the fork.
    ///
    /// # Errors
    /// [`ScheduleError::Cache`] if the prefix cache fails.
    pub(super) fn submit_fork(&mut self, mut sequence: Sequence, fork: Option<ForkCache>) -> Result<(), ScheduleError> {
        if let Some(fork) = &fork {
            sequence.counters.forked_tokens = fork.len();
        }
        let cache = match fork {
            Some(fork) => fork,
            None => ForkCache::with_prefix(
                &self.scheduler.slab,
                &mut *self.scheduler.prefix_cache,
                sequence.lookup_tokens(),
            )?,
        };
        while !self.fits(&sequence, &cache)
            && let Some(mut newest) = self.scheduler.running.pop_if(|running| running.sequence.id > sequence.id)
        {
            newest.sequence.counters.preemptions += 1;
            self.scheduler.waiting.push_front(newest.sequence);
        }
        if self.fits(&sequence, &cache) {
            let index = self.scheduler.running.partition_point(|running| running.sequence.id < sequence.id);
            let running = match sequence.counters.forked_tokens {
                0 => Running::start(sequence, cache),
                _ => Running { sequence, cache },
            };
            self.scheduler.running.insert(index, running);
        } else {
            sequence.counters.forked_tokens = 0;
            let index = self.scheduler.waiting.partition_point(|waiting| waiting.id < sequence.id);
            self.scheduler.waiting.insert(index, sequence);
        }
        Ok(())
    }

    /// Whether it may run now: none that arrived earlier waits, and it finds the pages that it needs beyond its fork's.
    fn fits(&self, sequence: &Sequence, fork: &ForkCache) -> bool {
        let others = self.scheduler.running().map(|(sequence, table)| pages_needed(sequence, table));
        let needed = pages_needed(sequence, fork.table()) + others.sum::<usize>();
        let is_next = self.scheduler.waiting.front().is_none_or(|first| first.id > sequence.id);
        is_next
            && self.scheduler.running.len() < self.scheduler.limits.max_running
            && needed <= available_pages(&*self.scheduler.prefix_cache, &self.scheduler.slab)
    }

    /// Takes back the newest `n` tokens that a running sequence generated, and their rows. Returns those that are left.
    ///
    /// # Errors
    /// [`ScheduleError::UnknownSequence`] if none such runs, [`ScheduleError::Cache`] if it has generated fewer.
    pub(super) fn rewind(&mut self, id: SequenceId, n: usize) -> Result<&[u32], ScheduleError> {
        let running = self.scheduler.running.iter_mut().find(|running| running.sequence.id == id);
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

    pub(super) fn cancel(&mut self, id: SequenceId) -> Result<(), ScheduleError> {
        self.scheduler.cancel(id)?;
        // The steps that have computed part of its prompt were not idle after all.
        self.idle_steps = 0;
        Ok(())
    }

    /// Plans a step. `unfinished`: sequences that the scheduler should have. The plan is empty only if there are none.
    pub(crate) fn plan(&mut self, unfinished: usize) -> Result<Vec<ScheduledChunk>, EngineError> {
        let plan = self.scheduler.plan().map_err(EngineError::from_step)?;
        if plan.is_empty() {
            let (waiting, running) = (self.scheduler.waiting().count(), self.scheduler.running().count());
            return match unfinished {
                0 => Ok(plan),
                expected => Err(EngineError::EmptyPlan { expected, waiting, running }),
            };
        }
        let mut inputs = self.scheduler.inputs().into_iter().map(|input| input.chunk);
        if let Some(chunk) = plan.iter().find(|chunk| inputs.next() != Some(**chunk)) {
            return Err(EngineError::NotAmongInputs(chunk.sequence_id));
        }
        self.totals.steps += 1;
        self.totals.computed_tokens += plan.iter().map(|chunk| chunk.n_tokens as u64).sum::<u64>();
        self.totals.peak_sequences = self.totals.peak_sequences.max(plan.len());
        self.totals.peak_pages = self.totals.peak_pages.max(self.pages_by_state().used);
        Ok(plan)
    }

    pub(super) fn inputs(&mut self) -> Vec<ChunkInput<'_>> {
        self.scheduler.inputs()
    }

    /// Counts tokens that were computed beside those of the plan.
    pub(super) fn count_computed(&mut self, n: usize) {
        self.totals.computed_tokens += n as u64;
    }

    /// Counts tokens that sequences chose beside those that [`settle`](Self::settle) is handed.
    pub(super) fn count_new(&mut self, n: usize) {
        self.totals.new_tokens += n as u64;
    }

    /// Ends a step with the tokens that the plan asks for. The sequences of `ends` finish, some of them without one.
    ///
    /// # Errors
    /// [`EngineError::NoProgress`] after a run of steps without a new token that is longer than any sequence needs. The
    /// oldest sequence computes at least one of its tokens in every step, so it gets a new one after at most as many
    /// steps as it has tokens.
    pub(crate) fn settle(
        &mut self,
        tokens: &[NextToken],
        ends: &[(SequenceId, FinishReason)],
    ) -> Result<(), EngineError> {
        for (id, _) in ends.iter().filter(|(id, _)| tokens.iter().all(|next| next.sequence_id != *id)) {
            self.scheduler.planned.expect_no_token(*id);
        }
        let settled = self.scheduler.settle(tokens);
        let ended = settled.and_then(|()| ends.iter().try_for_each(|(id, reason)| self.finish(*id, *reason)));
        ended.map_err(EngineError::from_step)?;
        self.totals.new_tokens += tokens.len() as u64;
        self.idle_steps = if tokens.is_empty() && ends.is_empty() { self.idle_steps + 1 } else { 0 };
        let waiting = self.scheduler.waiting().next().map_or(0, |sequence| sequence.tokens.len());
        let running = self.scheduler.running().map(|(sequence, _)| sequence.tokens.len());
        let tokens = running.fold(waiting, usize::max);
        if self.idle_steps > tokens {
            return Err(EngineError::NoProgress { steps: self.idle_steps, tokens });
        }
        Ok(())
    }

    /// Ends a sequence for this reason. If it has finished just now, only the reason changes.
    fn finish(&mut self, id: SequenceId, reason: FinishReason) -> Result<(), ScheduleError> {
        if self.scheduler.finished.iter().all(|finished| finished.sequence.id != id) {
            self.scheduler.cancel(id)?;
        }
        let finished = self.scheduler.finished.iter_mut().rfind(|finished| finished.sequence.id == id);
        finished.ok_or(ScheduleError::UnknownSequence(id))?.reason = reason;
        Ok(())
    }

    pub(crate) fn take_finished(&mut self) -> Vec<Finished> {
        let finished = self.scheduler.take_finished();
        finished.iter().for_each(|finished| self.totals.add(&finished.sequence));
        finished
    }
}
