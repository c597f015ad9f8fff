//! Grader of chapter 4: the page pool.

#[cfg(unstarted = "ch04_page_pool")]
#[test]
#[ignore = "not started: edit exercises/ch04_page_pool.rs, or run with --features solution"]
fn ch04_page_pool() {}

#[cfg(not(unstarted = "ch04_page_pool"))]
#[macro_use]
mod support;

#[cfg(not(unstarted = "ch04_page_pool"))]
whose_code! { ch04_page_pool = "ch04_page_pool" }

#[cfg(not(unstarted = "ch04_page_pool"))]
mod checks {
    use page_by_page::cache::{CacheError, PageId};
    use page_by_page::chapters::ch04_page_pool::PagePool;

    use crate::support::asking::{asking, made};
    use crate::support::limits::often;
    use crate::support::oracle::{Dice, STEPS, seeds};
    use crate::support::transcript::{Transcript, assert_transcript, told, told_pages};

    /// More pages than 16 bits can count.
    const MANY: u32 = if cfg!(miri) { 300 } else { 70_000 };

    /// More owners than 16 bits can count.
    const OWNERS: u32 = if cfg!(miri) { 20 } else { 70_000 };

    /// Pages enough for a walk through them at every call to take minutes.
    const VERY_MANY: u32 = if cfg!(miri) { 200 } else { 1_000_000 };

    #[track_caller]
    fn pool(n_pages: usize) -> PagePool {
        made(&format!("PagePool::new({n_pages})"), || PagePool::new(n_pages))
    }

    /// A pool whose pages are all taken, each by one owner.
    #[track_caller]
    fn full(n_pages: u32) -> PagePool {
        let mut pool = pool(n_pages as usize);
        let _asking = asking(format!("alloc, until a new pool of {n_pages} has no free page"));
        for number in 0..n_pages {
            let page = pool.alloc();
            if page != Ok(PageId(number)) {
                same!(page, Ok(PageId(number)), "alloc number {number} on a new pool of {n_pages}");
            }
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

    fn ids(pages: impl IntoIterator<Item = u32>) -> Vec<PageId> {
        pages.into_iter().map(PageId).collect()
    }

    // Task 1

    #[test]
    fn task_1_a_new_pool_has_all_pages_free() {
        let pool = pool(5);
        same!(pool.n_pages(), 5, "pages of a new pool of 5");
        same!(pool.n_free(), 5, "free pages of a new pool of 5");
    }

    #[test]
    fn task_1_a_new_pool_hands_out_0_1_2() {
        let mut pool = pool(4);
        for expected in 0..4 {
            same!(pool.alloc(), Ok(PageId(expected)), "alloc number {expected} on a new pool of 4");
            same!(pool.n_free(), 3 - expected as usize, "free pages after alloc number {expected}");
        }
    }

    #[test]
    fn task_1_an_empty_pool_refuses() {
        let mut pool = full(2);
        let expected = Err(CacheError::OutOfPages { needed: 1, free: 0 });
        same!(pool.alloc(), expected, "alloc on a pool of 2 that has handed out 2");
        same!(pool.n_free(), 0, "free pages after the refusal");
    }

    #[test]
    fn task_1_a_pool_without_pages_is_refused() {
        same!(PagePool::new(0).err(), Some(CacheError::NoPages), "PagePool::new(0)");
    }

    #[test]
    fn task_1_every_page_has_a_number_of_its_own() {
        same!(full(MANY).n_free(), 0, "free pages when all {MANY} are handed out");
    }

    #[test]
    fn task_1_very_large_pools_cost_no_more() {
        let mut pool = pool(VERY_MANY as usize);
        often(&format!("alloc on a pool of {VERY_MANY} pages"), VERY_MANY as usize, |number| {
            let page = pool.alloc();
            if page != Ok(PageId(number as u32)) {
                same!(page, Ok(PageId(number as u32)), "alloc number {number} on a new pool of {VERY_MANY}");
            }
        });
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    #[should_panic(expected = "a page's number is a u32")]
    fn task_1_a_number_of_pages_beyond_u32_panics() {
        let _ = PagePool::new(1 << 32);
    }

    // Task 2

    #[test]
    fn task_2_several_pages_come_in_order() {
        let mut pool = pool(5);
        same!(pool.alloc_n(3), Ok(ids(0..3)), "alloc_n(3) on a new pool");
        same!(pool.n_free(), 2, "free pages after alloc_n(3) on a pool of 5");
        same!(pool.alloc_n(2), Ok(ids(3..5)), "alloc_n(2), the last pages");
        same!(pool.n_free(), 0, "free pages after alloc_n(3) and alloc_n(2) on a pool of 5");
    }

    #[test]
    fn task_2_no_pages_can_always_be_had() {
        same!(pool(1).alloc_n(0), Ok(vec![]), "alloc_n(0)");
        same!(full(1).alloc_n(0), Ok(vec![]), "alloc_n(0) on a pool without free pages");
    }

    #[test]
    fn task_2_one_too_many_takes_none() {
        let mut pool = pool(4);
        same!(pool.alloc(), Ok(PageId(0)), "alloc on a new pool of 4");
        let refused = pool.alloc_n(4);
        assert!(refused.is_err(), "alloc_n(4) with 3 pages free was not refused: {refused:?}");
        same!(pool.n_free(), 3, "free pages after alloc_n(4) was refused with 3 free: a refusal takes none");
        same!(refused, Err(CacheError::OutOfPages { needed: 4, free: 3 }), "alloc_n(4) with 3 pages free");
        same!(pool.alloc_n(3), Ok(ids(1..4)), "alloc_n(3) after the refusal");
        let expected = Err(CacheError::OutOfPages { needed: usize::MAX, free: 0 });
        same!(pool.alloc_n(usize::MAX), expected, "alloc_n(usize::MAX)");
    }

    #[test]
    fn task_2_one_page_and_several_take_turns() {
        let mut pool = pool(8);
        same!(pool.alloc_n(2), Ok(ids(0..2)), "alloc_n(2) on a new pool of 8");
        same!(pool.alloc(), Ok(PageId(2)), "alloc after alloc_n(2)");
        same!(pool.alloc_n(1), Ok(ids(3..4)), "alloc_n(1) after alloc_n(2) and alloc");
        same!(pool.alloc_n(3), Ok(ids(4..7)), "alloc_n(3) after that");
        let refused = pool.alloc_n(2);
        same!(refused, Err(CacheError::OutOfPages { needed: 2, free: 1 }), "alloc_n(2) with one page free");
        same!(pool.alloc(), Ok(PageId(7)), "alloc of the last page, after alloc_n(2) was refused");
    }

    #[test]
    fn task_2_refused_again_and_again_the_pool_stays_as_it_was() {
        let mut pool = pool(6);
        same!(pool.alloc_n(2), Ok(ids(0..2)), "alloc_n(2) on a new pool of 6");
        // An odd number of them: a list that is turned round each time must not be right again at the end.
        for n in [5, 6, 7, 1000, usize::MAX] {
            let expected = Err(CacheError::OutOfPages { needed: n, free: 4 });
            same!(pool.alloc_n(n), expected, "alloc_n({n}) with 4 pages free");
            same!(pool.n_free(), 4, "free pages after alloc_n({n}) was refused");
        }
        let next: Vec<_> = (0..4).map(|_| pool.alloc()).collect();
        same!(next, [2, 3, 4, 5].map(|page| Ok(PageId(page))), "pages handed out after the refusals, one by one");
    }

    #[test]
    fn task_2_very_large_pools_cost_no_more() {
        let mut pool = pool(VERY_MANY as usize);
        let calls = VERY_MANY as usize / 2;
        often(&format!("alloc_n(2) on a pool of {VERY_MANY} pages"), calls, |number| {
            let (first, pages) = (2 * number as u32, pool.alloc_n(2));
            if pages != Ok(ids(first..first + 2)) {
                same!(pages, Ok(ids(first..first + 2)), "alloc_n(2), call number {number} on a pool of {VERY_MANY}");
            }
        });
    }

    #[test]
    fn task_2_very_many_pages_at_once() {
        let mut pool = pool(MANY as usize);
        let pages = made(&format!("alloc_n({MANY}) on a new pool of {MANY}"), || pool.alloc_n(MANY as usize));
        same!(pages.len(), MANY as usize, "pages that alloc_n({MANY}) gives");
        for (number, page) in (0..).zip(pages) {
            if page != PageId(number) {
                same!(page, PageId(number), "page number {number} of alloc_n({MANY}) on a new pool");
            }
        }
        same!(pool.n_free(), 0, "free pages when all {MANY} are handed out");
    }

    // Task 3

    #[test]
    fn task_3_a_page_counts_its_owners() {
        let mut pool = pool(2);
        same!(pool.alloc(), Ok(PageId(0)), "alloc on a new pool of 2");
        same!(pool.owners(PageId(0)), Ok(1), "owners of page 0 after alloc");
        share(&mut pool, 0);
        share(&mut pool, 0);
        same!(pool.owners(PageId(0)), Ok(3), "owners of page 0 after alloc and share twice");
        same!(pool.owners(PageId(1)), Ok(0), "owners of page 1, which was never taken");
        same!(pool.n_free(), 1, "free pages: sharing takes none");
    }

    #[test]
    fn task_3_pages_taken_together_have_one_owner_each() {
        let mut pool = pool(4);
        same!(pool.alloc_n(3), Ok(ids(0..3)), "alloc_n(3) on a new pool of 4");
        for (page, owners) in [(0, 1), (1, 1), (2, 1), (3, 0)] {
            same!(pool.owners(PageId(page)), Ok(owners), "owners of page {page} when alloc_n(3) has taken 0, 1 and 2");
        }
        assert!(pool.alloc_n(2).is_err(), "alloc_n(2) with one page free was not refused");
        same!(pool.owners(PageId(3)), Ok(0), "owners of page 3 when alloc_n(2) was refused");
    }

    #[test]
    fn task_3_the_last_owner_brings_the_page_back() {
        let mut pool = full(3);
        share(&mut pool, 1);
        free(&mut pool, 1);
        same!(pool.n_free(), 0, "free pages when one of two owners of page 1 has let go");
        same!(pool.owners(PageId(1)), Ok(1), "owners of page 1 when one of two has let go");
        free(&mut pool, 1);
        same!(pool.n_free(), 1, "free pages when both owners of page 1 have let go");
        same!(pool.owners(PageId(1)), Ok(0), "owners of page 1 when both have let go");
        same!(pool.alloc(), Ok(PageId(1)), "the next page handed out");
        same!(pool.owners(PageId(1)), Ok(1), "owners of page 1 when it was handed out again");
    }

    #[test]
    fn task_3_the_page_that_came_back_last_goes_out_first() {
        let mut pool = full(4);
        for page in [2, 0, 3] {
            free(&mut pool, page);
        }
        same!(pool.n_free(), 3, "free pages when 2, 0, 3 came back");
        let next: Vec<_> = (0..3).map(|_| pool.alloc()).collect();
        same!(next, [3, 0, 2].map(|page| Ok(PageId(page))), "pages handed out when 2, 0, 3 came back");
    }

    #[test]
    fn task_3_a_double_free_is_refused() {
        let mut pool = full(2);
        free(&mut pool, 0);
        same!(pool.n_free(), 1, "free pages when page 0 of a full pool of 2 came back");
        same!(pool.free(PageId(0)), Err(CacheError::DoubleFree(PageId(0))), "free of page 0 for the second time");
        same!(pool.n_free(), 1, "free pages after the second free: page 0 stands on the free list once");
    }

    #[test]
    fn task_3_a_page_that_was_never_taken_cannot_be_freed() {
        let mut pool = pool(2);
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
    fn task_3_a_free_page_cannot_be_shared() {
        let mut pool = full(2);
        free(&mut pool, 1);
        same!(pool.share(PageId(1)), Err(CacheError::FreePage(PageId(1))), "share of page 1, which is free");
        same!(pool.owners(PageId(1)), Ok(0), "owners of page 1 after the refusal");
    }

    #[test]
    fn task_3_several_pages_come_as_they_came_back() {
        let mut pool = full(5);
        for page in [2, 0, 4, 3] {
            free(&mut pool, page);
        }
        same!(
            pool.alloc_n(3),
            Ok([3, 4, 0].map(PageId).to_vec()),
            "alloc_n(3) when 2, 0, 4, 3 came back in this order"
        );
        same!(pool.alloc(), Ok(PageId(2)), "the page handed out after them");
    }

    #[test]
    fn task_3_refusals_leave_the_free_list_alone() {
        let mut pool = full(5);
        for page in [2, 0, 3] {
            free(&mut pool, page);
        }
        same!(pool.free(PageId(2)), Err(CacheError::DoubleFree(PageId(2))), "free of page 2 for the second time");
        same!(pool.free(PageId(0)), Err(CacheError::DoubleFree(PageId(0))), "free of page 0 for the second time");
        same!(pool.share(PageId(2)), Err(CacheError::FreePage(PageId(2))), "share of page 2, which is free");
        let foreign = CacheError::ForeignPage { page: PageId(5), n_pages: 5 };
        same!(pool.owners(PageId(5)), Err(foreign.clone()), "owners of page 5 in a pool of 5");
        same!(pool.free(PageId(5)), Err(foreign.clone()), "free of page 5 in a pool of 5");
        same!(pool.share(PageId(5)), Err(foreign), "share of page 5 in a pool of 5");
        same!(
            pool.alloc_n(4),
            Err(CacheError::OutOfPages { needed: 4, free: 3 }),
            "alloc_n(4) when 3 pages have come back"
        );
        for (page, owners) in [(0, 0), (1, 1), (2, 0), (3, 0), (4, 1)] {
            same!(pool.owners(PageId(page)), Ok(owners), "owners of page {page} after six refusals");
        }
        let next: Vec<_> = (0..4).map(|_| pool.alloc()).collect();
        let mut expected = [3, 0, 2, 9].map(|page| Ok(PageId(page)));
        expected[3] = Err(CacheError::OutOfPages { needed: 1, free: 0 });
        same!(next, expected, "pages handed out when 2, 0, 3 came back and six calls were refused");
    }

    #[test]
    fn task_3_very_large_pools_cost_no_more() {
        let mut pool = pool(VERY_MANY as usize);
        let calls = VERY_MANY as usize;
        often(&format!("owners of a free page, in a pool of {calls}"), calls, |number| {
            same_for(number, pool.owners(PageId(number as u32)), Ok(0), "owners", "which was never taken");
        });
        often(&format!("alloc_n(100) on a pool of {calls}, until all pages are taken"), calls / 100, |number| {
            let pages = pool.alloc_n(100).map(|pages| pages.len());
            if pages != Ok(100) {
                same!(pages, Ok(100), "pages that alloc_n(100) gives, call number {number} on a pool of {calls}");
            }
        });
        same!(pool.n_free(), 0, "free pages of {calls} when all are taken");
        often(&format!("owners of a page, in a pool of {calls}"), calls, |number| {
            same_for(number, pool.owners(PageId(number as u32)), Ok(1), "owners", "which was handed out once");
        });
        often(&format!("share of a page, in a pool of {calls}"), calls, |number| {
            same_for(number, pool.share(PageId(number as u32)), Ok(()), "share", "which has one owner");
        });
        often(&format!("free of a page with two owners, in a pool of {calls}"), calls, |number| {
            same_for(number, pool.free(PageId(number as u32)), Ok(()), "free", "which has two owners");
        });
        often(&format!("free of a page with one owner, in a pool of {calls}"), calls, |number| {
            same_for(number, pool.free(PageId(number as u32)), Ok(()), "free", "which has one owner");
        });
        same!(pool.n_free(), calls, "free pages when all of {calls} have come back");
    }

    #[test]
    fn task_3_very_many_free_pages_cost_no_more() {
        let mut pool = pool(VERY_MANY as usize);
        let (calls, free) = (VERY_MANY as usize, VERY_MANY - 1);
        same!(pool.alloc(), Ok(PageId(0)), "alloc on a new pool of {calls}");
        often(&format!("share of page 0, when {free} other pages are free"), calls, |_| {
            same_for(0, pool.share(PageId(0)), Ok(()), "share", "which has an owner");
        });
        often(&format!("owners of page 0, when {free} other pages are free"), calls, |_| {
            same_for(0, pool.owners(PageId(0)), Ok(VERY_MANY + 1), "owners", "which was shared again and again");
        });
        often(&format!("share of page 1, which is free, as {free} pages are"), calls, |_| {
            same_for(1, pool.share(PageId(1)), Err(CacheError::FreePage(PageId(1))), "share", "which is free");
        });
        often(&format!("free of page 1, which is free, as {free} pages are"), calls, |_| {
            same_for(1, pool.free(PageId(1)), Err(CacheError::DoubleFree(PageId(1))), "free", "which is free");
        });
        often(&format!("free of page 0, when {free} other pages are free"), calls, |_| {
            same_for(0, pool.free(PageId(0)), Ok(()), "free", "which was shared again and again");
        });
        same!(pool.owners(PageId(0)), Ok(1), "owners of page 0, which was freed as often as it was shared");
    }

    /// `same!`, only quicker, for a million calls.
    #[track_caller]
    fn same_for<T: PartialEq + std::fmt::Debug>(page: usize, yours: T, expected: T, call: &str, which: &str) {
        if yours != expected {
            same!(yours, expected, "{call} of page {page}, {which}");
        }
    }

    #[test]
    fn task_3_each_of_many_owners_is_counted() {
        let mut pool = full(2);
        for owners in 2..=OWNERS {
            same!(pool.share(PageId(1)), Ok(()), "share of page 1, which has {} owners", owners - 1);
            same!(pool.owners(PageId(1)), Ok(owners), "owners of page 1 after alloc and {} shares", owners - 1);
        }
        for owners in (1..OWNERS).rev() {
            same!(pool.free(PageId(1)), Ok(()), "free of page 1, which has {} owners", owners + 1);
            same!(
                pool.owners(PageId(1)),
                Ok(owners),
                "owners of page 1 when {} of {OWNERS} have let go",
                OWNERS - owners
            );
            same!(pool.n_free(), 0, "free pages of 2 when page 1 still has {owners} owners");
        }
        free(&mut pool, 1);
        same!(pool.n_free(), 1, "free pages of 2 when the last of {OWNERS} owners of page 1 has let go");
        same!(pool.owners(PageId(0)), Ok(1), "owners of page 0, which was not shared");
    }

    #[test]
    fn task_3_each_of_many_pages_is_itself() {
        let mut pool = full(MANY);
        let pages = [MANY - 1, 256, 5];
        for page in pages {
            share(&mut pool, page);
        }
        for (page, owners) in [(0, 1), (4, 1), (5, 2), (6, 1), (255, 1), (256, 2), (MANY - 2, 1), (MANY - 1, 2)] {
            same!(
                pool.owners(PageId(page)),
                Ok(owners),
                "owners of page {page} of {MANY}; 5, 256 and the last are shared"
            );
        }
        for page in pages {
            free(&mut pool, page);
            free(&mut pool, page);
        }
        same!(pool.n_free(), 3, "free pages when pages {pages:?} came back");
        let next: Vec<_> = (0..3).map(|_| pool.alloc()).collect();
        let expected = [5, 256, MANY - 1].map(|page| Ok(PageId(page)));
        same!(next, expected, "pages handed out when pages {pages:?} of {MANY} came back in this order");
    }

    // All tasks

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        let mut pool = pool(4);
        for (verb, number) in [
            ("alloc", 0),
            ("alloc", 0),
            ("share", 0),
            ("alloc_n", 3),
            ("alloc_n", 2),
            ("free", 1),
            ("free", 0),
            ("free", 1),
            ("share", 1),
            ("free", 0),
            ("alloc_n", 2),
            ("free", 4),
        ] {
            let page = PageId(number);
            let (did, outcome) = match verb {
                "alloc" => ("alloc".into(), pool.alloc().map(|page| format!("page {page}"))),
                "alloc_n" => {
                    let taken = pool.alloc_n(number as usize);
                    (format!("alloc_n({number})"), taken.map(|pages| told_pages(&pages)))
                }
                "share" => (format!("share({number})"), pool.share(page).map(|()| "done".into())),
                _ => (format!("free({number})"), pool.free(page).map(|()| "done".into())),
            };
            let outcome = outcome.unwrap_or_else(|error| told(&error));
            let owners: Vec<String> = (0..4)
                .map(|page| match pool.owners(PageId(page)) {
                    Ok(owners) => owners.to_string(),
                    Err(error) => told(&error),
                })
                .collect();
            transcript.line(format!("{did:<12}{outcome:<31}owners {}   {} free", owners.join(" "), pool.n_free()));
        }
        assert_transcript("ch04_owners", &transcript);
    }

    /// Counts and a free list of its own say what each call must give.
    #[test]
    fn whole_oracle() {
        for seed in seeds(40) {
            let mut dice = Dice::new(seed);
            let n_pages = dice.roll(1, 12);
            let mut pool = pool(n_pages);
            let mut owners = vec![0; n_pages];
            let mut free: Vec<PageId> = ids((0..n_pages as u32).rev());
            for step in 0..STEPS {
                let at = format!("seed {seed}, step {step}, a pool of {n_pages}");
                // One more than there are pages: the last one is foreign.
                let page = PageId(dice.roll(0, n_pages) as u32);
                let held = owners.get(page.index()).copied();
                let foreign = CacheError::ForeignPage { page, n_pages };
                let at = match dice.roll(0, 3) {
                    0 => {
                        let n = dice.roll(0, 4);
                        let at = format!("{at}, {} free: alloc_n({n})", free.len());
                        let expected = match free.len().checked_sub(n) {
                            Some(left) => Ok(free.split_off(left).into_iter().rev().collect()),
                            None => Err(CacheError::OutOfPages { needed: n, free: free.len() }),
                        };
                        same!(pool.alloc_n(n), expected, "{at}");
                        expected.iter().flatten().for_each(|page| owners[page.index()] = 1);
                        at
                    }
                    1 => {
                        let at = format!("{at}, {} free: alloc", free.len());
                        let expected = free.pop().ok_or(CacheError::OutOfPages { needed: 1, free: 0 });
                        same!(pool.alloc(), expected, "{at}");
                        expected.iter().for_each(|page| owners[page.index()] = 1);
                        at
                    }
                    2 => {
                        let at = format!("{at}: share of page {page}, its owners: {held:?}");
                        let expected = match held {
                            None => Err(foreign),
                            Some(0) => Err(CacheError::FreePage(page)),
                            Some(_) => Ok(()),
                        };
                        same!(pool.share(page), expected, "{at}");
                        if expected.is_ok() {
                            owners[page.index()] += 1;
                        }
                        at
                    }
                    _ => {
                        let at = format!("{at}: free of page {page}, its owners: {held:?}");
                        let expected = match held {
                            None => Err(foreign),
                            Some(0) => Err(CacheError::DoubleFree(page)),
                            Some(_) => Ok(()),
                        };
                        same!(pool.free(page), expected, "{at}");
                        if expected.is_ok() {
                            owners[page.index()] -= 1;
                        }
                        if held == Some(1) {
                            free.push(page);
                        }
                        at
                    }
                };
                for (page, owners) in (0..).zip(&owners) {
                    same!(pool.owners(PageId(page)), Ok(*owners), "{at}, owners of page {page} after that");
                }
                same!(pool.n_free(), free.len(), "{at}, free pages after that");
            }
        }
    }
}
