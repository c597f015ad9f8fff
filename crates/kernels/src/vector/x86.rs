//! These types are used only below `registers::vectorized`, which has asked the processor whether it has the
//! instructions. Numbers come and go by value, since the checks of a load through a pointer stay in debug builds, in
//! the innermost loops.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::{LANES, LEAST, Lanes, Vector, mul_add_pairs_in_two};
use crate::registers::Kernel;

/// One register of 512 bits. `BF16`: on a processor that has `VDPBF16PS`.
#[derive(Clone, Copy)]
pub struct Registers512<const BF16: bool>(__m512);

pub type Avx512 = Registers512<false>;
pub type Avx512Bf16 = Registers512<true>;

impl<const BF16: bool> Vector for Registers512<BF16> {
    const MANY_REGISTERS: bool = true;

    #[inline(always)]
    fn call<K: Kernel>(kernel: K) {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
        fn avx512<K: Kernel>(kernel: K) {
            kernel.run::<Avx512>();
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx2,fma,f16c")]
        fn avx512_bf16<K: Kernel>(kernel: K) {
            kernel.run::<Avx512Bf16>();
        }
        // SAFETY: the processor has these instructions.
        unsafe { if BF16 { avx512_bf16(kernel) } else { avx512(kernel) } };
    }

    #[inline(always)]
    fn splat(number: f32) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        Registers512(unsafe { _mm512_set1_ps(number) })
    }

    #[inline(always)]
    fn load(numbers: &Lanes) -> Self {
        // SAFETY: both are 64 bytes that may hold anything.
        Registers512(unsafe { transmute::<Lanes, __m512>(*numbers) })
    }

    #[inline(always)]
    fn load_bf16(bytes: &[u8; 2 * LANES]) -> Self {
        // SAFETY: the processor has these instructions; both sides of the transmute are 32 bytes that may hold
        // anything.
        unsafe {
            let halves = _mm512_cvtepu16_epi32(transmute::<[u8; 32], __m256i>(*bytes));
            Registers512(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves)))
        }
    }

    #[inline(always)]
    fn load_f16(bytes: &[u8; 2 * LANES]) -> Self {
        // SAFETY: as above.
        Registers512(unsafe { _mm512_cvtph_ps(transmute::<[u8; 32], __m256i>(*bytes)) })
    }

    #[inline(always)]
    fn load_i8(bytes: &[u8; LANES]) -> Self {
        // SAFETY: as above, with 16 bytes.
        Registers512(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(transmute::<[u8; 16], __m128i>(*bytes))) })
    }

    lanewise!(Registers512 [0]: mul(b) _mm512_mul_ps, div(b) _mm512_div_ps, add(b) _mm512_add_ps);
    lanewise!(Registers512 [0]: max(other) _mm512_max_ps, min(other) _mm512_min_ps, mul_add(b, sum) _mm512_fmadd_ps);
    lanewise!(Registers512 [0]: second_of_pair() second_16, first_of_pair() first_16, without_tiny() without_tiny_16);

    #[inline(always)]
    fn mul_add_pairs(self, b: Self, sum: Self) -> Self {
        if BF16 {
            // SAFETY: the processor has this instruction; it touches no memory. Both sides of the transmutes are 64 bytes
            // that may hold anything.
            unsafe {
                let [a, b] = [self.0, b.0].map(|pairs| transmute::<__m512, __m512bh>(pairs));
                Registers512(_mm512_dpbf16_ps(sum.0, a, b))
            }
        } else {
            mul_add_pairs_in_two(self, b, sum)
        }
    }

    #[inline(always)]
    fn lanes(self) -> Lanes {
        // SAFETY: both are 64 bytes that may hold anything.
        unsafe { transmute::<__m512, Lanes>(self.0) }
    }

    lanewise!(Registers512 [0]: zero_below(x, least) zero_below_16, power_of_two() power_of_two_16);

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
        let [Registers512(a), Registers512(b), Registers512(c), Registers512(d)] = *four;
        // SAFETY: the processor has these instructions; both sides of the transmute are 16 bytes that may hold
        // anything.
        unsafe {
            let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b));
            let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xEE>(c, d));
            let four = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xDD>(ab, cd));
            let two = _mm512_add_ps(four, _mm512_permute_ps::<0x4E>(four));
            let one = _mm512_add_ps(two, _mm512_permute_ps::<0xB1>(two));
            transmute::<__m128, [f32; 4]>(_mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, one)))
        }
    }
}

/// Two registers of 256 bits: lanes 0 to 7 and lanes 8 to 15.
#[derive(Clone, Copy)]
pub struct Avx2(__m256, __m256);

impl Vector for Avx2 {
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn call<K: Kernel>(kernel: K) {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn avx2<K: Kernel>(kernel: K) {
            kernel.run::<Avx2>();
        }
        // SAFETY: the processor has these instructions.
        unsafe { avx2(kernel) };
    }

    #[inline(always)]
    fn splat(number: f32) -> Self {
        // SAFETY: the processor has these instructions; they touch no memory.
        unsafe { Avx2(_mm256_set1_ps(number), _mm256_set1_ps(number)) }
    }

    #[inline(always)]
    fn load(numbers: &Lanes) -> Self {
        // SAFETY: both are 64 bytes that may hold anything.
        let [low, high] = unsafe { transmute::<Lanes, [__m256; 2]>(*numbers) };
        Avx2(low, high)
    }

    #[inline(always)]
    fn load_bf16(bytes: &[u8; 2 * LANES]) -> Self {
        // SAFETY: the processor has these instructions; both sides of the transmute are 32 bytes that may hold
        // anything.
        unsafe {
            let [low, high] = transmute::<[u8; 32], [__m128i; 2]>(*bytes);
            let (low, high) = (_mm256_cvtepu16_epi32(low), _mm256_cvtepu16_epi32(high));
            Avx2(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)))
        }
    }

    #[inline(always)]
    fn load_f16(bytes: &[u8; 2 * LANES]) -> Self {
        // SAFETY: as above.
        unsafe {
            let [low, high] = transmute::<[u8; 32], [__m128i; 2]>(*bytes);
            Avx2(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
        }
    }

    #[inline(always)]
    fn load_i8(bytes: &[u8; LANES]) -> Self {
        // SAFETY: as above, with 16 bytes.
        unsafe {
            let numbers = transmute::<[u8; 16], __m128i>(*bytes);
            Avx2(
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(numbers)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(numbers))),
            )
        }
    }

    lanewise!(Avx2 [0 1]: mul(b) _mm256_mul_ps, div(b) _mm256_div_ps, add(b) _mm256_add_ps);
    lanewise!(Avx2 [0 1]: max(other) _mm256_max_ps, min(other) _mm256_min_ps, mul_add(b, sum) _mm256_fmadd_ps);

    #[inline(always)]
    fn lanes(self) -> Lanes {
        // SAFETY: both are 64 bytes that may hold anything.
        unsafe { transmute::<[__m256; 2], Lanes>([self.0, self.1]) }
    }

    lanewise!(Avx2 [0 1]: second_of_pair() second_8, first_of_pair() first_8, without_tiny() without_tiny_8);
    lanewise!(Avx2 [0 1]: zero_below(x, least) zero_below_8, power_of_two() power_of_two_8);

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: the processor has these instructions; they touch no memory.
        unsafe { sum_of_8(_mm256_add_ps(self.0, self.1)) }
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn zero_below_16(number: __m512, x: __m512, least: __m512) -> __m512 {
    _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, least), number)
}

#[target_feature(enable = "avx2")]
#[inline]
fn zero_below_8(number: __m256, x: __m256, least: __m256) -> __m256 {
    _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(x, least), number)
}

#[target_feature(enable = "avx512f")]
#[inline]
fn power_of_two_16(number: __m512) -> __m512 {
    let exponents = _mm512_slli_epi32::<23>(_mm512_castps_si512(number));
    _mm512_castsi512_ps(_mm512_add_epi32(exponents, _mm512_castps_si512(_mm512_set1_ps(1.0))))
}

#[target_feature(enable = "avx2")]
#[inline]
fn power_of_two_8(number: __m256) -> __m256 {
    let exponents = _mm256_slli_epi32::<23>(_mm256_castps_si256(number));
    _mm256_castsi256_ps(_mm256_add_epi32(exponents, _mm256_castps_si256(_mm256_set1_ps(1.0))))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn second_16(pairs: __m512) -> __m512 {
    _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32(0xFFFF_0000_u32 as i32)))
}

#[target_feature(enable = "avx2")]
#[inline]
fn second_8(pairs: __m256) -> __m256 {
    _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(pairs), _mm256_set1_epi32(0xFFFF_0000_u32 as i32)))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn first_16(pairs: __m512) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_castps_si512(pairs)))
}

#[target_feature(enable = "avx2")]
#[inline]
fn first_8(pairs: __m256) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(pairs)))
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn without_tiny_16(pairs: __m512) -> __m512 {
    let halves = _mm512_castps_si512(pairs);
    let signs = _mm512_and_si512(halves, _mm512_set1_epi16(i16::MIN));
    let sizes = _mm512_and_si512(halves, _mm512_set1_epi16(i16::MAX));
    let are_tiny = _mm512_cmplt_epi16_mask(sizes, _mm512_set1_epi16(LEAST as i16));
    _mm512_castsi512_ps(_mm512_mask_mov_epi16(halves, are_tiny, signs))
}

#[target_feature(enable = "avx2")]
#[inline]
fn without_tiny_8(pairs: __m256) -> __m256 {
    let halves = _mm256_castps_si256(pairs);
    let sizes = _mm256_and_si256(halves, _mm256_set1_epi16(i16::MAX));
    let are_tiny = _mm256_cmpgt_epi16(_mm256_set1_epi16(LEAST as i16), sizes);
    _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_and_si256(are_tiny, sizes), halves))
}

/// Adds eight lanes in halves: 8 → 4 → 2 → 1.
#[target_feature(enable = "avx2")]
#[inline]
fn sum_of_8(lanes: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}
