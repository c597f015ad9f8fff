//! Matrix products: rows of numbers against rows of weights.
//!
//! **The order of sums.** Each output is one dot product in sixteen lanes: number `i` goes to lane `i % 16`, lowest `i` first,
//! and the lanes are added in halves. All ways to compute a product keep to it, so how many rows come together, and on how
//! many threads, changes nothing but the time.
//!
//! **The order of work.** With one input row, memory is the limit: the weights are read in order, once. With a few, each
//! number that is read and converted meets all of them while it is in a register. With many, arithmetic is the limit: a block
//! of weights is converted once, stays in the second cache, and meets six rows and four columns at a time.

use std::ops::Range;

use crate::matrix::{Dtype, Matrix, decode};
use crate::parallel::{Columns, for_each, threads};
use crate::registers::{Kernel, vectorized};
use crate::vector::{LANES, Lanes, Vector, lane_sums, padded};

/// `out[r] = x[r] · w[o]` for every row `r` of `x` and every row `o` of `w`.
///
/// `x`: `[n, w.cols]`, `out`: `[n, w.rows]`. The weights are read once, whatever `n` is.
pub fn matmul(x: &[f32], w: &Matrix<'_>, out: &mut [f32]) {
    matmuls(x, &mut [(*w, out)]);
}

/// Several products with the same input at once, each of a matrix and its output: as [`matmul`] one after the other, but
/// the threads meet only once.
pub fn matmuls(x: &[f32], products: &mut [(Matrix<'_>, &mut [f32])]) {
    let mut blocks = Vec::new();
    let mut work = 0;
    for (w, out) in products {
        let n = x.len() / w.cols;
        assert_eq!(x.len(), n * w.cols, "input rows of {} numbers", w.cols);
        assert_eq!(out.len(), n * w.rows(), "{n} output rows of {} numbers", w.rows());
        let way = match n {
            0 => return,
            1 if w.cols * w.dtype.size() > SHORT => Way::Stream,
            1..=FEW => Way::Few,
            _ => Way::Tiles,
        };
        let out = Columns::new(out, w.rows());
        let width = way.columns(w);
        let columns = (0..w.rows()).step_by(width).map(|first| first..(first + width).min(w.rows()));
        blocks.extend(columns.map(|columns| (way, Block { x, n, w: *w, columns, out })));
        work += n * w.rows() * w.cols;
    }
    for_each(blocks.into_iter(), work, |(way, block)| match way {
        Way::Stream => vectorized(WeightStream(block)),
        Way::Few => vectorized(FewRows(block)),
        Way::Tiles => vectorized(Tiles(block)),
    });
}

/// How a product is computed.
#[derive(Clone, Copy)]
enum Way {
    /// One input row: the weights stream past it, straight from memory.
    Stream,
    /// A few input rows: the weights stream past them, straight from memory, and each number that is converted meets all.
    Few,
    /// Many input rows: a block of weights is converted once into a buffer that stays in the cache, then meets every row.
    Tiles,
}

impl Way {
    /// Columns of a block.
    fn columns(self, w: &Matrix<'_>) -> usize {
        // What is converted, or read once for each few rows, is to stay in the second cache: 256 KiB.
        let numbers = match self {
            Way::Stream => 1 << 17,
            Way::Few | Way::Tiles => 1 << 16,
        };
        // All threads are to have something, and the widest tile is four columns.
        let share = w.rows().div_ceil(2 * threads());
        (numbers / w.cols).min(share).div_ceil(4).max(1) * 4
    }
}

/// All input rows against some weight rows, which are output columns.
struct Block<'a> {
    /// `[n, w.cols]`.
    x: &'a [f32],
    n: usize,
    w: Matrix<'a>,
    columns: Range<usize>,
    out: Columns<'a>,
}

/// A block with one input row.
struct WeightStream<'a>(Block<'a>);

impl Kernel for WeightStream<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        // The type of the weights is settled here, outside the loops.
        match self.0.w.dtype {
            Dtype::F32 => self.run_as::<V>(Dtype::F32),
            Dtype::F16 => self.run_as::<V>(Dtype::F16),
            Dtype::Bf16 => self.run_as::<V>(Dtype::Bf16),
        }
    }
}

impl WeightStream<'_> {
    #[inline(always)]
    fn run_as<V: Vector>(self, dtype: Dtype) {
        let Block { x, w, columns, out, .. } = self.0;
        let mut column = columns.start;
        while column + 4 <= columns.end {
            let mut sums = [V::splat(0.0); 4];
            // One row after the other: side by side they would share the loads of `x`, but memory is fastest in order.
            for (c, sums) in sums.iter_mut().enumerate() {
                *sums = add_row(x, dtype, w.row(column + c));
            }
            // SAFETY: these columns are this block's alone.
            unsafe { out.write(0, column, &V::sum_4(&sums)) };
            column += 4;
        }
        while column < columns.end {
            let sum = add_row::<V>(x, dtype, w.row(column)).sum();
            // SAFETY: as above.
            unsafe { out.write(0, column, &[sum]) };
            column += 1;
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
pub(crate) fn prefetch(_address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(_address.cast());
    }
}

/// Input rows up to which converting the weights into a buffer costs more than it saves.
const FEW: usize = 16;

/// Bytes of a weight row up to which four of them side by side are as good as one after the other.
const SHORT: usize = 1024;

/// A block with a few input rows.
struct FewRows<'a>(Block<'a>);

impl Kernel for FewRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        match self.0.w.dtype {
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
        while first < self.0.n {
            first += match self.0.n - first {
                1 => self.run_rows::<V, 1, 4>(dtype, first),
                2 => self.run_rows::<V, 2, 4>(dtype, first),
                3 | 5 | 6 | 9 if V::MANY_REGISTERS => self.run_rows::<V, 3, 4>(dtype, first),
                _ if V::MANY_REGISTERS => self.run_rows::<V, 4, 4>(dtype, first),
                _ => self.run_rows::<V, 3, 2>(dtype, first),
            };
        }
    }

    /// `R` input rows from `first` on, `C` columns at a time; returns `R`.
    #[inline(always)]
    fn run_rows<V: Vector, const R: usize, const C: usize>(&self, dtype: Dtype, first: usize) -> usize {
        let cols = self.0.w.cols;
        let mut rows: [&[f32]; R] = [&[]; R];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = &self.0.x[(first + r) * cols..][..cols];
        }
        let mut column = self.0.columns.start;
        while column + C <= self.0.columns.end {
            self.run_columns::<V, R, C>(dtype, rows, first, column);
            column += C;
        }
        while column < self.0.columns.end {
            self.run_columns::<V, R, 1>(dtype, rows, first, column);
            column += 1;
        }
        R
    }

    /// `R` input rows against `C` weight rows: every number that is loaded or converted is used `R` or `C` times.
    #[inline(always)]
    fn run_columns<V: Vector, const R: usize, const C: usize>(
        &self,
        dtype: Dtype,
        rows: [&[f32]; R],
        first: usize,
        column: usize,
    ) {
        let cols = self.0.w.cols;
        let size = LANES * dtype.size();
        let full = cols / LANES;
        let mut whole: [&[Lanes]; R] = [&[]; R];
        for r in 0..R {
            whole[r] = &rows[r].as_chunks().0[..full];
        }
        let mut weights: [&[u8]; C] = [&[]; C];
        for (c, weights) in weights.iter_mut().enumerate() {
            *weights = &self.0.w.row(column + c)[..cols * dtype.size()];
        }
        let mut sums = [[V::splat(0.0); C]; R];
        for k in 0..full {
            let mut vectors = [V::splat(0.0); C];
            for c in 0..C {
                let bytes = &weights[c][k * size..][..size];
                prefetch(bytes.as_ptr().wrapping_add(PREFETCH));
                vectors[c] = decode(dtype, bytes);
            }
            for r in 0..R {
                let row = V::load(&whole[r][k]);
                for c in 0..C {
                    sums[r][c] = row.mul_add(vectors[c], sums[r][c]);
                }
            }
        }
        if !cols.is_multiple_of(LANES) {
            for r in 0..R {
                let row = V::load(&padded(&rows[r][full * LANES..]));
                for c in 0..C {
                    sums[r][c] = row.mul_add(decode(dtype, &weights[c][full * size..]), sums[r][c]);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            // SAFETY: these columns are this block's alone.
            unsafe { self.0.out.write(first + r, column, &lane_sums(sums)) };
        }
    }
}

/// Rows packed for the tile: `C` rows side by side, sixteen numbers of each in turn, zeros where a row is missing.
///
/// ```text
///   panel[0] = row 0 numbers 0..16, row 1 numbers 0..16, … row C-1 numbers 0..16
///   panel[1] = row 0 numbers 16..32, …
/// ```
pub(crate) type Panel<const C: usize> = [[Lanes; C]];

/// Adds `R * C` dot products to `sums` at once: every number loaded is used `R` or `C` times.
#[inline(always)]
pub(crate) fn tile<V: Vector, const R: usize, const C: usize>(a: [&[Lanes]; R], b: &Panel<C>, sums: &mut [[V; C]; R]) {
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

/// A block with many input rows.
struct Tiles<'a>(Block<'a>);

impl Kernel for Tiles<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        if V::MANY_REGISTERS { self.run_columns::<V, 4>() } else { self.run_columns::<V, 2>() }
    }
}

impl Tiles<'_> {
    #[inline(always)]
    fn run_columns<V: Vector, const C: usize>(self) {
        let depth = self.0.w.cols.div_ceil(LANES);
        let mut weights = vec![[[0.0; LANES]; C]; self.0.columns.len().div_ceil(C) * depth];
        for (o, row) in self.0.columns.clone().enumerate() {
            pack_weights::<V, C>(&self.0.w, row, o % C, &mut weights[o / C * depth..][..depth]);
        }
        let mut first = 0;
        while first < self.0.n {
            first += match self.0.n - first {
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
        let cols = self.0.w.cols;
        let depth = cols.div_ceil(LANES);
        let mut rows: [&[Lanes]; R] = [&[]; R];
        let mut rests = [[0.0; LANES]; R];
        for r in 0..R {
            let (row, rest) = self.0.x[(first + r) * cols..][..cols].as_chunks::<LANES>();
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
            let column = self.0.columns.start + q * C;
            let width = C.min(self.0.columns.end - column);
            for (r, sums) in sums.iter().enumerate() {
                let products = lane_sums(sums);
                // SAFETY: these columns are this block's alone. A store of known length is one instruction.
                unsafe {
                    match width == C {
                        true => self.0.out.write(first + r, column, &products),
                        false => self.0.out.write(first + r, column, &products[..width]),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers::Registers;
    use crate::testing::{bytes, numbers};

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
                (17, 60, 48),
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

    fn block<'a>(x: &'a [f32], w: &Matrix<'a>, columns: Range<usize>, out: Columns<'a>) -> Block<'a> {
        Block { x, n: x.len() / w.cols, w: *w, columns, out }
    }

    #[test]
    fn products_of_one_input_are_the_same_together() {
        let (n, cols) = (3, 50);
        let x = numbers(n * cols, 1);
        let (a, b) = (bytes(Dtype::Bf16, &numbers(30 * cols, 2)), bytes(Dtype::F32, &numbers(7 * cols, 3)));
        let (a, b) = (Matrix::new(&a, Dtype::Bf16, 30, cols), Matrix::new(&b, Dtype::F32, 7, cols));
        let (mut one, mut other) = (vec![0.0; n * 30], vec![0.0; n * 7]);
        matmul(&x, &a, &mut one);
        matmul(&x, &b, &mut other);
        let (mut together, mut with) = (vec![0.0; n * 30], vec![0.0; n * 7]);
        matmuls(&x, &mut [(a, &mut together), (b, &mut with)]);
        assert_eq!((one, other), (together, with));
    }

    #[test]
    fn all_registers_give_the_same_bits() {
        let (n, rows, cols) = (17, 37, 75);
        let x = numbers(n * cols, 2);
        let results = |registers: Registers| {
            let mut results = Vec::new();
            for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
                let w = bytes(dtype, &numbers(rows * cols, 1));
                let w = &Matrix::new(&w, dtype, rows, cols);
                let mut out = vec![0.0; rows];
                registers.run(WeightStream(block(&x[..cols], w, 0..rows, Columns::new(&mut out, rows))));
                results.push(out);
                for n in 1..=FEW {
                    let mut out = vec![0.0; n * rows];
                    registers.run(FewRows(block(&x[..n * cols], w, 0..rows, Columns::new(&mut out, rows))));
                    results.push(out);
                }
                let mut out = vec![0.0; n * rows];
                registers.run(Tiles(block(&x, w, 0..rows, Columns::new(&mut out, rows))));
                results.push(out);
            }
            results
        };
        for registers in Registers::ALL.iter().filter(|registers| registers.exist()) {
            assert_eq!(results(*registers), results(Registers::Any), "{registers:?}");
        }
    }

    #[test]
    fn several_threads_fill_one_output() {
        let (n, rows, cols) = (5, 10, 21);
        let (x, w) = (numbers(n * cols, 2), bytes(Dtype::Bf16, &numbers(rows * cols, 1)));
        let (x, w) = (&x[..], &Matrix::new(&w, Dtype::Bf16, rows, cols));
        // Every task in a thread of its own, or one after the other.
        let results = |in_threads: bool| {
            let (mut few, mut tiled) = (vec![0.0; n * rows], vec![0.0; n * rows]);
            let (few_out, tiled_out) = (Columns::new(&mut few, rows), Columns::new(&mut tiled, rows));
            std::thread::scope(|scope| {
                for columns in [0..4, 4..7, 7..10] {
                    let thread = scope.spawn(move || {
                        Registers::Any.run(FewRows(block(x, w, columns.clone(), few_out)));
                        Registers::Any.run(Tiles(block(x, w, columns, tiled_out)));
                    });
                    if !in_threads {
                        thread.join().expect("it computes");
                    }
                }
            });
            [few, tiled]
        };
        assert_eq!(results(true), results(false));
        assert!(results(true).iter().flatten().all(|number| *number != 0.0), "all of the output is filled");
    }
}
