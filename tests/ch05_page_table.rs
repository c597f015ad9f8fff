//! Grader of chapter 5: the page table.

#[cfg(unstarted = "ch05_page_table")]
#[test]
#[ignore = "not started: edit exercises/ch05_page_table.rs, or run with --features solution"]
fn ch05_page_table() {}

#[cfg(not(unstarted = "ch05_page_table"))]
#[macro_use]
mod support;

#[cfg(not(unstarted = "ch05_page_table"))]
whose_code! { ch04_page_pool = "ch04_page_pool", ch05_page_table = "ch05_page_table" }

#[cfg(not(unstarted = "ch05_page_table"))]
mod checks {
    use page_by_page::cache::{CacheError, PageId};
    use page_by_page::chapters::ch04_page_pool::PagePool;
    use page_by_page::chapters::ch05_page_table::{PageTable, Slot};

    use crate::support::oracle::{Dice, STEPS, seeds};
    use crate::support::transcript::{Transcript, assert_transcript, outcome, told, told_pages};

    fn table(page_size: usize) -> PageTable {
        PageTable::new(page_size).expect("a table over pages with slots can be made")
    }

    fn pool(n_pages: usize) -> PagePool {
        PagePool::new(n_pages).expect("a pool with pages can be made")
    }

    /// A pool of 16 that has handed out all pages but these, and hands out these next.
    fn pool_that_gives(pages: &[u32]) -> PagePool {
        let mut pool = pool(16);
        pool.alloc_n(16).expect("a new pool of 16 gives 16 pages");
        for page in pages.iter().rev() {
            pool.free(PageId(*page)).expect("a page that was handed out can be freed");
        }
        pool
    }

    fn ids(pages: &[u32]) -> Vec<PageId> {
        pages.iter().copied().map(PageId).collect()
    }

    /// Grows a table for which there are pages enough.
    #[track_caller]
    fn grow(table: &mut PageTable, n: usize, pool: &mut PagePool) {
        let (len, free) = (table.len(), pool.n_free());
        let size = table.page_size();
        same!(table.grow(n, pool), Ok(()), "grow({n}) on {len} tokens, page size {size}, {free} pages free");
    }

    /// Ten tokens in pages 12, 5, 3 of 4 slots: the example of the chapter. Page 9 is free.
    fn ten_tokens() -> (PageTable, PagePool) {
        let mut pool = pool_that_gives(&[12, 5, 3, 9]);
        let mut table = table(4);
        grow(&mut table, 10, &mut pool);
        (table, pool)
    }

    // Task 1

    #[test]
    fn task_1_pages_are_taken_at_boundaries_only() {
        // With pages of one slot, each token is a whole page: no more than one must be taken.
        for size in [4, 1] {
            let mut pool = pool(12);
            let mut table = table(size);
            for held in 0..12 {
                let needed = usize::from(held % size == 0);
                same!(table.pages_needed(1), needed, "pages_needed(1) when {held} tokens are held, page size {size}");
                grow(&mut table, 1, &mut pool);
                let tokens = held + 1;
                same!(table.len(), tokens, "tokens held after grow(1) on {held}");
                let pages = table.pages().len();
                same!(pages, tokens.div_ceil(size), "pages of {tokens} tokens, page size {size}");
                same!(pool.n_free(), 12 - pages, "free pages of 12 when {tokens} tokens are held, page size {size}");
            }
        }
    }

    #[test]
    fn task_1_many_tokens_at_once() {
        for (held, n, needed) in [
            (0, 0, 0),
            (0, 1, 1),
            (0, 4, 1),
            (0, 5, 2),
            (3, 1, 0),
            (3, 2, 1),
            (4, 0, 0),
            (4, 9, 3),
            (10, 2, 0),
            (10, 3, 1),
            (10, 6, 1),
            (10, 7, 2),
        ] {
            let mut pool = pool(9);
            let mut table = table(4);
            grow(&mut table, held, &mut pool);
            same!(table.pages_needed(n), needed, "pages_needed({n}) when {held} tokens are held, page size 4");
            let before = table.pages().len();
            grow(&mut table, n, &mut pool);
            same!(table.pages().len() - before, needed, "pages taken by grow({n}) when {held} tokens are held");
            same!(table.len(), held + n, "tokens held after grow({n}) on {held}");
            same!(pool.n_free(), 9 - table.pages().len(), "free pages of 9 after grow({n}) on {held}");
        }
    }

    #[test]
    fn task_1_pages_stand_in_the_order_of_the_tokens() {
        let (mut table, mut pool) = ten_tokens();
        same!(table.pages(), ids(&[12, 5, 3]), "pages of ten tokens when the pool gives 12, 5, 3");
        grow(&mut table, 3, &mut pool);
        same!(table.pages(), ids(&[12, 5, 3, 9]), "pages when three more tokens have come");
    }

    #[test]
    fn task_1_too_many_tokens_change_nothing() {
        let (mut table, mut pool) = ten_tokens();
        for (n, needed) in [(7, 2), (100, 25)] {
            let refused = table.grow(n, &mut pool);
            assert!(refused.is_err(), "grow({n}) on ten tokens with one page of 4 free was not refused");
            same!(table.len(), 10, "tokens held after grow({n}) was refused");
            same!(table.pages(), ids(&[12, 5, 3]), "pages after grow({n}) was refused");
            same!(pool.n_free(), 1, "free pages after grow({n}) was refused");
            let expected = Err(CacheError::OutOfPages { needed, free: 1 });
            same!(refused, expected, "grow({n}) on ten tokens with one page of 4 free");
        }
        grow(&mut table, 6, &mut pool);
    }

    #[test]
    fn task_1_very_large_numbers_can_be_asked_for() {
        let (mut table, mut pool) = ten_tokens();
        for n in [usize::MAX, usize::MAX - 1, usize::MAX - 9] {
            let needed = (n - 2).div_ceil(4);
            same!(table.pages_needed(n), needed, "pages_needed({n}) when ten tokens are held, page size 4");
            let expected = Err(CacheError::OutOfPages { needed, free: 1 });
            same!(table.grow(n, &mut pool), expected, "grow({n}) on ten tokens, page size 4: mind the overflow");
        }
    }

    #[test]
    fn given_pages_without_slots_are_refused() {
        same!(PageTable::new(0).err(), Some(CacheError::NoSlots), "PageTable::new(0)");
    }

    // Task 2

    #[test]
    fn task_2_positions_have_a_page_and_a_slot() {
        let (table, _pool) = ten_tokens();
        for (position, page, slot) in
            [(0, 12, 0), (1, 12, 1), (3, 12, 3), (4, 5, 0), (6, 5, 2), (7, 5, 3), (8, 3, 0), (9, 3, 1)]
        {
            let expected = Ok(Slot { page: PageId(page), slot });
            same!(table.locate(position), expected, "position {position} of 10 tokens in pages 12, 5, 3 of 4 slots");
        }
    }

    #[test]
    fn task_2_past_the_end_there_is_nothing() {
        let (ten, _pool) = ten_tokens();
        for position in [10, 11, 12, usize::MAX] {
            let expected = Err(CacheError::PastTheEnd { position, len: 10 });
            same!(ten.locate(position), expected, "position {position} of 10 tokens");
        }
        same!(table(4).locate(0), Err(CacheError::PastTheEnd { position: 0, len: 0 }), "position 0 of an empty table");
    }

    #[test]
    fn task_2_pages_of_one_slot() {
        let mut pool = pool_that_gives(&[7, 2, 4]);
        let mut table = table(1);
        grow(&mut table, 3, &mut pool);
        for (position, page) in [(0, 7), (1, 2), (2, 4)] {
            let expected = Ok(Slot { page: PageId(page), slot: 0 });
            same!(table.locate(position), expected, "position {position} in pages 7, 2, 4 of 1 slot");
        }
    }

    // Task 3

    #[test]
    fn task_3_release_gives_every_page_back() {
        let (mut table, mut pool) = ten_tokens();
        same!(table.release(&mut pool), Ok(()), "release of three pages");
        same!(pool.n_free(), 4, "free pages after the release, one was free before");
        same!((table.len(), table.pages().len()), (0, 0), "tokens and pages of the table after the release");
    }

    #[test]
    fn task_3_released_twice_gives_back_once() {
        let (mut table, mut pool) = ten_tokens();
        same!(table.release(&mut pool), Ok(()), "release of three pages");
        same!(table.release(&mut pool), Ok(()), "release of an empty table");
        same!(pool.n_free(), 4, "free pages after two releases");
    }

    #[test]
    fn task_3_a_released_table_can_be_used_again() {
        let (mut table, mut pool) = ten_tokens();
        same!(table.release(&mut pool), Ok(()), "release of three pages");
        same!((table.len(), table.pages().len()), (0, 0), "tokens and pages of the table after the release");
        grow(&mut table, 5, &mut pool);
        same!((table.len(), table.pages().len()), (5, 2), "tokens and pages after grow(5)");
        same!(table.locate(0).map(|place| place.slot), Ok(0), "slot of position 0");
    }

    #[test]
    fn task_3_a_shared_page_stays_with_its_other_owner() {
        let (mut table, mut pool) = ten_tokens();
        same!(pool.share(PageId(5)), Ok(()), "share of page 5");
        same!(table.release(&mut pool), Ok(()), "release of pages 12, 5 and 3");
        same!(pool.owners(PageId(5)), Ok(1), "owners of page 5, which somebody shares, after the release");
        same!(pool.n_free(), 3, "free pages after the release");
    }

    #[test]
    fn task_3_a_pool_without_such_a_page_changes_nothing() {
        let (mut table, mut pool) = ten_tokens();
        let mut other = self::pool(10);
        other.alloc_n(10).expect("a new pool of 10 gives 10 pages");
        let expected = Err(CacheError::ForeignPage { page: PageId(12), n_pages: 10 });
        same!(table.release(&mut other), expected, "release of pages 12, 5, 3 into another pool, which has 0 to 9");
        unchanged(&mut table, &mut pool, &other, 0);
    }

    #[test]
    fn task_3_a_pool_in_which_a_page_is_free_changes_nothing() {
        let (mut table, mut pool) = ten_tokens();
        let mut other = self::pool(16);
        other.alloc_n(16).expect("a new pool of 16 gives 16 pages");
        other.free(PageId(3)).expect("a page that was handed out can be freed");
        let expected = Err(CacheError::DoubleFree(PageId(3)));
        same!(table.release(&mut other), expected, "release of pages 12, 5, 3 into another pool, in which 3 is free");
        unchanged(&mut table, &mut pool, &other, 1);
    }

    /// After a release of the ten tokens into another pool was refused.
    #[track_caller]
    fn unchanged(table: &mut PageTable, pool: &mut PagePool, other: &PagePool, free: usize) {
        same!(other.n_free(), free, "free pages of the other pool after the refusal");
        same!(table.pages(), ids(&[12, 5, 3]), "pages of the table after the refusal");
        same!(table.len(), 10, "tokens of the table after the refusal");
        same!(table.release(pool), Ok(()), "release into the right pool after the refusal");
        same!(pool.n_free(), 4, "free pages of the right pool after its release");
    }

    // All tasks

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        let mut pool = pool_that_gives(&[12, 5, 3, 9]);
        let mut table = table(4);
        let tell = |did: &str, result: Result<(), CacheError>, table: &PageTable, pool: &PagePool| {
            let (outcome, pages) = (outcome(&result), told_pages(table.pages()));
            let (len, free) = (table.len(), pool.n_free());
            format!("{did:<12}{outcome:<31}{len:>2} tokens in {pages:<17}{free} free")
        };
        for n in [3, 1, 1, 5, 3, 7, 2] {
            let outcome = table.grow(n, &mut pool);
            transcript.line(tell(&format!("grow({n})"), outcome, &table, &pool));
        }
        for position in [0, 3, 4, 12, 15] {
            let place = match table.locate(position) {
                Ok(Slot { page, slot }) => format!("page {page}, slot {slot}"),
                Err(error) => told(&error),
            };
            transcript.line(format!("{:<12}{place}", format!("locate({position})")));
        }
        let outcome = table.release(&mut pool);
        transcript.line(tell("release", outcome, &table, &pool));
        assert_transcript("ch05_table", &transcript);
    }

    /// The places of all tokens, in each table, are noted after every step.
    #[test]
    fn whole_oracle() {
        for seed in seeds(60) {
            let mut dice = Dice::new(seed);
            let (page_size, n_pages) = (dice.roll(1, 7), dice.roll(2, 20));
            let mut pool = pool(n_pages);
            let mut tables: Vec<PageTable> = (0..3).map(|_| table(page_size)).collect();
            let mut places: Vec<Vec<Slot>> = vec![Vec::new(); 3];
            for step in 0..STEPS {
                let index = dice.roll(0, 2);
                let table = &mut tables[index];
                let (len, held, free) = (table.len(), table.pages().len(), pool.n_free());
                let at = if dice.roll(0, 9) == 0 {
                    let at =
                        format!("seed {seed}, step {step}: release of table {index}, {len} tokens in {held} pages");
                    same!(table.release(&mut pool), Ok(()), "{at}");
                    same!(table.pages().len(), 0, "{at}, its pages after that");
                    places[index].clear();
                    at
                } else {
                    let n = dice.roll(0, 2 * page_size);
                    let at = format!(
                        "seed {seed}, step {step}: grow({n}) on table {index}, {len} tokens in {held} pages of {page_size}"
                    );
                    let needed = (len + n).div_ceil(page_size) - held;
                    let expected = match needed > free {
                        true => Err(CacheError::OutOfPages { needed, free }),
                        false => Ok(()),
                    };
                    same!(table.grow(n, &mut pool), expected, "{at}, {free} pages free");
                    let grown = if expected.is_ok() { n } else { 0 };
                    same!(table.len(), len + grown, "{at}, its tokens after that");
                    same!(table.pages().len(), (len + grown).div_ceil(page_size), "{at}, its pages after that");
                    at
                };
                let held: usize = tables.iter().map(|table| table.pages().len()).sum();
                same!(pool.n_free(), n_pages - held, "{at}, free pages of {n_pages} when the tables hold {held}");

                for (index, (table, places)) in tables.iter().zip(&mut places).enumerate() {
                    let found: Vec<_> = (0..table.len()).map(|position| table.locate(position)).collect();
                    for (position, (found, before)) in found.iter().zip(&*places).enumerate() {
                        same!(found, &Ok(*before), "{at}, where position {position} of table {index} was before");
                    }
                    for (position, place) in found.into_iter().enumerate().skip(places.len()) {
                        let page = table.pages()[position / page_size];
                        let expected = Slot { page, slot: position % page_size };
                        same!(place, Ok(expected), "{at}, position {position} of table {index}");
                        places.push(expected);
                    }
                }
                let mut all: Vec<&Slot> = places.iter().flatten().collect();
                let tokens = all.len();
                all.sort_by_key(|place| (place.page, place.slot));
                all.dedup();
                same!(all.len(), tokens, "{at}, different places for {tokens} tokens");
            }
        }
    }
}
