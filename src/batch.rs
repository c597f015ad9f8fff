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
//! # Samples
//!
//! Several texts of one prompt read it once: the first reads it, the others fork its cache then, and all choose their
//! first token from the same logits. A fork takes no page. A page with several owners is free again when the last of
//! them lets go.
//!
//! ```text
//!   page size 4, three samples      a      b      c      free of 6
//!   step 1: a reads 6 tokens        0 1    0 1    0 1    4
//!   step 2: each reads 1            0 2    0 3    0 1    2      a and b copy 2 rows each, c is the last to have page 1
//!   a ends                                 0 3    0 1    3      page 0 stays
//! ```
//!
//! # Prefixes
//!
//! With a prefix cache, pages outlive the texts that filled them. Each full page is given to it as soon as its rows are
//! computed, and one text begins in a step, so that the next finds the pages of those before it. What only the prefix cache
//! owns is as good as free: it is evicted when somebody needs the pages.
//!
//! # Who waits
//!
//! Texts that share one slab may together want more pages than it has. A text takes pages only if afterwards *all can
//! still end*: the oldest with what is free, the next with that and what the oldest gives back, and so on. Whoever may not
//! take them yet waits, keeps what it has, and asks again in the next step. So the oldest text never waits, it ends at the
//! latest when it has all its tokens, and then another one is the oldest: no two texts ever wait for each other. Texts
//! begin in the order in which they came, samples of one prompt together. (This is the rule of the banker,
//! [Dijkstra, 1965](https://www.cs.utexas.edu/~EWD/transcriptions/EWD01xx/EWD123.html), with the order fixed.)
//!
//! Where samples share pages, a text gives back those that no younger text has. And while its last page is filled in part
//! and has other owners, it may need one page more than its tokens do: for the copy.
//!
//! A text that may become too long for the whole slab is told when it is alone, or while its fellow samples wait with
//! nothing but their prompt. It may end in time; if not, it is refused its next page and ends there. Here nobody takes
//! pages away from a text that has them.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::cache::{CacheError, KvCache, PageId, Usage};
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::PageTable;
use crate::chapters::ch06_paged::{PagedCache, SharedSlab};
use crate::chapters::ch10_fork::ForkCache;
use crate::chapters::ch11_prefix_cache::PrefixCache;
use crate::in_place::{CacheRef, InPlace};
use crate::model::{Chunk, LogitRows, Model, StepError};
use crate::prefixes::Prefixes;
use crate::sampler::Sampler;

/// Texts that take part in a step, at most.
pub const MOST_TEXTS: usize = 256;
/// Prompts begin together as long as they have no more tokens than this; a longer one begins alone.
pub const MOST_PROMPT_TOKENS: usize = 4096;

/// Makes a cache for a text of so many tokens; `None` where nothing is kept.
pub type MakeCache<'m> = dyn Fn(usize) -> Option<Box<dyn InPlace>> + 'm;

/// What the texts of a batch are kept in.
pub enum Memory<'m> {
    /// A cache for each text over this one slab.
    Shared(SharedSlab),
    /// The same, and the full pages of all texts so far, for those that begin with the same tokens.
    Prefixed(SharedSlab, PrefixCache),
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
    /// How many of the texts right behind it are samples of the same prompt, and wait for this one to read it.
    n_forks: usize,
    /// Whether it is one of several samples over a shared slab.
    may_share: bool,
    kept: Kept,
    stage: Stage,
    /// Whether the newest step went without it.
    left_out: bool,
    /// Tokens of its prompt that a prefix cache held.
    n_found: usize,
    /// When it ended.
    usage: Usage,
    pages_at_end: usize,
}

/// What a text is kept in.
enum Kept {
    Nothing,
    InPages(PagedCache),
    /// In pages that it may share with other samples of its prompt.
    Forked(ForkCache),
    Apart(Box<dyn InPlace>),
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
    /// Pages that texts had at the same time, at most; 0 if the memory has no pages.
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
    /// Those that it has and no younger text: free again when this text and all older ones have ended.
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
        let may_share = matches!(self.memory, Memory::Prefixed(..));
        self.texts.push(Text { may_share, ..Text::new(prompt, max_new_tokens, sampler) });
        Ok(self.texts.len() - 1)
    }

    /// Adds a text for each of these samplers, all with this prompt; returns their places. Over a shared slab the prompt is
    /// read once, and they begin together; otherwise each reads it into a cache of its own.
    ///
    /// # Errors
    /// [`StepError`] if the model cannot read the prompt; nothing has changed.
    ///
    /// # Panics
    /// If they are more than [`MOST_TEXTS`].
    pub fn add_samples(
        &mut self,
        prompt: &[u32],
        max_new_tokens: usize,
        samplers: Vec<Sampler>,
    ) -> Result<Range<usize>, StepError> {
        assert!(samplers.len() <= MOST_TEXTS, "{} samples do not fit into a step", samplers.len());
        self.model.check(prompt, 0)?;
        let first = self.texts.len();
        self.texts.extend(samplers.into_iter().map(|sampler| Text::new(prompt.to_vec(), max_new_tokens, sampler)));
        let places = first..self.texts.len();
        if matches!(self.memory, Memory::Shared(_)) && places.len() > 1 {
            self.texts[first].n_forks = places.len() - 1;
            self.texts[places.clone()].iter_mut().for_each(|text| text.may_share = true);
        }
        Ok(places)
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
            let room = self.memory.evict_for(text.pages_to_read(unread));
            match room.map_err(StepError::from).and_then(|()| text.chunk(self.model)) {
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
        if let Some(slab) = self.memory.slab() {
            let taken = slab.borrow().pool().n_pages() - self.memory.n_free();
            self.totals.peak_pages = self.totals.peak_pages.max(taken);
        }
        let mut new_tokens = Vec::new();
        let mut answers = 0;
        for (place, row) in asked.iter().zip(logits.chunks_exact(self.model.config().vocab_size)) {
            if let Err(error) = self.memory.insert(&mut self.texts[*place]) {
                refused.push((*place, error.into()));
                continue;
            }
            let samples = self.answered(*place);
            self.fork(samples.clone());
            for (place, text) in samples.clone().zip(&mut self.texts[samples]) {
                if text.has_ended() {
                    continue;
                }
                answers += 1;
                if let Some(token) = text.answer(row, &self.end_of_text) {
                    new_tokens.push(NewToken { text: place, token });
                }
            }
        }
        for (place, error) in refused {
            let samples = self.answered(place);
            for text in &mut self.texts[samples] {
                text.end(End::Refused(error.clone()));
            }
        }
        self.telling.retain(|place| !self.texts[*place].has_ended());
        if n_asked > 0 {
            self.totals.count(is_prefill, Passes { steps: 1, rows, answers, time: start.elapsed() });
        }
        new_tokens
    }

    /// The texts that go on from what the text at `place` has read in this step: the text itself, and if it was the prompt,
    /// all samples of it.
    fn answered(&self, place: usize) -> Range<usize> {
        let text = &self.texts[place];
        place..place + 1 + if text.is_unread() { text.n_forks } else { 0 }
    }

    /// Forks the cache of the first of these texts for all others.
    fn fork(&mut self, samples: Range<usize>) {
        let (first, others) = self.texts[samples].split_first_mut().expect("a text that was answered");
        for text in others {
            text.left_out = false;
            match first.kept.fork() {
                Ok(kept) => text.kept = kept,
                Err(error) => text.end(End::Refused(error.into())),
            }
        }
    }

    /// Whose turn it is, oldest first: the texts that are told and need not wait, and those that can begin.
    fn turns(&mut self) -> Vec<usize> {
        let now = self.claims();
        let mut claims = now.clone();
        let wanted = self.pages_wanted();
        let free_now = self.memory.n_free();
        let mut free = free_now;
        let mut copies = HashMap::new();
        let mut turns = Vec::new();
        for (index, (&place, wanted)) in self.telling.iter().zip(wanted).enumerate() {
            let pages = wanted.pages(&copies);
            if take(&mut claims, index, pages, &mut free) {
                wanted.note(&mut copies);
                turns.push(place);
            }
        }
        let mut prompt_tokens = 0;
        while self.next < self.texts.len() {
            let text = &mut self.texts[self.next];
            if text.has_ended() {
                self.next += 1;
                continue;
            }
            let samples = self.next..self.next + 1 + text.n_forks;
            let is_too_much = prompt_tokens > 0
                && (prompt_tokens + text.n_prompt > MOST_PROMPT_TOKENS || matches!(self.memory, Memory::Prefixed(..)));
            if is_too_much || self.telling.len() + samples.len() > MOST_TEXTS {
                break;
            }
            if matches!(text.kept, Kept::Nothing) {
                match self.memory.keep(text) {
                    Ok(kept) => text.kept = kept,
                    Err(error) => {
                        let end = End::Refused(error.into());
                        self.texts[samples].iter_mut().for_each(|text| text.end(end.clone()));
                        continue;
                    }
                }
            }
            let (n_prompt, n_found) = (text.n_prompt, text.held());
            let (prompt, more) = (text.pages_to_read(text.unread()), text.pages_after_the_prompt());
            let n_forks = text.n_forks;
            let mut may_begin = true;
            if n_found > 0 {
                // What it has found is no longer as good as free, and older texts do not give it back.
                let lost = free_now.saturating_sub(self.memory.n_free());
                may_begin = lost <= free || self.telling.is_empty();
                free = free.saturating_sub(lost);
                self.telling.push(self.next);
                for (claim, (now, then)) in claims.iter_mut().zip(now.iter().zip(self.claims())) {
                    claim.held = claim.held.saturating_sub(now.held.saturating_sub(then.held));
                }
                self.telling.pop();
            }
            claims.push(Claim { held: self.texts[self.next].pages().len(), more: prompt + more });
            claims.resize(claims.len() + n_forks, Claim { held: 0, more });
            if !may_begin || !take(&mut claims, self.telling.len(), prompt, &mut free) {
                // It looks again in the next step, and holds nothing until then.
                self.texts[self.next].kept = Kept::Nothing;
                break;
            }
            self.texts[self.next].n_found = n_found;
            prompt_tokens += n_prompt;
            turns.push(self.next);
            self.next = samples.end;
            self.telling.extend(samples.clone());
            self.texts[samples].iter_mut().for_each(|text| text.stage = Stage::Telling);
        }
        turns
    }

    /// The pages of the texts that are told, oldest first.
    fn claims(&self) -> Vec<Claim> {
        let Some(slab) = self.memory.slab() else {
            return vec![Claim { held: 0, more: 0 }; self.telling.len()];
        };
        let slab = slab.borrow();
        let mut younger = HashSet::new();
        // Youngest first: of the owners of a page, the first that comes by is the one that gives it back.
        let claims = self.telling.iter().rev().map(|place| self.texts[*place].claim(slab.pool(), &mut younger));
        let mut claims: Vec<Claim> = claims.collect();
        claims.reverse();
        claims
    }

    /// The pages that the next step takes for each text that is told, oldest first.
    fn pages_wanted(&self) -> Vec<Wanted> {
        let Some(slab) = self.memory.slab() else {
            return vec![Wanted::default(); self.telling.len()];
        };
        let slab = slab.borrow();
        self.telling.iter().map(|place| self.texts[*place].pages_wanted(slab.pool())).collect()
    }
}

/// The pages that a text takes in the next step.
#[derive(Clone, Copy, Default)]
struct Wanted {
    /// For new tokens.
    new: usize,
    /// Its last page and how many owners that has, if it is to be copied before it is written to.
    tail: Option<(PageId, u32)>,
}

impl Wanted {
    /// How many there are. `copies`: of each page, the texts that take copies before this one; the last owner needs none.
    fn pages(&self, copies: &HashMap<PageId, u32>) -> usize {
        let left = |(page, owners): (PageId, u32)| owners - copies.get(&page).copied().unwrap_or(0).min(owners);
        self.new + usize::from(self.tail.is_some_and(|tail| left(tail) > 1))
    }

    /// Notes that this text takes its copy.
    fn note(&self, copies: &mut HashMap<PageId, u32>) {
        if let Some((page, _)) = self.tail {
            *copies.entry(page).or_default() += 1;
        }
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
    /// What a text is kept in: empty, or with what is held of its prompt already.
    fn keep(&mut self, text: &Text) -> Result<Kept, CacheError> {
        Ok(match self {
            Memory::Shared(slab) if text.n_forks > 0 => Kept::Forked(ForkCache::new(slab)?),
            Memory::Shared(slab) => Kept::InPages(PagedCache::new(slab)?),
            Memory::Prefixed(slab, prefixes) => Kept::Forked(ForkCache::with_prefix(slab, prefixes, &text.tokens)?),
            Memory::Apart(make) => make(text.n_prompt + text.max_new_tokens).map_or(Kept::Nothing, Kept::Apart),
        })
    }

    /// The slab that all texts share.
    fn slab(&self) -> Option<&SharedSlab> {
        match self {
            Memory::Shared(slab) | Memory::Prefixed(slab, _) => Some(slab),
            Memory::Apart(_) => None,
        }
    }

    /// Pages without an owner, and those that can be evicted.
    fn n_free(&self) -> usize {
        match self {
            Memory::Shared(slab) => slab.borrow().pool().n_free(),
            Memory::Prefixed(slab, prefixes) => {
                let slab = slab.borrow();
                slab.pool().n_free() + prefixes.n_evictable(slab.pool())
            }
            Memory::Apart(_) => 0,
        }
    }

    /// Evicts as many pages as are missing of these.
    fn evict_for(&mut self, pages: usize) -> Result<(), CacheError> {
        if let Memory::Prefixed(slab, prefixes) = self {
            let mut slab = slab.borrow_mut();
            let missing = pages.saturating_sub(slab.pool().n_free());
            slab.evict(prefixes, missing)?;
        }
        Ok(())
    }

    /// Gives the full pages of a text to the prefix cache when another is full, and all that the prompt fills.
    fn insert(&mut self, text: &mut Text) -> Result<(), CacheError> {
        let is_unread = text.is_unread();
        let (Memory::Prefixed(_, prefixes), Kept::Forked(cache)) = (self, &mut text.kept) else {
            return Ok(());
        };
        if is_unread || cache.len().is_multiple_of(cache.table().page_size()) {
            cache.insert_into(prefixes, &text.tokens)?;
        }
        Ok(())
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

impl Kept {
    /// The pages of the text, if it is kept in pages.
    fn table(&self) -> Option<&PageTable> {
        match self {
            Kept::InPages(cache) => Some(cache.table()),
            Kept::Forked(cache) => Some(cache.table()),
            Kept::Nothing | Kept::Apart(_) => None,
        }
    }

    fn cache(&self) -> Option<&dyn KvCache> {
        match self {
            Kept::Nothing => None,
            Kept::InPages(cache) => Some(cache),
            Kept::Forked(cache) => Some(cache),
            Kept::Apart(cache) => Some(cache.as_ref()),
        }
    }

    fn cache_mut(&mut self) -> Option<&mut dyn InPlace> {
        match self {
            Kept::Nothing => None,
            Kept::InPages(cache) => Some(cache),
            Kept::Forked(cache) => Some(cache),
            Kept::Apart(cache) => Some(cache.as_mut()),
        }
    }

    fn fork(&self) -> Result<Kept, CacheError> {
        match self {
            Kept::Forked(cache) => Ok(Kept::Forked(cache.fork()?)),
            _ => unreachable!("only a cache that is made for it is forked"),
        }
    }
}

impl Text {
    fn new(prompt: Vec<u32>, max_new_tokens: usize, sampler: Sampler) -> Self {
        Text {
            n_prompt: prompt.len(),
            tokens: prompt,
            max_new_tokens,
            sampler,
            n_forks: 0,
            may_share: false,
            kept: Kept::Nothing,
            stage: if max_new_tokens > 0 { Stage::Waiting } else { Stage::Ended(End::Limit) },
            left_out: false,
            n_found: 0,
            usage: Usage::default(),
            pages_at_end: 0,
        }
    }

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

    /// Whether other texts may have pages of it.
    pub fn may_share(&self) -> bool {
        self.may_share
    }

    /// The pages that it has, in the order of its tokens; none if it is not kept in pages.
    pub fn pages(&self) -> &[PageId] {
        self.kept.table().map_or(&[], PageTable::pages)
    }

    /// What it is kept in and what that costs; of a text that has ended, what it was at the end.
    pub fn usage(&self) -> Usage {
        self.kept.cache().map_or(self.usage, KvCache::usage)
    }

    /// Tokens of its prompt that a prefix cache held: their rows were not computed again.
    pub fn n_found(&self) -> usize {
        self.n_found
    }

    /// The pages that it had when it ended.
    pub fn pages_at_end(&self) -> usize {
        self.pages_at_end
    }

    fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended(_))
    }

    fn held(&self) -> usize {
        self.kept.cache().map_or(0, KvCache::len)
    }

    /// Tokens to read in the next step.
    fn unread(&self) -> usize {
        self.tokens.len() - self.held()
    }

    /// Whether the next step reads the prompt.
    fn is_unread(&self) -> bool {
        self.tokens.len() == self.n_prompt
    }

    /// Pages that so many more tokens need, without a copy.
    fn pages_to_read(&self, tokens: usize) -> usize {
        self.kept.table().map_or(0, |table| table.pages_needed(tokens))
    }

    /// Pages that the text and each of its samples may need beyond those of the prompt.
    fn pages_after_the_prompt(&self) -> usize {
        // The last new token is never read.
        let most = self.n_prompt + self.max_new_tokens - 1;
        let pages = self.pages_to_read(most) - self.pages_to_read(self.n_prompt);
        let page_size = self.kept.table().map_or(1, PageTable::page_size);
        let copies = self.n_forks > 0 && most > self.n_prompt && !self.n_prompt.is_multiple_of(page_size);
        pages + usize::from(copies)
    }

    /// Whether the last page is to be copied before it is written to.
    fn shares_tail(&self, pool: &PagePool) -> bool {
        match &self.kept {
            // A page that is not of this pool is none that could be copied: the cache will say so itself.
            Kept::Forked(cache) => cache.table().shares_tail(pool).unwrap_or(false),
            Kept::Nothing | Kept::InPages(_) | Kept::Apart(_) => false,
        }
    }

    fn pages_wanted(&self, pool: &PagePool) -> Wanted {
        let tail = self.pages().last().filter(|_| self.shares_tail(pool));
        let tail = tail.map(|page| (*page, pool.owners(*page).unwrap_or(0)));
        Wanted { new: self.pages_to_read(self.unread()), tail }
    }

    /// `younger`: the pages that younger texts have; its own are added.
    fn claim(&self, pool: &PagePool, younger: &mut HashSet<PageId>) -> Claim {
        let most = self.n_prompt + self.max_new_tokens - 1;
        let more = self.pages_to_read(most.saturating_sub(self.held())) + usize::from(self.shares_tail(pool));
        let held = match &self.kept {
            Kept::Forked(cache) => {
                let is_only_its = |page: PageId| pool.owners(page) == Ok(1);
                cache.table().pages().iter().filter(|page| is_only_its(**page) || younger.insert(**page)).count()
            }
            Kept::Nothing | Kept::InPages(_) | Kept::Apart(_) => self.pages().len(),
        };
        Claim { held, more }
    }

    /// The tokens to read, with room made for them.
    fn chunk(&mut self, model: &Model) -> Result<Chunk<'_>, StepError> {
        let held = self.held();
        let tokens = &self.tokens[held..];
        match self.kept.cache_mut() {
            Some(cache) => model.chunk_of(tokens, CacheRef::InPlace(cache), LogitRows::Newest(1)),
            None => model.chunk(tokens, None, LogitRows::Newest(1)),
        }
    }

    /// Chooses the next token and returns it, or ends the text.
    fn answer(&mut self, logits: &[f32], end_of_text: &[u32]) -> Option<u32> {
        let token = self.sampler.pick(logits);
        if end_of_text.contains(&token) {
            self.end(End::EndOfText);
            return None;
        }
        self.tokens.push(token);
        if self.new_tokens().len() == self.max_new_tokens {
            self.end(End::Limit);
        }
        Some(token)
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
