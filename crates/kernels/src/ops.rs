//! The single steps of a layer: dot product, sum of rows, softmax, gate, norm. Chapter 13 builds attention from the
//! first three.
//!
//! **The order of sums.** A dot product and the softmax's sum of exponentials are taken in sixteen lanes, number `i` in
//! lane `i % 16`, then the lanes in halves; the norm takes the dot product of a row with itself. A weighted sum of rows
//! grows row by row, each multiply-add rounded once. All else has no sums.

use crate::parallel::for_each;
use crate::registers::{Kernel, vectorized};
use crate::vector::{self, LANES, Lanes, Vector, padded};

/// The dot product of two rows, sixteen sums side by side: a score, if they are a query and a key.
///
/// # Panics
/// If they are not equally long.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "a dot product of two rows");
    let mut sum = 0.0;
    vectorized(Dot { a, b, sum: &mut sum });
    sum
}

struct Dot<'a> {
    a: &'a [f32],
    b: &'a [f32],
    sum: &'a mut f32,
}

impl Kernel for Dot<'_> {
    #[inline(always)]
    fn run<V: Vector>(self) {
        *self.sum = vector::dot::<V>(self.a, self.b);
    }
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
    /// The numbers do not meet, so there are no lanes to keep in order: the compiler takes as many at once as it likes.
    #[inline(always)]
    fn run<V: Vector>(self) {
        for (sum, x) in self.sums.iter_mut().zip(self.row) {
            *sum = self.weight.mul_add(*x, *sum);
        }
    }
}

/// `e` to the power of `x`, the same bits on every machine (the platform's `exp` is not).
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; a polynomial gives `e^r` to about one unit in the last place and the
/// exponent takes `2^n`. Below -87 the result is 0.
#[inline(always)]
fn exp<V: Vector>(x: V) -> V {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Numbers of this size have no fraction: adding it rounds, and leaves the integer in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let least = V::splat(-87.0);
    // In this order NaN stays.
    let clamped = V::splat(88.0).min(least.max(x));
    let rounded = clamped.mul(V::splat(std::f32::consts::LOG2_E)).add(V::splat(ROUND));
    let n = rounded.add(V::splat(-ROUND));
    let r = n.mul_add(V::splat(-LN_2_LOW), n.mul_add(V::splat(-LN_2_HIGH), clamped));
    let mut p = V::splat(1.987_569_1e-4);
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5, 1.0, 1.0] {
        p = r.mul_add(p, V::splat(c));
    }
    p.mul(rounded.power_of_two()).zero_below(x, least)
}

pub fn softmax(scores: &mut [f32]) {
    softmax_scaled(scores, 1.0);
}

/// Turns scores into the softmax of `score * scale`, in place: weights, 1 in sum.
pub fn softmax_scaled(scores: &mut [f32], scale: f32) {
    vectorized(Softmax { scores, scale });
}

struct Softmax<'a> {
    scores: &'a mut [f32],
    scale: f32,
}

impl Kernel for Softmax<'_> {
    #[inline(always)]
    fn run<V: Vector>(self) {
        let scale = V::splat(self.scale);
        let (chunks, rest) = self.scores.as_chunks_mut::<LANES>();
        let mut most = V::splat(f32::NEG_INFINITY);
        for chunk in chunks.iter() {
            most = V::load(chunk).mul(scale).max(most);
        }
        // The last few are computed sixteen at a time as well: one by one they would take as long as all others.
        let mut last = padded(rest);
        let few = V::load(&last).mul(scale);
        let max = most.lanes().into_iter().chain(few.lanes().into_iter().take(rest.len()));
        let max = V::splat(-max.fold(f32::NEG_INFINITY, f32::max));

        let mut sums = V::splat(0.0);
        for chunk in chunks.iter_mut() {
            let power = exp(V::load(chunk).mul(scale).add(max));
            *chunk = power.lanes();
            sums = sums.add(power);
        }
        last = exp(few.add(max)).lanes();
        last[rest.len()..].fill(0.0);
        let total = V::splat(sums.add(V::load(&last)).sum());

        for chunk in chunks {
            *chunk = V::load(chunk).div(total).lanes();
        }
        last = V::load(&last).div(total).lanes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// `gate[i] = silu(gate[i]) * up[i]`, where `silu(x) = x / (1 + e^-x)`.
pub fn silu_times(gate: &mut [f32], up: &[f32]) {
    const PER_TASK: usize = 1 << 14;
    // An exponential and a division take as long as about 32 multiply-adds.
    let work = 32 * gate.len();
    for_each(gate.chunks_mut(PER_TASK).zip(up.chunks(PER_TASK)), work, |(gate, up)| {
        vectorized(SiluTimes { gate, up });
    });
}

struct SiluTimes<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for SiluTimes<'_> {
    #[inline(always)]
    fn run<V: Vector>(self) {
        let (gates, gate_rest) = self.gate.as_chunks_mut::<LANES>();
        let (ups, up_rest) = self.up.as_chunks::<LANES>();
        for (gate, up) in gates.iter_mut().zip(ups) {
            *gate = silu::<V>(gate).mul(V::load(up)).lanes();
        }
        let last = silu::<V>(&padded(gate_rest)).mul(V::load(&padded(up_rest))).lanes();
        gate_rest.copy_from_slice(&last[..gate_rest.len()]);
    }
}

#[inline(always)]
fn silu<V: Vector>(x: &Lanes) -> V {
    let x = V::load(x);
    x.div(exp(x.mul(V::splat(-1.0))).add(V::splat(1.0)))
}

/// `row = row / rms(row) * weight` for every row of `x`, `rms` being the root mean square of its numbers.
///
/// `x`: `[n, weight.len()]`.
pub fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    let per_task = ((1 << 14) / weight.len() + 1) * weight.len();
    // A row is read and written for few multiply-adds.
    let work = 8 * x.len();
    for_each(x.chunks_mut(per_task), work, |rows| vectorized(RmsNorm { rows, weight, eps }));
}

struct RmsNorm<'a> {
    rows: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for RmsNorm<'_> {
    #[inline(always)]
    fn run<V: Vector>(self) {
        for row in self.rows.chunks_exact_mut(self.weight.len()) {
            let square = vector::dot::<V>(row, row) / row.len() as f32;
            // Of a sum that has overflowed, the row would be zeros, which nobody could tell from a result.
            let scale = if square.is_finite() { 1.0 / (square + self.eps).sqrt() } else { f32::NAN };
            for (x, weight) in row.iter_mut().zip(self.weight) {
                *x = *x * scale * weight;
            }
        }
    }
}
