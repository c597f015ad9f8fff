//! Chapter 6: the paged cache, which keeps many sequences in one slab of pages.
//!
//! The *slab* is the pages' memory, one tensor of all keys and one of all values, each of shape
//! `[n_pages, n_layers, page_size, kv_width]`. A page holds a few tokens of one sequence in all
//! layers, so one page table serves every layer. Here two sequences grow by turns, page size 4:
//!
//! ```text
//!   slab     page 0        page 1        page 2        page 3
//!            a0 a1 a2 a3   b0 b1 b2 ..   a4 a5 .. ..   (free)
//!
//!   table of a: 0, 2       gather of a: a0 a1 a2 a3 a4 a5
//!   table of b: 1          gather of b: b0 b1 b2
//! ```
//!
//! Check your work with `cargo test --features solution --test ch06_paged`.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use crate::cache::{CacheError, CacheUsage, KvCache, KvLayout, PageId};
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::{Location, PageTable};

/// The memory of all pages, and the pool that hands them out.
pub struct PageSlab {
    pub(super) layout: KvLayout,
    pub(super) page_size: usize,
    pub(crate) pool: PagePool,
    /// `[n_pages, n_layers, page_size, kv_width]`, row-major.
    pub(super) k: Vec<f32>,
    /// `[n_pages, n_layers, page_size, kv_width]`, row-major.
    pub(super) v: Vec<f32>,
}

impl PageSlab {
    /// Allocates `n_pages` pages of `page_size` slots each, which many caches can share.
    ///
    /// # Errors
    /// [`CacheError::NoPages`] or [`CacheError::NoSlots`] if `n_pages` or `page_size` is 0;
    /// [`CacheError::TooManySlots`] if no memory can hold that many slots.
    pub fn new(layout: KvLayout, page_size: usize, n_pages: usize) -> Result<SharedSlab, CacheError> {
        if page_size == 0 {
            return Err(CacheError::NoSlots);
        }
        let numbers = layout.n_numbers(n_pages.saturating_mul(page_size))?;
        let pool = PagePool::new(n_pages)?;
        let slab = PageSlab { layout, page_size, pool, k: vec![0.0; numbers], v: vec![0.0; numbers] };
        Ok(Rc::new(RefCell::new(slab)))
    }

    /// The pool that hands out the pages.
    pub fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// All keys: `[n_pages, n_layers, page_size, kv_width]`, row-major.
    pub fn keys(&self) -> &[f32] {
        &self.k
    }

    /// All values, in the same layout as the keys.
    pub fn values(&self) -> &[f32] {
        &self.v
    }

    /// Returns where some slots of a page lie in `k` and `v` in one layer, as a range of indices.
    ///
    /// With 2 layers, `page_size` 4 and `kv_width` 2, slots `1..3` of page 2 in layer 1 → numbers
    /// `42..46`.
    pub(super) fn range(&self, page: PageId, layer: usize, slots: Range<usize>) -> Range<usize> {
        todo!("ch06 task 2: where do these slots of the page lie?")
    }
}

/// A slab that many caches share. `Rc` keeps it alive as long as one of them needs it. `RefCell`
/// lends it to one writer or to several readers at a time, and panics otherwise.
pub type SharedSlab = Rc<RefCell<PageSlab>>;

/// The cache of one sequence: a page table over a shared slab. Dropping it frees its pages.
pub struct PagedCache {
    pub(super) slab: SharedSlab,
    pub(super) table: PageTable,
}

impl PagedCache {
    /// An empty cache, without pages.
    ///
    /// # Errors
    /// None for a slab from [`PageSlab::new`]. The error type is that of [`PageTable::new`].
    pub fn new(slab: &SharedSlab) -> Result<Self, CacheError> {
        let table = PageTable::new(slab.borrow().page_size)?;
        Ok(PagedCache { slab: slab.clone(), table })
    }

    /// Gives all pages back to the pool. The cache is then empty and can be used again. The rows
    /// stay in the slab as they are.
    ///
    /// The table's pages all come from this slab's pool, so its `release` cannot fail. An error
    /// would be a bug in this file, so it is asserted rather than returned.
    ///
    /// # Panics
    /// If the slab is already borrowed, because a page must not be lost without an error.
    pub fn release(&mut self) {
        todo!("ch06 task 1: give every page back")
    }

    /// The page table of this sequence.
    pub fn table(&self) -> &PageTable {
        &self.table
    }
}

impl KvCache for PagedCache {
    fn layout(&self) -> KvLayout {
        self.slab.borrow().layout
    }

    fn len(&self) -> usize {
        self.table.len()
    }

    /// Makes room for `n` more tokens with pages from the slab's pool. One table serves all
    /// layers, and no row is touched.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`] if too few pages are free. Nothing has changed then.
    ///
    /// # Panics
    /// If the slab is already borrowed.
    fn extend(&mut self, n: usize) -> Result<(), CacheError> {
        todo!("ch06 task 1: grow the table from the slab's pool")
    }

    /// Scatters the rows of the newest tokens to their slots in one layer, and changes nothing
    /// else.
    ///
    /// # Panics
    /// If there are more rows than tokens held, or if `k` and `v` do not hold the same whole
    /// number of rows. Nothing is written then.
    fn write(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        let rows = self.layout().rows(k, v);
        todo!("ch06 task 2: scatter the new rows to their slots")
    }

    /// Copies the filled slots of one layer, page by page in table order, into two tensors
    /// `[len, kv_width]`. Each tensor is allocated at its full size, and each row is copied once.
    fn gather(&self, layer: usize) -> (Cow<'_, [f32]>, Cow<'_, [f32]>) {
        todo!("ch06 task 3: copy the filled slots together, in table order")
    }

    fn usage(&self) -> CacheUsage {
        let slab = self.slab.borrow();
        let slots = self.table.slots();
        let numbers = 2 * slots * slab.layout.n_layers * slab.layout.kv_width();
        CacheUsage { tokens: self.table.len(), slots, bytes: numbers * size_of::<f32>(), copied_tokens: 0 }
    }
}

impl Drop for PagedCache {
    /// Frees the pages, unless a panic is under way, because only that should be reported.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.release();
        }
    }
}
