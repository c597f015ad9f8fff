//! Matrix products: rows of numbers against rows of weights.
//!
//! **The order of sums.** Each output is one dot product in sixteen lanes: number `i` goes to lane `i % 16`, lowest `i`
//! first, and the lanes are added in halves. All ways to compute a product keep to it, so how many rows come together,
//! and on how many threads, changes nothing but the time.
//!
//! **The order of work.** With one input row, memory is the limit, so the weights are read in order, once. With a few,
//! each number that is read and converted meets all of them while it is in a register. With many, arithmetic is the
//! limit, so a block of weights is converted once, stays in the second cache, and meets the rows in tiles, five rows
//! and five columns at a time.

use std::borrow::Cow;
use std::ops::Range;

use crate::matrix::{Dtype, Matrix, decode, decode_rest};
use crate::parallel::{Columns, for_each, threads};
use crate::registers::{Kernel, vectorized};
use crate::tiles::{InTiles, in_tiles, pack, tile};
use crate::vector::{LANES, Lanes, Vector, lane_sums, padded, rows_of};

/// `out[r] = x[r] · w[o]` for every row `r` of `x` and every row `o` of `w`.
///
/// `x`: `[n, w.cols]`, `out`: `[n, w.rows]`. The weights are read once, whatever `n` is.
pub fn matmul(x: &[f32], w: &Matrix<'_>, out: &mut [f32]) {
    matmuls(x, &mut [(*w, out)]);
}

/// Several products with the same input at once, each of a matrix and its output: as [`matmul`] one after the other,
/// but the threads meet only once.
pub fn matmuls(x: &[f32], products: &mut [(Matrix<'_>, &mut [f32])]) {
    let mut blocks = Vec::new();
    let mut work = 0;
    for (w, out) in products {
        let n = x.len() / w.cols;
        assert_eq!(x.len(), n * w.cols, "input rows of {} numbers", w.cols);
        assert_eq!(out.len(), n * w.rows, "{n} output rows of {} numbers", w.rows);
        let strategy = match n {
            0 => return,
            1 if w.cols * w.dtype.size() > SHORT => Strategy::Stream,
            1..=FEW => Strategy::Few,
            _ => Strategy::Tiles,
        };
        let out = Columns::new(out, w.rows);
        let width = strategy.columns(w);
        let columns = (0..w.rows).step_by(width).map(|first| first..(first + width).min(w.rows));
        blocks.extend(columns.map(|columns| Block { strategy, x, n, w: *w, columns, out }));
        work += n * w.rows * w.cols;
    }
    for_each(blocks.into_iter(), work, |block| match block.strategy {
        Strategy::Stream => vectorized(Streamed::<true>(block)),
        Strategy::Few => vectorized(Streamed::<false>(block)),
        Strategy::Tiles => vectorized(Tiles(block)),
    });
}

/// Input rows up to which converting the weights into a buffer costs more than it saves.
const FEW: usize = 16;

/// Bytes of a weight row up to which four of them side by side are as good as one after the other.
const SHORT: usize = 1024;

#[derive(Clone, Copy)]
enum Strategy {
    /// One input row: the weights stream past it, straight from memory.
    Stream,
    /// A few input rows: the weights stream past them, straight from memory, and each number that is converted meets
    /// all.
    Few,
    /// Many input rows: a block of weights is converted once into a buffer that stays in the cache, then meets every
    /// row.
    Tiles,
}

impl Strategy {
    fn columns(self, w: &Matrix<'_>) -> usize {
        // A block has at most 512 KiB, converted or as it is read, so that it stays in the second cache.
        let (numbers, width) = match self {
            Strategy::Stream => (1 << 17, 4),
            Strategy::Few => (1 << 16, 4),
            Strategy::Tiles => (1 << 17, 5),
        };
        // Each thread gets at least two blocks.
        let share = w.rows.div_ceil(2 * threads());
        (numbers / w.cols).min(share).div_ceil(width).max(1) * width
    }
}

/// All input rows against some weight rows, which are output columns.
struct Block<'a> {
    strategy: Strategy,
    /// `[n, w.cols]`.
    x: &'a [f32],
    n: usize,
    w: Matrix<'a>,
    columns: Range<usize>,
    out: Columns<'a>,
}

impl Block<'_> {
    /// Writes the products of an input row with `C` weight rows, from `column` on, as far as the block has these
    /// columns.
    #[inline(always)]
    fn write<const C: usize>(&self, row: usize, column: usize, products: &[f32; C]) {
        let width = C.min(self.columns.end - column);
        // SAFETY: these columns are this block's alone. A store of known length is one instruction.
        unsafe {
            match width == C {
                true => self.out.write(row, column, products),
                false => self.out.write(row, column, &products[..width]),
            }
        }
    }
}

/// A block whose weights come straight from memory, for one input row or for a few.
struct Streamed<'a, const ONE_ROW: bool>(Block<'a>);

impl<const ONE_ROW: bool> Kernel for Streamed<'_, ONE_ROW> {
    #[inline(always)]
    fn run<V: Vector>(self) {
        // The type of the weights is settled here, outside the loops.
        match self.0.w.dtype {
            Dtype::F32 => self.0.direct::<V, ONE_ROW>(Dtype::F32),
            Dtype::F16 => self.0.direct::<V, ONE_ROW>(Dtype::F16),
            Dtype::Bf16 => self.0.direct::<V, ONE_ROW>(Dtype::Bf16),
        }
    }
}

/// A block whose weights are converted once.
struct Tiles<'a>(Block<'a>);

impl Kernel for Tiles<'_> {
    #[inline(always)]
    fn run<V: Vector>(self) {
        let Block { x, n, w, columns, .. } = &self.0;
        let (depth, width) = (w.cols.div_ceil(LANES), V::COLUMNS);
        let mut weights = vec![[0.0; LANES]; columns.len().next_multiple_of(width) * depth];
        for (o, row) in columns.clone().enumerate() {
            let packed = &mut weights[o / width * width * depth..][..width * depth];
            let bytes = w.row(row).chunks_exact(LANES * w.dtype.size());
            let rest = bytes.remainder();
            pack(bytes.map(|bytes| decode::<V>(w.dtype, bytes).lanes()), o % width, width, packed);
            if !rest.is_empty() {
                packed[(depth - 1) * width + o % width] = decode_rest(w.dtype, rest);
            }
        }
        let x = match x.as_chunks() {
            (whole, []) if w.cols.is_multiple_of(LANES) => Cow::Borrowed(whole),
            _ => x.chunks_exact(w.cols).flat_map(|row| row.chunks(LANES).map(padded)).collect(),
        };
        in_tiles::<V>(0..*n, &mut PackedTiles { block: &self.0, x: &x, weights: &weights, depth });
    }
}

impl Block<'_> {
    #[inline(always)]
    fn direct<V: Vector, const ONE_ROW: bool>(&self, dtype: Dtype) {
        if ONE_ROW { self.stream::<V>(dtype) } else { self.few_rows::<V>(dtype) }
    }

    #[inline(always)]
    fn stream<V: Vector>(&self, dtype: Dtype) {
        let last = self.columns.end - 1;
        for column in self.columns.clone().step_by(4) {
            let mut sums = [V::splat(0.0); 4];
            // One row after the other: side by side they would share the loads of `x`, but memory is fastest in order.
            for (c, sums) in sums.iter_mut().enumerate() {
                *sums = add_row(self.x, dtype, self.w.row((column + c).min(last)));
            }
            self.write(0, column, &V::sum_4(&sums));
        }
    }

    #[inline(always)]
    fn few_rows<V: Vector>(&self, dtype: Dtype) {
        let mut first = 0;
        while first < self.n {
            first += match self.n - first {
                _ if V::ONE_BY_ONE || self.columns.len() < 4 => self.microkernel_rows::<V, 1, 1>(dtype, first),
                1 => self.microkernel_rows::<V, 1, 4>(dtype, first),
                2 => self.microkernel_rows::<V, 2, 4>(dtype, first),
                3 | 5 | 6 | 9 if V::MANY_REGISTERS => self.microkernel_rows::<V, 3, 4>(dtype, first),
                _ if V::MANY_REGISTERS => self.microkernel_rows::<V, 4, 4>(dtype, first),
                _ => self.microkernel_rows::<V, 3, 2>(dtype, first),
            };
        }
    }

    /// `R` input rows from `first` on, `C` columns at a time; returns `R`.
    #[inline(always)]
    fn microkernel_rows<V: Vector, const R: usize, const C: usize>(&self, dtype: Dtype, first: usize) -> usize {
        let cols = self.w.cols;
        let rows: [&[f32]; R] = rows_of(self.x, first, cols, cols);
        for column in self.columns.clone().step_by(C) {
            // The last few columns come with some that are known: computed again, they are the same.
            self.microkernel_at::<V, R, C>(dtype, rows, first, column.min(self.columns.end - C));
        }
        R
    }

    /// `R` input rows against `C` weight rows: every number that is loaded or converted is used `R` or `C` times.
    #[inline(always)]
    fn microkernel_at<V: Vector, const R: usize, const C: usize>(
        &self,
        dtype: Dtype,
        rows: [&[f32]; R],
        first: usize,
        column: usize,
    ) {
        let cols = self.w.cols;
        let size = LANES * dtype.size();
        let full = cols / LANES;
        let mut whole: [&[Lanes]; R] = [&[]; R];
        for r in 0..R {
            whole[r] = &rows[r].as_chunks().0[..full];
        }
        let mut weights: [&[u8]; C] = [&[]; C];
        for (c, weights) in weights.iter_mut().enumerate() {
            *weights = &self.w.row(column + c)[..cols * dtype.size()];
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
            for c in 0..C {
                let rest = decode_rest(dtype, &weights[c][full * size..]);
                for r in 0..R {
                    let row = V::load(&padded(&rows[r][full * LANES..]));
                    sums[r][c] = row.mul_add(V::load(&rest), sums[r][c]);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            // SAFETY: these columns are this block's alone.
            unsafe { self.out.write(first + r, column, &lane_sums(sums)) };
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
        sums = V::load(&padded(x_rest)).mul_add(V::load(&decode_rest(dtype, row_rest)), sums);
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

/// A block whose rows and weights are whole vectors, `depth` of them each; the weights are converted and packed.
struct PackedTiles<'a> {
    block: &'a Block<'a>,
    x: &'a [Lanes],
    weights: &'a [Lanes],
    depth: usize,
}

impl InTiles for PackedTiles<'_> {
    #[inline(always)]
    fn rows<V: Vector, const R: usize, const C: usize>(&mut self, first: usize) -> usize {
        let depth = self.depth;
        let rows: [&[Lanes]; R] = rows_of(self.x, first, depth, depth);
        let columns = self.block.columns.clone().step_by(C);
        for (packed, column) in self.weights.chunks_exact(C * depth).zip(columns) {
            let mut sums = [[V::splat(0.0); C]; R];
            tile(rows, packed, &mut sums);
            for (r, sums) in sums.iter().enumerate() {
                self.block.write(first + r, column, &lane_sums(sums));
            }
        }
        R
    }
}
