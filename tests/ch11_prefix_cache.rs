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

    /// More pages than 16 bits count: in one text, or in as many texts.
    const MANY: usize = if cfg!(miri) { 300 } else { 100_000 };

    const NO_PAGES: [u32; 0] = [];

    /// Up to this page size every case is tried.
    const LARGEST_PAGE: usize = if cfg!(miri) { 3 } else { 5 };

    /// A pool and the trie over its pages.
    struct Desk {
        size: usize,
        trie: PrefixCache,
        pool: PagePool,
        /// Pages that were evicted and not filled again.
        evicted: Vec<PageId>,
    }

    impl Desk {
        #[track_caller]
        fn new(size: usize, n_pages: usize) -> Self {
            let pool = made(&format!("PagePool::new({n_pages}) of chapter 4"), || PagePool::new(n_pages));
            Desk { size, trie: trie(size), pool, evicted: Vec::new() }
        }

        /// A table of so many tokens, as chapter 5 grows it.
        #[track_caller]
        fn table(&mut self, tokens: usize) -> PageTable {
            let size = self.size;
            let mut table = made(&format!("PageTable::new({size}) of chapter 5"), || PageTable::new(size));
            self.grow(&mut table, tokens);
            table
        }

        #[track_caller]
        fn grow(&mut self, table: &mut PageTable, n: usize) {
            let len = table.len();
            let grown = table.grow(n, &mut self.pool);
            self.evicted.retain(|page| !table.pages().contains(page));
            same!(grown, Ok(()), "grow({n}) of chapter 5, on {len} tokens, page size {}, with pages enough", self.size);
        }

        /// What is asked when a table is inserted.
        fn inserting(&self, text: &[u32], table: &PageTable) -> String {
            let (held, pages) = (table.len(), told_pages(table.pages()));
            format!(
                "insert of {}, of which a table holds {held} tokens in {pages}; page size {}",
                shown(text),
                self.size
            )
        }

        #[track_caller]
        fn insert(&mut self, text: &[u32], table: &mut PageTable) {
            let question = self.inserting(text, table);
            let held = (table.len(), table.pages().len());
            let nodes = self.trie.n_pages();
            same!(self.trie.insert(text, table, &mut self.pool), Ok(()), "{question}");
            same!((table.len(), table.pages().len()), held, "(tokens, pages) of the table after an {question}");
            let full = held.0 / self.size;
            if self.trie.n_pages() == nodes + full {
                for page in &table.pages()[..full] {
                    let owners = self.pool.owners(*page).unwrap_or(0);
                    let both = "the table had it before, and the trie has taken it";
                    same!(owners, owners.max(2), "owners of page {page} after an {question}: {both}");
                }
            }
        }

        /// A new text, computed on its own pages and inserted; its table.
        #[track_caller]
        fn tell(&mut self, text: &[u32]) -> PageTable {
            let mut table = self.table(text.len());
            self.insert(text, &mut table);
            table
        }

        /// A text that is told and ends: its full pages are left to the trie.
        #[track_caller]
        fn keep(&mut self, text: &[u32]) {
            let table = self.tell(text);
            self.release(table);
        }

        #[track_caller]
        fn release(&mut self, mut table: PageTable) {
            let pages = told_pages(table.pages());
            let released = table.release(&mut self.pool);
            same!(released, Ok(()), "release of a table with {pages}, by chapter 5: a page of it has lost an owner");
        }

        #[track_caller]
        fn lookup(&mut self, text: &[u32]) -> PageTable {
            let gone = match &self.evicted[..] {
                [] => String::new(),
                gone => format!(", after {} had been evicted", told_pages(&gone[gone.len().saturating_sub(4)..])),
            };
            let question = format!("lookup of {}, page size {}{gone}", shown(text), self.size);
            let before = self.owners();
            let asked = asking(question.as_str());
            let found = self.trie.lookup(text, &mut self.pool);
            drop(asked);
            let pages = match &found {
                Ok(table) => table.pages(),
                Err(CacheError::DoubleFree(page) | CacheError::ForeignPage { page, .. }) => &[*page],
                Err(_) => &[],
            };
            let lost = pages.iter().find(|page| before.get(page.index()).is_none_or(|owners| *owners == 0));
            if let Some(page) = lost {
                let which = if self.evicted.contains(page) { "which was evicted" } else { "which nobody owns" };
                panic!(
                    "{question}\n  a lookup still finds page {page}, {which}; it gave {:?}",
                    found.as_ref().map(numbers)
                );
            }
            let table = granted(question.as_str(), || found);
            shared(&before, &self.owners(), table.pages(), &question);
            same!(table.page_size(), self.size, "page size of the table that a {question} gives");
            let full = table.pages().len() * self.size;
            let most = text.len().saturating_sub(1) / self.size;
            assert!(
                table.len() == full || table.pages().len() <= most,
                "{question}\n  gives a table of {} in {}: a lookup finds full pages only and leaves the text a token to \
                 compute, so here it finds {} at most",
                count(table.len(), "token"),
                told_pages(table.pages()),
                count(most, "page")
            );
            same!(
                table.len(),
                full,
                "tokens of the table that a {question} gives: it has {}",
                told_pages(table.pages())
            );
            table
        }

        /// The pages that a lookup finds; they are let go again.
        #[track_caller]
        fn found(&mut self, text: &[u32]) -> Vec<u32> {
            let table = self.lookup(text);
            let pages = numbers(&table);
            self.release(table);
            pages
        }

        /// Evicts, and looks whether so many pages are free and gone from the trie as it says.
        #[track_caller]
        fn evict(&mut self, n: usize) -> usize {
            let (held, free) = (self.trie.n_pages(), self.pool.n_free());
            let question = format!("evict({n}) of {held} pages");
            let before = self.owners();
            let evicted = granted(question.as_str(), || self.trie.evict(n, &mut self.pool));
            for (page, (after, before)) in self.owners().into_iter().zip(before).enumerate() {
                let page = PageId(page as u32);
                assert!(
                    before < 2 || after >= before,
                    "{question}\n  took page {page}: page {page} is in use by a text, it had {before} owners and has {after}"
                );
                if before > 0 && after == 0 {
                    self.evicted.push(page);
                }
            }
            assert!(evicted <= n, "{question}\n  evicted {evicted}: more than were asked for");
            same!(
                self.pool.n_free() - free,
                evicted,
                "pages that came back to the pool, after {question} said {evicted}"
            );
            same!(held - self.trie.n_pages(), evicted, "pages that the trie has lost, after {question} said {evicted}");
            evicted
        }

        /// Evicts one page after the other, as long as there are any; says which went.
        #[track_caller]
        fn evict_all(&mut self) -> Vec<u32> {
            let mut order = Vec::new();
            loop {
                let before = self.owners();
                assert!(order.len() <= before.len(), "evict(1) gave more pages than the pool has: {order:?} …");
                if self.evict(1) == 0 {
                    return order;
                }
                let after = self.owners();
                order.extend((0..before.len()).filter(|page| after[*page] != before[*page]).map(|page| page as u32));
            }
        }

        /// How many owners each page has.
        fn owners(&self) -> Vec<u32> {
            owners(&self.pool)
        }
    }

    #[track_caller]
    fn trie(size: usize) -> PrefixCache {
        made(&format!("PrefixCache::new({size})"), || PrefixCache::new(size))
    }

    fn owners(pool: &PagePool) -> Vec<u32> {
        (0..pool.n_pages() as u32).map(|page| pool.owners(PageId(page)).unwrap_or(u32::MAX)).collect()
    }

    /// Whether each page found has one more owner than before, and every other page as many as before.
    #[track_caller]
    fn shared(before: &[u32], after: &[u32], found: &[PageId], question: &str) {
        for (page, (before, after)) in before.iter().zip(after).enumerate() {
            let page = PageId(page as u32);
            let (more, why) = if found.contains(&page) {
                (1, "one more than before: whoever looked it up has it now")
            } else {
                (0, "as many as before: it was not found")
            };
            same!(*after, before + more, "owners of page {page} after the {question}; {why}");
        }
    }

    /// What the trie lists of its pages, in their order; nothing if it lists none.
    fn listed(trie: &PrefixCache) -> Vec<(u32, u64)> {
        let mut pages: Vec<_> = trie.pages().iter().map(|held| (held.page.0, held.last_used)).collect();
        pages.sort();
        pages
    }

    /// Numbers up to `MANY`, each three times the last. What goes through everything again and again takes too long at one
    /// of them, and not yet for ever.
    fn more_and_more() -> impl Iterator<Item = usize> {
        [27, 9, 3, 1].into_iter().map(|part| MANY / part)
    }

    fn numbers(table: &PageTable) -> Vec<u32> {
        table.pages().iter().map(|page| page.0).collect()
    }

    /// A text for a failure message; of a long one its beginning.
    fn shown(text: &[u32]) -> String {
        match text {
            [] => "no tokens".into(),
            [a, b, c, .., z] if text.len() > 16 => format!("{} tokens [{a}, {b}, {c}, …, {z}]", text.len()),
            _ => format!("{text:?}"),
        }
    }

    /// The text 1, 2, 3 …, so many tokens.
    fn counting(n: usize) -> Vec<u32> {
        (1..=n as u32).collect()
    }

    // Task 1

    #[test]
    fn task_1_a_full_page_is_taken_and_no_other() {
        for size in 1..=LARGEST_PAGE {
            for len in 0..=3 * size + 1 {
                let mut desk = Desk::new(size, 20);
                let text = counting(len);
                let mut table = desk.table(len);
                let before = numbers(&table);
                desk.insert(&text, &mut table);
                let at = format!("an insert of {}, page size {size}", count(len, "token"));
                same!(
                    desk.trie.n_pages(),
                    len / size,
                    "pages of the trie after {at}: full pages are taken, the last one too, and one that is not full is not"
                );
                same!(numbers(&table), before, "pages of the table after {at}: nothing was there to swap");
                for (place, page) in before.into_iter().enumerate() {
                    let (owners, expected) = (desk.owners()[page as usize], if place < len / size { 2 } else { 1 });
                    same!(owners, expected, "owners of page {page}, number {place} of the text, after {at}");
                }
                same!(
                    desk.trie.n_evictable(&desk.pool),
                    0,
                    "pages that can be evicted after {at}: the text has them too"
                );
            }
        }
    }

    #[test]
    fn task_1_tokens_that_are_not_computed_are_not_taken() {
        for (held, pages) in [(0, 0), (3, 0), (4, 1), (5, 1), (7, 1), (8, 2), (11, 2)] {
            let mut desk = Desk::new(4, 5);
            let mut table = desk.table(held);
            desk.insert(&counting(13), &mut table);
            let why = "the rows of the others are not computed";
            same!(
                desk.trie.n_pages(),
                pages,
                "pages of 4 after an insert of 13 tokens, of which the table holds {held}: {why}"
            );
            let owned = desk.owners().iter().filter(|owners| **owners == 2).count();
            same!(owned, pages, "pages with two owners, table and trie, after the insert of {held} of 13 tokens");
        }
    }

    #[test]
    fn task_1_pages_stay_when_their_text_is_gone() {
        let mut desk = Desk::new(4, 4);
        desk.keep(&counting(10));
        same!(desk.owners(), [1, 1, 0, 0], "owners of the pages of 10 tokens, inserted; then the text has gone");
        same!(desk.pool.n_free(), 2, "free pages of 4: the trie keeps two, the one that was not full is back");
        same!(desk.trie.n_evictable(&desk.pool), 2, "pages that the trie owns alone");
    }

    #[test]
    fn task_1_the_same_table_again_changes_nothing() {
        let mut desk = Desk::new(4, 4);
        let mut table = desk.tell(&counting(9));
        for time in ["second", "third"] {
            desk.insert(&counting(9), &mut table);
            same!(desk.owners(), [2, 2, 1, 0], "owners when the same table is inserted a {time} time");
            same!(desk.trie.n_pages(), 2, "pages of the trie when the same table is inserted a {time} time");
            same!(numbers(&table), [0, 1, 2], "pages of the table that is inserted a {time} time");
        }
    }

    #[test]
    fn task_1_a_text_that_grows_adds_its_new_pages() {
        let mut desk = Desk::new(4, 4);
        let mut table = desk.tell(&counting(3));
        for (n, owners, pages) in
            [(1, [2, 0, 0, 0], 1), (5, [2, 2, 1, 0], 2), (2, [2, 2, 1, 0], 2), (5, [2, 2, 2, 2], 4)]
        {
            desk.grow(&mut table, n);
            let text = counting(table.len());
            desk.insert(&text, &mut table);
            same!(
                desk.owners(),
                owners,
                "owners after the text has grown to {} tokens and was inserted again",
                text.len()
            );
            same!(desk.trie.n_pages(), pages, "pages of the trie, of {} tokens", text.len());
        }
    }

    #[test]
    fn task_1_duplicates_are_swapped() {
        let mut desk = Desk::new(4, 7);
        let a = desk.tell(&counting(9));
        let b = desk.tell(&counting(10));
        same!(numbers(&a), [0, 1, 2], "pages of the text that was there first");
        same!(numbers(&b), [0, 1, 5], "pages of the second text, which had 3, 4, 5 with the same tokens");
        same!(desk.owners(), [3, 3, 1, 0, 0, 1, 0], "owners when the second text has got 0 and 1 for its 3 and 4");
        same!(desk.trie.n_pages(), 2, "pages of the trie when the same tokens came twice");
        let c = desk.tell(&counting(8));
        same!(numbers(&c), [0, 1], "pages of a third text, all of them full");
        same!(desk.owners(), [4, 4, 1, 0, 0, 1, 0], "owners when a third text has the same tokens");
        for table in [a, b, c] {
            desk.release(table);
        }
        same!(desk.owners(), [1, 1, 0, 0, 0, 0, 0], "owners when all three texts are gone");
    }

    #[test]
    fn task_1_duplicates_that_a_fork_has_too_lose_one_owner() {
        let mut desk = Desk::new(4, 7);
        desk.keep(&counting(4));
        let mut table = desk.table(5);
        let mut fork = granted("PageTable::fork of chapter 10", || table.fork(&mut desk.pool));
        same!(
            desk.owners(),
            [1, 2, 2, 0, 0, 0, 0],
            "owners before the insert: pages 1 and 2 belong to a table and its fork"
        );
        desk.insert(&counting(5), &mut table);
        same!((numbers(&table), numbers(&fork)), (vec![0, 2], vec![1, 2]), "pages of the table and of its fork");
        same!(desk.owners(), [2, 1, 2, 0, 0, 0, 0], "owners when the table has page 0 for its 1: the fork still has 1");
        desk.insert(&counting(5), &mut fork);
        same!(numbers(&fork), [0, 2], "pages of the fork, inserted too");
        same!(desk.owners(), [3, 0, 2, 0, 0, 0, 0], "owners when the fork is inserted too");
    }

    #[test]
    fn task_1_only_what_is_equal_is_swapped() {
        let mut desk = Desk::new(4, 9);
        let _a = desk.tell(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let b = desk.tell(&[1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13]);
        same!(
            numbers(&b),
            [0, 3, 4],
            "pages of the second text: the first 4 tokens are the same, the eighth is another"
        );
        same!(desk.owners(), [3, 2, 0, 2, 2, 0, 0, 0, 0], "owners when one page is common");
        same!(desk.trie.n_pages(), 4, "pages of the trie: one common, one more of the first text, two of the second");
    }

    /// The second pages hold the same tokens, after different ones: their rows are not the same.
    #[test]
    fn task_1_a_page_belongs_to_all_tokens_before_it() {
        let mut desk = Desk::new(2, 9);
        let _a = desk.tell(&[1, 1, 7, 7, 8, 8]);
        let b = desk.tell(&[2, 2, 7, 7, 8, 8]);
        let why = "rows depend on all tokens before them";
        same!(
            numbers(&b),
            [3, 4, 5],
            "pages of the second sequence: 7, 7 is in both, but after different tokens; {why}"
        );
        same!(desk.trie.n_pages(), 6, "pages of the trie");
        let c = desk.tell(&[7, 7, 7, 7, 7, 7]);
        same!(numbers(&c), [6, 7, 8], "pages of a text that repeats itself: the same tokens at another place; {why}");
        same!(desk.trie.n_pages(), 9, "pages of the trie, with the text that repeats itself");
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
        let most = if cfg!(miri) { 4 } else { 40 };
        pages.extend((0..most).flat_map(|a| (0..most).map(move |b| vec![a, b])));
        pages.sort();
        pages.dedup();
        pages
    }

    #[test]
    fn task_1_pages_are_told_apart_by_all_of_their_tokens() {
        let pages = alike();
        let mut desk = Desk::new(2, pages.len() + 1);
        for (count, page) in pages.iter().enumerate() {
            let table = desk.tell(page);
            same!(numbers(&table), [count as u32], "page of {page:?}, which is not in the trie yet, after its insert");
            same!(desk.trie.n_pages(), count + 1, "pages of the trie after the insert of {page:?}, which is new");
            desk.release(table);
        }
    }

    /// Alone in a pool of 3 pages: what the first text left must not stay pinned beside the second text's own copy of it.
    #[test]
    fn task_1_owners_of_a_page_have_those_before_it_too() {
        let mut desk = Desk::new(4, 3);
        desk.keep(&counting(4));
        let mut table = desk.table(8);
        same!(numbers(&table), [1, 2], "pages of a text that has computed the same 4 tokens, and 4 more");
        desk.insert(&counting(8), &mut table);
        same!(numbers(&table), [0, 2], "pages of that text, inserted: page 0 holds the same rows as its 1");
        same!(desk.owners(), [2, 0, 2], "owners: page 0 comes before page 2, so whoever has 2 must have 0");
        same!(desk.pool.n_free(), 1, "free pages: the duplicate is back");
        desk.grow(&mut table, 4);
        same!(desk.pool.n_free(), 0, "free pages when the text has grown to 12 tokens, alone in a pool of 3");
    }

    #[test]
    fn task_1_no_tokens_no_pages() {
        let mut desk = Desk::new(4, 3);
        let mut table = desk.table(0);
        desk.insert(&[], &mut table);
        desk.insert(&counting(9), &mut table);
        same!(
            (desk.trie.n_pages(), desk.pool.n_free()),
            (0, 3),
            "(pages of the trie, free pages) after tables without tokens"
        );
    }

    #[test]
    fn task_1_a_table_that_holds_more_than_the_text_is_refused() {
        let mut desk = Desk::new(4, 4);
        for (held, given) in [(1, 0), (9, 8), (8, 4), (12, 11)] {
            let mut table = desk.table(held);
            let question = desk.inserting(&counting(given), &table);
            let outcome = quietly(|| desk.trie.insert(&counting(given), &mut table, &mut desk.pool));
            assert!(
                outcome.is_none(),
                "{question}\n  did not panic: tokens that were drafted and not accepted are in no text, and must not be kept"
            );
            same!(desk.trie.n_pages(), 0, "pages of the trie after the refused {question}");
            desk.release(table);
            same!(desk.pool.n_free(), 4, "free pages when the table is released, after the refused {question}");
        }
    }

    #[test]
    fn task_1_a_table_of_another_page_size_is_refused() {
        let mut desk = Desk::new(4, 8);
        for size in [1, 2, 8] {
            let mut table = made(&format!("PageTable::new({size}) of chapter 5"), || PageTable::new(size));
            desk.grow(&mut table, 8);
            let outcome = quietly(|| desk.trie.insert(&counting(8), &mut table, &mut desk.pool));
            assert!(
                outcome.is_none_or(|inserted| inserted.is_err()),
                "insert of a table with pages of {size} slots into a trie of pages with 4 was accepted"
            );
            same!(desk.trie.n_pages(), 0, "pages of the trie after the refused insert of a table with pages of {size}");
            desk.release(table);
            same!(desk.pool.n_free(), 8, "free pages when that table is released");
        }
    }

    /// A pool of so many pages, of which `owned` have an owner.
    #[track_caller]
    fn other_pool(n_pages: usize, owned: &[u32]) -> PagePool {
        let mut pool = made(&format!("PagePool::new({n_pages}) of chapter 4"), || PagePool::new(n_pages));
        same!(pool.alloc_n(n_pages).map(|pages| pages.len()), Ok(n_pages), "pages that alloc_n of chapter 4 gives");
        for page in (0..n_pages as u32).filter(|page| !owned.contains(page)) {
            same!(pool.free(PageId(page)), Ok(()), "free of chapter 4, of page {page}, which was handed out");
        }
        pool
    }

    /// Inserts over a pool that must refuse, for the one reason there is.
    #[track_caller]
    fn refused(
        desk: &mut Desk,
        text: &[u32],
        table: &mut PageTable,
        pool: &mut PagePool,
        why: CacheError,
        which: &str,
    ) {
        let question = format!("{}, over another pool, {which}", desk.inserting(text, table));
        let before = (desk.trie.n_pages(), numbers(table), table.len(), owners(pool), pool.n_free());
        same!(desk.trie.insert(text, table, pool), Err(why), "{question}");
        let after = (desk.trie.n_pages(), numbers(table), table.len(), owners(pool), pool.n_free());
        let what = "(pages of the trie, pages and tokens of the table, owners and free pages of that pool)";
        same!(after, before, "{what} after the refused {question}");
    }

    #[test]
    fn task_1_insert_over_another_pool_changes_nothing() {
        // Of the table's pages 0 and 1, the other pool lacks one, or nobody owns it there.
        let mut desk = Desk::new(4, 5);
        let mut table = desk.table(8);
        let text = counting(8);
        let foreign = |page, n_pages| CacheError::ForeignPage { page: PageId(page), n_pages };
        let free = |page| CacheError::DoubleFree(PageId(page));
        refused(&mut desk, &text, &mut table, &mut other_pool(1, &[0]), foreign(1, 1), "which has only page 0");
        refused(&mut desk, &text, &mut table, &mut other_pool(5, &[0]), free(1), "in which page 1 is free");
        refused(&mut desk, &text, &mut table, &mut other_pool(5, &[1]), free(0), "in which page 0 is free");
        desk.insert(&text, &mut table);
        same!(desk.owners(), [2, 2, 0, 0, 0], "owners after the insert over the right pool, after the refusals");
        // The last page is not full, and the table's all the same.
        let (mut desk, text) = (Desk::new(4, 5), counting(9));
        let mut table = desk.table(9);
        let tail = "in which page 2 is free, the table's last page, which is not full";
        refused(&mut desk, &text, &mut table, &mut other_pool(5, &[0, 1]), free(2), tail);

        // Of the trie's pages 2 and 3. The table is at home in the other pool.
        let mut desk = Desk::new(4, 5);
        let unused = desk.table(8);
        desk.keep(&text);
        same!(desk.owners(), [1, 1, 1, 1, 0], "owners: pages 2 and 3 are the trie's");
        desk.release(unused);
        let mut table = desk.table(8);
        same!(numbers(&table), [0, 1], "pages of a table of the same text");
        refused(&mut desk, &text, &mut table, &mut other_pool(3, &[0, 1, 2]), foreign(3, 3), "which has no page 3");
        refused(&mut desk, &text, &mut table, &mut other_pool(5, &[0, 1, 2]), free(3), "in which page 3 is free");
        refused(&mut desk, &text, &mut table, &mut other_pool(5, &[0, 1, 3]), free(2), "in which page 2 is free");
        desk.insert(&text, &mut table);
        same!(desk.owners(), [0, 0, 2, 2, 0], "owners after the insert over the right pool, after the refusals");
    }

    #[test]
    fn task_1_very_long_sequences_take_no_recursion() {
        for many in more_and_more() {
            let mut desk = Desk::new(1, many);
            // The same token all along: only its place tells a page from the others.
            let text = vec![7; many];
            let mut table = desk.table(many);
            let (trie, pool) = (&mut desk.trie, &mut desk.pool);
            let outcome = once(&format!("insert of a text of {many} pages"), || trie.insert(&text, &mut table, pool));
            same!(outcome, Ok(()), "insert of a text of {many} pages");
            same!(desk.trie.n_pages(), many, "pages of the trie that has one text of {many} pages");
            let (trie, pool) = (&mut desk.trie, &mut desk.pool);
            let outcome =
                once(&format!("second insert of a text of {many} pages"), || trie.insert(&text, &mut table, pool));
            same!(outcome, Ok(()), "second insert of a text of {many} pages");
            same!(desk.trie.n_pages(), many, "pages of the trie after the second insert");
            let wrong = desk.owners().iter().position(|owners| *owners != 2);
            same!(wrong, None, "the first page that has not two owners, table and trie, of a text of {many} pages");
        }
    }

    /// Keeps many texts of one page each, whose first token is their number.
    #[track_caller]
    fn keep_many(desk: &mut Desk, n: usize) {
        let Desk { size, trie, pool, .. } = desk;
        let mut outcome = Ok(());
        often(&format!("insert of texts of one page, {n} of them in turn"), n, |number| {
            let text = vec![number as u32; *size];
            let mut table = PageTable::new(*size).expect("a page table of chapter 5");
            outcome = outcome.clone().and(table.grow(*size, pool));
            outcome = outcome.clone().and(trie.insert(&text, &mut table, pool));
            outcome = outcome.clone().and(table.release(pool));
        });
        same!(outcome, Ok(()), "inserts of {n} texts of one page, each released again");
        same!(trie.n_pages(), n, "pages of the trie after inserts of {n} different texts of one page");
    }

    #[test]
    fn task_1_very_many_texts_cost_no_more() {
        let mut desk = Desk::new(2, MANY);
        keep_many(&mut desk, MANY);
        same!(desk.pool.n_free(), 0, "free pages when the trie has all {MANY}");
    }

    #[test]
    fn task_1_a_page_needs_slots() {
        let outcome = PrefixCache::new(0).err();
        same!(outcome, Some(CacheError::NoSlots), "PrefixCache::new(0)");
    }

    // Task 2

    #[test]
    fn task_2_full_pages_are_found_and_one_token_is_left() {
        for size in 1..=LARGEST_PAGE {
            for kept in 0..=3 * size + 1 {
                let mut desk = Desk::new(size, 20);
                let text = counting(4 * size + 2);
                desk.keep(&text[..kept]);
                let before = desk.owners();
                for len in 0..=4 * size + 2 {
                    let at = format!("lookup of {len} tokens when {kept} of the same were kept, page size {size}");
                    let table = desk.lookup(&text[..len]);
                    let left = "the text must keep a token to compute";
                    let pages = (kept / size).min(len.saturating_sub(1) / size);
                    same!(numbers(&table), counting_from_0(pages), "pages that the {at} finds: {left}");
                    for (page, owners) in desk.owners().into_iter().enumerate() {
                        let expected = before[page] + u32::from(page < pages);
                        same!(owners, expected, "owners of page {page} after the {at}");
                    }
                    same!(desk.trie.n_pages(), kept / size, "pages of the trie after the {at}");
                    desk.release(table);
                    same!(desk.owners(), before, "owners when the table found is released, {at}");
                }
            }
        }
    }

    fn counting_from_0(n: usize) -> Vec<u32> {
        (0..n as u32).collect()
    }

    #[test]
    fn task_2_a_whole_hit_leaves_one_token_to_compute() {
        let mut desk = Desk::new(4, 3);
        desk.keep(&counting(8));
        let why = "the logits after the last token are what is wanted: it must be computed";
        same!(desk.found(&counting(8)), [0], "pages found of the 8 tokens that are kept: {why}");
        same!(desk.found(&counting(9)), [0, 1], "pages found of these 8 tokens and one more");
        let mut desk = Desk::new(1, 8);
        desk.keep(&counting(5));
        same!(desk.found(&counting(5)), [0, 1, 2, 3], "pages of 1 found of the 5 tokens that are kept: {why}");
        same!(desk.found(&[1]), NO_PAGES, "pages of 1 found of one token: {why}");
    }

    #[test]
    fn task_2_no_text_finds_no_pages() {
        let mut desk = Desk::new(4, 3);
        same!(desk.found(&[]), NO_PAGES, "pages found of no tokens, in an empty trie");
        same!(desk.found(&counting(9)), NO_PAGES, "pages found in an empty trie");
        desk.keep(&counting(8));
        same!(desk.found(&[]), NO_PAGES, "pages found of no tokens");
        same!(desk.found(&[1]), NO_PAGES, "pages found of one token");
        same!(desk.owners(), [1, 1, 0], "owners after lookups that found nothing");
    }

    #[test]
    fn task_2_all_pages_found_are_shared() {
        let mut desk = Desk::new(2, 6);
        let table = desk.tell(&counting(7));
        let a = desk.lookup(&counting(7));
        same!(desk.owners(), [3, 3, 3, 1, 0, 0], "owners: the text itself, the trie, and one lookup");
        desk.release(table);
        let b = desk.lookup(&counting(5));
        same!(desk.owners(), [3, 3, 2, 0, 0, 0], "owners: the trie, and two lookups, of which one found two pages");
        same!(desk.trie.n_evictable(&desk.pool), 0, "pages that can be evicted: lookups have them all");
        desk.release(b);
        desk.release(a);
        same!(desk.owners(), [1, 1, 1, 0, 0, 0], "owners when both tables are released: the trie still has its pages");
    }

    #[test]
    fn task_2_the_first_difference_ends_the_prefix() {
        let kept = counting(8);
        for position in 0..8 {
            let mut desk = Desk::new(2, 4);
            desk.keep(&kept);
            let mut text = counting(9);
            text[position] = 99;
            let at =
                format!("pages of 2 found when position {position} is another token, and all behind it are the same");
            same!(desk.found(&text), counting_from_0(position / 2), "{at}");
        }
    }

    #[test]
    fn task_2_a_page_is_found_after_its_own_prefix_only() {
        let mut desk = Desk::new(2, 9);
        desk.keep(&[1, 1, 7, 7, 8, 8]);
        desk.keep(&[2, 2, 7, 7, 8, 8]);
        same!(desk.found(&[1, 1, 7, 7, 8, 8, 9]), [0, 1, 2], "pages found of the first text");
        same!(desk.found(&[2, 2, 7, 7, 8, 8, 9]), [3, 4, 5], "pages found of the second text");
        for text in [[7, 7, 8, 8, 9], [8, 8, 7, 7, 9], [7, 7, 7, 7, 7], [0, 0, 7, 7, 9]] {
            let why = "7, 7 and 8, 8 are kept, but behind other tokens, so with other rows";
            same!(desk.found(&text), NO_PAGES, "pages found of {text:?}: {why}");
        }
        for text in [[0, 0, 1, 1, 9], [7, 7, 1, 1, 9], [2, 1, 1, 7, 7]] {
            let why = "1, 1 is kept at the beginning of texts only, and nothing is kept that begins as this does";
            same!(desk.found(&text), NO_PAGES, "pages found of {text:?}: {why}");
        }
        for (text, pages) in [([1, 1, 8, 8, 9], [0]), ([2, 2, 2, 2, 9], [3]), ([1, 1, 1, 1, 9], [0])] {
            same!(desk.found(&text), pages, "pages found of {text:?}: the second is kept behind other tokens only");
        }
    }

    #[test]
    fn task_2_every_token_is_compared() {
        let pages = alike();
        let mut desk = Desk::new(2, pages.len());
        for page in pages.iter().step_by(2) {
            desk.keep(page);
        }
        for (number, page) in pages.iter().enumerate() {
            let found = desk.found(&[page[0], page[1], 9]);
            let expected: &[u32] = if number % 2 == 0 { &[number as u32 / 2] } else { &[] };
            let which = if number % 2 == 0 { "is kept" } else { "is not, though others much like it are" };
            same!(found, expected, "pages found of {page:?} and one more token: {page:?} {which}");
        }
    }

    #[test]
    fn task_2_very_many_texts_cost_no_more() {
        let mut desk = Desk::new(2, MANY);
        keep_many(&mut desk, MANY);
        let Desk { trie, pool, .. } = &mut desk;
        let (mut wrong, mut unshared) = (None, None);
        // Three texts in four are not there. A key of 32 bits takes some of them for one that is.
        often(&format!("lookup in a trie of {MANY} texts"), 4 * MANY, |number| {
            let number = number as u32;
            let expected: &[PageId] = if number < MANY as u32 { &[PageId(number)] } else { &[] };
            let found = trie.lookup(&[number, number, 0], pool);
            let right = found.as_ref().is_ok_and(|table| table.pages() == expected);
            if right && unshared.is_none() {
                unshared = expected.iter().copied().find(|page| pool.owners(*page) != Ok(2));
            }
            let (pages, released) = match found {
                Ok(mut table) => (Ok(told_pages(table.pages())), table.release(pool)),
                Err(error) => (Err(error), Ok(())),
            };
            if !right || released.is_err() {
                wrong.get_or_insert((number, pages, told_pages(expected)));
            }
        });
        if let Some(page) = unshared {
            panic!("lookup of [{page}, {page}, 0] in a trie of {MANY} texts found page {page} and did not share it");
        }
        if let Some((number, found, expected)) = wrong {
            same!(found, Ok(expected), "lookup of [{number}, {number}, 0] in a trie of {MANY} texts of one page");
        }
        same!(trie.n_evictable(pool), MANY, "pages that the trie owns alone after lookups that were released");
    }

    #[test]
    fn task_2_very_long_sequences_take_no_recursion() {
        for many in more_and_more() {
            let mut desk = Desk::new(1, many);
            let text = vec![7; many];
            let mut kept = desk.table(many);
            let (trie, pool) = (&mut desk.trie, &mut desk.pool);
            let outcome = once(&format!("insert of a text of {many} pages"), || trie.insert(&text, &mut kept, pool));
            same!(outcome, Ok(()), "insert of a text of {many} pages");
            same!(kept.release(pool), Ok(()), "release of a table with {many} pages, after its insert");
            let table =
                once(&format!("lookup of a text of {many} pages"), || granted("lookup", || trie.lookup(&text, pool)));
            same!(table.len(), many - 1, "tokens found of a text of {many} pages of one token, all kept");
            let wrong = numbers(&table).into_iter().zip(0..).find(|(page, place)| page != place);
            same!(wrong, None, "the first page found that is not in its place (page, place), of {many}");
            let wrong = desk.owners()[..many - 1].iter().position(|owners| *owners != 2);
            same!(wrong, None, "the first page found that has not two owners, the trie and the lookup");
        }
    }

    #[test]
    fn task_2_lookup_over_another_pool_changes_nothing() {
        let mut desk = Desk::new(4, 4);
        desk.keep(&counting(12));
        for (n_pages, owned, error) in [
            (2, &[0, 1][..], CacheError::ForeignPage { page: PageId(2), n_pages: 2 }),
            (4, &[0, 1], CacheError::DoubleFree(PageId(2))),
            (4, &[1, 2], CacheError::DoubleFree(PageId(0))),
            (4, &[0, 2], CacheError::DoubleFree(PageId(1))),
        ] {
            let mut other = other_pool(n_pages, owned);
            let before = (owners(&other), other.n_free());
            let at = format!(
                "lookup that finds pages 0, 1, 2, over another pool of {n_pages}, in which {owned:?} have an owner"
            );
            let outcome = desk.trie.lookup(&counting(13), &mut other).map(|table| numbers(&table));
            same!(outcome, Err(error), "{at}");
            same!((owners(&other), other.n_free()), before, "owners and free pages of the other pool after the {at}");
        }
        same!(desk.found(&counting(13)), [0, 1, 2], "pages found over the right pool, after the refusals");
    }

    /// Rows that tell their whole prefix: one number for each text that a position can end.
    #[derive(Default)]
    struct Rows(HashMap<Vec<u32>, usize>);

    impl Rows {
        /// The numbers of the rows of a text.
        fn of(&mut self, text: &[u32]) -> Vec<usize> {
            (1..=text.len())
                .map(|end| {
                    let next = self.0.len();
                    *self.0.entry(text[..end].to_vec()).or_insert(next)
                })
                .collect()
        }
    }

    #[track_caller]
    fn slab(page_size: usize, n_pages: usize) -> SharedSlab {
        made(&format!("PageSlab::new of chapter 6, with {n_pages} pages of {page_size} slots"), || {
            PageSlab::new(LAYOUT, page_size, n_pages)
        })
    }

    /// A cache from the trie, whose pages it shares: were they not, dropping it would take them from others.
    #[track_caller]
    fn with_prefix(slab: &SharedSlab, trie: &mut PrefixCache, tokens: &[u32], question: &str) -> ForkCache {
        let before = owners(slab.borrow().pool());
        let cache = granted(question, || ForkCache::with_prefix(slab, trie, tokens));
        let after = owners(slab.borrow().pool());
        // It is not dropped when the check fails.
        let cache = ManuallyDrop::new(cache);
        shared(&before, &after, cache.table().pages(), question);
        ManuallyDrop::into_inner(cache)
    }

    /// A text on its way: its tokens, its cache, and what that must hold.
    struct Text {
        tokens: Vec<u32>,
        cache: ForkCache,
        oracle: Oracle,
    }

    impl Text {
        /// A text that begins with what the trie has of it. The rows of the others are still to come.
        #[track_caller]
        fn begin(slab: &SharedSlab, trie: &mut PrefixCache, rows: &mut Rows, tokens: &[u32], run: &str) -> Self {
            let run = if run.is_empty() { String::new() } else { format!(", {run}") };
            let question = format!("ForkCache::with_prefix of {}{run}", shown(tokens));
            let cache = with_prefix(slab, trie, tokens, &question);
            assert!(
                cache.is_empty() || cache.len() < tokens.len(),
                "{question}\n  gives {} tokens: one must be left to compute",
                cache.len()
            );
            let mut oracle = Oracle::of(format!("text {}{run}", shown(tokens)));
            oracle.note(format!("with_prefix found {} tokens", cache.len()));
            oracle.tokens = rows.of(&tokens[..cache.len()]);
            Text { tokens: tokens.to_vec(), cache, oracle }
        }

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
            let pages = self.cache.table().pages();
            let size = self.cache.table().page_size();
            self.oracle.check_placed(&self.cache, &|position| {
                pages
                    .get(position / size)
                    .map_or("".into(), |page| format!(" (slot {} of page {page})", position % size))
            });
        }
    }

    #[test]
    fn task_2_the_rows_found_are_those_of_the_text() {
        let slab = slab(4, 8);
        let (mut trie, mut rows) = (trie(4), Rows::default());
        let begun = |trie: &mut PrefixCache, rows: &mut Rows, text: &[u32]| Text::begin(&slab, trie, rows, text, "");
        let mut first = begun(&mut trie, &mut rows, &counting(10));
        first.compute(&mut rows);
        first.insert(&mut trie);
        drop(first);
        // The pages that are free now are filled by somebody else.
        let mut other = begun(&mut trie, &mut rows, &[70; 20]);
        other.compute(&mut rows);
        let mut second = begun(&mut trie, &mut rows, &[1, 2, 3, 4, 5, 6, 7, 8, 50, 51]);
        same!(
            second.cache.len(),
            8,
            "tokens found when the text that computed them is gone and others have filled pages"
        );
        second.check();
        second.compute(&mut rows);
        second.check();
        other.check();
        second.insert(&mut trie);
        second.check();
    }

    #[test]
    fn task_2_a_rewind_into_a_page_of_the_trie_leaves_it_its_rows() {
        let slab = slab(4, 8);
        let (mut trie, mut rows) = (trie(4), Rows::default());
        let mut first = Text::begin(&slab, &mut trie, &mut rows, &counting(9), "");
        first.compute(&mut rows);
        first.insert(&mut trie);
        first.oracle.rewind(&mut first.cache, 3);
        first.tokens = vec![1, 2, 3, 4, 5, 6, 60, 61, 62];
        first.compute(&mut rows);
        first.check();
        first.insert(&mut trie);
        first.check();
        for tokens in [counting(9), first.tokens.clone()] {
            let second = Text::begin(&slab, &mut trie, &mut rows, &tokens, "");
            same!(second.cache.len(), 8, "tokens found of {}", shown(&tokens));
            second.check();
        }
    }

    // Task 3

    #[test]
    fn task_3_the_least_recently_used_goes_first() {
        let mut desk = Desk::new(2, 6);
        for token in 1..=4 {
            desk.keep(&[token, token]);
        }
        same!(desk.found(&[1, 1, 9]), [0], "pages found of the first text: a lookup comes by");
        desk.keep(&[2, 2]);
        same!(desk.evict(1), 1, "evict(1) of four pages that nobody uses");
        let used = "the texts came as 1, 2, 3, 4; then 1 was looked up, and 2 inserted again";
        same!(desk.owners(), [1, 1, 0, 1, 0, 0], "owners after evict(1): {used}");
        same!(desk.found(&[3, 3, 9]), NO_PAGES, "pages found of the text that was evicted");
        same!(desk.evict_all(), [3, 0, 1], "the order in which the others are evicted: {used}");
        same!(desk.pool.n_free(), 6, "free pages when all are evicted");
    }

    #[test]
    fn task_3_tails_go_before_what_they_follow() {
        let mut desk = Desk::new(2, 6);
        desk.keep(&counting(8));
        same!(desk.evict(1), 1, "evict(1) of a text of 4 pages");
        same!(
            desk.owners(),
            [1, 1, 1, 0, 0, 0],
            "owners after evict(1) of pages 0, 1, 2, 3, one after the other in a text"
        );
        same!(desk.found(&counting(9)), [0, 1, 2], "pages found when the last is evicted");
        same!(desk.evict(2), 2, "evict(2) of the 3 pages left");
        same!(desk.found(&counting(9)), [0], "pages found when the last three are evicted");
        same!(desk.evict(9), 1, "evict(9) of the page left");
        same!(desk.owners(), [0; 6], "owners when all are evicted");
    }

    #[test]
    fn task_3_as_many_go_as_were_asked_for() {
        for n in 0..=7 {
            let mut desk = Desk::new(2, 9);
            desk.keep(&counting(6));
            desk.keep(&[1, 2, 50, 51]);
            desk.keep(&[70, 71, 72]);
            same!(desk.trie.n_pages(), 5, "pages of the trie: 3 of a text, 1 that branches off, 1 of another text");
            same!(desk.evict(n), n.min(5), "evict({n}) of 5 pages that nobody uses, leaves and others");
        }
        let mut desk = Desk::new(1, 5);
        desk.keep(&counting(5));
        same!(desk.evict(usize::MAX), 5, "evict({}) of a text of 5 pages that nobody uses", usize::MAX);
        same!(desk.evict(1), 0, "evict(1) of an empty trie");
    }

    #[test]
    fn task_3_pages_in_use_stay() {
        let mut desk = Desk::new(2, 9);
        let a = desk.tell(&counting(5));
        desk.keep(&[1, 2, 50, 51]);
        same!(
            desk.owners(),
            [2, 2, 1, 0, 1, 0, 0, 0, 0],
            "owners: a text has 0, 1 and 2; the trie has 0, 1 and, alone, 4"
        );
        same!(desk.trie.n_evictable(&desk.pool), 1, "pages that can be evicted");
        same!(desk.evict(9), 1, "evict(9) when a text uses two of the trie's three pages");
        same!(desk.owners(), [2, 2, 1, 0, 0, 0, 0, 0, 0], "owners after that: pages of a text that goes on must stay");
        desk.release(a);
        let found = desk.lookup(&counting(3));
        same!(desk.evict(9), 1, "evict(9) when a lookup has the first of two pages");
        same!(desk.owners(), [1 + 1, 0, 0, 0, 0, 0, 0, 0, 0], "owners after that: the page that was found must stay");
        desk.release(found);
        same!(desk.evict(9), 1, "evict(9) when the lookup's table is released");
        same!(desk.owners(), [0; 9], "owners when all are evicted");
    }

    /// A fork that was made before the insert has a page of its own before the page that it shares.
    #[test]
    fn task_3_a_page_that_others_follow_stays() {
        let mut desk = Desk::new(2, 9);
        desk.keep(&counting(2));
        let mut table = desk.table(4);
        let mut fork = granted("PageTable::fork of chapter 10", || table.fork(&mut desk.pool));
        desk.insert(&counting(4), &mut table);
        desk.release(table);
        same!(
            desk.owners(),
            [1, 1, 2, 0, 0, 0, 0, 0, 0],
            "owners: the trie alone has 0; page 2, behind it, a fork as well"
        );
        same!(desk.evict(9), 0, "evict(9) when page 0 is unused, but page 2 follows it in the trie and is in use");
        same!(desk.found(&counting(5)), [0, 2], "pages found after that");
        desk.insert(&counting(4), &mut fork);
        desk.release(fork);
        same!(desk.evict_all(), [2, 0], "the order of eviction when the fork was inserted too, and released");
    }

    #[test]
    fn task_3_a_lookup_uses_all_pages_that_it_finds() {
        let mut desk = Desk::new(2, 9);
        desk.keep(&counting(4));
        let held = desk.tell(&[50, 50]);
        same!(desk.found(&counting(5)), [0, 1], "pages found of the first text");
        same!(desk.evict(1), 1, "evict(1): page 1 is the only leaf that nobody uses");
        desk.release(held);
        let used = "page 2 came after 0 and 1, and then these two were looked up: both are newer";
        same!(desk.evict_all(), [2, 0], "the order of eviction, of 2 and 0: {used}");
    }

    #[test]
    fn task_3_an_insert_uses_all_pages_of_its_text() {
        let mut desk = Desk::new(2, 9);
        desk.keep(&counting(4));
        let held = desk.tell(&[50, 50]);
        desk.keep(&counting(5));
        same!(desk.evict(1), 1, "evict(1): page 1 is the only leaf that nobody uses");
        desk.release(held);
        let used = "page 2 came after 0 and 1, and then the text of these two was inserted again: both are newer";
        same!(desk.evict_all(), [2, 0], "the order of eviction, of 2 and 0: {used}");
    }

    #[test]
    fn task_3_the_last_page_of_a_text_is_used_too() {
        for call in ["lookup", "insert"] {
            let mut desk = Desk::new(1, 5);
            desk.keep(&[1, 2]);
            desk.keep(&[3]);
            if call == "lookup" {
                same!(desk.found(&[1, 2, 9]), [0, 1], "pages of 1 found of [1, 2, 9]");
            } else {
                desk.keep(&[1, 2]);
            }
            same!(desk.evict(1), 1, "evict(1) of three pages that nobody uses");
            let used =
                format!("1, 2 came in pages 0 and 1, then 3 in page 2, then an {call} of 1, 2 used all its pages");
            let used = used.replace("an lookup", "a lookup");
            same!(desk.owners(), [1, 1, 0, 0, 0], "owners after evict(1): {used}");
        }
    }

    #[test]
    fn task_3_each_page_is_chosen_from_all() {
        let mut desk = Desk::new(1, 4);
        desk.keep(&[1, 2]);
        desk.keep(&[3]);
        same!(desk.found(&[1, 9]), [0], "pages of 1 found of [1, 9]");
        same!(desk.evict(2), 2, "evict(2) of three pages that nobody uses");
        let used = "1, 2 came in pages 0 and 1, then 3 in page 2, and then 1 was looked up";
        let order = "page 1 goes, and then 2 and not 0, which became a leaf but was used later";
        same!(desk.owners(), [1, 0, 0, 0], "owners after evict(2): {used}; {order}");
    }

    #[test]
    fn task_3_a_call_is_a_tick_of_the_clock() {
        let mut desk = Desk::new(2, 9);
        desk.keep(&counting(4));
        desk.keep(&[50, 50]);
        let what = "(page, last_used) as `pages` lists them";
        let used = listed(&desk.trie);
        assert!(
            used[2].1 > used[1].1,
            "{what}: page 2 was inserted after 0 and 1, so it was used later; yours: {used:?}"
        );
        same!(desk.found(&counting(5)), [0, 1], "pages found of the first sequence");
        let used = listed(&desk.trie);
        assert!(
            used[0].1 > used[2].1 && used[1].1 > used[2].1,
            "{what}: pages 0 and 1 were looked up after page 2 was inserted, so they were used later: each lookup and each \
             insert is a tick of the clock; yours: {used:?}"
        );
    }

    #[test]
    fn task_3_an_insert_uses_no_page_beyond_its_table() {
        let mut desk = Desk::new(2, 9);
        desk.keep(&counting(6));
        desk.keep(&[50, 50]);
        let mut table = desk.table(2);
        desk.insert(&counting(6), &mut table);
        desk.release(table);
        same!(
            desk.evict_all(),
            [2, 1, 3, 0],
            "the order of eviction: the sequence of pages 0, 1, 2 came first, then page 3, and then an insert with a table that \
             holds the tokens of page 0 only: it used that page, and not 1 and 2, which the trie found beyond the table"
        );
    }

    #[test]
    fn task_3_a_parent_that_became_a_leaf_is_next() {
        let mut desk = Desk::new(1, 5);
        desk.keep(&[1, 2]);
        desk.keep(&[3, 4]);
        same!(desk.evict(2), 2, "evict(2) of four pages that no sequence uses");
        same!(
            desk.owners(),
            [0, 0, 1, 1, 0],
            "owners after evict(2): the sequence of pages 0 and 1 came first, then that of 2 and 3. Page 1 goes, and then 0, \
             which has become a leaf and is older than 3: each page is chosen anew, not in rounds of leaves"
        );
    }

    #[test]
    fn task_3_an_insert_that_is_refused_uses_no_page() {
        let mut desk = Desk::new(2, 6);
        desk.keep(&[1, 1, 2, 2]);
        desk.keep(&[3, 3]);
        let mut table = desk.table(4);
        same!(numbers(&table), [3, 4], "pages of a table that computes 1, 1, 2, 2 again");
        let before = listed(&desk.trie);
        let why = CacheError::DoubleFree(PageId(1));
        refused(&mut desk, &[1, 1, 2, 2], &mut table, &mut other_pool(6, &[0, 3, 4]), why, "in which page 1 is free");
        let what = "(page, last_used) that `pages` lists after a refused insert: it has used no page";
        same!(listed(&desk.trie), before, "{what}");
        desk.release(table);
        let used = "1, 1, 2, 2 came in pages 0 and 1, then 3, 3 in page 2; then an insert of 1, 1, 2, 2 was refused";
        same!(desk.evict_all(), [1, 0, 2], "the order of eviction: {used}");
    }

    /// Whoever lists no pages says nothing.
    #[test]
    fn task_3_pages_used_by_one_call_have_one_number() {
        let mut desk = Desk::new(2, 6);
        desk.keep(&counting(6));
        let inserted = listed(&desk.trie);
        if inserted.is_empty() {
            return;
        }
        let alike = |listed: &[(u32, u64)]| listed.iter().all(|(_, last_used)| *last_used == listed[0].1);
        let what = "(page, last_used) that `pages` lists";
        assert!(alike(&inserted), "{what}: one insert used all three, so they have one number; yours: {inserted:?}");
        same!(desk.found(&counting(5)), [0, 1], "pages found of 5 tokens");
        let found = listed(&desk.trie);
        assert!(alike(&found[..2]), "{what}: one lookup used 0 and 1, so they have one number; yours: {found:?}");
        assert!(
            found[0].1 > found[2].1 && found[2] == inserted[2],
            "{what}: 0 and 1 were looked up and have a higher number now, 2 has the one it had ({inserted:?}); yours: {found:?}"
        );
    }

    #[test]
    fn task_3_a_lookup_uses_no_page_that_it_does_not_return() {
        let mut desk = Desk::new(2, 9);
        desk.keep(&counting(4));
        desk.keep(&[50, 50]);
        same!(desk.found(&counting(4)), [0], "pages found of 4 tokens that are all kept");
        same!(desk.evict_all(), [1, 2, 0], "the order of eviction: the lookup returned page 0, and not 1");
        desk.keep(&counting(2));
        desk.keep(&[50, 50]);
        let first = desk.found(&counting(3));
        let mut other = other_pool(9, &[]);
        same!(desk.found(&[50, 50, 1]).len(), 1, "pages found of the second text");
        let refused = desk.trie.lookup(&counting(3), &mut other).map(|table| numbers(&table));
        assert!(refused.is_err(), "lookup over a pool in which no page has an owner gave {refused:?}");
        let order = desk.evict_all();
        same!(
            order.first(),
            first.first(),
            "the page that goes first: it was used longest ago, as a lookup that is refused uses nothing"
        );
    }

    #[test]
    fn task_3_what_was_evicted_can_come_again() {
        let mut desk = Desk::new(2, 4);
        for time in 1..=3 {
            desk.keep(&counting(6));
            same!(desk.trie.n_pages(), 3, "pages of the trie when the text has come {time} times");
            same!(desk.evict(2), 2, "evict(2) of 3 pages, when the text has come {time} times");
            same!(desk.found(&counting(7)).len(), 1, "pages found of the text, whose last two were evicted");
            // Somebody else takes the pages that are free: had the trie forgotten nothing, it would give them away.
            let other = desk.table(6);
            same!(desk.found(&counting(7)).len(), 1, "pages found when others have the pages that were evicted");
            desk.release(other);
            if time == 2 {
                same!(desk.evict(1), 1, "evict(1) of the page left");
                same!(desk.found(&counting(7)), NO_PAGES, "pages found when all are evicted");
            }
        }
    }

    #[test]
    fn task_3_brothers_stay() {
        let mut desk = Desk::new(1, 6);
        for text in [[1, 10], [1, 11], [1, 12], [2, 10]] {
            desk.keep(&text);
        }
        same!(desk.evict(1), 1, "evict(1) of six pages");
        for (text, pages) in [([1, 10, 0], 1), ([1, 11, 0], 2), ([1, 12, 0], 2), ([2, 10, 0], 2)] {
            same!(
                desk.found(&text).len(),
                pages,
                "pages of 1 found of {text:?}, when the page of 10 behind 1 is evicted"
            );
        }
    }

    #[test]
    fn task_3_evict_over_another_pool_changes_nothing() {
        let mut desk = Desk::new(2, 4);
        let spare = desk.table(2);
        desk.keep(&counting(6));
        desk.release(spare);
        let mut other = other_pool(1, &[0]);
        let before = owners(&other);
        let outcome = desk.trie.evict(2, &mut other);
        let foreign = |page: u32| Err(CacheError::ForeignPage { page: PageId(page), n_pages: 1 });
        let expected = [foreign(1), foreign(2), foreign(3)];
        assert!(
            expected.contains(&outcome),
            "evict(2) of pages 1, 2, 3, over another pool that has only page 0\n  expected: one of {expected:?}\n  \
             yours:    {outcome:?}"
        );
        same!(owners(&other), before, "owners in the other pool after the refused evict");
        same!(desk.trie.n_pages(), 3, "pages of the trie after the refused evict");
        same!(desk.trie.evict(0, &mut other), Ok(0), "evict(0), over another pool: it looks for no page");
        let mut free = other_pool(4, &[0]);
        same!(
            desk.trie.evict(2, &mut free),
            Ok(0),
            "evict(2), over another pool in which pages 1, 2, 3 have no owner: to be evicted, a page has exactly one"
        );
        same!(desk.trie.n_pages(), 3, "pages of the trie after that evict");
        same!(desk.evict(3), 3, "evict(3) over the right pool, after the refusal");
    }

    #[test]
    fn task_3_the_clock_does_not_run_out() {
        let mut desk = Desk::new(1, 600);
        keep_many(&mut desk, 600);
        let order = desk.evict_all();
        let wrong = order.iter().zip(0..).find(|(page, turn)| **page != *turn);
        same!(wrong, None, "the first of 600 pages that is not evicted in the order in which they came (page, turn)");
        same!(order.len(), 600, "pages evicted one by one");

        for many in more_and_more() {
            let mut desk = Desk::new(1, many);
            keep_many(&mut desk, many);
            for page in 0..3 {
                let (trie, pool) = (&mut desk.trie, &mut desk.pool);
                let evicted = once(&format!("evict(1) of {many} pages"), || trie.evict(1, pool));
                same!(evicted, Ok(1), "evict(1) of {many} pages that nobody uses");
                let owners = desk.pool.owners(PageId(page));
                same!(owners, Ok(0), "owners of page {page}, which was used longest ago, of {many}");
            }
            let left = (desk.trie.n_pages(), desk.pool.n_free());
            same!(left, (many - 3, 3), "(pages of the trie, free pages) after three evictions");
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
        const SIZE: usize = 2;
        let mut desk = Desk::new(SIZE, 6);
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
            let told = match operation {
                "compute" => {
                    let mut table = tables.remove(name).unwrap_or_else(|| desk.table(0));
                    let missing = words.split(' ').count() - table.len();
                    desk.grow(&mut table, missing);
                    let told = format!("{missing} tokens, then {}", told_pages(table.pages()));
                    tables.insert(name, table);
                    told
                }
                "insert" => {
                    let Desk { trie, pool, .. } = &mut desk;
                    let table = tables.get_mut(name).expect("a text of the script");
                    let _asking = asking(format!("insert of \"{words}\", in the transcript"));
                    match trie.insert(&tokens(words), table, pool) {
                        Ok(()) => told_pages(table.pages()),
                        Err(error) => told(&error),
                    }
                }
                "lookup" => {
                    let Desk { trie, pool, .. } = &mut desk;
                    let _asking = asking(format!("lookup of \"{words}\", in the transcript"));
                    match trie.lookup(&tokens(words), pool) {
                        Ok(table) => {
                            let told = format!("finds {}", told_pages(table.pages()));
                            tables.insert(name, table);
                            told
                        }
                        Err(error) => told(&error),
                    }
                }
                "end" => match tables.remove(name).map(|mut table| table.release(&mut desk.pool)) {
                    Some(Err(error)) => told(&error),
                    _ => String::new(),
                },
                _ => {
                    let n = operation.trim_matches(|letter: char| !letter.is_ascii_digit()).parse().unwrap_or(0);
                    let _asking = asking(format!("evict({n}), in the transcript"));
                    match desk.trie.evict(n, &mut desk.pool) {
                        Ok(n) => format!("{n} evicted"),
                        Err(error) => told(&error),
                    }
                }
            };
            let owners = desk.owners().iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
            let (held, free) = (desk.trie.n_pages(), desk.pool.n_free());
            transcript
                .line(format!("{name:<2}{operation:<9}{words:<23} {told:<26} trie {held}, free {free}  [{owners}]"));
        }
        assert_transcript("ch11_prefix_cache", &transcript);
    }

    /// What must be found: every prefix that is kept, written out, in no order and with no links.
    #[derive(Default)]
    struct Shelf {
        pages: Vec<Kept>,
        turns: u64,
    }

    struct Kept {
        prefix: Vec<u32>,
        page: PageId,
        last_used: u64,
    }

    impl Shelf {
        fn at(&mut self, prefix: &[u32]) -> Option<&mut Kept> {
            self.pages.iter_mut().find(|kept| kept.prefix == prefix)
        }

        /// The pages of the longest prefix of a text, which are used by that.
        fn lookup(&mut self, size: usize, text: &[u32]) -> Vec<PageId> {
            self.turns += 1;
            let turn = self.turns;
            let mut pages = Vec::new();
            for end in (size..text.len()).step_by(size) {
                let Some(kept) = self.at(&text[..end]) else { break };
                kept.last_used = turn;
                pages.push(kept.page);
            }
            pages
        }

        /// What the table of a text has after its insert; before, it had `own`.
        fn insert(&mut self, size: usize, text: &[u32], own: &[PageId]) -> Vec<PageId> {
            self.turns += 1;
            let turn = self.turns;
            let mut pages = own.to_vec();
            for (place, end) in (size..=text.len()).step_by(size).enumerate() {
                if self.at(&text[..end]).is_none() {
                    self.pages.push(Kept { prefix: text[..end].to_vec(), page: own[place], last_used: 0 });
                }
                if let Some(kept) = self.at(&text[..end]) {
                    kept.last_used = turn;
                    pages[place] = kept.page;
                }
            }
            pages
        }

        /// Takes the page that goes next off the shelf, of those that no text has.
        fn evict(&mut self, used: &HashSet<PageId>) -> Option<PageId> {
            let follows = |kept: &Kept, other: &Kept| {
                kept.prefix.len() < other.prefix.len() && other.prefix.starts_with(&kept.prefix)
            };
            let may_go =
                |kept: &Kept| !used.contains(&kept.page) && !self.pages.iter().any(|other| follows(kept, other));
            let next = self.pages.iter().filter(|kept| may_go(kept)).min_by_key(|kept| kept.last_used)?.page;
            self.pages.retain(|kept| kept.page != next);
            Some(next)
        }
    }

    /// Compares the owners of all pages with the texts and the shelf, and every text's rows with what was computed.
    #[track_caller]
    fn check_all(slab: &SharedSlab, trie: &PrefixCache, shelf: &Shelf, texts: &[Text], forked: bool, at: &str) {
        same!(trie.n_pages(), shelf.pages.len(), "pages of the trie, after {at}");
        let mut expected = vec![0; slab.borrow().pool().n_pages()];
        let held = texts.iter().flat_map(|text| text.cache.table().pages());
        for page in held.chain(shelf.pages.iter().map(|kept| &kept.page)) {
            expected[page.index()] += 1;
        }
        let found = owners(slab.borrow().pool());
        let kept: Vec<String> = shelf.pages.iter().map(|kept| kept.page.to_string()).collect();
        same!(
            found,
            expected,
            "owners, after {at}: one for each text that has the page, one more for {}",
            kept.join(" ")
        );
        let alone = shelf.pages.iter().filter(|kept| expected[kept.page.index()] == 1).count();
        same!(trie.n_evictable(slab.borrow().pool()), alone, "pages that the trie owns alone, after {at}");
        for kept in &shelf.pages {
            let behind = shelf.pages.iter().filter(|other| other.prefix.starts_with(&kept.prefix));
            for other in behind.filter(|_| !forked) {
                let (own, its) = (expected[kept.page.index()], expected[other.page.index()]);
                assert!(
                    own >= its,
                    "page {} has {own} owners, page {} behind it {its}, after {at}: whoever has the second must have the first",
                    kept.page,
                    other.page
                );
            }
        }
        for text in texts {
            text.check();
        }
    }

    #[test]
    fn whole_oracle() {
        for seed in seeds(40) {
            let mut dice = Dice::new(seed);
            let (size, n_pages, words) = (dice.roll(1, 4), dice.roll(4, 14), dice.roll(1, 3));
            // A fork that was made before an insert may have pages of its own before those that it shares.
            let may_fork = seed % 2 == 1;
            let slab = slab(size, n_pages);
            let (mut trie, mut shelf, mut rows) = (trie(size), Shelf::default(), Rows::default());
            let mut texts: Vec<Text> = Vec::new();
            let run = format!("seed {seed}, page size {size}, {n_pages} pages");
            for _ in 0..STEPS {
                let move_ = dice.roll(0, 11);
                let at = if texts.is_empty() || (move_ < 3 && texts.len() < 4) {
                    let len = dice.roll(0, 4 * size + 1);
                    let tokens: Vec<u32> = (0..len).map(|_| dice.roll(1, words) as u32).collect();
                    let at = format!("{run}: with_prefix of {}", shown(&tokens));
                    let expected = shelf.lookup(size, &tokens);
                    let mut text = Text::begin(&slab, &mut trie, &mut rows, &tokens, &run);
                    same!(text.cache.table().pages(), expected, "pages of the text after {at}");
                    text.tokens.truncate(text.cache.len());
                    text.check();
                    texts.push(text);
                    at
                } else if move_ == 3 {
                    let text = texts.remove(dice.roll(0, texts.len() - 1));
                    format!("{run}: the text {} ends", shown(&text.tokens))
                } else if move_ < 6 {
                    let n = dice.roll(0, 4);
                    let used = texts.iter().flat_map(|text| text.cache.table().pages()).copied().collect();
                    let gone: Vec<PageId> = (0..n).map_while(|_| shelf.evict(&used)).collect();
                    let at = format!("{run}: evict({n}), which is to take {}", told_pages(&gone));
                    same!(slab.borrow_mut().evict(&mut trie, n), Ok(gone.len()), "{at}");
                    at
                } else {
                    let (index, count) = (dice.roll(0, texts.len() - 1), texts.len());
                    let text = &mut texts[index];
                    let held = text.cache.len();
                    if move_ < 9 {
                        let n = dice.roll(0, 2 * size + 1);
                        let more: Vec<u32> = (0..n).map(|_| dice.roll(1, words) as u32).collect();
                        let tokens = [&text.tokens[..], &more].concat();
                        let at = format!("{run}: the text {} grows by {}", shown(&text.tokens), shown(&more));
                        let tail_is_shared =
                            !held.is_multiple_of(size)
                                && text.cache.table().pages().last().is_some_and(|page| {
                                    slab.borrow().pool().owners(*page).is_ok_and(|owners| owners > 1)
                                });
                        let new = (held + n).div_ceil(size) - held.div_ceil(size);
                        let needed = if n > 0 { new + usize::from(tail_is_shared) } else { 0 };
                        if needed <= slab.borrow().pool().n_free() {
                            text.tokens = tokens;
                            text.compute(&mut rows);
                        }
                        at
                    } else if move_ == 9 {
                        let n = dice.roll(0, held);
                        let at = format!("{run}: rewind({n}) of the text {}", shown(&text.tokens));
                        text.oracle.rewind(&mut text.cache, n);
                        text.tokens.truncate(held - n);
                        at
                    } else if move_ == 10 && may_fork && count < 4 {
                        let at = format!("{run}: fork of the text {}", shown(&text.tokens));
                        let cache = granted(at.as_str(), || text.cache.fork());
                        let (tokens, oracle) = (text.tokens.clone(), text.oracle.clone());
                        texts.push(Text { tokens, cache, oracle });
                        at
                    } else {
                        let own = text.cache.table().pages().to_vec();
                        let at = format!("{run}: insert_into of {} in {}", shown(&text.tokens), told_pages(&own));
                        let expected = shelf.insert(size, &text.tokens, &own);
                        text.insert(&mut trie);
                        same!(text.cache.table().pages(), expected, "pages of the text after {at}");
                        at
                    }
                };
                check_all(&slab, &trie, &shelf, &texts, may_fork, &at);
            }
            drop(texts);
            let held = trie.n_pages();
            same!(
                slab.borrow_mut().evict(&mut trie, n_pages),
                Ok(held),
                "{run}: evict({n_pages}) when all texts are gone"
            );
            same!(slab.borrow().pool().n_free(), n_pages, "{run}: free pages when all are gone and evicted");
        }
    }

    /// What recomputing writes behind a prompt.
    fn alone(teller: &Storyteller, prompt: &[u32], n: usize) -> (Vec<u32>, Vec<Vec<f32>>) {
        let mut sampler = Sampler::new(SAMPLING);
        let (mut text, mut all) = (prompt.to_vec(), Vec::new());
        for _ in 0..n {
            let logits = made("a step of the model without a cache", || teller.model.step(&text, None));
            text.push(sampler.pick(&logits));
            all.push(logits);
        }
        (text.split_off(prompt.len()), all)
    }

    #[test]
    fn whole_story() {
        const SIZE: usize = 4;
        const NEW: usize = 12;
        let teller = Storyteller::open();
        let layout = teller.model.config().kv_layout();
        let slab = made("PageSlab::new of chapter 6", || PageSlab::new(layout, SIZE, 16));
        let mut trie = trie(SIZE);
        let begin =
            made("the tokenizer", || teller.tokenizer.encode("Once upon a time there lived a king who had a golden"));
        let mut prompt = begin.clone();
        // The second prompt is the first again; the third goes on from its story; the fourth branches off.
        for turn in 0..4 {
            if turn == 3 {
                prompt = [&begin[..begin.len() - 2], &begin[..3]].concat();
            }
            let (expected, logits) = alone(&teller, &prompt, NEW);
            let question = format!("ForkCache::with_prefix of {} tokens, text {turn} of the story", prompt.len());
            let mut cache = with_prefix(&slab, &mut trie, &prompt, &question);
            let read = prompt.len() - 1;
            let pages = [0, read / SIZE, (prompt.len() - 1) / SIZE, (begin.len() - 2) / SIZE][turn];
            same!(cache.len(), pages * SIZE, "tokens that the {question} finds");
            let mut sampler = Sampler::new(SAMPLING);
            let mut text = prompt.clone();
            for (step, expected) in logits.iter().enumerate() {
                let found = cache.len();
                let at = format!("step {step} of text {turn}, {found} of {} tokens are in the cache", text.len());
                let mut watched = Watched(&mut cache);
                let logits = made(&at, || Cached::new(&teller.model, &mut watched).next_logits(&text));
                let same = logits.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{at}: the logits are not, bit for bit, those of the text that is told without a cache");
                let question = format!("insert_into after {at}");
                same!(cache.insert_into(&mut trie, &text), Ok(()), "{question}");
                text.push(sampler.pick(&logits));
            }
            teller.assert_same_story(&text[prompt.len()..], &expected);
            drop(cache);
            same!(
                slab.borrow().pool().n_free() + trie.n_pages(),
                16,
                "pages that are free or the trie's, when text {turn} has ended"
            );
            if turn == 1 {
                prompt = text;
            }
        }
        let held = trie.n_pages();
        same!(slab.borrow_mut().evict(&mut trie, 99), Ok(held), "evict(99) when all stories are told");
        same!(slab.borrow().pool().n_free(), 16, "free pages of 16 when all stories are told and their pages evicted");
    }
}
