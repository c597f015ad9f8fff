//! Attention of one new token, or of a few: keys and values are read where they lie, each once for the few queries that
//! share them.

use crate::registers::{Kernel, vectorized};
use crate::stored::{Head, HeadColumn, Stored};
use crate::vector::{LANES, Lanes, Vector, lane_sums, rows_of};

use super::{Attention, put_sums, sums_at};

/// Keys that a query meets at a time, so that four sums of lanes are taken together.
const KEYS: usize = 4;
/// Values that are added to a query's sums at a time.
const VALUES: usize = 16;

/// The output of each query, padded to whole vectors.
pub(super) fn attend<S: Stored>(task: &Attention<'_>, stored: S) -> Vec<Lanes> {
    let places = &task.places()[..];
    let stride = places.len().next_multiple_of(KEYS);
    let mut scores = vec![0.0; task.queries() * stride];
    vectorized(Scores { task, stored, places, queries: &task.packed_queries(), scores: &mut scores, stride });
    task.softmax(&mut scores, stride);
    let mut sums = vec![[0.0; LANES]; task.queries() * task.depth()];
    vectorized(WeightedSum { task, stored, places, scores: &scores, stride, sums: &mut sums });
    sums
}

/// Queries that share a key/value head. Either all of them are of one row, or the task has one key/value head.
fn sharing(task: &Attention<'_>) -> usize {
    task.queries() / task.kv_heads.len()
}

/// The score of each key for each query. Some are of keys that their query does not see; the softmax leaves them out.
struct Scores<'a, S> {
    task: &'a Attention<'a>,
    stored: S,
    places: &'a [usize],
    /// Packed.
    queries: &'a [Lanes],
    scores: &'a mut [f32],
    /// How many scores lie from the first of a query to the first of the next.
    stride: usize,
}

impl<S: Stored> Kernel for Scores<'_, S> {
    #[inline(always)]
    fn run<V: Vector>(mut self) {
        let task = self.task;
        let last = self.places.len() - 1;
        let sharing = sharing(task);
        let heads = task.head_of(self.stored, task.sequence.keys, 0);
        for at in (0..self.places.len()).step_by(KEYS) {
            for (i, kv_head) in task.kv_heads.clone().enumerate() {
                let head = heads.with_head(kv_head);
                head.prefetch(self.places, at + 2 * KEYS, KEYS);
                let keys = [
                    head.at(self.places[at]),
                    head.at(self.places[(at + 1).min(last)]),
                    head.at(self.places[(at + 2).min(last)]),
                    head.at(self.places[(at + 3).min(last)]),
                ];
                let mut query = i * sharing;
                while query < (i + 1) * sharing {
                    query += match (i + 1) * sharing - query {
                        2 if V::MANY_REGISTERS => self.score::<V, 2>(&keys, query, at),
                        3 if V::MANY_REGISTERS => self.score::<V, 3>(&keys, query, at),
                        4.. if V::MANY_REGISTERS => self.score::<V, 4>(&keys, query, at),
                        _ => self.score::<V, 1>(&keys, query, at),
                    };
                }
            }
        }
    }
}

impl<S: Stored> Scores<'_, S> {
    /// `R` queries, from query `first` on, meet four keys where they lie, those from position `at` on. Returns `R`.
    #[inline(always)]
    fn score<V: Vector, const R: usize>(&mut self, keys: &[Head<'_, S>; KEYS], first: usize, at: usize) -> usize {
        let depth = self.task.depth();
        let rows = rows_of::<_, R>(self.queries, first, depth, depth);
        let full = keys[0].full.len();
        let chunks = [keys[0].full, &keys[1].full[..full], &keys[2].full[..full], &keys[3].full[..full]];
        let scales: [V; KEYS] = [keys[0].scale(), keys[1].scale(), keys[2].scale(), keys[3].scale()];
        let mut sums = [[V::splat(0.0); KEYS]; R];
        for k in 0..full {
            let mut vectors = [V::splat(0.0); KEYS];
            for c in 0..KEYS {
                vectors[c] = S::decode(&chunks[c][k], scales[c]);
            }
            for r in 0..R {
                let row = V::load(&rows[r][k]);
                for c in 0..KEYS {
                    sums[r][c] = row.mul_add(vectors[c], sums[r][c]);
                }
            }
        }
        if full < depth {
            for c in 0..KEYS {
                let last = keys[c].last();
                for r in 0..R {
                    sums[r][c] = V::load(&rows[r][full]).mul_add(V::load(&last), sums[r][c]);
                }
            }
        }
        for (query, sums) in (first..).zip(&sums) {
            self.scores[query * self.stride + at..][..KEYS].copy_from_slice(&lane_sums(sums));
        }
        R
    }
}

/// The sum of the values by their weights, for each query: it grows by a few positions at a time, in order.
struct WeightedSum<'a, S> {
    task: &'a Attention<'a>,
    stored: S,
    places: &'a [usize],
    /// The weights, as the softmax left them.
    scores: &'a [f32],
    stride: usize,
    sums: &'a mut [Lanes],
}

impl<S: Stored> Kernel for WeightedSum<'_, S> {
    #[inline(always)]
    fn run<V: Vector>(mut self) {
        let task = self.task;
        let sharing = sharing(task);
        let heads = task.head_of(self.stored, task.sequence.values, 0);
        for at in (0..self.places.len()).step_by(VALUES) {
            for (i, kv_head) in task.kv_heads.clone().enumerate() {
                let head = heads.with_head(kv_head);
                head.prefetch(self.places, at + VALUES, VALUES);
                let mut query = i * sharing;
                while query < (i + 1) * sharing {
                    let tile = match (i + 1) * sharing - query {
                        _ if V::ONE_BY_ONE => 1,
                        3 if V::MANY_REGISTERS => 3,
                        4.. if V::MANY_REGISTERS => 4,
                        left => left.min(2),
                    };
                    self.add_tile::<V>(&head, at, query, tile);
                    query += tile;
                }
            }
        }
    }
}

impl<S: Stored> WeightedSum<'_, S> {
    /// Adds the values from position `at` on to the sums of `tile` queries: together what all of them see, then each
    /// alone what only later ones see.
    #[inline(always)]
    fn add_tile<V: Vector>(&mut self, head: &HeadColumn<'_, S>, at: usize, query: usize, tile: usize) {
        let block = &self.places[at..(at + VALUES).min(self.places.len())];
        let shared = self.task.seen(query).saturating_sub(at).min(block.len());
        // The queries of one row see the same.
        let alone = if self.task.rows.len() == 1 { 0 } else { tile };
        for part in 0..=alone {
            let (first, together, seen) = match part {
                0 => (query, tile, 0..shared),
                _ => {
                    let one = query + part - 1;
                    (one, 1, shared..self.task.seen(one).saturating_sub(at).min(block.len()))
                }
            };
            if seen.is_empty() {
                continue;
            }
            let weights =
                Weights { of_first: &self.scores[first * self.stride + at + seen.start..], stride: self.stride };
            let (places, sums) = (&block[seen], &mut self.sums[first * self.task.depth()..]);
            match together {
                2 if !V::ONE_BY_ONE => add_all::<V, S, 2>(head, places, weights, sums),
                3 if V::MANY_REGISTERS => add_all::<V, S, 3>(head, places, weights, sums),
                4 if V::MANY_REGISTERS => add_all::<V, S, 4>(head, places, weights, sums),
                _ => add_all::<V, S, 1>(head, places, weights, sums),
            }
        }
    }
}

/// Some queries' weights: the first query's from its first value on; those of the next follow `stride` later.
#[derive(Clone, Copy)]
struct Weights<'a> {
    of_first: &'a [f32],
    stride: usize,
}

/// Adds the values at some places to the sums of `R` queries, weighted.
#[inline(always)]
fn add_all<V: Vector, S: Stored, const R: usize>(
    head: &HeadColumn<'_, S>,
    places: &[usize],
    weights: Weights<'_>,
    sums: &mut [Lanes],
) {
    let (full, depth) = (head.dim / LANES, head.dim.div_ceil(LANES));
    let mut at = 0;
    while at < depth {
        at += match full.saturating_sub(at) {
            _ if V::ONE_BY_ONE => add::<V, S, R, 1>(head, places, weights, sums, at),
            0 | 1 => add::<V, S, R, 1>(head, places, weights, sums, at),
            8.. if V::MANY_REGISTERS && R <= 2 => add::<V, S, R, 8>(head, places, weights, sums, at),
            4.. if V::MANY_REGISTERS => add::<V, S, R, 4>(head, places, weights, sums, at),
            _ => add::<V, S, R, 2>(head, places, weights, sums, at),
        };
    }
}

/// Adds `C` vectors of each value, from vector `at` on; several only if they are full. Returns `C`.
#[inline(always)]
fn add<V: Vector, S: Stored, const R: usize, const C: usize>(
    head: &HeadColumn<'_, S>,
    places: &[usize],
    weights: Weights<'_>,
    sums: &mut [Lanes],
    at: usize,
) -> usize {
    let depth = head.dim.div_ceil(LANES);
    let mut out = sums_at::<V, R, C>(sums, depth, at);
    let weights = rows_of::<_, R>(weights.of_first, 0, weights.stride, places.len());
    for (position, place) in places.iter().enumerate() {
        let value = head.at(*place);
        let mut vectors = [V::splat(0.0); C];
        if C == 1 {
            vectors[0] = value.chunk(at);
        } else {
            let (chunks, scale) = (&value.full[at..][..C], value.scale());
            for c in 0..C {
                vectors[c] = S::decode(&chunks[c], scale);
            }
        }
        for c in 0..C {
            for r in 0..R {
                out[r][c] = V::splat(weights[r][position]).mul_add(vectors[c], out[r][c]);
            }
        }
    }
    put_sums(&out, sums, depth, at);
    C
}
