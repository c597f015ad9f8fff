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
    use std::collections::HashMap;

    use page_by_page::cache::{CacheError, KvCache, KvLayout, PageId, Rewind};
    use page_by_page::chapters::ch04_page_pool::PagePool;
    use page_by_page::chapters::ch05_page_table::PageTable;
    use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
    use page_by_page::chapters::ch10_fork::{ForkCache, PageCopy};
    use page_by_page::decode::sampler::{Sampler, Sampling};

    use crate::support::asking::{asking, granted, made, one_of, quietly};
    use crate::support::limits::{alive, allocated, often, once};
    use crate::support::oracle::{self, Dice, Oracle, STEPS, seeds};
    use crate::support::rows::{KINDS, Kind};
    use crate::support::story::{SAMPLING, Storyteller, Watched};
    use crate::support::transcript::{Transcript, assert_transcript, outcome, told_pages};
    use crate::support::words::count;

    /// Three numbers that cannot be mistaken for one another.
    const LAYOUT: KvLayout = KvLayout { n_layers: 3, n_kv_heads: 2, head_dim: 5 };

    /// The smallest rows there are.
    const ONE_NUMBER: KvLayout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 1 };

    /// More than 16 bits can count.
    const MANY: usize = if cfg!(miri) { 300 } else { 70_000 };

    /// Enough pages for a walk through all of them at every call to take minutes.
    const VERY_MANY: usize = if cfg!(miri) { 300 } else { 300_000 };

    /// Up to this page size every case is tried.
    const LARGEST_PAGE: usize = if cfg!(miri) { 3 } else { 5 };

    #[track_caller]
    fn pool(n_pages: usize) -> PagePool {
        made(&format!("PagePool::new({n_pages}) of chapter 4"), || PagePool::new(n_pages))
    }

    /// A table of `tokens` tokens, grown by chapter 5.
    #[track_caller]
    fn table(page_size: usize, tokens: usize, pool: &mut PagePool) -> PageTable {
        let mut table = made(&format!("PageTable::new({page_size}) of chapter 5"), || PageTable::new(page_size));
        grow(&mut table, tokens, pool);
        table
    }

    #[track_caller]
    fn grow(table: &mut PageTable, n: usize, pool: &mut PagePool) {
        let (tokens, size) = (count(table.len(), "token"), table.page_size());
        granted(format!("grow({n}) of chapter 5, on {tokens}, page size {size}, with pages enough"), || {
            table.grow(n, pool)
        });
    }

    #[track_caller]
    fn release(table: &mut PageTable, pool: &mut PagePool, when: &str) {
        granted(format!("release of chapter 5, {when}"), || table.release(pool));
    }

    /// Forks a table, and first compares what the fork reports about itself.
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

    #[track_caller]
    fn slab_of(layout: KvLayout, page_size: usize, n_pages: usize) -> SharedSlab {
        made(&format!("PageSlab::new of chapter 6, with {n_pages} pages of {page_size} slots"), || {
            PageSlab::new(layout, page_size, n_pages)
        })
    }

    #[track_caller]
    fn slab(n_pages: usize) -> SharedSlab {
        slab_of(LAYOUT, 4, n_pages)
    }

    #[track_caller]
    fn cache(slab: &SharedSlab) -> ForkCache {
        made("ForkCache::new", || ForkCache::new(slab))
    }

    /// A cache, and what it must hold.
    struct Sequence {
        cache: ForkCache,
        oracle: Oracle,
    }

    impl Sequence {
        /// A sequence of the tokens 0, 1, 2, … with their rows written.
        #[track_caller]
        fn new(slab: &SharedSlab, name: &str, tokens: usize) -> Self {
            let mut sequence = Sequence { cache: cache(slab), oracle: Oracle::of(format!("sequence {name}")) };
            sequence.append(slab, 0, tokens);
            sequence
        }

        /// Extends it by `n` tokens, for which there is room, and writes their rows. `first`: the number of the first.
        #[track_caller]
        fn append(&mut self, slab: &SharedSlab, first: usize, n: usize) {
            let needed = pages_needed(&self.cache, slab, n);
            let copy = if copies(&self.cache, slab, n) { ", one of them for a copy" } else { "" };
            let [needs, free] = [needed, n_free(slab)].map(|n| count(n, "page"));
            let room = format!("it needs {needs}{copy}, and the pool has {free} free");
            let tokens: Vec<usize> = (first..first + n).collect();
            self.oracle.append_with_room(&mut self.cache, &tokens, &room);
        }

        /// Forks it, and first compares what the fork reports about itself.
        #[track_caller]
        fn fork(&self, name: &str) -> Sequence {
            let held = count(self.cache.len(), "token");
            let fork = granted(format!("fork of a cache of {held}"), || self.cache.fork());
            same!(fork.len(), self.cache.len(), "tokens in a fork of a cache of {held}");
            let pages = numbers(self.cache.table());
            same!(numbers(fork.table()), pages, "pages of a fork of a cache of {held}: the same");
            let mut oracle = Oracle::of(format!("sequence {name}"));
            oracle.tokens = self.oracle.tokens.clone();
            oracle.note(format!("forked with {held}"));
            Sequence { cache: fork, oracle }
        }

        #[track_caller]
        fn rewind(&mut self, n: usize) {
            self.oracle.rewind(&mut self.cache, n);
        }

        #[track_caller]
        fn check(&self) {
            self.oracle.check(&self.cache);
        }

        fn copied(&self) -> u64 {
            self.cache.usage().rows_copied
        }
    }

    /// Whether `n` more tokens need a copy of the tail.
    fn copies(cache: &ForkCache, slab: &SharedSlab, n: usize) -> bool {
        let tail =
            cache.table().pages().last().filter(|_| n > 0 && !cache.len().is_multiple_of(cache.table().page_size()));
        tail.is_some_and(|tail| slab.borrow().pool().owners(*tail).is_ok_and(|owners| owners > 1))
    }

    /// Pages that `n` more tokens need, including that of a copy.
    fn pages_needed(cache: &ForkCache, slab: &SharedSlab, n: usize) -> usize {
        let (len, size) = (cache.len(), cache.table().page_size());
        (len + n).div_ceil(size) - len.div_ceil(size) + usize::from(copies(cache, slab, n))
    }

    fn n_free(slab: &SharedSlab) -> usize {
        slab.borrow().pool().n_free()
    }

    fn owners_in(slab: &SharedSlab, pages: u32) -> Vec<u32> {
        owners(slab.borrow().pool(), pages)
    }

    /// All numbers of a slab, keys and values.
    fn content(slab: &SharedSlab) -> [Vec<f32>; 2] {
        let slab = slab.borrow();
        [slab.keys().to_vec(), slab.values().to_vec()]
    }

    /// Rows of a slab with pages of 4 slots that have changed: keys or values, page, layer, slot.
    fn changed(before: &[Vec<f32>; 2], after: &[Vec<f32>; 2]) -> Vec<(Kind, usize, usize, usize)> {
        let mut changed = Vec::new();
        for (kind, (before, after)) in KINDS.into_iter().zip(before.iter().zip(after)) {
            let rows = before.chunks(LAYOUT.kv_width()).zip(after.chunks(LAYOUT.kv_width()));
            for (index, (before, after)) in rows.enumerate() {
                if before.iter().zip(after).any(|(a, b)| a.to_bits() != b.to_bits()) {
                    let (page_and_layer, slot) = (index / 4, index % 4);
                    changed.push((kind, page_and_layer / LAYOUT.n_layers, page_and_layer % LAYOUT.n_layers, slot));
                }
            }
        }
        changed
    }

    /// What a refused call must leave unchanged.
    type State = (Vec<u32>, usize, usize, Vec<u32>, u64);

    const STATE: &str = "(pages, tokens, free pages, owners of all pages, rows copied)";

    fn state(cache: &ForkCache, slab: &SharedSlab) -> State {
        let n_pages = slab.borrow().pool().n_pages() as u32;
        let pages = numbers(cache.table());
        (pages, cache.len(), n_free(slab), owners_in(slab, n_pages), cache.usage().rows_copied)
    }

    // Task 1

    #[test]
    fn task_1_a_fork_has_the_same_pages_and_takes_none() {
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
                    (0..9).map(|page| before[page as usize] + u32::from(pages.contains(&page))).collect();
                same!(
                    owners(&pool, 9),
                    expected,
                    "owners of pages 0 to 8 after a {at}: one more for each of its pages"
                );
            }
        }
    }

    #[test]
    fn task_1_a_fork_of_a_fork_is_one_more_owner() {
        let mut pool = pool(4);
        let a = table(4, 6, &mut pool);
        let b = fork_table(&a, &mut pool);
        let _c = fork_table(&b, &mut pool);
        let _d = fork_table(&a, &mut pool);
        same!(owners(&pool, 4), [4, 4, 0, 0], "owners of pages 0 to 3: a, b = a.fork(), c = b.fork(), d = a.fork()");
    }

    #[test]
    fn task_1_forks_grow_apart_at_a_page_boundary() {
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
    fn task_1_forks_release_each_page_once_in_any_order() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut pool = pool(4);
            let a = table(4, 10, &mut pool);
            let b = fork_table(&a, &mut pool);
            let c = fork_table(&b, &mut pool);
            let mut tables = [a, b, c];
            for (released, index) in order.into_iter().enumerate() {
                let when = format!("of table {index} of three forks, in the order {order:?}");
                release(&mut tables[index], &mut pool, &when);
                let left = 2 - released as u32;
                same!(owners(&pool, 4), [left, left, left, 0], "owners of pages 0 to 3 after the release {when}");
                same!(pool.n_free(), if left == 0 { 4 } else { 1 }, "free pages of 4 after the release {when}");
            }
        }
    }

    /// Forks over a different pool, which must refuse and stay unchanged.
    #[track_caller]
    fn fork_refused_by(other: &mut PagePool, table: &PageTable, expected: &[CacheError], which: &str) {
        let at = format!("fork of a table of pages 0, 1, 2 over a different pool, {which}");
        let before = (other.n_free(), owners(other, 5));
        let question = asking(at.as_str());
        let outcome = table.fork(other).map(|fork| numbers(&fork));
        drop(question);
        assert!(outcome.is_err(), "{at}\n  expected: {}\n  yours:    {outcome:?}", one_of(expected));
        same!(
            (other.n_free(), owners(other, 5)),
            before,
            "(free pages, owners of pages 0 to 4) of the different pool after the refused {at}"
        );
        let known = outcome.as_ref().is_err_and(|error| expected.contains(error));
        assert!(known, "{at}\n  expected: {}\n  yours:    {outcome:?}", one_of(expected));
    }

    #[test]
    fn task_1_forks_over_a_different_pool_change_nothing() {
        let table = table(4, 9, &mut pool(5));
        // Which of the table's pages 0, 1, 2 are free in the different pool.
        for free in [&[0][..], &[2], &[1], &[0, 1], &[1, 2]] {
            let mut other = pool(5);
            granted("alloc_n(3) of chapter 4", || other.alloc_n(3));
            for page in free {
                granted(format!("free of chapter 4, of page {page}"), || other.free(PageId(*page)));
            }
            let expected: Vec<_> = free.iter().map(|page| CacheError::DoubleFree(PageId(*page))).collect();
            fork_refused_by(&mut other, &table, &expected, &format!("in which of these {free:?} are free"));
        }
        for n_pages in [1, 2] {
            let mut other = pool(n_pages);
            granted("alloc_n of chapter 4", || other.alloc_n(n_pages));
            let foreign = |page| CacheError::ForeignPage { page: PageId(page), n_pages };
            let expected: Vec<_> = (n_pages as u32..3).map(foreign).collect();
            fork_refused_by(&mut other, &table, &expected, &format!("which has only {n_pages}"));
        }
    }

    #[test]
    fn task_1_wide_numbers() {
        let mut pool = pool(VERY_MANY);
        let mut a = table(4, 6, &mut pool);
        let mut forks: Vec<PageTable> = (0..MANY).map(|_| fork_table(&a, &mut pool)).collect();
        same!(owners(&pool, 3), [MANY as u32 + 1, MANY as u32 + 1, 0], "owners of pages 0 to 2 after {MANY} forks");
        forks.drain(1..).for_each(|mut fork| release(&mut fork, &mut pool, "of a fork"));
        release(&mut a, &mut pool, "of the table that was forked");
        same!(
            (owners(&pool, 2), numbers(&forks[0])),
            (vec![1, 1], vec![0, 1]),
            "(owners, pages) of the fork that is left"
        );
        release(&mut forks[0], &mut pool, "of the last fork");

        // Ever longer, so that a fork that goes through all pages for each page fails after seconds, not minutes.
        let (mut a, mut b) = (table(1, 0, &mut pool), table(1, 0, &mut pool));
        for part in [64, 32, 16, 8, 4, 2, 1] {
            release(&mut b, &mut pool, "of a fork");
            let n_pages = VERY_MANY / part;
            let n = n_pages - a.len();
            grow(&mut a, n, &mut pool);
            b = once(&format!("fork of a table of {n_pages} pages"), || fork_table(&a, &mut pool));
        }
        same!(b.pages() == a.pages(), true, "whether the fork of {VERY_MANY} pages has the same ones");
        let two = a.pages().iter().all(|page| pool.owners(*page) == Ok(2));
        same!(two, true, "whether each of {VERY_MANY} pages has two owners after a fork");
    }

    // Task 2

    #[test]
    fn task_2_a_tail_is_shared_if_partly_filled_and_with_several_owners() {
        for size in 1..=LARGEST_PAGE {
            for held in 0..=3 * size {
                let mut pool = pool(5);
                let mut a = table(size, held, &mut pool);
                let at = format!("{}, page size {size}", count(held, "token"));
                same!(a.shares_tail(&pool), Ok(false), "shares_tail of a table without a fork, {at}");
                let b = fork_table(&a, &mut pool);
                let c = fork_table(&a, &mut pool);
                let partly_filled = held % size > 0;
                let why = if partly_filled { "the last page is partly filled" } else { "no page is partly filled" };
                same!(a.shares_tail(&pool), Ok(partly_filled), "shares_tail of a table with two forks, {at}: {why}");
                same!(b.shares_tail(&pool), Ok(partly_filled), "shares_tail of a fork, {at}: {why}");
                release(&mut a, &mut pool, "of a table with two forks");
                same!(
                    b.shares_tail(&pool),
                    Ok(partly_filled),
                    "shares_tail of one of two forks that are left, {at}: {why}"
                );
                let mut c = c;
                release(&mut c, &mut pool, "of one of two forks");
                same!(b.shares_tail(&pool), Ok(false), "shares_tail of the only owner, {at}");
            }
        }
    }

    #[test]
    fn task_2_only_the_last_page_makes_a_shared_tail() {
        let mut pool = pool(6);
        let mut a = table(4, 8, &mut pool);
        let mut b = fork_table(&a, &mut pool);
        grow(&mut b, 1, &mut pool);
        same!(b.shares_tail(&pool), Ok(false), "shares_tail: pages 0 and 1 are full and shared, page 2 has one owner");
        grow(&mut b, 3, &mut pool);
        granted("rewind(6) of chapter 7 on 12 tokens", || b.rewind(6, &mut pool));
        same!(
            b.shares_tail(&pool),
            Ok(true),
            "shares_tail after a rewind from 12 tokens to 6: page 1 is partly filled now, and shared"
        );
        same!(a.shares_tail(&pool), Ok(false), "shares_tail of the other table: its 8 tokens fill pages 0 and 1");
        granted("rewind(5) of chapter 7 on 8 tokens", || a.rewind(5, &mut pool));
        same!(a.shares_tail(&pool), Ok(true), "shares_tail of the other table, rewound from 8 tokens to 3");
        same!(b.shares_tail(&pool), Ok(false), "shares_tail of 6 tokens in pages 0 and 1: page 1 has one owner now");
    }

    #[test]
    fn task_2_own_tail_takes_a_page_and_returns_what_to_copy() {
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
                    same!(
                        (found, numbers(&b), pool.n_free()),
                        (None, numbers(&a), free),
                        "(answer, pages, free pages) after {at}: no page is partly filled"
                    );
                    continue;
                }
                let (from, to) = (PageId(pages as u32 - 1), PageId(pages as u32));
                same!(found, Some(PageCopy { from, to, rows }), "{at}");
                let expected: Vec<u32> = (0..from.0).chain([to.0]).collect();
                same!((b.len(), numbers(&b)), (held, expected), "(tokens, pages) after {at}");
                let expected: Vec<u32> =
                    (0..9).map(|page| if page < from.0 { 2 } else { u32::from(page <= to.0) }).collect();
                same!(owners(&pool, 9), expected, "owners of pages 0 to 8 after {at}");
                for (name, table) in [("fork", &mut b), ("other table", &mut a)] {
                    let again = granted("own_tail, once more", || table.own_tail(&mut pool));
                    same!(again, None, "own_tail of the {name} after {at}: the last page has one owner now");
                }
            }
        }
    }

    #[test]
    fn task_2_own_tail_takes_none_for_the_last_owner() {
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
            let order = "a, b and c have pages 0 and 1 with 6 tokens and ask in this order";
            same!(found, expected, "own_tail of {name}; {order}");
            same!(owners(&pool, 5), left, "owners of pages 0 to 4 after own_tail of {name}; {order}");
        }
        let expected = (vec![0, 2], vec![0, 3], vec![0, 1]);
        same!((numbers(&a), numbers(&b), numbers(&c)), expected, "pages of a, b and c when each tail has one owner");
    }

    #[test]
    fn task_2_own_tail_without_a_free_page_changes_nothing() {
        let mut pool = pool(3);
        let mut a = table(4, 6, &mut pool);
        let mut b = fork_table(&a, &mut pool);
        granted("alloc of chapter 4", || pool.alloc());
        for (name, table) in [("a", &mut a), ("b", &mut b)] {
            let question = asking(format!("own_tail of {name} when no page is free"));
            let found = table.own_tail(&mut pool);
            drop(question);
            same!(found, Err(CacheError::OutOfPages { needed: 1, free: 0 }), "own_tail of {name} when no page is free");
            same!(
                (table.len(), numbers(table), owners(&pool, 3)),
                (6, vec![0, 1], vec![2, 2, 1]),
                "(tokens, pages, owners of pages 0 to 2) after own_tail of {name} was refused"
            );
        }
        release(&mut a, &mut pool, "of a table with a fork");
        same!(b.own_tail(&mut pool), Ok(None), "own_tail of the only owner when no page is free: it needs none");
        same!((numbers(&b), owners(&pool, 3)), (vec![0, 1], vec![1, 1, 1]), "(pages, owners) of the only owner");
    }

    #[test]
    fn task_2_tails_in_a_different_pool() {
        let mut a = table(4, 10, &mut pool(3));
        let mut other = pool(2);
        granted("alloc_n(2) of chapter 4", || other.alloc_n(2));
        let foreign = CacheError::ForeignPage { page: PageId(2), n_pages: 2 };
        same!(a.shares_tail(&other), Err(foreign.clone()), "shares_tail over a pool of 2 pages; the last page is 2");
        same!(a.own_tail(&mut other), Err(foreign), "own_tail over a pool of 2 pages; the last page is 2");
        same!((numbers(&a), owners(&other, 2)), (vec![0, 1, 2], vec![1, 1]), "(pages, owners) after that refusal");
        // More than one owner is what counts.
        let mut other = pool(3);
        same!(
            a.shares_tail(&other),
            Ok(false),
            "shares_tail over a different pool, in which page 2, the last, is free"
        );
        same!(a.own_tail(&mut other), Ok(None), "own_tail over a different pool, in which page 2, the last, is free");
    }

    #[test]
    fn task_2_wide_numbers() {
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
        let mut pool = self::pool(3);
        let mut a = table(4, 3, &mut pool);
        let _forks: Vec<PageTable> = (0..255).map(|_| fork_table(&a, &mut pool)).collect();
        same!(a.shares_tail(&pool), Ok(true), "shares_tail of one of 256 owners of page 0 with 3 tokens, page size 4");
        let expected = Ok(Some(PageCopy { from: PageId(0), to: PageId(1), rows: 3 }));
        same!(a.own_tail(&mut pool), expected, "own_tail of one of 256 owners of page 0 with 3 tokens, page size 4");
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn task_2_wide_pages() {
        let size = 1 << 60;
        for rows in [1, (1 << 32) + 1, (1 << 53) + 1, size - 1] {
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
            let a = Sequence::new(&slab, "a", held);
            let (before, free) = (content(&slab), n_free(&slab));
            let at = format!("fork of a cache of {}, page size 4", count(held, "token"));
            let question = asking(at.as_str());
            let (b, asked) = allocated(|| a.cache.fork());
            drop(question);
            drop(b);
            assert!(asked.bytes < 1000, "{at} asks for {} bytes of memory: no row is to be copied", asked.bytes);
            let b = a.fork("b");
            same!(n_free(&slab), free, "free pages of 6 after a {at}");
            same!(changed(&before, &content(&slab)), [], "rows of the slab (page, layer, slot) that a {at} changed");
            same!(b.copied(), 0, "rows copied by a {at}");
            a.check();
            drop(a);
            b.check();
            drop(b);
            same!(n_free(&slab), 6, "free pages of 6 when cache and fork are dropped");
        }
    }

    /// The page that is copied into holds old rows; those in its empty slots must stay as they are.
    #[test]
    fn task_3_copies_exactly_the_filled_rows() {
        for rows in 1..4 {
            let slab = slab(5);
            // Every row of every page holds something.
            drop(Sequence { cache: cache(&slab), oracle: Oracle::default() }.filled(&slab));
            let a = Sequence::new(&slab, "a", 4 + rows);
            let mut b = a.fork("b");
            let before = content(&slab);
            let at = format!("extend(1) of a fork of {} tokens, page size 4", 4 + rows);
            granted(at.as_str(), || b.cache.extend(1));
            let pages = numbers(b.cache.table());
            same!(pages.len(), 2, "pages after {at}");
            let to = pages[1] as usize;
            assert!(
                to != 1,
                "{at}: page 1 is shared, and the fork still has it: the new token needs a page of its own"
            );
            let found = changed(&before, &content(&slab));
            assert!(
                !found.iter().any(|row| row.1 == 1),
                "{at} has changed rows of page 1, which the other sequence still has: \
                 the copy goes from page 1 to page {to}, the new one"
            );
            assert!(
                !found.is_empty(),
                "{at} has copied nothing: page {to} is new and holds none of the rows of page 1"
            );
            let beyond = found.iter().filter(|row| row.1 == to && row.3 >= rows).count();
            assert!(
                beyond == 0,
                "{at}: slots 0..{rows} of page 1 are filled, and it also wrote slots of page {to} beyond"
            );
            let expected: Vec<_> = KINDS
                .into_iter()
                .flat_map(|kind| (0..3).flat_map(move |layer| (0..rows).map(move |slot| (kind, to, layer, slot))))
                .collect();
            same!(found, expected, "rows (page, layer, slot) that {at} has changed: page 1 is copied to page {to}");
            same!(b.copied(), rows as u64, "rows copied by {at}: the filled ones of page 1, each once for all layers");
            oracle::write(&mut b.cache, &[300]);
            b.oracle.tokens.push(300);
            a.check();
            b.check();
        }
    }

    impl Sequence {
        /// Fills all free pages.
        fn filled(mut self, slab: &SharedSlab) -> Self {
            self.append(slab, 500, 4 * n_free(slab));
            self
        }
    }

    /// Either of two sequences can be the first to grow; the other's rows must stay as they are.
    #[test]
    fn task_3_copies_the_tail_for_whichever_grows_first() {
        for (held, n) in (0..=9).flat_map(|held| [1, 2, 5].map(|n| (held, n))) {
            for fork_first in [false, true] {
                let slab = slab(9);
                let a = Sequence::new(&slab, "a", held);
                let b = a.fork("b");
                let (first, second) = if fork_first { ("b", "a") } else { ("a", "b") };
                let (mut x, mut y) = if fork_first { (b, a) } else { (a, b) };
                let at = format!("b is a fork of a, {}, page size 4; {first} is extended by {n}", count(held, "token"));
                x.append(&slab, 100, n);
                same!(x.copied(), held as u64 % 4, "rows that {first} has copied: {at}");
                x.check();
                y.check();
                y.append(&slab, 200, n);
                same!(
                    y.copied(),
                    0,
                    "rows that {second} has copied: {at}, then {second}, which has the old page alone"
                );
                x.check();
                y.check();
                let pages = (held + n).div_ceil(4);
                same!(n_free(&slab), 9 - 2 * pages + held / 4, "free pages of 9: {at}, then {second} by {n}");
                let usage = y.cache.usage();
                same!(
                    (usage.tokens, usage.slots, usage.bytes),
                    (held + n, 4 * pages, 2 * 4 * pages * 3 * 10 * 4),
                    "(tokens, slots, bytes) in the usage of {second}: {at}, then {second} by {n}"
                );
            }
        }
    }

    #[test]
    fn task_3_the_copy_keeps_every_bit() {
        let telling = [-0.0, 0.1, -2.5, f32::MIN_POSITIVE, 1e-40, 1e38, -1e30, 1.0 / 3.0, 16_777_213.0, 0.0];
        let slab = slab(3);
        let mut a = cache(&slab);
        granted("extend(2) on no tokens", || a.extend(2));
        let k: Vec<f32> = [telling, telling.map(|x| -x)].concat();
        let v: Vec<f32> = k.iter().rev().copied().collect();
        (0..3).for_each(|layer| a.write(layer, &k, &v));
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
            let mut a = Sequence::new(&slab, "a", 6);
            let mut b = a.fork("b");
            let (before, states) = (content(&slab), [state(&a.cache, &slab), state(&b.cache, &slab)]);
            for sequence in [&mut b, &mut a] {
                let at = format!("extend(0) on a shared tail, {free} pages free: no token will be written");
                same!(sequence.cache.extend(0), Ok(()), "{at}");
            }
            let after = [state(&a.cache, &slab), state(&b.cache, &slab)];
            same!(after, states, "{STATE} of both after extend(0) on a shared tail");
            same!(changed(&before, &content(&slab)), [], "rows (page, layer, slot) that extend(0) has changed");
        }
    }

    /// Tokens held, new ones, and the pages that the copy and the tokens need: the pool has one page too few.
    #[test]
    fn task_3_extend_without_enough_pages_changes_nothing() {
        for (held, n, needed) in
            [(6, 1, 1), (6, 2, 1), (6, 3, 2), (6, 7, 3), (3, 2, 2), (7, 9, 3), (8, 1, 1), (8, 5, 2)]
        {
            let slab = slab(usize::div_ceil(held, 4) + needed);
            let a = Sequence::new(&slab, "a", held);
            let mut b = a.fork("b");
            let last = Sequence::new(&slab, "c", 1);
            let of = format!("extend({n}) of a fork of {}, page size 4", count(held, "token"));
            let at = format!("{of}, {} free", count(needed - 1, "page"));
            let (before, was) = (content(&slab), state(&b.cache, &slab));
            let question = asking(at.as_str());
            let outcome = b.cache.extend(n);
            drop(question);
            assert!(outcome.is_err(), "{at}: it needs {}, and yours returned {outcome:?}", count(needed, "page"));
            same!(state(&b.cache, &slab), was, "{STATE} after the refused {at}");
            same!(outcome, Err(CacheError::OutOfPages { needed, free: needed - 1 }), "{at}");
            same!(changed(&before, &content(&slab)), [], "rows (page, layer, slot) changed by the refused {at}");
            drop(last);
            b.append(&slab, 100, n);
            same!(n_free(&slab), 0, "free pages after {of}, {} free", count(needed, "page"));
            a.check();
            b.check();
        }
    }

    #[test]
    fn task_3_rewound_into_a_shared_page_it_copies_what_is_left() {
        for (held, n, rows) in [(8, 1, 3), (8, 4, 0), (8, 5, 3), (8, 8, 0), (6, 1, 1), (6, 2, 0), (6, 3, 3), (6, 0, 2)]
        {
            for fork_first in [false, true] {
                let slab = slab(7);
                let a = Sequence::new(&slab, "a", held);
                let b = a.fork("b");
                let (mut x, y) = if fork_first { (b, a) } else { (a, b) };
                let at = format!("one of two forks of {held} tokens, page size 4, is rewound by {n}");
                x.rewind(n);
                same!(x.copied(), 0, "rows copied: {at}; a rewind copies nothing");
                x.append(&slab, 100, 3);
                y.check();
                x.check();
                same!(x.copied(), rows, "rows copied: {at}, then extended by 3");
                drop(y);
                x.check();
            }
        }
    }

    #[test]
    fn task_3_rows_copied_add_up_for_each_sequence() {
        let slab = slab(12);
        let mut a = Sequence::new(&slab, "a", 6);
        let mut b = a.fork("b");
        b.append(&slab, 100, 1);
        same!(b.copied(), 2, "rows copied by b, a fork of 6 tokens, page size 4, extended by 1");
        let mut c = b.fork("c");
        same!(c.copied(), 0, "rows copied by c, a fork of b, which has copied 2: c has copied none yet");
        b.append(&slab, 101, 1);
        same!(b.copied(), 5, "rows copied by b: 2, and 3 when it is extended once more while c has its tail");
        b.append(&slab, 102, 2);
        same!(b.copied(), 5, "rows copied by b, extended once more: its tail is not shared");
        c.append(&slab, 200, 1);
        same!(c.copied(), 0, "rows copied by c, the only owner of the page that b gave up");
        a.append(&slab, 300, 1);
        same!(a.copied(), 0, "rows copied by a, the only owner of page 1");
        b.rewind(2);
        same!(b.copied(), 5, "rows copied by b, rewound by 2: the count stays");
    }

    /// A slab that is borrowed cannot be written to. That must not be ignored.
    #[test]
    fn task_3_slabs_that_are_borrowed_are_a_panic() {
        let slab = slab(6);
        let a = Sequence::new(&slab, "a", 6);
        let mut b = a.fork("b");
        let lent = slab.borrow();
        if let Some(outcome) = quietly(|| a.cache.fork()) {
            let outcome = outcome.as_ref().map(|fork| fork.len());
            panic!(
                "fork while the slab is borrowed did not panic, but gave {outcome:?} tokens: no page gained an owner"
            );
        }
        if let Some(outcome) = quietly(|| b.cache.extend(1)) {
            panic!("extend(1) while the slab is borrowed did not panic, but gave {outcome:?}: no page was copied");
        }
        drop(lent);
        same!(owners_in(&slab, 3), [2, 2, 0], "owners of pages 0 to 2 after the borrow: nothing has changed");
        a.check();
        b.check();
    }

    /// The numbers of the chapter: a prompt of 900 tokens, 8 samples of 100 tokens. The last token is never computed.
    #[test]
    fn task_3_the_chapters_eight_samples() {
        let slab = slab_of(ONE_NUMBER, 16, 600);
        let mut first = cache(&slab);
        granted("extend(900)", || first.extend(900));
        let mut samples: Vec<ForkCache> = (1..8).map(|_| granted("fork of the prompt", || first.fork())).collect();
        samples.insert(0, first);
        for sample in (1..100).flat_map(|_| 0..8) {
            granted("extend(1) of a sample", || samples[sample].extend(1));
        }
        let copied: u64 = samples.iter().map(|sample| sample.usage().rows_copied).sum();
        same!(
            (600 - n_free(&slab), copied),
            (112, 28),
            "(pages, rows copied) of 8 samples of 100 tokens after a prompt of 900, page size 16"
        );
    }

    #[test]
    fn task_3_the_last_owner_writes_in_place() {
        let slab = slab(2);
        let a = Sequence::new(&slab, "a", 6);
        let mut b = a.fork("b");
        let expected = Err(CacheError::OutOfPages { needed: 1, free: 0 });
        same!(
            b.cache.extend(1),
            expected,
            "extend(1) of a fork of 6 tokens in the only 2 pages: the copy needs a page"
        );
        drop(a);
        b.oracle.note("the sequence it was forked from is dropped".into());
        b.append(&slab, 100, 2);
        b.check();
        let pages = (numbers(b.cache.table()), b.copied());
        same!(pages, (vec![0, 1], 0), "(pages, rows copied) of the only owner, extended by 2");
    }

    #[test]
    fn task_3_wide_numbers() {
        for (page_size, held) in [(4, 6), (4, 8), (1, 3), (2, 3)] {
            let slab = slab_of(LAYOUT, page_size, 6);
            let a = Sequence::new(&slab, "a", held);
            let mut b = a.fork("b");
            let tail = held % page_size;
            for n in [usize::MAX, usize::MAX - 1, 1 << 63, (1 << 32) + 1] {
                let room = if tail == 0 { 0 } else { page_size - tail };
                let needed = (n - room).div_ceil(page_size) + usize::from(tail > 0);
                let at = format!("extend({n}) of a fork of {}, page size {page_size}", count(held, "token"));
                let expected = Err(CacheError::OutOfPages { needed, free: n_free(&slab) });
                same!(b.cache.extend(n), expected, "{at}");
            }
        }
        // More rows than 16 bits can count, in pages beyond 16 bits.
        for (size, n_pages, rows) in [(MANY + 5, 3, MANY), (2, MANY + 3, 1)] {
            let slab = slab_of(ONE_NUMBER, size, n_pages);
            let mut others = cache(&slab);
            granted("extend to all pages but two", || others.extend((n_pages - 2) * size));
            let mut a = cache(&slab);
            granted("extend", || a.extend(rows));
            let row = |first: usize| (0..rows).map(|i| (first + i) as f32).collect::<Vec<_>>();
            a.write(0, &row(1), &row(2));
            let mut b = granted("fork", || a.fork());
            granted("extend(1) of the fork", || b.extend(1));
            same!(b.usage().rows_copied, rows as u64, "rows copied of a page with {}", count(rows, "token"));
            let (k, v) = b.gather(0);
            same!(
                (k[..rows] == row(1), v[..rows] == row(2)),
                (true, true),
                "whether (keys, values) in page {} are those of page {}, {}",
                b.table().pages()[0],
                a.table().pages()[0],
                count(rows, "row")
            );
        }
    }

    #[test]
    fn task_3_wide_sequences_cost_no_more() {
        let slab = slab_of(ONE_NUMBER, 2, VERY_MANY + 2);
        let mut a = cache(&slab);
        // Ever longer, as in task 1.
        for part in [64, 32, 16, 8, 4, 2, 1] {
            let n_pages = VERY_MANY / part;
            let n = 2 * n_pages - 1 - a.len();
            granted("extend by very many", || a.extend(n));
            let what = format!("fork of a sequence of {n_pages} pages (PageTable::fork of task 1)");
            drop(once(&what, || granted("fork", || a.fork())));
        }
        let mut b = granted("fork", || a.fork());
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
    }

    // All tasks

    /// Performs a line of the transcript on the caches, by name: `b fork a`, `b extend 1`, `b rewind 2`, `b drop`.
    fn perform(line: &str, caches: &mut HashMap<String, ForkCache>, next: &mut usize) -> Result<(), CacheError> {
        let words: Vec<&str> = line.split(' ').collect();
        let name = words[0].to_string();
        let n = words.get(2).and_then(|word| word.parse().ok()).unwrap_or(0);
        match words[1] {
            "fork" => {
                let fork = caches[words[2]].fork()?;
                caches.insert(name, fork);
            }
            "drop" => drop(caches.remove(&name)),
            "rewind" => caches.get_mut(&name).expect("a sequence").rewind(n)?,
            _ => {
                let cache = caches.get_mut(&name).expect("a sequence");
                cache.extend(n)?;
                oracle::write(cache, &(*next..*next + n).collect::<Vec<_>>());
                *next += n;
            }
        }
        Ok(())
    }

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        let slab = slab_of(KvLayout { n_layers: 2, ..LAYOUT }, 4, 5);
        let mut caches = HashMap::from([("a".to_string(), cache(&slab))]);
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
            let question = asking(format!("the transcript's line: {line}"));
            let result = perform(line, &mut caches, &mut next);
            drop(question);
            let usage = caches.get(&line[..1]).map_or(String::new(), |cache| {
                let (usage, pages) = (cache.usage(), told_pages(cache.table().pages()));
                format!("{:>2} tokens in {pages:<12} {} copied", usage.tokens, usage.rows_copied)
            });
            let owners: Vec<String> = owners_in(&slab, 5).iter().map(u32::to_string).collect();
            transcript.line(format!("{line:<11} {:<28} {usage:<36} owners {}", outcome(&result), owners.join(" ")));
        }
        for name in ["b", "c"] {
            transcript.line(format!("gather of {name}, {}", told_pages(caches[name].table().pages())));
            transcript.gather(&caches[name]);
        }
        assert_transcript("ch10_fork", &transcript);
    }

    #[test]
    fn whole_oracle() {
        for seed in seeds(20) {
            let mut dice = Dice::new(seed);
            let layout =
                KvLayout { n_layers: dice.roll(1, 3), n_kv_heads: dice.roll(1, 3), head_dim: 2 * dice.roll(1, 3) };
            let (size, n_pages) = (dice.roll(1, 6), dice.roll(4, 16));
            let slab = slab_of(layout, size, n_pages);
            // Each with the rows that it must have copied.
            let mut sequences: Vec<(Sequence, u64)> = Vec::new();
            for step in 0..STEPS {
                let name = format!("of step {step}, seed {seed}, page size {size}");
                if sequences.is_empty() {
                    sequences
                        .push((Sequence { cache: cache(&slab), oracle: Oracle::of(format!("sequence {name}")) }, 0));
                }
                let index = dice.roll(0, sequences.len() - 1);
                let free = n_free(&slab);
                let at = format!("seed {seed}, step {step}, page size {size}, {} free", count(free, "page"));
                match dice.roll(0, 11) {
                    0 => drop(sequences.swap_remove(index)),
                    1..4 if sequences.len() < 6 => {
                        let fork = sequences[index].0.fork(&name);
                        sequences.push((fork, 0));
                    }
                    1..8 => {
                        let n = dice.roll(0, 2 * size + 1);
                        oracle_extend(&mut sequences[index], &slab, step, n, &at);
                    }
                    _ => {
                        let (sequence, _) = &mut sequences[index];
                        let len = sequence.cache.len();
                        sequence.rewind(dice.roll(0, len));
                    }
                }
                check_owners(&sequences, &slab, &at);
            }
            drop(sequences);
            same!(n_free(&slab), n_pages, "seed {seed}: free pages when all is dropped");
        }
    }

    /// Extends one of the oracle's sequences; there can be too few pages.
    fn oracle_extend((sequence, copied): &mut (Sequence, u64), slab: &SharedSlab, step: usize, n: usize, at: &str) {
        let (len, free, size) = (sequence.cache.len(), n_free(slab), sequence.cache.table().page_size());
        let needed = pages_needed(&sequence.cache, slab, n);
        let copies = copies(&sequence.cache, slab, n);
        if needed > free {
            let expected = Err(CacheError::OutOfPages { needed, free });
            same!(sequence.cache.extend(n), expected, "extend({n}) on {}; {at}", count(len, "token"));
            sequence.oracle.note(format!("extend({n}) refused"));
        } else {
            sequence.append(slab, 20 * step, n);
            *copied += if copies { (len % size) as u64 } else { 0 };
            let new = sequence.cache.table().pages().iter().skip(if n > 0 { len / size } else { usize::MAX });
            for page in new {
                let owners = slab.borrow().pool().owners(*page);
                same!(owners, Ok(1), "owners of page {page}, which has new tokens, after extend({n}); {at}");
            }
        }
    }

    /// Compares all rows, the copies, and the owners of every page.
    #[track_caller]
    fn check_owners(sequences: &[(Sequence, u64)], slab: &SharedSlab, at: &str) {
        let mut held: HashMap<PageId, u32> = HashMap::new();
        for (sequence, copied) in sequences {
            sequence.check();
            same!(sequence.copied(), *copied, "rows copied by one of the sequences; {at}");
            sequence.cache.table().pages().iter().for_each(|page| *held.entry(*page).or_default() += 1);
        }
        let n_pages = slab.borrow().pool().n_pages();
        for page in (0..n_pages as u32).map(PageId) {
            let tables = held.get(&page).copied().unwrap_or(0);
            let owners = slab.borrow().pool().owners(page);
            same!(owners, Ok(tables), "owners of page {page}, which {tables} sequences have; after this: {at}");
        }
        same!(n_free(slab), n_pages - held.len(), "free pages beside {} held; {at}", count(held.len(), "page"));
    }

    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        let (model, prompt, n) = (&storyteller.model, storyteller.prompt(), 24);
        let slab = slab_of(model.config().kv_layout(), 3, 100);
        let mut first = cache(&slab);
        let logits = made("the prompt, computed once", || model.step(&prompt, Some(&mut Watched(&mut first))));
        let sampler = |number| Sampler::new(Sampling { seed: SAMPLING.seed + number, ..SAMPLING });
        let mut samples: Vec<(ForkCache, Sampler, Vec<u32>)> = Vec::new();
        for number in 0..4 {
            let (fork, mut sampler) = (granted("fork of the prompt", || first.fork()), sampler(number));
            let token = sampler.pick(&logits);
            samples.push((fork, sampler, vec![token]));
        }
        drop(first);
        for number in 1..n {
            alive();
            for (index, (cache, sampler, tokens)) in samples.iter_mut().enumerate() {
                let question = format!("token {number} of sample {index} of the story");
                let newest = [tokens[number - 1]];
                let logits = made(&question, || model.step(&newest, Some(&mut Watched(cache))));
                tokens.push(sampler.pick(&logits));
            }
        }
        for (number, (_, _, found)) in (0..).zip(&samples) {
            let (mut sampler, mut tokens) = (sampler(number), prompt.clone());
            for _ in 0..n {
                let logits = model.step(&tokens, None).expect("a short sequence fits");
                tokens.push(sampler.pick(&logits));
            }
            storyteller.assert_same_story(found, &tokens[prompt.len()..]);
        }
    }
}
