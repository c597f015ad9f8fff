//! A scheduler whose plans are checked and counted. The caller calls [`plan`](CountingScheduler::plan), computes with
//! the model or only counts, and calls [`settle`](CountingScheduler::settle). A plan that makes no progress is an error.

use serde::Serialize;

use super::EngineError;
use crate::chapters::ch06_paged::SharedSlab;
use crate::chapters::ch12_scheduler::Scheduler;
use crate::prefix_cache::{PrefixCache, available_pages};
use crate::serving::schedule::{
    FinishReason, Finished, NextToken, ScheduleError, ScheduledChunk, Sequence, SequenceId, StepLimits,
};

/// A scheduler, and what its sequences have cost.
pub(crate) struct CountingScheduler {
    /// For calls that need no check: those that submit and those that read.
    pub(crate) inner: Scheduler,
    /// Counts the steps and the finished sequences; [`totals`](Self::totals) adds the others.
    pub(crate) totals: EngineTotals,
    /// Steps since a sequence last got a token or finished.
    idle_steps: usize,
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

impl CountingScheduler {
    pub(crate) fn new(
        slab: &SharedSlab,
        prefix_cache: Box<dyn PrefixCache>,
        limits: StepLimits,
    ) -> Result<Self, ScheduleError> {
        // No token ends a sequence by itself: whoever computes says when it ends.
        let inner = Scheduler::new(slab, prefix_cache, limits, &[])?;
        Ok(CountingScheduler { inner, totals: EngineTotals::default(), idle_steps: 0 })
    }

    pub(crate) fn totals(&self) -> EngineTotals {
        let mut totals = self.totals;
        let running = self.inner.running().map(|(sequence, _)| sequence);
        running.chain(self.inner.waiting()).for_each(|sequence| totals.add(sequence));
        totals
    }

    pub(crate) fn cancel(&mut self, id: SequenceId) -> Result<(), ScheduleError> {
        self.inner.cancel(id)?;
        // The steps that have computed part of its prompt were not idle after all.
        self.idle_steps = 0;
        Ok(())
    }

    /// Plans a step. `unfinished`: sequences that the scheduler should have. The plan is empty only if there are none.
    pub(crate) fn plan(&mut self, unfinished: usize) -> Result<Vec<ScheduledChunk>, EngineError> {
        let plan = self.inner.plan().map_err(EngineError::from_step)?;
        if plan.is_empty() {
            let (waiting, running) = (self.inner.waiting().count(), self.inner.running().count());
            return match unfinished {
                0 => Ok(plan),
                expected => Err(EngineError::EmptyPlan { expected, waiting, running }),
            };
        }
        let mut inputs = self.inner.inputs().into_iter().map(|input| input.chunk);
        if let Some(chunk) = plan.iter().find(|chunk| inputs.next() != Some(**chunk)) {
            return Err(EngineError::NotAmongInputs(chunk.sequence_id));
        }
        self.totals.steps += 1;
        self.totals.computed_tokens += plan.iter().map(|chunk| chunk.n_tokens as u64).sum::<u64>();
        self.totals.peak_sequences = self.totals.peak_sequences.max(plan.len());
        self.totals.peak_pages = self.totals.peak_pages.max(self.pages_in_use());
        Ok(plan)
    }

    /// Pages that sequences have. A page that only the prefix cache owns is not counted.
    pub(crate) fn pages_in_use(&self) -> usize {
        let n_pages = self.inner.slab.borrow().pool().n_pages();
        n_pages.saturating_sub(available_pages(self.inner.prefix_cache(), &self.inner.slab))
    }

    /// Ends a step with the tokens that the plan asks for. The sequences of `ends` finish, some of them without one.
    pub(crate) fn settle(
        &mut self,
        tokens: &[NextToken],
        ends: &[(SequenceId, FinishReason)],
    ) -> Result<(), EngineError> {
        for (id, _) in ends.iter().filter(|(id, _)| tokens.iter().all(|next| next.sequence_id != *id)) {
            self.inner.planned.expect_no_token(*id);
        }
        let settled = self.inner.settle(tokens);
        let ended = settled.and_then(|()| ends.iter().try_for_each(|(id, reason)| self.inner.finish(*id, *reason)));
        ended.map_err(EngineError::from_step)?;
        self.idle_steps = if tokens.is_empty() && ends.is_empty() { self.idle_steps + 1 } else { 0 };
        Ok(())
    }

    /// Refuses a run of steps without a new token that is longer than any sequence needs. The oldest sequence computes
    /// at least one of its tokens in every step, so it gets a new one after at most as many steps as it has tokens.
    pub(crate) fn check_progress(&self) -> Result<(), EngineError> {
        let waiting = self.inner.waiting().next().map_or(0, |sequence| sequence.tokens.len());
        let tokens = self.inner.running().map(|(sequence, _)| sequence.tokens.len()).max().unwrap_or(0).max(waiting);
        if self.idle_steps > tokens {
            return Err(EngineError::NoProgress { steps: self.idle_steps, tokens });
        }
        Ok(())
    }

    pub(crate) fn take_finished(&mut self) -> Vec<Finished> {
        let finished = self.inner.take_finished();
        finished.iter().for_each(|finished| self.totals.add(&finished.sequence));
        finished
    }
}
