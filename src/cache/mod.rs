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
//! all of them. Only making room can fail, so a step that does not fit is refused before anything was computed or changed.
//!
//! A cache belongs to one sequence. The chapters implement the caches.

pub mod first_fit;
pub mod in_place;
pub mod kind;
pub mod snapshot;

use std::borrow::Cow;

/// The shape of what one token leaves in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers of the model; each has keys and values of its own.
    pub n_layers: usize,
    /// Key/value heads in a layer (several query heads may share one).
    pub n_kv_heads: usize,
    /// Numbers in one head.
    pub head_dim: usize,
}

impl KvLayout {
    /// Numbers in one row: the keys, or the values, of one token in one layer.
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Numbers that the keys of `slots` tokens take in all layers; their values take as many again.
    ///
    /// With 2 layers and rows of 8 numbers: 3 slots → 48 numbers.
    ///
    /// # Errors
    /// [`CacheError::TooManySlots`] if no memory can hold them.
    pub fn numbers(&self, slots: usize) -> Result<usize, CacheError> {
        let numbers = slots.checked_mul(self.n_layers).and_then(|rows| rows.checked_mul(self.kv_width()));
        // No allocation has more bytes than an `isize` counts.
        numbers.filter(|numbers| *numbers <= isize::MAX as usize / size_of::<f32>()).ok_or(CacheError::TooManySlots {
            slots,
            n_layers: self.n_layers,
            kv_width: self.kv_width(),
        })
    }

    /// How many rows `k` and `v` hold, each `[rows, kv_width]`.
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
/// Counters count tokens: a token that is copied counts as one row copied, although its rows move in every layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens held.
    pub tokens: usize,
    /// Tokens that the memory taken so far has room for; what is beyond `tokens` is wasted.
    pub slots: usize,
    /// Bytes taken for keys and values, over all layers.
    pub bytes: usize,
    /// Rows moved from one place in memory to another since the cache was made. What `gather` copies out is not counted.
    pub rows_copied: u64,
}

impl Usage {
    /// Slots taken but not used.
    pub fn wasted(&self) -> usize {
        self.slots - self.tokens
    }
}

/// The keys and values of one sequence, in every layer.
pub trait KvCache {
    /// The shape of a row.
    fn layout(&self) -> KvLayout;

    /// Tokens held.
    fn len(&self) -> usize;

    /// True before the first token.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes room for `n` more tokens in every layer; [`len`](Self::len) grows by `n`.
    ///
    /// # Errors
    /// [`CacheError`] when there is no room. The cache is then as it was.
    fn extend(&mut self, n: usize) -> Result<(), CacheError>;

    /// Stores the rows of the newest `n` tokens in one layer, where `n` is `k.len() / kv_width`.
    ///
    /// `k` and `v`: `[n, kv_width]`, row-major, oldest token first. [`extend`](Self::extend) has made the room.
    ///
    /// # Panics
    /// If `k` and `v` are not the same whole number of rows, at most `len`. `layer` is one of the layout's.
    fn write(&mut self, layer: usize, k: &[f32], v: &[f32]);

    /// All keys and all values of a layer, each `[len, kv_width]`, row-major, oldest token first.
    ///
    /// Borrowed where the rows lie side by side already, which is free; owned where they had to be copied together.
    /// `layer` is one of the layout's.
    fn gather(&self, layer: usize) -> (Cow<'_, [f32]>, Cow<'_, [f32]>);

    /// What the cache holds and what that costs.
    fn usage(&self) -> Usage;
}

/// A cache that can forget its newest tokens.
pub trait Rewind: KvCache {
    /// Forgets the newest `n` tokens in every layer; [`len`](KvCache::len) shrinks by `n`.
    ///
    /// The rows of the tokens that stay keep their bits. Pages that hold no token any more go back to their pool.
    ///
    /// # Errors
    /// [`CacheError::PastTheStart`] if fewer than `n` tokens are held. The cache is then as it was.
    fn rewind(&mut self, n: usize) -> Result<(), CacheError>;
}

/// Names a page of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

impl PageId {
    /// The page's place among all pages of its pool, from 0.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for PageId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a cache, a page table or a page pool refused. Whatever the reason, nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// A fixed reservation has too few empty slots left.
    #[error(
        "the cache has no room for {needed} more tokens: {free} of its {capacity} slots are free; \
         reserve more, or ask for fewer tokens"
    )]
    OutOfSlots {
        /// Slots asked for.
        needed: usize,
        /// Slots still empty.
        free: usize,
        /// Slots reserved.
        capacity: usize,
    },
    /// The pool has too few free pages.
    #[error("pages needed: {needed}, free: {free}; let other sequences finish, or give the pool more pages")]
    OutOfPages {
        /// Pages asked for.
        needed: usize,
        /// Pages without an owner.
        free: usize,
    },
    /// A page that has no owner was freed.
    #[error("page {0} is free already: it was freed twice, or never allocated")]
    DoubleFree(PageId),
    /// A page that has no owner was to be shared.
    #[error("page {0} is free: only a page that has an owner can be shared")]
    FreePage(PageId),
    /// A page that the pool does not have.
    #[error("page {page} is not of this pool: its pages go from 0 to {}", n_pages - 1)]
    ForeignPage {
        /// The page.
        page: PageId,
        /// Pages of the pool.
        n_pages: usize,
    },
    /// A pool without pages.
    #[error("a pool needs at least one page")]
    NoPages,
    /// Pages without slots.
    #[error("a page needs at least one slot: the page size is 0")]
    NoSlots,
    /// More slots than any memory has.
    #[error(
        "no memory holds {slots} slots with a row of {kv_width} numbers in each of {n_layers} layers; ask for fewer slots"
    )]
    TooManySlots {
        /// Slots asked for.
        slots: usize,
        /// Layers, each with a row for every slot.
        n_layers: usize,
        /// Numbers in a row.
        kv_width: usize,
    },
    /// A position at which no token is held.
    #[error("there is no token at position {position}: {len} tokens are held")]
    PastTheEnd {
        /// The position.
        position: usize,
        /// Tokens held.
        len: usize,
    },
    /// More tokens were to be forgotten than are held.
    #[error("cannot rewind {n} tokens: only {len} are held; rewind {len} to forget them all")]
    PastTheStart {
        /// Tokens to forget.
        n: usize,
        /// Tokens held.
        len: usize,
    },
}
