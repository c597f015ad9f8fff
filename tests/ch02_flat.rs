//! Grader of chapter 2: the flat cache.

#[cfg(unstarted = "ch02_flat")]
#[test]
#[ignore = "not started: edit exercises/ch02_flat.rs, or run with --features solution"]
fn ch02_flat() {}

#[cfg(not(unstarted = "ch02_flat"))]
#[macro_use]
mod support;

#[cfg(not(unstarted = "ch02_flat"))]
whose_code! { ch02_flat = "ch02_flat" }

#[cfg(not(unstarted = "ch02_flat"))]
mod checks {
    use std::borrow::Cow;

    use page_by_page::cache::{KvCache, KvLayout};
    use page_by_page::chapters::ch02_flat::{FlatCache, grown};
    use page_by_page::engine::{Cached, LanguageModel};

    use crate::support::oracle::{Dice, Oracle, seeds, write};
    use crate::support::rows::{KINDS, row};
    use crate::support::story::Storyteller;
    use crate::support::transcript::{Transcript, assert_transcript};

    const LAYOUT: KvLayout = KvLayout { n_layers: 2, n_kv_heads: 2, head_dim: 2 };

    // Task 1

    #[test]
    fn task_1_a_grown_tensor_is_the_old_one_then_zeros() {
        same!(grown(&[1.0, 2.0], 2), [1.0, 2.0, 0.0, 0.0], "grown(&[1.0, 2.0], 2)");
        same!(grown(&[], 3), [0.0, 0.0, 0.0], "grown(&[], 3)");
        same!(grown(&[1.0, 2.0], 0), [1.0, 2.0], "grown(&[1.0, 2.0], 0)");
        same!(grown(&[1.0; 5], 1).capacity(), 6, "numbers allocated for grown(&[1.0; 5], 1)");
    }

    #[test]
    fn task_1_extend_holds_more_tokens() {
        let mut cache = FlatCache::new(LAYOUT);
        same!(cache.len(), 0, "tokens in a new cache");
        for (n, expected) in [(3, 3), (1, 4), (0, 4), (2, 6)] {
            cache.extend(n).unwrap();
            same!(cache.len(), expected, "tokens after extend({n})");
        }
    }

    #[test]
    fn task_1_every_layer_is_exactly_as_long_as_the_text() {
        let mut cache = FlatCache::new(LAYOUT);
        let mut tokens = 0;
        for n in [1, 1, 1, 5, 1, 1] {
            cache.extend(n).unwrap();
            tokens += n;
            let bytes = tokens * 2 * LAYOUT.n_layers * LAYOUT.kv_width() * 4;
            let usage = cache.usage();
            same!(
                usage.bytes,
                bytes,
                "bytes allocated after extend({n}), tokens: {tokens}, in 2 layers, keys and values of 4 numbers, 4 bytes each"
            );
            same!(usage.slots, tokens, "tokens that the memory allocated has room for, after extend({n})");
        }
    }

    #[test]
    fn task_1_rows_copied_are_the_tokens_held_before() {
        let mut cache = FlatCache::new(LAYOUT);
        let mut held = 0;
        for (n, expected) in [(3, 0), (2, 3), (1, 8), (0, 14), (1, 20)] {
            cache.extend(n).unwrap();
            let copied = cache.usage().rows_copied;
            same!(copied, expected, "rows copied in all after extend({n}) on {held} tokens: a token counts once");
            held += n;
        }
    }

    #[test]
    fn task_1_token_by_token_half_a_square_is_copied() {
        for n in [1, 2, 10, 100] {
            let mut cache = FlatCache::new(LAYOUT);
            for _ in 0..n {
                cache.extend(1).unwrap();
            }
            let copied = cache.usage().rows_copied;
            same!(copied, n * (n - 1) / 2, "rows copied by {n} times extend(1): n(n-1)/2");
        }
    }

    // Task 2

    #[test]
    fn task_2_an_empty_cache_gathers_nothing() {
        let cache = FlatCache::new(LAYOUT);
        for layer in 0..2 {
            let (k, v) = cache.gather(layer);
            same!((k.len(), v.len()), (0, 0), "numbers of keys and values in layer {layer}");
        }
    }

    #[test]
    fn task_2_gather_lends_what_is_there() {
        let mut cache = FlatCache::new(LAYOUT);
        cache.extend(3).unwrap();
        for layer in 0..2 {
            let (k, v) = cache.gather(layer);
            same!((k.len(), v.len()), (12, 12), "numbers that gather({layer}) gives for 3 tokens of 4 numbers each");
            assert!(matches!(k, Cow::Borrowed(_)), "gather copied the keys; the tensor can be borrowed");
            assert!(matches!(v, Cow::Borrowed(_)), "gather copied the values; the tensor can be borrowed");
        }
    }

    #[test]
    fn task_2_keys_come_first_then_values_once_write_is_there() {
        let mut cache = FlatCache::new(LAYOUT);
        Oracle::default().append(&mut cache, &[1]);
        let written = |layer| KINDS.map(|kind| row(LAYOUT, 1, layer, kind));
        for layer in 0..2 {
            let (k, v) = cache.gather(layer);
            let [keys, values] = written(layer);
            assert!(
                (&*k, &*v) != (&*values, &*keys),
                "gather({layer}) gives the values first, then the keys: expected the keys first\n  \
                 (or write puts keys where values belong, and values where keys belong)"
            );
        }
        let (k, v) = cache.gather(1);
        let [keys, values] = written(0);
        assert!((&*k, &*v) != (&*keys, &*values), "gather(1) gives the rows of layer 0: expected those of layer 1");
    }

    // Task 3

    #[test]
    fn task_3_new_rows_go_behind_the_old_ones() {
        let mut cache = FlatCache::new(LAYOUT);
        let mut oracle = Oracle::default();
        for tokens in [vec![10, 11, 12], vec![13], vec![14, 15]] {
            oracle.append(&mut cache, &tokens);
            oracle.check(&cache);
        }
    }

    #[test]
    fn task_3_layers_are_written_one_by_one() {
        let mut cache = FlatCache::new(LAYOUT);
        cache.extend(1).unwrap();
        cache.write(1, &[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]);
        same!(*cache.gather(0).0, [0.0; 4], "keys of layer 0 after a write to layer 1 only");
        same!(*cache.gather(1).0, [1.0, 2.0, 3.0, 4.0], "keys of layer 1");
        same!(*cache.gather(1).1, [5.0, 6.0, 7.0, 8.0], "values of layer 1");
    }

    #[test]
    fn task_3_writing_the_same_rows_again_changes_nothing() {
        let mut cache = FlatCache::new(LAYOUT);
        let mut oracle = Oracle::default();
        oracle.append(&mut cache, &[1, 2]);
        oracle.append(&mut cache, &[3]);
        write(&mut cache, &[3]);
        oracle.note("write again".into());
        oracle.check(&cache);
    }

    // All tasks

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        let mut cache = FlatCache::new(LAYOUT);
        for tokens in [vec![0, 1, 2], vec![3], vec![4, 5]] {
            transcript.extend(&mut cache, tokens.len());
            transcript.write(&mut cache, &tokens);
        }
        transcript.gather(&cache);
        assert_transcript("ch02_grow", &transcript);
    }

    #[test]
    fn whole_oracle() {
        for seed in seeds(60) {
            let mut dice = Dice::new(seed);
            let layout =
                KvLayout { n_layers: dice.roll(1, 4), n_kv_heads: dice.roll(1, 3), head_dim: 2 * dice.roll(1, 4) };
            let mut cache = FlatCache::new(layout);
            let mut oracle = Oracle::default();
            let mut next = 0;
            for _ in 0..dice.roll(1, 12) {
                let n = dice.roll(0, 7);
                oracle.append(&mut cache, &(next..next + n).collect::<Vec<_>>());
                next += n;
                oracle.check(&cache);
            }
        }
    }

    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        let mut cache = FlatCache::new(storyteller.model.config().kv_layout());
        let mut model = Cached::new(&storyteller.model, &mut cache);
        let story = storyteller.continue_with(40, |text| model.next_logits(text).expect("a flat cache always grows"));
        storyteller.assert_same_story(&story, &storyteller.recompute(40));

        let prompt = storyteller.prompt().len() as u64;
        same!(model.rows_projected(), prompt + 39, "rows projected: the prompt, then one for each new token");
        // The prompt is copied nowhere; then each new token copies all before it.
        let copied: u64 = (prompt..prompt + 39).sum();
        same!(cache.usage().rows_copied, copied, "rows copied while 39 tokens were added to a prompt of {prompt}");
    }
}
