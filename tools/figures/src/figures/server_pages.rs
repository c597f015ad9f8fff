//! The server: what `/pages` shows of a few sequences in one pool, one line for each of the views. It runs
//! `chapters::ch12_scheduler`, and greedy sampling `chapters::ch01_recompute`.
//!
//! The frames are views as the server sends them. Requests come and are cancelled after fixed steps, so that the run is
//! the same each time.

use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::chapters::ch11_prefix_cache::PrefixTrie;
use page_by_page::serving::schedule::{FinishReason, SequenceId, StepLimits};
use page_by_page::serving::view::{PoolView, SequenceStatus, SequenceView};
use page_by_page::serving::{Engine, FinishedSequence};

use super::prelude::*;

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
const SHOWN: [u64; 5] = [22, 23, 29, 60, 90];

/// The views, each with what has ended since the one before.
fn record() -> Result<Vec<(PoolView, Vec<String>)>> {
    let (model, tokenizer) = (model(STORYTELLER)?, tokenizer()?);
    let slab = PageSlab::new(model.cache_layout(), PAGE_SIZE, PAGES)?;
    let limits = StepLimits { token_budget: BUDGET, max_running: RUNNING };
    let prefix_cache = Box::new(PrefixTrie::new(PAGE_SIZE)?);
    let mut engine = Engine::new(&model, &slab, prefix_cache, limits, &model.config().eos_token_ids)?;
    let (mut frames, mut ended) = (Vec::new(), Vec::new());
    for step in 0..SHOWN[SHOWN.len() - 1] {
        for (_, prompt, seed, most) in REQUESTS.iter().filter(|request| request.0 == step) {
            engine.submit(tokenizer.encode(prompt)?, *most, sampler(*seed))?;
        }
        if CANCELLED.0 == step {
            ended.push(ending(&engine.cancel(SequenceId(CANCELLED.1))?));
        }
        let done = engine.step()?;
        ended.extend(done.finished.iter().map(ending));
        if SHOWN.contains(&(step + 1)) {
            frames.push((PoolView::new(&engine, &done.chunks), std::mem::take(&mut ended)));
        }
    }
    Ok(frames)
}

fn ending(FinishedSequence { sequence, outcome, .. }: &FinishedSequence) -> String {
    let how = if *outcome == Ok(FinishReason::Abort) { "is cancelled" } else { "has finished" };
    format!("{} {how} after {} new tokens.", letter(sequence.id.0), sequence.new_tokens().len())
}

/// What a page's cell shows: free, cached by the prefix cache alone, the letter of its sequence, or how many share it.
fn content(view: &PoolView, page: usize) -> Cell {
    let letters = sequences_of(view, page);
    let word = if letters.len() > 1 { letters.len().to_string() } else { joined(&letters, "") };
    owned(&letters, word, if view.owners[page] == 0 { free("") } else { cached("") })
}

fn sequences_of(view: &PoolView, page: usize) -> Vec<char> {
    let own = view.sequences.iter().filter(|sequence| sequence.pages.contains(&(page as u32)));
    own.map(|sequence| letter(sequence.id)).collect()
}

/// A sequence's letter, as on the server's page.
fn letter(id: u64) -> char {
    char::from(b'A' + (id % 26) as u8)
}

pub fn figure() -> Result<Figure> {
    let frames = &record()?;
    let totals = &frames[frames.len() - 1].0.totals;
    let mut figure = Figure {
        label: format!(
            "A pool of {PAGES} pages of {PAGE_SIZE} slots. A cell is a page, with the letter of its sequence or the \
             number of sequences that share it."
        ),
        headline: "Sequences share the full pages of a common prompt, and what they leave stays cached.".into(),
        setup: format!(
            "{PAGES} pages of {PAGE_SIZE} slots. In the end, {} of {} prompt tokens were cached.",
            totals.cached_tokens, totals.prompt_tokens
        ),
        legend: vec![(shared(&['a', 'b'], ""), "shared by several sequences")],
        ..Figure::default()
    };
    for (view, ended) in frames {
        figure.frame(step_text(view, ended), |picture| draw(picture, view));
    }
    Ok(figure)
}

fn draw(picture: &mut Picture, view: &PoolView) {
    let cells: Vec<Cell> = (0..PAGES).map(|page| content(view, page)).collect();
    let n = |kind| cells.iter().filter(|cell| cell.kind == kind).count();
    let (cached, free) = (n(Kind::Cached), n(Kind::Free));
    let note = format!("{} in use, {cached} cached, {free} free", PAGES - cached - free);
    picture.heading(&format!("step {}", view.steps), &note);
    picture.row("", "", 6, cells);
    for id in 0..REQUESTS.len() as u64 {
        let area = Area { x: picture.left + 1.0, y: picture.y + 2.0, width: 24.0, height: 22.0 };
        let sequence = view.sequences.iter().find(|sequence| sequence.id == id);
        let text = sequence.map_or("not in the engine".into(), |sequence| match sequence.status {
            SequenceStatus::Running => progress(sequence),
            SequenceStatus::Waiting => "waits".into(),
            SequenceStatus::Preempted => "was preempted and waits".into(),
        });
        picture.cell(area, held(letter(id), letter(id)));
        picture.text(area.x + 34.0, area.baseline(), Anchor::Start, text);
        picture.y += 27.0;
    }
}

fn progress(SequenceView { prompt_tokens, new_tokens, cached_tokens, held_tokens, .. }: &SequenceView) -> String {
    let computed = held_tokens.min(prompt_tokens);
    format!("{computed} of {prompt_tokens} prompt tokens ({cached_tokens} cached), {new_tokens} new")
}

fn step_text(view: &PoolView, ended: &[String]) -> String {
    let mut parts = vec![format!("Step {}.", view.steps)];
    parts.extend_from_slice(ended);
    for SequenceView { id, prompt_tokens, cached_tokens, new_tokens, .. } in &view.sequences {
        if *new_tokens == 1 {
            let (name, rest) = (letter(*id), prompt_tokens - cached_tokens);
            parts.push(format!("{name} begins and computes only {rest} of its {prompt_tokens} prompt tokens."));
        }
    }
    let mut groups: BTreeMap<Vec<char>, Vec<usize>> = BTreeMap::new();
    for page in 0..PAGES {
        groups.entry(sequences_of(view, page)).or_default().push(page);
    }
    for (sequences, shared) in groups.into_iter().filter(|(sequences, _)| sequences.len() > 1 && ended.is_empty()) {
        parts.push(format!("{} share {}, the full pages of their prompt.", listed(&sequences), pages(&shared)));
    }
    let n_cached = (0..PAGES).filter(|page| content(view, *page).kind == Kind::Cached).count();
    if n_cached > 0 {
        parts.push(format!("{} stay cached.", plural(n_cached, "page")));
    }
    joined(&parts, " ")
}
