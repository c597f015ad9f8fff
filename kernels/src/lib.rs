//! The arithmetic: dot products, matrix products, attention, softmax. The only place with SIMD.
//!
//! **One order for every sum.** Floating-point addition depends on its order, so every sum here is taken in one fixed
//! order, whatever the processor, the number of threads and the number of rows in the call. A dot product keeps
//! sixteen running sums, the *lanes*: number `i` goes to lane `i % 16` by one fused multiply-add, and at the end the
//! lanes are added in halves, 16 → 8 → 4 → 2 → 1:
//!
//! ```text
//!   a · b    lane 0: a[0]·b[0] + a[16]·b[16] + a[32]·b[32] + …  ┐
//!            lane 1: a[1]·b[1] + a[17]·b[17] + …                │ 16 sums → 1
//!            …                                                  ┘
//! ```
//!
//! So a row's result has the same bits whether it is computed alone or with a thousand others, which lets the tests
//! ask for equality instead of a tolerance. Batch invariance is the name of the property; [He, "Defeating
//! Nondeterminism in LLM Inference", 2025](https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/)
//! shows what engines do without it.
//!
//! **One loop for every processor.** The loops are written over vectors of sixteen numbers; `vector.rs` says what those
//! are on AVX-512, on AVX2, on Neon and elsewhere. `vectorized` picks at run time. On x86 processors without fused multiply-add
//! (before 2013) the results are the same and the speed is poor.

mod vector;

use std::marker::PhantomData;
use std::ops::Range;

use rayon::prelude::*;

use vector::{LANES, Lanes, Plain, Vector};

/// Multiply-adds below which waking other threads costs more than it saves.
const PARALLEL_WORK: usize = 1 << 20;

/// How the numbers of a weight are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
}

impl Dtype {
    /// Bytes of one number.
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }
}

/// A weight matrix `[rows, cols]`, row-major and little-endian, in the bytes of the checkpoint.
///
/// A row holds the weights of one output, so `matmul` takes the dot product of each input row with each weight row.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    bytes: &'a [u8],
    dtype: Dtype,
    rows: usize,
    cols: usize,
}

impl<'a> Matrix<'a> {
    /// A matrix over `bytes`, which hold exactly `rows * cols` numbers.
    ///
    /// # Panics
    /// If they do not.
    pub fn new(bytes: &'a [u8], dtype: Dtype, rows: usize, cols: usize) -> Self {
        let len = rows.checked_mul(cols).and_then(|numbers| numbers.checked_mul(dtype.size()));
        assert_eq!(Some(bytes.len()), len, "bytes of a [{rows}, {cols}] {dtype:?} matrix");
        Matrix { bytes, dtype, rows, cols }
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    fn row(&self, row: usize) -> &'a [u8] {
        let size = self.cols * self.dtype.size();
        &self.bytes[row * size..][..size]
    }

    /// Row and column of the first number that is not finite, `None` if all are. Reads the whole matrix, as fast as memory
    /// gives it.
    pub fn first_not_finite(&self) -> Option<(usize, usize)> {
        // A whole number of numbers of any type, so that several threads can look.
        const BYTES_PER_TASK: usize = 1 << 20;
        let finite = |bytes: &[u8]| all_finite(self.dtype, bytes);
        let task = self.bytes.par_chunks(BYTES_PER_TASK).position_first(|bytes| !finite(bytes))?;
        let bytes = self.bytes[task * BYTES_PER_TASK..].chunks(self.dtype.size());
        let number = task * BYTES_PER_TASK / self.dtype.size() + bytes.into_iter().position(|bytes| !finite(bytes))?;
        Some((number / self.cols, number % self.cols))
    }

    /// Converts one row to `f32`. `out`: `[cols]`.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        let size = LANES * self.dtype.size();
        for (out, bytes) in out.chunks_mut(LANES).zip(self.row(row).chunks(size)) {
            out.copy_from_slice(&decode::<Plain>(self.dtype, bytes).lanes()[..out.len()]);
        }
    }
}

/// True if no number among these is NaN or infinite: if none has all bits of its exponent set.
fn all_finite(dtype: Dtype, bytes: &[u8]) -> bool {
    fn most<const N: usize>(bytes: &[u8], exponent: impl Fn([u8; N]) -> u32) -> u32 {
        bytes.as_chunks().0.iter().fold(0, |most, number| most.max(exponent(*number)))
    }
    match dtype {
        Dtype::F32 => most(bytes, |b| u32::from_le_bytes(b) & 0x7f80_0000) < 0x7f80_0000,
        Dtype::F16 => most(bytes, |b| (u16::from_le_bytes(b) & 0x7c00).into()) < 0x7c00,
        Dtype::Bf16 => most(bytes, |b| (u16::from_le_bytes(b) & 0x7f80).into()) < 0x7f80,
    }
}

/// Up to sixteen stored numbers as `f32`; lanes beyond the bytes are zero.
#[inline(always)]
fn decode<V: Vector>(dtype: Dtype, bytes: &[u8]) -> V {
    match dtype {
        Dtype::F32 => V::load_f32(&whole(bytes)),
        Dtype::F16 => V::load_f16(&whole(bytes)),
        Dtype::Bf16 => V::load_bf16(&whole(bytes)),
    }
}

/// The bytes, with zeros behind them where they are too few.
#[inline(always)]
fn whole<const N: usize>(bytes: &[u8]) -> [u8; N] {
    match bytes.first_chunk() {
        Some(whole) => *whole,
        None => {
            let mut whole = [0; N];
            whole[..bytes.len()].copy_from_slice(bytes);
            whole
        }
    }
}

/// The numbers, with zeros behind them where they do not fill sixteen lanes.
#[inline(always)]
fn padded(numbers: &[f32]) -> Lanes {
    match numbers.first_chunk() {
        Some(whole) => *whole,
        None => {
            let mut lanes = [0.0; LANES];
            lanes[..numbers.len()].copy_from_slice(numbers);
            lanes
        }
    }
}

/// The sum of each vector.
#[inline(always)]
fn lane_sums<V: Vector, const C: usize>(vectors: &[V; C]) -> [f32; C] {
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

/// A loop over vectors. `run` and all that it calls are `#[inline(always)]`, so that the compiler sees the loop whole
/// inside each of the functions of [`Registers::run`].
trait Kernel {
    type Output;
    fn run<V: Vector>(self) -> Self::Output;
}

/// What a processor may have to hold sixteen numbers.
#[derive(Clone, Copy, Debug)]
enum Registers {
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
    const ALL: &[Registers] = &[
        #[cfg(target_arch = "x86_64")]
        Registers::Avx512,
        #[cfg(target_arch = "x86_64")]
        Registers::Avx2,
        #[cfg(target_arch = "aarch64")]
        Registers::Neon,
        Registers::Any,
    ];

    fn exist(self) -> bool {
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
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
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
fn vectorized<K: Kernel>(kernel: K) -> K::Output {
    let widest = Registers::ALL.iter().find(|registers| registers.exist());
    widest.unwrap_or(&Registers::Any).run(kernel)
}

/// Runs `task` for every element, on several threads if the work (in multiply-adds) is worth it.
fn for_each<T: Send>(items: impl Iterator<Item = T>, work: usize, task: impl Fn(T) + Sync + Send) {
    if work < PARALLEL_WORK {
        items.for_each(task);
    } else {
        items.collect::<Vec<_>>().into_par_iter().for_each(task);
    }
}

/// The dot product of two equally long rows.
#[inline(always)]
fn dot<V: Vector>(a: &[f32], b: &[f32]) -> f32 {
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

/// `out[r] = x[r] · w[o]` for every row `r` of `x` and every row `o` of `w`.
///
/// `x`: `[n, w.cols]`, `out`: `[n, w.rows]`. The weights are read once, whatever `n` is.
pub fn matmul(x: &[f32], w: &Matrix<'_>, out: &mut [f32]) {
    let n = x.len() / w.cols;
    assert_eq!(x.len(), n * w.cols, "input rows of {} numbers", w.cols);
    assert_eq!(out.len(), n * w.rows, "{n} output rows of {} numbers", w.rows);
    match n {
        0 => {}
        1 => matvec(x, w, out),
        2..=FEW => matmul_few(x, w, out),
        _ => matmul_tiled(x, w, out),
    }
}

/// One input row: the weights stream past it, straight from memory.
fn matvec(x: &[f32], w: &Matrix<'_>, out: &mut [f32]) {
    let rows_per_task = ((1 << 17) / w.cols / 4 + 1) * 4;
    for_each(out.chunks_mut(rows_per_task).enumerate(), w.rows * w.cols, |(task, out)| {
        vectorized(WeightStream { x, w, first: task * rows_per_task, out });
    });
}

/// `out[i] = x · w[first + i]`.
struct WeightStream<'a> {
    x: &'a [f32],
    w: &'a Matrix<'a>,
    first: usize,
    out: &'a mut [f32],
}

impl Kernel for WeightStream<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        // The type of the weights is settled here, outside the loops.
        match self.w.dtype {
            Dtype::F32 => self.run_as::<V>(Dtype::F32),
            Dtype::F16 => self.run_as::<V>(Dtype::F16),
            Dtype::Bf16 => self.run_as::<V>(Dtype::Bf16),
        }
    }
}

impl WeightStream<'_> {
    #[inline(always)]
    fn run_as<V: Vector>(self, dtype: Dtype) {
        let (fours, rest) = self.out.as_chunks_mut::<4>();
        let rest_first = self.first + 4 * fours.len();
        for (i, out) in fours.iter_mut().enumerate() {
            let mut sums = [V::splat(0.0); 4];
            // One row after the other: side by side they would share the loads of `x`, but memory is fastest in order.
            for (c, sums) in sums.iter_mut().enumerate() {
                *sums = add_row(self.x, dtype, self.w.row(self.first + 4 * i + c));
            }
            *out = V::sum_4(&sums);
        }
        for (i, out) in rest.iter_mut().enumerate() {
            *out = add_row::<V>(self.x, dtype, self.w.row(rest_first + i)).sum();
        }
    }
}

/// The running sums of a dot product at its end.
#[inline(always)]
fn add_row<V: Vector>(x: &[f32], dtype: Dtype, row: &[u8]) -> V {
    let size = LANES * dtype.size();
    let (x, x_rest) = x.as_chunks::<LANES>();
    let (row, row_rest) = row.split_at(x.len() * size);
    let mut sums = V::splat(0.0);
    for (x, bytes) in x.iter().zip(row.chunks_exact(size)) {
        prefetch(bytes.as_ptr().wrapping_add(PREFETCH));
        sums = V::load(x).mul_add(decode(dtype, bytes), sums);
    }
    if !x_rest.is_empty() {
        sums = V::load(&padded(x_rest)).mul_add(decode(dtype, row_rest), sums);
    }
    sums
}

/// Bytes between what is added and what is asked for: enough for memory to answer in time.
const PREFETCH: usize = 8192;

/// Asks for bytes that will soon be read. Any address will do.
#[inline(always)]
fn prefetch(_address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(_address.cast());
    }
}

/// Input rows up to which converting the weights into a buffer costs more than it saves.
const FEW: usize = 8;

/// A few input rows: the weights stream past them, straight from memory, and each number that is converted meets all.
fn matmul_few(x: &[f32], w: &Matrix<'_>, out: &mut [f32]) {
    let n = x.len() / w.cols;
    let width = (1 << 16) / w.cols + 1;
    let out = &Columns::new(out, w.rows);
    for_each((0..w.rows).step_by(width), n * w.rows * w.cols, |first| {
        let columns = first..(first + width).min(w.rows);
        vectorized(FewRows { x, n, w, columns, out });
    });
}

/// A few input rows against some weight rows, which are output columns.
struct FewRows<'a> {
    x: &'a [f32],
    n: usize,
    w: &'a Matrix<'a>,
    columns: Range<usize>,
    out: &'a Columns<'a>,
}

impl Kernel for FewRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        match self.w.dtype {
            Dtype::F32 => self.run_as::<V>(Dtype::F32),
            Dtype::F16 => self.run_as::<V>(Dtype::F16),
            Dtype::Bf16 => self.run_as::<V>(Dtype::Bf16),
        }
    }
}

impl FewRows<'_> {
    #[inline(always)]
    fn run_as<V: Vector>(self, dtype: Dtype) {
        let mut first = 0;
        while first < self.n {
            first += match self.n - first {
                1 => self.run_rows::<V, 1>(dtype, first),
                2 => self.run_rows::<V, 2>(dtype, first),
                3 => self.run_rows::<V, 3>(dtype, first),
                4 => self.run_rows::<V, 4>(dtype, first),
                5 if V::MANY_REGISTERS => self.run_rows::<V, 5>(dtype, first),
                6 if V::MANY_REGISTERS => self.run_rows::<V, 6>(dtype, first),
                7 if V::MANY_REGISTERS => self.run_rows::<V, 7>(dtype, first),
                _ if V::MANY_REGISTERS => self.run_rows::<V, 8>(dtype, first),
                _ => self.run_rows::<V, 4>(dtype, first),
            };
        }
    }

    /// `R` input rows from `first` on; returns `R`.
    #[inline(always)]
    fn run_rows<V: Vector, const R: usize>(&self, dtype: Dtype, first: usize) -> usize {
        let cols = self.w.cols;
        let size = LANES * dtype.size();
        let mut rows: [&[Lanes]; R] = [&[]; R];
        let mut rests = [[0.0; LANES]; R];
        for r in 0..R {
            let (row, rest) = self.x[(first + r) * cols..][..cols].as_chunks::<LANES>();
            rows[r] = row;
            rests[r] = padded(rest);
        }
        for column in self.columns.clone() {
            let (whole, rest) = self.w.row(column).split_at(cols / LANES * size);
            let mut sums = [V::splat(0.0); R];
            for (k, bytes) in whole.chunks_exact(size).enumerate() {
                prefetch(bytes.as_ptr().wrapping_add(PREFETCH));
                let weights: V = decode(dtype, bytes);
                for r in 0..R {
                    sums[r] = V::load(&rows[r][k]).mul_add(weights, sums[r]);
                }
            }
            if !rest.is_empty() {
                let weights: V = decode(dtype, rest);
                for r in 0..R {
                    sums[r] = V::load(&rests[r]).mul_add(weights, sums[r]);
                }
            }
            for (r, product) in lane_sums(&sums).iter().enumerate() {
                // SAFETY: this column is this block's alone.
                unsafe { self.out.write(first + r, column, std::slice::from_ref(product)) };
            }
        }
        R
    }
}

/// Rows packed for the tile: `C` rows side by side, sixteen numbers of each in turn, zeros where a row is missing.
///
/// ```text
///   panel[0] = row 0 numbers 0..16, row 1 numbers 0..16, … row C-1 numbers 0..16
///   panel[1] = row 0 numbers 16..32, …
/// ```
type Panel<const C: usize> = [[Lanes; C]];

/// Adds `R * C` dot products to `sums` at once: every number loaded is used `R` or `C` times.
#[inline(always)]
fn tile<V: Vector, const R: usize, const C: usize>(a: [&[Lanes]; R], b: &Panel<C>, sums: &mut [[V; C]; R]) {
    for k in 0..b.len() {
        let mut columns = [V::splat(0.0); C];
        for c in 0..C {
            columns[c] = V::load(&b[k][c]);
        }
        for r in 0..R {
            let row = V::load(&a[r][k]);
            for c in 0..C {
                sums[r][c] = row.mul_add(columns[c], sums[r][c]);
            }
        }
    }
}

/// Many input rows: a block of weights is converted once into a buffer that stays in the cache, then meets every row.
fn matmul_tiled(x: &[f32], w: &Matrix<'_>, out: &mut [f32]) {
    let n = x.len() / w.cols;
    // About 256 KiB of converted weights at a time, a multiple of the widest tile.
    let width = ((1 << 16) / w.cols / 4).max(1) * 4;
    let out = &Columns::new(out, w.rows);
    for_each((0..w.rows).step_by(width), n * w.rows * w.cols, |first| {
        let columns = first..(first + width).min(w.rows);
        vectorized(TileBlock { x, n, w, columns, out });
    });
}

/// All input rows against some weight rows, which are output columns.
struct TileBlock<'a> {
    x: &'a [f32],
    n: usize,
    w: &'a Matrix<'a>,
    columns: Range<usize>,
    out: &'a Columns<'a>,
}

impl Kernel for TileBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        if V::MANY_REGISTERS { self.run_columns::<V, 4>() } else { self.run_columns::<V, 2>() }
    }
}

impl TileBlock<'_> {
    #[inline(always)]
    fn run_columns<V: Vector, const C: usize>(self) {
        let depth = self.w.cols.div_ceil(LANES);
        let mut weights = vec![[[0.0; LANES]; C]; self.columns.len().div_ceil(C) * depth];
        for (o, row) in self.columns.clone().enumerate() {
            pack_weights::<V, C>(self.w, row, o % C, &mut weights[o / C * depth..][..depth]);
        }
        let mut first = 0;
        while first < self.n {
            first += match self.n - first {
                1 => self.run_rows::<V, 1, C>(first, &weights),
                2 => self.run_rows::<V, 2, C>(first, &weights),
                3 => self.run_rows::<V, 3, C>(first, &weights),
                4 | 5 if V::MANY_REGISTERS => self.run_rows::<V, 4, C>(first, &weights),
                _ if V::MANY_REGISTERS => self.run_rows::<V, 6, C>(first, &weights),
                _ => self.run_rows::<V, 3, C>(first, &weights),
            };
        }
    }

    /// `R` input rows from `first` on; returns `R`.
    #[inline(always)]
    fn run_rows<V: Vector, const R: usize, const C: usize>(&self, first: usize, weights: &Panel<C>) -> usize {
        let cols = self.w.cols;
        let depth = cols.div_ceil(LANES);
        let mut rows: [&[Lanes]; R] = [&[]; R];
        let mut rests = [[0.0; LANES]; R];
        for r in 0..R {
            let (row, rest) = self.x[(first + r) * cols..][..cols].as_chunks::<LANES>();
            rows[r] = row;
            rests[r] = padded(rest);
        }
        for (q, weights) in weights.chunks_exact(depth).enumerate() {
            let (whole, rest) = weights.split_at(cols / LANES);
            let mut sums = [[V::splat(0.0); C]; R];
            tile(rows, whole, &mut sums);
            if !rest.is_empty() {
                tile(rests.each_ref().map(std::slice::from_ref), rest, &mut sums);
            }
            let column = self.columns.start + q * C;
            let width = C.min(self.columns.end - column);
            for (r, sums) in sums.iter().enumerate() {
                let products = lane_sums(sums);
                // SAFETY: these columns are this block's alone. A store of known length is one instruction.
                unsafe {
                    match width == C {
                        true => self.out.write(first + r, column, &products),
                        false => self.out.write(first + r, column, &products[..width]),
                    }
                }
            }
        }
        R
    }
}

#[inline(always)]
fn pack_weights<V: Vector, const C: usize>(w: &Matrix<'_>, row: usize, at: usize, panel: &mut Panel<C>) {
    let dtype = w.dtype;
    let size = LANES * dtype.size();
    for (packed, bytes) in panel.iter_mut().zip(w.row(row).chunks(size)) {
        packed[at] = decode::<V>(dtype, bytes).lanes();
    }
}

/// An output `[n, width]` that several tasks fill at once, each its own columns.
struct Columns<'a> {
    start: *mut f32,
    rows: usize,
    width: usize,
    _out: PhantomData<&'a mut [f32]>,
}

// SAFETY: `write` is the only access, and its callers keep to columns of their own. The numbers live as long as the
// `PhantomData` borrows them.
unsafe impl Sync for Columns<'_> {}

impl<'a> Columns<'a> {
    fn new(out: &'a mut [f32], width: usize) -> Self {
        let rows = out.len().checked_div(width).unwrap_or(0);
        Columns { start: out.as_mut_ptr(), rows, width, _out: PhantomData }
    }

    /// Writes `values` into row `row`, from column `column` on.
    ///
    /// # Safety
    /// No other thread touches these places at the same time.
    #[inline(always)]
    unsafe fn write(&self, row: usize, column: usize, values: &[f32]) {
        assert!(row < self.rows && column <= self.width && values.len() <= self.width - column);
        // Nothing wraps: by the check, this is inside `rows * width` numbers, and those lie inside the output.
        let at = row * self.width + column;
        // SAFETY: in bounds by the check above, exclusive by the caller's word; `values` cannot overlap an output.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.start.add(at), values.len()) };
    }
}

/// How attention divides a row into heads.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads; each serves `n_heads / n_kv_heads` query heads (grouped-query attention).
    pub n_kv_heads: usize,
    /// Numbers in a head.
    pub head_dim: usize,
}

/// Causal attention of the newest `n` tokens of a text over all `len` tokens of it.
///
/// `q` and `out`: `[n, n_heads * head_dim]`; `k` and `v`: `[len, n_kv_heads * head_dim]`. Row `i` of `q` is the token at
/// position `len - n + i` and sees the positions up to its own.
pub fn attend(heads: Heads, q: &[f32], k: &[f32], v: &[f32], out: &mut [f32]) {
    let q_width = heads.n_heads * heads.head_dim;
    let kv_width = heads.n_kv_heads * heads.head_dim;
    let n = q.len() / q_width;
    let len = k.len() / kv_width;
    assert!(n <= len && q.len() == n * q_width && out.len() == q.len() && v.len() == k.len());

    const ROWS_PER_TASK: usize = 128;
    let out = &Columns::new(out, q_width);
    let tasks = (0..n).step_by(ROWS_PER_TASK).flat_map(|first| (0..heads.n_kv_heads).map(move |h| (h, first)));
    for_each(tasks, n * len * q_width, |(kv_head, first)| {
        let rows = first..(first + ROWS_PER_TASK).min(n);
        vectorized(Attention { heads, kv_head, rows, before: len - n, q, k, v, out });
    });
}

/// Attention of some rows in the query heads that share one key/value head.
struct Attention<'a> {
    heads: Heads,
    kv_head: usize,
    rows: Range<usize>,
    /// Tokens before row 0.
    before: usize,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    out: &'a Columns<'a>,
}

impl Attention<'_> {
    /// Query heads that share the key/value head.
    fn group(&self) -> usize {
        self.heads.n_heads / self.heads.n_kv_heads
    }

    /// A query is one row in one head. Those of one row come together, as they see the same positions.
    fn row_and_head(&self, query: usize) -> (usize, usize) {
        (self.rows.start + query / self.group(), self.kv_head * self.group() + query % self.group())
    }

    /// How many positions a query sees: those before it, and its own.
    fn seen(&self, query: usize) -> usize {
        self.before + self.row_and_head(query).0 + 1
    }

    fn query(&self, query: usize) -> &[f32] {
        let (row, head) = self.row_and_head(query);
        &self.q[(row * self.heads.n_heads + head) * self.heads.head_dim..][..self.heads.head_dim]
    }

    /// The head's part of a row of `k` or `v`.
    #[inline(always)]
    fn head_of<'x>(&self, x: &'x [f32], position: usize) -> &'x [f32] {
        &x[(position * self.heads.n_kv_heads + self.kv_head) * self.heads.head_dim..][..self.heads.head_dim]
    }

    fn write(&self, query: usize, sums: &[f32]) {
        let (row, head) = self.row_and_head(query);
        // SAFETY: these rows, in the heads of this group, are this task's alone.
        unsafe { self.out.write(row, head * self.heads.head_dim, sums) };
    }

    fn scale(&self) -> f32 {
        1.0 / (self.heads.head_dim as f32).sqrt()
    }
}

impl Kernel for Attention<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        // Packing the keys and values pays when several rows meet them.
        match self.rows.len() {
            1 => self.run_one_row::<V>(),
            _ if V::MANY_REGISTERS => self.run_rows::<V, 4>(),
            _ => self.run_rows::<V, 2>(),
        }
    }
}

impl Attention<'_> {
    /// Reads keys and values where they lie, each once for all queries of the row.
    #[inline(always)]
    fn run_one_row<V: Vector>(&self) {
        let dim = self.heads.head_dim;
        let group = self.group();
        let seen = self.seen(0);
        let mut scores = vec![0.0; group * seen];
        for position in 0..seen {
            let key = self.head_of(self.k, position);
            for i in 0..group {
                scores[i * seen + position] = dot::<V>(self.query(i), key);
            }
        }
        for scores in scores.chunks_exact_mut(seen) {
            softmax_scaled::<V>(scores, self.scale());
        }
        // Each output is one sum over the positions, in order.
        let mut sums = vec![0.0; group * dim];
        for position in 0..seen {
            let value = self.head_of(self.v, position);
            for (i, sums) in sums.chunks_exact_mut(dim).enumerate() {
                add_scaled(sums, scores[i * seen + position], value);
            }
        }
        for (i, sums) in sums.chunks_exact(dim).enumerate() {
            self.write(i, sums);
        }
    }

    /// `T` queries meet `T` keys at a time, then `T` vectors of the values.
    #[inline(always)]
    fn run_rows<V: Vector, const T: usize>(&self) {
        let dim = self.heads.head_dim;
        let depth = dim.div_ceil(LANES);
        let queries = self.rows.len() * self.group();
        let longest = self.seen(queries - 1);

        let mut keys = vec![[[0.0; LANES]; T]; longest.div_ceil(T) * depth];
        let mut values = vec![[0.0; LANES]; longest * depth];
        for position in 0..longest {
            let panel = &mut keys[position / T * depth..][..depth];
            for (packed, key) in panel.iter_mut().zip(self.head_of(self.k, position).chunks(LANES)) {
                packed[position % T] = padded(key);
            }
            pack(self.head_of(self.v, position), &mut values[position * depth..][..depth]);
        }

        let mut packed = vec![[0.0; LANES]; T * depth];
        let mut scores = vec![0.0; T * longest.next_multiple_of(T)];
        let mut sums = vec![[0.0; LANES]; T * depth];
        let stride = longest.next_multiple_of(T);
        for first in (0..queries).step_by(T) {
            let count = T.min(queries - first);
            for i in 0..count {
                pack(self.query(first + i), &mut packed[i * depth..][..depth]);
            }
            let mut rows: [&[Lanes]; T] = [&[]; T];
            for i in 0..T {
                rows[i] = &packed[i * depth..][..depth];
            }
            let panels = self.seen(first + count - 1).div_ceil(T);
            for (p, keys) in keys.chunks_exact(depth).take(panels).enumerate() {
                let mut products = [[V::splat(0.0); T]; T];
                tile(rows, keys, &mut products);
                for (i, products) in products.iter().enumerate() {
                    scores[i * stride + p * T..][..T].copy_from_slice(&lane_sums(products));
                }
            }
            for i in 0..count {
                softmax_scaled::<V>(&mut scores[i * stride..][..self.seen(first + i)], self.scale());
            }

            // Each output is one sum over the positions, in order. What all queries see, they add together.
            let shared = self.seen(first);
            let mut weights: [&[f32]; T] = [&[]; T];
            for i in 0..T {
                weights[i] = &scores[i * stride..][..shared];
            }
            let mut at = 0;
            while at < depth {
                at += match depth - at {
                    1 => weighted_sum::<V, T, 1>(weights, &values, at, &mut sums),
                    2 | 3 if T > 2 => weighted_sum::<V, T, 2>(weights, &values, at, &mut sums),
                    _ => weighted_sum::<V, T, T>(weights, &values, at, &mut sums),
                };
            }
            for i in 0..count {
                let sums = sums[i * depth..][..depth].as_flattened_mut();
                for position in shared..self.seen(first + i) {
                    add_scaled(&mut sums[..dim], scores[i * stride + position], self.head_of(self.v, position));
                }
                self.write(first + i, &sums[..dim]);
            }
        }
    }
}

/// Puts a row into whole vectors, zeros behind it.
#[inline(always)]
fn pack(row: &[f32], packed: &mut [Lanes]) {
    for (packed, numbers) in packed.iter_mut().zip(row.chunks(LANES)) {
        *packed = padded(numbers);
    }
}

/// `C` vectors of the outputs of `R` queries, from vector `at` on: sums over the values, weighted. Returns `C`.
#[inline(always)]
fn weighted_sum<V: Vector, const R: usize, const C: usize>(
    weights: [&[f32]; R],
    values: &[Lanes],
    at: usize,
    sums: &mut [Lanes],
) -> usize {
    let depth = sums.len() / R;
    let mut out = [[V::splat(0.0); C]; R];
    for (position, value) in values.chunks_exact(depth).take(weights[0].len()).enumerate() {
        let value = &value[at..at + C];
        for r in 0..R {
            let weight = V::splat(weights[r][position]);
            for c in 0..C {
                out[r][c] = weight.mul_add(V::load(&value[c]), out[r][c]);
            }
        }
    }
    for r in 0..R {
        for c in 0..C {
            sums[r * depth + at + c] = out[r][c].lanes();
        }
    }
    C
}

/// `sums += weight * row`.
#[inline(always)]
fn add_scaled(sums: &mut [f32], weight: f32, row: &[f32]) {
    for (sum, x) in sums.iter_mut().zip(row) {
        *sum = weight.mul_add(*x, *sum);
    }
}

/// `e` to the power of `x`, the same bits on every machine (the platform's `exp` is not).
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; a polynomial gives `e^r` to about one unit in the last place and the
/// exponent takes `2^n`. Below -87 the result is 0.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Numbers of this size have no fraction: adding it rounds, and leaves the integer in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.0, 88.0);
    let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, clamped));
    let mut p = 1.987_569_1e-4;
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5, 1.0, 1.0] {
        p = r.mul_add(p, c);
    }
    let scale = f32::from_bits((rounded.to_bits() << 23).wrapping_add(127 << 23));
    if x < -87.0 { 0.0 } else { p * scale }
}

/// The softmax of `scores * scale`.
#[inline(always)]
fn softmax_scaled<V: Vector>(scores: &mut [f32], scale: f32) {
    for score in scores.iter_mut() {
        *score *= scale;
    }
    let (chunks, rest) = scores.as_chunks::<LANES>();
    let mut most = V::splat(f32::NEG_INFINITY);
    for chunk in chunks {
        most = V::load(chunk).max(most);
    }
    let max = most.lanes().into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, f32::max);
    for score in scores.iter_mut() {
        *score = exp(*score - max);
    }
    let (chunks, rest) = scores.as_chunks::<LANES>();
    let mut sums = V::splat(0.0);
    for chunk in chunks {
        sums = V::load(chunk).mul_add(V::splat(1.0), sums);
    }
    let total = V::load(&padded(rest)).mul_add(V::splat(1.0), sums).sum();
    for score in scores {
        *score /= total;
    }
}

/// Turns scores into probabilities, in place.
pub fn softmax(scores: &mut [f32]) {
    vectorized(Softmax { scores });
}

struct Softmax<'a> {
    scores: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        softmax_scaled::<V>(self.scores, 1.0);
    }
}

/// `gate[i] = silu(gate[i]) * up[i]`, where `silu(x) = x / (1 + e^-x)`.
pub fn silu_times(gate: &mut [f32], up: &[f32]) {
    const PER_TASK: usize = 1 << 14;
    // An exponential and a division take as long as about 32 multiply-adds.
    let work = 32 * gate.len();
    for_each(gate.chunks_mut(PER_TASK).zip(up.chunks(PER_TASK)), work, |(gate, up)| {
        vectorized(SiluTimes { gate, up });
    });
}

struct SiluTimes<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for SiluTimes<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        for (g, u) in self.gate.iter_mut().zip(self.up) {
            *g = *g / (1.0 + exp(-*g)) * u;
        }
    }
}

/// `row = row / rms(row) * weight` for every row of `x`, `rms` being the root mean square of its numbers.
///
/// `x`: `[n, weight.len()]`.
pub fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    let per_task = ((1 << 14) / weight.len() + 1) * weight.len();
    // A row is read and written for few multiply-adds.
    let work = 8 * x.len();
    for_each(x.chunks_mut(per_task), work, |rows| vectorized(RmsNorm { rows, weight, eps }));
}

struct RmsNorm<'a> {
    rows: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        for row in self.rows.chunks_exact_mut(self.weight.len()) {
            let scale = 1.0 / (dot::<V>(row, row) / row.len() as f32 + self.eps).sqrt();
            for (x, weight) in row.iter_mut().zip(self.weight) {
                *x = *x * scale * weight;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let mut x = seed.wrapping_mul(2654435761).max(1);
        (0..n)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 17;
                x ^= x << 5;
                x as f32 / u32::MAX as f32 - 0.5
            })
            .collect()
    }

    fn bytes(dtype: Dtype, values: &[f32]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|v| match dtype {
                Dtype::F32 => v.to_le_bytes().to_vec(),
                Dtype::F16 => half::f16::from_f32(*v).to_le_bytes().to_vec(),
                Dtype::Bf16 => half::bf16::from_f32(*v).to_le_bytes().to_vec(),
            })
            .collect()
    }

    #[test]
    fn exp_is_close_and_never_negative() {
        for i in -9000..880 {
            let x = i as f32 / 10.0;
            let (ours, exact) = (exp(x) as f64, (x as f64).exp());
            assert!(ours >= 0.0 && (ours - exact).abs() <= 2e-7 * exact + 1e-37, "exp({x}) = {ours}, not {exact}");
        }
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_among_others() {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            for (n, rows, cols) in [
                (2, 3, 7),
                (3, 70, 48),
                (4, 6, 40),
                (5, 9, 17),
                (6, 4, 16),
                (7, 5, 33),
                (8, 300, 250),
                (9, 130, 64),
                (13, 1100, 200),
            ] {
                let w = bytes(dtype, &numbers(rows * cols, 1));
                let w = Matrix::new(&w, dtype, rows, cols);
                let x = numbers(n * cols, 2);
                let mut together = vec![0.0; n * rows];
                matmul(&x, &w, &mut together);
                for r in 0..n {
                    let mut alone = vec![0.0; rows];
                    matmul(&x[r * cols..][..cols], &w, &mut alone);
                    assert_eq!(alone, together[r * rows..][..rows], "{dtype:?} [{rows}, {cols}], row {r} of {n}");
                }
            }
        }
    }

    #[test]
    fn all_registers_give_the_same_bits() {
        let (n, rows, cols) = (13, 37, 75);
        let heads = Heads { n_heads: 6, n_kv_heads: 2, head_dim: 20 };
        let (q, k, v) = (numbers(n * 120, 4), numbers(n * 40, 5), numbers(n * 40, 6));
        let x = numbers(n * cols, 2);
        let results = |registers: Registers| {
            let mut results = Vec::new();
            for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
                let w = bytes(dtype, &numbers(rows * cols, 1));
                let w = &Matrix::new(&w, dtype, rows, cols);
                let mut out = vec![0.0; rows];
                registers.run(WeightStream { x: &x[..cols], w, first: 0, out: &mut out });
                results.push(out);
                for n in 1..=FEW {
                    let mut out = vec![0.0; n * rows];
                    registers.run(FewRows { x: &x, n, w, columns: 0..rows, out: &Columns::new(&mut out, rows) });
                    results.push(out);
                }
                let mut out = vec![0.0; n * rows];
                registers.run(TileBlock { x: &x, n, w, columns: 0..rows, out: &Columns::new(&mut out, rows) });
                results.push(out);
            }
            for rows in [0..n, 3..4] {
                let mut out = vec![0.0; n * 120];
                let (q, k, v, kv_head, before) = (&q, &k, &v, 1, 0);
                registers.run(Attention { heads, kv_head, rows, before, q, k, v, out: &Columns::new(&mut out, 120) });
                results.push(out);
            }
            let mut scores = numbers(99, 3);
            registers.run(Softmax { scores: &mut scores });
            results.push(scores);
            let mut gate = numbers(99, 7);
            registers.run(SiluTimes { gate: &mut gate, up: &x[..99] });
            results.push(gate);
            results
        };
        for registers in Registers::ALL.iter().filter(|registers| registers.exist()) {
            assert_eq!(results(*registers), results(Registers::Any), "{registers:?}");
        }
    }

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

    #[test]
    fn a_softmax_with_a_number_that_is_none_gives_only_such() {
        for at in [0, 15, 16, 40] {
            for registers in Registers::ALL.iter().filter(|registers| registers.exist()) {
                let mut scores = numbers(41, 3);
                scores[at] = f32::NAN;
                registers.run(Softmax { scores: &mut scores });
                assert!(scores.iter().all(|score| score.is_nan()), "{registers:?}, NaN at {at}: {scores:?}");
            }
        }
    }

    #[test]
    fn the_first_number_that_is_not_finite_is_found() {
        let (rows, cols) = (300, 1999);
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let mut values = numbers(rows * cols, 1);
            values[..2].copy_from_slice(&[f32::MIN_POSITIVE, -0.0]);
            let found = |values: &[f32]| Matrix::new(&bytes(dtype, values), dtype, rows, cols).first_not_finite();
            assert_eq!(found(&values), None, "{dtype:?}");
            let places = [(299, 1998), (263, 7), (262, 570), (0, 1), (0, 0)];
            for (row, col) in places {
                for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    values[row * cols + col] = number;
                    assert_eq!(found(&values), Some((row, col)), "{dtype:?} {number}");
                }
            }
        }
    }

    #[test]
    fn several_threads_fill_one_output() {
        let (n, rows, cols) = (5, 10, 21);
        let heads = Heads { n_heads: 4, n_kv_heads: 2, head_dim: 6 };
        let (x, w) = (numbers(n * cols, 2), bytes(Dtype::Bf16, &numbers(rows * cols, 1)));
        let (q, k, v) = (numbers(n * 24, 4), numbers(n * 12, 5), numbers(n * 12, 6));
        let (x, w, (q, k, v)) = (&x[..], &Matrix::new(&w, Dtype::Bf16, rows, cols), (&q[..], &k[..], &v[..]));
        // Every task in a thread of its own, or one after the other.
        let results = |in_threads: bool| {
            let (mut few, mut tiled, mut attended) = (vec![0.0; n * rows], vec![0.0; n * rows], vec![0.0; n * 24]);
            let (few_out, tiled_out) = (&Columns::new(&mut few, rows), &Columns::new(&mut tiled, rows));
            let attended_out = &Columns::new(&mut attended, 24);
            std::thread::scope(|scope| {
                let mut threads = Vec::new();
                for columns in [0..4, 4..7, 7..10] {
                    threads.push(scope.spawn(move || {
                        Registers::Any.run(FewRows { x, n, w, columns: columns.clone(), out: few_out });
                        Registers::Any.run(TileBlock { x, n, w, columns, out: tiled_out });
                    }));
                    if !in_threads {
                        threads.pop().map(|thread| thread.join());
                    }
                }
                for (kv_head, rows) in [(0, 0..3), (1, 0..3), (0, 3..5), (1, 3..5)] {
                    threads.push(scope.spawn(move || {
                        Registers::Any.run(Attention { heads, kv_head, rows, before: 0, q, k, v, out: attended_out });
                    }));
                    if !in_threads {
                        threads.pop().map(|thread| thread.join());
                    }
                }
            });
            [few, tiled, attended]
        };
        assert_eq!(results(true), results(false));
        assert!(results(true).iter().flatten().all(|number| *number != 0.0), "all of the output is filled");
    }

    #[test]
    #[should_panic(expected = "bytes of a [9223372036854775809, 2] F32 matrix")]
    fn a_matrix_whose_size_wraps_is_refused() {
        // 2 * (2^63 + 1) numbers wrap to 2, of 4 bytes each.
        Matrix::new(&[0; 8], Dtype::F32, (1 << 63) + 1, 2);
    }

    #[test]
    fn columns_that_are_not_of_the_output_are_refused() {
        let mut out = [0.0; 6];
        let out = Columns::new(&mut out, 2);
        // 2 * (2^63 + 1) wraps to 2.
        for (row, column, n) in [(3, 0, 1), (0, 2, 1), (0, 1, 2), (0, usize::MAX, 2), ((1 << 63) + 1, 0, 1)] {
            // SAFETY: one thread only.
            let write = std::panic::AssertUnwindSafe(|| unsafe { out.write(row, column, &[1.0, 1.0][..n]) });
            assert!(std::panic::catch_unwind(write).is_err(), "row {row}, column {column}, {n} numbers");
        }
    }

    #[test]
    fn matmul_is_the_sum_of_products() {
        let (n, rows, cols) = (5, 6, 45);
        let (x, values) = (numbers(n * cols, 3), numbers(rows * cols, 4));
        let w = bytes(Dtype::F32, &values);
        let mut out = vec![0.0; n * rows];
        matmul(&x, &Matrix::new(&w, Dtype::F32, rows, cols), &mut out);
        for r in 0..n {
            for o in 0..rows {
                let exact: f64 = (0..cols).map(|i| x[r * cols + i] as f64 * values[o * cols + i] as f64).sum();
                assert!((out[r * rows + o] as f64 - exact).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn attention_has_the_same_bits_alone_and_among_others() {
        for heads in [
            Heads { n_heads: 6, n_kv_heads: 2, head_dim: 10 },
            Heads { n_heads: 7, n_kv_heads: 1, head_dim: 32 },
            Heads { n_heads: 3, n_kv_heads: 3, head_dim: 16 },
        ] {
            let (len, n) = (150, 70);
            let (q_width, kv_width) = (heads.n_heads * heads.head_dim, heads.n_kv_heads * heads.head_dim);
            let (q, k, v) = (numbers(n * q_width, 5), numbers(len * kv_width, 6), numbers(len * kv_width, 7));
            let mut together = vec![0.0; n * q_width];
            attend(heads, &q, &k, &v, &mut together);
            for row in 0..n {
                let seen = (len - n + row + 1) * kv_width;
                let mut alone = vec![0.0; q_width];
                attend(heads, &q[row * q_width..][..q_width], &k[..seen], &v[..seen], &mut alone);
                assert_eq!(alone, together[row * q_width..][..q_width], "{heads:?}, row {row}");
            }
        }
    }
}
