//! Grader of chapter 3: the contiguous cache.

grading::grader!();

#[cfg(not(stub = "ch03_contiguous"))]
mod checks {
    use page_by_page::cache::{CacheError, CacheUsage, KvCache, KvLayout};
    use page_by_page::chapters::ch03_contiguous::{ContiguousCache, cache_bytes, wasted_share};

    use grading::in_place::{self, LAYOUT};
    use grading::oracle::extend;
    use grading::prelude::*;

    // Task 1

    const QWEN3: KvLayout = KvLayout { n_layers: 28, n_kv_heads: 8, head_dim: 128 };

    #[test]
    fn task_1_a_formula_on_small_and_large_numbers() {
        for (layout, tokens, bytes_each, expected, what) in [
            (LAYOUT, 5, 2, 480, "3 layers, 2 heads of 4 numbers, 5 tokens, 2 bytes a number, keys and values"),
            (LAYOUT, 5, 4, 960, "the same with 4 bytes a number"),
            (LAYOUT, 0, 2, 0, "no tokens, no bytes"),
            (QWEN3, 1024, 2, 117_440_512, "Qwen3-0.6B, 1,024 tokens, 16 bits: 112 MiB"),
            (QWEN3, 100_000_001, 2, 11_468_800_114_688, "Qwen3-0.6B, more rows than 32 bits count"),
        ] {
            same!(cache_bytes(layout, tokens, bytes_each), expected, "cache_bytes: {what}");
        }
    }

    // Task 2

    #[test]
    fn task_2_an_extend_takes_slots_up_to_the_last() {
        let mut cache = ContiguousCache::new(LAYOUT, 5);
        [2, 0, 3, 0].iter().for_each(|n| extend(&mut cache, *n));
    }

    /// Asks for more than is free, which must change nothing.
    #[track_caller]
    fn assert_refuses(cache: &mut ContiguousCache, n: usize) {
        let (len, capacity) = (cache.len(), cache.usage().slots);
        let free = capacity - len;
        let expected = Err(CacheError::OutOfSlots { needed: n, free, capacity });
        let call = format!("extend({})", argument(n));
        same!(cache.extend(n), expected, "{call} with {len} of {capacity} slots taken");
        same!(cache.len(), len, "tokens after a refused {call}, with {len} held before");
        let usage = cache.usage();
        same!((usage.tokens, usage.slots), (len, capacity), "tokens and slots after a refused {call}");
    }

    #[test]
    fn task_2_a_refused_extend_changes_nothing() {
        let mut cache = ContiguousCache::new(LAYOUT, 5);
        extend(&mut cache, 3);
        for n in [3, 6, usize::MAX, usize::MAX - 2] {
            assert_refuses(&mut cache, n);
        }
        extend(&mut cache, 2);
        assert_refuses(&mut cache, 1);
        assert_refuses(&mut ContiguousCache::new(LAYOUT, 0), 1);
    }

    #[test]
    fn task_2_the_room_is_taken_once_and_for_all() {
        let mut cache = ContiguousCache::new(LAYOUT, 100);
        for n in [3, 0, 1, 60, 36] {
            let question = format!("extend({n}) with {} of 100 slots taken", cache.len());
            let outcome = assert_allocates(0, &question, "the room is there", || cache.extend(n));
            same!(outcome, Ok(()), "{question}");
        }
    }

    // Task 3

    tests_on! {
        &mut ContiguousCache::new(LAYOUT, 1_200);
        task_3_a_new_row_goes_after_the_old_ones = in_place::new_rows_go_after_the_old_ones,
        task_3_any_number_of_the_newest_rows_can_be_written = in_place::any_number_of_the_newest_rows,
        task_3_every_bit_is_kept = in_place::every_bit_is_kept,
        task_3_rows_that_do_not_fit_are_a_panic = in_place::refuse_rows_that_do_not_fit,
        task_3_write_moves_nothing_and_changes_nothing_else = in_place::write_moves_nothing,
    }

    #[test]
    fn task_3_gather_lends_the_filled_part_only() {
        let mut cache = ContiguousCache::new(LAYOUT, 65);
        for n in [0, 3, 61, 1] {
            extend(&mut cache, n);
            in_place::check_lent(&cache);
        }
    }

    // Task 4

    fn usage(slots: usize, tokens: usize) -> CacheUsage {
        CacheUsage { tokens, slots, bytes: slots * LAYOUT.kv_width() * LAYOUT.n_layers * 8, copied_tokens: 0 }
    }

    #[test]
    fn task_4_all_slots_count_alike_whatever_the_reservation() {
        // With rows three times as wide.
        let wide = CacheUsage { bytes: 3 * usage(10, 0).bytes, ..usage(10, 0) };
        let four = [usage(1024, 1024), usage(1024, 700), usage(1024, 300), usage(1024, 224)];
        for (usages, expected, what) in [
            (&[usage(10, 0), usage(30, 30)][..], 0.25, "0 of 10 and 30 of 30 slots used: 10 of 40 are empty"),
            (&four, 1848.0 / 4096.0, "2,248 of 4,096 slots used: 1,848 are empty"),
            (&[usage(8, 8)], 0.0, "a full reservation"),
            (&[usage(8, 0)], 1.0, "an empty reservation"),
            (&[usage(0, 0), usage(8, 2)], 0.75, "no slots, and 2 of 8 slots used: 6 of 8 are empty"),
            (&[wide, usage(30, 30)], 0.25, "0 of 10 wide slots and 30 of 30 slots used: slots count, not bytes"),
            (&[], 0.0, "no sequences: nothing is wasted"),
            (&[usage(0, 0)], 0.0, "a reservation of no slots: nothing is wasted"),
        ] {
            same!(wasted_share(usages), expected, "wasted_share: {what}");
        }
    }

    #[test]
    fn task_4_the_share_is_exact_also_for_many_slots() {
        // Whatever the order of the steps, f64 comes so close; f32 does not.
        let (slots, tokens) = (3 << 40, 1 << 40);
        for (usages, expected, what) in [
            (&[usage(3, 2)][..], 1.0 / 3.0, "2 of 3 slots used"),
            (&[usage(slots, tokens); 2], 2.0 / 3.0, "2^40 of 3 · 2^40 slots used, twice"),
        ] {
            let found = in_call(format!("wasted_share: {what}"), || wasted_share(usages));
            let is_near = (found - expected).abs() < 1e-12;
            assert!(is_near, "wasted_share: {what}\n  expected: {expected}\n  yours:    {found}");
        }
    }

    // All tasks

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        let mut cache = ContiguousCache::new(KvLayout { n_layers: 2, n_kv_heads: 1, head_dim: 3 }, 6);
        for tokens in [vec![0, 1, 2], vec![3]] {
            transcript.extend(&mut cache, tokens.len());
            transcript.write(&mut cache, &tokens);
        }
        transcript.extend(&mut cache, 3);
        transcript.gather(&cache);
        transcript.extend(&mut cache, 2);
        transcript.write(&mut cache, &[4, 5]);
        transcript.extend(&mut cache, 1);
        transcript.gather(&cache);
        assert_transcript("ch03_contiguous", &transcript);
    }

    #[test]
    fn whole_oracle() {
        in_place::oracle(true, |layout, capacity| Box::new(ContiguousCache::new(layout, capacity)));
    }

    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        let prompt = storyteller.prompt().len();
        let mut cache = ContiguousCache::new(storyteller.model.config().kv_layout(), prompt + 39);
        let what = format!("contiguous cache of {} slots", prompt + 39);
        let rows = storyteller.assert_through(&mut cache, &what, 40, || {});
        same!(rows, prompt as u64 + 39, "tokens computed");
        let usage = cache.usage();
        same!((usage.copied_tokens, usage.wasted()), (0, 0), "tokens copied and slots wasted");
    }
}
