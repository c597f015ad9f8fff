//! Sixteen numbers at a time, in whatever registers the processor has.
//!
//! The kernels are written once, over [`Vector`]. Each implementation rounds every operation the same way and adds
//! lanes in the same order, so all processors give the same bits. Left to itself, the compiler finds vector
//! instructions for such loops in one build and misses them in the next.

/// Operations of [`Vector`] that take one instruction for each register: those of a tuple struct of registers. So
/// `lanewise!(Avx2 [0 1]: add(b) _mm256_add_ps)` is
/// `fn add(self, b: Self) -> Self { Avx2(_mm256_add_ps(self.0, b.0), _mm256_add_ps(self.1, b.1)) }`.
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
macro_rules! lanewise {
    ($vector:ident $registers:tt: $($name:ident $others:tt $instruction:ident),*) => {
        $(lanewise!(@ $vector $registers $name $others $instruction);)*
    };
    (@ $vector:ident [$($register:tt)*] $name:ident $others:tt $instruction:ident) => {
        lanewise!(@@ $vector $name $others $instruction: $($register $others)*);
    };
    (@@ $vector:ident $name:ident ($($declared:ident),*) $instruction:ident: $($register:tt ($($other:ident),*))*) => {
        #[inline(always)]
        fn $name(self, $($declared: Self),*) -> Self {
            // SAFETY: the processor has these instructions; they touch no memory.
            unsafe { $vector($($instruction(self.$register, $($other.$register),*)),*) }
        }
    };
}

#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;
#[cfg(target_feature = "simd128")]
mod wasm;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use plain::Plain;
#[cfg(target_feature = "simd128")]
pub(crate) use wasm::Simd128;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512, Avx512Bf16};

use crate::registers::Kernel;

pub(crate) const LANES: usize = 16;

/// The bits of 2^-56 as a bf16 number. Numbers below count as zero where pairs are multiplied. All others are multiples of
/// 2^-63, so every product, and every sum, is zero or at least 2^-126: no subnormal number comes up, and it doesn't matter
/// that `VDPBF16PS` would take it for zero.
pub(crate) const LEAST: u16 = (127 - 56) << 7;

pub(crate) type Lanes = [f32; LANES];

/// Sixteen numbers, and what the kernels do with them.
pub(crate) trait Vector: Copy {
    /// True with registers for a tile of 5 by 5 vectors, false for one of 3 by 2.
    const MANY_REGISTERS: bool;
    /// True if a tile gains nothing. Then all loops take one row and one column at a time, so there is less to compile.
    const ONE_BY_ONE: bool = false;
    /// Columns of a tile.
    const COLUMNS: usize = if Self::ONE_BY_ONE {
        1
    } else if Self::MANY_REGISTERS {
        5
    } else {
        2
    };

    /// Runs a kernel in a function that is compiled for these registers. The processor must have them.
    fn call<K: Kernel>(kernel: K);

    /// The same number in every lane.
    fn splat(number: f32) -> Self;
    fn load(numbers: &Lanes) -> Self;
    /// Reads sixteen bf16 numbers, little-endian.
    fn load_bf16(bytes: &[u8; 2 * LANES]) -> Self;
    /// Reads sixteen f16 numbers, little-endian.
    #[inline(always)]
    fn load_f16(bytes: &[u8; 2 * LANES]) -> Self {
        Self::load(&f16_lanes(bytes))
    }
    /// Reads sixteen whole numbers from -128 to 127.
    #[inline(always)]
    fn load_i8(bytes: &[u8; LANES]) -> Self {
        Self::load(&bytes.map(|byte| f32::from(byte as i8)))
    }
    fn lanes(self) -> Lanes;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
    fn add(self, b: Self) -> Self;
    /// `self * b + sum`, rounded once.
    fn mul_add(self, b: Self, sum: Self) -> Self;
    /// Of two bf16 numbers in each lane, the second: the lane's upper half, above zeros.
    fn second_of_pair(self) -> Self;
    /// Of two bf16 numbers in each lane, the first: the lane's lower half, moved up.
    fn first_of_pair(self) -> Self;
    /// Two bf16 numbers in each lane, with a zero of the same sign in place of each below [`LEAST`].
    fn without_tiny(self) -> Self;
    /// Adds two products to each lane, rounded after each: the second numbers' first. With zeros for numbers below
    /// [`LEAST`], this is what `VDPBF16PS` computes.
    #[inline(always)]
    fn mul_add_pairs(self, b: Self, sum: Self) -> Self {
        mul_add_pairs_in_two(self, b, sum)
    }
    /// The greater in each lane: `if self > other { self } else { other }`. So a NaN in `self` is dropped, a NaN in
    /// `other` stays, and between 0 and -0 the result is `other`.
    fn max(self, other: Self) -> Self;
    /// The less in each lane: `if self < other { self } else { other }`.
    fn min(self, other: Self) -> Self;
    /// Zero in the lanes where `x` is less than `least`, the number itself in the others.
    fn zero_below(self, x: Self, least: Self) -> Self;
    /// `2^n`, where the lowest bits of the number are a whole `n` from -126 to 127.
    fn power_of_two(self) -> Self;
    /// Adds the lanes in halves: 16 → 8 → 4 → 2 → 1.
    fn sum(self) -> f32;
    /// The sums of four vectors, each as [`sum`](Self::sum) does it.
    #[inline(always)]
    fn sum_4(four: &[Self; 4]) -> [f32; 4] {
        [four[0].sum(), four[1].sum(), four[2].sum(), four[3].sum()]
    }
}

/// [`Vector::mul_add_pairs`] by two ordinary multiply-adds.
#[inline(always)]
pub(crate) fn mul_add_pairs_in_two<V: Vector>(a: V, b: V, sum: V) -> V {
    let sum = a.second_of_pair().mul_add(b.second_of_pair(), sum);
    a.first_of_pair().mul_add(b.first_of_pair(), sum)
}

/// The numbers, or bytes, followed by zeros if there are too few.
#[inline(always)]
pub(crate) fn padded<T: Copy + Default, const N: usize>(numbers: &[T]) -> [T; N] {
    match numbers.first_chunk() {
        Some(whole) => *whole,
        None => {
            let mut whole = [T::default(); N];
            whole[..numbers.len()].copy_from_slice(numbers);
            whole
        }
    }
}

/// `R` rows of `len` values each, from row `first` on: a row begins `stride` values after the one before.
#[inline(always)]
pub(crate) fn rows_of<T, const R: usize>(values: &[T], first: usize, stride: usize, len: usize) -> [&[T]; R] {
    let mut rows: [&[T]; R] = [&[]; R];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = &values[(first + r) * stride..][..len];
    }
    rows
}

#[inline(always)]
pub(crate) fn lane_sums<V: Vector, const C: usize>(vectors: &[V; C]) -> [f32; C] {
    let mut sums = [0.0; C];
    let (four_sums, rest_sums) = sums.as_chunks_mut::<4>();
    let (fours, rest) = vectors.as_chunks::<4>();
    for (sums, four) in four_sums.iter_mut().zip(fours) {
        *sums = V::sum_4(four);
    }
    for (sum, vector) in rest_sums.iter_mut().zip(rest) {
        *sum = vector.sum();
    }
    sums
}

/// The dot product of two equally long rows.
#[inline(always)]
pub(crate) fn dot<V: Vector>(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = V::splat(0.0);
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        sums = V::load(a).mul_add(V::load(b), sums);
    }
    if !a_rest.is_empty() {
        sums = V::load(&padded(a_rest)).mul_add(V::load(&padded(b_rest)), sums);
    }
    sums.sum()
}

/// Sixteen f32 numbers, little-endian.
#[inline(always)]
pub(crate) fn f32_lanes(bytes: &[u8; 4 * LANES]) -> Lanes {
    let mut lanes = [0.0; LANES];
    for (lane, b) in lanes.iter_mut().zip(bytes.as_chunks().0) {
        *lane = f32::from_le_bytes(*b);
    }
    lanes
}

/// Sixteen f16 numbers, without instructions for them. Compiled once and not for speed.
#[inline(never)]
fn f16_lanes(bytes: &[u8; 2 * LANES]) -> Lanes {
    let halves = bytes.as_chunks().0;
    std::array::from_fn(|i| half::f16::from_le_bytes(halves[i]).to_f32())
}
