//! Grader of chapter 13: paged attention.

#[cfg(unstarted = "ch13_paged_attention")]
#[test]
#[ignore = "not started: edit exercises/ch13_paged_attention.rs, or run with --features solution"]
fn ch13_paged_attention() {}

#[cfg(not(unstarted = "ch13_paged_attention"))]
#[macro_use]
mod support;
#[cfg(not(unstarted = "ch13_paged_attention"))]
#[path = "support/paged.rs"]
mod paged;

#[cfg(not(unstarted = "ch13_paged_attention"))]
whose_code! {
    ch04_page_pool = "ch04_page_pool",
    ch05_page_table = "ch05_page_table",
    ch06_paged = "ch06_paged",
    ch07_rewind = "ch07_rewind",
    ch10_fork = "ch10_fork",
    ch13_paged_attention = "ch13_paged_attention",
}

#[cfg(not(unstarted = "ch13_paged_attention"))]
mod checks {
    use page_by_page::cache::in_place::{Attention, BatchError, F32Heads, HeadReader, InPlace, Run, SequenceRows};
    use page_by_page::cache::{KvCache, KvLayout, PageId, Rewind};
    use page_by_page::chapters::ch06_paged::{PagedCache, SharedSlab};
    use page_by_page::chapters::ch10_fork::ForkCache;
    use page_by_page::chapters::ch13_paged_attention::{attend_batch, attend_chunk, attend_row, places};
    use page_by_page::decode::{Cached, LanguageModel};
    use page_by_page::kernels::Heads;

    use crate::paged::{LAYOUT, ONE_NUMBER, cache, extend, slab_of};
    use crate::support::asking::{asking, granted, made};
    use crate::support::attention::{BEFORE, Paged, STALE, kv_width, numbers, q_width, same_bits};
    use crate::support::limits::{alive, allocated, often, once};
    use crate::support::oracle::{Dice, STEPS, seeds};
    use crate::support::story::Storyteller;
    use crate::support::transcript::{Transcript, assert_transcript, told_pages};
    use crate::support::words::count;

    /// More than 16 bits can count.
    const MANY: usize = if cfg!(miri) { 300 } else { 70_000 };

    /// Query heads in groups of three, one, one, two; heads that fill the lanes and that do not.
    const SHAPES: [Heads; 4] = [
        Heads { n_heads: 6, n_kv_heads: 2, head_dim: 5 },
        Heads { n_heads: 3, n_kv_heads: 3, head_dim: 16 },
        Heads { n_heads: 1, n_kv_heads: 1, head_dim: 33 },
        Heads { n_heads: 8, n_kv_heads: 4, head_dim: 2 },
    ];

    const PAGE_SIZES: [usize; 4] = [3, 16, 1, 256];

    fn f32_heads(heads: Heads) -> F32Heads {
        F32Heads { head_dim: heads.head_dim }
    }

    #[track_caller]
    fn fork_cache(slab: &SharedSlab) -> ForkCache {
        made("ForkCache::new of chapter 10", || ForkCache::new(slab))
    }

    #[track_caller]
    fn rewind(cache: &mut dyn Rewind, n: usize) {
        let tokens = count(cache.len(), "token");
        granted(format!("rewind({n}) of chapter 7, on {tokens}"), || cache.rewind(n));
    }

    /// `32+4, 0+2`: where a run starts, and its rows.
    fn shown(runs: &[Run]) -> String {
        match runs {
            [] => "no run".into(),
            runs => runs.iter().map(|run| format!("{}+{}", run.start, run.rows)).collect::<Vec<_>>().join(", "),
        }
    }

    fn run(start: usize, rows: usize) -> Run {
        Run { start, rows }
    }

    /// Where the rows must lie, worked out from the pages.
    fn runs_of(layout: KvLayout, page_size: usize, pages: &[PageId], tokens: usize, layer: usize) -> Vec<Run> {
        let start = |page: &PageId| (page.index() * layout.n_layers + layer) * page_size * layout.kv_width();
        let rows = |i: usize| page_size.min(tokens - i * page_size);
        pages.iter().enumerate().map(|(i, page)| run(start(page), rows(i))).collect()
    }

    /// Compares the runs of every layer; a run is shown as its start and its rows.
    #[track_caller]
    fn check_runs(cache: &PagedCache, layout: KvLayout, page_size: usize) {
        let (tokens, pages) = (cache.len(), cache.table().pages().to_vec());
        for layer in 0..layout.n_layers {
            let at = format!(
                "runs({layer}) as start+rows, {} in {}, page size {page_size}, {} of {} numbers",
                count(tokens, "token"),
                told_pages(&pages),
                count(layout.n_layers, "layer"),
                layout.kv_width()
            );
            let question = asking(at.as_str());
            let found = cache.runs(layer);
            drop(question);
            same!(shown(&found), shown(&runs_of(layout, page_size, &pages, tokens, layer)), "{at}");
        }
    }

    // Task 1

    /// All places of some runs, and two steps more than there can be.
    fn all_places(runs: &[Run], width: usize) -> Vec<usize> {
        let rows: usize = runs.iter().map(|run| run.rows).sum();
        places(runs, width).take(rows + 2).collect()
    }

    #[test]
    fn task_1_places_are_where_each_row_starts() {
        for (runs, width, expected) in [
            (&[run(40, 2), run(8, 1)][..], 2, &[40, 42, 8][..]),
            (&[run(0, 3)], 10, &[0, 10, 20]),
            (&[run(7, 1), run(3, 1), run(5, 1)], 1, &[7, 3, 5]),
            (&[run(64, 4), run(0, 2)], 8, &[64, 72, 80, 88, 0, 8]),
            (&[], 3, &[]),
            (&[run(9, 0)], 3, &[]),
            (&[run(9, 0), run(4, 1), run(1, 0), run(2, 0), run(6, 2), run(5, 0)], 3, &[4, 6, 9]),
        ] {
            let what = format!("places of the runs {} (start+rows), width {width}", shown(runs));
            same!(all_places(runs, width), expected, "{what}");
            let mut walk = places(runs, width);
            let found = walk.by_ref().take(expected.len() + 2).count();
            same!(found, expected.len(), "how many {what}");
            for again in 1..=3 {
                same!(walk.next(), None, "next() after the last of the {what}, asked {again} more times");
            }
        }
    }

    #[test]
    fn task_1_runs_a_small_example() {
        let layout = KvLayout { n_layers: 2, n_kv_heads: 1, head_dim: 2 };
        let slab = slab_of(layout, 4, 3);
        let mut others = [0, 1, 2].map(|_| cache(&slab));
        others.iter_mut().for_each(|other| extend(other, 1));
        // Page 2 comes back last, so it goes out first.
        let [first, second, third] = others;
        [first, third].into_iter().for_each(drop);
        let mut a = cache(&slab);
        extend(&mut a, 6);
        same!(told_pages(a.table().pages()), "pages 2 0", "pages of a, page size 4");
        for (layer, expected) in [(1, "40+4, 8+2"), (0, "32+4, 0+2")] {
            let what = format!("runs({layer}) as start+rows: six tokens in pages 2 and 0, page size 4, width 2");
            same!(shown(&a.runs(layer)), expected, "{what}");
        }
        drop(second);
    }

    #[test]
    fn task_1_runs_are_the_filled_slots_of_each_page_in_table_order() {
        for page_size in 1..=5 {
            for tokens in 0..=2 * page_size + 1 {
                let slab = slab_of(LAYOUT, page_size, 9);
                let mut others: Vec<PagedCache> = (0..5).map(|_| cache(&slab)).collect();
                others.iter_mut().for_each(|other| extend(other, 1));
                for dropped in [1, 2, 0] {
                    others.remove(dropped);
                }
                let mut a = cache(&slab);
                extend(&mut a, tokens);
                check_runs(&a, LAYOUT, page_size);
                for n in 1..=3 {
                    let n = n.min(a.len());
                    rewind(&mut a, n);
                    check_runs(&a, LAYOUT, page_size);
                }
            }
        }
    }

    #[test]
    fn task_1_runs_of_forks_are_those_of_their_own_tables() {
        let slab = slab_of(LAYOUT, 4, 6);
        let mut a = fork_cache(&slab);
        extend(&mut a, 6);
        let mut b = granted("fork of chapter 10", || a.fork());
        extend(&mut b, 3);
        for (name, cache) in [("of the fork, which has grown by 3", &b), ("of the cache that was forked", &a)] {
            let expected = shown(&runs_of(LAYOUT, 4, cache.table().pages(), cache.len(), 2));
            same!(shown(cache.rows(2).runs()), expected, "runs(2) {name}");
        }
    }

    /// Attention of a batch reads many sequences of a slab at once.
    #[test]
    fn task_1_runs_only_borrow_the_slab_to_read() {
        let slab = slab_of(LAYOUT, 4, 6);
        let (mut a, mut b) = (cache(&slab), cache(&slab));
        extend(&mut a, 6);
        extend(&mut b, 3);
        let lent = slab.borrow();
        check_runs(&a, LAYOUT, 4);
        drop(lent);
        let question = asking("rows(0) of two sequences at the same time: each holds a `borrow` of the slab");
        let rows = (a.rows(0), b.rows(0));
        same!((rows.0.runs().len(), rows.1.runs().len()), (2, 1), "runs of the two sequences");
        drop((rows, question));
        extend(&mut a, 1);
    }

    #[test]
    fn task_1_runs_take_their_memory_at_once_and_copy_no_row() {
        for (tokens, page_size) in [(1, 16), (640, 16), (640, 1), (1000, 3)] {
            let slab = slab_of(LAYOUT, page_size, 1000);
            let mut a = cache(&slab);
            extend(&mut a, tokens);
            let pages = tokens.div_ceil(page_size);
            let at = format!("runs(1) of {tokens} tokens in {}, page size {page_size}", count(pages, "page"));
            let (runs, taken) = allocated(|| a.runs(1));
            same!(runs.len(), pages, "runs, {at}");
            assert!(
                taken.bytes <= pages * size_of::<Run>() && taken.times <= 1,
                "{at} asked the allocator {} times, for {} bytes\n  expected: once, for {} bytes: {} of {} bytes each \
                 (`Vec::with_capacity`, or `collect` from as many)",
                taken.times,
                taken.bytes,
                pages * size_of::<Run>(),
                count(pages, "run"),
                size_of::<Run>()
            );
        }
    }

    #[test]
    fn task_1_wide_numbers() {
        for (page_size, tokens) in [(1, MANY), (MANY, MANY - 1), (MANY, MANY), (MANY, MANY + 1), (300, MANY)] {
            let slab = slab_of(ONE_NUMBER, page_size, tokens.div_ceil(page_size) + 1);
            let mut other = cache(&slab);
            extend(&mut other, 1);
            let mut a = cache(&slab);
            extend(&mut a, tokens);
            let what = format!("runs(0) of {tokens} tokens, page size {page_size}");
            let found = once(&what, || a.runs(0));
            let expected = runs_of(ONE_NUMBER, page_size, a.table().pages(), tokens, 0);
            same!(found.len(), expected.len(), "{what}: how many");
            if let Some(i) = (0..found.len()).find(|i| found[*i] != expected[*i]) {
                same!(shown(&found[i..=i]), shown(&expected[i..=i]), "{what}: run {i} as start+rows");
            }
        }
        let far = (1 << 40) + 5;
        let runs = [run(far, 2), run(3, 1 << 40)];
        let found: Vec<usize> = places(&runs, 1 << 33).take(4).collect();
        same!(found, [far, far + (1 << 33), 3, 3 + (1 << 33)], "the first 4 places of {}, width 2^33", shown(&runs));
    }

    /// What goes through all runs for each run, or for each row, fails on the way, after seconds.
    #[test]
    fn task_1_wide_walks_cost_no_more() {
        let slab = slab_of(ONE_NUMBER, 1, 5 * MANY);
        let mut a = cache(&slab);
        for n in [64, 16, 8, 6, 5, 4, 3, 2, 1].map(|part| 5 * MANY / part) {
            let more = n - a.len();
            extend(&mut a, more);
            let what = format!("runs(0) of {n} tokens, page size 1");
            same!(once(&what, || a.runs(0)).len(), n, "{what}: how many");
            let runs: Vec<Run> = (0..n).map(|i| run(i, 1)).collect();
            let what = format!("a walk through the places of {n} runs of a row");
            let (sum, taken) = allocated(|| once(&what, || places(&runs, 4).take(n + 5).sum::<usize>()));
            same!(sum, (0..n).sum::<usize>(), "the sum of all places: {what}");
            assert!(taken.bytes < 10_000, "{what} asked the allocator for {} bytes: it needs no list", taken.bytes);
        }
    }

    // Task 2

    /// Attention of one query over the first positions.
    #[track_caller]
    fn row_of(rows: &Paged, seen: usize, q: &[f32], what: &str) -> Vec<f32> {
        let mut out = vec![BEFORE; q_width(rows.heads)];
        let _question = asking(what);
        attend_row(rows.heads, &mut f32_heads(rows.heads), &rows.rows(1), seen, q, &mut out);
        out
    }

    #[track_caller]
    fn check_attend_row(rows: &Paged, seen: usize, seed: usize) {
        let q = numbers(q_width(rows.heads), 1000 + seed);
        let Heads { n_heads, n_kv_heads, head_dim } = rows.heads;
        let what = format!(
            "attend_row over the first {seen} of {}, page size {}, {n_heads} query heads, {n_kv_heads} key/value heads, \
             head_dim {head_dim}",
            count(rows.len(), "position"),
            rows.page_size
        );
        let found = row_of(rows, seen, &q, &what);
        rows.check_row(seen, &q, &found, &what);
    }

    /// The example of the chapter, which can be worked out by hand.
    #[test]
    fn task_2_an_example_of_four_equal_scores() {
        let heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 2 };
        let keys = vec![1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0];
        let values = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let rows = Paged::of(heads, [keys, values], 3);
        let what = "attend_row over 4 positions with equal scores: each has the weight 1/4";
        let found = row_of(&rows, 4, &[2.0, 2.0], what);
        rows.check_row(4, &[2.0, 2.0], &found, what);
        same!(found, [4.0, 5.0], "{what}");
    }

    #[test]
    fn task_2_bits_are_those_of_a_gather() {
        for (number, heads) in SHAPES.into_iter().enumerate() {
            for page_size in PAGE_SIZES {
                for tokens in [1, 2, 16, 17, 33, 100, 300] {
                    check_attend_row(&Paged::new(heads, tokens, page_size, number + tokens), tokens, number);
                }
            }
        }
    }

    /// Heads of one word more than they have numbers; the first word is never a number.
    struct OneMore {
        head_dim: usize,
    }

    impl HeadReader for OneMore {
        fn words(&self) -> usize {
            self.head_dim + 1
        }

        fn read<'a>(&'a mut self, words: &'a [f32]) -> &'a [f32] {
            same!(
                words.len(),
                self.head_dim + 1,
                "words that attend_row gives a reader of {} words a head",
                self.words()
            );
            &words[1..]
        }
    }

    /// Chapter 14 packs heads: the words that a head takes are not its numbers.
    #[test]
    fn task_2_heads_of_more_words_than_numbers() {
        for (heads, page_size) in SHAPES.into_iter().zip([3, 4, 16, 1]) {
            let dense = [1, 2].map(|seed| numbers(40 * kv_width(heads), seed));
            let store = |head: &[f32]| [&[STALE], head].concat();
            let rows = Paged::stored(heads, dense, page_size, heads.head_dim + 1, store);
            let (q, mut out) = (numbers(q_width(heads), 3), vec![BEFORE; q_width(heads)]);
            let what = format!(
                "attend_row over 40 positions, {heads:?}, with a reader of {} words a head: its rows are that much wider",
                heads.head_dim + 1
            );
            let question = asking(what.as_str());
            attend_row(heads, &mut OneMore { head_dim: heads.head_dim }, &rows.rows(1), 40, &q, &mut out);
            drop(question);
            rows.check_row(40, &q, &out, &what);
        }
    }

    /// A weight of exactly 0 times an infinity is NaN: it must not be hidden.
    #[test]
    fn task_2_infinities_are_not_hidden() {
        let heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 2 };
        let keys = vec![0.0, 0.0, -3e4, -3e4, 1.0, 1.0];
        let values = vec![1.0, 2.0, f32::INFINITY, 4.0, 5.0, 6.0];
        let rows = Paged::of(heads, [keys, values], 2);
        let what = "attend_row over 3 positions; the value of position 1 is infinite, and its weight is exactly 0";
        let found = row_of(&rows, 3, &[1.0, 1.0], what);
        rows.check_row(3, &[1.0, 1.0], &found, what);
        let large = |seed| numbers(40 * kv_width(SHAPES[0]), seed).iter().map(|x| 300.0 * x).collect::<Vec<f32>>();
        let zeros = |zero: f32| vec![zero; 40 * kv_width(SHAPES[0])];
        for dense in [[large(1), large(2)], [zeros(-0.0), zeros(-0.0)], [large(1), zeros(0.0)], [zeros(0.0), large(2)]]
        {
            check_attend_row(&Paged::of(SHAPES[0], dense, 3), 40, 2);
        }
    }

    #[test]
    fn task_2_only_the_first_positions_are_seen() {
        let heads = SHAPES[0];
        for page_size in PAGE_SIZES {
            for seen in [1, 2, 3, 4, 15, 16, 17, 32, 39, 40] {
                let mut rows = Paged::new(heads, 40, page_size, seen);
                check_attend_row(&rows, seen, 1);
                // The same if the others are not written yet.
                rows.spoil_from(seen);
                check_attend_row(&rows, seen, 1);
            }
        }
    }

    /// Keys and values of which one is more than all scores of a query together.
    const WIDE: Heads = Heads { n_heads: 2, n_kv_heads: 1, head_dim: 128 };

    #[track_caller]
    fn check_cost(taken: usize, positions: usize, what: &str) {
        let (most, row) = (256 * positions, kv_width(WIDE) * size_of::<f32>());
        assert!(
            taken <= most,
            "{what} asked the allocator for {taken} bytes\n  expected: at most {most}, {} for each position: scores, \
             and no copy of keys or values, which have {row} bytes each",
            most / positions
        );
    }

    #[test]
    fn task_2_rows_are_not_copied() {
        let rows = Paged::new(WIDE, 500, 16, 1);
        let (q, mut out) = (numbers(q_width(WIDE), 2), vec![BEFORE; q_width(WIDE)]);
        let mut reader = f32_heads(WIDE);
        let ((), taken) = allocated(|| attend_row(WIDE, &mut reader, &rows.rows(1), 500, &q, &mut out));
        check_cost(taken.bytes, 500, "attend_row over 500 positions");
        rows.check_row(500, &q, &out, "attend_row over 500 positions");
    }

    /// Two walks for each query head, and each ends after the positions that are seen.
    #[test]
    fn task_2_wide_sequences_cost_no_more() {
        let heads = Heads { n_heads: 2, n_kv_heads: 1, head_dim: 2 };
        let mut rows = Paged::new(heads, MANY, 1, 5);
        let (q, mut out) = (numbers(q_width(heads), 4), vec![BEFORE; q_width(heads)]);
        often(&format!("attend_row over the first 2 of {MANY} positions, page size 1"), 20_000, |_| {
            attend_row(heads, &mut f32_heads(heads), &rows.rows(1), 2, &q, &mut out);
        });
        for n in [8, 6, 5, 4, 3, 2].map(|part| MANY * 2 / part) {
            once(&format!("attend_row over the first {n} of {MANY} positions, page size 1"), || {
                attend_row(heads, &mut f32_heads(heads), &rows.rows(1), n, &q, &mut out);
            });
        }
        check_attend_row(&rows, MANY, 3);
        rows = Paged::new(heads, MANY, 300, 5);
        check_attend_row(&rows, MANY, 3);
    }

    // Task 3

    #[track_caller]
    fn check_attend_chunk(rows: &Paged, queries: usize, seed: usize) {
        let q = numbers(queries * q_width(rows.heads), 2000 + seed);
        let what = format!(
            "attend_chunk of the newest {queries} of {}, page size {}",
            count(rows.len(), "token"),
            rows.page_size
        );
        let mut out = vec![BEFORE; q.len()];
        let question = asking(what.as_str());
        attend_chunk(rows.heads, &mut f32_heads(rows.heads), &rows.rows(queries), &q, &mut out);
        drop(question);
        rows.check_rows(queries, &q, &out, &what);
    }

    #[test]
    fn task_3_a_token_sees_the_positions_up_to_its_own() {
        for heads in [SHAPES[0], SHAPES[1]] {
            for page_size in PAGE_SIZES {
                for (tokens, queries) in [(1, 1), (6, 2), (6, 6), (6, 0), (17, 1), (17, 16), (40, 3), (40, 40)] {
                    check_attend_chunk(&Paged::new(heads, tokens, page_size, tokens), queries, tokens);
                }
            }
        }
    }

    /// Attends a batch in pages, and compares each sequence alone with a gather.
    #[track_caller]
    fn check_attend_batch(heads: Heads, batch: &[(SequenceRows<'_>, Paged)], what: &str) {
        let width = q_width(heads);
        let rows: Vec<SequenceRows<'_>> = batch.iter().map(|(rows, _)| *rows).collect();
        let n: usize = rows.iter().map(|rows| rows.queries).sum();
        let (q, mut out) = (numbers(n * width, 77), vec![BEFORE; n * width]);
        granted(format!("attend_batch: {what}"), || attend_batch(heads, &mut f32_heads(heads), &rows, &q, &mut out));
        let mut first = 0;
        for (number, (SequenceRows { queries, .. }, dense)) in batch.iter().enumerate() {
            let mine = first * width..(first + queries) * width;
            let (q, found) = (&q[mine.clone()], &out[mine]);
            let at = format!("attend_batch: {what}, sequence {number} with {}", count(dense.len(), "token"));
            for (other, (_, theirs)) in batch.iter().enumerate().filter(|(other, _)| *other != number) {
                let alike = theirs.dense == dense.dense;
                let answered = !alike
                    && *queries > 0
                    && theirs.len() >= *queries
                    && same_bits(&theirs.attended(*queries, q), found)
                    && !same_bits(&dense.attended(*queries, q), found);
                assert!(!answered, "{at}: its queries were answered with the rows of sequence {other}");
            }
            dense.check_rows(*queries, q, found, &at);
            first += queries;
        }
    }

    #[test]
    fn task_3_batches_of_any_length() {
        for heads in SHAPES {
            for batch in [
                &[(5, 1, 4)][..],
                &[(20, 1, 4), (3, 1, 4), (33, 1, 4)],
                &[(20, 7, 1), (33, 1, 3), (5, 5, 16), (40, 2, 256)],
                &[(9, 3, 4), (7, 0, 4), (0, 0, 4), (12, 1, 4)],
                &[(4, 0, 4), (4, 4, 4)],
                &[],
            ] {
                let sequence =
                    |(seed, &(tokens, queries, page_size))| (Paged::new(heads, tokens, page_size, seed), queries);
                let sequences: Vec<(Paged, usize)> = (1..).zip(batch).map(sequence).collect();
                let rows: Vec<_> =
                    sequences.iter().map(|(rows, queries)| (rows.rows(*queries), rows.clone())).collect();
                let newest: Vec<String> =
                    batch.iter().map(|(tokens, queries, _)| format!("{queries} of {tokens}")).collect();
                check_attend_batch(heads, &rows, &format!("the newest [{}] tokens", newest.join(", ")));
            }
        }
    }

    #[test]
    fn task_3_batches_that_are_refused_write_nothing() {
        let heads = SHAPES[0];
        let width = q_width(heads);
        let (a, b) = (Paged::new(heads, 6, 4, 1), Paged::new(heads, 3, 4, 2));
        for (queries, given, error) in [
            (2, 3, BatchError::WrongQueries { queries: 4, given: 3, width }),
            (4, 6, BatchError::TooFewTokens { sequence: 1, queries: 4, tokens: 3 }),
        ] {
            let (q, mut out) = (numbers(given * width, 1), vec![BEFORE; given * width]);
            let what = format!("attend_batch of 2 of 6 tokens and {queries} of 3, given {given} rows of queries");
            let question = asking(what.as_str());
            let found = attend_batch(heads, &mut f32_heads(heads), &[a.rows(2), b.rows(queries)], &q, &mut out);
            drop(question);
            same!(found, Err(error), "{what}");
            let written = out.iter().filter(|x| **x != BEFORE).count();
            same!(written, 0, "numbers written by a refused {what}");
        }
        // A head's words count, not its numbers: 5 rows of 2 heads of 6 words.
        let memory = numbers(59, 1);
        let rows = SequenceRows { queries: 1, keys: &memory, values: &memory, runs: &[run(0, 5)] };
        let (q, mut out) = (numbers(width, 1), vec![BEFORE; width]);
        let found = attend_batch(heads, &mut OneMore { head_dim: 5 }, &[rows], &q, &mut out);
        let error = BatchError::RunBeyondMemory { sequence: 0, end: 60, numbers: 59 };
        same!(found, Err(error), "attend_batch with a reader of 6 words a head, 5 rows of 2 heads in 59 numbers");
    }

    #[test]
    fn task_3_batches_copy_no_row() {
        let sequences = [1, 2, 3, 4].map(|seed| Paged::new(WIDE, 250, 16, seed));
        let rows: Vec<SequenceRows<'_>> = sequences.iter().map(|rows| rows.rows(2)).collect();
        let (q, mut out) = (numbers(8 * q_width(WIDE), 2), vec![BEFORE; 8 * q_width(WIDE)]);
        let mut reader = f32_heads(WIDE);
        let (result, taken) = allocated(|| attend_batch(WIDE, &mut reader, &rows, &q, &mut out));
        same!(result, Ok(()), "attend_batch of 4 sequences of 250 tokens, 2 queries each");
        check_cost(taken.bytes, 8 * 250, "attend_batch of 4 sequences of 250 tokens, 2 queries each");
    }

    #[test]
    fn task_3_wide_batches() {
        let heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 2 };
        let n = if cfg!(miri) { 20 } else { 300 };
        check_attend_chunk(&Paged::new(heads, n, 16, 1), n, 1);
        check_attend_chunk(&Paged::new(heads, if cfg!(miri) { 30 } else { 10_000 }, 256, 1), 3, 2);
        let heads = Heads { head_dim: 1, ..heads };
        let memory = numbers(MANY, 1);
        let runs: Vec<[Run; 1]> = (0..MANY).map(|i| [run(i, 1)]).collect();
        let sequence = |runs| SequenceRows { queries: 1, keys: &memory, values: &memory, runs };
        let sequences: Vec<SequenceRows<'_>> = runs.iter().map(|runs| sequence(&runs[..])).collect();
        let (q, mut out) = (numbers(MANY, 2), vec![BEFORE; MANY]);
        let what = format!("attend_batch of {MANY} sequences of one token");
        once(&what, || granted(what.as_str(), || attend_batch(heads, &mut f32_heads(heads), &sequences, &q, &mut out)));
        same!(out == memory, true, "whether each of {MANY} sequences of one token gets the value of its token");
    }

    // The whole

    /// A slab with NaN in every slot.
    fn spoiled_slab(layout: KvLayout, page_size: usize, n_pages: usize) -> SharedSlab {
        let slab = slab_of(layout, page_size, n_pages);
        let mut all = cache(&slab);
        extend(&mut all, n_pages * page_size);
        let rows = vec![f32::NAN; n_pages * page_size * layout.kv_width()];
        (0..layout.n_layers).for_each(|layer| all.write(layer, &rows, &rows));
        slab
    }

    /// The row of a token: `kind` 0 is its key, 1 its value.
    fn row(layout: KvLayout, token: usize, layer: usize, kind: usize) -> Vec<f32> {
        numbers(layout.kv_width(), (token * layout.n_layers + layer) * 2 + kind)
    }

    /// A sequence in a slab, and its tokens in a plain list.
    struct Sequence {
        cache: ForkCache,
        tokens: Vec<usize>,
    }

    impl Sequence {
        fn append(&mut self, tokens: &[usize]) {
            extend(&mut self.cache, tokens.len());
            self.tokens.extend_from_slice(tokens);
            let layout = self.cache.layout();
            for layer in 0..layout.n_layers {
                let [k, v] = [0, 1]
                    .map(|kind| tokens.iter().flat_map(|token| row(layout, *token, layer, kind)).collect::<Vec<f32>>());
                self.cache.write(layer, &k, &v);
            }
        }

        fn dense(&self, layer: usize) -> [Vec<f32>; 2] {
            let layout = self.cache.layout();
            [0, 1].map(|kind| self.tokens.iter().flat_map(|token| row(layout, *token, layer, kind)).collect())
        }
    }

    /// Attends all sequences of a slab at once, in one layer, and compares each with a gather.
    #[track_caller]
    fn check_slab(sequences: &[Sequence], layer: usize, dice: &mut Dice, at: &str) {
        let heads = Heads { n_heads: 2 * LAYOUT.n_kv_heads, n_kv_heads: LAYOUT.n_kv_heads, head_dim: LAYOUT.head_dim };
        let question = asking(format!("rows({layer}) of {} sequences, {at}", sequences.len()));
        let lent: Vec<_> = sequences.iter().map(|sequence| sequence.cache.rows(layer)).collect();
        drop(question);
        let batch: Vec<_> = sequences
            .iter()
            .zip(&lent)
            .map(|(sequence, lent)| {
                let queries = dice.roll(0, sequence.tokens.len().min(5));
                (lent.of_sequence(queries), Paged::of(heads, sequence.dense(layer), 4))
            })
            .collect();
        check_attend_batch(heads, &batch, &format!("layer {layer}, {at}"));
    }

    #[test]
    fn whole_oracle() {
        for seed in seeds(12) {
            let mut dice = Dice::new(seed);
            let page_size = [1, 3, 4, 16][dice.roll(0, 3)];
            let slab = spoiled_slab(LAYOUT, page_size, 300 / page_size + 20);
            let mut sequences: Vec<Sequence> = Vec::new();
            let mut next = 0;
            let mut done = String::new();
            for step in 0..STEPS {
                let which = if sequences.is_empty() { 0 } else { dice.roll(0, sequences.len() - 1) };
                match dice.roll(0, 9) {
                    0 if sequences.len() < 5 => {
                        sequences.push(Sequence { cache: fork_cache(&slab), tokens: Vec::new() });
                        done = "a sequence begins".into();
                    }
                    1 if sequences.len() < 5 && !sequences.is_empty() => {
                        let cache = granted("fork of chapter 10", || sequences[which].cache.fork());
                        let tokens = sequences[which].tokens.clone();
                        sequences.push(Sequence { cache, tokens });
                        done = format!("sequence {which} is forked");
                    }
                    2 if sequences.len() > 1 => {
                        sequences.remove(which);
                        done = format!("sequence {which} is dropped");
                    }
                    3 | 4 if !sequences.is_empty() => {
                        let n = dice.roll(0, sequences[which].tokens.len().min(7));
                        rewind(&mut sequences[which].cache, n);
                        let left = sequences[which].tokens.len() - n;
                        sequences[which].tokens.truncate(left);
                        done = format!("sequence {which} is rewound by {n}");
                    }
                    _ if !sequences.is_empty() && sequences[which].tokens.len() < 50 => {
                        let n = dice.roll(1, 6);
                        sequences[which].append(&(next..next + n).collect::<Vec<_>>());
                        next += n;
                        done = format!("sequence {which} grows by {n}");
                    }
                    _ => {}
                }
                let at = format!("seed {seed}, page size {page_size}, step {step}: {done}");
                check_slab(&sequences, dice.roll(0, LAYOUT.n_layers - 1), &mut dice, &at);
            }
        }
    }

    /// A story computed from rows where they lie, with the loops of the chapter or with the engine's.
    #[track_caller]
    fn generated_in_place(
        storyteller: &mut Storyteller,
        attention: Attention,
        cache: &mut dyn InPlace,
        n: usize,
    ) -> Vec<u32> {
        storyteller.model.set_attention(attention);
        let storyteller = &*storyteller;
        let mut model = Cached::in_place(&storyteller.model, cache);
        storyteller.continue_with(n, |sequence| {
            let _question = asking(format!("token {} of the story, generated with {attention:?}", sequence.len()));
            model.next_logits(sequence).expect("the slab has pages enough")
        })
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri reads no files")]
    fn whole_story() {
        let mut storyteller = Storyteller::open();
        let expected = storyteller.recompute(24);
        for attention in [Attention::Plain, Attention::Paged] {
            for page_size in [3, 16] {
                let slab = spoiled_slab(storyteller.model.config().kv_layout(), page_size, 80);
                // Other sequences have every other page, so that the story's pages lie scattered.
                let mut others: Vec<PagedCache> = (0..40).map(|_| cache(&slab)).collect();
                others.iter_mut().for_each(|other| extend(other, 1));
                let mut number = 0;
                others.retain(|_| {
                    number += 1;
                    number % 2 == 0
                });
                let found = generated_in_place(&mut storyteller, attention, &mut cache(&slab), 24);
                storyteller.assert_same_story(&found, &expected);
            }
        }
    }

    #[test]
    fn whole_transcript() {
        let layout = KvLayout { n_layers: 2, n_kv_heads: 1, head_dim: 4 };
        let slab = slab_of(layout, 4, 4);
        let (mut a, mut b) = (fork_cache(&slab), fork_cache(&slab));
        let mut transcript = Transcript::default();
        for (name, n) in [("a", 3), ("b", 2), ("a", 3), ("b", 3), ("a", 2)] {
            let cache = if name == "a" { &mut a } else { &mut b };
            extend(cache, n);
            tell(&mut transcript, &format!("{name}: extend({n})"), cache);
        }
        rewind(&mut b, 2);
        tell(&mut transcript, "b: rewind(2)", &b);
        let c = granted("fork of chapter 10", || b.fork());
        tell(&mut transcript, "c = b.fork()", &c);
        extend(&mut b, 1);
        tell(&mut transcript, "b: extend(1)", &b);
        tell(&mut transcript, "c", &c);
        rewind(&mut b, 4);
        tell(&mut transcript, "b: rewind(4)", &b);
        assert_transcript("ch13_runs", &transcript);
    }

    fn tell(transcript: &mut Transcript, step: &str, cache: &ForkCache) {
        alive();
        let question = asking(format!("rows of both layers, {step}, in the transcript"));
        let runs = [0, 1].map(|layer| shown(cache.rows(layer).runs()));
        drop(question);
        let pages = told_pages(cache.table().pages());
        let tokens = count(cache.len(), "token");
        transcript.line(format!("{step:<13}{tokens:<9}{pages:<11}layer 0: {:<12}layer 1: {}", runs[0], runs[1]));
    }
}
