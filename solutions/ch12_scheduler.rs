//! Chapter 12: the scheduler. Who reads how many tokens in the next step.
//!
//! Many texts, one pass of the model a step, and fewer pages than all of them want. The
//! scheduler knows no model: it plans a step, and is told what came of it.
//!
//! ```text
//!   budget 8      step 1       step 2       step 3       step 4
//!   text 0        ████ 4 +     █ 1 +        █ 1 +        █ 1 +     + its next token
//!   text 1        ████ 4       █████ 5 +    █ 1 +        █ 1 +
//!   text 2                     ██ 2         ██████ 6 +   preempted
//! ```
//!
//! The oldest text is served first and never made to wait, so it ends; then another one is
//! the oldest.

use std::collections::VecDeque;

use crate::cache::{CacheError, KvCache};
use crate::chapters::ch05_page_table::PageTable;
use crate::chapters::ch06_paged::SharedSlab;
use crate::chapters::ch10_fork::ForkCache;
use crate::prefixes::Prefixes;
use crate::schedule::{Counters, End, Pick, ScheduleError, StepLimits, TextId, Turn};

/// What every text has, wherever it is.
#[derive(Clone, Debug)]
pub struct Text {
    /// Its number; those of later arrivals are higher.
    pub id: TextId,
    /// Prompt and new tokens.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// New tokens that it gets at most.
    pub max_new_tokens: usize,
    /// What it has cost.
    pub counters: Counters,
}

impl Text {
    /// Tokens that it got, without the prompt.
    pub fn new_tokens(&self) -> &[u32] {
        &self.tokens[self.n_prompt..]
    }

    /// Tokens that have rows at the most, when it ends at its limit. The newest is never
    /// read, and has none: a prompt of 5 and 3 new tokens take 7 rows.
    ///
    /// `max_new_tokens` may be any number but 0.
    fn most_rows(&self) -> usize {
        self.n_prompt.saturating_add(self.max_new_tokens - 1)
    }

    // ANCHOR: pages_to_go
    /// Pages that it takes beyond those of `table` to read all of its tokens and the one that
    /// comes next, if that is ever read.
    ///
    /// Page size 4, 8 tokens, and a table of 4 of them: 2 pages more, for 9 rows. If only one
    /// new token is to come, 1 page: that token is the newest, and never read.
    fn pages_to_go(&self, table: &PageTable) -> usize {
        let rows = self.most_rows().min(self.tokens.len() + 1);
        table.pages_needed(rows - table.len())
    }
    // ANCHOR_END: pages_to_go
}

/// A text that has no pages.
pub struct Waiting {
    text: Text,
}

/// A text that has pages.
pub struct Running {
    text: Text,
    cache: ForkCache,
}

/// A text that has ended, and has no pages any more.
pub struct Finished {
    /// The text.
    pub text: Text,
    /// Why it ended.
    pub end: End,
}

impl Waiting {
    /// The text runs from now on. `cache` holds some of its first tokens already, or none.
    fn admit(self, cache: ForkCache) -> Running {
        let Waiting { mut text } = self;
        let found = match text.counters.computed {
            0 => &mut text.counters.found,
            _ => &mut text.counters.found_again,
        };
        *found += cache.len();
        Running { text, cache }
    }

    /// The text ends before it has run, or run again.
    fn end(self, end: End) -> Finished {
        Finished { text: self.text, end }
    }
}

impl Running {
    /// Tokens that it has not read.
    fn unread(&self) -> usize {
        self.text.tokens.len() - self.cache.len()
    }

    /// The text gives its pages back and waits.
    fn preempt(self) -> Waiting {
        let Running { mut text, cache } = self;
        drop(cache);
        text.counters.preemptions += 1;
        Waiting { text }
    }

    /// The text gives its pages back and ends.
    fn end(self, end: End) -> Finished {
        Finished { text: self.text, end }
    }
}

/// A text's part of a step, for the model: the tokens that it reads, and its cache, whose
/// newest tokens they are.
pub struct Reading<'a> {
    /// The part.
    pub turn: Turn,
    /// The tokens: `[turn.tokens]`.
    pub tokens: &'a [u32],
    /// Holds the rows of the tokens before them, and has room for theirs.
    pub cache: &'a mut ForkCache,
}

/// Shares a slab, a prefix cache and the steps of a model among texts.
pub struct Scheduler {
    slab: SharedSlab,
    prefixes: Box<dyn Prefixes>,
    limits: StepLimits,
    end_of_text: Vec<u32>,
    next_id: u64,
    /// In the order of arrival; all of them came after those that run.
    waiting: VecDeque<Waiting>,
    /// In the order of arrival.
    running: Vec<Running>,
    finished: Vec<Finished>,
    /// The turns of a step that is not settled yet.
    planned: Vec<Turn>,
}

impl Scheduler {
    /// No texts yet. `prefixes` keeps pages of this slab's pool. `end_of_text`: tokens that
    /// end a text; they are not part of it.
    ///
    /// # Errors
    /// [`ScheduleError::NoStep`] if a step may have no tokens or no texts.
    pub fn new(
        slab: &SharedSlab,
        prefixes: Box<dyn Prefixes>,
        limits: StepLimits,
        end_of_text: &[u32],
    ) -> Result<Self, ScheduleError> {
        if limits.tokens == 0 || limits.texts == 0 {
            return Err(ScheduleError::NoStep(limits));
        }
        Ok(Scheduler {
            slab: slab.clone(),
            prefixes,
            limits,
            end_of_text: end_of_text.to_vec(),
            next_id: 0,
            waiting: VecDeque::new(),
            running: Vec::new(),
            finished: Vec::new(),
            planned: Vec::new(),
        })
    }

    /// The texts that wait, in the order in which they will run.
    pub fn waiting(&self) -> impl Iterator<Item = &Text> {
        self.waiting.iter().map(|waiting| &waiting.text)
    }

    /// The texts that run, oldest first, with their pages.
    pub fn running(&self) -> impl Iterator<Item = (&Text, &PageTable)> {
        self.running.iter().map(|running| (&running.text, running.cache.table()))
    }

    /// The texts that have ended since this was last asked.
    pub fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    /// The prefix cache.
    pub fn prefixes(&self) -> &dyn Prefixes {
        &*self.prefixes
    }

    // ANCHOR: submit
    /// Takes a text in; it waits behind all others. One that is to get no new token has ended
    /// at once, with [`End::Limit`], whatever its length: it takes no page.
    ///
    /// 3 pages of 4: a prompt of 6 tokens with 7 new ones fits, as it takes 12 slots at the
    /// most. With 8 new ones it would need 4 pages and is refused, also while nobody else is
    /// there.
    ///
    /// # Errors
    /// [`ScheduleError::NoPrompt`], also where no new token is asked for.
    /// [`ScheduleError::NeverFits`] if the pool is too small for the text even when it has
    /// all pages to itself. A text that is refused gets no number.
    pub fn submit(&mut self, prompt: Vec<u32>, max_new_tokens: usize) -> Result<TextId, ScheduleError> {
        if prompt.is_empty() {
            return Err(ScheduleError::NoPrompt);
        }
        let (id, n_prompt) = (TextId(self.next_id), prompt.len());
        let counters = Counters::default();
        let text = Text { id, tokens: prompt, n_prompt, max_new_tokens, counters };
        if max_new_tokens == 0 {
            self.finished.push(Waiting { text }.end(End::Limit));
        } else {
            let (page_size, n_pages) = self.pool_size();
            let needed = text.most_rows().div_ceil(page_size);
            if needed > n_pages {
                let prompt = n_prompt;
                return Err(ScheduleError::NeverFits { prompt, max_new_tokens, needed, n_pages });
            }
            self.waiting.push_back(Waiting { text });
        }
        self.next_id += 1;
        Ok(id)
    }
    // ANCHOR_END: submit

    /// Slots in a page, and pages in the pool.
    fn pool_size(&self) -> (usize, usize) {
        let slab = self.slab.borrow();
        (slab.page_size, slab.pool.n_pages())
    }

    // ANCHOR: plan
    /// The turns of the next step, oldest text first. Room for their tokens is made.
    ///
    /// Each running text reads what it has not read yet, as far as the budget goes. One that
    /// finds no pages, free or evictable, gets those of the newest text, or waits if it is
    /// the newest itself. Then, while budget is left, others may begin and read. The plan is
    /// empty if nobody waits or runs.
    ///
    /// Budget 8. Two texts have 1 token unread each, and one with 13 tokens waits: the plan
    /// is 1, 1 and 6. In the next step it is the same again, then 1, 1 and 1, its last.
    ///
    /// # Errors
    /// [`ScheduleError::NotSettled`] if the last plan is not settled yet.
    /// [`ScheduleError::Cache`] with what a cache says that fails for another reason than a
    /// lack of pages.
    pub fn plan(&mut self) -> Result<Vec<Turn>, ScheduleError> {
        self.check_settled()?;
        let mut budget = self.limits.tokens;
        let mut place = 0;
        while budget > 0 {
            if place == self.running.len() && !self.admit()? {
                break;
            }
            let n = self.running[place].unread().min(budget);
            if self.make_room(place, n)? {
                self.take_turn(place, n);
                budget -= n;
                place += 1;
            }
        }
        Ok(self.planned.clone())
    }
    // ANCHOR_END: plan

    fn check_settled(&self) -> Result<(), ScheduleError> {
        match self.planned.len() {
            0 => Ok(()),
            turns => Err(ScheduleError::NotSettled { turns }),
        }
    }

    /// Notes that the text at `place` reads `n` tokens in this step.
    fn take_turn(&mut self, place: usize, n: usize) {
        let running = &mut self.running[place];
        running.text.counters.computed += n as u64;
        let (text, is_last) = (running.text.id, running.unread() == 0);
        self.planned.push(Turn { text, tokens: n, is_last });
    }

    // ANCHOR: make_room
    /// Makes room for `n` more tokens of the text at `place`: evicts the pages that are
    /// missing and no more and, where that is not enough, preempts the newest text, again and
    /// again. False if this one was the newest in the end and now waits.
    fn make_room(&mut self, place: usize, n: usize) -> Result<bool, CacheError> {
        while place < self.running.len() {
            let missing = match self.running[place].cache.extend(n) {
                Ok(()) => return Ok(true),
                Err(CacheError::OutOfPages { needed, free }) => needed - free,
                Err(error) => return Err(error),
            };
            let evicted = self.prefixes.evict(missing, &mut self.slab.borrow_mut().pool)?;
            if evicted < missing {
                self.preempt();
            }
        }
        Ok(false)
    }
    // ANCHOR_END: make_room

    // ANCHOR: preempt
    /// Sends the newest text that runs back to the head of the queue, without its pages. It
    /// keeps its tokens.
    fn preempt(&mut self) {
        if let Some(newest) = self.running.pop() {
            self.waiting.push_front(newest.preempt());
        }
    }
    // ANCHOR_END: preempt

    // ANCHOR: admit
    /// Lets the first text that waits run, if fewer run than may, and if its
    /// [pages to go](Text::pages_to_go) and those of all that run find room together: pages
    /// that are free or can be evicted. Says whether it does.
    ///
    /// It begins with the pages that the prefix cache holds of it. As long as it has them,
    /// they cannot be evicted. If it may not run yet, it keeps nothing, and nobody overtakes
    /// it.
    fn admit(&mut self) -> Result<bool, CacheError> {
        if self.running.len() == self.limits.texts {
            return Ok(false);
        }
        let Some(first) = self.waiting.front() else { return Ok(false) };
        let prefixes = &mut *self.prefixes;
        let cache = ForkCache::with_prefix(&self.slab, prefixes, &first.text.tokens)?;
        let to_go = |running: &Running| running.text.pages_to_go(running.cache.table());
        let still_taken: usize = self.running.iter().map(to_go).sum();
        let needed = still_taken + first.text.pages_to_go(cache.table());
        let room = {
            let pool = &self.slab.borrow().pool;
            pool.n_free() + prefixes.n_evictable(pool)
        };
        if needed > room {
            return Ok(false);
        }
        self.running.extend(self.waiting.pop_front().map(|first| first.admit(cache)));
        Ok(true)
    }
    // ANCHOR_END: admit

    // ANCHOR: readings
    /// What the model has to read: the turns of the plan, in its order.
    pub fn readings(&mut self) -> Vec<Reading<'_>> {
        let mut turns = self.planned.iter().copied().peekable();
        let mut readings = Vec::new();
        for Running { text, cache } in &mut self.running {
            let Some(turn) = turns.next_if(|turn| turn.text == text.id) else { continue };
            let end = cache.len();
            readings.push(Reading { turn, tokens: &text.tokens[end - turn.tokens..end], cache });
        }
        readings
    }
    // ANCHOR_END: readings

    // ANCHOR: settle
    /// The step is computed. `picks`: the next token of each text whose turn
    /// [is its last](Turn::is_last), in the order of the plan.
    ///
    /// Pages that are full now go to the prefix cache, after every chunk. A text that ends
    /// gives its pages back before this returns. Those that end in one step end in the plan's
    /// order.
    ///
    /// # Errors
    /// [`ScheduleError::WrongPicks`] if a token is missing, is one too many, or is out of
    /// order; nothing has changed then, and the plan still waits for its tokens.
    /// [`ScheduleError::Cache`] with what the prefix cache says if it does not take a page.
    pub fn settle(&mut self, picks: &[Pick]) -> Result<(), ScheduleError> {
        let due = self.planned.iter().filter(|turn| turn.is_last);
        let wanted: Vec<TextId> = due.map(|turn| turn.text).collect();
        let given: Vec<TextId> = picks.iter().map(|pick| pick.text).collect();
        if wanted != given {
            return Err(ScheduleError::WrongPicks { wanted, given });
        }
        for turn in std::mem::take(&mut self.planned) {
            let place = self.place(turn.text)?;
            self.keep_pages(place)?;
        }
        for pick in picks {
            let place = self.place(pick.text)?;
            if let Some(end) = self.append(place, pick.token) {
                let ended = self.running.remove(place);
                self.finished.push(ended.end(end));
            }
        }
        Ok(())
    }
    // ANCHOR_END: settle

    /// Gives the full pages of the text at `place` to the prefix cache.
    fn keep_pages(&mut self, place: usize) -> Result<(), CacheError> {
        let Running { text, cache } = &mut self.running[place];
        cache.insert_into(&mut *self.prefixes, &text.tokens)
    }

    /// Adds a token to the text at `place`; why the text ends with it, if it does. One that
    /// ends the text is not added, and counts before the limit.
    fn append(&mut self, place: usize, token: u32) -> Option<End> {
        let text = &mut self.running[place].text;
        if self.end_of_text.contains(&token) {
            return Some(End::EndOfText);
        }
        text.tokens.push(token);
        (text.new_tokens().len() == text.max_new_tokens).then_some(End::Limit)
    }

    /// Where a text is among those that run.
    fn place(&self, id: TextId) -> Result<usize, ScheduleError> {
        let place = self.running.iter().position(|running| running.text.id == id);
        place.ok_or(ScheduleError::UnknownText(id))
    }

    // ANCHOR: cancel
    /// Ends a text that waits or runs. Its pages are free before this returns.
    ///
    /// # Errors
    /// [`ScheduleError::NotSettled`] in the middle of a step, whichever text it is. Otherwise
    /// [`ScheduleError::UnknownText`] if the text has ended already, or never came.
    pub fn cancel(&mut self, id: TextId) -> Result<(), ScheduleError> {
        self.check_settled()?;
        let cancelled = if let Ok(place) = self.place(id) {
            self.running.remove(place).end(End::Cancelled)
        } else {
            let place = self.waiting.iter().position(|waiting| waiting.text.id == id);
            let waiting = place.and_then(|place| self.waiting.remove(place));
            waiting.ok_or(ScheduleError::UnknownText(id))?.end(End::Cancelled)
        };
        self.finished.push(cancelled);
        Ok(())
    }
    // ANCHOR_END: cancel
}
