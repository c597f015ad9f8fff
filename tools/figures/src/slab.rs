//! The slab of pages after each operation: which slot holds what, and who owns the page.

use anyhow::{Result, ensure};
use page_by_page::cache::{CacheError, PageId};
use page_by_page::chapters::ch05_page_table::PageTable;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};

use crate::figures::Figure;
use crate::layout::Grid;
use crate::rows::{LAYOUT, names};
use crate::svg::{Cell, Kind, Svg, cell, named};
use crate::words::{count, joined, listed, page_numbers, pages, with_before};

pub const PAGE_SIZE: usize = 4;

pub struct State {
    operation: String,
    refused: Option<String>,
    /// The name of each, its tokens and its pages.
    sequences: Vec<(char, usize, Vec<u32>)>,
    pub slab: Vec<Page>,
    free: usize,
    pub rows_copied: u64,
}

/// A page in one layer; the others look the same.
pub struct Page {
    owners: u32,
    pub slots: Vec<Slot>,
}

#[derive(PartialEq)]
pub struct Slot {
    /// What lies there; `null` if nothing was ever written.
    pub row: Option<String>,
    /// Whether it is a token of a sequence.
    pub held: bool,
}

pub fn new_slab(n_pages: usize) -> Result<SharedSlab, CacheError> {
    PageSlab::new(LAYOUT, PAGE_SIZE, n_pages)
}

impl State {
    /// Reads the slab and these tables after an operation. All layers must look alike.
    pub fn of(
        operation: String,
        outcome: Result<(), CacheError>,
        slab: &SharedSlab,
        tables: &[(char, &PageTable)],
    ) -> Result<Self> {
        let slab = slab.borrow();
        let in_page = LAYOUT.n_layers * PAGE_SIZE * LAYOUT.kv_width();
        let mut pages = Vec::new();
        for (page, (k, v)) in (0..).map(PageId).zip(slab.keys().chunks(in_page).zip(slab.values().chunks(in_page))) {
            let layers = k.chunks(in_page / LAYOUT.n_layers).zip(v.chunks(in_page / LAYOUT.n_layers)).enumerate();
            let layers: Vec<_> = layers.map(|(layer, (k, v))| names(LAYOUT, layer, k, v)).collect::<Result<_>>()?;
            ensure!(layers.iter().all(|rows| *rows == layers[0]), "page {page:?} is not the same in all layers");
            let filled: Vec<usize> = (tables.iter())
                .filter_map(|(_, table)| {
                    let place = table.pages().iter().position(|own| *own == page)?;
                    Some((table.len() - place * PAGE_SIZE).min(PAGE_SIZE))
                })
                .collect();
            let owners = slab.pool().owners(page)?;
            ensure!(owners as usize == filled.len(), "{page:?} has {owners} owners and is in {} tables", filled.len());
            let held = filled.into_iter().max().unwrap_or(0);
            let slots = layers[0].iter().enumerate().map(|(slot, row)| Slot { row: row.clone(), held: slot < held });
            pages.push(Page { owners, slots: slots.collect() });
        }
        Ok(State {
            operation,
            refused: outcome.err().map(|error| format!("{error:?}")),
            sequences: tables.iter().map(|(name, table)| (*name, table.len(), page_numbers(table.pages()))).collect(),
            slab: pages,
            free: slab.pool().n_free(),
            rows_copied: 0,
        })
    }

    /// `a has 6 tokens in pages 0 and 1; 2 pages are free; a6 and a7 are stale in page 1`
    fn says(&self) -> String {
        let mut parts = Vec::new();
        for (name, tokens, own) in self.sequences.iter().filter(|(_, tokens, _)| *tokens > 0) {
            parts.push(format!("{name} has {} in {}", count(*tokens, "token"), pages(own)));
        }
        for (page, Page { owners, .. }) in self.slab.iter().enumerate().filter(|(_, page)| page.owners > 1) {
            parts.push(format!("page {page} has {owners} owners"));
        }
        parts.push(format!("{} free", count(self.free, "page")));
        for (page, rows) in (0..).zip(&self.slab).map(|(number, page)| (number, page.stale())) {
            if !rows.is_empty() {
                parts.push(format!("stale in page {page}: {}", listed(&rows)));
            }
        }
        parts.join("; ")
    }

    /// What happened and how the slab is then; HTML.
    pub fn step(&self) -> String {
        let happened = match (&self.refused, self.rows_copied) {
            (Some(error), _) => format!(" is refused, <code>{error}</code>: nothing changes."),
            (None, 0) => format!(": {}.", self.says()),
            (None, n) => format!(" copies {}: {}.", count(n as usize, "row"), self.says()),
        };
        format!("<code>{}</code>{happened}", self.operation)
    }

    pub fn draw(&self, svg: &mut Svg, before: Option<&State>) {
        let tables: Vec<String> = self.sequences.iter().map(|(name, _, pages)| format!("{name} {pages:?}")).collect();
        let refused = if self.refused.is_some() { " refused" } else { "" };
        svg.heading(&format!("{}{refused}", self.operation), &joined(&tables, ", "));
        let cells = self.slab.iter().enumerate().flat_map(|(page, Page { owners, slots })| {
            slots.iter().enumerate().map(move |(slot, content)| {
                let is_new = before.is_none_or(|before| before.slab[page].slots[slot].row != content.row);
                content.cell(*owners, is_new)
            })
        });
        svg.row(grid(self.slab.len()), cells);
    }
}

impl Page {
    /// The rows of tokens that no sequence holds.
    pub fn stale(&self) -> Vec<&String> {
        self.slots.iter().filter(|slot| !slot.held).filter_map(|slot| slot.row.as_ref()).collect()
    }
}

impl Slot {
    pub fn cell(&self, owners: u32, is_new: bool) -> Cell {
        match (&self.row, self.held, owners) {
            (Some(row), true, _) if is_new => named(Kind::New, row),
            (Some(row), true, 1) => named(Kind::Reused, row),
            (Some(row), true, _) => named(Kind::Shared, row),
            (Some(row), false, _) => named(Kind::Stale, row),
            (None, _, 0) => cell(Kind::Free, ""),
            (None, ..) => cell(Kind::Wasted, ""),
        }
    }
}

/// Sequences a and b in one slab of four pages after each operation on one of them. `run` gives the operation's name and
/// outcome.
pub fn of_two<O: Copy>(
    operations: &[(char, O)],
    run: impl Fn(&mut PagedCache, char, O) -> (String, Result<(), CacheError>),
) -> Result<Vec<State>> {
    let slab = new_slab(4)?;
    let mut sequences = [('a', PagedCache::new(&slab)?), ('b', PagedCache::new(&slab)?)];
    let mut states = Vec::new();
    for (name, operation) in operations {
        let (title, outcome) = run(&mut sequences[usize::from(*name == 'b')].1, *name, *operation);
        let tables = sequences.each_ref().map(|(name, cache)| (*name, cache.table()));
        states.push(State::of(format!("{name}.{title}"), outcome, &slab, &tables)?);
    }
    Ok(states)
}

pub fn grid(n_pages: usize) -> Grid {
    Grid::across(0.0, n_pages * PAGE_SIZE, PAGE_SIZE)
}

pub fn name_pages(svg: &mut Svg, n_pages: usize) {
    svg.group_names(grid(n_pages), (0..n_pages).map(|page| format!("page {page}")));
}

pub fn figure(states: &[State], legend: &[(Kind, &str)], caption: String) -> Figure {
    let mut figure = Figure { caption, ..Figure::default() };
    let n_pages = states[0].slab.len();
    name_pages(&mut figure.svg, n_pages);
    for (before, state) in with_before(states) {
        figure.step(state.step(), |svg| state.draw(svg, before));
        figure.svg.y += 4.0;
    }
    figure.svg.legend(legend);
    figure.label = format!(
        "A slab of {n_pages} pages of {PAGE_SIZE} slots, one line after each of {} operations. In the last line {}.",
        states.len(),
        states[states.len() - 1].says()
    );
    figure
}
