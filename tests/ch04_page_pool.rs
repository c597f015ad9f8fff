//! Grader of chapter 4: the page pool.

grading::grader!();

#[cfg(not(stub = "ch04_page_pool"))]
mod checks {
    use page_by_page::cache::{CacheError, PageId};
    use page_by_page::chapters::ch04_page_pool::PagePool;

    use grading::history::{assert_refused, fact};
    use grading::prelude::*;

    /// Pages enough for a walk through them at every call to take minutes.
    const VERY_MANY: u32 = if cfg!(miri) { 400 } else { 1_000_000 };

    #[track_caller]
    fn pool(n_pages: usize) -> PagePool {
        expect_ok(format!("PagePool::new({n_pages})"), || PagePool::new(n_pages))
    }

    /// A pool whose pages are all taken, each by one owner.
    #[track_caller]
    fn full(n_pages: u32) -> PagePool {
        let mut pool = pool(n_pages as usize);
        let _call = enter_call(format!("alloc, until a new pool of {n_pages} has no free page"));
        for number in 0..n_pages {
            same_each(pool.alloc(), Ok(PageId(number)), || format!("alloc number {number} on a new pool of {n_pages}"));
        }
        pool
    }

    /// Frees a page that has an owner.
    #[track_caller]
    fn free(pool: &mut PagePool, page: u32) {
        same!(pool.free(PageId(page)), Ok(()), "free of page {page}, which has an owner");
    }

    /// Shares a page that has an owner.
    #[track_caller]
    fn share(pool: &mut PagePool, page: u32) {
        same!(pool.share(PageId(page)), Ok(()), "share of page {page}, which has an owner");
    }

    #[track_caller]
    fn owners(pool: &PagePool, page: u32, expected: u32, when: &str) {
        same!(pool.owners(PageId(page)), Ok(expected), "owners of page {page} {when}");
    }

    fn ids(pages: impl IntoIterator<Item = u32>) -> Vec<PageId> {
        pages.into_iter().map(PageId).collect()
    }

    /// Takes one page after the other, and compares them.
    #[track_caller]
    fn hands_out<const N: usize>(pool: &mut PagePool, expected: [u32; N], when: &str) {
        let next = in_call(format!("alloc, {N} times, {when}"), || [(); N].map(|()| pool.alloc()));
        same!(next, expected.map(|page| Ok(PageId(page))), "pages handed out, one by one, {when}");
    }

    // Task 1

    #[test]
    fn task_1_a_new_pool_hands_out_0_1_2() {
        let mut pool = pool(4);
        same!((pool.n_pages(), pool.n_free()), (4, 4), "pages of a new pool of 4, and how many are free");
        for expected in 0..4 {
            same!(pool.alloc(), Ok(PageId(expected)), "alloc number {expected} on a new pool of 4");
            same!(pool.n_free(), 3 - expected as usize, "free pages after alloc number {expected}");
        }
        let expected = Err(CacheError::OutOfPages { needed: 1, free: 0 });
        same!(pool.alloc(), expected, "alloc on a pool of 4 that has handed out 4");
        same!(pool.n_free(), 0, "free pages after the refusal");
    }

    #[test]
    fn task_1_a_pool_without_pages_is_refused() {
        same!(PagePool::new(0).err(), Some(CacheError::NoPages), "PagePool::new(0)");
    }

    #[test]
    fn task_1_very_large_pools_cost_no_more() {
        let mut pool = pool(VERY_MANY as usize);
        assert_constant_cost(&format!("alloc on a pool of {VERY_MANY} pages"), VERY_MANY as usize, |number| {
            let expected = Ok(PageId(number as u32));
            same_each(pool.alloc(), expected, || format!("alloc number {number} on a new pool of {VERY_MANY}"));
        });
        same!(pool.n_free(), 0, "free pages when all {VERY_MANY} are handed out");
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn task_1_a_number_of_pages_beyond_u32_panics() {
        let words = expect_panic(|| in_call("PagePool::new(1 << 32)", || PagePool::new(1 << 32))).ok();
        let is_promised = words.as_ref().is_some_and(|words| words.contains("a page's number is a u32"));
        assert!(
            is_promised,
            "PagePool::new(1 << 32)\n  expected: a panic: a page's number is a u32\n  yours:    {words:?}"
        );
    }

    // Task 2

    #[test]
    fn task_2_no_pages_can_always_be_had() {
        same!(pool(1).alloc_n(0), Ok(vec![]), "alloc_n(0)");
        same!(full(1).alloc_n(0), Ok(vec![]), "alloc_n(0) on a pool without free pages");
    }

    #[test]
    fn task_2_one_page_and_several_take_turns() {
        let mut pool = pool(8);
        same!(pool.alloc_n(2), Ok(ids(0..2)), "alloc_n(2) on a new pool of 8");
        same!(pool.n_free(), 6, "free pages after alloc_n(2) on a pool of 8");
        same!(pool.alloc(), Ok(PageId(2)), "alloc after alloc_n(2)");
        same!(pool.alloc_n(1), Ok(ids(3..4)), "alloc_n(1) after alloc_n(2) and alloc");
        same!(pool.alloc_n(3), Ok(ids(4..7)), "alloc_n(3) after that");
        let refusal = Err(CacheError::OutOfPages { needed: 2, free: 1 });
        same!(pool.alloc_n(2), refusal, "alloc_n(2) with one page free");
        same!(pool.alloc(), Ok(PageId(7)), "alloc of the last page, after alloc_n(2) was refused");
        // More pages than 8 bits count.
        let what = "alloc_n(300) on a new pool of 300";
        let many = expect_ok(what, || self::pool(300).alloc_n(300));
        same_list(&many, &ids(0..300), &format!("pages of {what}"));
    }

    #[test]
    fn task_2_refused_again_and_again_the_pool_stays_as_it_was() {
        let mut pool = pool(6);
        same!(pool.alloc_n(2), Ok(ids(0..2)), "alloc_n(2) on a new pool of 6");
        // An odd number of them: a list that is turned round each time must not be right again at the end.
        for n in [5, 6, 7, 1000, usize::MAX] {
            let call = format!("alloc_n({}) with 4 pages free", argument(n));
            let facts = |pool: &mut PagePool| vec![fact("free pages", pool.n_free())];
            let error = CacheError::OutOfPages { needed: n, free: 4 };
            assert_refused(&mut pool, &call, error, facts, |pool| pool.alloc_n(n));
        }
        hands_out(&mut pool, [2, 3, 4, 5], "after the refusals");
    }

    // Task 3

    #[test]
    fn task_3_a_page_counts_its_owners() {
        let mut pool = pool(4);
        same!(pool.alloc(), Ok(PageId(0)), "alloc on a new pool of 4");
        owners(&pool, 0, 1, "after alloc");
        share(&mut pool, 0);
        share(&mut pool, 0);
        owners(&pool, 0, 3, "after alloc and share twice");
        (0..300).for_each(|_| share(&mut pool, 0));
        owners(&pool, 0, 303, "after 300 more shares");
        (0..300).for_each(|_| same!(pool.free(PageId(0)), Ok(()), "free of page 0, which has other owners"));
        owners(&pool, 1, 0, "which was never taken");
        same!(pool.n_free(), 3, "free pages when page 0 has 3 of its 303 owners left");
        same!(pool.alloc_n(2), Ok(ids(1..3)), "alloc_n(2) after alloc on a new pool of 4");
        for (page, expected) in [(1, 1), (2, 1), (3, 0)] {
            owners(&pool, page, expected, "when alloc_n(2) has taken 1 and 2");
        }
        let refusal = Err(CacheError::OutOfPages { needed: 2, free: 1 });
        same!(pool.alloc_n(2), refusal, "alloc_n(2) with one page free");
        owners(&pool, 3, 0, "when alloc_n(2) was refused");
    }

    #[test]
    fn task_3_a_page_returns_with_its_last_owner() {
        let mut pool = full(3);
        share(&mut pool, 1);
        free(&mut pool, 1);
        same!(pool.n_free(), 0, "free pages when one of two owners of page 1 has let go");
        owners(&pool, 1, 1, "when one of two has let go");
        free(&mut pool, 1);
        same!(pool.n_free(), 1, "free pages when both owners of page 1 have let go");
        owners(&pool, 1, 0, "when both have let go");
        same!(pool.alloc(), Ok(PageId(1)), "the next page handed out");
        owners(&pool, 1, 1, "when it was handed out again");
    }

    #[test]
    fn task_3_a_free_page_is_neither_freed_nor_shared() {
        let mut pool = full(2);
        free(&mut pool, 0);
        same!(pool.n_free(), 1, "free pages when page 0 of a full pool of 2 came back");
        same!(pool.free(PageId(0)), Err(CacheError::DoubleFree(PageId(0))), "free of page 0 for the second time");
        same!(pool.n_free(), 1, "free pages after the second free: page 0 stands on the free list once");
        same!(pool.share(PageId(0)), Err(CacheError::FreePage(PageId(0))), "share of page 0, which is free");
        owners(&pool, 0, 0, "after the refusal");
        let mut pool = self::pool(2);
        same!(pool.free(PageId(1)), Err(CacheError::DoubleFree(PageId(1))), "free of page 1, which was never taken");
        same!(pool.n_free(), 2, "free pages of 2 after that");
    }

    #[test]
    fn task_3_foreign_pages_are_refused() {
        let mut pool = full(3);
        for foreign in [PageId(3), PageId(99), PageId(u32::MAX)] {
            let expected = CacheError::ForeignPage { page: foreign, n_pages: 3 };
            // The others may ask `owners`: it comes first.
            same!(pool.owners(foreign), Err(expected.clone()), "owners of {foreign:?} in a pool of 3");
            same!(pool.share(foreign), Err(expected.clone()), "share of {foreign:?} in a pool of 3");
            same!(pool.free(foreign), Err(expected), "free of {foreign:?} in a pool of 3");
        }
        same!(pool.n_free(), 0, "free pages after the refusals");
    }

    #[test]
    fn task_3_pages_go_out_again_the_last_that_came_back_first() {
        let mut pool = full(5);
        for page in [2, 0, 4, 3] {
            free(&mut pool, page);
        }
        same!(pool.n_free(), 4, "free pages when 2, 0, 4, 3 came back");
        hands_out(&mut pool, [3], "when 2, 0, 4, 3 came back");
        same!(pool.alloc_n(2), Ok(ids([4, 0])), "alloc_n(2) when 2, 0, 4 came back in this order");
        hands_out(&mut pool, [2], "after that");
    }

    #[test]
    fn task_3_very_large_pools_cost_no_more() {
        // Half of it stays free, so that the list of free pages is long whatever the call.
        let mut pool = pool(2 * VERY_MANY as usize);
        assert_constant_cost(
            &format!("alloc_n(100) on a pool of {} pages", pool.n_pages()),
            VERY_MANY as usize / 100,
            |number| {
                let found = pool.alloc_n(100).map(|pages| {
                    let differs = (100 * number..).zip(&pages).find(|(next, page)| page.index() != *next);
                    (pages.len(), differs.map(|(next, page)| (next, *page)))
                });
                same_each(found, Ok((100, None)), || {
                    format!("pages of alloc_n(100), call number {number}, and the first where (next, page) differ")
                });
            },
        );
        type Call = fn(&mut PagePool, PageId) -> Result<u32, CacheError>;
        let free: Call = |pool, page| pool.free(page).map(|()| 0);
        let calls: [(&str, Call, u32); 4] = [
            ("share", |pool, page| pool.share(page).map(|()| 0), 0),
            ("owners", |pool, page| pool.owners(page), 2),
            ("the first free", free, 0),
            ("the second free", free, 0),
        ];
        for (call, make, expected) in calls {
            assert_constant_cost(
                &format!("{call} of each page of {VERY_MANY}, with as many more that are free"),
                VERY_MANY as usize,
                |number| {
                    let page = PageId(number as u32);
                    same_each(make(&mut pool, page), Ok(expected), || {
                        format!("{call} of page {page}, which was shared")
                    });
                },
            );
        }
        same!(pool.n_free(), pool.n_pages(), "free pages when all have come back");
    }

    // All tasks

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        let mut pool = pool(4);
        let calls =
            "alloc, alloc, share 0, alloc_n 3, alloc_n 2, free 1, free 0, free 1, share 1, free 0, alloc_n 2, free 4";
        for call in calls.split(", ") {
            let _call = enter_call(format!("{call}, in the transcript"));
            let (verb, number) = call.split_once(' ').unwrap_or((call, "0"));
            let number: u32 = number.parse().expect("a number");
            let page = PageId(number);
            let (did, outcome) = match verb {
                "alloc" => ("alloc".into(), pool.alloc().map(|page| format!("page {page}"))),
                "alloc_n" => {
                    let taken = pool.alloc_n(number as usize);
                    (format!("alloc_n({number})"), taken.map(|pages| page_list(&pages)))
                }
                "share" => (format!("share({number})"), pool.share(page).map(|()| "done".into())),
                _ => (format!("free({number})"), pool.free(page).map(|()| "done".into())),
            };
            let outcome = outcome.unwrap_or_else(|error| in_short(&error));
            let owners = [0, 1, 2, 3].map(|page| match pool.owners(PageId(page)) {
                Ok(owners) => owners.to_string(),
                Err(error) => in_short(&error),
            });
            transcript.line(format!("{did:<12}{outcome:<31}owners {}   {} free", owners.join(" "), pool.n_free()));
        }
        assert_transcript("ch04_page_pool", &transcript);
    }

    /// Counts and a free list of its own say what each call must give.
    #[test]
    fn whole_oracle() {
        for (seed, mut rng) in seeded(40) {
            let n_pages = rng.roll(1, 12);
            let mut pool = pool(n_pages);
            let mut owners = vec![0; n_pages];
            let mut free: Vec<PageId> = ids((0..n_pages as u32).rev());
            for step in 0..STEPS {
                let at = format!("seed {seed}, step {step}, a pool of {n_pages}, {} free", free.len());
                let at = if rng.roll(0, 1) == 0 {
                    let n = rng.roll(0, 4);
                    let expected = match free.len().checked_sub(n) {
                        Some(left) => Ok(free.split_off(left).into_iter().rev().collect()),
                        None => Err(CacheError::OutOfPages { needed: n, free: free.len() }),
                    };
                    let at = format!("{at}: {}", if n == 1 { "alloc".into() } else { format!("alloc_n({n})") });
                    let alloc = || if n == 1 { pool.alloc().map(|page| vec![page]) } else { pool.alloc_n(n) };
                    let taken = in_call(&at, alloc);
                    same!(taken, expected, "{at}");
                    expected.iter().flatten().for_each(|page| owners[page.index()] = 1);
                    at
                } else {
                    // One more than there are pages: the last one is foreign.
                    let page = PageId(rng.roll(0, n_pages) as u32);
                    let held = owners.get(page.index()).copied();
                    let shares = rng.roll(0, 1) == 0;
                    let at =
                        format!("{at}: {} of page {page}, its owners: {held:?}", if shares { "share" } else { "free" });
                    let expected = match (held, shares) {
                        (None, _) => Err(CacheError::ForeignPage { page, n_pages }),
                        (Some(0), true) => Err(CacheError::FreePage(page)),
                        (Some(0), false) => Err(CacheError::DoubleFree(page)),
                        (Some(held), _) => {
                            owners[page.index()] = if shares { held + 1 } else { held - 1 };
                            Ok(())
                        }
                    };
                    same!(if shares { pool.share(page) } else { pool.free(page) }, expected, "{at}");
                    if (held, shares) == (Some(1), false) {
                        free.push(page);
                    }
                    at
                };
                for (page, owners) in (0..).zip(&owners) {
                    same!(pool.owners(PageId(page)), Ok(*owners), "{at}, owners of page {page} after that");
                }
                same!(pool.n_free(), free.len(), "{at}, free pages after that");
            }
        }
    }
}
