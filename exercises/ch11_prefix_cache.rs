//! Chapter 11: the prefix cache, which keeps what one sequence has computed for the next one.
//!
//! It is a *trie* of full pages. Each *node* is a page, and the path to it from the start spells
//! the tokens whose rows are in it and in the pages before it. The trie *owns* its pages, as a
//! sequence does, so they stay when the sequence that filled them has ended, until evicted.
//!
//! ```text
//!   page size 2                                     the trie
//!   "once upon a time there"   pages 0 1 2          (once upon) 0 ─┬─ (a time) 1
//!        ends: page 2 is free                                      │
//!   "once upon a king"         pages 0 2                           └─ (a king) 2
//! ```
//!
//! Page 2 of the first sequence is not full, and never gets into the trie.
//!
//! The trait [`PrefixCache`], in `src/prefix_cache/mod.rs`, documents what each call promises.
//!
//! Check your work with `cargo test --features solution --test ch11_prefix_cache`.

use std::collections::HashMap;

use crate::cache::{CacheError, PageId};
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::{PageTable, all_owned};
use crate::chapters::ch06_paged::{PageSlab, SharedSlab};
use crate::chapters::ch10_fork::ForkCache;
use crate::prefix_cache::{CachedPage, PrefixCache, held_tokens};

/// From the tokens of a page to the page that holds their rows.
type Children = HashMap<Box<[u32]>, PageId>;

/// A trie of full pages, each found by its tokens and by the page before it.
///
/// It has no pool of its own, so dropping it frees nothing. Evict its pages first.
pub struct PrefixTrie {
    page_size: usize,
    /// The pages that sequences can begin with.
    first: Children,
    /// All pages of the trie.
    nodes: HashMap<PageId, Node>,
    /// Counts lookups and insertions.
    clock: u64,
}

/// A page of the trie.
struct Node {
    /// The page before it. `None` if sequences begin with it.
    parent: Option<PageId>,
    /// The tokens whose rows it holds: `[page_size]`.
    tokens: Box<[u32]>,
    /// The pages that come after it. A node without any is a *leaf*.
    children: Children,
    /// The clock's value when it was last used.
    last_used: u64,
}

impl PrefixTrie {
    /// An empty trie over pages of `page_size` slots.
    ///
    /// # Errors
    /// [`CacheError::NoSlots`] if `page_size` is 0.
    pub fn new(page_size: usize) -> Result<Self, CacheError> {
        if page_size == 0 {
            return Err(CacheError::NoSlots);
        }
        Ok(PrefixTrie { page_size, first: Children::new(), nodes: HashMap::new(), clock: 0 })
    }

    /// The pages that come after `parent`, or those that sequences begin with.
    fn children(&mut self, parent: Option<PageId>) -> &mut Children {
        match parent {
            None => &mut self.first,
            Some(page) => &mut self.node(page).children,
        }
    }

    /// The node of a page, which must be in the trie.
    fn node(&mut self, page: PageId) -> &mut Node {
        let Some(node) = self.nodes.get_mut(&page) else {
            panic!("page {page} is not in the trie: another page has its tokens, or it was evicted before its children")
        };
        node
    }

    /// Adds a page after `parent`. It is used now.
    fn add(&mut self, parent: Option<PageId>, tokens: &[u32], page: PageId) {
        self.children(parent).insert(tokens.into(), page);
        let node = Node { parent, tokens: tokens.into(), children: Children::new(), last_used: self.clock };
        self.nodes.insert(page, node);
    }

    /// Takes a leaf out of the trie.
    fn remove(&mut self, page: PageId) {
        let node = self.nodes.remove(&page).expect("a victim is a page of the trie");
        self.children(node.parent).remove(&node.tokens);
    }

    /// Notes that a page is used now.
    fn touch(&mut self, page: PageId) {
        self.node(page).last_used = self.clock;
    }

    /// Returns the pages that hold the beginning of `tokens`, in order, as far as the trie has
    /// them. Tokens after the last full page are ignored.
    ///
    /// In the trie above, `once upon a time` → `0 1`, `once upon a queen` → `0`, and `a time` →
    /// nothing.
    fn find(&self, tokens: &[u32]) -> Vec<PageId> {
        todo!("ch11 task 1: follow the tokens through the trie, page by page")
    }

    /// Returns the least recently used of the leaves that only the trie owns. No two of them were
    /// used at the same time, because a call uses pages of one path only.
    ///
    /// # Errors
    /// [`CacheError::ForeignPage`] if the pool has no such page.
    fn victim(&self, pool: &PagePool) -> Result<Option<PageId>, CacheError> {
        todo!("ch11 task 3: of the leaves that can be evicted, the one that was used longest ago")
    }
}

impl PrefixCache for PrefixTrie {
    fn insert(&mut self, tokens: &[u32], table: &mut PageTable, pool: &mut PagePool) -> Result<(), CacheError> {
        let held = held_tokens(tokens, table, self.page_size);
        // First `all_owned` for all pages of the table, the last one included, and for those found. Then tick
        // the `clock`, for task 3, and `touch` the pages that the table has in the trie, and no others.
        todo!("ch11 task 1: swap the pages that the trie has, add those that are new")
    }

    fn lookup(&mut self, tokens: &[u32], pool: &mut PagePool) -> Result<PageTable, CacheError> {
        // The fields `pages` and `len` of a `PageTable` can be written here: they are open to this crate.
        // For task 3: a lookup is also a tick of the `clock`, and uses (`touch`) the pages that it returns.
        todo!("ch11 task 2: the pages found, with one more owner each")
    }

    fn evict(&mut self, n: usize, pool: &mut PagePool) -> Result<usize, CacheError> {
        todo!("ch11 task 3: let go of one leaf after the other")
    }

    fn n_pages(&self) -> usize {
        self.nodes.len()
    }

    fn n_evictable(&self, pool: &PagePool) -> usize {
        self.nodes.keys().filter(|page| pool.owners(**page) == Ok(1)).count()
    }

    /// The pages, for the checks of chapter 15.
    fn pages(&self) -> Vec<CachedPage<'_>> {
        let mut held = Vec::new();
        for (page, Node { parent, tokens, last_used, .. }) in &self.nodes {
            held.push(CachedPage { page: *page, parent: *parent, tokens, last_used: *last_used });
        }
        held
    }
}

impl ForkCache {
    /// Returns the cache of a sequence that begins with what `prefix_cache` holds of `tokens`. The
    /// rows of those tokens need not be computed.
    ///
    /// # Errors
    /// The error of [`PrefixCache::lookup`].
    ///
    /// # Panics
    /// If the page size of `prefix_cache` differs from the slab's.
    pub fn with_prefix(
        slab: &SharedSlab,
        prefix_cache: &mut dyn PrefixCache,
        tokens: &[u32],
    ) -> Result<ForkCache, CacheError> {
        let mut cache = ForkCache::new(slab)?;
        let table = prefix_cache.lookup(tokens, &mut slab.borrow_mut().pool)?;
        assert_eq!(table.page_size(), cache.table().page_size(), "slots in a page: trie and slab");
        cache.inner.table = table;
        Ok(cache)
    }

    /// Gives the full pages of a sequence to `prefix_cache`. Its `tokens` begin with those that this
    /// cache holds, and their rows are computed.
    ///
    /// # Errors
    /// The error of [`PrefixCache::insert`].
    ///
    /// # Panics
    /// If the cache holds more than these tokens.
    pub fn insert_into(&mut self, prefix_cache: &mut dyn PrefixCache, tokens: &[u32]) -> Result<(), CacheError> {
        prefix_cache.insert(tokens, &mut self.inner.table, &mut self.inner.slab.borrow_mut().pool)
    }
}

impl PageSlab {
    /// Evicts up to `n` pages of this slab from `prefix_cache`, and returns how many.
    ///
    /// # Errors
    /// The error of [`PrefixCache::evict`].
    pub fn evict(&mut self, prefix_cache: &mut dyn PrefixCache, n: usize) -> Result<usize, CacheError> {
        prefix_cache.evict(n, &mut self.pool)
    }
}
