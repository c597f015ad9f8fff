//! Chapters 1 to 3: one sequence generated with each cache, the tokens that the model computes for it and those that are
//! copied.

use anyhow::{Result, ensure};

use super::PAGE_SIZE;
use crate::cache_kind::{CacheKind, CacheSize};
use crate::generation::StopConditions;
use crate::generation::one_sequence::{Generated, Generation};
use crate::model::Model;

/// Continues the prompt with `new_tokens` tokens and an empty cache of this kind, with room for `capacity` tokens where
/// it reserves. No token ends the sequence earlier, because the counters depend on its length.
pub fn generate(
    model: &Model,
    (kind, capacity): (CacheKind, usize),
    prompt: &[u32],
    new_tokens: usize,
    pick: &mut dyn FnMut(&[f32]) -> u32,
) -> Result<Generated> {
    let mut cache = kind.new_cache(model.cache_layout(), CacheSize::for_tokens(capacity, PAGE_SIZE)?)?;
    let stop = StopConditions { max_new_tokens: new_tokens, end_of_text: &[] };
    let generated = Generation { model, prompt, stop, is_cancelled: None, checker: None }.run(
        cache.as_deref_mut(),
        pick,
        &mut |_| {},
    )?;
    let n = generated.tokens.len();
    ensure!(n == new_tokens, "a story of {n} new tokens came out, not {new_tokens}");
    Ok(generated)
}
