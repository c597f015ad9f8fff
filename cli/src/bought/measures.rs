//! What is counted for each chapter: once without it, once with it. The pages say the same numbers under *What it bought*
//! (`tests/bought.rs`).
//!
//! Where a number does not depend on the model, there is none, and rows are small.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail, ensure};
use page_by_page::cache::in_place::{Attention, CacheRef, InPlace, Rows};
use page_by_page::cache::kind::{CacheKind, CacheSize};
use page_by_page::cache::regions::Regions;
use page_by_page::cache::snapshot::Snapshot;
use page_by_page::cache::{CacheError, KvCache, KvLayout, Rewind, Usage};
use page_by_page::chapters::ch01_recompute::{Recompute, argmax, generate};
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::chapters::ch03_contiguous::{ContiguousCache, cache_bytes, wasted_share};
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};
use page_by_page::chapters::ch10_fork::ForkCache;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::chapters::ch14_half_the_bytes::token_bytes;
use page_by_page::decode::drafting::{AcceptRule, DraftCounters};
use page_by_page::decode::generation::Generation;
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::decode::{Cached, LanguageModel, Limits};
use page_by_page::disk::tier::{SharedPrefixes, Tier};
use page_by_page::disk::{Disk, PageShape};
use page_by_page::kernels::RowFormat;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::model::{LogitRows, Model, ModelConfig, StepError};
use page_by_page::prefixes::Prefixes;
use page_by_page::serving::schedule::StepLimits;
use page_by_page::serving::{Serving, Totals};
use page_by_page::simulation::planted::{Bug, Planted};
use page_by_page::simulation::{Found, Make, Passed, examples, search};
use page_by_page::workload::serving::{Cost, LAYOUT, serve, tiny_llm};
use page_by_page::workload::{PageCounters, Pages, Trace, run};
use serde::Deserialize;

use super::watched::Measure;
use crate::drafts::DraftOptions;
use crate::model_dir;
use crate::output::thousands;

/// What a chapter bought, and how to count it.
pub struct Bought {
    /// Of the chapter.
    pub number: usize,
    /// The way without it, and the chapters whose code that runs.
    pub before: (&'static str, &'static [usize]),
    /// The way with it, and the chapters whose code that runs.
    pub after: (&'static str, &'static [usize]),
    /// Counts.
    pub measure: Measure,
    /// What else there is to say.
    pub note: Option<&'static str>,
}

/// Something that was counted.
pub struct Line {
    /// In words.
    pub what: &'static str,
    /// Without the chapter; `None` if there is nothing to compare with.
    pub before: Option<Number>,
    /// With it.
    pub after: Number,
}

/// A number, and how it is read.
#[derive(Clone, Copy)]
pub enum Number {
    /// So many: `20,900`.
    Count(u64),
    /// A part of a whole, 0 to 1: `86.3 %`.
    Share(f64),
    /// So many for each: `0.47`.
    Ratio(f64),
}

impl Number {
    /// As it is printed.
    pub fn shown(self) -> String {
        match self {
            Number::Count(count) => thousands(count),
            Number::Share(share) => format!("{:.1} %", 100.0 * share),
            Number::Ratio(ratio) => format!("{ratio:.2}"),
        }
    }
}

fn line(what: &'static str, before: Number, after: Number) -> Line {
    Line { what, before: Some(before), after }
}

/// A line of counts.
fn counts(what: &'static str, before: impl TryInto<u64>, after: impl TryInto<u64>) -> Line {
    let count = |number: Result<u64, _>| Number::Count(number.unwrap_or(u64::MAX));
    line(what, count(before.try_into().map_err(drop)), count(after.try_into().map_err(drop)))
}

/// What the chapter of this number bought.
pub fn of(number: usize) -> Bought {
    let bought = |before, after, measure| Bought { number, before, after, measure, note: None };
    match number {
        1 => Bought {
            note: Some("Nothing yet, on purpose: this is the price that the next chapters bring down."),
            ..bought(("the first of 200 tokens", &[1]), ("the last of them", &[1]), recompute)
        },
        2 => bought(("the whole text again for each token", &[1]), ("the flat cache", &[1, 2]), flat),
        3 => bought(("the flat cache", &[1, 2]), ("the contiguous cache", &[1, 3]), contiguous),
        4 => bought(("contiguous regions", &[]), ("pages of 16 slots", &[4]), pool),
        5 => bought(("reservations of 4,096 slots", &[3]), ("pages of 16 slots", &[4, 5]), table),
        6 => bought(("reservations of 405 slots", &[3]), ("pages of 16 slots", &[4, 5, 6]), paged),
        7 => bought(("the other rows copied to a new cache", &[4, 5, 6]), ("rewind", &[4, 5, 6, 7]), rewind),
        8 => bought(("a pass for each token", &[1, 3]), ("drafts of two", &[1, 3, 7, 8]), speculation),
        9 => bought(("the match rule", &[3, 7, 8]), ("the sample rule", &[3, 7, 8, 9]), chance),
        10 => bought(("restored from a snapshot", &[4, 5, 6]), ("forks", &[4, 5, 6, 10]), fork),
        11 => bought(("pages forgotten with their text", &[4, 5]), ("the prefix cache", &[4, 5, 11]), prefixes),
        12 => bought(("one text after the other", &SCHEDULER), ("up to eight in a step", &SCHEDULER), scheduler),
        13 => bought(("rows gathered", &[4, 5, 6, 7]), ("rows read in their pages", &[4, 5, 6, 7, 13]), attention),
        14 => bought(("rows in f32", &[3, 14]), ("rows in fewer bits", &[14]), bits),
        15 => bought(
            ("examples, and the events as they came", &SCHEDULER),
            ("rules, and the events shrunk", &SIMULATION),
            simulation,
        ),
        16 => bought(("started anew", &SCHEDULER), ("started with the pages of the run before", &DISK), disk),
        _ => unreachable!("a chapter without a measure"),
    }
}

/// The scheduler, and what it stands on.
const SCHEDULER: [usize; 6] = [4, 5, 6, 10, 11, 12];
/// The same, and what looks at it.
const SIMULATION: [usize; 7] = [4, 5, 6, 10, 11, 12, 15];
/// The same, and its file of pages.
const DISK: [usize; 7] = [4, 5, 6, 10, 11, 12, 16];

/// Rows as small as rows can be: with numbers of their own for layers and widths.
const SMALL: KvLayout = KvLayout { n_layers: 2, n_kv_heads: 1, head_dim: 2 };
const PAGE_SIZE: usize = 16;

/// The story: "Once upon a time", 5 tokens, and so many more. The small model tells it: the counts are those of any model.
const NEW_TOKENS: usize = 200;

fn open(model: &str) -> Result<(Model, Tokenizer)> {
    let dir = model_dir(model.as_ref());
    Ok((Model::open(&dir)?, Tokenizer::open(&dir)?))
}

/// Nothing ends a text but its limit: the counts depend on its length.
fn limits(max_new_tokens: usize) -> Limits<'static> {
    Limits { max_new_tokens, end_of_text: &[] }
}

/// A model without a memory, and what it was asked.
struct Asked<'m> {
    model: Recompute<'m>,
    /// Rows projected for each token.
    rows: Vec<u64>,
}

impl LanguageModel for Asked<'_> {
    fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
        let before = self.model.rows_projected();
        let logits = self.model.next_logits(tokens)?;
        self.rows.push(self.model.rows_projected() - before);
        Ok(logits)
    }
}

/// Rows projected for each token of the story, without a memory.
fn rows_recomputed() -> Result<Vec<u64>> {
    let (model, tokenizer) = open("storyteller-draft")?;
    let prompt = tokenizer.encode("Once upon a time")?;
    let mut asked = Asked { model: Recompute::new(&model), rows: Vec::new() };
    let told = generate(&mut asked, &prompt, limits(NEW_TOKENS), &mut argmax, &mut |_| {})?;
    ensure!(told.len() == NEW_TOKENS, "a story of {} new tokens came out, not {NEW_TOKENS}", told.len());
    Ok(asked.rows)
}

/// Rows projected for the story with this cache, and what the cache has come to.
fn told_with(cache: impl FnOnce(KvLayout) -> Box<dyn InPlace>) -> Result<(u64, Usage)> {
    let (model, tokenizer) = open("storyteller-draft")?;
    let prompt = tokenizer.encode("Once upon a time")?;
    let mut cache = cache(model.kv_layout());
    let writing = Generation { model: &model, prompt: &prompt, limits: limits(NEW_TOKENS) };
    let written = writing.run(Some(cache.as_mut()), &mut argmax, &mut |_| {})?;
    ensure!(
        written.tokens.len() == NEW_TOKENS,
        "a story of {} new tokens came out, not {NEW_TOKENS}",
        written.tokens.len()
    );
    Ok((written.rows_projected, written.usage))
}

fn recompute() -> Result<Vec<Line>> {
    let rows = rows_recomputed()?;
    let (first, last) = (rows.first().copied().unwrap_or(0), rows.last().copied().unwrap_or(0));
    Ok(vec![
        counts("rows projected for one token", first, last),
        Line {
            what: "rows projected for the story of 200 tokens",
            before: None,
            after: Number::Count(rows.iter().sum()),
        },
    ])
}

fn flat() -> Result<Vec<Line>> {
    let recomputed: u64 = rows_recomputed()?.iter().sum();
    let (projected, usage) = told_with(|layout| Box::new(FlatCache::new(layout)))?;
    Ok(vec![
        counts("rows projected for a story of 200 tokens", recomputed, projected),
        counts("rows copied for it", 0_u64, usage.rows_copied),
    ])
}

fn contiguous() -> Result<Vec<Line>> {
    let (_, flat) = told_with(|layout| Box::new(FlatCache::new(layout)))?;
    let (_, contiguous) = told_with(|layout| Box::new(ContiguousCache::new(layout, NEW_TOKENS + 5)))?;
    Ok(vec![counts("rows copied for a story of 200 tokens", flat.rows_copied, contiguous.rows_copied)])
}

/// 2,000 slots; texts of 200, 1,000 and 150 tokens; the first one ends.
fn pool() -> Result<Vec<Line>> {
    const SLOTS: usize = 2000;
    const TEXTS: [usize; 3] = [200, 1000, 150];
    let mut memory = Regions::new(SLOTS);
    let regions = TEXTS.iter().map(|tokens| memory.reserve(*tokens)).collect::<Result<Vec<_>, _>>()?;
    memory.release(&regions[0]);
    let longest = memory.gaps().iter().map(|gap| gap.len()).max().unwrap_or(0);

    let mut pool = PagePool::new(SLOTS / PAGE_SIZE)?;
    let mut texts = Vec::new();
    for tokens in TEXTS {
        texts.push(pool.alloc_n(tokens.div_ceil(PAGE_SIZE))?);
    }
    for page in texts.swap_remove(0) {
        pool.free(page)?;
    }
    let taken = pool.alloc_n(pool.n_free())?;
    Ok(vec![counts("slots that one new text can have", longest, taken.len() * PAGE_SIZE)])
}

/// Tokens of four texts whose lengths nobody knows before.
const LENGTHS: [usize; 4] = [1024, 700, 300, 224];

fn table() -> Result<Vec<Line>> {
    let mut reserved = Vec::new();
    for tokens in LENGTHS {
        let mut cache = ContiguousCache::new(SMALL, 4096);
        cache.extend(tokens)?;
        reserved.push(cache.usage());
    }
    let mut pool = PagePool::new(4096 / PAGE_SIZE)?;
    let mut paged = Vec::new();
    for tokens in LENGTHS {
        let mut table = PageTable::new(PAGE_SIZE)?;
        table.grow(tokens, &mut pool)?;
        paged.push(Usage { tokens: table.len(), slots: table.slots(), ..Usage::default() });
    }
    Ok(vec![
        counts("slots wasted by texts of 1,024, 700, 300 and 224 tokens", wasted(&reserved), wasted(&paged)),
        line(
            "of the slots that they take",
            Number::Share(wasted_share(&reserved)),
            Number::Share(wasted(&paged) as f64 / paged.iter().map(|usage| usage.slots).sum::<usize>().max(1) as f64),
        ),
    ])
}

fn wasted(usages: &[Usage]) -> usize {
    usages.iter().map(Usage::wasted).sum()
}

/// Four stories as the chapter tells them: the tokens of the prompt, and all in the end. 400 new ones were allowed.
const STORIES: [(usize, usize); 4] = [(5, 404), (4, 139), (4, 112), (4, 133)];

fn paged() -> Result<Vec<Line>> {
    const ALLOWED: usize = 400;
    const PAGES: usize = 104;
    let mut reserved = Vec::new();
    for (prompt, tokens) in STORIES {
        let mut cache = ContiguousCache::new(SMALL, prompt + ALLOWED);
        cache.extend(tokens)?;
        reserved.push(cache.usage());
    }
    let slots = |usage: &Usage| usage.slots;
    let reserved_for_each = reserved.iter().map(slots).max().unwrap_or(0).max(1);

    let slab = PageSlab::new(SMALL, PAGE_SIZE, PAGES)?;
    let mut caches = Vec::new();
    // As many as fit; more texts than pages never do.
    for (_, tokens) in STORIES.iter().cycle().take(PAGES + 1) {
        let mut cache = PagedCache::new(&slab)?;
        match cache.extend(*tokens) {
            Ok(()) => caches.push(cache),
            Err(CacheError::OutOfPages { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    ensure!(caches.len() >= STORIES.len(), "only {} of {} stories fit in {PAGES} pages", caches.len(), STORIES.len());
    let paged: Vec<Usage> = caches.iter().take(STORIES.len()).map(KvCache::usage).collect();
    Ok(vec![
        counts("texts like these that fit in 104 pages of memory", PAGES * PAGE_SIZE / reserved_for_each, caches.len()),
        counts("slots wasted by four stories of up to 400 new tokens", wasted(&reserved), wasted(&paged)),
    ])
}

/// Makes room for new tokens and writes rows for them in every layer.
fn append(cache: &mut dyn KvCache, tokens: usize) -> Result<(), CacheError> {
    let layout = cache.layout();
    let rows = vec![1.0; tokens * layout.kv_width()];
    cache.extend(tokens)?;
    for layer in 0..layout.n_layers {
        cache.write(layer, &rows, &rows);
    }
    Ok(())
}

fn rewind() -> Result<Vec<Line>> {
    const TOKENS: usize = 32_768;
    let both = |forgotten: usize| -> Result<(u64, u64)> {
        let left = TOKENS - forgotten;
        let new_text = || -> Result<PagedCache> {
            Ok(PagedCache::new(&PageSlab::new(SMALL, PAGE_SIZE, TOKENS.div_ceil(PAGE_SIZE))?)?)
        };
        let mut cache = new_text()?;
        append(&mut cache, TOKENS)?;
        // Without rewinding: the rows that stay are gathered, and written to another cache.
        let mut other = new_text()?;
        other.extend(left)?;
        let mut gathered = 0;
        for layer in 0..SMALL.n_layers {
            let (k, v) = cache.gather(layer);
            let numbers = left * SMALL.kv_width();
            let (Some(keys), Some(values)) = (k.get(..numbers), v.get(..numbers)) else {
                bail!(
                    "gather({layer}) gives {} numbers of keys and {} of values, too few for {TOKENS} tokens",
                    k.len(),
                    v.len()
                );
            };
            other.write(layer, keys, values);
            if let Cow::Owned(rows) = &k {
                gathered = rows.len() / SMALL.kv_width();
            }
        }
        let before = cache.usage().rows_copied;
        cache.rewind(forgotten)?;
        ensure!(cache.len() == left, "{} tokens are left after rewind({forgotten}) on {TOKENS}", cache.len());
        Ok(((gathered + left) as u64, cache.usage().rows_copied - before))
    };
    let (few, half) = (both(4)?, both(TOKENS / 2)?);
    Ok(vec![
        counts("rows copied to forget 4 of 32,768 tokens", few.0, few.1),
        counts("rows copied to forget 16,384 of them", half.0, half.1),
    ])
}

/// How the four texts begin in which guesses are counted.
const BEGINNINGS: [&str; 4] = ["Once upon a time", "There was a king", "In a small house", "The youngest daughter"];
/// New tokens of each.
const GUESSED: usize = 100;

/// Tells the four texts with guesses, two at a time; returns what became of the guesses, and the texts.
fn guessed(temperature: f32, accept: AcceptRule) -> Result<(DraftCounters, Vec<Vec<u32>>)> {
    let (model, tokenizer) = open("storyteller")?;
    let drafting = DraftOptions { drafter: Some(PathBuf::from("storyteller-draft")), draft_len: 2, accept };
    let mut guesses = DraftCounters::default();
    let mut texts = Vec::new();
    for (seed, beginning) in (0..).zip(BEGINNINGS) {
        let sampling = Sampling { temperature, top_k: 0, top_p: 0.95, seed };
        let prompt = tokenizer.encode(beginning)?;
        let tokens = prompt.len() + GUESSED;
        let mut cache = CacheKind::Contiguous.cache(model.kv_layout(), CacheSize::for_tokens(tokens, PAGE_SIZE)?)?;
        let guesser = drafting.open(&model, &tokenizer, CacheKind::Contiguous, tokens, PAGE_SIZE)?;
        let mut sampler = Sampler::new(sampling);
        let writing = Generation { model: &model, prompt: &prompt, limits: limits(GUESSED) };
        let written = guesser.context("nobody drafts")?.work(accept, sampling, |drafter| {
            let mut judge = |draft: &_, rows: &[Vec<f32>]| {
                let new_tokens = accept.apply(draft, rows, &mut sampler);
                guesses.count(draft, new_tokens.len());
                new_tokens
            };
            writing.run_with_drafts(cache.as_deref_mut(), drafter, drafting.draft_len, &mut judge, &mut |_| {})
        })?;
        texts.push(written.tokens);
    }
    Ok((guesses, texts))
}

fn speculation() -> Result<Vec<Line>> {
    let (model, tokenizer) = open("storyteller")?;
    let (mut passes, mut texts) = (0_u64, Vec::new());
    for beginning in BEGINNINGS {
        let prompt = tokenizer.encode(beginning)?;
        let mut cache = ContiguousCache::new(model.kv_layout(), prompt.len() + GUESSED);
        let mut pick = |row: &[f32]| {
            passes += 1;
            argmax(row)
        };
        texts.push(generate(
            &mut Cached::in_place(&model, &mut cache),
            &prompt,
            limits(GUESSED),
            &mut pick,
            &mut |_| {},
        )?);
    }
    let (guesses, ahead) = guessed(0.0, AcceptRule::Match)?;
    ensure!(ahead == texts, "with guesses the texts are other ones than without");
    let tokens = texts.iter().map(Vec::len).sum::<usize>().max(1);
    Ok(vec![
        counts("passes of the target for four stories of 100 tokens", passes, guesses.target_passes),
        line(
            "passes for each token",
            Number::Ratio(passes as f64 / tokens as f64),
            Number::Ratio(guesses.target_passes_per_token()),
        ),
    ])
}

fn chance() -> Result<Vec<Line>> {
    let (matched, _) = guessed(0.8, AcceptRule::Match)?;
    let (sampled, _) = guessed(0.8, AcceptRule::Sample)?;
    let (share, ratio) = (DraftCounters::acceptance_rate, DraftCounters::target_passes_per_token);
    Ok(vec![
        line("guesses accepted, at temperature 0.8", Number::Share(share(&matched)), Number::Share(share(&sampled))),
        line("passes of the target for each token", Number::Ratio(ratio(&matched)), Number::Ratio(ratio(&sampled))),
    ])
}

/// Eight endings of 100 tokens of one prompt of 900.
fn fork() -> Result<Vec<Line>> {
    const TEXTS: usize = 8;
    const PROMPT: usize = 900;
    const NEW: usize = 100;
    let n_pages = TEXTS * (PROMPT + NEW - 1).div_ceil(PAGE_SIZE);
    // The last new token is never read.
    fn grow<C: KvCache>(texts: &mut [C]) -> Result<(), CacheError> {
        (1..NEW).try_for_each(|_| texts.iter_mut().try_for_each(|text| append(text, 1)))
    }
    let held = |slab: &SharedSlab| slab.borrow().pool().n_pages() - slab.borrow().pool().n_free();

    let slab = PageSlab::new(SMALL, PAGE_SIZE, n_pages)?;
    let mut apart = vec![PagedCache::new(&slab)?];
    append(&mut apart[0], PROMPT)?;
    let snapshot = Snapshot::freeze(&apart[0], &vec![0; PROMPT]);
    let mut restored = 0;
    for _ in 1..TEXTS {
        let mut text = PagedCache::new(&slab)?;
        snapshot.restore(&mut text)?;
        restored += text.len();
        apart.push(text);
    }
    grow(&mut apart)?;
    let pages_apart = held(&slab);

    let slab = PageSlab::new(SMALL, PAGE_SIZE, n_pages)?;
    let mut forks = vec![ForkCache::new(&slab)?];
    append(&mut forks[0], PROMPT)?;
    for _ in 1..TEXTS {
        let fork = forks[0].fork()?;
        forks.push(fork);
    }
    grow(&mut forks)?;
    let copied: u64 = forks.iter().map(|fork| fork.usage().rows_copied).sum();
    Ok(vec![
        counts("pages held by eight endings of one prompt of 900 tokens", pages_apart, held(&slab)),
        counts("rows copied for them", restored, copied),
    ])
}

fn prefixes() -> Result<Vec<Line>> {
    let told = |trace: Trace, prefixes: Option<Box<dyn Prefixes>>| -> Result<PageCounters> {
        let mut pages = Pages::new(trace.n_pages(), PAGE_SIZE, prefixes)?;
        Ok(run(trace.requests(trace.n_requests()), trace.running(), &mut pages, || {})?)
    };
    let cache = || -> Result<Option<Box<dyn Prefixes>>> { Ok(Some(Box::new(PrefixCache::new(PAGE_SIZE)?))) };
    let (without, with) = (told(Trace::Shared, None)?, told(Trace::Shared, cache()?)?);
    let share = |counters: PageCounters| Number::Share(counters.hit_rate);
    Ok(vec![
        line("prompt tokens found, where 300 requests begin alike", share(without), share(with)),
        counts("pages taken from the pool", without.pages_allocated, with.pages_allocated),
    ])
}

fn scheduler() -> Result<Vec<Line>> {
    let served = |n_pages: usize, tokens: usize, texts: usize| -> Result<u64> {
        let slab = PageSlab::new(LAYOUT, PAGE_SIZE, n_pages)?;
        let prefixes: Box<dyn Prefixes> = Box::new(PrefixCache::new(PAGE_SIZE)?);
        let limits = StepLimits { tokens, sequences: texts };
        let served = serve(&tiny_llm(), &slab, prefixes, limits, Cost { step: 1, token: 1 }, || {})?;
        Ok(served.totals.steps)
    };
    // Each prompt in one step: the longest has 992 tokens.
    let alone = served(1000, 1024, 1)?;
    Ok(vec![
        counts("passes of a model for sixteen requests", alone, served(1000, 128, 8)?),
        counts("passes in 150 pages, too few for eight at once", alone, served(150, 128, 8)?),
    ])
}

/// A cache that counts the rows that are copied together to be read.
struct Gathers {
    cache: PagedCache,
    /// In each layer.
    rows_copied: Rc<Cell<usize>>,
}

impl KvCache for Gathers {
    fn layout(&self) -> KvLayout {
        self.cache.layout()
    }

    fn len(&self) -> usize {
        self.cache.len()
    }

    fn extend(&mut self, n: usize) -> Result<(), CacheError> {
        self.cache.extend(n)
    }

    fn write(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        self.cache.write(layer, k, v);
    }

    fn gather(&self, layer: usize) -> (Cow<'_, [f32]>, Cow<'_, [f32]>) {
        let rows = self.cache.gather(layer);
        // All layers are gathered alike.
        if let (0, Cow::Owned(keys)) = (layer, &rows.0) {
            self.rows_copied.set(self.rows_copied.get() + keys.len() / self.layout().kv_width());
        }
        rows
    }

    fn usage(&self) -> Usage {
        self.cache.usage()
    }
}

impl Rewind for Gathers {
    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        self.cache.rewind(n)
    }
}

impl InPlace for Gathers {
    fn rows(&self, layer: usize) -> Rows<'_> {
        self.cache.rows(layer)
    }
}

fn attention() -> Result<Vec<Line>> {
    const TEXTS: usize = 8;
    let (mut model, _) = open("storyteller")?;
    let copied = |model: &mut Model, tokens: usize| -> Result<[usize; 2]> {
        let rows_copied = Rc::new(Cell::new(0));
        let slab = PageSlab::new(model.kv_layout(), PAGE_SIZE, TEXTS * (tokens + 1).div_ceil(PAGE_SIZE))?;
        let mut texts = Vec::new();
        for _ in 0..TEXTS {
            let mut text = Gathers { cache: PagedCache::new(&slab)?, rows_copied: rows_copied.clone() };
            append(&mut text, tokens)?;
            texts.push(text);
        }
        let mut copied = [0; 2];
        let mut logits: Vec<Vec<u32>> = Vec::new();
        for (way, copied) in [Attention::Gather, Attention::Paged].into_iter().zip(&mut copied) {
            model.set_attention(way);
            rows_copied.set(0);
            let batch = texts
                .iter_mut()
                .map(|text| model.chunk_of(&[1], CacheRef::InPlace(text), LogitRows::Newest(1)))
                .collect::<Result<Vec<_>, _>>()?;
            logits.push(model.forward(batch)?.iter().map(|logit| logit.to_bits()).collect());
            *copied = rows_copied.get();
            texts.iter_mut().try_for_each(|text| text.rewind(1))?;
        }
        ensure!(logits[0] == logits[1], "read in their pages, the rows give other logits than gathered");
        Ok(copied)
    };
    let (short, long) = (copied(&mut model, 256)?, copied(&mut model, 1023)?);
    Ok(vec![
        counts("rows copied in a step of eight texts of 256 tokens", short[0], short[1]),
        counts("rows copied in a step of eight texts of 1,023", long[0], long[1]),
    ])
}

fn bits() -> Result<Vec<Line>> {
    const POOL: usize = 16 << 20;
    let layout = ModelConfig::open(&model_dir("storyteller".as_ref()))?.kv_layout();
    let texts = |format| POOL / (token_bytes(format, layout) * PAGE_SIZE).max(1) / 200_usize.div_ceil(PAGE_SIZE);
    let plain = cache_bytes(layout, 1, size_of::<f32>());
    Ok(vec![
        counts("bytes of a token's rows, in f16", plain, token_bytes(RowFormat::F16, layout)),
        counts("texts of 200 tokens in 16 MiB, in int8", texts(RowFormat::F32), texts(RowFormat::Int8)),
    ])
}

fn simulation() -> Result<Vec<Line>> {
    const STEPS: u64 = 100;
    const SEEDS: u64 = 1000;
    let tried = |bug: Bug| -> (bool, Result<Passed, Box<Found>>) {
        let make: Box<Make<'static>> =
            Box::new(move |slab, prefixes, limits| Planted::subject(Some(bug), slab, prefixes, limits));
        let seen_by_examples = examples::pass(&make).is_err();
        (seen_by_examples, search(&make, 0..=SEEDS - 1, STEPS, || {}))
    };
    let (mut by_examples, mut by_rules) = (0_u64, 0_u64);
    let mut events = None;
    for bug in Bug::ALL {
        let (seen, outcome) = tried(bug);
        by_examples += u64::from(seen);
        if let Err(found) = outcome {
            by_rules += 1;
            if bug.name() == "cancel-leaks" {
                events = Some((found.events, found.case.events.len()));
            }
        }
    }
    let (events, shrunk) = events.context("nobody has noticed the planted bug cancel-leaks")?;
    Ok(vec![
        counts("planted bugs that are noticed, of ten", by_examples, by_rules),
        counts("events that tell the story of cancel-leaks", events, shrunk),
    ])
}

/// A disk in memory. A clone is the same disk.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    fn bytes(&self) -> std::sync::MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Disk for Memory {
    fn len(&mut self) -> io::Result<u64> {
        Ok(self.bytes().len() as u64)
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let disk = self.bytes();
        let from = usize::try_from(offset).ok().and_then(|from| disk.get(from..)?.get(..bytes.len()));
        bytes.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.bytes();
        let end = usize::try_from(offset).ok().and_then(|from| from.checked_add(bytes.len()));
        let end = end.filter(|end| *end <= 1 << 30).ok_or(io::ErrorKind::StorageFull)?;
        if disk.len() < end {
            disk.resize(end, 0);
        }
        disk[end - bytes.len()..end].copy_from_slice(bytes);
        Ok(())
    }

    fn cut(&mut self, len: u64) -> io::Result<()> {
        self.bytes().truncate(usize::try_from(len).unwrap_or(usize::MAX));
        Ok(())
    }
}

/// The four prompts of the chapter.
const KEY: &str = include_str!("../../../assets/key.jsonl");

#[derive(Deserialize)]
struct Prompt {
    prompt: String,
    max_new_tokens: usize,
}

fn disk() -> Result<Vec<Line>> {
    let (model, tokenizer) = open("storyteller")?;
    let disk = Memory::default();
    let (first, _) = with_pages_of(&model, &tokenizer, Memory::default())?;
    let (told, texts) = with_pages_of(&model, &tokenizer, disk.clone())?;
    let (second, again) = with_pages_of(&model, &tokenizer, disk)?;
    ensure!(texts == again, "the texts are other ones when their pages come from the disk");
    ensure!(told.rows_projected == first.rows_projected, "an empty disk changes what is computed");
    Ok(vec![
        counts("rows computed for four prompts that begin alike", first.rows_projected, second.rows_projected),
        counts("tokens of the prompts found, of 791", first.cached, second.cached),
    ])
}

/// Tells the four texts with the pages that this disk has, and keeps theirs there.
fn with_pages_of(model: &Model, tokenizer: &Tokenizer, disk: Memory) -> Result<(Totals, Vec<Vec<u32>>)> {
    const PAGE_SIZE: usize = 4;
    const N_PAGES: usize = 1024;
    let slab = PageSlab::new(model.kv_layout(), PAGE_SIZE, N_PAGES)?;
    let prefixes: Box<dyn Prefixes> = Box::new(PrefixCache::new(PAGE_SIZE)?);
    let prefixes: SharedPrefixes = Rc::new(RefCell::new(prefixes));
    let mut tier = Tier::open(disk, PageShape::of(model, PAGE_SIZE), 1 << 30, prefixes.clone(), &slab)?;
    let limits = StepLimits { tokens: 256, sequences: 16 };
    let mut serving = Serving::new(model, &slab, Box::new(prefixes), limits, &model.config().eos_token_ids)?;
    let mut asked = Vec::new();
    for line in KEY.lines() {
        let Prompt { prompt, max_new_tokens } = serde_json::from_str(line)?;
        let prompt = tokenizer.encode(&prompt)?;
        asked.push((tier.ask(&prompt)?, prompt, max_new_tokens));
    }
    // A disk in memory is soon read: who waits for pages waits for all of them.
    let mut waiting = asked.iter().filter(|(ticket, ..)| ticket.is_some()).count();
    while waiting > 0 {
        waiting = waiting.saturating_sub(tier.arrived(true)?.len());
    }
    for (_, prompt, max_new_tokens) in asked {
        serving.submit(
            prompt,
            max_new_tokens,
            Sampler::new(Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }),
        )?;
    }
    let mut texts = Vec::new();
    while !serving.is_done() {
        let step = serving.step()?;
        tier.keep(serving.scheduler(), &step.generated)?;
        for told in step.generated {
            told.end?;
            texts.push((told.sequence.id, told.sequence.tokens));
        }
    }
    if let Some(error) = tier.failed() {
        bail!("the pages cannot be kept: {error}");
    }
    texts.sort_by_key(|(id, _)| *id);
    Ok((serving.totals(), texts.into_iter().map(|(_, tokens)| tokens).collect()))
}
