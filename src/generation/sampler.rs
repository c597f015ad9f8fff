//! From logits to the next token: greedy, or drawn by chance.
//!
//! The order of the filters is the usual one: temperature, then top-k, then top-p
//! ([Holtzman et al., 2019](https://arxiv.org/abs/1904.09751)). A seed fixes all draws, on every machine.

use crate::chapters::ch01_recompute::argmax;
use crate::dice::Dice;
use crate::kernels::softmax;

pub use crate::model::sampling_params::{SamplingError, SamplingOverrides, SamplingParams};

pub struct Sampler {
    sampling: SamplingParams,
    dice: Dice,
}

/// A token that may be drawn, with its weight (probability, not yet divided by the sum of those kept).
type Candidate = (u32, f32);

impl Sampler {
    /// A sampler at the start of its seed's sequence of draws. Panics if [`SamplingParams::validate`] refuses `sampling`.
    pub fn new(sampling: SamplingParams) -> Self {
        let sampling = sampling.validate().unwrap_or_else(|error| panic!("{error}"));
        Sampler { sampling, dice: Dice::new(sampling.seed) }
    }

    /// Chooses the next token. `logits`: `[vocab_size]`, at least one, all finite, as [`Model::forward`] gives them.
    /// Equal logits: the lower id is the likelier.
    ///
    /// [`Model::forward`]: crate::model::Model::forward
    pub fn sample(&mut self, logits: &[f32]) -> u32 {
        if self.sampling.temperature == 0.0 {
            return argmax(logits);
        }
        let candidates = self.candidates(logits);
        drawn(&candidates, self.uniform())
    }

    /// Chooses as [`sample`](Self::sample) does, but none of the tokens in `without`: they have probability 0.
    pub fn sample_without<'t>(&mut self, logits: &[f32], without: impl IntoIterator<Item = &'t u32>) -> u32 {
        let mut logits = logits.to_vec();
        for token in without {
            // There may be no such token.
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit = f32::MIN;
            }
        }
        self.sample(&logits)
    }

    /// A random number from 0 to 1, 1 excluded.
    pub fn uniform(&mut self) -> f64 {
        self.dice.uniform()
    }

    /// How likely [`sample`](Self::sample) chooses each token: `[vocab_size]`, 0 for those that the filters drop, 1 in sum.
    ///
    /// `logits`: `[vocab_size]`. Greedy: 1 for the likeliest token and 0 for all others.
    pub fn probabilities(&self, logits: &[f32]) -> Vec<f32> {
        let mut probabilities = vec![0.0; logits.len()];
        if self.sampling.temperature == 0.0 {
            probabilities[argmax(logits) as usize] = 1.0;
            return probabilities;
        }
        let candidates = self.candidates(logits);
        let total = total(&candidates);
        for (token, weight) in candidates {
            probabilities[token as usize] = (weight as f64 / total) as f32;
        }
        probabilities
    }

    fn candidates(&self, logits: &[f32]) -> Vec<Candidate> {
        let SamplingParams { temperature, .. } = self.sampling;
        let mut probabilities: Vec<f32> = logits.iter().map(|logit| logit / temperature).collect();
        if !probabilities.iter().all(|scaled| scaled.is_finite()) {
            // Large logits, small temperature: what counts is how far each is below the largest.
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            probabilities = logits.iter().map(|logit| (logit - max) / temperature).collect();
        }
        softmax(&mut probabilities);
        let mut candidates: Vec<Candidate> = (0..).zip(probabilities).collect();
        let SamplingParams { top_k, top_p, .. } = self.sampling;
        if top_k > 0 {
            keep_likeliest(&mut candidates, top_k);
        }
        if top_p < 1.0 {
            keep_share(&mut candidates, top_p);
        }
        candidates
    }
}

/// The token into whose share of `weights` the number `uniform`, from 0 to 1 (excluded), falls.
///
/// `weights`: `[vocab_size]`, none below 0, at least one above; they need not add up to 1. A token of weight 0 is never
/// drawn.
///
/// `draw(&[0.5, 0.0, 1.5], 0.3)` → `2`, as 0.3 of 2.0 is 0.6, which lies in the share of token 2: from 0.5 to 2.0.
///
/// # Panics
/// If no weight is above 0: there is nothing to draw.
pub fn draw(weights: &[f32], uniform: f64) -> u32 {
    let candidates: Vec<Candidate> = (0..).zip(weights.iter().copied()).filter(|(_, weight)| *weight > 0.0).collect();
    assert!(!candidates.is_empty(), "draw: of {} weights none is above 0, so no token can be drawn", weights.len());
    drawn(&candidates, uniform)
}

fn drawn(candidates: &[Candidate], uniform: f64) -> u32 {
    let mut left = uniform * total(candidates);
    for (token, weight) in candidates {
        left -= *weight as f64;
        if left < 0.0 {
            return *token;
        }
    }
    candidates[candidates.len() - 1].0
}

fn total(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|(_, weight)| *weight as f64).sum()
}

/// Keeps the `count` likeliest, likeliest first.
fn keep_likeliest(candidates: &mut Vec<Candidate>, count: usize) {
    let likelier = |a: &Candidate, b: &Candidate| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if count < candidates.len() {
        candidates.select_nth_unstable_by(count, likelier);
        candidates.truncate(count);
    }
    candidates.sort_unstable_by(likelier);
}

/// Keeps the likeliest that together reach `share` of the whole; at least one.
fn keep_share(candidates: &mut Vec<Candidate>, share: f32) {
    let whole = total(candidates);
    let enough = f64::from(share) * whole;
    // Those below this weight are too light to make a difference, even all of them together. Few are above it.
    let light = ((whole - enough) / candidates.len() as f64) as f32;
    let mut likeliest: Vec<Candidate> = candidates.iter().copied().filter(|(_, weight)| *weight >= light).collect();
    if !truncate_to(&mut likeliest, enough) {
        // As their sum is rounded, they do not reach it after all.
        likeliest = std::mem::take(candidates);
        truncate_to(&mut likeliest, enough);
    }
    *candidates = likeliest;
}

/// Sorts them, likeliest first, and drops what is not needed to reach `enough`. False if all of them do not reach it.
fn truncate_to(candidates: &mut Vec<Candidate>, enough: f64) -> bool {
    let all = candidates.len();
    keep_likeliest(candidates, all);
    let mut sum = 0.0;
    let reached = candidates.iter().position(|(_, weight)| {
        sum += f64::from(*weight);
        sum >= enough
    });
    if let Some(last) = reached {
        candidates.truncate(last + 1);
    }
    reached.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [1.0, 3.0, 2.0, 3.0, -1.0];

    fn kept(top_k: usize, top_p: f32) -> Vec<u32> {
        let sampler = Sampler::new(SamplingParams { temperature: 1.0, top_k, top_p, seed: 1 });
        sampler.candidates(&LOGITS).iter().map(|(token, _)| *token).collect()
    }

    #[test]
    fn top_k_keeps_the_likeliest_and_top_p_the_fewest_that_reach_it() {
        assert_eq!(kept(1, 1.0), [1], "the lower id of equals");
        assert_eq!(kept(3, 1.0), [1, 3, 2]);
        assert_eq!(kept(99, 1.0).len(), 5);
        // Probabilities: 0.055, 0.404, 0.149, 0.404, 0.007 by descending logit: ids 1, 3, 2, 0, 4.
        assert_eq!(kept(0, 0.3), [1]);
        assert_eq!(kept(0, 0.5), [1, 3]);
        assert_eq!(kept(0, 0.9), [1, 3, 2]);
    }

    #[test]
    fn top_p_keeps_what_sorting_the_whole_vocabulary_keeps() {
        let mut dice = Dice::new(1);
        for (n, spread) in [(1, 1.0), (7, 0.1), (500, 1.0), (4096, 8.0), (4096, 0.01)] {
            let logits: Vec<f32> = (0..n).map(|_| spread * (dice.uniform() as f32 - 0.5)).collect();
            let kept = |top_p| {
                Sampler::new(SamplingParams { temperature: 1.0, top_p, seed: 1, ..SamplingParams::GREEDY })
                    .candidates(&logits)
            };
            for share in [1e-6, 0.3, 0.95, 0.999_999, 1.0 - f32::EPSILON / 2.0] {
                let mut expected = kept(1.0);
                let enough = f64::from(share) * total(&expected);
                truncate_to(&mut expected, enough);
                assert_eq!(kept(share), expected, "{n} tokens, {share}");
            }
        }
    }

    #[test]
    fn a_token_that_is_left_out_is_never_drawn() {
        for temperature in [0.0, 1e-6, 0.5, 1.0, 1000.0] {
            let mut sampler = Sampler::new(SamplingParams { temperature, seed: 5, ..SamplingParams::GREEDY });
            for _ in 0..500 {
                assert!([0, 2, 4].contains(&sampler.sample_without(&LOGITS, &[1, 3, 99])), "temperature {temperature}");
            }
        }
    }

    #[test]
    fn probabilities_are_those_of_sample() {
        for (top_k, top_p) in [(0, 1.0), (3, 1.0), (0, 0.5), (3, 0.9)] {
            let mut sampler = Sampler::new(SamplingParams { temperature: 1.0, top_k, top_p, seed: 3 });
            let mut again = Sampler::new(SamplingParams { temperature: 1.0, top_k, top_p, seed: 3 });
            let probabilities = sampler.probabilities(&LOGITS);
            let sum: f32 = probabilities.iter().sum();
            assert!((sum - 1.0).abs() < 1e-6, "sum {sum}");
            let mut drawn = [0.0; 5];
            for _ in 0..4000 {
                let token = sampler.sample(&LOGITS);
                assert_eq!(again.sample_without(&LOGITS, &[]), token, "same seed, same draws");
                drawn[token as usize] += 1.0 / 4000.0;
            }
            for (token, (expected, found)) in probabilities.iter().zip(drawn).enumerate() {
                assert!((expected - found).abs() < 0.03, "token {token}: probability {expected}, drawn {found}");
                assert!(*expected > 0.0 || found == 0.0, "token {token} has probability 0 and was drawn");
            }
        }
    }

    #[test]
    fn any_legal_sampling_draws_from_any_finite_logits() {
        let logits: [&[f32]; 6] = [
            &LOGITS,
            &[0.0],
            &[0.0; 100],
            &[f32::MAX, f32::MIN, 0.0, f32::MAX],
            &[f32::MIN; 3],
            &[1e-45, -1e-45, f32::MIN_POSITIVE],
        ];
        for temperature in [1e-6, 1e-3, 0.8, 1000.0] {
            for top_k in [0, 1, 2, usize::MAX] {
                for top_p in [0.0, 1e-45, 0.5, 0.999_999_94, 1.0] {
                    for logits in logits {
                        let sampling = SamplingParams { temperature, top_k, top_p, seed: u64::MAX };
                        let mut sampler = Sampler::new(sampling.validate().unwrap());
                        let probabilities = sampler.probabilities(logits);
                        let sum: f64 = probabilities.iter().map(|p| f64::from(*p)).sum();
                        assert!((sum - 1.0).abs() < 1e-5, "{sampling:?} {logits:?}: {probabilities:?}");
                        for _ in 0..20 {
                            let token = sampler.sample(logits) as usize;
                            assert!(probabilities[token] > 0.0, "{sampling:?} {logits:?}: {token}");
                        }
                        assert!(probabilities[draw(&probabilities, 0.999_999_999) as usize] > 0.0);
                    }
                }
            }
        }
    }

    #[test]
    fn sampling_that_makes_no_sense_is_refused_by_name() {
        let sampling = |temperature, top_p| SamplingParams { temperature, top_p, ..SamplingParams::GREEDY };
        for temperature in [f32::INFINITY, f32::NEG_INFINITY, -1.0, 1e-40, 1e-7, 1000.1] {
            let refused = Err(SamplingError::Temperature(temperature));
            assert_eq!(sampling(temperature, 1.0).validate(), refused);
        }
        for top_p in [f32::INFINITY, -0.1, 1.000_000_1] {
            assert_eq!(sampling(1.0, top_p).validate(), Err(SamplingError::TopP(top_p)));
        }
        let says = |sampling: SamplingParams| sampling.validate().unwrap_err().to_string();
        assert_eq!(says(sampling(f32::NAN, 1.0)), "the temperature is NaN, expected 0 (greedy) or 0.000001 to 1000");
        assert_eq!(says(sampling(1.0, f32::NAN)), "top-p is NaN, expected a probability from 0 to 1");
        for fine in [sampling(0.0, 0.0), sampling(-0.0, 1.0), sampling(1e-6, 0.5), sampling(1000.0, 1.0)] {
            assert_eq!(fine.validate(), Ok(fine));
        }
    }
}
