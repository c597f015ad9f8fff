//! WebAssembly's vectors of 128 bits. They have no fused multiply-add, so it is put together from additions of twice
//! the precision.
//!
//! The product of two `f32` is exact in `f64`, and only the sum with the third number can lose something. If it does,
//! the sum becomes the one of its two neighbours whose last bit is set. Such an `f64` is never halfway between two
//! `f32`, so the second rounding, to `f32`, gives what a single rounding of the exact result would have given: [Boldo &
//! Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd",
//! 2008](https://doi.org/10.1109/TC.2007.70819).

use std::arch::wasm32::*;

use super::{LANES, LEAST, Lanes, Vector};
use crate::registers::Kernel;

/// Four vectors of four numbers, lanes in order.
#[derive(Clone, Copy)]
pub struct Simd128([v128; 4]);

impl Simd128 {
    #[inline(always)]
    fn each(self, b: Self, operation: impl Fn(v128, v128) -> v128) -> Self {
        let (a, b) = (self.0, b.0);
        Simd128([operation(a[0], b[0]), operation(a[1], b[1]), operation(a[2], b[2]), operation(a[3], b[3])])
    }
}

impl Vector for Simd128 {
    const MANY_REGISTERS: bool = false;
    // A multiply-add takes many instructions, and so a load is cheap beside them.
    const ONE_BY_ONE: bool = true;

    #[inline(always)]
    fn call<K: Kernel>(kernel: K) {
        kernel.run::<Simd128>();
    }

    #[inline(always)]
    fn splat(number: f32) -> Self {
        Simd128([f32x4_splat(number); 4])
    }

    #[inline(always)]
    fn load(numbers: &Lanes) -> Self {
        let start = numbers.as_ptr().cast::<v128>();
        // SAFETY: the loads read the 64 bytes of `numbers`, and take any address.
        unsafe {
            Simd128([v128_load(start), v128_load(start.add(1)), v128_load(start.add(2)), v128_load(start.add(3))])
        }
    }

    #[inline(always)]
    fn load_bf16(bytes: &[u8; 2 * LANES]) -> Self {
        let start = bytes.as_ptr().cast::<v128>();
        // SAFETY: the loads read the 32 bytes of `bytes`, and take any address.
        let (first, second) = unsafe { (v128_load(start), v128_load(start.add(1))) };
        Simd128([
            u32x4_shl(u32x4_extend_low_u16x8(first), 16),
            u32x4_shl(u32x4_extend_high_u16x8(first), 16),
            u32x4_shl(u32x4_extend_low_u16x8(second), 16),
            u32x4_shl(u32x4_extend_high_u16x8(second), 16),
        ])
    }

    #[inline(always)]
    fn lanes(self) -> Lanes {
        let mut lanes = [0.0; LANES];
        let start = lanes.as_mut_ptr().cast::<v128>();
        for (i, four) in self.0.into_iter().enumerate() {
            // SAFETY: the stores write 16 bytes each of the 64 of `lanes`.
            unsafe { v128_store(start.add(i), four) };
        }
        lanes
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        self.each(b, |a, b| f32x4_mul(a, b))
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        self.each(b, |a, b| f32x4_div(a, b))
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        self.each(b, |a, b| f32x4_add(a, b))
    }

    #[inline(always)]
    fn mul_add(self, b: Self, sum: Self) -> Self {
        let (a, b, mut sum) = (self.0, b.0, sum.0);
        for i in 0..4 {
            sum[i] = mul_add_4(a[i], b[i], sum[i]);
        }
        Simd128(sum)
    }

    #[inline(always)]
    fn second_of_pair(self) -> Self {
        Simd128(self.0.map(|pairs| v128_and(pairs, u32x4_splat(0xFFFF_0000))))
    }

    #[inline(always)]
    fn first_of_pair(self) -> Self {
        Simd128(self.0.map(|pairs| u32x4_shl(pairs, 16)))
    }

    #[inline(always)]
    fn without_tiny(self) -> Self {
        Simd128(self.0.map(|pairs| {
            let sizes = v128_and(pairs, u16x8_splat(0x7FFF));
            let are_tiny = u16x8_lt(sizes, u16x8_splat(LEAST));
            v128_andnot(pairs, v128_and(are_tiny, sizes))
        }))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.each(other, |a, b| v128_bitselect(a, b, f32x4_gt(a, b)))
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.each(other, |a, b| v128_bitselect(a, b, f32x4_lt(a, b)))
    }

    #[inline(always)]
    fn zero_below(self, x: Self, least: Self) -> Self {
        let below = x.each(least, |x, least| f32x4_lt(x, least));
        self.each(below, |number, below| v128_andnot(number, below))
    }

    #[inline(always)]
    fn power_of_two(self) -> Self {
        Simd128(self.0.map(|number| i32x4_add(i32x4_shl(number, 23), f32x4_splat(1.0))))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let [a, b, c, d] = self.0;
        let four = f32x4_add(f32x4_add(a, c), f32x4_add(b, d));
        let two = f32x4_add(four, upper(four));
        f32x4_extract_lane::<0>(two) + f32x4_extract_lane::<1>(two)
    }
}

/// The upper half in the place of the lower.
#[inline(always)]
fn upper(four: v128) -> v128 {
    i64x2_shuffle::<1, 1>(four, four)
}

/// `a * b + c` of four numbers each, rounded once.
#[inline(always)]
fn mul_add_4(a: v128, b: v128, c: v128) -> v128 {
    let two = |a, b, c| {
        let [a, b, c] = [a, b, c].map(|four| f64x2_promote_low_f32x4(four));
        f32x4_demote_f64x2_zero(mul_add_odd(a, b, c))
    };
    i64x2_shuffle::<0, 2>(two(a, b, c), two(upper(a), upper(b), upper(c)))
}

/// `a * b + c` of two numbers each, which come from `f32`. Where that isn't exact, the result is the one of the two
/// `f64` around it whose last bit is set.
#[inline(always)]
fn mul_add_odd(a: v128, b: v128, c: v128) -> v128 {
    let product = f64x2_mul(a, b);
    let sum = f64x2_add(product, c);
    // TwoSum: `sum + lost` is exactly `product + c`. It is NaN where the sum is not finite.
    let added = f64x2_sub(sum, product);
    let lost = f64x2_add(f64x2_sub(product, f64x2_sub(sum, added)), f64x2_sub(c, added));
    // What was lost, negative where the sum was rounded away from zero.
    let beyond = v128_xor(lost, v128_and(sum, f64x2_splat(-0.0)));
    let rounded_up = f64x2_lt(beyond, f64x2_splat(0.0));
    let rounded = v128_or(rounded_up, f64x2_gt(beyond, f64x2_splat(0.0)));
    // A comparison's "true" is -1 as a whole number, which takes the sum back toward zero.
    let toward_zero = i64x2_add(sum, rounded_up);
    v128_or(toward_zero, v128_and(rounded, i64x2_splat(1)))
}
