//! Drives the scheduler: the caller calls [`plan`](Steps::plan), computes with the model or only counts, and calls
//! [`settle`](Steps::settle). This type counts each step and returns an error for a plan that makes no progress.

use std::collections::HashMap;

use serde::Serialize;

use super::ServingError;
use crate::cache::{KvCache, Usage};
use crate::chapters::ch06_paged::SharedSlab;
use crate::chapters::ch10_fork::ForkCache;
use crate::chapters::ch12_scheduler::Scheduler;
use crate::prefixes::{Prefixes, available_pages};
use crate::serving::schedule::{
    ChunkInput, FinishReason, Finished, NextToken, ScheduleError, ScheduledChunk, Sequence, SequenceCounters,
    SequenceId, StepLimits,
};

/// A scheduler, and what its sequences have cost.
pub(crate) struct Steps {
    slab: SharedSlab,
    pub(crate) scheduler: Scheduler,
    /// The sequences that have not finished.
    unfinished: HashMap<SequenceId, Tracked>,
    /// What was counted of the steps, and of the sequences that have finished.
    pub(crate) counted: Totals,
    /// Steps since a sequence last got a token or finished.
    idle_steps: usize,
}

/// What was done since the first sequence came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Passes of the model that a plan asked for.
    pub steps: u64,
    /// Tokens that went through the model.
    pub rows_projected: u64,
    /// Of these, tokens that were computed a second time after a preemption.
    #[serde(rename = "recomputed_tokens")]
    pub recomputed: u64,
    /// New tokens.
    pub new_tokens: u64,
    /// Sequences that lost their pages to an older one and waited again.
    pub preemptions: u64,
    /// Tokens of the prompts of all sequences that have run. A prompt that was forked is one of the first sample alone.
    pub prompt_tokens: u64,
    /// Of these, tokens that were looked up in the prefix cache: those of a prompt that is scored are not.
    pub looked_up: u64,
    /// Of these, tokens that the prefix cache held when the sequence first ran.
    #[serde(rename = "cached_tokens")]
    pub cached: u64,
    /// Tokens that it held when a sequence ran again.
    pub cached_again: u64,
    /// Sequences in one pass, at most.
    pub most_sequences: usize,
    /// Pages that sequences had at the same time, at most. A page that only the prefix cache owns is not counted.
    pub peak_pages: usize,
}

impl Totals {
    /// Adds what a sequence has cost.
    fn add(&mut self, sequence: &Sequence) {
        let SequenceCounters { cached, cached_again, computed, preemptions, forked } = sequence.counters;
        self.preemptions += preemptions;
        if computed > 0 {
            let prompt_tokens = (sequence.n_prompt - forked) as u64;
            self.prompt_tokens += prompt_tokens;
            self.looked_up += if sequence.skips_prefix_cache { 0 } else { prompt_tokens };
            self.cached += cached as u64;
        }
        self.cached_again += cached_again as u64;
    }
}

/// What a sequence holds, and what it has lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceStats {
    /// Its cache after the newest step. The copies in a cache that it lost when it was preempted count.
    pub usage: Usage,
    /// Pages of its table after the newest step.
    pub pages: usize,
    /// Tokens that were computed a second time after a preemption.
    pub recomputed: u64,
}

/// What a sequence holds, as far as the newest step knows.
#[derive(Default)]
struct Tracked {
    held: SequenceStats,
    /// Tokens that it has had rows of at the same time, at most.
    most_rows: usize,
    /// Rows copied in caches that it has lost.
    copied_before: u64,
}

impl Tracked {
    /// The sequence computes its next `n` tokens, for which `cache` has room. Returns how many of them it had computed before.
    fn compute(&mut self, n: usize, cache: &ForkCache) -> u64 {
        let (usage, rows) = (cache.usage(), cache.len());
        // What the prefix cache has brought, it has had as well.
        let recomputed = self.most_rows.min(rows).saturating_sub(rows - n) as u64;
        if rows - n < self.held.usage.tokens {
            self.copied_before = self.held.usage.rows_copied;
        }
        self.held.usage = Usage { rows_copied: self.copied_before + usage.rows_copied, ..usage };
        self.held.pages = cache.table().pages().len();
        self.held.recomputed += recomputed;
        self.most_rows = self.most_rows.max(rows);
        recomputed
    }
}

impl Steps {
    pub(crate) fn new(
        slab: &SharedSlab,
        prefixes: Box<dyn Prefixes>,
        limits: StepLimits,
        end_of_text: &[u32],
    ) -> Result<Self, ScheduleError> {
        let scheduler = Scheduler::new(slab, prefixes, limits, end_of_text)?;
        let (unfinished, counted) = (HashMap::new(), Totals::default());
        Ok(Steps { slab: slab.clone(), scheduler, unfinished, counted, idle_steps: 0 })
    }

    /// What was done so far.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = self.counted;
        let running = self.scheduler.running().map(|(sequence, _)| sequence);
        running.chain(self.scheduler.waiting()).for_each(|sequence| totals.add(sequence));
        totals
    }

    pub(crate) fn submit(&mut self, prompt: Vec<u32>, max_new_tokens: usize) -> Result<SequenceId, ScheduleError> {
        let id = self.scheduler.submit(prompt, max_new_tokens)?;
        self.unfinished.insert(id, Tracked::default());
        Ok(id)
    }

    /// As [`submit`](Self::submit), without a lookup in the prefix cache.
    pub(crate) fn submit_without_lookup(
        &mut self,
        prompt: Vec<u32>,
        max_new_tokens: usize,
    ) -> Result<SequenceId, ScheduleError> {
        let id = self.scheduler.submit_without_lookup(prompt, max_new_tokens)?;
        self.unfinished.insert(id, Tracked::default());
        Ok(id)
    }

    /// Hands over a sequence that arrived when its id was reserved, with its cache if it has one.
    pub(crate) fn submit_fork(&mut self, sequence: Sequence, fork: Option<ForkCache>) -> Result<(), ScheduleError> {
        self.unfinished.insert(sequence.id, Tracked::default());
        self.scheduler.submit_fork(sequence, fork)
    }

    pub(crate) fn cancel(&mut self, id: SequenceId) -> Result<(), ScheduleError> {
        self.scheduler.cancel(id)?;
        // The steps that have computed part of its prompt were not idle after all.
        self.idle_steps = 0;
        Ok(())
    }

    /// Plans a step. The plan is empty only if all sequences have finished.
    pub(crate) fn plan(&mut self) -> Result<Vec<ScheduledChunk>, ServingError> {
        let plan = self.scheduler.plan().map_err(ServingError::of_step)?;
        let expected = self.unfinished.len();
        if plan.is_empty() {
            let (waiting, running) = (self.scheduler.waiting().count(), self.scheduler.running().count());
            return match expected {
                0 => Ok(plan),
                _ => Err(ServingError::EmptyPlan { expected, waiting, running }),
            };
        }
        let in_use = self.pages_in_use();
        let inputs = self.scheduler.inputs();
        if let Some((chunk, _)) =
            plan.iter().zip(0..).find(|(chunk, i)| inputs.get(*i).map(|it| it.chunk) != Some(**chunk))
        {
            return Err(ServingError::NotAmongInputs(chunk.sequence));
        }
        let totals = &mut self.counted;
        totals.steps += 1;
        totals.most_sequences = totals.most_sequences.max(plan.len());
        totals.peak_pages = totals.peak_pages.max(in_use);
        for ChunkInput { chunk, cache, .. } in inputs {
            totals.rows_projected += chunk.tokens as u64;
            if let Some(tracked) = self.unfinished.get_mut(&chunk.sequence) {
                totals.recomputed += tracked.compute(chunk.tokens, cache);
            }
        }
        Ok(plan)
    }

    /// Pages that sequences have. A page that only the prefix cache owns is not counted.
    pub(crate) fn pages_in_use(&self) -> usize {
        let n_pages = self.slab.borrow().pool().n_pages();
        n_pages.saturating_sub(available_pages(self.scheduler.prefixes(), &self.slab))
    }

    /// Ends a step with the tokens that the plan asks for. The sequences of `ends` finish, some of them without one.
    pub(crate) fn settle(
        &mut self,
        tokens: &[NextToken],
        ends: &[(SequenceId, FinishReason)],
    ) -> Result<(), ServingError> {
        self.scheduler.settle_and_finish(tokens, ends).map_err(ServingError::of_step)?;
        self.idle_steps = if tokens.is_empty() && ends.is_empty() { self.idle_steps + 1 } else { 0 };
        Ok(())
    }

    /// A sequence needs no more steps than it has tokens to get its next one, if it goes on in each. The oldest does.
    pub(crate) fn check_progress(&self) -> Result<(), ServingError> {
        let waiting = self.scheduler.waiting().next().map_or(0, |sequence| sequence.tokens.len());
        let tokens =
            self.scheduler.running().map(|(sequence, _)| sequence.tokens.len()).max().unwrap_or(0).max(waiting);
        if self.idle_steps > tokens {
            return Err(ServingError::NoProgress { steps: self.idle_steps, tokens });
        }
        Ok(())
    }

    /// The sequences that have finished since this was last asked, and what they held at their ends.
    pub(crate) fn take_finished(&mut self) -> Vec<(Finished, SequenceStats)> {
        let with_held = |finished: Finished| {
            self.counted.add(&finished.sequence);
            let tracked = self.unfinished.remove(&finished.sequence.id).unwrap_or_default();
            (finished, tracked.held)
        };
        self.scheduler.take_finished().into_iter().map(with_held).collect()
    }
}
