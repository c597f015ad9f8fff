//! Matrix products: rows of numbers against rows of weights.
//!
//! **The order of sums.** Each output is one dot product in sixteen lanes: number `i` goes to lane `i % 16`, lowest `i`
//! first, and the lanes are added in halves. ([`ProductFormat::Bf16`] has an order of its own.) All ways to compute a product keep to it, so how many rows come together,
//! and on how many threads, changes nothing but the time.
//!
//! **The order of work.** With one input row, memory is the limit, so the weights are read in order, once. With a few,
//! each number that is read and converted meets all of them while it is in a register. With many, arithmetic is the
//! limit, so a block of weights is converted once, stays in the second cache, and meets the rows in tiles, five rows
//! and five columns at a time.

use std::borrow::Cow;
use std::ops::Range;

use crate::matrix::{Dtype, Factors, Matrix, ProductFormat};
use crate::parallel::{Columns, for_each, threads};
use crate::registers::{Kernel, vectorized, vectorized_pairs};
use crate::tiles::{InTiles, in_tiles, pack, tile};
use crate::vector::{LANES, LEAST, Lanes, Vector, lane_sums, padded, rows_of};

/// `out[r] = x[r] · w[o]` for every row `r` of `x` and every row `o` of `w`.
///
/// `x`: `[n, w.cols]`, `out`: `[n, w.rows]`. The weights are read once, whatever `n` is.
pub fn matmul(products: ProductFormat, x: &[f32], w: &Matrix<'_>, out: &mut [f32]) {
    matmuls(products, x, &mut [(*w, out)]);
}

/// Several products with the same input at once, each of a matrix and its output: as [`matmul`] one after the other,
/// but the threads meet only once.
pub fn matmuls(products: ProductFormat, x: &[f32], outputs: &mut [(Matrix<'_>, &mut [f32])]) {
    let in_pairs = |w: &Matrix<'_>| products == ProductFormat::Bf16 && w.dtype == Dtype::Bf16;
    let pairs = outputs.iter().find(|(w, _)| in_pairs(w)).map(|(w, _)| paired(x, w.cols)).unwrap_or_default();
    let mut blocks = Vec::new();
    let mut work = 0;
    for (w, out) in outputs {
        let n = x.len() / w.cols;
        assert_eq!(x.len(), n * w.cols, "input rows of {} numbers", w.cols);
        assert_eq!(out.len(), n * w.rows, "{n} output rows of {} numbers", w.rows);
        let (factors, x) =
            if in_pairs(w) { (Factors::Pairs, pairs.as_flattened()) } else { (Factors::Numbers(w.dtype), x) };
        let strategy = match n {
            0 => return,
            1 if w.cols * w.dtype.size() > SHORT => Strategy::Stream,
            1..=FEW => Strategy::Few,
            _ => Strategy::Tiles,
        };
        let out = Columns::new(out, w.rows);
        let width = strategy.columns(w, factors);
        let columns = (0..w.rows).step_by(width).map(|first| first..(first + width).min(w.rows));
        blocks.extend(columns.map(|columns| Block { strategy, factors, x, n, w: *w, columns, out }));
        work += n * w.rows * w.cols;
    }
    for_each(blocks.into_iter(), work, |block| match (block.strategy, block.factors) {
        (Strategy::Stream, Factors::Pairs) => vectorized_pairs(Streamed::<true, true>(block)),
        (Strategy::Few, Factors::Pairs) => vectorized_pairs(Streamed::<false, true>(block)),
        (Strategy::Tiles, Factors::Pairs) => vectorized_pairs(Tiles::<true>(block)),
        (Strategy::Stream, _) => vectorized(Streamed::<true, false>(block)),
        (Strategy::Few, _) => vectorized(Streamed::<false, false>(block)),
        (Strategy::Tiles, _) => vectorized(Tiles::<false>(block)),
    });
}

/// Rows of `cols` numbers as pairs of bf16 numbers, each filled up with zeros: `[n, cols.div_ceil(32), 16]`.
fn paired(x: &[f32], cols: usize) -> Vec<Lanes> {
    let depth = cols.div_ceil(2 * LANES);
    let mut pairs = vec![[0.0; LANES]; x.len() / cols * depth];
    let rows = x.chunks_exact(cols).zip(pairs.chunks_exact_mut(depth));
    for_each(rows, x.len() * PAIRING, |(row, pairs)| vectorized(Paired(row, pairs)));
    pairs
}

/// Multiply-adds that take as long as pairing a number.
const PAIRING: usize = 16;

/// A row, and room for its pairs.
struct Paired<'a>(&'a [f32], &'a mut [Lanes]);

impl Kernel for Paired<'_> {
    #[inline(always)]
    fn run<V: Vector>(self) {
        for (numbers, pairs) in self.0.chunks(2 * LANES).zip(self.1) {
            let rounded = padded::<f32, { 2 * LANES }>(numbers).map(|number| rounded(number.to_bits()));
            for (pair, two) in pairs.iter_mut().zip(rounded.as_chunks::<2>().0) {
                *pair = f32::from_bits(two[0] | two[1] << 16);
            }
        }
    }
}

/// The bf16 number that is nearest, as [`ProductFormat::Bf16`] takes it.
#[inline(always)]
fn rounded(bits: u32) -> u32 {
    let nearest = if bits << 1 > f32::INFINITY.to_bits() << 1 {
        // A NaN stays one.
        bits >> 16 | 0x40
    } else {
        // Half of the last bit that stays, a little less if that bit is not set.
        bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16
    };
    if nearest & 0x7FFF < LEAST.into() { nearest & 0x8000 } else { nearest }
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
    fn columns(self, w: &Matrix<'_>, factors: Factors) -> usize {
        // A block has at most 512 KiB, converted or as it is read, so that it stays in the second cache.
        let (numbers, width) = match self {
            Strategy::Stream => (1 << 17, 4),
            Strategy::Few => (1 << 16, 4),
            Strategy::Tiles => (1 << 17, 5),
        };
        // Each thread gets at least two blocks.
        let share = w.rows.div_ceil(2 * threads());
        (numbers * factors.numbers() / LANES / w.cols).min(share).div_ceil(width).max(1) * width
    }
}

/// All input rows against some weight rows, which are output columns.
struct Block<'a> {
    strategy: Strategy,
    factors: Factors,
    /// `[n, w.cols]`; of pairs `[n, w.cols.div_ceil(32), 16]`.
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
struct Streamed<'a, const ONE_ROW: bool, const PAIRS: bool>(Block<'a>);

impl<const ONE_ROW: bool, const PAIRS: bool> Kernel for Streamed<'_, ONE_ROW, PAIRS> {
    #[inline(always)]
    fn run<V: Vector>(self) {
        // The type of the weights is settled here, outside the loops.
        match self.0.w.dtype {
            _ if PAIRS => self.0.direct::<V, ONE_ROW>(Factors::Pairs),
            Dtype::F32 => self.0.direct::<V, ONE_ROW>(Factors::Numbers(Dtype::F32)),
            Dtype::F16 => self.0.direct::<V, ONE_ROW>(Factors::Numbers(Dtype::F16)),
            Dtype::Bf16 => self.0.direct::<V, ONE_ROW>(Factors::Numbers(Dtype::Bf16)),
        }
    }
}

/// A block whose weights are converted once.
struct Tiles<'a, const PAIRS: bool>(Block<'a>);

impl<const PAIRS: bool> Kernel for Tiles<'_, PAIRS> {
    #[inline(always)]
    fn run<V: Vector>(self) {
        let Block { x, n, w, columns, factors, .. } = &self.0;
        let factors = if PAIRS { Factors::Pairs } else { *factors };
        let (depth, width) = (w.cols.div_ceil(factors.numbers()), V::COLUMNS);
        let mut weights = vec![[0.0; LANES]; columns.len().next_multiple_of(width) * depth];
        for (o, row) in columns.clone().enumerate() {
            let packed = &mut weights[o / width * width * depth..][..width * depth];
            let bytes = w.row(row).chunks_exact(factors.bytes());
            let rest = bytes.remainder();
            pack(bytes.map(|bytes| factors.decode::<V>(bytes).lanes()), o % width, width, packed);
            if !rest.is_empty() {
                packed[(depth - 1) * width + o % width] = factors.decode_rest(rest);
            }
        }
        let x = match x.as_chunks() {
            (whole, []) if PAIRS || w.cols.is_multiple_of(LANES) => Cow::Borrowed(whole),
            _ => x.chunks_exact(w.cols).flat_map(|row| row.chunks(LANES).map(padded)).collect(),
        };
        in_tiles::<V>(0..*n, &mut PackedTiles::<PAIRS> { block: &self.0, x: &x, weights: &weights, depth });
    }
}

impl Block<'_> {
    #[inline(always)]
    fn direct<V: Vector, const ONE_ROW: bool>(&self, factors: Factors) {
        if ONE_ROW { self.stream::<V>(factors) } else { self.few_rows::<V>(factors) }
    }

    #[inline(always)]
    fn stream<V: Vector>(&self, factors: Factors) {
        let last = self.columns.end - 1;
        for column in self.columns.clone().step_by(4) {
            let mut sums = [V::splat(0.0); 4];
            // One row after the other: side by side they would share the loads of `x`, but memory is fastest in order.
            for (c, sums) in sums.iter_mut().enumerate() {
                *sums = add_row(self.x, factors, self.w.row((column + c).min(last)));
            }
            self.write(0, column, &V::sum_4(&sums));
        }
    }

    #[inline(always)]
    fn few_rows<V: Vector>(&self, factors: Factors) {
        let mut first = 0;
        while first < self.n {
            first += match self.n - first {
                _ if V::ONE_BY_ONE || self.columns.len() < 4 => self.microkernel_rows::<V, 1, 1>(factors, first),
                1 => self.microkernel_rows::<V, 1, 4>(factors, first),
                2 => self.microkernel_rows::<V, 2, 4>(factors, first),
                3 | 5 | 6 | 9 if V::MANY_REGISTERS => self.microkernel_rows::<V, 3, 4>(factors, first),
                _ if V::MANY_REGISTERS => self.microkernel_rows::<V, 4, 4>(factors, first),
                _ => self.microkernel_rows::<V, 3, 2>(factors, first),
            };
        }
    }

    /// `R` input rows from `first` on, `C` columns at a time; returns `R`.
    #[inline(always)]
    fn microkernel_rows<V: Vector, const R: usize, const C: usize>(&self, factors: Factors, first: usize) -> usize {
        let words = self.x.len() / self.n;
        let rows: [&[f32]; R] = rows_of(self.x, first, words, words);
        for column in self.columns.clone().step_by(C) {
            // The last few columns come with some that are known: computed again, they are the same.
            self.microkernel_at::<V, R, C>(factors, rows, first, column.min(self.columns.end - C));
        }
        R
    }

    /// `R` input rows against `C` weight rows: every number that is loaded or converted is used `R` or `C` times.
    #[inline(always)]
    fn microkernel_at<V: Vector, const R: usize, const C: usize>(
        &self,
        factors: Factors,
        rows: [&[f32]; R],
        first: usize,
        column: usize,
    ) {
        let (cols, size) = (self.w.cols, factors.bytes());
        let full = cols / factors.numbers();
        let mut whole: [&[Lanes]; R] = [&[]; R];
        for r in 0..R {
            whole[r] = &rows[r].as_chunks().0[..full];
        }
        let mut weights: [&[u8]; C] = [&[]; C];
        for (c, weights) in weights.iter_mut().enumerate() {
            *weights = self.w.row(column + c);
        }
        let mut sums = [[V::splat(0.0); C]; R];
        for k in 0..full {
            let mut vectors = [V::splat(0.0); C];
            for c in 0..C {
                let bytes = &weights[c][k * size..][..size];
                prefetch(bytes.as_ptr().wrapping_add(PREFETCH));
                vectors[c] = factors.decode(bytes);
            }
            for r in 0..R {
                let row = V::load(&whole[r][k]);
                for c in 0..C {
                    sums[r][c] = factors.mul_add(row, vectors[c], sums[r][c]);
                }
            }
        }
        if !cols.is_multiple_of(factors.numbers()) {
            for c in 0..C {
                let rest = factors.decode_rest(&weights[c][full * size..]);
                for r in 0..R {
                    let row = V::load(&padded(&rows[r][full * LANES..]));
                    sums[r][c] = factors.mul_add(row, V::load(&rest), sums[r][c]);
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
fn add_row<V: Vector>(x: &[f32], factors: Factors, row: &[u8]) -> V {
    let size = factors.bytes();
    let (row, row_rest) = row.split_at(row.len() / size * size);
    let (x, x_rest) = x.split_at(row.len() / size * LANES);
    let mut sums = V::splat(0.0);
    for (x, bytes) in x.as_chunks().0.iter().zip(row.chunks_exact(size)) {
        prefetch(bytes.as_ptr().wrapping_add(PREFETCH));
        sums = factors.mul_add(V::load(x), factors.decode(bytes), sums);
    }
    if !row_rest.is_empty() {
        sums = factors.mul_add(V::load(&padded(x_rest)), V::load(&factors.decode_rest(row_rest)), sums);
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
struct PackedTiles<'a, const PAIRS: bool> {
    block: &'a Block<'a>,
    x: &'a [Lanes],
    weights: &'a [Lanes],
    depth: usize,
}

impl<const PAIRS: bool> InTiles for PackedTiles<'_, PAIRS> {
    #[inline(always)]
    fn rows<V: Vector, const R: usize, const C: usize>(&mut self, first: usize) -> usize {
        let depth = self.depth;
        let rows: [&[Lanes]; R] = rows_of(self.x, first, depth, depth);
        let columns = self.block.columns.clone().step_by(C);
        for (packed, column) in self.weights.chunks_exact(C * depth).zip(columns) {
            let mut sums = [[V::splat(0.0); C]; R];
            // Which type the weights had doesn't matter any more.
            tile(if PAIRS { Factors::Pairs } else { Factors::Numbers(Dtype::F32) }, rows, packed, &mut sums);
            for (r, sums) in sums.iter().enumerate() {
                self.block.write(first + r, column, &lane_sums(sums));
            }
        }
        R
    }
}
