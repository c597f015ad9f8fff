//! Chapter 7: the same rewind in all three caches.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use page_by_page::cache::{KvCache, PageId, Rewind};
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};

use super::Figure;
use super::ch07_rewind::Operation;
use crate::layout::Grid;
use crate::rows::{LAYOUT, of_layer};
use crate::svg::{Anchor, Kind, Svg, cell, named, rounded};
use crate::words::{count, listed, page_numbers, pages, with_before};

const PAGE_SIZE: usize = 4;
const PAGES: [u32; 3] = [12, 5, 3];
/// Slots that are shown: the contiguous cache's reservation, and all three pages.
const SHOWN: usize = 12;
const CACHES: [&str; 3] = ["flat", "contiguous", "paged"];
const OPERATIONS: [Operation; 3] = [Operation::Extend('t', 9), Operation::Rewind(3), Operation::Extend('n', 1)];

struct Frame {
    operation: String,
    tokens: usize,
    caches: BTreeMap<&'static str, Content>,
    /// The table of the paged cache.
    pages: Vec<u32>,
}

/// What a cache holds in one layer; the others look the same.
struct Content {
    /// The rows in the order of the tokens, and after them the content of the slots that follow; `null`: nothing.
    rows: Vec<Option<String>>,
    slots: usize,
    rows_copied: u64,
}

fn record() -> Result<Vec<Frame>> {
    let frames = (1..=OPERATIONS.len()).map(|done| frame(&OPERATIONS[..done]));
    Ok(frames.collect::<Result<_>>()?)
}

/// The state after these operations.
fn frame(operations: &[Operation]) -> Result<Frame> {
    // A slab that hands out these pages next; the others are taken.
    let slab = PageSlab::new(LAYOUT, PAGE_SIZE, 16)?;
    let mut others = Vec::new();
    for _ in 0..16 {
        let mut other = PagedCache::new(&slab)?;
        other.extend(1)?;
        others.push(other);
    }
    PAGES.iter().rev().for_each(|page| others.retain(|other| other.table().pages()[0] != PageId(*page)));

    let (mut flat, mut contiguous) = (FlatCache::new(LAYOUT), ContiguousCache::new(LAYOUT, SHOWN));
    let mut paged = PagedCache::new(&slab)?;
    let caches: [&mut dyn Rewind; 3] = [&mut flat, &mut contiguous, &mut paged];
    for cache in caches {
        operations.iter().try_for_each(|operation| operation.run(cache))?;
    }
    let (tokens, pages) = (flat.len(), page_numbers(paged.table().pages()));
    ensure!([contiguous.len(), paged.len()] == [tokens; 2], "all hold the same tokens");
    let flat_slots = flat.usage().slots;
    let contents = [content(flat, flat_slots)?, content(contiguous, SHOWN)?, content(paged, SHOWN)?];
    let caches = CACHES.into_iter().zip(contents).collect();
    Ok(Frame { operation: operations[operations.len() - 1].name(), tokens, caches, pages })
}

/// Reads a cache as far as `shown` slots: those without a token are taken with `extend`, and nothing is written there.
/// What `gather` then shows was there before.
fn content(mut cache: impl Rewind, shown: usize) -> Result<Content> {
    let usage = cache.usage();
    cache.extend(shown - cache.len())?;
    Ok(Content { rows: of_layer(&cache, 0)?, slots: usage.slots, rows_copied: usage.rows_copied })
}

pub fn figure() -> Result<Figure> {
    let frames = &record()?;
    let mut svg = Svg::new();
    for (before, frame) in with_before(frames) {
        svg.step(|svg| draw_frame(svg, frame, before));
        svg.y += 10.0;
    }
    svg.legend(&[
        (Kind::New, "written now"),
        (Kind::Reused, "held"),
        (Kind::Stale, "stale"),
        (Kind::Wasted, "taken, empty"),
        (Kind::Free, "free page"),
    ]);
    Ok(Figure {
        svg,
        label: format!(
            "The flat, the contiguous and the paged cache after each of {} operations. After the rewind, rows of forgotten tokens \
             still lie in the slots that the next token takes.",
            frames.len()
        ),
        caption: format!(
            "<strong>The same rewind costs nothing in any of the three caches.</strong> Only the flat cache copies, {}, and not to \
             rewind but to grow again. Stale rows stay where they are until something is written over them. Recorded from the \
             caches of chapters 2, 3 and 6, one layer, page size {PAGE_SIZE}; the slots after the last token were read by \
             extending without a <code>write</code>.",
            count(frames[frames.len() - 1].caches["flat"].rows_copied as usize, "row")
        ),
        steps: frames.iter().map(step_text).collect(),
        ..Figure::default()
    })
}

fn draw_frame(svg: &mut Svg, frame: &Frame, before: Option<&Frame>) {
    let grid = Grid::across(80.0, SHOWN, PAGE_SIZE);
    let copied = frame.caches["flat"].rows_copied;
    svg.heading(&frame.operation, &format!("flat: {} copied", count(copied as usize, "row")));
    for name in CACHES {
        let content = &frame.caches[name];
        svg.label(name);
        svg.row(
            grid,
            content.rows.iter().enumerate().map(|(slot, row)| {
                let is_new = before.is_none_or(|before| before.caches[name].rows.get(slot) != Some(row));
                match row {
                    Some(row) if slot >= frame.tokens => named(Kind::Stale, row),
                    Some(row) => named(if is_new { Kind::New } else { Kind::Reused }, row),
                    None => cell(if slot < content.slots { Kind::Wasted } else { Kind::Free }, ""),
                }
            }),
        );
    }
    for (index, page) in PAGES.iter().enumerate() {
        let area = grid.group(index, svg.y);
        let state = if frame.pages.contains(page) { "" } else { ", free" };
        svg.line(&format!("M{} {}v6H{}v-6", rounded(area.x), rounded(svg.y - 2.0), rounded(area.x + area.width)));
        svg.text(area.middle(), svg.y + 18.0, Anchor::Middle, &format!("page {page}{state}"));
    }
    svg.y += 24.0;
}

fn step_text(frame: &Frame) -> String {
    let Frame { operation, tokens, caches, pages: table } = frame;
    let stale: Vec<&String> = caches["contiguous"].rows[*tokens..].iter().flatten().collect();
    let stale = if stale.is_empty() { String::new() } else { format!(", followed by stale rows: {}", listed(&stale)) };
    let free: Vec<u32> = PAGES.into_iter().filter(|page| !table.contains(page)).collect();
    let free = if free.is_empty() { String::new() } else { format!(", free: {}", pages(&free)) };
    format!(
        "<code>{operation}</code>: {}. Flat: in {}, {} copied so far. Contiguous: in {}{stale}. Paged: in {}{free}.",
        count(*tokens, "token"),
        count(caches["flat"].slots, "slot"),
        count(caches["flat"].rows_copied as usize, "row"),
        count(caches["contiguous"].slots, "slot"),
        pages(table)
    )
}
