//! Chapter 5: ten tokens in pages 12, 5 and 3: the page table, and where the pages lie.

use anyhow::Result;
use page_by_page::cache::{CacheError, PageId};
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;

use super::Figure;
use crate::layout::{CELL, Grid};
use crate::svg::{Anchor, Kind, cell, named};
use crate::words::{listed, page_numbers};

pub const PAGE_SIZE: usize = 4;
const POOL: usize = 16;
const PAGES: [u32; 3] = [12, 5, 3];
const GROWS: [usize; 3] = [4, 4, 2];

/// A pool that hands out these pages next; the others are taken.
pub fn pool_that_gives(pages: &[u32]) -> Result<PagePool, CacheError> {
    let mut pool = PagePool::new(POOL)?;
    pool.alloc_n(POOL)?;
    for page in pages.iter().rev() {
        pool.free(PageId(*page))?;
    }
    Ok(pool)
}

pub fn figure() -> Result<Figure> {
    const MEMORY: f64 = 134.0;
    let (slots, memory) = (Grid::across(62.0, PAGES.len() * PAGE_SIZE, PAGE_SIZE), Grid::across(0.0, POOL, POOL));
    let mut figure = Figure::default();
    for (y, name) in [(15.0, "page"), (63.0, "position"), (90.0, "slot")] {
        figure.svg.text(0.0, y, Anchor::Start, name);
    }
    let order = format!("the pool's {POOL} pages, in the order of their numbers");
    figure.svg.text(0.0, MEMORY + 62.0, Anchor::Start, &order);
    for page in (0..POOL).filter(|page| !PAGES.contains(&(*page as u32))) {
        figure.svg.text(memory.middle(page), MEMORY + 37.0, Anchor::Middle, &page.to_string());
    }
    let (mut pool, mut table) = (pool_that_gives(&PAGES)?, PageTable::new(PAGE_SIZE)?);
    for (index, grown) in GROWS.into_iter().enumerate() {
        table.grow(grown, &mut pool)?;
        let places = (0..table.len()).map(|position| table.locate(position)).collect::<Result<Vec<_>, _>>()?;
        let page = *table.pages().last().unwrap_or(&PageId(0));
        let says = format!(
            "<code>grow({grown})</code> takes page {}: positions {} to {} are its slots 0 to {}. {} of {} slots are empty.",
            page.0,
            table.len() - grown,
            table.len() - 1,
            places[table.len() - 1].slot,
            table.slots() - table.len(),
            table.slots(),
        );
        figure.step(says, |svg| {
            let area = slots.group(index, 44.0);
            svg.bold(area.middle(), 15.0, Anchor::Middle, &page.0.to_string());
            svg.line(&format!("M{:.2} 32v-7H{:.2}v7", area.x, area.x + area.width));
            for slot in 0..PAGE_SIZE {
                let at = slots.cell(index * PAGE_SIZE + slot, 44.0);
                let content = match places.iter().position(|place| (place.page, place.slot) == (page, slot)) {
                    Some(position) => cell(Kind::Reused, position).key(format!("t{position}")),
                    None => cell(Kind::Wasted, ""),
                };
                svg.cell(at, &content);
                svg.text(at.middle(), 90.0, Anchor::Middle, &slot.to_string());
            }
            let to = memory.cell(page.index(), MEMORY + 18.0);
            svg.cell(to, &named(Kind::Reused, page.0).key(format!("page-{}", page.0)));
            svg.arrow((area.middle(), 100.0), (to.middle(), to.y - 3.0));
        });
    }
    figure.svg.y = MEMORY + CELL + 40.0;
    figure.svg.legend(&[(Kind::Reused, "holds a token"), (Kind::Wasted, "empty")]);
    let (tokens, pages) = (table.len(), listed(&page_numbers(table.pages())));
    figure.label = format!(
        "{tokens} tokens in pages {pages} of {PAGE_SIZE} slots each. Below, the pool's {POOL} pages in the order of their numbers: \
         lines lead from the table's entries to pages {pages}, and cross.",
    );
    figure.caption = format!(
        "<strong>A page table lists the pages in the order of the tokens, wherever they lie.</strong> This sequence has {tokens} \
         tokens in pages {pages}. Each page but the last is full; {} of {} slots are empty. Recorded from <code>PageTable</code>, \
         with a pool that had just these pages left.",
        table.slots() - tokens,
        table.slots()
    );
    Ok(figure)
}
