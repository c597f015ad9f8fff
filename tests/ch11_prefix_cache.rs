//! Grader of chapter 11: the prefix cache. Its caches rewind too, with `ch07_rewind`.

grading::grader!();

#[cfg(not(stub = "ch11_prefix_cache"))]
mod checks {
    use std::collections::{BTreeMap, BTreeSet, HashMap};

    use page_by_page::cache::{CacheError, KvCache, PageId};
    use page_by_page::chapters::ch04_page_pool::PagePool;
    use page_by_page::chapters::ch05_page_table::PageTable;
    use page_by_page::chapters::ch06_paged::SharedSlab;
    use page_by_page::chapters::ch10_fork::ForkCache;
    use page_by_page::chapters::ch11_prefix_cache::PrefixTrie;
    use page_by_page::generation::{CachedModel, LanguageModel};
    use page_by_page::prefix_cache::PrefixCache;

    use grading::history::{History, assert_refused, fact};
    use grading::pools::{
        double_free, foreign_page, grow, of_other_pool, owners, pool, pool_with_owned, release, slab_of, table,
    };
    use grading::prelude::*;
    use grading::rows::bits;

    /// More pages than 16 bits count: in one sequence, or in as many sequences.
    const MANY: usize = if cfg!(miri) { 300 } else { 100_000 };

    /// Up to this page size every case is tried.
    const LARGEST_PAGE: usize = if cfg!(miri) { 3 } else { 5 };

    /// What a prefix cache must hold: every prefix that is kept, written out, without links from page to page.
    struct KeptPrefixes {
        size: usize,
        pages: BTreeMap<Vec<u32>, Kept>,
        clock: u64,
    }

    struct Kept {
        page: PageId,
        last_used: u64,
    }

    impl KeptPrefixes {
        /// The pages of the longest prefix of these tokens. The lookup uses them.
        fn lookup(&mut self, tokens: &[u32]) -> Vec<PageId> {
            self.clock += 1;
            let mut pages = Vec::new();
            for end in (self.size..tokens.len()).step_by(self.size) {
                let Some(kept) = self.pages.get_mut(&tokens[..end]) else { break };
                kept.last_used = self.clock;
                pages.push(kept.page);
            }
            pages
        }

        /// What the table of these tokens has after its insert; before, it had `own`.
        fn insert(&mut self, tokens: &[u32], own: &[PageId]) -> Vec<PageId> {
            self.clock += 1;
            let mut pages = own.to_vec();
            for (page, end) in pages.iter_mut().zip((self.size..=tokens.len()).step_by(self.size)) {
                let kept = self.pages.entry(tokens[..end].to_vec()).or_insert(Kept { page: *page, last_used: 0 });
                kept.last_used = self.clock;
                *page = kept.page;
            }
            pages
        }

        /// Evicts `n` pages, or as many as it can; returns them in the order in which they go.
        fn evict(&mut self, n: usize, is_used: impl Fn(PageId) -> bool) -> Vec<PageId> {
            let mut gone = Vec::new();
            while gone.len() < n {
                let follows = |prefix: &[u32], other: &[u32]| prefix.len() < other.len() && other.starts_with(prefix);
                let is_leaf = |prefix: &[u32]| !self.pages.keys().any(|other| follows(prefix, other));
                let can_go = self.pages.iter().filter(|(prefix, kept)| !is_used(kept.page) && is_leaf(prefix));
                let Some((prefix, kept)) = can_go.min_by_key(|(_, kept)| kept.last_used) else { break };
                gone.push(kept.page);
                let prefix = prefix.clone();
                self.pages.remove(&prefix);
            }
            gone
        }

        fn ids(&self) -> Vec<PageId> {
            self.pages.values().map(|kept| kept.page).collect()
        }
    }

    /// A trie and the pool with its pages, and what the trie must hold.
    struct CheckedTrie {
        trie: PrefixTrie,
        pool: PagePool,
        expected: KeptPrefixes,
        history: History,
    }

    impl CheckedTrie {
        /// `rule`: what a failure says beside the call.
        fn new(size: usize, n_pages: usize, rule: &str) -> Self {
            let expected = KeptPrefixes { size, pages: BTreeMap::new(), clock: 0 };
            let history = History::new(format!("page size {size}\n  {rule}"));
            CheckedTrie { trie: trie(size), pool: pool(n_pages), expected, history }
        }

        /// Compares what trie and pool hold after a call, by which these pages have gained or lost an owner.
        fn check(&self, before: &[u32], gained: &[PageId], lost: &[PageId], call: &str) {
            same!(self.trie.n_pages(), self.expected.pages.len(), "pages of the trie after {call}");
            let mut expected = before.to_vec();
            gained.iter().for_each(|page| expected[page.index()] += 1);
            lost.iter().for_each(|page| expected[page.index()] -= 1);
            let (more, fewer) = (page_list(gained), page_list(lost));
            for (page, (found, expected)) in owners(&self.pool).iter().zip(&expected).enumerate() {
                same!(
                    found,
                    expected,
                    "owners of page {page}; one more for {more}, one fewer for {fewer}, after {call}"
                );
            }
            let alone = self.expected.ids().iter().filter(|page| expected[page.index()] == 1).count();
            same!(self.trie.n_evictable(&self.pool), alone, "pages that the trie owns alone, after {call}");
        }

        fn table(&mut self, tokens: usize) -> PageTable {
            table(self.expected.size, tokens, &mut self.pool)
        }

        fn insert(&mut self, tokens: &[u32], table: &mut PageTable) {
            let (before, own) = (owners(&self.pool), table.pages().to_vec());
            let call = self.history.call(inserting(tokens, table));
            let held = table.len();
            let kept = self.expected.ids();
            let expected = self.expected.insert(&tokens[..held], &own);
            same!(self.trie.insert(tokens, table, &mut self.pool), Ok(()), "{call}");
            same!((table.len(), table.pages()), (held, &expected[..]), "(tokens, pages) of the table after {call}");
            // A duplicate has lost the table, which has the trie's page for it. A new page has gained the trie.
            let swapped: Vec<_> = own.into_iter().zip(expected).filter(|(own, now)| own != now).collect();
            let (lost, mut gained): (Vec<_>, Vec<_>) = swapped.into_iter().unzip();
            gained.extend(self.expected.ids().into_iter().filter(|page| !kept.contains(page)));
            self.check(&before, &gained, &lost, &call);
        }

        /// A sequence, computed on its own pages and inserted; its table.
        fn compute(&mut self, tokens: &[u32]) -> PageTable {
            let mut table = self.table(tokens.len());
            self.insert(tokens, &mut table);
            table
        }

        /// A sequence that is computed and ends: its full pages are left to the trie.
        fn compute_and_end(&mut self, tokens: &[u32]) {
            let mut table = self.compute(tokens);
            release(&mut table, &mut self.pool);
        }

        fn lookup(&mut self, tokens: &[u32]) -> PageTable {
            let before = owners(&self.pool);
            let call = self.history.call(format!("lookup of {}", shown(tokens)));
            let expected = self.expected.lookup(tokens);
            let found = in_call(call.as_str(), || self.trie.lookup(tokens, &mut self.pool));
            let (pages, what) = (found.as_ref().map(PageTable::pages), "full ones only, with a token left to compute");
            same!(pages, Ok(&expected[..]), "pages that a lookup finds, {what}: {call}");
            let table = expect_ok(call.as_str(), || found);
            let (size, pages) = (self.expected.size, page_list(&expected));
            let found = (table.page_size(), table.len());
            same!(found, (size, expected.len() * size), "(page size, tokens) of the table with {pages} from a {call}");
            self.check(&before, &expected, &[], &call);
            table
        }

        /// Looks these tokens up, and releases the pages found.
        fn lookup_and_end(&mut self, tokens: &[u32]) {
            let mut table = self.lookup(tokens);
            release(&mut table, &mut self.pool);
        }

        /// Evicts up to `n` pages, and compares which.
        fn evict(&mut self, n: usize) -> usize {
            let before = owners(&self.pool);
            let gone = self.expected.evict(n, |page| before[page.index()] > 1);
            let call = self.history.call(format!("evict({}), which must take {}", argument(n), page_list(&gone)));
            let evicted = expect_ok(call.as_str(), || self.trie.evict(n, &mut self.pool));
            for (page, after) in owners(&self.pool).into_iter().enumerate() {
                let in_use = before[page] > 1 && after < before[page];
                assert!(!in_use, "page {page} is in use by a sequence, and was taken by {call}");
            }
            same!(evicted, gone.len(), "pages that it says it has evicted: {call}");
            self.check(&before, &[], &gone, &call);
            evicted
        }

        /// Makes a call over a different pool, which must be refused, and must change neither that nor the trie.
        fn assert_refuses(
            &mut self,
            call: &str,
            (n_pages, owned, error): &(usize, &[u32], CacheError),
            make: impl FnOnce(&mut PrefixTrie, &mut PagePool) -> Result<(), CacheError>,
        ) {
            let pages = plural(*n_pages, "page");
            let call = format!("{call}, over a different pool with {pages}, of which {owned:?} have an owner");
            let mut world = (&mut self.trie, pool_with_owned(*n_pages, owned));
            let facts = |(trie, pool): &mut (&mut PrefixTrie, PagePool)| {
                let of_trie = [fact("pages of the trie", trie.n_pages()), fact("their last use", last_used(trie))];
                [of_trie, of_other_pool(pool)].concat()
            };
            assert_refused(&mut world, &call, error.clone(), facts, |(trie, pool)| make(trie, pool));
        }

        fn refuses_insert(&mut self, tokens: &[u32], table: &mut PageTable, pools: &[(usize, &[u32], CacheError)]) {
            for pool in pools {
                let before = table.pages().to_vec();
                let call = format!(
                    "{}: before anything changes, it asks about all pages of the table, also one that is not full, and \
                     about those that it found",
                    inserting(tokens, table)
                );
                self.assert_refuses(&call, pool, |trie, pool| trie.insert(tokens, table, pool));
                same!(table.pages(), before, "pages of the table after the refused {call}");
            }
            self.insert(tokens, table);
        }
    }

    fn trie(size: usize) -> PrefixTrie {
        expect_ok(format!("PrefixTrie::new({size})"), || PrefixTrie::new(size))
    }

    /// An insert in words.
    fn inserting(tokens: &[u32], table: &PageTable) -> String {
        let (held, pages) = (plural(table.len(), "token"), page_list(table.pages()));
        format!("insert of {}, of which a table holds {held} in {pages}", shown(tokens))
    }

    /// Numbers up to `MANY`, each twice the last. What goes through everything again and again takes too long at one of
    /// them, and still comes to an end.
    fn more_and_more() -> impl Iterator<Item = usize> {
        [32, 16, 8, 4, 2, 1].into_iter().map(|part| MANY / part)
    }

    /// This many tokens: 1, 2, 3 …
    fn counting(n: usize) -> Vec<u32> {
        (1..=n as u32).collect()
    }

    // Task 1

    #[test]
    fn task_1_a_full_page_is_taken_and_no_other() {
        for size in 1..=LARGEST_PAGE {
            for len in 0..=3 * size + 1 {
                let why = "full pages are taken, the last one too, and one that is not full is not";
                let mut checked = CheckedTrie::new(size, 20, why);
                let mut table = checked.compute(&counting(len));
                // The same table again changes nothing; a table that has grown adds its new pages.
                checked.insert(&counting(len), &mut table);
                grow(&mut table, size, &mut checked.pool);
                checked.insert(&counting(len + size), &mut table);
            }
        }
    }

    #[test]
    fn task_1_tokens_that_are_not_computed_are_not_taken() {
        for held in [0, 3, 4, 5, 7, 8, 11] {
            let mut checked =
                CheckedTrie::new(4, 5, "the rows of the tokens that the table does not hold are not computed");
            let mut table = checked.table(held);
            checked.insert(&counting(13), &mut table);
        }
    }

    #[test]
    fn task_1_b_equal_prefixes_share_pages_and_no_others_do() {
        let after_different_tokens = "rows depend on all tokens before them";
        for (size, sequences, why) in [
            (4, &[&[1, 2, 3, 4, 5, 6, 7, 8, 9][..], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]][..], "duplicates are swapped"),
            (4, &[&[1, 2, 3, 4], &[1, 2, 3, 4, 5, 6, 7, 8]], "duplicates are swapped, and new pages follow them"),
            (4, &[&[1, 2, 3, 4, 5, 6, 7, 8], &[1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13]], "the eighth token differs"),
            (2, &[&[1, 1, 7, 7, 8, 8], &[2, 2, 7, 7, 8, 8], &[7, 7, 7, 7, 7, 7]], after_different_tokens),
        ] {
            for first_ends in [true, false] {
                let mut checked = CheckedTrie::new(size, 18, why);
                let mut tables: Vec<_> = sequences.iter().map(|tokens| checked.compute(tokens)).collect();
                if first_ends {
                    release(&mut tables.remove(0), &mut checked.pool);
                }
                tables.extend(sequences.iter().map(|tokens| checked.compute(tokens)));
            }
        }
    }

    #[test]
    fn task_1_duplicates_that_a_fork_has_too_lose_one_owner() {
        let mut checked = CheckedTrie::new(4, 7, "a fork has the page that was swapped in the table, and keeps it");
        checked.compute_and_end(&counting(4));
        let mut table = checked.table(5);
        let mut fork = expect_ok("PageTable::fork of chapter 10", || table.fork(&mut checked.pool));
        checked.insert(&counting(5), &mut table);
        checked.insert(&counting(5), &mut fork);
    }

    /// Pages that a careless key takes for one another: a sum, an order, digits side by side, a cut.
    #[test]
    fn task_1_pages_are_told_apart_by_all_of_their_tokens() {
        let tokens = [0, 1, 2, 11, 12, 111, 1 << 8, 1 << 16, 1 << 16 | 2, 1 << 31, u32::MAX];
        let mut checked = CheckedTrie::new(2, 122, "this page is new, though others much like it are kept");
        for (a, b) in tokens.iter().flat_map(|a| tokens.map(|b| (*a, b))) {
            checked.compute_and_end(&[a, b]);
        }
    }

    #[test]
    fn task_1_tables_that_do_not_fit_are_refused() {
        let drafts = "draft tokens that were not accepted are in no sequence, and must not be kept";
        let other_size = "the trie has pages of 4 slots";
        for (size, held, given, why) in
            [(4, 1, 0, drafts), (4, 9, 8, drafts), (4, 12, 11, drafts), (2, 8, 8, other_size), (8, 8, 8, other_size)]
        {
            let mut checked = CheckedTrie::new(4, 8, "");
            let mut table = table(size, held, &mut checked.pool);
            let question = format!("{} of {size} slots", inserting(&counting(given), &table));
            assert_panics(&format!("{question} ({why})"), || {
                checked.trie.insert(&counting(given), &mut table, &mut checked.pool)
            });
            same!(checked.trie.n_pages(), 0, "pages of the trie after the refused {question}");
            release(&mut table, &mut checked.pool);
            same!(checked.pool.n_free(), 8, "free pages when the table is released, after the refused {question}");
        }
    }

    #[test]
    fn task_1_insert_over_a_different_pool_changes_nothing() {
        let mut checked = CheckedTrie::new(4, 5, "after the refusals");
        // The table's pages are 0, 1 and 2, which is not full.
        let mut table = checked.table(9);
        let [one, two, three] =
            [(5, &[0, 2][..], double_free(1)), (5, &[1, 2], double_free(0)), (5, &[0, 1], double_free(2))];
        // Two bad pages, of which the first is told.
        let pools = [(1, &[0][..], foreign_page(1, 1)), (2, &[1], double_free(0)), one, two, three];
        checked.refuses_insert(&counting(9), &mut table, &pools);

        // The trie's pages are 2 and 3. The table's, 0 and 1, have owners in the other pools.
        let mut checked = CheckedTrie::new(4, 5, "after the refusals");
        let mut unused = checked.table(8);
        checked.compute_and_end(&counting(8));
        release(&mut unused, &mut checked.pool);
        let mut table = checked.table(8);
        same!(table.pages(), [PageId(0), PageId(1)], "pages of a table with the tokens that are kept in 2 and 3");
        let [two, three] = [(5, &[0, 1, 3][..], double_free(2)), (5, &[0, 1, 2], double_free(3))];
        // Pages of both are bad: those of the table count first.
        let both = (5, &[0, 3][..], double_free(1));
        let pools = [(3, &[0, 1, 2][..], foreign_page(3, 3)), (3, &[0, 1], double_free(2)), three, two, both];
        checked.refuses_insert(&counting(8), &mut table, &pools);
    }

    /// A trie with one sequence of this many pages, one token each, its pool and the sequence's table.
    fn long(many: usize) -> (PrefixTrie, PagePool, PageTable) {
        let (mut trie, mut pool) = (trie(1), pool(many));
        let mut table = table(1, many, &mut pool);
        for time in ["first", "second"] {
            let what = format!("{time} insert of a sequence of {many} pages");
            // The same token all along: only its place tells a page from the others.
            same!(assert_one_pass(&what, || trie.insert(&vec![7; many], &mut table, &mut pool)), Ok(()), "{what}");
            same!(trie.n_pages(), many, "pages of the trie after the {what}");
        }
        let wrong = owners(&pool).iter().position(|owners| *owners != 2);
        same!(wrong, None, "the first page that has not two owners, table and trie, of a sequence of {many} pages");
        (trie, pool, table)
    }

    #[test]
    fn task_1_very_long_sequences_take_one_pass_and_no_recursion() {
        more_and_more().for_each(|many| drop(long(many)));
    }

    /// A trie that keeps `n` sequences of one page of two tokens each, which are their number; and its pool.
    fn keep_many(n: usize) -> (PrefixTrie, PagePool) {
        let (mut trie, mut pool) = (trie(2), pool(n));
        assert_constant_cost(&format!("insert of sequences of one page, {n} of them in turn"), n, |number| {
            let mut table = PageTable::new(2).expect("a page table of chapter 5");
            let grown = table.grow(2, &mut pool);
            let inserted = trie.insert(&[number as u32; 2], &mut table, &mut pool);
            let found = (grown, inserted, table.release(&mut pool));
            same_each(found, (Ok(()), Ok(()), Ok(())), || format!("grow, insert and release of sequence {number}"));
        });
        same!(trie.n_pages(), n, "pages of the trie after inserts of {n} different sequences of one page");
        (trie, pool)
    }

    #[test]
    fn task_1_very_many_sequences_cost_no_more() {
        same!(keep_many(MANY).1.n_free(), 0, "free pages when the trie has all {MANY}");
    }

    // Task 2

    #[test]
    fn task_2_a_full_pages_are_found_and_one_token_is_left() {
        for size in 1..=LARGEST_PAGE {
            for kept in 0..=3 * size + 1 {
                let why = "the logits after the last token are wanted, so it must be computed";
                let mut checked = CheckedTrie::new(size, 20, why);
                let tokens = counting(4 * size + 2);
                checked.compute_and_end(&tokens[..kept]);
                for len in 0..=4 * size + 2 {
                    checked.lookup_and_end(&tokens[..len]);
                }
            }
        }
    }

    #[test]
    fn task_2_a_page_is_found_after_its_own_prefix_only() {
        let mut checked =
            CheckedTrie::new(2, 9, "a page is found after the tokens that came before it, and after no others");
        checked.compute_and_end(&[1, 1, 7, 7, 8, 8]);
        checked.compute_and_end(&[2, 2, 7, 7, 8, 8]);
        let tokens = [0, 1, 2, 7, 8];
        for (a, b, c) in tokens.iter().flat_map(|a| tokens.iter().flat_map(move |b| tokens.map(|c| (*a, *b, c)))) {
            checked.lookup_and_end(&[a, a, b, b, c, 8, 9]);
        }
        checked.lookup_and_end(&[2, 1, 1, 7, 7]);
    }

    #[test]
    fn task_2_very_many_sequences_cost_no_more() {
        let (mut trie, mut pool) = keep_many(MANY);
        // Three sequences in four are not there. A key of 32 bits takes some of them for one that is.
        assert_constant_cost(&format!("lookup in a trie of {MANY} sequences"), 4 * MANY, |number| {
            let number = number as u32;
            let expected = if number < MANY as u32 { vec![PageId(number)] } else { Vec::new() };
            let what = || format!("lookup of [{number}, {number}, 0] in a trie of {MANY} sequences of one page");
            let found = trie.lookup(&[number, number, 0], &mut pool);
            same_each(found.as_ref().map(PageTable::pages), Ok(&expected[..]), what);
            let released = found.and_then(|mut table| table.release(&mut pool));
            same_each(released, Ok(()), || format!("release after a {}", what()));
        });
        same!(trie.n_evictable(&pool), MANY, "pages that the trie owns alone after lookups that were released");
    }

    #[test]
    fn task_2_very_long_sequences_take_one_pass_and_no_recursion() {
        for many in more_and_more() {
            let (mut trie, mut pool, mut kept) = long(many);
            same!(kept.release(&mut pool), Ok(()), "release of a table with {many} pages, after its insert");
            let what = format!("lookup of a sequence of {many} pages of one token, all kept");
            let table = assert_one_pass(&what, || expect_ok("lookup", || trie.lookup(&vec![7; many], &mut pool)));
            same!(table.len(), many - 1, "tokens found by the {what}");
            let owners = owners(&pool);
            let wrong = (0..many - 1).find(|place| table.pages()[*place].index() != *place || owners[*place] != 2);
            same!(wrong, None, "the first place with a different page, or one without two owners, after the {what}");
        }
    }

    #[test]
    fn task_2_lookup_over_a_different_pool_changes_nothing() {
        let mut checked = CheckedTrie::new(4, 4, "after the refusals");
        checked.compute_and_end(&counting(12));
        let [zero, one, two] =
            [(4, &[1, 2][..], double_free(0)), (4, &[0, 2], double_free(1)), (4, &[0, 1], double_free(2))];
        for pool in [(2, &[0, 1][..], foreign_page(2, 2)), (2, &[1], double_free(0)), two, zero, one] {
            let what = "lookup that finds pages 0, 1, 2";
            checked.assert_refuses(what, &pool, |trie, pool| trie.lookup(&counting(13), pool).map(drop));
        }
        checked.lookup_and_end(&counting(13));
    }

    fn with_prefix(slab: &SharedSlab, trie: &mut PrefixTrie, tokens: &[u32]) -> ForkCache {
        expect_ok(format!("ForkCache::with_prefix of {}", shown(tokens)), || ForkCache::with_prefix(slab, trie, tokens))
    }

    // Task 3

    /// Makes calls on a trie with pages of one slot. `insert 1 2` computes a sequence, inserts it and ends it, and
    /// `insert_first` does so with a table that holds only the first token.
    fn perform(checked: &mut CheckedTrie, calls: &str) {
        for call in calls.split("; ") {
            let (verb, numbers) = call.split_once(' ').expect("a verb and numbers");
            let tokens: Vec<u32> = numbers.split(' ').map(|number| number.parse().expect("a number")).collect();
            match verb {
                "insert" => checked.compute_and_end(&tokens),
                "insert_first" => {
                    let mut table = checked.table(1);
                    checked.insert(&tokens, &mut table);
                    release(&mut table, &mut checked.pool);
                }
                "lookup" => checked.lookup_and_end(&tokens),
                _ => drop(checked.evict(tokens[0] as usize)),
            }
        }
    }

    #[test]
    fn task_3_a_the_least_recently_used_leaf_goes_first() {
        for (calls, why) in [
            (
                "insert 1; insert 2; insert 3; insert 4; lookup 1 9; insert 2",
                "a lookup and an insert use the pages that they find: these are newer",
            ),
            ("insert 1 2 3 4; evict 1; lookup 1 2 3 4 5; evict 2", "a page goes after those that follow it"),
            ("insert 1 2 3; insert 1 50; insert 70; evict 99; evict 1", "no more than there are"),
            ("insert 1 2; insert 3; lookup 1 2 9", "a lookup uses all pages that it returns, the last one too"),
            ("insert 1 2; insert 3; insert 1 2", "an insert uses all pages of its table, the last one too"),
            ("insert 1 2 3; insert 50; insert_first 1 2 3", "an insert uses no page beyond its table"),
            (
                "insert 1 2; insert 3; lookup 1 2",
                "a lookup uses the pages that it returns, and not those that it leaves to be computed",
            ),
            (
                "insert 1 2; insert 3 4; evict 2",
                "a page that has become a leaf can go next: each page is chosen anew, not in rounds of leaves",
            ),
            (
                "insert 1 2; insert 3; lookup 1 9; evict 2",
                "a page that has become a leaf goes only if no other leaf was used longer ago",
            ),
            (
                "insert 1 10; insert 1 11; insert 1 12; insert 2 10; evict 1; lookup 1 11 0",
                "the pages beside the one that goes stay",
            ),
            ("insert 1 2 3; evict 2; insert 1 2 3; evict 2; insert 4 5", "what was evicted can come again"),
        ] {
            let mut checked = CheckedTrie::new(1, 6, why);
            perform(&mut checked, calls);
            while checked.evict(1) > 0 {}
            [1, 2, 3, 70].iter().for_each(|token| checked.lookup_and_end(&[*token, 0]));
        }
    }

    #[test]
    fn task_3_pages_in_use_stay() {
        let mut checked = CheckedTrie::new(2, 9, "pages of a sequence that goes on, or that a lookup has, must stay");
        let mut a = checked.compute(&counting(5));
        checked.compute_and_end(&[1, 2, 50, 51]);
        checked.evict(9);
        release(&mut a, &mut checked.pool);
        let mut found = checked.lookup(&counting(3));
        checked.evict(9);
        release(&mut found, &mut checked.pool);
        // In 32 bits that is 0, and no memory has room for so many.
        checked.evict(usize::MAX << 32);
    }

    #[test]
    fn task_3_an_insert_uses_pages_that_the_table_already_has() {
        let mut checked = CheckedTrie::new(1, 4, "an insert uses all pages of its table that the trie has");
        let mut a = checked.compute(&[1, 2]);
        checked.compute_and_end(&[3]);
        checked.insert(&[1, 2], &mut a);
        release(&mut a, &mut checked.pool);
        while checked.evict(1) > 0 {}
    }

    /// When each page was last used, as the trie lists it; nothing if it lists none.
    fn last_used(trie: &PrefixTrie) -> Vec<u64> {
        let mut pages = trie.pages();
        pages.sort_by_key(|held| held.page);
        pages.iter().map(|held| held.last_used).collect()
    }

    /// A trie that lists no pages is not checked here.
    #[test]
    fn task_3_a_each_call_is_a_tick_of_the_clock() {
        let mut checked = CheckedTrie::new(2, 9, "");
        checked.compute_and_end(&counting(6));
        checked.compute_and_end(&[50, 50]);
        let same_order = |trie: &PrefixTrie, expected: [usize; 4], then: &str| {
            let found = last_used(trie);
            let ticks: BTreeSet<u64> = found.iter().copied().collect();
            let order: Vec<_> = found.iter().map(|used| ticks.range(..used).count()).collect();
            if !order.is_empty() {
                same!(
                    order,
                    expected,
                    "the order in which pages 0 to 3 were last used, as `pages` lists them: 0, 1 and 2 were inserted \
                     with one call, then 3, and then {then}. Each lookup and each insert is a tick of the clock, which \
                     all pages that it uses note. Their times are {found:?}"
                );
            }
        };
        checked.lookup_and_end(&counting(5));
        same_order(&checked.trie, [2, 2, 0, 1], "0 and 1 were looked up");
        checked.compute_and_end(&[50, 50]);
        same_order(&checked.trie, [1, 1, 0, 2], "0 and 1 were looked up, and 3 was inserted again");
        checked.compute_and_end(&counting(6));
        same_order(&checked.trie, [1, 1, 1, 0], "0, 1 and 2 were looked up and inserted again");
    }

    #[test]
    fn task_3_evict_over_a_different_pool_changes_nothing() {
        let mut checked = CheckedTrie::new(2, 4, "after the refusal");
        let mut spare = checked.table(2);
        checked.compute_and_end(&counting(2));
        release(&mut spare, &mut checked.pool);
        let what = "evict(2), where the trie has page 1";
        checked.assert_refuses(what, &(1, &[0], foreign_page(1, 1)), |trie, pool| trie.evict(2, pool).map(drop));
        checked.evict(3);
        // Page 0 goes, and then page 1, which it follows, is not there. A trie can also ask about both before.
        same!(checked.compute(&counting(4)).pages(), [PageId(1), PageId(0)], "pages of a table, 1 was freed last");
        let mut other = pool_with_owned(1, &[0]);
        let what = "evict(2) of page 0, which follows page 1, over a pool of 1";
        same!(checked.trie.evict(2, &mut other), Err(foreign_page(1, 1)), "{what}");
        let left = 2 - other.n_free();
        same!(checked.trie.n_pages(), left, "pages of the trie; what was evicted stays so, after the refused {what}");
    }

    #[test]
    fn task_3_the_oldest_of_very_many_goes() {
        for many in more_and_more() {
            let (mut trie, mut pool) = keep_many(many);
            for page in 0..3 {
                let evicted = assert_one_pass(&format!("evict(1) of {many} pages"), || trie.evict(1, &mut pool));
                let what = "evict(1), and owners of the page that was used longest ago";
                same!((evicted, pool.owners(PageId(page))), (Ok(1), Ok(0)), "{what}, page {page} of {many}");
            }
        }
        // More pages than 8 bits count.
        let ((mut trie, mut pool), what) = (keep_many(301), "evict(300) of 301 pages");
        let found = in_call(what, || (trie.evict(300, &mut pool), trie.n_pages(), pool.n_free()));
        same!(found, (Ok(300), 1, 300), "{what}, and then the pages of the trie and the free ones");
    }

    // The whole chapter

    /// What tokens are called in the transcript.
    const WORDS: [&str; 8] = ["once", "upon", "a", "time", "there", "lived", "king", "queen"];

    fn tokens(words: &str) -> Vec<u32> {
        words.split(' ').map(|word| WORDS.iter().position(|other| *other == word).unwrap_or(99) as u32).collect()
    }

    #[test]
    fn whole_transcript() {
        let (mut trie, mut pool) = (trie(2), pool(6));
        let mut tables: HashMap<&str, PageTable> = HashMap::new();
        let mut transcript = Transcript::default();
        transcript.line("page size 2, 6 pages; in brackets: owners of pages 0 to 5");
        for (name, operation, words) in [
            ("a", "compute", "once upon a time there"),
            ("a", "insert", "once upon a time there"),
            ("a", "end", ""),
            ("b", "lookup", "once upon a king"),
            ("b", "compute", "once upon a king"),
            ("b", "insert", "once upon a king"),
            ("c", "lookup", "once upon a time"),
            ("c", "compute", "once upon a time"),
            ("c", "insert", "once upon a time"),
            ("d", "compute", "once upon a king lived"),
            ("d", "insert", "once upon a king lived"),
            ("b", "end", ""),
            ("c", "end", ""),
            ("", "evict(1)", ""),
            ("e", "lookup", "once upon a time there"),
            ("", "evict(9)", ""),
            ("d", "end", ""),
            ("", "evict(9)", ""),
            ("e", "end", ""),
            ("", "evict(9)", ""),
        ] {
            let _call = enter_call(format!("{operation} of \"{words}\", in the transcript"));
            let outcome = match operation {
                "compute" => {
                    let table = tables.entry(name).or_insert_with(|| table(2, 0, &mut pool));
                    let missing = words.split(' ').count() - table.len();
                    let grown = table.grow(missing, &mut pool);
                    grown.map(|()| format!("{missing} new, {}", page_list(table.pages())))
                }
                "insert" => {
                    let table = tables.get_mut(name).expect("a sequence of the script");
                    trie.insert(&tokens(words), table, &mut pool).map(|()| page_list(table.pages()))
                }
                "lookup" => trie.lookup(&tokens(words), &mut pool).map(|table| {
                    let told = format!("finds {}", page_list(table.pages()));
                    tables.insert(name, table);
                    told
                }),
                "end" => {
                    tables.remove(name).map_or(Ok(()), |mut table| table.release(&mut pool)).map(|()| String::new())
                }
                _ => {
                    let n = operation.trim_matches(|letter: char| !letter.is_ascii_digit()).parse().unwrap_or(0);
                    trie.evict(n, &mut pool).map(|n| format!("{n} evicted"))
                }
            };
            let told = outcome.unwrap_or_else(|error| in_short(&error));
            let owners = owners(&pool).iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
            let (held, free) = (trie.n_pages(), pool.n_free());
            transcript
                .line(format!("{name:<2}{operation:<8}{words:<22} {told:<18} trie {held} free {free} [{owners}]"));
        }
        assert_transcript("ch11_prefix_cache", &transcript);
    }

    #[test]
    fn whole_oracle() {
        for (seed, mut rng) in seeded(40) {
            let (size, n_pages, words) = (rng.roll(1, 4), rng.roll(4, 14), rng.roll(1, 3));
            let mut checked = CheckedTrie::new(size, n_pages, &format!("seed {seed}"));
            let mut sequences: Vec<(Vec<u32>, PageTable)> = Vec::new();
            for _ in 0..STEPS {
                let mut random = |most: usize| -> Vec<u32> {
                    let len = rng.roll(0, most);
                    (0..len).map(|_| rng.roll(1, words) as u32).collect()
                };
                let (begin, more) = (random(4 * size + 1), random(2 * size + 1));
                let event = if sequences.is_empty() { 0 } else { rng.roll(0, 11) };
                if (event < 3 || event == 10) && sequences.len() == 4 {
                    continue;
                }
                if event < 3 {
                    let table = checked.lookup(&begin);
                    sequences.push((begin[..table.len()].to_vec(), table));
                    continue;
                }
                let index = rng.roll(0, sequences.len() - 1);
                let (tokens, table) = &mut sequences[index];
                match event {
                    3 => release(&mut sequences.remove(index).1, &mut checked.pool),
                    4..6 => drop(checked.evict(rng.roll(0, 4))),
                    6..9 => {
                        // A page for the tail, if it is shared.
                        if table.pages_needed(more.len()) < checked.pool.n_free() {
                            expect_ok("copy_shared_tail of chapter 10", || table.copy_shared_tail(&mut checked.pool));
                            grow(table, more.len(), &mut checked.pool);
                            tokens.extend(more);
                        }
                    }
                    9 => {
                        let n = rng.roll(0, table.len());
                        expect_ok(format!("rewind({n}) of chapter 7"), || table.rewind(n, &mut checked.pool));
                        tokens.truncate(table.len());
                    }
                    10 => {
                        let fork = expect_ok("PageTable::fork of chapter 10", || table.fork(&mut checked.pool));
                        let tokens = tokens.clone();
                        sequences.push((tokens, fork));
                    }
                    _ => checked.insert(tokens, table),
                }
            }
            sequences.into_iter().for_each(|(_, mut table)| release(&mut table, &mut checked.pool));
            checked.evict(n_pages);
            let what = "free pages when all sequences are gone and all is evicted";
            same!(checked.pool.n_free(), n_pages, "{what}, seed {seed}");
        }
    }

    #[test]
    fn whole_story() {
        const SIZE: usize = 4;
        let storyteller = Storyteller::open();
        let (slab, mut trie) = (slab_of(storyteller.model.config().kv_layout(), SIZE, 16), trie(SIZE));
        let begin = storyteller.tokenizer.encode("Once upon a time there lived a king who had a golden");
        let begin = begin.expect("the prompt can be encoded");
        let first: Vec<u32> = storyteller.alone(&begin, 12).into_iter().map(|(token, _)| token).collect();
        let found = (begin.len() - 1) / SIZE;
        for (number, (prompt, pages)) in [
            (begin.clone(), 0),
            (begin.clone(), found),
            // The third goes on from the story of the second, and the fourth branches off.
            ([&begin[..], &first].concat(), (begin.len() + first.len() - 1) / SIZE),
            ([&begin[..begin.len() - 2], &begin[..3]].concat(), (begin.len() - 2) / SIZE),
        ]
        .into_iter()
        .enumerate()
        {
            let mut cache = with_prefix(&slab, &mut trie, &prompt);
            same!(
                cache.len(),
                pages * SIZE,
                "tokens that ForkCache::with_prefix finds of prompt {number} of the story"
            );
            let mut tokens = prompt.clone();
            for (step, (token, expected)) in storyteller.alone(&prompt, 12).into_iter().enumerate() {
                let at = format!("step {step} of story {number}, {} of {} tokens cached", cache.len(), tokens.len());
                let logits = expect_ok(&at, || CachedModel::new(&storyteller.model, &mut cache).next_logits(&tokens));
                let is_same = bits(&logits) == bits(&expected);
                assert!(is_same, "{at}: the logits are not, bit for bit, those of the story without a cache");
                same!(cache.insert_into(&mut trie, &tokens), Ok(()), "insert_into after {at}");
                tokens.push(token);
            }
            in_call(format!("drop of the cache of story {number}"), || drop(cache));
            let left = slab.borrow().pool().n_free() + trie.n_pages();
            same!(left, 16, "pages that are free or the trie's, when story {number} has ended");
        }
        let held = trie.n_pages();
        same!(slab.borrow_mut().evict(&mut trie, 99), Ok(held), "evict(99) when all stories have ended");
        same!(slab.borrow().pool().n_free(), 16, "free pages of 16 when all pages of the stories are evicted");
    }
}
