//! The slab of pages after each operation: which slot holds what, and who owns the page.

use page_by_page::chapters::ch05_page_table::PageTable;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};

use crate::figures::prelude::*;
use crate::rows::{self, LAYOUT, names, word};

pub const PAGE_SIZE: usize = 4;

/// The slab, and the name, the tokens and the pages of each sequence in it.
#[derive(Default, PartialEq)]
pub struct SlabState {
    pub slab: Vec<Page>,
    sequences: Vec<(char, usize, Vec<PageId>)>,
}

/// A page in one layer; the others look the same.
#[derive(PartialEq)]
pub struct Page {
    pub owners: Vec<char>,
    pub slots: Vec<Slot>,
}

#[derive(PartialEq)]
pub struct Slot {
    /// The name of the row that lies there; `None` if nothing was ever written.
    row: Option<String>,
    /// Whether it is a token of a sequence.
    is_held: bool,
}

#[derive(Clone, Copy)]
pub enum Operation {
    /// `extend`, and `write` if there was room. The rows get the letter as a name.
    Extend(char, usize),
    Rewind(usize),
}

impl Operation {
    /// As it is written in code.
    pub fn call(self) -> String {
        match self {
            Operation::Extend(_, n) => format!("extend({n})"),
            Operation::Rewind(n) => format!("rewind({n})"),
        }
    }

    pub fn run(self, cache: &mut dyn Rewind) -> Result<(), CacheError> {
        match self {
            Operation::Extend(letter, n) => rows::append(cache, letter, n),
            Operation::Rewind(n) => cache.rewind(n),
        }
    }
}

impl SlabState {
    /// All layers must look alike.
    pub fn read(slab: &SharedSlab, tables: &[(char, &PageTable)]) -> Result<Self> {
        let slab = slab.borrow();
        let in_page = slab.keys().len() / slab.pool().n_pages();
        let page_size = in_page / (LAYOUT.n_layers * LAYOUT.kv_width());
        let mut pages = Vec::new();
        for (page, (k, v)) in (0..).map(PageId).zip(slab.keys().chunks(in_page).zip(slab.values().chunks(in_page))) {
            let layers = k.chunks(in_page / LAYOUT.n_layers).zip(v.chunks(in_page / LAYOUT.n_layers)).enumerate();
            let layers: Vec<_> = layers.map(|(layer, (k, v))| names(LAYOUT, layer, k, v)).collect::<Result<_>>()?;
            ensure!(layers.iter().all(|rows| *rows == layers[0]), "page {page:?} is not the same in all layers");
            let filled = (tables.iter()).filter_map(|(name, table)| {
                let place = table.pages().iter().position(|own| *own == page)?;
                Some((*name, (table.len() - place * page_size).min(page_size)))
            });
            let (owners, filled): (Vec<char>, Vec<usize>) = filled.unzip();
            let (counted, n) = (slab.pool().owners(page)? as usize, owners.len());
            ensure!(counted == n, "{page:?} has {counted} owners and is in {n} tables");
            let held = filled.into_iter().max().unwrap_or(0);
            let slot = |(slot, row): (usize, &Option<String>)| Slot { row: row.clone(), is_held: slot < held };
            pages.push(Page { owners, slots: layers[0].iter().enumerate().map(slot).collect() });
        }
        let sequences = tables.iter().map(|(name, table)| (*name, table.len(), table.pages().to_vec()));
        Ok(SlabState { slab: pages, sequences: sequences.collect() })
    }

    /// What an operation did to the state before it, and what to notice; HTML.
    fn step(&self, before: &SlabState, operation: &str, outcome: Result<(), CacheError>) -> String {
        if let Err(error) = outcome {
            let is_same = self == before;
            let rest =
                if is_same { "Every table and every row stays as it was." } else { "Yet something has changed." };
            return format!("<code>{operation}</code> is refused with <code>{error:?}</code>. {rest}");
        }
        let mut changes = before.sequences.iter().zip(&self.sequences).filter(|(was, now)| was != now);
        let happened =
            changes.next().map_or("nothing changes".into(), |((_, had_tokens, had), (name, tokens, own))| {
                match had_tokens.saturating_sub(*tokens) {
                    0 => self.grown(before, *name, had, own),
                    n => self.shrunk(n, *name, had, own),
                }
            });
        let is_full = |state: &SlabState| state.slab.iter().all(|page| !page.owners.is_empty());
        let notice = if is_full(self) && !is_full(before) { " No page is free now." } else { "" };
        format!("<code>{operation}</code>: {happened}.{notice}")
    }

    fn shrunk(&self, n: usize, name: char, had: &[PageId], own: &[PageId]) -> String {
        let left: Vec<&PageId> = had.iter().filter(|page| !own.contains(page)).collect();
        let stale: Vec<String> = had.iter().flat_map(|page| self.slab[page.index()].stale()).collect();
        let (left, stale) = (pages(&left), listed(&stale));
        format!(
            "{name} forgets {} and returns {left}. The rows of {stale} stay where they are, stale",
            plural(n, "token")
        )
    }

    fn grown(&self, before: &SlabState, name: char, had: &[PageId], own: &[PageId]) -> String {
        let (mut fitting, mut others, mut over) = (Vec::new(), Vec::new(), Vec::new());
        for page in own {
            for (was, now) in before.slab[page.index()].slots.iter().zip(&self.slab[page.index()].slots) {
                if now.is_held && !was.is_held {
                    (if had.contains(page) { &mut fitting } else { &mut others }).extend(now.row.as_deref().map(said));
                    over.extend(was.row.as_deref().map(said));
                }
            }
        }
        let mut parts = Vec::new();
        if let (Some(last), false) = (had.last(), fitting.is_empty()) {
            let go = if fitting.len() == 1 { "goes" } else { "go" };
            parts.push(format!("{} {go} into page {last}", span(&fitting)));
        }
        let taken: Vec<&PageId> = own.iter().filter(|page| !had.contains(page)).collect();
        if !taken.is_empty() {
            parts.push(format!("{name} takes {} for {}", pages(&taken), span(&others)));
        }
        let over = if over.is_empty() { String::new() } else { format!(", over the stale {}", listed(&over)) };
        let enough = if taken.is_empty() { format!(", so {name} takes no page") } else { String::new() };
        parts.join(", and ") + &over + &enough
    }

    /// The pages with their slots, and the table of each sequence.
    pub fn draw(&self, picture: &mut Picture) {
        self.draw_pages(picture);
        picture.y += 8.0;
        picture.labelled("table of a");
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
        let per = self.slab[0].slots.len();
        pages_of_words(picture, |page| format!("page {page}"), per, self.slab.iter().flat_map(Page::cells))
    }
}

/// Pages whose slots have room for a word each.
pub fn pages_of_words(
    picture: &mut Picture,
    name: impl Fn(usize) -> String,
    per: usize,
    cells: impl IntoIterator<Item = Cell>,
) -> Grid {
    let least = std::mem::replace(&mut picture.least, 44.0);
    let grid = picture.pages(name, per, cells);
    picture.least = least;
    grid
}

/// The word of a row in a sentence.
fn said(row: &str) -> String {
    format!("\u{201c}{}\u{201d}", word(row))
}

impl Page {
    /// A slot shows its word in the colour of the sequence that wrote it.
    pub fn cells(&self) -> impl Iterator<Item = Cell> {
        let owner = self.owners.first().copied();
        self.slots.iter().map(move |Slot { row, is_held }| match row {
            Some(row) if *is_held => owned(&self.owners, word(row), stale(None, word(row))),
            Some(row) => stale(row.chars().next(), word(row)),
            None => owner.map_or_else(|| free(""), empty),
        })
    }

    /// The words that no sequence holds any more, quoted.
    pub fn stale(&self) -> Vec<String> {
        self.slots.iter().filter(|slot| !slot.is_held).filter_map(|slot| slot.row.as_deref()).map(said).collect()
    }
}

/// Sequences a and b in one slab of four pages, after each operation on one of them. The first ones, `earlier`, have
/// run when the figure starts.
pub fn figure(headline: &str, setup: String, operations: &[(char, Operation)], earlier: usize) -> Result<Figure> {
    let slab = PageSlab::new(LAYOUT, PAGE_SIZE, 4)?;
    let mut sequences = [('a', PagedCache::new(&slab)?), ('b', PagedCache::new(&slab)?)];
    let mut figure = Figure { headline: headline.into(), setup, ..Figure::default() };
    let mut before = SlabState::default();
    for (done, (name, operation)) in (1..).zip(operations) {
        let outcome = operation.run(&mut sequences[usize::from(*name == 'b')].1);
        let state = SlabState::read(&slab, &sequences.each_ref().map(|(name, cache)| (*name, cache.table())))?;
        if done == earlier {
            figure.starts_from(|picture| state.draw(picture));
        } else if done > earlier {
            let text = state.step(&before, &format!("{name}.{}", operation.call()), outcome);
            figure.frame(text, |picture| state.draw(picture));
        }
        before = state;
    }
    let [a, b] = sequences
        .map(|(name, it)| format!("{name} has {} in {}", plural(it.len(), "token"), pages(it.table().pages())));
    figure.label = format!("A pool of 4 pages of {PAGE_SIZE} slots. In the end {a}, and {b}.");
    Ok(figure)
}
