//! Chapter 4: the reference count of each page, and the free list, a stack.

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
type Operation = fn(&mut PagePool) -> Allocated;
type Allocated = Result<Vec<PageId>, CacheError>;

#[derive(PartialEq)]
struct PoolState {
    owners: Vec<u32>,
    free_list: Vec<PageId>,
}

impl PoolState {
    /// Takes every free page to read the list, and gives them back in the opposite order.
    fn read(pool: &mut PagePool) -> Result<Self> {
        let owners = (0..PAGES as u32).map(|page| pool.owners(PageId(page))).collect::<Result<_, _>>()?;
        let free_list = pool.alloc_n(pool.n_free())?;
        free_list.iter().rev().try_for_each(|page| pool.free(*page))?;
        Ok(PoolState { owners, free_list })
    }

    /// What an operation did to the state before it.
    fn step(&self, before: &PoolState, outcome: Allocated) -> String {
        let changed = (0..PAGES).find(|page| self.owners[*page] != before.owners[*page]).unwrap_or(0);
        let [n, was] = [self, before].map(|state| state.owners[changed]);
        match outcome {
            Err(error) => {
                let rest =
                    if self == before { "Counts and list stay as they were." } else { "Yet something has changed." };
                format!("is refused with <code>{error:?}</code>. {rest}")
            }
            Ok(taken) if !taken.is_empty() => {
                format!("returns {}, which was at the end of the free list.", pages(&taken))
            }
            Ok(_) if self.free_list == before.free_list => {
                let did = if n > was { "gives page {} an owner" } else { "takes an owner from page {}" };
                let (did, now) = (did.replace("{}", &changed.to_string()), count(n as usize, "owner"));
                format!("{did}. It has {now} now, so the free list stays as it was.")
            }
            Ok(_) => format!(
                "takes away page {changed}\u{2019}s last owner. The page goes to the end of the free list and will be \
                 the next one out."
            ),
        }
    }
}

pub fn figure() -> Result<Figure> {
    let n = OPERATIONS.len() - 1;
    let mut figure = Figure {
        label: format!("The reference counts of {PAGES} pages, and the free list, after each of {n} operations."),
        headline: "A page goes to the end of the free list when its last owner frees it, and is the next one out."
            .into(),
        setup: "Pages 0, 1 and 2 were handed out before the first step. Page 0 has two owners for a while.".into(),
        legend: vec![(held('a', ""), "one owner"), (shared(&['a', 'b'], ""), "two owners")],
        opens: 2,
        ..Figure::default()
    };
    let mut pool = PagePool::new(PAGES)?;
    let mut before: Option<PoolState> = None;
    for (call, run) in OPERATIONS {
        let outcome = run(&mut pool);
        let state = PoolState::read(&mut pool)?;
        match &before {
            // The first operation only fills the pool, so that the second has something to change.
            None => figure.starts_from(|picture| draw(picture, &state)),
            Some(before) => {
                figure.frame(format!("<code>{call}</code> {}", state.step(before, outcome)), |picture| {
                    draw(picture, &state)
                });
            }
        }
        before = Some(state);
    }
    Ok(figure)
}

fn draw(picture: &mut Picture, PoolState { owners, free_list }: &PoolState) {
    picture.beside(2, |picture, panel| {
        picture.heading(["owners of each page", "the vector free"][panel], "");
        if panel == 0 {
            let count = |owners: &u32| owned(&['a', 'b'][..2.min(*owners as usize)], owners, free(0));
            picture.pages(|page| format!("page {page}"), 1, owners.iter().map(count));
        } else {
            // As it lies in memory: the next one out is the last.
            let n = free_list.len();
            let cell = |place| free_list.iter().rev().nth(place).map_or(blank(), |page| free(format!("page {page}")));
            picture.pages(|place| if place + 1 == n { "next" } else { "" }.into(), 1, (0..PAGES).map(cell));
        }
    });
}
