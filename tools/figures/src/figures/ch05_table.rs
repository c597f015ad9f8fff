//! Chapter 5: ten tokens in pages 12, 5 and 3: what the page table says, and where the pages lie.

use anyhow::Result;
use page_by_page::chapters::ch05_page_table::PageTable;
use serde::Serialize;

use crate::fragment::Drawing;
use crate::runs::{page_numbers, pool_that_gives};
use crate::svg::{Anchor, Area, Kind, Svg, listed, rounded};

const PAGE_SIZE: usize = 4;
const PAGES: [u32; 3] = [12, 5, 3];
const GROWS: [usize; 3] = [4, 4, 2];

#[derive(Serialize)]
pub struct Trace {
    page_size: usize,
    /// Pages of the pool.
    n_pages: usize,
    frames: Vec<Frame>,
}

/// One `grow`.
#[derive(Serialize)]
struct Frame {
    grown: usize,
    /// The table.
    pages: Vec<u32>,
    slots: usize,
    /// Of each position, its page and slot.
    places: Vec<(u32, usize)>,
}

pub fn record() -> Result<Trace> {
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
    Ok(Trace { page_size: table.page_size(), n_pages: pool.n_pages(), frames })
}

const LEFT: f64 = 62.0;
const PITCH: f64 = 23.8;
const CELL: f64 = 21.5;
const GAP: f64 = 5.0;
const ROW: f64 = 44.0;
const MEMORY: f64 = 134.0;

pub fn draw(trace: &Trace) -> Drawing {
    let Trace { page_size, n_pages, frames } = trace;
    let last = &frames[frames.len() - 1];
    let mut svg = Svg::new(MEMORY + 92.0);
    svg.text(0.0, 15.0, Anchor::Start, "page");
    svg.text(0.0, ROW + 19.0, Anchor::Start, "position");
    svg.text(0.0, ROW + 46.0, Anchor::Start, "slot");
    svg.text(0.0, MEMORY + 62.0, Anchor::Start, &format!("the pool's {n_pages} pages, in the order of their numbers"));
    for page in (0..*n_pages as u32).filter(|page| !last.pages.contains(page)) {
        svg.text(memory_x(page) + CELL / 2.0 - 1.0, MEMORY + 36.0, Anchor::Middle, &page.to_string());
    }
    let mut drawn = 0;
    for (step, frame) in frames.iter().enumerate() {
        svg.step(step, |svg| {
            for index in drawn..frame.pages.len() {
                draw_page(svg, index, *page_size, frame);
            }
        });
        drawn = frame.pages.len();
    }
    svg.legend(Kind::Reused, 0.0, MEMORY + 74.0, "holds a token");
    svg.legend(Kind::Wasted, 140.0, MEMORY + 74.0, "empty");

    let (tokens, empty) = (last.places.len(), last.slots - last.places.len());
    let table = listed(&last.pages);
    Drawing {
        svg,
        label: format!(
            "{tokens} tokens, positions 0 to {}, in pages {table} of {page_size} slots each; the last {empty} slots \
             of page {} are empty. Below, the pool's {n_pages} pages in the order of their numbers: lines lead from \
             the table's entries to pages {table}, and cross.",
            tokens - 1,
            last.pages[last.pages.len() - 1],
        ),
        caption: format!(
            "The page table of a text of {tokens} tokens: pages {table}, in the order of its tokens, wherever they \
             lie. Each page but the last is full; {empty} of {} slots are empty. Recorded from \
             <code>PageTable</code>, with a pool that had just these pages left.",
            last.slots
        ),
        steps: frames.iter().map(|frame| step_text(frame, *page_size)).collect(),
    }
}

/// The left edge of a slot's cell.
fn x(index: usize, slot: usize, page_size: usize) -> f64 {
    LEFT + (index * page_size + slot) as f64 * PITCH + index as f64 * GAP
}

fn memory_x(page: u32) -> f64 {
    2.0 + page as f64 * 22.3
}

/// An entry of the table: its tokens, and where the page lies.
fn draw_page(svg: &mut Svg, index: usize, page_size: usize, frame: &Frame) {
    let page = frame.pages[index];
    let key = format!("page-{page}");
    let (first, end) = (x(index, 0, page_size), x(index, page_size - 1, page_size) + CELL);
    let middle = (first + end) / 2.0;
    svg.bold(middle, 15.0, Anchor::Middle, &page.to_string());
    svg.line(&format!("M{} 32v-7H{}v7", rounded(first), rounded(end)));
    for slot in 0..page_size {
        let position = frame.places.iter().position(|place| *place == (page, slot));
        let area = Area { x: x(index, slot, page_size), y: ROW, width: CELL, height: 28.0 };
        match position {
            Some(position) => svg.cell(Kind::Reused, area, &format!("t{position}"), &position.to_string()),
            None => svg.cell(Kind::Wasted, area, "", ""),
        }
        svg.text(area.x + CELL / 2.0, ROW + 46.0, Anchor::Middle, &slot.to_string());
    }
    let to = Area { x: memory_x(page), y: MEMORY + 18.0, width: CELL - 2.0, height: 26.0 };
    svg.cell(Kind::Reused, to, &key, &page.to_string());
    svg.arrow((middle, ROW + 56.0), (to.x + to.width / 2.0, to.y - 3.0));
}

fn step_text(frame: &Frame, page_size: usize) -> String {
    let last_page = frame.pages[frame.pages.len() - 1];
    let tokens = frame.places.len();
    let (first, last) = (tokens - frame.grown, tokens - 1);
    let filled = tokens - (frame.pages.len() - 1) * page_size;
    format!(
        "<code>grow({})</code> takes page {last_page}: positions {first} to {last} are its slots 0 to {}. {} of {} \
         slots are empty.",
        frame.grown,
        filled - 1,
        frame.slots - tokens,
        frame.slots
    )
}
