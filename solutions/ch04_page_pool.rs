//! Chapter 4: a pool that hands out pages and counts their owners.
//!
//! A page is room for a few tokens. The pool owns no bytes, because to the pool a page is only a
//! number. It stores each page's *reference count*, which is how many owners the page has. Pages
//! without an owner are on the *free list*, a stack from which the next page is taken.
//!
//! ```text
//!   pool of 4        owners 0 0 0 0    free list, next page first: 0 1 2 3
//!   alloc → 0        owners 1 0 0 0    1 2 3
//!   alloc → 1        owners 1 1 0 0    2 3
//!   share(0)         owners 2 1 0 0    2 3
//!   free(1)          owners 2 0 0 0    1 2 3        page 1 has no owner, so it is on top again
//!   free(0)          owners 1 0 0 0    1 2 3        page 0 still has an owner
//! ```

use crate::cache::{CacheError, PageId};

// ANCHOR: pool
/// Hands out pages, lets several owners share a page, and takes it back from the last one.
///
/// However large the pool is, every call takes the same few steps for each page that it hands
/// out, shares, frees or looks up.
pub struct PagePool {
    /// The reference count of each page.
    owners: Vec<u32>,
    /// The pages without an owner. The last one is handed out next.
    free: Vec<PageId>,
}
// ANCHOR_END: pool

impl PagePool {
    /// Creates a pool of pages `0..n_pages`. All are free, and are handed out in this order.
    ///
    /// # Errors
    /// [`CacheError::NoPages`] if `n_pages` is 0.
    ///
    /// # Panics
    /// If `n_pages` does not fit into a `u32`.
    // ANCHOR: new
    pub fn new(n_pages: usize) -> Result<Self, CacheError> {
        let end = u32::try_from(n_pages).expect("a page's number is a u32");
        // ch04 task 1: all pages are free, and page 0 is handed out first
        if n_pages == 0 {
            return Err(CacheError::NoPages);
        }
        let free = (0..end).rev().map(PageId).collect();
        Ok(PagePool { owners: vec![0; n_pages], free })
    }
    // ANCHOR_END: new

    /// Number of pages in the pool, free or not.
    pub fn n_pages(&self) -> usize {
        self.owners.len()
    }

    /// Number of pages without an owner.
    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    /// Takes the next free page and gives it one owner. The page freed last is handed out first.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`] if no page is free.
    // ANCHOR: alloc
    pub fn alloc(&mut self) -> Result<PageId, CacheError> {
        // ch04 task 1: take the next free page and give it one owner
        let page = self.free.pop().ok_or(CacheError::OutOfPages { needed: 1, free: 0 })?;
        self.owners[page.index()] = 1;
        Ok(page)
    }
    // ANCHOR_END: alloc

    /// Takes `n` pages in the order in which [`alloc`](Self::alloc) hands them out, or none.
    ///
    /// `alloc_n(0)` always succeeds, even if no page is free.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`] if fewer than `n` pages are free. The pool is then unchanged.
    // ANCHOR: alloc_n
    pub fn alloc_n(&mut self, n: usize) -> Result<Vec<PageId>, CacheError> {
        // ch04 task 2: take n pages, or refuse and change nothing
        if n > self.free.len() {
            return Err(CacheError::OutOfPages { needed: n, free: self.free.len() });
        }
        (0..n).map(|_| self.alloc()).collect()
    }
    // ANCHOR_END: alloc_n

    /// Returns a page's reference count, which is 0 if the page is free.
    ///
    /// # Errors
    /// [`CacheError::ForeignPage`] if the pool has no page with this number. If it has one, it
    /// cannot distinguish a page of a different pool from its own, because it sees only the number.
    // ANCHOR: owners
    pub fn owners(&self, page: PageId) -> Result<u32, CacheError> {
        // ch04 task 3: how many owners does this page have, if the pool has it at all?
        let owners = self.owners.get(page.index()).copied();
        owners.ok_or(CacheError::ForeignPage { page, n_pages: self.n_pages() })
    }
    // ANCHOR_END: owners

    /// Adds an owner to a page that already has one.
    ///
    /// # Errors
    /// [`CacheError::ForeignPage`] if the pool has no such page, or [`CacheError::FreePage`] if
    /// the page has no owner that could share it.
    // ANCHOR: share
    pub fn share(&mut self, page: PageId) -> Result<(), CacheError> {
        // ch04 task 3: add an owner to a page that already has one
        if self.owners(page)? == 0 {
            return Err(CacheError::FreePage(page));
        }
        self.owners[page.index()] += 1;
        Ok(())
    }
    // ANCHOR_END: share

    /// Removes one owner of a page. If that was the last, the page returns to the free list and
    /// is the next to be handed out.
    ///
    /// # Errors
    /// [`CacheError::ForeignPage`] if the pool has no such page, or [`CacheError::DoubleFree`] if
    /// the page has no owner.
    // ANCHOR: free
    pub fn free(&mut self, page: PageId) -> Result<(), CacheError> {
        // ch04 task 3: remove one owner; the last one brings the page back
        if self.owners(page)? == 0 {
            return Err(CacheError::DoubleFree(page));
        }
        self.owners[page.index()] -= 1;
        if self.owners[page.index()] == 0 {
            self.free.push(page);
        }
        Ok(())
    }
    // ANCHOR_END: free
}
