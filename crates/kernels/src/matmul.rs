//! Matrix products: rows of numbers against rows of weights.
//!
//! **The order of sums.** Each output is one dot product in sixteen lanes: number `i` goes to lane `i % 16`, lowest `i`
//! first, and the lanes are added in halves. ([`MatmulDtype::Bf16`] has an order of its own.) All ways to compute a product
//! keep to it, so how many rows come together, and on how many threads, changes nothing but the time.
//!
//! **The order of work.** With a few input rows, memory is the limit, so the weights are read once, in order, and each number
//! that is converted meets several rows while it is in a register. With many, arithmetic is the limit, so a block of weights
//! is converted once, stays in the second cache, and meets the rows in tiles, five rows and five columns at a time.

use std::borrow::Cow;
use std::ops::Range;

use crate::matrix::{Dtype, Factors, MatmulDtype, Matrix};
use crate::parallel::{Columns, for_each, threads};
use crate::registers::{Kernel, vectorized, vectorized_pairs};
use crate::tiles::{InTiles, in_tiles, pack, tile};
use crate::vector::{LANES, LEAST, Lanes, Vector, lane_sums, padded, rows_of};

/// `out[r] = x[r] · w[o]` for every row `r` of `x` and every row `o` of `w`.
///
/// `x`: `[n, w.cols]`, `out`: `[n, w.rows]`. The weights are read once, whatever `n` is.
pub fn matmul(matmul_dtype: MatmulDtype, x: &[f32], w: &Matrix<'_>, out: &mut [f32]) {
    matmuls(matmul_dtype, x, &mut [(*w, out)]);
}

/// Several products with the same input at once, as [`matmul`] one after the other, but the threads meet only once.
pub fn matmuls(matmul_dtype: MatmulDtype, x: &[f32], outputs: &mut [(Matrix<'_>, &mut [f32])]) {
    let in_pairs = |w: &Matrix<'_>| matmul_dtype == MatmulDtype::Bf16 && w.dtype == Dtype::Bf16;
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
            1..=FEW => Strategy::Stream,
            _ => Strategy::Tiles,
        };
        let out = Columns::new(out, w.rows);
        let width = strategy.columns(w, factors);
        let columns = (0..w.rows).step_by(width).map(|first| first..(first + width).min(w.rows));
        blocks.extend(columns.map(|columns| Block { strategy, factors, x, n, w: *w, columns, out }));
        work += n * w.rows * w.cols;
    }
    for_each(blocks.into_iter(), work, |block| match (block.strategy, block.factors) {
        (Strategy::Stream, Factors::Pairs) => vectorized_pairs(Streamed::<true>(block)),
        (Strategy::Tiles, Factors::Pairs) => vectorized_pairs(Tiles::<true>(block)),
        (Strategy::Stream, _) => vectorized(Streamed::<false>(block)),
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

/// The bf16 number that is nearest, as [`MatmulDtype::Bf16`] takes it.
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

/// Bytes of weights that stay in the first cache while they meet all input rows.
const NEAR: usize = 16 << 10;

#[derive(Clone, Copy)]
enum Strategy {
    /// A few input rows: the weights stream past them, straight from memory, four rows of weights side by side.
    Stream,
    /// Many input rows: a block of weights is converted once into a buffer in the cache, then meets every row.
    Tiles,
}

impl Strategy {
    fn columns(self, w: &Matrix<'_>, factors: Factors) -> usize {
        // A block has at most 512 KiB, converted or as it is read, so that it stays in the second cache.
        let (numbers, width) = match self {
            Strategy::Stream => (1 << 16, 4),
            Strategy::Tiles => (1 << 17, 5),
        };
        // Each thread gets at least two blocks.
        let share = w.rows.div_ceil(2 * threads());
        (numbers * factors.n_numbers() / LANES / w.cols).min(share).div_ceil(width).max(1) * width
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
    /// Writes the products of an input row with `C` weight rows, from `column` on, as far as the block goes.
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

/// A block whose weights come straight from memory.
struct Streamed<'a, const PAIRS: bool>(Block<'a>);

impl<const PAIRS: bool> Kernel for Streamed<'_, PAIRS> {
    #[inline(always)]
    fn run<V: Vector>(self) {
        // The type of the weights is settled here, outside the loops.
        match self.0.w.dtype {
            _ if PAIRS => self.0.stream::<V>(Factors::Pairs),
            Dtype::F32 => self.0.stream::<V>(Factors::Numbers(Dtype::F32)),
            Dtype::F16 => self.0.stream::<V>(Factors::Numbers(Dtype::F16)),
            Dtype::Bf16 => self.0.stream::<V>(Factors::Numbers(Dtype::Bf16)),
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
        let (depth, width) = (w.cols.div_ceil(factors.n_numbers()), V::COLUMNS);
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
    fn stream<V: Vector>(&self, factors: Factors) {
        match self.columns.len() {
            ..4 => self.side_by_side::<V, 1>(factors),
            _ if V::ONE_BY_ONE => self.side_by_side::<V, 1>(factors),
            _ if V::MANY_REGISTERS => self.side_by_side::<V, 4>(factors),
            _ => self.side_by_side::<V, 2>(factors),
        }
    }

    /// `C` weight rows at a time. Input rows that one microkernel takes meet one weight row after the other; more of them meet
    /// all of a few weight rows, which are near by then, before they meet the next.
    #[inline(always)]
    fn side_by_side<V: Vector, const C: usize>(&self, factors: Factors) {
        let len = self.w.row(0).len();
        if self.n <= most_rows(C) {
            self.some_rows::<V, C, false>(factors, 0, &self.columns, C * len);
            return;
        }
        let near = (NEAR / (C * len)).max(1) * C;
        for start in self.columns.clone().step_by(near) {
            let (columns, mut first) = (start..(start + near).min(self.columns.end), 0);
            let bytes = columns.len() * len;
            while first < self.n {
                // Each input row asks for its share of what comes next, so memory is never idle.
                first += self.some_rows::<V, C, true>(factors, first, &columns, bytes + bytes * first / self.n);
            }
        }
    }

    /// As many input rows from `first` on as a microkernel takes, against some weight rows; returns how many.
    #[inline(always)]
    fn some_rows<V: Vector, const C: usize, const SHARED: bool>(
        &self,
        factors: Factors,
        first: usize,
        columns: &Range<usize>,
        ahead: usize,
    ) -> usize {
        match (self.n - first, C) {
            (1, _) | (_, 1) => self.rows::<V, 1, C, SHARED>(factors, first, columns, ahead),
            (2, _) => self.rows::<V, 2, C, SHARED>(factors, first, columns, ahead),
            (3 | 5 | 6 | 9, _) | (_, 2) => self.rows::<V, 3, C, SHARED>(factors, first, columns, ahead),
            _ => self.rows::<V, 4, C, SHARED>(factors, first, columns, ahead),
        }
    }

    /// `R` input rows from `first` on, `C` columns at a time; returns `R`. Meanwhile memory is asked for the weights that lie
    /// `ahead` bytes further on, in the order in which they lie there.
    #[inline(always)]
    fn rows<V: Vector, const R: usize, const C: usize, const SHARED: bool>(
        &self,
        factors: Factors,
        first: usize,
        columns: &Range<usize>,
        ahead: usize,
    ) -> usize {
        let words = self.x.len() / self.n;
        let rows: [&[f32]; R] = rows_of(self.x, first, words, words);
        let share = if SHARED { (C * R).div_ceil(self.n) } else { C };
        let mut next = self.w.row(columns.start).as_ptr().wrapping_add(ahead);
        for column in columns.clone().step_by(C) {
            // The last few columns come with some that are known: computed again, they are the same.
            self.microkernel::<V, R, C>(factors, rows, first, column.min(self.columns.end - C), (next, share));
            next = next.wrapping_add(share * self.w.row(column).len());
        }
        R
    }

    /// `R` input rows against `C` weight rows: every number that is loaded or converted is used `R` or `C` times. `next`: as
    /// many bytes as `share` weight rows have are asked for from there on.
    #[inline(always)]
    fn microkernel<V: Vector, const R: usize, const C: usize>(
        &self,
        factors: Factors,
        rows: [&[f32]; R],
        first: usize,
        column: usize,
        (next, share): (*const u8, usize),
    ) {
        let (cols, size) = (self.w.cols, factors.bytes());
        let full = cols / factors.n_numbers();
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
                if c < share {
                    prefetch(next.wrapping_add((k * share + c) * size));
                }
                vectors[c] = factors.decode(&weights[c][k * size..][..size]);
            }
            for r in 0..R {
                let row = V::load(&whole[r][k]);
                for c in 0..C {
                    sums[r][c] = factors.mul_add(row, vectors[c], sums[r][c]);
                }
            }
        }
        if !cols.is_multiple_of(factors.n_numbers()) {
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

/// Input rows that a microkernel takes at most, against so many weight rows.
const fn most_rows(columns: usize) -> usize {
    match columns {
        1 => 1,
        2 => 3,
        _ => 4,
    }
}

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
