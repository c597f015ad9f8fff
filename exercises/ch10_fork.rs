//! Chapter 10: fork and copy-on-write, for many sequences with one beginning.
//!
//! A *fork* is a second sequence with the same tokens so far. It shares every page of the
//! first, so each page gains an owner and no row moves. But only one sequence can fill the rest
//! of a page. A sequence that grows into a page with several owners therefore takes a page of
//! its own first and copies the filled rows into it. This is called *copy-on-write*.
//!
//! ```text
//!   page size 4, six tokens         table of a   table of b   owners of pages 0 1 2
//!   a                               0 1                       1 1 .
//!   b = a.fork()                    0 1          0 1          2 2 .
//!   b.extend(1)   copies t4 t5      0 1          0 2          2 1 1
//!   a.extend(1)   copies nothing    0 1          0 2          2 1 1
//! ```
//!
//! Page 0 is full, so it is never written to again. Both sequences keep it until they end.
//!
//! Check your work with `cargo test --features solution --test ch10_fork`.

use std::borrow::Cow;

use crate::cache::{CacheError, CacheUsage, KvCache, KvLayout, PageId, Rewind};
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::{PageTable, all_owned};
use crate::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};

/// Which rows to copy from one page to another in every layer, those of the slots `0..rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// The page that several sequences own.
    pub from: PageId,
    /// The page that replaces it in one of their tables.
    pub to: PageId,
    /// Slots that are filled.
    pub rows: usize,
}

impl PageTable {
    /// Returns a second table of the same tokens. It has the same pages in the same order, each
    /// with one more owner, and takes no page from the pool.
    ///
    /// If a table has six tokens in pages 12 and 5, its fork also has six tokens in pages 12 and 5.
    ///
    /// # Errors
    /// The error of `all_owned`, which is called before any page is shared:
    /// [`CacheError::ForeignPage`] if the pool has no such page, [`CacheError::DoubleFree`] if a
    /// page has no owner in it. The pool is then unchanged.
    pub fn fork(&self, pool: &mut PagePool) -> Result<PageTable, CacheError> {
        // The page size is private to chapter 5: begin with `PageTable::new(self.page_size())?`.
        todo!("ch10 task 1: share every page of the table")
    }

    /// Whether the next token would go into a page that other tables also own. That's so if the
    /// last page is partly filled and has more than one owner. False before the first token.
    ///
    /// # Errors
    /// [`CacheError::ForeignPage`] if the last page is partly filled and the pool has no such page.
    pub fn tail_is_shared(&self, pool: &PagePool) -> Result<bool, CacheError> {
        todo!("ch10 task 2: is the last page partly filled, and not this table's alone?")
    }

    /// Replaces a shared tail, which is a last page that is partly filled and has other owners, by
    /// a page of this table's own. Returns which rows to copy into it. If the last page is full or
    /// has no other owner, or if there is no page yet, nothing changes and it returns `None`.
    ///
    /// Suppose six tokens are in pages 12 and 5 of 4 slots, page 5 has a second owner, and page 3
    /// is the next free one. Then `copy_shared_tail` returns `PageCopy { from: 5, to: 3, rows: 2 }`, and
    /// the table has pages 12 and 3. The table knows only ids, so it copies nothing itself.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`] if it needs a page and the pool has none left, or
    /// [`CacheError::ForeignPage`] if the tail is no page of the pool. Table and pool are then
    /// unchanged.
    pub fn copy_shared_tail(&mut self, pool: &mut PagePool) -> Result<Option<PageCopy>, CacheError> {
        todo!("ch10 task 2: replace a shared tail by a page of its own")
    }
}

impl PageSlab {
    /// Copies keys and values of the filled slots in every layer. With 3 layers and 2 rows, that's
    /// 6 rows of keys and 6 of values. All other slots stay as they are.
    fn copy_rows(&mut self, copy: PageCopy) {
        todo!("ch10 task 3: copy the filled rows, keys and values, in every layer")
    }
}

/// A paged cache that can be forked, so that its sequence can share pages with others.
pub struct ForkCache {
    pub(super) inner: PagedCache,
    copied_tokens: u64,
}

impl ForkCache {
    /// An empty cache, without pages.
    ///
    /// # Errors
    /// None for a slab from [`PageSlab::new`]. The error type is that of [`PageTable::new`].
    pub fn new(slab: &SharedSlab) -> Result<Self, CacheError> {
        Ok(ForkCache { inner: PagedCache::new(slab)?, copied_tokens: 0 })
    }

    /// Returns a second cache with the same rows, in pages that both now share. No row is copied.
    /// The fork counts its own copies, from 0.
    ///
    /// The caller has written all tokens held. The cache cannot check that.
    ///
    /// # Errors
    /// None for a cache whose pages are its slab's. The error type is that of
    /// [`PageTable::fork`].
    ///
    /// # Panics
    /// If the slab is already borrowed.
    pub fn fork(&self) -> Result<ForkCache, CacheError> {
        todo!("ch10 task 3: a second cache over the forked table")
    }

    /// The pages of this sequence.
    pub fn table(&self) -> &PageTable {
        self.inner.table()
    }
}

impl KvCache for ForkCache {
    fn layout(&self) -> KvLayout {
        self.inner.layout()
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    /// Makes room for `n` more tokens in pages that no other sequence owns. If the tail is shared,
    /// its rows are first copied into a page of this sequence's own.
    ///
    /// `extend(0)` does nothing, because no token will be written, so the tail can stay shared.
    ///
    /// [`CacheUsage::copied_tokens`] counts a copied token once, however many layers it has.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`] if the pool has too few pages for the copy and the new tokens
    /// together. Six tokens in pages of 4, the second one shared, need 2 for `extend(3)`.
    /// Nothing has changed then, and nothing was copied.
    ///
    /// # Panics
    /// If the slab is already borrowed.
    fn extend(&mut self, n: usize) -> Result<(), CacheError> {
        todo!("ch10 task 3: own the tail, then extend the paged cache")
    }

    fn write(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        self.inner.write(layer, k, v);
    }

    fn gather(&self, layer: usize) -> (Cow<'_, [f32]>, Cow<'_, [f32]>) {
        self.inner.gather(layer)
    }

    fn usage(&self) -> CacheUsage {
        CacheUsage { copied_tokens: self.copied_tokens, ..self.inner.usage() }
    }
}

impl ForkCache {
    /// Replaces a shared tail, if the pool has enough pages for the copy and for `n` more tokens.
    /// Without a shared tail, it changes nothing.
    fn copy_shared_tail_before(&mut self, n: usize) -> Result<(), CacheError> {
        todo!("ch10 task 3: are there enough pages for the copy and the new tokens?")
    }
}

impl Rewind for ForkCache {
    /// Rewinds the paged cache. If that ends inside a shared page, the other sequence keeps its
    /// rows, because the next [`extend`](KvCache::extend) copies those that are left.
    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        self.inner.rewind(n)
    }
}
