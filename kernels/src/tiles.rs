//! Many rows against packed rows, a tile of both at a time: every vector that is loaded is used several times.

use std::ops::Range;

use crate::vector::{Lanes, Vector};

/// Packed rows that lie side by side in a panel.
pub(crate) const PANEL: usize = 4;

/// Four rows, sixteen numbers of each in turn; zeros where a row is missing.
///
/// ```text
///   panel[0] = row 0 numbers 0..16, row 1 numbers 0..16, row 2 numbers 0..16, row 3 numbers 0..16
///   panel[1] = row 0 numbers 16..32, …
/// ```
pub(crate) type Panel = [[Lanes; PANEL]];

/// Work on rows that can be done for several of them at once.
pub(crate) trait InTiles {
    /// Does the work of `R` rows, from row `first` on, `C` columns at a time. Returns `R`.
    fn rows<V: Vector, const R: usize, const C: usize>(&mut self, first: usize) -> usize;
}

/// Does the work of all rows, in the largest tiles that the registers hold.
#[inline(always)]
pub(crate) fn in_tiles<V: Vector>(rows: Range<usize>, work: &mut impl InTiles) {
    let mut first = rows.start;
    while first < rows.end {
        let left = rows.end - first;
        first += if V::ONE_BY_ONE {
            work.rows::<V, 1, 1>(first)
        } else if V::MANY_REGISTERS {
            match left {
                1 => work.rows::<V, 1, 4>(first),
                2 => work.rows::<V, 2, 4>(first),
                3 => work.rows::<V, 3, 4>(first),
                4 | 5 => work.rows::<V, 4, 4>(first),
                _ => work.rows::<V, 6, 4>(first),
            }
        } else {
            match left {
                1 => work.rows::<V, 1, 2>(first),
                2 => work.rows::<V, 2, 2>(first),
                _ => work.rows::<V, 3, 2>(first),
            }
        };
    }
}

/// Adds `R * C` dot products to `sums` at once: those of `R` rows and of `C` rows of a panel, from row `at` on.
#[inline(always)]
pub(crate) fn tile<V: Vector, const R: usize, const C: usize>(
    rows: [&[Lanes]; R],
    panel: &Panel,
    at: usize,
    sums: &mut [[V; C]; R],
) {
    for k in 0..panel.len() {
        let packed = &panel[k][at..][..C];
        let mut columns = [V::splat(0.0); C];
        for c in 0..C {
            columns[c] = V::load(&packed[c]);
        }
        for r in 0..R {
            let row = V::load(&rows[r][k]);
            for c in 0..C {
                sums[r][c] = row.mul_add(columns[c], sums[r][c]);
            }
        }
    }
}
