//! The caches by name: what `--kv` takes, which chapters each needs, and how one is made.

use std::fmt;

use crate::cache::attention::AttentionCache;
use crate::cache::{CacheError, KvLayout};
use crate::chapters::ch02_flat::FlatCache;
use crate::chapters::ch03_contiguous::ContiguousCache;
use crate::chapters::ch06_paged::{PageSlab, PagedCache};

/// Where the keys and values of one sequence are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheKind {
    /// Nowhere: every token recomputes the whole sequence.
    Recompute,
    /// Tensors that grow by copying.
    Flat,
    /// One reservation for the whole sequence.
    Contiguous,
    /// Pages of a shared slab.
    Paged,
}

impl fmt::Display for CacheKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl AttentionCache for FlatCache {}

impl AttentionCache for ContiguousCache {}

impl CacheKind {
    /// All of them, in the order of the book.
    pub const ALL: [CacheKind; 4] = [CacheKind::Recompute, CacheKind::Flat, CacheKind::Contiguous, CacheKind::Paged];

    /// The caches that keep rows: all but the first.
    pub const WITH_ROWS: &[CacheKind] = &[CacheKind::Flat, CacheKind::Contiguous, CacheKind::Paged];

    /// Their names: `flat, contiguous, paged`.
    pub fn names(kinds: &[CacheKind]) -> String {
        kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
    }

    /// As `--kv` takes it.
    pub fn name(self) -> &'static str {
        match self {
            CacheKind::Recompute => "recompute",
            CacheKind::Flat => "flat",
            CacheKind::Contiguous => "contiguous",
            CacheKind::Paged => "paged",
        }
    }

    /// The chapters whose code it runs, without those that they use.
    pub fn chapters(self) -> &'static [usize] {
        match self {
            CacheKind::Recompute => &[1],
            CacheKind::Flat => &[1, 2],
            CacheKind::Contiguous => &[1, 3],
            CacheKind::Paged => &[1, 6],
        }
    }

    /// An empty cache; `None` where nothing is kept. A contiguous cache takes memory for `size.capacity` slots, a paged
    /// one for all of its pages.
    pub fn new_cache(self, layout: KvLayout, size: CacheSize) -> Result<Option<Box<dyn AttentionCache>>, CacheError> {
        Ok(match self {
            CacheKind::Recompute => None,
            CacheKind::Flat => Some(Box::new(FlatCache::new(layout))),
            CacheKind::Contiguous => Some(Box::new(ContiguousCache::new(layout, size.capacity))),
            CacheKind::Paged => Some(Box::new(PagedCache::new(&PageSlab::new(layout, size.page_size, size.n_pages)?)?)),
        })
    }
}

/// How much memory a cache may use, where it does not simply grow.
#[derive(Clone, Copy, Debug)]
pub struct CacheSize {
    /// Slots that a contiguous cache reserves.
    pub capacity: usize,
    pub page_size: usize,
    pub n_pages: usize,
}

impl CacheSize {
    /// Enough for this many tokens, in any cache.
    pub fn for_tokens(tokens: usize, page_size: usize) -> Result<Self, CacheError> {
        if page_size == 0 {
            return Err(CacheError::NoSlots);
        }
        Ok(CacheSize { capacity: tokens, page_size, n_pages: tokens.div_ceil(page_size) })
    }

    /// Slots that the largest of the caches takes.
    pub fn slots(self) -> usize {
        self.capacity.max(self.n_pages.saturating_mul(self.page_size))
    }
}
