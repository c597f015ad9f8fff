//! Chapter 12: the scheduler. It decides which sequences the next step computes.
//!
//! The scheduler knows no model: it plans a step, and is handed the tokens that came out.
//!
//! ```text
//!   budget 8       step 1       step 2       step 3       step 4
//!   sequence 0     ████ 4 +     █ 1 +        █ 1 +        █ 1 +     + caught up: its next token
//!   sequence 1     ████ 4       █████ 5 +    █ 1 +        █ 1 +
//!   sequence 2                  ██ 2         ██████ 6 +   preempted
//! ```
//!
//! The oldest sequence comes first and never waits, so it finishes; then a different one is
//! the oldest.
//!
//! Check your work with `cargo test --features solution --test ch12_scheduler`.

use std::collections::VecDeque;

use crate::cache::{CacheError, KvCache};
use crate::chapters::ch05_page_table::PageTable;
use crate::chapters::ch06_paged::SharedSlab;
use crate::chapters::ch10_fork::ForkCache;
use crate::prefixes::{Prefixes, available_pages};
use crate::serving::schedule::*;

/// Pages that a sequence needs beyond those of its `table`, for all of its tokens and the
/// next one, but for no more rows than [it can ever have](Sequence::max_rows).
///
/// Page size 4, 8 tokens, and a table that holds 4 of them: 2 more pages, for 9 rows. With
/// only one new token to come it's 1 page, because that token is never computed.
fn pages_needed(sequence: &Sequence, table: &PageTable) -> usize {
    todo!("ch12 task 2: how many more pages, for its tokens and the next?")
}

/// Shares a slab, a prefix cache and the steps of a model among sequences.
pub struct Scheduler {
    slab: SharedSlab,
    prefixes: Box<dyn Prefixes>,
    limits: StepLimits,
    end_of_text: Vec<u32>,
    next_id: u64,
    /// In order of arrival, and all of them arrived after those that run.
    waiting: VecDeque<Sequence>,
    /// In order of arrival.
    running: Vec<Running>,
    finished: Vec<Finished>,
    planned: Plan,
}

impl Scheduler {
    /// No sequences yet. `prefixes` keeps pages of this slab's pool.
    ///
    /// # Errors
    /// [`ScheduleError::NoStep`] if a limit is 0.
    pub fn new(
        slab: &SharedSlab,
        prefixes: Box<dyn Prefixes>,
        limits: StepLimits,
        end_of_text: &[u32],
    ) -> Result<Self, ScheduleError> {
        limits.check()?;
        let (waiting, running, finished, planned) = Default::default();
        let (slab, end_of_text) = (slab.clone(), end_of_text.to_vec());
        Ok(Scheduler { slab, prefixes, limits, end_of_text, next_id: 0, waiting, running, finished, planned })
    }

    /// The waiting sequences, in the order in which they will run.
    pub fn waiting(&self) -> impl Iterator<Item = &Sequence> {
        self.waiting.iter()
    }

    /// The running sequences, oldest first, with their pages.
    pub fn running(&self) -> impl Iterator<Item = (&Sequence, &PageTable)> {
        self.running.iter().map(|running| (&running.sequence, running.cache.table()))
    }

    /// The sequences that have finished since the last call.
    pub fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    /// The prefix cache.
    pub fn prefixes(&self) -> &dyn Prefixes {
        &*self.prefixes
    }

    /// Adds a request to the end of the queue. One that asks for no new token finishes at once
    /// with [`FinishReason::Limit`], whatever its length, because it takes no page.
    ///
    /// 3 pages of 4: a prompt of 6 tokens with 7 new ones fits in 12 slots. With 8 new ones it
    /// would need 4 pages and is rejected.
    ///
    /// # Errors
    /// [`ScheduleError::NoPrompt`], even if no new token is asked for, and
    /// [`ScheduleError::NeverFits`] if the whole pool is too small. Neither uses up a number.
    pub fn submit(&mut self, prompt: Vec<u32>, max_new_tokens: usize) -> Result<SequenceId, ScheduleError> {
        todo!("ch12 task 1: queue the request, or reject what can never fit")
    }

    /// The chunks of the next step, oldest sequence first, with room made for their tokens.
    ///
    /// Each running sequence computes all that it has left, as far as the budget goes and
    /// `make_room` finds room. While budget is left, `admit` starts waiting sequences, which
    /// compute too. With no sequences, the plan is empty.
    ///
    /// Budget 8. Two sequences have 1 token left to compute, and one with 13 waits: the plan
    /// is 1, 1 and 6. The next step is the same again, and then 1, 1 and 1, which catches up.
    ///
    /// # Errors
    /// [`ScheduleError::NotSettled`] if the last plan isn't settled yet.
    /// [`ScheduleError::Cache`] if a cache fails for a reason other than a lack of pages.
    pub fn plan(&mut self) -> Result<Vec<ScheduledChunk>, ScheduleError> {
        todo!("ch12 task 2: which sequences compute how many tokens in this step?")
    }

    /// Makes room for `n` more tokens of the sequence at `place`: evicts the pages that are
    /// missing and no more and, if that isn't enough, preempts the newest sequence, again and
    /// again. False if that was this sequence itself in the end.
    fn make_room(&mut self, place: usize, n: usize) -> Result<bool, CacheError> {
        // Enough while there are pages.
        if self.running[place].cache.extend(n).is_ok() {
            return Ok(true);
        }
        todo!("ch12 task 4: evict, then preempt, until the tokens have room")
    }

    /// Sends the newest running sequence back to the head of the queue. It keeps its tokens
    /// and returns its pages.
    fn preempt(&mut self) {
        todo!("ch12 task 4: send the newest back to the queue")
    }

    /// [Starts](Running::start) the first waiting sequence if one more is allowed to run, and
    /// if the [pages that it needs](pages_needed) and those that all running sequences need
    /// are available together. Returns whether it did.
    ///
    /// The sequence begins with the pages that the prefix cache holds for it, and while it has
    /// them they aren't available. If it doesn't fit, it keeps none of them, and no later
    /// arrival overtakes it.
    fn admit(&mut self) -> Result<bool, CacheError> {
        todo!("ch12 task 2: can the first of the queue start?")
    }

    /// What the model has to compute: the chunks of the plan, in its order.
    pub fn inputs(&mut self) -> Vec<ChunkInput<'_>> {
        self.planned.inputs(&mut self.running)
    }

    /// The step is computed. `next` holds the next token of each sequence that has
    /// [caught up](ScheduledChunk::caught_up), in the order of the plan.
    ///
    /// After every chunk, full pages go to the prefix cache. A sequence that finishes gives
    /// its pages back before this returns, and finishing happens in the plan's order.
    ///
    /// # Errors
    /// [`ScheduleError::WrongTokens`] if a token is missing, is one too many, or is out of
    /// order; then nothing has changed, and the plan is still waiting for its tokens.
    /// [`ScheduleError::Cache`] if the prefix cache refuses a page.
    pub fn settle(&mut self, next: &[NextToken]) -> Result<(), ScheduleError> {
        todo!("ch12 task 3: cache the full pages, hand out the next tokens")
    }

    /// Adds a token to the sequence at `place`. Returns why the sequence finishes with it, if
    /// it does; an end of text isn't added, and counts before the limit.
    fn append(&mut self, place: usize, token: u32) -> Option<FinishReason> {
        todo!("ch12 task 3: add the token; does the sequence finish with it?")
    }

    /// Where a sequence is among those that run.
    fn place(&self, id: SequenceId) -> Result<usize, ScheduleError> {
        let place = self.running.iter().position(|running| running.sequence.id == id);
        place.ok_or(ScheduleError::UnknownSequence(id))
    }

    /// Finishes a sequence that waits or runs. Its pages are free before this returns.
    ///
    /// # Errors
    /// [`ScheduleError::NotSettled`] between plan and settle, whichever sequence it is.
    /// Otherwise [`ScheduleError::UnknownSequence`] if the sequence has finished or never came.
    pub fn cancel(&mut self, id: SequenceId) -> Result<(), ScheduleError> {
        todo!("ch12 task 3: finish a sequence wherever it is")
    }
}
