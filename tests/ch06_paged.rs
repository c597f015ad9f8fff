//! Grader of chapter 6: the paged cache.

grading::grader!();

#[cfg(not(stub = "ch06_paged"))]
mod checks {
    use page_by_page::cache::{CacheError, KvCache, KvLayout};
    use page_by_page::chapters::ch05_page_table::Location;
    use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};

    use grading::oracle;
    use grading::paged::{self, Content, cache, check_pages, drop_cache, n_free, pages, slab};
    use grading::pools::{LAYOUT, ONE_NUMBER, slab_of};
    use grading::prelude::*;
    use grading::rows::{self, KINDS, same_numbers};

    /// Tokens enough for a walk through them at every call to take minutes.
    const MANY: usize = if cfg!(miri) { 100 } else { 200_000 };

    /// The page sizes of the checks of pieces. 4, the chapter's own, comes first: its failures are easy to read.
    const PAGE_SIZES: &[usize] = if cfg!(miri) { &[4, 3] } else { &[4, 1, 2, 3, 5, 6] };

    /// Tokens that come together, one number after the other.
    const PIECES: [[usize; 3]; 5] = [[3, 2, 5], [4, 4, 1], [1, 11, 3], [9, 1, 2], [5, 7, 6]];

    /// A row in which rounding, a lost sign, and a number that is taken for nothing all show.
    const EDGE_VALUES: [f32; 10] =
        [-0.0, 0.1, -2.5, f32::MIN_POSITIVE, 1e-40, 1e38, -1e30, 1.0 / 3.0, 16_777_213.0, 0.0];

    /// Extends a cache for which there are enough pages.
    #[track_caller]
    fn extend(cache: &mut PagedCache, n: usize) {
        let len = cache.len();
        oracle::extend(cache, n);
        check_pages(cache, &format!("extend({n}) on {len} tokens"));
    }

    /// Releases a cache, and looks at what it holds then.
    #[track_caller]
    fn release(cache: &mut PagedCache) {
        let at = format!("release of {} tokens in pages {:?}", cache.len(), pages(cache));
        in_call(&at, || cache.release());
        same!((cache.len(), pages(cache)), (0, vec![]), "tokens and pages after {at}");
    }

    // Task 1

    #[test]
    fn task_1_out_of_pages_changes_nothing() {
        let slab = slab(4, 4);
        let (mut a, mut b) = (cache(&slab), cache(&slab));
        extend(&mut a, 5);
        let expected = Err(CacheError::OutOfPages { needed: 3, free: 2 });
        same!(a.extend(12), expected, "extend(12) on 5 tokens: 3 slots are left, 2 pages are free");
        same!((a.len(), pages(&a)), (5, vec![0, 1]), "tokens and pages of a, whose extend(12) was refused");
        let expected = Err(CacheError::OutOfPages { needed: usize::MAX.div_ceil(4), free: 2 });
        same!(b.extend(usize::MAX), expected, "extend(usize::MAX) on an empty cache, page size 4, 2 pages free");
        // A third one: a list that is turned round twice is right again.
        let expected = Err(CacheError::OutOfPages { needed: 3, free: 2 });
        same!(b.extend(9), expected, "extend(9) on an empty cache, page size 4, 2 pages free");
        same!(n_free(&slab), 2, "free pages after the refusals");
        extend(&mut b, 1);
        extend(&mut a, 4);
        let expected = (vec![0, 1, 3], vec![2]);
        same!((pages(&a), pages(&b)), expected, "pages of a and of b when both grew after the refusals");
    }

    /// A slab that is borrowed for reading can't be borrowed for writing. That must not be passed over in silence.
    #[test]
    fn task_1_with_a_slab_that_is_lent_no_page_is_lost_in_silence() {
        let slab = slab(4, 4);
        let mut cache = cache(&slab);
        extend(&mut cache, 5);
        paged::assert_panics_while_lent(&slab, "release", || cache.release());
        paged::assert_panics_while_lent(&slab, "extend(4)", || cache.extend(4));
        let found = (cache.len(), pages(&cache), n_free(&slab));
        same!(found, (5, vec![0, 1], 2), "tokens, pages and free pages of 4 when release and extend have panicked");
        release(&mut cache);
        same!(n_free(&slab), 4, "free pages of 4 when the same release came again, after the loan");
    }

    #[test]
    fn task_1_very_long_sequences_cost_no_more() {
        let mut cache = cache(&slab_of(ONE_NUMBER, 16, MANY / 16 + 1));
        assert_constant_cost("extend(1), again and again, page size 16", MANY, |held| {
            same_each(cache.extend(1), Ok(()), || format!("extend(1) on {held} tokens, with enough pages"));
        });
        same!(cache.len(), MANY, "tokens after {MANY} times extend(1)");
    }

    #[test]
    fn task_1_pages_go_when_a_cache_is_dropped() {
        let slab = slab(4, 4);
        for number in 1..=3 {
            let mut cache = cache(&slab);
            extend(&mut cache, 13);
            let why = "the newest page is freed first, so the oldest one goes out first";
            same!(
                pages(&cache),
                [0, 1, 2, 3],
                "pages of cache {number}, after those before it gave back theirs: {why}"
            );
            if number == 1 {
                release(&mut cache);
                release(&mut cache);
                same!(n_free(&slab), 4, "free pages of 4 after two releases");
                extend(&mut cache, 5);
            }
            drop_cache(cache);
            same!(n_free(&slab), 4, "free pages of 4 when cache {number}, which had taken some, was dropped");
        }
    }

    #[test]
    fn given_a_slab_needs_pages_and_slots() {
        same!(PageSlab::new(LAYOUT, 0, 3).err(), Some(CacheError::NoSlots), "page size 0");
        same!(PageSlab::new(LAYOUT, 4, 0).err(), Some(CacheError::NoPages), "no pages");
    }

    // Task 2

    /// Extends the cache and writes these tokens' rows.
    #[track_caller]
    fn append(cache: &mut PagedCache, tokens: &[usize]) {
        extend(cache, tokens.len());
        oracle::write(cache, tokens);
    }

    #[track_caller]
    fn locate(cache: &PagedCache, position: usize) -> Location {
        let call = format!("locate({position}) of chapter 5, {} held", plural(cache.len(), "token"));
        expect_ok(call, || cache.table().locate(position))
    }

    /// Looks into the slab, `[n_pages, n_layers, page_size, kv_width]`: does each token lie where the table says?
    #[track_caller]
    fn check_slots(slab: &SharedSlab, cache: &PagedCache, tokens: &[usize]) {
        let (slab, layout, size) = (slab.borrow(), cache.layout(), cache.table().page_size());
        let width = layout.kv_width();
        for layer in 0..layout.n_layers {
            for (kind, numbers) in KINDS.into_iter().zip([slab.keys(), slab.values()]) {
                for (position, token) in tokens.iter().enumerate() {
                    let Location { page, slot } = locate(cache, position);
                    let row = (page.index() * layout.n_layers + layer) * size + slot;
                    let found = &numbers[row * width..(row + 1) * width];
                    if found != rows::row(layout, *token, layer, kind) {
                        let (name, pages) = (rows::name(layout, found, layer, kind), pages(cache));
                        panic!(
                            "page {page}, layer {layer}, slot {slot}, {kind} (row {row} of the slab): expected \
                             t{token}, found {name}\npages {pages:?}, page size {size}, {} layers",
                            layout.n_layers
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn task_2_each_row_lands_in_a_slot_of_its_page() {
        let slab = slab(4, 6);
        let (mut a, mut b) = (cache(&slab), cache(&slab));
        append(&mut a, &[1, 2, 3]);
        check_slots(&slab, &a, &[1, 2, 3]);
        append(&mut b, &[100]);
        append(&mut a, &[4, 5]);
        same!(pages(&a), [0, 2], "pages of a, which grew before and after b took one");
        same!(pages(&b), [1], "pages of b");
        check_slots(&slab, &a, &[1, 2, 3, 4, 5]);
        check_slots(&slab, &b, &[100]);
        let width = LAYOUT.kv_width();
        for (kind, numbers) in KINDS.into_iter().zip([slab.borrow().keys(), slab.borrow().values()]) {
            let written = numbers.chunks(width).filter(|row| row.iter().any(|x| *x != 0.0)).count();
            same!(written, 18, "rows of {kind} in the slab that are not zeros: 6 tokens in 3 layers");
        }
    }

    #[test]
    fn task_2_pieces_may_begin_and_end_anywhere() {
        for &page_size in PAGE_SIZES {
            for pieces in PIECES {
                let slab = slab(page_size, 30);
                let (mut cache, mut other) = (cache(&slab), cache(&slab));
                let mut tokens = Vec::new();
                for n in pieces {
                    // Takes a page, so that the pages of two pieces do not lie side by side.
                    extend(&mut other, page_size);
                    let new: Vec<usize> = (tokens.len() + 1..=tokens.len() + n).collect();
                    append(&mut cache, &new);
                    tokens.extend(new);
                    check_slots(&slab, &cache, &tokens);
                }
            }
        }
    }

    #[test]
    fn task_2_extend_and_release_touch_no_row() {
        for size in [4, 1, 3] {
            let slab = slab(size, 4);
            let mut old = cache(&slab);
            append(&mut old, &fresh(&mut 0, 4 * size));
            let before = Content::of(&slab, &old);
            release(&mut old);
            before.assert_kept(&slab, &format!("release of a sequence of {} tokens", 4 * size));
            let mut new = cache(&slab);
            for n in [1, size, 2 * size] {
                extend(&mut new, n);
                let what = format!("page size {size}: extend({n}) of a new sequence, into slots with stale rows,");
                before.assert_kept(&slab, &what);
            }
            let (n, expected) = (3 * size, Err(CacheError::OutOfPages { needed: 3, free: 0 }));
            same!(new.extend(n), expected, "extend({n}) on {} tokens in all four pages of {size}", 3 * size + 1);
            before.assert_kept(&slab, &format!("page size {size}: extend({n}), which was refused"));
            drop_cache(new);
            before.assert_kept(&slab, &format!("the drop of a sequence of {} tokens", 3 * size + 1));
        }
    }

    #[test]
    fn task_2_writing_touches_its_own_rows_only() {
        for size in [4, 1, 3] {
            let slab = slab(size, 20);
            let mut old = cache(&slab);
            append(&mut old, &fresh(&mut 0, 20 * size));
            drop_cache(old);
            let mut cache = cache(&slab);
            let mut next = 100;
            for n in [3, 2, 0, 9, 1] {
                let first = cache.len();
                extend(&mut cache, n);
                let tokens = fresh(&mut next, n);
                let places: Vec<Location> = (first..first + n).map(|position| locate(&cache, position)).collect();
                // The last layer first: no layer waits for another.
                for layer in (0..LAYOUT.n_layers).rev() {
                    let before = Content::of(&slab, &cache);
                    let [new, held] = [plural(n, "row"), plural(first + n, "token")];
                    let write = format!("page size {size}: write of {new} to layer {layer}, {held} held");
                    let [k, v] = KINDS.map(|kind| rows::rows(LAYOUT, &tokens, layer, kind));
                    in_call(format!("write of {new} to layer {layer}, {held} held"), || cache.write(layer, &k, &v));
                    before.assert_kept_but(&slab, &write, |(page, its_layer, slot)| {
                        its_layer == layer && places.iter().any(|at| (at.page.index(), at.slot) == (page, slot))
                    });
                }
                check_slots(&slab, &cache, &(100..next).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn task_2_the_rows_are_those_of_the_newest_tokens() {
        for &page_size in PAGE_SIZES {
            let slab = slab(page_size, 30);
            let mut cache = cache(&slab);
            extend(&mut cache, 3);
            extend(&mut cache, 2);
            oracle::write(&mut cache, &[1, 2, 3, 4, 5]);
            check_slots(&slab, &cache, &[1, 2, 3, 4, 5]);
            oracle::write(&mut cache, &[14, 15]);
            check_slots(&slab, &cache, &[1, 2, 3, 14, 15]);
        }
    }

    #[test]
    fn task_2_rows_that_do_not_fit_are_a_panic() {
        let slab = slab(4, 3);
        let mut cache = cache(&slab);
        append(&mut cache, &[1, 2]);
        let rows = |n: usize| vec![1.0; n * LAYOUT.kv_width()];
        let half = LAYOUT.kv_width() / 2;
        for (k, v, what) in [
            (rows(3), rows(3), "of 3 rows when 2 tokens are held (extend has made no room for them)"),
            (rows(2), rows(1), "of 2 key rows and 1 value row"),
            (rows(1), rows(2), "of 1 key row and 2 value rows"),
            (rows(1), vec![], "of 1 key row and no value row"),
            (rows(1)[half..].to_vec(), rows(1)[half..].to_vec(), "of half a row"),
        ] {
            let before = Content::of(&slab, &cache);
            for layer in 0..LAYOUT.n_layers {
                assert_panics(&format!("write to layer {layer} {what}"), || cache.write(layer, &k, &v));
                let told = "which had to be refused before anything was written,";
                before.assert_kept(&slab, &format!("write to layer {layer} {what}, {told}"));
            }
        }
        append(&mut cache, &[3]);
        check_slots(&slab, &cache, &[1, 2, 3]);
    }

    #[test]
    fn task_2_very_long_sequences_cost_no_more() {
        let mut cache = cache(&slab_of(ONE_NUMBER, 16, MANY / 16 + 1));
        extend(&mut cache, MANY);
        assert_constant_cost(&format!("write of one row, {MANY} tokens held, page size 16"), MANY, |number| {
            cache.write(0, &[number as f32], &[0.5]);
        });
    }

    // Task 3

    /// Compares what `gather` gives with what was written; a failure names the page and the slot.
    #[track_caller]
    fn check(oracle: &Oracle, cache: &PagedCache) {
        oracle.check_placed(cache, &|position| {
            let Location { page, slot } = locate(cache, position);
            format!(" (page {page}, slot {slot} of pages {:?})", pages(cache))
        });
    }

    #[test]
    fn task_3_gather_gives_what_was_written() {
        for &page_size in PAGE_SIZES {
            for pieces in PIECES {
                let mut cache = cache(&slab(page_size, 30));
                let mut oracle = Oracle::new(format!("page size {page_size}"));
                check(&oracle, &cache);
                let mut next = 0;
                for n in pieces {
                    oracle.append(&mut cache, &fresh(&mut next, n));
                    check(&oracle, &cache);
                }
            }
        }
    }

    #[test]
    fn task_3_stale_rows_in_reused_pages_are_not_seen() {
        let slab = slab(4, 2);
        let (mut old, mut new) = (cache(&slab), cache(&slab));
        append(&mut old, &[200, 201, 202, 203]);
        append(&mut new, &[204, 205, 206, 207]);
        drop_cache(old);
        release(&mut new);
        let mut oracle = Oracle::default();
        oracle.append(&mut new, &[1, 2, 3, 4, 5]);
        check(&oracle, &new);
    }

    #[test]
    fn task_3_gather_goes_in_table_order() {
        let slab = slab(2, 6);
        let mut others: Vec<PagedCache> = (0..3).map(|_| cache(&slab)).collect();
        for other in &mut others {
            extend(other, 2);
        }
        // Pages 0, 1, 2 come back in this order, so the next ones are 2, 1, 0.
        others.drain(..).for_each(drop_cache);
        let mut cache = cache(&slab);
        let mut oracle = Oracle::default();
        oracle.append(&mut cache, &[1, 2, 3, 4, 5]);
        same!(pages(&cache), [2, 1, 0], "pages of the cache");
        check(&oracle, &cache);
    }

    #[test]
    fn task_3_gather_keeps_every_bit() {
        let mut cache = cache(&slab(4, 3));
        let rows: Vec<f32> = (0..6).flat_map(|token| EDGE_VALUES.map(|x| x * (token as f32 - 2.0))).collect();
        extend(&mut cache, 6);
        for layer in 0..LAYOUT.n_layers {
            in_call(format!("write of 6 rows to layer {layer}, 6 tokens held"), || cache.write(layer, &rows, &rows));
            let (k, v) = in_call(format!("gather({layer}) of 6 tokens"), || cache.gather(layer));
            for (kind, found) in KINDS.into_iter().zip([k, v]) {
                same_numbers(&found, &rows, &format!("the {kind} of 6 rows of 10 that gather({layer}) gives"));
            }
        }
    }

    #[test]
    fn task_3_gathering_copies_once() {
        let slab = slab(16, 100);
        let mut cache = cache(&slab);
        let (n, mut oracle) = (if cfg!(miri) { 100 } else { 1500 }, Oracle::default());
        oracle.append(&mut cache, &(0..n).collect::<Vec<_>>());
        let (at, bytes) = (format!("gather(1) of {n} tokens, page size 16"), 2 * 10 * n * size_of::<f32>());
        let why = "take room for all rows at once, so that those that are there are not copied again and again";
        let (k, v) = assert_allocates(bytes + bytes / 4, &at, why, || cache.gather(1));
        same!((k.len(), v.len()), (10 * n, 10 * n), "numbers of keys and of values that {at} gives, rows of 10");
        oracle.check(&cache);
    }

    // All tasks

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        let slab = slab_of(KvLayout { n_layers: 2, ..LAYOUT }, 4, 4);
        let (mut a, mut b) = (cache(&slab), cache(&slab));
        let mut next = [0, 100];
        for (name, n) in [("a", 3), ("b", 2), ("a", 2), ("b", 5), ("a", 4), ("b", 1)] {
            let (cache, next) = if name == "a" { (&mut a, &mut next[0]) } else { (&mut b, &mut next[1]) };
            let result = in_call(format!("extend({n}) of {name}, in the transcript"), || cache.extend(n));
            if result.is_ok() {
                oracle::write(cache, &fresh(next, n));
            }
            let (outcome, len, free) = (outcome(&result), cache.len(), n_free(&slab));
            let pages = page_list(cache.table().pages());
            transcript.line(format!("{name}: extend({n})  {outcome:<31}{len:>2} tokens in {pages:<12}{free} free"));
        }
        for (name, cache) in [("a", &a), ("b", &b)] {
            transcript.line(format!("gather of {name}, {}", page_list(cache.table().pages())));
            transcript.gather(cache);
        }
        drop_cache(b);
        transcript.line(format!("b dropped   {} free", n_free(&slab)));
        assert_transcript("ch06_paged", &transcript);
    }

    #[test]
    fn whole_oracle() {
        paged::oracle(40, false);
    }

    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        for page_size in [3, 16] {
            let slab = slab_of(storyteller.model.config().kv_layout(), page_size, 100);
            // A different sequence takes every other page, so that the story's pages lie scattered.
            let mut other = cache(&slab);
            let what = format!("paged cache, page size {page_size}");
            storyteller.assert_through(&mut cache(&slab), &what, 40, || extend(&mut other, 1));
        }
    }
}
