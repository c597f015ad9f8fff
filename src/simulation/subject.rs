//! What the world asks of a scheduler.

use crate::chapters::ch06_paged::SharedSlab;
use crate::chapters::ch12_scheduler::{Finished, Reading, Scheduler, Text};
use crate::prefixes::Prefixes;
use crate::schedule::{Pick, ScheduleError, StepLimits, TextId, Turn};

use super::{END_OF_TEXT, SeenText};

/// A scheduler that a [`World`](super::World) can ask. The calls are those of chapter 12.
pub trait Subject {
    /// Takes a text in.
    ///
    /// # Errors
    /// [`ScheduleError::NeverFits`] if the pool is too small for it.
    fn submit(&mut self, prompt: Vec<u32>, max_new_tokens: usize) -> Result<TextId, ScheduleError>;

    /// Ends a text.
    ///
    /// # Errors
    /// [`ScheduleError`], if it is not there.
    fn cancel(&mut self, id: TextId) -> Result<(), ScheduleError>;

    /// The turns of the next step. Room for their tokens is made.
    ///
    /// # Errors
    /// [`ScheduleError`]: there should be none.
    fn plan(&mut self) -> Result<Vec<Turn>, ScheduleError>;

    /// What there is to read.
    fn readings(&mut self) -> Vec<Reading<'_>>;

    /// The step is computed.
    ///
    /// # Errors
    /// [`ScheduleError`]: there should be none.
    fn settle(&mut self, picks: &[Pick]) -> Result<(), ScheduleError>;

    /// The texts that run.
    fn running(&self) -> Vec<SeenText>;

    /// The texts that wait.
    fn waiting(&self) -> Vec<SeenText>;

    /// The texts that have ended since this was last asked.
    fn take_finished(&mut self) -> Vec<Finished>;

    /// The prefix cache.
    fn prefixes(&self) -> &dyn Prefixes;
}

/// Makes a scheduler for a world's slab, prefix cache and limits.
pub type Make<'a> = dyn Fn(&SharedSlab, Box<dyn Prefixes>, StepLimits) -> Result<Box<dyn Subject>, ScheduleError> + 'a;

/// The scheduler of chapter 12: yours, or the reference.
///
/// # Errors
/// [`ScheduleError::NoStep`].
pub fn chapter_12(
    slab: &SharedSlab,
    prefixes: Box<dyn Prefixes>,
    limits: StepLimits,
) -> Result<Box<dyn Subject>, ScheduleError> {
    Ok(Box::new(Scheduler::new(slab, prefixes, limits, &[END_OF_TEXT])?))
}

/// A text of chapter 12 that has no pages.
pub(super) fn seen(text: &Text) -> SeenText {
    SeenText {
        id: text.id,
        n_prompt: text.n_prompt,
        n_tokens: text.tokens.len(),
        max_new_tokens: text.max_new_tokens,
        held: 0,
        pages: Vec::new(),
    }
}

impl Subject for Scheduler {
    fn submit(&mut self, prompt: Vec<u32>, max_new_tokens: usize) -> Result<TextId, ScheduleError> {
        Scheduler::submit(self, prompt, max_new_tokens)
    }

    fn cancel(&mut self, id: TextId) -> Result<(), ScheduleError> {
        Scheduler::cancel(self, id)
    }

    fn plan(&mut self) -> Result<Vec<Turn>, ScheduleError> {
        Scheduler::plan(self)
    }

    fn readings(&mut self) -> Vec<Reading<'_>> {
        Scheduler::readings(self)
    }

    fn settle(&mut self, picks: &[Pick]) -> Result<(), ScheduleError> {
        Scheduler::settle(self, picks)
    }

    fn running(&self) -> Vec<SeenText> {
        let running = Scheduler::running(self);
        running
            .map(|(text, table)| SeenText { held: table.len(), pages: table.pages().to_vec(), ..seen(text) })
            .collect()
    }

    fn waiting(&self) -> Vec<SeenText> {
        Scheduler::waiting(self).map(seen).collect()
    }

    fn take_finished(&mut self) -> Vec<Finished> {
        Scheduler::take_finished(self)
    }

    fn prefixes(&self) -> &dyn Prefixes {
        Scheduler::prefixes(self)
    }
}
