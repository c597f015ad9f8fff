//! Chapter 13: the rows that a decode step copies together so that attention can read them.

use std::borrow::Cow;
use std::cell::Cell;

use anyhow::{Result, ensure};

use super::{PAGE_SIZE, append, rows};
use crate::cache::in_place::{Attention, CacheRef, InPlace, Rows};
use crate::cache::{CacheError, KvCache, KvLayout, Rewind, Usage};
use crate::chapters::ch06_paged::{PageSlab, PagedCache};
use crate::model::{LogitRows, Model};

/// A cache that counts the rows that a gather copies.
pub struct Gathers<C> {
    cache: C,
    /// In each layer: all layers are gathered alike.
    copied: Cell<usize>,
}

impl<C> Gathers<C> {
    /// Nothing is counted yet.
    pub fn new(cache: C) -> Self {
        Gathers { cache, copied: Cell::new(0) }
    }
}

impl<C: KvCache> KvCache for Gathers<C> {
    fn layout(&self) -> KvLayout {
        self.cache.layout()
    }

    fn len(&self) -> usize {
        self.cache.len()
    }

    fn extend(&mut self, n: usize) -> Result<(), CacheError> {
        self.cache.extend(n)
    }

    fn write(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        self.cache.write(layer, k, v);
    }

    fn gather(&self, layer: usize) -> (Cow<'_, [f32]>, Cow<'_, [f32]>) {
        let rows = self.cache.gather(layer);
        if let (0, Cow::Owned(keys)) = (layer, &rows.0) {
            self.copied.set(self.copied.get() + keys.len() / self.layout().kv_width());
        }
        rows
    }

    fn usage(&self) -> Usage {
        self.cache.usage()
    }
}

impl<C: Rewind> Rewind for Gathers<C> {
    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        self.cache.rewind(n)
    }
}

impl<C: InPlace> InPlace for Gathers<C> {
    fn rows(&self, layer: usize) -> Rows<'_> {
        self.cache.rows(layer)
    }
}

/// Computes one more token of each sequence in one pass. Returns the logits after each, `[sequences, vocab_size]`, and the rows
/// that this copied in each layer.
pub fn step<C: InPlace>(model: &Model, caches: &mut [Gathers<C>]) -> Result<(Vec<f32>, usize)> {
    caches.iter().for_each(|cache| cache.copied.set(0));
    let chunk = |cache| model.chunk_of(&[1], CacheRef::InPlace(cache), LogitRows::Newest(1));
    let chunks = caches.iter_mut().map(|cache| chunk(cache)).collect::<Result<Vec<_>, _>>()?;
    let logits = model.forward(chunks)?;
    Ok((logits, caches.iter().map(|cache| cache.copied.get()).sum()))
}

/// Whether two slices hold the same bits.
pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Rows copied in a decode step of `sequences` sequences of `tokens` tokens in pages: gathered, and read where they lie.
pub fn rows_copied(model: &mut Model, sequences: usize, tokens: usize) -> Result<[usize; 2]> {
    let layout = model.kv_layout();
    let slab = PageSlab::new(layout, PAGE_SIZE, sequences * (tokens + 1).div_ceil(PAGE_SIZE))?;
    let prompt = rows(layout, tokens);
    let mut caches = Vec::new();
    for _ in 0..sequences {
        let mut cache = Gathers::new(PagedCache::new(&slab)?);
        append(&mut cache, &prompt)?;
        caches.push(cache);
    }
    let mut way = |attention| {
        model.set_attention(attention);
        let counted = step(model, &mut caches)?;
        caches.iter_mut().try_for_each(|cache| cache.rewind(1))?;
        anyhow::Ok(counted)
    };
    let ((gathered, gathers), (in_place, copies)) = (way(Attention::Gather)?, way(Attention::Paged)?);
    ensure!(same_bits(&gathered, &in_place), "read in their pages, the rows give other logits than gathered");
    Ok([gathers, copies])
}
