//! SGLang's prefix cache: a radix tree, in which pages that follow each other are one node.
//!
//! In the trie of chapter 11 a text of 500 pages is 500 nodes in a row, each the only child of the one before. Here they
//! are one node, a *run*. It is split in two where a text goes another way:
//!
//! ```text
//!   page size 2       after "once upon a time there lived"      then "once upon a king" is looked up or inserted
//!
//!                     (once upon | a time | there lived)        (once upon) ─┬─ (a time | there lived)
//!                      pages 0 1 2                               page 0      └─ (a king)
//!                                                                               page 3
//! ```
//!
//! A run that is split stays so, also when one of its two ways is gone. Whoever uses a part of a run splits it, so all pages
//! of a run are used at the same times, and the run keeps one time for all of them.
//!
//! It finds and evicts the same pages as the trie, in the same order, and is behind the same [`Prefixes`].
//!
//! Source: SGLang 0.5.23, `sglang/srt/mem_cache/radix_cache.py` (`_match_prefix_helper`, `_split_node`, `_insert_helper`, `evict`).
//! Three things are otherwise there. It evicts whole runs, even if fewer pages are wanted; here a run loses its last pages, as
//! many as are wanted. It counts with `lock_ref` who uses a run; here the pool counts the owners of each page. And a run of
//! which only the first part is matched counts as used in all its parts; here the rest does not.

use std::collections::HashMap;

use super::Prefixes;
use crate::cache::{CacheError, PageId};
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::{PageTable, all_owned};

/// Names a run; never used again for another.
type RunId = u64;

/// From the tokens of a run's first page to the run.
type Children = HashMap<Box<[u32]>, RunId>;

/// A tree of runs of full pages.
///
/// Like the chapter's trie it has no pool of its own, and dropping it frees nothing.
pub struct RadixCache {
    page_size: usize,
    /// The runs that texts begin with.
    first: Children,
    runs: HashMap<RunId, Run>,
    next_id: RunId,
    /// Counts lookups and insertions.
    clock: u64,
}

/// Pages that follow each other.
struct Run {
    /// The run before it; `None` if texts begin with it.
    parent: Option<RunId>,
    /// What the pages hold: `[pages, page_size]`.
    tokens: Vec<u32>,
    /// At least one.
    pages: Vec<PageId>,
    /// The runs that come after it.
    children: Children,
    /// What the clock said when it was last used.
    last_used: u64,
}

impl RadixCache {
    /// An empty tree over pages of `page_size` slots.
    ///
    /// # Errors
    /// [`CacheError::NoSlots`] if `page_size` is 0.
    pub fn new(page_size: usize) -> Result<Self, CacheError> {
        if page_size == 0 {
            return Err(CacheError::NoSlots);
        }
        Ok(RadixCache { page_size, first: Children::new(), runs: HashMap::new(), next_id: 0, clock: 0 })
    }

    /// Runs that it holds: at most as many as pages.
    pub fn n_runs(&self) -> usize {
        self.runs.len()
    }

    /// The runs that come after `parent`, or those that texts begin with.
    fn children(&mut self, parent: Option<RunId>) -> &mut Children {
        match parent {
            None => &mut self.first,
            Some(id) => &mut self.runs.get_mut(&id).expect("a parent is in the tree").children,
        }
    }

    /// Adds a run behind its parent.
    fn add(&mut self, run: Run) -> RunId {
        let id = self.next_id;
        self.next_id += 1;
        let first_page = run.tokens[..self.page_size].into();
        self.children(run.parent).insert(first_page, id);
        self.runs.insert(id, run);
        id
    }

    // ANCHOR: matching
    /// The runs that hold the beginning of `text`, in its order. A run of which only the
    /// first pages match is split, so that all of them match from end to end.
    fn matching(&mut self, text: &[u32]) -> Vec<RunId> {
        let mut path = Vec::new();
        let mut rest = text;
        while rest.len() >= self.page_size {
            let first_page = &rest[..self.page_size];
            let children = self.children(path.last().copied());
            let Some(&id) = children.get(first_page) else { break };
            let run = &self.runs[&id];
            let held = run.tokens.chunks_exact(self.page_size);
            let wanted = rest.chunks_exact(self.page_size);
            let equal = held.zip(wanted).take_while(|(held, wanted)| held == wanted).count();
            rest = &rest[equal * self.page_size..];
            if equal < run.pages.len() {
                path.push(self.split(id, equal));
                break;
            }
            path.push(id);
        }
        path
    }
    // ANCHOR_END: matching

    // ANCHOR: split
    /// Makes a run of the first pages of a run, and puts it before the rest, which keeps its
    /// id. Returns the new one.
    fn split(&mut self, id: RunId, n_pages: usize) -> RunId {
        let page_size = self.page_size;
        let rest = self.runs.get_mut(&id).expect("the run is in the tree");
        let (parent, last_used) = (rest.parent, rest.last_used);
        let tokens = rest.tokens.drain(..n_pages * page_size).collect();
        let pages = rest.pages.drain(..n_pages).collect();
        let children = Children::from([(rest.tokens[..page_size].into(), id)]);
        let upper = self.add(Run { parent, tokens, pages, children, last_used });
        self.runs.get_mut(&id).expect("the run is in the tree").parent = Some(upper);
        upper
    }
    // ANCHOR_END: split

    /// The pages of these runs, in order.
    fn pages_of(&self, path: &[RunId]) -> Vec<PageId> {
        path.iter().flat_map(|id| &self.runs[id].pages).copied().collect()
    }

    /// Notes that these runs are used now.
    fn touch(&mut self, path: &[RunId]) {
        self.clock += 1;
        for id in path {
            self.runs.get_mut(id).expect("the run is in the tree").last_used = self.clock;
        }
    }

    /// The least recently used run without children whose last page nobody else owns.
    fn next_to_go(&self, pool: &PagePool) -> Result<Option<RunId>, CacheError> {
        let mut oldest = None;
        for (id, run) in &self.runs {
            let last = *run.pages.last().expect("a run has pages");
            let may_go = run.children.is_empty() && pool.owners(last)? == 1;
            if may_go && oldest.is_none_or(|(last_used, _)| run.last_used < last_used) {
                oldest = Some((run.last_used, *id));
            }
        }
        Ok(oldest.map(|(_, id)| id))
    }
}

impl Prefixes for RadixCache {
    // ANCHOR: lookup
    fn lookup(&mut self, text: &[u32], pool: &mut PagePool) -> Result<PageTable, CacheError> {
        let all_but_one = text.len().saturating_sub(1);
        let path = self.matching(&text[..all_but_one]);
        let pages = self.pages_of(&path);
        all_owned(&pages, pool)?;
        self.touch(&path);
        for page in &pages {
            pool.share(*page)?;
        }
        let mut table = PageTable::new(self.page_size)?;
        table.len = pages.len() * self.page_size;
        table.pages = pages;
        Ok(table)
    }
    // ANCHOR_END: lookup

    // ANCHOR: insert
    fn insert(&mut self, text: &[u32], table: &mut PageTable, pool: &mut PagePool) -> Result<(), CacheError> {
        let (held, given) = (table.len(), text.len());
        assert!(held <= given, "the table holds {held} tokens, the text has {given}");
        assert_eq!(table.page_size(), self.page_size, "slots in a page: table and tree");
        let full_pages = held / self.page_size;
        let text = &text[..full_pages * self.page_size];
        let path = self.matching(text);
        let found = self.pages_of(&path);
        all_owned(&table.pages, pool)?;
        all_owned(&found, pool)?;
        self.touch(&path);
        for (own, page) in table.pages.iter_mut().zip(&found) {
            if page != own {
                pool.share(*page)?;
                pool.free(*own)?;
                *own = *page;
            }
        }
        let new = &table.pages[found.len()..full_pages];
        if !new.is_empty() {
            for page in new {
                pool.share(*page)?;
            }
            let tokens = text[found.len() * self.page_size..].to_vec();
            let (parent, children) = (path.last().copied(), Children::new());
            let pages = new.to_vec();
            self.add(Run { parent, tokens, pages, children, last_used: self.clock });
        }
        Ok(())
    }
    // ANCHOR_END: insert

    // ANCHOR: evict
    fn evict(&mut self, n: usize, pool: &mut PagePool) -> Result<usize, CacheError> {
        for evicted in 0..n {
            let Some(id) = self.next_to_go(pool)? else { return Ok(evicted) };
            let run = self.runs.get_mut(&id).expect("the run is in the tree");
            pool.free(run.pages.pop().expect("a run has pages"))?;
            let left = run.pages.len() * self.page_size;
            if left > 0 {
                run.tokens.truncate(left);
            } else {
                let run = self.runs.remove(&id).expect("the run is in the tree");
                let first_page = &run.tokens[..self.page_size];
                self.children(run.parent).remove(first_page);
            }
        }
        Ok(n)
    }
    // ANCHOR_END: evict

    fn n_pages(&self) -> usize {
        self.runs.values().map(|run| run.pages.len()).sum()
    }

    fn n_evictable(&self, pool: &PagePool) -> usize {
        let pages = self.runs.values().flat_map(|run| &run.pages);
        pages.filter(|page| pool.owners(**page) == Ok(1)).count()
    }
}
