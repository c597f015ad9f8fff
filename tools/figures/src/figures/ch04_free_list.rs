//! Chapter 4: the reference count of each page, and the free list, a stack.

use anyhow::Result;
use page_by_page::cache::{CacheError, PageId};
use page_by_page::chapters::ch04_page_pool::PagePool;

use super::Figure;
use crate::layout::Grid;
use crate::svg::{Anchor, Kind, Svg, cell};
use crate::words::{joined, listed, page_numbers, with_before};

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

    /// Returns the pages that were handed out.
    fn apply(self, pool: &mut PagePool) -> Result<Vec<PageId>, CacheError> {
        match self {
            Operation::Alloc => Ok(vec![pool.alloc()?]),
            Operation::AllocN(n) => pool.alloc_n(n),
            Operation::Share(page) => pool.share(PageId(page)).map(|()| vec![]),
            Operation::Free(page) => pool.free(PageId(page)).map(|()| vec![]),
        }
    }
}

struct Frame {
    operation: String,
    handed_out: Vec<u32>,
    refused: Option<String>,
    /// Of each page.
    owners: Vec<u32>,
    /// The pages that would be handed out, the next one first.
    free_list: Vec<u32>,
}

fn record() -> Result<Vec<Frame>> {
    Ok((0..=OPERATIONS.len()).map(frame).collect::<Result<_>>()?)
}

/// The state after so many operations on a pool, from which every free page is taken at the end.
fn frame(done: usize) -> Result<Frame> {
    let mut pool = PagePool::new(PAGES)?;
    let (mut operation, mut outcome) = (format!("new({PAGES})"), Ok(vec![]));
    for next in &OPERATIONS[..done] {
        (operation, outcome) = (next.name(), next.apply(&mut pool));
    }
    let owners = (0..PAGES as u32).map(|page| pool.owners(PageId(page))).collect::<Result<_, _>>()?;
    let mut free_list = Vec::new();
    while pool.n_free() > 0 {
        free_list.push(pool.alloc()?.0);
    }
    let refused = outcome.as_ref().err().map(|error| format!("{error:?}"));
    Ok(Frame { operation, handed_out: page_numbers(&outcome.unwrap_or_default()), refused, owners, free_list })
}

pub fn figure() -> Result<Figure> {
    let frames = &record()?;
    let (counts, list) = (Grid::between(138.0, 242.0, PAGES, PAGES), Grid::between(256.0, 360.0, PAGES, PAGES));
    let mut svg = Svg::new();
    svg.text(138.0, 15.0, Anchor::Start, "owners of page");
    svg.text(256.0, 15.0, Anchor::Start, "free list,");
    svg.text(256.0, 36.0, Anchor::Start, "next one first");
    for page in 0..PAGES {
        svg.bold(counts.middle(page), 36.0, Anchor::Middle, &page.to_string());
    }
    svg.y = 46.0;
    for (before, frame) in with_before(frames) {
        svg.step(|svg| {
            let is_free = |page: usize| before.is_none_or(|before| before.owners[page] == 0);
            let kind = |page: usize, owners| match owners {
                0 => Kind::Free,
                1 if is_free(page) => Kind::New,
                1 => Kind::Reused,
                _ => Kind::Shared,
            };
            let y = svg.y;
            svg.bold(0.0, y + 19.0, Anchor::Start, &outcome(frame));
            let pages = frame.owners.iter().enumerate();
            svg.row(counts, pages.map(|(page, n)| cell(kind(page, *n), n).key(format!("page-{page}"))));
            let kind = |page: u32| if is_free(page as usize) { Kind::Free } else { Kind::New };
            svg.y = y;
            svg.row(list, frame.free_list.iter().map(|page| cell(kind(*page), page).key(format!("page-{page}"))));
        });
    }
    svg.legend(&[
        (Kind::New, "came here now"),
        (Kind::Reused, "owned"),
        (Kind::Shared, "shared"),
        (Kind::Free, "free"),
    ]);
    Ok(Figure {
        svg,
        label: format!(
            "{} lines, one for each operation on a pool of {PAGES} pages, with the reference count of every page and the free \
             list after it.",
            frames.len()
        ),
        caption: format!(
            "<strong>A page that is freed goes on top of the free list, and is handed out first.</strong> With two owners, it is \
             freed only when both have let go. A refusal changes nothing. Recorded from <code>PagePool</code> with {PAGES} \
             pages; the free list was read by taking every page of a pool that went the same way."
        ),
        steps: frames.iter().map(step_text).collect(),
        ..Figure::default()
    })
}

/// `alloc_n(2) → 0, 1`
fn outcome(frame: &Frame) -> String {
    let operation = &frame.operation;
    match (&frame.refused, &frame.handed_out[..]) {
        (Some(_), _) => format!("{operation} refused"),
        (None, []) => operation.clone(),
        (None, pages) => format!("{operation} → {}", joined(pages, ", ")),
    }
}

fn step_text(frame: &Frame) -> String {
    let Frame { operation, handed_out, refused, owners, free_list } = frame;
    if let Some(error) = refused {
        return format!("<code>{operation}</code> is refused, <code>{error}</code>: nothing changes.");
    }
    let gives = if handed_out.is_empty() { String::new() } else { format!(" gives {}", listed(handed_out)) };
    format!(
        "<code>{operation}</code>{gives}. Owners <code>{}</code>, free list <code>{}</code>.",
        joined(owners, " "),
        joined(free_list, " ")
    )
}
