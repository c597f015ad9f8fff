//! What the world asks of a scheduler.

use crate::chapters::ch05_page_table::PageTable;
use crate::chapters::ch06_paged::SharedSlab;
use crate::chapters::ch12_scheduler::Scheduler;
use crate::prefixes::Prefixes;
use crate::serving::schedule::{
    ChunkInput, Finished, NextToken, ScheduleError, ScheduledChunk, Sequence, SequenceId, StepLimits,
};

use super::{END_OF_TEXT, SeenSequence};

/// A scheduler that a [`World`](super::World) can ask. The calls are those of chapter 12.
pub trait TestedScheduler {
    /// Accepts a request.
    fn submit(&mut self, prompt: Vec<u32>, max_new_tokens: usize) -> Result<SequenceId, ScheduleError>;

    /// Finishes a sequence.
    fn cancel(&mut self, id: SequenceId) -> Result<(), ScheduleError>;

    /// The chunks of the next step. Room for their tokens is made.
    fn plan(&mut self) -> Result<Vec<ScheduledChunk>, ScheduleError>;

    /// What there is to compute.
    fn inputs(&mut self) -> Vec<ChunkInput<'_>>;

    /// The step is computed.
    fn settle(&mut self, next: &[NextToken]) -> Result<(), ScheduleError>;

    /// The running sequences.
    fn running(&self) -> Vec<SeenSequence>;

    /// The waiting sequences.
    fn waiting(&self) -> Vec<SeenSequence>;

    /// The sequences that have finished since the last call.
    fn take_finished(&mut self) -> Vec<Finished>;

    /// The prefix cache.
    fn prefixes(&self) -> &dyn Prefixes;
}

/// Makes a scheduler for a world's slab, prefix cache and limits.
pub type Make<'a> =
    dyn Fn(&SharedSlab, Box<dyn Prefixes>, StepLimits) -> Result<Box<dyn TestedScheduler>, ScheduleError> + 'a;

/// The scheduler of chapter 12: yours, or the reference.
pub fn chapter_12(
    slab: &SharedSlab,
    prefixes: Box<dyn Prefixes>,
    limits: StepLimits,
) -> Result<Box<dyn TestedScheduler>, ScheduleError> {
    Ok(Box::new(Scheduler::new(slab, prefixes, limits, &[END_OF_TEXT])?))
}

/// A sequence that has no pages.
pub(super) fn seen(sequence: &Sequence) -> SeenSequence {
    SeenSequence {
        id: sequence.id,
        n_prompt: sequence.n_prompt,
        n_tokens: sequence.tokens.len(),
        max_new_tokens: sequence.max_new_tokens,
        held: 0,
        pages: Vec::new(),
        counters: sequence.counters,
    }
}

impl TestedScheduler for Scheduler {
    fn submit(&mut self, prompt: Vec<u32>, max_new_tokens: usize) -> Result<SequenceId, ScheduleError> {
        Scheduler::submit(self, prompt, max_new_tokens)
    }

    fn cancel(&mut self, id: SequenceId) -> Result<(), ScheduleError> {
        Scheduler::cancel(self, id)
    }

    fn plan(&mut self) -> Result<Vec<ScheduledChunk>, ScheduleError> {
        Scheduler::plan(self)
    }

    fn inputs(&mut self) -> Vec<ChunkInput<'_>> {
        Scheduler::inputs(self)
    }

    fn settle(&mut self, next: &[NextToken]) -> Result<(), ScheduleError> {
        Scheduler::settle(self, next)
    }

    fn running(&self) -> Vec<SeenSequence> {
        let pages = |table: &PageTable| table.pages().to_vec();
        let running = Scheduler::running(self);
        running
            .map(|(sequence, table)| SeenSequence { held: table.len(), pages: pages(table), ..seen(sequence) })
            .collect()
    }

    fn waiting(&self) -> Vec<SeenSequence> {
        Scheduler::waiting(self).map(seen).collect()
    }

    fn take_finished(&mut self) -> Vec<Finished> {
        Scheduler::take_finished(self)
    }

    fn prefixes(&self) -> &dyn Prefixes {
        Scheduler::prefixes(self)
    }
}
