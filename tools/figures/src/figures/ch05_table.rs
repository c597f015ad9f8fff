//! Chapter 5: ten tokens in pages 12, 5 and 3, and three more: the page table, and where the pages lie.

use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;

use super::prelude::*;

pub const PAGE_SIZE: usize = 4;
const POOL: usize = 16;
/// The pages that the pool hands out, in this order.
pub const PAGES: [PageId; 4] = [PageId(12), PageId(5), PageId(3), PageId(9)];
const TOKENS: usize = 10;
const GROWN: usize = 3;
const OTHERS: char = 'b';

/// A pool in which only [`PAGES`] are free.
pub fn pool() -> Result<PagePool, CacheError> {
    let mut pool = PagePool::new(POOL)?;
    pool.alloc_n(POOL)?;
    PAGES.into_iter().rev().try_for_each(|page| pool.free(page))?;
    Ok(pool)
}

/// The slots of `n` pages, those of a table first: positions, and slots that are taken and empty.
pub fn slots(table: &PageTable, n: usize) -> impl Iterator<Item = Cell> {
    let (tokens, taken) = (table.len(), table.slots());
    (0..n * PAGE_SIZE).map(move |position| match position {
        _ if position < tokens => held('a', position),
        _ if position < taken => empty('a'),
        _ => blank(),
    })
}

pub fn figure() -> Result<Figure> {
    let (mut pool, mut table) = (pool()?, PageTable::new(PAGE_SIZE)?);
    let mut figure = Figure {
        headline: "A page table lists the pages in the order of the tokens, wherever they lie.".into(),
        legend: vec![(held('a', ""), "this sequence\u{2019}s"), (held(OTHERS, ""), "other sequences\u{2019}")],
        ..Figure::default()
    };
    table.grow(TOKENS, &mut pool)?;
    let (before, left) = (table.pages().to_vec(), table.slots() - table.len());
    let text = format!(
        "{TOKENS} tokens are in {}, in this order. Only the last page has empty slots, {left} of them.",
        pages(&before)
    );
    figure.frame(text, |picture| draw(picture, &table, &pool));
    table.grow(GROWN, &mut pool)?;
    let (taken, left) = (&table.pages()[before.len()..], table.slots() - table.len());
    let text = format!(
        "<code>grow({GROWN})</code> fills page {}, takes {} and leaves {left} of its slots empty. Again, only the last \
         page has any.",
        listed(&before[before.len() - 1..]),
        pages(taken)
    );
    figure.frame(text, |picture| draw(picture, &table, &pool));
    let (tokens, own) = (table.len(), listed(table.pages()));
    figure.label = format!(
        "{tokens} tokens in pages {own} of {PAGE_SIZE} slots each. Below, the pool\u{2019}s {POOL} pages in the order \
         of their numbers: lines lead from the table\u{2019}s entries to pages {own}, and cross.",
    );
    figure.setup =
        format!("A sequence of {TOKENS}, then {tokens} tokens in a pool that had pages {} left.", listed(&PAGES));
    Ok(figure)
}

fn draw(picture: &mut Picture, table: &PageTable, pool: &PagePool) {
    let pages = table.pages();
    picture.heading("the sequence: position of each token", "");
    let name = |place| pages.get(place).map_or("not yet".into(), |page| format!("page {page}"));
    // All in one line, so that the arrows cross nothing.
    picture.least = 0.0;
    let slots = picture.pages(name, PAGE_SIZE, slots(table, PAGES.len()));
    picture.y += 44.0;
    // As wide as the picture, in one line.
    let pitch = (picture.width - 2.0) / POOL as f64;
    let (top, left) = (picture.y, picture.left);
    for page in (0..POOL as u32).map(PageId) {
        let area = Area { x: left + 1.0 + f64::from(page.0) * pitch, y: top, width: pitch - 2.5, height: CELL };
        let cell = match pool.owners(page) {
            Ok(0) => free(page),
            _ => held(if pages.contains(&page) { 'a' } else { OTHERS }, page),
        };
        picture.cell(area, cell);
        if let Some(place) = pages.iter().position(|other| *other == page) {
            let from = slots.group(place);
            picture.arrow((from.middle(), from.bottom() + 4.0), (area.middle(), top - 4.0));
        }
    }
    picture.y += CELL;
    picture.text(left, picture.y + 17.0, Anchor::Start, format!("the pool\u{2019}s {POOL} pages, by number"));
    picture.y += 22.0;
}
