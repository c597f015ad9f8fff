//! Grader of chapter 10: fork and copy-on-write.

#[cfg(unstarted = "ch10_fork")]
#[test]
#[ignore = "not started: edit exercises/ch10_fork.rs, or run with --features solution"]
fn ch10_fork() {}

#[cfg(not(unstarted = "ch10_fork"))]
#[macro_use]
mod support;

#[cfg(not(unstarted = "ch10_fork"))]
whose_code! {
    ch04_page_pool = "ch04_page_pool",
    ch05_page_table = "ch05_page_table",
    ch06_paged = "ch06_paged",
    ch07_rewind = "ch07_rewind",
    ch10_fork = "ch10_fork",
}

#[cfg(not(unstarted = "ch10_fork"))]
mod checks {
    use std::collections::{BTreeSet, HashMap};

    use page_by_page::cache::{CacheError, KvCache, KvLayout, PageId, Rewind};
    use page_by_page::chapters::ch04_page_pool::PagePool;
    use page_by_page::chapters::ch05_page_table::PageTable;
    use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
    use page_by_page::chapters::ch10_fork::{Beams, Candidate, ForkCache, PageCopy};
    use page_by_page::sampler::{Sampler, Sampling};

    use crate::support::asking::{asking, granted, made, one_of, quietly};
    use crate::support::limits::{alive, allocated, often, once};
    use crate::support::oracle::{self, Dice, Oracle, STEPS, seeds};
    use crate::support::rows::{KINDS, Kind};
    use crate::support::story::{SAMPLING, Storyteller, Watched};
    use crate::support::transcript::{Transcript, assert_transcript, outcome, told_pages};
    use crate::support::words::count;

    /// Three numbers that cannot be taken for one another.
    const LAYOUT: KvLayout = KvLayout { n_layers: 3, n_kv_heads: 2, head_dim: 5 };

    /// The smallest rows that there are.
    const ONE_NUMBER: KvLayout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 1 };

    /// More than 16 bits can count.
    const MANY: usize = if cfg!(miri) { 300 } else { 70_000 };

    /// Pages enough for a walk through them at every call to take minutes.
    const VERY_MANY: usize = if cfg!(miri) { 300 } else { 1_000_000 };

    /// The way there. What goes through all pages for each page is told on one of the first steps, after seconds.
    fn more_and_more() -> impl Iterator<Item = usize> {
        [64, 45, 32, 22, 16, 11, 8, 6, 4, 3, 2, 1].into_iter().map(|part| VERY_MANY / part)
    }

    /// Up to this page size every case is tried.
    const LARGEST_PAGE: usize = if cfg!(miri) { 3 } else { 6 };

    /// A row in which rounding, a lost sign, and a number that is taken for nothing all show.
    const TELLING: [f32; 10] = [-0.0, 0.1, -2.5, f32::MIN_POSITIVE, 1e-40, 1e38, -1e30, 1.0 / 3.0, 16_777_213.0, 0.0];

    #[track_caller]
    fn pool(n_pages: usize) -> PagePool {
        made(&format!("PagePool::new({n_pages}) of chapter 4"), || PagePool::new(n_pages))
    }

    /// A table over pages of so many slots that has grown by `tokens`, as chapter 5 does it.
    #[track_caller]
    fn table(page_size: usize, tokens: usize, pool: &mut PagePool) -> PageTable {
        let mut table = made(&format!("PageTable::new({page_size}) of chapter 5"), || PageTable::new(page_size));
        grow(&mut table, tokens, pool);
        table
    }

    #[track_caller]
    fn grow(table: &mut PageTable, n: usize, pool: &mut PagePool) {
        let (len, size) = (table.len(), table.page_size());
        let tokens = count(len, "token");
        granted(format!("grow({n}) of chapter 5, on {tokens}, page size {size}, with pages enough"), || {
            table.grow(n, pool)
        });
    }

    #[track_caller]
    fn release(table: &mut PageTable, pool: &mut PagePool, when: &str) {
        granted(format!("release of chapter 5, {when}"), || table.release(pool));
    }

    /// Forks a table; looks first at what the fork says of itself.
    #[track_caller]
    fn fork_table(table: &PageTable, pool: &mut PagePool) -> PageTable {
        let at = format!("fork of a table of {}, page size {}", count(table.len(), "token"), table.page_size());
        let fork = granted(at.as_str(), || table.fork(pool));
        same!(
            (fork.len(), fork.page_size(), fork.pages().len()),
            (table.len(), table.page_size(), table.pages().len()),
            "(tokens, page size, pages) of the fork, {at}"
        );
        fork
    }

    fn numbers(table: &PageTable) -> Vec<u32> {
        table.pages().iter().map(|page| page.0).collect()
    }

    /// Owners of the first pages of a pool; 99 where it has no such page.
    fn owners(pool: &PagePool, pages: u32) -> Vec<u32> {
        (0..pages).map(|page| pool.owners(PageId(page)).unwrap_or(99)).collect()
    }

    /// The pages that the pool would hand out, the next one first. They are all given back.
    fn free_list(pool: &mut PagePool) -> Vec<u32> {
        let pages: Vec<PageId> =
            (0..pool.n_free()).map(|_| granted("alloc of chapter 4, of a free page", || pool.alloc())).collect();
        for page in pages.iter().rev() {
            granted("free of chapter 4, of a page just taken", || pool.free(*page));
        }
        pages.iter().map(|page| page.0).collect()
    }

    #[track_caller]
    fn slab(n_pages: usize) -> SharedSlab {
        slab_of(LAYOUT, 4, n_pages)
    }

    #[track_caller]
    fn slab_of(layout: KvLayout, page_size: usize, n_pages: usize) -> SharedSlab {
        made(&format!("PageSlab::new of chapter 6, with {n_pages} pages of {page_size} slots"), || {
            PageSlab::new(layout, page_size, n_pages)
        })
    }

    #[track_caller]
    fn cache(slab: &SharedSlab) -> ForkCache {
        made("ForkCache::new", || ForkCache::new(slab))
    }

    /// A cache that holds these tokens, and what it must hold from now on.
    #[track_caller]
    fn text(slab: &SharedSlab, name: &str, tokens: &[usize]) -> (ForkCache, Oracle) {
        let mut cache = cache(slab);
        let mut oracle = Oracle::of(format!("text {name}"));
        append(slab, &mut oracle, &mut cache, tokens);
        (cache, oracle)
    }

    /// Extends a cache by tokens for which there is room, and writes their rows. A refusal is told with what was needed.
    #[track_caller]
    fn append(slab: &SharedSlab, oracle: &mut Oracle, cache: &mut ForkCache, tokens: &[usize]) {
        let (len, size, n) = (cache.len(), cache.table().page_size(), tokens.len());
        let tail = cache.table().pages().last().filter(|_| n > 0 && len % size > 0);
        let copies = tail.is_some_and(|tail| slab.borrow().pool().owners(*tail).is_ok_and(|owners| owners > 1));
        let needed = (len + n).div_ceil(size) - len.div_ceil(size) + usize::from(copies);
        let copy = if copies { ", one of them for a copy" } else { "" };
        let [needs, free] = [needed, n_free(slab)].map(|n| count(n, "page"));
        let room = format!("it needs {needs}{copy}, and the pool has {free} free");
        oracle.append_with_room(cache, tokens, &room);
    }

    /// Forks a text; looks first at what the fork says of itself.
    #[track_caller]
    fn fork(cache: &ForkCache, oracle: &Oracle, name: &str) -> (ForkCache, Oracle) {
        let held = count(cache.len(), "token");
        let fork = granted(format!("fork of a cache of {held}"), || cache.fork());
        same!(fork.len(), cache.len(), "tokens in a fork of a cache of {held}");
        same!(numbers(fork.table()), numbers(cache.table()), "pages of a fork of a cache of {held}: the same");
        let mut forked = Oracle::of(format!("text {name}"));
        forked.tokens = oracle.tokens.clone();
        forked.note(format!("forked with {held}"));
        (fork, forked)
    }

    fn n_free(slab: &SharedSlab) -> usize {
        slab.borrow().pool().n_free()
    }

    fn owners_in(slab: &SharedSlab, pages: u32) -> Vec<u32> {
        owners(slab.borrow().pool(), pages)
    }

    fn first_tokens(n: usize) -> Vec<usize> {
        (0..n).collect()
    }

    /// All numbers of a slab, keys and values.
    fn content(slab: &SharedSlab) -> [Vec<f32>; 2] {
        let slab = slab.borrow();
        [slab.keys().to_vec(), slab.values().to_vec()]
    }

    /// Rows of a slab that have changed, as (page, layer, slot), with keys or values.
    fn changed(before: &[Vec<f32>; 2], after: &[Vec<f32>; 2], page_size: usize) -> Vec<(Kind, usize, usize, usize)> {
        let mut changed = Vec::new();
        for (kind, (before, after)) in KINDS.into_iter().zip(before.iter().zip(after)) {
            let rows = before.chunks(LAYOUT.kv_width()).zip(after.chunks(LAYOUT.kv_width()));
            for (index, (before, after)) in rows.enumerate() {
                if before.iter().zip(after).any(|(a, b)| a.to_bits() != b.to_bits()) {
                    let (page_and_layer, slot) = (index / page_size, index % page_size);
                    changed.push((kind, page_and_layer / LAYOUT.n_layers, page_and_layer % LAYOUT.n_layers, slot));
                }
            }
        }
        changed
    }

    /// What a refused call must leave as it was.
    type State = (Vec<u32>, usize, usize, Vec<u32>, u64);

    fn state(cache: &ForkCache, slab: &SharedSlab) -> State {
        let n_pages = slab.borrow().pool().n_pages() as u32;
        let pages = numbers(cache.table());
        (pages, cache.len(), n_free(slab), owners_in(slab, n_pages), cache.usage().rows_copied)
    }

    const STATE: &str = "(pages, tokens, free pages, owners of all pages, rows copied)";

    // Task 1

    #[test]
    fn task_1_fork_has_the_same_pages_and_takes_none() {
        for size in 1..=LARGEST_PAGE {
            for held in 0..=2 * size + 1 {
                let mut pool = pool(9);
                // The table's pages are neither the first of the pool nor in order.
                let taken = granted("alloc_n(3) of chapter 4", || pool.alloc_n(3));
                let mut a = table(size, held.min(1), &mut pool);
                granted("free of chapter 4, of page 1", || pool.free(taken[1]));
                grow(&mut a, held - held.min(1), &mut pool);
                let free = pool.n_free();
                let (tokens, pages) = (count(held, "token"), numbers(&a));
                let at = format!("fork of a table of {tokens} in pages {pages:?}, page size {size}");
                let before = owners(&pool, 9);
                let b = fork_table(&a, &mut pool);
                same!(numbers(&b), numbers(&a), "pages of the fork, {at}");
                same!(pool.n_free(), free, "free pages of 9 after a {at}: it takes none");
                let expected: Vec<u32> =
                    (0..9).map(|page| before[page as usize] + u32::from(numbers(&a).contains(&page))).collect();
                same!(
                    owners(&pool, 9),
                    expected,
                    "owners of pages 0 to 8 after a {at}: one more for each of its pages"
                );
                for position in 0..held {
                    same!(b.locate(position), a.locate(position), "place of position {position} in the fork, {at}");
                }
            }
        }
    }

    #[test]
    fn task_1_a_fork_of_a_fork_is_one_more_owner() {
        let mut pool = pool(4);
        let a = table(4, 6, &mut pool);
        let b = fork_table(&a, &mut pool);
        let c = fork_table(&b, &mut pool);
        let d = fork_table(&a, &mut pool);
        same!(owners(&pool, 4), [4, 4, 0, 0], "owners of pages 0 to 3: a, b = a.fork(), c = b.fork(), d = a.fork()");
        for (name, table) in [("b", &b), ("c", &c), ("d", &d)] {
            same!((table.len(), numbers(table)), (6, vec![0, 1]), "(tokens, pages) of {name}");
        }
    }

    #[test]
    fn task_1_forks_grow_apart_from_a_full_page_on() {
        let mut pool = pool(6);
        let mut a = table(4, 8, &mut pool);
        let mut b = fork_table(&a, &mut pool);
        grow(&mut b, 5, &mut pool);
        same!((a.len(), numbers(&a)), (8, vec![0, 1]), "(tokens, pages) of a, whose fork has grown by 5");
        same!((b.len(), numbers(&b)), (13, vec![0, 1, 2, 3]), "(tokens, pages) of the fork of 8 tokens, grown by 5");
        grow(&mut a, 1, &mut pool);
        same!((a.len(), numbers(&a)), (9, vec![0, 1, 4]), "(tokens, pages) of a, grown by 1 after its fork");
        same!(owners(&pool, 6), [2, 2, 1, 1, 1, 0], "owners of pages 0 to 5: two are shared, three are not");
    }

    #[test]
    fn task_1_forks_let_go_in_any_order_and_free_each_page_once() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut pool = pool(4);
            let a = table(4, 10, &mut pool);
            let b = fork_table(&a, &mut pool);
            let c = fork_table(&b, &mut pool);
            let mut tables = [a, b, c];
            for (gone, index) in order.into_iter().enumerate() {
                let when = format!("of number {} of three forks, in the order {order:?}", index);
                release(&mut tables[index], &mut pool, &when);
                let left = 2 - gone as u32;
                same!(owners(&pool, 4), [left, left, left, 0], "owners of pages 0 to 3 after the release {when}");
                same!(pool.n_free(), if left == 0 { 4 } else { 1 }, "free pages of 4 after the release {when}");
            }
        }
    }

    /// Forks over another pool, which must refuse and stay as it is.
    #[track_caller]
    fn fork_refused_by(other: &mut PagePool, table: &PageTable, expected: &[CacheError], which: &str) {
        let at = format!("fork of a table of pages 0, 1, 2 over another pool, {which}");
        let before = (other.n_free(), owners(other, 5));
        let question = asking(at.as_str());
        let outcome = table.fork(other).map(|fork| numbers(&fork));
        drop(question);
        assert!(outcome.is_err(), "{at}\n  expected: {}\n  yours:    {outcome:?}", one_of(expected));
        same!(
            (other.n_free(), owners(other, 5)),
            before,
            "(free pages, owners of pages 0 to 4) of the other pool after the refused {at}"
        );
        same!((table.len(), numbers(table)), (9, vec![0, 1, 2]), "(tokens, pages) of the table after the refused {at}");
        let known = outcome.as_ref().is_err_and(|error| expected.contains(error));
        assert!(known, "{at}\n  expected: {}\n  yours:    {outcome:?}", one_of(expected));
    }

    #[test]
    fn task_1_fork_over_another_pool_changes_nothing() {
        let mut pool = pool(5);
        let table = table(4, 9, &mut pool);
        // Of the table's pages 0, 1, 2, some are free in the other pool: the oldest, the newest, the one between, two.
        for free in [&[0][..], &[2], &[1], &[0, 1], &[1, 2]] {
            let mut other = self::pool(5);
            same!(other.alloc_n(3).map(|pages| pages.len()), Ok(3), "pages that alloc_n(3) of chapter 4 gives");
            for page in free {
                granted(format!("free of chapter 4, of page {page}"), || other.free(PageId(*page)));
            }
            let expected: Vec<_> = free.iter().map(|page| CacheError::DoubleFree(PageId(*page))).collect();
            fork_refused_by(&mut other, &table, &expected, &format!("in which of these {free:?} are free"));
        }
        for n_pages in [1, 2] {
            let mut other = self::pool(n_pages);
            granted("alloc_n of chapter 4", || other.alloc_n(n_pages));
            let foreign = |page| CacheError::ForeignPage { page: PageId(page), n_pages };
            let expected: Vec<_> = (n_pages as u32..3).map(foreign).collect();
            fork_refused_by(&mut other, &table, &expected, &format!("which has only {n_pages}"));
        }
        same!(owners(&pool, 5), [1, 1, 1, 0, 0], "owners in the table's own pool, which was never asked");
    }

    #[test]
    fn task_1_fork_without_tokens_has_no_pages() {
        let mut pool = pool(3);
        let a = table(7, 0, &mut pool);
        let mut b = fork_table(&a, &mut pool);
        same!(owners(&pool, 3), [0, 0, 0], "owners after the fork of a table without tokens");
        grow(&mut b, 8, &mut pool);
        same!((a.len(), numbers(&a)), (0, vec![]), "(tokens, pages) of the table whose fork has grown");
        same!((b.len(), numbers(&b)), (8, vec![0, 1]), "(tokens, pages) of the fork, grown by 8, page size 7");
    }

    #[test]
    fn task_1_very_many_forks_of_one_page() {
        let mut pool = pool(3);
        let mut a = table(4, 6, &mut pool);
        let mut forks: Vec<PageTable> = (0..MANY).map(|_| fork_table(&a, &mut pool)).collect();
        same!(owners(&pool, 3), [MANY as u32 + 1, MANY as u32 + 1, 0], "owners of pages 0 to 2 after {MANY} forks");
        release(&mut a, &mut pool, "of the table that was forked");
        for fork in &mut forks[1..] {
            release(fork, &mut pool, "of a fork");
        }
        same!((owners(&pool, 3), pool.n_free()), (vec![1, 1, 0], 1), "(owners, free pages) when one fork is left");
        same!(numbers(&forks[0]), [0, 1], "pages of the fork that is left");
    }

    #[test]
    fn task_1_very_many_pages_in_a_fork() {
        let mut pool = pool(VERY_MANY);
        let mut a = table(1, 0, &mut pool);
        let mut b = table(1, 0, &mut pool);
        for n_pages in more_and_more() {
            release(&mut b, &mut pool, "of a fork");
            let n = n_pages - a.len();
            grow(&mut a, n, &mut pool);
            b = once(&format!("PageTable::fork of a table of {n_pages} pages"), || fork_table(&a, &mut pool));
        }
        same!(b.pages() == a.pages(), true, "whether the fork of {VERY_MANY} pages has the same ones");
        same!(b.pages().last(), Some(&PageId(VERY_MANY as u32 - 1)), "last page of the fork of {VERY_MANY} pages");
        for page in [0, 255, 256, 65_535, 65_536, VERY_MANY - 1] {
            if page < VERY_MANY {
                same!(pool.owners(PageId(page as u32)), Ok(2), "owners of page {page} of {VERY_MANY} after a fork");
            }
        }
    }

    /// More tokens than 63 bits count: a fork costs as many steps as there are pages, not tokens.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn task_1_very_large_pages() {
        let size = 1 << 60;
        let mut pool = pool(10);
        let a = table(size, 9 * size - 7, &mut pool);
        let b = fork_table(&a, &mut pool);
        same!(b.len(), 9 * size - 7, "tokens of a fork, page size {size}");
        same!(owners(&pool, 10), [2, 2, 2, 2, 2, 2, 2, 2, 2, 0], "owners of pages 0 to 9 after a fork");
    }

    // Task 2

    #[test]
    fn task_2_a_tail_is_shared_if_part_filled_and_with_several_owners() {
        for size in 1..=LARGEST_PAGE {
            for held in 0..=3 * size {
                let mut pool = pool(5);
                let mut a = table(size, held, &mut pool);
                let at = format!("{}, page size {size}", count(held, "token"));
                same!(a.shares_tail(&pool), Ok(false), "shares_tail of a table without a fork, {at}");
                let mut b = fork_table(&a, &mut pool);
                let filled_in_part = held % size > 0;
                let why = if filled_in_part { "the last page is filled in part" } else { "no page is filled in part" };
                same!(a.shares_tail(&pool), Ok(filled_in_part), "shares_tail of a table with a fork, {at}: {why}");
                same!(b.shares_tail(&pool), Ok(filled_in_part), "shares_tail of a fork, {at}: {why}");
                release(&mut a, &mut pool, "of a table with a fork");
                same!(b.shares_tail(&pool), Ok(false), "shares_tail of the last holder, {at}");
                release(&mut b, &mut pool, "of the last holder");
            }
        }
    }

    #[test]
    fn task_2_only_the_last_page_makes_a_shared_tail() {
        let mut pool = pool(6);
        let mut a = table(4, 8, &mut pool);
        let mut b = fork_table(&a, &mut pool);
        grow(&mut b, 1, &mut pool);
        same!(
            b.shares_tail(&pool),
            Ok(false),
            "shares_tail: full pages 0 and 1 are shared, page 2 with 1 token is not"
        );
        grow(&mut b, 3, &mut pool);
        same!(b.shares_tail(&pool), Ok(false), "shares_tail: pages 0 and 1 are shared, page 2 is full and its own");
        granted("rewind(6) of chapter 7 on 12 tokens", || b.rewind(6, &mut pool));
        same!(
            b.shares_tail(&pool),
            Ok(true),
            "shares_tail after a rewind from 12 tokens to 6: page 1 is filled in part now, and another table has it too"
        );
        same!(a.shares_tail(&pool), Ok(false), "shares_tail of the other table: its 8 tokens fill pages 0 and 1");
        granted("rewind(5) of chapter 7 on 8 tokens", || a.rewind(5, &mut pool));
        same!(a.shares_tail(&pool), Ok(true), "shares_tail of the other table, rewound from 8 tokens to 3");
        same!(b.shares_tail(&pool), Ok(false), "shares_tail of 6 tokens in pages 0 and 1: page 1 is its own now");
    }

    #[test]
    fn task_2_own_tail_takes_a_page_and_says_what_to_copy() {
        for size in 1..=LARGEST_PAGE {
            for held in 0..=3 * size {
                let mut pool = pool(9);
                let mut a = table(size, held, &mut pool);
                let mut b = fork_table(&a, &mut pool);
                let (pages, rows, free) = (a.pages().len(), held % size, pool.n_free());
                let tokens = count(held, "token");
                let at = format!("own_tail of a fork of {tokens} in pages {:?}, page size {size}", numbers(&a));
                let found = granted(at.as_str(), || b.own_tail(&mut pool));
                same!((a.len(), a.pages().len()), (held, pages), "(tokens, pages) of the other table after {at}");
                if rows == 0 {
                    same!(found, None, "{at}: no page is filled in part");
                    same!(numbers(&b), numbers(&a), "pages after {at}: no page is filled in part");
                    same!(pool.n_free(), free, "free pages after {at}: no page is filled in part");
                    continue;
                }
                let (from, to) = (PageId(pages as u32 - 1), PageId(pages as u32));
                same!(found, Some(PageCopy { from, to, rows }), "{at}");
                let expected: Vec<u32> = (0..from.0).chain([to.0]).collect();
                same!((b.len(), numbers(&b)), (held, expected), "(tokens, pages) after {at}");
                let expected: Vec<u32> =
                    (0..9).map(|page| if page < from.0 { 2 } else { u32::from(page <= to.0) }).collect();
                same!(owners(&pool, 9), expected, "owners of pages 0 to 8 after {at}");
                same!(pool.n_free(), free - 1, "free pages after {at}");
                for (name, table) in [("fork", &mut b), ("other table", &mut a)] {
                    let again = granted("own_tail, once more", || table.own_tail(&mut pool));
                    same!(again, None, "own_tail of the {name} after {at}: the last page is its own now");
                }
            }
        }
    }

    #[test]
    fn task_2_own_tail_leaves_the_last_holder_its_page() {
        let mut pool = pool(5);
        let mut a = table(4, 6, &mut pool);
        let mut b = fork_table(&a, &mut pool);
        let mut c = fork_table(&a, &mut pool);
        let copy = |to| Some(PageCopy { from: PageId(1), to: PageId(to), rows: 2 });
        for (name, table, expected, left) in [
            ("a", &mut a, copy(2), [3, 2, 1, 0, 0]),
            ("b", &mut b, copy(3), [3, 1, 1, 1, 0]),
            ("c", &mut c, None, [3, 1, 1, 1, 0]),
        ] {
            let found = granted("own_tail of one of three forks", || table.own_tail(&mut pool));
            same!(
                found,
                expected,
                "own_tail of {name}; a, b and c have pages 0 and 1 with 6 tokens, and go in this order"
            );
            same!(owners(&pool, 5), left, "owners of pages 0 to 4 after own_tail of {name}");
        }
        same!(
            (numbers(&a), numbers(&b), numbers(&c)),
            (vec![0, 2], vec![0, 3], vec![0, 1]),
            "pages of a, b and c when each tail has one owner"
        );
        for table in [&mut b, &mut a, &mut c] {
            release(table, &mut pool, "of one of three forks");
        }
        same!(pool.n_free(), 5, "free pages of 5 when a, b and c have let go");
    }

    #[test]
    fn task_2_own_tail_without_a_page_changes_nothing() {
        let mut pool = pool(3);
        let mut a = table(4, 6, &mut pool);
        let mut b = fork_table(&a, &mut pool);
        let last = granted("alloc of chapter 4", || pool.alloc());
        for (name, table) in [("a", &mut a), ("b", &mut b)] {
            let question = asking(format!("own_tail of {name} when no page is free"));
            let found = table.own_tail(&mut pool);
            drop(question);
            same!(found, Err(CacheError::OutOfPages { needed: 1, free: 0 }), "own_tail of {name} when no page is free");
            same!(
                (table.len(), numbers(table)),
                (6, vec![0, 1]),
                "(tokens, pages) of {name} after own_tail was refused"
            );
            same!(owners(&pool, 3), [2, 2, 1], "owners of pages 0 to 2 after own_tail of {name} was refused");
        }
        release(&mut a, &mut pool, "of a table with a fork");
        same!(b.own_tail(&mut pool), Ok(None), "own_tail of the last holder when no page is free: it needs none");
        granted("free of chapter 4", || pool.free(last));
        same!(b.own_tail(&mut pool), Ok(None), "own_tail of the last holder");
        same!((numbers(&b), pool.n_free()), (vec![0, 1], 1), "(pages, free pages) of the last holder");
    }

    #[test]
    fn task_2_own_tail_takes_the_next_free_page_and_no_other() {
        let mut pool = pool(6);
        let a = table(4, 2, &mut pool);
        let mut others = granted("alloc_n(4) of chapter 4", || pool.alloc_n(4));
        let mut b = fork_table(&a, &mut pool);
        granted("free of chapter 4, of page 3", || pool.free(others.remove(2)));
        same!(free_list(&mut pool), [3, 5], "the free list of chapter 4 when page 3 has come back");
        let found = granted("own_tail of a fork", || b.own_tail(&mut pool));
        let expected = Some(PageCopy { from: PageId(0), to: PageId(3), rows: 2 });
        same!(found, expected, "own_tail of a fork of 2 tokens in page 0; page 3 is the next to be handed out");
        same!(free_list(&mut pool), [5], "the free list after own_tail took page 3");
    }

    #[test]
    fn task_2_a_tail_of_another_pool_is_foreign() {
        let mut pool = pool(3);
        let mut a = table(4, 10, &mut pool);
        let mut other = self::pool(2);
        granted("alloc_n(2) of chapter 4", || other.alloc_n(2));
        let foreign = CacheError::ForeignPage { page: PageId(2), n_pages: 2 };
        same!(a.shares_tail(&other), Err(foreign.clone()), "shares_tail over a pool of 2 pages; the last page is 2");
        same!(a.own_tail(&mut other), Err(foreign), "own_tail over a pool of 2 pages; the last page is 2");
        same!((a.len(), numbers(&a)), (10, vec![0, 1, 2]), "(tokens, pages) after own_tail was refused");
        same!((owners(&other, 2), owners(&pool, 3)), (vec![1, 1], vec![1, 1, 1]), "owners in both pools after that");
    }

    /// More than one owner is what counts. A page that nobody has is not shared, whatever pool that may be.
    #[test]
    fn task_2_a_tail_without_an_owner_is_not_shared() {
        let mut pool = pool(3);
        let mut a = table(4, 6, &mut pool);
        let mut other = self::pool(3);
        same!(a.shares_tail(&other), Ok(false), "shares_tail over another pool, in which page 1, the last, is free");
        same!(a.own_tail(&mut other), Ok(None), "own_tail over another pool, in which page 1, the last, is free");
        same!((numbers(&a), other.n_free()), (vec![0, 1], 3), "(pages, free pages of the other pool) after that");
    }

    #[test]
    fn task_2_very_many_pages_cost_no_more() {
        let mut pool = pool(VERY_MANY + 1);
        let mut a = table(2, 2 * VERY_MANY - 1, &mut pool);
        often(&format!("own_tail of a table of {VERY_MANY} pages, its last one shared"), VERY_MANY / 4, |number| {
            let tail = a.pages()[VERY_MANY - 1];
            granted("share of chapter 4, of the last page", || pool.share(tail));
            let found = a.own_tail(&mut pool);
            let to = a.pages()[VERY_MANY - 1];
            let expected = Ok(Some(PageCopy { from: tail, to, rows: 1 }));
            if found != expected || to == tail || a.shares_tail(&pool) != Ok(false) {
                same!((found, to == tail), (expected, false), "own_tail, and whether the page stayed; call {number}");
            }
            granted("free of chapter 4, of the page that was the last", || pool.free(tail));
        });
        same!(a.pages()[..3], [PageId(0), PageId(1), PageId(2)], "the first pages after all that");
        let highest = numbers(&a).into_iter().max();
        same!(highest >= Some(VERY_MANY as u32 - 2), true, "whether the pages beyond 16 bits are still there");
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn task_2_very_large_pages() {
        let size = 1 << 60;
        for rows in [1, 1 << 32, (1 << 32) + 1, (1 << 53) + 1, size - 1] {
            let mut pool = pool(4);
            let a = table(size, size + rows, &mut pool);
            let mut b = fork_table(&a, &mut pool);
            let found = granted("own_tail of a fork", || b.own_tail(&mut pool));
            let expected = Some(PageCopy { from: PageId(1), to: PageId(2), rows });
            same!(found, expected, "own_tail of a fork of {} tokens, page size {size}", size + rows);
        }
    }

    // Task 3

    #[test]
    fn task_3_a_fork_holds_the_same_rows_and_moves_none() {
        for held in [0, 1, 3, 4, 6, 8, 9] {
            let slab = slab(6);
            let (a, oracle_a) = text(&slab, "a", &first_tokens(held));
            let (before, free) = (content(&slab), n_free(&slab));
            let at = format!("fork of a cache of {}, page size 4", count(held, "token"));
            let question = asking(at.as_str());
            let (b, asked) = allocated(|| a.fork());
            drop(question);
            drop(b);
            assert!(asked.bytes < 1000, "{at} asks for {} bytes of memory: no row is to be copied", asked.bytes);
            let (b, oracle_b) = fork(&a, &oracle_a, "b");
            same!(n_free(&slab), free, "free pages of 6 after a {at}");
            same!(changed(&before, &content(&slab), 4), [], "rows of the slab (page, layer, slot) that a {at} changed");
            oracle_a.check(&a);
            oracle_b.check(&b);
            same!(b.usage(), a.usage(), "usage of the fork, {at}, compared with that of the cache");
            same!(b.usage().rows_copied, 0, "rows copied by a {at}");
            drop(a);
            oracle_b.check(&b);
            drop(b);
            same!(n_free(&slab), 6, "free pages of 6 when cache and fork are dropped");
        }
    }

    /// Either of two texts may be the first to grow; the other's rows must stay as they are.
    #[test]
    fn task_3_copies_the_tail_whoever_grows_first() {
        for (held, first, n) in
            (0..=9).flat_map(|held| ["a", "b"].into_iter().flat_map(move |first| [1, 2, 5].map(|n| (held, first, n))))
        {
            let slab = slab(9);
            let (a, oracle_a) = text(&slab, "a", &first_tokens(held));
            let (b, oracle_b) = fork(&a, &oracle_a, "b");
            let [(mut x, mut oracle_x), (mut y, mut oracle_y)] =
                if first == "a" { [(a, oracle_a), (b, oracle_b)] } else { [(b, oracle_b), (a, oracle_a)] };
            let second = if first == "a" { "b" } else { "a" };
            let tokens = count(held, "token");
            let at = format!("b is a fork of a, {tokens}, page size 4; {first} is extended by {n}");
            let tail = held % 4;
            append(&slab, &mut oracle_x, &mut x, &first_tokens(100 + n)[100..]);
            let old = x.usage().rows_copied;
            same!(old, tail as u64, "rows that {first} has copied: {at}");
            same!(y.usage().rows_copied, 0, "rows that {second} has copied: {at}");
            oracle_x.check(&x);
            oracle_y.check(&y);
            append(&slab, &mut oracle_y, &mut y, &first_tokens(200 + n)[200..]);
            let found = y.usage().rows_copied;
            same!(found, 0, "rows that {second} has copied: {at}, then {second} by {n}, which has the old page alone");
            oracle_x.check(&x);
            oracle_y.check(&y);
            let pages = (held + n).div_ceil(4);
            same!(n_free(&slab), 9 - 2 * pages + held / 4, "free pages of 9: {at}, then {second} by {n}");
            for (name, cache) in [(first, &x), (second, &y)] {
                let usage = cache.usage();
                same!(
                    (usage.tokens, usage.slots, usage.bytes),
                    (held + n, 4 * pages, 2 * 4 * pages * 3 * 10 * 4),
                    "(tokens, slots, bytes) that usage of {name} tells: {at}, then {second} by {n}"
                );
            }
        }
    }

    /// The page that is copied into holds rows of a text that is gone; those behind the filled slots must stay.
    #[test]
    fn task_3_only_the_filled_rows_are_copied() {
        for rows in 1..4 {
            let slab = slab(5);
            // Every row of every page holds something.
            drop(text(&slab, "c", &(500..520).collect::<Vec<_>>()));
            let (a, oracle_a) = text(&slab, "a", &first_tokens(4 + rows));
            let (mut b, mut oracle_b) = fork(&a, &oracle_a, "b");
            let before = content(&slab);
            granted("extend(1) of a fork", || b.extend(1));
            let at = format!("extend(1) of a fork of {} tokens, page size 4", 4 + rows);
            let pages = numbers(b.table());
            same!(pages.len(), 2, "pages after {at}");
            let to = pages[1] as usize;
            let expected: Vec<_> = KINDS
                .into_iter()
                .flat_map(|kind| (0..3).flat_map(move |layer| (0..rows).map(move |slot| (kind, to, layer, slot))))
                .collect();
            let found = changed(&before, &content(&slab), 4);
            let beyond: BTreeSet<usize> =
                found.iter().filter(|row| row.1 == to && row.3 >= rows).map(|(.., slot)| *slot).collect();
            assert!(
                beyond.is_empty(),
                "{at}: to be copied is what {} of page 1, and it also wrote {} of page {to}",
                if rows == 1 { "slot 0 holds".into() } else { format!("slots 0 to {} hold", rows - 1) },
                slots(&beyond)
            );
            same!(
                found,
                expected,
                "rows of the slab (page, layer, slot) that {at} has changed: page 1 is copied to page {to}"
            );
            same!(b.usage().rows_copied, rows as u64, "rows copied by {at}: the filled ones of page 1");
            oracle::write(&mut b, &[300]);
            oracle_b.tokens.push(300);
            oracle_a.check(&a);
            oracle_b.check(&b);
        }
    }

    /// `slot 3`, `slots 1 to 3`, for slots that follow one another.
    fn slots(slots: &BTreeSet<usize>) -> String {
        match (slots.first(), slots.last()) {
            (Some(first), Some(last)) if first < last => format!("slots {first} to {last}"),
            (Some(slot), _) => format!("slot {slot}"),
            _ => "no slot".into(),
        }
    }

    #[test]
    fn task_3_the_copy_keeps_every_bit() {
        let slab = slab(3);
        let mut a = cache(&slab);
        granted("extend(2) on no tokens", || a.extend(2));
        let k: Vec<f32> = [TELLING, TELLING.map(|x| -x)].concat();
        let v: Vec<f32> = k.iter().rev().copied().collect();
        for layer in 0..3 {
            a.write(layer, &k, &v);
        }
        let mut b = granted("fork of 2 tokens", || a.fork());
        granted("extend(1) of the fork", || b.extend(1));
        let bits = |numbers: &[f32]| numbers.iter().take(20).map(|x| x.to_bits()).collect::<Vec<_>>();
        for layer in 0..3 {
            let (keys, values) = b.gather(layer);
            same!(bits(&keys) == bits(&k), true, "whether the copied keys of layer {layer} have the same bits");
            same!(bits(&values) == bits(&v), true, "whether the copied values of layer {layer} have the same bits");
        }
    }

    #[test]
    fn task_3_extend_by_0_does_nothing() {
        for free in [0, 2] {
            let slab = slab(2 + free);
            let (mut a, oracle_a) = text(&slab, "a", &first_tokens(6));
            let (mut b, oracle_b) = fork(&a, &oracle_a, "b");
            let (before, states) = (content(&slab), [state(&a, &slab), state(&b, &slab)]);
            for cache in [&mut b, &mut a] {
                same!(cache.extend(0), Ok(()), "extend(0) on a shared tail, {free} pages free: no token comes");
            }
            for ((name, cache), before) in [("a", &a), ("b", &b)].into_iter().zip(states) {
                same!(state(cache, &slab), before, "{STATE} of {name} after extend(0) on a shared tail");
            }
            same!(changed(&before, &content(&slab), 4), [], "rows (page, layer, slot) that extend(0) has changed");
            oracle_a.check(&a);
            oracle_b.check(&b);
        }
    }

    /// Tokens held, new ones, free pages, pages needed for copy and tokens together: too few by one.
    #[test]
    fn task_3_copy_and_tokens_without_pages_change_nothing() {
        for (held, n, needed) in [
            (6, 1, 1),
            (6, 2, 1),
            (6, 3, 2),
            (6, 6, 2),
            (6, 7, 3),
            (3, 1, 1),
            (3, 2, 2),
            (7, 9, 3),
            (8, 1, 1),
            (8, 5, 2),
        ] {
            let slab = slab(usize::div_ceil(held, 4) + needed);
            let (a, oracle_a) = text(&slab, "a", &first_tokens(held));
            let (mut b, mut oracle_b) = fork(&a, &oracle_a, "b");
            let (last, _) = text(&slab, "c", &[900]);
            let of = format!("extend({n}) of a fork of {}, page size 4", count(held, "token"));
            let at = format!("{of}, {} free", count(needed - 1, "page"));
            let (before, was, list) = (content(&slab), state(&b, &slab), free_list_of(&slab));
            let question = asking(at.as_str());
            let outcome = b.extend(n);
            drop(question);
            assert!(outcome.is_err(), "{at}: it needs {}, and it said {outcome:?}", count(needed, "page"));
            same!(state(&b, &slab), was, "{STATE} after the refused {at}");
            same!(outcome, Err(CacheError::OutOfPages { needed, free: needed - 1 }), "{at}");
            same!(free_list_of(&slab), list, "the free list after the refused {at}");
            same!(changed(&before, &content(&slab), 4), [], "rows (page, layer, slot) changed by the refused {at}");
            oracle_a.check(&a);
            oracle_b.check(&b);
            drop(last);
            let at = format!("{of}, {} free", count(needed, "page"));
            append(&slab, &mut oracle_b, &mut b, &first_tokens(100 + n)[100..]);
            same!(n_free(&slab), 0, "free pages after {at}");
            same!(b.usage().rows_copied, held as u64 % 4, "rows copied after {at}");
            oracle_a.check(&a);
            oracle_b.check(&b);
        }
    }

    /// The free pages of a slab's pool, told by a cache that takes them all and gives them back.
    fn free_list_of(slab: &SharedSlab) -> Vec<u32> {
        let free = n_free(slab);
        let mut probe = cache(slab);
        granted("extend by all free pages", || probe.extend(4 * free));
        let mut pages = numbers(probe.table());
        pages.truncate(free);
        pages
    }

    #[test]
    fn task_3_very_many_more_tokens_than_any_pool_has() {
        for (page_size, held) in [(4, 6), (4, 8), (1, 3), (2, 3), (2, 2)] {
            let slab = slab_of(LAYOUT, page_size, 6);
            let (a, oracle_a) = text(&slab, "a", &first_tokens(held));
            let (mut b, oracle_b) = fork(&a, &oracle_a, "b");
            let tail = held % page_size;
            for n in [usize::MAX, usize::MAX - 1, 1 << 63, (1 << 32) + 1] {
                let room = if tail == 0 { 0 } else { page_size - tail };
                let needed = (n - room).div_ceil(page_size) + usize::from(tail > 0);
                let at = format!("extend({n}) of a fork of {}, page size {page_size}", count(held, "token"));
                let free = n_free(&slab);
                let question = asking(at.as_str());
                same!(b.extend(n), Err(CacheError::OutOfPages { needed, free }), "{at}");
                drop(question);
            }
            oracle_a.check(&a);
            oracle_b.check(&b);
        }
    }

    #[test]
    fn task_3_the_last_holder_writes_in_place() {
        let slab = slab(2);
        let (a, oracle_a) = text(&slab, "a", &first_tokens(6));
        let (mut b, mut oracle_b) = fork(&a, &oracle_a, "b");
        let expected = Err(CacheError::OutOfPages { needed: 1, free: 0 });
        same!(b.extend(1), expected, "extend(1) of a fork of 6 tokens in the only 2 pages: the copy needs a page");
        oracle_b.note("extend(1) refused".into());
        drop(a);
        oracle_b.note("the other text is dropped".into());
        same!(owners_in(&slab, 2), [1, 1], "owners of both pages when the text that was forked is dropped");
        append(&slab, &mut oracle_b, &mut b, &[100, 101]);
        oracle_b.check(&b);
        same!((numbers(b.table()), b.usage().rows_copied), (vec![0, 1], 0), "(pages, rows copied) of the last holder");
        let (mut c, mut oracle_c) = fork(&b, &oracle_b, "c");
        drop(b);
        oracle_c.check(&c);
        granted("rewind(3) on 8 tokens", || c.rewind(3));
        oracle_c.tokens.truncate(5);
        append(&slab, &mut oracle_c, &mut c, &[200]);
        oracle_c.check(&c);
        same!((numbers(c.table()), c.usage().rows_copied), (vec![0, 1], 0), "(pages, rows copied) of the last holder");
    }

    /// A rewind ends inside a page that the other text has filled: what comes next must not be written over its rows.
    #[test]
    fn task_3_rewound_into_a_shared_page_it_copies_what_is_left() {
        for (held, n, rows) in
            [(8, 1, 3), (8, 3, 1), (8, 4, 0), (8, 5, 3), (8, 8, 0), (6, 1, 1), (6, 2, 0), (6, 3, 3), (6, 0, 2)]
        {
            for first in ["the fork", "the text that was forked"] {
                let slab = slab(7);
                let (a, oracle_a) = text(&slab, "a", &first_tokens(held));
                let (b, oracle_b) = fork(&a, &oracle_a, "b");
                let [(mut x, mut oracle_x), (y, oracle_y)] =
                    if first == "the fork" { [(b, oracle_b), (a, oracle_a)] } else { [(a, oracle_a), (b, oracle_b)] };
                let at = format!("{first} is rewound from {held} tokens by {n}, page size 4");
                oracle_x.rewind(&mut x, n);
                same!(x.usage().rows_copied, 0, "rows copied: {at}; a rewind copies nothing");
                oracle_x.check(&x);
                oracle_y.check(&y);
                append(&slab, &mut oracle_x, &mut x, &[100, 101, 102]);
                oracle_y.check(&y);
                oracle_x.check(&x);
                same!(x.usage().rows_copied, rows, "rows copied: {at}, then extended by 3");
                drop(y);
                oracle_x.check(&x);
                drop(x);
                same!(n_free(&slab), 7, "free pages of 7 when both are dropped: {at}");
            }
        }
    }

    #[test]
    fn task_3_rows_copied_add_up_for_each_text_alone() {
        let slab = slab(12);
        let (mut a, mut oracle_a) = text(&slab, "a", &first_tokens(6));
        let (mut b, mut oracle_b) = fork(&a, &oracle_a, "b");
        append(&slab, &mut oracle_b, &mut b, &[100]);
        same!(b.usage().rows_copied, 2, "rows copied by b, a fork of 6 tokens, page size 4, extended by 1");
        let (mut c, mut oracle_c) = fork(&b, &oracle_b, "c");
        same!(c.usage().rows_copied, 0, "rows copied by c, a fork of b, which has copied 2: c has copied none yet");
        append(&slab, &mut oracle_b, &mut b, &[101]);
        same!(
            b.usage().rows_copied,
            5,
            "rows copied by b: 2, and 3 when it is extended once more while c has its tail"
        );
        append(&slab, &mut oracle_b, &mut b, &[102, 103]);
        same!(b.usage().rows_copied, 5, "rows copied by b, extended once more: nobody has its tail");
        append(&slab, &mut oracle_c, &mut c, &[200]);
        same!(c.usage().rows_copied, 0, "rows copied by c, the last holder of the page that b gave up");
        append(&slab, &mut oracle_a, &mut a, &[300]);
        same!(a.usage().rows_copied, 0, "rows copied by a, the last holder of page 1");
        granted("rewind(2) of b", || b.rewind(2));
        same!(b.usage().rows_copied, 5, "rows copied by b, rewound by 2: what was copied was copied");
        for (cache, oracle) in [(&a, &oracle_a), (&c, &oracle_c)] {
            oracle.check(cache);
        }
    }

    #[test]
    fn task_3_forks_are_dropped_in_any_order() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let slab = slab(8);
            let (a, oracle_a) = text(&slab, "a", &first_tokens(6));
            let (mut b, mut oracle_b) = fork(&a, &oracle_a, "b");
            append(&slab, &mut oracle_b, &mut b, &[100, 101, 102]);
            let (mut c, mut oracle_c) = fork(&b, &oracle_b, "c");
            append(&slab, &mut oracle_c, &mut c, &[200]);
            let mut texts = [Some((a, oracle_a)), Some((b, oracle_b)), Some((c, oracle_c))];
            for index in order {
                texts[index] = None;
                let mut held: Vec<u32> = Vec::new();
                for (cache, oracle) in texts.iter().flatten() {
                    oracle.check(cache);
                    held.extend(numbers(cache.table()));
                }
                let expected: Vec<u32> =
                    (0..8).map(|page| held.iter().filter(|held| **held == page).count() as u32).collect();
                same!(
                    owners_in(&slab, 8),
                    expected,
                    "owners of pages 0 to 7, dropped in the order {order:?}, {index} last"
                );
            }
            same!(n_free(&slab), 8, "free pages of 8 when all three are dropped in the order {order:?}");
        }
    }

    #[test]
    fn task_3_very_many_forks_of_one_page() {
        let slab = slab_of(ONE_NUMBER, 4, 600);
        let mut a = cache(&slab);
        granted("extend(3)", || a.extend(3));
        a.write(0, &[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]);
        let mut forks: Vec<ForkCache> = (0..MANY).map(|_| granted("one fork of very many", || a.fork())).collect();
        same!(owners_in(&slab, 2), [MANY as u32 + 1, 0], "owners of pages 0 and 1 after {MANY} forks");
        forks.truncate(280);
        same!(owners_in(&slab, 2), [281, 0], "owners of pages 0 and 1 when all but 280 forks are dropped");
        for (number, fork) in forks.iter_mut().enumerate() {
            granted(format!("extend(2) of fork {number} of 280"), || fork.extend(2));
            fork.write(0, &[number as f32, 0.5], &[-(number as f32), 1.5]);
        }
        same!(owners_in(&slab, 2), [1, 1], "owners of pages 0 and 1 when 280 forks have grown");
        for (number, fork) in forks.iter().enumerate() {
            let (k, v) = fork.gather(0);
            let x = number as f32;
            same!(
                (k.to_vec(), v.to_vec()),
                (vec![1.0, 2.0, 3.0, x, 0.5], vec![4.0, 5.0, 6.0, -x, 1.5]),
                "(keys, values) of fork {number} of 280"
            );
        }
        let copied: u64 = forks.iter().map(|fork| fork.usage().rows_copied).sum();
        same!(copied, 280 * 3, "rows that 280 forks have copied, 3 each");
        drop(forks);
        same!(n_free(&slab), 599, "free pages of 600 when only the first text is left");
    }

    #[test]
    fn task_3_very_high_page_numbers_are_copied_too() {
        let slab = slab_of(ONE_NUMBER, 2, MANY + 3);
        let mut others = cache(&slab);
        granted("extend by very many", || others.extend(2 * MANY));
        let mut a = cache(&slab);
        granted("extend(1)", || a.extend(1));
        a.write(0, &[1.5], &[2.5]);
        let mut b = granted("fork of 1 token", || a.fork());
        granted("extend(1) of the fork", || b.extend(1));
        b.write(0, &[3.5], &[4.5]);
        same!(
            (numbers(a.table()), numbers(b.table())),
            (vec![MANY as u32], vec![MANY as u32 + 1]),
            "pages of a text and its fork, when the pages below {MANY} are taken"
        );
        let (k, v) = b.gather(0);
        same!((k.to_vec(), v.to_vec()), (vec![1.5, 3.5], vec![2.5, 4.5]), "(keys, values) of the fork");
        let (k, v) = a.gather(0);
        same!((k.to_vec(), v.to_vec()), (vec![1.5], vec![2.5]), "(keys, values) of the text that was forked");
    }

    #[test]
    fn task_3_very_large_pages_are_copied_whole() {
        let rows = MANY;
        let slab = slab_of(ONE_NUMBER, rows + 5, 3);
        let mut a = cache(&slab);
        granted("extend by very many", || a.extend(rows));
        let row = |first: usize| (0..rows).map(|i| (first + i) as f32).collect::<Vec<_>>();
        a.write(0, &row(1), &row(2));
        let mut b = granted("fork", || a.fork());
        granted("extend(1) of the fork", || b.extend(1));
        same!(b.usage().rows_copied, rows as u64, "rows copied of a page with {rows} tokens");
        let (k, v) = b.gather(0);
        same!(k[..rows] == row(1) && v[..rows] == row(2), true, "whether all {rows} rows are those of the first text");
    }

    #[test]
    fn task_3_very_long_texts_cost_no_more() {
        let slab = slab_of(ONE_NUMBER, 2, VERY_MANY + 2);
        let mut a = cache(&slab);
        for n_pages in more_and_more() {
            let n = 2 * n_pages - 1 - a.len();
            granted("extend by very many", || a.extend(n));
            let what = format!("fork of a text of {n_pages} pages (PageTable::fork of task 1)");
            drop(once(&what, || granted("fork of a very long text", || a.fork())));
        }
        let mut b = granted("fork of a very long text", || a.fork());
        often(&format!("extend(1) and rewind(1) in turns on a fork of {VERY_MANY} pages"), VERY_MANY / 4, |number| {
            let outcome = (b.extend(1), b.rewind(1));
            if outcome != (Ok(()), Ok(())) || b.usage().rows_copied != 1 {
                same!(
                    (outcome, b.usage().rows_copied),
                    ((Ok(()), Ok(())), 1),
                    "extend(1), rewind(1), rows copied in all; turn {number}"
                );
            }
        });
        drop(a);
        same!(n_free(&slab), 2, "free pages when the text that was forked is dropped, its last page with it");
    }

    /// A slab that somebody still looks at cannot be had for writing. That must not be passed over in silence.
    #[test]
    fn task_3_a_slab_that_is_lent_is_a_panic() {
        let slab = slab(6);
        let (a, oracle_a) = text(&slab, "a", &first_tokens(6));
        let (mut b, oracle_b) = fork(&a, &oracle_a, "b");
        let lent = slab.borrow();
        // What it gives is looked at before it is dropped: that would be a panic, too.
        if let Some(outcome) = quietly(|| a.fork()) {
            let outcome = outcome.as_ref().map(|fork| fork.len());
            panic!(
                "fork while the slab is lent did not panic, but gave {outcome:?} tokens: no page can have got an owner"
            );
        }
        if let Some(outcome) = quietly(|| b.extend(1)) {
            panic!(
                "extend(1) while the slab is lent did not panic, but said {outcome:?}: no page can have been copied"
            );
        }
        drop(lent);
        same!(owners_in(&slab, 3), [2, 2, 0], "owners of pages 0 to 2 after the loan: nothing has changed");
        oracle_a.check(&a);
        oracle_b.check(&b);
    }

    /// The numbers of the chapter: a prompt of 900 tokens, 8 samples of 100 tokens. The last token is never read.
    #[test]
    fn task_3_very_long_prompt_and_eight_samples() {
        let slab = slab_of(ONE_NUMBER, 16, 600);
        let mut first = cache(&slab);
        granted("extend(900)", || first.extend(900));
        let mut samples: Vec<ForkCache> = (1..8).map(|_| granted("fork of the prompt", || first.fork())).collect();
        samples.insert(0, first);
        for _ in 1..100 {
            for sample in &mut samples {
                granted("extend(1) of a sample", || sample.extend(1));
            }
        }
        let copied: u64 = samples.iter().map(|sample| sample.usage().rows_copied).sum();
        same!(
            (600 - n_free(&slab), copied),
            (112, 28),
            "(pages, rows copied) of 8 samples of 100 tokens after a prompt of 900, page size 16"
        );
    }

    // Task 4

    /// A search that has grown to so many beams, with the given scores, all after a prompt of 6 tokens.
    #[track_caller]
    fn beams(slab: &SharedSlab, width: usize, end_of_text: &[u32]) -> Beams {
        let (cache, _) = text(slab, "of the prompt", &first_tokens(6));
        Beams::new(cache, width, end_of_text)
    }

    #[track_caller]
    fn step(beams: &mut Beams, rows: &[Vec<f32>], at: &str) {
        granted(format!("step, {at}"), || beams.step(rows));
    }

    /// The rows of each beam's newest token are written, as the model would do.
    fn read_newest(beams: &mut Beams) {
        for beam in beams.beams_mut() {
            let newest = *beam.tokens.last().expect("a beam has a token after a step");
            granted("extend(1) of a beam", || beam.cache.extend(1));
            oracle::write(&mut beam.cache, &[1000 + newest as usize]);
        }
    }

    /// Compares what each beam holds with the tokens that it says it has.
    #[track_caller]
    fn check_contexts(beams: &Beams, at: &str) {
        for (index, beam) in beams.beams().iter().enumerate() {
            let mut oracle = Oracle::of(format!("{at}: beam {index} with tokens {:?}", beam.tokens));
            let read = beam.cache.len().saturating_sub(6);
            oracle.tokens = first_tokens(6);
            oracle.tokens.extend(beam.tokens.iter().take(read).map(|token| 1000 + *token as usize));
            oracle.check(&beam.cache);
        }
    }

    fn told_beams(beams: &Beams) -> Vec<(Vec<u32>, f64)> {
        beams.beams().iter().map(|beam| (beam.tokens.clone(), beam.score)).collect()
    }

    fn told_ended(beams: &Beams) -> Vec<(Vec<u32>, f64)> {
        beams.ended().iter().map(|ended| (ended.tokens.clone(), ended.score)).collect()
    }

    #[track_caller]
    fn candidates(beams: &Beams, rows: &[Vec<f32>], n: usize) -> Vec<Candidate> {
        let (of, tokens) = (count(rows.len(), "beam"), count(rows[0].len(), "token"));
        let _asking = asking(format!("candidates(…, {n}) of {of}, {tokens} each"));
        beams.candidates(rows, n)
    }

    fn short(candidates: &[Candidate]) -> Vec<(usize, u32, f64)> {
        candidates.iter().map(|candidate| (candidate.beam, candidate.token, candidate.score)).collect()
    }

    #[test]
    fn task_4_candidates_are_every_beam_with_every_token() {
        let slab = slab(20);
        let mut beams = beams(&slab, 2, &[]);
        let rows = [vec![-3.0, -1.0, -2.0]];
        let all = [(0, 1, -1.0), (0, 2, -2.0), (0, 0, -3.0)];
        for n in [0, 1, 2, 3, 4, 70_000, usize::MAX] {
            let found = candidates(&beams, &rows, n);
            same!(
                short(&found),
                all[..n.min(3)],
                "(beam, token, score) of candidates({rows:?}, {n}) of the first beam"
            );
        }
        step(&mut beams, &rows, "with rows [-3, -1, -2]");
        same!(told_beams(&beams), [(vec![1], -1.0), (vec![2], -2.0)], "(tokens, score) of the beams, width 2");
        let rows = [vec![-4.0, -0.5, -8.0], vec![-0.25, -16.0, -1.0]];
        let all = [(0, 1, -1.5), (1, 0, -2.25), (1, 2, -3.0), (0, 0, -5.0), (0, 2, -9.0), (1, 1, -18.0)];
        for n in 0..=7 {
            let found = candidates(&beams, &rows, n);
            same!(
                short(&found),
                all[..n.min(6)],
                "(beam, token, score) of candidates({rows:?}, {n}); the beams have -1 and -2 already"
            );
        }
        let again = told_beams(&beams);
        same!(again, [(vec![1], -1.0), (vec![2], -2.0)], "beams after candidates: asking changes nothing");
    }

    #[test]
    fn task_4_equal_candidates_stand_by_beam_then_by_token() {
        let slab = slab(60);
        let mut beams = beams(&slab, 3, &[]);
        step(&mut beams, &[vec![-1.0, -2.0, -1.0, -2.0, -1.0]], "with rows [-1, -2, -1, -2, -1]");
        same!(
            told_beams(&beams),
            [(vec![0], -1.0), (vec![2], -1.0), (vec![4], -1.0)],
            "(tokens, score) of the beams, width 3, of rows [-1, -2, -1, -2, -1]: the lower token first"
        );
        let rows = [vec![-2.0, -1.0, -1.0, -2.0, -2.0], vec![-1.0, -2.0, -2.0, -2.0, -2.0], vec![-1.0; 5]];
        let ones = [(0, 1), (0, 2), (1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4)].map(|(b, t)| (b, t, -2.0));
        let twos = [(0, 0), (0, 3), (0, 4), (1, 1), (1, 2), (1, 3), (1, 4)].map(|(beam, token)| (beam, token, -3.0));
        let all = [&ones[..], &twos].concat();
        for n in 0..=16 {
            let found = candidates(&beams, &rows, n);
            same!(
                short(&found),
                all[..n.min(15)],
                "(beam, token, score) of candidates({rows:?}, {n}), beams with -1 each"
            );
        }
    }

    /// Lists longer than those that every sort keeps in order.
    #[test]
    fn task_4_equal_candidates_of_many_tokens_stand_so_too() {
        let slab = slab(60);
        let (width, vocab_size) = (5, 70);
        let mut beams = beams(&slab, width, &[]);
        let row = |beam: usize| (0..vocab_size).map(|token| -((token * 7 + beam * 3) as f32 % 4.0)).collect();
        let rows: Vec<Vec<f32>> = vec![row(0)];
        step(&mut beams, &rows, "with a row of 70 tokens in which token t has -((7 * t) % 4)");
        let expected: Vec<_> = (0..width as u32).map(|rank| (vec![4 * rank], 0.0)).collect();
        same!(told_beams(&beams), expected, "(tokens, score) of the beams, width 5: tokens 0, 4, 8, 12, 16 are equal");
        let rows: Vec<Vec<f32>> = (0..width).map(row).collect();
        let mut all: Vec<(usize, u32, f64)> = Vec::new();
        for worse in 0..4 {
            for (beam, row) in rows.iter().enumerate() {
                let equal = (0..).zip(row).filter(|(_, x)| **x == -(worse as f32));
                all.extend(equal.map(|(token, x)| (beam, token, f64::from(*x))));
            }
        }
        for n in [1, 2, 10, 64, 100, 200, 349, 350, 351] {
            let found = short(&candidates(&beams, &rows, n));
            let expected = &all[..n.min(350)];
            let at = (0..n.min(350)).find(|at| found.get(*at) != Some(&expected[*at])).unwrap_or(0);
            same!(
                (found.len(), found.get(at)),
                (expected.len(), Some(&expected[at])),
                "how many candidates(…, {n}) gives, and number {at} of them as (beam, token, score); 5 beams with 0 each, \
                 token t of beam i has -((7 * t + 3 * i) % 4), 70 tokens; equal ones stand by beam, then by token"
            );
        }
    }

    /// A token that the model rules out: the logarithm of 0.
    #[test]
    fn task_4_tokens_without_a_chance_come_last() {
        let slab = slab(20);
        let mut beams = beams(&slab, 2, &[]);
        let never = f32::NEG_INFINITY;
        step(&mut beams, &[vec![never, -1.0, -2.0]], "with row [-inf, -1, -2]");
        same!(
            told_beams(&beams),
            [(vec![1], -1.0), (vec![2], -2.0)],
            "(tokens, score) of the beams, row [-inf, -1, -2]"
        );
        let rows = [vec![never, -3.0, never], vec![-1e30, never, -0.5]];
        let none = f64::NEG_INFINITY;
        let low = -2.0 + f64::from(-1e30_f32);
        let all = [(1, 2, -2.5), (0, 1, -4.0), (1, 0, low), (0, 0, none), (0, 2, none), (1, 1, none)];
        for n in 0..=7 {
            let found = candidates(&beams, &rows, n);
            same!(
                short(&found),
                all[..n.min(6)],
                "(beam, token, score) of candidates({rows:?}, {n}), beams with -1 and -2; a candidate of -inf comes last"
            );
        }
        let slab = self::slab(20);
        let mut beams = self::beams(&slab, 2, &[]);
        step(&mut beams, &[vec![never, -1.0, never]], "with row [-inf, -1, -inf]");
        same!(
            told_beams(&beams),
            [(vec![1], -1.0), (vec![0], none)],
            "(tokens, score) of the beams, width 2, row [-inf, -1, -inf]: where nothing else is left, one of -inf goes on"
        );
    }

    #[test]
    fn task_4_all_the_best_may_come_from_one_beam() {
        let slab = slab(40);
        let mut beams = beams(&slab, 3, &[]);
        step(&mut beams, &[vec![-1.0, -5.0, -6.0, -9.0]], "with rows [-1, -5, -6, -9]");
        read_newest(&mut beams);
        let rows = [vec![-3.0, -1.0, -2.0, -2.5], vec![-1.0; 4], vec![-0.5; 4]];
        step(&mut beams, &rows, "where the first beam has the three best tokens");
        same!(
            told_beams(&beams),
            [(vec![0, 1], -2.0), (vec![0, 2], -3.0), (vec![0, 3], -3.5)],
            "(tokens, score) of the beams, width 3: the best three candidates all go on from the first beam"
        );
        check_contexts(&beams, "three children of the first beam");
        read_newest(&mut beams);
        check_contexts(&beams, "three children of the first beam, one token later");
    }

    #[test]
    fn task_4_a_step_takes_no_page_and_gives_up_those_of_beams_without_a_child() {
        // Pages for the prompt, two beams that have grown, and nobody else.
        let slab = slab(3);
        let mut beams = beams(&slab, 2, &[]);
        step(&mut beams, &[vec![-2.0, -1.0, -4.0]], "when 1 page of 3 is free");
        same!(
            (n_free(&slab), owners_in(&slab, 3)),
            (1, vec![2, 2, 0]),
            "(free pages, owners) after a step that makes two beams of one: both share the prompt's pages 0 and 1"
        );
        read_newest(&mut beams);
        same!((n_free(&slab), owners_in(&slab, 3)), (0, vec![2, 1, 1]), "(free pages, owners) when both have grown");
        // Both go on from the better one; the other's page is free at once.
        let gone = beams.beams()[1].cache.table().pages()[1].0;
        step(&mut beams, &[vec![-1.0, -1.5, -9.0], vec![-9.0; 3]], "when no page is free");
        same!(
            told_beams(&beams),
            [(vec![1, 0], -2.0), (vec![1, 1], -2.5)],
            "(tokens, score) of the beams: both go on from the better one"
        );
        let mut expected = vec![2, 2, 2];
        expected[gone as usize] = 0;
        same!(
            (n_free(&slab), owners_in(&slab, 3)),
            (1, expected),
            "(free pages, owners) after the step: the beam without a child has let page {gone} go"
        );
        read_newest(&mut beams);
        check_contexts(&beams, "two children of one beam");
        drop(beams);
        same!(n_free(&slab), 3, "free pages of 3 when the search is dropped");
    }

    #[test]
    fn task_4_a_beam_with_one_child_copies_nothing() {
        let slab = slab(20);
        let mut beams = beams(&slab, 2, &[]);
        step(&mut beams, &[vec![-1.0, -1.5, -9.0]], "with rows [-1, -1.5, -9]");
        read_newest(&mut beams);
        let free = n_free(&slab);
        step(&mut beams, &[vec![-1.0, -9.0, -9.0], vec![-9.0, -1.0, -9.0]], "where each beam has one child");
        same!(
            told_beams(&beams),
            [(vec![0, 0], -2.0), (vec![1, 1], -2.5)],
            "(tokens, score) of the beams where each has one child"
        );
        let before: Vec<u64> = beams.beams().iter().map(|beam| beam.cache.usage().rows_copied).collect();
        let pages: Vec<_> = beams.beams().iter().map(|beam| numbers(beam.cache.table())).collect();
        read_newest(&mut beams);
        let after: Vec<u64> = beams.beams().iter().map(|beam| beam.cache.usage().rows_copied).collect();
        let now: Vec<_> = beams.beams().iter().map(|beam| numbers(beam.cache.table())).collect();
        same!(
            (after, now, n_free(&slab)),
            (before, pages, free),
            "(rows copied, pages, free pages) when two only children have grown: nobody else has their tails"
        );
        check_contexts(&beams, "two only children");
    }

    #[test]
    fn task_4_beams_change_places_with_their_contexts() {
        let slab = slab(40);
        let mut beams = beams(&slab, 3, &[]);
        step(&mut beams, &[vec![-1.0, -2.0, -3.0]], "with rows [-1, -2, -3]");
        read_newest(&mut beams);
        // The third becomes the first, the first the second and, once more, the third.
        step(
            &mut beams,
            &[vec![-3.0, -4.0, -9.0], vec![-9.0; 3], vec![-9.0, -9.0, -0.5]],
            "in which they change places",
        );
        same!(
            told_beams(&beams),
            [(vec![2, 2], -3.5), (vec![0, 0], -4.0), (vec![0, 1], -5.0)],
            "(tokens, score) of the beams that have changed places"
        );
        check_contexts(&beams, "beams that have changed places");
        read_newest(&mut beams);
        check_contexts(&beams, "beams that have changed places, one token later");
        let caches = beams.beams().iter().map(|beam| beam.cache.table().pages()[1]).collect::<Vec<_>>();
        let apart = caches.iter().collect::<std::collections::HashSet<_>>().len();
        same!(apart, 3, "different last pages of three beams that have grown: {caches:?}");
    }

    #[test]
    fn task_4_ended_texts_stand_aside() {
        let slab = slab(60);
        let mut beams = beams(&slab, 2, &[3, 1]);
        step(&mut beams, &[vec![-2.0, -1.0, -4.0, -3.0, -8.0]], "tokens 1 and 3 end a text");
        same!(
            told_beams(&beams),
            [(vec![0], -2.0), (vec![2], -4.0)],
            "(tokens, score) of the beams, width 2: tokens 0 and 2 go on, 1 and 3 end a text"
        );
        same!(
            told_ended(&beams),
            [(vec![], -1.0), (vec![], -3.0)],
            "(tokens, score) of the ended texts: the end itself is no token of theirs, but counts in their score"
        );
        read_newest(&mut beams);
        // The end of beam 1 is worse than the second that goes on: it is not looked at.
        let rows = [vec![-1.0, -0.5, -2.0, -9.0, -9.0], vec![-9.0, -1.0, -9.0, -9.0, -9.0]];
        step(&mut beams, &rows, "tokens 1 and 3 end a text");
        same!(
            told_beams(&beams),
            [(vec![0, 0], -3.0), (vec![0, 2], -4.0)],
            "(tokens, score) of the beams after the second step"
        );
        same!(
            told_ended(&beams),
            [(vec![], -1.0), (vec![], -3.0), (vec![0], -2.5)],
            "(tokens, score) of the ended texts: one more with score -2.5; the end with -5 comes behind the last beam, -4"
        );
        check_contexts(&beams, "beams beside ended texts");
        read_newest(&mut beams);
        check_contexts(&beams, "beams beside ended texts, one token later");
    }

    /// One step after others. The failure shows the row of each beam.
    #[track_caller]
    fn step_with(beams: &mut Beams, rows: &[&[f32]], expected: &[Hypothesis], ended: &[Hypothesis], what: &str) {
        let before = told_beams(beams);
        let owned: Vec<Vec<f32>> = rows.iter().map(|row| row.to_vec()).collect();
        step(beams, &owned, &format!("of beams {before:?} with rows {rows:?}; {what}"));
        same!(
            (told_beams(beams), told_ended(beams)),
            (expected.to_vec(), ended.to_vec()),
            "((tokens, score) of the beams, of the ended texts) after a step of beams {before:?} with rows {rows:?}; \
             {what}"
        );
    }

    #[test]
    fn task_4_all_beams_may_end_and_others_take_their_places() {
        let slab = slab(20);
        let mut beams = beams(&slab, 2, &[0]);
        let what = "width 2, token 0 ends a text";
        step_with(&mut beams, &[&[-9.0, -1.0, -2.0]], &[(vec![1], -1.0), (vec![2], -2.0)], &[], what);
        read_newest(&mut beams);
        step_with(
            &mut beams,
            &[&[-0.5, -4.0, -5.0], &[-0.25, -4.5, -8.0]],
            &[(vec![1, 1], -5.0), (vec![1, 2], -6.0)],
            &[(vec![1], -1.5), (vec![2], -2.25)],
            &format!("{what}: both best candidates end, and the next two go on"),
        );
        read_newest(&mut beams);
        check_contexts(&beams, "two beams after two ends");
    }

    #[test]
    fn task_4_each_end_of_text_may_end_the_same_beam() {
        let slab = slab(20);
        let mut one = beams(&slab, 1, &[0, 3]);
        let what = "width 1, tokens 0 and 3 end a text: the two best end, and the third goes on";
        step_with(&mut one, &[&[-1.0, -4.0, -3.0, -2.0]], &[(vec![2], -3.0)], &[(vec![], -1.0), (vec![], -2.0)], what);
        let slab = self::slab(20);
        let mut two = beams(&slab, 2, &[0, 1, 2]);
        let what = "width 2, tokens 0, 1 and 2 end a text";
        step_with(
            &mut two,
            &[&[-1.0, -2.0, -3.0, -4.0, -5.0]],
            &[(vec![3], -4.0), (vec![4], -5.0)],
            &[(vec![], -1.0), (vec![], -2.0), (vec![], -3.0)],
            what,
        );
        step_with(
            &mut two,
            &[&[-1.0, -2.0, -3.0, -6.0, -7.0], &[-1.0, -2.0, -3.0, -9.0, -9.0]],
            &[(vec![3, 3], -10.0), (vec![3, 4], -11.0)],
            &[
                (vec![], -1.0),
                (vec![], -2.0),
                (vec![], -3.0),
                (vec![3], -5.0),
                (vec![3], -6.0),
                (vec![4], -6.0),
                (vec![3], -7.0),
                (vec![4], -7.0),
                (vec![4], -8.0),
            ],
            what,
        );
    }

    #[test]
    fn task_4_no_beam_is_left_where_every_token_ends_a_text() {
        let slab = slab(20);
        let mut beams = beams(&slab, 2, &[0, 1]);
        let ended = [(vec![], -1.0), (vec![], -2.0)];
        let what = "width 2, tokens 0 and 1 end a text and there is no other: no beam is left";
        step_with(&mut beams, &[&[-1.0, -2.0]], &[], &ended, what);
        same!(n_free(&slab), 20, "free pages of 20 when no beam is left");
        same!(candidates_of_none(&beams), [], "candidates of no beam, with no row");
        step_with(&mut beams, &[], &[], &ended, "no beam was left before: nothing happens");
    }

    fn candidates_of_none(beams: &Beams) -> Vec<(usize, u32, f64)> {
        let _asking = asking("candidates([], 5) when no beam is left");
        short(&beams.candidates(&[], 5))
    }

    /// With equal scores an end stands among the others by beam and token, like any token.
    #[test]
    fn task_4_an_end_that_is_as_good_counts_by_its_token() {
        for (end, expected) in [(0, vec![(vec![], -1.0)]), (1, vec![(vec![], -1.0)]), (2, vec![]), (3, vec![])] {
            let slab = slab(20);
            let mut beams = beams(&slab, 2, &[end]);
            step(&mut beams, &[vec![-1.0; 4]], "of four equal tokens");
            let others: Vec<_> = (0..4).filter(|token| *token != end).map(|token| (vec![token], -1.0)).collect();
            same!(told_beams(&beams), others[..2], "(tokens, score) of the beams; 4 equal tokens, {end} ends a text");
            same!(told_ended(&beams), expected, "(tokens, score) of ended texts; 4 equal tokens, {end} ends a text");
        }
    }

    #[test]
    fn task_4_a_width_that_nobody_fills() {
        let slab = slab(200);
        let mut beams = beams(&slab, 50, &[2]);
        for (number, expected) in [2, 4, 8].into_iter().enumerate() {
            let rows = vec![vec![-1.0, -2.0, -3.0]; beams.beams().len()];
            step(&mut beams, &rows, &format!("number {number}, width 50, 3 tokens, of which 2 ends a text"));
            same!(beams.beams().len(), expected, "beams after {} steps of width 50: all that go on", number + 1);
            same!(
                beams.ended().len(),
                expected - 1,
                "ended texts after {} steps of width 50: each beam has ended once as well",
                number + 1
            );
            read_newest(&mut beams);
            check_contexts(&beams, "a width that nobody fills");
        }
    }

    #[test]
    fn task_4_one_beam_is_greedy() {
        let slab = slab(6);
        let mut beams = beams(&slab, 1, &[]);
        for (row, token) in [([-2.0, -1.0, -3.0], 1), ([-2.0, -2.0, -3.0], 0), ([-5.0, -4.0, -3.0], 2)] {
            step(&mut beams, &[row.to_vec()], &format!("with row {row:?}, width 1"));
            same!(beams.beams().len(), 1, "beams after a step of width 1");
            same!(beams.beams()[0].tokens.last(), Some(&token), "newest token of the only beam, row {row:?}");
            read_newest(&mut beams);
            check_contexts(&beams, "a single beam");
        }
        same!(told_beams(&beams), [(vec![1, 0, 2], -6.0)], "(tokens, score) of the only beam after three steps");
    }

    /// Two scores that an `f32` cannot tell apart; the better one has the higher token.
    #[test]
    fn task_4_scores_are_added_up_in_f64() {
        let slab = slab(30);
        let mut beams = beams(&slab, 2, &[]);
        step(&mut beams, &[vec![-16_777_216.0, -33_554_432.0]], "with very low rows");
        let rows = [vec![-1.25, -1.0], vec![-1.0, -1.25]];
        let found = candidates(&beams, &rows, 4);
        let expected = [(0, 1, -16_777_217.0), (0, 0, -16_777_217.25), (1, 0, -33_554_433.0), (1, 1, -33_554_433.25)];
        same!(short(&found), expected, "(beam, token, score) of candidates({rows:?}, 4), beams with -2^24 and -2^25");
        step(&mut beams, &rows, "with low rows");
        same!(
            told_beams(&beams),
            [(vec![0, 1], -16_777_217.0), (vec![0, 0], -16_777_217.25)],
            "(tokens, score) of beams whose scores only an f64 can tell apart"
        );
        read_newest(&mut beams);
        step(&mut beams, &[vec![-0.125, -1.0], vec![-0.0625, -3.0]], "with low rows, once more");
        same!(
            told_beams(&beams),
            [(vec![0, 1, 0], -16_777_217.125), (vec![0, 0, 0], -16_777_217.312_5)],
            "(tokens, score) of beams after three steps"
        );
    }

    #[test]
    fn task_4_very_many_tokens_and_beams() {
        let n = if cfg!(miri) { 300 } else { 150_000 };
        let width = if cfg!(miri) { 20 } else { 300 };
        let slab = slab_of(ONE_NUMBER, 4, 2 * width + 2);
        let mut prompt = cache(&slab);
        granted("extend(4)", || prompt.extend(4));
        let mut beams = Beams::new(prompt, width, &[]);
        // The last tokens are the best.
        let row: Vec<f32> = (0..n).map(|token| token as f32 - n as f32).collect();
        let what = format!("step of width {width} over {n} tokens");
        once(&what, || step(&mut beams, std::slice::from_ref(&row), "over very many tokens"));
        let expected: Vec<_> = (0..width).map(|rank| (vec![(n - 1 - rank) as u32], -1.0 - rank as f64)).collect();
        same!(told_beams(&beams), expected, "(tokens, score) of {width} beams of {n} tokens, the last ones the best");
        for beam in beams.beams_mut() {
            granted("extend(1) of a beam", || beam.cache.extend(1));
        }
        // Each beam goes on with one token, and they change their order: the last beam becomes the first.
        let rows: Vec<Vec<f32>> =
            (0..width).map(|beam| vec![-1e9, 2.0 * beam as f32 - 2.0 * width as f32, -1e9]).collect();
        step(&mut beams, &rows, "of very many beams");
        let expected: Vec<_> = (0..width)
            .rev()
            .map(|rank| (vec![(n - 1 - rank) as u32, 1], -1.0 - rank as f64 + 2.0 * rank as f64 - 2.0 * width as f64))
            .collect();
        same!(told_beams(&beams), expected, "(tokens, score) of {width} beams, the last of which has become the first");
    }

    /// Where the search would have to sort everything for each token that it picks, this takes minutes.
    #[test]
    fn task_4_very_many_candidates_cost_no_more() {
        let (width, vocab_size) = if cfg!(miri) { (3, 100) } else { (16, 100_000) };
        let slab = slab_of(ONE_NUMBER, 4, 4 * width);
        let mut prompt = cache(&slab);
        granted("extend(4)", || prompt.extend(4));
        let mut beams = Beams::new(prompt, width, &[]);
        step(&mut beams, &[(0..vocab_size).map(|token| -((token % 97) as f32)).collect()], "the first");
        let rows = vec![(0..vocab_size).map(|token| -((token * 7 % 1009) as f32)).collect::<Vec<f32>>(); width];
        once(&format!("a step of {width} beams with {vocab_size} tokens each"), || {
            step(&mut beams, &rows, "the second")
        });
        same!(beams.beams().len(), width, "beams after two steps of width {width}");
    }

    // All tasks

    /// One text of the transcript: a name and, while it lives, its cache.
    type Named = (&'static str, Option<ForkCache>);

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        let slab = slab_of(KvLayout { n_layers: 2, ..LAYOUT }, 4, 5);
        let mut texts: [Named; 3] = [("a", Some(cache(&slab))), ("b", None), ("c", None)];
        let mut next = 0;
        transcript.line("page size 4, 5 pages");
        for line in [
            "a extend 6",
            "b fork a",
            "c fork b",
            "b extend 0",
            "b extend 1",
            "a extend 7",
            "a extend 3",
            "c extend 1",
            "b rewind 2",
            "b extend 2",
            "c drop",
            "c fork a",
            "c rewind 2",
            "c extend 1",
            "a drop",
            "c extend 2",
            "b rewind 8",
            "b rewind 5",
            "b fork c",
            "c rewind 3",
            "c extend 1",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let index = |name: &str| texts.iter().position(|text| text.0 == name).expect("a text of the transcript");
            let at = index(words[0]);
            let n = words.get(2).and_then(|word| word.parse::<usize>().ok());
            let question = asking(format!("the transcript's line: {line}"));
            let result = match (words[1], n) {
                ("fork", _) => {
                    let parent = index(words[2]);
                    let fork = texts[parent].1.as_ref().expect("a text that lives").fork();
                    let result = fork.as_ref().map(|_| ()).map_err(Clone::clone);
                    texts[at].1 = fork.ok();
                    result
                }
                ("drop", _) => {
                    texts[at].1 = None;
                    Ok(())
                }
                (operation, n) => {
                    let cache = texts[at].1.as_mut().expect("a text that lives");
                    let n = n.expect("a number of tokens");
                    if operation == "rewind" {
                        cache.rewind(n)
                    } else {
                        let result = cache.extend(n);
                        if result.is_ok() {
                            oracle::write(cache, &(next..next + n).collect::<Vec<_>>());
                            next += n;
                        }
                        result
                    }
                }
            };
            drop(question);
            let told_text = match &texts[at].1 {
                Some(cache) => {
                    let usage = cache.usage();
                    let pages = told_pages(cache.table().pages());
                    format!("{:>2} tokens in {pages:<12} {} copied", usage.tokens, usage.rows_copied)
                }
                None => String::new(),
            };
            let owners: Vec<String> = owners_in(&slab, 5).iter().map(u32::to_string).collect();
            transcript.line(format!("{line:<11} {:<28} {told_text:<36} owners {}", outcome(&result), owners.join(" ")));
        }
        for (name, cache) in &texts {
            if let Some(cache) = cache {
                transcript.line(format!("gather of {name}, {}", told_pages(cache.table().pages())));
                transcript.gather(cache);
            }
        }
        drop(texts);
        transcript_of_beams(&mut transcript);
        assert_transcript("ch10_fork", &transcript);
    }

    /// A search of width 2 over four tokens, of which token 0 ends a text.
    fn transcript_of_beams(transcript: &mut Transcript) {
        let slab = slab_of(KvLayout { n_layers: 2, ..LAYOUT }, 4, 6);
        transcript.line("beams: width 2, page size 4, 6 pages, a prompt of 6 tokens; token 0 ends a text");
        let mut search = beams(&slab, 2, &[0]);
        let steps: [&[[f32; 4]]; 4] = [
            &[[-4.0, -1.0, -2.0, -3.0]],
            &[[-9.0, -1.5, -9.0, -0.5], [-9.0, -4.0, -3.0, -2.0]],
            &[[-0.5, -2.0, -8.0, -8.0], [-9.0, -2.0, -8.0, -0.25]],
            &[[-9.0, -9.0, -1.0, -9.0], [-9.0, -9.0, -9.0, -0.25]],
        ];
        for rows in steps {
            let rows: Vec<Vec<f32>> = rows.iter().map(|row| row.to_vec()).collect();
            let question = asking("a step of the transcript's beams");
            let result = search.step(&rows);
            drop(question);
            let owners: Vec<String> = owners_in(&slab, 6).iter().map(u32::to_string).collect();
            transcript.line(format!("step  {}, owners {}", outcome(&result), owners.join(" ")));
            read_newest(&mut search);
            for beam in search.beams() {
                transcript.line(format!(
                    "  {:>6}  tokens {:?} in {}",
                    beam.score,
                    beam.tokens,
                    told_pages(beam.cache.table().pages())
                ));
            }
            for ended in search.ended() {
                transcript.line(format!("  {:>6}  tokens {:?}, ended", ended.score, ended.tokens));
            }
        }
    }

    /// One of the caches in the oracle's hands, and what it must hold.
    struct Text {
        cache: ForkCache,
        oracle: Oracle,
        /// Rows that it must have copied.
        copied: u64,
    }

    #[test]
    fn whole_oracle() {
        for seed in seeds(40) {
            let mut dice = Dice::new(seed);
            let layout =
                KvLayout { n_layers: dice.roll(1, 3), n_kv_heads: dice.roll(1, 3), head_dim: 2 * dice.roll(1, 3) };
            let (size, n_pages) = (dice.roll(1, 6), dice.roll(4, 16));
            let slab = slab_of(layout, size, n_pages);
            let mut texts: Vec<Text> = Vec::new();
            let mut next = 0;
            for step in 0..STEPS {
                let move_ = dice.roll(0, 11);
                if texts.is_empty() {
                    let oracle = Oracle::of(format!("seed {seed}, page size {size}, the text of step {step}"));
                    texts.push(Text { cache: cache(&slab), oracle, copied: 0 });
                    continue;
                }
                let index = dice.roll(0, texts.len() - 1);
                let (len, free) = (texts[index].cache.len(), n_free(&slab));
                let (tokens, pages) = (count(len, "token"), count(free, "page"));
                let at = format!("seed {seed}, step {step}, page size {size}, {tokens} held, {pages} free");
                match move_ {
                    0 => drop(texts.swap_remove(index)),
                    1..4 if texts.len() < 6 => {
                        let name = format!("of step {step}, seed {seed}, page size {size}");
                        let (cache, oracle) = fork(&texts[index].cache, &texts[index].oracle, &name);
                        same!(n_free(&slab), free, "free pages after a fork; {at}");
                        texts.push(Text { cache, oracle, copied: 0 });
                    }
                    1..8 => {
                        let n = dice.roll(0, 2 * size + 1);
                        let tokens: Vec<usize> = (next..next + n).collect();
                        let at = format!("extend({n}); {at}");
                        let tail = texts[index].cache.table().pages().last().copied();
                        let shared = tail.is_some_and(|tail| {
                            texts.iter().filter(|text| text.cache.table().pages().contains(&tail)).count() > 1
                        });
                        let copy = n > 0 && shared && len % size > 0;
                        let needed = (len + n).div_ceil(size) - len.div_ceil(size) + usize::from(copy);
                        let Text { cache, oracle, copied } = &mut texts[index];
                        if needed > free {
                            same!(cache.extend(n), Err(CacheError::OutOfPages { needed, free }), "{at}");
                            oracle.note(format!("extend({n}) refused"));
                            same!(
                                (cache.len(), n_free(&slab)),
                                (len, free),
                                "(tokens, free pages) after a refused {at}"
                            );
                        } else {
                            append(&slab, oracle, cache, &tokens);
                            next += n;
                            *copied += if copy { (len % size) as u64 } else { 0 };
                            same!(n_free(&slab), free - needed, "free pages after {at}");
                            for page in
                                cache.table().pages().iter().skip(len / size).take(if n > 0 { usize::MAX } else { 0 })
                            {
                                same!(
                                    slab.borrow().pool().owners(*page),
                                    Ok(1),
                                    "owners of page {page}, in which new tokens lie, after {at}"
                                );
                            }
                        }
                    }
                    _ => {
                        let n = dice.roll(0, len + 1);
                        let Text { cache, oracle, .. } = &mut texts[index];
                        if n > len {
                            same!(cache.rewind(n), Err(CacheError::PastTheStart { n, len }), "rewind({n}); {at}");
                        } else {
                            oracle.rewind(cache, n);
                        }
                    }
                }
                let mut held: HashMap<PageId, u32> = HashMap::new();
                for Text { cache, oracle, copied } in &texts {
                    oracle.check(cache);
                    same!(cache.usage().rows_copied, *copied, "rows copied by one of the texts; {at}");
                    cache.table().pages().iter().for_each(|page| *held.entry(*page).or_default() += 1);
                }
                for page in (0..n_pages as u32).map(PageId) {
                    let tables = held.get(&page).copied().unwrap_or(0);
                    let owners = slab.borrow().pool().owners(page);
                    same!(owners, Ok(tables), "owners of page {page}, which {tables} texts have; after this: {at}");
                }
                same!(
                    n_free(&slab),
                    n_pages - held.len(),
                    "free pages of {n_pages} beside {} held; {at}",
                    count(held.len(), "page")
                );
            }
            drop(texts);
            same!(n_free(&slab), n_pages, "seed {seed}: free pages when all is dropped");
        }
    }

    /// What a text of a search without a cache is: its tokens and its score.
    type Hypothesis = (Vec<u32>, f64);

    /// Beam search by the book, over whole texts: no cache, no pages, all candidates sorted in every step.
    struct PlainSearch {
        width: usize,
        end_of_text: Vec<u32>,
        beams: Vec<Hypothesis>,
        ended: Vec<Hypothesis>,
    }

    impl PlainSearch {
        fn new(width: usize, end_of_text: &[u32]) -> Self {
            PlainSearch { width, end_of_text: end_of_text.to_vec(), beams: vec![(vec![], 0.0)], ended: vec![] }
        }

        fn step(&mut self, rows: &[Vec<f32>]) {
            let mut all: Vec<(f64, usize, u32)> = Vec::new();
            for (beam, row) in rows.iter().enumerate() {
                all.extend((0..).zip(row).map(|(token, x)| (self.beams[beam].1 + f64::from(*x), beam, token)));
            }
            // The sort is stable, and the candidates stand by beam and token.
            all.sort_by(|a, b| b.0.partial_cmp(&a.0).expect("no NaN"));
            let mut beams = Vec::new();
            for (score, beam, token) in all {
                if beams.len() == self.width {
                    break;
                }
                let mut tokens = self.beams[beam].0.clone();
                if self.end_of_text.contains(&token) {
                    self.ended.push((tokens, score));
                } else {
                    tokens.push(token);
                    beams.push((tokens, score));
                }
            }
            self.beams = beams;
        }
    }

    /// Log-probabilities that follow from the whole text, in steps of a quarter so that many are equal.
    fn scripted_row(text: &[u32], vocab_size: usize, seed: u64) -> Vec<f32> {
        let mut hash = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x0123_4567;
        for token in text {
            hash = (hash ^ u64::from(*token).wrapping_add(1)).wrapping_mul(0x0100_0000_01B3).rotate_left(23);
        }
        let mut dice = Dice::new(hash);
        (0..vocab_size).map(|_| -0.25 * dice.roll(1, 12) as f32).collect()
    }

    #[test]
    fn whole_oracle_of_beams() {
        for seed in seeds(40) {
            let mut dice = Dice::new(seed);
            let (size, width, vocab_size) = (dice.roll(1, 5), dice.roll(1, 5), dice.roll(2, 6));
            let ends: Vec<u32> = (0..vocab_size as u32).filter(|_| dice.roll(0, 4) == 0).collect();
            let slab = slab_of(LAYOUT, size, 6 * width + 6 + 12 * width);
            let mut search = beams(&slab, width, &ends);
            let mut plain = PlainSearch::new(width, &ends);
            for number in 0..if cfg!(miri) { 3 } else { 10 } {
                let at = format!(
                    "seed {seed}, step {number}, width {width}, {vocab_size} tokens of which {ends:?} end a text"
                );
                let rows: Vec<Vec<f32>> =
                    plain.beams.iter().map(|beam| scripted_row(&beam.0, vocab_size, seed)).collect();
                if rows.is_empty() {
                    break;
                }
                step(&mut search, &rows, &at);
                plain.step(&rows);
                same!(told_beams(&search), plain.beams, "(tokens, score) of the beams; {at}");
                same!(told_ended(&search), plain.ended, "(tokens, score) of the ended texts; {at}");
                check_contexts(&search, &at);
                read_newest(&mut search);
                check_contexts(&search, &format!("{at}, the newest tokens read"));
            }
            let pages: std::collections::HashSet<PageId> =
                search.beams().iter().flat_map(|beam| beam.cache.table().pages().to_vec()).collect();
            let (free, held) = (n_free(&slab), pages.len());
            same!(free, 18 * width + 6 - held, "seed {seed}: free pages when the beams have {held} different ones");
        }
    }

    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        let (model, prompt, n) = (&storyteller.model, storyteller.prompt(), 24);
        let slab = slab_of(model.config().kv_layout(), 3, 100);
        let mut first = cache(&slab);
        let logits = made("the prompt, read once", || model.step(&prompt, Some(&mut Watched(&mut first))));
        let mut told_as_forks = Vec::new();
        let mut samples: Vec<(ForkCache, Sampler, Vec<u32>)> = (0..4)
            .map(|number| {
                let fork = granted("fork of the prompt", || first.fork());
                let mut sampler = Sampler::new(Sampling { seed: SAMPLING.seed + number, ..SAMPLING });
                let token = sampler.pick(&logits);
                (fork, sampler, vec![token])
            })
            .collect();
        drop(first);
        for number in 1..n {
            alive();
            for (index, (cache, sampler, tokens)) in samples.iter_mut().enumerate() {
                let newest = tokens[number - 1];
                let question = format!("token {number} of sample {index} of the story");
                let logits = made(&question, || model.step(&[newest], Some(&mut Watched(cache))));
                tokens.push(sampler.pick(&logits));
            }
        }
        told_as_forks.extend(samples.iter().map(|sample| sample.2.clone()));
        for (number, found) in told_as_forks.iter().enumerate() {
            let mut sampler = Sampler::new(Sampling { seed: SAMPLING.seed + number as u64, ..SAMPLING });
            let mut text = prompt.clone();
            for _ in 0..n {
                let logits = model.step(&text, None).expect("a short text fits");
                text.push(sampler.pick(&logits));
            }
            storyteller.assert_same_story(found, &text[prompt.len()..]);
        }
    }

    /// The log of the softmax of a row of logits, as the loop around the beams gives it.
    fn log_softmax(logits: &[f32]) -> Vec<f32> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
        logits.iter().map(|x| (f64::from(x - max) - sum.ln()) as f32).collect()
    }

    #[test]
    fn whole_story_of_beams() {
        let storyteller = Storyteller::open();
        let (model, prompt) = (&storyteller.model, storyteller.prompt());
        let ends = [10, 200];
        let slab = slab_of(model.config().kv_layout(), 3, 100);
        let mut first = cache(&slab);
        let logits = made("the prompt, read once", || model.step(&prompt, Some(&mut Watched(&mut first))));
        let mut search = Beams::new(first, 3, &ends);
        let mut plain = PlainSearch::new(3, &ends);
        let mut rows = vec![log_softmax(&logits)];
        for number in 0..12 {
            alive();
            step(&mut search, &rows, &format!("number {number} of the story"));
            plain.step(&recomputed(&storyteller, &plain, &prompt));
            let found = (told_beams(&search), told_ended(&search));
            let question = format!("(beams, ended) after step {number} of the story, as recomputing them finds");
            same!(found, (plain.beams.clone(), plain.ended.clone()), "{question}");
            rows = search
                .beams_mut()
                .iter_mut()
                .map(|beam| {
                    let newest = [*beam.tokens.last().expect("a beam has a token after a step")];
                    let logits =
                        made("a beam's newest token", || model.step(&newest, Some(&mut Watched(&mut beam.cache))));
                    log_softmax(&logits)
                })
                .collect();
        }
    }

    /// What may follow each text of a plain search, computed from its first token on.
    fn recomputed(storyteller: &Storyteller, search: &PlainSearch, prompt: &[u32]) -> Vec<Vec<f32>> {
        let texts = search.beams.iter().map(|(tokens, _)| [prompt, tokens].concat());
        texts.map(|text| log_softmax(&storyteller.model.step(&text, None).expect("a short text fits"))).collect()
    }
}
