//! These types are used only below `Registers::run`, which has asked the processor whether it has the instructions. What is read or written through a pointer lies in an array of exactly as many bytes.

use std::arch::x86_64::*;

use super::{LANES, Lanes, Vector};
use crate::registers::Kernel;

/// One register of 512 bits.
#[derive(Clone, Copy)]
pub struct Avx512(__m512);

impl Vector for Avx512 {
    const MANY_REGISTERS: bool = true;

    #[inline(always)]
    fn call<K: Kernel>(kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
        fn avx512<K: Kernel>(kernel: K) -> K::Output {
            kernel.run::<Avx512>()
        }
        // SAFETY: the processor has these instructions.
        unsafe { avx512(kernel) }
    }

    #[inline(always)]
    fn splat(number: f32) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        Avx512(unsafe { _mm512_set1_ps(number) })
    }

    #[inline(always)]
    fn load(numbers: &Lanes) -> Self {
        // SAFETY: the processor has these instructions; they read the 64 bytes of `numbers`.
        Avx512(unsafe { _mm512_loadu_ps(numbers.as_ptr()) })
    }

    #[inline(always)]
    fn load_f32(bytes: &[u8; 4 * LANES]) -> Self {
        // SAFETY: the processor has these instructions; they read the 64 bytes of `bytes`.
        Avx512(unsafe { _mm512_loadu_ps(bytes.as_ptr().cast()) })
    }

    #[inline(always)]
    fn load_bf16(bytes: &[u8; 2 * LANES]) -> Self {
        // SAFETY: the processor has these instructions; they read the 32 bytes of `bytes`.
        unsafe {
            let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(bytes.as_ptr().cast()));
            Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves)))
        }
    }

    #[inline(always)]
    fn load_f16(bytes: &[u8; 2 * LANES]) -> Self {
        // SAFETY: the processor has these instructions; they read the 32 bytes of `bytes`.
        Avx512(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(bytes.as_ptr().cast())) })
    }

    #[inline(always)]
    fn load_i8(bytes: &[u8; LANES]) -> Self {
        // SAFETY: the processor has these instructions; they read the 16 bytes of `bytes`.
        Avx512(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()))) })
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        Avx512(unsafe { _mm512_mul_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        Avx512(unsafe { _mm512_div_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        Avx512(unsafe { _mm512_add_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn lanes(self) -> Lanes {
        let mut lanes = [0.0; LANES];
        // SAFETY: the processor has these instructions; they write the 64 bytes of `lanes`.
        unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), self.0) };
        lanes
    }

    #[inline(always)]
    fn mul_add(self, b: Self, sum: Self) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        Avx512(unsafe { _mm512_fmadd_ps(self.0, b.0, sum.0) })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        Avx512(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        Avx512(unsafe { _mm512_min_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn zero_below(self, x: Self, least: Self) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        Avx512(unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x.0, least.0), self.0) })
    }

    #[inline(always)]
    fn power_of_two(self) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        unsafe {
            let exponents = _mm512_slli_epi32::<23>(_mm512_castps_si512(self.0));
            let one = _mm512_castps_si512(_mm512_set1_ps(1.0));
            Avx512(_mm512_castsi512_ps(_mm512_add_epi32(exponents, one)))
        }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: the processor has these instructions; they touch no memory.
        unsafe {
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(self.0)));
            sum_of_8(_mm256_add_ps(_mm512_castps512_ps256(self.0), high))
        }
    }

    /// All four share each addition: first `[a, b]` and `[c, d]` in halves of a register, then all in quarters.
    #[inline(always)]
    fn sum_4(four: &[Self; 4]) -> [f32; 4] {
        let [Avx512(a), Avx512(b), Avx512(c), Avx512(d)] = *four;
        let mut sums = [0.0; 4];
        // SAFETY: the processor has these instructions; they write the 16 bytes of `sums`.
        unsafe {
            let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b));
            let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xEE>(c, d));
            let four = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xDD>(ab, cd));
            let two = _mm512_add_ps(four, _mm512_permute_ps::<0x4E>(four));
            let one = _mm512_add_ps(two, _mm512_permute_ps::<0xB1>(two));
            _mm_storeu_ps(sums.as_mut_ptr(), _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, one)));
        }
        sums
    }
}

/// Two registers of 256 bits: lanes 0 to 7 and lanes 8 to 15.
#[derive(Clone, Copy)]
pub struct Avx2(__m256, __m256);

impl Vector for Avx2 {
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn call<K: Kernel>(kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn avx2<K: Kernel>(kernel: K) -> K::Output {
            kernel.run::<Avx2>()
        }
        // SAFETY: the processor has these instructions.
        unsafe { avx2(kernel) }
    }

    #[inline(always)]
    fn splat(number: f32) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        unsafe { Avx2(_mm256_set1_ps(number), _mm256_set1_ps(number)) }
    }

    #[inline(always)]
    fn load(numbers: &Lanes) -> Self {
        let start = numbers.as_ptr();
        // SAFETY: the processor has these instructions; they read the 64 bytes of `numbers`.
        unsafe { Avx2(_mm256_loadu_ps(start), _mm256_loadu_ps(start.add(8))) }
    }

    #[inline(always)]
    fn load_f32(bytes: &[u8; 4 * LANES]) -> Self {
        let start = bytes.as_ptr().cast::<f32>();
        // SAFETY: the processor has these instructions; they read the 64 bytes of `bytes`.
        unsafe { Avx2(_mm256_loadu_ps(start), _mm256_loadu_ps(start.add(8))) }
    }

    #[inline(always)]
    fn load_bf16(bytes: &[u8; 2 * LANES]) -> Self {
        let start = bytes.as_ptr().cast::<__m128i>();
        // SAFETY: the processor has these instructions; they read the 32 bytes of `bytes`.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(start));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(start.add(1)));
            Avx2(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)))
        }
    }

    #[inline(always)]
    fn load_f16(bytes: &[u8; 2 * LANES]) -> Self {
        let start = bytes.as_ptr().cast::<__m128i>();
        // SAFETY: the processor has these instructions; they read the 32 bytes of `bytes`.
        unsafe { Avx2(_mm256_cvtph_ps(_mm_loadu_si128(start)), _mm256_cvtph_ps(_mm_loadu_si128(start.add(1)))) }
    }

    #[inline(always)]
    fn load_i8(bytes: &[u8; LANES]) -> Self {
        // SAFETY: the processor has these instructions; they read the 16 bytes of `bytes`.
        unsafe {
            let numbers = _mm_loadu_si128(bytes.as_ptr().cast());
            Avx2(
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(numbers)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(numbers))),
            )
        }
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        unsafe { Avx2(_mm256_mul_ps(self.0, b.0), _mm256_mul_ps(self.1, b.1)) }
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        unsafe { Avx2(_mm256_div_ps(self.0, b.0), _mm256_div_ps(self.1, b.1)) }
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        unsafe { Avx2(_mm256_add_ps(self.0, b.0), _mm256_add_ps(self.1, b.1)) }
    }

    #[inline(always)]
    fn lanes(self) -> Lanes {
        let mut lanes = [0.0; LANES];
        // SAFETY: the processor has these instructions; they write the 64 bytes of `lanes`.
        unsafe {
            _mm256_storeu_ps(lanes.as_mut_ptr(), self.0);
            _mm256_storeu_ps(lanes.as_mut_ptr().add(8), self.1);
        }
        lanes
    }

    #[inline(always)]
    fn mul_add(self, b: Self, sum: Self) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        unsafe { Avx2(_mm256_fmadd_ps(self.0, b.0, sum.0), _mm256_fmadd_ps(self.1, b.1, sum.1)) }
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        unsafe { Avx2(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)) }
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        unsafe { Avx2(_mm256_min_ps(self.0, other.0), _mm256_min_ps(self.1, other.1)) }
    }

    #[inline(always)]
    fn zero_below(self, x: Self, least: Self) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        unsafe {
            let low = _mm256_cmp_ps::<_CMP_NLT_UQ>(x.0, least.0);
            let high = _mm256_cmp_ps::<_CMP_NLT_UQ>(x.1, least.1);
            Avx2(_mm256_and_ps(low, self.0), _mm256_and_ps(high, self.1))
        }
    }

    #[inline(always)]
    fn power_of_two(self) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        unsafe {
            let one = _mm256_castps_si256(_mm256_set1_ps(1.0));
            let low = _mm256_slli_epi32::<23>(_mm256_castps_si256(self.0));
            let high = _mm256_slli_epi32::<23>(_mm256_castps_si256(self.1));
            Avx2(_mm256_castsi256_ps(_mm256_add_epi32(low, one)), _mm256_castsi256_ps(_mm256_add_epi32(high, one)))
        }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: the processor has these instructions; they touch no memory.
        unsafe { sum_of_8(_mm256_add_ps(self.0, self.1)) }
    }
}

/// Adds eight lanes in halves: 8 → 4 → 2 → 1.
///
/// # Safety
/// The processor has AVX.
#[inline(always)]
unsafe fn sum_of_8(lanes: __m256) -> f32 {
    // SAFETY: the processor has these instructions; they touch no memory.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}
