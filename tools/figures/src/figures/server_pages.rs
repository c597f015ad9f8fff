//! The server: what `/pages` shows of a few texts in one pool, one line for each of the views.
//!
//! The frames are views as the server sends them. Texts come and are cancelled after fixed steps, so that the run is the
//! same each time.

use anyhow::{Result, ensure};
use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::serving::Serving;
use page_by_page::serving::schedule::{FinishReason, Sequence, SequenceId, StepLimits};
use page_by_page::serving::view::{self, EndedView, SequenceView, State, View, Words};
use serde::Serialize;

use crate::fragment::Drawing;
use crate::runs::bundled;
use crate::svg::{Anchor, Area, Kind, Svg, escaped, listed};

const MODEL: &str = "storyteller";
const PAGE_SIZE: usize = 8;
const PAGES: usize = 24;
const BUDGET: usize = 32;
const RUNNING: usize = 4;
const SHARED: &str = "Once upon a time there was a king who had three daughters, and the youngest of them";
const ALONE: &str = "The old fox said to the wolf";
/// The step after which a text comes, its prompt, its seed and its new tokens.
const TEXTS: [(u64, &str, u64, usize); 4] =
    [(0, SHARED, 7, 90), (0, SHARED, 8, 80), (0, ALONE, 9, 26), (22, SHARED, 10, 60)];
/// The text that is cancelled, and after which step.
const CANCELLED: (u64, u64) = (22, 1);
/// The steps whose views are shown.
const SHOWN: [u64; 10] = [0, 1, 2, 3, 12, 22, 23, 29, 60, 90];
const LINE: f64 = 52.0;
const PITCH: f64 = 15.0;

#[derive(Serialize)]
pub struct Trace {
    model: &'static str,
    frames: Vec<View>,
}

pub fn record() -> Result<Trace> {
    let dir = bundled(MODEL);
    let (model, tokenizer) = (Model::open(&dir)?, Tokenizer::open(&dir)?);
    let slab = PageSlab::new(model.kv_layout(), PAGE_SIZE, PAGES)?;
    let limits = StepLimits { tokens: BUDGET, sequences: RUNNING };
    let prefixes = Box::new(PrefixCache::new(PAGE_SIZE)?);
    let mut serving = Serving::new(&model, &slab, prefixes, limits, &model.config().eos_token_ids)?;
    let words = |text: &Sequence| {
        let says = |tokens: &[u32]| tokenizer.decode(tokens).unwrap_or_default();
        let prompt = view::beginning(&says(view::first(&text.tokens[..text.n_prompt])), text.n_prompt);
        Words { prompt, text: view::newest(&says(text.new_tokens())) }
    };
    let mut frames: Vec<View> = Vec::new();
    let mut ended = Vec::new();
    let mut turns = Vec::new();
    for step in 0..=SHOWN[SHOWN.len() - 1] {
        if step > 0 {
            let done = serving.step()?;
            turns = done.chunks;
            ended.extend(done.generated.into_iter().map(|told| {
                let Words { prompt, text } = words(&told.sequence);
                let reason = match told.end {
                    Ok(FinishReason::EndOfText) => "stop",
                    Ok(FinishReason::Limit) => "length",
                    Ok(FinishReason::Cancelled) => "abort",
                    Err(_) => "error",
                };
                let new_tokens = told.sequence.new_tokens().len();
                EndedView { id: told.sequence.id.0, at: 0, prompt, text, new_tokens, reason }
            }));
        }
        if SHOWN.contains(&step) {
            let seen = View::of(&serving, slab.borrow().pool(), PAGE_SIZE, &turns, words);
            frames.push(View { version: frames.len() as u64 + 1, ended: std::mem::take(&mut ended), ..seen });
        }
        // What happens between this step and the next.
        for (place, (_, prompt, seed, most)) in TEXTS.iter().enumerate().filter(|(_, text)| text.0 == step) {
            let sampling = Sampling { temperature: 0.8, top_k: 0, top_p: 0.95, seed: *seed };
            let id = serving.submit(tokenizer.encode(prompt)?, *most, Sampler::new(sampling))?;
            ensure!(id == SequenceId(place as u64), "texts come in their order");
        }
        if CANCELLED.0 == step {
            serving.cancel(SequenceId(CANCELLED.1))?;
        }
    }
    for (name, is_shown) in [
        ("a shared page", frames.iter().any(|frame| (0..PAGES).any(|page| frame.texts_of(page).len() > 1))),
        (
            "a text that found its beginning",
            frames.iter().any(|frame| frame.sequences.iter().any(|text| text.cached_tokens > 0)),
        ),
        ("a cancelled text", frames.iter().any(|frame| frame.ended.iter().any(|ended| ended.reason == "abort"))),
        ("a text that ended", frames.iter().any(|frame| frame.ended.iter().any(|ended| ended.reason == "length"))),
        ("pages that only the prefix cache has", frames.iter().any(|frame| frame.is_kept_somewhere())),
    ] {
        ensure!(is_shown, "the figure should show {name}");
    }
    Ok(Trace { model: MODEL, frames })
}

/// What the drawing asks of a view.
trait Seen {
    fn texts_of(&self, page: usize) -> Vec<&SequenceView>;
    fn what(&self, page: usize) -> What;
    fn is_kept_somewhere(&self) -> bool;
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    Free,
    Kept,
    Of(u64),
    Shared(usize),
}

impl Seen for View {
    fn texts_of(&self, page: usize) -> Vec<&SequenceView> {
        self.sequences.iter().filter(|text| text.pages.contains(&(page as u32))).collect()
    }

    fn what(&self, page: usize) -> What {
        match (&self.texts_of(page)[..], self.owners[page]) {
            ([], 0) => What::Free,
            ([], _) => What::Kept,
            ([text], _) => What::Of(text.id),
            (texts, _) => What::Shared(texts.len()),
        }
    }

    fn is_kept_somewhere(&self) -> bool {
        (0..self.owners.len()).any(|page| self.what(page) == What::Kept)
    }
}

/// A text's letter, as the page of the server has it.
fn letter(id: u64) -> char {
    char::from(b'A' + (id % 26) as u8)
}

pub fn draw(trace: &Trace) -> Drawing {
    let frames = &trace.frames;
    let bottom = frames.len() as f64 * LINE;
    let mut svg = Svg::new(bottom + 52.0);
    svg.without_bands();
    for (step, frame) in frames.iter().enumerate() {
        let before = step.checked_sub(1).map(|before| &frames[before]);
        svg.step(step, |svg| line(svg, step as f64 * LINE, frame, before));
    }
    svg.legend(Kind::New, 0.0, bottom + 4.0, "came now");
    svg.legend(Kind::Reused, 112.0, bottom + 4.0, "a text’s");
    svg.legend(Kind::Shared, 212.0, bottom + 4.0, "of so many texts");
    svg.legend(Kind::Stale, 0.0, bottom + 28.0, "only the prefix cache has it");
    svg.legend_free(222.0, bottom + 28.0, "free");
    let told: Vec<String> =
        frames.iter().map(|frame| format!("after step {}: {}", frame.steps, counted(frame))).collect();
    let last = &frames[frames.len() - 1];
    Drawing {
        svg,
        label: format!("A pool of {PAGES} pages of {PAGE_SIZE} slots, one line for each view. {}.", told.join("; ")),
        caption: format!(
            "What <code>/pages</code> shows of {} texts in {PAGES} pages of {PAGE_SIZE}, told by the bundled model. After step \
             {} B is cancelled and D comes. In the end {} of {} prompt tokens were found in the prefix cache. Recorded from \
             the engine’s own pool, page tables and scheduler.",
            TEXTS.len(),
            CANCELLED.0,
            last.counts.cached_tokens,
            last.counts.prompt_tokens
        ),
        steps: (0..frames.len()).map(|step| step_text(frames, step)).collect(),
    }
}

/// Pages with texts, kept by the prefix cache alone, free.
fn counted(view: &View) -> String {
    let count = |wanted: fn(What) -> bool| (0..PAGES).filter(|page| wanted(view.what(*page))).count();
    let used = count(|what| matches!(what, What::Of(_) | What::Shared(_)));
    let (kept, free) = (count(|what| what == What::Kept), count(|what| what == What::Free));
    format!("{used} with texts, {kept} kept, {free} free")
}

fn line(svg: &mut Svg, y: f64, view: &View, before: Option<&View>) {
    svg.bold(0.0, y + 15.0, Anchor::Start, &format!("step {}", view.steps));
    svg.text(360.0, y + 15.0, Anchor::End, &counted(view));
    for page in 0..PAGES {
        let area = Area { x: 1.5 + page as f64 * PITCH, y: y + 22.0, width: PITCH - 2.5, height: 22.0 };
        let (key, what) = (format!("page-{page}"), view.what(page));
        let is_new = before.is_some_and(|before| before.what(page) != what);
        match what {
            What::Free => svg.free(area, &key, ""),
            What::Kept => svg.cell(Kind::Stale, area, &key, ""),
            What::Of(text) => {
                svg.cell(if is_new { Kind::New } else { Kind::Reused }, area, &key, &letter(text).to_string());
            }
            What::Shared(texts) => svg.cell(Kind::Shared, area, &key, &texts.to_string()),
        }
    }
}

fn step_text(frames: &[View], step: usize) -> String {
    let view = &frames[step];
    let mut parts = Vec::new();
    for ended in &view.ended {
        let how = if ended.reason == "abort" { "was cancelled" } else { "has come to its end" };
        parts.push(format!("{} {how} after {} new tokens", letter(ended.id), ended.new_tokens));
    }
    let mut shared: Vec<(Vec<u64>, Vec<usize>)> = Vec::new();
    for page in 0..PAGES {
        let texts: Vec<u64> = view.texts_of(page).iter().map(|text| text.id).collect();
        if texts.len() > 1 {
            match shared.iter_mut().find(|(same, _)| *same == texts) {
                Some((_, pages)) => pages.push(page),
                None => shared.push((texts, vec![page])),
            }
        }
    }
    for (texts, pages) in shared {
        let names: Vec<char> = texts.into_iter().map(letter).collect();
        let word = if pages.len() == 1 { "page" } else { "pages" };
        parts.push(format!("{} share {word} {}", listed(&names), listed(&pages)));
    }
    for text in &view.sequences {
        parts.push(text_says(text));
    }
    if view.sequences.is_empty() && view.steps == 0 {
        parts.push("No text has come, and all pages are free".into());
    }
    let read = if view.scheduled_tokens > 0 {
        format!(", {} of {BUDGET} tokens read", view.scheduled_tokens)
    } else {
        String::new()
    };
    format!("Step {}{read}. {}.", view.steps, parts.join("; "))
}

fn text_says(text: &SequenceView) -> String {
    let name = letter(text.id);
    match text.state {
        State::Running if text.rows < text.prompt_tokens => {
            format!("{name} has read {} of {} tokens of its prompt", text.rows, text.prompt_tokens)
        }
        State::Running => {
            let tail: Vec<&str> = text.text.split_whitespace().rev().take(3).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            let found = if text.cached_tokens > 0 {
                format!(", {} of its prompt found", text.cached_tokens)
            } else {
                String::new()
            };
            let word = if text.new_tokens == 1 { "token" } else { "tokens" };
            format!("{name} has {} new {word}{found}: “… {}”", text.new_tokens, escaped(&tail.join(" ")))
        }
        State::Waiting => format!("{name} waits"),
        State::Preempted => format!("{name} has lost its pages and waits"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_is_the_same_each_time_and_each_view_is_whole() -> Result<()> {
        let (one, two) = (record()?, record()?);
        ensure!(one.frames == two.frames, "two runs differ");
        for view in &one.frames {
            let tables = view.sequences.iter().flat_map(|text| &text.pages);
            let mut owners = [0; PAGES];
            tables.for_each(|page| owners[*page as usize] += 1);
            for (page, texts) in owners.iter().enumerate() {
                let all = view.owners[page];
                ensure!((*texts..=texts + 1).contains(&all), "page {page}: {texts} texts, {all} owners");
            }
        }
        Ok(())
    }
}
