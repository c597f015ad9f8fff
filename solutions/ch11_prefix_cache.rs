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

use std::collections::HashMap;

use crate::cache::{CacheError, PageId};
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::{PageTable, all_owned};
use crate::chapters::ch06_paged::{PageSlab, SharedSlab};
use crate::chapters::ch10_fork::ForkCache;
use crate::prefix_cache::{CachedPage, PrefixCache, held_tokens};

// ANCHOR: trie
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
// ANCHOR_END: trie

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
    // ANCHOR: add
    fn add(&mut self, parent: Option<PageId>, tokens: &[u32], page: PageId) {
        self.children(parent).insert(tokens.into(), page);
        let node = Node { parent, tokens: tokens.into(), children: Children::new(), last_used: self.clock };
        self.nodes.insert(page, node);
    }
    // ANCHOR_END: add

    /// Takes a leaf out of the trie.
    // ANCHOR: remove
    fn remove(&mut self, page: PageId) {
        let node = self.nodes.remove(&page).expect("a victim is a page of the trie");
        self.children(node.parent).remove(&node.tokens);
    }
    // ANCHOR_END: remove

    /// Notes that a page is used now.
    fn touch(&mut self, page: PageId) {
        self.node(page).last_used = self.clock;
    }

    /// Returns the pages that hold the beginning of `tokens`, in order, as far as the trie has
    /// them. Tokens after the last full page are ignored.
    ///
    /// In the trie above, `once upon a time` → `0 1`, `once upon a queen` → `0`, and `a time` →
    /// nothing.
    // ANCHOR: find
    fn find(&self, tokens: &[u32]) -> Vec<PageId> {
        // ch11 task 1: follow the tokens through the trie, page by page
        let mut pages = Vec::new();
        let mut children = &self.first;
        for page_tokens in tokens.chunks_exact(self.page_size) {
            let Some(page) = children.get(page_tokens) else { break };
            pages.push(*page);
            children = &self.nodes[page].children;
        }
        pages
    }
    // ANCHOR_END: find

    /// Returns the least recently used of the leaves that only the trie owns. No two of them were
    /// used at the same time, because a call uses pages of one path only.
    ///
    /// # Errors
    /// [`CacheError::ForeignPage`] if the pool has no such page.
    // ANCHOR: victim
    fn victim(&self, pool: &PagePool) -> Result<Option<PageId>, CacheError> {
        // ch11 task 3: of the leaves that can be evicted, the one that was used longest ago
        let mut oldest = None;
        for (page, node) in &self.nodes {
            let is_evictable = node.children.is_empty() && pool.owners(*page)? == 1;
            if is_evictable && oldest.is_none_or(|(last_used, _)| node.last_used < last_used) {
                oldest = Some((node.last_used, *page));
            }
        }
        Ok(oldest.map(|(_, page)| page))
    }
    // ANCHOR_END: victim
}

impl PrefixCache for PrefixTrie {
    // stub: // First `all_owned` for all pages of the table, the last one included, and for those found. Then tick
    // stub: // the `clock`, for task 3, and `touch` the pages that the table has in the trie, and no others.
    // ANCHOR: insert
    fn insert(&mut self, tokens: &[u32], table: &mut PageTable, pool: &mut PagePool) -> Result<(), CacheError> {
        let held = held_tokens(tokens, table, self.page_size);
        // ch11 task 1: swap the pages that the trie has, add those that are new
        let found = self.find(held);
        all_owned(&table.pages, pool)?;
        all_owned(&found, pool)?;
        self.clock += 1;
        for (own, page) in table.pages.iter_mut().zip(&found) {
            if own != page {
                pool.share(*page)?;
                pool.free(*own)?;
                *own = *page;
            }
            self.touch(*page);
        }
        let mut parent = found.last().copied();
        let full_pages = table.pages.iter().zip(held.chunks_exact(self.page_size));
        for (page, page_tokens) in full_pages.skip(found.len()) {
            pool.share(*page)?;
            self.add(parent, page_tokens, *page);
            parent = Some(*page);
        }
        Ok(())
    }
    // ANCHOR_END: insert

    // stub: // The fields `pages` and `len` of a `PageTable` can be written here: they are open to this crate.
    // stub: // For task 3: a lookup is also a tick of the `clock`, and uses (`touch`) the pages that it returns.
    // ANCHOR: lookup
    fn lookup(&mut self, tokens: &[u32], pool: &mut PagePool) -> Result<PageTable, CacheError> {
        // ch11 task 2: the pages found, with one more owner each
        let all_but_one = tokens.len().saturating_sub(1);
        let pages = self.find(&tokens[..all_but_one]);
        all_owned(&pages, pool)?;
        self.clock += 1;
        for page in &pages {
            pool.share(*page)?;
            self.touch(*page);
        }
        let mut table = PageTable::new(self.page_size)?;
        table.len = pages.len() * self.page_size;
        table.pages = pages;
        Ok(table)
    }
    // ANCHOR_END: lookup

    // ANCHOR: evict
    fn evict(&mut self, n: usize, pool: &mut PagePool) -> Result<usize, CacheError> {
        // ch11 task 3: let go of one leaf after the other
        for evicted in 0..n {
            let Some(page) = self.victim(pool)? else { return Ok(evicted) };
            pool.free(page)?;
            self.remove(page);
        }
        Ok(n)
    }
    // ANCHOR_END: evict

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
    // ANCHOR: with_prefix
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
    // ANCHOR_END: with_prefix

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
