//! Chapter 5: pages are taken at boundaries only; then a token is found.

use anyhow::Result;
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::{PageTable, Slot};
use serde::Serialize;

use crate::fragment::Drawing;
use crate::runs::{page_numbers, pool_that_gives};
use crate::svg::{Anchor, Area, Kind, Svg, listed, rounded};

const PAGE_SIZE: usize = 4;
const PAGES: [u32; 4] = [12, 5, 3, 9];
const GROWS: [usize; 5] = [3, 1, 1, 5, 3];
const POSITION: usize = 6;

#[derive(Serialize)]
pub struct Trace {
    page_size: usize,
    frames: Vec<Frame>,
}

/// One `grow`, or the `locate`.
#[derive(Serialize)]
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

#[derive(Serialize)]
struct Located {
    position: usize,
    page: u32,
    slot: usize,
}

pub fn record() -> Result<Trace> {
    let mut pool = pool_that_gives(&PAGES)?;
    let mut table = PageTable::new(PAGE_SIZE)?;
    let mut frames = Vec::new();
    for n in GROWS {
        let pages_needed = table.pages_needed(n);
        table.grow(n, &mut pool)?;
        frames.push(frame(format!("grow({n})"), pages_needed, &table, &pool));
    }
    let Slot { page, slot } = table.locate(POSITION)?;
    let mut found = frame(format!("locate({POSITION})"), 0, &table, &pool);
    found.located = Some(Located { position: POSITION, page: page.0, slot });
    frames.push(found);
    Ok(Trace { page_size: table.page_size(), frames })
}

fn frame(operation: String, pages_needed: usize, table: &PageTable, pool: &PagePool) -> Frame {
    let (pages, tokens) = (page_numbers(table.pages()), table.len());
    Frame { operation, pages_needed, pages, tokens, free: pool.n_free(), located: None }
}

const PITCH: f64 = 21.5;
const CELL: f64 = 19.0;
const GAP: f64 = 4.5;
const LINE: f64 = 60.0;
const TOP: f64 = 54.0;

pub fn draw(trace: &Trace) -> Drawing {
    let Trace { page_size, frames } = trace;
    let last = &frames[frames.len() - 1];
    let bottom = TOP + frames.len() as f64 * LINE;
    let mut svg = Svg::new(bottom + 22.0);
    for (index, page) in last.pages.iter().enumerate() {
        let (first, end) = (x(index * page_size, *page_size), x((index + 1) * page_size - 1, *page_size) + CELL);
        svg.text((first + end) / 2.0, 15.0, Anchor::Middle, &format!("page {page}"));
        svg.line(&format!("M{} 27v-6H{}v6", rounded(first), rounded(end)));
        for slot in 0..*page_size {
            svg.text(x(index * page_size + slot, *page_size) + CELL / 2.0, 43.0, Anchor::Middle, &slot.to_string());
        }
    }
    for (step, frame) in frames.iter().enumerate() {
        let before = step.checked_sub(1).map(|before| &frames[before]);
        svg.step(step, |svg| draw_table(svg, TOP + step as f64 * LINE, *page_size, frame, before));
    }
    svg.legend(Kind::New, 0.0, bottom + 2.0, "new token");
    svg.legend(Kind::Reused, 110.0, bottom + 2.0, "held before");
    svg.legend(Kind::Wasted, 230.0, bottom + 2.0, "empty slot");

    let found = frames.iter().find_map(|frame| frame.located.as_ref());
    let (position, page, slot) = found.map(|found| (found.position, found.page, found.slot)).unwrap_or_default();
    let told: Vec<String> = frames
        .iter()
        .filter(|frame| frame.located.is_none())
        .map(|frame| format!("{}, {} tokens in {}", frame.operation, frame.tokens, pages(frame.pages.len())))
        .collect();
    Drawing {
        svg,
        label: format!(
            "A page table growing, one line for each step: {}. In the last line position {position} is marked: slot \
             {slot} of page {page}.",
            told.join("; ")
        ),
        caption: format!(
            "Cells show positions, with the pages above and the slots 0 to {} below their names. A page is taken \
             when a token has no slot, and not before. Position {position} is entry {position} / {page_size} = {} of \
             the table, page {page}, and slot {position} mod {page_size} = {slot}. Recorded from \
             <code>PageTable</code>.",
            page_size - 1,
            entry(last, page)
        ),
        steps: (0..frames.len()).map(|step| step_text(frames, step)).collect(),
    }
}

/// Which entry of the table a page is.
fn entry(frame: &Frame, page: u32) -> usize {
    frame.pages.iter().take_while(|entry| **entry != page).count()
}

/// The left edge of a position's cell.
fn x(position: usize, page_size: usize) -> f64 {
    2.0 + position as f64 * PITCH + (position / page_size) as f64 * GAP
}

/// `1 page`, `2 pages`
fn pages(n: usize) -> String {
    if n == 1 { "1 page".into() } else { format!("{n} pages") }
}

/// The pages that came with this step.
fn new_pages<'f>(frame: &'f Frame, before: Option<&Frame>) -> &'f [u32] {
    &frame.pages[before.map_or(0, |before| before.pages.len())..]
}

fn outcome(frame: &Frame, before: Option<&Frame>) -> String {
    match (&frame.located, new_pages(frame, before)) {
        (Some(found), _) => format!("page {}, slot {}", found.page, found.slot),
        (None, []) => "takes no page".into(),
        (None, [page]) => format!("takes page {page}"),
        (None, pages) => format!("takes pages {}", listed(pages)),
    }
}

fn draw_table(svg: &mut Svg, y: f64, page_size: usize, frame: &Frame, before: Option<&Frame>) {
    svg.bold(0.0, y + 16.0, Anchor::Start, &frame.operation);
    svg.text(360.0, y + 16.0, Anchor::End, &outcome(frame, before));
    let held_before = before.map_or(0, |before| before.tokens);
    for position in 0..frame.pages.len() * page_size {
        let area = Area { x: x(position, page_size), y: y + 23.0, width: CELL, height: 26.0 };
        let (key, word) = (format!("t{position}"), position.to_string());
        let is_found = frame.located.as_ref().is_some_and(|found| found.position == position);
        match position {
            _ if is_found => svg.lit(Kind::Reused, area, &key, &word),
            _ if position < held_before => svg.cell(Kind::Reused, area, &key, &word),
            _ if position < frame.tokens => svg.cell(Kind::New, area, &key, &word),
            _ => svg.cell(Kind::Wasted, area, "", ""),
        }
    }
}

fn step_text(frames: &[Frame], step: usize) -> String {
    let frame = &frames[step];
    let before = step.checked_sub(1).map(|before| &frames[before]);
    let operation = &frame.operation;
    if let Some(Located { position, page, slot }) = &frame.located {
        return format!(
            "<code>{operation}</code>: position {position} is in entry {} of the table, page {page}, slot {slot}.",
            entry(frame, *page)
        );
    }
    format!(
        "<code>{operation}</code> needs {} and {}: {} tokens in {} {}. {} free.",
        pages(frame.pages_needed),
        outcome(frame, before),
        frame.tokens,
        if frame.pages.len() == 1 { "page" } else { "pages" },
        listed(&frame.pages),
        pages(frame.free)
    )
}
