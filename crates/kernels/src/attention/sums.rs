//! What the two ways to compute attention share: packed queries, weights, and sums that grow.

use crate::vector::{Lanes, Vector};

/// `R` packed queries of `depth` vectors each, from query `first` on.
#[inline(always)]
pub(super) fn query_rows<const R: usize>(packed: &[Lanes], depth: usize, first: usize) -> [&[Lanes]; R] {
    let mut rows: [&[Lanes]; R] = [&[]; R];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = &packed[(first + r) * depth..][..depth];
    }
    rows
}

/// What the values are multiplied by.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    /// Those of the first query, from the first value on.
    pub(super) scores: &'a [f32],
    /// From those of a query to those of the next.
    pub(super) stride: usize,
}

impl<'a> Weights<'a> {
    /// Those of `R` queries for the first `n` values: as long as the loops over them, which need not look then whether
    /// a weight is there.
    #[inline(always)]
    pub(super) fn rows<const R: usize>(&self, n: usize) -> [&'a [f32]; R] {
        let mut rows: [&[f32]; R] = [&[]; R];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = &self.scores[r * self.stride..][..n];
        }
        rows
    }
}

/// `C` vectors of the sums of `R` queries, `depth` vectors each, from vector `at` on.
#[inline(always)]
pub(super) fn sums_at<V: Vector, const R: usize, const C: usize>(
    sums: &[Lanes],
    depth: usize,
    at: usize,
) -> [[V; C]; R] {
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
pub(super) fn put_sums<V: Vector, const R: usize, const C: usize>(
    out: &[[V; C]; R],
    sums: &mut [Lanes],
    depth: usize,
    at: usize,
) {
    for (r, out) in out.iter().enumerate() {
        for (c, out) in out.iter().enumerate() {
            sums[r * depth + at + c] = out.lanes();
        }
    }
}
