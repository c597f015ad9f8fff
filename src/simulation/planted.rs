//! Ten schedulers that are wrong. Each has one bug, and each bug is one that an engine had.
//!
//! Without a bug, this scheduler is the one of chapter 12, step by step (`tests/simulation.rs` compares them).

use std::collections::VecDeque;

use crate::cache::{CacheError, KvCache, PageId};
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::PageTable;
use crate::chapters::ch06_paged::SharedSlab;
use crate::chapters::ch10_fork::ForkCache;
use crate::chapters::ch12_scheduler::{Finished, Reading, Text};
use crate::prefixes::Prefixes;
use crate::schedule::{Counters, End, Pick, ScheduleError, StepLimits, TextId, Turn};

use super::subject::seen;
use super::{END_OF_TEXT, SeenText, Subject};

/// A bug that an engine had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A text that the pool is too small for is taken in, and waits for ever.
    ///
    /// [vllm#35541](https://github.com/vllm-project/vllm/issues/35541): prompts that need 63 blocks of 49 hang, and
    /// everybody behind them.
    NeverFits,
    /// A text is let in when its next chunk fits, and is thrown out again before it has read its prompt.
    ///
    /// [vllm#37307](https://github.com/vllm-project/vllm/pull/37307): a fifth long prompt beside four that fill the cache
    /// brings the tokens a second from 100 down to 1.5.
    NextChunk,
    /// The text that has to go may be one that is in the plan already, and stays there.
    ///
    /// [vllm#23347](https://github.com/vllm-project/vllm/issues/23347): with priorities, a request that is scheduled is
    /// preempted by another in the same step, and the server crashes.
    PlannedVictim,
    /// When a text has to go, the walk through those that run passes one over.
    ///
    /// [vllm#49097](https://github.com/vllm-project/vllm/issues/49097): the victim leaves the list, the index stays, and the
    /// next request gets nothing in this step though a block is free.
    PassedOver,
    /// The limit of texts that run counts only those that were let in in this step.
    ///
    /// [nano-vllm#271](https://github.com/GeeeekExplorer/nano-vllm/pull/271): whoever is too much at the end of the list may
    /// starve.
    LimitForgotten,
    /// A text whose tokens are all found in the prefix cache has none left to read.
    ///
    /// [nano-vllm#144](https://github.com/GeeeekExplorer/nano-vllm/issues/144): a prompt of whole blocks that are all cached
    /// makes a query of length 0, and attention fails.
    AllFound,
    /// Pages get into the prefix cache when they are planned, before their rows are computed.
    ///
    /// [nano-vllm#208](https://github.com/GeeeekExplorer/nano-vllm/issues/208): a prompt finds blocks of another one of the
    /// same batch.
    FoundTooEarly,
    /// A text that is cancelled while it reads its prompt keeps its pages.
    ///
    /// [sglang-jax#984](https://github.com/sgl-project/sglang-jax/pull/984): abort does not look at requests in the middle of
    /// a chunked prefill, and their slots are lost.
    CancelLeaks,
    /// Two places give the last page of a text back when it ends.
    ///
    /// [sglang-jax#994](https://github.com/sgl-project/sglang-jax/pull/994): the release of a request is spread over several
    /// paths, and the slot of the last decode step is freed in two of them.
    FreedTwice,
    /// A text that comes back is taken to be ready when it has read its prompt.
    ///
    /// [vllm-ascend#11334](https://github.com/vllm-project/vllm-ascend/pull/11334): a request that is resumed is measured by
    /// its prompt, not by all of its tokens.
    PromptLength,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 10] = [
        Bug::NeverFits,
        Bug::NextChunk,
        Bug::PlannedVictim,
        Bug::PassedOver,
        Bug::LimitForgotten,
        Bug::AllFound,
        Bug::FoundTooEarly,
        Bug::CancelLeaks,
        Bug::FreedTwice,
        Bug::PromptLength,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Bug::NeverFits => "never-fits",
            Bug::NextChunk => "next-chunk",
            Bug::PlannedVictim => "planned-victim",
            Bug::PassedOver => "passed-over",
            Bug::LimitForgotten => "limit-forgotten",
            Bug::AllFound => "all-found",
            Bug::FoundTooEarly => "found-too-early",
            Bug::CancelLeaks => "cancel-leaks",
            Bug::FreedTwice => "freed-twice",
            Bug::PromptLength => "prompt-length",
        }
    }

    /// Where an engine had it: project and number.
    pub fn reported(self) -> &'static str {
        match self {
            Bug::NeverFits => "vllm#35541",
            Bug::NextChunk => "vllm#37307",
            Bug::PlannedVictim => "vllm#23347",
            Bug::PassedOver => "vllm#49097",
            Bug::LimitForgotten => "nano-vllm#271",
            Bug::AllFound => "nano-vllm#144",
            Bug::FoundTooEarly => "nano-vllm#208",
            Bug::CancelLeaks => "sglang-jax#984",
            Bug::FreedTwice => "sglang-jax#994",
            Bug::PromptLength => "vllm-ascend#11334",
        }
    }

    /// What it does, in a line.
    pub fn about(self) -> &'static str {
        match self {
            Bug::NeverFits => "takes in what can never fit",
            Bug::NextChunk => "lets a text in when its next chunk fits",
            Bug::PlannedVictim => "preempts a text that is in the plan",
            Bug::PassedOver => "passes a text over after a preemption",
            Bug::LimitForgotten => "counts only the texts let in in this step",
            Bug::AllFound => "finds all tokens, and has none to read",
            Bug::FoundTooEarly => "keeps pages before their rows are computed",
            Bug::CancelLeaks => "loses the pages of a text cancelled while it reads its prompt",
            Bug::FreedTwice => "gives the last page back twice",
            Bug::PromptLength => "takes a text that comes back for ready too early",
        }
    }
}

/// A scheduler with a bug, or with none.
pub struct Planted {
    bug: Option<Bug>,
    slab: SharedSlab,
    prefixes: Box<dyn Prefixes>,
    limits: StepLimits,
    next_id: u64,
    waiting: VecDeque<Text>,
    running: Vec<(Text, ForkCache)>,
    finished: Vec<Finished>,
    planned: Vec<Turn>,
    /// The caches that nobody knows of any more.
    lost: Vec<ForkCache>,
}

impl Planted {
    /// A scheduler with this bug, as a [`Subject`].
    ///
    /// # Errors
    /// [`ScheduleError::NoStep`].
    pub fn subject(
        bug: Option<Bug>,
        slab: &SharedSlab,
        prefixes: Box<dyn Prefixes>,
        limits: StepLimits,
    ) -> Result<Box<dyn Subject>, ScheduleError> {
        if limits.tokens == 0 || limits.texts == 0 {
            return Err(ScheduleError::NoStep(limits));
        }
        let (waiting, running, finished, planned, lost) = Default::default();
        let slab = slab.clone();
        Ok(Box::new(Planted { bug, slab, prefixes, limits, next_id: 0, waiting, running, finished, planned, lost }))
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Lets the first that waits run, if it may. `so_far`: how many this plan has let in; `chunk`: what it could read now.
    fn admit(&mut self, so_far: usize, chunk: usize) -> Result<bool, CacheError> {
        let counted = if self.has(Bug::LimitForgotten) { so_far } else { self.running.len() };
        if counted >= self.limits.texts {
            return Ok(false);
        }
        let Some(first) = self.waiting.front() else { return Ok(false) };
        let mut sought = first.tokens.clone();
        if self.has(Bug::AllFound) {
            // A lookup leaves the last token out: let that be one that the text does not have.
            sought.push(END_OF_TEXT);
        }
        let cache = ForkCache::with_prefix(&self.slab, &mut *self.prefixes, &sought)?;
        let needed = if self.has(Bug::NextChunk) {
            cache.table().pages_needed(chunk.min(first.tokens.len() - cache.len()))
        } else {
            let others = self.running.iter().map(|(text, cache)| pages_to_go(text, cache.table()));
            others.sum::<usize>() + pages_to_go(first, cache.table())
        };
        let room = {
            let slab = self.slab.borrow();
            slab.pool().n_free() + self.prefixes.n_evictable(slab.pool())
        };
        if needed > room {
            return Ok(false);
        }
        self.running.extend(self.waiting.pop_front().map(|text| (text, cache)));
        Ok(true)
    }

    /// Makes room for `n` more tokens of the text at `place`. Says whether it still runs, at which place, and whether anybody
    /// had to go.
    fn make_room(&mut self, place: usize, n: usize) -> Result<(Option<usize>, bool), CacheError> {
        let (mut place, mut any) = (place, false);
        while place < self.running.len() {
            let missing = match self.running[place].1.extend(n) {
                Ok(()) => return Ok((Some(place), any)),
                Err(CacheError::OutOfPages { needed, free }) => needed - free,
                Err(error) => return Err(error),
            };
            let evicted = self.slab.borrow_mut().evict(&mut *self.prefixes, missing)?;
            if evicted < missing {
                any = true;
                let victim = self.victim(place);
                let (mut text, cache) = self.running.remove(victim);
                drop(cache);
                text.counters.preemptions += 1;
                self.waiting.push_front(text);
                match victim.cmp(&place) {
                    std::cmp::Ordering::Less => place -= 1,
                    std::cmp::Ordering::Equal => return Ok((None, true)),
                    std::cmp::Ordering::Greater => {}
                }
            }
        }
        Ok((None, any))
    }

    /// The place of the text that has to go: the newest.
    fn victim(&self, place: usize) -> usize {
        let newest = self.running.len() - 1;
        if self.has(Bug::PlannedVictim) && newest == place && newest > 0 {
            // Rather than itself, the one that has most.
            let most = |place: &usize| (self.running[*place].1.table().pages().len(), *place);
            return (0..=newest).max_by_key(most).unwrap_or(newest);
        }
        newest
    }

    fn keep_pages(&mut self, place: usize) -> Result<(), CacheError> {
        let (text, cache) = &mut self.running[place];
        cache.insert_into(&mut *self.prefixes, &text.tokens)
    }

    fn place(&self, id: TextId) -> Option<usize> {
        self.running.iter().position(|(text, _)| text.id == id)
    }

    fn end(&mut self, text: Text, end: End) {
        self.finished.push(Finished { text, end });
    }

    fn free_once_more(&mut self, page: Option<PageId>) -> Result<(), CacheError> {
        let Some(page) = page else { return Ok(()) };
        let mut second = SecondPath { page };
        self.slab.borrow_mut().evict(&mut second, 1)?;
        Ok(())
    }
}

/// Pages that a text takes beyond those of `table` to read all of its tokens and the next.
fn pages_to_go(text: &Text, table: &PageTable) -> usize {
    let most = text.n_prompt.saturating_add(text.max_new_tokens).saturating_sub(1);
    let rows = most.min(text.tokens.len() + 1);
    table.pages_needed(rows.saturating_sub(table.len()))
}

impl Subject for Planted {
    fn submit(&mut self, prompt: Vec<u32>, max_new_tokens: usize) -> Result<TextId, ScheduleError> {
        if prompt.is_empty() {
            return Err(ScheduleError::NoPrompt);
        }
        let (id, n_prompt) = (TextId(self.next_id), prompt.len());
        let text = Text { id, tokens: prompt, n_prompt, max_new_tokens, counters: Counters::default() };
        if max_new_tokens == 0 {
            self.end(text, End::Limit);
        } else {
            let n_pages = self.slab.borrow().pool().n_pages();
            let most_rows = n_prompt.saturating_add(max_new_tokens - 1);
            let needed = ForkCache::new(&self.slab)?.table().pages_needed(most_rows);
            if needed > n_pages && !self.has(Bug::NeverFits) {
                return Err(ScheduleError::NeverFits { prompt: n_prompt, max_new_tokens, needed, n_pages });
            }
            self.waiting.push_back(text);
        }
        self.next_id += 1;
        Ok(id)
    }

    fn cancel(&mut self, id: TextId) -> Result<(), ScheduleError> {
        if let Some(place) = self.place(id) {
            let (text, cache) = self.running.remove(place);
            let reads_its_prompt = cache.len() < text.n_prompt;
            if self.has(Bug::CancelLeaks) && reads_its_prompt {
                self.lost.push(cache);
            }
            self.end(text, End::Cancelled);
            return Ok(());
        }
        let place = self.waiting.iter().position(|text| text.id == id);
        let text = place.and_then(|place| self.waiting.remove(place)).ok_or(ScheduleError::UnknownText(id))?;
        self.end(text, End::Cancelled);
        Ok(())
    }

    fn plan(&mut self) -> Result<Vec<Turn>, ScheduleError> {
        let (mut budget, mut place, mut let_in, mut any_went) = (self.limits.tokens, 0, 0, false);
        while budget > 0 {
            if place >= self.running.len() {
                let in_vain = any_went && self.has(Bug::NextChunk);
                if in_vain || !self.admit(let_in, budget)? {
                    break;
                }
                let_in += 1;
                place = self.running.len() - 1;
            }
            let (text, cache) = &self.running[place];
            let n = (text.tokens.len() - cache.len()).min(budget);
            let (still, went) = self.make_room(place, n)?;
            any_went |= went;
            let Some(at) = still else { continue };
            place = at;
            let ready = |text: &Text, held: usize| match self.bug {
                Some(Bug::PromptLength) if text.counters.preemptions > 0 => held >= text.n_prompt,
                _ => held == text.tokens.len(),
            };
            let (text, cache) = &self.running[place];
            let (id, is_last) = (text.id, ready(text, cache.len()));
            self.running[place].0.counters.computed += n as u64;
            self.planned.push(Turn { text: id, tokens: n, is_last });
            if self.has(Bug::FoundTooEarly) {
                self.keep_pages(place)?;
            }
            budget -= n;
            place += 1;
            if went && self.has(Bug::PassedOver) {
                place += 1;
            }
        }
        Ok(self.planned.clone())
    }

    fn readings(&mut self) -> Vec<Reading<'_>> {
        let mut readings = Vec::new();
        for (text, cache) in &mut self.running {
            let Some(turn) = self.planned.iter().find(|turn| turn.text == text.id).copied() else { continue };
            let end = cache.len();
            readings.push(Reading { turn, tokens: &text.tokens[end - turn.tokens..end], cache });
        }
        readings
    }

    fn settle(&mut self, picks: &[Pick]) -> Result<(), ScheduleError> {
        for turn in std::mem::take(&mut self.planned) {
            let Some(place) = self.place(turn.text) else { continue };
            self.keep_pages(place)?;
        }
        for pick in picks {
            let Some(place) = self.place(pick.text) else { continue };
            let text = &mut self.running[place].0;
            let end = if pick.token == END_OF_TEXT {
                Some(End::EndOfText)
            } else {
                text.tokens.push(pick.token);
                (text.new_tokens().len() == text.max_new_tokens).then_some(End::Limit)
            };
            if let Some(end) = end {
                let (text, cache) = self.running.remove(place);
                let last = cache.table().pages().last().copied();
                drop(cache);
                if self.has(Bug::FreedTwice) {
                    self.free_once_more(last)?;
                }
                self.end(text, end);
            }
        }
        Ok(())
    }

    fn running(&self) -> Vec<SeenText> {
        let running = self.running.iter().map(|(text, cache)| SeenText {
            held: cache.len(),
            pages: cache.table().pages().to_vec(),
            ..seen(text)
        });
        running.collect()
    }

    fn waiting(&self) -> Vec<SeenText> {
        self.waiting.iter().map(seen).collect()
    }

    fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    fn prefixes(&self) -> &dyn Prefixes {
        &*self.prefixes
    }
}

/// The second place that gives a page back. Only a prefix cache is lent the pool, so it comes as one.
struct SecondPath {
    page: PageId,
}

impl Prefixes for SecondPath {
    fn lookup(&mut self, _: &[u32], _: &mut PagePool) -> Result<PageTable, CacheError> {
        PageTable::new(1)
    }

    fn insert(&mut self, _: &[u32], _: &mut PageTable, _: &mut PagePool) -> Result<(), CacheError> {
        Ok(())
    }

    fn evict(&mut self, _: usize, pool: &mut PagePool) -> Result<usize, CacheError> {
        // A page that nobody has is refused by the pool. One that others have loses an owner.
        let _ = pool.free(self.page);
        Ok(0)
    }

    fn n_pages(&self) -> usize {
        0
    }

    fn n_evictable(&self, _: &PagePool) -> usize {
        0
    }
}
