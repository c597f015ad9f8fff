//! Several texts, told in turns: in each step every text reads its new tokens, all of them in one pass of the model.
//!
//! ```text
//!   page size 4       a reads      b reads      a has pages   b has pages   free of 6
//!   step 1            5 (prompt)   3 (prompt)   0 1           2             3
//!   step 2            1            1            0 1           2             3
//!   step 3            1            1            0 1           2 3           2
//!   …                 a ends: pages 0 and 1 are free before the next step begins
//! ```
//!
//! Each text has a sampler of its own, and a row has the same bits in any company: so a text is the same as when it is
//! told alone.
//!
//! # Who waits
//!
//! Texts that share one slab may together want more pages than it has. A text takes pages only if afterwards *all can
//! still end*: the oldest with what is free, the next with that and what the oldest gives back, and so on. Whoever may not
//! take them yet waits, keeps what it has, and asks again in the next step. So the oldest text never waits, it ends at the
//! latest when it has all its tokens, and then another one is the oldest: no two texts ever wait for each other. Texts
//! begin in the order in which they came. (This is the rule of the banker,
//! [Dijkstra, 1965](https://www.cs.utexas.edu/~EWD/transcriptions/EWD01xx/EWD123.html), with the order fixed.)
//!
//! A text that may become too long for the whole slab is told when it is alone. It may end in time; if not, it is refused
//! its next page and ends there. Here nobody takes pages away from a text that has them.

use std::time::{Duration, Instant};

use crate::cache::{CacheError, KvCache, PageId, Usage};
use crate::chapters::ch06_paged::{PagedCache, SharedSlab};
use crate::model::{Chunk, LogitRows, Model, StepError};
use crate::sampler::Sampler;

/// Texts that take part in a step, at most.
pub const MOST_TEXTS: usize = 256;
/// Prompts begin together as long as they have no more tokens than this; a longer one begins alone.
pub const MOST_PROMPT_TOKENS: usize = 4096;

/// Makes a cache for a text of so many tokens; `None` where nothing is kept.
pub type MakeCache<'m> = dyn Fn(usize) -> Option<Box<dyn KvCache>> + 'm;

/// What the texts of a batch are kept in.
pub enum Memory<'m> {
    /// A cache for each text over this one slab.
    Shared(SharedSlab),
    /// A cache for each text that knows nothing of the others.
    Apart(Box<MakeCache<'m>>),
}

/// Texts that are told in turns.
pub struct Batch<'m> {
    model: &'m Model,
    memory: Memory<'m>,
    end_of_text: Vec<u32>,
    texts: Vec<Text>,
    /// Whose turn it is in a step: places in `texts`, oldest first.
    telling: Vec<usize>,
    /// The next text to begin.
    next: usize,
    totals: Totals,
}

/// A text of a batch.
pub struct Text {
    /// Prompt and new tokens.
    tokens: Vec<u32>,
    n_prompt: usize,
    max_new_tokens: usize,
    sampler: Sampler,
    kept: Kept,
    stage: Stage,
    /// Whether the newest step went without it.
    left_out: bool,
    /// When it ended.
    usage: Usage,
    pages_at_end: usize,
}

/// What a text is kept in.
enum Kept {
    Nothing,
    InPages(PagedCache),
    Apart(Box<dyn KvCache>),
}

/// How far a text is.
#[derive(Clone, Debug, PartialEq)]
pub enum Stage {
    /// It has not begun.
    Waiting,
    /// Its prompt was read.
    Telling,
    /// It is told, and its memory given back.
    Ended(End),
}

/// Why a text ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// The model chose an end of text.
    EndOfText,
    /// It has all the new tokens that were asked for.
    Limit,
    /// It was refused its next tokens: there was no room for them and nobody left to wait for, or the model failed.
    Refused(StepError),
}

/// A token that a text got in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewToken {
    /// The text, by its place in [`Batch::texts`].
    pub text: usize,
    /// The token.
    pub token: u32,
}

/// What was done since a batch was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Passes of the model.
    pub steps: u64,
    /// Tokens that went through the model.
    pub rows_projected: u64,
    /// Texts in one pass, at most.
    pub most_texts: usize,
    /// Pages that had an owner at the same time, at most; 0 if the memory has no pages.
    pub peak_pages: usize,
    /// Passes that read a prompt, whatever else they read.
    pub prefill: Passes,
    /// All others: they read the newest token of each text.
    pub decode: Passes,
}

/// Passes of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passes {
    /// How many.
    pub steps: u64,
    /// Tokens that they read.
    pub rows: u64,
    /// Texts that they answered, each with a new token or its end.
    pub answers: u64,
    /// How long they took.
    pub time: Duration,
}

/// The pages of a text.
#[derive(Clone, Copy)]
struct Claim {
    /// Those that it has.
    held: usize,
    /// Those that it may still need.
    more: usize,
}

impl<'m> Batch<'m> {
    /// No texts yet. `end_of_text`: tokens that end a text; they are not part of it.
    pub fn new(model: &'m Model, memory: Memory<'m>, end_of_text: &[u32]) -> Self {
        let (texts, telling) = (Vec::new(), Vec::new());
        let end_of_text = end_of_text.to_vec();
        Batch { model, memory, end_of_text, texts, telling, next: 0, totals: Totals::default() }
    }

    /// Adds a text to those that wait; returns its place in [`texts`](Self::texts). It gets `max_new_tokens` at most.
    ///
    /// # Errors
    /// [`StepError`] if the model cannot read the prompt; nothing has changed.
    pub fn add(&mut self, prompt: Vec<u32>, max_new_tokens: usize, sampler: Sampler) -> Result<usize, StepError> {
        self.model.check(&prompt, 0)?;
        self.texts.push(Text {
            n_prompt: prompt.len(),
            tokens: prompt,
            max_new_tokens,
            sampler,
            kept: Kept::Nothing,
            stage: if max_new_tokens > 0 { Stage::Waiting } else { Stage::Ended(End::Limit) },
            left_out: false,
            usage: Usage::default(),
            pages_at_end: 0,
        });
        Ok(self.texts.len() - 1)
    }

    /// The texts, in the order in which they were added.
    pub fn texts(&self) -> &[Text] {
        &self.texts
    }

    /// What was done so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// True when no text is told or waits.
    pub fn is_done(&self) -> bool {
        self.texts.iter().skip(self.next).all(Text::has_ended) && self.telling.is_empty()
    }

    /// One pass of the model: every text that need not wait reads its new tokens and gets the next one, if it does not end
    /// there. A text that ends gives its memory back before this returns.
    pub fn step(&mut self) -> Vec<NewToken> {
        let start = Instant::now();
        let turns = self.turns();
        for place in &self.telling {
            self.texts[*place].left_out = turns.binary_search(place).is_err();
        }
        let is_prefill = turns.iter().any(|place| self.texts[*place].is_unread());
        let mut chunks = Vec::new();
        let mut asked = Vec::new();
        let mut refused = Vec::new();
        let mut rows = 0;
        for (place, text) in self.texts.iter_mut().enumerate().take(self.next) {
            if turns.binary_search(&place).is_err() {
                continue;
            }
            let unread = text.unread();
            match text.chunk(self.model) {
                Ok(chunk) => {
                    chunks.push(chunk);
                    asked.push(place);
                    rows += unread as u64;
                }
                Err(error) => refused.push((place, error)),
            }
        }
        let logits = if chunks.is_empty() { Ok(Vec::new()) } else { self.model.forward(chunks) };
        let n_asked = asked.len();
        let logits = logits.unwrap_or_else(|error| {
            // Whose logits it was is not known, and the rows of this step may be worth nothing.
            refused.extend(asked.drain(..).map(|place| (place, error.clone())));
            Vec::new()
        });

        self.totals.most_texts = self.totals.most_texts.max(n_asked);
        if let Memory::Shared(slab) = &self.memory {
            let slab = slab.borrow();
            let taken = slab.pool().n_pages() - slab.pool().n_free();
            self.totals.peak_pages = self.totals.peak_pages.max(taken);
        }
        let mut new_tokens = Vec::new();
        for (place, row) in asked.iter().zip(logits.chunks_exact(self.model.config().vocab_size)) {
            let text = &mut self.texts[*place];
            let token = text.sampler.pick(row);
            if self.end_of_text.contains(&token) {
                text.end(End::EndOfText);
                continue;
            }
            new_tokens.push(NewToken { text: *place, token });
            text.tokens.push(token);
            if text.new_tokens().len() == text.max_new_tokens {
                text.end(End::Limit);
            }
        }
        for (place, error) in refused {
            self.texts[place].end(End::Refused(error));
        }
        self.telling.retain(|place| !self.texts[*place].has_ended());
        if n_asked > 0 {
            let passes = Passes { steps: 1, rows, answers: asked.len() as u64, time: start.elapsed() };
            self.totals.count(is_prefill, passes);
        }
        new_tokens
    }

    /// Whose turn it is, oldest first: the texts that are told and need not wait, and those that can begin.
    fn turns(&mut self) -> Vec<usize> {
        let mut free = match &self.memory {
            Memory::Shared(slab) => slab.borrow().pool().n_free(),
            Memory::Apart(_) => 0,
        };
        let mut claims: Vec<Claim> = self.telling.iter().map(|place| self.texts[*place].claim()).collect();
        let mut turns = Vec::new();
        for (index, &place) in self.telling.iter().enumerate() {
            if take(&mut claims, index, self.texts[place].pages_wanted(), &mut free) {
                turns.push(place);
            }
        }
        let mut prompt_tokens = 0;
        while self.telling.len() < MOST_TEXTS && self.next < self.texts.len() {
            let text = &mut self.texts[self.next];
            if !text.has_ended() {
                if prompt_tokens > 0 && prompt_tokens + text.n_prompt > MOST_PROMPT_TOKENS {
                    break;
                }
                if matches!(text.kept, Kept::Nothing) {
                    text.kept = match self.memory.keep(text.n_prompt + text.max_new_tokens) {
                        Ok(kept) => kept,
                        Err(error) => {
                            text.end(End::Refused(error.into()));
                            continue;
                        }
                    };
                }
                claims.push(text.claim());
                if !take(&mut claims, self.telling.len(), text.pages_wanted(), &mut free) {
                    break;
                }
                text.stage = Stage::Telling;
                prompt_tokens += text.n_prompt;
                self.telling.push(self.next);
                turns.push(self.next);
            }
            self.next += 1;
        }
        turns
    }
}

/// Takes pages of the free ones for a text, if all texts can still end afterwards. `claims`: oldest first.
fn take(claims: &mut [Claim], index: usize, pages: usize, free: &mut usize) -> bool {
    let before = claims[index];
    claims[index] = Claim { held: before.held + pages, more: before.more.saturating_sub(pages) };
    // The oldest waits for nobody: with it, all can end as before.
    let may = pages == 0 || index == 0 || (pages <= *free && all_can_end(claims, *free - pages));
    if may {
        *free = free.saturating_sub(pages);
    } else {
        claims[index] = before;
    }
    may
}

/// Whether each text can take all that it may still need once those before it have given back what they have.
fn all_can_end(claims: &[Claim], free: usize) -> bool {
    let mut room = free;
    claims.iter().all(|claim| {
        let fits = claim.more <= room;
        room += claim.held;
        fits
    })
}

impl Memory<'_> {
    /// What a text of at most `tokens` tokens is kept in, empty.
    fn keep(&self, tokens: usize) -> Result<Kept, CacheError> {
        Ok(match self {
            Memory::Shared(slab) => Kept::InPages(PagedCache::new(slab)?),
            Memory::Apart(make) => make(tokens).map_or(Kept::Nothing, Kept::Apart),
        })
    }
}

impl Totals {
    fn count(&mut self, is_prefill: bool, new: Passes) {
        self.steps += new.steps;
        self.rows_projected += new.rows;
        let passes = if is_prefill { &mut self.prefill } else { &mut self.decode };
        passes.steps += new.steps;
        passes.rows += new.rows;
        passes.answers += new.answers;
        passes.time += new.time;
    }
}

impl Text {
    /// Prompt and new tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens that it got, without the prompt.
    pub fn new_tokens(&self) -> &[u32] {
        &self.tokens[self.n_prompt..]
    }

    /// How far it is.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Whether it waits for pages: to begin, or to go on.
    pub fn waits(&self) -> bool {
        match self.stage {
            Stage::Waiting => true,
            Stage::Telling => self.left_out,
            Stage::Ended(_) => false,
        }
    }

    /// The pages that it has, in the order of its tokens; none if it is not kept in pages.
    pub fn pages(&self) -> &[PageId] {
        match &self.kept {
            Kept::InPages(cache) => cache.table().pages(),
            Kept::Nothing | Kept::Apart(_) => &[],
        }
    }

    /// What it is kept in and what that costs; of a text that has ended, what it was at the end.
    pub fn usage(&self) -> Usage {
        match &self.kept {
            Kept::Nothing => self.usage,
            Kept::InPages(cache) => cache.usage(),
            Kept::Apart(cache) => cache.usage(),
        }
    }

    /// The pages that it had when it ended.
    pub fn pages_at_end(&self) -> usize {
        self.pages_at_end
    }

    fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended(_))
    }

    fn held(&self) -> usize {
        match &self.kept {
            Kept::Nothing => 0,
            Kept::InPages(cache) => cache.len(),
            Kept::Apart(cache) => cache.len(),
        }
    }

    /// Tokens to read in the next step.
    fn unread(&self) -> usize {
        self.tokens.len() - self.held()
    }

    /// Whether the next step reads the prompt.
    fn is_unread(&self) -> bool {
        self.tokens.len() == self.n_prompt
    }

    /// Pages that the next step takes.
    fn pages_wanted(&self) -> usize {
        match &self.kept {
            Kept::InPages(cache) => cache.table().pages_needed(self.unread()),
            Kept::Nothing | Kept::Apart(_) => 0,
        }
    }

    fn claim(&self) -> Claim {
        match &self.kept {
            Kept::InPages(cache) => {
                // The last new token is never read.
                let most = self.n_prompt + self.max_new_tokens - 1;
                let table = cache.table();
                Claim { held: table.pages().len(), more: table.pages_needed(most - cache.len()) }
            }
            Kept::Nothing | Kept::Apart(_) => Claim { held: 0, more: 0 },
        }
    }

    /// The tokens to read, with room made for them.
    fn chunk(&mut self, model: &Model) -> Result<Chunk<'_>, StepError> {
        let held = self.held();
        let cache: Option<&mut dyn KvCache> = match &mut self.kept {
            Kept::Nothing => None,
            Kept::InPages(cache) => Some(cache),
            Kept::Apart(cache) => Some(cache.as_mut()),
        };
        model.chunk(&self.tokens[held..], cache, LogitRows::Newest(1))
    }

    /// Notes what it cost and gives its memory back.
    fn end(&mut self, end: End) {
        self.usage = self.usage();
        self.pages_at_end = self.pages().len();
        self.kept = Kept::Nothing;
        self.stage = Stage::Ended(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(pages: &[(usize, usize)]) -> Vec<Claim> {
        pages.iter().map(|&(held, more)| Claim { held, more }).collect()
    }

    #[test]
    fn all_can_end_if_the_older_texts_leave_enough_behind() {
        // (pages held, pages that may still be needed), oldest first; free pages.
        assert!(all_can_end(&claims(&[(1, 3), (1, 3)]), 3), "the second has 4 when the first has ended");
        assert!(!all_can_end(&claims(&[(1, 3), (1, 3)]), 2), "the first may need 3");
        assert!(!all_can_end(&claims(&[(1, 1), (0, 4)]), 2), "only 3 are free when the first has ended");
        assert!(all_can_end(&[], 0));
    }

    #[test]
    fn a_page_is_taken_only_if_all_can_still_end() {
        let (mut claims, mut free) = (claims(&[(1, 3), (1, 3)]), 3);
        assert!(!take(&mut claims, 1, 1, &mut free), "2 would be left, and the oldest may need 3");
        assert_eq!((claims[1].held, claims[1].more, free), (1, 3, 3), "nothing has changed");
        assert!(take(&mut claims, 0, 1, &mut free), "the oldest never waits");
        assert_eq!((claims[0].held, claims[0].more, free), (2, 2, 2));
    }

    /// Every text takes a page when it may, and ends when it has all: whatever the numbers, all end.
    #[test]
    fn no_two_texts_wait_for_each_other() {
        for n_pages in 1..=9 {
            for sizes in 0..6_usize.pow(4) {
                let sizes = [0, 1, 2, 3].map(|text| sizes / 6_usize.pow(text) % 6 + 1);
                if sizes.iter().any(|size| *size > n_pages) {
                    continue;
                }
                let (mut free, mut waiting, mut telling) = (n_pages, sizes.to_vec(), Vec::<Claim>::new());
                for _ in 0..40 {
                    for index in 0..telling.len() {
                        take(&mut telling, index, 1, &mut free);
                    }
                    while let Some(&size) = waiting.first() {
                        telling.push(Claim { held: 0, more: size });
                        let index = telling.len() - 1;
                        if !take(&mut telling, index, 1, &mut free) {
                            telling.pop();
                            break;
                        }
                        waiting.remove(0);
                    }
                    let owned: usize = telling.iter().map(|claim| claim.held).sum();
                    assert_eq!(free + owned, n_pages, "{sizes:?} in {n_pages} pages");
                    free += telling.iter().filter(|claim| claim.more == 0).map(|claim| claim.held).sum::<usize>();
                    telling.retain(|claim| claim.more > 0);
                }
                assert!(telling.is_empty() && waiting.is_empty(), "{sizes:?} in {n_pages} pages");
            }
        }
    }
}
