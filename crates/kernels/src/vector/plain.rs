//! Vectors for any processor: x86 before 2013, and Miri. Each operation is a function that is compiled once, because
//! speed doesn't matter here and the time to compile does.

use super::{LANES, LEAST, Lanes, Vector};
use crate::registers::Kernel;

#[derive(Clone, Copy)]
pub(crate) struct Plain(Lanes);

impl Plain {
    #[inline(always)]
    fn zip(mut self, other: Self, operation: impl Fn(f32, f32) -> f32) -> Self {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a = operation(*a, b);
        }
        self
    }
}

impl Vector for Plain {
    const MANY_REGISTERS: bool = false;
    const ONE_BY_ONE: bool = true;

    fn call<K: Kernel>(kernel: K) {
        kernel.run::<Plain>();
    }

    #[inline(always)]
    fn splat(number: f32) -> Self {
        Plain([number; LANES])
    }

    #[inline(always)]
    fn load(numbers: &Lanes) -> Self {
        Plain(*numbers)
    }

    #[inline(never)]
    fn load_bf16(bytes: &[u8; 2 * LANES]) -> Self {
        let halves = bytes.as_chunks().0;
        Plain(std::array::from_fn(|i| half::bf16::from_le_bytes(halves[i]).to_f32()))
    }

    #[inline(always)]
    fn lanes(self) -> Lanes {
        self.0
    }

    #[inline(never)]
    fn mul(self, b: Self) -> Self {
        self.zip(b, |a, b| a * b)
    }

    #[inline(never)]
    fn div(self, b: Self) -> Self {
        self.zip(b, |a, b| a / b)
    }

    #[inline(never)]
    fn add(self, b: Self) -> Self {
        self.zip(b, |a, b| a + b)
    }

    #[inline(never)]
    fn mul_add(self, b: Self, mut sum: Self) -> Self {
        for i in 0..LANES {
            sum.0[i] = self.0[i].mul_add(b.0[i], sum.0[i]);
        }
        sum
    }

    #[inline(never)]
    fn second_of_pair(self) -> Self {
        Plain(self.0.map(|pair| f32::from_bits(pair.to_bits() & 0xFFFF_0000)))
    }

    #[inline(never)]
    fn first_of_pair(self) -> Self {
        Plain(self.0.map(|pair| f32::from_bits(pair.to_bits() << 16)))
    }

    #[inline(never)]
    fn without_tiny(self) -> Self {
        let half = |bits: u32| if bits & 0x7FFF < LEAST.into() { bits & 0x8000 } else { bits };
        Plain(self.0.map(|pair| f32::from_bits(half(pair.to_bits() >> 16) << 16 | half(pair.to_bits() & 0xFFFF))))
    }

    #[inline(never)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(never)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    #[inline(never)]
    fn zero_below(mut self, x: Self, least: Self) -> Self {
        for i in 0..LANES {
            self.0[i] = if x.0[i] < least.0[i] { 0.0 } else { self.0[i] };
        }
        self
    }

    #[inline(never)]
    fn power_of_two(mut self) -> Self {
        for i in 0..LANES {
            self.0[i] = f32::from_bits((self.0[i].to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
        }
        self
    }

    #[inline(never)]
    fn sum(self) -> f32 {
        let Plain(mut lanes) = self;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
        }
        lanes[0]
    }
}
