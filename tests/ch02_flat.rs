//! Grader of chapter 2: the flat cache.

grading::grader!();

#[cfg(not(stub = "ch02_flat"))]
mod checks {
    use page_by_page::cache::{KvCache, KvLayout};
    use page_by_page::chapters::ch02_flat::{FlatCache, grown};

    use grading::in_place::{self, EDGE_VALUES, LAYOUT};
    use grading::oracle::extend;
    use grading::prelude::*;
    use grading::rows::{KINDS, row, same_numbers};

    // Task 1

    #[test]
    fn task_1_a_grown_tensor_is_the_old_one_then_zeros() {
        same!(grown(&[1.0, 2.0], 2), [1.0, 2.0, 0.0, 0.0], "grown(&[1.0, 2.0], 2)");
        same!(grown(&[], 3), [0.0, 0.0, 0.0], "grown(&[], 3)");
        same!(grown(&[1.0, 2.0], 0), [1.0, 2.0], "grown(&[1.0, 2.0], 0)");
        let many: Vec<f32> = (0..5_000).map(|number| number as f32).collect();
        for (old, shown) in [(&many[..], "[0.0, 1.0, …, 4999.0]".into()), (&EDGE_VALUES, format!("{EDGE_VALUES:?}"))]
        {
            let what = format!("grown(&{shown}, 3)");
            same_numbers(&in_call(&what, || grown(old, 3)), &[old, &[0.0; 3]].concat(), &what);
        }
    }

    #[test]
    fn task_1_a_grown_tensor_takes_no_more_than_it_needs() {
        for (old, extra) in [(5, 1), (1, 5), (64, 8), (3, 0)] {
            let tensor = vec![1.0; old];
            same!(grown(&tensor, extra).capacity(), old + extra, "numbers allocated for grown(&[1.0; {old}], {extra})");
        }
    }

    #[test]
    fn task_1_every_layer_is_exactly_as_long_as_the_sequence() {
        let mut cache = FlatCache::new(LAYOUT);
        for (n, tokens) in [(1, 1), (1, 2), (5, 7), (1, 8)] {
            extend(&mut cache, n);
            let usage = cache.usage();
            let of_what = "in 3 layers, keys and values of 8 numbers, 4 bytes each";
            same!(usage.bytes, tokens * 192, "bytes allocated after extend({n}), tokens: {tokens}, {of_what}");
            same!(usage.slots, tokens, "tokens that the memory allocated has room for, after extend({n})");
        }
    }

    #[test]
    fn task_1_rows_copied_are_the_tokens_held_before() {
        let mut cache = FlatCache::new(LAYOUT);
        let mut held = 0;
        for (n, expected) in [(3, 0), (2, 3), (1, 8), (0, 14), (1, 20), (300, 27), (1, 334)] {
            extend(&mut cache, n);
            let copied = cache.usage().copied_tokens;
            same!(copied, expected, "tokens copied in all after extend({n}) on {held} tokens: a token counts once");
            held += n;
        }
    }

    /// `extend(n)` on 100 tokens takes memory for the new tensors alone. Zeros for new rows may be made apart.
    #[test]
    fn task_1_rows_copied_are_copied_once() {
        for n in [1, 0, 5, 200] {
            let mut cache = FlatCache::new(LAYOUT);
            extend(&mut cache, 100);
            let (_, taken) = in_call(format!("extend({n}) on 100 tokens"), || allocated(|| cache.extend(n)));
            // And a thousand bytes for whatever else.
            let (least, most) = ((100 + n) * 192, (100 + 2 * n) * 192 + 1000);
            let (rows, expected) = ((taken as f64 / 19.2).round() / 10.0, 100 + n);
            assert!(
                (least..=most).contains(&taken),
                "extend({n}) on 100 tokens asks for memory for {rows} rows a tensor: expected {expected}; it makes new \
                 tensors, and counts each old row as copied once"
            );
        }
    }

    // Task 2

    #[test]
    fn task_2_gather_lends_what_is_there() {
        for tokens in [3, 0, 1, 64] {
            let mut cache = FlatCache::new(LAYOUT);
            extend(&mut cache, tokens);
            in_place::check_lent(&cache);
        }
    }

    #[test]
    fn task_2_keys_come_first_then_values_once_write_is_there() {
        let mut cache = FlatCache::new(LAYOUT);
        Oracle::default().append(&mut cache, &[1]);
        let written: Vec<_> = (0..3).map(|layer| KINDS.map(|kind| row(LAYOUT, 1, layer, kind))).collect();
        for layer in 0..LAYOUT.n_layers {
            let (k, v) = in_place::gather(&cache, layer);
            let [keys, values] = &written[layer];
            assert!(
                (&*k, &*v) != (values, keys),
                "gather({layer}) gives the values first, then the keys: expected the keys first\n  \
                 (or write puts keys where values belong, and values where keys belong)"
            );
            assert!(
                (&*k, &*v) != (keys, keys),
                "gather({layer}) gives the keys twice: expected the keys, then the values\n  \
                 (or write stores the keys where the values belong, too)"
            );
            let other = written.iter().position(|[keys, values]| (&*k, &*v) == (keys, values));
            if let Some(other) = other.filter(|other| *other != layer) {
                panic!("gather({layer}) gives the rows of layer {other}: expected those of layer {layer}");
            }
        }
    }

    // Task 3

    #[test]
    fn task_3_a_new_row_goes_after_the_old_ones() {
        in_place::new_rows_go_after_the_old_ones(&mut FlatCache::new(LAYOUT));
    }

    tests_on! {
        &mut FlatCache::new(LAYOUT);
        task_3_any_number_of_the_newest_rows_can_be_written = in_place::any_number_of_the_newest_rows,
        task_3_every_bit_is_kept = in_place::every_bit_is_kept,
        task_3_rows_that_do_not_fit_are_a_panic = in_place::refuse_rows_that_do_not_fit,
        task_3_write_moves_nothing_and_changes_nothing_else = in_place::write_moves_nothing,
    }

    // All tasks

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        let mut cache = FlatCache::new(KvLayout { n_layers: 2, n_kv_heads: 1, head_dim: 3 });
        for tokens in [vec![0, 1, 2], vec![3], vec![4, 5]] {
            transcript.extend(&mut cache, tokens.len());
            transcript.write(&mut cache, &tokens);
        }
        transcript.gather(&cache);
        assert_transcript("ch02_flat", &transcript);
    }

    #[test]
    fn whole_oracle() {
        in_place::oracle(false, |layout, _| Box::new(FlatCache::new(layout)));
    }

    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        let mut cache = FlatCache::new(storyteller.model.config().kv_layout());
        let rows = storyteller.assert_through(&mut cache, "flat cache", 40, || {});
        let prompt = storyteller.prompt().len() as u64;
        same!(rows, prompt + 39, "tokens computed: the prompt, then one for each new token");
        // The prompt is copied nowhere; then each new token copies all before it.
        let copied: u64 = (prompt..prompt + 39).sum();
        same!(cache.usage().copied_tokens, copied, "tokens copied while 39 tokens were added to a prompt of {prompt}");
    }
}
