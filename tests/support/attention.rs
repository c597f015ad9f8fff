//! Attention of queries over the rows of a sequence: what it gives, and in words what a wrong output looks like.

use page_by_page::cache::in_place::{Run, SequenceRows};
use page_by_page::kernels::{Heads, RowFormat, add_scaled, attend, dot, softmax_scaled};

use super::limits::alive;

/// What lies in the output before: no sum of weighted values comes near it.
pub const BEFORE: f32 = 7.5;

/// What lies between the rows: NaN, as a float and as two halves of any kind.
pub const STALE: f32 = f32::from_bits(0x7FEE_7FEE);

/// Numbers in a row of queries.
pub fn q_width(heads: Heads) -> usize {
    heads.n_heads * heads.head_dim
}

/// Numbers in a row of keys, or of values.
pub fn kv_width(heads: Heads) -> usize {
    heads.n_kv_heads * heads.head_dim
}

/// `n` numbers from -1 to 1, the same everywhere; no two seeds give the same.
pub fn numbers(n: usize, seed: usize) -> Vec<f32> {
    let mut state = (seed as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5DEE_CE66_D123_4567;
    let mut next = || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// The keys and values of a sequence: as numbers side by side, and as words in pages that lie in no order, with NaN between.
#[derive(Clone)]
pub struct Paged {
    pub heads: Heads,
    pub page_size: usize,
    /// The numbers of keys and of values.
    pub dense: [Vec<f32>; 2],
    /// The words of the same.
    pub memory: [Vec<f32>; 2],
    pub runs: Vec<Run>,
    /// Words of a row.
    width: usize,
}

impl Paged {
    /// Random rows of 32-bit floats.
    pub fn new(heads: Heads, tokens: usize, page_size: usize, seed: usize) -> Self {
        let dense = [2 * seed, 2 * seed + 1].map(|seed| numbers(tokens * kv_width(heads), seed));
        Paged::of(heads, dense, page_size)
    }

    /// These rows of 32-bit floats.
    pub fn of(heads: Heads, dense: [Vec<f32>; 2], page_size: usize) -> Self {
        Paged::stored(heads, dense, page_size, heads.head_dim, |head| head.to_vec())
    }

    /// These rows, each head stored as the `words` words that `encode` makes of its numbers.
    pub fn stored(
        heads: Heads,
        dense: [Vec<f32>; 2],
        page_size: usize,
        words: usize,
        encode: impl Fn(&[f32]) -> Vec<f32>,
    ) -> Self {
        alive();
        let (width, tokens) = (heads.n_kv_heads * words, dense[0].len() / kv_width(heads));
        let n_pages = tokens.div_ceil(page_size);
        // No page begins at a multiple of anything.
        let page = page_size * width + 3;
        let mut memory = [0, 1].map(|_| vec![STALE; n_pages * page + 3]);
        let mut runs = Vec::new();
        for i in 0..n_pages {
            let place = if i % 2 == 0 { i / 2 } else { n_pages - 1 - i / 2 };
            let run = Run { start: place * page + 3, rows: page_size.min(tokens - i * page_size) };
            let rows = i * page_size * kv_width(heads)..(i * page_size + run.rows) * kv_width(heads);
            for (memory, dense) in memory.iter_mut().zip(&dense) {
                let stored: Vec<f32> = dense[rows.clone()].chunks_exact(heads.head_dim).flat_map(&encode).collect();
                memory[run.start..][..stored.len()].copy_from_slice(&stored);
            }
            runs.push(run);
        }
        Paged { heads, page_size, dense, memory, runs, width }
    }

    pub fn len(&self) -> usize {
        self.dense[0].len() / kv_width(self.heads)
    }

    /// The rows in their pages.
    pub fn rows(&self, queries: usize) -> SequenceRows<'_> {
        SequenceRows { queries, keys: &self.memory[0], values: &self.memory[1], runs: &self.runs }
    }

    /// Where the row of a position starts.
    pub fn start(&self, position: usize) -> usize {
        self.runs[position / self.page_size].start + position % self.page_size * self.width
    }

    /// Writes NaN over the rows from this position on: they must not be read.
    pub fn spoil_from(&mut self, position: usize) {
        for position in position..self.len() {
            let start = self.start(position);
            self.memory.iter_mut().for_each(|memory| memory[start..start + self.width].fill(STALE));
        }
    }

    /// What a gather and the engine's kernel give for the newest `queries` tokens.
    pub fn attended(&self, queries: usize, q: &[f32]) -> Vec<f32> {
        self.attended_over(self.len(), queries, q)
    }

    /// The same if the sequence had only its first `len` tokens.
    fn attended_over(&self, len: usize, queries: usize, q: &[f32]) -> Vec<f32> {
        let [keys, values] = self.dense.each_ref().map(|rows| &rows[..len * kv_width(self.heads)]);
        let rows = SequenceRows { queries, keys, values, runs: &[Run { start: 0, rows: len }] };
        let mut out = vec![0.0; q.len()];
        attend(self.heads, RowFormat::F32, &[rows], q, &mut out);
        out
    }

    /// Compares the output of one query that sees the first `seen` positions.
    #[track_caller]
    pub fn check_row(&self, seen: usize, q: &[f32], found: &[f32], what: &str) {
        let expected = self.attended_over(seen, 1, q);
        let Some(at) = (0..found.len()).find(|at| !same_bits(&found[*at..=*at], &expected[*at..=*at])) else { return };
        let like = self.looks_like(seen, q, found, &expected).map_or(String::new(), |words| format!("\n  {words}"));
        let head_dim = self.heads.head_dim;
        panic!(
            "{what}, number {} of query head {}{like}\n  expected: {:?} (bits {:08x})\n  yours:    {:?} (bits {:08x})",
            at % head_dim,
            at / head_dim,
            expected[at],
            expected[at].to_bits(),
            found[at],
            found[at].to_bits()
        );
    }

    /// Compares the output of the newest `queries` tokens, row by row.
    #[track_caller]
    pub fn check_rows(&self, queries: usize, q: &[f32], found: &[f32], what: &str) {
        let width = q_width(self.heads);
        for (i, (q, found)) in q.chunks_exact(width).zip(found.chunks_exact(width)).enumerate() {
            let seen = self.len() - queries + i + 1;
            let what = format!("{what}, query {i} of {queries}, the token at position {}", seen - 1);
            self.check_row(seen, q, found, &what);
        }
    }

    /// What a wrong output looks like, in words; nothing if like nothing known.
    fn looks_like(&self, seen: usize, q: &[f32], found: &[f32], expected: &[f32]) -> Option<String> {
        if found.iter().all(|x| *x == BEFORE) {
            return Some(format!("nothing was written: it still holds {BEFORE}, as before"));
        }
        // The mistakes are the same in rows of any format, so they are made in rows of numbers.
        let plain = Paged::of(self.heads, self.dense.clone(), self.page_size);
        let right = Way::right(self.heads, seen);
        let largest = expected.iter().fold(1.0_f32, |largest, x| largest.max(x.abs()));
        let near = |a: &[f32], b: &[f32], by: f32| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= by * largest);
        // A mistake that changes much is known by its numbers, one that changes the last bits by these alone.
        let is_large = !near(found, expected, 1e-3);
        let is = |way: &[f32]| same_bits(way, found) || is_large && near(way, found, 1e-5);
        if let Some((_, words)) = ways(&plain, right).iter().find(|(way, _)| is(&plain.by(*way, q))) {
            return Some(words.clone());
        }
        if found.iter().zip(expected).any(|(found, right)| found.is_nan() && !right.is_nan()) {
            return Some("NaN lies where no row of these positions is, and a number of it was read".into());
        }
        if near(found, expected, 3e-5) {
            return Some(
                "only the last bits differ: each score is `dot` of a query and a whole key as it was read, one \
                 `softmax_scaled` with the scale makes the weights of a query, and `add_scaled` adds the values, oldest first"
                    .into(),
            );
        }
        let all =
            |near: &dyn Fn(f32, f32) -> bool| found.iter().zip(expected).all(|(found, right)| near(*found, *right));
        if all(&|found, right| (found - right - BEFORE).abs() <= 1e-4) {
            return Some(format!("it is added to the {BEFORE} that the output held before"));
        }
        let factor = found[0] / expected[0];
        if factor.is_finite() && all(&|found, right| (found - factor * right).abs() <= 1e-3 * factor.abs()) {
            return Some(format!("it is {factor} times what it should be: the weights must be 1 in sum"));
        }
        None
    }

    /// Attention of one query in some way, right or wrong.
    fn by(&self, way: Way, q: &[f32]) -> Vec<f32> {
        let Heads { n_heads, head_dim, .. } = self.heads;
        let start = |position: usize| match way.width {
            Some(width) => self.runs[position / self.page_size].start + position % self.page_size * width,
            None => self.start(position),
        };
        let mut out = vec![0.0; q.len()];
        let mut weights: Vec<f32> = Vec::new();
        for head in 0..n_heads {
            let at = (way.kv_head)(head, self.heads) * head_dim;
            let row = |kind: usize, position: usize| &self.memory[way.kinds[kind]][start(position) + at..][..head_dim];
            let query: Vec<f32> = q[head * head_dim..][..head_dim].iter().map(|x| x * way.query_scale).collect();
            if way.weights != Weights::Kept {
                weights.clear();
            }
            weights.extend((0..way.seen).map(|position| (way.dot)(&query, row(0, position))));
            match way.weights {
                Weights::Raw => {}
                Weights::PerPage => weights.chunks_mut(self.page_size).for_each(|page| softmax_scaled(page, way.scale)),
                Weights::OnScores => {
                    weights.iter_mut().for_each(|score| *score *= way.scale);
                    softmax_scaled(&mut weights, 1.0);
                }
                Weights::Softmax | Weights::Kept => softmax_scaled(&mut weights, way.scale),
            }
            let out = &mut out[head * head_dim..][..head_dim];
            let values = weights.iter().enumerate().take(way.seen);
            let add = |out: &mut [f32], (position, weight): (usize, &f32)| add_scaled(out, *weight, row(1, position));
            match way.sum {
                Sum::OldestFirst => values.for_each(|value| add(out, value)),
                Sum::NewestFirst => values.rev().for_each(|value| add(out, value)),
                Sum::WithoutZeros => values.filter(|value| *value.1 != 0.0).for_each(|value| add(out, value)),
                Sum::RoundedTwice => values.for_each(|(position, weight)| {
                    out.iter_mut().zip(row(1, position)).for_each(|(sum, x)| *sum += weight * x);
                }),
                Sum::PerPage => values.collect::<Vec<_>>().chunks(self.page_size).for_each(|page| {
                    let mut part = vec![0.0; head_dim];
                    page.iter().for_each(|value| add(&mut part, *value));
                    out.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
                }),
            }
        }
        out
    }
}

/// How scores become weights.
#[derive(Clone, Copy, PartialEq)]
enum Weights {
    Softmax,
    Raw,
    OnScores,
    PerPage,
    Kept,
}

/// How values are added.
#[derive(Clone, Copy, PartialEq)]
enum Sum {
    OldestFirst,
    NewestFirst,
    WithoutZeros,
    RoundedTwice,
    PerPage,
}

/// One way to compute attention of one query, right or wrong.
#[derive(Clone, Copy)]
struct Way {
    scale: f32,
    query_scale: f32,
    dot: fn(&[f32], &[f32]) -> f32,
    kv_head: fn(usize, Heads) -> usize,
    seen: usize,
    /// What is taken for keys and for values: 0 the keys, 1 the values.
    kinds: [usize; 2],
    weights: Weights,
    sum: Sum,
    /// From one row of a run to the next, if not the width of a row.
    width: Option<usize>,
}

impl Way {
    fn right(heads: Heads, seen: usize) -> Self {
        Way {
            scale: 1.0 / (heads.head_dim as f32).sqrt(),
            query_scale: 1.0,
            dot,
            kv_head: |head, heads| head / (heads.n_heads / heads.n_kv_heads),
            seen,
            kinds: [0, 1],
            weights: Weights::Softmax,
            sum: Sum::OldestFirst,
            width: None,
        }
    }
}

/// Wrong ways, each in words.
fn ways(rows: &Paged, right: Way) -> Vec<(Way, String)> {
    let (heads, seen) = (rows.heads, right.seen);
    let root = |n: usize| 1.0 / (n as f32).sqrt();
    let one_by_one = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum();
    let mut ways = vec![
        (Way { scale: 1.0, ..right }, "the scores are not scaled"),
        (Way { scale: 1.0 / heads.head_dim as f32, ..right }, "the scale is 1 / head_dim, without the root"),
        (Way { scale: root(kv_width(heads)), ..right }, "the scale is that of a whole row of the cache, not of a head"),
        (Way { scale: root(q_width(heads)), ..right }, "the scale is that of a whole row of queries, not of a head"),
        (
            Way { scale: 1.0, query_scale: right.scale, ..right },
            "the scale is put on the query: give it to `softmax_scaled`, and `dot` the query as it is",
        ),
        (
            Way { weights: Weights::OnScores, ..right },
            "the scale is put on each score: give it to `softmax_scaled`, which rounds once",
        ),
        (Way { weights: Weights::Raw, ..right }, "the scores are taken for weights, without a softmax"),
        (
            Way { weights: Weights::PerPage, ..right },
            "each page has a softmax of its own: one `softmax_scaled` takes all scores of a query",
        ),
        (
            Way { weights: Weights::Kept, ..right },
            "the weights of the query heads before are still in the list: clear it for each head",
        ),
        (
            Way { kv_head: |head, heads| head % heads.n_kv_heads, ..right },
            "the key/value heads are handed out in turns: query head h reads h % n_kv_heads",
        ),
        (Way { kv_head: |_, _| 0, ..right }, "every query head reads key/value head 0"),
        (
            Way { kv_head: |head, heads| head.min(heads.n_kv_heads - 1), ..right },
            "query head h reads key/value head h, or the last one",
        ),
        (Way { kinds: [0, 0], ..right }, "the keys are taken for values"),
        (Way { kinds: [1, 1], ..right }, "the values are taken for keys"),
        (Way { kinds: [1, 0], ..right }, "keys and values are mixed up"),
        (
            Way { dot: one_by_one, ..right },
            "the products of a score are added one by one: `dot` adds them in sixteen lanes",
        ),
        (
            Way { sum: Sum::RoundedTwice, ..right },
            "weight * value is rounded before it is added: `add_scaled` rounds once",
        ),
        (
            Way { sum: Sum::NewestFirst, ..right },
            "the values are added in a different order, newest first: oldest position first",
        ),
        (
            Way { sum: Sum::PerPage, ..right },
            "the values are added in pieces, page by page: add each to the output, oldest position first",
        ),
        (
            Way { sum: Sum::WithoutZeros, ..right },
            "positions whose weight is 0 are skipped: 0 times infinity is NaN, and must not be hidden",
        ),
    ];
    if heads.n_kv_heads > 1 {
        ways.push((
            Way { width: Some(heads.head_dim), ..right },
            "the walk goes head_dim numbers from row to row: a row has n_kv_heads heads",
        ));
    }
    let sees = (0..=rows.len().min(300)).filter(|n| *n != seen).chain([rows.len()]);
    let sees =
        sees.map(|n| (Way { seen: n, ..right }, format!("it sees the first {n} positions, and should see {seen}")));
    ways.into_iter().map(|(way, words)| (way, words.to_string())).chain(sees).collect()
}

/// NaN is NaN, whatever its bits.
pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    a.len() == b.len() && a.iter().zip(b).all(same)
}
