//! Paged caches over slabs, for the graders of chapter 6 and of those that follow it. Unlike `support`, this uses the chapters'
//! code, so only those graders include it.
#![allow(dead_code)]

use page_by_page::cache::{KvCache, KvLayout, Rewind};
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};

use crate::support::asking::made;
use crate::support::rows::{self, KINDS};

/// Three numbers that cannot be taken for one another.
pub const LAYOUT: KvLayout = KvLayout { n_layers: 3, n_kv_heads: 2, head_dim: 5 };

/// One number for each token.
pub const ONE_NUMBER: KvLayout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 1 };

#[track_caller]
pub fn slab(page_size: usize, n_pages: usize) -> SharedSlab {
    slab_of(LAYOUT, page_size, n_pages)
}

#[track_caller]
pub fn slab_of(layout: KvLayout, page_size: usize, n_pages: usize) -> SharedSlab {
    made(&format!("PageSlab::new of chapter 6, with {n_pages} pages of {page_size} slots"), || {
        PageSlab::new(layout, page_size, n_pages)
    })
}

#[track_caller]
pub fn cache(slab: &SharedSlab) -> PagedCache {
    made("PagedCache::new of chapter 6, over a slab", || PagedCache::new(slab))
}

pub fn n_free(slab: &SharedSlab) -> usize {
    slab.borrow().pool().n_free()
}

pub fn pages(cache: &PagedCache) -> Vec<u32> {
    cache.table().pages().iter().map(|page| page.0).collect()
}

/// Extends a cache that has room enough.
#[track_caller]
pub fn extend(cache: &mut dyn KvCache, n: usize) {
    let len = cache.len();
    same!(cache.extend(n), Ok(()), "extend({n}) on {len} tokens, with room enough");
    same!(cache.len(), len + n, "tokens after extend({n}) on {len}");
}

/// Compares the pages of a cache with those that its tokens need.
#[track_caller]
pub fn check_pages(cache: &PagedCache, after_what: &str) {
    let (len, size, pages) = (cache.len(), cache.table().page_size(), cache.table().pages().len());
    same!(pages, len.div_ceil(size), "pages of the cache after {after_what}: it holds {len} tokens, page size {size}");
}

/// All numbers of a slab, keys and values, and where they lie in memory.
pub struct Content {
    layout: KvLayout,
    page_size: usize,
    numbers: [(*const f32, Vec<f32>); 2],
}

impl Content {
    pub fn of(slab: &SharedSlab, cache: &PagedCache) -> Self {
        let slab = slab.borrow();
        let numbers = [slab.keys(), slab.values()].map(|numbers| (numbers.as_ptr(), numbers.to_vec()));
        Content { layout: cache.layout(), page_size: cache.table().page_size(), numbers }
    }

    /// Checks that a slab whose content was `self` keeps it, but for the rows that `of_the_write` names (page, layer, slot).
    #[track_caller]
    pub fn assert_kept_but(
        &self,
        slab: &SharedSlab,
        after_what: &str,
        of_the_write: impl Fn((usize, usize, usize)) -> bool,
    ) {
        let slab = slab.borrow();
        let (width, n_layers, page_size) = (self.layout.kv_width(), self.layout.n_layers, self.page_size);
        for (kind, ((place, before), after)) in
            KINDS.into_iter().zip(self.numbers.iter().zip([slab.keys(), slab.values()]))
        {
            let moved = "lie elsewhere in memory now, so all were copied";
            assert!(*place == after.as_ptr(), "{after_what}: the slab's {kind} {moved}");
            same!(after.len(), before.len(), "numbers in the slab's {kind} after {after_what}");
            for (row, (before, after)) in before.chunks(width).zip(after.chunks(width)).enumerate() {
                let (page, layer) = (row / page_size / n_layers, row / page_size % n_layers);
                let same = before.iter().zip(after).all(|(before, after)| before.to_bits() == after.to_bits());
                if !same && !of_the_write((page, layer, row % page_size)) {
                    let [was, is] = [before, after].map(|found| rows::name(self.layout, found, layer, kind));
                    panic!("{after_what} has changed the {kind} in row {row} of the slab: {was} before, {is} now");
                }
            }
        }
    }

    #[track_caller]
    pub fn assert_kept(&self, slab: &SharedSlab, after_what: &str) {
        self.assert_kept_but(slab, after_what, |_| false);
    }
}

/// The caches that a story goes through.
pub const CACHES: [&str; 4] =
    ["flat cache", "contiguous cache", "paged cache, page size 3", "paged cache, page size 16"];

/// An empty cache: one of [`CACHES`], with room for 64 tokens at least.
pub fn one_of_caches(kind: usize, layout: KvLayout) -> Box<dyn Rewind> {
    match kind {
        0 => Box::new(FlatCache::new(layout)),
        1 => Box::new(ContiguousCache::new(layout, 64)),
        _ => Box::new(cache(&slab_of(layout, if kind == 2 { 3 } else { 16 }, 64))),
    }
}
