//! The arithmetic: dot products, matrix products, attention, softmax. The only place with SIMD.
//!
//! **One order for every sum.** Floating-point addition depends on its order, so every sum here is taken in one fixed
//! order, whatever the processor, the number of threads and the number of rows in the call. A dot product keeps
//! [`LANES`] running sums: number `i` goes to lane `i % 16` by one fused multiply-add, and at the end the lanes are
//! added in halves, 16 → 8 → 4 → 2 → 1:
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
//! **SIMD without intrinsics.** The loops below are plain Rust over arrays of 16 numbers, in a shape that the compiler
//! turns into vector instructions. [`vectorized`] compiles them once more for AVX2 and AVX-512 and picks at run time.
//! On processors without fused multiply-add (before 2013) the results are the same and the speed is poor.

use std::marker::PhantomData;
use std::ops::Range;

use rayon::prelude::*;

/// Running sums in a dot product.
pub const LANES: usize = 16;

/// Sixteen numbers side by side.
type Lanes = [f32; LANES];

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
        assert_eq!(bytes.len(), rows * cols * dtype.size(), "bytes of a [{rows}, {cols}] {dtype:?} matrix");
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

    /// Converts one row to `f32`. `out`: `[cols]`.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        let (chunks, rest) = out.as_chunks_mut::<LANES>();
        let size = LANES * self.dtype.size();
        let bytes = self.row(row);
        for (chunk, bytes) in chunks.iter_mut().zip(bytes.chunks_exact(size)) {
            *chunk = decode(self.dtype, bytes);
        }
        let tail = decode(self.dtype, &bytes[chunks.len() * size..]);
        rest.copy_from_slice(&tail[..rest.len()]);
    }
}

/// Up to sixteen stored numbers as `f32`; lanes beyond the bytes are zero.
#[inline(always)]
fn decode(dtype: Dtype, bytes: &[u8]) -> Lanes {
    let mut lanes = [0.0; LANES];
    match dtype {
        Dtype::F32 => {
            for (lane, b) in lanes.iter_mut().zip(bytes.as_chunks().0) {
                *lane = f32::from_le_bytes(*b);
            }
        }
        Dtype::Bf16 => {
            for (lane, b) in lanes.iter_mut().zip(bytes.as_chunks().0) {
                *lane = f32::from_bits((u16::from_le_bytes(*b) as u32) << 16);
            }
        }
        Dtype::F16 => {
            for (lane, b) in lanes.iter_mut().zip(bytes.as_chunks().0) {
                *lane = half::f16::from_le_bytes(*b).to_f32();
            }
        }
    }
    lanes
}

/// A loop worth compiling for wide vectors. `run` and all that it calls are `#[inline(always)]`, so that the compiler
/// sees the loop whole inside each of the functions of [`vectorized`].
trait Kernel {
    type Output;
    fn run(self) -> Self::Output;
}

/// Runs a kernel, compiled for the widest vectors that this processor has.
#[inline]
fn vectorized<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
        fn avx512<K: Kernel>(kernel: K) -> K::Output {
            kernel.run()
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2<K: Kernel>(kernel: K) -> K::Output {
            kernel.run()
        }
        if has_avx512() {
            // SAFETY: the processor has just said that it has these instructions.
            return unsafe { avx512(kernel) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: as above.
            return unsafe { avx2(kernel) };
        }
    }
    kernel.run()
}

/// True with 32 registers of 16 numbers each: room for a larger tile.
fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Adds the lanes in halves.
#[inline(always)]
fn sum_lanes(mut lanes: Lanes) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

#[inline(always)]
fn add_products(sums: &mut Lanes, a: &Lanes, b: &Lanes) {
    for i in 0..LANES {
        sums[i] = a[i].mul_add(b[i], sums[i]);
    }
}

/// The first numbers of a row that do not fill sixteen lanes, with zeros behind them.
#[inline(always)]
fn padded(rest: &[f32]) -> Lanes {
    let mut lanes = [0.0; LANES];
    lanes[..rest.len()].copy_from_slice(rest);
    lanes
}

#[inline(always)]
fn dot_lanes(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        add_products(&mut sums, a, b);
    }
    if !a_rest.is_empty() {
        add_products(&mut sums, &padded(a_rest), &padded(b_rest));
    }
    sum_lanes(sums)
}

/// The dot product of two equally long rows.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "dot product of unequal rows");
    vectorized(Dot { a, b })
}

struct Dot<'a> {
    a: &'a [f32],
    b: &'a [f32],
}

impl Kernel for Dot<'_> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        dot_lanes(self.a, self.b)
    }
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
        _ if has_avx512() => matmul_tiled::<4, 4>(x, w, out),
        _ => matmul_tiled::<3, 2>(x, w, out),
    }
}

/// One input row: the weights stream past it, one row after the other, straight from memory.
fn matvec(x: &[f32], w: &Matrix<'_>, out: &mut [f32]) {
    if w.rows * w.cols < PARALLEL_WORK {
        vectorized(WeightStream { x, w, first: 0, out });
    } else {
        let rows_per_task = (1 << 17) / w.cols + 1;
        out.par_chunks_mut(rows_per_task).enumerate().for_each(|(task, out)| {
            vectorized(WeightStream { x, w, first: task * rows_per_task, out });
        });
    }
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
    fn run(self) {
        // The type of the weights is settled here, outside the loops.
        match self.w.dtype {
            Dtype::F32 => self.run_as(Dtype::F32),
            Dtype::F16 => self.run_as(Dtype::F16),
            Dtype::Bf16 => self.run_as(Dtype::Bf16),
        }
    }
}

impl WeightStream<'_> {
    #[inline(always)]
    fn run_as(self, dtype: Dtype) {
        let (x, x_rest) = self.x.as_chunks::<LANES>();
        let size = LANES * dtype.size();
        for (i, out) in self.out.iter_mut().enumerate() {
            let bytes = self.w.row(self.first + i);
            let mut sums = [0.0; LANES];
            for (x, bytes) in x.iter().zip(bytes.chunks_exact(size)) {
                add_products(&mut sums, x, &decode(dtype, bytes));
            }
            if !x_rest.is_empty() {
                add_products(&mut sums, &padded(x_rest), &decode(dtype, &bytes[x.len() * size..]));
            }
            *out = sum_lanes(sums);
        }
    }
}

/// Rows packed for the tile: `R` rows side by side, sixteen numbers of each in turn, zeros where a row is missing.
///
/// ```text
///   panel[0] = row 0 numbers 0..16, row 1 numbers 0..16, … row R-1 numbers 0..16
///   panel[1] = row 0 numbers 16..32, …
/// ```
type Panel<const R: usize> = [[Lanes; R]];

/// Puts `row` into place `at` of a panel.
#[inline(always)]
fn pack_row<const R: usize>(row: &[f32], at: usize, panel: &mut Panel<R>) {
    let (chunks, rest) = row.as_chunks::<LANES>();
    for (packed, chunk) in panel.iter_mut().zip(chunks) {
        packed[at] = *chunk;
    }
    if !rest.is_empty() {
        panel[chunks.len()][at] = padded(rest);
    }
}

/// `R * C` dot products at once: every number loaded is used `R` or `C` times.
#[inline(always)]
fn tile<const R: usize, const C: usize>(a: &Panel<R>, b: &Panel<C>) -> [[f32; C]; R] {
    let mut sums = [[[0.0; LANES]; C]; R];
    for (a, b) in a.iter().zip(b) {
        for r in 0..R {
            for c in 0..C {
                add_products(&mut sums[r][c], &a[r], &b[c]);
            }
        }
    }
    let mut out = [[0.0; C]; R];
    for r in 0..R {
        for c in 0..C {
            out[r][c] = sum_lanes(sums[r][c]);
        }
    }
    out
}

/// Many input rows: a block of weights is converted once into a buffer that stays in the cache, then meets every row.
fn matmul_tiled<const R: usize, const C: usize>(x: &[f32], w: &Matrix<'_>, out: &mut [f32]) {
    let n = x.len() / w.cols;
    let depth = w.cols.div_ceil(LANES);
    let mut rows = vec![[[0.0; LANES]; R]; n.div_ceil(R) * depth];
    for (r, row) in x.chunks_exact(w.cols).enumerate() {
        pack_row(row, r % R, &mut rows[r / R * depth..][..depth]);
    }

    // About 256 KiB of converted weights at a time.
    let width = ((1 << 12) / depth / C).max(1) * C;
    let out = &Columns::new(out, w.rows);
    let task = |first: usize| {
        let columns = first..(first + width).min(w.rows);
        vectorized(TileBlock::<R, C> { rows: &rows, n, w, columns, out });
    };
    let firsts = (0..w.rows).step_by(width);
    if n * w.rows * w.cols < PARALLEL_WORK {
        firsts.for_each(task);
    } else {
        firsts.collect::<Vec<_>>().into_par_iter().for_each(task);
    }
}

/// All input rows against some weight rows, which are output columns.
struct TileBlock<'a, const R: usize, const C: usize> {
    /// The input rows: panels one after the other.
    rows: &'a Panel<R>,
    n: usize,
    w: &'a Matrix<'a>,
    columns: Range<usize>,
    out: &'a Columns<'a>,
}

impl<const R: usize, const C: usize> Kernel for TileBlock<'_, R, C> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let depth = self.w.cols.div_ceil(LANES);
        let mut weights = vec![[[0.0; LANES]; C]; self.columns.len().div_ceil(C) * depth];
        for (o, row) in self.columns.clone().enumerate() {
            pack_weights(self.w, row, o % C, &mut weights[o / C * depth..][..depth]);
        }
        for (p, a) in self.rows.chunks_exact(depth).enumerate() {
            for (q, b) in weights.chunks_exact(depth).enumerate() {
                let products = tile::<R, C>(a, b);
                let first = self.columns.start + q * C;
                let width = C.min(self.columns.end - first);
                for (r, products) in products.iter().enumerate().take(self.n - p * R) {
                    // SAFETY: these columns are this block's alone.
                    unsafe { self.out.write(p * R + r, first, &products[..width]) };
                }
            }
        }
    }
}

#[inline(always)]
fn pack_weights<const C: usize>(w: &Matrix<'_>, row: usize, at: usize, panel: &mut Panel<C>) {
    let size = LANES * w.dtype.size();
    for (packed, bytes) in panel.iter_mut().zip(w.row(row).chunks(size)) {
        packed[at] = decode(w.dtype, bytes);
    }
}

/// An output `[n, width]` that several tasks fill at once, each its own columns.
struct Columns<'a> {
    start: *mut f32,
    len: usize,
    width: usize,
    _out: PhantomData<&'a mut [f32]>,
}

// SAFETY: `write` is the only access, and its callers keep to columns of their own.
unsafe impl Sync for Columns<'_> {}

impl<'a> Columns<'a> {
    fn new(out: &'a mut [f32], width: usize) -> Self {
        Columns { start: out.as_mut_ptr(), len: out.len(), width, _out: PhantomData }
    }

    /// Writes `values` into row `row`, from column `column` on.
    ///
    /// # Safety
    /// No other thread touches these places at the same time.
    #[inline(always)]
    unsafe fn write(&self, row: usize, column: usize, values: &[f32]) {
        let at = row * self.width + column;
        assert!(column + values.len() <= self.width && at + values.len() <= self.len);
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

/// Causal attention of the newest `n` tokens of a sequence over all `len` tokens of it.
///
/// `q` and `out`: `[n, n_heads * head_dim]`; `k` and `v`: `[len, n_kv_heads * head_dim]`. Row `i` of `q` is the token at
/// position `len - n + i` and sees the positions up to its own.
pub fn attend(heads: Heads, q: &[f32], k: &[f32], v: &[f32], out: &mut [f32]) {
    let q_width = heads.n_heads * heads.head_dim;
    let kv_width = heads.n_kv_heads * heads.head_dim;
    let n = q.len() / q_width;
    let len = k.len() / kv_width;
    assert!(n <= len && q.len() == n * q_width && out.len() == q.len() && v.len() == k.len());

    const ROWS_PER_TASK: usize = 64;
    let out = &Columns::new(out, q_width);
    let task = |(kv_head, first): (usize, usize)| {
        let rows = first..(first + ROWS_PER_TASK).min(n);
        vectorized(Attention { heads, kv_head, rows, before: len - n, q, k, v, out });
    };
    let tasks = (0..n).step_by(ROWS_PER_TASK).flat_map(|first| (0..heads.n_kv_heads).map(move |h| (h, first)));
    if n * len * q_width < PARALLEL_WORK {
        tasks.for_each(task);
    } else {
        tasks.collect::<Vec<_>>().into_par_iter().for_each(task);
    }
}

/// Queries that meet the keys together.
const QUERIES: usize = 4;

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
}

impl Kernel for Attention<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let dim = self.heads.head_dim;
        let depth = dim.div_ceil(LANES);
        let scale = 1.0 / (dim as f32).sqrt();
        let queries = self.rows.len() * self.group();
        let longest = self.seen(queries - 1);

        // Packing the keys pays when enough queries meet them.
        let tiled = queries >= QUERIES;
        let mut keys = vec![[[0.0; LANES]; QUERIES]; if tiled { longest.div_ceil(QUERIES) * depth } else { 0 }];
        if tiled {
            for position in 0..longest {
                let panel = &mut keys[position / QUERIES * depth..][..depth];
                pack_row(self.head_of(self.k, position), position % QUERIES, panel);
            }
        }

        let mut panel = vec![[[0.0; LANES]; QUERIES]; depth];
        let mut scores = vec![0.0; QUERIES * longest];
        let mut sums = vec![0.0; QUERIES * dim];
        for first in (0..queries).step_by(QUERIES) {
            let count = QUERIES.min(queries - first);
            if tiled {
                for i in 0..count {
                    pack_row(self.query(first + i), i, &mut panel);
                }
                let panels = self.seen(first + count - 1).div_ceil(QUERIES);
                for (p, keys) in keys.chunks_exact(depth).take(panels).enumerate() {
                    let products = tile::<QUERIES, QUERIES>(&panel, keys);
                    let width = QUERIES.min(longest - p * QUERIES);
                    for (i, products) in products.iter().enumerate() {
                        scores[i * longest + p * QUERIES..][..width].copy_from_slice(&products[..width]);
                    }
                }
            } else {
                for i in 0..count {
                    for position in 0..self.seen(first + i) {
                        let key = self.head_of(self.k, position);
                        scores[i * longest + position] = dot_lanes(self.query(first + i), key);
                    }
                }
            }
            for i in 0..count {
                let scores = &mut scores[i * longest..][..self.seen(first + i)];
                for score in scores.iter_mut() {
                    *score *= scale;
                }
                softmax_lanes(scores);
            }

            // Each output is one sum over the positions, in order. What all queries see, they add together.
            sums.fill(0.0);
            let shared = self.seen(first);
            for position in 0..shared {
                let value = self.head_of(self.v, position);
                for i in 0..count {
                    add_scaled(&mut sums[i * dim..][..dim], scores[i * longest + position], value);
                }
            }
            for i in 0..count {
                for position in shared..self.seen(first + i) {
                    let value = self.head_of(self.v, position);
                    add_scaled(&mut sums[i * dim..][..dim], scores[i * longest + position], value);
                }
                let (row, head) = self.row_and_head(first + i);
                // SAFETY: these rows, in the heads of this group, are this task's alone.
                unsafe { self.out.write(row, head * dim, &sums[i * dim..][..dim]) };
            }
        }
    }
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
    let n = (x.clamp(-87.0, 88.0) * std::f32::consts::LOG2_E).round_ties_even();
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x.clamp(-87.0, 88.0)));
    let mut p = 1.987_569_1e-4;
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5, 1.0, 1.0] {
        p = r.mul_add(p, c);
    }
    let scale = f32::from_bits(((n as i32 + 127) as u32) << 23);
    if x < -87.0 { 0.0 } else { p * scale }
}

#[inline(always)]
fn softmax_lanes(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0; LANES];
    let (chunks, rest) = scores.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            chunk[i] = exp(chunk[i] - max);
            sums[i] += chunk[i];
        }
    }
    for (score, sum) in rest.iter_mut().zip(&mut sums) {
        *score = exp(*score - max);
        *sum += *score;
    }
    let total = sum_lanes(sums);
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
    fn run(self) {
        softmax_lanes(self.scores);
    }
}

/// `gate[i] = silu(gate[i]) * up[i]`, where `silu(x) = x / (1 + e^-x)`.
pub fn silu_times(gate: &mut [f32], up: &[f32]) {
    vectorized(SiluTimes { gate, up });
}

struct SiluTimes<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for SiluTimes<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (g, u) in self.gate.iter_mut().zip(self.up) {
            *g = *g / (1.0 + exp(-*g)) * u;
        }
    }
}

/// `out = x / rms(x) * weight`, the root mean square taken over the row.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
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
            for (n, rows, cols) in [(7, 5, 33), (9, 130, 64), (2, 3, 7), (13, 1100, 200)] {
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
    fn every_processor_gives_the_same_bits() {
        let (n, rows, cols) = (7, 37, 75);
        let w = bytes(Dtype::Bf16, &numbers(rows * cols, 1));
        let w = Matrix::new(&w, Dtype::Bf16, rows, cols);
        let x = numbers(n * cols, 2);

        // Without vector instructions, and with the tile of each kind of processor.
        let [mut plain, mut small, mut large] = [(); 3].map(|_| vec![0.0; n * rows]);
        for (x, out) in x.chunks_exact(cols).zip(plain.chunks_exact_mut(rows)) {
            WeightStream { x, w: &w, first: 0, out }.run();
        }
        matmul_tiled::<3, 2>(&x, &w, &mut small);
        matmul_tiled::<4, 4>(&x, &w, &mut large);
        assert_eq!(plain, small);
        assert_eq!(plain, large);

        let (mut plain, mut vectors) = (numbers(99, 3), numbers(99, 3));
        Softmax { scores: &mut plain }.run();
        softmax(&mut vectors);
        assert_eq!(plain, vectors);
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
