//! Grader of chapter 4: the page pool.

#[cfg(unstarted = "ch04_page_pool")]
#[test]
#[ignore = "not started: edit exercises/ch04_page_pool.rs, or run with --features solution"]
fn ch04_page_pool() {}

#[cfg(not(unstarted = "ch04_page_pool"))]
#[macro_use]
mod support;

#[cfg(not(unstarted = "ch04_page_pool"))]
mod checks {
    use page_by_page::cache::{CacheError, PageId};
    use page_by_page::chapters::ch04_page_pool::PagePool;

    use crate::support::oracle::{Dice, seeds};
    use crate::support::transcript::{Transcript, assert_transcript};

    fn pool(n_pages: usize) -> PagePool {
        PagePool::new(n_pages).expect("a pool with pages can be made")
    }

    /// Takes all pages, so that none is free.
    fn full(n_pages: usize) -> PagePool {
        let mut pool = pool(n_pages);
        for _ in 0..n_pages {
            pool.alloc().expect("the pool has pages left");
        }
        pool
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

    // Task 2

    #[test]
    fn task_2_several_pages_come_in_order() {
        let mut pool = pool(5);
        same!(pool.alloc_n(3), Ok(vec![PageId(0), PageId(1), PageId(2)]), "alloc_n(3) on a new pool");
        same!(pool.n_free(), 2, "free pages after alloc_n(3) on a pool of 5");
        same!(pool.alloc_n(2), Ok(vec![PageId(3), PageId(4)]), "alloc_n(2), the last pages");
    }

    #[test]
    fn task_2_no_pages_can_always_be_had() {
        same!(pool(1).alloc_n(0), Ok(vec![]), "alloc_n(0)");
        same!(full(1).alloc_n(0), Ok(vec![]), "alloc_n(0) on a pool without free pages");
    }

    #[test]
    fn task_2_one_too_many_takes_none() {
        let mut pool = pool(4);
        pool.alloc().unwrap();
        let expected = Err(CacheError::OutOfPages { needed: 4, free: 3 });
        same!(pool.alloc_n(4), expected, "alloc_n(4) with 3 pages free");
        same!(pool.n_free(), 3, "free pages after the refusal");
        for page in 1..4 {
            same!(pool.owners(PageId(page)), Ok(0), "owners of page {page} after the refusal");
        }
        same!(pool.alloc_n(3), Ok(vec![PageId(1), PageId(2), PageId(3)]), "alloc_n(3) after the refusal");
        let expected = Err(CacheError::OutOfPages { needed: usize::MAX, free: 0 });
        same!(pool.alloc_n(usize::MAX), expected, "alloc_n(usize::MAX)");
    }

    // Task 3

    #[test]
    fn task_3_a_page_counts_its_owners() {
        let mut pool = pool(2);
        let page = pool.alloc().unwrap();
        same!(pool.owners(page), Ok(1), "owners after alloc");
        pool.share(page).unwrap();
        pool.share(page).unwrap();
        same!(pool.owners(page), Ok(3), "owners after alloc and share twice");
        same!(pool.owners(PageId(1)), Ok(0), "owners of page 1, which nobody took");
    }

    #[test]
    fn task_3_the_last_owner_brings_the_page_back() {
        let mut pool = full(3);
        let page = PageId(1);
        pool.share(page).unwrap();
        pool.free(page).unwrap();
        same!(pool.n_free(), 0, "free pages when one of two owners of page 1 has let go");
        same!(pool.owners(page), Ok(1), "owners of page 1 when one of two has let go");
        pool.free(page).unwrap();
        same!(pool.n_free(), 1, "free pages when both owners of page 1 have let go");
        same!(pool.alloc(), Ok(page), "the next page handed out");
        same!(pool.owners(page), Ok(1), "owners of page 1 when it was handed out again");
    }

    #[test]
    fn task_3_the_page_that_came_back_last_goes_out_first() {
        let mut pool = full(4);
        for page in [2, 0, 3] {
            pool.free(PageId(page)).unwrap();
        }
        let next: Vec<_> = (0..3).map(|_| pool.alloc().unwrap()).collect();
        same!(next, [PageId(3), PageId(0), PageId(2)], "pages handed out after 2, 0, 3 came back");
    }

    #[test]
    fn task_3_a_double_free_is_refused() {
        let mut pool = full(2);
        pool.free(PageId(0)).unwrap();
        same!(pool.free(PageId(0)), Err(CacheError::DoubleFree(PageId(0))), "free of page 0 for the second time");
        same!(pool.n_free(), 1, "free pages after the double free: page 0 must not be on the list twice");
        let mut pool = PagePool::new(2).unwrap();
        same!(pool.free(PageId(1)), Err(CacheError::DoubleFree(PageId(1))), "free of a page that nobody took");
        same!(pool.n_free(), 2, "free pages after that");
    }

    #[test]
    fn task_3_foreign_pages_are_refused() {
        let mut pool = full(3);
        for foreign in [PageId(3), PageId(99), PageId(u32::MAX)] {
            let expected = CacheError::ForeignPage { page: foreign, n_pages: 3 };
            same!(pool.free(foreign), Err(expected.clone()), "free of {foreign:?} in a pool of 3");
            same!(pool.share(foreign), Err(expected.clone()), "share of {foreign:?} in a pool of 3");
            same!(pool.owners(foreign), Err(expected), "owners of {foreign:?} in a pool of 3");
        }
        same!(pool.n_free(), 0, "free pages after the refusals");
    }

    #[test]
    fn task_3_a_free_page_cannot_be_shared() {
        let mut pool = full(2);
        pool.free(PageId(1)).unwrap();
        same!(pool.share(PageId(1)), Err(CacheError::FreePage(PageId(1))), "share of page 1, which is free");
        same!(pool.owners(PageId(1)), Ok(0), "owners of page 1 after the refusal");
    }

    // All tasks

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        let mut pool = pool(4);
        let tell = |transcript: &mut Transcript, pool: &PagePool, did: &str, outcome: String| {
            let owners: Vec<String> = (0..4).map(|page| pool.owners(PageId(page)).unwrap().to_string()).collect();
            transcript.line(format!("{did:<11} {outcome:<36} owners {}   {} free", owners.join(" "), pool.n_free()));
        };
        for (verb, page) in [
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
            let outcome = match verb {
                "alloc" => format!("{:?}", pool.alloc().map(|page| page.0)),
                "alloc_n" => {
                    format!("{:?}", pool.alloc_n(page).map(|pages| pages.iter().map(|p| p.0).collect::<Vec<_>>()))
                }
                "share" => format!("{:?}", pool.share(PageId(page as u32))),
                _ => format!("{:?}", pool.free(PageId(page as u32))),
            };
            let did = if verb == "alloc" { "alloc".into() } else { format!("{verb}({page})") };
            tell(&mut transcript, &pool, &did, outcome);
        }
        assert_transcript("ch04_owners", &transcript);
    }

    #[test]
    fn whole_oracle() {
        for seed in seeds(40) {
            let mut dice = Dice::new(seed);
            let n_pages = dice.roll(1, 12);
            let mut pool = pool(n_pages);
            let mut owners = vec![0; n_pages];
            for step in 0..80 {
                let free = owners.iter().filter(|owners| **owners == 0).count();
                let page = dice.roll(0, n_pages - 1);
                let id = PageId(page as u32);
                match dice.roll(0, 3) {
                    0 => match pool.alloc_n(dice.roll(0, 4)) {
                        Ok(pages) => {
                            for id in pages {
                                same!(
                                    owners[id.index()],
                                    0,
                                    "seed {seed}, step {step}: {id:?} was handed out, its owners"
                                );
                                owners[id.index()] = 1;
                            }
                        }
                        Err(error) => {
                            let CacheError::OutOfPages { needed, free: said } = error else { panic!("{error:?}") };
                            same!(said, free, "seed {seed}, step {step}: free pages in the error");
                            assert!(needed > free, "seed {seed}, step {step}: {needed} pages refused with {free} free");
                        }
                    },
                    1 if owners[page] > 0 => {
                        same!(pool.share(id), Ok(()), "seed {seed}, step {step}: share({id:?})");
                        owners[page] += 1;
                    }
                    2 if owners[page] > 0 => {
                        same!(pool.free(id), Ok(()), "seed {seed}, step {step}: free({id:?})");
                        owners[page] -= 1;
                    }
                    _ if owners[page] == 0 => {
                        same!(pool.free(id), Err(CacheError::DoubleFree(id)), "seed {seed}, step {step}: free({id:?})");
                    }
                    _ => {}
                }
                for (page, owners) in owners.iter().enumerate() {
                    same!(
                        pool.owners(PageId(page as u32)),
                        Ok(*owners),
                        "seed {seed}, step {step}: owners of page {page}"
                    );
                }
                let free = owners.iter().filter(|owners| **owners == 0).count();
                same!(pool.n_free(), free, "seed {seed}, step {step}: free pages");
            }
        }
    }
}
