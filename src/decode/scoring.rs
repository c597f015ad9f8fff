//! How likely tokens were, of all: a new one from the logits that it was chosen from, and those of a prompt, one by one.
//!
//! ```text
//!   prompt    "The"   " king"   " had"   " a"
//!   rows        0        1         2       3
//!   scores      –      row 0     row 1   row 2       row 3 is what the first new token is chosen from
//! ```
//!
//! The first token follows nothing, and has no score. The logits of a row that the prefix cache brings are gone, so a lookup for a
//! sequence that is scored returns only the rows whose scores it has had.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::serving::schedule::SequenceId;

/// Natural logarithms of probabilities, as the model gives them: temperature, top-k and top-p not applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Likely {
    /// Of the token.
    pub logprob: f32,
    /// The likeliest tokens, likeliest first.
    pub top: Vec<(u32, f32)>,
}

/// A prompt that is being scored, and how far it is.
#[derive(Debug)]
pub struct Scoring {
    prompt: Vec<u32>,
    /// How many of the likeliest tokens to report.
    top: usize,
    /// Of the second token of the prompt, the third, and so on: as many as rows were seen.
    scores: Vec<Likely>,
}

impl Scoring {
    /// Nothing is scored yet. `prompt`: at least one token.
    pub fn new(prompt: Vec<u32>, top: usize) -> Self {
        Scoring { prompt, top, scores: Vec::new() }
    }

    /// Rows that were seen, from the first.
    pub fn rows(&self) -> usize {
        self.scores.len()
    }

    /// Rows that a sequence with these tokens may take from the prefix cache: those that were seen, if it is this prompt.
    pub fn rows_known(&self, tokens: &[u32]) -> Option<usize> {
        (self.prompt == tokens).then(|| self.rows())
    }

    /// Whether the token after this row is one of the prompt.
    pub fn wants(&self, row: usize) -> bool {
        row + 1 < self.prompt.len()
    }

    /// The score of the token that follows `row`, which is one that [is wanted](Self::wants). `logits`: those of the row.
    pub fn score(&self, row: usize, logits: &[f32]) -> Likely {
        likely(logits, self.prompt[row + 1], self.top)
    }

    /// Keeps the scores of the next rows.
    pub fn keep(&mut self, scores: impl IntoIterator<Item = Likely>) {
        self.scores.extend(scores);
    }

    /// All scores: one less than the prompt has tokens.
    pub fn into_scores(self) -> Vec<Likely> {
        let (rows, tokens) = (self.scores.len(), self.prompt.len());
        assert_eq!(rows + 1, tokens, "a cached prefix took rows that have no scores: run the checks of chapter 11");
        self.scores
    }
}

/// The prompts that are being scored.
pub type Scorings = Rc<RefCell<BTreeMap<SequenceId, Scoring>>>;

/// How likely `chosen` was, and the `top` likeliest tokens. `logits`: `[vocab_size]`, finite. Of equals the lower id is
/// the likelier.
pub fn likely(logits: &[f32], chosen: u32, top: usize) -> Likely {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - max).exp()).sum();
    // As vLLM has it: no JSON number is lower than all.
    let logprob = |id: u32| (f64::from(logits[id as usize] - max) - sum.ln()).max(-9999.0) as f32;
    let likelier = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    if top > 0 && top < ids.len() {
        ids.select_nth_unstable_by(top, likelier);
    }
    ids.truncate(top);
    ids.sort_unstable_by(likelier);
    Likely { logprob: logprob(chosen), top: ids.into_iter().map(|id| (id, logprob(id))).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up_and_the_likeliest_come_first() {
        let logits = [1.0, 3.0, 2.0, 3.0, -1.0];
        let all = likely(&logits, 2, 5);
        assert_eq!(all.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3, 2, 0, 4]);
        let sum: f64 = all.top.iter().map(|(_, logprob)| f64::from(*logprob).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert!((all.logprob.exp() - 0.1459).abs() < 1e-4);
        for top in 0..=7 {
            assert_eq!(likely(&logits, 4, top).top, all.top[..top.min(5)]);
        }
        assert_eq!(likely(&[f32::MAX, f32::MIN], 0, 1).top, [(0, 0.0)]);
    }
}
