//! The sums of the values, which grow by a few values at a time.

use crate::vector::{Lanes, Vector};

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
