//! What the generation loop asks of a model, and the same with a cache.

use crate::cache::KvCache;
use crate::model::{Model, StepError};

/// Says what may come after a text: all that the loop of chapter 1 asks of a model.
pub trait LanguageModel {
    /// The logits of the token that follows `tokens`, the whole text so far: `[vocab_size]`.
    ///
    /// # Errors
    /// [`StepError`] when the text cannot be computed; nothing has changed.
    fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError>;
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Tokens to add at most.
    pub max_new_tokens: usize,
    /// Tokens that end a text. They are not part of it.
    pub end_of_text: &'a [u32],
}

/// A model that remembers: it computes only the tokens that its cache does not hold.
pub struct Cached<'a> {
    model: &'a Model,
    cache: &'a mut dyn KvCache,
    rows_projected: u64,
}

impl<'a> Cached<'a> {
    /// A model with the memory of one sequence.
    pub fn new(model: &'a Model, cache: &'a mut dyn KvCache) -> Self {
        Cached { model, cache, rows_projected: 0 }
    }

    /// Tokens that went through the model since this was made.
    pub fn rows_projected(&self) -> u64 {
        self.rows_projected
    }
}

// ANCHOR: cached
impl LanguageModel for Cached<'_> {
    fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
        let new_tokens = &tokens[self.cache.len()..];
        let logits = self.model.step(new_tokens, Some(self.cache))?;
        self.rows_projected += new_tokens.len() as u64;
        Ok(logits)
    }
}
// ANCHOR_END: cached
