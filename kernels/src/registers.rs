//! The widest registers that the processor has: each loop is compiled for all of them, and picked at run time.

use std::sync::OnceLock;

use crate::vector::{self, Vector};

/// The environment variable that names narrower registers to use: `avx2`, or `plain`. The results have the same bits; the
/// tests check that they do, and a benchmark can show what the width is worth.
const CHOICE: &str = "PAGE_BY_PAGE_REGISTERS";

/// A loop over vectors. `run` and everything it calls are `#[inline(always)]`, so that the compiler sees the whole loop inside
/// the function of [`Vector::call`].
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
    Plain,
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
        Registers::Plain,
    ];

    /// The widest that this processor has, or those that [`CHOICE`] names.
    #[inline]
    pub(crate) fn chosen() -> Registers {
        static CHOSEN: OnceLock<Registers> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let existing = Registers::ALL.iter().filter(|registers| registers.exist());
            let name = std::env::var(CHOICE).unwrap_or_default();
            let chosen = existing.clone().find(|registers| name.is_empty() || registers.name() == name);
            let names = || existing.clone().map(|registers| registers.name()).collect::<Vec<_>>().join(", ");
            *chosen.unwrap_or_else(|| panic!("{CHOICE}={name}: this processor has no such registers, but {}", names()))
        })
    }

    fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Registers::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Registers::Avx2 => "avx2",
            #[cfg(target_arch = "aarch64")]
            Registers::Neon => "neon",
            Registers::Plain => "plain",
        }
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
            Registers::Plain => true,
        }
    }
}

/// Runs a kernel with the widest registers that this processor has.
#[inline]
pub(crate) fn vectorized<K: Kernel>(kernel: K) -> K::Output {
    match Registers::chosen() {
        #[cfg(target_arch = "x86_64")]
        Registers::Avx512 => vector::Avx512::call(kernel),
        #[cfg(target_arch = "x86_64")]
        Registers::Avx2 => vector::Avx2::call(kernel),
        #[cfg(target_arch = "aarch64")]
        Registers::Neon => vector::Neon::call(kernel),
        Registers::Plain => vector::Plain::call(kernel),
    }
}
