//! The server: what `/pages` shows of a few sequences in one pool, one line for each of the views.
//!
//! The frames are views as the server sends them. Requests come and are cancelled after fixed steps, so that the run is the
//! same each time.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::serving::schedule::{FinishReason, Sequence, SequenceId, StepLimits};
use page_by_page::serving::view::{self, SequenceView, State, View, Words};
use page_by_page::serving::{Generated, Serving};

use super::Figure;
use crate::layout::Grid;
use crate::models::{STORYTELLER, model, sampler, tokenizer};
use crate::svg::{Cell, Kind, cell};
use crate::words::{count, escaped, joined, listed, pages, with_before};

const PAGE_SIZE: usize = 8;
const PAGES: usize = 24;
const BUDGET: usize = 32;
const RUNNING: usize = 4;
const SHARED: &str = "Once upon a time there was a king who had three daughters, and the youngest of them";
const ALONE: &str = "The old fox said to the wolf";
/// The step after which a request comes, its prompt, its seed and its new tokens.
const REQUESTS: [(u64, &str, u64, usize); 4] =
    [(0, SHARED, 7, 90), (0, SHARED, 8, 80), (0, ALONE, 9, 26), (22, SHARED, 10, 60)];
/// The sequence that is cancelled, and after which step.
const CANCELLED: (u64, u64) = (22, 1);
const SHOWN: [u64; 10] = [0, 1, 2, 3, 12, 22, 23, 29, 60, 90];

/// The views, each with what has ended since the one before.
fn record() -> Result<Vec<(View, Vec<String>)>> {
    let (model, tokenizer) = (model(STORYTELLER)?, tokenizer()?);
    let slab = PageSlab::new(model.kv_layout(), PAGE_SIZE, PAGES)?;
    let limits = StepLimits { tokens: BUDGET, sequences: RUNNING };
    let prefixes = Box::new(PrefixCache::new(PAGE_SIZE)?);
    let mut serving = Serving::new(&model, &slab, prefixes, limits, &model.config().eos_token_ids)?;
    let words = |sequence: &Sequence| {
        let text = tokenizer.decode(sequence.new_tokens()).unwrap_or_default();
        Words { prompt: String::new(), text: view::newest(&text) }
    };
    let mut frames = Vec::new();
    let (mut ended, mut chunks) = (Vec::new(), Vec::new());
    for step in 0..=SHOWN[SHOWN.len() - 1] {
        if step > 0 {
            let done = serving.step()?;
            chunks = done.chunks;
            for Generated { sequence, end, .. } in done.generated {
                let how = if end == Ok(FinishReason::Cancelled) { "was cancelled" } else { "has finished" };
                let (name, n) = (letter(sequence.id.0), sequence.new_tokens().len());
                ended.push(format!("{name} {how} after {n} new tokens"));
            }
        }
        if SHOWN.contains(&step) {
            let view = View::of(&serving, slab.borrow().pool(), PAGE_SIZE, &chunks, words);
            frames.push((view, std::mem::take(&mut ended)));
        }
        for (place, (_, prompt, seed, most)) in REQUESTS.iter().enumerate().filter(|(_, request)| request.0 == step) {
            let id = serving.submit(tokenizer.encode(prompt)?, *most, sampler(*seed))?;
            ensure!(id == SequenceId(place as u64), "requests come in their order");
        }
        if CANCELLED.0 == step {
            serving.cancel(SequenceId(CANCELLED.1))?;
        }
    }
    Ok(frames)
}

/// What a page's cell shows: free, cached by the prefix cache alone, the letter of its sequence, or how many share it.
fn content(view: &View, page: usize) -> (Kind, String) {
    match (&sequences_of(view, page)[..], view.owners[page]) {
        ([], 0) => (Kind::Free, String::new()),
        ([], _) => (Kind::Stale, String::new()),
        ([id], _) => (Kind::Reused, letter(*id).to_string()),
        (sequences, _) => (Kind::Shared, sequences.len().to_string()),
    }
}

fn sequences_of(view: &View, page: usize) -> Vec<u64> {
    let own = view.sequences.iter().filter(|sequence| sequence.pages.contains(&(page as u32)));
    own.map(|sequence| sequence.id).collect()
}

/// A sequence's letter, as on the server's page.
fn letter(id: u64) -> char {
    char::from(b'A' + (id % 26) as u8)
}

pub fn figure() -> Result<Figure> {
    let frames = &record()?;
    let mut figure = Figure::default();
    figure.svg.without_bands();
    for (before, (view, ended)) in with_before(frames) {
        let before = before.map(|(view, _)| view);
        figure.step(step_text(view, ended), |svg| {
            svg.heading(&format!("step {}", view.steps), &counted(view));
            svg.row(Grid::across(0.0, PAGES, PAGES), (0..PAGES).map(|page| page_cell(view, before, page)));
        });
    }
    figure.svg.legend(&[
        (Kind::New, "came now"),
        (Kind::Reused, "a sequence’s"),
        (Kind::Shared, "of several sequences"),
        (Kind::Stale, "only the prefix cache has it"),
        (Kind::Free, "free"),
    ]);
    figure.label = format!(
        "A pool of {PAGES} pages of {PAGE_SIZE} slots, one line for each of {} views. A cell is a page, with the letter of its \
         sequence or the number of sequences that share it.",
        frames.len()
    );
    let counts = &frames[frames.len() - 1].0.counts;
    figure.caption = format!(
        "<strong>What <code>/pages</code> shows of {} sequences in one pool.</strong> {PAGES} pages of {PAGE_SIZE} slots, and the \
         bundled model. After step {} B is cancelled and D comes. In the end {} of {} prompt tokens were cached. Recorded from the \
         engine’s own pool, page tables and scheduler.",
        REQUESTS.len(),
        CANCELLED.0,
        counts.cached_tokens,
        counts.prompt_tokens
    );
    Ok(figure)
}

fn counted(view: &View) -> String {
    let count = |wanted| (0..PAGES).filter(|page| content(view, *page).0 == wanted).count();
    let (cached, free) = (count(Kind::Stale), count(Kind::Free));
    format!("{} in use, {cached} cached, {free} free", PAGES - cached - free)
}

fn page_cell(view: &View, before: Option<&View>, page: usize) -> Cell {
    let now = content(view, page);
    let is_new = now.0 == Kind::Reused && before.is_some_and(|before| content(before, page) != now);
    cell(if is_new { Kind::New } else { now.0 }, now.1).key(format!("page-{page}"))
}

fn step_text(view: &View, ended: &[String]) -> String {
    let mut parts = ended.to_vec();
    let mut groups: BTreeMap<Vec<u64>, Vec<usize>> = BTreeMap::new();
    for page in 0..PAGES {
        groups.entry(sequences_of(view, page)).or_default().push(page);
    }
    for (sequences, shared) in groups.into_iter().filter(|(sequences, _)| sequences.len() > 1) {
        let names: Vec<char> = sequences.into_iter().map(letter).collect();
        parts.push(format!("{} share {}", listed(&names), pages(&shared)));
    }
    parts.extend(view.sequences.iter().map(sequence_text));
    if parts.is_empty() {
        parts.push("no request has come, and all pages are free".into());
    }
    let computed = if view.scheduled_tokens > 0 {
        format!(", {} of {BUDGET} tokens computed", view.scheduled_tokens)
    } else {
        String::new()
    };
    format!("Step {}{computed}: {}.", view.steps, joined(&parts, "; "))
}

fn sequence_text(sequence: &SequenceView) -> String {
    let name = letter(sequence.id);
    match sequence.state {
        State::Running if sequence.rows < sequence.prompt_tokens => {
            format!("{name} has computed {} of {} tokens of its prompt", sequence.rows, sequence.prompt_tokens)
        }
        State::Running => {
            let words: Vec<&str> = sequence.text.split_whitespace().collect();
            let tail = joined(&words[words.len().saturating_sub(3)..], " ");
            let cached = match sequence.cached_tokens {
                0 => String::new(),
                n => format!(", {n} cached tokens of its prompt"),
            };
            format!("{name} has {}{cached}: “… {}”", count(sequence.new_tokens, "new token"), escaped(&tail))
        }
        State::Waiting => format!("{name} waits"),
        State::Preempted => format!("{name} was preempted and waits"),
    }
}
