//! Attention: each query meets the keys of its sequence, and mixes the values.
//!
//! **The order of sums.** A score is one dot product over the numbers of a head, in sixteen lanes. The softmax of a
//! query's scores adds them in sixteen lanes as well, the score at position `p` in lane `p % 16`. A number of the
//! output is one chain of multiply-adds over the positions, oldest first. So rows in a thousand runs give the bits that
//! rows side by side give.
//!
//! **The order of work.** In a decode step, the queries of a token or of a few meet each row where it lies, a few
//! positions at a time, since memory is fastest in order (`decode`). The many tokens of a prefill share the work of
//! reading: a few keys, then a few values, are turned into `f32` in a buffer that stays in the nearest cache, and meet
//! all queries of a task (`prefill`).

mod decode;
mod prefill;

use std::ops::Range;

use crate::ops::softmax_scaled;
use crate::parallel::{Columns, for_each, threads};
use crate::rows::{KvDtype, SequenceRows};
use crate::stored::{Bf16, F16, F32, HeadColumn, Int8, Stored, words_per_head};
use crate::vector::{LANES, Lanes, Vector, padded};

/// How attention divides a row into heads.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub n_heads: usize,
    /// Key/value heads; each serves `n_heads / n_kv_heads` query heads (grouped-query attention).
    pub n_kv_heads: usize,
    pub head_dim: usize,
}

/// Causal attention of several sequences at once: the newest tokens of each over all tokens of the same sequence.
///
/// `q` and `out`: `[rows, n_heads * head_dim]`, the rows of the first sequence, then those of the second, and so on. In
/// a sequence of `len` tokens with `n` queries, query `i` is the token at position `len - n + i` and sees the positions
/// up to its own.
///
/// # Panics
/// If the sequences do not have as many queries as `q` and `out` have rows, or one has more queries than tokens, or a
/// run does not lie within its memory.
pub fn attend(heads: Heads, dtype: KvDtype, sequences: &[SequenceRows<'_>], q: &[f32], out: &mut [f32]) {
    let (row, q_width) = (heads.n_kv_heads * words_per_head(dtype, heads.head_dim), heads.n_heads * heads.head_dim);
    for sequence in sequences {
        check(sequence, row);
    }
    // No number is too large to be added or multiplied now: all rows lie in a memory.
    let n: usize = sequences.iter().map(|sequence| sequence.queries).sum();
    assert!(q.len() == n * q_width && out.len() == q.len(), "{n} queries of {q_width} numbers");

    let work = sequences.iter().map(|sequence| sequence.queries * sequence.len() * q_width).sum::<usize>();
    let out = &Columns::new(out, q_width);
    let mut tasks = Vec::new();
    let mut first = 0;
    for sequence in sequences {
        let before = sequence.len() - sequence.queries;
        let task = Attention { heads, dtype, sequence, kv_heads: 0..0, rows: 0..0, before, q, first, out };
        task.divide(sequences.len(), &mut tasks);
        first += sequence.queries;
    }
    // Two sums over the rows, and they come from memory.
    for_each(tasks.into_iter(), 4 * work, Attention::compute);
}

/// Panics if a run does not lie within its memory, or there are more queries than tokens. `row`: words of a row.
fn check(sequence: &SequenceRows<'_>, row: usize) {
    for run in sequence.runs {
        let end = run.start.saturating_add(run.rows.saturating_mul(row));
        assert!(end <= sequence.keys.len().min(sequence.values.len()), "a run ends at {end}, beyond the memory");
    }
    let len = sequence.len();
    assert!(sequence.queries <= len, "{} queries in a sequence of {len} tokens", sequence.queries);
}

/// Rows up to which turning keys and values into packed `f32` costs more than it saves.
const FEW: usize = 4;

/// Attention of some rows of a sequence in the query heads that share some key/value heads.
#[derive(Clone)]
struct Attention<'a> {
    heads: Heads,
    dtype: KvDtype,
    sequence: &'a SequenceRows<'a>,
    kv_heads: Range<usize>,
    /// The task's rows, among the sequence's queries.
    rows: Range<usize>,
    /// Tokens before the sequence's first query.
    before: usize,
    q: &'a [f32],
    /// The sequence's first row in `q` and `out`.
    first: usize,
    out: &'a Columns<'a>,
}

impl<'a> Attention<'a> {
    /// Cuts the attention of a whole sequence into tasks. `sequences`: how many sequences there are.
    fn divide(&self, sequences: usize, tasks: &mut Vec<Attention<'a>>) {
        let n_kv_heads = self.heads.n_kv_heads;
        if self.sequence.queries == 0 {
            return;
        }
        if self.sequence.queries == 1 {
            // As few pieces as there are threads: the longer the pieces of a row, the faster they are read.
            let pieces = threads().div_ceil(sequences).min(n_kv_heads);
            let size = n_kv_heads.div_ceil(pieces);
            let pieces = (0..n_kv_heads).step_by(size).map(|head| head..(head + size).min(n_kv_heads));
            tasks.extend(pieces.map(|kv_heads| Attention { kv_heads, rows: 0..1, ..self.clone() }));
            return;
        }
        // All queries of a task share one reading of the rows, but their scores are to stay in the caches.
        const SCORES: usize = 1 << 19;
        let queries = (SCORES / self.sequence.len()).clamp(24, 128);
        let rows = (queries / self.group()).max(1);
        for first in (0..self.sequence.queries).step_by(rows) {
            let rows = first..(first + rows).min(self.sequence.queries);
            let heads = (0..n_kv_heads).map(|head| head..head + 1);
            tasks.extend(heads.map(|kv_heads| Attention { kv_heads, rows: rows.clone(), ..self.clone() }));
        }
    }

    fn compute(self) {
        match self.dtype {
            KvDtype::F32 => self.compute_as(F32),
            KvDtype::F16 => self.compute_as(F16),
            KvDtype::Bf16 => self.compute_as(Bf16),
            KvDtype::Int8 => self.compute_as(Int8),
        }
    }

    fn compute_as<S: Stored>(&self, stored: S) {
        let sums = match self.rows.len() {
            ..=FEW => decode::attend(self, stored),
            _ => prefill::attend(self, stored),
        };
        let dim = self.heads.head_dim;
        for (query, sums) in sums.chunks_exact(self.depth()).enumerate() {
            let (row, head) = self.row_and_head(query);
            // SAFETY: these rows, in the heads of these groups, are this task's alone.
            unsafe { self.out.write(self.first + row, head * dim, &sums.as_flattened()[..dim]) };
        }
    }

    /// Vectors of a head, the last of which need not be full.
    fn depth(&self) -> usize {
        self.heads.head_dim.div_ceil(LANES)
    }

    /// Query heads that share a key/value head.
    fn group(&self) -> usize {
        self.heads.n_heads / self.heads.n_kv_heads
    }

    /// Query heads of the task: the number of its queries in each row.
    fn query_heads(&self) -> usize {
        self.kv_heads.len() * self.group()
    }

    /// A query is a row in a head. Those of a row come together, since they see the same; then those of a kv head.
    fn row_and_head(&self, query: usize) -> (usize, usize) {
        let heads = self.query_heads();
        (self.rows.start + query / heads, self.kv_heads.start * self.group() + query % heads)
    }

    /// The first query that sees a position.
    fn first_that_sees(&self, position: usize) -> usize {
        position.saturating_sub(self.before + self.rows.start) * self.query_heads()
    }

    fn queries(&self) -> usize {
        self.rows.len() * self.query_heads()
    }

    /// How many positions a query sees: those before it, and its own.
    fn seen(&self, query: usize) -> usize {
        self.before + self.row_and_head(query).0 + 1
    }

    /// All queries as whole vectors.
    fn packed_queries(&self) -> Vec<Lanes> {
        let (dim, depth) = (self.heads.head_dim, self.depth());
        let mut packed = vec![[0.0; LANES]; self.queries() * depth];
        for (query, packed) in packed.chunks_exact_mut(depth).enumerate() {
            let (row, head) = self.row_and_head(query);
            let numbers = &self.q[((self.first + row) * self.heads.n_heads + head) * dim..][..dim];
            for (packed, numbers) in packed.iter_mut().zip(numbers.chunks(LANES)) {
                *packed = padded(numbers);
            }
        }
        packed
    }

    /// Where the rows of the positions that the last query sees start.
    fn places(&self) -> Vec<usize> {
        let row = self.heads.n_kv_heads * words_per_head(self.dtype, self.heads.head_dim);
        let rows = self.sequence.runs.iter().flat_map(|run| (0..run.rows).map(|i| run.start + i * row));
        rows.take(self.seen(self.queries() - 1)).collect()
    }

    /// A key/value head in the rows of a memory.
    #[inline(always)]
    fn head_of<S: Stored>(&self, stored: S, memory: &'a [f32], kv_head: usize) -> HeadColumn<'a, S> {
        let dim = self.heads.head_dim;
        let words = words_per_head(self.dtype, dim);
        HeadColumn { _stored: stored, memory, first: kv_head * words, words, dim }
    }

    /// Turns the scores of each query into weights, `stride` apart, as far as the query sees.
    fn softmax(&self, scores: &mut [f32], stride: usize) {
        let scale = 1.0 / (self.heads.head_dim as f32).sqrt();
        for (query, scores) in scores.chunks_exact_mut(stride).enumerate() {
            softmax_scaled(&mut scores[..self.seen(query)], scale);
        }
    }
}

/// `C` vectors of the sums of `R` queries, `depth` vectors each, from vector `at` on.
#[inline(always)]
fn sums_at<V: Vector, const R: usize, const C: usize>(sums: &[Lanes], depth: usize, at: usize) -> [[V; C]; R] {
    let mut out = [[V::splat(0.0); C]; R];
    for (r, out) in out.iter_mut().enumerate() {
        for (c, out) in out.iter_mut().enumerate() {
            *out = V::load(&sums[r * depth + at + c]);
        }
    }
    out
}

/// Puts back what [`sums_at`] took.
#[inline(always)]
fn put_sums<V: Vector, const R: usize, const C: usize>(out: &[[V; C]; R], sums: &mut [Lanes], depth: usize, at: usize) {
    for (r, out) in out.iter().enumerate() {
        for (c, out) in out.iter().enumerate() {
            sums[r * depth + at + c] = out.lanes();
        }
    }
}
