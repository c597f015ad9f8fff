//! Chapter 2: a cache with two flat tensors in each layer, which grow by copying.
//!
//! Each layer keeps its keys in one tensor and its values in another, both exactly as long as
//! the sequence. A tensor cannot grow in place, so to make room, the cache allocates a longer
//! one, copies the old rows into it, and drops the old tensor.
//!
//! ```text
//!   before     [ t0 | t1 | t2 ]
//!   extend(1)  [ t0 | t1 | t2 | 0  ]     a new tensor: 3 rows are copied, the new row is zero
//!   write      [ t0 | t1 | t2 | t3 ]     the new row is in its place
//! ```
//!
//! The first caches of many libraries do the same, with `torch.cat` at every step. This cache
//! counts the tokens that it copies. Later chapters get rid of the copying.

use std::borrow::Cow;

use crate::cache::{CacheError, CacheUsage, KvCache, KvLayout};

// ANCHOR: cache
/// A cache whose tensors are exactly as long as the sequence.
pub struct FlatCache {
    layout: KvLayout,
    /// Tokens held.
    pub(super) len: usize,
    pub(super) layers: Vec<FlatLayer>,
    pub(crate) copied_tokens: u64,
}

/// The tensors of one layer.
#[derive(Clone, Default)]
pub(super) struct FlatLayer {
    /// `[len, kv_width]`, row-major.
    pub(super) k: Vec<f32>,
    /// `[len, kv_width]`, row-major.
    pub(super) v: Vec<f32>,
}
// ANCHOR_END: cache

impl FlatCache {
    /// An empty cache.
    pub fn new(layout: KvLayout) -> Self {
        let layers = vec![FlatLayer::default(); layout.n_layers];
        FlatCache { layout, len: 0, layers, copied_tokens: 0 }
    }
}

/// Returns a new tensor, exactly `extra` numbers longer: the numbers of `old`, then zeros.
///
/// `grown(&[1.0, 2.0], 2)` → `[1.0, 2.0, 0.0, 0.0]`
// ANCHOR: grown
pub fn grown(old: &[f32], extra: usize) -> Vec<f32> {
    // ch02 task 1: copy into a new tensor that is exactly as long as it must be
    let mut new = vec![0.0; old.len() + extra];
    new[..old.len()].copy_from_slice(old);
    new
}
// ANCHOR_END: grown

impl KvCache for FlatCache {
    fn layout(&self) -> KvLayout {
        self.layout
    }

    fn len(&self) -> usize {
        self.len
    }

    /// Replaces both tensors of every layer by ones that are `n` rows longer. It copies each old
    /// row once, and adds the copied tokens to `copied_tokens`.
    ///
    /// A copied token counts once, although its rows are copied in every layer. `extend(2)`
    /// on 3 tokens copies 3 rows, and `len` is then 5. `extend(0)` also makes new tensors, so on
    /// 3 tokens it copies 3 rows.
    // ANCHOR: extend
    fn extend(&mut self, n: usize) -> Result<(), CacheError> {
        // ch02 task 1: make room for n tokens in every layer
        let extra = n * self.layout.kv_width();
        for layer in &mut self.layers {
            layer.k = grown(&layer.k, extra);
            layer.v = grown(&layer.v, extra);
        }
        self.copied_tokens += self.len as u64;
        self.len += n;
        Ok(())
    }
    // ANCHOR_END: extend

    /// Stores the rows of the newest tokens in the last rows of one layer's tensors. It allocates
    /// nothing and changes no other row.
    ///
    /// `extend` has already made room for them. After the `extend(2)` that brought `len` to 5,
    /// `write` fills rows 3 and 4 if it is given 2 rows, and only row 4 if it is given 1. Writing
    /// the same rows again changes nothing.
    ///
    /// # Panics
    /// If there are more rows than tokens held, or if `k` and `v` do not hold the same whole
    /// number of rows.
    // ANCHOR: write
    fn write(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        let rows = self.layout.rows(k, v);
        assert!(rows <= self.len, "rows to write: {rows}, tokens held: {}", self.len);
        // ch02 task 3: store the new rows after the older ones
        let first = (self.len - rows) * self.layout.kv_width();
        self.layers[layer].k[first..].copy_from_slice(k);
        self.layers[layer].v[first..].copy_from_slice(v);
    }
    // ANCHOR_END: write

    /// Returns one layer's keys and values, each `[len, kv_width]`, borrowed from its tensors.
    // ANCHOR: gather
    fn gather(&self, layer: usize) -> (Cow<'_, [f32]>, Cow<'_, [f32]>) {
        // ch02 task 2: lend the keys and the values of the layer
        let layer = &self.layers[layer];
        (Cow::Borrowed(&layer.k), Cow::Borrowed(&layer.v))
    }
    // ANCHOR_END: gather

    fn usage(&self) -> CacheUsage {
        let numbers = |layer: &FlatLayer| layer.k.capacity() + layer.v.capacity();
        let numbers: usize = self.layers.iter().map(numbers).sum();
        CacheUsage {
            tokens: self.len,
            slots: numbers / (2 * self.layout.n_layers * self.layout.kv_width()),
            bytes: numbers * size_of::<f32>(),
            copied_tokens: self.copied_tokens,
        }
    }
}
