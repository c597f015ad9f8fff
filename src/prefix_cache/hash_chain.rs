//! vLLM's prefix cache: pages named by a chain of hashes, in the order in which they were last used.
//!
//! A page is named by a hash of its tokens and of the hash of the page before it, which stands for the whole prefix. Two
//! prefixes with the same hash would be mixed up: vLLM uses SHA-256 against that, this file 64 bits with a secret key,
//! which is enough for counting pages. The pages of a finished sequence are evicted from its end:
//!
//! ```text
//!   page size 4; a sequence of 10 tokens had pages 0 1 2 and finishes: page 2 is not full and cannot be found
//!
//!   evicted first   … 1 0   evicted last       if 0 were evicted before 1, page 1 could never be found again, because
//!                                              a prefix is found from its beginning
//! ```
//!
//! [`EvictionOrder::HeadsFirst`] evicts 0 before 1, to show the difference.
//!
//! Source: vLLM 0.33.0, `vllm/v1/core/block_pool.py`, `kv_cache_utils.py` and `single_type_kv_cache_manager.py`. There a
//! cached page without a sequence is free and stands in a queue; here the cache owns it until it is evicted, which takes
//! the same pages in the same order. As in vLLM, two pages can hold the same tokens; the first is found. Where that
//! doesn't happen, lookups, allocations and evictions are exactly those of a trie that evicts its least recently used
//! leaf.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use crate::cache::{CacheError, PageId};
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::PageTable;
use crate::prefix_cache::{CachedPage, PrefixCache, held_tokens};

/// Stands for a prefix: the hash of its last page's tokens and of the previous page's hash.
type PrefixHash = u64;

/// Which page of a finished sequence is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionOrder {
    /// The last one: the prefix gets shorter.
    TailsFirst,
    /// The first one: the whole prefix is lost at once.
    HeadsFirst,
}

/// Full pages that are found by the hashes of their prefixes.
pub struct HashChain {
    page_size: usize,
    eviction_order: EvictionOrder,
    found_by: HashMap<PrefixHash, Vec<PageId>>,
    /// Each page's hash, and its place in the order of eviction.
    held: HashMap<PageId, (PrefixHash, usize)>,
    next_place: usize,
    key: RandomState,
}

impl HashChain {
    pub fn new(page_size: usize, eviction_order: EvictionOrder) -> Result<Self, CacheError> {
        if page_size == 0 {
            return Err(CacheError::NoSlots);
        }
        let (found_by, held) = (HashMap::new(), HashMap::new());
        Ok(HashChain { page_size, eviction_order, found_by, held, next_place: 0, key: RandomState::new() })
    }

    /// The hashes of a sequence's full pages, in order.
    fn hashes(&self, tokens: &[u32]) -> Vec<PrefixHash> {
        let hash = |before: &mut Option<PrefixHash>, page| *before.insert(self.key.hash_one((*before, page)));
        tokens.chunks_exact(self.page_size).scan(None, |before, page| Some(hash(before, page))).collect()
    }
}

impl PrefixCache for HashChain {
    fn lookup(&mut self, tokens: &[u32], pool: &mut PagePool) -> Result<PageTable, CacheError> {
        let mut table = PageTable::new(self.page_size)?;
        for hash in self.hashes(&tokens[..tokens.len().saturating_sub(1)]) {
            let Some(page) = self.found_by.get(&hash).map(|pages| pages[0]) else { break };
            pool.share(page)?;
            table.pages.push(page);
        }
        table.len = table.pages.len() * self.page_size;
        Ok(table)
    }

    fn insert(&mut self, tokens: &[u32], table: &mut PageTable, pool: &mut PagePool) -> Result<(), CacheError> {
        let hashes = self.hashes(held_tokens(tokens, table, self.page_size));
        let n = hashes.len();
        for (i, (hash, page)) in hashes.into_iter().zip(&table.pages).enumerate() {
            let place = match self.eviction_order {
                EvictionOrder::TailsFirst => self.next_place + n - 1 - i,
                EvictionOrder::HeadsFirst => self.next_place + i,
            };
            if self.held.insert(*page, (hash, place)).is_none() {
                pool.share(*page)?;
                self.found_by.entry(hash).or_default().push(*page);
            }
        }
        self.next_place += n;
        Ok(())
    }

    fn evict(&mut self, n: usize, pool: &mut PagePool) -> Result<usize, CacheError> {
        for evicted in 0..n {
            let evictable = self.held.iter().filter(|(page, _)| pool.owners(**page) == Ok(1));
            let Some((page, (hash, _))) = evictable.min_by_key(|(_, (_, place))| *place) else { return Ok(evicted) };
            let (page, hash) = (*page, *hash);
            pool.free(page)?;
            self.held.remove(&page);
            let same = self.found_by.entry(hash).or_default();
            same.retain(|other| *other != page);
            if same.is_empty() {
                self.found_by.remove(&hash);
            }
        }
        Ok(n)
    }

    fn n_pages(&self) -> usize {
        self.held.len()
    }

    fn n_evictable(&self, pool: &PagePool) -> usize {
        self.held.keys().filter(|page| pool.owners(**page) == Ok(1)).count()
    }

    fn pages(&self) -> Vec<CachedPage<'_>> {
        Vec::new()
    }
}
