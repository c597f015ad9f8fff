//! Chapter 7: the tokens copied when a cache forgets its newest tokens, and when the others are copied to a new cache
//! instead.

use std::borrow::Cow;

use anyhow::{Result, bail, ensure};

use super::{PAGE_SIZE, SMALL, append, rows};
use crate::cache::Rewind;
use crate::cache_kind::{CacheKind, CacheSize};

/// Tokens copied so that a paged cache forgets some: if the others are copied to a new cache, and if it rewinds.
pub fn copied_to_forget(tokens: usize, forgotten: usize) -> Result<[u64; 2]> {
    let left = tokens - forgotten;
    let cache = || CacheKind::Paged.new_cache(SMALL, CacheSize::for_tokens(tokens, PAGE_SIZE)?);
    let (Some(mut cache), Some(mut other)) = (cache()?, cache()?) else { bail!("a paged cache keeps no rows") };
    append(cache.as_mut(), &rows(SMALL, tokens))?;
    let copied = copy_rows(cache.as_ref(), left, other.as_mut())?;
    let before = cache.usage().copied_tokens;
    cache.rewind(forgotten)?;
    ensure!(cache.len() == left, "{} tokens are left after rewind({forgotten}) on {tokens}", cache.len());
    Ok([copied, cache.usage().copied_tokens - before])
}

/// Writes a cache's first `len` tokens to an empty one. Returns how many rows this and the gather before it copy.
pub fn copy_rows(from: &dyn Rewind, len: usize, to: &mut dyn Rewind) -> Result<u64> {
    to.extend(len)?;
    let mut gathered = 0;
    let layout = from.layout();
    let numbers = len * layout.kv_width();
    for layer in 0..layout.n_layers {
        let (k, v) = from.gather(layer);
        let (Some(keys), Some(values)) = (k.get(..numbers), v.get(..numbers)) else {
            let (n_keys, n_values, tokens) = (k.len(), v.len(), from.len());
            bail!(
                "gather({layer}) gives {n_keys} numbers of keys and {n_values} of values, too few for {tokens} tokens"
            );
        };
        to.write(layer, keys, values);
        if let Cow::Owned(rows) = &k {
            gathered = rows.len() / layout.kv_width();
        }
    }
    Ok((gathered + len) as u64)
}
