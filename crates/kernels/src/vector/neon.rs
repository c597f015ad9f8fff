//! Every 64-bit Arm processor has these instructions. What is read or written through a pointer lies in an array of
//! exactly as many bytes.

use std::arch::aarch64::*;

use super::{LANES, LEAST, Lanes, Vector};
use crate::registers::Kernel;

/// Four registers of 128 bits, lanes in order.
#[derive(Clone, Copy)]
pub struct Neon(float32x4_t, float32x4_t, float32x4_t, float32x4_t);

impl Vector for Neon {
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn call<K: Kernel>(kernel: K) {
        kernel.run::<Neon>();
    }

    #[inline(always)]
    fn splat(number: f32) -> Self {
        Neon::load(&[number; LANES])
    }

    #[inline(always)]
    fn load(numbers: &Lanes) -> Self {
        let start = numbers.as_ptr();
        // SAFETY: the processor has these instructions; they read the 64 bytes of `numbers`.
        unsafe { Neon(vld1q_f32(start), vld1q_f32(start.add(4)), vld1q_f32(start.add(8)), vld1q_f32(start.add(12))) }
    }

    #[inline(always)]
    fn load_bf16(bytes: &[u8; 2 * LANES]) -> Self {
        // SAFETY: the processor has these instructions; they read the 32 bytes of `bytes`.
        unsafe {
            let first = vreinterpretq_u16_u8(vld1q_u8(bytes.as_ptr()));
            let second = vreinterpretq_u16_u8(vld1q_u8(bytes.as_ptr().add(16)));
            Neon(
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(first))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(first)),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(second))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(second)),
            )
        }
    }

    #[inline(always)]
    fn lanes(self) -> Lanes {
        let mut lanes = [0.0; LANES];
        for (i, register) in [self.0, self.1, self.2, self.3].into_iter().enumerate() {
            // SAFETY: the processor has these instructions; they write 16 bytes each of the 64 of `lanes`.
            unsafe { vst1q_f32(lanes.as_mut_ptr().add(4 * i), register) };
        }
        lanes
    }

    lanewise!(Neon [0 1 2 3]: mul(b) vmulq_f32, div(b) vdivq_f32, add(b) vaddq_f32, mul_add(b, sum) mul_add);
    lanewise!(Neon [0 1 2 3]: max(other) greater, min(other) less);
    lanewise!(Neon [0 1 2 3]: second_of_pair() second, first_of_pair() first, without_tiny() without_tiny);
    lanewise!(Neon [0 1 2 3]: zero_below(x, least) zero_below, power_of_two() power_of_two);

    #[inline(always)]
    fn sum(self) -> f32 {
        let Neon(a, b, c, d) = self;
        // SAFETY: the processor has these instructions; they touch no memory.
        unsafe {
            let four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }
}

// `vmaxq_f32` and `vminq_f32` would give NaN where either is NaN: compare and choose instead.

#[target_feature(enable = "neon")]
#[inline]
fn greater(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcgtq_f32(a, b), a, b)
}

#[target_feature(enable = "neon")]
#[inline]
fn less(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcltq_f32(a, b), a, b)
}

#[target_feature(enable = "neon")]
#[inline]
fn mul_add(a: float32x4_t, b: float32x4_t, sum: float32x4_t) -> float32x4_t {
    vfmaq_f32(sum, a, b)
}

#[target_feature(enable = "neon")]
#[inline]
fn second(pairs: float32x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(pairs), vdupq_n_u32(0xFFFF_0000)))
}

#[target_feature(enable = "neon")]
#[inline]
fn first(pairs: float32x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vshlq_n_u32::<16>(vreinterpretq_u32_f32(pairs)))
}

#[target_feature(enable = "neon")]
#[inline]
fn without_tiny(pairs: float32x4_t) -> float32x4_t {
    let halves = vreinterpretq_u16_f32(pairs);
    let signs = vandq_u16(halves, vdupq_n_u16(0x8000));
    let are_tiny = vcltq_u16(vandq_u16(halves, vdupq_n_u16(0x7FFF)), vdupq_n_u16(LEAST));
    vreinterpretq_f32_u16(vbslq_u16(are_tiny, signs, halves))
}

#[target_feature(enable = "neon")]
#[inline]
fn zero_below(number: float32x4_t, x: float32x4_t, least: float32x4_t) -> float32x4_t {
    vbslq_f32(vcltq_f32(x, least), vdupq_n_f32(0.0), number)
}

#[target_feature(enable = "neon")]
#[inline]
fn power_of_two(number: float32x4_t) -> float32x4_t {
    let exponents = vshlq_n_u32::<23>(vreinterpretq_u32_f32(number));
    vreinterpretq_f32_u32(vaddq_u32(exponents, vreinterpretq_u32_f32(vdupq_n_f32(1.0))))
}
