//! Grader of chapter 7: rewind, what `chapters::ch07_rewind` adds to the three caches.

grading::grader!();

#[cfg(not(stub = "ch07_rewind"))]
mod checks {
    use page_by_page::cache::attention::AttentionCache;
    use page_by_page::cache::{CacheError, KvCache, KvLayout, PageId, Rewind};
    use page_by_page::chapters::ch02_flat::FlatCache;
    use page_by_page::chapters::ch03_contiguous::ContiguousCache;
    use page_by_page::chapters::ch04_page_pool::PagePool;
    use page_by_page::chapters::ch05_page_table::PageTable;
    use page_by_page::generation::{CachedModel, LanguageModel};

    use grading::history::{assert_refused, fact};
    use grading::in_place;
    use grading::oracle::{self, extend};
    use grading::paged::{self, Content, cache, check_pages, n_free, slab};
    use grading::pools::{
        LAYOUT, ONE_NUMBER, double_free, foreign_page, grow, of_other_pool, pool, pool_with_free, slab_of, table,
    };
    use grading::prelude::*;

    /// Pages enough for a walk through them at every call to take minutes.
    const VERY_MANY: usize = if cfg!(miri) { 300 } else { 1_000_000 };

    /// Of these page sizes every case is tried.
    const PAGE_SIZES: &[usize] = if cfg!(miri) { &[4, 1] } else { &[4, 1, 2, 3, 5, 6, 7] };

    /// Tokens held and tokens to forget: every way to meet a boundary of pages of 4.
    const BOUNDARIES: [[usize; 2]; 13] = [
        [9, 0], // nothing
        [9, 1], // to a boundary: the last page held one token
        [9, 3], // over a boundary, into a page
        [9, 5], // over two, to a boundary
        [9, 6], // over two, into a page
        [9, 9], // everything
        [8, 0], // nothing, at a boundary
        [8, 1], // within a full page
        [8, 4], // a whole page
        [7, 2], // within a page
        [1, 1], // the only token
        [0, 0], // nothing of nothing
        [300, 270],
    ];

    /// Rewinds a table over its own pool, and looks at what both hold then.
    #[track_caller]
    fn rewound(table: &mut PageTable, n: usize, pool: &mut PagePool) {
        let (len, size, free, held) = (table.len(), table.page_size(), pool.n_free(), table.pages().to_vec());
        let at = format!("rewind({n}) on {}, page size {size}", plural(len, "token"));
        let kept = (len - n).div_ceil(size);
        same!(table.rewind(n, pool), Ok(()), "{at}");
        let found = (table.len(), table.pages().len());
        same!(found, (len - n, kept), "(tokens, pages) of the table after {at}");
        let now_free = free + held.len() - kept;
        same!(pool.n_free(), now_free, "free pages after {at}: {free} were free, and {} held", held.len());
        if held.len() < 100 {
            same!(*table.pages(), held[..kept], "pages of the table after {at}");
        }
    }

    /// Rewinds the cache, and looks first at what it says of itself: a wrong length or a missing page would show as a
    /// panic in an earlier chapter.
    #[track_caller]
    fn rewind(oracle: &mut Oracle, cache: &mut dyn Rewind, n: usize) {
        let held = oracle.tokens.len();
        oracle.rewind(cache, n);
        same!(cache.usage().tokens, held - n, "tokens that usage tells after rewind({n}) on {held}");
    }

    /// Rewinds at every boundary, then writes different tokens over the stale rows. `about` is for a failure.
    fn check_boundaries<C: Rewind>((about, new_cache): (&str, impl Fn() -> C)) {
        for [held, n] in BOUNDARIES {
            let mut cache = new_cache();
            let mut oracle = Oracle::new(about);
            oracle.append(&mut cache, &fresh(&mut 0, held));
            rewind(&mut oracle, &mut cache, n);
            oracle.check(&cache);
            oracle.append(&mut cache, &[100, 101, 102, 103, 104]);
            oracle.check(&cache);
            for n in [1, 2] {
                rewind(&mut oracle, &mut cache, n);
                oracle.check(&cache);
            }
            oracle.append(&mut cache, &[200]);
            oracle.check(&cache);
        }
    }

    /// Asks for more than there is; the cache must then be as it was.
    fn check_past_the_start<C: Rewind>((about, new_cache): (&str, impl Fn() -> C)) {
        let mut cache = new_cache();
        let mut oracle = Oracle::new(about);
        for (held, n) in [(0, 1), (0, usize::MAX), (3, 4), (3, 1 << 32), (5, 6)] {
            oracle.append(&mut cache, &(oracle.tokens.len()..held).collect::<Vec<_>>());
            let expected = Err(CacheError::PastTheStart { n, len: held });
            same!(cache.rewind(n), expected, "rewind({}) on {held} tokens", argument(n));
            oracle.history.record(format!("rewind({}) refused", argument(n)));
            oracle.check(&cache);
        }
        oracle.append(&mut cache, &[100, 101]);
        oracle.check(&cache);
    }

    /// Rewinds a cache that lends its rows where they are: they must lie there afterwards too.
    fn check_in_place<C: Rewind>((_, new_cache): (&str, impl Fn() -> C)) {
        let mut cache = new_cache();
        extend(&mut cache, 9);
        oracle::write(&mut cache, &fresh(&mut 0, 9));
        let places = |cache: &C| -> Vec<_> {
            let layers = (0..LAYOUT.n_layers).map(|layer| in_place::gather(cache, layer));
            layers.map(|(k, v)| [k.as_ptr() as usize, v.as_ptr() as usize]).collect()
        };
        for n in [0, 1, 3, 4] {
            let at = format!("rewind({n}) on {} tokens", cache.len());
            let before = places(&cache);
            let outcome = assert_allocates(1000, &at, "nothing must be copied", || cache.rewind(n));
            same!(outcome, Ok(()), "{at}");
            let moved = places(&cache).iter().zip(&before).position(|(after, before)| after != before);
            same!(moved, None, "{at}: the first layer whose rows lie elsewhere in memory now, so they were copied");
        }
        same!(cache.usage().copied_tokens, 0, "tokens copied by four rewinds");
    }

    // Task 1

    tests_on! {
        ("", || FlatCache::new(LAYOUT));
        task_1_flat_rewinds_at_every_boundary = check_boundaries,
        task_1_flat_refuses_to_go_past_the_start = check_past_the_start,
        task_1_flat_rows_stay_in_their_place = check_in_place,
    }

    #[test]
    fn task_1_flat_rewinds_without_copying() {
        for n in [3, 9] {
            let (mut cache, left) = (FlatCache::new(LAYOUT), 9 - n);
            extend(&mut cache, 9);
            same!(cache.rewind(n), Ok(()), "rewind({n}) on 9 tokens");
            let usage = cache.usage();
            same!(usage.copied_tokens, 0, "tokens copied by rewind({n}) on 9 tokens");
            same!(usage.slots, 9, "slots after rewind({n}) on 9 tokens: the tensors stay as they are");
            extend(&mut cache, 1);
            let found = (cache.usage().copied_tokens as usize, cache.usage().slots);
            same!(found, (left, left + 1), "tokens copied, and slots, when the {left} tokens left are extended by 1");
        }
    }

    // Task 2

    tests_on! {
        ("", || ContiguousCache::new(LAYOUT, 310));
        task_2_contiguous_rewinds_at_every_boundary = check_boundaries,
        task_2_contiguous_refuses_to_go_past_the_start = check_past_the_start,
        task_2_contiguous_rows_stay_in_their_place = check_in_place,
    }

    #[test]
    fn task_2_contiguous_rows_are_not_erased() {
        let mut cache = ContiguousCache::new(LAYOUT, 8);
        let mut oracle = Oracle::default();
        oracle.append(&mut cache, &[1, 2, 3, 4, 5, 6, 7, 8]);
        rewind(&mut oracle, &mut cache, 5);
        extend(&mut cache, 5);
        // Nothing was written since: what lies in the slots are the rows that were forgotten.
        oracle.history.record("extend(5) without a write, to see what lies in the slots: nothing must be erased");
        oracle.tokens.extend([4, 5, 6, 7, 8]);
        oracle.check(&cache);
        same!(cache.usage().slots, 8, "slots of a reservation of 8 after rewind(5) and extend(5)");
    }

    // Task 3

    #[test]
    fn task_3_table_lets_go_whatever_the_page_size() {
        for &size in PAGE_SIZES {
            for (held, n) in (0..=3 * size + 1).flat_map(|held| (0..=held).map(move |n| (held, n))) {
                let mut pool = pool(25);
                rewound(&mut table(size, held, &mut pool), n, &mut pool);
            }
        }
    }

    #[test]
    fn task_3_table_refuses_to_go_past_the_start() {
        let mut pool = pool(5);
        let mut table = table(4, 6, &mut pool);
        for n in [7, 8, usize::MAX] {
            let (call, expected) = (format!("rewind({})", argument(n)), Err(CacheError::PastTheStart { n, len: 6 }));
            same!(table.rewind(n, &mut pool), expected, "{call} on 6 tokens");
            same!((table.len(), pool.n_free()), (6, 3), "(tokens, free pages of 5) after {call} was refused");
            same!(table.pages(), [PageId(0), PageId(1)], "pages after {call} was refused");
        }
        rewound(&mut table, 6, &mut pool);
        let expected = Err(CacheError::PastTheStart { n: 1, len: 0 });
        same!(table.rewind(1, &mut pool), expected, "rewind(1) when all is forgotten");
    }

    #[test]
    fn task_3_table_takes_the_same_pages_again() {
        let mut pool = pool_with_free(3, &[2, 0, 1]);
        let mut table = table(4, 9, &mut pool);
        let before = [1, 0, 2].map(PageId);
        same!(table.pages(), before, "pages of 9 tokens, where 2, 0 and 1 were freed in this order, the last first");
        rewound(&mut table, 9, &mut pool);
        grow(&mut table, 9, &mut pool);
        let at = "pages when 9 tokens in pages 1, 0, 2 are forgotten and 9 come again: newest page freed first, \
                  whatever their numbers";
        same!(table.pages(), before, "{at}");
    }

    #[test]
    fn task_3_table_only_lets_its_own_share_of_a_page_go() {
        let mut pool = pool(3);
        let mut table = table(4, 9, &mut pool);
        same!(pool.share(PageId(2)), Ok(()), "share of chapter 4, of page 2");
        same!(table.rewind(1, &mut pool), Ok(()), "rewind(1) on 9 tokens in pages 0, 1, 2; 2 has another owner too");
        same!(pool.owners(PageId(2)), Ok(1), "owners of page 2, which has another owner too");
        same!(pool.n_free(), 0, "free pages: page 2 still has its other owner");
    }

    /// Rewinds over another pool, which must refuse and stay as it is; so must the table.
    #[test]
    fn task_3_table_rewound_over_another_pool_changes_nothing() {
        let mut pool = pool(5);
        let mut table = table(4, 9, &mut pool);
        for (mut other, n, error, which) in [
            (pool_with_free(5, &[0]), 9, double_free(0), "in which page 0 is free"),
            (pool_with_free(5, &[1]), 9, double_free(1), "in which page 1 is free"),
            (pool_with_free(5, &[2]), 9, double_free(2), "in which page 2 is free"),
            (pool_with_free(5, &[0]), 10, CacheError::PastTheStart { n: 10, len: 9 }, "in which page 0 is free"),
            (pool_with_free(2, &[]), 9, foreign_page(2, 2), "which has only 2"),
            (pool_with_free(2, &[]), 1, foreign_page(2, 2), "which has only 2"),
            (
                pool_with_free(2, &[0]),
                9,
                double_free(0),
                "which has no page 2, and in which 0 is free: 0 is asked about first",
            ),
        ] {
            let call = format!("rewind({n}) on 9 tokens in pages 0, 1, 2, over another pool, {which}");
            let facts = |(other, table): &mut (&mut PagePool, &mut PageTable)| {
                let of_table = fact("tokens and pages", (table.len(), table.pages()));
                [&of_other_pool(other)[..], &[of_table]].concat()
            };
            assert_refused(&mut (&mut other, &mut table), &call, error, facts, |(other, table)| table.rewind(n, other));
        }
        rewound(&mut table, 1, &mut pool);
    }

    #[test]
    fn task_3_table_needs_no_pool_for_pages_that_stay() {
        let mut table = table(4, 10, &mut pool(5));
        let at = "in pages 0, 1, 2 of 4 slots, over a pool in which 0 and 1 are free";
        for (n, len, pages, free) in [(1, 9, 3, 2), (1, 8, 2, 3)] {
            let mut other = pool_with_free(5, &[0, 1]);
            same!(table.rewind(n, &mut other), Ok(()), "rewind({n}) on {} tokens {at}: these two stay", len + n);
            let found = (table.len(), table.pages().len(), other.n_free());
            same!(found, (len, pages, free), "(tokens, pages, free pages) after rewind({n}) on {} tokens", len + n);
        }
    }

    #[test]
    fn task_3_table_very_long_sequences_cost_no_more() {
        let mut pool = pool(VERY_MANY);
        let mut table = table(1, VERY_MANY, &mut pool);
        let at = format!("rewind(1) and grow(1) in turns, {VERY_MANY} tokens held, page size 1");
        assert_constant_cost(&at, VERY_MANY / 4, |turn| {
            let found = (table.rewind(1, &mut pool), table.grow(1, &mut pool), table.len());
            same_each(found, (Ok(()), Ok(()), VERY_MANY), || format!("rewind(1), grow(1), tokens; turn {turn}"));
        });
        let n = VERY_MANY / 10 * 7;
        assert_one_pass(&format!("rewind({n}) on {VERY_MANY} tokens, page size 1"), || {
            rewound(&mut table, n, &mut pool)
        });
    }

    // Task 4

    #[test]
    fn task_4_paged_rewinds_at_every_boundary() {
        for &size in PAGE_SIZES {
            let about = format!("page size {size}");
            check_boundaries((&about, || cache(&slab(size, 310))));
            check_past_the_start((&about, || cache(&slab(size, 10))));
        }
    }

    #[test]
    fn task_4_paged_very_long_sequences_cost_no_more() {
        let mut cache = cache(&slab_of(ONE_NUMBER, 1, VERY_MANY));
        extend(&mut cache, VERY_MANY);
        let at = format!(
            "rewind(1) and extend(1) in turns on a paged cache of {VERY_MANY} tokens, page size 1: the other pages \
             must stay, and not be freed and allocated again"
        );
        assert_constant_cost(&at, VERY_MANY / 4, |turn| {
            let found = (cache.rewind(1), cache.extend(1), cache.len());
            same_each(found, (Ok(()), Ok(()), VERY_MANY), || format!("rewind(1), extend(1), tokens; turn {turn}"));
        });
    }

    #[test]
    fn task_4_paged_touches_no_row() {
        for size in [4, 1, 3] {
            let slab = slab(size, 14);
            let mut cache = cache(&slab);
            let mut oracle = Oracle::default();
            oracle.append(&mut cache, &fresh(&mut 0, 14));
            let before = Content::of(&slab, &cache);
            for n in [1, 3, 0, 5, 5] {
                let at = format!("rewind({n}) on {} tokens, page size {size}", cache.len());
                let outcome = assert_allocates(1000, &at, "nothing must be copied", || cache.rewind(n));
                same!(outcome, Ok(()), "{at}");
                check_pages(&cache, &at);
                before.assert_kept(&slab, &format!("{at} (nothing must be erased)"));
            }
            same!(cache.usage().copied_tokens, 0, "tokens copied by five rewinds");
        }
    }

    /// A slab that is borrowed for reading can't be borrowed for writing. That must not be passed over in silence.
    #[test]
    fn task_4_paged_slab_that_is_lent_is_a_panic() {
        let slab = slab(4, 4);
        let mut cache = cache(&slab);
        extend(&mut cache, 9);
        paged::assert_panics_while_lent(&slab, "rewind(3) on 9 tokens", || cache.rewind(3));
        same!((cache.len(), n_free(&slab)), (9, 1), "(tokens, free pages of 4) when rewind has panicked");
        same!(cache.rewind(3), Ok(()), "rewind(3) on 9 tokens, after the loan");
    }

    // All tasks

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        let slab = slab_of(KvLayout { n_layers: 2, ..LAYOUT }, 4, 6);
        let (mut a, mut b) = (cache(&slab), cache(&slab));
        let mut next = 0;
        transcript.line("page size 4, 6 pages");
        for step in "a+9 b+5 a-3 a-2 b+8 b-7 a+6 a-0 a-11 a-10 b+2 a+5".split(' ') {
            let (name, change) = step.split_at(1);
            let change: i64 = change.parse().expect("a number");
            let cache = if name == "a" { &mut a } else { &mut b };
            let n = change.unsigned_abs() as usize;
            let operation = format!("{}({n})", if change > 0 { "extend" } else { "rewind" });
            let question = format!("{operation} of {name}, in the transcript");
            let result = in_call(question, || if change > 0 { cache.extend(n) } else { cache.rewind(n) });
            if change > 0 && result.is_ok() {
                oracle::write(cache, &fresh(&mut next, n));
            }
            transcript.line(format!(
                "{name}: {operation:<12}{:<24}{:>2} tokens in {:<16}{} free",
                outcome(&result),
                cache.len(),
                page_list(cache.table().pages()),
                n_free(&slab)
            ));
        }
        for (name, cache) in [("a", &a), ("b", &b)] {
            transcript.line(format!("gather of {name}, {}", page_list(cache.table().pages())));
            transcript.gather(cache);
        }
        assert_transcript("ch07_rewind", &transcript);
    }

    #[test]
    fn whole_oracle() {
        paged::oracle(80, true);
    }

    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        let layout = storyteller.model.config().kv_layout();
        let slab = slab_of(layout, 3, 100);
        let mut flat = FlatCache::new(layout);
        let mut contiguous = ContiguousCache::new(layout, 100);
        let mut paged = cache(&slab);
        let caches: [(&str, &mut dyn AttentionCache); 3] =
            [("flat", &mut flat), ("contiguous", &mut contiguous), ("paged", &mut paged)];
        for (kind, cache) in caches {
            let mut guesses = 0;
            let story = storyteller.continue_with(30, |sequence| {
                // Some tokens that are no part of the story, forgotten again.
                guesses = (guesses + 1) % 5;
                if guesses > 0 {
                    let read_on = [&sequence[cache.len()..], &[5, 6, 7, 8][..guesses]].concat();
                    let step =
                        format!("a step of the {kind} cache's story, with {guesses} tokens to be forgotten again");
                    expect_ok(&step, || storyteller.model.step(&read_on, Some(&mut *cache)));
                    let (n, len) = (guesses + 1, cache.len());
                    let at = format!("rewind({n}) on {len} tokens, the {kind} cache in the story");
                    same!(in_call(&at, || cache.rewind(n)), Ok(()), "{at}");
                    same!(cache.len(), len - n, "tokens after {at}");
                }
                let next = format!("a step of the story, through the {kind} cache");
                expect_ok(&next, || CachedModel::new(&storyteller.model, &mut *cache).next_logits(sequence))
            });
            storyteller.assert_recomputed(30, &story);
        }
    }
}
