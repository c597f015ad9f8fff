//! Chapter 4: who owns each page, its reference count, and the free list, a stack.

use page_by_page::chapters::ch04_page_pool::PagePool;

use super::prelude::*;

const PAGES: usize = 4;
/// The operations, each for a sequence, as they are written and as they run. They return the pages that were handed out.
const OPERATIONS: [(char, &str, Operation); 7] = [
    ('a', "free(1)", |pool| pool.free(PageId(1)).map(|()| vec![])),
    ('a', "alloc()", |pool| Ok(vec![pool.alloc()?])),
    ('b', "share(0)", |pool| pool.share(PageId(0)).map(|()| vec![])),
    ('a', "free(0)", |pool| pool.free(PageId(0)).map(|()| vec![])),
    ('b', "free(0)", |pool| pool.free(PageId(0)).map(|()| vec![])),
    ('b', "free(0)", |pool| pool.free(PageId(0)).map(|()| vec![])),
    ('b', "alloc_n(3)", |pool| pool.alloc_n(3)),
];
type Operation = fn(&mut PagePool) -> Allocated;
type Allocated = Result<Vec<PageId>, CacheError>;

#[derive(Clone, Default, PartialEq)]
struct PoolState {
    counts: [u32; PAGES],
    /// The sequences in whose tables each page is.
    owners: [Vec<char>; PAGES],
    free_list: Vec<PageId>,
}

impl PoolState {
    /// Takes every free page to read the list, and gives them back in the opposite order.
    fn after(&self, name: char, pool: &mut PagePool) -> Result<Self> {
        let mut state = self.clone();
        for (page, owners) in state.owners.iter_mut().enumerate() {
            state.counts[page] = pool.owners(PageId(page as u32))?;
            if state.counts[page] > self.counts[page] {
                owners.push(name);
            } else if state.counts[page] < self.counts[page] {
                owners.retain(|owner| *owner != name);
            }
        }
        state.free_list = pool.alloc_n(pool.n_free())?;
        state.free_list.iter().rev().try_for_each(|page| pool.free(*page))?;
        Ok(state)
    }

    /// What an operation did to the state before it.
    fn step(&self, before: &PoolState, outcome: Allocated) -> String {
        let page = (0..PAGES).find(|page| self.counts[*page] != before.counts[*page]).unwrap_or(0);
        let (owners, names) = (plural(self.counts[page], "owner"), listed(&self.owners[page]));
        let rest = if self == before { "Nothing changes." } else { "Yet something has changed." };
        match outcome {
            Err(error) => format!("is refused with <code>{error:?}</code>. {rest}"),
            Ok(taken) if !taken.is_empty() => format!("returns {}, from the end of the free list.", pages(&taken)),
            Ok(_) if names.is_empty() => format!("puts page {page}, now free, at the end of the free list."),
            Ok(_) => format!("leaves page {page} with {owners}, {names}. The free list stays as it was."),
        }
    }
}

pub fn figure() -> Result<Figure> {
    let mut figure = Figure {
        label: "The count of owners of each page, the tables of a and b, and the free list, step by step.".into(),
        headline: "When its last owner frees it, a page goes to the end of the free list, the next one out.".into(),
        setup: "Before the first step, a has pages 0, 1 and 2. For a while, page 0 is in both tables.".into(),
        legend: vec![(held('a', ""), "a\u{2019}s"), (held('b', ""), "b\u{2019}s")],
        ..Figure::default()
    };
    let mut pool = PagePool::new(PAGES)?;
    pool.alloc_n(3)?;
    let mut before = PoolState::default().after('a', &mut pool)?;
    figure.starts_from(|picture| draw(picture, &before));
    for (name, call, run) in OPERATIONS {
        let outcome = run(&mut pool);
        let state = before.after(name, &mut pool)?;
        let text = format!("<code>{call}</code> for {name} {}", state.step(&before, outcome));
        figure.frame(text, |picture| draw(picture, &state));
        before = state;
    }
    Ok(figure)
}

fn draw(picture: &mut Picture, PoolState { counts, owners, free_list }: &PoolState) {
    picture.beside(2, |picture, panel| {
        picture.heading(["owners of each page", "the vector free"][panel], "");
        if panel == 0 {
            picture.labelled("table of a");
            let cells = owners.iter().zip(counts).map(|(owners, count)| owned(owners, count, free(count)));
            picture.pages(|page| format!("page {page}"), 1, cells);
            for name in ['a', 'b'] {
                let grid = picture.grid(PAGES, 1);
                picture.row(&format!("table of {name}"), "", 1, []);
                for page in (0..PAGES).filter(|page| owners[*page].contains(&name)) {
                    picture.cell(grid.cell(page), held(name, page));
                }
            }
        } else {
            // As it lies in memory: the next one out is the last.
            let n = free_list.len();
            let cell = |place| free_list.iter().rev().nth(place).map_or(blank(), |page| free(format!("page {page}")));
            picture.pages(|place| if place + 1 == n { "next" } else { "" }.into(), 1, (0..PAGES).map(cell));
        }
    });
}
