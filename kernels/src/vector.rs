//! Sixteen numbers at a time, in whatever registers the processor has.
//!
//! The kernels are written once, over [`Vector`]. Each implementation rounds every operation the same way and adds lanes
//! in the same order, so all processors give the same bits; only the speed differs. Left to itself, the compiler finds
//! vector instructions for such loops in one build and misses them in the next.

/// Numbers in a vector.
pub(crate) const LANES: usize = 16;

/// Sixteen numbers side by side.
pub(crate) type Lanes = [f32; LANES];

/// Sixteen numbers, and what the kernels do with them.
pub(crate) trait Vector: Copy {
    /// True with registers for a tile of 6 by 4 vectors, false for one of 3 by 2.
    const MANY_REGISTERS: bool;

    /// The same number in every lane.
    fn splat(number: f32) -> Self;
    /// Reads sixteen numbers.
    fn load(numbers: &Lanes) -> Self;
    /// Reads sixteen f32 numbers, little-endian, at any address.
    fn load_f32(bytes: &[u8; 4 * LANES]) -> Self;
    /// Reads sixteen bf16 numbers, little-endian.
    fn load_bf16(bytes: &[u8; 2 * LANES]) -> Self;
    /// Reads sixteen f16 numbers, little-endian.
    fn load_f16(bytes: &[u8; 2 * LANES]) -> Self;
    /// Reads sixteen whole numbers from -128 to 127.
    fn load_i8(bytes: &[u8; LANES]) -> Self;
    /// The numbers.
    fn lanes(self) -> Lanes;
    /// `self * b`.
    fn mul(self, b: Self) -> Self;
    /// `self / b`.
    fn div(self, b: Self) -> Self;
    /// `self + b`.
    fn add(self, b: Self) -> Self;
    /// `self * b + sum`, rounded once.
    fn mul_add(self, b: Self, sum: Self) -> Self;
    /// The greater in each lane: `if self > other { self } else { other }`. So where `self` is NaN it is passed over, where
    /// `other` is NaN it stays, and of 0 and -0 it is `other`.
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

/// The bytes, with zeros behind them where they are too few.
#[inline(always)]
pub(crate) fn whole<const N: usize>(bytes: &[u8]) -> [u8; N] {
    match bytes.first_chunk() {
        Some(whole) => *whole,
        None => {
            let mut whole = [0; N];
            whole[..bytes.len()].copy_from_slice(bytes);
            whole
        }
    }
}

/// The numbers, with zeros behind them where they are too few.
#[inline(always)]
pub(crate) fn padded<const N: usize>(numbers: &[f32]) -> [f32; N] {
    match numbers.first_chunk() {
        Some(whole) => *whole,
        None => {
            let mut whole = [0.0; N];
            whole[..numbers.len()].copy_from_slice(numbers);
            whole
        }
    }
}

/// The sum of each vector.
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

/// Runs where no better one does.
#[derive(Clone, Copy)]
pub(crate) struct Plain(Lanes);

impl Vector for Plain {
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn splat(number: f32) -> Self {
        Plain([number; LANES])
    }

    #[inline(always)]
    fn load(numbers: &Lanes) -> Self {
        Plain(*numbers)
    }

    #[inline(always)]
    fn load_f32(bytes: &[u8; 4 * LANES]) -> Self {
        let mut lanes = [0.0; LANES];
        for (lane, b) in lanes.iter_mut().zip(bytes.as_chunks().0) {
            *lane = f32::from_le_bytes(*b);
        }
        Plain(lanes)
    }

    #[inline(always)]
    fn load_bf16(bytes: &[u8; 2 * LANES]) -> Self {
        let mut lanes = [0.0; LANES];
        for (lane, b) in lanes.iter_mut().zip(bytes.as_chunks().0) {
            *lane = half::bf16::from_le_bytes(*b).to_f32();
        }
        Plain(lanes)
    }

    #[inline(always)]
    fn load_f16(bytes: &[u8; 2 * LANES]) -> Self {
        Plain(f16_lanes(bytes))
    }

    #[inline(always)]
    fn load_i8(bytes: &[u8; LANES]) -> Self {
        Plain(bytes.map(|byte| f32::from(byte as i8)))
    }

    #[inline(always)]
    fn lanes(self) -> Lanes {
        self.0
    }

    #[inline(always)]
    fn mul(mut self, b: Self) -> Self {
        for i in 0..LANES {
            self.0[i] *= b.0[i];
        }
        self
    }

    #[inline(always)]
    fn div(mut self, b: Self) -> Self {
        for i in 0..LANES {
            self.0[i] /= b.0[i];
        }
        self
    }

    #[inline(always)]
    fn add(mut self, b: Self) -> Self {
        for i in 0..LANES {
            self.0[i] += b.0[i];
        }
        self
    }

    #[inline(always)]
    fn mul_add(self, b: Self, mut sum: Self) -> Self {
        for i in 0..LANES {
            sum.0[i] = self.0[i].mul_add(b.0[i], sum.0[i]);
        }
        sum
    }

    #[inline(always)]
    fn max(mut self, other: Self) -> Self {
        for i in 0..LANES {
            self.0[i] = if self.0[i] > other.0[i] { self.0[i] } else { other.0[i] };
        }
        self
    }

    #[inline(always)]
    fn min(mut self, other: Self) -> Self {
        for i in 0..LANES {
            self.0[i] = if self.0[i] < other.0[i] { self.0[i] } else { other.0[i] };
        }
        self
    }

    #[inline(always)]
    fn zero_below(mut self, x: Self, least: Self) -> Self {
        for i in 0..LANES {
            self.0[i] = if x.0[i] < least.0[i] { 0.0 } else { self.0[i] };
        }
        self
    }

    #[inline(always)]
    fn power_of_two(mut self) -> Self {
        for i in 0..LANES {
            self.0[i] = f32::from_bits((self.0[i].to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
        }
        self
    }

    #[inline(always)]
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

#[inline(always)]
fn f16_lanes(bytes: &[u8; 2 * LANES]) -> Lanes {
    let mut lanes = [0.0; LANES];
    for (lane, b) in lanes.iter_mut().zip(bytes.as_chunks().0) {
        *lane = half::f16::from_le_bytes(*b).to_f32();
    }
    lanes
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! These types are used only inside the functions of `Registers::run`, which has asked the processor whether it has
    //! the instructions. What is read or written through a pointer lies in an array of exactly as many bytes.

    use std::arch::x86_64::*;

    use super::{LANES, Lanes, Vector};

    /// One register of 512 bits.
    #[derive(Clone, Copy)]
    pub struct Avx512(__m512);

    impl Vector for Avx512 {
        const MANY_REGISTERS: bool = true;

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
                Avx2(
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
                )
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
}

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::Neon;

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    //! Every 64-bit Arm processor has these instructions. What is read or written through a pointer lies in an array of
    //! exactly as many bytes.

    use std::arch::aarch64::*;

    use super::{LANES, Lanes, Vector};

    /// Four registers of 128 bits, lanes in order.
    #[derive(Clone, Copy)]
    pub struct Neon([float32x4_t; 4]);

    impl Vector for Neon {
        const MANY_REGISTERS: bool = false;

        #[inline(always)]
        fn splat(number: f32) -> Self {
            // SAFETY: every 64-bit Arm processor has these instructions; they touch no memory.
            Neon([unsafe { vdupq_n_f32(number) }; 4])
        }

        #[inline(always)]
        fn load(numbers: &Lanes) -> Self {
            let start = numbers.as_ptr();
            // SAFETY: every 64-bit Arm processor has these instructions; they read the 64 bytes of `numbers`.
            unsafe {
                Neon([vld1q_f32(start), vld1q_f32(start.add(4)), vld1q_f32(start.add(8)), vld1q_f32(start.add(12))])
            }
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
        fn load_f16(bytes: &[u8; 2 * LANES]) -> Self {
            Self::load(&super::f16_lanes(bytes))
        }

        #[inline(always)]
        fn load_i8(bytes: &[u8; LANES]) -> Self {
            Self::load(&bytes.map(|byte| f32::from(byte as i8)))
        }

        #[inline(always)]
        fn mul(self, b: Self) -> Self {
            let (a, b) = (self.0, b.0);
            // SAFETY: every 64-bit Arm processor has these instructions; they touch no memory.
            unsafe {
                Neon([vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1]), vmulq_f32(a[2], b[2]), vmulq_f32(a[3], b[3])])
            }
        }

        #[inline(always)]
        fn div(self, b: Self) -> Self {
            let (a, b) = (self.0, b.0);
            // SAFETY: every 64-bit Arm processor has these instructions; they touch no memory.
            unsafe {
                Neon([vdivq_f32(a[0], b[0]), vdivq_f32(a[1], b[1]), vdivq_f32(a[2], b[2]), vdivq_f32(a[3], b[3])])
            }
        }

        #[inline(always)]
        fn add(self, b: Self) -> Self {
            let (a, b) = (self.0, b.0);
            // SAFETY: every 64-bit Arm processor has these instructions; they touch no memory.
            unsafe {
                Neon([vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1]), vaddq_f32(a[2], b[2]), vaddq_f32(a[3], b[3])])
            }
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
}
