//! Grader of chapter 13: paged attention. Its caches rewind too, with `ch07_rewind`.

grading::grader!();

#[cfg(not(stub = "ch13_paged_attention"))]
mod checks {
    use page_by_page::cache::attention::{
        AttentionBackend, AttentionCache, AttentionError, F32Heads, HeadReader, Run, SequenceRows,
    };
    use page_by_page::cache::{KvCache, KvLayout, PageId, Rewind};
    use page_by_page::chapters::ch06_paged::{PagedCache, SharedSlab};
    use page_by_page::chapters::ch10_fork::ForkCache;
    use page_by_page::chapters::ch13_paged_attention::{attend_batch, attend_chunk, attend_row};
    use page_by_page::kernels::Heads;

    use grading::attention::{INITIAL_OUTPUT, POISON, ScatteredRows, check_batch, kv_width, numbers, q_width};
    use grading::limits::heartbeat;
    use grading::oracle::extend;
    use grading::paged::cache;
    use grading::pools::{LAYOUT, ONE_NUMBER, slab_of};
    use grading::prelude::*;
    use grading::rows::{self, KINDS};

    /// Tokens enough for a walk through them at every call to take minutes.
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

    fn fork_cache(slab: &SharedSlab) -> ForkCache {
        expect_ok("ForkCache::new of chapter 10", || ForkCache::new(slab))
    }

    fn rewind(cache: &mut dyn Rewind, n: usize) {
        let tokens = plural(cache.len(), "token");
        expect_ok(format!("rewind({n}) of chapter 7, on {tokens}"), || cache.rewind(n));
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

    /// Compares the runs of every layer with those worked out from the pages.
    fn check_runs(cache: &PagedCache, page_size: usize) {
        let (tokens, pages) = (cache.len(), cache.table().pages().to_vec());
        for layer in 0..LAYOUT.n_layers {
            let (held, pages_held) = (plural(tokens, "token"), page_list(&pages));
            let at = format!(
                "runs({layer}) as start+rows, {held} in {pages_held}, page size {page_size}, 3 layers of 10 numbers"
            );
            let start = |page: &PageId| (page.index() * LAYOUT.n_layers + layer) * page_size * LAYOUT.kv_width();
            let rows = |i: usize| page_size.min(tokens - i * page_size);
            let expected: Vec<_> = pages.iter().enumerate().map(|(i, page)| run(start(page), rows(i))).collect();
            same!(shown(&cache.runs(layer)), shown(&expected), "{at}");
        }
    }

    // Task 1

    #[test]
    fn task_1_runs_are_the_filled_slots_of_each_page_in_table_order() {
        for page_size in [4, 1, 3] {
            for tokens in 0..=2 * page_size + 1 {
                let slab = slab_of(LAYOUT, page_size, 9);
                let mut others: Vec<PagedCache> = (0..5).map(|_| cache(&slab)).collect();
                others.iter_mut().for_each(|other| extend(other, 1));
                for dropped in [1, 2, 0] {
                    in_call("drop of a cache of chapter 6", || drop(others.remove(dropped)));
                }
                let mut a = cache(&slab);
                extend(&mut a, tokens);
                check_runs(&a, page_size);
                for n in 1..=3 {
                    let n = n.min(a.len());
                    rewind(&mut a, n);
                    check_runs(&a, page_size);
                }
            }
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
        check_runs(&a, 4);
        drop(lent);
        let what = "rows(0) of two sequences at the same time: each holds a `borrow` of the slab";
        let rows = in_call(what, || [a.rows(0), b.rows(0)]);
        same!(rows.map(|rows| rows.runs().len()), [2, 1], "runs, {what}");
    }

    #[test]
    fn task_1_runs_take_their_memory_at_once_and_copy_no_row() {
        for (tokens, page_size) in [(640, 16), (640, 1)] {
            let slab = slab_of(LAYOUT, page_size, 1000);
            let mut a = cache(&slab);
            extend(&mut a, tokens);
            let pages = tokens.div_ceil(page_size);
            let at = format!("runs(1) of {tokens} tokens in {}, page size {page_size}", plural(pages, "page"));
            let how = "all at once, by `Vec::with_capacity`, or `collect` from an iterator that knows its length";
            let runs = assert_allocates(pages * size_of::<Run>(), &at, how, || a.runs(1));
            same!(runs.len(), pages, "runs, {at}");
        }
    }

    /// What goes through all runs for each run, or for each row, takes seconds.
    #[test]
    fn task_1_wide_walks_cost_no_more() {
        for n in [8, 6, 5, 4, 3, 2, 1].map(|part| 5 * MANY / part) {
            let mut a = cache(&slab_of(ONE_NUMBER, 1, n));
            extend(&mut a, n);
            let what = format!("runs(0) of {n} tokens, page size 1");
            same!(assert_one_pass(&what, || a.runs(0)).len(), n, "{what}: how many");
        }
    }

    // Task 2

    /// Counts the heads that are read. Each has this many words, the last of which are its numbers.
    struct CountingHeads {
        words: usize,
        head_dim: usize,
        n_read: usize,
    }

    impl HeadReader for CountingHeads {
        fn words_per_head(&self) -> usize {
            self.words
        }

        fn read<'a>(&'a mut self, words: &'a [f32]) -> &'a [f32] {
            same!(words.len(), self.words, "words that attend_row gives a reader of {} words a head", self.words);
            self.n_read += 1;
            &words[self.words - self.head_dim..]
        }
    }

    /// Attention of one query over the first positions, compared with a gather. A head is stored in this many words.
    fn check_row_of(rows: &ScatteredRows, words: usize, seen: usize, q: &[f32], what: &str) -> Vec<f32> {
        let Heads { n_heads, head_dim, .. } = rows.heads;
        let (mut reader, mut out) = (CountingHeads { words, head_dim, n_read: 0 }, vec![INITIAL_OUTPUT; q.len()]);
        in_call(what, || attend_row(rows.heads, &mut reader, &rows.rows(1), seen, q, &mut out));
        rows.check_row(seen, q, &out, what);
        let most = 2 * n_heads * seen;
        assert!(
            reader.n_read <= most,
            "heads that are read by {what}: later rows must not be read at all, and each head but once by a query head\n  \
             expected: {most}, a key and a value for each of {} and {}\n  yours:    {}",
            plural(n_heads, "query head"),
            plural(seen, "position"),
            reader.n_read
        );
        out
    }

    fn check_row(rows: &ScatteredRows, seen: usize, q: &[f32], what: &str) -> Vec<f32> {
        check_row_of(rows, rows.heads.head_dim, seen, q, what)
    }

    fn check_attend_row(rows: &ScatteredRows, seen: usize, seed: usize) {
        let (positions, size, heads) = (plural(rows.n_tokens(), "position"), rows.page_size, rows.heads);
        let what = format!("attend_row over the first {seen} of {positions}, page size {size}, {heads:?}");
        check_row(rows, seen, &numbers(q_width(heads), 1000 + seed), &what);
    }

    /// The example of the chapter, which can be worked out by hand.
    #[test]
    fn task_2_an_example_of_four_equal_scores() {
        let heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 2 };
        let keys = vec![1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0];
        let values = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let rows = ScatteredRows::from_dense(heads, [keys, values], 3);
        let what = "attend_row over 4 positions with equal scores: each has the weight 1/4";
        same!(check_row(&rows, 4, &[2.0, 2.0], what), [4.0, 5.0], "{what}");
    }

    #[test]
    fn task_2_bits_are_those_of_a_gather() {
        for (number, heads) in SHAPES.into_iter().enumerate() {
            for page_size in PAGE_SIZES {
                for tokens in [1, 2, 17, 33, 300] {
                    check_attend_row(&ScatteredRows::new(heads, tokens, page_size, number + tokens), tokens, number);
                }
            }
        }
    }

    /// 40 rows whose heads take a word more than they have numbers.
    fn wider_rows(heads: Heads, page_size: usize) -> ScatteredRows {
        let dense = [1, 2].map(|seed| numbers(40 * kv_width(heads), seed));
        ScatteredRows::encoded(heads, dense, page_size, heads.head_dim + 1, |head: &[f32]| [&[POISON], head].concat())
    }

    /// Chapter 14 packs heads: the words that a head takes are not its numbers.
    #[test]
    fn task_2_heads_of_more_words_than_numbers() {
        for (heads, page_size) in SHAPES.into_iter().zip([3, 4, 16, 1]) {
            let (rows, words) = (wider_rows(heads, page_size), heads.head_dim + 1);
            let wider = format!("a reader of {words} words a head: its rows are that much wider");
            let what = format!("attend_row over 40 positions, {heads:?}, with {wider}");
            check_row_of(&rows, words, 40, &numbers(q_width(heads), 3), &what);
        }
    }

    /// A weight of exactly 0 times an infinity is NaN, and so is the score of a key that is: neither must be hidden.
    #[test]
    fn task_2_infinities_are_not_hidden() {
        let heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 2 };
        for (key, value, what) in [
            (-3e4, f32::INFINITY, "the value of position 1 is infinite, and its weight is exactly 0"),
            (f32::NAN, 3.0, "the key of position 1 has a NaN"),
        ] {
            let dense = [vec![0.0, 0.0, key, -3e4, 1.0, 1.0], vec![1.0, 2.0, value, 4.0, 5.0, 6.0]];
            let rows = ScatteredRows::from_dense(heads, dense, 2);
            check_row(&rows, 3, &[1.0, 1.0], &format!("attend_row over 3 positions; {what}"));
        }
        let rows = ScatteredRows::from_dense(heads, [vec![1.0, 0.0], vec![-0.0, 2.0]], 2);
        check_row(&rows, 1, &[1.0, 1.0], "attend_row over 1 position, whose value is -0.0: 0.0 and 1.0 * -0.0 are 0.0");
    }

    #[test]
    fn task_2_only_the_first_positions_are_seen() {
        let heads = SHAPES[0];
        for page_size in PAGE_SIZES {
            for seen in [1, 3, 4, 16, 17, 40] {
                let mut rows = ScatteredRows::new(heads, 40, page_size, seen);
                check_attend_row(&rows, seen, 1);
                // The same if the others are not written yet.
                rows.poison_from(seen);
                check_attend_row(&rows, seen, 1);
            }
        }
    }

    #[test]
    fn task_2_rows_are_not_copied() {
        // A key or a value has more numbers than all scores of a query have positions.
        let heads = Heads { n_heads: 2, n_kv_heads: 1, head_dim: 128 };
        let rows = ScatteredRows::new(heads, 500, 16, 1);
        let (q, mut out) = (numbers(q_width(heads), 2), vec![INITIAL_OUTPUT; q_width(heads)]);
        let what = "attend_row over 500 positions";
        let why = "256 for each position: scores, and no copy of keys or values, which have 512 bytes each";
        assert_allocates(256 * 500, what, why, || {
            attend_row(heads, &mut f32_heads(heads), &rows.rows(1), 500, &q, &mut out);
        });
        rows.check_row(500, &q, &out, what);
    }

    /// Two walks for each query head, and each ends after the positions that are seen.
    #[test]
    fn task_2_wide_sequences_cost_no_more() {
        let heads = Heads { n_heads: 2, n_kv_heads: 1, head_dim: 2 };
        let rows = ScatteredRows::new(heads, MANY, 1, 5);
        let (q, mut out) = (numbers(q_width(heads), 4), vec![INITIAL_OUTPUT; q_width(heads)]);
        for n in [8, 6, 5, 4, 3, 2].map(|part| 2 * MANY / part) {
            assert_one_pass(&format!("attend_row over the first {n} of {MANY} positions, page size 1"), || {
                attend_row(heads, &mut f32_heads(heads), &rows.rows(1), n, &q, &mut out);
            });
        }
        check_attend_row(&rows, MANY, 3);
    }

    // Task 3

    /// Rows of queries and of outputs have as many numbers as heads have, however many words these take.
    #[test]
    fn task_3_heads_of_more_words_than_numbers() {
        for (heads, page_size) in SHAPES.into_iter().zip([3, 4, 16, 1]) {
            let (rows, words) = (wider_rows(heads, page_size), heads.head_dim + 1);
            let (q, width) = (numbers(6 * q_width(heads), 3), q_width(heads));
            let mut reader = CountingHeads { words, head_dim: heads.head_dim, n_read: 0 };
            let what = format!("attend_chunk of 3 queries, {heads:?}, with a reader of {words} words a head");
            let mut out = vec![INITIAL_OUTPUT; 3 * width];
            in_call(&what, || attend_chunk(heads, &mut reader, &rows.rows(3), &q[..3 * width], &mut out));
            rows.check_rows(3, &q[..3 * width], &out, &what);
            let what = what.replace("attend_chunk of 3", "attend_batch of two sequences with 3");
            let (batch, mut out) = ([rows.rows(3), rows.rows(3)], vec![INITIAL_OUTPUT; 6 * width]);
            same!(in_call(&what, || attend_batch(heads, &mut reader, &batch, &q, &mut out)), Ok(()), "{what}");
            for part in [0..3 * width, 3 * width..6 * width] {
                rows.check_rows(3, &q[part.clone()], &out[part], &what);
            }
        }
    }

    fn check_attend_chunk(rows: &ScatteredRows, queries: usize, seed: usize) {
        let q = numbers(queries * q_width(rows.heads), 2000 + seed);
        let what = format!(
            "attend_chunk of the newest {queries} of {}, page size {}",
            plural(rows.n_tokens(), "token"),
            rows.page_size
        );
        let mut out = vec![INITIAL_OUTPUT; q.len()];
        in_call(&what, || attend_chunk(rows.heads, &mut f32_heads(rows.heads), &rows.rows(queries), &q, &mut out));
        rows.check_rows(queries, &q, &out, &what);
    }

    #[test]
    fn task_3_a_token_sees_the_positions_up_to_its_own() {
        for heads in [SHAPES[0], SHAPES[1]] {
            for page_size in PAGE_SIZES {
                for (tokens, queries) in [(1, 1), (6, 2), (6, 6), (6, 0), (17, 1), (17, 16), (40, 40), (330, 300)] {
                    check_attend_chunk(&ScatteredRows::new(heads, tokens, page_size, tokens), queries, tokens);
                }
            }
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
                &[(2, 1, 4); 300],
                &[],
            ] {
                let sequence = |(seed, &(tokens, queries, page_size))| {
                    (ScatteredRows::new(heads, tokens, page_size, seed), queries)
                };
                let sequences: Vec<(ScatteredRows, usize)> = (1..).zip(batch).map(sequence).collect();
                let rows: Vec<SequenceRows<'_>> = sequences.iter().map(|(rows, queries)| rows.rows(*queries)).collect();
                let n: usize = rows.iter().map(|rows| rows.queries).sum();
                let (q, mut out) = (numbers(n * q_width(heads), 77), vec![INITIAL_OUTPUT; n * q_width(heads)]);
                let (length, first) = (plural(batch.len(), "sequence"), &batch[..batch.len().min(4)]);
                let what = format!("attend_batch of {length}: (tokens, queries, page size) {first:?}");
                expect_ok(&what, || attend_batch(heads, &mut f32_heads(heads), &rows, &q, &mut out));
                check_batch(&sequences, &q, &out, &what);
            }
        }
    }

    #[test]
    fn task_3_batches_that_are_refused_write_nothing() {
        let heads = SHAPES[0];
        let width = q_width(heads);
        let (a, b) = (ScatteredRows::new(heads, 6, 4, 1), ScatteredRows::new(heads, 3, 4, 2));
        for (queries, given, error) in [
            (2, 3, AttentionError::WrongQueries { queries: 4, given: 3, width }),
            (4, 6, AttentionError::TooFewTokens { sequence: 1, queries: 4, tokens: 3 }),
        ] {
            let (q, mut out) = (numbers(given * width, 1), vec![INITIAL_OUTPUT; given * width]);
            let what = format!("attend_batch of 2 of 6 tokens and {queries} of 3, given {given} rows of queries");
            let sequences = [a.rows(2), b.rows(queries)];
            let found = in_call(&what, || attend_batch(heads, &mut f32_heads(heads), &sequences, &q, &mut out));
            same!(found, Err(error), "{what}");
            let written = out.iter().filter(|x| **x != INITIAL_OUTPUT).count();
            same!(written, 0, "numbers written by a refused {what}");
        }
        // A head's words count, not its numbers: 5 rows of 2 heads of 6 words.
        let memory = numbers(59, 1);
        for queries in [1, 0] {
            let rows = SequenceRows { queries, keys: &memory, values: &memory, runs: &[run(0, 5)] };
            let (q, mut out) = (numbers(queries * width, 1), vec![INITIAL_OUTPUT; queries * width]);
            let mut reader = CountingHeads { words: 6, head_dim: 5, n_read: 0 };
            let what = format!("attend_batch with 6 words a head, 5 rows of 2 heads in 59 numbers, {queries} queries");
            let error = AttentionError::RunBeyondMemory { sequence: 0, end: 60, numbers: 59 };
            same!(attend_batch(heads, &mut reader, &[rows], &q, &mut out), Err(error), "{what}");
        }
    }

    // The whole

    /// A slab with NaN in every slot.
    fn spoiled_slab(layout: KvLayout, page_size: usize, n_pages: usize) -> SharedSlab {
        let slab = slab_of(layout, page_size, n_pages);
        let mut all = cache(&slab);
        extend(&mut all, n_pages * page_size);
        let rows = vec![f32::NAN; n_pages * page_size * layout.kv_width()];
        let mut write =
            |layer| in_call(format!("write({layer}) of NaN, by chapter 6"), || all.write(layer, &rows, &rows));
        (0..layout.n_layers).for_each(&mut write);
        in_call("drop of a cache of chapter 6, which has all pages", || drop(all));
        slab
    }

    /// A story computed from rows where they lie, with the loops of the chapter and with the engine's.
    #[test]
    #[cfg_attr(miri, ignore = "Miri reads no files")]
    fn whole_story() {
        let mut storyteller = Storyteller::open();
        for (attention, page_size) in
            [(AttentionBackend::Loops, 3), (AttentionBackend::Loops, 16), (AttentionBackend::Paged, 3)]
        {
            let slab = spoiled_slab(storyteller.model.config().kv_layout(), page_size, 80);
            // Other sequences have every other page, so that the story's pages lie scattered.
            let mut others: Vec<PagedCache> = (0..40).map(|_| cache(&slab)).collect();
            others.iter_mut().for_each(|other| extend(other, 1));
            let _others: Vec<PagedCache> = in_call("drop of caches", || others.into_iter().step_by(2).collect());
            storyteller.model.attention = attention;
            let mut cache = cache(&slab);
            let what = format!("paged cache, page size {page_size}, attention {attention:?}");
            storyteller.assert_through(&mut cache, &what, 24, || {});
        }
    }

    /// Sequences that grow, fork, rewind and end in one slab: attention over all of them at once, in the pages that they have by
    /// then, is attention over a plain list of each one's rows.
    #[test]
    fn whole_oracle() {
        let heads = Heads { n_heads: 2 * LAYOUT.n_kv_heads, n_kv_heads: LAYOUT.n_kv_heads, head_dim: LAYOUT.head_dim };
        for (seed, mut rng) in seeded(12) {
            let page_size = [1, 3, 4, 16][rng.roll(0, 3)];
            let slab = slab_of(LAYOUT, page_size, 300 / page_size + 20);
            let about = format!("seed {seed}, page size {page_size}");
            let mut sequences = vec![(fork_cache(&slab), Oracle::new(&about))];
            let mut next = 0;
            for _ in 0..STEPS {
                heartbeat();
                let which = rng.roll(0, sequences.len() - 1);
                let (cache, oracle) = &mut sequences[which];
                match rng.roll(0, 9) {
                    0 => in_call("drop of a fork", || sequences[which] = (fork_cache(&slab), Oracle::new(&about))),
                    1 | 2 => {
                        let fork = (expect_ok("fork of chapter 10", || cache.fork()), oracle.clone());
                        in_call("drop of forks", || sequences.truncate(4));
                        sequences.push(fork);
                    }
                    3 | 4 => oracle.rewind(cache, rng.roll(0, oracle.tokens.len().min(7))),
                    _ => oracle.append(cache, &fresh(&mut next, rng.roll(0, 6).min(50 - oracle.tokens.len()))),
                }
                check_slab(heads, &sequences, rng.roll(0, LAYOUT.n_layers - 1), &mut rng);
            }
        }
    }

    /// Attends all sequences of a slab at once, in one layer.
    #[track_caller]
    fn check_slab(heads: Heads, sequences: &[(ForkCache, Oracle)], layer: usize, rng: &mut TestRng) {
        let last = sequences.last().map_or(String::new(), |(_, oracle)| oracle.history.at());
        let at = format!("layer {layer} of {}, the last of them: {last}", plural(sequences.len(), "sequence"));
        let batch = sequences.iter().map(|(_, oracle)| {
            let dense = KINDS.map(|kind| rows::rows(LAYOUT, &oracle.tokens, layer, kind));
            (ScatteredRows::from_dense(heads, dense, 4), rng.roll(0, oracle.tokens.len().min(5)))
        });
        let batch: Vec<(ScatteredRows, usize)> = batch.collect();
        let lent: Vec<_> = sequences.iter().map(|(cache, _)| in_call(&at, || cache.rows(layer))).collect();
        let rows: Vec<_> = lent.iter().zip(&batch).map(|(lent, (_, queries))| lent.sequence_rows(*queries)).collect();
        let n = q_width(heads) * batch.iter().map(|(_, queries)| queries).sum::<usize>();
        let (q, mut out) = (numbers(n, 77), vec![INITIAL_OUTPUT; n]);
        expect_ok(&at, || attend_batch(heads, &mut f32_heads(heads), &rows, &q, &mut out));
        check_batch(&batch, &q, &out, &at);
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
        let c = expect_ok("fork of chapter 10", || b.fork());
        tell(&mut transcript, "c = b.fork()", &c);
        extend(&mut b, 1);
        tell(&mut transcript, "b: extend(1)", &b);
        tell(&mut transcript, "c", &c);
        rewind(&mut b, 4);
        tell(&mut transcript, "b: rewind(4)", &b);
        assert_transcript("ch13_paged_attention", &transcript);
    }

    fn tell(transcript: &mut Transcript, step: &str, cache: &ForkCache) {
        heartbeat();
        let question = format!("rows of both layers, {step}, in the transcript");
        let runs = in_call(question, || [0, 1].map(|layer| shown(cache.rows(layer).runs())));
        let pages = page_list(cache.table().pages());
        let tokens = plural(cache.len(), "token");
        transcript.line(format!("{step:<13}{tokens:<9}{pages:<11}layer 0: {:<12}layer 1: {}", runs[0], runs[1]));
    }
}
