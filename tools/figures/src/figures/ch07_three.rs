//! Chapter 7: the same rewind in all three caches.

use anyhow::{Result, ensure};
use page_by_page::cache::{KvCache, PageId, Rewind};
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};

use super::Figure;
use super::ch07_rewind::Operation;
use crate::layout::Grid;
use crate::rows::{LAYOUT, of_layer};
use crate::svg::{Anchor, Kind, cell, named, rounded};
use crate::words::{count, listed, page_numbers, pages};

const PAGE_SIZE: usize = 4;
const PAGES: [u32; 3] = [12, 5, 3];
/// Slots that are shown: the contiguous cache's reservation, and all three pages.
const SHOWN: usize = 12;
const OPERATIONS: [Operation; 3] = [Operation::Extend('t', 9), Operation::Rewind(3), Operation::Extend('n', 1)];

struct State {
    tokens: usize,
    caches: [Content; 3],
    pages: Vec<u32>,
}

/// What a cache holds in one layer; the others look the same.
struct Content {
    /// The rows in the order of the tokens, and after them the content of the slots that follow; `None`: nothing.
    rows: Vec<Option<String>>,
    slots: usize,
    rows_copied: usize,
}

impl State {
    fn after(operations: &[Operation]) -> Result<Self> {
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
        let caches = [content(flat, flat_slots)?, content(contiguous, SHOWN)?, content(paged, SHOWN)?];
        Ok(State { tokens, caches, pages })
    }

    fn says(&self) -> String {
        let State { tokens, caches: [flat, contiguous, _], pages: table } = self;
        let stale: Vec<&String> = contiguous.rows[*tokens..].iter().flatten().collect();
        let stale =
            if stale.is_empty() { String::new() } else { format!(", followed by stale rows: {}", listed(&stale)) };
        let free: Vec<u32> = PAGES.into_iter().filter(|page| !table.contains(page)).collect();
        let free = if free.is_empty() { String::new() } else { format!(", free: {}", pages(&free)) };
        format!(
            "{}. Flat: in {}, {} copied so far. Contiguous: in {}{stale}. Paged: in {}{free}.",
            count(*tokens, "token"),
            count(flat.slots, "slot"),
            count(flat.rows_copied, "row"),
            count(contiguous.slots, "slot"),
            pages(table)
        )
    }
}

/// Reads a cache as far as `shown` slots: those without a token are taken with `extend`, and nothing is written there.
/// What `gather` then shows was there before.
fn content(mut cache: impl Rewind, shown: usize) -> Result<Content> {
    let usage = cache.usage();
    cache.extend(shown - cache.len())?;
    Ok(Content { rows: of_layer(&cache, 0)?, slots: usage.slots, rows_copied: usage.rows_copied as usize })
}

pub fn figure() -> Result<Figure> {
    let grid = Grid::across(80.0, SHOWN, PAGE_SIZE);
    let mut figure = Figure::default();
    let mut before: Option<State> = None;
    let mut copied = String::new();
    for done in 1..=OPERATIONS.len() {
        let (operation, state) = (OPERATIONS[done - 1].name(), State::after(&OPERATIONS[..done])?);
        copied = count(state.caches[0].rows_copied, "row");
        figure.step(format!("<code>{operation}</code>: {}", state.says()), |svg| {
            svg.heading(&operation, &format!("flat: {copied} copied"));
            for (index, (name, content)) in ["flat", "contiguous", "paged"].into_iter().zip(&state.caches).enumerate() {
                let held = before.as_ref().map_or(&[][..], |before| &before.caches[index].rows);
                let kind = |slot, row| match held.get(slot) {
                    _ if slot >= state.tokens => Kind::Stale,
                    Some(before) if before == row => Kind::Reused,
                    _ => Kind::New,
                };
                let cells = content.rows.iter().enumerate().map(|(slot, row)| match row {
                    Some(name) => named(kind(slot, row), name),
                    None => cell(if slot < content.slots { Kind::Wasted } else { Kind::Free }, ""),
                });
                svg.label(name);
                svg.row(grid, cells);
            }
            for (index, page) in PAGES.iter().enumerate() {
                let (area, free) = (grid.group(index, svg.y), if state.pages.contains(page) { "" } else { ", free" });
                let [left, right, y] = [area.x, area.x + area.width, svg.y - 2.0].map(rounded);
                svg.line(&format!("M{left} {y}v6H{right}v-6"));
                svg.text(area.middle(), svg.y + 18.0, Anchor::Middle, &format!("page {page}{free}"));
            }
            svg.y += 24.0;
        });
        figure.svg.y += 10.0;
        before = Some(state);
    }
    figure.svg.legend(&[
        (Kind::New, "written now"),
        (Kind::Reused, "held"),
        (Kind::Stale, "stale"),
        (Kind::Wasted, "taken, empty"),
        (Kind::Free, "free page"),
    ]);
    figure.label = format!(
        "The flat, the contiguous and the paged cache after each of {} operations. After the rewind, rows of forgotten tokens still \
         lie in the slots that the next token takes.",
        OPERATIONS.len()
    );
    figure.caption = format!(
        "<strong>The same rewind costs nothing in any of the three caches.</strong> Only the flat cache copies, {copied}, and not to \
         rewind but to grow again. Stale rows stay where they are until something is written over them. Recorded from the caches of \
         chapters 2, 3 and 6, one layer, page size {PAGE_SIZE}; the slots after the last token were read by extending without a \
         <code>write</code>.",
    );
    Ok(figure)
}
