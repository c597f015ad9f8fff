//! Grader of chapter 7: rewind.

#[cfg(unstarted = "ch07_rewind")]
#[test]
#[ignore = "not started: edit exercises/ch07_rewind.rs, or run with --features solution"]
fn ch07_rewind() {}

#[cfg(not(unstarted = "ch07_rewind"))]
#[macro_use]
mod support;

#[cfg(not(unstarted = "ch07_rewind"))]
whose_code! {
    ch02_flat = "ch02_flat",
    ch03_contiguous = "ch03_contiguous",
    ch04_page_pool = "ch04_page_pool",
    ch05_page_table = "ch05_page_table",
    ch06_paged = "ch06_paged",
    ch07_rewind = "ch07_rewind",
}

#[cfg(not(unstarted = "ch07_rewind"))]
mod checks {
    use page_by_page::cache::{CacheError, KvCache, KvLayout, PageId, Rewind};
    use page_by_page::chapters::ch02_flat::FlatCache;
    use page_by_page::chapters::ch03_contiguous::ContiguousCache;
    use page_by_page::chapters::ch04_page_pool::PagePool;
    use page_by_page::chapters::ch05_page_table::PageTable;
    use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};
    use page_by_page::engine::{Cached, LanguageModel};

    use crate::support::oracle::{self, Dice, Oracle, STEPS, seeds};
    use crate::support::story::Storyteller;
    use crate::support::transcript::{Transcript, assert_transcript, outcome, told_pages};

    const LAYOUT: KvLayout = KvLayout { n_layers: 2, n_kv_heads: 2, head_dim: 2 };

    /// Tokens held, tokens to forget, tokens left, pages of 4 left: every way to meet a page boundary.
    const BOUNDARIES: [[usize; 4]; 12] = [
        [9, 0, 9, 3], // nothing
        [9, 1, 8, 2], // to a boundary: the last page held one token
        [9, 3, 6, 2], // over a boundary, into a page
        [9, 5, 4, 1], // over two, to a boundary
        [9, 6, 3, 1], // over two, into a page
        [9, 9, 0, 0], // everything
        [8, 0, 8, 2], // nothing, at a boundary
        [8, 1, 7, 2], // within a full page
        [8, 4, 4, 1], // a whole page
        [7, 2, 5, 2], // within a page
        [1, 1, 0, 0], // the only token
        [0, 0, 0, 0], // nothing of nothing
    ];

    fn slab(n_pages: usize) -> SharedSlab {
        PageSlab::new(LAYOUT, 4, n_pages).expect("a slab with pages and slots can be made")
    }

    fn cache(slab: &SharedSlab) -> PagedCache {
        PagedCache::new(slab).expect("a cache over a slab can be made")
    }

    fn n_free(slab: &SharedSlab) -> usize {
        slab.borrow().pool().n_free()
    }

    fn first_tokens(n: usize) -> Vec<usize> {
        (0..n).collect()
    }

    /// Rewinds at every boundary, then writes other tokens over the stale rows.
    fn check_boundaries(new_cache: impl Fn() -> Box<dyn Rewind>) {
        for [held, n, left, _] in BOUNDARIES {
            let mut cache = new_cache();
            let mut oracle = Oracle::default();
            oracle.append(&mut *cache, &first_tokens(held));
            oracle.rewind(&mut *cache, n);
            same!(cache.len(), left, "tokens left after rewind({n}) on {held}");
            oracle.check(&*cache);
            oracle.append(&mut *cache, &[100, 101, 102, 103, 104]);
            oracle.check(&*cache);
        }
    }

    /// Asks for more than there is; the cache must then be as it was.
    fn check_past_the_start(mut cache: Box<dyn Rewind>) {
        let mut oracle = Oracle::default();
        for (held, n) in [(0, 1), (3, 4), (3, usize::MAX), (5, 6)] {
            oracle.append(&mut *cache, &(oracle.tokens.len()..held).collect::<Vec<_>>());
            let expected = Err(CacheError::PastTheStart { n, len: held });
            same!(cache.rewind(n), expected, "rewind({n}) on {held} tokens");
            oracle.note(format!("rewind({n}) refused"));
            oracle.check(&*cache);
        }
        oracle.append(&mut *cache, &[100, 101]);
        oracle.check(&*cache);
    }

    // Task 1

    #[test]
    fn task_1_flat_rewinds_at_every_boundary() {
        check_boundaries(|| Box::new(FlatCache::new(LAYOUT)));
    }

    #[test]
    fn task_1_flat_refuses_to_go_past_the_start() {
        check_past_the_start(Box::new(FlatCache::new(LAYOUT)));
    }

    #[test]
    fn task_1_flat_copies_nothing_to_rewind() {
        let mut cache = FlatCache::new(LAYOUT);
        cache.extend(9).unwrap();
        cache.rewind(3).expect("nine tokens are held");
        same!(cache.usage().rows_copied, 0, "rows copied by rewind(3) on 9 tokens");
        same!(cache.usage().tokens, 6, "tokens that usage tells after rewind(3) on 9");
        same!(cache.usage().slots, 9, "slots after rewind(3) on 9 tokens: in smaller tensors the rows would be copies");
        cache.extend(1).unwrap();
        same!(cache.usage().rows_copied, 6, "rows copied when the 6 tokens left are extended by 1");
    }

    // Task 2

    #[test]
    fn task_2_contiguous_rewinds_at_every_boundary() {
        check_boundaries(|| Box::new(ContiguousCache::new(LAYOUT, 16)));
    }

    #[test]
    fn task_2_contiguous_refuses_to_go_past_the_start() {
        check_past_the_start(Box::new(ContiguousCache::new(LAYOUT, 8)));
    }

    #[test]
    fn task_2_contiguous_has_the_slots_free_again() {
        let mut cache = ContiguousCache::new(LAYOUT, 8);
        let mut oracle = Oracle::default();
        oracle.append(&mut cache, &first_tokens(8));
        oracle.rewind(&mut cache, 5);
        let expected = Err(CacheError::OutOfSlots { needed: 6, free: 5, capacity: 8 });
        same!(cache.extend(6), expected, "extend(6) after rewind(5) on 8 tokens, capacity 8");
        oracle.append(&mut cache, &[100, 101, 102, 103, 104]);
        oracle.check(&cache);
    }

    // Task 3

    #[test]
    fn task_3_table_lets_go_of_the_pages_that_are_empty() {
        for [held, n, left, pages] in BOUNDARIES {
            let mut pool = PagePool::new(5).unwrap();
            let mut table = PageTable::new(4).unwrap();
            table.grow(held, &mut pool).unwrap();
            same!(table.rewind(n, &mut pool), Ok(()), "rewind({n}) on {held} tokens, page size 4");
            let found = (table.len(), table.pages().len(), pool.n_free());
            same!(found, (left, pages, 5 - pages), "(tokens, pages, free of 5) after rewind({n}) on {held} tokens");
        }
    }

    #[test]
    fn task_3_table_refuses_to_go_past_the_start() {
        let mut pool = PagePool::new(5).unwrap();
        let mut table = PageTable::new(4).unwrap();
        table.grow(6, &mut pool).unwrap();
        for n in [7, 8, usize::MAX] {
            same!(table.rewind(n, &mut pool), Err(CacheError::PastTheStart { n, len: 6 }), "rewind({n}) on 6 tokens");
            same!((table.len(), pool.n_free()), (6, 3), "(tokens, free pages of 5) after rewind({n}) was refused");
        }
    }

    #[test]
    fn task_3_table_takes_the_same_pages_again() {
        let mut pool = PagePool::new(6).unwrap();
        let mut table = PageTable::new(4).unwrap();
        table.grow(17, &mut pool).unwrap();
        let before = table.pages().to_vec();
        table.rewind(14, &mut pool).expect("17 tokens are held");
        table.grow(14, &mut pool).unwrap();
        same!(
            table.pages(),
            before,
            "pages when 14 of 17 tokens are forgotten and 14 come again: newest page freed first"
        );
    }

    #[test]
    fn task_3_table_keeps_positions_behind_the_end_out_of_reach() {
        let mut pool = PagePool::new(5).unwrap();
        let mut table = PageTable::new(4).unwrap();
        table.grow(9, &mut pool).unwrap();
        table.rewind(3, &mut pool).expect("nine tokens are held");
        same!((table.len(), table.pages().len()), (6, 2), "(tokens, pages) after rewind(3) on 9 tokens");
        same!(table.locate(5).map(|place| (place.page.0, place.slot)), Ok((1, 1)), "place of position 5 of 6");
        let expected = Err(CacheError::PastTheEnd { position: 6, len: 6 });
        same!(table.locate(6), expected, "place of position 6, which was forgotten");
    }

    #[test]
    fn task_3_table_only_lets_its_own_share_of_a_page_go() {
        let mut pool = PagePool::new(3).unwrap();
        let mut table = PageTable::new(4).unwrap();
        table.grow(9, &mut pool).unwrap();
        pool.share(PageId(2)).unwrap();
        table.rewind(1, &mut pool).expect("nine tokens are held");
        same!(pool.owners(PageId(2)), Ok(1), "owners of page 2, which somebody else has too");
        same!(pool.n_free(), 0, "free pages: somebody else still has page 2");
    }

    #[test]
    fn task_3_table_rewound_over_another_pool_changes_nothing() {
        let mut pool = PagePool::new(5).unwrap();
        let mut table = PageTable::new(4).unwrap();
        table.grow(9, &mut pool).unwrap();
        let mut other = PagePool::new(5).unwrap();
        other.alloc_n(3).unwrap();
        // Of the table's pages 0, 1, 2, the other pool has given away page 2 only.
        other.free(PageId(0)).unwrap();
        other.free(PageId(1)).unwrap();
        let outcome = table.rewind(9, &mut other);
        assert!(outcome.is_err(), "rewind(9) over a pool in which pages 0 and 1 are free: expected an error");
        same!((table.len(), table.pages().len()), (9, 3), "(tokens, pages) after rewind(9) was refused: {outcome:?}");
        same!(other.n_free(), 4, "free pages of the other pool, which had 4, after rewind(9) was refused");
        let mut small = PagePool::new(2).unwrap();
        let foreign = Err(CacheError::ForeignPage { page: PageId(2), n_pages: 2 });
        same!(table.rewind(1, &mut small), foreign, "rewind(1), which lets go of page 2, over a pool of 2 pages");
        same!(table.rewind(1, &mut pool), Ok(()), "the same over the table's own pool");
    }

    // Task 4

    #[test]
    fn task_4_paged_rewinds_at_every_boundary() {
        check_boundaries(|| Box::new(cache(&slab(5))));
    }

    #[test]
    fn task_4_paged_refuses_to_go_past_the_start() {
        check_past_the_start(Box::new(cache(&slab(5))));
    }

    #[test]
    fn task_4_paged_gives_the_pages_to_others() {
        let slab = slab(3);
        let (mut a, mut b) = (cache(&slab), cache(&slab));
        let (mut oracle_a, mut oracle_b) = (Oracle::default(), Oracle::default());
        oracle_a.append(&mut a, &first_tokens(10));
        same!(
            b.extend(1),
            Err(CacheError::OutOfPages { needed: 1, free: 0 }),
            "extend(1) of b while a has all 3 pages"
        );
        oracle_a.rewind(&mut a, 6);
        same!(n_free(&slab), 2, "free pages of 3 when a has 4 tokens left, page size 4");
        oracle_b.append(&mut b, &[100, 101, 102, 103, 104]);
        oracle_a.check(&a);
        oracle_b.check(&b);
        drop(a);
        drop(b);
        same!(n_free(&slab), 3, "free pages of 3 when both are dropped");
    }

    // All tasks

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        let slab = slab(6);
        let (mut a, mut b) = (cache(&slab), cache(&slab));
        let mut next = 0;
        transcript.line("page size 4, 6 pages");
        let steps: [(&str, i64); 12] = [
            ("a", 9),
            ("b", 5),
            ("a", -3),
            ("a", -2),
            ("b", 8),
            ("b", -7),
            ("a", 6),
            ("a", 0),
            ("a", -11),
            ("a", -10),
            ("b", 2),
            ("a", 5),
        ];
        for (name, change) in steps {
            let cache = if name == "a" { &mut a } else { &mut b };
            let n = change.unsigned_abs() as usize;
            let (operation, result) = if change > 0 {
                (format!("extend({n})"), cache.extend(n))
            } else {
                (format!("rewind({n})"), cache.rewind(n))
            };
            if change > 0 && result.is_ok() {
                oracle::write(cache, &(next..next + n).collect::<Vec<_>>());
                next += n;
            }
            transcript.line(format!(
                "{name}: {operation:<12}{:<24}{:>2} tokens in {:<16}{} free",
                outcome(&result),
                cache.len(),
                told_pages(cache.table().pages()),
                n_free(&slab)
            ));
        }
        for (name, cache) in [("a", &a), ("b", &b)] {
            transcript.line(format!("gather of {name}, {}", told_pages(cache.table().pages())));
            transcript.gather(cache);
        }
        assert_transcript("ch07_rewind", &transcript);
    }

    #[test]
    fn whole_oracle() {
        for seed in seeds(40) {
            let mut dice = Dice::new(seed);
            let layout =
                KvLayout { n_layers: dice.roll(1, 3), n_kv_heads: dice.roll(1, 3), head_dim: 2 * dice.roll(1, 3) };
            let (page_size, n_pages) = (dice.roll(1, 6), dice.roll(4, 16));
            let slab = PageSlab::new(layout, page_size, n_pages).unwrap();
            let mut texts: Vec<(Box<dyn Rewind>, Oracle)> = Vec::new();
            let mut next = 0;
            for _ in 0..STEPS {
                let move_ = dice.roll(0, 9);
                if texts.is_empty() || (move_ == 0 && texts.len() < 5) {
                    let cache: Box<dyn Rewind> = match dice.roll(0, 3) {
                        0 => Box::new(FlatCache::new(layout)),
                        1 => Box::new(ContiguousCache::new(layout, 4 * n_pages)),
                        _ => Box::new(cache(&slab)),
                    };
                    texts.push((cache, Oracle::default()));
                    continue;
                }
                let index = dice.roll(0, texts.len() - 1);
                if move_ == 1 {
                    texts.remove(index);
                    continue;
                }
                let (cache, oracle) = &mut texts[index];
                let len = cache.len();
                if move_ < 6 {
                    let n = dice.roll(0, 2 * page_size + 1);
                    let tokens: Vec<usize> = (next..next + n).collect();
                    if cache.extend(n).is_ok() {
                        oracle.note(format!("extend({n}) and write"));
                        oracle::write(&mut **cache, &tokens);
                        oracle.tokens.extend(tokens);
                        next += n;
                    } else {
                        oracle.note(format!("extend({n}) refused"));
                    }
                } else {
                    let n = dice.roll(0, len + 1);
                    if n > len {
                        let expected = Err(CacheError::PastTheStart { n, len });
                        same!(cache.rewind(n), expected, "seed {seed}: rewind({n}) on {len} tokens");
                        oracle.note(format!("rewind({n}) refused"));
                    } else {
                        oracle.rewind(&mut **cache, n);
                    }
                }
                for (cache, oracle) in &texts {
                    oracle.check(&**cache);
                }
            }
            drop(texts);
            same!(n_free(&slab), n_pages, "seed {seed}: free pages when all is dropped");
        }
    }

    #[test]
    fn whole_oracle_counts_pages() {
        for seed in seeds(40) {
            let mut dice = Dice::new(seed);
            let (page_size, n_pages) = (dice.roll(1, 6), dice.roll(3, 16));
            let slab = PageSlab::new(LAYOUT, page_size, n_pages).unwrap();
            let mut caches: Vec<PagedCache> = (0..3).map(|_| cache(&slab)).collect();
            for step in 0..STEPS {
                let index = dice.roll(0, 2);
                match dice.roll(0, 9) {
                    0 => caches[index] = cache(&slab),
                    1..6 => drop(caches[index].extend(dice.roll(0, 2 * page_size + 1))),
                    _ => drop(caches[index].rewind(dice.roll(0, 2 * page_size + 1))),
                }
                let needed: usize = caches.iter().map(|cache| cache.len().div_ceil(page_size)).sum();
                let held: usize = caches.iter().map(|cache| cache.table().pages().len()).sum();
                same!(held, needed, "seed {seed}, step {step}: pages held, by caches that need {needed}");
                same!(
                    n_free(&slab),
                    n_pages - held,
                    "seed {seed}, step {step}: free pages when {held} of {n_pages} are held"
                );
            }
        }
    }

    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        let expected = storyteller.recompute(30);
        let layout = storyteller.model.config().kv_layout();
        let slab = PageSlab::new(layout, 3, 100).unwrap();
        let mut flat = FlatCache::new(layout);
        let mut contiguous = ContiguousCache::new(layout, 100);
        let mut paged = cache(&slab);
        let caches: [&mut dyn Rewind; 3] = [&mut flat, &mut contiguous, &mut paged];
        for cache in caches {
            let mut guesses = 0;
            let story = storyteller.continue_with(30, |text| {
                // Some tokens that nobody asked for, forgotten again.
                guesses = (guesses + 1) % 5;
                if guesses > 0 {
                    let unread = &text[cache.len()..];
                    let read_on = [unread, &[5, 6, 7, 8][..guesses]].concat();
                    storyteller.model.step(&read_on, Some(&mut *cache)).expect("there is room");
                    cache.rewind(guesses + 1).expect("so many were just added");
                }
                Cached::new(&storyteller.model, &mut *cache).next_logits(text).expect("there is room")
            });
            storyteller.assert_same_story(&story, &expected);
        }
    }
}
