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
    use std::collections::{BTreeMap, HashMap};

    use page_by_page::cache::{CacheError, KvCache, KvLayout, PageId, Rewind};
    use page_by_page::chapters::ch04_page_pool::PagePool;
    use page_by_page::chapters::ch05_page_table::PageTable;
    use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
    use page_by_page::chapters::ch10_fork::{ForkCache, PageCopy};
    use page_by_page::decode::sampler::{Sampler, Sampling};

    use crate::support::asking::{asking, made};
    use crate::support::limits::{often, once, same_each};
    use crate::support::oracle::{self, Dice, Oracle, STEPS, any_layout, fresh, seeds};
    use crate::support::story::{SAMPLING, Storyteller};
    use crate::support::transcript::{Transcript, assert_transcript, outcome, told_pages};
    use crate::support::words::count;

    /// Three numbers that cannot be mistaken for one another.
    const LAYOUT: KvLayout = KvLayout { n_layers: 3, n_kv_heads: 2, head_dim: 5 };

    /// The smallest rows there are.
    const ONE_NUMBER: KvLayout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 1 };

    /// Enough pages for a walk through all of them at every call to take minutes.
    const VERY_MANY: usize = if cfg!(miri) { 300 } else { 300_000 };

    /// Up to this page size every case is tried.
    const LARGEST_PAGE: usize = if cfg!(miri) { 3 } else { 5 };

    #[track_caller]
    fn pool(n_pages: usize) -> PagePool {
        made(format!("PagePool::new({n_pages}) of chapter 4"), || PagePool::new(n_pages))
    }

    /// A table of `tokens` tokens, grown by chapter 5.
    #[track_caller]
    fn table(page_size: usize, tokens: usize, pool: &mut PagePool) -> PageTable {
        let mut table = made(format!("PageTable::new({page_size}) of chapter 5"), || PageTable::new(page_size));
        grow(&mut table, tokens, pool);
        table
    }

    #[track_caller]
    fn grow(table: &mut PageTable, n: usize, pool: &mut PagePool) {
        let held = count(table.len(), "token");
        made(format!("grow({n}) of chapter 5, on {held}, with pages enough"), || table.grow(n, pool));
    }

    /// `fork of a table of 6 tokens in pages [0, 1], page size 4`
    fn at(call: &str, table: &PageTable) -> String {
        let (tokens, size) = (count(table.len(), "token"), table.page_size());
        format!("{call} of a table of {tokens} in pages {:?}, page size {size}", numbers(table))
    }

    fn numbers(table: &PageTable) -> Vec<u32> {
        table.pages().iter().map(|page| page.0).collect()
    }

    /// Owners of all pages of a pool.
    fn owners(pool: &PagePool) -> Vec<u32> {
        (0..pool.n_pages() as u32).map(|page| pool.owners(PageId(page)).unwrap_or(u32::MAX)).collect()
    }

    /// Whether a table has a tail, a last page that is partly filled; and the owners of its last page.
    fn tail(table: &PageTable, pool: &PagePool) -> (bool, u32) {
        let owners = table.pages().last().map_or(0, |page| pool.owners(*page).unwrap_or(0));
        (!table.len().is_multiple_of(table.page_size()), owners)
    }

    /// A pool and tables over it. Each page has as many owners as there are tables with it.
    struct Tables {
        size: usize,
        pool: PagePool,
        tables: Vec<PageTable>,
    }

    impl Tables {
        #[track_caller]
        fn new(size: usize, n_pages: usize, tokens: usize) -> Self {
            let mut tables = Tables { size, pool: pool(n_pages), tables: Vec::new() };
            tables.begin(tokens);
            tables
        }

        #[track_caller]
        fn begin(&mut self, tokens: usize) {
            self.tables.push(table(self.size, tokens, &mut self.pool));
        }

        #[track_caller]
        fn grow(&mut self, index: usize, n: usize) {
            grow(&mut self.tables[index], n, &mut self.pool);
            self.check(&format!("grow({n}) of table {index}"));
        }

        #[track_caller]
        fn fork(&mut self, index: usize) {
            let table = &self.tables[index];
            let at = at("fork", table);
            let fork = made(at.as_str(), || table.fork(&mut self.pool));
            let expected = (table.len(), table.page_size(), numbers(table));
            same!((fork.len(), fork.page_size(), numbers(&fork)), expected, "(tokens, page size, pages) of a {at}");
            self.tables.push(fork);
            self.check(&format!("a {at}: it takes none, and each has one more for each of its pages"));
        }

        #[track_caller]
        fn release(&mut self, index: usize) {
            let at = at("release", &self.tables[index]);
            made(format!("{at}, by chapter 5"), || self.tables[index].release(&mut self.pool));
            self.check(&format!("a {at}, of table {index}"));
        }

        #[track_caller]
        fn shares_tail(&self, index: usize) {
            let table = &self.tables[index];
            let (partly_filled, owners) = tail(table, &self.pool);
            let why = match partly_filled {
                false => "no page is partly filled".into(),
                true => format!("the last page is partly filled, and has {}", count(owners as usize, "owner")),
            };
            let expected = Ok(partly_filled && owners > 1);
            same!(table.shares_tail(&self.pool), expected, "{}: {why}", at("shares_tail", table));
        }

        #[track_caller]
        fn own_tail(&mut self, index: usize) {
            self.shares_tail(index);
            let (partly_filled, owners_of_last) = tail(&self.tables[index], &self.pool);
            let (before, free) = (owners(&self.pool), self.pool.n_free());
            let table = &mut self.tables[index];
            let (mut expected, held) = (numbers(table), table.len());
            let at = format!("{}, {} free", at("own_tail", table), count(free, "page"));
            let question = asking(at.as_str());
            let found = table.own_tail(&mut self.pool);
            drop(question);
            if !partly_filled || owners_of_last < 2 {
                same!(found, Ok(None), "{at}: it has no tail, or alone owns it, so it needs none");
            } else if free == 0 {
                same!(found, Err(CacheError::OutOfPages { needed: 1, free: 0 }), "{at}");
            } else {
                let from = PageId(expected.pop().expect("a table with a tail has pages"));
                let to = table.pages().last().copied().unwrap_or(from);
                same!(found, Ok(Some(PageCopy { from, to, rows: held % self.size })), "{at}");
                same!(before[to.index()], 0, "owners that page {to}, the new one, had before {at}");
                expected.push(to.0);
            }
            same!((table.len(), numbers(table)), (held, expected), "(tokens, pages) after {at}");
            self.check(&at);
        }

        #[track_caller]
        fn check(&self, at: &str) {
            check_owners(&self.pool, self.tables.iter().flat_map(PageTable::pages), at);
        }
    }

    /// Compares the pool with the pages of all tables over it: each of them is one owner.
    #[track_caller]
    fn check_owners<'a>(pool: &PagePool, owned: impl Iterator<Item = &'a PageId>, at: &str) {
        let n_pages = pool.n_pages();
        let mut expected = vec![0; n_pages];
        owned.for_each(|page| expected[page.index()] += 1);
        let free = expected.iter().filter(|owners| **owners == 0).count();
        same!(pool.n_free(), free, "free pages of {n_pages} after {at}");
        same!(owners(pool), expected, "owners of pages 0 to {} after {at}", n_pages - 1);
    }

    #[track_caller]
    fn slab_of(layout: KvLayout, page_size: usize, n_pages: usize) -> SharedSlab {
        made(format!("PageSlab::new of chapter 6, with {n_pages} pages of {page_size} slots"), || {
            PageSlab::new(layout, page_size, n_pages)
        })
    }

    #[track_caller]
    fn cache(slab: &SharedSlab) -> ForkCache {
        made("ForkCache::new", || ForkCache::new(slab))
    }

    /// A cache, what it must hold, and how many rows it must have copied.
    struct Sequence {
        name: String,
        cache: ForkCache,
        oracle: Oracle,
        copied: u64,
    }

    /// The rows of a slab, as bits: by page, layer, slot, and keys or values.
    type Rows = BTreeMap<(u32, usize, usize, &'static str), Vec<u32>>;

    /// Sequences over one slab. Everything that a call must do is worked out from their tables.
    struct Family {
        layout: KvLayout,
        size: usize,
        slab: SharedSlab,
        sequences: Vec<Sequence>,
        /// In which run: a seed, say.
        run: String,
        next: usize,
    }

    impl Family {
        /// No sequence yet; all free pages hold old rows.
        #[track_caller]
        fn new(layout: KvLayout, size: usize, n_pages: usize, run: &str) -> Self {
            let (slab, mut next) = (slab_of(layout, size, n_pages), 0);
            let mut old = cache(&slab);
            made(format!("extend to all {n_pages} pages"), || old.extend(n_pages * size));
            oracle::write(&mut old, &fresh(&mut next, n_pages * size));
            Family { layout, size, slab, sequences: Vec::new(), run: run.into(), next }
        }

        /// One sequence, named a, in pages of 4.
        #[track_caller]
        fn of(n_pages: usize, tokens: usize) -> Self {
            let mut family = Family::new(LAYOUT, 4, n_pages, "page size 4");
            family.begin("a");
            family.extend(0, tokens);
            family
        }

        #[track_caller]
        fn begin(&mut self, name: &str) {
            let oracle = Oracle::of(format!("sequence {name}, {}", self.run));
            self.sequences.push(Sequence { name: name.into(), cache: cache(&self.slab), oracle, copied: 0 });
        }

        fn n_free(&self) -> usize {
            self.slab.borrow().pool().n_free()
        }

        fn rows(&self) -> Rows {
            let (slab, mut rows) = (self.slab.borrow(), Rows::new());
            for (kind, numbers) in [("keys", slab.keys()), ("values", slab.values())] {
                for (index, row) in numbers.chunks(self.layout.kv_width()).enumerate() {
                    let (page_and_layer, slot) = (index / self.size, index % self.size);
                    let (page, layer) = (page_and_layer / self.layout.n_layers, page_and_layer % self.layout.n_layers);
                    rows.insert((page as u32, layer, slot, kind), row.iter().map(|x| x.to_bits()).collect());
                }
            }
            rows
        }

        /// Forks a sequence: no row moves, no page is taken, and no counter is inherited.
        #[track_caller]
        fn fork(&mut self, index: usize, name: &str) {
            let Sequence { name: from, cache, oracle, .. } = &self.sequences[index];
            let at = format!("{name} = {from}.fork() with {}, {}", count(cache.len(), "token"), self.run);
            let before = self.rows();
            let fork = made(at.as_str(), || cache.fork());
            let expected = (cache.len(), numbers(cache.table()));
            same!((fork.len(), numbers(fork.table())), expected, "(tokens, pages) of a fork, the same: {at}");
            same!(fork.usage().rows_copied, 0, "rows copied by {name}, which has copied none yet: {at}");
            let mut its = Oracle::of(format!("sequence {name}, {}", self.run));
            its.tokens = oracle.tokens.clone();
            its.note(format!("forked from {from} with {}", count(fork.len(), "token")));
            self.sequences.push(Sequence { name: name.into(), cache: fork, oracle: its, copied: 0 });
            self.check_copy(&before, None, &at);
            self.check(&at);
        }

        /// Extends a sequence by `n` tokens and writes their rows, if there are pages enough; otherwise it must be refused.
        #[track_caller]
        fn extend(&mut self, index: usize, n: usize) {
            let (before, free) = (self.rows(), self.n_free());
            let Sequence { name, cache, oracle, .. } = &mut self.sequences[index];
            let (len, size, pages) = (cache.len(), self.size, numbers(cache.table()));
            let (partly_filled, owners) = tail(cache.table(), self.slab.borrow().pool());
            let copies = n > 0 && partly_filled && owners > 1;
            let needed = n.saturating_sub(len.next_multiple_of(size) - len).div_ceil(size) + usize::from(copies);
            let why = match (n, copies) {
                (0, _) => "no token will be written",
                (_, true) => "its tail is shared",
                (_, false) => "it shares no tail",
            };
            let (held, needs) = (count(len, "token"), count(needed, "page"));
            let mut at = format!(
                "extend({n}) of {name}, {held} in pages {pages:?}; {why}, so it needs {needs}, and {free} are free; {}",
                self.run
            );
            oracle.note(format!("extend({n})"));
            let is_refused = needed > free;
            let expected = if is_refused { Err(CacheError::OutOfPages { needed, free }) } else { Ok(()) };
            let question = asking(at.as_str());
            let found = cache.extend(n);
            drop(question);
            if found.is_ok() || !is_refused {
                same!(found, expected, "{at}");
            }
            let (copies, n) = if is_refused { (false, 0) } else { (copies, n) };
            if is_refused {
                at.insert_str(0, "the refused ");
            }
            let (now, kept) = (numbers(cache.table()), pages.len() - usize::from(copies));
            same!(
                (cache.len(), now.len(), now.get(..kept)),
                (len + n, (len + n).div_ceil(size), Some(&pages[..kept])),
                "(tokens, pages, those that stay) after {at}"
            );
            let copy = copies.then(|| (pages[kept], now[kept], len % size));
            self.check_copy(&before, copy, &at);
            same!(found, expected, "{at}");
            let (tokens, sequence) = (fresh(&mut self.next, n), &mut self.sequences[index]);
            sequence.copied += copy.map_or(0, |(_, _, rows)| rows as u64);
            if n > 0 {
                oracle::write(&mut sequence.cache, &tokens);
            }
            sequence.oracle.tokens.extend(tokens);
            self.check(&at);
        }

        /// Checks that only this copy's rows have moved: from a page, to a page, how many rows.
        #[track_caller]
        fn check_copy(&self, before: &Rows, copy: Option<(u32, u32, usize)>, at: &str) {
            let now = self.rows();
            let differ = |rows: &Rows| now.keys().copied().filter(|row| now[row] != rows[row]).collect::<Vec<_>>();
            let changed = differ(before);
            let Some((from, to, filled)) = copy else {
                let what = "rows (page, layer, slot) that have changed, where none is to be copied";
                return same!(changed, [], "{what}: {at}");
            };
            assert!(to != from, "page {from} is shared, and the new token needs a page of its own: {at}");
            assert!(
                changed.iter().all(|row| row.0 != from),
                "rows of page {from} have changed, which a different sequence still has: the copy goes from page {from} to \
                 page {to}, the new one: {at}"
            );
            assert!(
                !changed.iter().any(|row| row.0 == to && row.2 >= filled),
                "slots 0..{filled} of page {from} are filled, and it also wrote slots of page {to} beyond: {at}"
            );
            let mut expected = before.clone();
            for ((_, layer, slot, kind), row) in before.iter().filter(|(row, _)| row.0 == from && row.2 < filled) {
                expected.insert((to, *layer, *slot, kind), row.clone());
            }
            let what = if changed.is_empty() { "it has copied nothing" } else { "not all is copied" };
            let wrong = differ(&expected);
            same!(wrong, [], "wrong rows (page, layer, slot), where page {from} is copied to page {to}: {what}; {at}");
        }

        #[track_caller]
        fn rewind(&mut self, index: usize, n: usize) {
            let sequence = &mut self.sequences[index];
            sequence.oracle.rewind(&mut sequence.cache, n);
            self.check(&format!("rewind({n}), which copies nothing, {}", self.run));
        }

        #[track_caller]
        fn drop(&mut self, index: usize) {
            let gone = self.sequences.remove(index).name;
            self.check(&format!("{gone} is dropped, {}", self.run));
        }

        /// Compares all rows, the count of copies, and the owners of every page.
        #[track_caller]
        fn check(&self, at: &str) {
            for Sequence { name, cache, oracle, copied } in &self.sequences {
                let what = "the filled ones of a page, each once for all layers";
                same!(cache.usage().rows_copied, *copied, "rows copied by {name} until now, {what}: {at}");
                oracle.check(cache);
            }
            let owned = self.sequences.iter().flat_map(|sequence| sequence.cache.table().pages());
            check_owners(self.slab.borrow().pool(), owned, at);
        }
    }

    // Task 1

    #[test]
    fn task_1_a_fork_has_the_same_pages_and_takes_none() {
        for size in 1..=LARGEST_PAGE {
            for held in 0..=2 * size + 1 {
                let mut tables = Tables::new(size, 9, 1);
                // The table's pages are neither the first of the pool nor in order.
                tables.begin(3 * size);
                tables.release(0);
                tables.begin(held);
                tables.fork(2);
                // Forks of forks, that end in any order.
                tables.fork(3);
                tables.fork(2);
                [3, 2, 5, 4].iter().for_each(|index| tables.release(*index));
            }
        }
    }

    #[test]
    fn task_1_forks_over_a_different_pool_change_nothing() {
        let table = table(4, 9, &mut pool(5));
        let free = |page| CacheError::DoubleFree(PageId(page));
        let foreign = CacheError::ForeignPage { page: PageId(2), n_pages: 2 };
        // Pages of the other pool, and which of the table's pages 0, 1, 2 have an owner there.
        for (n_pages, owned, expected) in
            [(5, &[1, 2][..], free(0)), (5, &[0, 2], free(1)), (5, &[0, 1], free(2)), (2, &[0, 1], foreign)]
        {
            let mut other = pool(n_pages);
            made("alloc_n of chapter 4", || other.alloc_n(n_pages));
            for page in (0..n_pages as u32).filter(|page| !owned.contains(page)) {
                made(format!("free of chapter 4, of page {page}"), || other.free(PageId(page)));
            }
            let of = "fork of a table of pages 0, 1, 2";
            let at = format!("{of} over a different pool of {n_pages}, in which these {owned:?} have an owner");
            let before = (other.n_free(), owners(&other));
            let question = asking(at.as_str());
            let outcome = table.fork(&mut other).map(|fork| numbers(&fork));
            drop(question);
            same!((other.n_free(), owners(&other)), before, "(free pages, owners) of that pool after a {at}");
            same!(outcome, Err(expected), "{at}");
        }
    }

    #[test]
    fn task_1_very_long_tables_are_gone_through_once() {
        let mut pool = pool(VERY_MANY);
        let (mut a, mut b) = (table(1, 0, &mut pool), table(1, 0, &mut pool));
        // Ever longer, so that a fork that goes through all pages for each page fails after seconds, not minutes.
        let longer = |n_pages: &usize| Some(n_pages + n_pages / 2);
        for n_pages in std::iter::successors(Some(VERY_MANY / 64), longer).take_while(|n_pages| *n_pages < VERY_MANY) {
            made("release of a fork, by chapter 5", || b.release(&mut pool));
            let n = n_pages - a.len();
            grow(&mut a, n, &mut pool);
            let what = format!("fork of a table of {n_pages} pages");
            b = once(&what, || made(what.as_str(), || a.fork(&mut pool)));
        }
        let two = a.pages().iter().all(|page| pool.owners(*page) == Ok(2));
        same!(two, true, "whether each page has two owners after a fork");
    }

    // Task 2

    #[test]
    fn task_2_a_tail_is_shared_if_partly_filled_and_with_several_owners() {
        for size in 1..=LARGEST_PAGE {
            for held in 0..=3 * size {
                let mut tables = Tables::new(size, 5, held);
                tables.shares_tail(0);
                tables.fork(0);
                tables.fork(0);
                (0..3).for_each(|index| tables.shares_tail(index));
                tables.release(0);
                tables.shares_tail(1);
                tables.release(2);
                tables.shares_tail(1);
            }
        }
    }

    #[test]
    fn task_2_only_the_last_page_makes_a_shared_tail() {
        let mut tables = Tables::new(4, 6, 8);
        tables.fork(0);
        // Pages 0 and 1 are full and shared, page 2 has one owner.
        tables.grow(1, 1);
        tables.shares_tail(1);
    }

    #[test]
    fn task_2_own_tail_takes_a_page_and_returns_what_to_copy() {
        for size in 1..=LARGEST_PAGE {
            for held in 0..=3 * size {
                let mut tables = Tables::new(size, 9, held);
                tables.fork(0);
                // Once more, and for the other, which owns its tail alone by then.
                [1, 1, 0].iter().for_each(|index| tables.own_tail(*index));
                tables.fork(0);
                tables.fork(0);
                [2, 0, 3].iter().for_each(|index| tables.own_tail(*index));
            }
        }
    }

    #[test]
    fn task_2_own_tail_without_a_free_page_changes_nothing() {
        let mut tables = Tables::new(4, 3, 6);
        tables.fork(0);
        tables.begin(1);
        tables.own_tail(0);
        tables.own_tail(1);
        tables.release(0);
        tables.own_tail(1);
    }

    #[test]
    fn task_2_tails_in_a_different_pool() {
        let mut a = table(4, 10, &mut pool(3));
        let mut other = pool(2);
        made("alloc_n(2) of chapter 4", || other.alloc_n(2));
        let foreign = CacheError::ForeignPage { page: PageId(2), n_pages: 2 };
        same!(a.shares_tail(&other), Err(foreign.clone()), "shares_tail over a pool of 2 pages; the last page is 2");
        same!(a.own_tail(&mut other), Err(foreign), "own_tail over a pool of 2 pages; the last page is 2");
        same!((numbers(&a), owners(&other)), (vec![0, 1, 2], vec![1, 1]), "(pages, owners) after that refusal");
    }

    // Task 3

    /// Either of two sequences can be rewound and be the first to grow; the other's rows must stay as they are.
    #[test]
    fn task_3_copies_the_tail_for_the_one_that_grows_first() {
        let cases = (0..=9).flat_map(|held| [0, 1, 2, 5].map(|n| (held, n)));
        for (held, n, back) in cases.flat_map(|(held, n)| [0, 1, 3, 6].map(|back| (held, n, back.min(held)))) {
            for first in [0, 1] {
                let mut family = Family::of(9, held);
                family.fork(0, "b");
                family.rewind(first, back);
                family.extend(first, n);
                family.extend(1 - first, n);
                family.drop(first);
            }
        }
    }

    /// Tokens held, new ones, and the pages that the copy and the tokens need: the pool has one page too few.
    #[test]
    fn task_3_extend_without_enough_pages_changes_nothing() {
        for (held, n, needed) in
            [(6, 1, 1), (6, 2, 1), (6, 3, 2), (6, 7, 3), (3, 2, 2), (7, 9, 3), (8, 1, 1), (8, 5, 2)]
        {
            let mut family = Family::of(usize::div_ceil(held, 4) + needed, held);
            family.fork(0, "b");
            family.begin("c");
            family.extend(2, 1);
            family.extend(1, n);
            family.extend(1, 0);
            family.drop(2);
            family.extend(1, n);
        }
        let mut family = Family::of(2, 6);
        family.fork(0, "b");
        family.extend(1, usize::MAX);
    }

    #[test]
    fn task_3_rows_copied_add_up_for_each_sequence() {
        let mut family = Family::of(12, 6);
        let [a, b, c] = [0, 1, 2];
        family.fork(a, "b");
        family.extend(b, 1);
        family.fork(b, "c");
        // Once more, while c has its tail; then its tail is not shared, and c is the only owner of the page that b gave up.
        [(b, 1), (b, 2), (c, 1), (a, 1)].iter().for_each(|(index, n)| family.extend(*index, *n));
        family.rewind(b, 2);
        same!(family.sequences[b].copied, 5, "rows that b has copied, 2 and then 3: the check itself");
        // The last owner of a tail writes in place.
        family.fork(c, "d");
        family.drop(c);
        family.extend(2, 1);
    }

    /// The numbers of the chapter: a prompt of 900 tokens, 8 samples of 100 tokens. The last token is never computed.
    #[test]
    fn task_3_the_chapters_eight_samples() {
        let slab = slab_of(ONE_NUMBER, 16, 600);
        let mut first = cache(&slab);
        made("extend(900)", || first.extend(900));
        let mut samples: Vec<ForkCache> = (1..8).map(|_| made("fork of the prompt", || first.fork())).collect();
        samples.insert(0, first);
        for sample in (1..100).flat_map(|_| 0..8) {
            made("extend(1) of a sample", || samples[sample].extend(1));
        }
        let copied: u64 = samples.iter().map(|sample| sample.usage().rows_copied).sum();
        same!(
            (600 - slab.borrow().pool().n_free(), copied),
            (112, 28),
            "(pages, rows copied) of 8 samples of 100 tokens after a prompt of 900, page size 16"
        );
    }

    #[test]
    fn task_3_very_long_sequences_cost_no_more() {
        let slab = slab_of(ONE_NUMBER, 2, VERY_MANY + 2);
        let mut a = cache(&slab);
        made("extend(1)", || a.extend(1));
        let mut b = made("fork", || a.fork());
        made("extend by very many", || b.extend(2 * VERY_MANY - 2));
        often(&format!("extend(1) and rewind(1) in turns on a fork of {VERY_MANY} pages"), VERY_MANY / 4, |number| {
            let found = (b.extend(1), b.rewind(1), b.usage().rows_copied);
            same_each(found, (Ok(()), Ok(()), 1), || {
                format!("extend(1), rewind(1), rows copied in all; turn {number}")
            });
        });
    }

    // All tasks

    /// Performs a line of the transcript on the caches, by name: `b fork a`, `b extend 1`, `b rewind 2`, `b drop`.
    fn perform<'l>(
        line: &'l str,
        caches: &mut HashMap<&'l str, ForkCache>,
        next: &mut usize,
    ) -> Result<(), CacheError> {
        let words: Vec<&str> = line.split(' ').collect();
        let (name, n) = (words[0], words.get(2).and_then(|word| word.parse().ok()).unwrap_or(0));
        match (words[1], caches.get_mut(name)) {
            ("extend", Some(cache)) => {
                cache.extend(n)?;
                oracle::write(cache, &fresh(next, n));
            }
            ("rewind", Some(cache)) => cache.rewind(n)?,
            ("fork", _) => drop(caches.insert(name, caches[words[2]].fork()?)),
            _ => drop(caches.remove(name)),
        }
        Ok(())
    }

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        let slab = slab_of(KvLayout { n_layers: 2, ..LAYOUT }, 4, 5);
        let mut caches = HashMap::from([("a", cache(&slab))]);
        let mut next = 0;
        transcript.line("page size 4; in brackets: owners of pages 0 to 4");
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
                format!("{:>2} tokens, {pages:<11} {} copied", usage.tokens, usage.rows_copied)
            });
            let owners: Vec<String> = owners(slab.borrow().pool()).iter().map(u32::to_string).collect();
            transcript.line(format!("{line:<10} {:<28} {usage:<31} [{}]", outcome(&result), owners.join(" ")));
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
            let layout = any_layout(&mut dice);
            let (size, n_pages) = (dice.roll(1, 6), dice.roll(4, 16));
            let mut family = Family::new(layout, size, n_pages, &format!("seed {seed}, page size {size}"));
            for step in 0..STEPS {
                let n_sequences = family.sequences.len();
                if n_sequences == 0 {
                    family.begin(&format!("s{step}"));
                    continue;
                }
                let index = dice.roll(0, n_sequences - 1);
                match dice.roll(0, 11) {
                    0 => family.drop(index),
                    1..4 if n_sequences < 6 => family.fork(index, &format!("s{step}")),
                    1..8 => family.extend(index, dice.roll(0, 2 * size + 1)),
                    _ => family.rewind(index, dice.roll(0, family.sequences[index].cache.len())),
                }
            }
            family.sequences.clear();
            same!(family.n_free(), n_pages, "seed {seed}: free pages when all is dropped");
        }
    }

    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        let (model, prompt, n) = (&storyteller.model, storyteller.prompt(), 24);
        let slab = slab_of(model.config().kv_layout(), 3, 100);
        let mut first = cache(&slab);
        let logits = made("the prompt, computed once", || model.step(&prompt, Some(&mut first)));
        let sampler = |number| Sampler::new(Sampling { seed: SAMPLING.seed + number, ..SAMPLING });
        let mut samples: Vec<(ForkCache, Sampler, Vec<u32>)> = Vec::new();
        for number in 0..4 {
            let mut sampler = sampler(number);
            let token = sampler.pick(&logits);
            samples.push((made("fork of the prompt", || first.fork()), sampler, vec![token]));
        }
        drop(first);
        for number in 1..n {
            for (index, (cache, sampler, tokens)) in samples.iter_mut().enumerate() {
                let question = format!("token {number} of sample {index} of the story");
                let newest = [tokens[number - 1]];
                let logits = made(&question, || model.step(&newest, Some(cache)));
                tokens.push(sampler.pick(&logits));
            }
        }
        for (number, (_, _, found)) in (0..).zip(&samples) {
            let (mut sampler, mut tokens) = (sampler(number), prompt.clone());
            for _ in 0..n {
                tokens.push(sampler.pick(&model.step(&tokens, None).expect("a short sequence fits")));
            }
            storyteller.assert_same_story(found, &tokens[prompt.len()..]);
        }
    }
}
