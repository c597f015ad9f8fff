//! Generating one sequence: what the loop of chapter 1 needs from a model, and [`CachedModel`], a model with a cache.

pub mod beams;
pub mod drafting;
pub mod logprobs;
pub mod one_sequence;
pub mod prompt_lookup;
pub mod read_checker;
pub mod sampler;

use crate::cache::CacheError;
use crate::cache::attention::AttentionCache;
use crate::chapters::ch01_recompute::Recompute;
use crate::model::{Model, StepError};

// ANCHOR: language_model
/// Predicts the next token, which is all that the loop of chapter 1 needs from a model.
pub trait LanguageModel {
    /// The logits after `tokens`, which is the whole sequence so far: `[vocab_size]`.
    ///
    /// # Errors
    /// [`StepError`] if the sequence cannot be computed. Nothing has changed then, except after
    /// [`StepError::NotFinite`], when the tokens are in the cache.
    fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError>;
}

/// When to stop generating.
#[derive(Clone, Copy, Debug)]
pub struct StopConditions<'a> {
    /// The most tokens to generate.
    pub max_new_tokens: usize,
    /// Tokens that end the sequence. They are not part of the output.
    pub end_of_text: &'a [u32],
}
// ANCHOR_END: language_model

/// A model with a cache: it computes only the tokens that the cache does not hold.
pub struct CachedModel<'a> {
    model: &'a Model,
    cache: &'a mut dyn AttentionCache,
    computed_tokens: u64,
}

impl<'a> CachedModel<'a> {
    /// A model with a sequence's cache, which is read as the model's [attention setting](Model::attention) says.
    pub fn new(model: &'a Model, cache: &'a mut dyn AttentionCache) -> Self {
        CachedModel { model, cache, computed_tokens: 0 }
    }

    /// Tokens that have gone through the model since this was created.
    pub fn computed_tokens(&self) -> u64 {
        self.computed_tokens
    }
}

// ANCHOR: cached
impl LanguageModel for CachedModel<'_> {
    fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
        let new_tokens = &tokens[self.cache.len()..];
        let logits = self.model.step(new_tokens, Some(&mut *self.cache))?;
        self.computed_tokens += new_tokens.len() as u64;
        Ok(logits)
    }
}
// ANCHOR_END: cached

/// A language model that can predict after several tokens at once and forget tokens, as speculative decoding needs.
// ANCHOR: rewindable
pub trait RewindableModel: LanguageModel {
    /// How many tokens its cache holds, counted from the start of the sequence.
    fn cached_len(&self) -> usize;

    /// Computes, in one pass, the tokens that its cache does not hold. Returns the logits after each of the last `n` of
    /// them, oldest first: `n` rows of `[vocab_size]`. `tokens` is the whole sequence so far.
    ///
    /// # Errors
    /// [`StepError::NoTokens`] if the cache already holds all tokens, even if `n` is 0. Any other [`StepError`] if the
    /// sequence cannot be computed, or if fewer than `n` tokens are new. Nothing has changed then, except after
    /// [`StepError::NotFinite`], when the tokens are in the cache.
    fn last_logits(&mut self, tokens: &[u32], n: usize) -> Result<Vec<Vec<f32>>, StepError>;

    /// Forgets the newest `n` tokens that its cache holds.
    ///
    /// # Errors
    /// [`CacheError::PastTheStart`] if it holds fewer. Nothing has changed then.
    fn rewind(&mut self, n: usize) -> Result<(), CacheError>;
}
// ANCHOR_END: rewindable

impl RewindableModel for CachedModel<'_> {
    fn cached_len(&self) -> usize {
        self.cache.len()
    }

    fn last_logits(&mut self, tokens: &[u32], n: usize) -> Result<Vec<Vec<f32>>, StepError> {
        let new_tokens = &tokens[self.cache.len()..];
        let chunk = self.model.prepare_chunk(new_tokens, Some(&mut *self.cache), n)?;
        let logits = self.model.forward(vec![chunk])?;
        self.computed_tokens += new_tokens.len() as u64;
        Ok(rows(&logits, self.model))
    }

    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        self.cache.rewind(n)
    }
}

/// A model without a cache holds no tokens, so it computes the whole sequence in every call.
impl RewindableModel for Recompute<'_> {
    fn cached_len(&self) -> usize {
        0
    }

    fn last_logits(&mut self, tokens: &[u32], n: usize) -> Result<Vec<Vec<f32>>, StepError> {
        if n == 0 {
            self.model.validate(tokens, 0)?;
            return Ok(Vec::new());
        }
        let logits = self.model.forward(vec![self.model.prepare_chunk(tokens, None, n)?])?;
        self.computed_tokens += tokens.len() as u64;
        Ok(rows(&logits, self.model))
    }

    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        if n > 0 { Err(CacheError::PastTheStart { n, len: 0 }) } else { Ok(()) }
    }
}

fn rows(logits: &[f32], model: &Model) -> Vec<Vec<f32>> {
    logits.chunks_exact(model.config().vocab_size).map(<[f32]>::to_vec).collect()
}

/// Draft tokens, to be verified by the target model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    pub tokens: Vec<u32>,
    /// The distribution that each token was drawn from: one row of `[vocab_size]` per token, which adds up to 1.
    pub probabilities: Vec<Vec<f32>>,
}

impl Draft {
    /// Adds a token and the distribution that it was drawn from, `[vocab_size]`, which adds up to 1.
    pub fn push(&mut self, token: u32, probabilities: Vec<f32>) {
        self.tokens.push(token);
        self.probabilities.push(probabilities);
    }

    /// Adds a token that was not drawn at random, out of `vocab_size` tokens. Its probability is 1.
    pub fn push_certain(&mut self, token: u32, vocab_size: usize) {
        let mut probabilities = vec![0.0; vocab_size];
        probabilities[token as usize] = 1.0;
        self.push(token, probabilities);
    }
}

/// Accepts or rejects draft tokens by the target's logits, one row of `[vocab_size]` more than draft tokens. Returns
/// the new tokens, at least one.
pub type Accept<'a> = dyn FnMut(&Draft, &[Vec<f32>]) -> Vec<u32> + 'a;

// ANCHOR: drafter
/// Proposes draft tokens. Its calls return [`StepError`] if the sequence cannot be computed.
pub trait Drafter {
    /// At most `k` tokens that might follow `tokens`, the whole sequence so far.
    fn draft(&mut self, tokens: &[u32], k: usize) -> Result<Draft, StepError>;

    /// Called after draft tokens were accepted or rejected. From then on, the drafter's cache should hold exactly
    /// `tokens`, no more and no less.
    fn sync_cache(&mut self, tokens: &[u32]) -> Result<(), StepError>;
}
// ANCHOR_END: drafter

#[cfg(test)]
mod tests {
    #[cfg(not(stub = "ch01_recompute"))]
    #[test]
    fn an_empty_sequence_is_refused_even_if_no_row_is_asked_for() {
        use super::*;
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/golden/one-layer-odd");
        let model = Model::open(&folder).expect("a golden checkpoint opens");
        for n in [0, 1] {
            assert_eq!(Recompute::new(&model).last_logits(&[], n), Err(StepError::NoTokens), "{n} rows after no token");
        }
        assert_eq!(Recompute::new(&model).last_logits(&[1], 0), Ok(Vec::new()), "no row after a token");
    }
}
