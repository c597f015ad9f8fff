//! Chapter 9: speculative sampling. Draft tokens are drawn, then accepted or replaced so that every
//! output stays as likely as from the target alone.
//!
//! The match rule keeps a draft token only if the target happens to draw the same one. The sample
//! rule keeps more. The draft model draws its token from its own probabilities `q`. The target,
//! which gives that token `p`, accepts it with probability `min(1, p / q)`. A rejected token is
//! replaced by one drawn from the *residual*, `max(0, p - q)`.
//!
//! ```text
//!   token      p       q      drafted and accepted     residual     total
//!     0      0.5     0.25     0.25  × 1    = 0.25        0.25       0.5
//!     1      0.375   0.25     0.25  × 1    = 0.25        0.125      0.375
//!     2      0.125   0.5      0.5   × 0.25 = 0.125       0          0.125
//!            1       1                       0.625       0.375      1
//! ```
//!
//! The last column is `p` again. The target accepts 0.625 of these draft tokens, which is the sum
//! of the smaller of `p` and `q` in each line.
//!
//! Check your work with `cargo test --features solution --test ch09_rejection`.

use crate::chapters::ch08_speculative::sync_cache;
use crate::generation::sampler::{Sampler, draw};
use crate::generation::{Draft, Drafter, RewindableModel};
use crate::model::StepError;

/// A small model that draws the tokens it drafts.
pub struct SamplingDraftModel<'a> {
    model: &'a mut dyn RewindableModel,
    sampler: Sampler,
}

impl<'a> SamplingDraftModel<'a> {
    /// Drafts with `model`, which must have the target's vocabulary. `sampler` draws the tokens,
    /// with random numbers of its own.
    pub fn new(model: &'a mut dyn RewindableModel, sampler: Sampler) -> Self {
        SamplingDraftModel { model, sampler }
    }
}

impl Drafter for SamplingDraftModel<'_> {
    /// Drafts `k` tokens, one after the other, like chapter 8's draft model, but draws each one
    /// ([`draw`]) from the sampler's probabilities after the given tokens and the draft tokens
    /// before it, with the sampler's next random number. The draft keeps these probabilities with
    /// the token ([`Draft::push`]). If the model refuses, that token takes no random number.
    ///
    /// # Errors
    /// The model's [`StepError`], even after some tokens, because half a draft is never returned.
    fn draft(&mut self, tokens: &[u32], k: usize) -> Result<Draft, StepError> {
        todo!("ch09 task 1: draw k tokens, one after the other, and keep the row each was drawn from")
    }

    fn sync_cache(&mut self, tokens: &[u32]) -> Result<(), StepError> {
        sync_cache(self.model, tokens)
    }
}

/// Returns what the target's `p` has beyond the draft's `q` for each token: `max(0, p - q)`,
/// `[vocab_size]`. These are weights for [`draw`], and do not add up to 1.
///
/// If that is 0 for every token, it returns `p`, because the two then differ only by rounding.
///
/// `p` = `[0.5, 0.25, 0.25]`, `q` = `[0.25, 0.5, 0.25]` → `[0.25, 0.0, 0.0]`
pub fn residual(p: &[f32], q: &[f32]) -> Vec<f32> {
    todo!("ch09 task 2: what p has beyond q for each token")
}

/// Returns the new tokens. Each comes with the target's probabilities, however good or bad the
/// draft is ([Leviathan et al., 2022](https://arxiv.org/abs/2211.17192), [Chen et al.,
/// 2023](https://arxiv.org/abs/2302.01318)).
///
/// If the draft model gave a draft token the probability `q` and the target gives it `p`, it is
/// accepted with probability `min(1, p / q)`, that is, if `uniform()` is below `p / q`. The first
/// rejected token is replaced by one drawn from [`residual`], which ends the new tokens. If all
/// are accepted, a token drawn from the target's last row follows them. So each draft token that
/// is examined takes one random number, even if it is sure to be accepted, and the last token
/// takes one more. Compare a random number as the `f64` that it is. `p / q` can be divided as
/// `f32` or as `f64`. `q` is never 0 for a drawn token.
///
/// `rows`: the target's probabilities, `[vocab_size]` each, one row more than draft tokens.
/// `uniform` returns random numbers from 0 to 1, excluding 1.
///
/// With `p` = `[0.25, 0.75]`, `q` = `[0.5, 0.5]` and token 0 drafted, the random number 0.3
/// accepts it. With 0.6 it is rejected, and token 1 replaces it.
pub fn accept_sampled(draft: &Draft, rows: &[Vec<f32>], uniform: &mut dyn FnMut() -> f64) -> Vec<u32> {
    todo!("ch09 task 3: keep each draft token with probability min(1, p / q)")
}

/// Returns the share of draft tokens that the target can be expected to accept, if the draft model
/// draws from `q` and the target has `p`. It is the sum, as `f64`, of the smaller of the two over
/// all tokens. It is 1 if they agree, and 0 if neither can draw a token that the other can draw.
///
/// `p` = `[0.5, 0.25, 0.25]`, `q` = `[0.25, 0.5, 0.25]` → `0.25 + 0.25 + 0.25` = `0.75`
pub fn expected_acceptance(p: &[f32], q: &[f32]) -> f64 {
    todo!("ch09 task 4: the sum of the smaller of p and q")
}
