//! Chapter 4: a pool of pages, known by their numbers.
//!
//! A page is room for a few tokens. The pool owns no bytes: it only knows who has which page.
//! Each page has a count of its owners; a page without owners is on the *free list*, a stack
//! from which the next one is taken.
//!
//! ```text
//!   pool of 4        owners 0 0 0 0    free list, next one first: 0 1 2 3
//!   alloc → 0        owners 1 0 0 0    1 2 3
//!   alloc → 1        owners 1 1 0 0    2 3
//!   share(0)         owners 2 1 0 0    2 3
//!   free(1)          owners 2 0 0 0    1 2 3        page 1 has no owner: it is back, on top
//!   free(0)          owners 1 0 0 0    1 2 3        page 0 still has one
//! ```

use crate::cache::{CacheError, PageId};

/// Hands out pages, lets owners share them, takes them back from the last.
///
/// Every call takes the same few steps, however large the pool is, for each page that it is
/// about.
pub struct PagePool {
    /// How many owners each page has.
    owners: Vec<u32>,
    /// The pages without an owner; the next one to hand out is the last.
    free: Vec<PageId>,
}

impl PagePool {
    // ANCHOR: new
    /// A pool of pages `0..n_pages`, all free. They are handed out in this order.
    ///
    /// # Errors
    /// [`CacheError::NoPages`] if `n_pages` is 0.
    ///
    /// # Panics
    /// If `n_pages` does not fit into a `u32`.
    pub fn new(n_pages: usize) -> Result<Self, CacheError> {
        let end = u32::try_from(n_pages).expect("a page's number is a u32");
        // ch04 task 1: all pages free, page 0 handed out first
        if n_pages == 0 {
            return Err(CacheError::NoPages);
        }
        let free = (0..end).rev().map(PageId).collect();
        Ok(PagePool { owners: vec![0; n_pages], free })
    }
    // ANCHOR_END: new

    /// Pages in all.
    pub fn n_pages(&self) -> usize {
        self.owners.len()
    }

    /// Pages without an owner.
    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    // ANCHOR: alloc
    /// Takes the next free page; it then has one owner. What came back last goes out first.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`] if there is none.
    pub fn alloc(&mut self) -> Result<PageId, CacheError> {
        // ch04 task 1: take the next free page, with one owner
        let page = self.free.pop().ok_or(CacheError::OutOfPages { needed: 1, free: 0 })?;
        self.owners[page.index()] = 1;
        Ok(page)
    }
    // ANCHOR_END: alloc

    // ANCHOR: alloc_n
    /// Takes `n` pages, or none, in the order in which [`alloc`](Self::alloc) would hand them
    /// out.
    ///
    /// 0 pages can always be had, even if none is free.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`] if fewer than `n` are free; the pool is then as it was.
    pub fn alloc_n(&mut self, n: usize) -> Result<Vec<PageId>, CacheError> {
        // ch04 task 2: take n pages, or refuse and change nothing
        if n > self.free.len() {
            return Err(CacheError::OutOfPages { needed: n, free: self.free.len() });
        }
        (0..n).map(|_| self.alloc()).collect()
    }
    // ANCHOR_END: alloc_n

    // ANCHOR: owners
    /// How many owners a page has; 0 if it is free.
    ///
    /// # Errors
    /// [`CacheError::ForeignPage`] if the pool has no page of this number. A page of another
    /// pool whose number this pool has too cannot be distinguished from its own.
    pub fn owners(&self, page: PageId) -> Result<u32, CacheError> {
        // ch04 task 3: how many owners has this page, if the pool has it at all?
        let owners = self.owners.get(page.index()).copied();
        owners.ok_or(CacheError::ForeignPage { page, n_pages: self.n_pages() })
    }
    // ANCHOR_END: owners

    // ANCHOR: share
    /// Adds an owner to a page that has one already.
    ///
    /// # Errors
    /// [`CacheError::ForeignPage`]; [`CacheError::FreePage`] if the page has no owner who
    /// could share it.
    pub fn share(&mut self, page: PageId) -> Result<(), CacheError> {
        // ch04 task 3: one more owner, for a page that has one
        if self.owners(page)? == 0 {
            return Err(CacheError::FreePage(page));
        }
        self.owners[page.index()] += 1;
        Ok(())
    }
    // ANCHOR_END: share

    // ANCHOR: free
    /// Lets one owner go. The page returns to the free list when the last one goes; it is
    /// then the next to be handed out.
    ///
    /// # Errors
    /// [`CacheError::ForeignPage`]; [`CacheError::DoubleFree`] if the page has no owner.
    pub fn free(&mut self, page: PageId) -> Result<(), CacheError> {
        // ch04 task 3: one owner less; the last one brings the page back
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
