//! The slab of pages after each operation: which slot holds what, and who owns the page.

use anyhow::{Result, ensure};
use page_by_page::cache::{CacheError, PageId};
use page_by_page::chapters::ch05_page_table::PageTable;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};

use crate::figures::Figure;
use crate::picture::{Cell, Grid, Picture, blank, empty, free, held, shared, stale};
use crate::rows::{LAYOUT, names};
use crate::words::{count, listed, page_numbers, pages};

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
    pub owners: Vec<char>,
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
            let filled = (tables.iter()).filter_map(|(name, table)| {
                let place = table.pages().iter().position(|own| *own == page)?;
                Some((*name, (table.len() - place * PAGE_SIZE).min(PAGE_SIZE)))
            });
            let (owners, filled): (Vec<char>, Vec<usize>) = filled.unzip();
            let counted = slab.pool().owners(page)?;
            ensure!(
                counted as usize == owners.len(),
                "{page:?} has {counted} owners and is in {} tables",
                owners.len()
            );
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
        for (page, Page { owners, .. }) in self.slab.iter().enumerate().filter(|(_, page)| page.owners.len() > 1) {
            parts.push(format!("page {page} has {} owners", owners.len()));
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

    /// The pages with their slots, and the table of each sequence.
    pub fn draw(&self, picture: &mut Picture) {
        self.draw_pages(picture);
        picture.space(8.0);
        picture.labelled(&["table of a"]);
        picture.beside(2, |picture, sequence| {
            let name = ['a', 'b'][sequence];
            let own = self.sequences.iter().find(|(other, ..)| *other == name).map_or(&[][..], |(_, _, pages)| pages);
            let places = (0..self.slab.len()).map(|place| own.get(place).map_or(blank(), |page| held(name, page)));
            picture.row(&format!("table of {name}"), "", 1, places);
        });
        picture.labels = 0.0;
    }

    /// Returns where the slots are.
    pub fn draw_pages(&self, picture: &mut Picture) -> Grid {
        let names: Vec<String> = (0..self.slab.len()).map(|page| format!("page {page}")).collect();
        picture.pages(&names, PAGE_SIZE, self.slab.iter().flat_map(Page::cells))
    }
}

impl Page {
    pub fn cells(&self) -> impl Iterator<Item = Cell> {
        self.slots.iter().map(|Slot { row, held: is_held }| match (row, &self.owners[..]) {
            (Some(row), [owner]) if *is_held => held(*owner, row),
            (Some(row), owners) if *is_held => shared(owners, row),
            (Some(row), _) => stale(row),
            (None, []) => free(""),
            (None, [owner, ..]) => empty(*owner),
        })
    }

    /// The rows of tokens that no sequence holds.
    pub fn stale(&self) -> Vec<&String> {
        self.slots.iter().filter(|slot| !slot.held).filter_map(|slot| slot.row.as_ref()).collect()
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

pub fn figure(states: &[State], message: String, setup: String) -> Figure {
    let last = &states[states.len() - 1];
    let label = format!("A pool of {} pages of {PAGE_SIZE} slots. In the end {}.", last.slab.len(), last.says());
    let mut figure = Figure { label, message, setup, ..Figure::default() };
    for state in states {
        figure.frame(state.step(), |picture| state.draw(picture));
    }
    figure
}
