//! Chapter 5: a page table, which leads from a token's position to its page and slot.
//!
//! Each sequence keeps a list of its pages, in the order of its tokens. Every page except the last
//! is full.
//!
//! ```text
//!   ten tokens in pages 12, 5 and 3, page size 4
//!
//!   position   0  1  2  3 | 4  5  6  7 | 8  9  .  .
//!   page          12      |      5     |     3
//!   slot       0  1  2  3 | 0  1  2  3 | 0  1  2  3
//! ```
//!
//! Position 6 is slot 2 of page 5. Two more tokens fit into page 3, but the thirteenth token
//! needs a new page.

use crate::cache::{CacheError, PageId};
use crate::chapters::ch04_page_pool::PagePool;

/// Where a token's row is: a page, and a slot in that page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The page.
    pub page: PageId,
    /// The slot, from 0 to `page_size - 1`.
    pub slot: usize,
}

// ANCHOR: table
/// The pages of one sequence, in the order of its tokens.
pub struct PageTable {
    page_size: usize,
    pub(crate) pages: Vec<PageId>,
    /// Tokens held.
    pub(crate) len: usize,
}
// ANCHOR_END: table

impl PageTable {
    /// An empty table for pages of `page_size` slots.
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

    /// True if no tokens are held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Slots in all pages of the table, filled or not.
    pub fn slots(&self) -> usize {
        self.pages.len() * self.page_size
    }

    /// Returns how many pages `n` more tokens need beyond those in the table. `n` can be any
    /// number, even `usize::MAX`.
    ///
    /// With ten tokens in pages of 4 slots, two more tokens need 0 pages, and three more need 1.
    // ANCHOR: pages_needed
    pub fn pages_needed(&self, n: usize) -> usize {
        // ch05 task 1: tokens that do not fit into the last page need new pages
        let left_in_last_page = self.slots() - self.len;
        n.saturating_sub(left_in_last_page).div_ceil(self.page_size)
    }
    // ANCHOR_END: pages_needed

    /// Makes room for `n` more tokens. It takes exactly the pages that they need from `pool` and
    /// appends them to the list.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`] if the pool has too few free pages. Table and pool are then
    /// unchanged.
    // ANCHOR: grow
    pub fn grow(&mut self, n: usize, pool: &mut PagePool) -> Result<(), CacheError> {
        // ch05 task 1: take exactly the pages needed, or refuse and change nothing
        let new_pages = pool.alloc_n(self.pages_needed(n))?;
        self.pages.extend(new_pages);
        self.len += n;
        Ok(())
    }
    // ANCHOR_END: grow

    /// Returns the page and slot of the token at `position`. It does not walk through the pages,
    /// so it finds the end of a long sequence as quickly as the beginning.
    ///
    /// # Errors
    /// [`CacheError::PastTheEnd`] if no token is held at `position`.
    // ANCHOR: locate
    pub fn locate(&self, position: usize) -> Result<Location, CacheError> {
        // ch05 task 2: from a position to its page and slot
        if position >= self.len {
            return Err(CacheError::PastTheEnd { position, len: self.len });
        }
        let page = self.pages[position / self.page_size];
        Ok(Location { page, slot: position % self.page_size })
    }
    // ANCHOR_END: locate

    /// Frees all pages, the newest first. The table is then empty and can be used again.
    ///
    /// # Errors
    /// [`CacheError::ForeignPage`] if the pool does not have one of the pages, or
    /// [`CacheError::DoubleFree`] if a page has no owner there. Both mean that the pages came from
    /// a different pool. Table and pool are then unchanged. If all of these pages have owners in
    /// the wrong pool, it cannot refuse.
    // ANCHOR: release
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

/// Checks, before any of these pages is freed, that the pool can take back all of them.
///
/// # Errors
/// [`CacheError::ForeignPage`] if the pool does not have one of the pages, or
/// [`CacheError::DoubleFree`] if a page has no owner there.
// ANCHOR: all_owned
pub(crate) fn all_owned(pages: &[PageId], pool: &PagePool) -> Result<(), CacheError> {
    // ch05 task 3: does each of these pages have an owner in the pool?
    for page in pages {
        if pool.owners(*page)? == 0 {
            return Err(CacheError::DoubleFree(*page));
        }
    }
    Ok(())
}
// ANCHOR_END: all_owned
