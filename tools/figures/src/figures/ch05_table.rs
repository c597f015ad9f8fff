//! Chapter 5: ten tokens in pages 12, 5 and 3: the page table, and where the pages lie.

use anyhow::Result;
use page_by_page::cache::{CacheError, PageId};
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;

use super::Figure;
use crate::layout::{CELL, Grid};
use crate::svg::{Anchor, Kind, Svg, cell, named};
use crate::words::{listed, page_numbers};

pub const PAGE_SIZE: usize = 4;
const POOL: usize = 16;
const PAGES: [u32; 3] = [12, 5, 3];
const GROWS: [usize; 3] = [4, 4, 2];

/// One `grow`.
struct Frame {
    grown: usize,
    /// The table.
    pages: Vec<u32>,
    slots: usize,
    /// Of each position, its page and slot.
    places: Vec<(u32, usize)>,
}

/// A pool that hands out these pages next; the others are taken.
pub fn pool_that_gives(pages: &[u32]) -> Result<PagePool, CacheError> {
    let mut pool = PagePool::new(POOL)?;
    pool.alloc_n(POOL)?;
    for page in pages.iter().rev() {
        pool.free(PageId(*page))?;
    }
    Ok(pool)
}

fn record() -> Result<Vec<Frame>> {
    let mut pool = pool_that_gives(&PAGES)?;
    let mut table = PageTable::new(PAGE_SIZE)?;
    let mut frames = Vec::new();
    for grown in GROWS {
        table.grow(grown, &mut pool)?;
        let place = |position| table.locate(position).map(|place| (place.page.0, place.slot));
        frames.push(Frame {
            grown,
            pages: page_numbers(table.pages()),
            slots: table.slots(),
            places: (0..table.len()).map(place).collect::<Result<_, _>>()?,
        });
    }
    Ok(frames)
}

pub fn figure() -> Result<Figure> {
    let frames = &record()?;
    const MEMORY: f64 = 134.0;
    let last = &frames[frames.len() - 1];
    let (table, memory) = (Grid::across(62.0, last.pages.len() * PAGE_SIZE, PAGE_SIZE), Grid::across(0.0, POOL, POOL));
    let mut svg = Svg::new();
    for (y, name) in [(15.0, "page"), (63.0, "position"), (90.0, "slot")] {
        svg.text(0.0, y, Anchor::Start, name);
    }
    svg.text(0.0, MEMORY + 62.0, Anchor::Start, &format!("the pool's {POOL} pages, in the order of their numbers"));
    for page in (0..POOL).filter(|page| !last.pages.contains(&(*page as u32))) {
        svg.text(memory.middle(page), MEMORY + 37.0, Anchor::Middle, &page.to_string());
    }
    for (index, frame) in frames.iter().enumerate() {
        svg.step(|svg| {
            let Some(page) = frame.pages.get(index) else { return };
            let area = table.group(index, 44.0);
            svg.bold(area.middle(), 15.0, Anchor::Middle, &page.to_string());
            svg.line(&format!("M{:.2} 32v-7H{:.2}v7", area.x, area.x + area.width));
            for slot in 0..PAGE_SIZE {
                let at = table.cell(index * PAGE_SIZE + slot, 44.0);
                let content = match frame.places.iter().position(|place| *place == (*page, slot)) {
                    Some(position) => cell(Kind::Reused, position).key(format!("t{position}")),
                    None => cell(Kind::Wasted, ""),
                };
                svg.cell(at, &content);
                svg.text(at.middle(), 90.0, Anchor::Middle, &slot.to_string());
            }
            let to = memory.cell(*page as usize, MEMORY + 18.0);
            svg.cell(to, &named(Kind::Reused, page).key(format!("page-{page}")));
            svg.arrow((area.middle(), 100.0), (to.middle(), to.y - 3.0));
        });
    }
    svg.y = MEMORY + CELL + 40.0;
    svg.legend(&[(Kind::Reused, "holds a token"), (Kind::Wasted, "empty")]);
    let tokens = last.places.len();
    Ok(Figure {
        svg,
        label: format!(
            "{tokens} tokens in pages {0} of {PAGE_SIZE} slots each. Below, the pool's {POOL} pages in the order of their \
             numbers: lines lead from the table's entries to pages {0}, and cross.",
            listed(&last.pages)
        ),
        caption: format!(
            "<strong>A page table lists the pages in the order of the tokens, wherever they lie.</strong> This sequence has \
             {tokens} tokens in pages {}. Each page but the last is full; {} of {} slots are empty. Recorded from \
             <code>PageTable</code>, with a pool that had just these pages left.",
            listed(&last.pages),
            last.slots - tokens,
            last.slots
        ),
        steps: frames.iter().map(step_text).collect(),
        ..Figure::default()
    })
}

fn step_text(frame: &Frame) -> String {
    let Frame { grown, pages, slots, places } = frame;
    let tokens = places.len();
    format!(
        "<code>grow({grown})</code> takes page {}: positions {} to {} are its slots 0 to {}. {} of {slots} slots are empty.",
        pages[pages.len() - 1],
        tokens - grown,
        tokens - 1,
        tokens - (pages.len() - 1) * PAGE_SIZE - 1,
        slots - tokens,
    )
}
