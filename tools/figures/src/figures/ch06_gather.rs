//! Chapter 6: a page that was used before, and a gather that skips what is left in it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use page_by_page::chapters::ch06_paged::{PagedCache, SharedSlab};

use super::Figure;
use crate::picture::{CELL, Picture, free, held};
use crate::rows;
use crate::slab::{PAGE_SIZE, Page, State, new_slab};
use crate::words::{joined, listed};

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
    let (states, _slab, caches) = reused_pages()?;
    let mut figure = Figure {
        message: "A gather follows the table, not the memory, and takes only filled slots.".into(),
        ..Figure::default()
    };
    let mut dense: Vec<(String, usize)> = Vec::new();
    for state in &states {
        figure.frame(state.step(), |picture| draw(picture, state, &dense, 0));
    }
    let last = states.last().context("no state")?;
    let a = caches.get(&'a').context("nothing to gather")?;
    let names = rows::of_layer(a, 0)?;
    ensure!(names.len() == TOKENS, "all tokens of a are gathered");
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
        let arrows = dense.len();
        dense.extend(
            gathered
                .iter()
                .zip(tokens)
                .map(|(row, token)| (token.clone(), places[*row].page.index() * PAGE_SIZE + places[*row].slot)),
        );
        figure.frame(says, |picture| draw(picture, last, &dense, arrows));
    }
    let stale: Vec<&String> = last.slab.iter().flat_map(Page::stale).collect();
    figure.label = format!(
        "A pool of pages while two sequences end and a gets their pages. Arrows lead from the slots of a into one dense tensor of \
         {TOKENS} rows, and none from the stale rows {}.",
        listed(&stale)
    );
    figure.setup = format!(
        "Sequences d and e have ended, and a has got their pages: {} still lie in its last page, and nothing reads them.",
        listed(&stale)
    );
    Ok(figure)
}

/// `dense`: the rows of the gathered tensor and the slots that they came from. Arrows lead to those after the first `old`.
fn draw(picture: &mut Picture, state: &State, dense: &[(String, usize)], old: usize) {
    let slab = state.draw_pages(picture);
    picture.space(44.0);
    picture.labelled(&["gather of a"]);
    let cell = |row: usize| dense.get(row).map_or(free(""), |(name, _)| held('a', name));
    let grid = picture.row("gather of a", "", TOKENS, (0..TOKENS).map(cell));
    for (row, (_, slot)) in dense.iter().enumerate().skip(old) {
        picture.arrow((slab.middle(*slot), slab.cell(*slot).y + CELL + 3.0), (grid.middle(row), grid.y - 4.0));
    }
}
