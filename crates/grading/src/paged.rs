//! Paged caches over slabs, for the graders of chapter 6 and of those that follow it.

use std::fmt::Debug;

use page_by_page::cache::{CacheError, KvCache, KvLayout, Rewind};
use page_by_page::chapters::ch06_paged::{PagedCache, SharedSlab};

use crate::calls::{assert_panics, expect_ok, in_call};
use crate::oracle::{Oracle, STEPS, any_layout, fresh, seeded};
use crate::pools::{LAYOUT, page_ids, slab_of};
use crate::rows::{self, KINDS};
use crate::words::plural;

#[track_caller]
pub fn slab(page_size: usize, n_pages: usize) -> SharedSlab {
    slab_of(LAYOUT, page_size, n_pages)
}

#[track_caller]
pub fn cache(slab: &SharedSlab) -> PagedCache {
    expect_ok("PagedCache::new of chapter 6, over a slab", || PagedCache::new(slab))
}

/// Drops a cache, which gives its pages back.
pub fn drop_cache(cache: PagedCache) {
    let what = format!("drop of a cache of {} in pages {:?}", plural(cache.len(), "token"), pages(&cache));
    in_call(what, || drop(cache));
}

pub fn n_free(slab: &SharedSlab) -> usize {
    slab.borrow().pool().n_free()
}

pub fn pages(cache: &PagedCache) -> Vec<u32> {
    page_ids(cache.table())
}

/// Compares the pages of a cache with those that its tokens need.
#[track_caller]
pub fn check_pages(cache: &PagedCache, after_what: &str) {
    let (len, size, pages) = (cache.len(), cache.table().page_size(), cache.table().pages().len());
    same!(pages, len.div_ceil(size), "pages of the cache after {after_what}: it holds {len} tokens, page size {size}");
}

/// Makes a call that must borrow the slab to change it, while it is lent to a reader. Such a call must panic as `RefCell`
/// does: with an error, or in silence, its caller would go on.
#[track_caller]
pub fn assert_panics_while_lent<T: Debug>(slab: &SharedSlab, call: &str, make: impl FnOnce() -> T) {
    let what = format!("{call} while the slab is lent");
    let lent = slab.borrow();
    let words = assert_panics(&what, make);
    drop(lent);
    let is_right = words.to_lowercase().contains("borrow");
    assert!(is_right, "{what}\n  expected: a panic: already borrowed\n  yours:    a panic: {words}");
}

/// All numbers of a slab, keys and values.
pub struct Content {
    layout: KvLayout,
    page_size: usize,
    numbers: [Vec<f32>; 2],
}

impl Content {
    pub fn of(slab: &SharedSlab, cache: &PagedCache) -> Self {
        let slab = slab.borrow();
        let numbers = [slab.keys(), slab.values()].map(|numbers| numbers.to_vec());
        Content { layout: cache.layout(), page_size: cache.table().page_size(), numbers }
    }

    /// Checks that a slab whose content was `self` keeps it, but for the rows `of_the_write`, as (page, layer, slot).
    #[track_caller]
    pub fn assert_kept_but(
        &self,
        slab: &SharedSlab,
        after_what: &str,
        of_the_write: impl Fn((usize, usize, usize)) -> bool,
    ) {
        let slab = slab.borrow();
        let (width, n_layers, page_size) = (self.layout.kv_width(), self.layout.n_layers, self.page_size);
        let kinds = KINDS.into_iter().zip([slab.keys(), slab.values()]);
        for ((kind, after), before) in kinds.zip(&self.numbers) {
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

/// Paged caches over one slab do what the dice say: grow, come and go, and rewind if `rewinds`. After each step each holds
/// its rows, and the pool all pages that no cache needs.
#[track_caller]
pub fn oracle(runs: u64, rewinds: bool) {
    for (seed, mut rng) in seeded(runs) {
        let (layout, page_size, n_pages) = (any_layout(&mut rng), rng.roll(1, 6), rng.roll(4, 16));
        let slab = slab_of(layout, page_size, n_pages);
        let mut sequences: Vec<(PagedCache, Oracle)> = Vec::new();
        let mut next = 0;
        for _ in 0..STEPS {
            let verb = rng.roll(0, 9);
            if sequences.is_empty() || (verb == 0 && sequences.len() < 5) {
                let oracle = Oracle::new(format!("seed {seed}, {layout:?}, page size {page_size}"));
                sequences.push((cache(&slab), oracle));
                continue;
            }
            let index = rng.roll(0, sequences.len() - 1);
            if verb == 1 {
                drop_cache(sequences.remove(index).0);
                continue;
            }
            let (cache, oracle) = &mut sequences[index];
            let (len, free) = (cache.len(), n_free(&slab));
            let grows = verb < 6 || !rewinds;
            let n = rng.roll(0, if grows { 2 * page_size + 1 } else { len + 1 });
            let call = format!("{}({n})", if grows { "extend" } else { "rewind" });
            let at = format!("seed {seed}: {call} on {len} tokens, page size {page_size}, {free} pages free");
            let needed = (len + n).div_ceil(page_size) - len.div_ceil(page_size);
            if grows && needed > free {
                same!(cache.extend(n), Err(CacheError::OutOfPages { needed, free }), "{at}");
                oracle.history.record(format!("{call} refused"));
            } else if !grows && n > len {
                same!(cache.rewind(n), Err(CacheError::PastTheStart { n, len }), "{at}");
                oracle.history.record(format!("{call} refused"));
            } else if grows {
                oracle.append(cache, &fresh(&mut next, n));
            } else {
                oracle.rewind(cache, n);
            }
            for (cache, oracle) in &sequences {
                check_pages(cache, &at);
                oracle.check(cache);
            }
            let held: usize = sequences.iter().map(|(cache, _)| cache.table().pages().len()).sum();
            same!(n_free(&slab), n_pages - held, "free pages when {held} of {n_pages} are held, after {at}");
        }
        sequences.into_iter().for_each(|(cache, _)| drop_cache(cache));
        same!(n_free(&slab), n_pages, "seed {seed}: free pages of {n_pages} when all caches are dropped");
    }
}
