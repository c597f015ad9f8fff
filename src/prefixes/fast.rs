//! The trie of chapter 11 as a server would build it: it never looks through all pages.
//!
//! What it holds and what goes first are the chapter's, page by page; only the way there is another.
//!
//! - *Evicting.* The leaves stand in a tree, ordered by when they were last used. The next to go is at its beginning. The
//!   chapter looks at every page for every page that it evicts.
//! - *Finding.* One table for all pages: the place of a page follows from its tokens and from the page before it, and both
//!   are compared. Nothing is put together for a search, and a page is hashed once for each call that comes by.
//! - *Keeping.* A node is a place in a list, at the page's number, and so are its tokens. The chapter keeps the tokens
//!   twice, each in a box of its own.
//!
//! Where 1,000 pages are held, the chapter takes about 30 times as long to evict one; where 10,000 are held, 300 times; where
//! 100,000 are held, several thousand times. `bench workload` measures it. What still grows with the pages held is little: a
//! tree of more leaves has more levels, and what is spread over more memory is further away. Leaves that are in use are
//! stepped over, at most one for each text that runs.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::{HeldPage, Prefixes};
use crate::cache::{CacheError, PageId};
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::{PageTable, all_owned};

/// A trie of full pages, each known by its tokens and by the page before it.
///
/// Like the chapter's it has no pool of its own, and dropping it frees nothing.
pub struct FastPrefixCache {
    nodes: Nodes,
    /// The pages by their key.
    by_key: HashTable<PageId>,
    // ANCHOR: leaves
    /// The pages that no other page follows, the least recently used first.
    leaves: BTreeSet<(u64, PageId)>,
    // ANCHOR_END: leaves
    /// Counts lookups and insertions.
    clock: u64,
    secret: RandomState,
}

/// The pages of the trie by their numbers.
struct Nodes {
    page_size: usize,
    /// `[pages]`, as far as the highest number that was ever in the trie.
    nodes: Vec<Node>,
    /// `[pages, page_size]`
    tokens: Vec<u32>,
}

/// A page of the trie.
#[derive(Clone, Copy, Default)]
struct Node {
    /// The page before it; `None` if texts begin with it.
    parent: Option<PageId>,
    /// Pages that come after it.
    children: u32,
    /// What the clock said when it was last used.
    last_used: u64,
    /// The hash of its key.
    hash: u64,
}

impl Nodes {
    fn tokens(&self, page: PageId) -> &[u32] {
        &self.tokens[page.index() * self.page_size..][..self.page_size]
    }

    /// Whether a page of the trie holds `tokens` behind `parent`.
    fn is(&self, page: PageId, parent: Option<PageId>, tokens: &[u32]) -> bool {
        self.nodes[page.index()].parent == parent && self.tokens(page) == tokens
    }

    fn put(&mut self, page: PageId, node: Node, tokens: &[u32]) {
        let n_pages = page.index() + 1;
        if self.nodes.len() < n_pages {
            self.nodes.resize(n_pages, Node::default());
            self.tokens.resize(n_pages * self.page_size, 0);
        }
        self.nodes[page.index()] = node;
        self.tokens[page.index() * self.page_size..][..self.page_size].copy_from_slice(tokens);
    }
}

impl FastPrefixCache {
    /// An empty trie over pages of `page_size` slots.
    ///
    /// # Errors
    /// [`CacheError::NoSlots`] if `page_size` is 0.
    pub fn new(page_size: usize) -> Result<Self, CacheError> {
        if page_size == 0 {
            return Err(CacheError::NoSlots);
        }
        Ok(FastPrefixCache {
            nodes: Nodes { page_size, nodes: Vec::new(), tokens: Vec::new() },
            by_key: HashTable::new(),
            leaves: BTreeSet::new(),
            clock: 0,
            secret: RandomState::new(),
        })
    }

    // ANCHOR: find
    /// The page that holds `tokens` behind `parent`.
    fn child(&self, parent: Option<PageId>, tokens: &[u32]) -> Option<PageId> {
        let hash = self.secret.hash_one((parent, tokens));
        let nodes = &self.nodes;
        let is_it = |page: &PageId| nodes.is(*page, parent, tokens);
        self.by_key.find(hash, is_it).copied()
    }

    /// The pages that hold the beginning of `text`, in its order, as far as the trie has
    /// them.
    fn find(&self, text: &[u32]) -> Vec<PageId> {
        let mut pages = Vec::new();
        for tokens in text.chunks_exact(self.nodes.page_size) {
            let Some(page) = self.child(pages.last().copied(), tokens) else { break };
            pages.push(page);
        }
        pages
    }
    // ANCHOR_END: find

    // ANCHOR: add
    /// Adds a page behind `parent`.
    fn add(&mut self, parent: Option<PageId>, tokens: &[u32], page: PageId) {
        let hash = self.secret.hash_one((parent, tokens));
        let node = Node { parent, children: 0, last_used: self.clock, hash };
        self.nodes.put(page, node, tokens);
        self.by_key.insert_unique(hash, page, |other| self.nodes.nodes[other.index()].hash);
        self.leaves.insert((self.clock, page));
        if let Some(parent) = parent {
            let node = &mut self.nodes.nodes[parent.index()];
            if node.children == 0 {
                self.leaves.remove(&(node.last_used, parent));
            }
            node.children += 1;
        }
    }
    // ANCHOR_END: add

    // ANCHOR: remove
    /// Takes a leaf out of the trie. The page before it may be a leaf then.
    fn remove(&mut self, page: PageId) {
        let node = self.nodes.nodes[page.index()];
        let entry = self.by_key.find_entry(node.hash, |other| *other == page);
        entry.expect("a leaf is in the trie").remove();
        self.leaves.remove(&(node.last_used, page));
        if let Some(parent) = node.parent {
            let node = &mut self.nodes.nodes[parent.index()];
            node.children -= 1;
            if node.children == 0 {
                self.leaves.insert((node.last_used, parent));
            }
        }
    }
    // ANCHOR_END: remove

    // ANCHOR: touch
    /// Notes that a page is used now.
    fn touch(&mut self, page: PageId) {
        let node = &mut self.nodes.nodes[page.index()];
        if node.children == 0 {
            self.leaves.remove(&(node.last_used, page));
            self.leaves.insert((self.clock, page));
        }
        node.last_used = self.clock;
    }
    // ANCHOR_END: touch
}

impl Prefixes for FastPrefixCache {
    fn lookup(&mut self, text: &[u32], pool: &mut PagePool) -> Result<PageTable, CacheError> {
        let all_but_one = text.len().saturating_sub(1);
        let pages = self.find(&text[..all_but_one]);
        all_owned(&pages, pool)?;
        self.clock += 1;
        for page in &pages {
            pool.share(*page)?;
            self.touch(*page);
        }
        let mut table = PageTable::new(self.nodes.page_size)?;
        table.len = pages.len() * self.nodes.page_size;
        table.pages = pages;
        Ok(table)
    }

    fn insert(&mut self, text: &[u32], table: &mut PageTable, pool: &mut PagePool) -> Result<(), CacheError> {
        let (held, given) = (table.len(), text.len());
        assert!(held <= given, "the table holds {held} tokens, the text has {given}");
        assert_eq!(table.page_size(), self.nodes.page_size, "slots in a page: table and trie");
        let text = &text[..held];
        let found = self.find(text);
        all_owned(&table.pages, pool)?;
        all_owned(&found, pool)?;
        self.clock += 1;
        let mut parent = None;
        for (place, tokens) in text.chunks_exact(self.nodes.page_size).enumerate() {
            let own = table.pages[place];
            match found.get(place) {
                Some(page) => {
                    if *page != own {
                        pool.share(*page)?;
                        pool.free(own)?;
                        table.pages[place] = *page;
                    }
                    self.touch(*page);
                }
                None => {
                    pool.share(own)?;
                    self.add(parent, tokens, own);
                }
            }
            parent = Some(table.pages[place]);
        }
        Ok(())
    }

    // ANCHOR: evict
    fn evict(&mut self, n: usize, pool: &mut PagePool) -> Result<usize, CacheError> {
        let mut from = 0;
        for evicted in 0..n {
            let mut unused = None;
            for (last_used, page) in self.leaves.range((from, PageId(0))..) {
                if pool.owners(*page)? == 1 {
                    unused = Some((*last_used, *page));
                    break;
                }
            }
            let Some((last_used, page)) = unused else { return Ok(evicted) };
            pool.free(page)?;
            self.remove(page);
            // The page before it was used no earlier: leaves in use are stepped over once.
            from = last_used;
        }
        Ok(n)
    }
    // ANCHOR_END: evict

    fn n_pages(&self) -> usize {
        self.by_key.len()
    }

    fn n_evictable(&self, pool: &PagePool) -> usize {
        self.by_key.iter().filter(|page| pool.owners(**page) == Ok(1)).count()
    }

    fn pages(&self) -> Vec<HeldPage<'_>> {
        let held = self.by_key.iter().map(|&page| {
            let Node { parent, last_used, .. } = self.nodes.nodes[page.index()];
            HeldPage { page, parent, tokens: self.nodes.tokens(page), last_used }
        });
        held.collect()
    }
}
