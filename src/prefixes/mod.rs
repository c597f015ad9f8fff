//! What a scheduler asks of a prefix cache. Chapter 11 builds one.
//!
//! Two others are here to be read beside it: [vLLM's chain of hashes](chain), whose hits and evictions are tested to be those
//! of chapter 11, and [one that keeps nothing](none).

pub mod chain;
pub mod none;

use std::cell::RefCell;
use std::rc::Rc;

use crate::cache::{CacheError, PageId};
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::PageTable;

/// Full pages that outlive the sequences that filled them, found by the tokens that they hold.
///
/// It is one more owner of each of its pages, and each of them has the page before it here, too: what it holds are
/// prefixes. All calls take the pool that the pages come from.
///
/// A page is *used* when a lookup returns it, and when an insertion finds or adds it.
pub trait Prefixes {
    /// The longest prefix of `text` that it holds, as a table of full pages; each of them has the caller as one more owner. An
    /// empty table if nothing is found.
    ///
    /// At least one token of the sequence is left to compute, because the caller needs the logits after it. So a sequence of
    /// 8 tokens finds at most 1 page of 4.
    ///
    /// The cost goes with the pages of the sequence, not with the pages held.
    ///
    /// # Errors
    /// If the pool is another one than the pages came from: [`CacheError::ForeignPage`] if it has no such page,
    /// [`CacheError::DoubleFree`] if a page has no owner there. Nothing has changed then.
    fn lookup(&mut self, text: &[u32], pool: &mut PagePool) -> Result<PageTable, CacheError>;

    /// Takes the full pages of a text. `table` is the text's, its rows are computed, and `text` begins with the tokens that it
    /// holds; it may go on after them.
    ///
    /// Where a page for the same prefix is held already, the table gets that one in place of its own, which it lets go of: the
    /// same tokens, the same bits. So the owner of a page of this cache owns the pages before it as well, and a page has at
    /// least as many owners as one that follows it.
    ///
    /// The cost goes with the pages of the sequence, not with the pages held.
    ///
    /// # Errors
    /// If the pool is another one than the pages came from: [`CacheError::ForeignPage`] if it has no such page,
    /// [`CacheError::DoubleFree`] if a page has no owner there. Nothing has changed then.
    ///
    /// # Panics
    /// If the table holds more tokens than `text` has, or has pages of another size. Nothing has changed then.
    fn insert(&mut self, text: &[u32], table: &mut PageTable, pool: &mut PagePool) -> Result<(), CacheError>;

    /// Lets go of up to `n` pages that no one else owns, and returns how many: each time the least recently used one that no
    /// other page here follows. Fewer than `n` only if there is no such page left.
    ///
    /// # Errors
    /// [`CacheError::ForeignPage`] if it comes upon a page that the pool does not have: nothing has changed then, but that pages
    /// which it had let go of before stay let go.
    fn evict(&mut self, n: usize, pool: &mut PagePool) -> Result<usize, CacheError>;

    /// Pages that it owns.
    fn n_pages(&self) -> usize;

    /// Pages that it owns alone: all of them can be evicted, one after the other.
    ///
    /// One exception: where a table was forked before its pages were inserted, the fork may still have pages of its own before
    /// those that it shares. Its next insertion swaps them.
    fn n_evictable(&self, pool: &PagePool) -> usize;

    /// All pages that it owns, in no order. A cache that does not list them returns none, as here.
    ///
    /// The simulation of chapter 15 compares them with the owners of each page.
    fn pages(&self) -> Vec<HeldPage<'_>> {
        Vec::new()
    }
}

/// One that several have. It does not list its pages.
impl Prefixes for Rc<RefCell<Box<dyn Prefixes>>> {
    fn lookup(&mut self, text: &[u32], pool: &mut PagePool) -> Result<PageTable, CacheError> {
        self.borrow_mut().lookup(text, pool)
    }

    fn insert(&mut self, text: &[u32], table: &mut PageTable, pool: &mut PagePool) -> Result<(), CacheError> {
        self.borrow_mut().insert(text, table, pool)
    }

    fn evict(&mut self, n: usize, pool: &mut PagePool) -> Result<usize, CacheError> {
        self.borrow_mut().evict(n, pool)
    }

    fn n_pages(&self) -> usize {
        self.borrow().n_pages()
    }

    fn n_evictable(&self, pool: &PagePool) -> usize {
        self.borrow().n_evictable(pool)
    }
}

/// A page of a prefix cache, as [`Prefixes::pages`] lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldPage<'a> {
    /// The page.
    pub page: PageId,
    /// The page before it; `None` if sequences begin with it.
    pub parent: Option<PageId>,
    /// The tokens whose rows it holds: `[page_size]`.
    pub tokens: &'a [u32],
    /// Higher if it was used later. Pages used by the same call have the same number.
    pub last_used: u64,
}
