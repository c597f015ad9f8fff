//! Chapter 9: speculative sampling. A draft token is drawn, and judged such that every output stays as likely as the target
//! makes it.
//!
//! The match rule keeps a draft token if the target happens to draw the same one. The sample rule keeps more. The draft model
//! draws its token from its own probabilities `q`. The target, which gives that token `p`, accepts it with probability
//! `min(1, p / q)`. In place of a rejected token comes one drawn from what the target has left, `max(0, p - q)`.
//!
//! ```text
//!   token      p       q      drafted and accepted     left, max(0, p - q)     together
//!     0      0.5     0.25     0.25  × 1    = 0.25             0.25               0.5
//!     1      0.375   0.25     0.25  × 1    = 0.25             0.125              0.375
//!     2      0.125   0.5      0.5   × 0.25 = 0.125            0                  0.125
//!            1       1                       0.625            0.375              1
//! ```
//!
//! The last column is `p` again. Of these draft tokens the target accepts 0.625, the smaller of `p` and `q` in each line.
//!
//! Check your work with `cargo test --features solution --test ch09_chance`.

use crate::chapters::ch08_speculative::remember;
use crate::decode::sampler::{Sampler, draw};
use crate::decode::{Draft, Drafter, RewindableModel};
use crate::model::StepError;

/// A small model that draws the tokens it drafts.
pub struct SamplingDraftModel<'a> {
    model: &'a mut dyn RewindableModel,
    sampler: Sampler,
}

impl<'a> SamplingDraftModel<'a> {
    /// Drafts with `model`; `sampler` draws its tokens, with random numbers of its own. Its
    /// vocabulary must be the target's.
    pub fn new(model: &'a mut dyn RewindableModel, sampler: Sampler) -> Self {
        SamplingDraftModel { model, sampler }
    }
}

impl Drafter for SamplingDraftModel<'_> {
    /// Drafts `k` tokens, one after the other, as chapter 8's draft model does, but each is drawn ([`draw`]) from the sampler's probabilities after the given tokens and
    /// the draft tokens before it, with the sampler's next random number. The draft keeps the
    /// probabilities that the token was drawn from ([`Draft::push`]). If the model
    /// refuses, that token takes no random number.
    ///
    /// # Errors
    /// [`StepError`] of the model, even after some tokens: there is no half draft.
    fn draft(&mut self, tokens: &[u32], k: usize) -> Result<Draft, StepError> {
        todo!("ch09 task 1: draw k tokens, one after the other, and keep what each was drawn from")
    }

    fn settle(&mut self, tokens: &[u32]) -> Result<(), StepError> {
        remember(self.model, tokens)
    }
}

/// What the target has left for each token when the draft has had its share: `max(0, p - q)`,
/// `[vocab_size]`. Weights for [`draw`]; they do not add up to 1.
///
/// Where nothing is left for any token, `p`: the two are then the same but for rounding.
///
/// `p` = `[0.5, 0.25, 0.25]`, `q` = `[0.25, 0.5, 0.25]` → `[0.25, 0.0, 0.0]`
pub fn residual(p: &[f32], q: &[f32]) -> Vec<f32> {
    todo!("ch09 task 2: what the target has left for each token")
}

/// The new tokens, such that each has the target's probabilities, however good or bad the
/// draft ([Leviathan et al., 2022](https://arxiv.org/abs/2211.17192), [Chen et al.,
/// 2023](https://arxiv.org/abs/2302.01318)).
///
/// A drafted token that the draft gave the probability `q` and the target gives `p` is
/// accepted with probability `min(1, p / q)`: if `uniform()` is below `p / q`. The first that
/// is rejected is replaced by a token drawn from [`residual`], which ends the new tokens.
/// After a draft that was accepted to its end comes a token drawn from the target's last
/// row. So there is one random number for each draft token that is looked at, also for one that
/// is sure to be accepted, and then one for the last token. None of them is rounded: an `f64` is
/// compared as an `f64`. (`q` is never 0 for a token that was drawn; whether `p / q` is
/// divided as `f32` or as `f64` makes no difference that counts.)
///
/// `rows`: the target's probabilities, `[vocab_size]` each, one row more than drafted tokens.
/// `uniform` gives random numbers from 0 to 1, 1 excluded.
///
/// `p` = `[0.25, 0.75]`, `q` = `[0.5, 0.5]`; token 0 is drafted. Random number 0.3 → it is
/// accepted; 0.6 → it is rejected, and token 1 comes in its place.
pub fn accept_sampled(draft: &Draft, rows: &[Vec<f32>], uniform: &mut dyn FnMut() -> f64) -> Vec<u32> {
    todo!("ch09 task 3: keep each drafted token with probability min(1, p / q)")
}

/// The share of draft tokens that the target can be expected to accept, where the draft model draws from
/// `q` and the target has `p`: the sum of the smaller of the two, over all tokens, added up
/// as `f64`. 1 if they agree, 0 if neither ever draws what the other may draw.
///
/// `p` = `[0.5, 0.25, 0.25]`, `q` = `[0.25, 0.5, 0.25]` → `0.25 + 0.25 + 0.25` = `0.75`
pub fn share_to_expect(p: &[f32], q: &[f32]) -> f64 {
    todo!("ch09 task 4: the sum of the smaller of p and q")
}
