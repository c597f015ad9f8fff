//! The slab of pages after each operation: which slot holds what, and who owns the page.

use anyhow::{Result, ensure};
use page_by_page::cache::{CacheError, PageId};
use page_by_page::chapters::ch05_page_table::PageTable;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};

use crate::figures::Figure;
use crate::picture::{Cell, Grid, Picture, blank, empty, free, held, owned, stale};
use crate::rows::{LAYOUT, names};
use crate::words::{count, listed, pages, span};

pub const PAGE_SIZE: usize = 4;

#[derive(Default)]
pub struct State {
    operation: String,
    refused: Option<String>,
    sequences: Vec<Sequence>,
    pub slab: Vec<Page>,
    free: usize,
}

/// Its name, its tokens and its pages.
type Sequence = (char, usize, Vec<PageId>);

/// A page in one layer; the others look the same.
#[derive(PartialEq)]
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
            sequences: tables.iter().map(|(name, table)| (*name, table.len(), table.pages().to_vec())).collect(),
            slab: pages,
            free: slab.pool().n_free(),
        })
    }

    /// `a has 6 tokens in pages 0 and 1, and b has 1 token in page 2`
    fn says(&self) -> String {
        let part = |(name, tokens, own): &Sequence| format!("{name} has {} in {}", count(*tokens, "token"), pages(own));
        self.sequences.iter().map(part).collect::<Vec<_>>().join(", and ")
    }

    fn sequence(&self, name: char) -> Option<&Sequence> {
        self.sequences.iter().find(|(other, ..)| *other == name)
    }

    /// What the operation did to the state before it, and what to notice; HTML.
    pub fn step(&self, before: &State) -> String {
        let operation = format!("<code>{}</code>", self.operation);
        if let Some(error) = &self.refused {
            let is_same = (&self.sequences, &self.slab, self.free) == (&before.sequences, &before.slab, before.free);
            let rest =
                if is_same { "Every table and every row stays as it was." } else { "Yet something has changed." };
            return format!("{operation} is refused with <code>{error}</code>. {rest}");
        }
        let changed = self.sequences.iter().find(|sequence| !before.sequences.contains(sequence));
        let happened = changed.map_or("nothing changes".into(), |changed| self.changed(before, changed));
        let notice = if self.free == 0 && before.free > 0 { " No page is free now." } else { "" };
        format!("{operation}: {happened}.{notice}")
    }

    fn changed(&self, before: &State, (name, tokens, own): &Sequence) -> String {
        let (had_tokens, had) = before.sequence(*name).map_or((0, &[][..]), |(_, tokens, had)| (*tokens, &had[..]));
        let (old, taken): (Vec<PageId>, Vec<PageId>) = own.iter().partition(|page| had.contains(page));
        let left: Vec<PageId> = had.iter().copied().filter(|page| !own.contains(page)).collect();
        if *tokens < had_tokens {
            let stale: Vec<&String> = had.iter().flat_map(|page| self.slab[page.index()].stale()).collect();
            let forgotten = count(had_tokens - tokens, "token");
            return format!(
                "{name} forgets {forgotten} and returns {}. The rows {} stay where they are, stale",
                pages(&left),
                listed(&stale)
            );
        }
        let ((fitting, over), (others, over_others)) = (self.written(before, &old), self.written(before, &taken));
        let mut parts = Vec::new();
        if let (Some(last), false) = (old.last(), fitting.is_empty()) {
            let go = if fitting.len() == 1 { "goes" } else { "go" };
            parts.push(format!("{} {go} into page {last}", span(&fitting)));
        }
        if !taken.is_empty() {
            parts.push(format!("{name} takes {} for {}", pages(&taken), span(&others)));
        }
        let over = [over, over_others].concat();
        let over = if over.is_empty() { String::new() } else { format!(", over the stale {}", listed(&over)) };
        let enough = if taken.is_empty() { format!(", so {name} takes no page") } else { String::new() };
        parts.join(", and ") + &over + &enough
    }

    /// The rows of tokens that these pages did not hold before, and the stale rows that lay in their slots.
    fn written(&self, before: &State, pages: &[PageId]) -> (Vec<String>, Vec<String>) {
        let slots = pages.iter().flat_map(|page| {
            let was = before.slab.get(page.index()).map_or(&[][..], |page| &page.slots);
            self.slab[page.index()].slots.iter().enumerate().map(|(slot, now)| (now, was.get(slot)))
        });
        let new = slots.filter(|(now, was)| now.held && was.is_none_or(|was| !was.held));
        let (rows, over): (Vec<_>, Vec<_>) =
            new.map(|(now, was)| (now.row.clone(), was.and_then(|was| was.row.clone()))).unzip();
        (rows.into_iter().flatten().collect(), over.into_iter().flatten().collect())
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
            (Some(row), owners) if *is_held => owned(owners, row, stale(None, row)),
            (Some(row), []) => stale(None, row),
            (Some(row), [owner, ..]) => stale(Some(*owner), row),
            (None, []) => free(""),
            (None, [owner, ..]) => empty(*owner),
        })
    }

    /// The rows of tokens that no sequence holds.
    pub fn stale(&self) -> Vec<&String> {
        self.slots.iter().filter(|slot| !slot.held).filter_map(|slot| slot.row.as_ref()).collect()
    }
}

/// Sequences a and b in one slab of four pages, before all operations and after each. `run` gives the operation's name and
/// outcome.
pub fn of_two<O: Copy>(
    operations: &[(char, O)],
    run: impl Fn(&mut PagedCache, char, O) -> (String, Result<(), CacheError>),
) -> Result<Vec<State>> {
    let slab = new_slab(4)?;
    let mut sequences = [('a', PagedCache::new(&slab)?), ('b', PagedCache::new(&slab)?)];
    let mut states = vec![State::default()];
    for (name, operation) in operations {
        let (title, outcome) = run(&mut sequences[usize::from(*name == 'b')].1, *name, *operation);
        let tables = sequences.each_ref().map(|(name, cache)| (*name, cache.table()));
        states.push(State::of(format!("{name}.{title}"), outcome, &slab, &tables)?);
    }
    Ok(states)
}

/// A frame for each state but the first, which the first operation changes.
pub fn figure(states: &[State], message: String, setup: String, draw: impl Fn(&State, &mut Picture)) -> Figure {
    let last = &states[states.len() - 1];
    let label = format!("A pool of {} pages of {PAGE_SIZE} slots. In the end {}.", last.slab.len(), last.says());
    let mut figure = Figure { label, message, setup, ..Figure::default() };
    figure.starts_from(|picture| draw(&states[0], picture));
    for pair in states.windows(2) {
        figure.frame(pair[1].step(&pair[0]), |picture| draw(&pair[1], picture));
    }
    figure
}
