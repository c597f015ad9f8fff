//! The widest registers that the processor has: each loop is compiled for all of them, and picked at run time.

use std::sync::OnceLock;

use crate::vector::{self, Vector};

/// The environment variable that names narrower registers to use: `avx512`, `avx2`, or `plain`. The results have the same bits.
const CHOICE: &str = "PAGE_BY_PAGE_REGISTERS";

/// A loop over vectors. `run` and everything it calls are `#[inline(always)]`, so that the compiler sees the whole loop
/// inside the function of [`Vector::call`].
pub(crate) trait Kernel {
    fn run<V: Vector>(self);
}

/// What a processor may have to hold sixteen numbers.
#[derive(Clone, Copy)]
enum Registers {
    /// 32 of 512 bits, and an instruction that multiplies pairs of bf16 numbers.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// 32 of 512 bits.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 16 of 256 bits.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 32 of 128 bits.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// WebAssembly's, of 128 bits, however many the browser's processor has.
    #[cfg(target_feature = "simd128")]
    Simd128,
    /// Whatever the compiler finds.
    Plain,
}

impl Registers {
    /// Those that this processor has, widest first, by their names.
    fn existing() -> Vec<(&'static str, Registers)> {
        let mut existing = Vec::new();
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
            {
                if is_x86_feature_detected!("avx512bf16") {
                    existing.push(("avx512bf16", Registers::Avx512Bf16));
                }
                existing.push(("avx512", Registers::Avx512));
            }
            existing.push(("avx2", Registers::Avx2));
        }
        #[cfg(target_arch = "aarch64")]
        existing.push(("neon", Registers::Neon));
        #[cfg(target_feature = "simd128")]
        existing.push(("simd128", Registers::Simd128));
        existing.push(("plain", Registers::Plain));
        existing
    }

    /// The widest that this processor has, or those that [`CHOICE`] names.
    #[inline]
    fn chosen() -> Registers {
        static CHOSEN: OnceLock<Registers> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let (existing, choice) = (Registers::existing(), std::env::var(CHOICE).unwrap_or_default());
            match existing.iter().find(|(name, _)| choice.is_empty() || *name == choice) {
                Some((_, registers)) => *registers,
                None => {
                    let names = existing.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
                    panic!("{CHOICE}={choice}: this processor has no such registers, but {names}")
                }
            }
        })
    }
}

/// As [`vectorized`], for a kernel that multiplies pairs. Others would only be compiled once more for the instruction.
#[inline]
pub(crate) fn vectorized_pairs(kernel: impl Kernel) {
    match Registers::chosen() {
        #[cfg(target_arch = "x86_64")]
        Registers::Avx512Bf16 => vector::Avx512Bf16::call(kernel),
        _ => vectorized(kernel),
    }
}

/// Runs a kernel with the widest registers that this processor has.
#[inline]
pub(crate) fn vectorized(kernel: impl Kernel) {
    match Registers::chosen() {
        #[cfg(target_arch = "x86_64")]
        Registers::Avx512 | Registers::Avx512Bf16 => vector::Avx512::call(kernel),
        #[cfg(target_arch = "x86_64")]
        Registers::Avx2 => vector::Avx2::call(kernel),
        #[cfg(target_arch = "aarch64")]
        Registers::Neon => vector::Neon::call(kernel),
        #[cfg(target_feature = "simd128")]
        Registers::Simd128 => vector::Simd128::call(kernel),
        Registers::Plain => vector::Plain::call(kernel),
    }
}
