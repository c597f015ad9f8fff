//! Log-probabilities: of a new token, by the logits that it was chosen from, and of the tokens of a prompt, row by row.
//!
//! ```text
//!   prompt    "The"   " king"   " had"   " a"
//!   rows        0        1         2       3
//!   scores      –      row 0     row 1   row 2       row 3 is what the first new token is chosen from
//! ```
//!
//! The first token follows nothing, and has no score. The logits of a row that the prefix cache brings are gone, so a
//! sequence that is scored looks nothing up there.

/// The natural logarithms of probabilities as the model gives them, before temperature, top-k and top-p.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    pub logprob: f32,
    /// The likeliest tokens, likeliest first.
    pub top: Vec<(u32, f32)>,
}

/// A prompt that is being scored, and how far it is.
#[derive(Debug)]
pub struct PromptLogprobs {
    prompt: Vec<u32>,
    /// How many of the likeliest tokens to report.
    top: usize,
    /// The logprobs of the prompt's second token, its third, and so on: one for each row that was seen.
    computed: Vec<TokenLogprobs>,
}

impl PromptLogprobs {
    /// None is computed yet. `prompt`: at least one token.
    pub fn new(prompt: Vec<u32>, top: usize) -> Self {
        PromptLogprobs { prompt, top, computed: Vec::new() }
    }

    /// Rows that were seen, from the first.
    pub fn rows(&self) -> usize {
        self.computed.len()
    }

    /// Whether a token of the prompt follows this row: none follows the last one, but a new token.
    pub fn wants(&self, row: usize) -> bool {
        row + 1 < self.prompt.len()
    }

    /// The logprobs of the token after `row`, which must be [wanted](Self::wants). `logits`: those of the row.
    pub fn compute(&self, row: usize, logits: &[f32]) -> TokenLogprobs {
        token_logprobs(logits, self.prompt[row + 1], self.top)
    }

    /// Adds the logprobs of the next row.
    pub fn push(&mut self, logprobs: TokenLogprobs) {
        self.computed.push(logprobs);
    }

    /// All of them: one less than the prompt has tokens.
    pub fn into_token_logprobs(self) -> Vec<TokenLogprobs> {
        let (rows, tokens) = (self.computed.len(), self.prompt.len());
        assert_eq!(rows + 1, tokens, "a cached prefix took rows that have no logprobs: run the checks of chapter 12");
        self.computed
    }
}

/// How likely `chosen` was, and the `top` likeliest; of equals the lower id first. `logits`: `[vocab_size]`, finite.
pub fn token_logprobs(logits: &[f32], chosen: u32, top: usize) -> TokenLogprobs {
    let log_probabilities = log_softmax(logits);
    // As vLLM has it: no JSON number is lower than all.
    let logprob = |id: u32| log_probabilities[id as usize].max(-9999.0);
    let likelier = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    if top > 0 && top < ids.len() {
        ids.select_nth_unstable_by(top, likelier);
    }
    ids.truncate(top);
    ids.sort_unstable_by(likelier);
    TokenLogprobs { logprob: logprob(chosen), top: ids.into_iter().map(|id| (id, logprob(id))).collect() }
}

/// The logarithm of each token's probability, `[vocab_size]`, all 0 or below, without filter or temperature.
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
    fn probabilities_add_up_and_the_likeliest_come_first() {
        let logits = [1.0, 3.0, 2.0, 3.0, -1.0];
        let all = token_logprobs(&logits, 2, 5);
        assert_eq!(all.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3, 2, 0, 4]);
        let sum: f64 = all.top.iter().map(|(_, logprob)| f64::from(*logprob).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert!((all.logprob.exp() - 0.1459).abs() < 1e-4);
        for top in 0..=7 {
            assert_eq!(token_logprobs(&logits, 4, top).top, all.top[..top.min(5)]);
        }
        assert_eq!(token_logprobs(&[f32::MAX, f32::MIN], 0, 1).top, [(0, 0.0)]);
    }

    #[test]
    fn log_softmax_is_the_logarithm_of_the_probabilities_of_any_finite_logits() {
        let log_probabilities = log_softmax(&[0.0, 2.0_f32.ln(), 5.0_f32.ln()]);
        for (found, expected) in log_probabilities.iter().zip([0.125_f32, 0.25, 0.625]) {
            assert!((found - expected.ln()).abs() < 1e-6, "{found} for a probability of {expected}");
        }
        let found = log_softmax(&[3e38, -3e38, 0.0, 3e38]);
        assert!((found[0] - 0.5_f32.ln()).abs() < 1e-6 && found[0] == found[3], "{found:?}");
        assert!(found.iter().all(|row| !row.is_nan() && *row <= 0.0), "{found:?}");
    }
}
