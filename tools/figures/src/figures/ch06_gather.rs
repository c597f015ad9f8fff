//! Chapter 6: a page that was used before, and a gather that skips what is left in it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use page_by_page::chapters::ch06_paged::PagedCache;

use super::Figure;
use crate::picture::{CELL, Picture, free, held};
use crate::rows;
use crate::slab::{PAGE_SIZE, Page, State, new_slab};
use crate::words::{listed, pages, span};

/// Sequences `d` and `e` end, and `a` gets their pages: the page that was freed last first.
pub const EARLIER: [(char, usize); 3] = [('d', 4), ('b', 3), ('e', 4)];
pub const ENDED: [char; 2] = ['d', 'e'];
pub const TOKENS: usize = 6;

/// The caches, and the slab in which `a` has pages that held other rows before.
pub fn reused_pages() -> Result<(State, BTreeMap<char, PagedCache>)> {
    let slab = new_slab(3)?;
    let mut caches: BTreeMap<char, PagedCache> = BTreeMap::new();
    let append = |caches: &mut BTreeMap<char, PagedCache>, name, n| -> Result<()> {
        let mut cache = PagedCache::new(&slab)?;
        rows::append(&mut cache, name, n)?;
        caches.insert(name, cache);
        Ok(())
    };
    EARLIER.iter().try_for_each(|(name, n)| append(&mut caches, *name, *n))?;
    caches.retain(|name, _| !ENDED.contains(name));
    append(&mut caches, 'a', TOKENS)?;
    let tables: Vec<_> = caches.iter().map(|(name, cache)| (*name, cache.table())).collect();
    let state = State::read(&slab, &tables)?;
    Ok((state, caches))
}

pub fn figure() -> Result<Figure> {
    let (state, caches) = reused_pages()?;
    let stale: Vec<&String> = state.slab.iter().flat_map(Page::stale).collect();
    let a = caches.get(&'a').context("nothing to gather")?;
    let names = rows::of_layer(a, 0)?;
    ensure!(names.len() == TOKENS, "all tokens of a are gathered");
    let places = (0..names.len()).map(|row| a.table().locate(row)).collect::<Result<Vec<_>, _>>()?;
    let own = a.table().pages();
    let mut figure = Figure {
        label: format!(
            "A pool of pages in which a has {}, in this order. Arrows lead from the slots of a into one dense tensor of {TOKENS} \
             rows, and none from the stale rows {}.",
            pages(own),
            listed(&stale)
        ),
        message: "A gather follows the table, not the memory, and takes only filled slots.".into(),
        setup: format!(
            "Here a reuses the pages of sequences that have ended: {} still lie in its last page, and nothing reads them.",
            listed(&stale)
        ),
        legend: vec![(free(""), "not gathered yet")],
        ..Figure::default()
    };
    let says = format!(
        "Sequence a has {TOKENS} tokens in {}, in this order. Its last page still holds {}, which an earlier sequence left there.",
        pages(own),
        listed(&stale)
    );
    let mut dense: Vec<(String, usize)> = Vec::new();
    figure.frame(says, |picture| draw(picture, &state, &dense, 0));
    for (entry, page) in own.iter().enumerate() {
        let gathered: Vec<usize> = (0..names.len()).filter(|row| places[*row].page == *page).collect();
        let tokens: Vec<&String> = gathered.iter().filter_map(|row| names[*row].as_ref()).collect();
        ensure!(tokens.len() == gathered.len(), "a row of zeros");
        let rest = match (PAGE_SIZE - gathered.len(), state.slab[page.index()].stale()) {
            (0, _) => String::new(),
            (n, stale) => {
                format!(" It stops before the {n} slots that aren\u{2019}t filled, so {} stay out.", listed(&stale))
            }
        };
        let says = format!(
            "<code>gather</code> goes to page {page}, which is entry {entry} of the table, and copies {} into rows {} of the \
             dense tensor.{rest}",
            span(&tokens),
            span(&gathered)
        );
        let arrows = dense.len();
        let slot = |row: usize| places[row].page.index() * PAGE_SIZE + places[row].slot;
        dense.extend(gathered.iter().zip(tokens).map(|(row, token)| (token.clone(), slot(*row))));
        figure.frame(says, |picture| draw(picture, &state, &dense, arrows));
    }
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
