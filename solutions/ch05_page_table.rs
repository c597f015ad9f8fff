//! Chapter 5: a page table, from a token's position to its page and slot.
//!
//! A sequence keeps the list of its pages, in the order of its tokens. Every page but the last is
//! full.
//!
//! ```text
//!   page size 4, pages 12, 5, 3, ten tokens
//!
//!   position   0  1  2  3 | 4  5  6  7 | 8  9  .  .
//!   page          12      |      5     |     3
//!   slot       0  1  2  3 | 0  1  2  3 | 0  1  2  3
//! ```
//!
//! Position 6 is slot 2 of page 5. Two more tokens fit into page 3; the thirteenth needs a
//! new page.

use crate::cache::{CacheError, PageId};
use crate::chapters::ch04_page_pool::PagePool;

/// A place for one token: a page, and where in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The page.
    pub page: PageId,
    /// From 0 to `page_size - 1`.
    pub slot: usize,
}

/// The pages of one sequence, in the order of its tokens.
pub struct PageTable {
    page_size: usize,
    pub(crate) pages: Vec<PageId>,
    /// Tokens held.
    pub(crate) len: usize,
}

impl PageTable {
    /// An empty table over pages of `page_size` slots.
    ///
    /// # Errors
    /// [`CacheError::NoSlots`] if `page_size` is 0.
    pub fn new(page_size: usize) -> Result<Self, CacheError> {
        if page_size == 0 {
            return Err(CacheError::NoSlots);
        }
        Ok(PageTable { page_size, pages: Vec::new(), len: 0 })
    }

    /// Slots in a page.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// The pages, in the order of the tokens.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// Tokens held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True before the first token.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Slots in all pages of the table.
    pub fn slots(&self) -> usize {
        self.pages.len() * self.page_size
    }

    // ANCHOR: pages_needed
    /// Pages that `n` more tokens need beyond those that the table has. `n` may be any
    /// number, even `usize::MAX`.
    ///
    /// Ten tokens in pages of 4: two more need 0 pages, three more need 1.
    pub fn pages_needed(&self, n: usize) -> usize {
        // ch05 task 1: what does not fit into the last page needs new ones
        let left_in_last_page = self.slots() - self.len;
        n.saturating_sub(left_in_last_page).div_ceil(self.page_size)
    }
    // ANCHOR_END: pages_needed

    // ANCHOR: grow
    /// Makes room for `n` more tokens with exactly the pages that they need, after those
    /// that the table has.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`] if the pool has too few; table and pool are then as they
    /// were.
    pub fn grow(&mut self, n: usize, pool: &mut PagePool) -> Result<(), CacheError> {
        // ch05 task 1: take exactly the pages needed, or refuse and change nothing
        let new_pages = pool.alloc_n(self.pages_needed(n))?;
        self.pages.extend(new_pages);
        self.len += n;
        Ok(())
    }
    // ANCHOR_END: grow

    // ANCHOR: locate
    /// Where the token at `position` lies. No walk: the end of a long sequence is found as soon
    /// as its beginning.
    ///
    /// # Errors
    /// [`CacheError::PastTheEnd`] if no token is held there.
    pub fn locate(&self, position: usize) -> Result<Slot, CacheError> {
        // ch05 task 2: from a position to its page and slot
        if position >= self.len {
            return Err(CacheError::PastTheEnd { position, len: self.len });
        }
        let page = self.pages[position / self.page_size];
        Ok(Slot { page, slot: position % self.page_size })
    }
    // ANCHOR_END: locate

    // ANCHOR: release
    /// Lets go of all pages, the newest first; the table is then empty and can be used again.
    ///
    /// # Errors
    /// If one of the pages is not the table's to free, because this is not the pool it came
    /// from: [`CacheError::ForeignPage`] if the pool has no such page,
    /// [`CacheError::DoubleFree`] if it has no owner there. Table and pool are then as they
    /// were. A pool in which all these pages have owners cannot refuse.
    pub fn release(&mut self, pool: &mut PagePool) -> Result<(), CacheError> {
        // ch05 task 3: free every page once and forget the tokens, or change nothing
        all_owned(&self.pages, pool)?;
        for page in self.pages.drain(..).rev() {
            pool.free(page)?;
        }
        self.len = 0;
        Ok(())
    }
    // ANCHOR_END: release
}

// ANCHOR: all_owned
/// Looks, before any of these pages is freed, whether the pool would take them all.
///
/// # Errors
/// [`CacheError::ForeignPage`] for a page that the pool does not have,
/// [`CacheError::DoubleFree`] for one that has no owner there.
pub(crate) fn all_owned(pages: &[PageId], pool: &PagePool) -> Result<(), CacheError> {
    // ch05 task 3: has each of these pages an owner in the pool?
    for page in pages {
        if pool.owners(*page)? == 0 {
            return Err(CacheError::DoubleFree(*page));
        }
    }
    Ok(())
}
// ANCHOR_END: all_owned
