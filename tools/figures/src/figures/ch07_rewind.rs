//! Chapter 7: a text goes back over a page boundary, and another one takes the page.

use anyhow::{Result, ensure};
use page_by_page::cache::{CacheError, KvCache, KvLayout, Rewind};
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use serde::Serialize;

use crate::fragment::Drawing;
use crate::runs::{Page, Slot, Text, every_slot, write_letters};
use crate::slab::SlabLines;
use crate::svg::{Anchor, Kind, Svg, listed};

const LAYOUT: KvLayout = KvLayout { n_layers: 2, n_kv_heads: 1, head_dim: 2 };
const PAGE_SIZE: usize = 4;
const PAGES: usize = 4;
/// The letter of rows that come after a rewind, so that they can be told from those before.
const AGAIN: char = 'n';
const OPERATIONS: [(char, Operation); 6] = [
    ('a', Operation::Extend('a', 9)),
    ('b', Operation::Extend('b', 4)),
    ('b', Operation::Extend('b', 1)),
    ('a', Operation::Rewind(3)),
    ('a', Operation::Extend(AGAIN, 1)),
    ('b', Operation::Extend('b', 1)),
];

#[derive(Clone, Copy)]
enum Operation {
    /// `extend`, and `write` if it was granted. The rows get the letter as a name.
    Extend(char, usize),
    Rewind(usize),
}

#[derive(Serialize)]
pub struct Trace {
    page_size: usize,
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Frame {
    text: char,
    operation: String,
    is_rewind: bool,
    /// The refusal in words.
    refused: Option<String>,
    /// Tokens and pages of each text.
    texts: Vec<(char, usize, Vec<u32>)>,
    slab: Vec<Page>,
    free: usize,
}

pub fn record() -> Result<Trace> {
    let frames: Result<Vec<Frame>> = (1..=OPERATIONS.len()).map(frame).collect();
    Ok(Trace { page_size: PAGE_SIZE, frames: frames? })
}

/// The state after the first `done` operations, on a slab of its own.
fn frame(done: usize) -> Result<Frame> {
    let (slab, texts, outcome) = run(done)?;
    let (text, operation) = OPERATIONS[done - 1];
    let free = slab.borrow().pool().n_free();
    let tables: Vec<_> = texts.iter().map(|text| (text.name, text.cache.len(), text.pages())).collect();
    let held: usize = tables.iter().map(|(_, _, pages)| pages.len()).sum();
    ensure!(free == PAGES - held, "{free} pages are free, {held} are held");
    Ok(Frame {
        text,
        operation: operation.name(),
        is_rewind: matches!(operation, Operation::Rewind(_)),
        refused: outcome.err().map(|error| format!("{error:?}")),
        texts: tables,
        slab: every_slot(&slab, texts, PAGE_SIZE)?,
        free,
    })
}

/// A new slab after the first operations, and the outcome of the last.
fn run(done: usize) -> Result<(SharedSlab, Vec<Text>, Result<(), CacheError>)> {
    let slab = PageSlab::new(LAYOUT, PAGE_SIZE, PAGES)?;
    let mut texts = vec![Text::new('a', &slab)?, Text::new('b', &slab)?];
    let mut outcome = Ok(());
    for (name, operation) in &OPERATIONS[..done] {
        for text in texts.iter_mut().filter(|text| text.name == *name) {
            outcome = operation.run(text);
        }
    }
    Ok((slab, texts, outcome))
}

impl Operation {
    fn name(self) -> String {
        match self {
            Operation::Extend(_, n) => format!("extend({n})"),
            Operation::Rewind(n) => format!("rewind({n})"),
        }
    }

    fn run(self, text: &mut Text) -> Result<(), CacheError> {
        match self {
            Operation::Extend(letter, n) => {
                text.cache.extend(n)?;
                write_letters(&mut text.cache, letter, n);
                Ok(())
            }
            Operation::Rewind(n) => text.cache.rewind(n),
        }
    }
}

pub fn draw(trace: &Trace) -> Drawing {
    let Trace { page_size, frames } = trace;
    let last = &frames[frames.len() - 1];
    let lines = SlabLines { page_size: *page_size, n_pages: last.slab.len(), n_lines: frames.len() };
    let (mut svg, bottom) = (lines.svg(), lines.bottom());
    for (step, frame) in frames.iter().enumerate() {
        let before = step.checked_sub(1).map(|before| &frames[before]);
        svg.step(step, |svg| draw_slab(svg, lines, lines.top(step), frame, before));
    }
    svg.legend(Kind::New, 0.0, bottom + 4.0, "written now");
    svg.legend(Kind::Reused, 120.0, bottom + 4.0, "held before");
    svg.legend(Kind::Stale, 245.0, bottom + 4.0, "stale");
    svg.legend(Kind::Wasted, 0.0, bottom + 28.0, "taken, empty");
    svg.legend_free(120.0, bottom + 28.0, "free page");

    let told: Vec<String> = frames
        .iter()
        .map(|frame| format!("{}, {}", told(frame), stale_told(frame).unwrap_or("nothing is stale".into())))
        .collect();
    Drawing {
        svg,
        label: format!(
            "One slab of {} pages of {page_size} slots, one line for each step: {}. At the end {}.",
            last.slab.len(),
            told.join("; "),
            tables(last)
        ),
        caption: format!(
            "Text a goes back over a page boundary, and text b, which was refused before, takes the page. What a \
             writes after that is called {AGAIN}. A stale row stays in its slot until another is written over it. \
             Recorded from <code>PagedCache</code>, page size {page_size}, one layer; slots without a token were read \
             by extending the texts without a <code>write</code>, on a second slab that went the same way."
        ),
        steps: (0..frames.len()).map(|step| step_text(frames, step)).collect(),
    }
}

fn told(frame: &Frame) -> String {
    let refused = if frame.refused.is_some() { " refused" } else { "" };
    format!("{}: {}{refused}", frame.text, frame.operation)
}

/// `a has 6 tokens in pages 0 and 1`
fn tables(frame: &Frame) -> String {
    let table = |(name, tokens, pages): &(char, usize, Vec<u32>)| {
        let word = if pages.len() == 1 { "page" } else { "pages" };
        format!("{name} has {tokens} tokens in {word} {}", listed(pages))
    };
    let filled = frame.texts.iter().filter(|(_, tokens, _)| *tokens > 0);
    listed(&filled.map(table).collect::<Vec<_>>())
}

/// `a6 and a7 are stale in page 1`, if any are.
fn stale_told(frame: &Frame) -> Option<String> {
    let mut told = Vec::new();
    for (page, Page { slots, .. }) in frame.slab.iter().enumerate() {
        let rows: Vec<&String> = slots.iter().filter_map(Slot::stale).collect();
        match &rows[..] {
            [] => {}
            [row] => told.push(format!("{row} is stale in page {page}")),
            rows => told.push(format!("{} are stale in page {page}", listed(rows))),
        }
    }
    if told.is_empty() { None } else { Some(told.join(", ")) }
}

fn draw_slab(svg: &mut Svg, lines: SlabLines, y: f64, frame: &Frame, before: Option<&Frame>) {
    svg.bold(0.0, y + 17.0, Anchor::Start, &told(frame));
    let tables: Vec<String> = frame.texts.iter().map(|(name, _, pages)| format!("{name} {pages:?}")).collect();
    svg.text(360.0, y + 17.0, Anchor::End, &format!("{}; {} free", tables.join(", "), frame.free));
    for (page, Page { owner, slots }) in frame.slab.iter().enumerate() {
        for (slot, content) in slots.iter().enumerate() {
            let area = lines.cell(y, page, slot);
            let is_new = before.is_none_or(|before| before.slab[page].slots[slot].row != content.row);
            match (&content.row, content.held, owner) {
                (Some(row), true, _) if is_new => svg.cell(Kind::New, area, row, row),
                (Some(row), true, _) => svg.cell(Kind::Reused, area, row, row),
                (Some(row), false, _) => svg.cell(Kind::Stale, area, row, row),
                (None, _, Some(_)) => svg.cell(Kind::Wasted, area, "", ""),
                (None, _, None) => svg.free(area, "", ""),
            }
        }
    }
}

/// `1 page is free`
fn free_told(frame: &Frame) -> String {
    match frame.free {
        0 => "No page is free".into(),
        1 => "1 page is free".into(),
        n => format!("{n} pages are free"),
    }
}

fn step_text(frames: &[Frame], step: usize) -> String {
    let frame = &frames[step];
    let Frame { text, operation, .. } = frame;
    if let Some(error) = &frame.refused {
        return format!("{text}: <code>{operation}</code>: <code>{error}</code>. Nothing has changed.");
    }
    let before = step.checked_sub(1).map(|before| &frames[before]);
    let own = |frame: &Frame| -> Vec<u32> {
        let texts = frame.texts.iter().filter(|(name, ..)| name == text);
        texts.flat_map(|(_, _, pages)| pages.clone()).collect()
    };
    let fills = |frame: &Frame| {
        let filled = |page: &u32| frame.slab[*page as usize].slots.iter().filter(|slot| slot.held).count().to_string();
        own(frame).iter().map(filled).collect::<Vec<_>>().join(", ")
    };
    let filled = match before {
        Some(before) if frame.is_rewind => format!("filled {} before, {} now", fills(before), fills(frame)),
        _ => format!("filled {}", fills(frame)),
    };
    let stale = stale_told(frame).map_or(String::new(), |told| format!("; {told}"));
    let pages = own(frame);
    let word = if pages.len() == 1 { "page" } else { "pages" };
    format!("{text}: <code>{operation}</code>: {word} {}, {filled}. {}{stale}.", listed(&pages), free_told(frame))
}
