//! Chapter 5: ten tokens in pages 12, 5 and 3: the page table, and where the pages lie.

use anyhow::Result;
use page_by_page::cache::{CacheError, PageId};
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;

use super::Figure;
use crate::picture::{Anchor, CELL, Cell, Picture, blank, empty, free, held};
use crate::words::{listed, page_numbers, span};

pub const PAGE_SIZE: usize = 4;
const POOL: usize = 16;
const PAGES: [u32; 3] = [12, 5, 3];
/// Before the first frame.
const HELD: usize = 4;
const GROWS: [usize; 2] = [4, 2];
const OTHERS: char = 'b';

/// A pool that hands out these pages next; the others are taken.
pub fn pool_that_gives(pages: &[u32]) -> Result<PagePool, CacheError> {
    let mut pool = PagePool::new(POOL)?;
    pool.alloc_n(POOL)?;
    for page in pages.iter().rev() {
        pool.free(PageId(*page))?;
    }
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
    let (mut pool, mut table) = (pool_that_gives(&PAGES)?, PageTable::new(PAGE_SIZE)?);
    let mut figure = Figure {
        message: "A page table lists the pages in the order of the tokens, wherever they lie.".into(),
        owners: vec![(held('a', ""), "this sequence\u{2019}s"), (held(OTHERS, ""), "other sequences\u{2019}")],
        ..Figure::default()
    };
    table.grow(HELD, &mut pool)?;
    figure.starts_from(|picture| draw(picture, &table, &pool));
    for grown in GROWS {
        table.grow(grown, &mut pool)?;
        let last = table.locate(table.len() - 1)?;
        let notice = match (table.slots() - table.len(), &page_numbers(table.pages())[..]) {
            (0, [.., before, page]) if page < before => {
                format!("It lies before page {before} in the pool, but follows it in the table.")
            }
            (0, _) => "All its slots are filled, so the next token needs a new page.".into(),
            (n, _) => format!("Its last {n} slots stay empty, and no other page has a gap."),
        };
        let says = format!(
            "<code>grow({grown})</code> takes page {} for positions {}. {notice}",
            last.page.0,
            span(&(table.len() - grown..table.len()).collect::<Vec<_>>())
        );
        figure.frame(says, |picture| draw(picture, &table, &pool));
    }
    let (tokens, pages) = (table.len(), listed(&page_numbers(table.pages())));
    figure.label = format!(
        "{tokens} tokens in pages {pages} of {PAGE_SIZE} slots each. Below, the pool\u{2019}s {POOL} pages in the order of their \
         numbers: lines lead from the table\u{2019}s entries to pages {pages}, and cross.",
    );
    figure.setup = format!(
        "A sequence of {tokens} tokens in a pool that had pages {pages} left. Each page but the last is full; {} of {} slots are \
         empty.",
        table.slots() - tokens,
        table.slots()
    );
    Ok(figure)
}

fn draw(picture: &mut Picture, table: &PageTable, pool: &PagePool) {
    let pages = page_numbers(table.pages());
    picture.heading("the sequence: position of each token", "");
    let names = (0..PAGES.len()).map(|place| pages.get(place).map_or("not yet".into(), |page| format!("page {page}")));
    let slots = picture.pages(&names.collect::<Vec<_>>(), PAGE_SIZE, slots(table, PAGES.len()));
    picture.space(44.0);
    // As wide as the picture, in one line.
    let pitch = (picture.width - 2.0) / POOL as f64;
    let (top, left) = (picture.y, picture.left);
    for page in 0..POOL as u32 {
        let area =
            crate::picture::Area { x: left + 1.0 + f64::from(page) * pitch, y: top, width: pitch - 2.5, height: CELL };
        let cell = match pool.owners(PageId(page)) {
            Ok(0) => free(page),
            _ => held(if pages.contains(&page) { 'a' } else { OTHERS }, page),
        };
        picture.cell(area, cell);
        if let Some(place) = pages.iter().position(|other| *other == page) {
            let from = slots.group(place);
            picture.arrow((from.middle(), from.bottom() + 4.0), (area.middle(), top - 4.0));
        }
    }
    picture.space(CELL);
    picture.text(left, picture.y + 17.0, Anchor::Start, format!("the pool\u{2019}s {POOL} pages, by number"));
    picture.space(22.0);
}
