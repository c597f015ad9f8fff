//! Chapter 6: a page that was used before, and a gather that skips what is left in it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use page_by_page::chapters::ch06_paged::{PagedCache, SharedSlab};

use super::Figure;
use crate::layout::CELL;
use crate::rows;
use crate::slab::{PAGE_SIZE, Page, State, grid, name_pages, new_slab};
use crate::svg::{Anchor, Kind, named};
use crate::words::{joined, listed, with_before};

/// Sequences `d` and `e` end, and `a` gets their pages: the page that was freed last first.
pub const EARLIER: [(char, usize); 3] = [('d', 4), ('b', 3), ('e', 4)];
pub const ENDED: [char; 2] = ['d', 'e'];
pub const TOKENS: usize = 6;

/// A slab in which `a` has pages that held other rows before, and what it looked like on the way.
pub fn reused_pages() -> Result<(Vec<State>, SharedSlab, BTreeMap<char, PagedCache>)> {
    let slab = new_slab(3)?;
    let mut caches: BTreeMap<char, PagedCache> = BTreeMap::new();
    let state = |operation: String, caches: &BTreeMap<char, PagedCache>| {
        let tables: Vec<_> = caches.iter().map(|(name, cache)| (*name, cache.table())).collect();
        State::of(operation, Ok(()), &slab, &tables)
    };
    let append = |caches: &mut BTreeMap<char, PagedCache>, name, n| -> Result<()> {
        let mut cache = PagedCache::new(&slab)?;
        rows::append(&mut cache, name, n)?;
        caches.insert(name, cache);
        Ok(())
    };
    EARLIER.iter().try_for_each(|(name, n)| append(&mut caches, *name, *n))?;
    let mut states = vec![state(format!("extend {}", listed(&EARLIER.map(|(name, _)| name))), &caches)?];
    caches.retain(|name, _| !ENDED.contains(name));
    states.push(state(format!("drop {}", listed(&ENDED)), &caches)?);
    append(&mut caches, 'a', TOKENS)?;
    states.push(state("extend a".into(), &caches)?);
    Ok((states, slab, caches))
}

pub fn figure() -> Result<Figure> {
    let grid = grid(3);
    let mut figure = Figure::default();
    name_pages(&mut figure.svg, 3);
    let (states, _slab, caches) = reused_pages()?;
    for (before, state) in with_before(&states) {
        figure.step(state.step(), |svg| state.draw(svg, before));
        figure.svg.y += 4.0;
    }
    let dense = figure.svg.y + 46.0;
    let a = caches.get(&'a').context("nothing to gather")?;
    let names = rows::of_layer(a, 0)?;
    let places = (0..names.len()).map(|row| a.table().locate(row)).collect::<Result<Vec<_>, _>>()?;
    for page in a.table().pages() {
        let gathered: Vec<usize> = (0..names.len()).filter(|row| places[*row].page == *page).collect();
        let tokens: Vec<&String> = gathered.iter().filter_map(|row| names[*row].as_ref()).collect();
        ensure!(tokens.len() == gathered.len(), "a row of zeros");
        let rest = match PAGE_SIZE - gathered.len() {
            0 => String::new(),
            n => format!(" The other {n} slots are not filled."),
        };
        let says = format!(
            "<code>gather</code> copies {} of page {} into rows {} of the dense tensor.{rest}",
            listed(&tokens),
            page.0,
            joined(&gathered, ", ")
        );
        figure.step(says, |svg| {
            for (row, name) in gathered.iter().zip(tokens) {
                let from = (grid.middle(page.index() * PAGE_SIZE + places[*row].slot), dense - 52.0);
                svg.arrow(from, (grid.middle(*row), dense - 4.0));
                svg.cell(grid.cell(*row, dense), &named(Kind::New, name));
            }
        });
    }
    figure.svg.bold(grid.cell(TOKENS, 0.0).x + 10.0, dense + 19.0, Anchor::Start, "gather of a");
    figure.svg.y = dense + CELL + 6.0;
    figure.svg.legend(&[
        (Kind::New, "written or copied now"),
        (Kind::Reused, "held before"),
        (Kind::Stale, "stale: its sequence has ended"),
        (Kind::Wasted, "taken, empty"),
    ]);
    let stale: Vec<&String> = states.last().iter().flat_map(|state| &state.slab).flat_map(Page::stale).collect();
    figure.label = format!(
        "A slab of pages while two sequences end and a gets their pages. Arrows lead from the slots of a into one dense tensor of \
         {TOKENS} rows, and none from the stale rows {}.",
        listed(&stale)
    );
    figure.caption = format!(
        "<strong>A gather follows the table, not the memory, and takes only filled slots.</strong> Sequences d and e have ended, \
         and a has got their pages. {} still lie in its last page, and nothing reads them. Recorded from <code>PagedCache</code>, \
         one layer.",
        listed(&stale)
    );
    Ok(figure)
}
