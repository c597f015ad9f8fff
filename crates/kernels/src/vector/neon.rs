//! Every 64-bit Arm processor has these instructions. What is read or written through a pointer lies in an array of
//! exactly as many bytes.

use std::arch::aarch64::*;

use super::{LANES, Lanes, Vector};
use crate::registers::Kernel;

/// Four registers of 128 bits, lanes in order.
#[derive(Clone, Copy)]
pub struct Neon([float32x4_t; 4]);

impl Vector for Neon {
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn call<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Neon>()
    }

    #[inline(always)]
    fn splat(number: f32) -> Self {
        // SAFETY: every 64-bit Arm processor has these instructions; they touch no memory.
        Neon([unsafe { vdupq_n_f32(number) }; 4])
    }

    #[inline(always)]
    fn load(numbers: &Lanes) -> Self {
        let start = numbers.as_ptr();
        // SAFETY: every 64-bit Arm processor has these instructions; they read the 64 bytes of `numbers`.
        unsafe { Neon([vld1q_f32(start), vld1q_f32(start.add(4)), vld1q_f32(start.add(8)), vld1q_f32(start.add(12))]) }
    }

    #[inline(always)]
    fn load_f32(bytes: &[u8; 4 * LANES]) -> Self {
        // SAFETY: every 64-bit Arm processor has these instructions; they touch no memory.
        let mut registers = [unsafe { vdupq_n_f32(0.0) }; 4];
        for (i, register) in registers.iter_mut().enumerate() {
            // SAFETY: every 64-bit Arm processor has these instructions; they read 16 bytes each of the 64 of `bytes`.
            *register = unsafe { vreinterpretq_f32_u8(vld1q_u8(bytes.as_ptr().add(16 * i))) };
        }
        Neon(registers)
    }

    #[inline(always)]
    fn load_bf16(bytes: &[u8; 2 * LANES]) -> Self {
        // SAFETY: every 64-bit Arm processor has these instructions; they read the 32 bytes of `bytes`.
        unsafe {
            let first = vreinterpretq_u16_u8(vld1q_u8(bytes.as_ptr()));
            let second = vreinterpretq_u16_u8(vld1q_u8(bytes.as_ptr().add(16)));
            Neon([
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(first))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(first)),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(second))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(second)),
            ])
        }
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        let (a, b) = (self.0, b.0);
        // SAFETY: every 64-bit Arm processor has these instructions; they touch no memory.
        unsafe { Neon([vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1]), vmulq_f32(a[2], b[2]), vmulq_f32(a[3], b[3])]) }
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        let (a, b) = (self.0, b.0);
        // SAFETY: every 64-bit Arm processor has these instructions; they touch no memory.
        unsafe { Neon([vdivq_f32(a[0], b[0]), vdivq_f32(a[1], b[1]), vdivq_f32(a[2], b[2]), vdivq_f32(a[3], b[3])]) }
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        let (a, b) = (self.0, b.0);
        // SAFETY: every 64-bit Arm processor has these instructions; they touch no memory.
        unsafe { Neon([vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1]), vaddq_f32(a[2], b[2]), vaddq_f32(a[3], b[3])]) }
    }

    #[inline(always)]
    fn lanes(self) -> Lanes {
        let mut lanes = [0.0; LANES];
        for (i, register) in self.0.into_iter().enumerate() {
            // SAFETY: every 64-bit Arm processor has these instructions; they write 16 bytes each of the 64 of `lanes`.
            unsafe { vst1q_f32(lanes.as_mut_ptr().add(4 * i), register) };
        }
        lanes
    }

    #[inline(always)]
    fn mul_add(self, b: Self, sum: Self) -> Self {
        let (a, b, sum) = (self.0, b.0, sum.0);
        // SAFETY: every 64-bit Arm processor has these instructions; they touch no memory.
        unsafe {
            Neon([
                vfmaq_f32(sum[0], a[0], b[0]),
                vfmaq_f32(sum[1], a[1], b[1]),
                vfmaq_f32(sum[2], a[2], b[2]),
                vfmaq_f32(sum[3], a[3], b[3]),
            ])
        }
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // `vmaxq_f32` would give NaN where either is NaN: compare and choose instead.
        let mut registers = other.0;
        for (greater, a) in registers.iter_mut().zip(self.0) {
            // SAFETY: every 64-bit Arm processor has these instructions; they touch no memory.
            *greater = unsafe { vbslq_f32(vcgtq_f32(a, *greater), a, *greater) };
        }
        Neon(registers)
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        let mut registers = other.0;
        for (less, a) in registers.iter_mut().zip(self.0) {
            // SAFETY: every 64-bit Arm processor has these instructions; they touch no memory.
            *less = unsafe { vbslq_f32(vcltq_f32(a, *less), a, *less) };
        }
        Neon(registers)
    }

    #[inline(always)]
    fn zero_below(self, x: Self, least: Self) -> Self {
        let mut registers = self.0;
        for (i, number) in registers.iter_mut().enumerate() {
            // SAFETY: every 64-bit Arm processor has these instructions; they touch no memory.
            *number = unsafe { vbslq_f32(vcltq_f32(x.0[i], least.0[i]), vdupq_n_f32(0.0), *number) };
        }
        Neon(registers)
    }

    #[inline(always)]
    fn power_of_two(self) -> Self {
        let mut registers = self.0;
        for number in &mut registers {
            // SAFETY: every 64-bit Arm processor has these instructions; they touch no memory.
            *number = unsafe {
                let exponents = vshlq_n_u32::<23>(vreinterpretq_u32_f32(*number));
                vreinterpretq_f32_u32(vaddq_u32(exponents, vreinterpretq_u32_f32(vdupq_n_f32(1.0))))
            };
        }
        Neon(registers)
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let [a, b, c, d] = self.0;
        // SAFETY: every 64-bit Arm processor has these instructions; they touch no memory.
        unsafe {
            let four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }
}
