//! Grader of chapter 13: paged attention.

#[cfg(unstarted = "ch13_paged_attention")]
#[test]
#[ignore = "not started: edit exercises/ch13_paged_attention.rs, or run with --features solution"]
fn ch13_paged_attention() {}

#[cfg(not(unstarted = "ch13_paged_attention"))]
#[macro_use]
mod support;

#[cfg(not(unstarted = "ch13_paged_attention"))]
whose_code! {
    ch04_page_pool = "ch04_page_pool",
    ch05_page_table = "ch05_page_table",
    ch06_paged = "ch06_paged",
    ch07_rewind = "ch07_rewind",
    ch10_fork = "ch10_fork",
    ch13_paged_attention = "ch13_paged_attention",
}

/// Texts of random rows.
#[cfg(not(unstarted = "ch13_paged_attention"))]
mod texts {
    use page_by_page::cache::in_place::{Run, SequenceRows};
    use page_by_page::kernels::Heads;

    use crate::support::attention::kv_width;
    use crate::support::limits::alive;

    /// So many numbers from -1 to 1, the same everywhere; no two seeds give the same.
    pub fn numbers(n: usize, seed: usize) -> Vec<f32> {
        let mut state = (seed as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5DEE_CE66_D123_4567;
        let mut next = || {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    /// The keys and values of a text: once side by side, once in pages that lie in no order, with NaN between them.
    pub struct Text {
        pub heads: Heads,
        pub page_size: usize,
        pub dense: [Vec<f32>; 2],
        pub memory: [Vec<f32>; 2],
        pub runs: Vec<Run>,
    }

    impl Text {
        pub fn new(heads: Heads, tokens: usize, page_size: usize, seed: usize) -> Self {
            alive();
            let width = kv_width(heads);
            let dense = [2 * seed, 2 * seed + 1].map(|seed| numbers(tokens * width, seed));
            Text::of(heads, dense, page_size)
        }

        /// Of these rows.
        pub fn of(heads: Heads, dense: [Vec<f32>; 2], page_size: usize) -> Self {
            let width = kv_width(heads);
            let tokens = dense[0].len() / width;
            let n_pages = tokens.div_ceil(page_size);
            // No page begins at a multiple of anything.
            let page = page_size * width + 3;
            let mut memory = [0, 1].map(|_| vec![f32::NAN; n_pages * page + 3]);
            let mut runs = Vec::new();
            for i in 0..n_pages {
                let place = if i % 2 == 0 { i / 2 } else { n_pages - 1 - i / 2 };
                let run = Run { start: place * page + 3, rows: page_size.min(tokens - i * page_size) };
                let (from, n) = (i * page_size * width, run.rows * width);
                for (memory, dense) in memory.iter_mut().zip(&dense) {
                    memory[run.start..][..n].copy_from_slice(&dense[from..][..n]);
                }
                runs.push(run);
            }
            Text { heads, page_size, dense, memory, runs }
        }

        pub fn len(&self) -> usize {
            self.dense[0].len() / kv_width(self.heads)
        }

        /// The rows in their pages.
        pub fn rows(&self, queries: usize) -> SequenceRows<'_> {
            SequenceRows { queries, keys: &self.memory[0], values: &self.memory[1], runs: &self.runs }
        }

        /// Writes NaN over the rows from this position on: nobody is to read them.
        pub fn spoil_from(&mut self, position: usize) {
            let (width, page_size) = (kv_width(self.heads), self.page_size);
            for position in position..self.len() {
                let start = self.runs[position / page_size].start + position % page_size * width;
                self.memory.iter_mut().for_each(|memory| memory[start..start + width].fill(f32::NAN));
            }
        }
    }
}

#[cfg(not(unstarted = "ch13_paged_attention"))]
mod checks {
    use page_by_page::cache::in_place::{Attention, BatchError, CacheRef, InPlace, Run, SequenceRows};
    use page_by_page::cache::{KvCache, KvLayout, PageId, Rewind};
    use page_by_page::chapters;
    use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};
    use page_by_page::chapters::ch10_fork::ForkCache;
    use page_by_page::chapters::ch13_paged_attention::{attend_batch, attend_chunk, attend_row, check_batch, places};
    use page_by_page::decode::{Cached, LanguageModel};
    use page_by_page::kernels::Heads;
    use page_by_page::model::{LogitRows, Model};

    use crate::support::asking::{asking, granted, made};
    use crate::support::attention::{BEFORE, check_row, check_rows, kv_width, of_dense, q_width};
    use crate::support::limits::{alive, allocated, once};
    use crate::support::oracle::{Dice, STEPS, seeds};
    use crate::support::story::Storyteller;
    use crate::support::transcript::{Transcript, assert_transcript, told_pages};
    use crate::support::words::count;
    use crate::texts::{Text, numbers};

    /// Three numbers that cannot be taken for one another.
    const LAYOUT: KvLayout = KvLayout { n_layers: 3, n_kv_heads: 2, head_dim: 5 };

    /// The smallest rows that there are.
    const ONE_NUMBER: KvLayout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 1 };

    /// More than 16 bits can count.
    const MANY: usize = if cfg!(miri) { 300 } else { 70_000 };

    /// Query heads in groups of three, one, one, two; heads that fill the lanes and that do not.
    const SHAPES: [Heads; 4] = [
        Heads { n_heads: 6, n_kv_heads: 2, head_dim: 5 },
        Heads { n_heads: 3, n_kv_heads: 3, head_dim: 16 },
        Heads { n_heads: 1, n_kv_heads: 1, head_dim: 33 },
        Heads { n_heads: 8, n_kv_heads: 4, head_dim: 2 },
    ];

    const PAGE_SIZES: [usize; 4] = [1, 3, 16, 256];

    #[track_caller]
    fn slab_of(layout: KvLayout, page_size: usize, n_pages: usize) -> SharedSlab {
        made(&format!("PageSlab::new of chapter 6, with {n_pages} pages of {page_size} slots"), || {
            PageSlab::new(layout, page_size, n_pages)
        })
    }

    #[track_caller]
    fn cache(slab: &SharedSlab) -> PagedCache {
        made("PagedCache::new of chapter 6", || PagedCache::new(slab))
    }

    #[track_caller]
    fn fork_cache(slab: &SharedSlab) -> ForkCache {
        made("ForkCache::new of chapter 10", || ForkCache::new(slab))
    }

    #[track_caller]
    fn extend(cache: &mut dyn KvCache, n: usize) {
        let tokens = count(cache.len(), "token");
        granted(format!("extend({n}) of an earlier chapter, on {tokens}, with pages enough"), || cache.extend(n));
    }

    #[track_caller]
    fn rewind(cache: &mut dyn Rewind, n: usize) {
        let tokens = count(cache.len(), "token");
        granted(format!("rewind({n}) of chapter 7, on {tokens}"), || cache.rewind(n));
    }

    /// `32+4, 0+2`: where a run starts, and its rows.
    fn told(runs: &[Run]) -> String {
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

    /// Compares the runs of every layer; a run is told as its start and its rows.
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
            same!(told(&found), told(&runs_of(layout, page_size, &pages, tokens, layer)), "{at}");
        }
    }

    // Task 1

    #[test]
    fn task_1_runs_of_the_example() {
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
        same!(
            told(&a.runs(1)),
            "40+4, 8+2",
            "runs(1) as start+rows: six tokens in pages 2 and 0, page size 4, width 2"
        );
        same!(
            told(&a.runs(0)),
            "32+4, 0+2",
            "runs(0) as start+rows: six tokens in pages 2 and 0, page size 4, width 2"
        );
        drop(second);
    }

    #[test]
    fn task_1_runs_are_the_filled_slots_of_each_page_in_table_order() {
        for page_size in 1..=5 {
            for tokens in 0..=2 * page_size + 1 {
                let slab = slab_of(LAYOUT, page_size, 9);
                let mut others: Vec<PagedCache> = (0..5).map(|_| cache(&slab)).collect();
                others.iter_mut().for_each(|other| extend(other, 1));
                for gone in [1, 2, 0] {
                    others.remove(gone);
                }
                let mut a = cache(&slab);
                extend(&mut a, tokens);
                check_runs(&a, LAYOUT, page_size);
            }
        }
    }

    #[test]
    fn task_1_no_token_no_run() {
        let slab = slab_of(LAYOUT, 4, 5);
        let mut a = cache(&slab);
        check_runs(&a, LAYOUT, 4);
        extend(&mut a, 5);
        rewind(&mut a, 5);
        check_runs(&a, LAYOUT, 4);
        extend(&mut a, 5);
        a.release();
        check_runs(&a, LAYOUT, 4);
    }

    #[test]
    fn task_1_after_a_rewind_there_are_runs_of_what_is_left() {
        let slab = slab_of(LAYOUT, 4, 5);
        let mut a = cache(&slab);
        extend(&mut a, 9);
        check_runs(&a, LAYOUT, 4);
        for (n, left) in [(1, 8), (1, 7), (3, 4), (2, 2)] {
            rewind(&mut a, n);
            same!(a.len(), left, "tokens after rewind({n}) of chapter 7");
            check_runs(&a, LAYOUT, 4);
        }
    }

    #[test]
    fn task_1_runs_of_forks_are_those_of_their_own_tables() {
        let slab = slab_of(LAYOUT, 4, 6);
        let mut a = fork_cache(&slab);
        extend(&mut a, 6);
        let mut b = granted("fork of chapter 10", || a.fork());
        let runs = |text: &ForkCache, layer| text.rows(layer).runs().to_vec();
        same!(
            told(&runs(&b, 2)),
            told(&runs(&a, 2)),
            "runs(2) of a fork of 6 tokens: those of the text that was forked"
        );
        extend(&mut b, 3);
        let expected = |text: &ForkCache| told(&runs_of(LAYOUT, 4, text.table().pages(), text.len(), 2));
        same!(told(&runs(&b, 2)), expected(&b), "runs(2) of the fork, grown by 3: its tail is its own now");
        same!(told(&runs(&a, 2)), expected(&a), "runs(2) of the text that was forked, after its fork has grown");
    }

    /// Attention of a batch reads many texts of a slab at once.
    #[test]
    fn task_1_runs_only_borrow_the_slab_to_read() {
        let slab = slab_of(LAYOUT, 4, 6);
        let (mut a, mut b) = (cache(&slab), cache(&slab));
        extend(&mut a, 6);
        extend(&mut b, 3);
        let lent = slab.borrow();
        check_runs(&a, LAYOUT, 4);
        drop(lent);
        let question = asking("rows(0) of two texts at the same time: each holds a `borrow` of the slab");
        let rows = (a.rows(0), b.rows(0));
        same!((rows.0.runs().len(), rows.1.runs().len()), (2, 1), "runs of the two texts");
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
    fn task_1_runs_of_very_many_pages_and_of_very_large_ones() {
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
                same!(told(&found[i..=i]), told(&expected[i..=i]), "{what}: run {i} as start+rows");
            }
        }
    }

    #[test]
    fn task_1_a_longer_list_costs_no_more_for_each_page() {
        // What goes through all pages for each page is told on the way there, after seconds.
        let slab = slab_of(ONE_NUMBER, 1, 5 * MANY);
        let mut a = cache(&slab);
        for n in [64, 16, 8, 4, 3, 2, 1].map(|part| 5 * MANY / part) {
            let more = n - a.len();
            extend(&mut a, more);
            let what = format!("runs(0) of {n} tokens, page size 1");
            same!(once(&what, || a.runs(0)).len(), n, "{what}: how many");
        }
    }

    #[test]
    fn task_1_runs_count_beyond_32_bits() {
        let qwen = KvLayout { n_layers: 28, n_kv_heads: 8, head_dim: 128 };
        let deep = KvLayout { n_layers: 1 << 20, n_kv_heads: 3, head_dim: 5 };
        for (layout, page_size, pages, tokens, layer) in [
            (qwen, 16, [20_000, 70_000], 20, 27),
            (qwen, 16, [u32::MAX, 3], 32, 5),
            (deep, 1 << 12, [7, 9], (1 << 12) + 1, 5),
        ] {
            let pages = pages.map(PageId);
            let what = format!(
                "runs({layer}) as start+rows, {tokens} tokens in {}, {} layers, page size {page_size}, width {}",
                told_pages(&pages),
                layout.n_layers,
                layout.kv_width()
            );
            let question = asking(what.as_str());
            let found = chapters::runs_in_a_hollow_slab(layout, page_size, &pages, tokens, layer);
            drop(question);
            same!(told(&found), told(&runs_of(layout, page_size, &pages, tokens, layer)), "{what}");
        }
    }

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
            same!(all_places(runs, width), expected, "places of the runs {} (start+rows), width {width}", told(runs));
        }
    }

    #[test]
    fn task_1_places_end_and_stay_at_their_end() {
        for runs in [&[][..], &[run(40, 2), run(8, 1)], &[run(3, 0)], &[run(1, 1)]] {
            let rows: usize = runs.iter().map(|run| run.rows).sum();
            let mut walk = places(runs, 2);
            let found = walk.by_ref().take(rows + 2).count();
            same!(found, rows, "places of the runs {} (start+rows)", told(runs));
            for again in 1..=3 {
                same!(walk.next(), None, "next() of the places of {}, asked {again} more times", told(runs));
            }
        }
    }

    #[test]
    fn task_1_places_are_counted_in_64_bits_and_one_by_one() {
        let far = (1 << 40) + 5;
        let runs = [run(far, 2), run(3, 1 << 40)];
        let found: Vec<usize> = places(&runs, 1 << 33).take(4).collect();
        same!(found, [far, far + (1 << 33), 3, 3 + (1 << 33)], "the first 4 places of {}, width 2^33", told(&runs));
        let runs = [run(3, MANY), run(9, 2)];
        let what = format!("the places of {} (start+rows), width 4", told(&runs));
        let ((last, n), taken) = allocated(|| {
            let mut walk = places(&runs, 4).take(MANY + 5);
            let at = walk.nth(MANY - 1);
            ((at, walk.next()), walk.count())
        });
        same!(last, (Some(3 + 4 * (MANY - 1)), Some(9)), "number {} and the next of {what}", MANY - 1);
        same!(n, 1, "how many follow behind these, of {what}");
        same!(taken.bytes, 0, "bytes that a walk through {what} asks the allocator for");
    }

    #[test]
    fn task_1_places_of_very_many_runs() {
        // What goes through all runs for each place is told on the way there, after seconds.
        for n in [64, 16, 8, 4, 3, 2, 1].map(|part| 5 * MANY / part) {
            let runs: Vec<Run> = (0..n).map(|i| run(i, 1)).collect();
            let what = format!("a walk through the places of {n} runs");
            let sum: usize = once(&what, || places(&runs, 4).take(n + 5).sum());
            same!(sum, (0..n).sum::<usize>(), "the sum of all places: {what} of one row each");
        }
    }

    // Task 2

    /// Attention of one query over the first positions of a text in pages.
    #[track_caller]
    fn row_of(text: &Text, seen: usize, q: &[f32], what: &str) -> Vec<f32> {
        let mut out = vec![BEFORE; q_width(text.heads)];
        let _question = asking(what);
        attend_row(text.heads, &text.rows(1), seen, q, &mut out);
        out
    }

    #[track_caller]
    fn check_attend_row(text: &Text, seen: usize, seed: usize) {
        let q = numbers(q_width(text.heads), 1000 + seed);
        let Heads { n_heads, n_kv_heads, head_dim } = text.heads;
        let what = format!(
            "attend_row over the first {seen} of {}, page size {}, {n_heads} query heads, {n_kv_heads} key/value heads, \
             head_dim {head_dim}",
            count(text.len(), "position"),
            text.page_size
        );
        let found = row_of(text, seen, &q, &what);
        check_row(text.heads, [&text.dense[0], &text.dense[1]], seen, &q, &found, &what);
    }

    #[test]
    fn task_2_one_position_gives_its_value() {
        for heads in SHAPES {
            let text = Text::new(heads, 1, 4, 3);
            let q = numbers(q_width(heads), 4);
            let what = format!("attend_row over 1 position, {heads:?}: its weight is 1, so the output is its value");
            let found = row_of(&text, 1, &q, &what);
            let value = |head: usize| {
                let kv_head = head / (heads.n_heads / heads.n_kv_heads);
                text.dense[1][kv_head * heads.head_dim..][..heads.head_dim].to_vec()
            };
            let expected: Vec<f32> = (0..heads.n_heads).flat_map(value).collect();
            check_row(heads, [&text.dense[0], &text.dense[1]], 1, &q, &found, &what);
            same!(found, expected, "{what}");
        }
    }

    /// The example of the chapter: two positions, and nobody needs a computer to see what comes out.
    #[test]
    fn task_2_equal_scores_mix_the_values_in_equal_parts() {
        let heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 2 };
        let keys = vec![1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0];
        let values = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let text = Text::of(heads, [keys, values], 3);
        let what = "attend_row over 4 positions with equal scores: each has the weight 1/4";
        same!(row_of(&text, 4, &[2.0, 2.0], what), [4.0, 5.0], "{what}");
    }

    #[test]
    fn task_2_a_row_in_pages_has_the_bits_of_a_gather() {
        for (number, heads) in SHAPES.into_iter().enumerate() {
            for page_size in PAGE_SIZES {
                for tokens in [2, 16, 17, 33, 100, 300] {
                    check_attend_row(&Text::new(heads, tokens, page_size, number + tokens), tokens, number);
                }
            }
        }
    }

    #[test]
    fn task_2_only_the_first_positions_are_seen() {
        let heads = SHAPES[0];
        for page_size in PAGE_SIZES {
            for seen in [1, 2, 3, 4, 15, 16, 17, 32, 39, 40] {
                check_attend_row(&Text::new(heads, 40, page_size, seen), seen, 1);
                // The same where nobody has written the others yet.
                let mut text = Text::new(heads, 40, page_size, seen);
                text.spoil_from(seen);
                check_attend_row(&text, seen, 1);
            }
        }
    }

    #[test]
    fn task_2_large_scores_and_zeros() {
        let heads = SHAPES[0];
        let width = kv_width(heads);
        let large = |seed| numbers(40 * width, seed).iter().map(|x| 300.0 * x).collect::<Vec<f32>>();
        check_attend_row(&Text::of(heads, [large(1), large(2)], 3), 40, 2);
        let zeros = |zero: f32| vec![zero; 40 * width];
        check_attend_row(&Text::of(heads, [zeros(-0.0), zeros(-0.0)], 3), 40, 2);
        check_attend_row(&Text::of(heads, [large(1), zeros(0.0)], 3), 40, 2);
        check_attend_row(&Text::of(heads, [zeros(0.0), large(2)], 3), 40, 2);
    }

    #[test]
    fn task_2_very_many_positions() {
        let heads = Heads { n_heads: 2, n_kv_heads: 1, head_dim: 2 };
        for page_size in [1, 300] {
            check_attend_row(&Text::new(heads, MANY, page_size, 5), MANY, 3);
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
    fn task_2_no_row_is_copied() {
        let text = Text::new(WIDE, 500, 16, 1);
        let q = numbers(q_width(WIDE), 2);
        let mut out = vec![BEFORE; q.len()];
        let ((), taken) = allocated(|| attend_row(WIDE, &text.rows(1), 500, &q, &mut out));
        check_cost(taken.bytes, 500, "attend_row over 500 positions");
        check_row(WIDE, [&text.dense[0], &text.dense[1]], 500, &q, &out, "attend_row over 500 positions");
    }

    // Task 3

    #[track_caller]
    fn check_attend_chunk(text: &Text, queries: usize, seed: usize) {
        let q = numbers(queries * q_width(text.heads), 2000 + seed);
        let what = format!(
            "attend_chunk of the newest {queries} of {}, page size {}",
            count(text.len(), "token"),
            text.page_size
        );
        let mut out = vec![BEFORE; q.len()];
        let question = asking(what.as_str());
        attend_chunk(text.heads, &text.rows(queries), &q, &mut out);
        drop(question);
        check_rows(text.heads, [&text.dense[0], &text.dense[1]], queries, &q, &out, &what);
    }

    #[test]
    fn task_3_each_token_sees_the_positions_up_to_its_own() {
        for heads in [SHAPES[0], SHAPES[1]] {
            for page_size in PAGE_SIZES {
                for (tokens, queries) in [(1, 1), (6, 2), (6, 6), (17, 1), (17, 16), (40, 3), (40, 40)] {
                    check_attend_chunk(&Text::new(heads, tokens, page_size, tokens), queries, tokens);
                }
            }
        }
    }

    #[test]
    fn task_3_no_query_sees_what_comes_after_it() {
        let heads = SHAPES[0];
        let q = numbers(3 * q_width(heads), 9);
        for page_size in [1, 4, 16] {
            let mut text = Text::new(heads, 20, page_size, 4);
            text.spoil_from(18);
            let mut out = vec![BEFORE; q.len()];
            let what = format!(
                "attend_chunk of the newest 3 of 20 tokens, of which the last 2 are NaN, page size {page_size}"
            );
            let question = asking(what.as_str());
            attend_chunk(heads, &text.rows(3), &q, &mut out);
            drop(question);
            let (width, dense) = (q_width(heads), [&text.dense[0][..], &text.dense[1]]);
            let what = format!("{what}: query 0, the token at position 17");
            check_row(heads, dense, 18, &q[..width], &out[..width], &what);
            let nan = |row: usize| out[row * width..][..width].iter().all(|x| x.is_nan());
            same!((nan(1), nan(2)), (true, true), "whether queries 1 and 2 see position 18 or 19, which are NaN");
        }
    }

    #[test]
    fn task_3_no_query_nothing_to_do() {
        for tokens in [0, 1, 5] {
            let text = Text::new(SHAPES[0], tokens, 4, 1);
            let _question = asking(format!("attend_chunk of no query, {}", count(tokens, "token")));
            attend_chunk(SHAPES[0], &text.rows(0), &[], &mut []);
        }
    }

    #[test]
    fn task_3_very_many_queries_and_very_many_tokens() {
        let heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 2 };
        let n = if cfg!(miri) { 20 } else { 300 };
        check_attend_chunk(&Text::new(heads, n, 16, 1), n, 1);
        check_attend_chunk(&Text::new(heads, MANY, 256, 1), 3, 2);
    }

    #[test]
    fn task_3_pieces_of_a_prompt_have_the_bits_of_the_whole() {
        let heads = SHAPES[3];
        let width = q_width(heads);
        let text = Text::new(heads, 37, 3, 8);
        let q = numbers(37 * width, 5);
        for piece in [1, 2, 5, 16, 36, 37] {
            let mut out = vec![BEFORE; q.len()];
            for first in (0..37).step_by(piece) {
                let end = (first + piece).min(37);
                // The text as it was when it had so many tokens.
                let dense = text.dense.each_ref().map(|rows| rows[..end * kv_width(heads)].to_vec());
                let so_far = Text::of(heads, dense, 3);
                let _question = asking(format!("attend_chunk of positions {first} to {}, page size 3", end - 1));
                attend_chunk(
                    heads,
                    &so_far.rows(end - first),
                    &q[first * width..end * width],
                    &mut out[first * width..end * width],
                );
            }
            let what = format!("a prompt of 37 tokens, read in pieces of {piece}");
            check_rows(heads, [&text.dense[0], &text.dense[1]], 37, &q, &out, &what);
        }
    }

    // Task 4

    const HEADS: Heads = Heads { n_heads: 6, n_kv_heads: 2, head_dim: 5 };

    /// Attention that must be refused, and write nothing.
    #[track_caller]
    fn refused(texts: &[SequenceRows<'_>], q: usize, out: usize, expected: BatchError, what: &str) {
        let (q, mut out) = (numbers(q, 1), vec![BEFORE; out]);
        let question = asking(format!("check_batch: {what}"));
        let found = check_batch(HEADS, HEADS.head_dim, texts, &q, &out);
        drop(question);
        same!(found, Err(expected.clone()), "check_batch: {what}");
        let question = asking(format!("attend_batch: {what}"));
        let found = attend_batch(HEADS, texts, &q, &mut out);
        drop(question);
        same!(found, Err(expected), "attend_batch: {what}");
        let written = out.iter().filter(|x| **x != BEFORE).count();
        same!(written, 0, "numbers written by an attend_batch that refuses: {what}");
    }

    #[test]
    fn task_4_queries_must_be_as_many_as_the_texts_have() {
        let [a, b] = [6, 3].map(|tokens| Text::new(HEADS, tokens, 4, tokens));
        let width = q_width(HEADS);
        let texts = [a.rows(2), b.rows(1)];
        for given in [0, 1, 2, 4, 300] {
            let expected = BatchError::WrongQueries { texts: 3, given, width };
            refused(&texts, given * width, given * width, expected, &format!("3 queries and {given} rows"));
        }
        for numbers in [1, width - 1, width + 1, 3 * width - 1, 3 * width + 1] {
            let expected = BatchError::NotRows { numbers, width };
            refused(
                &texts,
                numbers,
                numbers,
                expected,
                &format!("queries of {width} numbers, given {numbers} numbers"),
            );
        }
        let expected = BatchError::WrongQueries { texts: 0, given: 1, width };
        refused(&[], width, width, expected, "no text and 1 row");
    }

    #[test]
    fn task_4_the_output_must_be_as_long_as_the_queries() {
        let text = Text::new(HEADS, 6, 4, 1);
        let expected = 2 * q_width(HEADS);
        for found in [0, 1, expected - 1, expected + 1, expected / 2, 2 * expected] {
            let error = BatchError::WrongOutput { found, expected };
            refused(
                &[text.rows(2)],
                expected,
                found,
                error,
                &format!("{expected} numbers of queries, {found} of output"),
            );
        }
    }

    #[test]
    fn task_4_a_text_has_no_more_queries_than_tokens() {
        let width = q_width(HEADS);
        let [a, b, none] = [6, 3, 0].map(|tokens| Text::new(HEADS, tokens, 4, tokens));
        for (texts, error) in [
            (vec![a.rows(7)], (0, 7, 6)),
            (vec![a.rows(6), b.rows(4)], (1, 4, 3)),
            (vec![a.rows(1), none.rows(1)], (1, 1, 0)),
            (vec![b.rows(4), a.rows(7)], (0, 4, 3)),
            (vec![a.rows(0), b.rows(3), b.rows(300)], (2, 300, 3)),
        ] {
            let n: usize = texts.iter().map(|text| text.queries).sum();
            let (text, queries, tokens) = error;
            let error = BatchError::TooFewTokens { text, queries, tokens };
            refused(
                &texts,
                n * width,
                n * width,
                error,
                &format!("text {text} has {queries} queries and {tokens} tokens"),
            );
        }
    }

    #[test]
    fn task_4_runs_must_lie_in_the_memory() {
        let width = q_width(HEADS);
        let memory = numbers(100, 1);
        for (runs, keys, values, end, numbers) in [
            (&[run(0, 10), run(91, 1)][..], 100, 100, 101, 100),
            (&[run(0, 11)], 100, 100, 110, 100),
            (&[run(0, 10)], 99, 100, 100, 99),
            (&[run(0, 10)], 100, 99, 100, 99),
            (&[run(50, 5), run(99, 1), run(200, 1)], 100, 100, 109, 100),
            (&[run(101, 0), run(0, 1)], 100, 100, 101, 100),
            (&[run(0, 1)], 0, 0, 10, 0),
        ] {
            let rows = SequenceRows { queries: 1, keys: &memory[..keys], values: &memory[..values], runs };
            let error = BatchError::RunBeyondMemory { text: 0, end, numbers };
            let what = format!("runs {} of rows of 10 numbers, {keys} numbers of keys, {values} of values", told(runs));
            refused(&[rows], width, width, error, &what);
        }
        // Up to the last number is right.
        let runs = [run(90, 1), run(0, 4), run(100, 0)];
        let rows = SequenceRows { queries: 1, keys: &memory, values: &memory, runs: &runs };
        let q = numbers(width, 2);
        granted("attend_batch: a run that ends with the memory", || {
            attend_batch(HEADS, &[rows], &q, &mut vec![0.0; width])
        });
    }

    #[test]
    fn task_4_no_number_is_too_large_to_be_refused() {
        let width = q_width(HEADS);
        let memory = numbers(100, 1);
        // Some of them come back to small numbers if they are multiplied or added without a look.
        for (start, rows, end) in [
            (usize::MAX, 1, usize::MAX),
            (usize::MAX - 9, 1, usize::MAX),
            (0, usize::MAX, usize::MAX),
            (0, usize::MAX / 10 + 1, usize::MAX),
            (0, 1 << 63, usize::MAX),
            (16, usize::MAX / 10, usize::MAX),
            (0, usize::MAX / 10, usize::MAX / 10 * 10),
            (0, 1 << 32, 10 << 32),
            ((1 << 32) + 5, 1, (1 << 32) + 15),
        ] {
            let runs = [run(start, rows)];
            let rows = SequenceRows { queries: 1, keys: &memory, values: &memory, runs: &runs };
            let error = BatchError::RunBeyondMemory { text: 0, end, numbers: 100 };
            refused(&[rows], width, width, error, &format!("run {} of rows of 10 numbers, 100 in memory", told(&runs)));
        }
        let text = Text::new(HEADS, 2, 4, 1);
        // 30 times 2^63 is 0 in 64 bits.
        let error = |texts| BatchError::WrongQueries { texts, given: 0, width };
        refused(&[text.rows(1 << 63)], 0, 0, error(1 << 63), "2^63 queries, no row");
        let error = |texts| BatchError::WrongQueries { texts, given: 1, width };
        refused(&[text.rows(usize::MAX)], width, width, error(usize::MAX), "very many queries, 1 row");
        let two = [text.rows(usize::MAX), text.rows(2)];
        refused(&two, width, width, error(usize::MAX), "usize::MAX queries and 2 more, 1 row: told as usize::MAX");
    }

    #[test]
    fn task_4_the_first_mistake_is_told() {
        let width = q_width(HEADS);
        let (a, b) = (Text::new(HEADS, 6, 4, 1), Text::new(HEADS, 3, 4, 2));
        let short = |queries| SequenceRows { keys: &b.memory[0][..7], ..b.rows(queries) };
        let beyond = |text| BatchError::RunBeyondMemory { text, end: 33, numbers: 7 };
        let few = |text, queries, tokens| BatchError::TooFewTokens { text, queries, tokens };
        let (not, wrong) =
            (BatchError::NotRows { numbers: 31, width }, BatchError::WrongQueries { texts: 7, given: 2, width });
        refused(&[a.rows(7)], 31, 5, not, "no whole rows, wrong queries, wrong output, too few tokens");
        refused(&[a.rows(7)], 2 * width, 5, wrong, "wrong queries, wrong output, too few tokens");
        let output = BatchError::WrongOutput { found: 5, expected: 7 * width };
        refused(&[a.rows(7)], 7 * width, 5, output, "wrong output, too few tokens");
        refused(
            &[short(4)],
            4 * width,
            4 * width,
            beyond(0),
            "in one text, a run beyond the memory and too few tokens",
        );
        let texts = [a.rows(7), short(1)];
        refused(
            &texts,
            8 * width,
            8 * width,
            few(0, 7, 6),
            "text 0 has too few tokens, text 1 a run beyond the memory",
        );
        let texts = [short(1), a.rows(7)];
        refused(&texts, 8 * width, 8 * width, beyond(0), "text 0 has a run beyond the memory, text 1 too few tokens");
    }

    /// A text of which nothing is read may still say something wrong.
    #[test]
    fn task_4_texts_without_queries_are_checked_too() {
        let (a, width) = (Text::new(HEADS, 6, 4, 1), q_width(HEADS));
        let runs = [run(0, 1)];
        let wrong = SequenceRows { queries: 0, keys: &[], values: &[], runs: &runs };
        let error = BatchError::RunBeyondMemory { text: 1, end: 10, numbers: 0 };
        refused(&[a.rows(2), wrong], 2 * width, 2 * width, error, "text 1 has no query, and a run beyond the memory");
    }

    #[test]
    fn task_4_check_batch_counts_rows_in_words() {
        let memory = numbers(60, 1);
        let runs = [run(0, 10)];
        let rows = SequenceRows { queries: 1, keys: &memory, values: &memory, runs: &runs };
        let (q, out) = (numbers(q_width(HEADS), 1), numbers(q_width(HEADS), 2));
        let error = |end| Err(BatchError::RunBeyondMemory { text: 0, end, numbers: 60 });
        for (words, expected) in
            [(1, Ok(())), (3, Ok(())), (4, error(80)), (5, error(100)), (1 << 62, error(usize::MAX))]
        {
            let at = format!("check_batch of 10 rows in 60 numbers, 2 key/value heads, words {words}");
            same!(check_batch(HEADS, words, &[rows], &q, &out), expected, "{at}");
        }
    }

    /// A batch in pages against each text alone, gathered.
    #[track_caller]
    fn check_attend_batch(heads: Heads, texts: &[(Text, usize)], what: &str) {
        let width = q_width(heads);
        let n: usize = texts.iter().map(|(_, queries)| queries).sum();
        let q = numbers(n * width, 77);
        let mut out = vec![BEFORE; q.len()];
        let rows: Vec<SequenceRows<'_>> = texts.iter().map(|(text, queries)| text.rows(*queries)).collect();
        granted(format!("attend_batch: {what}"), || attend_batch(heads, &rows, &q, &mut out));
        let mut first = 0;
        for (number, (text, queries)) in texts.iter().enumerate() {
            let mine = first * width..(first + queries) * width;
            let (q, found) = (&q[mine.clone()], &out[mine]);
            let at = format!("attend_batch: {what}, text {number} with {}", count(text.len(), "token"));
            for (other, (text, _)) in texts.iter().enumerate().filter(|(other, _)| *other != number) {
                if *queries > 0 && text.len() >= *queries {
                    let dense = [&text.dense[0][..], &text.dense[1]];
                    let theirs = of_dense(heads, dense, *queries, q);
                    assert!(
                        theirs.iter().zip(found).any(|(a, b)| a.to_bits() != b.to_bits()),
                        "{at}: its queries were answered with the rows of text {other}"
                    );
                }
            }
            check_rows(heads, [&text.dense[0], &text.dense[1]], *queries, q, found, &at);
            first += queries;
        }
    }

    #[test]
    fn task_4_texts_of_any_length_each_with_its_own_rows() {
        for heads in SHAPES {
            for batch in [
                &[(5, 1, 4)][..],
                &[(20, 1, 4), (3, 1, 4), (33, 1, 4)],
                &[(20, 7, 1), (33, 1, 3), (5, 5, 16), (40, 2, 256)],
                &[(9, 3, 4), (7, 0, 4), (0, 0, 4), (12, 1, 4)],
                &[(0, 0, 4), (4, 4, 4)],
                &[],
            ] {
                let texts: Vec<(Text, usize)> = (1..)
                    .zip(batch)
                    .map(|(seed, &(tokens, queries, page_size))| (Text::new(heads, tokens, page_size, seed), queries))
                    .collect();
                let told: Vec<String> =
                    batch.iter().map(|(tokens, queries, _)| format!("{queries} of {tokens}")).collect();
                check_attend_batch(heads, &texts, &format!("the newest [{}] tokens of the texts", told.join(", ")));
            }
        }
    }

    #[test]
    fn task_4_very_many_texts() {
        let heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 1 };
        let memory = numbers(MANY + 1, 1);
        let runs: Vec<[Run; 1]> = (0..MANY).map(|i| [run(i, 1)]).collect();
        let mut texts: Vec<SequenceRows<'_>> =
            runs.iter().map(|runs| SequenceRows { queries: 1, keys: &memory, values: &memory, runs }).collect();
        let (q, mut out) = (numbers(MANY, 2), vec![BEFORE; MANY]);
        let what = format!("attend_batch of {MANY} texts of one token");
        once(&what, || granted(what.as_str(), || attend_batch(heads, &texts, &q, &mut out)));
        same!(out == memory[..MANY], true, "whether each of {MANY} texts of one token gets the value of its token");
        let runs = [run(MANY + 1, 1)];
        texts[MANY - 1].runs = &runs;
        let error = BatchError::RunBeyondMemory { text: MANY - 1, end: MANY + 2, numbers: MANY + 1 };
        same!(attend_batch(heads, &texts, &q, &mut out), Err(error), "{what}, the last of which is wrong");
    }

    #[test]
    fn task_4_a_batch_copies_no_row() {
        let texts = [1, 2, 3, 4].map(|seed| Text::new(WIDE, 250, 16, seed));
        let rows: Vec<SequenceRows<'_>> = texts.iter().map(|text| text.rows(2)).collect();
        let q = numbers(8 * q_width(WIDE), 2);
        let mut out = vec![BEFORE; q.len()];
        let (result, taken) = allocated(|| attend_batch(WIDE, &rows, &q, &mut out));
        same!(result, Ok(()), "attend_batch of 4 texts of 250 tokens, 2 queries each");
        check_cost(taken.bytes, 8 * 250, "attend_batch of 4 texts of 250 tokens, 2 queries each");
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

    /// A text in a slab, and its tokens in a plain list.
    struct Told {
        cache: ForkCache,
        tokens: Vec<usize>,
    }

    impl Told {
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

    /// Attends all texts of a slab at once, in one layer, and each of them alone and gathered.
    #[track_caller]
    fn check_slab(texts: &[Told], layer: usize, dice: &mut Dice, at: &str) {
        let heads = Heads { n_heads: 2 * LAYOUT.n_kv_heads, n_kv_heads: LAYOUT.n_kv_heads, head_dim: LAYOUT.head_dim };
        let width = q_width(heads);
        let lent: Vec<_> = texts
            .iter()
            .map(|text| {
                let question = asking(format!("rows({layer}) of a text of {} tokens, {at}", text.tokens.len()));
                let rows = text.cache.rows(layer);
                drop(question);
                let queries = dice.roll(0, text.tokens.len().min(5));
                (rows, queries)
            })
            .collect();
        let rows: Vec<SequenceRows<'_>> = lent.iter().map(|(rows, queries)| rows.of_sequence(*queries)).collect();
        let n: usize = lent.iter().map(|(_, queries)| queries).sum();
        let q = numbers(n * width, dice.roll(0, 1 << 20));
        let mut out = vec![BEFORE; q.len()];
        granted(format!("attend_batch, {at}"), || attend_batch(heads, &rows, &q, &mut out));
        let mut first = 0;
        for (number, (text, (_, queries))) in texts.iter().zip(&lent).enumerate() {
            let mine = first * width..(first + queries) * width;
            let dense = text.dense(layer);
            let at = format!("layer {layer}, text {number} with {} tokens, {at}", text.tokens.len());
            check_rows(heads, [&dense[0], &dense[1]], *queries, &q[mine.clone()], &out[mine], &at);
            first += queries;
        }
    }

    #[test]
    fn whole_oracle() {
        for seed in seeds(12) {
            let mut dice = Dice::new(seed);
            let page_size = [1, 3, 4, 16][dice.roll(0, 3)];
            let slab = spoiled_slab(LAYOUT, page_size, 300 / page_size + 20);
            let mut texts: Vec<Told> = Vec::new();
            let mut next = 0;
            let mut done = String::new();
            for step in 0..STEPS {
                let which = if texts.is_empty() { 0 } else { dice.roll(0, texts.len() - 1) };
                match dice.roll(0, 9) {
                    0 if texts.len() < 5 => {
                        texts.push(Told { cache: fork_cache(&slab), tokens: Vec::new() });
                        done = "a text begins".into();
                    }
                    1 if texts.len() < 5 && !texts.is_empty() => {
                        let cache = granted("fork of chapter 10", || texts[which].cache.fork());
                        let tokens = texts[which].tokens.clone();
                        texts.push(Told { cache, tokens });
                        done = format!("text {which} is forked");
                    }
                    2 if texts.len() > 1 => {
                        texts.remove(which);
                        done = format!("text {which} is dropped");
                    }
                    3 | 4 if !texts.is_empty() => {
                        let n = dice.roll(0, texts[which].tokens.len().min(7));
                        rewind(&mut texts[which].cache, n);
                        let left = texts[which].tokens.len() - n;
                        texts[which].tokens.truncate(left);
                        done = format!("text {which} is rewound by {n}");
                    }
                    _ if !texts.is_empty() && texts[which].tokens.len() < 50 => {
                        let n = dice.roll(1, 6);
                        texts[which].append(&(next..next + n).collect::<Vec<_>>());
                        next += n;
                        done = format!("text {which} grows by {n}");
                    }
                    _ => {}
                }
                let at = format!("seed {seed}, page size {page_size}, step {step}: {done}");
                check_slab(&texts, dice.roll(0, LAYOUT.n_layers - 1), &mut dice, &at);
            }
        }
    }

    /// A story read where its rows lie, with the loops of the chapter or with the engine's.
    #[track_caller]
    fn told_in_place(teller: &mut Storyteller, attention: Attention, cache: &mut dyn InPlace, n: usize) -> Vec<u32> {
        teller.model.set_attention(attention);
        let teller = &*teller;
        let mut model = Cached::in_place(&teller.model, cache);
        teller.continue_with(n, |text| {
            let _question = asking(format!("token {} of the story, told with {attention:?}", text.len()));
            model.next_logits(text).expect("the slab has pages enough")
        })
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri reads no files")]
    fn whole_story() {
        let mut teller = Storyteller::open();
        let expected = teller.recompute(24);
        for attention in [Attention::Plain, Attention::Paged] {
            for page_size in [3, 16] {
                let slab = spoiled_slab(teller.model.config().kv_layout(), page_size, 80);
                // Another text has every other page, so that the story's pages lie scattered.
                let mut others: Vec<PagedCache> = (0..40).map(|_| cache(&slab)).collect();
                others.iter_mut().for_each(|other| extend(other, 1));
                let mut number = 0;
                others.retain(|_| {
                    number += 1;
                    number % 2 == 0
                });
                let found = told_in_place(&mut teller, attention, &mut cache(&slab), 24);
                teller.assert_same_story(&found, &expected);
            }
        }
    }

    /// The logits of a step in which several texts read: prompts, single tokens, forks.
    fn logits_of_a_batch(model: &Model, slab: &SharedSlab, prompt: &[u32]) -> Vec<f32> {
        let mut first = fork_cache(slab);
        let read = |tokens: &[u32], cache: &mut ForkCache| {
            let chunk = model.chunk_of(tokens, CacheRef::InPlace(cache), LogitRows::None);
            model
                .forward(vec![chunk.expect("the slab has pages enough")])
                .expect("the bundled model gives finite numbers");
        };
        read(prompt, &mut first);
        let mut fork = granted("fork of chapter 10", || first.fork());
        let mut long = fork_cache(slab);
        read(&[prompt, prompt, prompt].concat(), &mut long);
        let mut new = fork_cache(slab);
        let chunk = |tokens, cache, logits| model.chunk_of(tokens, CacheRef::InPlace(cache), logits);
        let batch = vec![
            chunk(&[5], &mut first, LogitRows::All),
            chunk(&[9, 10], &mut fork, LogitRows::All),
            chunk(prompt, &mut new, LogitRows::Newest(2)),
            chunk(&[7], &mut long, LogitRows::All),
        ];
        let batch = batch.into_iter().map(|chunk| chunk.expect("the slab has pages enough")).collect();
        model.forward(batch).expect("the bundled model gives finite numbers")
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri reads no files")]
    fn whole_batch_of_the_story_teller() {
        let mut teller = Storyteller::open();
        let prompt = teller.prompt();
        for page_size in [3, 16] {
            let mut logits = |attention| {
                let slab = spoiled_slab(teller.model.config().kv_layout(), page_size, 60);
                teller.model.set_attention(attention);
                let _question = asking(format!("a step of four texts, read with {attention:?}, page size {page_size}"));
                logits_of_a_batch(&teller.model, &slab, &prompt)
            };
            let expected = logits(Attention::Gather);
            for attention in [Attention::Plain, Attention::Paged] {
                let found = logits(attention);
                let different = found.iter().zip(&expected).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
                same!(
                    different,
                    0,
                    "logits of four texts that differ, {attention:?} against Gather, page size {page_size}"
                );
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
        let runs = [0, 1].map(|layer| told(cache.rows(layer).runs()));
        drop(question);
        let pages = told_pages(cache.table().pages());
        let tokens = count(cache.len(), "token");
        transcript.line(format!("{step:<13}{tokens:<9}{pages:<11}layer 0: {:<12}layer 1: {}", runs[0], runs[1]));
    }
}
