//! Grader of chapter 5: the page table.

#[cfg(unstarted = "ch05_page_table")]
#[test]
#[ignore = "not started: edit exercises/ch05_page_table.rs, or run with --features solution"]
fn ch05_page_table() {}

#[cfg(not(unstarted = "ch05_page_table"))]
#[macro_use]
mod support;

#[cfg(not(unstarted = "ch05_page_table"))]
mod checks {
    use page_by_page::cache::{CacheError, PageId};
    use page_by_page::chapters::ch04_page_pool::PagePool;
    use page_by_page::chapters::ch05_page_table::{PageTable, Slot};

    use crate::support::oracle::{Dice, seeds};
    use crate::support::transcript::{Transcript, assert_transcript};

    fn table(page_size: usize) -> PageTable {
        PageTable::new(page_size).expect("a table over pages with slots can be made")
    }

    /// A pool that hands out these pages next.
    fn pool_that_gives(pages: &[u32]) -> PagePool {
        let mut pool = PagePool::new(16).unwrap();
        pool.alloc_n(16).unwrap();
        for page in pages.iter().rev() {
            pool.free(PageId(*page)).unwrap();
        }
        pool
    }

    fn ids(pages: &[u32]) -> Vec<PageId> {
        pages.iter().copied().map(PageId).collect()
    }

    /// Ten tokens in pages 12, 5, 3 of 4 slots: the example of the chapter.
    fn ten_tokens() -> (PageTable, PagePool) {
        let mut pool = pool_that_gives(&[12, 5, 3, 9]);
        let mut table = table(4);
        table.grow(10, &mut pool).expect("three pages are free");
        (table, pool)
    }

    // Task 1

    #[test]
    fn task_1_positions_have_a_page_and_a_slot() {
        let (table, _pool) = ten_tokens();
        for (position, page, slot) in
            [(0, 12, 0), (1, 12, 1), (3, 12, 3), (4, 5, 0), (6, 5, 2), (7, 5, 3), (8, 3, 0), (9, 3, 1)]
        {
            let expected = Ok(Slot { page: PageId(page), slot });
            same!(table.locate(position), expected, "position {position} of 10 tokens in pages 12, 5, 3 of 4 slots");
        }
    }

    #[test]
    fn task_1_past_the_end_there_is_nothing() {
        let (ten, _pool) = ten_tokens();
        for position in [10, 11, 12, usize::MAX] {
            let expected = Err(CacheError::PastTheEnd { position, len: 10 });
            same!(ten.locate(position), expected, "position {position} of 10 tokens");
        }
        same!(table(4).locate(0), Err(CacheError::PastTheEnd { position: 0, len: 0 }), "position 0 of an empty table");
    }

    #[test]
    fn task_1_pages_of_one_slot() {
        let mut pool = pool_that_gives(&[7, 2, 4]);
        let mut table = table(1);
        table.grow(3, &mut pool).unwrap();
        for (position, page) in [(0, 7), (1, 2), (2, 4)] {
            let expected = Ok(Slot { page: PageId(page), slot: 0 });
            same!(table.locate(position), expected, "position {position} in pages 7, 2, 4 of 1 slot");
        }
    }

    // Task 2

    #[test]
    fn task_2_pages_are_taken_at_boundaries_only() {
        let mut pool = PagePool::new(9).unwrap();
        let mut table = table(4);
        for tokens in 1..=12 {
            same!(table.pages_needed(1), usize::from(tokens % 4 == 1), "pages needed for token {tokens}, page size 4");
            table.grow(1, &mut pool).unwrap();
            same!(table.len(), tokens, "tokens held");
            same!(table.pages().len(), tokens.div_ceil(4), "pages of {tokens} tokens, page size 4");
        }
        same!(pool.n_free(), 6, "free pages of 9 when 12 tokens are held");
    }

    #[test]
    fn task_2_many_tokens_at_once() {
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
        ] {
            let mut pool = PagePool::new(9).unwrap();
            let mut table = table(4);
            table.grow(held, &mut pool).unwrap();
            same!(table.pages_needed(n), needed, "pages needed for {n} more tokens when {held} are held, page size 4");
            let before = table.pages().len();
            table.grow(n, &mut pool).unwrap();
            same!(table.pages().len() - before, needed, "pages taken by grow({n}) when {held} tokens are held");
            same!(table.len(), held + n, "tokens held after grow({n})");
            same!(pool.n_free(), 9 - table.pages().len(), "free pages of 9 after grow({n})");
        }
    }

    #[test]
    fn task_2_pages_stand_in_the_order_of_the_tokens() {
        let (mut table, mut pool) = ten_tokens();
        same!(table.pages(), ids(&[12, 5, 3]), "pages of ten tokens when the pool gives 12, 5, 3");
        table.grow(3, &mut pool).unwrap();
        same!(table.pages(), ids(&[12, 5, 3, 9]), "pages when three more tokens have come");
    }

    #[test]
    fn task_2_too_many_tokens_change_nothing() {
        let (mut table, mut pool) = ten_tokens();
        for (n, needed) in [(7, 2), (100, 25), (usize::MAX, usize::MAX / 4 + 1)] {
            let expected = Err(CacheError::OutOfPages { needed, free: 1 });
            same!(table.grow(n, &mut pool), expected, "grow({n}) on ten tokens with one page of 4 free");
            same!(table.len(), 10, "tokens held after the refusal");
            same!(table.pages(), ids(&[12, 5, 3]), "pages after the refusal");
            same!(pool.n_free(), 1, "free pages after the refusal");
        }
        same!(table.grow(6, &mut pool), Ok(()), "grow(6): 2 slots are left, one page of 4 is free");
    }

    #[test]
    fn task_2_pages_without_slots_are_refused() {
        same!(PageTable::new(0).err(), Some(CacheError::NoSlots), "PageTable::new(0)");
    }

    // Task 3

    #[test]
    fn task_3_release_gives_every_page_back() {
        let (mut table, mut pool) = ten_tokens();
        same!(table.release(&mut pool), Ok(()), "release of three pages");
        same!(pool.n_free(), 4, "free pages after the release");
        same!((table.len(), table.pages().len()), (0, 0), "tokens and pages of the table after the release");
    }

    #[test]
    fn task_3_released_twice_gives_back_once() {
        let (mut table, mut pool) = ten_tokens();
        table.release(&mut pool).unwrap();
        same!(table.release(&mut pool), Ok(()), "release of an empty table");
        same!(pool.n_free(), 4, "free pages after two releases");
    }

    #[test]
    fn task_3_a_released_table_can_be_used_again() {
        let (mut table, mut pool) = ten_tokens();
        table.release(&mut pool).unwrap();
        same!(table.grow(5, &mut pool), Ok(()), "grow(5) after a release");
        same!((table.len(), table.pages().len()), (5, 2), "tokens and pages");
        same!(table.locate(0).map(|place| place.slot), Ok(0), "slot of position 0");
    }

    #[test]
    fn task_3_a_shared_page_stays_with_its_other_owner() {
        let (mut table, mut pool) = ten_tokens();
        pool.share(PageId(5)).unwrap();
        table.release(&mut pool).unwrap();
        same!(pool.owners(PageId(5)), Ok(1), "owners of page 5, which somebody shares, after the release");
        same!(pool.n_free(), 3, "free pages after the release");
    }

    // All tasks

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        let mut pool = pool_that_gives(&[12, 5, 3, 9]);
        let mut table = table(4);
        for n in [3, 1, 1, 5, 3, 7, 2] {
            let outcome = table.grow(n, &mut pool);
            let pages: Vec<u32> = table.pages().iter().map(|page| page.0).collect();
            transcript.line(format!(
                "{:<9} {:<36} {:>2} tokens in pages {:<14} {} free",
                format!("grow({n})"),
                format!("{outcome:?}"),
                table.len(),
                format!("{pages:?}"),
                pool.n_free()
            ));
        }
        for position in [0, 3, 4, 12, 15] {
            let place = table.locate(position).map(|place| format!("page {} slot {}", place.page.0, place.slot));
            transcript.line(format!("locate({position}) {place:?}"));
        }
        table.release(&mut pool).unwrap();
        transcript.line(format!(
            "release   {} tokens, {} pages, {} free",
            table.len(),
            table.pages().len(),
            pool.n_free()
        ));
        assert_transcript("ch05_table", &transcript);
    }

    #[test]
    fn whole_oracle() {
        for seed in seeds(60) {
            let mut dice = Dice::new(seed);
            let (page_size, n_pages) = (dice.roll(1, 7), dice.roll(2, 20));
            let mut pool = PagePool::new(n_pages).unwrap();
            let mut tables: Vec<PageTable> = (0..3).map(|_| table(page_size)).collect();
            for step in 0..60 {
                let index = dice.roll(0, 2);
                let table = &mut tables[index];
                if dice.roll(0, 9) == 0 {
                    table.release(&mut pool).unwrap();
                } else {
                    let n = dice.roll(0, 2 * page_size);
                    let (len, held) = (table.len(), table.pages().len());
                    let needed = (len + n).div_ceil(page_size) - held;
                    let expected = match pool.n_free() {
                        free if needed > free => Err(CacheError::OutOfPages { needed, free }),
                        _ => Ok(()),
                    };
                    same!(table.grow(n, &mut pool), expected, "seed {seed}, step {step}: grow({n}) on {len} tokens");
                }
                let held: usize = tables.iter().map(|table| table.pages().len()).sum();
                same!(pool.n_free(), n_pages - held, "seed {seed}, step {step}: free pages when tables hold {held}");
                let mut places = Vec::new();
                for table in &tables {
                    let wasted = table.slots() - table.len();
                    assert!(
                        wasted < page_size,
                        "seed {seed}, step {step}: {wasted} slots wasted, page size {page_size}"
                    );
                    places.extend((0..table.len()).map(|position| table.locate(position).unwrap()));
                }
                let all = places.len();
                places.sort_by_key(|place| (place.page, place.slot));
                places.dedup();
                same!(places.len(), all, "seed {seed}, step {step}: different places for {all} tokens");
            }
        }
    }
}
