//! Beam search: the likeliest continuations of a prompt, searched side by side.
//!
//! A search keeps several continuations at once, the *beams* ([Graves, 2012](https://arxiv.org/abs/1211.3711)). In each
//! step the model computes the next token's probabilities for all of them in one pass, and the search goes on with the
//! best candidates of all. Each new beam is a fork of its parent (chapter 10), so beams share the pages of all tokens
//! they have in common.
//!
//! ```text
//!   width 2, after the prompt          beams              pages
//!   "the"                              the king           both share the prompt's
//!                                      the queen
//!   a step                             the king had       both are forks of the king:
//!                                      the king was       the queen's own pages are free again
//! ```
//!
//! How likely a continuation is, its *log-probability*, is the sum of the logarithms of its tokens' probabilities. Each
//! token makes it smaller, so continuations of different lengths are compared by their [score](Continuation::score).

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use crate::cache::{CacheError, KvCache};
use crate::chapters::ch06_paged::SharedSlab;
use crate::chapters::ch10_fork::ForkCache;
use crate::generation::StopConditions;
use crate::generation::logprobs::log_softmax;
use crate::model::{Model, StepError};

/// How much a score makes up for length: 0 compares the log-probabilities as they are and prefers short continuations;
/// 1 compares their means ([Wu et al., 2016](https://arxiv.org/abs/1609.08144), section 7).
pub const LENGTH_PENALTY: f64 = 1.0;

pub struct Beam {
    /// Its tokens, without the prompt.
    pub tokens: Vec<u32>,
    /// The sum of the logarithms of their probabilities.
    pub log_probability: f64,
    /// The rows of the prompt and of all tokens but the newest.
    pub cache: ForkCache,
}

/// A continuation that a search has found.
#[derive(Clone, Debug, PartialEq)]
pub struct Continuation {
    /// Its tokens, without the prompt and without the end of text.
    pub tokens: Vec<u32>,
    /// The sum of the logarithms of its tokens' probabilities, including the end of text if it has ended.
    pub log_probability: f64,
    /// What continuations of different lengths are compared by: `log_probability / tokens^LENGTH_PENALTY`, where an end
    /// of text counts as a token; 0 without tokens.
    pub score: f64,
    /// Whether the model has ended it; otherwise it has as many tokens as the limits allow.
    pub has_ended: bool,
}

impl Continuation {
    fn new(tokens: Vec<u32>, log_probability: f64, has_ended: bool) -> Self {
        let n = (tokens.len() + usize::from(has_ended)).max(1);
        Continuation { tokens, log_probability, score: log_probability / (n as f64).powf(LENGTH_PENALTY), has_ended }
    }
}

/// A beam, and a token that could be its next one.
#[derive(Clone, Copy)]
struct Candidate {
    beam: usize,
    token: u32,
    /// The beam's log-probability and the token's, added up.
    log_probability: f64,
}

/// The state of a search: up to `width` beams, best first, and the continuations that have finished.
struct BeamSearch<'a> {
    width: usize,
    end_of_text: &'a [u32],
    beams: Vec<Beam>,
    finished: Vec<Continuation>,
}

impl BeamSearch<'_> {
    /// Replaces the beams by the best `width` candidates, best first: every beam with every token. Equal candidates are
    /// in the order of their beams, then of their tokens. A candidate that ends its text takes no beam's place; it goes
    /// to `finished`, unless `width` beams are better.
    ///
    /// `log_probabilities`: a row of `[vocab_size]` for each beam, in their order; −∞ is allowed, NaN is not.
    fn step(&mut self, log_probabilities: &[Vec<f32>]) -> Result<(), CacheError> {
        let (mut beams, mut finished) = (Vec::new(), Vec::new());
        // Even if every beam ends with each of the end tokens, `width` candidates are left to go on.
        let enough = self.width + self.beams.len() * self.end_of_text.len();
        for Candidate { beam, token, log_probability } in self.candidates(log_probabilities, enough) {
            if beams.len() == self.width {
                break;
            }
            let parent = &self.beams[beam];
            let mut tokens = parent.tokens.clone();
            if self.end_of_text.contains(&token) {
                finished.push(Continuation::new(tokens, log_probability, true));
            } else {
                tokens.push(token);
                beams.push(Beam { tokens, log_probability, cache: parent.cache.fork()? });
            }
        }
        // Parents dropped here let go of their pages, so that an only child owns its tail alone and copies nothing.
        self.beams = beams;
        self.finished.extend(finished);
        Ok(())
    }

    /// The best `n` candidates, best first.
    fn candidates(&self, log_probabilities: &[Vec<f32>], n: usize) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for (beam, row) in log_probabilities.iter().enumerate() {
            let so_far = self.beams[beam].log_probability;
            for (token, log_probability) in (0..).zip(row) {
                candidates.push(Candidate { beam, token, log_probability: so_far + f64::from(*log_probability) });
            }
        }
        if n < candidates.len() {
            candidates.select_nth_unstable_by(n, better_first);
            candidates.truncate(n);
        }
        candidates.sort_unstable_by(better_first);
        candidates
    }
}

fn better_first(a: &Candidate, b: &Candidate) -> Ordering {
    let by_place = || (a.beam, a.token).cmp(&(b.beam, b.token));
    b.log_probability.total_cmp(&a.log_probability).then_with(by_place)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SearchCounters {
    /// Passes of the model: one for the prompt, then one per step for all beams.
    pub steps: u64,
    pub computed_tokens: u64,
    /// Tokens copied because several beams grew in the same page.
    pub copied_tokens: u64,
    /// The most pages that had an owner at the same time.
    pub peak_pages: usize,
    pub prefill: Duration,
    pub decode: Duration,
}

/// Searches for the likeliest continuations of a prompt with `width` beams. Returns them, best first, and counters.
///
/// Stops when at least `width` continuations have finished, and returns these; at `max_new_tokens` it returns the
/// beams as well. `on_step` gets the beams, best first, whenever they have a new token.
///
/// # Errors
/// [`StepError`] if the model refuses the prompt, or the slab has too few pages. All pages are returned, as at the end.
pub fn search(
    model: &Model,
    slab: &SharedSlab,
    prompt: &[u32],
    width: usize,
    stop: StopConditions<'_>,
    on_step: &mut dyn FnMut(&[Beam]),
) -> Result<(Vec<Continuation>, SearchCounters), StepError> {
    model.validate(prompt, 0)?;
    let mut counters = SearchCounters::default();
    if stop.max_new_tokens == 0 {
        return Ok((vec![Continuation::new(Vec::new(), 0.0, false)], counters));
    }
    let start = Instant::now();
    let mut cache = ForkCache::new(slab)?;
    let chunk = model.prepare_chunk(prompt, Some(&mut cache), 1)?;
    let mut logits = model.forward(vec![chunk])?;
    counters.count(prompt.len(), slab);
    counters.prefill = start.elapsed();
    // The first step makes up to `width` of this beam.
    let beam = Beam { tokens: Vec::new(), log_probability: 0.0, cache };
    let mut search = BeamSearch { width, end_of_text: stop.end_of_text, beams: vec![beam], finished: Vec::new() };
    for n_new in 1..=stop.max_new_tokens {
        let rows: Vec<Vec<f32>> = logits.chunks_exact(model.config().vocab_size).map(log_softmax).collect();
        search.step(&rows)?;
        on_step(&search.beams);
        let is_over = search.finished.len() >= width || search.beams.is_empty();
        if is_over || n_new == stop.max_new_tokens {
            break;
        }
        let copied_before = copied_tokens(&search);
        let chunks = search.beams.iter_mut().map(|Beam { tokens, cache, .. }| {
            let newest = &tokens[tokens.len().saturating_sub(1)..];
            model.prepare_chunk(newest, Some(cache), 1)
        });
        let chunks = chunks.collect::<Result<Vec<_>, StepError>>()?;
        let n_beams = chunks.len();
        logits = model.forward(chunks)?;
        counters.copied_tokens += copied_tokens(&search) - copied_before;
        counters.count(n_beams, slab);
    }
    counters.decode = start.elapsed() - counters.prefill;
    Ok((found(search), counters))
}

impl SearchCounters {
    fn count(&mut self, rows: usize, slab: &SharedSlab) {
        let slab = slab.borrow();
        self.steps += 1;
        self.computed_tokens += rows as u64;
        self.peak_pages = self.peak_pages.max(slab.pool().n_pages() - slab.pool().n_free());
    }
}

fn copied_tokens(search: &BeamSearch<'_>) -> u64 {
    search.beams.iter().map(|beam| beam.cache.usage().copied_tokens).sum()
}

/// The continuations that have finished and, if they are fewer than `width`, those that still grow; best score first.
fn found(search: BeamSearch<'_>) -> Vec<Continuation> {
    let mut found = search.finished;
    if found.len() < search.width {
        found.extend(search.beams.into_iter().map(|beam| Continuation::new(beam.tokens, beam.log_probability, false)));
    }
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_candidates_are_in_the_order_of_their_beams_then_of_their_tokens() {
        let of = |beam, token, log_probability| Candidate { beam, token, log_probability };
        let mut all = [of(1, 0, -1.0), of(0, 2, -1.0), of(0, 0, f64::NEG_INFINITY), of(0, 1, -1.0), of(1, 3, -0.5)];
        all.sort_unstable_by(better_first);
        assert_eq!(all.map(|candidate| (candidate.beam, candidate.token)), [(1, 3), (0, 1), (0, 2), (1, 0), (0, 0)]);
    }
}
