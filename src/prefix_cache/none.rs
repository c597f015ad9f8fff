//! No prefix cache, to measure what one is worth.

use crate::cache::CacheError;
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::PageTable;
use crate::prefix_cache::{PrefixCache, held_tokens};

/// A prefix cache that keeps nothing: every sequence computes all of its tokens.
pub struct NoPrefixCache {
    page_size: usize,
}

impl NoPrefixCache {
    /// For a pool whose pages have `page_size` slots.
    pub fn new(page_size: usize) -> Result<Self, CacheError> {
        if page_size == 0 {
            return Err(CacheError::NoSlots);
        }
        Ok(NoPrefixCache { page_size })
    }
}

impl PrefixCache for NoPrefixCache {
    fn lookup(&mut self, _tokens: &[u32], _pool: &mut PagePool) -> Result<PageTable, CacheError> {
        PageTable::new(self.page_size)
    }

    fn insert(&mut self, tokens: &[u32], table: &mut PageTable, _pool: &mut PagePool) -> Result<(), CacheError> {
        held_tokens(tokens, table, self.page_size);
        Ok(())
    }

    fn evict(&mut self, _n: usize, _pool: &mut PagePool) -> Result<usize, CacheError> {
        Ok(0)
    }

    fn n_pages(&self) -> usize {
        0
    }

    fn n_evictable(&self, _pool: &PagePool) -> usize {
        0
    }
}
