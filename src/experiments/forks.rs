//! Chapter 10: several sequences that continue one prompt, in caches apart, restored from a saved cache, and forked.

use anyhow::Result;

use super::{append, rows};
use crate::cache::{CacheError, KvCache, KvLayout};
use crate::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};
use crate::chapters::ch10_fork::ForkCache;
use crate::disk::saved_cache::SavedCache;

/// The sequences, and the pages that they are kept in.
#[derive(Clone, Copy)]
pub struct Samples {
    pub samples: usize,
    pub prompt_tokens: usize,
    /// Tokens generated for each. The last of them never enters a cache.
    pub new_tokens: usize,
    pub page_size: usize,
    pub layout: KvLayout,
}

pub struct SamplesCost {
    pub way: &'static str,
    /// Tokens whose rows a model would have computed.
    pub computed_tokens: usize,
    /// Pages that had an owner when all sequences had all their tokens.
    pub pages_held: usize,
    /// Rows restored from the saved cache or copied on write.
    pub copied_tokens: u64,
}

impl Samples {
    /// Pages that all of them need if none is shared.
    pub fn n_pages(self) -> usize {
        let most = self.prompt_tokens.saturating_add(self.new_tokens - 1);
        most.div_ceil(self.page_size).saturating_mul(self.samples)
    }

    /// Each sequence computes the prompt in a cache of its own.
    pub fn apart(self) -> Result<SamplesCost, CacheError> {
        let slab = self.slab()?;
        let caches = (0..self.samples).map(|_| self.with_prompt(PagedCache::new(&slab)?));
        self.cost("caches apart", caches.collect::<Result<_, _>>()?, self.samples, 0, &slab)
    }

    /// The prompt is computed once, and its rows are restored into each of the other caches.
    pub fn restored(self) -> Result<SamplesCost> {
        let slab = self.slab()?;
        let mut caches = vec![self.with_prompt(PagedCache::new(&slab)?)?];
        let saved = SavedCache::copy(&caches[0], &vec![0; self.prompt_tokens]);
        let mut restored = 0;
        for _ in 1..self.samples {
            let mut cache = PagedCache::new(&slab)?;
            saved.restore(&mut cache)?;
            restored += cache.len() as u64;
            caches.push(cache);
        }
        Ok(self.cost("restored from a saved cache", caches, 1, restored, &slab)?)
    }

    /// The prompt is computed once, and its cache is forked.
    pub fn forked(self) -> Result<SamplesCost, CacheError> {
        let slab = self.slab()?;
        let mut caches = vec![self.with_prompt(ForkCache::new(&slab)?)?];
        for _ in 1..self.samples {
            caches.push(caches[0].fork()?);
        }
        self.cost("forked", caches, 1, 0, &slab)
    }

    fn slab(self) -> Result<SharedSlab, CacheError> {
        PageSlab::new(self.layout, self.page_size, self.n_pages())
    }

    fn with_prompt<C: KvCache>(self, mut cache: C) -> Result<C, CacheError> {
        append(&mut cache, &rows(self.layout, self.prompt_tokens))?;
        Ok(cache)
    }

    /// Gives all sequences their new tokens, one each in turn, and counts. `prompts`: prompts that were computed.
    fn cost<C: KvCache>(
        self,
        way: &'static str,
        mut caches: Vec<C>,
        prompts: usize,
        restored: u64,
        slab: &SharedSlab,
    ) -> Result<SamplesCost, CacheError> {
        let row = rows(self.layout, 1);
        let mut computed_tokens = prompts * self.prompt_tokens;
        for _ in 1..self.new_tokens {
            for cache in &mut caches {
                append(cache, &row)?;
                computed_tokens += 1;
            }
        }
        let slab = slab.borrow();
        let pages_held = slab.pool().n_pages() - slab.pool().n_free();
        let copied: u64 = caches.iter().map(|cache| cache.usage().copied_tokens).sum();
        Ok(SamplesCost { way, computed_tokens, pages_held, copied_tokens: restored + copied })
    }
}
