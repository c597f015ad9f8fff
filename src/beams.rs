//! Beam search: the likeliest texts, looked for side by side.
//!
//! A sampler draws one token after the other and never looks back. A beam search keeps several beginnings at once, the *beams*,
//! asks the model for all of them in one pass, and goes on with the best continuations of all. Chapter 10 chooses and forks;
//! here is the loop around it.
//!
//! ```text
//!   width 2, the prompt read once      beams              pages
//!   "the"                              the king           both share the prompt's
//!                                      the queen
//!   a step                             the king had       both go on from the king:
//!                                      the king was       the queen's pages are free again
//! ```
//!
//! How likely a text is, its *log-probability*, is the sum of the logarithms of its tokens' probabilities. Each token makes it
//! smaller, so texts of different lengths are compared by their [`score`].

use std::time::{Duration, Instant};

use crate::cache::KvCache;
use crate::chapters::ch06_paged::SharedSlab;
use crate::chapters::ch10_fork::{Beam, Beams, ForkCache};
use crate::engine::Limits;
use crate::in_place::CacheRef;
use crate::model::{LogitRows, Model, StepError};

/// How much a score makes up for length: a log-probability is divided by the number of tokens to the power of this.
///
/// 0 compares the log-probabilities as they are and prefers short texts; 1 compares their means. Length normalisation with such
/// a power is described in [Wu et al., 2016](https://arxiv.org/abs/1609.08144), section 7.
pub const LENGTH_PENALTY: f64 = 1.0;

/// What texts of different lengths are compared by: `log_probability / tokens^LENGTH_PENALTY`.
///
/// `tokens`: those whose logarithms were added up, an end of text among them. A text of none has the score 0.
pub fn score(log_probability: f64, tokens: usize) -> f64 {
    log_probability / (tokens.max(1) as f64).powf(LENGTH_PENALTY)
}

/// A text that a search has found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Its tokens, without the prompt and without an end of text.
    pub tokens: Vec<u32>,
    /// The sum of the logarithms of its tokens' probabilities; if it has ended, of the end of text's too.
    pub log_probability: f64,
    /// The same, normalised: [`score`].
    pub score: f64,
    /// Whether the model has ended it; otherwise it has all the tokens that were asked for.
    pub has_ended: bool,
}

/// What a search did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Passes of the model: one for the prompt, then one a step for all beams.
    pub steps: u64,
    /// Tokens that went through the model.
    pub rows_projected: u64,
    /// Rows copied because two beams went on in the same page.
    pub rows_copied: u64,
    /// Pages that had an owner at the same time, at most.
    pub peak_pages: usize,
    /// How long the prompt took.
    pub prefill: Duration,
    /// How long the rest took.
    pub decode: Duration,
}

/// Looks for the likeliest texts that begin with a prompt, with `width` beams; returns them, best score first, and what it did.
///
/// It stops when `width` texts or more have ended: these are found. If the beams have `max_new_tokens` before, they are found
/// too. `on_step` is called for each new token of the beams.
///
/// # Errors
/// [`StepError`] if the model cannot read the prompt, or the slab has too few pages. All pages are given back then, as in the
/// end.
pub fn search(
    model: &Model,
    slab: &SharedSlab,
    prompt: &[u32],
    width: usize,
    limits: Limits<'_>,
    on_step: &mut dyn FnMut(),
) -> Result<(Vec<Found>, Work), StepError> {
    model.check(prompt, 0)?;
    let mut work = Work::default();
    if limits.max_new_tokens == 0 {
        let nothing = Found { tokens: Vec::new(), log_probability: 0.0, score: score(0.0, 0), has_ended: false };
        return Ok((vec![nothing], work));
    }
    let start = Instant::now();
    let mut cache = ForkCache::new(slab)?;
    let chunk = model.chunk_of(prompt, CacheRef::InPlace(&mut cache), LogitRows::Newest(1))?;
    let mut logits = model.forward(vec![chunk])?;
    work.count(prompt.len(), slab);
    work.prefill = start.elapsed();
    let mut beams = Beams::new(cache, width, limits.end_of_text);
    for n_new in 1..=limits.max_new_tokens {
        let rows: Vec<Vec<f32>> = logits.chunks_exact(model.config().vocab_size).map(log_softmax).collect();
        beams.step(&rows)?;
        on_step();
        let is_over = beams.ended().len() >= width || beams.beams().is_empty();
        if is_over || n_new == limits.max_new_tokens {
            break;
        }
        let copied_before = rows_copied(&beams);
        let chunks = beams.beams_mut().iter_mut().map(|Beam { tokens, cache, .. }| {
            let newest = &tokens[tokens.len().saturating_sub(1)..];
            model.chunk_of(newest, CacheRef::InPlace(cache), LogitRows::Newest(1))
        });
        let chunks = chunks.collect::<Result<Vec<_>, StepError>>()?;
        let n_beams = chunks.len();
        logits = model.forward(chunks)?;
        work.rows_copied += rows_copied(&beams) - copied_before;
        work.count(n_beams, slab);
    }
    work.decode = start.elapsed() - work.prefill;
    Ok((found(&beams, width), work))
}

impl Work {
    /// Counts a pass that read so many tokens.
    fn count(&mut self, rows: usize, slab: &SharedSlab) {
        let slab = slab.borrow();
        self.steps += 1;
        self.rows_projected += rows as u64;
        self.peak_pages = self.peak_pages.max(slab.pool().n_pages() - slab.pool().n_free());
    }
}

fn rows_copied(beams: &Beams) -> u64 {
    beams.beams().iter().map(|beam| beam.cache.usage().rows_copied).sum()
}

/// The texts that have ended, and if they are too few, those that still grow; best score first.
fn found(beams: &Beams, width: usize) -> Vec<Found> {
    let ended = beams.ended().iter().map(|text| (&text.tokens, text.score, true));
    let growing = beams.beams().iter().map(|beam| (&beam.tokens, beam.score, false));
    let growing = growing.take(if beams.ended().len() < width { usize::MAX } else { 0 });
    let found = ended.chain(growing).map(|(tokens, log_probability, has_ended)| Found {
        tokens: tokens.clone(),
        log_probability,
        score: score(log_probability, tokens.len() + usize::from(has_ended)),
        has_ended,
    });
    let mut found: Vec<Found> = found.collect();
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    found
}

/// The logarithm of each token's probability: `[vocab_size]`, all 0 or below. No filter, no temperature: what the model says.
///
/// `logits`: `[vocab_size]`, at least one, all finite.
pub fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Relative to the largest, no exponential is too large; in 64 bits, a long sum loses nothing that 32 could hold.
    let below = |logit: &f32| f64::from(*logit) - f64::from(max);
    let sum: f64 = logits.iter().map(|logit| below(logit).exp()).sum();
    let log_sum = sum.ln();
    logits.iter().map(|logit| (below(logit) - log_sum) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_softmax_is_the_logarithm_of_the_probabilities() {
        let log_probabilities = log_softmax(&[0.0, 2.0_f32.ln(), 5.0_f32.ln()]);
        for (found, expected) in log_probabilities.iter().zip([0.125_f32, 0.25, 0.625]) {
            assert!((found - expected.ln()).abs() < 1e-6, "{found} for a probability of {expected}");
        }
        let sum: f64 = log_softmax(&[0.01; 1000]).iter().map(|row| f64::from(*row).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-4, "{sum}");
    }

    #[test]
    fn log_softmax_of_any_finite_logits_is_a_number() {
        let found = log_softmax(&[3e38, -3e38, 0.0, 3e38]);
        assert!((found[0] - 0.5_f32.ln()).abs() < 1e-6 && found[0] == found[3], "{found:?}");
        assert!(found.iter().all(|row| !row.is_nan() && *row <= 0.0), "{found:?}");
        assert_eq!(log_softmax(&[7.0]), [0.0]);
    }

    #[test]
    fn a_score_is_the_mean_log_probability() {
        assert_eq!([score(-6.0, 4), score(-6.0, 6), score(0.0, 0)], [-1.5, -1.0, 0.0]);
    }
}
