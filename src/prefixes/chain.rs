//! vLLM's prefix cache: pages by a chain of hashes, and one queue of all free pages.
//!
//! Two steps lead here from the trie of chapter 11:
//!
//! - A page is known by a hash of its tokens and of the hash of the page before. So the hash stands for the whole prefix,
//!   and neither the tokens nor the page before need be kept. Two prefixes with the same hash would be mixed up: vLLM takes
//!   SHA-256, this file 64 bits with a secret key, which are enough to count pages.
//! - Nobody owns a page for the cache. A page that its last text lets go of is free *and* can still be found. Free pages
//!   stand in a queue; the next one to take is at its front, and only when it is taken is forgotten what it held.
//!
//! ```text
//!   page size 4, pages 0 to 5; a text of 10 tokens had pages 0 1 2 and ends
//!
//!   front  2 | 3  4  5 | 1  0  back      2 is not full and cannot be found: it goes to the front
//!                                        1 and 0 are freed from the end of the text: 1 will be taken before 0
//!   front  2 | 3  4  5 | 1  back         a text begins with the tokens of page 0: pulled out of the queue
//! ```
//!
//! If 0 stood before 1, it would be taken first, and page 1 could never be found again: a prefix is found from its beginning.
//! [`FirstOut::Heads`] does that, to be seen.
//!
//! It is not a [`Prefixes`](super::Prefixes): that owns its pages and gives some back when it is asked to. Here the pool
//! itself remembers what its free pages hold, so this is a pool and a prefix cache in one.
//!
//! Source: vLLM 0.33.0, `vllm/v1/core/block_pool.py` (`get_cached_block`, `touch`, `get_new_blocks`, `free_blocks`,
//! `cache_full_blocks`), `kv_cache_utils.py` (`hash_block_tokens`, `FreeKVCacheBlockQueue`) and
//! `single_type_kv_cache_manager.py` (`free`, which reverses). As there, two pages may hold the same; the first is found.
//! Where that does not happen, it finds, takes and evicts exactly as many pages as the trie does that gives up its least
//! recently used leaf: whoever frees a page later has used it later.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use crate::cache::{CacheError, PageId};

/// What stands for a prefix: the hash of its last page's tokens and of what stands for the pages before.
type PrefixHash = u64;

/// Which of the pages that a text lets go of is taken first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstOut {
    /// The last one: a prefix gets shorter.
    Tails,
    /// The first one: a prefix is gone at once.
    Heads,
}

/// A pool whose free pages can be found by what they hold.
pub struct Chain {
    page_size: usize,
    first_out: FirstOut,
    /// How many texts have each page. `[n_pages]`
    owners: Vec<u32>,
    /// What each page is found by; `None` if it cannot be found. `[n_pages]`
    hashes: Vec<Option<PrefixHash>>,
    /// The pages by what they are found by.
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
    /// What the full pages of a text are found by, in order.
    fn hashes_of(&self, text: &[u32]) -> Vec<PrefixHash> {
        let mut before = None;
        let mut hashes = Vec::new();
        for tokens in text.chunks_exact(self.page_size) {
            let hash = self.key.hash_one((before, tokens));
            hashes.push(hash);
            before = Some(hash);
        }
        hashes
    }
    // ANCHOR_END: hashes

    // ANCHOR: lookup
    /// The pages of the longest prefix of `text` that can be found, at least one token less
    /// than all of it. Each of them has an owner more; those that were free leave the queue,
    /// wherever in it they stand.
    pub fn lookup(&mut self, text: &[u32]) -> Vec<PageId> {
        let mut pages = Vec::new();
        for hash in self.hashes_of(&text[..text.len().saturating_sub(1)]) {
            let Some(page) = self.found_by.get(&hash).map(|pages| pages[0]) else { break };
            if self.owners[page.index()] == 0 {
                self.free.remove(page);
            }
            self.owners[page.index()] += 1;
            pages.push(page);
        }
        pages
    }
    // ANCHOR_END: lookup

    // ANCHOR: alloc
    /// Takes `n` pages from the front of the queue, or none. What they held can no longer be
    /// found.
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
    // ANCHOR_END: alloc

    /// Makes sure that a page is not found any more.
    fn forget(&mut self, page: PageId) {
        let Some(hash) = self.hashes[page.index()].take() else { return };
        let same = self.found_by.get_mut(&hash).expect("a page with a hash is found by it");
        same.retain(|other| *other != page);
        if same.is_empty() {
            self.found_by.remove(&hash);
        }
        self.n_evicted += 1;
    }

    // ANCHOR: insert
    /// Lets the full pages of a text be found. `pages` are the text's, their rows are
    /// computed, and `text` is what they hold.
    pub fn insert(&mut self, text: &[u32], pages: &[PageId]) {
        for (hash, page) in self.hashes_of(text).into_iter().zip(pages) {
            if self.hashes[page.index()].is_none() {
                self.hashes[page.index()] = Some(hash);
                self.found_by.entry(hash).or_default().push(*page);
            }
        }
    }
    // ANCHOR_END: insert

    // ANCHOR: free
    /// Lets go of the pages of a text, given in the order of its tokens. Those without an
    /// owner left are free: at the back of the queue if they can be found, at its front if
    /// not.
    ///
    /// # Panics
    /// If one of them has no owner, or is not of this pool.
    pub fn free(&mut self, mut pages: Vec<PageId>) {
        if self.first_out == FirstOut::Tails {
            pages.reverse();
        }
        for page in pages {
            let owners = &mut self.owners[page.index()];
            *owners = owners.checked_sub(1).expect("a page that is let go has an owner");
            if *owners == 0 {
                match self.hashes[page.index()] {
                    Some(_) => self.free.push_back(page),
                    None => self.free.push_front(page),
                }
            }
        }
    }
    // ANCHOR_END: free

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

    /// Pages that were taken although they could still be found, so far.
    pub fn n_evicted(&self) -> u64 {
        self.n_evicted
    }
}

/// Free pages in a row. Each knows the one before it and the one behind, so that a page
/// leaves from the middle in a few steps, however long the row is.
struct FreeQueue {
    /// The page before each page. There is one place more than pages: it stands for both
    /// ends, and closes a ring.
    before: Vec<u32>,
    /// The page behind each page.
    behind: Vec<u32>,
    len: usize,
}

impl FreeQueue {
    /// All pages, 0 at the front.
    fn new(n_pages: usize) -> Self {
        let ends = u32::try_from(n_pages).expect("a page's number is a u32");
        let before = [ends].into_iter().chain(0..ends).collect();
        let behind = (1..=ends).chain([0]).collect();
        FreeQueue { before, behind, len: n_pages }
    }

    /// Where both ends are.
    fn ends(&self) -> u32 {
        (self.behind.len() - 1) as u32
    }

    /// The page to take next. There is one.
    fn front(&self) -> PageId {
        PageId(self.behind[self.ends() as usize])
    }

    fn remove(&mut self, page: PageId) {
        let (before, behind) = (self.before[page.index()], self.behind[page.index()]);
        self.behind[before as usize] = behind;
        self.before[behind as usize] = before;
        self.len -= 1;
    }

    fn push_front(&mut self, page: PageId) {
        self.insert(self.ends(), page);
    }

    fn push_back(&mut self, page: PageId) {
        self.insert(self.before[self.ends() as usize], page);
    }

    /// Puts a page behind another.
    fn insert(&mut self, before: u32, page: PageId) {
        let behind = self.behind[before as usize];
        (self.before[page.index()], self.behind[page.index()]) = (before, behind);
        self.behind[before as usize] = page.0;
        self.before[behind as usize] = page.0;
        self.len += 1;
    }
}
