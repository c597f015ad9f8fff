//! Chapter 4: the reference count of each page, and the free list, a stack.

use anyhow::Result;
use page_by_page::cache::{CacheError, PageId};
use page_by_page::chapters::ch04_page_pool::PagePool;

use super::Figure;
use crate::picture::{Picture, blank, free, held, shared};
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
    let mut figure = Figure {
        label: format!(
            "The reference counts of {PAGES} pages, and the free list, after each of {} operations.",
            OPERATIONS.len()
        ),
        message: "A page that is freed goes on top of the free list, and is handed out first.".into(),
        setup: "A page with two owners is freed only when both have let go. A refusal changes nothing.".into(),
        owners: vec![(held('a', ""), "one owner"), (shared(&['a', 'b'], ""), "two owners")],
        legend: vec![(crate::picture::Fate::Shared, "")],
        ..Figure::default()
    };
    for done in 0..=OPERATIONS.len() {
        // A pool for each frame, from which every free page is taken at the end.
        let mut pool = PagePool::new(PAGES)?;
        let (mut operation, mut outcome) = (format!("new({PAGES})"), Ok(vec![]));
        for (name, run) in &OPERATIONS[..done] {
            (operation, outcome) = (name.to_string(), run(&mut pool));
        }
        let owners: Vec<u32> = (0..PAGES as u32).map(|page| pool.owners(PageId(page))).collect::<Result<_, _>>()?;
        let mut list = Vec::new();
        while pool.n_free() > 0 {
            list.push(pool.alloc()?.0);
        }
        let outcome = match outcome.map(|pages| page_numbers(&pages)) {
            Err(error) => format!("is refused, <code>{error:?}</code>: nothing changes."),
            Ok(pages) if pages.is_empty() => "succeeds.".into(),
            Ok(pages) => format!("returns {}.", listed(&pages)),
        };
        let says = format!(
            "<code>{operation}</code> {outcome} Owners <code>{}</code>, free list <code>{}</code>.",
            joined(&owners, " "),
            joined(&list, " ")
        );
        figure.frame(says, |picture| draw(picture, &owners, &list));
    }
    Ok(figure)
}

fn draw(picture: &mut Picture, owners: &[u32], list: &[u32]) {
    picture.beside(2, |picture, panel| match panel {
        0 => {
            picture.heading("owners of each page", "");
            let names: Vec<String> = (0..PAGES).map(|page| format!("page {page}")).collect();
            let count = |owners: &u32| match owners {
                0 => free(0),
                1 => held('a', 1),
                n => shared(&['a', 'b'], n),
            };
            picture.pages(&names, 1, owners.iter().map(count));
        }
        _ => {
            picture.heading("free list", "");
            let names = ["next", "", "", ""].map(String::from);
            picture.pages(&names, 1, (0..PAGES).map(|place| list.get(place).map_or(blank(), free)));
        }
    });
}
