//! Chapter 12: the scheduler. It decides which sequences the next step computes.
//!
//! The scheduler knows no model. It plans a step, and receives the tokens that the step produced.
//!
//! ```text
//!   budget 8       step 1       step 2       step 3       step 4
//!   sequence 0     ████ 4 +     █ 1 +        █ 1 +        █ 1 +     + caught up: its next token
//!   sequence 1     ████ 4       █████ 5 +    █ 1 +        █ 1 +
//!   sequence 2                  ██ 2         ██████ 6 +   preempted
//! ```
//!
//! The oldest sequence comes first and never waits, so it finishes. Then the next one is the
//! oldest.
//!
//! Check your work with `cargo test --features solution --test ch12_scheduler`.

use std::collections::VecDeque;

use crate::cache::{CacheError, KvCache};
use crate::chapters::ch05_page_table::PageTable;
use crate::chapters::ch06_paged::SharedSlab;
use crate::chapters::ch10_fork::ForkCache;
use crate::prefix_cache::{PrefixCache, available_pages};
use crate::serving::schedule::*;

/// Returns how many pages a sequence needs beyond those of its `table`, so that all of its tokens
/// and the next one have slots, but never for more rows than [it can have](Sequence::max_rows).
///
/// With `page_size` 4, 8 tokens and a table that holds 4 of them, it needs 2 more pages for 9
/// rows. With only one new token to come it needs 1, because that token is never computed.
pub(crate) fn pages_needed(sequence: &Sequence, table: &PageTable) -> usize {
    todo!("ch12 task 2: how many more pages, for its tokens and the next?")
}

/// Shares a slab, a prefix cache and the steps of a model among sequences. What else can be asked
/// of it is given, in `src/serving/scheduler_access.rs`.
pub struct Scheduler {
    pub(crate) slab: SharedSlab,
    pub(crate) prefix_cache: Box<dyn PrefixCache>,
    pub(crate) limits: StepLimits,
    end_of_text: Vec<u32>,
    pub(crate) next_id: u64,
    /// In order of arrival. All of them arrived after those that run.
    pub(crate) waiting: VecDeque<Sequence>,
    /// In order of arrival.
    pub(crate) running: Vec<Running>,
    pub(crate) finished: Vec<Finished>,
    pub(crate) planned: Plan,
}

impl Scheduler {
    /// No sequences yet. `prefix_cache` keeps pages of this slab's pool.
    ///
    /// # Errors
    /// [`ScheduleError::NoStep`] if a limit is 0.
    pub fn new(
        slab: &SharedSlab,
        prefix_cache: Box<dyn PrefixCache>,
        limits: StepLimits,
        end_of_text: &[u32],
    ) -> Result<Self, ScheduleError> {
        limits.validate()?;
        let (waiting, running, finished) = (VecDeque::new(), Vec::new(), Vec::new());
        let (slab, end_of_text, planned) = (slab.clone(), end_of_text.to_vec(), Plan::default());
        Ok(Scheduler { slab, prefix_cache, limits, end_of_text, next_id: 0, waiting, running, finished, planned })
    }

    /// Adds a request to the end of the queue. A request for no new token finishes at once with
    /// [`FinishReason::Length`], however long its prompt is, because it takes no page.
    ///
    /// In a pool of 3 pages of 4 slots, a prompt of 6 tokens with 7 new ones needs 12 slots and
    /// fits. With 8 new ones it would need a fourth page and is rejected.
    ///
    /// # Errors
    /// [`ScheduleError::NoPrompt`], even if no new token is asked for, and
    /// [`ScheduleError::NeverFits`] if the whole pool is too small. Neither uses up an id.
    pub fn submit(&mut self, prompt: Vec<u32>, max_new_tokens: usize) -> Result<SequenceId, ScheduleError> {
        todo!("ch12 task 1: queue the request, or reject what can never fit")
    }

    /// Plans the next step. Returns its chunks, oldest sequence first, with room made for their
    /// tokens.
    ///
    /// Each running sequence computes all the tokens that it has left, as far as the budget goes
    /// and `make_room` finds room. While budget is left, `admit` starts waiting sequences, which
    /// join the same plan. Without sequences, the plan is empty.
    ///
    /// Suppose the budget is 8, two sequences have 1 token left to compute, and one with 13
    /// waits. This plan and the next are 1, 1 and 6. The third is 1, 1 and 1, and the last
    /// sequence has caught up.
    ///
    /// # Errors
    /// [`ScheduleError::NotSettled`] if the last plan isn't settled yet.
    /// [`ScheduleError::Cache`] if a cache fails for a reason other than a lack of pages.
    pub fn plan(&mut self) -> Result<Vec<ScheduledChunk>, ScheduleError> {
        todo!("ch12 task 2: which sequences compute how many tokens in this step?")
    }

    /// Makes room for `n` more tokens of the sequence at `index`. If pages are missing, it evicts
    /// that many and no more. If the prefix cache has too few, it preempts the newest sequence
    /// and tries again. Returns false if the sequence preempted in the end was this one.
    fn make_room(&mut self, index: usize, n: usize) -> Result<bool, CacheError> {
        // Enough until task 5, which replaces these lines.
        if self.running[index].cache.extend(n).is_ok() {
            return Ok(true);
        }
        todo!("ch12 task 5: evict, then preempt, until the tokens have room")
    }

    /// Sends the newest running sequence back to the head of the queue. It keeps its tokens, gives
    /// its pages back, and counts one more of its `preemptions`.
    fn preempt(&mut self) {
        todo!("ch12 task 5: send the newest back to the queue")
    }

    /// [Starts](Running::start) the first waiting sequence, if one more is allowed to run and if
    /// enough pages are available for it and for all running sequences
    /// ([`pages_needed`] of each). Returns whether it did.
    ///
    /// The sequence begins with the pages that the prefix cache holds for the tokens that it
    /// [looks up](Sequence::lookup_tokens). While it owns them they aren't available. If it doesn't
    /// fit, it keeps none of them, and no later arrival overtakes it.
    fn admit(&mut self) -> Result<bool, CacheError> {
        todo!("ch12 task 2: can the first of the queue start?")
    }

    /// Called when the step is computed. `next` holds the next token of each sequence that has
    /// [caught up](ScheduledChunk::caught_up), in the order of the plan.
    ///
    /// Takes the chunks out of the plan, which is empty afterwards, and gives the full pages of
    /// each to the prefix cache. Sequences that finish do so in the plan's order, and their pages
    /// are back in the pool when this returns.
    ///
    /// # Errors
    /// [`ScheduleError::WrongTokens`] if a token is missing, is one too many, or is out of order.
    /// Nothing has changed then, and the plan still waits for its tokens.
    /// [`ScheduleError::Cache`] if the prefix cache refuses a page.
    pub fn settle(&mut self, next: &[NextToken]) -> Result<(), ScheduleError> {
        todo!("ch12 task 3: cache the full pages, hand out the next tokens")
    }

    /// Adds a token to the sequence at `index`. If the sequence finishes with it, returns the
    /// reason. An end of text isn't added, and if it comes with the last token allowed, it is
    /// the reason.
    fn append(&mut self, index: usize, token: u32) -> Option<FinishReason> {
        todo!("ch12 task 3: add the token; does the sequence finish with it?")
    }

    /// Where a sequence is among those that run.
    fn index_of(&self, id: SequenceId) -> Result<usize, ScheduleError> {
        let index = self.running.iter().position(|running| running.sequence.id == id);
        index.ok_or(ScheduleError::UnknownSequence(id))
    }

    /// Finishes a sequence that waits or runs. Its pages are back in the pool when this returns.
    ///
    /// # Errors
    /// [`ScheduleError::NotSettled`] between plan and settle, whichever sequence it is.
    /// Otherwise [`ScheduleError::UnknownSequence`] if the sequence has finished or never came.
    pub fn cancel(&mut self, id: SequenceId) -> Result<(), ScheduleError> {
        todo!("ch12 task 4: finish a sequence wherever it is")
    }
}
