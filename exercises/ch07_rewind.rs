//! Chapter 7: rewind. The newest tokens are forgotten, in all three caches.
//!
//! What was guessed may be wrong: a cache must be able to go back. Nothing is erased. The
//! length shrinks, pages without a token go back to the pool, and the rows that stay
//! in the slots are *stale*: they are never read, and the next tokens are written over them.
//!
//! ```text
//!   page size 4, nine tokens in pages 0, 1, 2        filled 4 4 1
//!
//!   before     | t0 t1 t2 t3 | t4 t5 t6 t7 | t8 .. .. .. |
//!   rewind(3)  | t0 t1 t2 t3 | t4 t5 ×6 ×7 |   page 2 is free      filled 4 2, × is stale
//!   extend(1)  | t0 t1 t2 t3 | t4 t5 n6 ×7 |   n6, a new token, is written over ×6
//! ```
//!
//! Check your work with `cargo test --features solution --test ch07_rewind`.

use crate::cache::{CacheError, KvCache, Rewind};
use crate::chapters::ch02_flat::FlatCache;
use crate::chapters::ch03_contiguous::ContiguousCache;
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::{PageTable, all_owned};
use crate::chapters::ch06_paged::PagedCache;

/// How many of `len` tokens are left when the newest `n` are forgotten.
///
/// `tokens_left(9, 3)` → `6`
///
/// # Errors
/// [`CacheError::PastTheStart`] if `n` is more than `len`; both may be any number.
fn tokens_left(len: usize, n: usize) -> Result<usize, CacheError> {
    todo!("ch07 task 1: how many are left, if at least n are held?")
}

impl Rewind for FlatCache {
    /// Cuts both tensors of every layer to the rows that stay. Nothing is copied: the tensors
    /// stay where they are.
    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        todo!("ch07 task 1: forget the newest rows of every tensor")
    }
}

impl Rewind for ContiguousCache {
    /// Moves the end of the sequence back; the slots after it are free again. No row is touched.
    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        todo!("ch07 task 2: forget the newest tokens of the reservation")
    }
}

impl PageTable {
    /// Forgets the newest `n` tokens and lets go of the pages that hold no token any more,
    /// the newest page first.
    ///
    /// Nine tokens in pages of 4, pages 12, 5 and 3: `rewind(3)` leaves six tokens in pages
    /// 12 and 5. The cost goes with the pages that are let go, not with the length of the
    /// sequence.
    ///
    /// # Errors
    /// [`CacheError::PastTheStart`] if fewer than `n` tokens are held.
    /// [`CacheError::ForeignPage`] or [`CacheError::DoubleFree`] if a page to let go is not
    /// the table's to free, as in [`release`](PageTable::release). Table and pool are then as
    /// they were.
    pub fn rewind(&mut self, n: usize, pool: &mut PagePool) -> Result<(), CacheError> {
        todo!("ch07 task 3: forget the newest tokens, let go of the pages without any")
    }
}

impl Rewind for PagedCache {
    /// Rewinds the table; the pages that this empties go back to the slab's pool. No row is
    /// touched.
    ///
    /// # Panics
    /// If the slab is borrowed at the moment.
    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        todo!("ch07 task 4: rewind the table over the slab")
    }
}
