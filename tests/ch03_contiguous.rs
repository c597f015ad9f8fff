//! Grader of chapter 3: the contiguous cache.

#[cfg(unstarted = "ch03_contiguous")]
#[test]
#[ignore = "not started: edit exercises/ch03_contiguous.rs, or run with --features solution"]
fn ch03_contiguous() {}

#[cfg(not(unstarted = "ch03_contiguous"))]
#[macro_use]
mod support;

#[cfg(not(unstarted = "ch03_contiguous"))]
whose_code! { ch03_contiguous = "ch03_contiguous" }

#[cfg(not(unstarted = "ch03_contiguous"))]
mod checks {
    use std::borrow::Cow;

    use page_by_page::cache::{CacheError, KvCache, KvLayout, Usage};
    use page_by_page::chapters::ch03_contiguous::{ContiguousCache, cache_bytes, wasted_share};
    use page_by_page::engine::{Cached, LanguageModel};

    use crate::support::oracle::{Dice, Oracle, seeds};
    use crate::support::story::Storyteller;
    use crate::support::transcript::{Transcript, assert_transcript};

    const LAYOUT: KvLayout = KvLayout { n_layers: 2, n_kv_heads: 2, head_dim: 2 };

    // Task 1

    #[test]
    fn task_1_the_formula_on_small_numbers() {
        let layout = KvLayout { n_layers: 3, n_kv_heads: 2, head_dim: 4 };
        let bytes = cache_bytes(layout, 5, 2);
        same!(bytes, 480, "3 layers, 2 heads of 4 numbers, 5 tokens, 2 bytes a number, keys and values");
        same!(cache_bytes(layout, 0, 2), 0, "no tokens, no bytes");
    }

    #[test]
    fn task_1_qwen3_at_1024_tokens_takes_112_mib() {
        let layout = KvLayout { n_layers: 28, n_kv_heads: 8, head_dim: 128 };
        same!(cache_bytes(layout, 1024, 2), 117_440_512, "Qwen3-0.6B, 1,024 tokens, 16 bits");
    }

    #[test]
    fn task_1_the_formula_is_what_the_cache_takes() {
        for (n_layers, n_kv_heads, head_dim, capacity) in [(1, 1, 2, 1), (2, 2, 2, 8), (6, 2, 32, 100), (3, 5, 6, 7)] {
            let layout = KvLayout { n_layers, n_kv_heads, head_dim };
            let taken = ContiguousCache::new(layout, capacity).usage().bytes;
            let formula = cache_bytes(layout, capacity, 4);
            same!(formula, taken, "cache_bytes of {layout:?} for {capacity} tokens in f32, against the real cache");
        }
    }

    // Task 2

    #[test]
    fn task_2_extend_takes_slots_up_to_the_last() {
        let mut cache = ContiguousCache::new(LAYOUT, 5);
        for (n, expected) in [(2, 2), (0, 2), (3, 5), (0, 5)] {
            same!(cache.extend(n), Ok(()), "extend({n}) with {} of 5 slots taken", cache.len());
            same!(cache.len(), expected, "tokens after extend({n})");
        }
    }

    #[test]
    fn task_2_one_token_too_many_is_refused_in_numbers() {
        let mut cache = ContiguousCache::new(LAYOUT, 5);
        cache.extend(3).unwrap();
        let expected = Err(CacheError::OutOfSlots { needed: 3, free: 2, capacity: 5 });
        same!(cache.extend(3), expected, "extend(3) with 3 of 5 slots taken");
        let expected = Err(CacheError::OutOfSlots { needed: 1, free: 0, capacity: 0 });
        same!(ContiguousCache::new(LAYOUT, 0).extend(1), expected, "extend(1) without any slot");
    }

    #[test]
    fn task_2_any_number_can_be_asked_for() {
        for n in [usize::MAX, usize::MAX - 2] {
            let mut cache = ContiguousCache::new(LAYOUT, 5);
            cache.extend(3).unwrap();
            let expected = Err(CacheError::OutOfSlots { needed: n, free: 2, capacity: 5 });
            same!(cache.extend(n), expected, "extend({n}) with 3 of 5 slots taken: mind the overflow");
            same!(cache.len(), 3, "tokens after a refused extend({n})");
        }
    }

    #[test]
    fn task_2_a_refused_extend_changes_nothing() {
        let mut cache = ContiguousCache::new(LAYOUT, 5);
        cache.extend(3).unwrap();
        assert!(cache.extend(3).is_err(), "extend(3) with 3 of 5 slots taken was not refused");
        same!(cache.len(), 3, "tokens after a refused extend(3), with 3 held before");
        same!(cache.extend(2), Ok(()), "extend(2) with 3 of 5 slots taken, after a refused extend(3)");
        same!(cache.len(), 5, "tokens after extend(2)");
    }

    // Task 3

    #[test]
    fn task_3_a_refused_extend_leaves_every_row() {
        let mut cache = ContiguousCache::new(LAYOUT, 5);
        let mut oracle = Oracle::default();
        oracle.append(&mut cache, &[1, 2, 3]);
        assert!(cache.extend(3).is_err(), "extend(3) with 3 of 5 slots taken was not refused: task 2");
        oracle.note("extend(3) refused".into());
        oracle.check(&cache);
        oracle.append(&mut cache, &[4, 5]);
        oracle.check(&cache);
    }

    #[test]
    fn task_3_new_rows_go_behind_the_old_ones() {
        let mut cache = ContiguousCache::new(LAYOUT, 8);
        let mut oracle = Oracle::default();
        for tokens in [vec![10, 11, 12], vec![13], vec![14, 15]] {
            oracle.append(&mut cache, &tokens);
            oracle.check(&cache);
        }
    }

    #[test]
    fn task_3_layers_do_not_touch_each_other() {
        let layout = KvLayout { n_layers: 4, n_kv_heads: 1, head_dim: 2 };
        let mut cache = ContiguousCache::new(layout, 5);
        let mut oracle = Oracle::default();
        for tokens in [vec![1, 2], vec![3], vec![4, 5]] {
            oracle.append(&mut cache, &tokens);
            oracle.check(&cache);
        }
    }

    #[test]
    fn task_3_gather_lends_the_filled_part_only() {
        let mut cache = ContiguousCache::new(LAYOUT, 100);
        Oracle::default().append(&mut cache, &[1, 2, 3]);
        for layer in 0..LAYOUT.n_layers {
            let (k, v) = cache.gather(layer);
            same!((k.len(), v.len()), (12, 12), "numbers gathered for 3 tokens of 4, with 97 slots empty");
            assert!(matches!(k, Cow::Borrowed(_)), "gather copied the keys; they lie side by side and can be borrowed");
            assert!(matches!(v, Cow::Borrowed(_)), "gather copied the values; they can be borrowed");
        }
    }

    #[test]
    fn task_3_rows_never_move() {
        let mut cache = ContiguousCache::new(LAYOUT, 50);
        let mut oracle = Oracle::default();
        oracle.append(&mut cache, &[0]);
        let place = |cache: &ContiguousCache, layer| cache.gather(layer).0.as_ptr() as usize;
        let places = [0, 1].map(|layer| place(&cache, layer));
        for token in 1..50 {
            oracle.append(&mut cache, &[token]);
            for (layer, first) in places.into_iter().enumerate() {
                let moved = place(&cache, layer) as isize - first as isize;
                same!(moved, 0, "bytes by which row 0 of layer {layer} has moved when token {token} came");
            }
        }
        oracle.check(&cache);
        same!(cache.usage().rows_copied, 0, "rows copied");
    }

    // Task 4

    fn of(capacity: usize, len: usize) -> Usage {
        let mut cache = ContiguousCache::new(LAYOUT, capacity);
        same!(cache.extend(len), Ok(()), "extend({len}) on a reservation of {capacity}: task 2");
        cache.usage()
    }

    #[test]
    fn task_4_four_unequal_texts_waste_45_percent() {
        let usages = [of(1024, 1024), of(1024, 700), of(1024, 300), of(1024, 224)];
        let share = wasted_share(&usages);
        same!(share, 1848.0 / 4096.0, "2,248 of 4,096 slots used: 1,848 are empty");
    }

    #[test]
    fn task_4_all_slots_count_alike_whatever_the_reservation() {
        same!(wasted_share(&[of(10, 0), of(30, 30)]), 0.25, "0 of 10 and 30 of 30 slots used: 10 of 40 are empty");
        same!(wasted_share(&[of(8, 8)]), 0.0, "a full reservation");
        same!(wasted_share(&[of(8, 0)]), 1.0, "an empty reservation");
    }

    #[test]
    fn task_4_without_any_slot_nothing_is_wasted() {
        same!(wasted_share(&[]), 0.0, "no texts");
        same!(wasted_share(&[of(0, 0)]), 0.0, "a reservation of no slots");
    }

    // All tasks

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        let mut cache = ContiguousCache::new(LAYOUT, 6);
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
        assert_transcript("ch03_append", &transcript);
    }

    #[test]
    fn whole_oracle() {
        for seed in seeds(60) {
            let mut dice = Dice::new(seed);
            let layout =
                KvLayout { n_layers: dice.roll(1, 4), n_kv_heads: dice.roll(1, 3), head_dim: 2 * dice.roll(1, 4) };
            let capacity = dice.roll(1, 40);
            let mut cache = ContiguousCache::new(layout, capacity);
            let mut oracle = Oracle::default();
            let mut next = 0;
            for _ in 0..dice.roll(1, 14) {
                let n = dice.roll(0, 9);
                let free = capacity - oracle.tokens.len();
                if n <= free {
                    oracle.append(&mut cache, &(next..next + n).collect::<Vec<_>>());
                    next += n;
                } else {
                    let expected = Err(CacheError::OutOfSlots { needed: n, free, capacity });
                    same!(cache.extend(n), expected, "extend({n}) with {free} of {capacity} slots free");
                    oracle.note(format!("extend({n}) refused"));
                }
                oracle.check(&cache);
            }
        }
    }

    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        let prompt = storyteller.prompt().len();
        let mut cache = ContiguousCache::new(storyteller.model.config().kv_layout(), prompt + 39);
        let mut model = Cached::new(&storyteller.model, &mut cache);
        let story = storyteller.continue_with(40, |text| model.next_logits(text).expect("the reservation is enough"));
        storyteller.assert_same_story(&story, &storyteller.recompute(40));
        same!(model.rows_projected(), prompt as u64 + 39, "rows projected");
        let usage = cache.usage();
        same!((usage.rows_copied, usage.wasted()), (0, 0), "rows copied and slots wasted");
    }
}
