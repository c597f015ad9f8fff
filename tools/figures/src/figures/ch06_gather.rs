//! Chapter 6: a page that was used before, gathered as it is filled and as a whole.

use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};

use super::prelude::*;
use crate::rows::{self, LAYOUT, word};
use crate::slab::{PAGE_SIZE, Page, SlabState};

/// The sequences and their tokens. Before the wolf, `b`, the princess, `d`, and another one end, and he gets their pages:
/// the page that was freed last first.
const SEQUENCES: [(char, usize); 4] = [('d', 4), ('a', 3), ('e', 4), ('b', TOKENS)];
pub const TOKENS: usize = 6;

/// A slab in which `b` has pages that held other rows before, and the caches. `write`: writes the rows of a sequence's
/// tokens.
pub fn reused_pages(
    layout: KvLayout,
    write: impl Fn(&mut PagedCache, char, usize),
) -> Result<(SharedSlab, BTreeMap<char, PagedCache>)> {
    let slab = PageSlab::new(layout, PAGE_SIZE, 3)?;
    let mut caches = BTreeMap::new();
    for (name, n) in SEQUENCES {
        if name == 'b' {
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
    let wolf = caches.get(&'b').context("nothing to gather")?;
    let gathered: Vec<Cell> = rows::layer_rows(wolf, 0)?.iter().flatten().map(|name| held('b', word(name))).collect();
    ensure!(gathered.len() == TOKENS, "all tokens of the wolf are gathered");
    let own = wolf.table().pages();
    // The slots in the order of the table, to the end of the last page.
    let slots: Vec<usize> =
        own.iter().flat_map(|page| (0..PAGE_SIZE).map(|slot| page.index() * PAGE_SIZE + slot)).collect();
    let cells: Vec<Cell> = state.slab.iter().flat_map(Page::cells).collect();
    let whole = slots.iter().enumerate().map(|(row, slot)| cells[*slot].clone().outlined(row >= TOKENS));
    let (own_pages, left) = (pages(own), listed(&state.slab[own[1].index()].stale()));
    let figure = Figure {
        label: format!(
            "A pool of pages in which the wolf has {own_pages}, in this order. Arrows lead from his {TOKENS} words to the \
             rows of a gather. Gathered whole, the pages give two words more, {left}, which are stale."
        ),
        headline: "A gather follows the table, not the memory, and stops at the last token.".into(),
        setup: format!(
            "The wolf has {own_pages}, in this order. The end of page {} was the princess\u{2019}s, and still holds {left}.",
            own[1]
        ),
        outline: Some("gathered, and none of his"),
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        let slab = state.draw_pages(picture);
        picture.y += 40.0;
        let right = picture.row("", "", slots.len(), gathered.iter().cloned().chain([blank(), blank()]));
        for (row, slot) in slots.iter().enumerate().take(TOKENS) {
            picture.arrow((slab.middle(*slot), slab.cell(*slot).bottom() + 3.0), (right.middle(row), right.y - 4.0));
        }
        picture.text(picture.left, picture.y + 10.0, Anchor::Start, "right: what is filled");
        picture.y += 30.0;
        picture.row("", "", slots.len(), whole.clone());
        picture.text(picture.left, picture.y + 10.0, Anchor::Start, "wrong: whole pages");
        picture.y += 18.0;
    }))
}
