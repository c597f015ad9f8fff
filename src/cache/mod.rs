//! The contract between the model and its memory.
//!
//! When a token passes through a layer, attention needs the *keys* and *values* of every token before it. A
//! [`KvCache`] keeps them. One token's keys in one layer are a **row** of [`KvLayout::kv_width`] numbers, and so are
//! its values. With 2 key/value heads of 4 numbers each, after three tokens, one layer holds:
//!
//! ```text
//!              head 0          head 1
//!   token 0  k k k k         k k k k      v v v v   v v v v
//!   token 1  k k k k         k k k k      v v v v   v v v v
//!   token 2  k k k k         k k k k      v v v v   v v v v
//!            └──── one row, kv_width = 8 ────┘
//! ```
//!
//! A step of the model makes room once with [`KvCache::extend`], then, layer by layer, writes the new rows and gathers
//! all of them. Only making room can fail, so a step that does not fit fails before it computes or changes anything.
//!
//! A cache belongs to one sequence. The chapters implement the caches.

pub mod attention;

use std::borrow::Cow;

use crate::english::plural;

/// The shape of what one token leaves in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers of the model, each with its own keys and values.
    pub n_layers: usize,
    /// Key/value heads in a layer. Several query heads can share one.
    pub n_kv_heads: usize,
    pub head_dim: usize,
}

impl KvLayout {
    /// Numbers in one row: the keys, or the values, of one token in one layer.
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Numbers that the keys of `slots` tokens take in all layers. Their values take the same number again.
    ///
    /// With 2 layers and rows of 8 numbers, 3 slots → 48 numbers.
    ///
    /// # Errors
    /// [`CacheError::TooManySlots`] if no memory can hold that many numbers.
    pub fn n_numbers(&self, slots: usize) -> Result<usize, CacheError> {
        let numbers = slots.checked_mul(self.n_layers).and_then(|rows| rows.checked_mul(self.kv_width()));
        // No allocation can have more bytes than `isize::MAX`.
        numbers.filter(|numbers| *numbers <= isize::MAX as usize / size_of::<f32>()).ok_or(CacheError::TooManySlots {
            slots,
            n_layers: self.n_layers,
            kv_width: self.kv_width(),
        })
    }

    /// Returns how many rows `k` and `v` hold, each `[rows, kv_width]`.
    ///
    /// # Panics
    /// If they do not hold the same whole number of rows.
    pub fn rows(&self, k: &[f32], v: &[f32]) -> usize {
        let width = self.kv_width();
        assert_eq!(k.len(), v.len(), "k and v hold the same rows");
        assert!(k.len().is_multiple_of(width), "{} numbers are not whole rows of {width}", k.len());
        k.len() / width
    }
}

/// What a cache holds and what that costs.
///
/// All counters count tokens. A copied token counts once, although its rows are copied in every layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUsage {
    pub tokens: usize,
    /// Tokens that the memory taken so far has room for. Slots beyond `tokens` are wasted.
    pub slots: usize,
    /// Bytes taken for keys and values, over all layers.
    pub bytes: usize,
    /// Tokens copied from one place in memory to another since the cache was created, except by `gather`.
    pub copied_tokens: u64,
}

impl CacheUsage {
    /// Slots that were taken but hold no token.
    pub fn wasted(&self) -> usize {
        self.slots - self.tokens
    }
}

/// The keys and values of one sequence, in every layer.
// ANCHOR: trait
pub trait KvCache {
    /// The shape of a row.
    fn layout(&self) -> KvLayout;

    /// Tokens held.
    fn len(&self) -> usize;

    /// True if no tokens are held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes room for `n` more tokens in every layer; [`len`](Self::len) grows by `n`.
    ///
    /// # Errors
    /// [`CacheError`] if there is not enough room. The cache is then unchanged.
    fn extend(&mut self, n: usize) -> Result<(), CacheError>;

    /// Stores the rows of the newest `n` tokens in one layer, where `n` is `k.len() / kv_width`.
    ///
    /// `k` and `v`: `[n, kv_width]`, row-major, oldest token first. [`extend`](Self::extend) has already made room for
    /// them. `layer` is less than the layout's `n_layers`.
    ///
    /// # Panics
    /// If `k` and `v` do not hold the same whole number of rows, or if that number is more than `len`.
    fn write(&mut self, layer: usize, k: &[f32], v: &[f32]);

    /// All keys and all values of a layer, each `[len, kv_width]`, row-major, oldest token first.
    ///
    /// They are borrowed if the rows already lie side by side, which costs nothing, and owned if they had to be copied
    /// together. `layer` is less than the layout's `n_layers`.
    fn gather(&self, layer: usize) -> (Cow<'_, [f32]>, Cow<'_, [f32]>);

    /// What the cache holds and what that costs.
    fn usage(&self) -> CacheUsage;
}
// ANCHOR_END: trait

/// A cache that can forget its newest tokens.
// ANCHOR: rewind
pub trait Rewind: KvCache {
    /// Forgets the newest `n` tokens in every layer; [`len`](KvCache::len) shrinks by `n`.
    ///
    /// The rows of the remaining tokens keep their bits. Pages that no longer hold a token return to their pool.
    ///
    /// # Errors
    /// [`CacheError::PastTheStart`] if fewer than `n` tokens are held. The cache is then unchanged.
    fn rewind(&mut self, n: usize) -> Result<(), CacheError>;
}
// ANCHOR_END: rewind

/// The number of a page in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

impl PageId {
    /// The page's index among all pages of its pool, from 0.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for PageId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a cache, a page table or a page pool refused a call. A refused call changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    #[error(
        "the cache has no room for {}: {free} of its {capacity} slots are free; reserve more, or ask for fewer tokens",
        plural(*needed, "more token")
    )]
    OutOfSlots { needed: usize, free: usize, capacity: usize },
    #[error("pages needed: {needed}, free: {free}; let other sequences finish, or give the pool more pages")]
    OutOfPages { needed: usize, free: usize },
    #[error("page {0} is free already: it was freed twice, or never allocated")]
    DoubleFree(PageId),
    #[error("page {0} is free: only a page that has an owner can be shared")]
    FreePage(PageId),
    #[error("page {page} is not of this pool: its pages go from 0 to {}", n_pages - 1)]
    ForeignPage { page: PageId, n_pages: usize },
    #[error("a pool needs at least one page")]
    NoPages,
    #[error("a page needs at least one slot: the page size is 0")]
    NoSlots,
    #[error(
        "no memory holds {slots} slots with a row of {kv_width} numbers in each of {n_layers} layers; ask for fewer \
         slots"
    )]
    TooManySlots { slots: usize, n_layers: usize, kv_width: usize },
    #[error("there is no token at position {position} in a sequence of {}", plural(*len, "token"))]
    PastTheEnd { position: usize, len: usize },
    #[error("cannot rewind {}: the sequence has {len}; rewind {len} to forget all of it", plural(*n, "token"))]
    PastTheStart { n: usize, len: usize },
}
