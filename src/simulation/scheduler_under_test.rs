//! What the world asks of a scheduler.

use crate::chapters::ch05_page_table::PageTable;
use crate::chapters::ch06_paged::SharedSlab;
use crate::chapters::ch12_scheduler::Scheduler;
use crate::prefix_cache::PrefixCache;
use crate::serving::schedule::{NextToken, ScheduleError, ScheduledChunk, Sequence, SequenceId, StepLimits};

use super::{END_OF_TEXT, SequenceState};

/// A scheduler that a [`World`](super::World) can ask. What it decides over, its sequences, their caches and the prefix
/// cache, lies as in chapter 12. The calls that decide are chapter 12's too, or its own.
pub trait SchedulerUnderTest {
    fn submit(&mut self, prompt: Vec<u32>, max_new_tokens: usize) -> Result<SequenceId, ScheduleError> {
        self.as_scheduler_mut().submit(prompt, max_new_tokens)
    }

    fn cancel(&mut self, id: SequenceId) -> Result<(), ScheduleError> {
        self.as_scheduler_mut().cancel(id)
    }

    /// The chunks of the next step. Room for their tokens is made.
    fn plan(&mut self) -> Result<Vec<ScheduledChunk>, ScheduleError> {
        self.as_scheduler_mut().plan()
    }

    fn settle(&mut self, next: &[NextToken]) -> Result<(), ScheduleError> {
        self.as_scheduler_mut().settle(next)
    }

    /// The sequences, their caches and the prefix cache.
    fn as_scheduler(&self) -> &Scheduler;

    /// As [`as_scheduler`](Self::as_scheduler), to compute with and to take finished sequences from.
    fn as_scheduler_mut(&mut self) -> &mut Scheduler;

    fn running(&self) -> Vec<SequenceState> {
        let state = |(sequence, table): (&Sequence, &PageTable)| SequenceState {
            n_held: table.len(),
            pages: table.pages().to_vec(),
            ..without_pages(sequence)
        };
        self.as_scheduler().running().map(state).collect()
    }
}

/// Makes a scheduler for a world's slab, prefix cache and limits.
pub type SchedulerFactory<'a> =
    dyn Fn(&SharedSlab, Box<dyn PrefixCache>, StepLimits) -> Result<Box<dyn SchedulerUnderTest>, ScheduleError> + 'a;

/// The scheduler of chapter 12: yours, or the reference.
pub fn new_scheduler(
    slab: &SharedSlab,
    prefix_cache: Box<dyn PrefixCache>,
    limits: StepLimits,
) -> Result<Box<dyn SchedulerUnderTest>, ScheduleError> {
    Ok(Box::new(Scheduler::new(slab, prefix_cache, limits, &[END_OF_TEXT])?))
}

pub(super) fn without_pages(sequence: &Sequence) -> SequenceState {
    SequenceState {
        id: sequence.id,
        n_prompt: sequence.n_prompt,
        n_tokens: sequence.tokens.len(),
        max_new_tokens: sequence.max_new_tokens,
        n_held: 0,
        pages: Vec::new(),
        counters: sequence.counters,
    }
}

impl SchedulerUnderTest for Scheduler {
    fn as_scheduler(&self) -> &Scheduler {
        self
    }

    fn as_scheduler_mut(&mut self) -> &mut Scheduler {
        self
    }
}
