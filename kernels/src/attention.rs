//! Attention: each query meets the keys of its text, and mixes the values.
//!
//! **The order of sums.** A score is one dot product over the numbers of a head, in sixteen lanes. The softmax of a query's
//! scores adds them in sixteen lanes as well, the score at position `p` in lane `p % 16`. A number of the output is one
//! chain of multiply-adds over the positions, oldest first. None of this knows where a row lies, how many queries come
//! together or which thread computes what: so rows in a thousand runs give the bits that rows side by side give.
//!
//! **The order of work.** The queries of a token that is alone, or of a few tokens, meet each row where it lies, a few positions
//! at a time, since memory is fastest in order. Many tokens share the work of reading: a few keys, then a few values, are turned
//! into `f32` in a buffer that stays in the nearest cache, and meet all queries of a task.

use std::ops::Range;

use crate::parallel::{Columns, for_each, threads};
use crate::products::{prefetch, tile};
use crate::registers::{Kernel, Registers};
use crate::rows::{Bf16, F16, F32, Head, Int8, RowFormat, SequenceRows, Stored};
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
pub fn attend(heads: Heads, format: RowFormat, texts: &[SequenceRows<'_>], q: &[f32], out: &mut [f32]) {
    let (row, q_width) = (heads.n_kv_heads * format.words(heads.head_dim), heads.n_heads * heads.head_dim);
    for text in texts {
        check(text, row);
    }
    // No number is too large to be added or multiplied now: all rows lie in a memory.
    let n: usize = texts.iter().map(|text| text.queries).sum();
    assert!(q.len() == n * q_width && out.len() == q.len(), "{n} queries of {q_width} numbers");

    let work = texts.iter().map(|text| text.queries * text.len() * q_width).sum::<usize>();
    let out = &Columns::new(out, q_width);
    let tasks = tasks(heads, format, texts, q, out);
    // Two sums over the rows, and they come from memory.
    for_each(tasks.into_iter(), 4 * work, |task| task.compute(Registers::widest()));
}

/// Looks whether a text's numbers fit together. `row`: words of a row.
///
/// # Panics
/// If a run of the text does not lie within its memory, or the text has more queries than tokens.
fn check(text: &SequenceRows<'_>, row: usize) {
    for run in text.runs {
        let end = run.start.saturating_add(run.rows.saturating_mul(row));
        assert!(end <= text.keys.len().min(text.values.len()), "a run ends at {end}, beyond the memory");
    }
    let len = text.len();
    assert!(text.queries <= len, "{} queries in a text of {len} tokens", text.queries);
}

/// What is to be done for all texts, in pieces that can be done at the same time.
fn tasks<'a>(
    heads: Heads,
    format: RowFormat,
    texts: &'a [SequenceRows<'a>],
    q: &'a [f32],
    out: &'a Columns<'a>,
) -> Vec<Attention<'a>> {
    let mut tasks = Vec::new();
    let mut first = 0;
    for text in texts {
        let before = text.len() - text.queries;
        let task = Attention { heads, format, text, kv_heads: 0..0, rows: 0..0, before, q, first, out };
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
    text: &'a SequenceRows<'a>,
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
            // As few pieces as there are threads: the longer the pieces of a row, the faster they are read.
            let pieces = threads().div_ceil(texts).min(n_kv_heads);
            let size = n_kv_heads.div_ceil(pieces);
            let pieces = (0..n_kv_heads).step_by(size).map(|head| head..(head + size).min(n_kv_heads));
            tasks.extend(pieces.map(|kv_heads| Attention { kv_heads, rows: 0..1, ..self.clone() }));
            return;
        }
        // All queries of a task share one reading of the rows, but their scores are to stay in the caches.
        const SCORES: usize = 1 << 19;
        let queries = (SCORES / self.text.len()).clamp(24, 128);
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

    /// Query heads of the task: so many queries in each row.
    fn query_heads(&self) -> usize {
        self.kv_heads.len() * self.group()
    }

    /// A query is one row in one head. Those of one row come together, as they see the same positions; within a row, those of
    /// one key/value head.
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

impl Attention<'_> {
    fn compute(self, registers: Registers) {
        match self.format {
            RowFormat::F32 => self.compute_as(F32, registers),
            RowFormat::F16 => self.compute_as(F16, registers),
            RowFormat::Bf16 => self.compute_as(Bf16, registers),
            RowFormat::Int8 => self.compute_as(Int8, registers),
        }
    }

    fn compute_as<S: Stored>(self, stored: S, registers: Registers) {
        match self.rows.len() {
            ..=FEW => registers.run(FewRows { task: self, stored }),
            _ => registers.run(ManyRows { task: self, stored }),
        }
    }
}

/// Rows up to which turning keys and values into packed `f32` costs more than it saves.
const FEW: usize = 4;

/// Reads keys and values where they lie, each once for a few queries that share them.
struct FewRows<'a, S> {
    task: Attention<'a>,
    stored: S,
}

impl<S: Stored> Kernel for FewRows<'_, S> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let task = &self.task;
        let dim = task.heads.head_dim;
        let depth = dim.div_ceil(LANES);
        let words = task.format.words(dim);
        // Either all of them are of one row, or of one key/value head.
        let sharing = task.queries() / task.kv_heads.len();
        let places = task.places();
        let longest = places.len();
        let packed = task.packed_queries(depth);

        // Four positions at a time, so that four sums of lanes are taken together. Some scores are of keys that their query
        // does not see; the softmax leaves them out.
        let stride = longest.next_multiple_of(4);
        let mut scores = vec![0.0; task.queries() * stride];
        for at in (0..longest).step_by(4) {
            for (i, kv_head) in task.kv_heads.clone().enumerate() {
                let head = HeadOf { _stored: self.stored, memory: task.text.keys, first: kv_head * words, words, dim };
                head.ask_for(&places, at + 8, 4);
                let last = longest - 1;
                let keys = [
                    head.at(places[at]),
                    head.at(places[(at + 1).min(last)]),
                    head.at(places[(at + 2).min(last)]),
                    head.at(places[(at + 3).min(last)]),
                ];
                let mut query = i * sharing;
                while query < (i + 1) * sharing {
                    let queries = Queries { packed: &packed, depth, first: query };
                    let scores = &mut scores[query * stride + at..];
                    query += match (i + 1) * sharing - query {
                        1 => queries.meet::<V, S, 1>(&keys, scores, stride),
                        2 if V::MANY_REGISTERS => queries.meet::<V, S, 2>(&keys, scores, stride),
                        3 if V::MANY_REGISTERS => queries.meet::<V, S, 3>(&keys, scores, stride),
                        _ if V::MANY_REGISTERS => queries.meet::<V, S, 4>(&keys, scores, stride),
                        _ => queries.meet::<V, S, 1>(&keys, scores, stride),
                    };
                }
            }
        }
        for (query, scores) in scores.chunks_exact_mut(stride).enumerate() {
            softmax_scaled::<V>(&mut scores[..task.seen(query)], task.scale());
        }

        // Each output is one sum over the positions, in order: it grows by a few positions at a time. What some queries all
        // see, they add together; the rest each alone.
        const POSITIONS: usize = 16;
        let mut sums = vec![[0.0; LANES]; task.queries() * depth];
        for at in (0..longest).step_by(POSITIONS) {
            let block = &places[at..(at + POSITIONS).min(longest)];
            for (i, kv_head) in task.kv_heads.clone().enumerate() {
                let head =
                    HeadOf { _stored: self.stored, memory: task.text.values, first: kv_head * words, words, dim };
                head.ask_for(&places, at + POSITIONS, POSITIONS);
                let mut query = i * sharing;
                while query < (i + 1) * sharing {
                    let shared = task.seen(query).saturating_sub(at).min(block.len());
                    let weights = Weights { scores: &scores[query * stride + at..], stride };
                    let tile_sums = &mut sums[query * depth..];
                    let places = &block[..shared];
                    let tile = match (i + 1) * sharing - query {
                        1 => head.add_all::<V, 1>(places, weights, tile_sums),
                        2 => head.add_all::<V, 2>(places, weights, tile_sums),
                        3 if V::MANY_REGISTERS => head.add_all::<V, 3>(places, weights, tile_sums),
                        _ if V::MANY_REGISTERS => head.add_all::<V, 4>(places, weights, tile_sums),
                        _ => head.add_all::<V, 2>(places, weights, tile_sums),
                    };
                    for query in query..query + tile {
                        let seen = task.seen(query).saturating_sub(at).min(block.len());
                        if seen > shared {
                            let weights = Weights { scores: &scores[query * stride + at + shared..], stride };
                            head.add_all::<V, 1>(&block[shared..seen], weights, &mut sums[query * depth..]);
                        }
                    }
                    query += tile;
                }
            }
        }
        for (query, sums) in sums.chunks_exact(depth).enumerate() {
            task.write(query, sums);
        }
    }
}

/// A few keys at a time meet all queries, then a few values do.
struct ManyRows<'a, S> {
    task: Attention<'a>,
    stored: S,
}

impl<S: Stored> Kernel for ManyRows<'_, S> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        if V::MANY_REGISTERS { self.run_columns::<V, 4>() } else { self.run_columns::<V, 2>() }
    }
}

impl<S: Stored> ManyRows<'_, S> {
    #[inline(always)]
    fn run_columns<V: Vector, const C: usize>(self) {
        let task = &self.task;
        let dim = task.heads.head_dim;
        let depth = dim.div_ceil(LANES);
        let words = task.format.words(dim);
        let first = task.kv_heads.start * words;
        let places = task.places();
        let longest = places.len();
        let queries = task.queries();
        let packed = task.packed_queries(depth);

        const KEYS: usize = 16;
        let head = HeadOf { _stored: self.stored, memory: task.text.keys, first, words, dim };
        // An odd number of cache lines: with a power of two, the scores of all queries would compete for a few of the cache's
        // places.
        let stride = (longest.div_ceil(KEYS) | 1) * KEYS;
        let mut scores = vec![0.0; queries * stride];
        let mut panels = vec![[[0.0; LANES]; C]; KEYS / C * depth];
        for at in (0..longest).step_by(KEYS) {
            head.ask_for(&places, at + KEYS, KEYS);
            for (i, place) in places[at..].iter().take(KEYS).enumerate() {
                let key = head.at(*place);
                let panel = &mut panels[i / C * depth..][..depth];
                for (chunk, panel) in panel.iter_mut().enumerate() {
                    panel[i % C] = key.chunk::<V>(chunk).lanes();
                }
            }
            // Some scores are of keys that their query does not see; the softmax leaves them out.
            let mut query = task.first_that_sees(at);
            while query < queries {
                let rows = Queries { packed: &packed, depth, first: query };
                let scores = &mut scores[query * stride + at..];
                query += match queries - query {
                    1 => rows.meet_panels::<V, 1, C>(&panels, scores, stride),
                    2 => rows.meet_panels::<V, 2, C>(&panels, scores, stride),
                    3 => rows.meet_panels::<V, 3, C>(&panels, scores, stride),
                    4 | 5 if V::MANY_REGISTERS => rows.meet_panels::<V, 4, C>(&panels, scores, stride),
                    _ if V::MANY_REGISTERS => rows.meet_panels::<V, 6, C>(&panels, scores, stride),
                    _ => rows.meet_panels::<V, 3, C>(&panels, scores, stride),
                };
            }
        }
        for (query, scores) in scores.chunks_exact_mut(stride).enumerate() {
            softmax_scaled::<V>(&mut scores[..task.seen(query)], task.scale());
        }

        // Each output is one sum over the positions, in order: it grows by a few positions at a time. What the queries of a
        // tile all see, they add together; the rest each alone.
        const VALUES: usize = 128;
        let head = HeadOf { _stored: self.stored, memory: task.text.values, first, words, dim };
        let mut sums = vec![[0.0; LANES]; queries * depth];
        let mut block = vec![[0.0; LANES]; VALUES * depth];
        for at in (0..longest).step_by(VALUES) {
            head.ask_for(&places, at + VALUES, VALUES);
            let places = &places[at..(at + VALUES).min(longest)];
            for (place, block) in places.iter().zip(block.chunks_exact_mut(depth)) {
                let value = head.at(*place);
                for (chunk, lanes) in block.iter_mut().enumerate() {
                    *lanes = value.chunk::<V>(chunk).lanes();
                }
            }
            let mut query = task.first_that_sees(at);
            while query < queries {
                let tile = match queries - query {
                    left @ (1..=3) => left,
                    4 | 5 if V::MANY_REGISTERS => 4,
                    _ if V::MANY_REGISTERS => 6,
                    _ => 3,
                };
                let shared = task.seen(query).saturating_sub(at).min(places.len());
                let weights = Weights { scores: &scores[query * stride + at..], stride };
                let values = &block[..shared * depth];
                let tile_sums = &mut sums[query * depth..][..tile * depth];
                match tile {
                    1 => add_block::<V, 1, C>(weights, values, tile_sums),
                    2 => add_block::<V, 2, C>(weights, values, tile_sums),
                    3 => add_block::<V, 3, C>(weights, values, tile_sums),
                    4 => add_block::<V, 4, C>(weights, values, tile_sums),
                    _ => add_block::<V, 6, C>(weights, values, tile_sums),
                }
                for query in query..query + tile {
                    let seen = task.seen(query).saturating_sub(at).min(places.len());
                    if seen > shared {
                        let weights = Weights { scores: &scores[query * stride + at + shared..], stride };
                        let sums = &mut sums[query * depth..][..depth];
                        add_block::<V, 1, C>(weights, &block[shared * depth..seen * depth], sums);
                    }
                }
                query += tile;
            }
        }
        for (query, sums) in sums.chunks_exact(depth).enumerate() {
            task.write(query, sums);
        }
    }
}

/// One head in the rows of a memory.
#[derive(Clone, Copy)]
struct HeadOf<'a, S> {
    /// The format.
    _stored: S,
    memory: &'a [f32],
    /// Where the head begins in a row.
    first: usize,
    /// Its words.
    words: usize,
    /// Its numbers.
    dim: usize,
}

impl<'a, S: Stored> HeadOf<'a, S> {
    /// The head in the row that starts at this place.
    #[inline(always)]
    fn at(&self, place: usize) -> Head<'a, S> {
        Head::new(&self.memory[place + self.first..][..self.words], self.dim)
    }

    /// Asks for the head in `n` rows from position `at` on, which will soon be read.
    #[inline(always)]
    fn ask_for(&self, places: &[usize], at: usize, n: usize) {
        for place in places.iter().skip(at).take(n) {
            for line in (0..self.words).step_by(16) {
                prefetch(self.memory.as_ptr().wrapping_add(place + self.first + line).cast());
            }
        }
    }

    /// Adds the values at some places to the sums of `R` queries, weighted. Returns `R`.
    #[inline(always)]
    fn add_all<V: Vector, const R: usize>(&self, places: &[usize], weights: Weights<'_>, sums: &mut [Lanes]) -> usize {
        let full = self.dim / LANES;
        let mut at = 0;
        while at < full {
            at += match full - at {
                1 => self.add::<V, R, 1>(places, weights, sums, at),
                2 | 3 => self.add::<V, R, 2>(places, weights, sums, at),
                8.. if V::MANY_REGISTERS && R <= 2 => self.add::<V, R, 8>(places, weights, sums, at),
                _ if V::MANY_REGISTERS => self.add::<V, R, 4>(places, weights, sums, at),
                _ => self.add::<V, R, 2>(places, weights, sums, at),
            };
        }
        if full < self.dim.div_ceil(LANES) {
            self.add_last::<V, R>(places, weights, sums);
        }
        R
    }

    /// The same for `C` full vectors of each value, from vector `at` on. Returns `C`.
    #[inline(always)]
    fn add<V: Vector, const R: usize, const C: usize>(
        &self,
        places: &[usize],
        weights: Weights<'_>,
        sums: &mut [Lanes],
        at: usize,
    ) -> usize {
        let depth = self.dim.div_ceil(LANES);
        let mut out = sums_at::<V, R, C>(sums, depth, at);
        let weights = weights.rows::<R>(places.len());
        for (position, place) in places.iter().enumerate() {
            let head = self.at(*place);
            let (chunks, scale) = (&head.full(at + C)[at..], head.scale());
            for c in 0..C {
                let value = S::decode::<V>(&chunks[c], scale);
                for r in 0..R {
                    out[r][c] = V::splat(weights[r][position]).mul_add(value, out[r][c]);
                }
            }
        }
        put_sums(&out, sums, depth, at);
        C
    }

    /// The same for the last vector, which is not full.
    #[inline(always)]
    fn add_last<V: Vector, const R: usize>(&self, places: &[usize], weights: Weights<'_>, sums: &mut [Lanes]) {
        let full = self.dim / LANES;
        let mut out = sums_at::<V, R, 1>(sums, full + 1, full);
        let weights = weights.rows::<R>(places.len());
        for (position, place) in places.iter().enumerate() {
            let value: V = self.at(*place).chunk(full);
            for r in 0..R {
                out[r][0] = V::splat(weights[r][position]).mul_add(value, out[r][0]);
            }
        }
        put_sums(&out, sums, full + 1, full);
    }
}

/// Packed queries, from one of them on.
struct Queries<'a> {
    packed: &'a [Lanes],
    depth: usize,
    first: usize,
}

impl<'a> Queries<'a> {
    #[inline(always)]
    fn rows<const R: usize>(&self) -> [&'a [Lanes]; R] {
        let mut rows: [&[Lanes]; R] = [&[]; R];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = &self.packed[(self.first + r) * self.depth..][..self.depth];
        }
        rows
    }

    /// `R` queries meet four keys where they lie. `scores`: those of the first query; the next query's are `stride` further.
    /// Returns `R`.
    #[inline(always)]
    fn meet<V: Vector, S: Stored, const R: usize>(
        &self,
        keys: &[Head<'_, S>; 4],
        scores: &mut [f32],
        stride: usize,
    ) -> usize {
        let rows = self.rows::<R>();
        let full = keys[0].n_full();
        let chunks = [keys[0].full(full), keys[1].full(full), keys[2].full(full), keys[3].full(full)];
        let scales: [V; 4] = [keys[0].scale(), keys[1].scale(), keys[2].scale(), keys[3].scale()];
        let mut sums = [[V::splat(0.0); 4]; R];
        for k in 0..full {
            let mut vectors = [V::splat(0.0); 4];
            for c in 0..4 {
                vectors[c] = S::decode(&chunks[c][k], scales[c]);
            }
            for r in 0..R {
                let row = V::load(&rows[r][k]);
                for c in 0..4 {
                    sums[r][c] = row.mul_add(vectors[c], sums[r][c]);
                }
            }
        }
        if full < self.depth {
            for r in 0..R {
                let row = V::load(&rows[r][full]);
                for c in 0..4 {
                    sums[r][c] = row.mul_add(keys[c].chunk(full), sums[r][c]);
                }
            }
        }
        for r in 0..R {
            scores[r * stride..][..4].copy_from_slice(&lane_sums(&sums[r]));
        }
        R
    }

    /// `R` queries meet packed keys, `C` in a panel. `scores`: as in [`meet`](Self::meet). Returns `R`.
    #[inline(always)]
    fn meet_panels<V: Vector, const R: usize, const C: usize>(
        &self,
        panels: &[[Lanes; C]],
        scores: &mut [f32],
        stride: usize,
    ) -> usize {
        let rows = self.rows::<R>();
        for (p, panel) in panels.chunks_exact(self.depth).enumerate() {
            let mut sums = [[V::splat(0.0); C]; R];
            tile(rows, panel, &mut sums);
            for r in 0..R {
                scores[r * stride + p * C..][..C].copy_from_slice(&lane_sums(&sums[r]));
            }
        }
        R
    }
}

/// What the values are multiplied by.
#[derive(Clone, Copy)]
struct Weights<'a> {
    /// Those of the first query, from the first value on.
    scores: &'a [f32],
    /// From those of a query to those of the next.
    stride: usize,
}

impl<'a> Weights<'a> {
    /// Those of `R` queries for the first `n` values: as long as the loops over them, which need not look then whether a
    /// weight is there.
    #[inline(always)]
    fn rows<const R: usize>(&self, n: usize) -> [&'a [f32]; R] {
        let mut rows: [&[f32]; R] = [&[]; R];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = &self.scores[r * self.stride..][..n];
        }
        rows
    }
}

/// Adds packed values, as many vectors each as the sums of a query, to the sums of `R` queries, weighted.
#[inline(always)]
fn add_block<V: Vector, const R: usize, const C: usize>(weights: Weights<'_>, values: &[Lanes], sums: &mut [Lanes]) {
    let depth = sums.len() / R;
    let mut at = 0;
    while at < depth {
        at += match depth - at {
            1 => add_columns::<V, R, 1>(weights, values, sums, at),
            2 | 3 => add_columns::<V, R, 2>(weights, values, sums, at),
            _ => add_columns::<V, R, C>(weights, values, sums, at),
        };
    }
}

/// The same for `C` vectors of each, from vector `at` on. Returns `C`.
#[inline(always)]
fn add_columns<V: Vector, const R: usize, const C: usize>(
    weights: Weights<'_>,
    values: &[Lanes],
    sums: &mut [Lanes],
    at: usize,
) -> usize {
    let depth = sums.len() / R;
    let mut out = sums_at::<V, R, C>(sums, depth, at);
    let n = values.len() / depth;
    let weights = weights.rows::<R>(n);
    for position in 0..n {
        let value = &values[position * depth + at..][..C];
        for r in 0..R {
            let weight = V::splat(weights[r][position]);
            for c in 0..C {
                out[r][c] = weight.mul_add(V::load(&value[c]), out[r][c]);
            }
        }
    }
    put_sums(&out, sums, depth, at);
    C
}

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

#[inline(always)]
fn put_sums<V: Vector, const R: usize, const C: usize>(out: &[[V; C]; R], sums: &mut [Lanes], depth: usize, at: usize) {
    for (r, out) in out.iter().enumerate() {
        for (c, out) in out.iter().enumerate() {
            sums[r * depth + at + c] = out.lanes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers::Registers;
    use crate::rows::Run;
    use crate::testing::numbers;
    use crate::vector::{Plain, dot};

    /// Attention by its definition: query by query, position by position.
    fn by_definition(heads: Heads, format: RowFormat, texts: &[SequenceRows<'_>], q: &[f32]) -> Vec<f32> {
        let Heads { n_heads, n_kv_heads, head_dim } = heads;
        let words = format.words(head_dim);
        let number = |memory: &[f32], place: usize, i: usize| number_of(format, &memory[place..][..words], head_dim, i);
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

    /// Number `i` of a stored head.
    fn number_of(format: RowFormat, words: &[f32], dim: usize, i: usize) -> f32 {
        let lanes = match format {
            RowFormat::F32 => Head::<F32>::new(words, dim).chunk::<Plain>(i / LANES).lanes(),
            RowFormat::F16 => Head::<F16>::new(words, dim).chunk::<Plain>(i / LANES).lanes(),
            RowFormat::Bf16 => Head::<Bf16>::new(words, dim).chunk::<Plain>(i / LANES).lanes(),
            RowFormat::Int8 => Head::<Int8>::new(words, dim).chunk::<Plain>(i / LANES).lanes(),
        };
        lanes[i % LANES]
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
            for format in RowFormat::ALL {
                for batch in BATCHES {
                    let batch = if cfg!(miri) { &batch[..1] } else { batch };
                    let texts: Vec<(Pages, usize)> = (1..)
                        .zip(batch)
                        .map(|(seed, &(n, queries, page_size))| {
                            (pages(heads, format, n, page_size, 100 * seed), queries)
                        })
                        .collect();
                    let texts: Vec<SequenceRows<'_>> = texts
                        .iter()
                        .map(|(p, queries)| SequenceRows {
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
                            task.compute(*registers);
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
            let texts = [SequenceRows { queries, keys: &pages.keys, values: &pages.values, runs: &pages.runs }];
            let q = numbers(queries * 32, 5);
            let mut out = vec![0.0; queries * 32];
            attend(heads, RowFormat::F32, &texts, &q, &mut out);
            assert_eq!(out, by_definition(heads, RowFormat::F32, &texts, &q), "{queries} queries, {n} tokens");
        }
    }

    #[test]
    fn several_threads_fill_one_output() {
        let heads = Heads { n_heads: 4, n_kv_heads: 2, head_dim: 6 };
        let (tokens, queries) = if cfg!(miri) { (9, 3) } else { (40, 20) };
        let pages = pages(heads, RowFormat::F32, tokens, 4, 1);
        let text = |queries| SequenceRows { queries, keys: &pages.keys, values: &pages.values, runs: &pages.runs };
        let texts = &[text(1), text(queries), text(1)];
        let q = &numbers((queries + 2) * 24, 4)[..];
        // Every task in a thread of its own, or one after the other.
        let results = |in_threads: bool| {
            let mut out = vec![0.0; (queries + 2) * 24];
            let columns = &Columns::new(&mut out, 24);
            std::thread::scope(|scope| {
                for task in tasks(heads, RowFormat::F32, texts, q, columns) {
                    let thread = scope.spawn(move || task.compute(Registers::Any));
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
        // What the refusal says, nothing if there is none.
        let refusal = |queries, runs: &[Run], q: usize, out: usize| {
            let texts = [SequenceRows { queries, keys: &memory, values: &memory, runs }];
            let mut out = vec![0.0; out];
            let attended = std::panic::AssertUnwindSafe(|| {
                attend(heads, RowFormat::F32, &texts, &vec![1.0; q], &mut out);
            });
            let panic = std::panic::catch_unwind(attended).err()?;
            Some(*panic.downcast::<String>().expect("a message"))
        };
        let right = &[Run { start: 4, rows: 2 }][..];
        assert_eq!(refusal(1, right, 4, 4), None, "as it should be");
        // Some of these come back to small numbers if they are multiplied or added without a look.
        for (start, rows, end) in [
            (5, 2, 9),
            (0, usize::MAX, usize::MAX),
            (0, 1 << 63, usize::MAX),
            (4, 1 << 63, usize::MAX),
            (usize::MAX, 1, usize::MAX),
            (usize::MAX - 1, 1, usize::MAX),
        ] {
            let said = refusal(1, &[Run { start, rows }], 4, 4);
            assert_eq!(said, Some(format!("a run ends at {end}, beyond the memory")), "{rows} rows from {start} on");
        }
        for queries in [3, 1 << 63, usize::MAX] {
            let said = refusal(queries, right, 12, 12);
            assert_eq!(said, Some(format!("{queries} queries in a text of 2 tokens")));
        }
        let says = |queries, q, out| refusal(queries, right, q, out).unwrap_or_default();
        assert!(says(1, 8, 8).ends_with("1 queries of 4 numbers"), "a query without a text");
        assert!(says(1, 4, 3).ends_with("1 queries of 4 numbers"), "an output that is too short");
    }
}
