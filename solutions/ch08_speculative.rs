//! Chapter 8: speculative decoding. A large model checks what a small one drafts, in one pass.
//!
//! A pass of a large model costs nearly the same for a few tokens as for one, because it reads all
//! weights once. So a small *draft model* proposes `k` tokens, one by one, and the *target*
//! computes them all at once. It keeps those that it would have chosen itself and adds a token of
//! its own. Afterwards, both caches hold everything but the newest token.
//!
//! ```text
//!   tokens   The king had a
//!   draft                   golden   bird   in          3 tokens, 3 passes of the small model
//!   verify   a→golden  golden→bird  bird→and  in→the    1 pass of the target for 4 tokens
//!   accept                  golden   bird   and         2 are kept, the third is the target's
//!   rewind                                  ×in         the target forgets it
//! ```
//!
//! One pass of the target yields three new tokens, the same that it would have generated alone.

use crate::chapters::ch01_recompute::argmax;
use crate::generation::{Accept, Draft, Drafter, RewindableModel, StopConditions};
use crate::model::StepError;

/// A small model that always drafts its likeliest token.
pub struct DraftModel<'a> {
    model: &'a mut dyn RewindableModel,
}

impl<'a> DraftModel<'a> {
    /// Drafts with `model`, which must have the target's vocabulary.
    pub fn new(model: &'a mut dyn RewindableModel) -> Self {
        DraftModel { model }
    }
}

impl Drafter for DraftModel<'_> {
    /// Drafts `k` tokens, one after the other. Each is the likeliest ([`argmax`]) after the given
    /// tokens and the draft tokens before it. [`Draft::push_certain`] adds it to the draft,
    /// because it was not drawn at random.
    ///
    /// With `k` 3 the model is called three times: with the given tokens, with these and one
    /// draft token, and with these and two. Its cache then holds the given tokens and the first
    /// two draft tokens, because it was never called with the third.
    ///
    /// # Errors
    /// The model's [`StepError`], even after some tokens, because half a draft is never returned.
    // ANCHOR: draft
    fn draft(&mut self, tokens: &[u32], k: usize) -> Result<Draft, StepError> {
        // ch08 task 1: draft k tokens, one after the other
        let mut sequence = tokens.to_vec();
        let mut draft = Draft::default();
        for _ in 0..k {
            let logits = self.model.next_logits(&sequence)?;
            let token = argmax(&logits);
            sequence.push(token);
            draft.push_certain(token, logits.len());
        }
        Ok(draft)
    }
    // ANCHOR_END: draft

    fn sync_cache(&mut self, tokens: &[u32]) -> Result<(), StepError> {
        sync_cache(self.model, tokens)
    }
}

/// Returns the logits after `tokens` and after each of the `k` drafted tokens, from one pass of
/// the target: `k + 1` rows, `[vocab_size]` each.
///
/// # Errors
/// The target's [`StepError`]. Except after [`StepError::NotFinite`], its cache is unchanged.
// ANCHOR: verify
pub fn verify(target: &mut dyn RewindableModel, tokens: &[u32], drafted: &[u32]) -> Result<Vec<Vec<f32>>, StepError> {
    // ch08 task 1: one pass of the target over the tokens and the draft
    let sequence = [tokens, drafted].concat();
    target.last_logits(&sequence, drafted.len() + 1)
}
// ANCHOR_END: verify

/// Returns the new tokens, which are what `pick` chooses from the rows, one after the other. The
/// last is the first choice that differs from the draft, or the one that follows a draft that was
/// right to its end.
///
/// `rows`: the logits from [`verify`], one row more than `drafted`. `pick` is called once for each
/// returned token, in order, so the target alone would have generated the same tokens with it.
///
/// With `[5, 9, 2]` drafted, and 5, 9, 4, 7 to be picked from the rows → `[5, 9, 4]`
// ANCHOR: accept_matching
pub fn accept_matching(drafted: &[u32], rows: &[Vec<f32>], pick: &mut dyn FnMut(&[f32]) -> u32) -> Vec<u32> {
    // ch08 task 2: the target's choices, as far as they agree with the draft, and one more
    let mut new_tokens = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let token = pick(row);
        new_tokens.push(token);
        if drafted.get(index) != Some(&token) {
            break;
        }
    }
    new_tokens
}
// ANCHOR_END: accept_matching

/// Makes a model's cache hold exactly `tokens`. It forgets all tokens beyond these in one rewind,
/// or computes the missing ones in one pass that returns no logits. If the cache already holds
/// just these tokens, the model has nothing to do.
///
/// The caller makes sure that the cache and `tokens` agree as far as both go.
///
/// # Errors
/// The model's [`StepError`]. Except after [`StepError::NotFinite`], its cache is unchanged.
// ANCHOR: sync_cache
pub fn sync_cache(model: &mut dyn RewindableModel, tokens: &[u32]) -> Result<(), StepError> {
    // ch08 task 3: rewind the surplus, or compute what is missing
    let cached = model.cached_len();
    if cached > tokens.len() {
        model.rewind(cached - tokens.len())?;
    }
    if cached < tokens.len() {
        model.last_logits(tokens, 0)?;
    }
    Ok(())
}
// ANCHOR_END: sync_cache

// ANCHOR: speculation
/// A target, a drafter for it, and the rule that accepts or rejects draft tokens.
pub struct Speculation<'a> {
    /// The model whose output is wanted.
    pub target: &'a mut dyn RewindableModel,
    /// Proposes the draft tokens.
    pub drafter: &'a mut dyn Drafter,
    /// Turns a draft and the target's rows, one more than draft tokens, into the new tokens: the
    /// accepted ones, then one of the target's own. This chapter's rule is [`accept_matching`],
    /// and chapter 9 has a different one.
    pub accept: &'a mut Accept<'a>,
}
// ANCHOR_END: speculation

impl Speculation<'_> {
    /// Continues `prompt`, which has at least one token, and returns the new tokens. Each step
    /// drafts at most `k` tokens.
    ///
    /// Stops after `stop.max_new_tokens` new tokens, or before the first of
    /// `stop.end_of_text`.
    ///
    /// # Errors
    /// The first error of a model. Tokens that were reported before it stay reported.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        stop: StopConditions<'_>,
        k: usize,
        on_token: &mut dyn FnMut(u32),
    ) -> Result<Vec<u32>, StepError> {
        let mut tokens = prompt.to_vec();
        let full = prompt.len().saturating_add(stop.max_new_tokens);
        while tokens.len() < full {
            // A step can add one token more than it drafts.
            let k = k.min(full - tokens.len() - 1);
            let new_tokens = self.step(&tokens, k, stop.end_of_text)?;
            assert!(
                !new_tokens.is_empty(),
                "a step gave no new token: the sequence of {} tokens would never grow",
                tokens.len()
            );
            for token in new_tokens {
                if stop.end_of_text.contains(&token) {
                    return Ok(tokens.split_off(prompt.len()));
                }
                on_token(token);
                tokens.push(token);
            }
        }
        Ok(tokens.split_off(prompt.len()))
    }

    /// Takes one step: drafts at most `k` tokens, verifies them, and returns the new tokens. There
    /// is at least one, and none follows the first that is in `end_of_text`.
    ///
    /// Afterwards, the caches of target and drafter both hold `tokens` and all new tokens except
    /// the newest.
    ///
    /// # Errors
    /// A model's [`StepError`]. Neither cache then holds a draft token, and the same step can be
    /// tried again.
    pub fn step(&mut self, tokens: &[u32], k: usize, end_of_text: &[u32]) -> Result<Vec<u32>, StepError> {
        let new_tokens = self.advance(tokens, k, end_of_text);
        if new_tokens.is_err() {
            self.sync_caches(&tokens[..tokens.len() - 1])?;
        }
        new_tokens
    }

    /// Does the work of a step. It calls the drafter, then the target, then `accept`, each once,
    /// even if `k` is 0. It cuts the new tokens after the first that ends the sequence, and syncs
    /// both caches. If one of these calls fails, the step returns its error.
    // ANCHOR: advance
    fn advance(&mut self, tokens: &[u32], k: usize, end_of_text: &[u32]) -> Result<Vec<u32>, StepError> {
        // ch08 task 4: draft, verify and accept, then sync both caches
        let draft = self.drafter.draft(tokens, k)?;
        let rows = verify(self.target, tokens, &draft.tokens)?;
        let mut new_tokens = (self.accept)(&draft, &rows);
        if let Some(end) = new_tokens.iter().position(|token| end_of_text.contains(token)) {
            new_tokens.truncate(end + 1);
        }
        let sequence = [tokens, &new_tokens].concat();
        self.sync_caches(&sequence[..sequence.len() - 1])?;
        Ok(new_tokens)
    }
    // ANCHOR_END: advance

    /// Makes the caches of target and drafter, in this order, hold exactly `tokens`.
    fn sync_caches(&mut self, tokens: &[u32]) -> Result<(), StepError> {
        sync_cache(self.target, tokens)?;
        self.drafter.sync_cache(tokens)
    }
}
