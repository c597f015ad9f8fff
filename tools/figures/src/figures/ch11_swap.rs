//! Chapter 11: the same insert with the swap and without it, in a pool that is just large enough.

use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;
use page_by_page::chapters::ch11_prefix_cache::PrefixTrie;
use page_by_page::prefix_cache::PrefixCache;

use super::prelude::*;

const PAGE_SIZE: usize = 4;
const PAGES: usize = 3;
/// The tokens of each page as they are computed: by a sequence that has ended, and by x.
const HOLDS: [&str; PAGES] = ["t0\u{2013}t3", "t0\u{2013}t3", "t4\u{2013}t7"];

/// x has computed its tokens, and not inserted them.
fn computed() -> Result<(PagePool, PrefixTrie, PageTable)> {
    let (mut pool, mut trie) = (PagePool::new(PAGES)?, PrefixTrie::new(PAGE_SIZE)?);
    let [mut earlier, mut x] = [PageTable::new(PAGE_SIZE)?, PageTable::new(PAGE_SIZE)?];
    earlier.grow(PAGE_SIZE, &mut pool)?;
    trie.insert(&[0, 1, 2, 3], &mut earlier, &mut pool)?;
    x.grow(2 * PAGE_SIZE, &mut pool)?;
    earlier.release(&mut pool)?;
    Ok((pool, trie, x))
}

/// What each page holds and who owns it.
fn cells(pool: &PagePool, x: &PageTable) -> Result<Vec<Cell>> {
    let cell = |(page, holds): (u32, &str)| {
        Ok(match (x.pages().contains(&PageId(page)), pool.owners(PageId(page))?) {
            (_, 0) => free("free"),
            (true, 1) => held('x', format!("{holds}: x")),
            (true, _) => held('x', format!("{holds}: x, trie")),
            (false, _) => cached(format!("{holds}: trie")),
        })
    };
    (0..).zip(HOLDS).map(cell).collect()
}

pub fn figure() -> Result<Figure> {
    let (mut pool, mut trie, mut x) = computed()?;
    let before = cells(&pool, &x)?;
    trie.insert(&Vec::from_iter(0..8), &mut x, &mut pool)?;
    let swapped = cells(&pool, &x)?;
    ensure!(x.grow(1, &mut pool).is_ok(), "the swap leaves a page for t8");
    // Without it the trie owns page 2 as well, as a child of page 0.
    let (mut pool, _trie, x) = computed()?;
    pool.share(PageId(2))?;
    let kept = cells(&pool, &x)?;
    let states = [
        ("x has computed t0 to t7", "no page for t8", before, false),
        ("x keeps its copy, page 1", "page 0 has a child: none for t8, ever", kept, true),
        ("x swaps page 1 for page 0", "page 1 is free for t8", swapped, true),
    ];
    let figure = Figure {
        label: "Three rows of three pages. At first the trie owns page 0, x owns pages 1 and 2. If x keeps page 1, the trie's \
                page 2 has page 0 as its parent, and no page can be had. If x takes page 0 for page 1, page 1 is free."
            .into(),
        headline: "A copy that is kept, and a sequence that waits forever.".into(),
        setup: "A pool of 3 pages of 4 slots. The line below leads from a page of the trie to its child.".into(),
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        for (title, note, cells, is_linked) in &states {
            picture.heading(title, "");
            let grid = picture.pages(|page| format!("page {page}"), 1, cells.iter().cloned());
            if *is_linked {
                let [parent, child] = [0, 2].map(|page| (grid.middle(page), grid.cell(page).bottom()));
                picture.path("line", format!("M{:.1} {:.1}v9H{:.1}", parent.0, parent.1 + 1.0, child.0));
                picture.arrow((child.0, parent.1 + 10.0), (child.0, child.1 + 2.0));
            }
            picture.text(picture.left, picture.y + 22.0, Anchor::Start, note);
            picture.y += 38.0;
        }
    }))
}
