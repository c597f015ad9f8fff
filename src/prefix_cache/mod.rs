//! What a scheduler asks of a prefix cache. Chapter 11 builds one, a trie.
//! [One that keeps nothing](NoPrefixCache) is here to measure what one is worth, and [vLLM's](HashChain) to compare.

mod hash_chain;

pub use hash_chain::{EvictionOrder, HashChain};

use crate::cache::{CacheError, PageId};
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::PageTable;
use crate::chapters::ch06_paged::SharedSlab;
use crate::chapters::ch11_prefix_cache::PrefixTrie;

/// Full pages that outlive the sequences that filled them, found by the tokens they hold.
///
/// The cache is one of each page's owners. It holds whole prefixes, so with each page it also holds the page before.
/// However many pages it holds, [`lookup`](Self::lookup) and [`insert`](Self::insert) cost the same.
/// [`evict`](Self::evict) and [`n_evictable`](Self::n_evictable) can look at all of them.
///
/// A page is *used* when a lookup returns it, and when an insertion finds or adds it.
pub trait PrefixCache {
    /// Returns the longest cached prefix of `tokens`, as a table of full pages that the caller now also owns. The table
    /// is empty if there is none.
    ///
    /// At least one token of the sequence is left to compute, because the caller needs the logits after it. So for 8
    /// tokens, at most 1 page of 4 is returned.
    ///
    /// # Errors
    /// If the pages came from a different pool, [`CacheError::ForeignPage`] if it has no such page, or
    /// [`CacheError::DoubleFree`] if a page has no owner there. Nothing has changed then.
    fn lookup(&mut self, tokens: &[u32], pool: &mut PagePool) -> Result<PageTable, CacheError>;

    /// Takes the full pages of a sequence. The rows of `table` are computed, and `tokens` begins with the tokens that
    /// the table holds. More can follow.
    ///
    /// Where the cache already holds a page for the same prefix, the table swaps its own page for that one, since the
    /// same tokens have the same bits. An owner of a page of this cache therefore also owns the pages before it, and a
    /// page has at least as many owners as any page after it.
    ///
    /// # Errors
    /// As [`lookup`](Self::lookup).
    ///
    /// # Panics
    /// If the table holds more tokens than `tokens` has, or has pages of a different size. Nothing has changed then.
    fn insert(&mut self, tokens: &[u32], table: &mut PageTable, pool: &mut PagePool) -> Result<(), CacheError>;

    /// Evicts up to `n` pages that only the cache owns, and returns how many. Each time it takes the least recently
    /// used one that no cached page follows. It returns fewer than `n` only if no such page is left.
    ///
    /// # Errors
    /// [`CacheError::ForeignPage`] if it finds a page that the pool does not have. Pages evicted before that stay
    /// evicted.
    fn evict(&mut self, n: usize, pool: &mut PagePool) -> Result<usize, CacheError>;

    /// Pages that it owns.
    fn n_pages(&self) -> usize;

    /// Pages that only the cache owns. All of them can be evicted, one after the other.
    ///
    /// There is one exception. If a table was forked before its pages were inserted, the fork can still have pages of
    /// its own before those that it shares. Its next insertion swaps them.
    fn n_evictable(&self, pool: &PagePool) -> usize;

    /// All pages that it owns, in no particular order, or none if it keeps no such list.
    ///
    /// The simulation of chapter 15 compares them with the owners of each page.
    fn pages(&self) -> Vec<CachedPage<'_>>;
}

/// The tokens of a sequence whose rows its table holds.
///
/// # Panics
/// If the table holds more tokens than `tokens` has, or its pages are not of `page_size` slots.
pub(crate) fn held_tokens<'a>(tokens: &'a [u32], table: &PageTable, page_size: usize) -> &'a [u32] {
    let (slots, held, given) = (table.page_size(), table.len(), tokens.len());
    assert!(slots == page_size, "the table has pages of {slots} slots; give one with pages of {page_size}");
    assert!(held <= given, "the table holds {held} tokens, but {given} are given; give all that it holds");
    &tokens[..held]
}

/// What is kept of the sequences that have finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixCacheKind {
    /// Nothing.
    None,
    /// Chapter 11's trie, which evicts tails first.
    Trie,
    /// A chain of hashes, as vLLM has it.
    HashChain(EvictionOrder),
}

impl PrefixCacheKind {
    pub fn new_cache(self, page_size: usize) -> Result<Box<dyn PrefixCache>, CacheError> {
        Ok(match self {
            PrefixCacheKind::None => Box::new(NoPrefixCache::new(page_size)?),
            PrefixCacheKind::Trie => Box::new(PrefixTrie::new(page_size)?),
            PrefixCacheKind::HashChain(order) => Box::new(HashChain::new(page_size, order)?),
        })
    }
}

/// Pages that are free, and pages that only the prefix cache owns, which can be evicted.
pub(crate) fn available_pages(prefix_cache: &dyn PrefixCache, slab: &SharedSlab) -> usize {
    let slab = slab.borrow();
    let pool = slab.pool();
    pool.n_free() + prefix_cache.n_evictable(pool)
}

/// A page of a prefix cache, as [`PrefixCache::pages`] lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedPage<'a> {
    pub page: PageId,
    /// The page before it. `None` if sequences begin with it.
    pub parent: Option<PageId>,
    /// The tokens whose rows it holds: `[page_size]`.
    pub tokens: &'a [u32],
    /// Higher for a later use. Pages used by the same call have the same number.
    pub last_used: u64,
}

/// A prefix cache that keeps nothing: every sequence computes all of its tokens.
pub struct NoPrefixCache {
    page_size: usize,
}

impl NoPrefixCache {
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

    fn pages(&self) -> Vec<CachedPage<'_>> {
        Vec::new()
    }
}
