//! Chapter 6: a page that was used before, and a gather that skips what is left in it.

use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};

use super::prelude::*;
use crate::rows::{self, LAYOUT};
use crate::slab::{PAGE_SIZE, Page, SlabState};

/// The sequences and their tokens. Before `a`, `d` and `e` end, and `a` gets their pages: the page that was freed last
/// first.
const SEQUENCES: [(char, usize); 4] = [('d', 4), ('b', 3), ('e', 4), ('a', TOKENS)];
pub const TOKENS: usize = 6;

/// A slab in which `a` has pages that held other rows before, and the caches. `write`: writes the rows of a sequence's
/// tokens.
pub fn reused_pages(
    layout: KvLayout,
    write: impl Fn(&mut PagedCache, char, usize),
) -> Result<(SharedSlab, BTreeMap<char, PagedCache>)> {
    let slab = PageSlab::new(layout, PAGE_SIZE, 3)?;
    let mut caches = BTreeMap::new();
    for (name, n) in SEQUENCES {
        if name == 'a' {
            caches.retain(|ended, _| !['d', 'e'].contains(ended));
        }
        let mut cache = PagedCache::new(&slab)?;
        cache.extend(n)?;
        write(&mut cache, name, n);
        caches.insert(name, cache);
    }
    Ok((slab, caches))
}

/// The same with rows that have names.
pub fn named_rows() -> Result<(SlabState, BTreeMap<char, PagedCache>)> {
    let (slab, caches) = reused_pages(LAYOUT, |cache, name, n| rows::write(cache, name, n))?;
    let tables: Vec<_> = caches.iter().map(|(name, cache)| (*name, cache.table())).collect();
    Ok((SlabState::read(&slab, &tables)?, caches))
}

pub fn figure() -> Result<Figure> {
    let (state, caches) = named_rows()?;
    let stale: Vec<&String> = state.slab.iter().flat_map(Page::stale).collect();
    let a = caches.get(&'a').context("nothing to gather")?;
    let names = rows::layer_rows(a, 0)?;
    ensure!(names.len() == TOKENS, "all tokens of a are gathered");
    let places = (0..names.len()).map(|row| a.table().locate(row)).collect::<Result<Vec<_>, _>>()?;
    let own = a.table().pages();
    let (own_pages, stale) = (pages(own), listed(&stale));
    let mut figure = Figure {
        label: format!(
            "A pool of pages in which a has {own_pages}, in this order. Arrows lead from the slots of a into one dense \
             tensor of {TOKENS} rows, and none from the stale rows {stale}."
        ),
        message: "A gather follows the table, not the memory, and takes only filled slots.".into(),
        setup: format!(
            "Here a reuses the pages of sequences that have ended: {stale} still lie in its last page, and nothing \
             reads them."
        ),
        legend: vec![(free(""), "not gathered yet")],
        ..Figure::default()
    };
    let text = format!(
        "Sequence a has {TOKENS} tokens in {own_pages}, in this order. Its last page still holds {stale}, which an \
         earlier sequence left there."
    );
    let mut dense: Vec<(String, usize)> = Vec::new();
    figure.frame(text, |picture| draw(picture, &state, &dense, 0));
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
        let text = format!(
            "<code>gather</code> goes to page {page}, which is entry {entry} of the table, and copies {} into rows {} \
             of the dense tensor.{rest}",
            span(&tokens),
            span(&gathered)
        );
        let arrows = dense.len();
        let slot = |row: usize| places[row].page.index() * PAGE_SIZE + places[row].slot;
        dense.extend(gathered.iter().zip(tokens).map(|(row, token)| (token.clone(), slot(*row))));
        figure.frame(text, |picture| draw(picture, &state, &dense, arrows));
    }
    Ok(figure)
}

/// `dense`: the rows of the gathered tensor and the slots that they came from. Arrows lead to those after the first
/// `old`.
fn draw(picture: &mut Picture, state: &SlabState, dense: &[(String, usize)], old: usize) {
    let slab = state.draw_pages(picture);
    picture.y += 44.0;
    picture.labelled("gather of a");
    let cell = |row: usize| dense.get(row).map_or(free(""), |(name, _)| held('a', name));
    let grid = picture.row("gather of a", "", TOKENS, (0..TOKENS).map(cell));
    for (row, (_, slot)) in dense.iter().enumerate().skip(old) {
        picture.arrow((slab.middle(*slot), slab.cell(*slot).y + CELL + 3.0), (grid.middle(row), grid.y - 4.0));
    }
}
