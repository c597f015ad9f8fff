//! Grader of chapter 11: the prefix cache.

#[cfg(unstarted = "ch11_prefix_cache")]
#[test]
#[ignore = "not started: edit exercises/ch11_prefix_cache.rs, or run with --features solution"]
fn ch11_prefix_cache() {}

#[cfg(not(unstarted = "ch11_prefix_cache"))]
#[macro_use]
mod support;

#[cfg(not(unstarted = "ch11_prefix_cache"))]
whose_code! {
    ch04_page_pool = "ch04_page_pool",
    ch05_page_table = "ch05_page_table",
    ch06_paged = "ch06_paged",
    ch07_rewind = "ch07_rewind",
    ch10_fork = "ch10_fork",
    ch11_prefix_cache = "ch11_prefix_cache",
}

#[cfg(not(unstarted = "ch11_prefix_cache"))]
mod checks {
    use std::collections::{HashMap, HashSet};
    use std::mem::ManuallyDrop;

    use page_by_page::cache::{CacheError, KvCache, KvLayout, PageId};
    use page_by_page::chapters::ch04_page_pool::PagePool;
    use page_by_page::chapters::ch05_page_table::PageTable;
    use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
    use page_by_page::chapters::ch10_fork::ForkCache;
    use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
    use page_by_page::decode::sampler::Sampler;
    use page_by_page::decode::{Cached, LanguageModel};
    use page_by_page::prefixes::Prefixes;

    use crate::support::asking::{asking, granted, made, quietly};
    use crate::support::limits::{often, once};
    use crate::support::oracle::{Dice, Oracle, STEPS, seeds};
    use crate::support::story::{SAMPLING, Storyteller, Watched};
    use crate::support::transcript::{Transcript, assert_transcript, told, told_pages};
    use crate::support::words::count;

    /// Three numbers that cannot be taken for one another, nor for a page size.
    const LAYOUT: KvLayout = KvLayout { n_layers: 3, n_kv_heads: 2, head_dim: 5 };

    /// More pages than 16 bits count: in one sequence, or in as many sequences.
    const MANY: usize = if cfg!(miri) { 300 } else { 100_000 };

    /// Up to this page size every case is tried.
    const LARGEST_PAGE: usize = if cfg!(miri) { 3 } else { 5 };

    /// What must be found: every prefix that is kept, written out, in no order and with no links.
    struct Shelf {
        size: usize,
        pages: Vec<Kept>,
        turns: u64,
    }

    struct Kept {
        prefix: Vec<u32>,
        page: PageId,
        last_used: u64,
    }

    impl Shelf {
        fn new(size: usize) -> Self {
            Shelf { size, pages: Vec::new(), turns: 0 }
        }

        fn at(&mut self, prefix: &[u32]) -> Option<&mut Kept> {
            self.pages.iter_mut().find(|kept| kept.prefix == prefix)
        }

        /// The pages of the longest prefix of these tokens, which are used by that.
        fn lookup(&mut self, tokens: &[u32]) -> Vec<PageId> {
            self.turns += 1;
            let turn = self.turns;
            let mut pages = Vec::new();
            for end in (self.size..tokens.len()).step_by(self.size) {
                let Some(kept) = self.at(&tokens[..end]) else { break };
                kept.last_used = turn;
                pages.push(kept.page);
            }
            pages
        }

        /// What the table of these tokens has after its insert; before, it had `own`.
        fn insert(&mut self, tokens: &[u32], own: &[PageId]) -> Vec<PageId> {
            self.turns += 1;
            let turn = self.turns;
            let mut pages = own.to_vec();
            for (place, end) in (self.size..=tokens.len()).step_by(self.size).enumerate() {
                if self.at(&tokens[..end]).is_none() {
                    self.pages.push(Kept { prefix: tokens[..end].to_vec(), page: own[place], last_used: 0 });
                }
                if let Some(kept) = self.at(&tokens[..end]) {
                    kept.last_used = turn;
                    pages[place] = kept.page;
                }
            }
            pages
        }

        /// Takes `n` pages off the shelf, or as many as it can, in the order in which they go; `used` are those of a table.
        fn evict(&mut self, n: usize, used: &HashSet<PageId>) -> Vec<PageId> {
            let follows = |kept: &Kept, other: &Kept| {
                kept.prefix.len() < other.prefix.len() && other.prefix.starts_with(&kept.prefix)
            };
            let mut gone = Vec::new();
            while gone.len() < n {
                let is_free =
                    |kept: &&Kept| !used.contains(&kept.page) && !self.pages.iter().any(|other| follows(kept, other));
                let Some(next) = self.pages.iter().filter(is_free).min_by_key(|kept| kept.last_used) else { break };
                let page = next.page;
                gone.push(page);
                self.pages.retain(|kept| kept.page != page);
            }
            gone
        }
    }

    /// A pool and the trie over its pages. What each call must do is read off a shelf.
    struct Desk {
        trie: PrefixCache,
        pool: PagePool,
        shelf: Shelf,
        /// What a failure says about the rule.
        why: String,
        history: Vec<String>,
    }

    impl Desk {
        #[track_caller]
        fn new(size: usize, n_pages: usize, why: &str) -> Self {
            let (trie, pool) = (trie(size), pool(n_pages));
            Desk { trie, pool, shelf: Shelf::new(size), why: why.into(), history: Vec::new() }
        }

        /// A call in words, with the rule and what came before.
        fn asked(&mut self, call: String) -> String {
            let before = self.history[self.history.len().saturating_sub(6)..].join("; ");
            let before = if before.is_empty() { String::new() } else { format!("\n  before: {before}") };
            let asked = format!("{call}, page size {}\n  {}{before}", self.shelf.size, self.why);
            self.history.push(call);
            asked
        }

        /// Compares the trie and the pool with the shelf, after a call with which pages have gained or lost an owner.
        #[track_caller]
        fn check(&self, before: &[u32], gained: &[PageId], lost: &[PageId], call: &str) {
            same!(self.trie.n_pages(), self.shelf.pages.len(), "pages of the trie after {call}");
            let after = owners(&self.pool);
            for (page, (before, after)) in before.iter().zip(&after).enumerate() {
                let is_it = |other: &&PageId| other.index() == page;
                let (more, fewer) = (gained.iter().filter(is_it).count(), lost.iter().filter(is_it).count());
                let how = match (more, fewer) {
                    (0, 0) => "as many as before",
                    (0, _) => "one fewer than before: a table or the trie has let it go",
                    _ => "one more than before: a table or the trie has taken it",
                };
                same!(*after, before + more as u32 - fewer as u32, "owners of page {page}, {how}, after {call}");
            }
            let alone = self.shelf.pages.iter().filter(|kept| after[kept.page.index()] == 1).count();
            same!(self.trie.n_evictable(&self.pool), alone, "pages that the trie owns alone, after {call}");
        }

        /// A table of so many tokens, as chapter 5 grows it.
        #[track_caller]
        fn table(&mut self, tokens: usize) -> PageTable {
            let mut table = table(self.shelf.size);
            self.grow(&mut table, tokens);
            table
        }

        #[track_caller]
        fn grow(&mut self, table: &mut PageTable, n: usize) {
            let what = format!("grow({n}) of chapter 5, on {} tokens, with pages enough", table.len());
            same!(table.grow(n, &mut self.pool), Ok(()), "{what}");
        }

        #[track_caller]
        fn insert(&mut self, tokens: &[u32], table: &mut PageTable) {
            let (before, own) = (owners(&self.pool), table.pages().to_vec());
            let asked = self.asked(inserting(tokens, table));
            let held = table.len();
            let kept: HashSet<PageId> = self.shelf.pages.iter().map(|kept| kept.page).collect();
            let expected = self.shelf.insert(&tokens[..held], &own);
            same!(self.trie.insert(tokens, table, &mut self.pool), Ok(()), "{asked}");
            // A duplicate has lost the table, which has the trie's page for it. A new page has gained the trie.
            let swapped: Vec<_> = own.iter().zip(&expected).filter(|(own, now)| own != now).collect();
            let lost: Vec<PageId> = swapped.iter().map(|(own, _)| **own).collect();
            let new = self.shelf.pages.iter().map(|kept| kept.page).filter(|page| !kept.contains(page));
            let gained: Vec<PageId> = swapped.iter().map(|(_, now)| **now).chain(new).collect();
            same!(table.len(), held, "tokens of the table after {asked}");
            same!(table.pages(), expected, "pages of the table after {asked}");
            self.check(&before, &gained, &lost, &asked);
        }

        /// A sequence, computed on its own pages and inserted; its table.
        #[track_caller]
        fn compute(&mut self, tokens: &[u32]) -> PageTable {
            let mut table = self.table(tokens.len());
            self.insert(tokens, &mut table);
            table
        }

        /// A sequence that is computed and ends: its full pages are left to the trie.
        #[track_caller]
        fn keep(&mut self, tokens: &[u32]) {
            let table = self.compute(tokens);
            self.release(table);
        }

        #[track_caller]
        fn release(&mut self, mut table: PageTable) {
            let pages = told_pages(table.pages());
            let released = table.release(&mut self.pool);
            same!(released, Ok(()), "release of a table with {pages}, by chapter 5: a page of it has lost an owner");
        }

        #[track_caller]
        fn lookup(&mut self, tokens: &[u32]) -> PageTable {
            let before = owners(&self.pool);
            let asked = self.asked(format!("lookup of {}", shown(tokens)));
            let expected = self.shelf.lookup(tokens);
            let question = asking(asked.as_str());
            let found = self.trie.lookup(tokens, &mut self.pool);
            drop(question);
            same!(
                found.as_ref().map(PageTable::pages),
                Ok(&expected[..]),
                "pages that a lookup finds, full ones only, and such that a token is left to compute: {asked}"
            );
            let table = granted(asked.as_str(), || found);
            same!(
                (table.page_size(), table.len()),
                (self.shelf.size, expected.len() * self.shelf.size),
                "(page size, tokens) of the table with {} from a {asked}",
                told_pages(&expected)
            );
            self.check(&before, &expected, &[], &asked);
            table
        }

        /// Looks these tokens up, and releases the pages found.
        #[track_caller]
        fn look(&mut self, tokens: &[u32]) {
            let table = self.lookup(tokens);
            self.release(table);
        }

        /// Evicts up to `n` pages: which, is compared with the shelf.
        #[track_caller]
        fn evict(&mut self, n: usize) -> usize {
            let before = owners(&self.pool);
            let used = |page: &PageId| before[page.index()] > 1;
            let used: HashSet<PageId> = self.shelf.pages.iter().map(|kept| kept.page).filter(used).collect();
            let gone = self.shelf.evict(n, &used);
            let asked = self.asked(format!("evict({n}), which is to take {}", told_pages(&gone)));
            let evicted = granted(asked.as_str(), || self.trie.evict(n, &mut self.pool));
            for (page, after) in owners(&self.pool).into_iter().enumerate() {
                let in_use = before[page] > 1 && after < before[page];
                assert!(!in_use, "evict({n}) took page {page}, which is in use by a sequence: {asked}");
            }
            same!(evicted, gone.len(), "pages that are gone, says {asked}");
            self.check(&before, &[], &gone, &asked);
            evicted
        }

        /// Evicts one page after the other, as long as there are any.
        #[track_caller]
        fn evict_all(&mut self) {
            while self.evict(1) > 0 {}
        }
    }

    #[track_caller]
    fn trie(size: usize) -> PrefixCache {
        made(&format!("PrefixCache::new({size})"), || PrefixCache::new(size))
    }

    #[track_caller]
    fn pool(n_pages: usize) -> PagePool {
        made(&format!("PagePool::new({n_pages}) of chapter 4"), || PagePool::new(n_pages))
    }

    #[track_caller]
    fn table(size: usize) -> PageTable {
        made(&format!("PageTable::new({size}) of chapter 5"), || PageTable::new(size))
    }

    fn owners(pool: &PagePool) -> Vec<u32> {
        (0..pool.n_pages() as u32).map(|page| pool.owners(PageId(page)).unwrap_or(u32::MAX)).collect()
    }

    /// An insert in words.
    fn inserting(tokens: &[u32], table: &PageTable) -> String {
        let (held, pages) = (count(table.len(), "token"), told_pages(table.pages()));
        format!("insert of {}, of which a table holds {held} in {pages}", shown(tokens))
    }

    /// What the trie lists of its pages, in their order; nothing if it lists none.
    fn listed(trie: &PrefixCache) -> Vec<(u32, u64)> {
        let mut pages: Vec<_> = trie.pages().iter().map(|held| (held.page.0, held.last_used)).collect();
        pages.sort();
        pages
    }

    /// Numbers up to `MANY`, each three times the last. What goes through everything again and again takes too long at one
    /// of them, and still comes to an end.
    fn more_and_more() -> impl Iterator<Item = usize> {
        [27, 9, 3, 1].into_iter().map(|part| MANY / part)
    }

    /// Tokens for a failure message; of many the first and the last.
    fn shown(tokens: &[u32]) -> String {
        match tokens {
            [] => "no tokens".into(),
            [a, b, c, .., z] if tokens.len() > 16 => format!("{} tokens [{a}, {b}, {c}, …, {z}]", tokens.len()),
            _ => format!("{tokens:?}"),
        }
    }

    /// The tokens 1, 2, 3 …, so many.
    fn counting(n: usize) -> Vec<u32> {
        (1..=n as u32).collect()
    }

    // Task 1

    #[test]
    fn task_1_a_full_page_is_taken_and_no_other() {
        for size in 1..=LARGEST_PAGE {
            for len in 0..=3 * size + 1 {
                let why = "full pages are taken, the last one too, and one that is not full is not";
                let mut desk = Desk::new(size, 20, why);
                let mut table = desk.compute(&counting(len));
                // The same table again changes nothing; a table that has grown adds its new pages.
                desk.insert(&counting(len), &mut table);
                desk.grow(&mut table, size);
                desk.insert(&counting(len + size), &mut table);
            }
        }
    }

    #[test]
    fn task_1_tokens_that_are_not_computed_are_not_taken() {
        for held in [0, 3, 4, 5, 7, 8, 11] {
            let mut desk = Desk::new(4, 5, "the rows of the tokens that the table does not hold are not computed");
            let mut table = desk.table(held);
            desk.insert(&counting(13), &mut table);
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
                let mut desk = Desk::new(size, 12, why);
                let mut tables: Vec<_> = sequences.iter().map(|tokens| desk.compute(tokens)).collect();
                if first_ends {
                    desk.release(tables.remove(0));
                }
                tables.push(desk.compute(sequences[0]));
            }
        }
    }

    #[test]
    fn task_1_duplicates_that_a_fork_has_too_lose_one_owner() {
        let mut desk = Desk::new(4, 7, "a fork has the page that was swapped in the table, and keeps it");
        desk.keep(&counting(4));
        let mut table = desk.table(5);
        let mut fork = granted("PageTable::fork of chapter 10", || table.fork(&mut desk.pool));
        desk.insert(&counting(5), &mut table);
        desk.insert(&counting(5), &mut fork);
    }

    /// Tokens that a careless key takes for one another: a sum, an order, a small polynomial, digits side by side, a cut.
    fn alike() -> Vec<Vec<u32>> {
        let mut pages = vec![
            vec![1, 12],
            vec![11, 2],
            vec![111, 2],
            vec![2, 111],
            vec![1 << 8, 0],
            vec![0, 1 << 8],
            vec![1 << 16, 0],
            vec![0, 1 << 16],
            vec![1 << 16 | 5, 5],
            vec![5, 1 << 16 | 5],
            vec![1 << 31, 0],
            vec![0, 1 << 31],
            vec![u32::MAX, u32::MAX],
            vec![u32::MAX, 0],
            vec![0, u32::MAX],
        ];
        let most = if cfg!(miri) { 4 } else { 16 };
        pages.extend((0..most).flat_map(|a| (0..most).map(move |b| vec![a, b])));
        pages.sort();
        pages.dedup();
        pages
    }

    #[test]
    fn task_1_pages_are_told_apart_by_all_of_their_tokens() {
        let pages = alike();
        let mut desk = Desk::new(2, pages.len() + 1, "this page is new, though others much like it are kept");
        pages.iter().for_each(|page| desk.keep(page));
    }

    #[test]
    fn task_1_a_table_that_holds_more_than_the_sequence_is_refused() {
        let mut desk = Desk::new(4, 4, "");
        for (held, given) in [(1, 0), (9, 8), (8, 4), (12, 11)] {
            let mut table = desk.table(held);
            let question = inserting(&counting(given), &table);
            let outcome = quietly(|| desk.trie.insert(&counting(given), &mut table, &mut desk.pool));
            assert!(
                outcome.is_none(),
                "{question}\n  did not panic: draft tokens that were not accepted are in no sequence, and must not be kept"
            );
            same!(desk.trie.n_pages(), 0, "pages of the trie after the refused {question}");
            desk.release(table);
            same!(desk.pool.n_free(), 4, "free pages when the table is released, after the refused {question}");
        }
    }

    #[test]
    fn task_1_a_table_of_a_different_page_size_is_refused() {
        let mut desk = Desk::new(4, 8, "");
        for size in [1, 2, 8] {
            let mut table = table(size);
            desk.grow(&mut table, 8);
            let outcome = quietly(|| desk.trie.insert(&counting(8), &mut table, &mut desk.pool));
            assert!(
                outcome.is_none_or(|inserted| inserted.is_err()),
                "insert of a table with pages of {size} slots into a trie of pages with 4 was accepted"
            );
            same!(desk.trie.n_pages(), 0, "pages of the trie after the refused insert of a table with pages of {size}");
            desk.release(table);
        }
    }

    /// A pool of so many pages, of which `owned` have an owner.
    #[track_caller]
    fn other_pool(n_pages: usize, owned: &[u32]) -> PagePool {
        let mut pool = pool(n_pages);
        same!(pool.alloc_n(n_pages).map(|pages| pages.len()), Ok(n_pages), "pages that alloc_n of chapter 4 gives");
        for page in (0..n_pages as u32).filter(|page| !owned.contains(page)) {
            same!(pool.free(PageId(page)), Ok(()), "free of chapter 4, of page {page}, which was handed out");
        }
        pool
    }

    /// Inserts over pools that must refuse, each given as (pages, those with an owner, why).
    #[track_caller]
    fn refused(desk: &mut Desk, tokens: &[u32], table: &mut PageTable, pools: &[(usize, &[u32], CacheError)]) {
        for (n_pages, owned, why) in pools {
            let mut pool = other_pool(*n_pages, owned);
            let which = format!("with {}, of which {owned:?} have an owner", count(*n_pages, "page"));
            let question = format!(
                "{}, over a different pool {which}: before anything changes, it is asked about \
                 all pages of the table, and one that is not full is one of them",
                inserting(tokens, table)
            );
            let before = (desk.trie.n_pages(), table.pages().to_vec(), table.len(), owners(&pool), pool.n_free());
            same!(desk.trie.insert(tokens, table, &mut pool), Err(why.clone()), "{question}");
            let after = (desk.trie.n_pages(), table.pages().to_vec(), table.len(), owners(&pool), pool.n_free());
            let what = "(pages of the trie, pages and tokens of the table, owners and free pages of that pool)";
            same!(after, before, "{what} after the refused {question}");
        }
    }

    fn foreign(page: u32, n_pages: usize) -> CacheError {
        CacheError::ForeignPage { page: PageId(page), n_pages }
    }

    fn free(page: u32) -> CacheError {
        CacheError::DoubleFree(PageId(page))
    }

    #[test]
    fn task_1_insert_over_a_different_pool_changes_nothing() {
        let mut desk = Desk::new(4, 5, "after the refusals");
        // The table's pages are 0, 1 and 2, which is not full.
        let mut table = desk.table(9);
        let pools = [(1, &[0][..], foreign(1, 1)), (5, &[0, 2], free(1)), (5, &[1, 2], free(0)), (5, &[0, 1], free(2))];
        refused(&mut desk, &counting(9), &mut table, &pools);
        desk.insert(&counting(9), &mut table);

        // The trie's pages are 2 and 3. The table's, 0 and 1, have owners in the other pools.
        let mut desk = Desk::new(4, 5, "after the refusals");
        let unused = desk.table(8);
        desk.keep(&counting(8));
        desk.release(unused);
        let mut table = desk.table(8);
        same!(table.pages(), [PageId(0), PageId(1)], "pages of a table with the tokens that are kept in 2 and 3");
        let pools = [(3, &[0, 1, 2][..], foreign(3, 3)), (5, &[0, 1, 2], free(3)), (5, &[0, 1, 3], free(2))];
        refused(&mut desk, &counting(8), &mut table, &pools);
        desk.insert(&counting(8), &mut table);
    }

    /// A trie that has one sequence of so many pages of one token, its pool and the sequence's table.
    #[track_caller]
    fn long(many: usize) -> (PrefixCache, PagePool, PageTable) {
        let (mut trie, mut pool, mut table) = (trie(1), pool(many), table(1));
        same!(table.grow(many, &mut pool), Ok(()), "grow({many}) of chapter 5");
        for time in ["first", "second"] {
            let what = format!("{time} insert of a sequence of {many} pages");
            // The same token all along: only its place tells a page from the others.
            same!(once(&what, || trie.insert(&vec![7; many], &mut table, &mut pool)), Ok(()), "{what}");
            same!(trie.n_pages(), many, "pages of the trie after the {what}");
        }
        let wrong = owners(&pool).iter().position(|owners| *owners != 2);
        same!(wrong, None, "the first page that has not two owners, table and trie, of a sequence of {many} pages");
        (trie, pool, table)
    }

    #[test]
    fn task_1_very_long_sequences_take_no_recursion() {
        more_and_more().for_each(|many| drop(long(many)));
    }

    /// A trie that keeps many sequences of one page each, whose tokens are their number, and its pool.
    #[track_caller]
    fn keep_many(size: usize, n: usize) -> (PrefixCache, PagePool) {
        let (mut trie, mut pool) = (trie(size), pool(n));
        let mut outcome = Ok(());
        often(&format!("insert of sequences of one page, {n} of them in turn"), n, |number| {
            let mut table = PageTable::new(size).expect("a page table of chapter 5");
            outcome = outcome.clone().and(table.grow(size, &mut pool));
            outcome = outcome.clone().and(trie.insert(&vec![number as u32; size], &mut table, &mut pool));
            outcome = outcome.clone().and(table.release(&mut pool));
        });
        same!(outcome, Ok(()), "inserts of {n} sequences of one page, each released again");
        same!(trie.n_pages(), n, "pages of the trie after inserts of {n} different sequences of one page");
        (trie, pool)
    }

    #[test]
    fn task_1_very_many_sequences_cost_no_more() {
        same!(keep_many(2, MANY).1.n_free(), 0, "free pages when the trie has all {MANY}");
    }

    #[test]
    fn given_a_page_needs_slots() {
        same!(PrefixCache::new(0).err(), Some(CacheError::NoSlots), "PrefixCache::new(0)");
    }

    // Task 2

    #[test]
    fn task_2_a_full_pages_are_found_and_one_token_is_left() {
        for size in 1..=LARGEST_PAGE {
            for kept in 0..=3 * size + 1 {
                let why = "the logits after the last token are what is wanted: it must be computed";
                let mut desk = Desk::new(size, 20, why);
                let tokens = counting(4 * size + 2);
                desk.keep(&tokens[..kept]);
                for len in 0..=4 * size + 2 {
                    desk.look(&tokens[..len]);
                }
            }
        }
    }

    #[test]
    fn task_2_the_first_difference_ends_the_prefix() {
        let mut desk = Desk::new(2, 4, "the first difference ends the prefix");
        desk.keep(&counting(8));
        for position in 0..8 {
            let mut tokens = counting(9);
            tokens[position] = 99;
            desk.look(&tokens);
        }
    }

    #[test]
    fn task_2_a_page_is_found_after_its_own_prefix_only() {
        let mut desk = Desk::new(2, 9, "a page is found after the tokens that came before it, and after no others");
        desk.keep(&[1, 1, 7, 7, 8, 8]);
        desk.keep(&[2, 2, 7, 7, 8, 8]);
        desk.look(&[1, 1, 7, 7, 8, 8, 9]);
        desk.look(&[2, 2, 7, 7, 8, 8, 9]);
        let pairs = [0, 1, 2, 7, 8];
        for (a, b) in pairs.into_iter().flat_map(|a| pairs.map(|b| (a, b))) {
            desk.look(&[a, a, b, b, 9]);
        }
        desk.look(&[2, 1, 1, 7, 7]);
    }

    #[test]
    fn task_2_every_token_is_compared() {
        let pages = alike();
        let mut desk = Desk::new(2, pages.len(), "of pages much alike, every second one is kept");
        pages.iter().step_by(2).for_each(|page| desk.keep(page));
        for page in &pages {
            desk.look(&[page[0], page[1], 9]);
        }
    }

    #[test]
    fn task_2_very_many_sequences_cost_no_more() {
        let (mut trie, mut pool) = keep_many(2, MANY);
        let mut wrong = None;
        // Three sequences in four are not there. A key of 32 bits takes some of them for one that is.
        often(&format!("lookup in a trie of {MANY} sequences"), 4 * MANY, |number| {
            let number = number as u32;
            let expected: &[PageId] = if number < MANY as u32 { &[PageId(number)] } else { &[] };
            let found = trie.lookup(&[number, number, 0], &mut pool);
            let owners = expected.first().map_or(Ok(2), |page| pool.owners(*page));
            let (pages, released) = match found {
                Ok(mut table) => (Ok(table.pages().to_vec()), table.release(&mut pool)),
                Err(error) => (Err(error), Ok(())),
            };
            let found = (pages, owners, released);
            let expected = (Ok(expected.to_vec()), Ok(2), Ok(()));
            if found != expected && wrong.is_none() {
                wrong = Some((number, found, expected));
            }
        });
        if let Some((number, found, expected)) = wrong {
            let what = "(pages found, owners of the page that is kept, release of the pages found)";
            same!(
                found,
                expected,
                "{what}, for a lookup of [{number}, {number}, 0] in a trie of {MANY} sequences of one page"
            );
        }
        same!(trie.n_evictable(&pool), MANY, "pages that the trie owns alone after lookups that were released");
    }

    #[test]
    fn task_2_very_long_sequences_take_no_recursion() {
        for many in more_and_more() {
            let (mut trie, mut pool, mut kept) = long(many);
            same!(kept.release(&mut pool), Ok(()), "release of a table with {many} pages, after its insert");
            let what = format!("lookup of a sequence of {many} pages of one token, all kept");
            let table = once(&what, || granted("lookup", || trie.lookup(&vec![7; many], &mut pool)));
            same!(table.len(), many - 1, "tokens found by the {what}");
            let pages = table.pages();
            let wrong =
                (0..many - 1).find(|place| pages[*place].index() != *place || pool.owners(pages[*place]) != Ok(2));
            same!(wrong, None, "the first place with a different page, or one without two owners, after the {what}");
        }
    }

    #[test]
    fn task_2_lookup_over_a_different_pool_changes_nothing() {
        let mut desk = Desk::new(4, 4, "after the refusals");
        desk.keep(&counting(12));
        for (n_pages, owned, error) in
            [(2, &[0, 1][..], foreign(2, 2)), (4, &[0, 1], free(2)), (4, &[1, 2], free(0)), (4, &[0, 2], free(1))]
        {
            let mut other = other_pool(n_pages, owned);
            let before = (owners(&other), other.n_free());
            let at =
                format!("lookup that finds pages 0, 1, 2, over a pool of {n_pages}, in which {owned:?} have an owner");
            same!(
                desk.trie.lookup(&counting(13), &mut other).map(|table| told_pages(table.pages())),
                Err(error),
                "{at}"
            );
            same!((owners(&other), other.n_free()), before, "owners and free pages of the other pool after the {at}");
        }
        desk.look(&counting(13));
    }

    /// Rows that tell their whole prefix: one number for each prefix that a position can end.
    #[derive(Default)]
    struct Rows(HashMap<Vec<u32>, usize>);

    impl Rows {
        /// The numbers of the rows of these tokens.
        fn of(&mut self, tokens: &[u32]) -> Vec<usize> {
            (1..=tokens.len())
                .map(|end| {
                    let next = self.0.len();
                    *self.0.entry(tokens[..end].to_vec()).or_insert(next)
                })
                .collect()
        }
    }

    /// A slab, a trie over its pages, and what the rows of its sequences must be.
    struct Room {
        slab: SharedSlab,
        trie: PrefixCache,
        rows: Rows,
        /// In which run: a seed, say.
        run: String,
    }

    /// A sequence on its way: its tokens, its cache, and what that must hold.
    struct Sequence {
        tokens: Vec<u32>,
        cache: ForkCache,
        oracle: Oracle,
    }

    impl Room {
        #[track_caller]
        fn new(layout: KvLayout, page_size: usize, n_pages: usize, run: &str) -> Self {
            let what = format!("PageSlab::new of chapter 6, with {n_pages} pages of {page_size} slots");
            let slab = made(&what, || PageSlab::new(layout, page_size, n_pages));
            Room { slab, trie: trie(page_size), rows: Rows::default(), run: run.into() }
        }

        fn owners(&self) -> Vec<u32> {
            owners(self.slab.borrow().pool())
        }

        /// A cache from the trie, whose pages it shares: were they not, dropping it would take them from others.
        #[track_caller]
        fn with_prefix(&mut self, tokens: &[u32]) -> ForkCache {
            let before = self.owners();
            let question = format!("ForkCache::with_prefix of {} {}", shown(tokens), self.run);
            let cache = granted(question.as_str(), || ForkCache::with_prefix(&self.slab, &mut self.trie, tokens));
            // It is not dropped when the check fails.
            let cache = ManuallyDrop::new(cache);
            for (page, (before, after)) in before.iter().zip(self.owners()).enumerate() {
                let found = cache.table().pages().contains(&PageId(page as u32));
                same!(after, before + u32::from(found), "owners of page {page} after {question}: found {found}");
            }
            ManuallyDrop::into_inner(cache)
        }

        /// A sequence that begins with what the trie has of it. The rows of the others are still to come.
        #[track_caller]
        fn begin(&mut self, tokens: &[u32]) -> Sequence {
            let cache = self.with_prefix(tokens);
            let mut oracle = Oracle::of(format!("sequence {} {}", shown(tokens), self.run));
            oracle.note(format!("with_prefix found {} tokens", cache.len()));
            oracle.tokens = self.rows.of(&tokens[..cache.len().min(tokens.len())]);
            Sequence { tokens: tokens.to_vec(), cache, oracle }
        }
    }

    impl Sequence {
        /// Computes what is not computed yet.
        #[track_caller]
        fn compute(&mut self, rows: &mut Rows) {
            let missing = rows.of(&self.tokens).split_off(self.cache.len());
            self.oracle.append(&mut self.cache, &missing);
        }

        #[track_caller]
        fn insert(&mut self, trie: &mut PrefixCache) {
            let question =
                format!("insert_into of {} in {}", shown(&self.tokens), told_pages(self.cache.table().pages()));
            same!(self.cache.insert_into(trie, &self.tokens), Ok(()), "{question}");
            self.oracle.note("insert_into".into());
        }

        #[track_caller]
        fn check(&self) {
            let (pages, size) = (self.cache.table().pages(), self.cache.table().page_size());
            let slot = |position: usize, page: &PageId| format!(" (slot {} of page {page})", position % size);
            self.oracle.check_placed(&self.cache, &|position| {
                pages.get(position / size).map_or("".into(), |page| slot(position, page))
            });
        }
    }

    #[test]
    fn task_2_the_rows_found_are_those_of_the_sequence() {
        let mut room = Room::new(LAYOUT, 4, 8, "");
        let mut first = room.begin(&counting(10));
        first.compute(&mut room.rows);
        first.insert(&mut room.trie);
        drop(first);
        // The pages that are free now are filled by a different sequence.
        let mut other = room.begin(&[70; 20]);
        other.compute(&mut room.rows);
        let mut second = room.begin(&[1, 2, 3, 4, 5, 6, 7, 8, 50, 51]);
        same!(
            second.cache.len(),
            8,
            "tokens found when the sequence that computed them is gone, and others fill pages"
        );
        second.check();
        second.compute(&mut room.rows);
        second.check();
        other.check();
        second.insert(&mut room.trie);
        second.check();
    }

    #[test]
    fn task_2_a_rewind_into_a_page_of_the_trie_leaves_it_its_rows() {
        let mut room = Room::new(LAYOUT, 4, 8, "");
        let mut first = room.begin(&counting(9));
        first.compute(&mut room.rows);
        first.insert(&mut room.trie);
        first.oracle.rewind(&mut first.cache, 3);
        first.tokens = vec![1, 2, 3, 4, 5, 6, 60, 61, 62];
        first.compute(&mut room.rows);
        first.check();
        first.insert(&mut room.trie);
        first.check();
        for tokens in [counting(9), first.tokens.clone()] {
            let second = room.begin(&tokens);
            same!(second.cache.len(), 8, "tokens found of {}", shown(&tokens));
            second.check();
        }
    }

    // Task 3

    /// What happens to a trie with pages of one slot.
    enum Turn {
        /// A sequence is computed, inserted and ends.
        Keep(&'static [u32]),
        /// A lookup, whose pages are released.
        Look(&'static [u32]),
        Evict(usize),
    }
    use Turn::{Evict, Keep, Look};

    #[test]
    fn task_3_a_the_least_recently_used_leaf_goes_first() {
        for (turns, why) in [
            (
                &[Keep(&[1]), Keep(&[2]), Keep(&[3]), Keep(&[4]), Look(&[1, 9]), Keep(&[2])][..],
                "a lookup and an insert use the pages that they find: these are newer",
            ),
            (
                &[Keep(&[1, 2, 3, 4]), Evict(1), Look(&[1, 2, 3, 4, 5]), Evict(2)],
                "a page goes after those that follow it",
            ),
            (&[Keep(&[1, 2, 3]), Keep(&[1, 50]), Keep(&[70]), Evict(usize::MAX), Evict(1)], "no more than there are"),
            (
                &[Keep(&[1, 2]), Keep(&[3]), Look(&[1, 2, 9])],
                "a lookup uses all pages that it returns, the last one too",
            ),
            (&[Keep(&[1, 2]), Keep(&[3]), Keep(&[1, 2])], "an insert uses all pages of its table, the last one too"),
            (
                &[Keep(&[1, 2]), Keep(&[3]), Look(&[1, 2])],
                "a lookup uses the pages that it returns, and not those that it leaves to be computed",
            ),
            (
                &[Keep(&[1, 2]), Keep(&[3]), Look(&[1, 9]), Evict(2)],
                "each page is chosen from all that are leaves by then",
            ),
            (
                &[Keep(&[1, 2]), Keep(&[3, 4]), Evict(2)],
                "a page that has become a leaf can go next: each page is chosen anew, not in rounds of leaves",
            ),
            (
                &[Keep(&[1, 10]), Keep(&[1, 11]), Keep(&[1, 12]), Keep(&[2, 10]), Evict(1), Look(&[1, 11, 0])],
                "the pages beside the one that goes stay",
            ),
            (
                &[Keep(&[1, 2, 3]), Evict(2), Keep(&[1, 2, 3]), Evict(2), Keep(&[4, 5])],
                "what was evicted can come again",
            ),
        ] {
            let mut desk = Desk::new(1, 6, why);
            for turn in turns {
                match turn {
                    Keep(tokens) => desk.keep(tokens),
                    Look(tokens) => desk.look(tokens),
                    Evict(n) => drop(desk.evict(*n)),
                }
            }
            desk.evict_all();
            [1, 2, 3, 70].iter().for_each(|token| desk.look(&[*token, 0]));
        }
    }

    #[test]
    fn task_3_as_many_go_as_were_asked_for() {
        for n in 0..=7 {
            let mut desk = Desk::new(2, 9, "leaves go, and then what has become a leaf");
            for tokens in [&[1, 2, 3, 4, 5, 6][..], &[1, 2, 50, 51], &[70, 71, 72]] {
                desk.keep(tokens);
            }
            desk.evict(n);
        }
    }

    #[test]
    fn task_3_pages_in_use_stay() {
        let mut desk = Desk::new(2, 9, "pages of a sequence that goes on, or that a lookup has, must stay");
        let a = desk.compute(&counting(5));
        desk.keep(&[1, 2, 50, 51]);
        desk.evict(9);
        desk.release(a);
        let found = desk.lookup(&counting(3));
        desk.evict(9);
        desk.release(found);
        desk.evict(9);
    }

    /// A fork that was made before the insert has a page of its own before the page that it shares.
    #[test]
    fn task_3_pages_that_others_follow_stay() {
        let mut desk = Desk::new(2, 9, "page 0 is unused, but page 2 follows it in the trie and is in use");
        desk.keep(&counting(2));
        let mut table = desk.table(4);
        let mut fork = granted("PageTable::fork of chapter 10", || table.fork(&mut desk.pool));
        desk.insert(&counting(4), &mut table);
        desk.release(table);
        desk.evict(9);
        desk.look(&counting(5));
        desk.insert(&counting(4), &mut fork);
        desk.release(fork);
        desk.evict_all();
    }

    #[test]
    fn task_3_an_insert_uses_no_page_beyond_its_table() {
        let why = "the last insert, with a table that holds the tokens of page 0 only, used that page, and not 1 and 2, \
                   which the trie found beyond the table";
        let mut desk = Desk::new(2, 9, why);
        desk.keep(&counting(6));
        desk.keep(&[50, 50]);
        let mut table = desk.table(2);
        desk.insert(&counting(6), &mut table);
        desk.release(table);
        desk.evict_all();
    }

    #[test]
    fn task_3_refused_calls_use_no_page() {
        let mut desk = Desk::new(2, 6, "a lookup or an insert that is refused uses no page");
        desk.keep(&[1, 1, 2, 2]);
        desk.keep(&[3, 3]);
        let mut table = desk.table(4);
        let before = listed(&desk.trie);
        refused(&mut desk, &[1, 1, 2, 2], &mut table, &[(6, &[0, 3, 4], free(1))]);
        let lookup = desk.trie.lookup(&[1, 1, 9], &mut other_pool(6, &[])).map(|table| told_pages(table.pages()));
        same!(lookup, Err(free(0)), "lookup over a pool in which no page has an owner");
        same!(listed(&desk.trie), before, "(page, last_used) that `pages` lists after a refused insert and lookup");
        desk.release(table);
        desk.evict_all();
    }

    /// A trie that lists no pages is not checked here.
    #[test]
    fn task_3_a_each_call_is_a_tick_of_the_clock() {
        let mut desk = Desk::new(2, 9, "");
        desk.keep(&counting(6));
        desk.keep(&[50, 50]);
        let inserted = listed(&desk.trie);
        if inserted.is_empty() {
            return;
        }
        desk.look(&counting(5));
        let found = listed(&desk.trie);
        let used = |listed: &[(u32, u64)], page: usize| listed[page].1;
        let alike =
            (0..3).all(|page| used(&inserted, page) == used(&inserted, 0)) && used(&found, 0) == used(&found, 1);
        let ticks = used(&inserted, 3) > used(&inserted, 0) && used(&found, 0) > used(&inserted, 3);
        assert!(
            alike && ticks && found[2..] == inserted[2..],
            "(page, last_used) as `pages` lists them: pages 0, 1 and 2 were inserted with one call, then 3, and then 0 and 1 \
             were looked up. Each lookup and each insert is a tick of the clock, which all pages that it uses note\n  \
             yours, after the inserts: {inserted:?}\n  yours, after the lookup:  {found:?}"
        );
    }

    #[test]
    fn task_3_evict_over_a_different_pool_changes_nothing() {
        let mut desk = Desk::new(2, 4, "after the refusal");
        let spare = desk.table(2);
        desk.keep(&counting(6));
        desk.release(spare);
        let mut other = other_pool(1, &[0]);
        let before = owners(&other);
        let outcome = desk.trie.evict(2, &mut other);
        let expected = [1, 2, 3].map(|page| Err(foreign(page, 1)));
        assert!(
            expected.contains(&outcome),
            "evict(2) of pages 1, 2, 3, over a pool that has only page 0\n  expected: one of {expected:?}\n  \
             yours:    {outcome:?}"
        );
        same!(owners(&other), before, "owners in that pool after the refused evict");
        same!(desk.trie.evict(0, &mut other), Ok(0), "evict(0), over a different pool: it looks for no page");
        same!(
            desk.trie.evict(2, &mut other_pool(4, &[0])),
            Ok(0),
            "evict(2), over a pool in which pages 1, 2, 3 have no owner: to be evicted, a page has exactly one"
        );
        desk.evict(3);
    }

    #[test]
    fn task_3_the_clock_does_not_run_out() {
        for (many, n) in [(600, 600)].into_iter().chain(more_and_more().map(|many| (many, 3))) {
            let (mut trie, mut pool) = keep_many(1, many);
            for page in 0..n {
                let evicted = once(&format!("evict(1) of {many} pages"), || trie.evict(1, &mut pool));
                let owners = pool.owners(PageId(page as u32));
                let what = "evict(1), and owners of the page that was used longest ago";
                same!((evicted, owners), (Ok(1), Ok(0)), "{what}, page {page} of {many} that no sequence uses");
            }
            same!(
                (trie.n_pages(), pool.n_free()),
                (many - n, n),
                "(pages of the trie, free pages) after {n} evictions"
            );
        }
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
            let _asking = asking(format!("{operation} of \"{words}\", in the transcript"));
            let outcome = match operation {
                "compute" => {
                    let table = tables.entry(name).or_insert_with(|| table(2));
                    let missing = words.split(' ').count() - table.len();
                    let grown = table.grow(missing, &mut pool);
                    grown.map(|()| format!("{missing} tokens, then {}", told_pages(table.pages())))
                }
                "insert" => {
                    let table = tables.get_mut(name).expect("a sequence of the script");
                    trie.insert(&tokens(words), table, &mut pool).map(|()| told_pages(table.pages()))
                }
                "lookup" => trie.lookup(&tokens(words), &mut pool).map(|table| {
                    let told = format!("finds {}", told_pages(table.pages()));
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
            let told = outcome.unwrap_or_else(|error| told(&error));
            let owners = owners(&pool).iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
            let (held, free) = (trie.n_pages(), pool.n_free());
            transcript
                .line(format!("{name:<2}{operation:<9}{words:<23} {told:<26} trie {held}, free {free}  [{owners}]"));
        }
        assert_transcript("ch11_prefix_cache", &transcript);
    }

    /// Compares the owners of all pages with the sequences and the shelf, and every sequence's rows with what was computed.
    #[track_caller]
    fn check_all(room: &Room, shelf: &Shelf, sequences: &[Sequence], forked: bool, at: &str) {
        same!(room.trie.n_pages(), shelf.pages.len(), "pages of the trie, after {at}");
        let found = room.owners();
        let mut expected = vec![0; found.len()];
        let held = sequences.iter().flat_map(|sequence| sequence.cache.table().pages());
        for page in held.chain(shelf.pages.iter().map(|kept| &kept.page)) {
            expected[page.index()] += 1;
        }
        let kept: Vec<PageId> = shelf.pages.iter().map(|kept| kept.page).collect();
        let whose = format!("one for each sequence that has the page, one more for {}", told_pages(&kept));
        same!(found, expected, "owners, after {at}: {whose}");
        let alone = kept.iter().filter(|page| expected[page.index()] == 1).count();
        same!(room.trie.n_evictable(room.slab.borrow().pool()), alone, "pages that the trie owns alone, after {at}");
        for kept in shelf.pages.iter().filter(|_| !forked) {
            for other in shelf.pages.iter().filter(|other| other.prefix.starts_with(&kept.prefix)) {
                let (own, its) = (expected[kept.page.index()], expected[other.page.index()]);
                assert!(
                    own >= its,
                    "page {} has {own} owners, page {} after it {its}, after {at}: a sequence that has the second must have \
                     the first",
                    kept.page,
                    other.page
                );
            }
        }
        sequences.iter().for_each(Sequence::check);
    }

    #[test]
    fn whole_oracle() {
        for seed in seeds(40) {
            let mut dice = Dice::new(seed);
            let (size, n_pages, words) = (dice.roll(1, 4), dice.roll(4, 14), dice.roll(1, 3));
            // A fork that was made before an insert may have pages of its own before those that it shares.
            let may_fork = seed % 2 == 1;
            let run = format!("seed {seed}, page size {size}, {n_pages} pages");
            let (mut room, mut shelf) = (Room::new(LAYOUT, size, n_pages, &run), Shelf::new(size));
            let mut sequences: Vec<Sequence> = Vec::new();
            for _ in 0..STEPS {
                let random = |dice: &mut Dice, most: usize| -> Vec<u32> {
                    let len = dice.roll(0, most);
                    (0..len).map(|_| dice.roll(1, words) as u32).collect()
                };
                let turn = if sequences.is_empty() { 0 } else { dice.roll(0, 11) };
                let (index, n_sequences) = (dice.roll(0, sequences.len().max(1) - 1), sequences.len());
                let name = sequences.get(index).map_or(String::new(), |sequence| shown(&sequence.tokens));
                let at = match turn {
                    0..3 if n_sequences < 4 => {
                        let tokens = random(&mut dice, 4 * size + 1);
                        let at = format!("{run}: with_prefix of {}", shown(&tokens));
                        let expected = shelf.lookup(&tokens);
                        let mut sequence = room.begin(&tokens);
                        same!(sequence.cache.table().pages(), expected, "pages of the sequence after {at}");
                        sequence.tokens.truncate(sequence.cache.len());
                        sequences.push(sequence);
                        at
                    }
                    3 => {
                        sequences.remove(index);
                        format!("{run}: the sequence {name} ends")
                    }
                    4..6 => {
                        let n = dice.roll(0, 4);
                        let used = sequences.iter().flat_map(|sequence| sequence.cache.table().pages());
                        let gone = shelf.evict(n, &used.copied().collect());
                        let at = format!("{run}: evict({n}), which is to take {}", told_pages(&gone));
                        same!(room.slab.borrow_mut().evict(&mut room.trie, n), Ok(gone.len()), "{at}");
                        at
                    }
                    6..9 => {
                        let (sequence, more) = (&mut sequences[index], random(&mut dice, 2 * size + 1));
                        let (held, n) = (sequence.cache.len(), more.len());
                        let owners = room.owners();
                        let tail = sequence.cache.table().pages().last().filter(|_| !held.is_multiple_of(size));
                        let copied = usize::from(tail.is_some_and(|page| owners[page.index()] > 1));
                        let needed = (held + n).div_ceil(size) - held.div_ceil(size) + copied;
                        if n == 0 || needed <= room.slab.borrow().pool().n_free() {
                            sequence.tokens.extend(&more);
                            sequence.compute(&mut room.rows);
                        }
                        format!("{run}: the sequence {name} grows by {}", shown(&more))
                    }
                    9 => {
                        let sequence = &mut sequences[index];
                        let n = dice.roll(0, sequence.cache.len());
                        sequence.oracle.rewind(&mut sequence.cache, n);
                        sequence.tokens.truncate(sequence.cache.len());
                        format!("{run}: rewind({n}) of the sequence {name}")
                    }
                    10 if may_fork && n_sequences < 4 => {
                        let at = format!("{run}: fork of the sequence {name}");
                        let Sequence { tokens, cache, oracle } = &sequences[index];
                        let cache = granted(at.as_str(), || cache.fork());
                        sequences.push(Sequence { tokens: tokens.clone(), cache, oracle: oracle.clone() });
                        at
                    }
                    _ => {
                        let sequence = &mut sequences[index];
                        let own = sequence.cache.table().pages().to_vec();
                        let at = format!("{run}: insert_into of {name} in {}", told_pages(&own));
                        let expected = shelf.insert(&sequence.tokens, &own);
                        sequence.insert(&mut room.trie);
                        same!(sequence.cache.table().pages(), expected, "pages of the sequence after {at}");
                        at
                    }
                };
                check_all(&room, &shelf, &sequences, may_fork, &at);
            }
            drop(sequences);
            let held = room.trie.n_pages();
            let what = format!("{run}: evict({n_pages}) when all sequences are gone");
            same!(room.slab.borrow_mut().evict(&mut room.trie, n_pages), Ok(held), "{what}");
            same!(room.slab.borrow().pool().n_free(), n_pages, "free pages after {what}");
        }
    }

    #[test]
    fn whole_story() {
        const SIZE: usize = 4;
        let storyteller = Storyteller::open();
        let mut room = Room::new(storyteller.model.config().kv_layout(), SIZE, 16, "of the story");
        let begin = storyteller.tokenizer.encode("Once upon a time there lived a king who had a golden");
        let begin = begin.expect("the prompt can be encoded");
        let mut prompt = begin.clone();
        // The second prompt is the first again; the third goes on from its story; the fourth branches off.
        for turn in 0..4 {
            if turn == 3 {
                prompt = [&begin[..begin.len() - 2], &begin[..3]].concat();
            }
            let expected = storyteller.alone(&prompt, 12);
            let mut cache = room.with_prefix(&prompt);
            let pages = [0, (prompt.len() - 1) / SIZE, (prompt.len() - 1) / SIZE, (begin.len() - 2) / SIZE][turn];
            same!(cache.len(), pages * SIZE, "tokens that ForkCache::with_prefix finds of prompt {turn} of the story");
            let mut sampler = Sampler::new(SAMPLING);
            let mut tokens = prompt.clone();
            for (step, (_, expected)) in expected.iter().enumerate() {
                let at = format!("step {step} of story {turn}, {} of {} tokens are cached", cache.len(), tokens.len());
                let mut watched = Watched(&mut cache);
                let logits = made(&at, || Cached::new(&storyteller.model, &mut watched).next_logits(&tokens));
                let same = logits.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{at}: the logits are not, bit for bit, those of the story without a cache");
                same!(cache.insert_into(&mut room.trie, &tokens), Ok(()), "insert_into after {at}");
                tokens.push(sampler.pick(&logits));
            }
            let expected: Vec<u32> = expected.iter().map(|(token, _)| *token).collect();
            storyteller.assert_same_story(&tokens[prompt.len()..], &expected);
            drop(cache);
            let left = room.slab.borrow().pool().n_free() + room.trie.n_pages();
            same!(left, 16, "pages that are free or the trie's, when story {turn} has ended");
            if turn == 1 {
                prompt = tokens;
            }
        }
        let held = room.trie.n_pages();
        same!(room.slab.borrow_mut().evict(&mut room.trie, 99), Ok(held), "evict(99) when all stories have ended");
        same!(room.slab.borrow().pool().n_free(), 16, "free pages of 16 when all pages of the stories are evicted");
    }
}
