//! Chapter 7: the same rewind in all three caches.

use anyhow::{Result, ensure};
use page_by_page::cache::{KvCache, KvLayout, Rewind};
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch06_paged::PagedCache;
use serde::Serialize;

use crate::fragment::Drawing;
use crate::runs::{letter_names, page_numbers, slab_that_gives, write_letters};
use crate::svg::{Anchor, Area, Kind, Svg, listed, rounded};

const LAYOUT: KvLayout = KvLayout { n_layers: 2, n_kv_heads: 1, head_dim: 2 };
const PAGE_SIZE: usize = 4;
const PAGES: [u32; 3] = [12, 5, 3];
/// Slots that are shown: the contiguous cache's reservation, and all three pages.
const SHOWN: usize = 12;
const OPERATIONS: [Operation; 3] = [Operation::Extend('t', 9), Operation::Rewind(3), Operation::Extend('n', 1)];

#[derive(Clone, Copy)]
enum Operation {
    /// `extend` and `write`. The rows get the letter as a name.
    Extend(char, usize),
    Rewind(usize),
}

#[derive(Serialize)]
pub struct Trace {
    page_size: usize,
    pages: [u32; 3],
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Frame {
    operation: String,
    tokens: usize,
    flat: Content,
    contiguous: Content,
    paged: Content,
    /// The table of the paged cache.
    table: Vec<u32>,
}

/// What a cache holds in one layer; the others look the same.
#[derive(Serialize)]
struct Content {
    /// The rows in the order of the tokens, and behind them what lies in the slots that follow; `null`: nothing.
    rows: Vec<Option<String>>,
    /// Slots taken.
    slots: usize,
    rows_copied: u64,
}

pub fn record() -> Result<Trace> {
    let frames: Result<Vec<Frame>> = (1..=OPERATIONS.len()).map(frame).collect();
    Ok(Trace { page_size: PAGE_SIZE, pages: PAGES, frames: frames? })
}

/// The state after the first `done` operations.
fn frame(done: usize) -> Result<Frame> {
    let (slab, _others) = slab_that_gives(LAYOUT, PAGE_SIZE, &PAGES)?;
    let (mut paged, mut flat) = (PagedCache::new(&slab)?, FlatCache::new(LAYOUT));
    let mut contiguous = ContiguousCache::new(LAYOUT, SHOWN);
    let caches: [&mut dyn Rewind; 3] = [&mut flat, &mut contiguous, &mut paged];
    for cache in caches {
        for operation in &OPERATIONS[..done] {
            operation.run(cache)?;
        }
    }
    let tokens = flat.len();
    ensure!([contiguous.len(), paged.len()] == [tokens; 2], "all hold the same tokens");
    let table = page_numbers(paged.table().pages());
    let flat_slots = flat.usage().slots;
    Ok(Frame {
        operation: OPERATIONS[done - 1].name(),
        tokens,
        flat: content(flat, flat_slots)?,
        contiguous: content(contiguous, SHOWN)?,
        paged: content(paged, SHOWN)?,
        table,
    })
}

/// Reads a cache as far as `shown` slots: those without a token are taken with `extend`, and nothing is written there.
/// What `gather` then shows was there before.
fn content(mut cache: impl Rewind, shown: usize) -> Result<Content> {
    let usage = cache.usage();
    cache.extend(shown - cache.len())?;
    Ok(Content { rows: letter_names(&cache)?, slots: usage.slots, rows_copied: usage.rows_copied })
}

impl Operation {
    fn name(self) -> String {
        match self {
            Operation::Extend(_, n) => format!("extend({n})"),
            Operation::Rewind(n) => format!("rewind({n})"),
        }
    }

    fn run(self, cache: &mut dyn Rewind) -> Result<()> {
        match self {
            Operation::Extend(letter, n) => {
                cache.extend(n)?;
                write_letters(cache, letter, n);
            }
            Operation::Rewind(n) => cache.rewind(n)?,
        }
        Ok(())
    }
}

const LEFT: f64 = 80.0;
const PITCH: f64 = 22.6;
const CELL: f64 = 20.2;
const GAP: f64 = 4.0;
const HEIGHT: f64 = 26.0;
const ROW: f64 = 33.0;
/// A frame: its name, three caches, and the pages' numbers.
const FRAME: f64 = 26.0 + 3.0 * ROW + 38.0;

pub fn draw(trace: &Trace) -> Drawing {
    let Trace { page_size, pages, frames } = trace;
    let bottom = frames.len() as f64 * FRAME;
    let mut svg = Svg::new(bottom + 50.0);
    for (step, frame) in frames.iter().enumerate() {
        let before = step.checked_sub(1).map(|before| &frames[before]);
        svg.step(step, |svg| draw_frame(svg, step as f64 * FRAME, trace, frame, before));
    }
    svg.legend(Kind::New, 0.0, bottom + 4.0, "written now");
    svg.legend(Kind::Reused, 120.0, bottom + 4.0, "held");
    svg.legend(Kind::Stale, 205.0, bottom + 4.0, "stale");
    svg.legend(Kind::Wasted, 0.0, bottom + 28.0, "taken, empty");
    svg.legend_free(120.0, bottom + 28.0, "free page");

    let told: Vec<String> =
        frames.iter().map(|frame| format!("{}: {} tokens", frame.operation, frame.tokens)).collect();
    let (rewound, last) = (&frames[1], &frames[frames.len() - 1]);
    Drawing {
        svg,
        label: format!(
            "The flat, the contiguous and the paged cache go the same way, {}. After the rewind, the contiguous cache \
             still has the rows {} behind its end; the paged cache has pages {} left, and page {} is free. The next \
             token takes the first of these slots.",
            told.join("; "),
            listed(&stale(rewound.tokens, &rewound.contiguous)),
            listed(&rewound.table),
            pages[pages.len() - 1]
        ),
        caption: format!(
            "Nine tokens, three forgotten, a new one, n6: the same in all three caches, at different prices. Only the \
             flat cache copies, {} rows, and not to rewind but to grow again. Stale rows stay where they are until \
             something is written over them. Recorded from the caches of chapters 2, 3 and 6, one layer, page size \
             {page_size}; what lies behind a text was read by extending it without a <code>write</code>.",
            last.flat.rows_copied
        ),
        steps: (0..frames.len()).map(|step| step_text(trace, step)).collect(),
    }
}

/// The left edge of a slot's cell.
fn x(slot: usize) -> f64 {
    LEFT + slot as f64 * PITCH
}

/// The left edge of a slot's cell in the paged cache, whose pages stand a little apart.
fn paged_x(slot: usize, page_size: usize) -> f64 {
    x(slot) + (slot / page_size) as f64 * GAP
}

/// The rows behind the last token.
fn stale(tokens: usize, content: &Content) -> Vec<&String> {
    content.rows[tokens..].iter().flatten().collect()
}

fn draw_frame(svg: &mut Svg, y: f64, trace: &Trace, frame: &Frame, before: Option<&Frame>) {
    let Trace { page_size, pages, .. } = trace;
    svg.bold(0.0, y + 16.0, Anchor::Start, &frame.operation);
    svg.text(358.0, y + 16.0, Anchor::End, &copied_told(frame));
    let contents = [
        ("flat", &frame.flat, before.map(|before| &before.flat)),
        ("contiguous", &frame.contiguous, before.map(|before| &before.contiguous)),
        ("paged", &frame.paged, before.map(|before| &before.paged)),
    ];
    for (line, (name, content, before)) in contents.into_iter().enumerate() {
        let y = y + 26.0 + line as f64 * ROW;
        svg.text(0.0, y + 18.0, Anchor::Start, name);
        for (slot, row) in content.rows.iter().enumerate() {
            let x = if name == "paged" { paged_x(slot, *page_size) } else { x(slot) };
            let area = Area { x, y, width: CELL, height: HEIGHT };
            let is_new = before.is_none_or(|before| before.rows.get(slot) != Some(row));
            match row {
                Some(row) if slot < frame.tokens && is_new => svg.cell(Kind::New, area, row, row),
                Some(row) if slot < frame.tokens => svg.cell(Kind::Reused, area, row, row),
                Some(row) => svg.cell(Kind::Stale, area, row, row),
                None if slot < content.slots => svg.cell(Kind::Wasted, area, "", ""),
                None => svg.free(area, "", ""),
            }
        }
    }
    let y = y + 26.0 + 3.0 * ROW;
    for (index, page) in pages.iter().enumerate() {
        let (first, end) =
            (paged_x(index * page_size, *page_size), paged_x((index + 1) * page_size - 1, *page_size) + CELL);
        let state = if frame.table.contains(page) { "" } else { ", free" };
        svg.line(&format!("M{} {}v6H{}v-6", rounded(first), rounded(y - 4.0), rounded(end)));
        svg.text((first + end) / 2.0, y + 17.0, Anchor::Middle, &format!("page {page}{state}"));
    }
}

fn copied_told(frame: &Frame) -> String {
    let caches = [("flat", &frame.flat), ("contiguous", &frame.contiguous), ("paged", &frame.paged)];
    let copying = caches.iter().filter(|(_, content)| content.rows_copied > 0);
    let told: Vec<String> =
        copying.map(|(name, content)| format!("{name}: {} rows copied", content.rows_copied)).collect();
    if told.is_empty() { "no row copied".into() } else { told.join(", ") }
}

fn step_text(trace: &Trace, step: usize) -> String {
    let frame = &trace.frames[step];
    let Frame { operation, tokens, flat, contiguous, table, .. } = frame;
    let pages = if table.len() == 1 { "page" } else { "pages" };
    let free: Vec<u32> = trace.pages.iter().filter(|page| !table.contains(page)).copied().collect();
    let free = if free.is_empty() { String::new() } else { format!(", page {} is free", listed(&free)) };
    let behind = stale(*tokens, contiguous);
    let behind = match &behind[..] {
        [] => String::new(),
        [row] => format!(", with the stale row {row} behind them"),
        rows => format!(", with the stale rows {} behind them", listed(rows)),
    };
    format!(
        "<code>{operation}</code>: {tokens} tokens. Flat: in {} slots, {} rows copied so far. Contiguous: in {} \
         slots{behind}. Paged: in {pages} {}{free}.",
        flat.slots,
        flat.rows_copied,
        contiguous.slots,
        listed(table)
    )
}
