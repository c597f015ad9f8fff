//! What a scheduler asks of a prefix cache. Chapter 11 builds one.

use crate::cache::CacheError;
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::PageTable;

/// Full pages that outlive the texts that filled them, found by the tokens that they hold.
///
/// It is one more owner of each of its pages. All calls take the pool that the pages come from.
pub trait Prefixes {
    /// The longest prefix of `text` that it holds, as a table of full pages; each of them has the caller as one more owner. An
    /// empty table if nothing is found.
    ///
    /// At least one token of the text is left to compute: the logits after it are what the caller is after. So a text of 8
    /// tokens finds at most 1 page of 4.
    ///
    /// # Errors
    /// [`CacheError::ForeignPage`] or [`CacheError::DoubleFree`] if the pool is another one than the pages came from. Nothing
    /// has changed then.
    fn lookup(&mut self, text: &[u32], pool: &mut PagePool) -> Result<PageTable, CacheError>;

    /// Takes the full pages of a text. `table` is the text's, its rows are computed, and `text` begins with the tokens that it
    /// holds.
    ///
    /// Where a page for the same prefix is held already, the table gets that one in place of its own, which it lets go of: the
    /// same tokens, the same bits.
    ///
    /// # Errors
    /// [`CacheError::ForeignPage`] or [`CacheError::DoubleFree`] if the pool is another one than the table's pages came from.
    /// Nothing has changed then.
    ///
    /// # Panics
    /// If the table holds more tokens than `text` has.
    fn insert(&mut self, text: &[u32], table: &mut PageTable, pool: &mut PagePool) -> Result<(), CacheError>;

    /// Lets go of up to `n` pages that nobody else owns, and returns how many: each time the least recently used one that no
    /// other page here follows. A page is used when a lookup or an insertion comes by.
    ///
    /// # Errors
    /// [`CacheError::ForeignPage`] if the pool is another one than the pages came from.
    fn evict(&mut self, n: usize, pool: &mut PagePool) -> Result<usize, CacheError>;

    /// Pages that it owns.
    fn n_pages(&self) -> usize;

    /// Pages that it owns alone: all of them can be evicted, one after the other.
    fn n_evictable(&self, pool: &PagePool) -> usize;
}
