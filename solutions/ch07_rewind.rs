//! Chapter 7: rewind, which makes any of the three caches forget its newest tokens.
//!
//! A token in the cache might turn out to be wrong, so a cache must be able to go back. Nothing is
//! erased. The length shrinks, pages without a token return to the pool, and the rows that stay
//! in the slots are *stale*: they are never read, and the next tokens are written over them.
//!
//! ```text
//!   page size 4, nine tokens in pages 0, 1, 2        filled 4 4 1
//!
//!   before     | t0 t1 t2 t3 | t4 t5 t6 t7 | t8 .. .. .. |
//!   rewind(3)  | t0 t1 t2 t3 | t4 t5 ×6 ×7 |   page 2 is free      filled 4 2, × is stale
//!   extend(1)  | t0 t1 t2 t3 | t4 t5 n6 ×7 |   n6, a new token, is written over ×6
//! ```

use crate::cache::{CacheError, KvCache, Rewind};
use crate::chapters::ch02_flat::FlatCache;
use crate::chapters::ch03_contiguous::ContiguousCache;
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::{PageTable, all_owned};
use crate::chapters::ch06_paged::PagedCache;

/// Returns how many of `len` tokens are left when the newest `n` are forgotten.
///
/// `tokens_left(9, 3)` → `6`
///
/// # Errors
/// [`CacheError::PastTheStart`] if `n` is more than `len`. Both can be any number.
// ANCHOR: tokens_left
fn tokens_left(len: usize, n: usize) -> Result<usize, CacheError> {
    // ch07 task 1: how many tokens are left, if at least n are held?
    len.checked_sub(n).ok_or(CacheError::PastTheStart { n, len })
}
// ANCHOR_END: tokens_left

impl Rewind for FlatCache {
    /// Cuts both tensors of every layer to the rows that are left. Nothing is copied, and the
    /// tensors stay where they are in memory.
    // ANCHOR: flat
    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        // ch07 task 1: forget the newest rows of every tensor
        let left = tokens_left(self.len, n)?;
        let numbers = left * self.layout().kv_width();
        for layer in &mut self.layers {
            layer.k.truncate(numbers);
            layer.v.truncate(numbers);
        }
        self.len = left;
        Ok(())
    }
    // ANCHOR_END: flat
}

impl Rewind for ContiguousCache {
    /// Moves the end of the sequence back, so the slots after it are free. No row is touched.
    // ANCHOR: contiguous
    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        // ch07 task 2: forget the newest tokens of the reservation
        self.len = tokens_left(self.len, n)?;
        Ok(())
    }
    // ANCHOR_END: contiguous
}

impl PageTable {
    /// Forgets the newest `n` tokens and frees the pages that no longer hold a token, the newest
    /// page first.
    ///
    /// With nine tokens in pages 12, 5 and 3 of 4 slots each, `rewind(3)` leaves six tokens in
    /// pages 12 and 5. The cost grows with the number of pages freed, not with the length of the
    /// sequence.
    ///
    /// # Errors
    /// [`CacheError::PastTheStart`] if fewer than `n` tokens are held.
    /// [`CacheError::ForeignPage`] or [`CacheError::DoubleFree`] if the pool cannot free one of
    /// the emptied pages, as in [`release`](PageTable::release). Table and pool are unchanged
    /// after any of these.
    // ANCHOR: table
    pub fn rewind(&mut self, n: usize, pool: &mut PagePool) -> Result<(), CacheError> {
        // ch07 task 3: forget the newest tokens and free the pages left without any
        let left = tokens_left(self.len, n)?;
        let pages_kept = left.div_ceil(self.page_size());
        all_owned(&self.pages[pages_kept..], pool)?;
        for page in self.pages.drain(pages_kept..).rev() {
            pool.free(page)?;
        }
        self.len = left;
        Ok(())
    }
    // ANCHOR_END: table
}

impl Rewind for PagedCache {
    /// Rewinds the table, which returns the emptied pages to the slab's pool. No row is touched.
    ///
    /// # Panics
    /// If the slab is already borrowed.
    // ANCHOR: paged
    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        // ch07 task 4: rewind the table over the slab
        self.table.rewind(n, &mut self.slab.borrow_mut().pool)
    }
    // ANCHOR_END: paged
}
