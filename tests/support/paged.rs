//! Paged caches over slabs, for the graders of chapter 6 and of those that follow it. Unlike `support`, this uses the chapters'
//! code, so only those graders include it.
#![allow(dead_code)]

use page_by_page::cache::{CacheError, KvCache, KvLayout, Rewind};
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};
use page_by_page::decode::{Cached, RewindableModel};
use page_by_page::model::Model;

use crate::support::asking::made;
use crate::support::oracle::{Dice, Oracle, STEPS, any_layout, fresh, seeds};
use crate::support::rows::{self, KINDS};
use crate::support::story::{Storyteller, assets};

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
    made(format!("PageSlab::new of chapter 6, with {n_pages} pages of {page_size} slots"), || {
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

/// Paged caches over one slab do what dice say: grow, come and go, and rewind if `rewinds`. After each step each holds its
/// rows, and the pool all pages that no cache needs.
#[track_caller]
pub fn oracle(runs: u64, rewinds: bool) {
    for seed in seeds(runs) {
        let mut dice = Dice::new(seed);
        let (layout, page_size, n_pages) = (any_layout(&mut dice), dice.roll(1, 6), dice.roll(4, 16));
        let slab = slab_of(layout, page_size, n_pages);
        let mut sequences: Vec<(PagedCache, Oracle)> = Vec::new();
        let mut next = 0;
        for _ in 0..STEPS {
            let verb = dice.roll(0, 9);
            if sequences.is_empty() || (verb == 0 && sequences.len() < 5) {
                let oracle = Oracle::of(format!("seed {seed}, {layout:?}, page size {page_size}"));
                sequences.push((cache(&slab), oracle));
                continue;
            }
            let index = dice.roll(0, sequences.len() - 1);
            if verb == 1 {
                sequences.remove(index);
                continue;
            }
            let (cache, oracle) = &mut sequences[index];
            let (len, free) = (cache.len(), n_free(&slab));
            let grows = verb < 6 || !rewinds;
            let n = dice.roll(0, if grows { 2 * page_size + 1 } else { len + 1 });
            let call = format!("{}({n})", if grows { "extend" } else { "rewind" });
            let at = format!("seed {seed}: {call} on {len} tokens, page size {page_size}, {free} pages free");
            let needed = (len + n).div_ceil(page_size) - len.div_ceil(page_size);
            if grows && needed > free {
                same!(cache.extend(n), Err(CacheError::OutOfPages { needed, free }), "{at}");
                oracle.note(format!("{call} refused"));
            } else if !grows && n > len {
                same!(cache.rewind(n), Err(CacheError::PastTheStart { n, len }), "{at}");
                oracle.note(format!("{call} refused"));
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
        drop(sequences);
        same!(n_free(&slab), n_pages, "seed {seed}: free pages of {n_pages} when all caches are dropped");
    }
}

/// An empty cache with room for 64 tokens at least, and what it is called: flat, contiguous, paged, paged with larger pages.
pub fn one_of_caches(kind: usize, layout: KvLayout) -> (&'static str, Box<dyn Rewind>) {
    match kind {
        0 => ("flat cache", Box::new(FlatCache::new(layout))),
        1 => ("contiguous cache", Box::new(ContiguousCache::new(layout, 64))),
        2 => ("paged cache, page size 3", Box::new(cache(&slab_of(layout, 3, 64)))),
        _ => ("paged cache, page size 16", Box::new(cache(&slab_of(layout, 16, 64)))),
    }
}

/// Has a target and a draft model generate a story of 16 tokens, drafts of k = 0 to 8 tokens, the caches by turns:
/// `generate(told, target, small, k)`. Each must be `expected`, and both caches must then hold all of it but the newest token.
pub fn assert_stories(
    storyteller: &Storyteller,
    (prompt, expected): (&[u32], &[u32]),
    mut generate: impl FnMut(&str, &mut dyn RewindableModel, &mut dyn RewindableModel, usize) -> Vec<u32>,
) {
    let draft_model = Model::open(&assets().join("storyteller-draft")).expect("the bundled draft model opens");
    for k in 0..=8 {
        let models = [&storyteller.model, &draft_model];
        let [mut of_target, mut of_small] = models.map(|model| one_of_caches(k % 4, model.config().kv_layout()));
        let told = format!("a story of {} tokens, {}, k = {k}", expected.len(), of_target.0);
        let mut target = Cached::new(&storyteller.model, &mut *of_target.1);
        let mut small = Cached::new(&draft_model, &mut *of_small.1);
        let story = generate(&told, &mut target, &mut small, k);
        storyteller.assert_same_story(&story, expected);
        let all_but_one = prompt.len() + expected.len() - 1;
        let lengths = (target.remembered(), small.remembered());
        same!(lengths, (all_but_one, all_but_one), "tokens in the caches of target and draft model, {told}");
    }
}
