//! Grader of chapter 10: fork and copy-on-write. Its caches rewind too, with `ch07_rewind`.

grading::grader!();

#[cfg(not(stub = "ch10_fork"))]
mod checks {
    use std::collections::{BTreeMap, HashMap};

    use page_by_page::cache::{CacheError, KvCache, KvLayout, PageId, Rewind};
    use page_by_page::chapters::ch04_page_pool::PagePool;
    use page_by_page::chapters::ch05_page_table::PageTable;
    use page_by_page::chapters::ch06_paged::SharedSlab;
    use page_by_page::chapters::ch10_fork::{ForkCache, PageCopy};
    use page_by_page::generation::sampler::{Sampler, SamplingParams};

    use grading::history::{History, assert_refused};
    use grading::oracle::{self, any_layout};
    use grading::paged::assert_panics_while_lent;
    use grading::pools::{
        LAYOUT, ONE_NUMBER, check_pool, double_free, foreign_page, grow, of_other_pool, owners, page_ids, pool,
        pool_with_free, pool_with_owned, slab_of, table,
    };
    use grading::prelude::*;

    /// Enough pages for a walk through all of them at every call to take minutes.
    const VERY_MANY: usize = if cfg!(miri) { 300 } else { 300_000 };

    /// Up to this page size every case is tried.
    const LARGEST_PAGE: usize = if cfg!(miri) { 3 } else { 5 };

    /// `fork of a table of 6 tokens in pages [0, 1], page size 4`
    fn told(call: &str, table: &PageTable) -> String {
        let (tokens, size) = (plural(table.len(), "token"), table.page_size());
        format!("{call} of a table of {tokens} in pages {:?}, page size {size}", page_ids(table))
    }

    /// Whether a table has a tail, a last page that is partly filled; and the owners of its last page.
    fn tail(table: &PageTable, pool: &PagePool) -> (bool, u32) {
        let owners =
            |page: &PageId| in_call(format!("owners({page}) of chapter 4"), || pool.owners(*page).unwrap_or(0));
        let owners = table.pages().last().map_or(0, owners);
        (!table.len().is_multiple_of(table.page_size()), owners)
    }

    /// Tables over one pool. What each call must do is worked out from the tables before it.
    struct PooledTables {
        size: usize,
        pool: PagePool,
        tables: Vec<PageTable>,
    }

    impl PooledTables {
        fn new(size: usize, n_pages: usize, tokens: usize) -> Self {
            let mut tables = PooledTables { size, pool: pool(n_pages), tables: Vec::new() };
            tables.begin(tokens);
            tables
        }

        fn begin(&mut self, tokens: usize) {
            self.tables.push(table(self.size, tokens, &mut self.pool));
        }

        fn grow(&mut self, index: usize, n: usize) {
            grow(&mut self.tables[index], n, &mut self.pool);
            self.check(&format!("grow({n}) of table {index}"));
        }

        fn fork(&mut self, index: usize) {
            let table = &self.tables[index];
            let call = told("fork", table);
            let fork = expect_ok(call.as_str(), || table.fork(&mut self.pool));
            let expected = (table.len(), table.page_size(), page_ids(table));
            same!((fork.len(), fork.page_size(), page_ids(&fork)), expected, "(tokens, page size, pages) of a {call}");
            self.tables.push(fork);
            self.check(&format!("a {call}: it takes none, and each has one more for each of its pages"));
        }

        fn release(&mut self, index: usize) {
            let call = told("release", &self.tables[index]);
            expect_ok(format!("{call}, by chapter 5"), || self.tables[index].release(&mut self.pool));
            self.check(&format!("a {call}, of table {index}"));
        }

        fn tail_is_shared(&self, index: usize) {
            let table = &self.tables[index];
            let (partly_filled, owners) = tail(table, &self.pool);
            let why = match partly_filled {
                false => "no page is partly filled".into(),
                true => format!("the last page is partly filled, and has {}", plural(owners as usize, "owner")),
            };
            let expected = Ok(partly_filled && owners > 1);
            same!(table.tail_is_shared(&self.pool), expected, "{}: {why}", told("tail_is_shared", table));
        }

        fn copy_shared_tail(&mut self, index: usize) {
            self.tail_is_shared(index);
            let (partly_filled, owners_of_last) = tail(&self.tables[index], &self.pool);
            let (before, free) = (owners(&self.pool), self.pool.n_free());
            let table = &mut self.tables[index];
            let (mut expected, held) = (page_ids(table), table.len());
            let call = format!("{}, {} free", told("copy_shared_tail", table), plural(free, "page"));
            let found = in_call(call.as_str(), || table.copy_shared_tail(&mut self.pool));
            if !partly_filled || owners_of_last < 2 {
                same!(found, Ok(None), "{call}: it has no tail, or is the tail's only owner, so it needs none");
            } else if free == 0 {
                same!(found, Err(CacheError::OutOfPages { needed: 1, free: 0 }), "{call}");
            } else {
                let from = PageId(expected.pop().expect("a table with a tail has pages"));
                let to = table.pages().last().copied().unwrap_or(from);
                same!(found, Ok(Some(PageCopy { from, to, rows: held % self.size })), "{call}");
                same!(before[to.index()], 0, "owners that page {to}, the new one, had before {call}");
                expected.push(to.0);
            }
            same!((table.len(), page_ids(table)), (held, expected), "(tokens, pages) after {call}");
            self.check(&call);
        }

        fn check(&self, after: &str) {
            check_pool(&self.pool, self.tables.iter().flat_map(PageTable::pages), after);
        }
    }

    fn cache(slab: &SharedSlab) -> ForkCache {
        expect_ok("ForkCache::new", || ForkCache::new(slab))
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

    /// Sequences over one slab. What each call must do is worked out from their tables.
    struct Sequences {
        layout: KvLayout,
        size: usize,
        slab: SharedSlab,
        all: Vec<Sequence>,
        history: History,
        next: usize,
    }

    impl Sequences {
        /// No sequence yet; all free pages hold old rows.
        fn new(layout: KvLayout, size: usize, n_pages: usize, run: &str) -> Self {
            let (slab, mut next) = (slab_of(layout, size, n_pages), 0);
            let mut old = cache(&slab);
            expect_ok(format!("extend to all {n_pages} pages"), || old.extend(n_pages * size));
            oracle::write(&mut old, &fresh(&mut next, n_pages * size));
            Sequences { layout, size, slab, all: Vec::new(), history: History::new(run), next }
        }

        /// One sequence, named a.
        fn with_a(size: usize, n_pages: usize, tokens: usize) -> Self {
            let mut sequences = Sequences::new(LAYOUT, size, n_pages, &format!("page size {size}"));
            sequences.begin("a");
            sequences.extend(0, tokens);
            sequences
        }

        fn begin(&mut self, name: &str) {
            self.add(name, cache(&self.slab), Vec::new());
        }

        fn add(&mut self, name: &str, cache: ForkCache, tokens: Vec<usize>) {
            let mut oracle = Oracle::new(format!("sequence {name}, {}", self.history.about));
            oracle.history.record(format!("it begins with {}", plural(tokens.len(), "token")));
            oracle.tokens = tokens;
            self.all.push(Sequence { name: name.into(), cache, oracle, copied: 0 });
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
        fn fork(&mut self, index: usize, name: &str) {
            let before = self.rows();
            let Sequence { name: from, cache, oracle, .. } = &self.all[index];
            let call = self.history.call(format!("{name} = {from}.fork() with {}", plural(cache.len(), "token")));
            let fork = expect_ok(call.as_str(), || cache.fork());
            let expected = (cache.len(), page_ids(cache.table()));
            same!((fork.len(), page_ids(fork.table())), expected, "(tokens, pages) of a fork, the same: {call}");
            same!(fork.usage().copied_tokens, 0, "tokens copied by {name}, which has copied none yet: {call}");
            self.add(name, fork, oracle.tokens.clone());
            self.check_copy(&before, None, &call);
            self.check(&call);
        }

        /// Extends a sequence by `n` tokens and writes their rows. Without enough pages it must be refused.
        fn extend(&mut self, index: usize, n: usize) {
            let (before, free) = (self.rows(), self.n_free());
            let Sequence { name, cache, oracle, .. } = &mut self.all[index];
            let (len, size, pages) = (cache.len(), self.size, page_ids(cache.table()));
            let (partly_filled, owners) = tail(cache.table(), self.slab.borrow().pool());
            let copies = n > 0 && partly_filled && owners > 1;
            let needed = n.saturating_sub(len.next_multiple_of(size) - len).div_ceil(size) + usize::from(copies);
            let why = match (n, copies) {
                (0, _) => "no token will be written",
                (_, true) => "its tail is shared",
                (_, false) => "it shares no tail",
            };
            let (held, needs) = (plural(len, "token"), plural(needed, "page"));
            let mut call = self.history.call(format!(
                "extend({}) of {name}, {held} in pages {pages:?}; {why}, so it needs {needs} of {free} free",
                argument(n)
            ));
            oracle.history.record(format!("extend({n})"));
            let is_refused = needed > free;
            let expected = if is_refused { Err(CacheError::OutOfPages { needed, free }) } else { Ok(()) };
            let found = in_call(call.as_str(), || cache.extend(n));
            if found.is_ok() || !is_refused {
                same!(found, expected, "{call}");
            }
            let (copies, n) = if is_refused { (false, 0) } else { (copies, n) };
            if is_refused {
                call.insert_str(0, "the refused ");
            }
            let (now, kept) = (page_ids(cache.table()), pages.len() - usize::from(copies));
            let grown = (len + n, (len + n).div_ceil(size), Some(&pages[..kept]));
            let found_now = (cache.len(), now.len(), now.get(..kept));
            same!(found_now, grown, "(tokens, pages, those that stay) after {call}");
            let copy = copies.then(|| (pages[kept], now[kept], len % size));
            self.check_copy(&before, copy, &call);
            same!(found, expected, "{call}");
            let (tokens, sequence) = (fresh(&mut self.next, n), &mut self.all[index]);
            sequence.copied += copy.map_or(0, |(_, _, rows)| rows as u64);
            if n > 0 {
                oracle::write(&mut sequence.cache, &tokens);
            }
            sequence.oracle.tokens.extend(tokens);
            self.check(&call);
        }

        /// Checks that only this copy's rows have moved: from a page, to a page, how many rows.
        fn check_copy(&self, before: &Rows, copy: Option<(u32, u32, usize)>, at: &str) {
            let now = self.rows();
            let differ = |rows: &Rows| now.keys().copied().filter(|row| now[row] != rows[row]).collect::<Vec<_>>();
            let changed = differ(before);
            let Some((from, to, filled)) = copy else {
                let what = format!("rows (page, layer, slot) that have changed, the first of {}", changed.len());
                return same!(changed.first(), None, "{what}, where none is to be copied: {at}");
            };
            assert!(to != from, "page {from} is shared, and the new token needs a page of its own: {at}");
            assert!(
                changed.iter().all(|row| row.0 != from),
                "rows of page {from} have changed, which a different sequence still has: the copy goes from page \
                 {from} to page {to}, the new one: {at}"
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
            let (n_wrong, told) = (wrong.len(), "wrong rows (page, layer, slot), the first of");
            let told = format!("{told} {n_wrong}, where page {from} is copied to page {to}: {what}; {at}");
            same!(wrong.first(), None, "{told}");
        }

        fn rewind(&mut self, index: usize, n: usize) {
            let call = self.history.call(format!("rewind({n}) of {}, which copies nothing", self.all[index].name));
            let sequence = &mut self.all[index];
            sequence.oracle.rewind(&mut sequence.cache, n);
            self.check(&call);
        }

        fn drop(&mut self, index: usize) {
            let Sequence { name, cache, .. } = self.all.remove(index);
            let call = self.history.call(format!("{name} is dropped"));
            in_call(call.as_str(), || drop(cache));
            self.check(&call);
        }

        /// Compares all rows, the count of copies, and the owners of every page.
        fn check(&self, after: &str) {
            for Sequence { name, cache, oracle, copied } in &self.all {
                let what = "the filled ones of a page, each once for all layers";
                same!(cache.usage().copied_tokens, *copied, "tokens copied by {name} until now, {what}: {after}");
                oracle.check(cache);
            }
            let in_tables = self.all.iter().flat_map(|sequence| sequence.cache.table().pages());
            check_pool(self.slab.borrow().pool(), in_tables, after);
        }
    }

    // Task 1

    #[test]
    fn task_1_a_fork_has_the_same_pages_and_takes_none() {
        for size in 1..=LARGEST_PAGE {
            for held in 0..=2 * size + 1 {
                let mut tables = PooledTables::new(size, 9, 1);
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
        // Pages of the other pool, and which of the table's pages 0, 1, 2 have an owner there.
        for (n_pages, owned, error) in [
            (5, &[0, 2][..], double_free(1)),
            (5, &[1, 2], double_free(0)),
            (5, &[0, 1], double_free(2)),
            (2, &[0, 1], foreign_page(2, 2)),
            (2, &[1], double_free(0)),
        ] {
            let pages = "a table of pages 0, 1, 2";
            let call = format!(
                "fork of {pages} over a different pool of {n_pages}, in which these {owned:?} have an owner: the first \
                 bad page counts"
            );
            let facts = |pool: &mut PagePool| of_other_pool(pool).to_vec();
            assert_refused(&mut pool_with_owned(n_pages, owned), &call, error, facts, |pool| {
                table.fork(pool).map(|fork| page_ids(&fork))
            });
        }
    }

    #[test]
    fn task_1_very_long_tables_are_gone_through_once() {
        let mut pool = pool(VERY_MANY);
        let (mut a, mut b) = (table(1, 0, &mut pool), table(1, 0, &mut pool));
        // Ever longer, so that a fork that goes through all pages for each page fails after seconds, not minutes.
        let longer = |n_pages: &usize| Some(n_pages + n_pages / 2);
        for n_pages in std::iter::successors(Some(VERY_MANY / 64), longer).take_while(|n_pages| *n_pages < VERY_MANY) {
            expect_ok("release of a fork, by chapter 5", || b.release(&mut pool));
            let n = n_pages - a.len();
            grow(&mut a, n, &mut pool);
            let what = format!("fork of a table of {n_pages} pages");
            b = assert_one_pass(&what, || expect_ok(what.as_str(), || a.fork(&mut pool)));
        }
        let owners = owners(&pool);
        let two = a.pages().iter().all(|page| owners.get(page.index()) == Some(&2));
        same!(two, true, "whether each page has two owners after a fork");
    }

    // Task 2

    #[test]
    fn task_2_a_tail_is_shared_if_partly_filled_and_with_several_owners() {
        for size in 1..=LARGEST_PAGE {
            for held in 0..=3 * size {
                let mut tables = PooledTables::new(size, 5, held);
                tables.tail_is_shared(0);
                tables.fork(0);
                tables.fork(0);
                (0..3).for_each(|index| tables.tail_is_shared(index));
                tables.release(0);
                tables.tail_is_shared(1);
                tables.release(2);
                tables.tail_is_shared(1);
            }
        }
    }

    #[test]
    fn task_2_only_the_last_page_makes_a_shared_tail() {
        let mut tables = PooledTables::new(4, 6, 8);
        tables.fork(0);
        // Pages 0 and 1 are full and shared, page 2 has one owner.
        tables.grow(1, 1);
        tables.tail_is_shared(1);
    }

    #[test]
    fn task_2_copy_shared_tail_takes_a_page_and_returns_what_to_copy() {
        for size in 1..=LARGEST_PAGE {
            for held in 0..=3 * size {
                let mut tables = PooledTables::new(size, 9, held);
                tables.fork(0);
                // Once more, and for the other, which owns its tail alone by then.
                [1, 1, 0].iter().for_each(|index| tables.copy_shared_tail(*index));
                tables.fork(0);
                tables.fork(0);
                [2, 0, 3].iter().for_each(|index| tables.copy_shared_tail(*index));
            }
        }
    }

    #[test]
    fn task_2_copy_shared_tail_without_a_free_page_changes_nothing() {
        let mut tables = PooledTables::new(4, 3, 6);
        tables.fork(0);
        tables.begin(1);
        tables.copy_shared_tail(0);
        tables.copy_shared_tail(1);
        tables.release(0);
        tables.copy_shared_tail(1);
    }

    #[test]
    fn task_2_tails_in_a_different_pool() {
        let mut a = table(4, 10, &mut pool(3));
        let mut other = pool_with_free(2, &[]);
        let which = "over a pool of 2 pages; the last page is 2";
        same!(a.tail_is_shared(&other), Err(foreign_page(2, 2)), "tail_is_shared {which}");
        same!(a.copy_shared_tail(&mut other), Err(foreign_page(2, 2)), "copy_shared_tail {which}");
        same!((page_ids(&a), owners(&other)), (vec![0, 1, 2], vec![1, 1]), "(pages, owners) after that refusal");
        let mut full = table(4, 12, &mut pool(3));
        let which = format!("{which}, which is full, and no tail");
        same!(full.tail_is_shared(&other), Ok(false), "tail_is_shared {which}");
        same!(full.copy_shared_tail(&mut other), Ok(None), "copy_shared_tail {which}");
    }

    // Task 3

    /// Either of two sequences can be rewound and be the first to grow; the other's rows must stay as they are.
    #[test]
    fn task_3_copies_the_tail_for_the_one_that_grows_first() {
        let cases = (0..=9).flat_map(|held| [0, 1, 2, 5].map(|n| (held, n)));
        for (held, n, back) in cases.flat_map(|(held, n)| [0, 1, 3, 6].map(|back| (held, n, back.min(held)))) {
            for first in [0, 1] {
                let mut sequences = Sequences::with_a(3 + (held + first) % 2, 12, held);
                sequences.fork(0, "b");
                sequences.rewind(first, back);
                sequences.extend(first, n);
                sequences.extend(1 - first, n);
                sequences.drop(first);
            }
        }
    }

    /// Page size, tokens held, new ones, and the pages that copy and tokens need: the pool has one page too few.
    #[test]
    fn task_3_extend_without_enough_pages_changes_nothing() {
        let of_four = [(6, 1, 1), (6, 2, 1), (6, 3, 2), (6, 7, 3), (3, 2, 2), (7, 9, 3), (8, 1, 1), (8, 5, 2)];
        let of_three = [(4, 2, 1), (4, 3, 2), (6, 1, 1)].map(|case| (3, case));
        for (size, (held, n, needed)) in of_four.map(|case| (4, case)).into_iter().chain(of_three) {
            let mut sequences = Sequences::with_a(size, usize::div_ceil(held, size) + needed, held);
            sequences.fork(0, "b");
            sequences.begin("c");
            sequences.extend(2, 1);
            sequences.extend(1, n);
            sequences.extend(1, 0);
            sequences.drop(2);
            sequences.extend(1, n);
        }
        let mut sequences = Sequences::with_a(4, 2, 6);
        sequences.fork(0, "b");
        sequences.extend(1, usize::MAX);
    }

    #[test]
    fn task_3_rows_copied_add_up_for_each_sequence() {
        let mut sequences = Sequences::with_a(4, 12, 6);
        let [a, b, c] = [0, 1, 2];
        sequences.fork(a, "b");
        sequences.extend(b, 1);
        sequences.fork(b, "c");
        // Once more, while c has its tail; then it is not shared, and c is the only owner of the page that b gave up.
        [(b, 1), (b, 2), (c, 1), (a, 1)].iter().for_each(|(index, n)| sequences.extend(*index, *n));
        sequences.rewind(b, 2);
        same!(sequences.all[b].copied, 5, "rows that b has copied, 2 and then 3: the check itself");
        // The last owner of a tail writes in place.
        sequences.fork(c, "d");
        sequences.drop(c);
        sequences.extend(2, 1);
        // More rows than 8 bits count.
        let mut sequences = Sequences::new(ONE_NUMBER, 300, 2, "page size 300");
        sequences.begin("a");
        sequences.extend(0, 299);
        sequences.fork(0, "b");
        sequences.extend(1, 1);
    }

    /// A slab that is lent can't be borrowed to change it. That must not be passed over in silence.
    #[test]
    fn task_3_slab_that_is_lent_is_a_panic() {
        let mut sequences = Sequences::with_a(5, 4, 6);
        assert_panics_while_lent(&sequences.slab, "fork of a cache", || sequences.all[0].cache.fork().map(drop));
        sequences.fork(0, "b");
        let cache = &mut sequences.all[1].cache;
        assert_panics_while_lent(&sequences.slab, "extend(1) of a fork", || cache.extend(1));
        sequences.check("a fork and an extend that have panicked");
    }

    #[test]
    fn task_3_very_long_sequences_cost_no_more() {
        let slab = slab_of(ONE_NUMBER, 2, VERY_MANY + 2);
        let mut a = cache(&slab);
        expect_ok("extend(1)", || a.extend(1));
        let mut b = expect_ok("fork", || a.fork());
        let (what, why) = ("extend(1) of a fork in a very large slab", "only the rows of its tail must be copied");
        same!(assert_allocates(1 << 12, what, why, || b.extend(1)), Ok(()), "{what}");
        expect_ok("extend by very many", || b.extend(2 * VERY_MANY - 3));
        assert_constant_cost(
            &format!("extend(1) and rewind(1) in turns on a fork of {VERY_MANY} pages"),
            VERY_MANY / 4,
            |number| {
                let found = (b.extend(1), b.rewind(1), b.usage().copied_tokens);
                same_each(found, (Ok(()), Ok(()), 1), || {
                    format!("extend(1), rewind(1), tokens copied in all; turn {number}")
                });
            },
        );
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
            let question = format!("the transcript's line: {line}");
            let result = in_call(question, || perform(line, &mut caches, &mut next));
            let usage = caches.get(&line[..1]).map_or(String::new(), |cache| {
                let (usage, pages) = (cache.usage(), page_list(cache.table().pages()));
                format!("{:>2} tokens, {pages:<11} {} copied", usage.tokens, usage.copied_tokens)
            });
            let owners: Vec<String> = owners(slab.borrow().pool()).iter().map(u32::to_string).collect();
            transcript.line(format!("{line:<10} {:<28} {usage:<31} [{}]", outcome(&result), owners.join(" ")));
        }
        for name in ["b", "c"] {
            transcript.line(format!("gather of {name}, {}", page_list(caches[name].table().pages())));
            transcript.gather(&caches[name]);
        }
        assert_transcript("ch10_fork", &transcript);
    }

    #[test]
    fn whole_oracle() {
        for (seed, mut rng) in seeded(20) {
            let layout = any_layout(&mut rng);
            let (size, n_pages) = (rng.roll(1, 6), rng.roll(4, 16));
            let mut sequences = Sequences::new(layout, size, n_pages, &format!("seed {seed}, page size {size}"));
            for step in 0..STEPS {
                let n_sequences = sequences.all.len();
                if n_sequences == 0 {
                    sequences.begin(&format!("s{step}"));
                    continue;
                }
                let index = rng.roll(0, n_sequences - 1);
                match rng.roll(0, 11) {
                    0 => sequences.drop(index),
                    1..4 if n_sequences < 6 => sequences.fork(index, &format!("s{step}")),
                    1..8 => sequences.extend(index, rng.roll(0, 2 * size + 1)),
                    _ => sequences.rewind(index, rng.roll(0, sequences.all[index].cache.len())),
                }
            }
            (0..sequences.all.len()).for_each(|_| sequences.drop(0));
            same!(sequences.n_free(), n_pages, "seed {seed}: free pages when all is dropped");
        }
    }

    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        let (model, prompt, n) = (&storyteller.model, storyteller.prompt(), 24);
        let slab = slab_of(model.config().kv_layout(), 3, 100);
        let mut first = cache(&slab);
        let logits = expect_ok("the prompt, computed once", || model.step(&prompt, Some(&mut first)));
        let sampler = |number| Sampler::new(SamplingParams { seed: SAMPLING.seed + number, ..SAMPLING });
        let mut samples: Vec<(ForkCache, Sampler, Vec<u32>)> = Vec::new();
        for number in 0..4 {
            let mut sampler = sampler(number);
            let token = sampler.sample(&logits);
            samples.push((expect_ok("fork of the prompt", || first.fork()), sampler, vec![token]));
        }
        drop(first);
        for number in 1..n {
            for (index, (cache, sampler, tokens)) in samples.iter_mut().enumerate() {
                let question = format!("token {number} of sample {index} of the story");
                let newest = [tokens[number - 1]];
                let logits = expect_ok(&question, || model.step(&newest, Some(cache)));
                tokens.push(sampler.sample(&logits));
            }
        }
        for (number, (_, _, found)) in (0..).zip(&samples) {
            let (mut sampler, mut tokens) = (sampler(number), prompt.clone());
            for _ in 0..n {
                tokens.push(sampler.sample(&model.step(&tokens, None).expect("a short sequence fits")));
            }
            storyteller.assert_same_story(found, &tokens[prompt.len()..]);
        }
    }
}
