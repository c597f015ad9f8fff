//! Chapter 10: two texts share pages; one grows, copies the rows of the shared tail, and the other stays.

use anyhow::{Context, Result, ensure};
use page_by_page::cache::{KvCache, KvLayout, PageId};
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::chapters::ch10_fork::ForkCache;
use serde::Serialize;

use crate::fragment::Drawing;
use crate::runs::{page_numbers, slot_names, write_letters};
use crate::slab::SlabLines;
use crate::svg::{Anchor, Kind, Svg, listed};

const LAYOUT: KvLayout = KvLayout { n_layers: 2, n_kv_heads: 1, head_dim: 2 };
const PAGE_SIZE: usize = 4;
const PAGES: usize = 4;
const OPERATIONS: [Operation; 6] = [
    Operation::Extend('a', 6),
    Operation::Fork,
    Operation::Extend('b', 1),
    Operation::Extend('a', 1),
    Operation::Extend('b', 2),
    Operation::Drop('a'),
];

#[derive(Clone, Copy)]
enum Operation {
    /// `extend` and `write`.
    Extend(char, usize),
    /// Text b becomes a fork of text a.
    Fork,
    Drop(char),
}

#[derive(Serialize)]
pub struct Trace {
    page_size: usize,
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Frame {
    operation: String,
    /// Rows that were copied in this step.
    copied: u64,
    texts: Vec<Text>,
    slab: Vec<Page>,
    free: usize,
}

#[derive(Clone, Serialize)]
struct Text {
    name: char,
    tokens: usize,
    pages: Vec<u32>,
}

#[derive(Serialize)]
struct Page {
    owners: u32,
    slots: Vec<Slot>,
}

#[derive(PartialEq, Serialize)]
struct Slot {
    /// What lies there; `null` if nothing was ever written.
    row: Option<String>,
    /// Whether it is a token of a text.
    held: bool,
}

impl Operation {
    fn name(self) -> String {
        match self {
            Operation::Extend(text, n) => format!("{text}.extend({n})"),
            Operation::Fork => "b = a.fork()".into(),
            Operation::Drop(text) => format!("drop({text})"),
        }
    }

    fn run(self, texts: &mut Vec<(char, ForkCache)>) -> Result<()> {
        let of = |texts: &[(char, ForkCache)], name| texts.iter().position(|text| text.0 == name);
        match self {
            Operation::Extend(name, n) => {
                let index = of(texts, name).context("no such text")?;
                let cache = &mut texts[index].1;
                cache.extend(n)?;
                write_letters(cache, name, n);
            }
            Operation::Fork => {
                let fork = texts[of(texts, 'a').context("no text a")?].1.fork()?;
                texts.push(('b', fork));
            }
            Operation::Drop(name) => texts.retain(|text| text.0 != name),
        }
        Ok(())
    }
}

pub fn record() -> Result<Trace> {
    let slab = PageSlab::new(LAYOUT, PAGE_SIZE, PAGES)?;
    let mut texts = vec![('a', ForkCache::new(&slab)?)];
    let mut frames = Vec::new();
    for operation in OPERATIONS {
        let before = copied(&texts);
        operation.run(&mut texts)?;
        frames.push(frame(operation.name(), copied(&texts).saturating_sub(before), &slab, &texts)?);
    }
    Ok(Trace { page_size: PAGE_SIZE, frames })
}

fn copied(texts: &[(char, ForkCache)]) -> u64 {
    texts.iter().map(|(_, cache)| cache.usage().rows_copied).sum()
}

fn frame(operation: String, copied: u64, slab: &SharedSlab, texts: &[(char, ForkCache)]) -> Result<Frame> {
    let texts: Vec<Text> = texts
        .iter()
        .map(|(name, cache)| Text { name: *name, tokens: cache.len(), pages: page_numbers(cache.table().pages()) })
        .collect();
    let mut pages = Vec::new();
    for (page, names) in (0..).zip(slot_names(slab, LAYOUT, PAGE_SIZE)?) {
        let owners = slab.borrow().pool().owners(PageId(page))?;
        let filled = texts.iter().filter_map(|text| {
            let place = text.pages.iter().position(|own| *own == page)?;
            Some((text.tokens - place * PAGE_SIZE).min(PAGE_SIZE))
        });
        let filled: Vec<usize> = filled.collect();
        ensure!(owners as usize == filled.len(), "page {page} has {owners} owners and is in {} tables", filled.len());
        let most = filled.into_iter().max().unwrap_or(0);
        let slots = names.into_iter().enumerate().map(|(slot, row)| Slot { row, held: slot < most });
        pages.push(Page { owners, slots: slots.collect() });
    }
    let free = slab.borrow().pool().n_free();
    Ok(Frame { operation, copied, texts, slab: pages, free })
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
    svg.legend(Kind::Shared, 120.0, bottom + 4.0, "shared");
    svg.legend(Kind::Reused, 210.0, bottom + 4.0, "held by one");
    svg.legend(Kind::Wasted, 0.0, bottom + 28.0, "taken, empty");
    svg.legend(Kind::Stale, 120.0, bottom + 28.0, "stale");
    svg.legend_free(210.0, bottom + 28.0, "free page");

    let told: Vec<String> = frames.iter().map(|frame| format!("{}: {}", frame.operation, state(frame))).collect();
    Drawing {
        svg,
        label: format!(
            "One slab of {} pages of {page_size} slots, one line for each step. {}.",
            last.slab.len(),
            told.join("; ")
        ),
        caption: format!(
            "Text b is forked from a, grows, and copies two rows before it does; copies count as written. What b has written itself is called b. \
             Recorded from <code>ForkCache</code> and its slab, page size {page_size}; keys, values and both layers lie \
             alike."
        ),
        steps: frames.iter().map(step_text).collect(),
    }
}

/// `a has pages 0 and 1, b has pages 0 and 2; owners 2, 1, 1 and 0`
fn state(frame: &Frame) -> String {
    let tables: Vec<String> =
        frame.texts.iter().map(|text| format!("{} has pages {}", text.name, listed(&text.pages))).collect();
    let owners: Vec<u32> = frame.slab.iter().map(|page| page.owners).collect();
    format!("{}; owners of the pages {}", tables.join(", "), listed(&owners))
}

fn draw_slab(svg: &mut Svg, lines: SlabLines, y: f64, frame: &Frame, before: Option<&Frame>) {
    svg.bold(0.0, y + 17.0, Anchor::Start, &frame.operation);
    let tables: Vec<String> = frame.texts.iter().map(|text| format!("{} {:?}", text.name, text.pages)).collect();
    svg.text(360.0, y + 17.0, Anchor::End, &format!("{}; {} copied", tables.join(", "), frame.copied));
    for (page, Page { owners, slots }) in frame.slab.iter().enumerate() {
        for (slot, content) in slots.iter().enumerate() {
            let area = lines.cell(y, page, slot);
            let is_new = before.is_none_or(|before| before.slab[page].slots[slot].row != content.row);
            match (&content.row, content.held, owners) {
                (Some(row), true, _) if is_new => svg.cell(Kind::New, area, row, row),
                (Some(row), true, 1) => svg.cell(Kind::Reused, area, row, row),
                (Some(row), true, _) => svg.cell(Kind::Shared, area, row, row),
                (Some(row), false, _) => svg.cell(Kind::Stale, area, row, row),
                (None, _, 0) => svg.free(area, "", ""),
                (None, ..) => svg.cell(Kind::Wasted, area, "", ""),
            }
        }
    }
}

fn step_text(frame: &Frame) -> String {
    let copied = match frame.copied {
        0 => String::new(),
        n => format!(" {n} rows are copied."),
    };
    format!("<code>{}</code>:{copied} {}.", frame.operation, capitalised(&state(frame), !copied.is_empty()))
}

/// The first letter of a sentence; the names of texts stay small.
fn capitalised(text: &str, begins: bool) -> String {
    if begins { format!("Then {text}") } else { text.into() }
}
