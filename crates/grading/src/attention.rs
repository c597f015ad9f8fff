//! Attention of queries over the rows of a sequence: what it gives, and in words what a wrong output looks like.

use page_by_page::cache::attention::{Run, SequenceRows};
use page_by_page::kernels::{Heads, KvDtype, add_scaled, attend, dot, softmax_scaled};

use crate::limits::heartbeat;
use crate::oracle::TestRng;
use crate::words::plural;

/// What lies in the output before: no sum of weighted values comes near it.
pub const INITIAL_OUTPUT: f32 = 7.5;

/// What lies between the rows: NaN, as a float and as two halves of any kind.
pub const POISON: f32 = f32::from_bits(0x7FEE_7FEE);

pub fn q_width(heads: Heads) -> usize {
    heads.n_heads * heads.head_dim
}

pub fn kv_width(heads: Heads) -> usize {
    heads.n_kv_heads * heads.head_dim
}

/// `n` numbers from -1 to 1, the same everywhere; no two seeds give the same.
pub fn numbers(n: usize, seed: usize) -> Vec<f32> {
    let mut rng = TestRng::new(seed as u64);
    (0..n).map(|_| rng.roll(0, 1 << 24) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// The keys and values of a sequence: as numbers side by side, and as words in scattered pages, with NaN between.
#[derive(Clone)]
pub struct ScatteredRows {
    pub heads: Heads,
    pub page_size: usize,
    pub dense: [Vec<f32>; 2],
    pub memory: [Vec<f32>; 2],
    pub runs: Vec<Run>,
    /// Words of a row.
    width: usize,
}

impl ScatteredRows {
    pub fn new(heads: Heads, tokens: usize, page_size: usize, seed: usize) -> Self {
        let dense = [2 * seed, 2 * seed + 1].map(|seed| numbers(tokens * kv_width(heads), seed));
        ScatteredRows::from_dense(heads, dense, page_size)
    }

    pub fn from_dense(heads: Heads, dense: [Vec<f32>; 2], page_size: usize) -> Self {
        ScatteredRows::encoded(heads, dense, page_size, heads.head_dim, |head| head.to_vec())
    }

    /// These rows, each head stored as the `words` words that `encode` makes of its numbers.
    pub fn encoded(
        heads: Heads,
        dense: [Vec<f32>; 2],
        page_size: usize,
        words: usize,
        encode: impl Fn(&[f32]) -> Vec<f32>,
    ) -> Self {
        heartbeat();
        let (width, tokens) = (heads.n_kv_heads * words, dense[0].len() / kv_width(heads));
        let n_pages = tokens.div_ceil(page_size);
        // No page begins at a multiple of anything.
        let page = page_size * width + 3;
        let mut memory = [0, 1].map(|_| vec![POISON; n_pages * page + 3]);
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
        ScatteredRows { heads, page_size, dense, memory, runs, width }
    }

    pub fn n_tokens(&self) -> usize {
        self.dense[0].len() / kv_width(self.heads)
    }

    pub fn rows(&self, queries: usize) -> SequenceRows<'_> {
        SequenceRows { queries, keys: &self.memory[0], values: &self.memory[1], runs: &self.runs }
    }

    pub fn start(&self, position: usize) -> usize {
        self.runs[position / self.page_size].start + position % self.page_size * self.width
    }

    /// Writes NaN over the rows from this position on: they must not be read.
    pub fn poison_from(&mut self, position: usize) {
        for position in position..self.n_tokens() {
            let start = self.start(position);
            self.memory.iter_mut().for_each(|memory| memory[start..start + self.width].fill(POISON));
        }
    }

    /// What a gather and the engine's kernel give for the newest `queries` of the sequence's first `len` tokens.
    fn attended(&self, len: usize, queries: usize, q: &[f32]) -> Vec<f32> {
        let [keys, values] = self.dense.each_ref().map(|rows| &rows[..len * kv_width(self.heads)]);
        let rows = SequenceRows { queries, keys, values, runs: &[Run { start: 0, rows: len }] };
        let mut out = vec![0.0; q.len()];
        attend(self.heads, KvDtype::F32, &[rows], q, &mut out);
        out
    }

    /// Compares the output of one query that sees the first `seen` positions.
    pub fn check_row(&self, seen: usize, q: &[f32], found: &[f32], what: &str) {
        let expected = self.attended(seen, 1, q);
        let Some(at) = (0..found.len()).find(|at| !same_bits(&found[*at..=*at], &expected[*at..=*at])) else { return };
        let like = self.looks_like(seen, q, found, &expected).map_or(String::new(), |words| format!("\n  {words}"));
        let (number, head) = (at % self.heads.head_dim, at / self.heads.head_dim);
        let [expected, yours] = [expected[at], found[at]].map(|x| format!("{x:?} (bits {:08x})", x.to_bits()));
        panic!("{what}, number {number} of query head {head}{like}\n  expected: {expected}\n  yours:    {yours}");
    }

    /// Compares the output of the newest `queries` tokens, row by row.
    pub fn check_rows(&self, queries: usize, q: &[f32], found: &[f32], what: &str) {
        let width = q_width(self.heads);
        for (i, (q, found)) in q.chunks_exact(width).zip(found.chunks_exact(width)).enumerate() {
            let seen = self.n_tokens() - queries + i + 1;
            let what = format!("{what}, query {i} of {queries}, the token at position {}", seen - 1);
            self.check_row(seen, q, found, &what);
        }
    }

    /// What a wrong output looks like, in words; nothing if like nothing known.
    fn looks_like(&self, seen: usize, q: &[f32], found: &[f32], expected: &[f32]) -> Option<String> {
        if found.iter().all(|x| *x == INITIAL_OUTPUT) {
            return Some(format!("nothing was written: it still holds {INITIAL_OUTPUT}, as before"));
        }
        let largest = expected.iter().fold(1.0_f32, |largest, x| largest.max(x.abs()));
        let near = |a: &[f32], b: &[f32], by: f32| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= by * largest);
        // A mistake that changes much is known by its numbers, one that changes the last bits by these alone.
        let is_large = !near(found, expected, 1e-3);
        // The mistakes are the same in rows of any format, so they are made in rows of numbers.
        let plain = ScatteredRows::from_dense(self.heads, self.dense.clone(), self.page_size);
        let explains = |mistake: Diagnosis| {
            let wrong = plain.wrong(mistake, seen, q);
            same_bits(&wrong, found) || is_large && near(&wrong, found, 1e-5)
        };
        if let Some((_, words)) = MISTAKES.iter().find(|(mistake, _)| explains(*mistake)) {
            return Some(words.to_string());
        }
        if let Some(n) = (0..=self.n_tokens().min(300)).chain([self.n_tokens()]).find(|n| explains(Diagnosis::Sees(*n)))
        {
            return Some(format!("it sees the first {n} positions, and should see {seen}"));
        }
        // A NaN that arithmetic makes, such as 0 / 0, has zeros where one that was read has bits of its own.
        let is_read = |x: &f32| x.is_nan() && x.to_bits() & 0x3F_FFFF != 0;
        if found.iter().zip(expected).any(|(found, right)| is_read(found) && !right.is_nan()) {
            return Some("NaN lies where no row of these positions is, and a number of it was read".into());
        }
        if near(found, expected, 3e-5) {
            let rule = "each score is `dot` of a query and a whole key as it was read, one `softmax_scaled` with the \
                        scale makes the weights of a query, and `add_scaled` adds the values, oldest first";
            return Some(format!("only the last bits differ: {rule}"));
        }
        let is_added = found.iter().zip(expected).all(|(found, right)| (found - right - INITIAL_OUTPUT).abs() <= 1e-4);
        is_added.then(|| format!("it is added to the {INITIAL_OUTPUT} that the output held before"))
    }

    /// Attention of one query over the first `seen` positions, with a mistake.
    fn wrong(&self, mistake: Diagnosis, seen: usize, q: &[f32]) -> Vec<f32> {
        let Heads { n_heads, n_kv_heads, head_dim } = self.heads;
        let seen = if let Diagnosis::Sees(n) = mistake { n } else { seen };
        let root = 1.0 / (head_dim as f32).sqrt();
        let scale = match mistake {
            Diagnosis::Unscaled | Diagnosis::ScaledQuery => 1.0,
            Diagnosis::NoRoot => 1.0 / head_dim as f32,
            _ => root,
        };
        let width = if mistake == Diagnosis::HeadWidth { head_dim } else { self.width };
        let (mut out, mut weights) = (vec![0.0; q.len()], Vec::new());
        for head in 0..n_heads {
            let kv_head = match mistake {
                Diagnosis::InTurns => head % n_kv_heads,
                _ => head / (n_heads / n_kv_heads),
            };
            let row = |kind: usize, position: usize| {
                let start = self.runs[position / self.page_size].start + position % self.page_size * width;
                &self.memory[kind][start + kv_head * head_dim..][..head_dim]
            };
            let mut query = q[head * head_dim..][..head_dim].to_vec();
            if mistake == Diagnosis::ScaledQuery {
                query.iter_mut().for_each(|x| *x *= root);
            }
            if mistake != Diagnosis::WeightsKept {
                weights.clear();
            }
            weights.extend((0..seen).map(|position| dot(&query, row(0, position))));
            let piece = if mistake == Diagnosis::SoftmaxPerPage { self.page_size } else { usize::MAX };
            weights.chunks_mut(piece).for_each(|scores| softmax_scaled(scores, scale));
            let mut positions: Vec<usize> = (0..seen).collect();
            match mistake {
                Diagnosis::NewestFirst => positions.reverse(),
                Diagnosis::NoZeros => positions.retain(|position| weights[*position] != 0.0),
                _ => {}
            }
            let piece = if mistake == Diagnosis::SumPerPage { self.page_size } else { usize::MAX };
            let values = if mistake == Diagnosis::KeysForValues { 0 } else { 1 };
            for positions in positions.chunks(piece) {
                let mut part = vec![0.0; head_dim];
                positions.iter().for_each(|at| add_scaled(&mut part, weights[*at], row(values, *at)));
                out[head * head_dim..][..head_dim].iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
            }
        }
        out
    }
}

/// Compares the output of a batch, in which each sequence has this many queries.
pub fn check_batch(batch: &[(ScatteredRows, usize)], q: &[f32], found: &[f32], what: &str) {
    let mut rest = (q, found);
    for (number, (rows, queries)) in batch.iter().enumerate() {
        let (q, others) = rest.0.split_at(queries * q_width(rows.heads));
        let (found, others_found) = rest.1.split_at(q.len());
        rest = (others, others_found);
        let at = format!("{what}, sequence {number} with {}", plural(rows.n_tokens(), "token"));
        let is_of = |other: &ScatteredRows| {
            other.n_tokens() >= *queries && same_bits(&other.attended(other.n_tokens(), *queries, q), found)
        };
        if *queries > 0 && !is_of(rows) {
            let other = batch.iter().position(|(other, _)| is_of(other));
            assert!(other.is_none(), "{at}: its queries were answered with the rows of sequence {}", other.unwrap());
        }
        rows.check_rows(*queries, q, found, &at);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Diagnosis {
    Unscaled,
    NoRoot,
    ScaledQuery,
    SoftmaxPerPage,
    WeightsKept,
    InTurns,
    HeadWidth,
    KeysForValues,
    NewestFirst,
    SumPerPage,
    NoZeros,
    Sees(usize),
}

const MISTAKES: [(Diagnosis, &str); 11] = [
    (Diagnosis::Unscaled, "the scores are not scaled"),
    (Diagnosis::NoRoot, "the scale is 1 / head_dim, without the root"),
    (
        Diagnosis::ScaledQuery,
        "the scale is put on the query: give it to `softmax_scaled`, and `dot` the query as it is",
    ),
    (Diagnosis::SoftmaxPerPage, "each page has a softmax of its own: one `softmax_scaled` takes all scores of a query"),
    (Diagnosis::WeightsKept, "the weights of the query heads before are still in the list: clear it for each head"),
    (Diagnosis::InTurns, "the key/value heads are handed out in turns: query head h reads h % n_kv_heads"),
    (Diagnosis::HeadWidth, "the walk goes head_dim numbers from row to row: a row has n_kv_heads heads"),
    (Diagnosis::KeysForValues, "the keys are taken for values"),
    (Diagnosis::NewestFirst, "the values are added in a different order, newest first: oldest position first"),
    (
        Diagnosis::SumPerPage,
        "the values are added in pieces, page by page: add each to the output, oldest position first",
    ),
    (Diagnosis::NoZeros, "positions whose weight is 0 are skipped: 0 times infinity is NaN, and must not be hidden"),
];

/// NaN is NaN, whatever its bits.
pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    a.len() == b.len() && a.iter().zip(b).all(same)
}
