//! Attention of many new tokens: a few keys at a time are packed and meet all queries, then a few values are and do.

use std::ops::Range;

use crate::matrix::{Dtype, Factors};
use crate::registers::{Kernel, vectorized};
use crate::stored::{HeadColumn, Stored};
use crate::tiles::{InTiles, in_tiles, pack, tile};
use crate::vector::{LANES, Lanes, Vector, lane_sums, rows_of};

use super::{Attention, put_sums, sums_at};

/// Keys that are packed at a time: whole tiles.
const KEYS: usize = 20;
/// Values that are packed at a time.
const VALUES: usize = 128;

/// The output of each query, padded to whole vectors. The task has one key/value head.
pub(super) fn attend<S: Stored>(task: &Attention<'_>, stored: S) -> Vec<Lanes> {
    let depth = task.depth();
    let places = &task.places()[..];
    let queries = &task.packed_queries()[..];

    let head = task.head_of(stored, task.sequence.keys, task.kv_heads.start);
    // An odd number of cache lines: with a power of two, all scores would compete for a few places of the cache.
    let stride = (places.len().next_multiple_of(KEYS).div_ceil(LANES) | 1) * LANES;
    let mut scores = vec![0.0; task.queries() * stride];
    let mut keys = vec![[0.0; LANES]; KEYS * depth];
    for at in (0..places.len()).step_by(KEYS) {
        head.prefetch(places, at + KEYS, KEYS);
        let few = &places[at..(at + KEYS).min(places.len())];
        vectorized(Pack { head, places: few, side_by_side: true, packed: &mut keys });
        vectorized(Scores { task, queries, keys: &keys, scores: &mut scores[at..], stride, at });
    }
    task.softmax(&mut scores, stride);

    let head = task.head_of(stored, task.sequence.values, task.kv_heads.start);
    let mut sums = vec![[0.0; LANES]; task.queries() * depth];
    let mut block = vec![[0.0; LANES]; VALUES * depth];
    for at in (0..places.len()).step_by(VALUES) {
        head.prefetch(places, at + VALUES, VALUES);
        let few = &places[at..(at + VALUES).min(places.len())];
        vectorized(Pack { head, places: few, side_by_side: false, packed: &mut block });
        let values = &block[..few.len() * depth];
        let added = vec![0; task.queries()];
        vectorized(WeightedSum { task, values, scores: &scores[at..], stride, at, added, sums: &mut sums });
    }
    sums
}

/// Turns a few heads into `f32`, one after the other, or for tiles as many side by side as a tile has columns.
struct Pack<'a, S> {
    head: HeadColumn<'a, S>,
    places: &'a [usize],
    side_by_side: bool,
    packed: &'a mut [Lanes],
}

impl<S: Stored> Kernel for Pack<'_, S> {
    #[inline(always)]
    fn run<V: Vector>(self) {
        let depth = self.head.dim.div_ceil(LANES);
        let width = if self.side_by_side { V::COLUMNS } else { 1 };
        for (i, place) in self.places.iter().enumerate() {
            let head = self.head.at(*place);
            let chunks = (0..depth).map(|chunk| head.chunk::<V>(chunk).lanes());
            pack(chunks, i % width, width, &mut self.packed[i / width * width * depth..][..width * depth]);
        }
    }
}

/// The scores of a few keys for all queries that see the first of them; the softmax leaves out those not seen.
struct Scores<'a> {
    task: &'a Attention<'a>,
    /// Packed.
    queries: &'a [Lanes],
    keys: &'a [Lanes],
    /// Begins with the score of the first query and the first key.
    scores: &'a mut [f32],
    stride: usize,
    /// The first key's position.
    at: usize,
}

impl Kernel for Scores<'_> {
    #[inline(always)]
    fn run<V: Vector>(mut self) {
        in_tiles::<V>(self.task.first_that_sees(self.at)..self.task.queries(), &mut self);
    }
}

impl InTiles for Scores<'_> {
    #[inline(always)]
    fn rows<V: Vector, const R: usize, const C: usize>(&mut self, first: usize) -> usize {
        let depth = self.task.depth();
        let rows = rows_of::<_, R>(self.queries, first, depth, depth);
        for (packed, at) in self.keys.chunks_exact(C * depth).zip((0..).step_by(C)) {
            let mut sums = [[V::splat(0.0); C]; R];
            tile(Factors::Numbers(Dtype::F32), rows, packed, &mut sums);
            for (query, sums) in (first..).zip(&sums) {
                self.scores[query * self.stride + at..][..C].copy_from_slice(&lane_sums(sums));
            }
        }
        R
    }
}

/// Adds a few packed values to the sums of all queries that see the first of them, weighted.
struct WeightedSum<'a> {
    task: &'a Attention<'a>,
    values: &'a [Lanes],
    /// The weights of the first query, from the first value on.
    scores: &'a [f32],
    stride: usize,
    /// The first value's position.
    at: usize,
    /// How many of the values are in the sums of each query.
    added: Vec<usize>,
    sums: &'a mut [Lanes],
}

impl Kernel for WeightedSum<'_> {
    /// What the queries of a tile all see, they add together; the rest each alone.
    #[inline(always)]
    fn run<V: Vector>(mut self) {
        let first = self.task.first_that_sees(self.at);
        in_tiles::<V>(first..self.task.queries(), &mut self);
        for query in first..self.task.queries() {
            let (added, seen) = (self.added[query], self.seen(query));
            if added < seen {
                if V::MANY_REGISTERS {
                    self.add::<V, 1, 5>(query, added..seen);
                } else {
                    self.add::<V, 1, 1>(query, added..seen);
                }
            }
        }
    }
}

impl InTiles for WeightedSum<'_> {
    #[inline(always)]
    fn rows<V: Vector, const R: usize, const C: usize>(&mut self, first: usize) -> usize {
        let shared = self.seen(first);
        self.added[first..first + R].fill(shared);
        self.add::<V, R, C>(first, 0..shared);
        R
    }
}

impl WeightedSum<'_> {
    /// How many of the values a query sees.
    #[inline(always)]
    fn seen(&self, query: usize) -> usize {
        self.task.seen(query).saturating_sub(self.at).min(self.values.len() / self.task.depth())
    }

    /// Adds some values to the sums of `R` queries, `C` vectors at a time, or four where `C` is 5: heads have 4 or 8.
    #[inline(always)]
    fn add<V: Vector, const R: usize, const C: usize>(&mut self, first: usize, values: Range<usize>) {
        let depth = self.task.depth();
        let mut at = 0;
        while at < depth {
            at += match depth - at {
                2.. if C == 2 => self.add_columns::<V, R, 2>(first, values.clone(), at),
                2 | 3 if C == 5 => self.add_columns::<V, R, 2>(first, values.clone(), at),
                4.. if C == 5 => self.add_columns::<V, R, 4>(first, values.clone(), at),
                _ => self.add_columns::<V, R, 1>(first, values.clone(), at),
            };
        }
    }

    /// Adds `C` vectors of each value, from vector `at` on. Returns `C`.
    #[inline(always)]
    fn add_columns<V: Vector, const R: usize, const C: usize>(
        &mut self,
        first: usize,
        values: Range<usize>,
        at: usize,
    ) -> usize {
        let depth = self.task.depth();
        let n = values.len();
        let weights = rows_of::<_, R>(&self.scores[values.start..], first, self.stride, n);
        let values = &self.values[values.start * depth..values.end * depth];
        let sums = &mut self.sums[first * depth..];
        let mut out = sums_at::<V, R, C>(sums, depth, at);
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
}
