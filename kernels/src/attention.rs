//! Attention: each query meets the keys of its text, and mixes the values.
//!
//! **The order of sums.** A score is one dot product over the numbers of a head, in sixteen lanes. The softmax of a query's
//! scores adds them in sixteen lanes as well, the score at position `p` in lane `p % 16`. A number of the output is one
//! chain of multiply-adds over the positions, oldest first. None of this knows where a row lies, how many queries come
//! together or which thread computes what: so rows in a thousand runs give the bits that rows side by side give.
//!
//! **The order of work.** A query that is alone reads each row once, all heads of a few positions at a time, since memory is
//! fastest in order. Several queries share the work of reading: a few keys, then a few values, are turned into `f32` in a
//! buffer that stays in the nearest cache, and meet all queries of a task.

use std::ops::Range;

use crate::parallel::{Columns, for_each};
use crate::products::{prefetch, tile};
use crate::registers::{Kernel, vectorized};
use crate::rows::{RowFormat, TextRows, load};
use crate::small::softmax_scaled;
use crate::vector::{LANES, Lanes, Vector, lane_sums, padded};

/// How attention divides a row into heads.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads; each serves `n_heads / n_kv_heads` query heads (grouped-query attention).
    pub n_kv_heads: usize,
    /// Numbers in a head.
    pub head_dim: usize,
}

/// Causal attention of some texts, all of them at once: the newest tokens of each over all tokens of the same text.
///
/// `q` and `out`: `[rows, n_heads * head_dim]`, the rows of the first text, then those of the second, and so on. In a text of
/// `len` tokens with `n` queries, query `i` is the token at position `len - n + i` and sees the positions up to its own.
///
/// # Panics
/// If the texts do not have as many queries as `q` and `out` have rows, or one has more queries than tokens, or a run does not
/// lie within its memory.
pub fn attend(heads: Heads, format: RowFormat, texts: &[TextRows<'_>], q: &[f32], out: &mut [f32]) {
    let q_width = heads.n_heads * heads.head_dim;
    let n: usize = texts.iter().map(|text| text.queries).sum();
    assert!(q.len() == n * q_width && out.len() == q.len(), "{n} queries of {q_width} numbers");

    let work = texts.iter().map(|text| text.queries * text.len() * q_width).sum::<usize>();
    let out = &Columns::new(out, q_width);
    let tasks = tasks(heads, format, texts, q, out);
    // Two sums over the rows, and they come from memory.
    for_each(tasks.into_iter(), 4 * work, vectorized);
}

/// What is to be done for all texts, in pieces that can be done at the same time.
fn tasks<'a>(
    heads: Heads,
    format: RowFormat,
    texts: &'a [TextRows<'a>],
    q: &'a [f32],
    out: &'a Columns<'a>,
) -> Vec<Attention<'a>> {
    let row = heads.n_kv_heads * format.words(heads.head_dim);
    let mut tasks = Vec::new();
    let mut first = 0;
    for text in texts {
        let len = text.len();
        assert!(text.queries <= len, "{} queries in a text of {len} tokens", text.queries);
        for run in text.runs {
            let end = run.start + run.rows * row;
            assert!(end <= text.keys.len().min(text.values.len()), "a run ends at {end}, beyond the memory");
        }
        let task =
            Attention { heads, format, text, kv_heads: 0..0, rows: 0..0, before: len - text.queries, q, first, out };
        task.divide(texts.len(), &mut tasks);
        first += text.queries;
    }
    tasks
}

/// Attention of some rows of a text in the query heads that share some key/value heads.
#[derive(Clone)]
struct Attention<'a> {
    heads: Heads,
    format: RowFormat,
    text: &'a TextRows<'a>,
    kv_heads: Range<usize>,
    /// Of the text's queries.
    rows: Range<usize>,
    /// Tokens before the text's first query.
    before: usize,
    q: &'a [f32],
    /// The text's first row in `q` and `out`.
    first: usize,
    out: &'a Columns<'a>,
}

impl<'a> Attention<'a> {
    /// Cuts the attention of a whole text into tasks. `texts`: how many texts there are.
    fn divide(&self, texts: usize, tasks: &mut Vec<Attention<'a>>) {
        let n_kv_heads = self.heads.n_kv_heads;
        if self.text.queries == 0 {
            return;
        }
        if self.text.queries == 1 {
            // As few pieces as keep all threads busy to the end: the longer the pieces of a row, the faster they are read.
            let pieces = (2 * rayon::current_num_threads()).div_ceil(texts).min(n_kv_heads);
            let size = n_kv_heads.div_ceil(pieces);
            let pieces = (0..n_kv_heads).step_by(size).map(|head| head..(head + size).min(n_kv_heads));
            tasks.extend(pieces.map(|kv_heads| Attention { kv_heads, rows: 0..1, ..self.clone() }));
            return;
        }
        // The scores of a task are to stay in the second cache.
        const SCORES: usize = 1 << 17;
        let queries = (SCORES / self.text.len()).clamp(24, 192);
        let rows = (queries / self.group()).max(1);
        for first in (0..self.text.queries).step_by(rows) {
            let rows = first..(first + rows).min(self.text.queries);
            let heads = (0..n_kv_heads).map(|head| head..head + 1);
            tasks.extend(heads.map(|kv_heads| Attention { kv_heads, rows: rows.clone(), ..self.clone() }));
        }
    }

    /// Query heads that share a key/value head.
    fn group(&self) -> usize {
        self.heads.n_heads / self.heads.n_kv_heads
    }

    /// A query is one row in one head. Those of one row come together, as they see the same positions; within a row, those of
    /// one key/value head.
    fn row_and_head(&self, query: usize) -> (usize, usize) {
        let heads = self.kv_heads.len() * self.group();
        (self.rows.start + query / heads, self.kv_heads.start * self.group() + query % heads)
    }

    fn queries(&self) -> usize {
        self.rows.len() * self.kv_heads.len() * self.group()
    }

    /// How many positions a query sees: those before it, and its own.
    fn seen(&self, query: usize) -> usize {
        self.before + self.row_and_head(query).0 + 1
    }

    /// All queries as whole vectors, `depth` of them each.
    fn packed_queries(&self, depth: usize) -> Vec<Lanes> {
        let dim = self.heads.head_dim;
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
        let row = self.heads.n_kv_heads * self.format.words(self.heads.head_dim);
        self.text.places(row, self.seen(self.queries() - 1))
    }

    fn write(&self, query: usize, sums: &[Lanes]) {
        let (row, head) = self.row_and_head(query);
        let dim = self.heads.head_dim;
        // SAFETY: these rows, in the heads of these groups, are this task's alone.
        unsafe { self.out.write(self.first + row, head * dim, &sums.as_flattened()[..dim]) };
    }

    fn scale(&self) -> f32 {
        1.0 / (self.heads.head_dim as f32).sqrt()
    }
}

impl Kernel for Attention<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        // The format is settled here, outside the loops.
        match self.format {
            RowFormat::F32 => self.run_as::<V>(RowFormat::F32),
            RowFormat::F16 => self.run_as::<V>(RowFormat::F16),
            RowFormat::Bf16 => self.run_as::<V>(RowFormat::Bf16),
            RowFormat::Int8 => self.run_as::<V>(RowFormat::Int8),
        }
    }
}

impl Attention<'_> {
    #[inline(always)]
    fn run_as<V: Vector>(&self, format: RowFormat) {
        match self.rows.len() {
            1 => self.run_one_row::<V>(format),
            _ if V::MANY_REGISTERS => self.run_rows::<V, 4>(format),
            _ => self.run_rows::<V, 2>(format),
        }
    }

    /// Reads keys and values where they lie, each once for all queries that share them.
    #[inline(always)]
    fn run_one_row<V: Vector>(&self, format: RowFormat) {
        let dim = self.heads.head_dim;
        let depth = dim.div_ceil(LANES);
        let words = format.words(dim);
        let group = self.group();
        let places = self.places();
        let seen = places.len();
        let packed = self.packed_queries(depth);

        // Four positions at a time, so that four sums of lanes are taken together.
        let stride = seen.next_multiple_of(4);
        let mut scores = vec![0.0; self.queries() * stride];
        for at in (0..seen).step_by(4) {
            for (i, head) in self.kv_heads.clone().enumerate() {
                let four = [0, 1, 2, 3].map(|c| places[(at + c).min(seen - 1)] + head * words);
                ask_for(self.text.keys, &places, at + 8, head * words, words);
                let keys = four.map(|place| &self.text.keys[place..][..words]);
                let mut query = i * group;
                while query < (i + 1) * group {
                    let rows = Rows { packed: &packed, depth, first: query };
                    let scores = &mut scores[query * stride + at..];
                    query += match (i + 1) * group - query {
                        1 => rows.meet::<V, 1>(format, keys, dim, scores, stride),
                        2 if V::MANY_REGISTERS => rows.meet::<V, 2>(format, keys, dim, scores, stride),
                        3 if V::MANY_REGISTERS => rows.meet::<V, 3>(format, keys, dim, scores, stride),
                        _ if V::MANY_REGISTERS => rows.meet::<V, 4>(format, keys, dim, scores, stride),
                        _ => rows.meet::<V, 1>(format, keys, dim, scores, stride),
                    };
                }
            }
        }
        for scores in scores.chunks_exact_mut(stride) {
            softmax_scaled::<V>(&mut scores[..seen], self.scale());
        }

        // Each output is one sum over the positions, in order: it grows by a few positions at a time.
        const POSITIONS: usize = 16;
        let mut sums = vec![[0.0; LANES]; self.queries() * depth];
        for at in (0..seen).step_by(POSITIONS) {
            let block = &places[at..(at + POSITIONS).min(seen)];
            for (i, head) in self.kv_heads.clone().enumerate() {
                for next in 0..POSITIONS / 4 {
                    ask_for(self.text.values, &places, at + POSITIONS + 4 * next, head * words, words);
                }
                let values = Values { memory: self.text.values, places: block, head: head * words, words, dim };
                let mut query = i * group;
                while query < (i + 1) * group {
                    let weights = &scores[query * stride + at..];
                    let sums = &mut sums[query * depth..];
                    query += match (i + 1) * group - query {
                        1 => values.add_all::<V, 1>(format, weights, stride, sums, depth),
                        2 => values.add_all::<V, 2>(format, weights, stride, sums, depth),
                        3 if V::MANY_REGISTERS => values.add_all::<V, 3>(format, weights, stride, sums, depth),
                        _ if V::MANY_REGISTERS => values.add_all::<V, 4>(format, weights, stride, sums, depth),
                        _ => values.add_all::<V, 2>(format, weights, stride, sums, depth),
                    };
                }
            }
        }
        for (query, sums) in sums.chunks_exact(depth).enumerate() {
            self.write(query, sums);
        }
    }

    /// A few keys at a time meet all queries, then a few values do.
    #[inline(always)]
    fn run_rows<V: Vector, const C: usize>(&self, format: RowFormat) {
        let dim = self.heads.head_dim;
        let depth = dim.div_ceil(LANES);
        let words = format.words(dim);
        let head = self.kv_heads.start * words;
        let places = self.places();
        let longest = places.len();
        let queries = self.queries();
        let packed = self.packed_queries(depth);
        let stored =
            |memory: &'_ [f32], place: usize, chunk| load::<V>(format, &memory[place + head..][..words], dim, chunk);

        let stride = longest.next_multiple_of(C);
        let mut scores = vec![0.0; queries * stride];
        let mut panel = vec![[[0.0; LANES]; C]; depth];
        for at in (0..longest).step_by(C) {
            ask_for(self.text.keys, &places, at + C, head, words);
            for (c, place) in places[at..].iter().take(C).enumerate() {
                for (chunk, panel) in panel.iter_mut().enumerate() {
                    panel[c] = stored(self.text.keys, *place, chunk).lanes();
                }
            }
            // The queries before this one see none of these positions.
            let mut query = at.saturating_sub(self.before + self.rows.start) * self.group();
            while query < queries {
                let rows = Rows { packed: &packed, depth, first: query };
                let scores = &mut scores[query * stride + at..];
                query += match queries - query {
                    1 => rows.meet_panel::<V, 1, C>(&panel, scores, stride),
                    2 => rows.meet_panel::<V, 2, C>(&panel, scores, stride),
                    3 => rows.meet_panel::<V, 3, C>(&panel, scores, stride),
                    4 | 5 if V::MANY_REGISTERS => rows.meet_panel::<V, 4, C>(&panel, scores, stride),
                    _ if V::MANY_REGISTERS => rows.meet_panel::<V, 6, C>(&panel, scores, stride),
                    _ => rows.meet_panel::<V, 3, C>(&panel, scores, stride),
                };
            }
        }
        for (query, scores) in scores.chunks_exact_mut(stride).enumerate() {
            softmax_scaled::<V>(&mut scores[..self.seen(query)], self.scale());
        }

        // Each output is one sum over the positions, in order: it grows by a few positions at a time. What the queries of a
        // tile all see, they add together; the rest each alone.
        const POSITIONS: usize = 32;
        let mut sums = vec![[0.0; LANES]; queries * depth];
        let mut block = vec![[0.0; LANES]; POSITIONS * depth];
        for at in (0..longest).step_by(POSITIONS) {
            let places = &places[at..(at + POSITIONS).min(longest)];
            for (place, block) in places.iter().zip(block.chunks_exact_mut(depth)) {
                for (chunk, lanes) in block.iter_mut().enumerate() {
                    *lanes = stored(self.text.values, *place, chunk).lanes();
                }
            }
            let mut query = at.saturating_sub(self.before + self.rows.start) * self.group();
            while query < queries {
                let tile = match queries - query {
                    left @ (1..=3) => left,
                    4 | 5 if V::MANY_REGISTERS => 4,
                    _ if V::MANY_REGISTERS => 6,
                    _ => 3,
                };
                let shared = self.seen(query).saturating_sub(at).min(places.len());
                let weights = &scores[query * stride + at..];
                let tile_sums = &mut sums[query * depth..];
                let values = &block[..shared * depth];
                match tile {
                    1 => add_block::<V, 1, C>(weights, stride, values, tile_sums, depth),
                    2 => add_block::<V, 2, C>(weights, stride, values, tile_sums, depth),
                    3 => add_block::<V, 3, C>(weights, stride, values, tile_sums, depth),
                    4 => add_block::<V, 4, C>(weights, stride, values, tile_sums, depth),
                    _ => add_block::<V, 6, C>(weights, stride, values, tile_sums, depth),
                }
                for i in 0..tile {
                    let seen = self.seen(query + i).saturating_sub(at).min(places.len());
                    let weights = &scores[(query + i) * stride + at + shared..];
                    let sums = &mut sums[(query + i) * depth..][..depth];
                    add_block::<V, 1, C>(
                        weights,
                        stride,
                        &block[shared * depth..seen.max(shared) * depth],
                        sums,
                        depth,
                    );
                }
                query += tile;
            }
        }
        for (query, sums) in sums.chunks_exact(depth).enumerate() {
            self.write(query, sums);
        }
    }
}

/// Asks for the rows of four positions in one head, which will soon be read.
#[inline(always)]
fn ask_for(memory: &[f32], places: &[usize], at: usize, head: usize, words: usize) {
    for place in places.iter().skip(at).take(4) {
        for line in (0..words).step_by(16) {
            prefetch(memory.as_ptr().wrapping_add(place + head + line).cast());
        }
    }
}

/// Packed queries, from one of them on.
struct Rows<'a> {
    packed: &'a [Lanes],
    depth: usize,
    first: usize,
}

impl Rows<'_> {
    #[inline(always)]
    fn rows<const R: usize>(&self) -> [&[Lanes]; R] {
        std::array::from_fn(|r| &self.packed[(self.first + r) * self.depth..][..self.depth])
    }

    /// `R` queries meet four keys where they lie. `scores`: those of the first query; the next query's are `stride` further.
    /// Returns `R`.
    #[inline(always)]
    fn meet<V: Vector, const R: usize>(
        &self,
        format: RowFormat,
        keys: [&[f32]; 4],
        dim: usize,
        scores: &mut [f32],
        stride: usize,
    ) -> usize {
        let rows = self.rows::<R>();
        let mut sums = [[V::splat(0.0); 4]; R];
        for chunk in 0..self.depth {
            let mut vectors = [V::splat(0.0); 4];
            for c in 0..4 {
                vectors[c] = load(format, keys[c], dim, chunk);
            }
            for (row, sums) in rows.iter().zip(&mut sums) {
                let row = V::load(&row[chunk]);
                for c in 0..4 {
                    sums[c] = row.mul_add(vectors[c], sums[c]);
                }
            }
        }
        for r in 0..R {
            scores[r * stride..][..4].copy_from_slice(&lane_sums(&sums[r]));
        }
        R
    }

    /// `R` queries meet `C` packed keys. `scores`: as in [`meet`](Self::meet). Returns `R`.
    #[inline(always)]
    fn meet_panel<V: Vector, const R: usize, const C: usize>(
        &self,
        panel: &[[Lanes; C]],
        scores: &mut [f32],
        stride: usize,
    ) -> usize {
        let mut sums = [[V::splat(0.0); C]; R];
        tile(self.rows::<R>(), panel, &mut sums);
        for r in 0..R {
            scores[r * stride..][..C].copy_from_slice(&lane_sums(&sums[r]));
        }
        R
    }
}

/// The values of some positions in one head, where they lie.
struct Values<'a> {
    memory: &'a [f32],
    places: &'a [usize],
    /// Where the head begins in a row.
    head: usize,
    words: usize,
    dim: usize,
}

impl Values<'_> {
    /// Adds them to the sums of `R` queries, weighted. `weights`: those of the first query; the next query's are `stride`
    /// further. Returns `R`.
    #[inline(always)]
    fn add_all<V: Vector, const R: usize>(
        &self,
        format: RowFormat,
        weights: &[f32],
        stride: usize,
        sums: &mut [Lanes],
        depth: usize,
    ) -> usize {
        let mut at = 0;
        while at < depth {
            at += match depth - at {
                1 => self.add::<V, R, 1>(format, weights, stride, sums, depth, at),
                2 | 3 => self.add::<V, R, 2>(format, weights, stride, sums, depth, at),
                _ if V::MANY_REGISTERS => self.add::<V, R, 4>(format, weights, stride, sums, depth, at),
                _ => self.add::<V, R, 2>(format, weights, stride, sums, depth, at),
            };
        }
        R
    }

    /// The same for `C` vectors of each row, from vector `at` on. Returns `C`.
    #[inline(always)]
    fn add<V: Vector, const R: usize, const C: usize>(
        &self,
        format: RowFormat,
        weights: &[f32],
        stride: usize,
        sums: &mut [Lanes],
        depth: usize,
        at: usize,
    ) -> usize {
        let mut out = sums_at::<V, R, C>(sums, depth, at);
        for (position, place) in self.places.iter().enumerate() {
            let value = &self.memory[place + self.head..][..self.words];
            let weights = weights_at::<V, R>(weights, stride, position);
            let mut vectors = [V::splat(0.0); C];
            for (c, vector) in vectors.iter_mut().enumerate() {
                *vector = load(format, value, self.dim, at + c);
            }
            for r in 0..R {
                for c in 0..C {
                    out[r][c] = weights[r].mul_add(vectors[c], out[r][c]);
                }
            }
        }
        put_sums(&out, sums, depth, at);
        C
    }
}

/// Adds packed values, `depth` vectors each, to the sums of `R` queries, weighted.
#[inline(always)]
fn add_block<V: Vector, const R: usize, const C: usize>(
    weights: &[f32],
    stride: usize,
    values: &[Lanes],
    sums: &mut [Lanes],
    depth: usize,
) {
    let mut at = 0;
    while at < depth {
        at += match depth - at {
            1 => add_columns::<V, R, 1>(weights, stride, values, sums, depth, at),
            2 | 3 => add_columns::<V, R, 2>(weights, stride, values, sums, depth, at),
            _ => add_columns::<V, R, C>(weights, stride, values, sums, depth, at),
        };
    }
}

/// The same for `C` vectors of each, from vector `at` on. Returns `C`.
#[inline(always)]
fn add_columns<V: Vector, const R: usize, const C: usize>(
    weights: &[f32],
    stride: usize,
    values: &[Lanes],
    sums: &mut [Lanes],
    depth: usize,
    at: usize,
) -> usize {
    let mut out = sums_at::<V, R, C>(sums, depth, at);
    for (position, value) in values.chunks_exact(depth).enumerate() {
        let value = &value[at..at + C];
        let weights = weights_at::<V, R>(weights, stride, position);
        for c in 0..C {
            let value = V::load(&value[c]);
            for r in 0..R {
                out[r][c] = weights[r].mul_add(value, out[r][c]);
            }
        }
    }
    put_sums(&out, sums, depth, at);
    C
}

#[inline(always)]
fn sums_at<V: Vector, const R: usize, const C: usize>(sums: &[Lanes], depth: usize, at: usize) -> [[V; C]; R] {
    let mut out = [[V::splat(0.0); C]; R];
    for r in 0..R {
        for c in 0..C {
            out[r][c] = V::load(&sums[r * depth + at + c]);
        }
    }
    out
}

#[inline(always)]
fn put_sums<V: Vector, const R: usize, const C: usize>(out: &[[V; C]; R], sums: &mut [Lanes], depth: usize, at: usize) {
    for r in 0..R {
        for c in 0..C {
            sums[r * depth + at + c] = out[r][c].lanes();
        }
    }
}

#[inline(always)]
fn weights_at<V: Vector, const R: usize>(weights: &[f32], stride: usize, position: usize) -> [V; R] {
    let mut vectors = [V::splat(0.0); R];
    for r in 0..R {
        vectors[r] = V::splat(weights[r * stride + position]);
    }
    vectors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers::Registers;
    use crate::rows::Run;
    use crate::testing::numbers;
    use crate::vector::{Plain, dot};

    /// Attention by its definition: query by query, position by position.
    fn by_definition(heads: Heads, format: RowFormat, texts: &[TextRows<'_>], q: &[f32]) -> Vec<f32> {
        let Heads { n_heads, n_kv_heads, head_dim } = heads;
        let words = format.words(head_dim);
        let number = |memory: &[f32], place: usize, i: usize| {
            load::<Plain>(format, &memory[place..][..words], head_dim, i / LANES).lanes()[i % LANES]
        };
        let mut out = Vec::new();
        let mut queries = q.chunks_exact(head_dim);
        for text in texts {
            let places = text.places(n_kv_heads * words, text.len());
            for row in 0..text.queries {
                let seen = &places[..text.len() - text.queries + row + 1];
                for head in 0..n_heads {
                    let at = head / (n_heads / n_kv_heads) * words;
                    let query = queries.next().expect("a query for each head");
                    let key = |place| (0..head_dim).map(|i| number(text.keys, place + at, i)).collect::<Vec<f32>>();
                    let mut weights: Vec<f32> = seen.iter().map(|place| dot::<Plain>(query, &key(*place))).collect();
                    softmax_scaled::<Plain>(&mut weights, 1.0 / (head_dim as f32).sqrt());
                    out.extend((0..head_dim).map(|i| {
                        let values = seen.iter().map(|place| number(text.values, place + at, i));
                        weights.iter().zip(values).fold(0.0_f32, |sum, (weight, value)| weight.mul_add(value, sum))
                    }));
                }
            }
        }
        out
    }

    /// A memory of `n` rows in pages that lie in no order, and NaN between them.
    struct Pages {
        keys: Vec<f32>,
        values: Vec<f32>,
        runs: Vec<Run>,
    }

    /// Rows in this format, of finite numbers: the words of two `F16` are no large ones.
    fn pages(heads: Heads, format: RowFormat, n: usize, page_size: usize, seed: u32) -> Pages {
        let words = format.words(heads.head_dim);
        let width = heads.n_kv_heads * words;
        let n_pages = n.div_ceil(page_size);
        let gap = 3;
        let page = page_size * width + gap;
        let (mut keys, mut values) = (vec![f32::NAN; n_pages * page], vec![f32::NAN; n_pages * page]);
        let mut runs = Vec::new();
        for i in 0..n_pages {
            // Each page once: 7 and the number of pages have no common factor, or the order is kept.
            let place = if n_pages.is_multiple_of(7) { i } else { i * 7 % n_pages };
            let rows = page_size.min(n - i * page_size);
            let run = Run { start: place * page + gap, rows };
            for (memory, seed) in [(&mut keys, seed), (&mut values, seed + 1)] {
                let numbers = numbers(rows * heads.n_kv_heads * heads.head_dim, seed + 2 * i as u32);
                for (head, numbers) in numbers.chunks_exact(heads.head_dim).enumerate() {
                    pack(format, numbers, &mut memory[run.start + head * words..][..words]);
                }
            }
            runs.push(run);
        }
        Pages { keys, values, runs }
    }

    fn pack(format: RowFormat, numbers: &[f32], words: &mut [f32]) {
        let half = |number: f32| match format {
            RowFormat::F16 => half::f16::from_f32(number).to_bits(),
            _ => half::bf16::from_f32(number).to_bits(),
        };
        match format {
            RowFormat::F32 => words.copy_from_slice(numbers),
            RowFormat::F16 | RowFormat::Bf16 => {
                for (word, pair) in words.iter_mut().zip(numbers.chunks(2)) {
                    // What is behind an odd number of them is nobody's: here, NaN.
                    let high = pair.get(1).map_or(0x7fff, |number| half(*number));
                    *word = f32::from_bits(u32::from(half(pair[0])) | u32::from(high) << 16);
                }
            }
            RowFormat::Int8 => {
                words[0] = 0.5 / 127.0;
                for (word, four) in words[1..].iter_mut().zip(numbers.chunks(4)) {
                    let mut bytes = [0x80; 4];
                    for (byte, number) in bytes.iter_mut().zip(four) {
                        *byte = (number * 254.0) as i8 as u8;
                    }
                    *word = f32::from_bits(u32::from_le_bytes(bytes));
                }
            }
        }
    }

    const FORMATS: [RowFormat; 4] = [RowFormat::F32, RowFormat::F16, RowFormat::Bf16, RowFormat::Int8];

    const SHAPES: [Heads; 5] = [
        Heads { n_heads: 6, n_kv_heads: 2, head_dim: 10 },
        Heads { n_heads: 7, n_kv_heads: 1, head_dim: 32 },
        Heads { n_heads: 3, n_kv_heads: 3, head_dim: 16 },
        Heads { n_heads: 8, n_kv_heads: 4, head_dim: 65 },
        Heads { n_heads: 2, n_kv_heads: 1, head_dim: 128 },
    ];

    /// (tokens, queries, page size) of the texts of a batch.
    const BATCHES: [&[(usize, usize, usize)]; 5] = [
        &[(1, 1, 1)],
        &[(50, 1, 16)],
        &[(37, 37, 3)],
        &[(70, 9, 16), (5, 5, 1), (33, 1, 4)],
        &[(19, 1, 3), (64, 1, 16), (1, 1, 256), (40, 2, 7), (45, 0, 5), (3, 3, 3)],
    ];

    #[test]
    fn a_batch_in_pages_is_attention_by_its_definition_in_all_registers() {
        for heads in SHAPES {
            for format in FORMATS {
                for batch in BATCHES {
                    let batch = if cfg!(miri) { &batch[..1] } else { batch };
                    let texts: Vec<(Pages, usize)> = (1..)
                        .zip(batch)
                        .map(|(seed, &(n, queries, page_size))| {
                            (pages(heads, format, n, page_size, 100 * seed), queries)
                        })
                        .collect();
                    let texts: Vec<TextRows<'_>> = texts
                        .iter()
                        .map(|(p, queries)| TextRows {
                            queries: *queries,
                            keys: &p.keys,
                            values: &p.values,
                            runs: &p.runs,
                        })
                        .collect();
                    let n: usize = texts.iter().map(|text| text.queries).sum();
                    let width = heads.n_heads * heads.head_dim;
                    let q = numbers(n * width, 5);
                    let expected = by_definition(heads, format, &texts, &q);
                    for registers in Registers::ALL.iter().filter(|registers| registers.exist()) {
                        let mut out = vec![0.0; n * width];
                        let columns = &Columns::new(&mut out, width);
                        for task in tasks(heads, format, &texts, &q, columns) {
                            registers.run(task);
                        }
                        assert_eq!(out, expected, "{registers:?}, {heads:?}, {format:?}, {batch:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_long_text_is_attention_by_its_definition() {
        if cfg!(miri) {
            return;
        }
        let heads = Heads { n_heads: 2, n_kv_heads: 1, head_dim: 16 };
        for (n, queries, page_size) in [(9000, 1, 16), (9000, 30, 16), (300, 300, 64)] {
            let pages = pages(heads, RowFormat::F32, n, page_size, 1);
            let texts = [TextRows { queries, keys: &pages.keys, values: &pages.values, runs: &pages.runs }];
            let q = numbers(queries * 32, 5);
            let mut out = vec![0.0; queries * 32];
            attend(heads, RowFormat::F32, &texts, &q, &mut out);
            assert_eq!(out, by_definition(heads, RowFormat::F32, &texts, &q), "{queries} queries, {n} tokens");
        }
    }

    #[test]
    fn several_threads_fill_one_output() {
        let heads = Heads { n_heads: 4, n_kv_heads: 2, head_dim: 6 };
        let pages = pages(heads, RowFormat::F32, 40, 4, 1);
        let text = |queries| TextRows { queries, keys: &pages.keys, values: &pages.values, runs: &pages.runs };
        let texts = &[text(1), text(20), text(1)];
        let q = &numbers(22 * 24, 4)[..];
        // Every task in a thread of its own, or one after the other.
        let results = |in_threads: bool| {
            let mut out = vec![0.0; 22 * 24];
            let columns = &Columns::new(&mut out, 24);
            std::thread::scope(|scope| {
                for task in tasks(heads, RowFormat::F32, texts, q, columns) {
                    let thread = scope.spawn(move || Registers::Any.run(task));
                    if !in_threads {
                        thread.join().expect("it computes");
                    }
                }
            });
            out
        };
        assert_eq!(results(true), results(false));
        assert!(results(true).iter().all(|number| *number != 0.0), "all of the output is filled");
    }

    #[test]
    fn what_cannot_be_attended_is_refused() {
        let heads = Heads { n_heads: 2, n_kv_heads: 1, head_dim: 2 };
        let memory = [1.0; 8];
        let refused = |queries, runs: &[Run], q: usize, out: usize| {
            let texts = [TextRows { queries, keys: &memory, values: &memory, runs }];
            let mut out = vec![0.0; out];
            let attended = std::panic::AssertUnwindSafe(|| {
                attend(heads, RowFormat::F32, &texts, &vec![1.0; q], &mut out);
            });
            std::panic::catch_unwind(attended).is_err()
        };
        assert!(!refused(1, &[Run { start: 4, rows: 2 }], 4, 4), "as it should be");
        assert!(refused(1, &[Run { start: 5, rows: 2 }], 4, 4), "a run beyond the memory");
        assert!(refused(3, &[Run { start: 4, rows: 2 }], 12, 12), "more queries than tokens");
        assert!(refused(1, &[Run { start: 4, rows: 2 }], 8, 8), "a query without a text");
        assert!(refused(1, &[Run { start: 4, rows: 2 }], 4, 3), "an output that is too short");
    }
}
