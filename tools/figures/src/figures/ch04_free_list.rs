//! Chapter 4: the owners of each page, and the free list, a stack.

use anyhow::Result;
use page_by_page::cache::{CacheError, PageId};
use page_by_page::chapters::ch04_page_pool::PagePool;
use serde::Serialize;

use crate::fragment::Drawing;
use crate::runs::page_numbers;
use crate::svg::{Anchor, Area, Kind, Svg, listed};

const PAGES: usize = 4;
const OPERATIONS: [Operation; 9] = [
    Operation::Alloc,
    Operation::Alloc,
    Operation::Share(0),
    Operation::Free(1),
    Operation::Free(0),
    Operation::Free(0),
    Operation::AllocN(2),
    Operation::AllocN(3),
    Operation::Free(2),
];

#[derive(Clone, Copy)]
enum Operation {
    Alloc,
    AllocN(usize),
    Share(u32),
    Free(u32),
}

impl Operation {
    fn name(self) -> String {
        match self {
            Operation::Alloc => "alloc()".into(),
            Operation::AllocN(n) => format!("alloc_n({n})"),
            Operation::Share(page) => format!("share({page})"),
            Operation::Free(page) => format!("free({page})"),
        }
    }

    /// The pages that were handed out.
    fn apply(self, pool: &mut PagePool) -> Result<Vec<PageId>, CacheError> {
        match self {
            Operation::Alloc => Ok(vec![pool.alloc()?]),
            Operation::AllocN(n) => pool.alloc_n(n),
            Operation::Share(page) => pool.share(PageId(page)).map(|()| vec![]),
            Operation::Free(page) => pool.free(PageId(page)).map(|()| vec![]),
        }
    }
}

#[derive(Serialize)]
pub struct Trace {
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Frame {
    operation: String,
    handed_out: Vec<u32>,
    refused: Option<String>,
    /// Of each page.
    owners: Vec<u32>,
    /// The pages that would be handed out, the next one first.
    free_list: Vec<u32>,
}

pub fn record() -> Result<Trace> {
    let mut pool = PagePool::new(PAGES)?;
    let mut frames = vec![frame(&pool, 0, format!("new({PAGES})"), &Ok(vec![]))?];
    for (done, operation) in OPERATIONS.into_iter().enumerate() {
        let outcome = operation.apply(&mut pool);
        frames.push(frame(&pool, done + 1, operation.name(), &outcome)?);
    }
    Ok(Trace { frames })
}

fn frame(pool: &PagePool, done: usize, operation: String, outcome: &Result<Vec<PageId>, CacheError>) -> Result<Frame> {
    let owners = (0..PAGES as u32).map(|page| pool.owners(PageId(page))).collect::<Result<_, _>>()?;
    Ok(Frame {
        operation,
        handed_out: outcome.as_ref().map(|pages| page_numbers(pages)).unwrap_or_default(),
        refused: outcome.as_ref().err().map(|error| format!("{error:?}")),
        owners,
        free_list: free_list(done)?,
    })
}

/// Does the same on a pool of its own, and then takes whatever is free.
fn free_list(done: usize) -> Result<Vec<u32>> {
    let mut pool = PagePool::new(PAGES)?;
    for operation in &OPERATIONS[..done] {
        // Refusals are part of the story.
        let _ = operation.apply(&mut pool);
    }
    let mut pages = Vec::new();
    while pool.n_free() > 0 {
        pages.push(pool.alloc()?);
    }
    Ok(page_numbers(&pages))
}

const OWNERS: f64 = 140.0;
const LIST: f64 = 258.0;
const PITCH: f64 = 26.0;
const CELL: f64 = 22.0;
const LINE: f64 = 34.0;
const TOP: f64 = 46.0;

pub fn draw(trace: &Trace) -> Drawing {
    let frames = &trace.frames;
    let bottom = TOP + frames.len() as f64 * LINE;
    let mut svg = Svg::new(bottom + 24.0);
    svg.text(OWNERS, 15.0, Anchor::Start, "owners of page");
    svg.text(LIST, 15.0, Anchor::Start, "free list,");
    svg.text(LIST, 36.0, Anchor::Start, "next one first");
    for page in 0..frames[0].owners.len() {
        svg.bold(OWNERS + page as f64 * PITCH + CELL / 2.0, 36.0, Anchor::Middle, &page.to_string());
    }
    for (step, frame) in frames.iter().enumerate() {
        let before = step.checked_sub(1).map(|before| &frames[before]);
        svg.step(step, |svg| draw_pool(svg, TOP + step as f64 * LINE, frame, before));
    }
    svg.legend(Kind::New, 0.0, bottom + 4.0, "came here now");
    svg.legend(Kind::Reused, 133.0, bottom + 4.0, "owned");
    svg.legend(Kind::Shared, 209.0, bottom + 4.0, "shared");
    svg.legend_free(290.0, bottom + 4.0, "free");

    let told: Vec<String> = frames[1..].iter().map(told).collect();
    let last = &frames[frames.len() - 1];
    Drawing {
        svg,
        label: format!(
            "{} lines, one for each operation on a pool of {} pages: {}. Beside each, the number of owners of every \
             page and the free list. At the end pages {} have no owner and are the free list.",
            frames.len(),
            last.owners.len(),
            told.join("; "),
            listed(&last.free_list)
        ),
        caption: format!(
            "A pool of {} pages. What comes back is laid on top of the free list and goes out first; a page with two \
             owners comes back only when both have let go. A refusal changes nothing. Recorded from \
             <code>PagePool</code>; the free list was read by taking every page of a second pool that went the same \
             way.",
            last.owners.len()
        ),
        steps: frames.iter().map(step_text).collect(),
    }
}

fn told(frame: &Frame) -> String {
    let operation = &frame.operation;
    match (&frame.refused, frame.handed_out.is_empty()) {
        (Some(_), _) => format!("{operation} refused"),
        (None, true) => operation.clone(),
        (None, false) => {
            let pages: Vec<String> = frame.handed_out.iter().map(u32::to_string).collect();
            format!("{operation} → {}", pages.join(", "))
        }
    }
}

fn draw_pool(svg: &mut Svg, y: f64, frame: &Frame, before: Option<&Frame>) {
    svg.bold(0.0, y + 17.0, Anchor::Start, &told(frame));
    for (page, &owners) in frame.owners.iter().enumerate() {
        let area = Area { x: OWNERS + page as f64 * PITCH, y, width: CELL, height: CELL + 2.0 };
        let (key, word) = (format!("page-{page}"), owners.to_string());
        let was_free = before.is_some_and(|before| before.owners[page] == 0);
        match owners {
            0 => svg.free(area, &key, &word),
            1 if was_free => svg.cell(Kind::New, area, &key, &word),
            1 => svg.cell(Kind::Reused, area, &key, &word),
            _ => svg.cell(Kind::Shared, area, &key, &word),
        }
    }
    for (place, page) in frame.free_list.iter().enumerate() {
        let area = Area { x: LIST + place as f64 * PITCH, y, width: CELL, height: CELL + 2.0 };
        let (key, word) = (format!("page-{page}"), page.to_string());
        let was_free = before.is_none_or(|before| before.free_list.contains(page));
        match was_free {
            true => svg.free(area, &key, &word),
            false => svg.cell(Kind::New, area, &key, &word),
        }
    }
}

fn step_text(frame: &Frame) -> String {
    let operation = &frame.operation;
    if let Some(error) = &frame.refused {
        return format!("<code>{operation}</code>: <code>{error}</code>. Nothing changes.");
    }
    let gives = match frame.handed_out.is_empty() {
        true => String::new(),
        false => format!(" gives {}", listed(&frame.handed_out)),
    };
    let owners: Vec<String> = frame.owners.iter().map(u32::to_string).collect();
    let free: Vec<String> = frame.free_list.iter().map(u32::to_string).collect();
    format!(
        "<code>{operation}</code>{gives}. Owners <code>{}</code>, free list <code>{}</code>.",
        owners.join(" "),
        free.join(" ")
    )
}
