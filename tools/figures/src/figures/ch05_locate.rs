//! Chapter 5: pages are taken at boundaries only; then a token is found.

use anyhow::Result;
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::{PageTable, Slot};

use super::Figure;
use super::ch05_table::{PAGE_SIZE, pool_that_gives};
use crate::layout::Grid;
use crate::svg::{Anchor, Kind, Svg, cell};
use crate::words::{count, page_numbers, pages, with_before};

const PAGES: [u32; 4] = [12, 5, 3, 9];
const GROWS: [usize; 5] = [3, 1, 1, 5, 3];
const POSITION: usize = 6;

/// One `grow`, or the `locate`.
struct Frame {
    operation: String,
    /// Pages that the step needs, as the table said before.
    pages_needed: usize,
    /// The table.
    pages: Vec<u32>,
    /// Tokens held.
    tokens: usize,
    /// Pages that the pool has left.
    free: usize,
    located: Option<Located>,
}

struct Located {
    page: u32,
    slot: usize,
}

fn record() -> Result<Vec<Frame>> {
    let mut pool = pool_that_gives(&PAGES)?;
    let mut table = PageTable::new(PAGE_SIZE)?;
    let frame = |operation, pages_needed, table: &PageTable, pool: &PagePool, located| Frame {
        operation,
        pages_needed,
        pages: page_numbers(table.pages()),
        tokens: table.len(),
        free: pool.n_free(),
        located,
    };
    let mut frames = Vec::new();
    for n in GROWS {
        let pages_needed = table.pages_needed(n);
        table.grow(n, &mut pool)?;
        frames.push(frame(format!("grow({n})"), pages_needed, &table, &pool, None));
    }
    let Slot { page, slot } = table.locate(POSITION)?;
    frames.push(frame(format!("locate({POSITION})"), 0, &table, &pool, Some(Located { page: page.0, slot })));
    Ok(frames)
}

pub fn figure() -> Result<Figure> {
    let frames = &record()?;
    let last = &frames[frames.len() - 1];
    let grid = Grid::across(0.0, last.pages.len() * PAGE_SIZE, PAGE_SIZE);
    let mut svg = Svg::new();
    svg.group_names(grid, last.pages.iter().map(|page| format!("page {page}")));
    for i in 0..last.pages.len() * PAGE_SIZE {
        svg.text(grid.middle(i), svg.y + 9.0, Anchor::Middle, &(i % PAGE_SIZE).to_string());
    }
    svg.y += 20.0;
    for (before, frame) in with_before(frames) {
        svg.step(|svg| {
            svg.heading(&frame.operation, &outcome(frame, before));
            let held_before = before.map_or(0, |before| before.tokens);
            let content = |position| {
                let kind = if position < held_before { Kind::Reused } else { Kind::New };
                let is_located = frame.located.is_some() && position == POSITION;
                match position < frame.tokens {
                    true => cell(kind, position).key(format!("t{position}")).lit(is_located),
                    false => cell(Kind::Wasted, ""),
                }
            };
            svg.row(grid, (0..frame.pages.len() * PAGE_SIZE).map(content));
        });
        svg.y += 4.0;
    }
    svg.legend(&[(Kind::New, "new token"), (Kind::Reused, "held before"), (Kind::Wasted, "empty slot")]);
    let (page, slot) = last.located.as_ref().map(|located| (located.page, located.slot)).unwrap_or_default();
    Ok(Figure {
        svg,
        label: format!(
            "A page table growing, one line for each step, to {} tokens in {}. In the last line position {POSITION} is marked.",
            last.tokens,
            count(last.pages.len(), "page"),
        ),
        caption: format!(
            "<strong>A page is taken when a token has no slot, and not before.</strong> Cells show positions, with the pages above \
             and the slots 0 to {} below their names. Position {POSITION} is entry {POSITION} / {PAGE_SIZE} = {} of the table, \
             page {page}, and slot {POSITION} mod {PAGE_SIZE} = {slot}. Recorded from <code>PageTable</code>.",
            PAGE_SIZE - 1,
            last.pages.iter().take_while(|entry| **entry != page).count()
        ),
        steps: with_before(frames).map(|(before, frame)| step_text(frame, before)).collect(),
        ..Figure::default()
    })
}

fn outcome(frame: &Frame, before: Option<&Frame>) -> String {
    match (&frame.located, &frame.pages[before.map_or(0, |before| before.pages.len())..]) {
        (Some(Located { page, slot }), _) => format!("page {page}, slot {slot}"),
        (None, []) => "takes no page".into(),
        (None, new) => format!("takes {}", pages(new)),
    }
}

fn step_text(frame: &Frame, before: Option<&Frame>) -> String {
    let (operation, outcome) = (&frame.operation, outcome(frame, before));
    if frame.located.is_some() {
        return format!("<code>{operation}</code>: position {POSITION} is in {outcome}.");
    }
    format!(
        "<code>{operation}</code> needs {} and {outcome}: {} in {}. {} free.",
        count(frame.pages_needed, "page"),
        count(frame.tokens, "token"),
        pages(&frame.pages),
        count(frame.free, "page")
    )
}
