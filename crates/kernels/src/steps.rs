//! The steps of attention one by one, as safe functions over plain slices: what chapter 13 builds attention from.
//!
//! **The order of sums** is that of the kernels: a dot product and the softmax's sum in sixteen lanes, number `i` in
//! lane `i % 16`, the lanes in halves; a weighted sum of rows grows row by row, each multiply-add rounded once.

use crate::registers::{Kernel, vectorized};
use crate::small::Softmax;
use crate::vector::{self, Vector};

/// The dot product of two rows, sixteen sums side by side: a score, if they are a query and a key.
///
/// # Panics
/// If they are not equally long.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "a dot product of two rows");
    vectorized(Dot { a, b })
}

struct Dot<'a> {
    a: &'a [f32],
    b: &'a [f32],
}

impl Kernel for Dot<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<V: Vector>(self) -> f32 {
        vector::dot::<V>(self.a, self.b)
    }
}

/// Turns scores into the softmax of `score * scale`, in place: weights, 1 in sum. Number `i` is added in lane `i % 16`.
pub fn softmax_scaled(scores: &mut [f32], scale: f32) {
    vectorized(Softmax { scores, scale });
}

/// `sums[i] += weight * row[i]`, each rounded once.
///
/// # Panics
/// If they are not equally long.
pub fn add_scaled(sums: &mut [f32], weight: f32, row: &[f32]) {
    assert_eq!(sums.len(), row.len(), "a row is added to a row of sums");
    vectorized(AddScaled { sums, weight, row });
}

struct AddScaled<'a> {
    sums: &'a mut [f32],
    weight: f32,
    row: &'a [f32],
}

impl Kernel for AddScaled<'_> {
    type Output = ();

    /// The numbers do not meet, so there are no lanes to keep in order: the compiler takes as many at once as it likes.
    #[inline(always)]
    fn run<V: Vector>(self) {
        for (sum, x) in self.sums.iter_mut().zip(self.row) {
            *sum = self.weight.mul_add(*x, *sum);
        }
    }
}
