//! Grader of chapter 5: the page table.

grading::grader!();

#[cfg(not(stub = "ch05_page_table"))]
mod checks {
    use page_by_page::cache::{CacheError, PageId};
    use page_by_page::chapters::ch04_page_pool::PagePool;
    use page_by_page::chapters::ch05_page_table::{Location, PageTable};

    use grading::history::{assert_refused, fact};
    use grading::pools::{double_free, foreign_page, grow, ids, of_other_pool, pool, pool_with_free, release, table};
    use grading::prelude::*;

    /// Tokens enough for a walk through their pages at every call to take minutes.
    const VERY_MANY: usize = if cfg!(miri) { 300 } else { 1_000_000 };

    /// Of these page sizes every case is tried. 4, the chapter's own, comes first: its failures are easy to read.
    const PAGE_SIZES: &[usize] = if cfg!(miri) { &[4, 1] } else { &[4, 1, 2, 3, 5, 6, 7] };

    /// A pool of 16 that has handed out all pages but these, and hands out these next.
    #[track_caller]
    fn pool_that_gives(pages: &[u32]) -> PagePool {
        let last_first: Vec<u32> = pages.iter().rev().copied().collect();
        pool_with_free(16, &last_first)
    }

    /// Pages of `page_size` slots for this many tokens: the number that every growth must come to.
    fn pages_of(tokens: usize, page_size: usize) -> usize {
        tokens.div_ceil(page_size)
    }

    /// Grows a table for which there are too few pages. That must change nothing.
    #[track_caller]
    fn assert_refuses(table: &mut PageTable, n: usize, needed: usize, pool: &mut PagePool) {
        let (held, free) = (plural(table.len(), "token"), pool.n_free());
        let call = format!("grow({}) on {held}, page size {}, {free} pages free", argument(n), table.page_size());
        let facts = |(table, pool): &mut (&mut PageTable, &mut PagePool)| {
            let pages = fact("pages", page_list(table.pages()));
            vec![fact("tokens held", table.len()), pages, fact("free pages", pool.n_free())]
        };
        let error = CacheError::OutOfPages { needed, free };
        assert_refused(&mut (table, pool), &call, error, facts, |(table, pool)| table.grow(n, pool));
    }

    /// Ten tokens in pages 12, 5, 3 of 4 slots: the example of the chapter. Page 9 is free.
    #[track_caller]
    fn ten_tokens() -> (PageTable, PagePool) {
        let mut pool = pool_that_gives(&[12, 5, 3, 9]);
        let table = table(4, 10, &mut pool);
        (table, pool)
    }

    /// Compares `pages_needed(n)`.
    #[track_caller]
    fn assert_needs(table: &PageTable, n: usize, pages: usize) {
        let (held, size) = (plural(table.len(), "token"), table.page_size());
        let verb = if table.len() == 1 { "is" } else { "are" };
        same!(table.pages_needed(n), pages, "pages_needed({}) when {held} {verb} held, page size {size}", argument(n));
    }

    #[track_caller]
    fn past_the_end(table: &PageTable, position: usize) {
        let len = table.len();
        let expected = Err(CacheError::PastTheEnd { position, len });
        same!(table.locate(position), expected, "position {} of {len} tokens", argument(position));
    }

    // Task 1

    #[test]
    fn task_1_every_page_size_has_its_boundaries() {
        for &size in PAGE_SIZES {
            for (held, n) in (0..=2 * size + 1).flat_map(|held| (0..=3 * size + 1).map(move |n| (held, n))) {
                let mut pool = pool(20);
                let mut table = table(size, held, &mut pool);
                assert_needs(&table, n, pages_of(held + n, size) - pages_of(held, size));
                grow(&mut table, n, &mut pool);
            }
        }
    }

    #[test]
    fn task_1_the_last_slots_can_be_had_without_a_free_page() {
        let mut pool = pool_that_gives(&[12, 5, 3]);
        let mut table = table(4, 0, &mut pool);
        for n in [10, 1, 1, 0] {
            grow(&mut table, n, &mut pool);
        }
        assert_refuses(&mut table, 1, 1, &mut pool);
    }

    #[test]
    fn task_1_very_long_tables_cost_no_more() {
        let mut pool = pool(VERY_MANY / 16 + 1);
        let mut table = table(16, 0, &mut pool);
        assert_constant_cost("grow(1), again and again, page size 16", VERY_MANY, |held| {
            let needed = usize::from(held % 16 == 0);
            let told = |call: &str| format!("{call} on {}, page size 16", plural(held, "token"));
            same_each(table.pages_needed(1), needed, || told("pages_needed(1)"));
            same_each(table.grow(1, &mut pool), Ok(()), || told("grow(1), with enough pages,"));
        });
        same!(table.len(), VERY_MANY, "tokens held after {VERY_MANY} times grow(1)");
        same!(table.pages().len(), pages_of(VERY_MANY, 16), "pages of {VERY_MANY} tokens, page size 16");
        let misplaced = table.pages().iter().zip(0..).find(|(page, given)| page.0 != *given);
        same!(misplaced, None, "first page, and its place, that differ when the pool gives 0, 1, 2 …");
    }

    #[test]
    fn task_1_pages_stand_in_the_order_of_the_tokens() {
        let (mut table, mut pool) = ten_tokens();
        same!(table.pages(), ids([12, 5, 3]), "pages of ten tokens when the pool gives 12, 5, 3");
        grow(&mut table, 3, &mut pool);
        same!(table.pages(), ids([12, 5, 3, 9]), "pages when three more tokens have come");
    }

    #[test]
    fn task_1_too_many_tokens_leave_the_free_pages_in_order() {
        for (size, n) in [(4, 17), (4, 100), (1, 5), (7, 29)] {
            let mut pool = pool_that_gives(&[12, 5, 3, 9]);
            let mut table = table(size, 0, &mut pool);
            assert_refuses(&mut table, n, pages_of(n, size), &mut pool);
            grow(&mut table, 4 * size, &mut pool);
            let given = format!("pages of {} tokens, when the pool gives 12, 5, 3, 9", 4 * size);
            same!(table.pages(), ids([12, 5, 3, 9]), "{given}, after grow({n}) was refused");
        }
    }

    #[test]
    fn task_1_very_large_numbers_can_be_asked_for() {
        let (mut table, mut pool) = ten_tokens();
        for n in [7, 100, usize::MAX, usize::MAX - 1, usize::MAX - 9, usize::MAX - 10, usize::MAX / 2] {
            let needed = (n - 2).div_ceil(4);
            assert_needs(&table, n, needed);
            assert_refuses(&mut table, n, needed, &mut pool);
        }
        grow(&mut table, 6, &mut pool);
    }

    #[test]
    fn given_pages_without_slots_are_refused() {
        same!(PageTable::new(0).err(), Some(CacheError::NoSlots), "PageTable::new(0)");
    }

    // Task 2

    #[test]
    fn task_2_past_the_end_there_is_nothing() {
        let (ten, _pool) = ten_tokens();
        for position in [10, 11, 12, usize::MAX] {
            past_the_end(&ten, position);
        }
        past_the_end(&table(4, 0, &mut pool(1)), 0);
    }

    #[test]
    fn task_2_every_page_size_finds_every_token() {
        for size in [4, 1, 2, 3, 5, 7, 10] {
            let mut pool = pool_that_gives(&[12, 5, 3]);
            let table = table(size, 2 * size + 1, &mut pool);
            let tokens = plural(table.len(), "token");
            let told = format!("{tokens} in {}, of {size} slots each", page_list(table.pages()));
            for position in 0..=2 * size {
                let expected = Location { page: PageId([12, 5, 3][position / size]), slot: position % size };
                same!(table.locate(position), Ok(expected), "position {position} of {told}");
            }
        }
    }

    #[test]
    fn task_2_very_far_positions_are_found_at_once() {
        let size = 3;
        let mut pool = pool(pages_of(VERY_MANY, size));
        let table = table(size, VERY_MANY, &mut pool);
        assert_constant_cost(&format!("locate, {VERY_MANY} tokens held, page size {size}"), VERY_MANY, |position| {
            let expected = Ok(Location { page: PageId((position / size) as u32), slot: position % size });
            let told = || format!("position {position} of {VERY_MANY} tokens in pages 0, 1, 2 … of {size} slots");
            same_each(table.locate(position), expected, told);
        });
        past_the_end(&table, VERY_MANY);
    }

    // Task 3

    #[test]
    fn task_3_release_gives_every_page_back_once() {
        let (mut table, mut pool) = ten_tokens();
        release(&mut table, &mut pool);
        same!(pool.n_free(), 4, "free pages after the release of three, one was free before");
        release(&mut table, &mut pool);
        same!(pool.n_free(), 4, "free pages after two releases");
        grow(&mut table, 5, &mut pool);
        same!(table.locate(0).map(|location| location.slot), Ok(0), "slot of position 0 in a table that was released");
        let (mut pool, what) = (self::pool(300), "the release of a table with 300 pages of 1 slot");
        same!(self::table(1, 300, &mut pool).release(&mut pool), Ok(()), "{what}");
        same!(pool.n_free(), 300, "free pages of 300 after {what}");
    }

    #[test]
    fn task_3_release_frees_the_newest_page_first() {
        let (mut table, mut pool) = ten_tokens();
        release(&mut table, &mut pool);
        let next = "pages handed out after the release of 12, 5, 3: the one freed last comes first";
        same!([(); 4].map(|()| pool.alloc()), [12, 5, 3, 9].map(|page| Ok(PageId(page))), "{next}");
    }

    #[test]
    fn task_3_a_shared_page_stays_with_its_other_owner() {
        let (mut table, mut pool) = ten_tokens();
        same!(pool.share(PageId(5)), Ok(()), "share of page 5");
        release(&mut table, &mut pool);
        same!(pool.owners(PageId(5)), Ok(1), "owners of page 5, which is shared, after the release");
        same!(pool.n_free(), 3, "free pages after the release");
    }

    #[test]
    fn task_3_a_pool_in_which_a_page_is_free_or_missing_changes_nothing() {
        // The page is the table's first, its last, or between them; of several, the table's first is named.
        for (size, pages) in [(4, [12, 5, 3]), (1, [3, 5, 12]), (7, [5, 12, 3])] {
            for (n_pages, without_owner) in [(10, &[][..]), (16, &[12]), (10, &[5]), (16, &[3, 12]), (4, &[3])] {
                let error = |page: u32| match without_owner.contains(&page) {
                    true => Some(double_free(page)),
                    false => (page >= n_pages).then(|| foreign_page(page, n_pages as usize)),
                };
                let error = pages.into_iter().find_map(error).expect("a bad page");
                let other = pool_with_free(n_pages as usize, without_owner);
                let mut pool = pool_that_gives(&pages);
                let table = table(size, 2 * size + 1, &mut pool);
                let [of_table, none_owns] = [table.pages(), &ids(without_owner.to_vec())].map(page_list);
                let call =
                    format!("release of {of_table} into another pool of {n_pages}, without an owner: {none_owns}");
                let facts = |(table, other): &mut (PageTable, PagePool)| {
                    let (len, pages) = (table.len(), table.pages());
                    let of_table = [fact("pages of the table", pages), fact("tokens of the table", len)];
                    [of_other_pool(other), of_table].concat()
                };
                let mut world = (table, other);
                assert_refused(&mut world, &call, error, facts, |(table, other)| table.release(other));
                release(&mut world.0, &mut pool);
                same!(pool.n_free(), 3, "free pages of the right pool after the release of {of_table} into it");
            }
        }
    }

    // All tasks

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        let mut pool = pool_that_gives(&[12, 5, 3, 9]);
        let mut table = table(4, 0, &mut pool);
        let tell = |did: &str, result: Result<(), CacheError>, table: &PageTable, pool: &PagePool| {
            let (outcome, pages) = (outcome(&result), page_list(table.pages()));
            let (len, free) = (table.len(), pool.n_free());
            format!("{did:<12}{outcome:<31}{len:>2} tokens in {pages:<17}{free} free")
        };
        for n in [3, 1, 1, 5, 3, 7, 2] {
            let outcome = in_call(format!("grow({n}), in the transcript"), || table.grow(n, &mut pool));
            transcript.line(tell(&format!("grow({n})"), outcome, &table, &pool));
        }
        for position in [0, 3, 4, 12, 15] {
            let place = in_call(format!("locate({position}), in the transcript"), || table.locate(position));
            let place = match place {
                Ok(Location { page, slot }) => format!("page {page}, slot {slot}"),
                Err(error) => in_short(&error),
            };
            transcript.line(format!("{:<12}{place}", format!("locate({position})")));
        }
        let outcome = in_call("release, in the transcript", || table.release(&mut pool));
        transcript.line(tell("release", outcome, &table, &pool));
        assert_transcript("ch05_page_table", &transcript);
    }

    /// The places of all tokens, in each table, are noted after every step.
    #[test]
    fn whole_oracle() {
        for (seed, mut rng) in seeded(60) {
            let (page_size, n_pages) = (rng.roll(1, 7), rng.roll(2, 20));
            let mut pool = pool(n_pages);
            let mut tables: Vec<PageTable> = (0..3).map(|_| table(page_size, 0, &mut pool)).collect();
            let mut places: Vec<Vec<Location>> = vec![Vec::new(); 3];
            for step in 0..STEPS {
                let index = rng.roll(0, 2);
                let table = &mut tables[index];
                let (len, held, free) = (table.len(), table.pages().len(), pool.n_free());
                let (at, grown) = if rng.roll(0, 9) == 0 {
                    let told =
                        format!("release of table {index}, {} in {}", plural(len, "token"), plural(held, "page"));
                    let at = format!("seed {seed}, step {step}: {told}");
                    same!(table.release(&mut pool), Ok(()), "{at}");
                    places[index].clear();
                    (at, 0)
                } else {
                    let n = rng.roll(0, 2 * page_size);
                    let (tokens, pages) = (plural(len, "token"), plural(held, "page"));
                    let told = format!("grow({n}) on table {index}, {tokens} in {pages} of {page_size}");
                    let at = format!("seed {seed}, step {step}: {told}");
                    let needed = (len + n).div_ceil(page_size) - held;
                    let fits = needed <= free;
                    let expected = if fits { Ok(()) } else { Err(CacheError::OutOfPages { needed, free }) };
                    same!(table.grow(n, &mut pool), expected, "{at}, {free} pages free");
                    (at, if fits { len + n } else { len })
                };
                let found = (table.len(), table.pages().len());
                same!(found, (grown, grown.div_ceil(page_size)), "{at}, its tokens and pages after that");
                let held: usize = tables.iter().map(|table| table.pages().len()).sum();
                same!(pool.n_free(), n_pages - held, "{at}, free pages of {n_pages} when the tables hold {held}");

                for (index, (table, places)) in tables.iter().zip(&mut places).enumerate() {
                    let now = expect_ok(format!("{at}, locate of all positions of table {index}"), || {
                        (0..table.len()).map(|position| table.locate(position)).collect::<Result<Vec<Location>, _>>()
                    });
                    let moved = (0..places.len().min(now.len())).find(|position| now[*position] != places[*position]);
                    same!(moved, None, "{at}, the first position of table {index} whose place has changed");
                    *places = now;
                }
                let mut all: Vec<&Location> = places.iter().flatten().collect();
                let tokens = all.len();
                all.sort_by_key(|location| (location.page, location.slot));
                all.dedup();
                same!(all.len(), tokens, "{at}, different places for {tokens} tokens");
            }
        }
    }
}
