//! Chapter 3: a cache that reserves all its room at the start.
//!
//! One tensor holds the keys of all layers and one the values, each
//! `[n_layers, capacity, kv_width]`. Every new row already has its place, so no row is copied.
//! Slots that the sequence does not fill stay empty, because no other sequence can use them.
//!
//! ```text
//!   capacity 8, 2 layers, 5 tokens held
//!
//!   row        0    1    2    3    4    5    6    7
//!   layer 0  [ t0 | t1 | t2 | t3 | t4 | .. | .. | .. ]
//!
//!   row        8    9   10   11   12   13   14   15
//!   layer 1  [ t0 | t1 | t2 | t3 | t4 | .. | .. | .. ]
//!
//!   token 3 in layer 1 is row 8 + 3 = 11 of the tensor
//! ```
//!
//! Check your work with `cargo test --features solution --test ch03_contiguous`.

use std::borrow::Cow;
use std::ops::Range;

use crate::cache::{CacheError, CacheUsage, KvCache, KvLayout};

/// Returns how many bytes the keys and values of `tokens` tokens take in all layers.
///
/// `bytes_per_number`: 4 for `f32`, 2 for 16-bit floats.
pub fn cache_bytes(layout: KvLayout, tokens: usize, bytes_per_number: usize) -> usize {
    todo!("ch03 task 1: how many bytes do these tokens take?")
}

/// A cache that reserves room for `capacity` tokens when it is created.
pub struct ContiguousCache {
    layout: KvLayout,
    /// Tokens that it has room for.
    capacity: usize,
    /// Tokens held.
    pub(super) len: usize,
    /// `[n_layers, capacity, kv_width]`, row-major.
    k: Vec<f32>,
    /// `[n_layers, capacity, kv_width]`, row-major.
    v: Vec<f32>,
}

impl ContiguousCache {
    /// An empty cache with room for `capacity` tokens.
    ///
    /// # Panics
    /// If no memory can hold that many tokens.
    pub fn new(layout: KvLayout, capacity: usize) -> Self {
        let numbers = layout.n_numbers(capacity).unwrap_or_else(|error| panic!("{error}"));
        let (k, v) = (vec![0.0; numbers], vec![0.0; numbers]);
        ContiguousCache { layout, capacity, len: 0, k, v }
    }

    /// Returns where the rows of some positions in one layer lie in `k` and `v`, in numbers.
    ///
    /// With `kv_width` 2 and `capacity` 8, positions `3..5` of layer 1 → numbers `22..26`.
    fn range(&self, layer: usize, positions: Range<usize>) -> Range<usize> {
        todo!("ch03 task 3: find these rows in the tensor that holds all layers")
    }
}

impl KvCache for ContiguousCache {
    fn layout(&self) -> KvLayout {
        self.layout
    }

    fn len(&self) -> usize {
        self.len
    }

    /// Takes the next `n` slots of the reservation, and allocates nothing. `n` can be any number,
    /// even `usize::MAX`.
    ///
    /// # Errors
    /// [`CacheError::OutOfSlots`] if fewer than `n` slots are free. The cache is then unchanged.
    fn extend(&mut self, n: usize) -> Result<(), CacheError> {
        todo!("ch03 task 2: take n slots, or refuse and change nothing")
    }

    /// Stores the rows of the newest tokens in their slots of one layer. It allocates nothing and
    /// changes no other row.
    ///
    /// With 5 tokens held, 2 rows fill slots 3 and 4, and 1 row fills slot 4, no matter how many
    /// slots the last `extend` took.
    ///
    /// # Panics
    /// If there are more rows than tokens held, or if `k` and `v` do not hold the same whole
    /// number of rows.
    fn write(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        let rows = self.layout.rows(k, v);
        todo!("ch03 task 3: store the new rows in the newest slots")
    }

    /// Returns one layer's keys and values, each `[len, kv_width]`, borrowed from the reservation
    /// without its empty slots.
    fn gather(&self, layer: usize) -> (Cow<'_, [f32]>, Cow<'_, [f32]>) {
        todo!("ch03 task 3: lend the filled part of the layer")
    }

    fn usage(&self) -> CacheUsage {
        CacheUsage {
            tokens: self.len,
            slots: self.capacity,
            bytes: (self.k.len() + self.v.len()) * size_of::<f32>(),
            copied_tokens: 0,
        }
    }
}

/// Returns the share of all slots that hold no token, from 0 to 1, or 0 if there are no slots.
///
/// With no token in 10 slots and 30 tokens in 30 slots, 10 of 40 slots are empty → `0.25`
pub fn wasted_share(usages: &[CacheUsage]) -> f64 {
    todo!("ch03 task 4: what share of the slots is empty?")
}
