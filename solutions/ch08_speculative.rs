//! Chapter 8: speculative decoding. A small model drafts tokens, and the large one checks them all in one pass.
//!
//! A pass of a large model costs nearly the same for one token as for a few: it reads all weights once. So a small
//! *draft* model proposes `k` tokens, one by one, and the *target* computes them all at once. It keeps those that it
//! would have chosen itself, adds a token of its own, and both models rewind the rest.
//!
//! ```text
//!   tokens    The king had a
//!   draft                     golden   bird   in          3 tokens, 3 passes of the small model
//!   verify                 a →golden  →bird  →and  →the   1 pass of the target: what follows each of 4 tokens
//!   accept                    golden   bird   and         2 are kept; the third token is the target's own
//!   rewind                                    ×in         both models forget it
//! ```
//!
//! Three new tokens for one pass of the target, and they are the tokens that it would have generated alone.

use crate::chapters::ch01_recompute::argmax;
use crate::decode::{Accept, Draft, Drafter, Limits, RewindableModel};
use crate::model::StepError;

/// A small model that drafts its likeliest token each time.
pub struct DraftModel<'a> {
    model: &'a mut dyn RewindableModel,
}

impl<'a> DraftModel<'a> {
    /// Drafts with `model`. Its vocabulary must be the target's.
    pub fn new(model: &'a mut dyn RewindableModel) -> Self {
        DraftModel { model }
    }
}

impl Drafter for DraftModel<'_> {
    // ANCHOR: draft
    /// Drafts `k` tokens, one after the other. Each is the likeliest ([`argmax`]) after the given
    /// tokens and the draft tokens before it, and [`Draft::push_certain`] adds it to the draft,
    /// because nothing was drawn.
    ///
    /// With `k` 3 the model is called three times: with the given tokens, with these and one
    /// draft token, and with these and two. It then remembers the tokens and the first two draft
    /// tokens; it was never called with the third.
    ///
    /// # Errors
    /// [`StepError`] of the model, even after some tokens: there is no half draft.
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

    fn settle(&mut self, tokens: &[u32]) -> Result<(), StepError> {
        remember(self.model, tokens)
    }
}

// ANCHOR: verify
/// What follows `tokens`, and what follows each of the `k` drafted tokens, by one pass of the
/// target: `k + 1` rows of logits, `[vocab_size]` each.
///
/// # Errors
/// [`StepError`] of the target, which then remembers what it did before.
pub fn verify(target: &mut dyn RewindableModel, tokens: &[u32], drafted: &[u32]) -> Result<Vec<Vec<f32>>, StepError> {
    // ch08 task 1: one pass of the target over the tokens and the draft
    let sequence = [tokens, drafted].concat();
    target.last_logits(&sequence, drafted.len() + 1)
}
// ANCHOR_END: verify

// ANCHOR: accept_matching
/// The new tokens: what `pick` chooses from each row, for as long as it is the draft token.
/// The first choice that differs, or the one after a draft that was right to its end, is the
/// last.
///
/// `rows`: one more than `drafted`, from [`verify`]. `pick` is asked once for each token that
/// is returned, in the order of the sequence: with it, the target would have generated the
/// same tokens alone.
///
/// Drafted `[5, 9, 2]`; `pick` would choose 5, 9, 4, 7 from the rows → `[5, 9, 4]`
pub fn accept_matching(drafted: &[u32], rows: &[Vec<f32>], pick: &mut dyn FnMut(&[f32]) -> u32) -> Vec<u32> {
    // ch08 task 2: the choices of the target, as far as they are the draft's, and one more
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

// ANCHOR: remember
/// Makes a model remember exactly `tokens`: rewinds what goes beyond them, all at once, or reads
/// what is missing, in one pass that answers nothing. A model that remembers just these
/// tokens is asked nothing.
///
/// What the model remembers agrees with `tokens` as far as both go.
///
/// # Errors
/// [`StepError`] of the model, which then remembers what it did before.
pub fn remember(model: &mut dyn RewindableModel, tokens: &[u32]) -> Result<(), StepError> {
    // ch08 task 3: rewind what is too much, or read what is missing
    let remembered = model.remembered();
    if remembered > tokens.len() {
        model.rewind(remembered - tokens.len())?;
    }
    if remembered < tokens.len() {
        model.last_logits(tokens, 0)?;
    }
    Ok(())
}
// ANCHOR_END: remember

/// A target, a drafter for it, and a rule that judges the drafts.
pub struct Speculation<'a> {
    /// The model whose output is wanted.
    pub target: &'a mut dyn RewindableModel,
    /// Where the drafts come from.
    pub drafter: &'a mut dyn Drafter,
    /// Turns a draft and the target's rows (one more than drafted tokens) into the new
    /// tokens: the accepted ones, then one of the target's own. Here with
    /// [`accept_matching`]; chapter 9 has another rule.
    pub accept: &'a mut Accept<'a>,
}

impl Speculation<'_> {
    /// Continues `prompt`, which has at least one token; drafts at most `k` tokens at a time.
    /// Returns the new tokens.
    ///
    /// Stops after `limits.max_new_tokens` new tokens, or before the first of
    /// `limits.end_of_text`.
    ///
    /// # Errors
    /// The first error of a model. What was reported until then stays reported.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        limits: Limits<'_>,
        k: usize,
        on_token: &mut dyn FnMut(u32),
    ) -> Result<Vec<u32>, StepError> {
        let mut tokens = prompt.to_vec();
        let full = prompt.len() + limits.max_new_tokens;
        while tokens.len() < full {
            // A step adds one token more than it drafts.
            let k = k.min(full - tokens.len() - 1);
            let new_tokens = self.step(&tokens, k, limits.end_of_text)?;
            assert!(
                !new_tokens.is_empty(),
                "a step gave no new token: the sequence of {} tokens would never grow",
                tokens.len()
            );
            for token in new_tokens {
                if limits.end_of_text.contains(&token) {
                    return Ok(tokens.split_off(prompt.len()));
                }
                on_token(token);
                tokens.push(token);
            }
        }
        Ok(tokens.split_off(prompt.len()))
    }

    /// One step: drafts at most `k` tokens, verifies them, returns the new tokens, at least
    /// one. After the first that is in `end_of_text` there are none.
    ///
    /// When it returns, target and drafter remember the same: `tokens` and all new ones but
    /// the newest.
    ///
    /// # Errors
    /// [`StepError`] of a model. Target and drafter then remember no draft token, and the same step
    /// may be tried again.
    pub fn step(&mut self, tokens: &[u32], k: usize, end_of_text: &[u32]) -> Result<Vec<u32>, StepError> {
        let new_tokens = self.advance(tokens, k, end_of_text);
        if new_tokens.is_err() {
            self.settle(&tokens[..tokens.len() - 1])?;
        }
        new_tokens
    }

    // ANCHOR: advance
    /// The step itself: asks the drafter, then the target, then `accept`; cuts the new tokens
    /// after the first that ends the sequence; settles what both remember. Each is asked once,
    /// also where `k` is 0, and what one of them refuses the step refuses.
    fn advance(&mut self, tokens: &[u32], k: usize, end_of_text: &[u32]) -> Result<Vec<u32>, StepError> {
        // ch08 task 4: a draft, the target's rows, the new tokens, and what both remember
        let draft = self.drafter.draft(tokens, k)?;
        let rows = verify(self.target, tokens, &draft.tokens)?;
        let mut new_tokens = (self.accept)(&draft, &rows);
        if let Some(end) = new_tokens.iter().position(|token| end_of_text.contains(token)) {
            new_tokens.truncate(end + 1);
        }
        self.settle(&[tokens, &new_tokens[..new_tokens.len() - 1]].concat())?;
        Ok(new_tokens)
    }
    // ANCHOR_END: advance

    /// Makes target and drafter, in this order, remember exactly `tokens`.
    fn settle(&mut self, tokens: &[u32]) -> Result<(), StepError> {
        remember(self.target, tokens)?;
        self.drafter.settle(tokens)
    }
}
