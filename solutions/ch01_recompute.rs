//! Chapter 1: a loop that generates tokens, with a model that remembers nothing.
//!
//! A language model turns the tokens so far into one number for each token of its vocabulary,
//! the *logits*: the higher, the likelier the token comes next. Pick one, append it, ask
//! again: that is the whole loop.
//!
//! [`Recompute`] answers every question from scratch. Its rows of work, for a sequence that grows
//! from 3 tokens to 6:
//!
//! ```text
//!   The king had           3 rows → a
//!   The king had a         4 rows → golden
//!   The king had a golden  5 rows → bird        3 + 4 + 5 = 12 rows for 3 new tokens
//! ```

use crate::decode::{LanguageModel, Limits};
use crate::model::{Model, StepError};

/// The token with the highest logit; of equals, the one with the lowest id.
///
/// `logits`: `[vocab_size]`, at least one.
///
/// `[0.5, 2.0, -1.0, 2.0]` → `1`
// ANCHOR: argmax
pub fn argmax(logits: &[f32]) -> u32 {
    // ch01 task 1: find the id of the highest logit
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}
// ANCHOR_END: argmax

/// Continues `prompt`, one token at a time; returns the new tokens.
///
/// Each turn: ask `model` for the logits after the whole sequence so far, let `pick` choose a
/// token from them, report it to `on_token`, append it. Stops after `limits.max_new_tokens` new
/// tokens, or when `pick` chooses one of `limits.end_of_text`, which is neither reported nor
/// returned. Never asks the model for logits that it will not use.
///
/// `limits.max_new_tokens` may be any number; `usize::MAX` leaves the end to
/// `limits.end_of_text`.
///
/// # Errors
/// The first error of `model`, whichever it is. What was reported until then stays reported.
// ANCHOR: generate
pub fn generate(
    model: &mut dyn LanguageModel,
    prompt: &[u32],
    limits: Limits<'_>,
    pick: &mut dyn FnMut(&[f32]) -> u32,
    on_token: &mut dyn FnMut(u32),
) -> Result<Vec<u32>, StepError> {
    // ch01 task 2: ask, pick, append, until an end of text or the budget
    let mut tokens = prompt.to_vec();
    while tokens.len() - prompt.len() < limits.max_new_tokens {
        let logits = model.next_logits(&tokens)?;
        let token = pick(&logits);
        if limits.end_of_text.contains(&token) {
            break;
        }
        on_token(token);
        tokens.push(token);
    }
    Ok(tokens[prompt.len()..].to_vec())
}
// ANCHOR_END: generate

/// A model that forgets: every answer computes the whole sequence again.
pub struct Recompute<'m> {
    pub(crate) model: &'m Model,
    pub(crate) rows_projected: u64,
}

impl<'m> Recompute<'m> {
    /// A model that has computed nothing yet.
    pub fn new(model: &'m Model) -> Self {
        Recompute { model, rows_projected: 0 }
    }

    /// Rows that went through the model since this was made: one for each token of each call
    /// that succeeded.
    pub fn rows_projected(&self) -> u64 {
        self.rows_projected
    }
}

// ANCHOR: recompute
impl LanguageModel for Recompute<'_> {
    /// Computes all of `tokens`, once and without a cache, and counts their rows. A call that
    /// fails counts nothing.
    ///
    /// `self.model.step(tokens, None)` computes; `None` says that there is no cache.
    fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
        // ch01 task 3: compute the whole sequence and count its rows
        let logits = self.model.step(tokens, None)?;
        self.rows_projected += tokens.len() as u64;
        Ok(logits)
    }
}
// ANCHOR_END: recompute
