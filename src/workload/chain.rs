//! vLLM's prefix cache: pages named by a chain of hashes, and one queue of all free pages.
//!
//! It differs from the trie of chapter 11 in two ways:
//!
//! - A page is named by a hash of its tokens and of the hash of the page before it, which stands for the whole prefix.
//!   Two prefixes with the same hash would be mixed up: vLLM uses SHA-256 against that, this file 64 bits with a secret
//!   key, which is enough for counting pages.
//! - The cache owns no pages. A page whose last sequence has finished is free *and* can still be found. Free pages
//!   stand in a queue and are taken from its front; only then is a page's content forgotten.
//!
//! ```text
//!   page size 4, pages 0 to 5; a sequence of 10 tokens had pages 0 1 2 and finishes
//!
//!   front  2 | 3  4  5 | 1  0  back      2 is not full and cannot be found: it goes to the front
//!                                        1 and 0 are freed from the end of the sequence: 1 will be taken before 0
//!   front  2 | 3  4  5 | 1  back         a sequence begins with the tokens of page 0, which leaves the queue
//! ```
//!
//! If 0 stood before 1, it would be taken first, and page 1 could never be found again, because a prefix is found from
//! its beginning. [`EvictionOrder::HeadsFirst`] does that, to show the difference.
//!
//! Source: vLLM 0.33.0, `vllm/v1/core/block_pool.py`, `kv_cache_utils.py` and `single_type_kv_cache_manager.py`. As in
//! vLLM, two pages can hold the same tokens; the first is found. Where that doesn't happen, lookups, allocations and
//! evictions are exactly those of a trie that evicts its least recently used leaf, because pages that are freed later
//! were used later.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};

use super::PageMemory;
use crate::cache::{CacheError, PageId};

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

/// A pool whose free pages can be found by what they hold.
pub struct Chain {
    page_size: usize,
    eviction_order: EvictionOrder,
    /// Each page's reference count. `[n_pages]`
    owners: Vec<u32>,
    /// Each page's hash; `None` if it cannot be found. `[n_pages]`
    hashes: Vec<Option<PrefixHash>>,
    /// The pages with each hash.
    found_by: HashMap<PrefixHash, Vec<PageId>>,
    /// The free pages by their places in the queue, front first.
    free: BTreeMap<i64, PageId>,
    /// The place of each page that is in the queue. `[n_pages]`
    places: Vec<i64>,
    key: RandomState,
    n_evicted: u64,
}

/// The pages of a sequence in the order of its tokens, and how many tokens they hold.
pub struct ChainTable {
    /// The pages.
    pub pages: Vec<PageId>,
    /// Tokens that they hold.
    pub len: usize,
}

impl Chain {
    /// A pool of `n_pages` free pages of `page_size` slots.
    pub fn new(n_pages: usize, page_size: usize, eviction_order: EvictionOrder) -> Result<Self, CacheError> {
        if n_pages == 0 {
            return Err(CacheError::NoPages);
        }
        if page_size == 0 {
            return Err(CacheError::NoSlots);
        }
        Ok(Chain {
            page_size,
            eviction_order,
            owners: vec![0; n_pages],
            hashes: vec![None; n_pages],
            found_by: HashMap::new(),
            free: (0..n_pages as i64).zip((0..).map(PageId)).collect(),
            places: (0..n_pages as i64).collect(),
            key: RandomState::new(),
            n_evicted: 0,
        })
    }

    /// The hashes of a sequence's full pages, in order.
    fn hashes_of(&self, tokens: &[u32]) -> Vec<PrefixHash> {
        let mut before = None;
        let mut hashes = Vec::new();
        for page in tokens.chunks_exact(self.page_size) {
            let hash = self.key.hash_one((before, page));
            hashes.push(hash);
            before = Some(hash);
        }
        hashes
    }

    /// Makes a page impossible to find.
    fn forget(&mut self, page: PageId) {
        let Some(hash) = self.hashes[page.index()].take() else { return };
        let same = self.found_by.get_mut(&hash).expect("a page with a hash is found by it");
        same.retain(|other| *other != page);
        if same.is_empty() {
            self.found_by.remove(&hash);
        }
        self.n_evicted += 1;
    }

    /// Puts a page into the queue: at the back if it can be found, otherwise at the front.
    fn enqueue(&mut self, page: PageId) {
        let place = match self.hashes[page.index()] {
            Some(_) => self.free.last_key_value().map_or(0, |(last, _)| last + 1),
            None => self.free.first_key_value().map_or(0, |(first, _)| first - 1),
        };
        self.places[page.index()] = place;
        self.free.insert(place, page);
    }
}

impl PageMemory for Chain {
    type Table = ChainTable;

    fn begin(&mut self, prompt: &[u32]) -> Result<(ChainTable, usize), CacheError> {
        let mut pages = Vec::new();
        for hash in self.hashes_of(&prompt[..prompt.len().saturating_sub(1)]) {
            let Some(page) = self.found_by.get(&hash).map(|pages| pages[0]) else { break };
            if self.owners[page.index()] == 0 {
                self.free.remove(&self.places[page.index()]);
            }
            self.owners[page.index()] += 1;
            pages.push(page);
        }
        let len = pages.len() * self.page_size;
        Ok((ChainTable { pages, len }, len))
    }

    fn grow(&mut self, table: &mut ChainTable, n: usize) -> Result<usize, CacheError> {
        let needed = (table.len + n).div_ceil(self.page_size) - table.pages.len();
        if needed > self.free.len() {
            return Err(CacheError::OutOfPages { needed, free: self.free.len() });
        }
        for _ in 0..needed {
            let (_, page) = self.free.pop_first().expect("a free page");
            self.forget(page);
            self.owners[page.index()] = 1;
            table.pages.push(page);
        }
        table.len += n;
        Ok(needed)
    }

    fn insert(&mut self, tokens: &[u32], table: &mut ChainTable) -> Result<(), CacheError> {
        for (hash, page) in self.hashes_of(tokens).into_iter().zip(&table.pages) {
            if self.hashes[page.index()].is_none() {
                self.hashes[page.index()] = Some(hash);
                self.found_by.entry(hash).or_default().push(*page);
            }
        }
        Ok(())
    }

    fn end(&mut self, mut table: ChainTable) -> Result<(), CacheError> {
        if self.eviction_order == EvictionOrder::TailsFirst {
            table.pages.reverse();
        }
        for page in table.pages {
            let owners = &mut self.owners[page.index()];
            *owners = owners.checked_sub(1).expect("a released page has an owner");
            if *owners == 0 {
                self.enqueue(page);
            }
        }
        Ok(())
    }

    fn page_size(&self) -> usize {
        self.page_size
    }

    fn n_pages(&self) -> usize {
        self.owners.len()
    }

    fn n_in_use(&self) -> usize {
        self.owners.len() - self.free.len()
    }

    fn n_evicted(&self) -> u64 {
        self.n_evicted
    }
}
