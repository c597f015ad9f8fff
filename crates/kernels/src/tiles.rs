//! Many rows against packed rows, a tile of both at a time: every vector that is loaded is used several times.

use std::ops::Range;

use crate::matrix::Factors;
use crate::vector::{Lanes, Vector};

/// Work on rows that can be done for several of them at once.
pub(crate) trait InTiles {
    /// Does the work of `R` rows, from row `first` on, `C` columns at a time: [`Vector::COLUMNS`]. Returns `R`.
    fn rows<V: Vector, const R: usize, const C: usize>(&mut self, first: usize) -> usize;
}

/// Does the work of all rows, in the largest tiles that the registers hold.
#[inline(always)]
pub(crate) fn in_tiles<V: Vector>(rows: Range<usize>, work: &mut impl InTiles) {
    let mut first = rows.start;
    while first < rows.end {
        let left = rows.end - first;
        first += match left {
            _ if V::ONE_BY_ONE => work.rows::<V, 1, 1>(first),
            1 if V::MANY_REGISTERS => work.rows::<V, 1, 5>(first),
            2 if V::MANY_REGISTERS => work.rows::<V, 2, 5>(first),
            3 if V::MANY_REGISTERS => work.rows::<V, 3, 5>(first),
            4 if V::MANY_REGISTERS => work.rows::<V, 4, 5>(first),
            _ if V::MANY_REGISTERS => work.rows::<V, 5, 5>(first),
            1 => work.rows::<V, 1, 2>(first),
            2 => work.rows::<V, 2, 2>(first),
            _ => work.rows::<V, 3, 2>(first),
        };
    }
}

/// Puts one of `width` packed rows in its place: they lie side by side, sixteen numbers of each in turn.
///
/// ```text
///   of 5:  row 0 numbers 0..16, row 1 numbers 0..16, … row 4 numbers 0..16, row 0 numbers 16..32, …
/// ```
#[inline(always)]
pub(crate) fn pack(row: impl Iterator<Item = Lanes>, at: usize, width: usize, packed: &mut [Lanes]) {
    packed.chunks_exact_mut(width).zip(row).for_each(|(packed, lanes)| packed[at] = lanes);
}

/// Adds `R * C` dot products to `sums` at once: those of `R` rows and of `C` packed ones.
#[inline(always)]
pub(crate) fn tile<V: Vector, const R: usize, const C: usize>(
    factors: Factors,
    rows: [&[Lanes]; R],
    packed: &[Lanes],
    sums: &mut [[V; C]; R],
) {
    let packed = packed.as_chunks::<C>().0;
    for k in 0..packed.len() {
        let mut columns = [V::splat(0.0); C];
        for c in 0..C {
            columns[c] = V::load(&packed[k][c]);
        }
        for r in 0..R {
            let row = V::load(&rows[r][k]);
            for c in 0..C {
                sums[r][c] = factors.mul_add(row, columns[c], sums[r][c]);
            }
        }
    }
}
