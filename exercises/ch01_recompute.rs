//! Chapter 1: a loop that generates tokens, with a model that remembers nothing.
//!
//! A language model turns the tokens so far into one number for each token in its vocabulary.
//! These numbers are the *logits*. The higher a token's logit, the likelier it comes next. The
//! loop picks a token, appends it, and calls the model again.
//!
//! [`Recompute`] computes every call from scratch. Suppose a sequence grows from 3 tokens to 6.
//! The calls then project these rows:
//!
//! ```text
//!   The king had           3 rows → a
//!   The king had a         4 rows → golden
//!   The king had a golden  5 rows → bird        3 + 4 + 5 = 12 rows for 3 new tokens
//! ```
//!
//! Check your work with `cargo test --features solution --test ch01_recompute`.

use crate::generation::{LanguageModel, StopConditions};
use crate::model::{Model, StepError};

/// Returns the id of the highest logit. If several are equally high, the lowest id wins.
///
/// `logits`: `[vocab_size]`, at least one number.
///
/// `[0.5, 2.0, -1.0, 2.0]` → `1`
pub fn argmax(logits: &[f32]) -> u32 {
    todo!("ch01 task 1: find the id of the highest logit")
}

/// Continues `prompt` one token at a time, and returns only the new tokens.
///
/// Each turn gets the logits after the whole sequence so far from `model`, lets `pick` choose a
/// token from them, reports it to `on_token`, and appends it. The loop ends after
/// `stop.max_new_tokens` new tokens, or when `pick` chooses one of `stop.end_of_text`, which
/// is neither reported nor returned. The model is never called for logits that go unused.
///
/// `stop.max_new_tokens` can be any number. With `usize::MAX`, only `stop.end_of_text` ends
/// the loop.
///
/// # Errors
/// The first error of `model`, whatever it is. Tokens that were reported before it stay reported.
pub fn generate(
    model: &mut dyn LanguageModel,
    prompt: &[u32],
    stop: StopConditions<'_>,
    pick: &mut dyn FnMut(&[f32]) -> u32,
    on_token: &mut dyn FnMut(u32),
) -> Result<Vec<u32>, StepError> {
    todo!("ch01 task 3: call the model, pick, append, until an end of text or the budget")
}

/// A model without a memory: every call computes the whole sequence again.
pub struct Recompute<'m> {
    pub(crate) model: &'m Model,
    pub(crate) computed_tokens: u64,
}

impl<'m> Recompute<'m> {
    /// A model that has computed nothing yet.
    pub fn new(model: &'m Model) -> Self {
        Recompute { model, computed_tokens: 0 }
    }

    /// Tokens that the model has computed since this was created, counted anew in each call
    /// that succeeded.
    pub fn computed_tokens(&self) -> u64 {
        self.computed_tokens
    }
}

impl LanguageModel for Recompute<'_> {
    /// Computes all of `tokens` once, without a cache, and adds one row for each of them to
    /// `computed_tokens`. A call that fails adds nothing.
    ///
    /// `self.model.step(tokens, None)` computes them. `None` means that there is no cache.
    fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
        todo!("ch01 task 2: compute the whole sequence and count its rows")
    }
}
