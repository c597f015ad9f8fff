//! The widest registers that the processor has: each loop is compiled for all of them, and picked at run time.

use crate::vector::{self, Plain, Vector};

/// A loop over vectors. `run` and all that it calls are `#[inline(always)]`, so that the compiler sees the loop whole
/// inside each of the functions of [`Registers::run`].
pub(crate) trait Kernel {
    type Output;
    fn run<V: Vector>(self) -> Self::Output;
}

/// What a processor may have to hold sixteen numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Registers {
    /// 32 of 512 bits.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 16 of 256 bits.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 32 of 128 bits.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// Whatever the compiler finds.
    Any,
}

impl Registers {
    /// Widest first.
    pub(crate) const ALL: &[Registers] = &[
        #[cfg(target_arch = "x86_64")]
        Registers::Avx512,
        #[cfg(target_arch = "x86_64")]
        Registers::Avx2,
        #[cfg(target_arch = "aarch64")]
        Registers::Neon,
        Registers::Any,
    ];

    /// The widest that this processor has.
    #[inline]
    pub(crate) fn widest() -> Registers {
        *Registers::ALL.iter().find(|registers| registers.exist()).unwrap_or(&Registers::Any)
    }

    pub(crate) fn exist(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Registers::Avx512 => {
                Registers::Avx2.exist()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Registers::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "aarch64")]
            Registers::Neon => true,
            Registers::Any => true,
        }
    }

    /// Runs a kernel, compiled for these registers.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
        fn avx512<K: Kernel>(kernel: K) -> K::Output {
            kernel.run::<vector::Avx512>()
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn avx2<K: Kernel>(kernel: K) -> K::Output {
            kernel.run::<vector::Avx2>()
        }
        assert!(self.exist(), "this processor has no {self:?}");
        match self {
            // SAFETY: the processor has just said that it has these instructions.
            #[cfg(target_arch = "x86_64")]
            Registers::Avx512 => unsafe { avx512(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Registers::Avx2 => unsafe { avx2(kernel) },
            #[cfg(target_arch = "aarch64")]
            Registers::Neon => kernel.run::<vector::Neon>(),
            Registers::Any => kernel.run::<Plain>(),
        }
    }
}

/// Runs a kernel with the widest registers that this processor has.
#[inline]
pub(crate) fn vectorized<K: Kernel>(kernel: K) -> K::Output {
    Registers::widest().run(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector::{LANES, Lanes};

    #[test]
    fn all_registers_take_the_greater_alike_and_pass_over_nan_on_the_left() {
        struct Greater(Lanes, Lanes);
        impl Kernel for Greater {
            type Output = [u32; LANES];
            #[inline(always)]
            fn run<V: Vector>(self) -> [u32; LANES] {
                V::load(&self.0).max(V::load(&self.1)).lanes().map(f32::to_bits)
            }
        }
        let strange = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1.0, f32::MIN_POSITIVE];
        let left: Lanes = std::array::from_fn(|lane| strange[lane % 8]);
        for shift in 0..8 {
            let right: Lanes = std::array::from_fn(|lane| strange[(lane + shift) % 8]);
            let expected: [f32; LANES] =
                std::array::from_fn(|lane| if left[lane] > right[lane] { left[lane] } else { right[lane] });
            for registers in Registers::ALL.iter().filter(|registers| registers.exist()) {
                let found = registers.run(Greater(left, right));
                assert_eq!(found, expected.map(f32::to_bits), "{registers:?}, shifted by {shift}");
            }
        }
    }
}
