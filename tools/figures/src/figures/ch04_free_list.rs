//! Chapter 4: the reference count of each page, and the free list, a stack.

use page_by_page::cache::{CacheError, PageId};
use page_by_page::chapters::ch04_page_pool::PagePool;

use super::prelude::*;

const PAGES: usize = 4;
/// The operations as they are written and as they run. They return the pages that were handed out.
const OPERATIONS: [(&str, Operation); 8] = [
    ("alloc_n(3)", |pool| pool.alloc_n(3)),
    ("free(1)", |pool| pool.free(PageId(1)).map(|()| vec![])),
    ("alloc()", |pool| Ok(vec![pool.alloc()?])),
    ("share(0)", |pool| pool.share(PageId(0)).map(|()| vec![])),
    ("free(0)", |pool| pool.free(PageId(0)).map(|()| vec![])),
    ("free(0)", |pool| pool.free(PageId(0)).map(|()| vec![])),
    ("free(0)", |pool| pool.free(PageId(0)).map(|()| vec![])),
    ("alloc_n(3)", |pool| pool.alloc_n(3)),
];
type Operation = fn(&mut PagePool) -> Outcome;
type Outcome = Result<Vec<PageId>, CacheError>;

struct State {
    /// Of the last operation.
    outcome: Outcome,
    owners: Vec<u32>,
    free_list: Vec<u32>,
}

impl State {
    /// After the first operations, in a pool of its own, from which every free page is taken at the end.
    fn after(done: usize) -> Result<Self> {
        let mut pool = PagePool::new(PAGES)?;
        let outcomes = OPERATIONS[..done].iter().map(|(_, run)| run(&mut pool));
        let outcome = outcomes.last().context("no operation")?;
        let owners = (0..PAGES as u32).map(|page| pool.owners(PageId(page))).collect::<Result<_, _>>()?;
        let mut free_list = Vec::new();
        while pool.n_free() > 0 {
            free_list.push(pool.alloc()?.0);
        }
        Ok(State { outcome, owners, free_list })
    }

    fn step(&self, before: &State) -> String {
        let State { outcome, owners, free_list } = self;
        let changed = (0..PAGES).find(|page| owners[*page] != before.owners[*page]).unwrap_or(0);
        match outcome {
            Err(error) => {
                let is_same = (owners, free_list) == (&before.owners, &before.free_list);
                let rest = if is_same { "Counts and list stay as they were." } else { "Yet something has changed." };
                format!("is refused with <code>{error:?}</code>. {rest}")
            }
            Ok(taken) if !taken.is_empty() => {
                format!("returns {}, which was on top of the free list.", pages(taken))
            }
            Ok(_) if free_list == &before.free_list => {
                let (n, was) = (owners[changed], before.owners[changed]);
                let did = if n > was {
                    format!("gives page {changed} an owner")
                } else {
                    format!("takes an owner from page {changed}")
                };
                let now = count(n as usize, "owner");
                format!("{did}. It has {now} now, so the free list stays as it was.")
            }
            Ok(_) => format!(
                "takes away page {changed}\u{2019}s last owner. The page goes on top of the free list and will be the next one out."
            ),
        }
    }
}

pub fn figure() -> Result<Figure> {
    let mut figure = Figure {
        label: format!(
            "The reference counts of {PAGES} pages, and the free list, after each of {} operations.",
            OPERATIONS.len() - 1
        ),
        message: "A page goes on top of the free list when its last owner frees it, and is handed out first.".into(),
        setup: "Pages 0, 1 and 2 were handed out before the first step. Page 0 has two owners for a while.".into(),
        legend: vec![(held('a', ""), "one owner"), (shared(&['a', 'b'], ""), "two owners")],
        ..Figure::default()
    };
    // The first operation only fills the pool, so that the second has something to change.
    let mut before = State::after(1)?;
    figure.starts_from(|picture| draw(picture, &before.owners, &before.free_list));
    for done in 2..=OPERATIONS.len() {
        let state = State::after(done)?;
        let says = format!("<code>{}</code> {}", OPERATIONS[done - 1].0, state.step(&before));
        figure.frame(says, |picture| draw(picture, &state.owners, &state.free_list));
        before = state;
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
            picture.pages(
                &names,
                1,
                (0..PAGES).map(|place| list.get(place).map_or(blank(), |page| free(format!("page {page}")))),
            );
        }
    });
}
