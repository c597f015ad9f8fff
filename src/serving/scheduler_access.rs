//! What chapter 12's scheduler is given: how others look at it, and requests that look nothing up.

use super::schedule::{ChunkInput, Finished, Sequence, SequenceId};
use crate::chapters::ch05_page_table::PageTable;
use crate::chapters::ch12_scheduler::Scheduler;
use crate::prefix_cache::PrefixCache;

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

    /// The prompt of the request that was submitted last is computed from its first token on, whatever the prefix cache
    /// holds.
    pub fn skip_lookup(&mut self, id: SequenceId) {
        if let Some(sequence) = self.waiting.back_mut().filter(|sequence| sequence.id == id) {
            sequence.skips_prefix_cache = true;
        }
    }
}
