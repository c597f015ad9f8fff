//! vLLM's prefix cache: pages named by a chain of hashes, and one queue of all free pages.
//!
//! It differs from the trie of chapter 11 in two ways:
//!
//! - A page is named by a hash of its tokens and of the hash of the page before it. The hash therefore stands for the whole
//!   prefix, and neither the tokens nor the previous page need to be stored. Two prefixes with the same hash would be mixed up:
//!   vLLM uses SHA-256 against that. This file uses 64 bits with a secret key, which is enough for counting pages.
//! - The cache owns no pages. A page whose last sequence has finished is free *and* can still be found. Free pages stand in a
//!   queue and are taken from its front; only then is a page's content forgotten.
//!
//! ```text
//!   page size 4, pages 0 to 5; a sequence of 10 tokens had pages 0 1 2 and finishes
//!
//!   front  2 | 3  4  5 | 1  0  back      2 is not full and cannot be found: it goes to the front
//!                                        1 and 0 are freed from the end of the sequence: 1 will be taken before 0
//!   front  2 | 3  4  5 | 1  back         a sequence begins with the tokens of page 0, which leaves the queue
//! ```
//!
//! If 0 stood before 1, it would be taken first, and page 1 could never be found again, because a prefix is found from its
//! beginning. [`FirstOut::Heads`] does that, to show the difference.
//!
//! This type doesn't implement [`Prefixes`](super::Prefixes), whose implementations own their pages and return some on request.
//! Here the pool itself remembers what its free pages hold: it is a pool and a prefix cache in one.
//!
//! Source: vLLM 0.33.0, `vllm/v1/core/block_pool.py` (`get_cached_block`, `touch`, `get_new_blocks`, `free_blocks`,
//! `cache_full_blocks`), `kv_cache_utils.py` (`hash_block_tokens`, `FreeKVCacheBlockQueue`) and
//! `single_type_kv_cache_manager.py` (`free`, which reverses). As in vLLM, two pages can hold the same tokens; the first is
//! found. Where that doesn't happen, lookups, allocations and evictions are exactly those of a trie that evicts its least
//! recently used leaf, because pages that are freed later were used later.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use crate::cache::{CacheError, PageId};

/// Stands for a prefix: the hash of its last page's tokens and of the previous page's hash.
type PrefixHash = u64;

/// Which page of a finished sequence is taken first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstOut {
    /// The last one: the prefix gets shorter.
    Tails,
    /// The first one: the whole prefix is lost at once.
    Heads,
}

/// A pool whose free pages can be found by what they hold.
pub struct Chain {
    page_size: usize,
    first_out: FirstOut,
    /// Each page's reference count. `[n_pages]`
    owners: Vec<u32>,
    /// Each page's hash; `None` if it cannot be found. `[n_pages]`
    hashes: Vec<Option<PrefixHash>>,
    /// The pages with each hash.
    found_by: HashMap<PrefixHash, Vec<PageId>>,
    free: FreeQueue,
    key: RandomState,
    n_evicted: u64,
}

impl Chain {
    /// A pool of `n_pages` free pages of `page_size` slots.
    ///
    /// # Errors
    /// [`CacheError::NoPages`], [`CacheError::NoSlots`] if there are none.
    ///
    /// # Panics
    /// If `n_pages` does not fit into a `u32`.
    pub fn new(n_pages: usize, page_size: usize, first_out: FirstOut) -> Result<Self, CacheError> {
        if n_pages == 0 {
            return Err(CacheError::NoPages);
        }
        if page_size == 0 {
            return Err(CacheError::NoSlots);
        }
        Ok(Chain {
            page_size,
            first_out,
            owners: vec![0; n_pages],
            hashes: vec![None; n_pages],
            found_by: HashMap::new(),
            free: FreeQueue::new(n_pages),
            key: RandomState::new(),
            n_evicted: 0,
        })
    }

    // ANCHOR: hashes
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
    // ANCHOR_END: hashes

    /// The pages of the longest cached prefix of `tokens`, at least one token short of all of them. Each page's reference count
    /// rises by one, and pages that were free leave the queue from wherever they stand.
    pub fn lookup(&mut self, tokens: &[u32]) -> Vec<PageId> {
        let mut pages = Vec::new();
        for hash in self.hashes_of(&tokens[..tokens.len().saturating_sub(1)]) {
            let Some(page) = self.found_by.get(&hash).map(|pages| pages[0]) else { break };
            if self.owners[page.index()] == 0 {
                self.free.remove(page);
            }
            self.owners[page.index()] += 1;
            pages.push(page);
        }
        pages
    }

    /// Takes `n` pages from the front of the queue, or none. What they held can no longer be found.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`] if fewer than `n` are free.
    pub fn alloc(&mut self, n: usize) -> Result<Vec<PageId>, CacheError> {
        if n > self.free.len {
            return Err(CacheError::OutOfPages { needed: n, free: self.free.len });
        }
        let mut pages = Vec::new();
        for _ in 0..n {
            let page = self.free.front();
            self.free.remove(page);
            self.forget(page);
            self.owners[page.index()] = 1;
            pages.push(page);
        }
        Ok(pages)
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

    /// Makes the full pages of a sequence possible to find. `pages` hold the rows of `tokens`, all of them computed.
    pub fn insert(&mut self, tokens: &[u32], pages: &[PageId]) {
        for (hash, page) in self.hashes_of(tokens).into_iter().zip(pages) {
            if self.hashes[page.index()].is_none() {
                self.hashes[page.index()] = Some(hash);
                self.found_by.entry(hash).or_default().push(*page);
            }
        }
    }

    /// Releases the pages of a sequence, given in the order of its tokens. Those whose reference count drops to 0 are free, and
    /// join the queue at the back if they can be found, otherwise at the front.
    ///
    /// # Panics
    /// If one of them has no owner, or is not of this pool.
    pub fn free(&mut self, mut pages: Vec<PageId>) {
        if self.first_out == FirstOut::Tails {
            pages.reverse();
        }
        for page in pages {
            let owners = &mut self.owners[page.index()];
            *owners = owners.checked_sub(1).expect("a released page has an owner");
            if *owners == 0 {
                match self.hashes[page.index()] {
                    Some(_) => self.free.push_back(page),
                    None => self.free.push_front(page),
                }
            }
        }
    }

    /// Slots in a page.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Pages in all.
    pub fn n_pages(&self) -> usize {
        self.owners.len()
    }

    /// Pages without an owner, whether they can be found or not.
    pub fn n_free(&self) -> usize {
        self.free.len
    }

    /// Pages taken so far that could still have been found.
    pub fn n_evicted(&self) -> u64 {
        self.n_evicted
    }
}

/// A doubly linked list of free pages: a page leaves from the middle in a few steps, however long the queue is.
struct FreeQueue {
    /// The page before each page. There is one entry more than pages: it stands for both ends and closes a ring.
    before: Vec<u32>,
    /// The page after each page.
    after: Vec<u32>,
    len: usize,
}

impl FreeQueue {
    /// All pages, 0 at the front.
    fn new(n_pages: usize) -> Self {
        let ends = u32::try_from(n_pages).expect("a page's number is a u32");
        let before = [ends].into_iter().chain(0..ends).collect();
        let after = (1..=ends).chain([0]).collect();
        FreeQueue { before, after, len: n_pages }
    }

    /// Where both ends are.
    fn ends(&self) -> u32 {
        (self.after.len() - 1) as u32
    }

    /// The page to take next. There is one.
    fn front(&self) -> PageId {
        PageId(self.after[self.ends() as usize])
    }

    fn remove(&mut self, page: PageId) {
        let (before, after) = (self.before[page.index()], self.after[page.index()]);
        self.after[before as usize] = after;
        self.before[after as usize] = before;
        self.len -= 1;
    }

    fn push_front(&mut self, page: PageId) {
        self.insert(self.ends(), page);
    }

    fn push_back(&mut self, page: PageId) {
        self.insert(self.before[self.ends() as usize], page);
    }

    /// Inserts a page after another one.
    fn insert(&mut self, before: u32, page: PageId) {
        let after = self.after[before as usize];
        (self.before[page.index()], self.after[page.index()]) = (before, after);
        self.after[before as usize] = page.0;
        self.before[after as usize] = page.0;
        self.len += 1;
    }
}
