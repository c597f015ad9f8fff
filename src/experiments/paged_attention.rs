//! Chapter 13: the rows that a decode step copies together so that attention can read them.

use anyhow::{Result, ensure};

use super::{PAGE_SIZE, append, rows};
use crate::cache::Rewind;
use crate::cache::attention::{AttentionBackend, AttentionCache};
use crate::chapters::ch06_paged::{PageSlab, PagedCache};
use crate::model::Model;

/// Computes one more token of each sequence in one pass. Returns the logits after each, `[sequences, vocab_size]`.
pub fn step<C: AttentionCache>(model: &Model, caches: &mut [C]) -> Result<Vec<f32>> {
    let chunk = |cache| model.prepare_chunk(&[1], Some(cache), 1);
    let chunks = caches.iter_mut().map(|cache| chunk(cache)).collect::<Result<Vec<_>, _>>()?;
    Ok(model.forward(chunks)?)
}

/// Rows that a layer's attention copies together to read these caches. All layers are read alike.
pub fn copied<C: AttentionCache>(model: &Model, caches: &[C]) -> usize {
    caches.iter().map(|cache| model.attention.rows(cache, 0).copied()).sum()
}

pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Tokens copied in a decode step of sequences in pages: if the rows are gathered, and if they are read where they lie.
pub fn copied_tokens(model: &mut Model, sequences: usize, tokens: usize) -> Result<[usize; 2]> {
    let layout = model.cache_layout();
    let slab = PageSlab::new(layout, PAGE_SIZE, sequences * (tokens + 1).div_ceil(PAGE_SIZE))?;
    let prompt = rows(layout, tokens);
    let mut caches = Vec::new();
    for _ in 0..sequences {
        let mut cache = PagedCache::new(&slab)?;
        append(&mut cache, &prompt)?;
        caches.push(cache);
    }
    let mut way = |attention| {
        model.attention = attention;
        let counted = (step(model, &mut caches)?, copied(model, &caches));
        caches.iter_mut().try_for_each(|cache| cache.rewind(1))?;
        anyhow::Ok(counted)
    };
    let ((gathered, gathers), (in_place, copies)) = (way(AttentionBackend::Gather)?, way(AttentionBackend::Paged)?);
    ensure!(same_bits(&gathered, &in_place), "read in their pages, the rows give other logits than gathered");
    Ok([gathers, copies])
}
