//! Chapter 4: the reference count of each page, and the free list, a stack.

use anyhow::Result;
use page_by_page::cache::{CacheError, PageId};
use page_by_page::chapters::ch04_page_pool::PagePool;

use super::Figure;
use crate::layout::Grid;
use crate::svg::{Anchor, Kind, Svg, cell};
use crate::words::{joined, listed, page_numbers};

const PAGES: usize = 4;
/// The operations as they are written and as they run. They return the pages that were handed out.
const OPERATIONS: [(&str, Operation); 9] = [
    ("alloc()", |pool| Ok(vec![pool.alloc()?])),
    ("alloc()", |pool| Ok(vec![pool.alloc()?])),
    ("share(0)", |pool| pool.share(PageId(0)).map(|()| vec![])),
    ("free(1)", |pool| pool.free(PageId(1)).map(|()| vec![])),
    ("free(0)", |pool| pool.free(PageId(0)).map(|()| vec![])),
    ("free(0)", |pool| pool.free(PageId(0)).map(|()| vec![])),
    ("alloc_n(2)", |pool| pool.alloc_n(2)),
    ("alloc_n(3)", |pool| pool.alloc_n(3)),
    ("free(2)", |pool| pool.free(PageId(2)).map(|()| vec![])),
];
type Operation = fn(&mut PagePool) -> Outcome;
type Outcome = Result<Vec<PageId>, CacheError>;

pub fn figure() -> Result<Figure> {
    let mut figure = Figure::default();
    figure.svg.text(138.0, 15.0, Anchor::Start, "owners of page");
    figure.svg.text(256.0, 15.0, Anchor::Start, "free list,");
    figure.svg.text(256.0, 36.0, Anchor::Start, "next one first");
    for page in 0..PAGES {
        figure.svg.bold(counts().middle(page), 36.0, Anchor::Middle, &page.to_string());
    }
    figure.svg.y = 46.0;
    let mut before = vec![0; PAGES];
    for done in 0..=OPERATIONS.len() {
        // A pool for each line, from which every free page is taken at the end.
        let mut pool = PagePool::new(PAGES)?;
        let (mut operation, mut outcome) = (format!("new({PAGES})"), Ok(vec![]));
        for (name, run) in &OPERATIONS[..done] {
            (operation, outcome) = (name.to_string(), run(&mut pool));
        }
        let owners: Vec<u32> = (0..PAGES as u32).map(|page| pool.owners(PageId(page))).collect::<Result<_, _>>()?;
        let mut free = Vec::new();
        while pool.n_free() > 0 {
            free.push(pool.alloc()?.0);
        }
        let state =
            format!("Owners <code>{}</code>, free list <code>{}</code>", joined(&owners, " "), joined(&free, " "));
        let (title, says) = outcome_text(&operation, outcome, &state);
        figure.step(says, |svg| {
            svg.bold(0.0, svg.y + 19.0, Anchor::Start, &title);
            draw_pool(svg, &owners, &free, &before);
        });
        before = owners;
    }
    figure.svg.legend(&[
        (Kind::New, "came here now"),
        (Kind::Reused, "owned"),
        (Kind::Shared, "shared"),
        (Kind::Free, "free"),
    ]);
    figure.label = format!(
        "{} lines, one for each operation on a pool of {PAGES} pages, with the reference count of every page and the free list after \
         it.",
        figure.steps.len()
    );
    figure.caption = format!(
        "<strong>A page that is freed goes on top of the free list, and is handed out first.</strong> With two owners, it is freed \
         only when both have let go. A refusal changes nothing. Recorded from <code>PagePool</code> with {PAGES} pages; the free \
         list was read by taking every page of a pool that went the same way."
    );
    Ok(figure)
}

fn counts() -> Grid {
    Grid::between(138.0, 242.0, PAGES, PAGES)
}

/// Reference counts and the free list. `before`: the reference counts before the operation.
fn draw_pool(svg: &mut Svg, owners: &[u32], free: &[u32], before: &[u32]) {
    let y = svg.y;
    let count = |(page, (now, before)): (usize, (&u32, &u32))| {
        let kind = match (now, before) {
            (0, _) => Kind::Free,
            (1, 0) => Kind::New,
            (1, _) => Kind::Reused,
            _ => Kind::Shared,
        };
        cell(kind, now).key(format!("page-{page}"))
    };
    svg.row(counts(), owners.iter().zip(before).enumerate().map(count));
    svg.y = y;
    let kind = |page: u32| if before[page as usize] == 0 { Kind::Free } else { Kind::New };
    let list = Grid::between(256.0, 360.0, PAGES, PAGES);
    svg.row(list, free.iter().map(|page| cell(kind(*page), page).key(format!("page-{page}"))));
}

/// An operation in the picture, and in the list of steps. `state`: how the pool is then.
fn outcome_text(operation: &str, outcome: Outcome, state: &str) -> (String, String) {
    let (title, says) = match outcome.map(|pages| page_numbers(&pages)) {
        Err(error) => (" refused".into(), format!(" is refused, <code>{error:?}</code>: nothing changes.")),
        Ok(pages) if pages.is_empty() => (String::new(), format!(". {state}.")),
        Ok(pages) => (format!(" → {}", joined(&pages, ", ")), format!(" gives {}. {state}.", listed(&pages))),
    };
    (format!("{operation}{title}"), format!("<code>{operation}</code>{says}"))
}
