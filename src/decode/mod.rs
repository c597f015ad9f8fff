//! What the generation loop asks of a model, and the same with a cache.

pub mod beams;
pub mod prompt_lookup;
pub mod sampler;
pub mod scoring;

use crate::cache::in_place::{CacheRef, InPlace};
use crate::cache::{CacheError, Rewind};
use crate::chapters::ch01_recompute::Recompute;
use crate::model::{LogitRows, Model, StepError};

/// Says what may come after a text: all that the loop of chapter 1 asks of a model.
pub trait LanguageModel {
    /// The logits of the token that follows `tokens`, the whole text so far: `[vocab_size]`.
    ///
    /// # Errors
    /// [`StepError`] when the text cannot be computed. Nothing has changed then, except after [`StepError::NotFinite`]: a model
    /// that remembers has read the tokens.
    fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError>;
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Tokens to add at most.
    pub max_new_tokens: usize,
    /// Tokens that end a text. They are not part of it.
    pub end_of_text: &'a [u32],
}

/// A model that remembers: it computes only the tokens that its cache does not hold.
pub struct Cached<'a> {
    model: &'a Model,
    cache: Memory<'a>,
    rows_projected: u64,
}

/// The memory of one text.
enum Memory<'a> {
    Gather(&'a mut dyn Rewind),
    InPlace(&'a mut dyn InPlace),
}

impl Memory<'_> {
    fn cache(&mut self) -> &mut dyn Rewind {
        match self {
            Memory::Gather(cache) => *cache,
            Memory::InPlace(cache) => *cache,
        }
    }

    fn len(&self) -> usize {
        match self {
            Memory::Gather(cache) => cache.len(),
            Memory::InPlace(cache) => cache.len(),
        }
    }

    fn for_step(&mut self) -> CacheRef<'_> {
        match self {
            Memory::Gather(cache) => CacheRef::Gather(*cache),
            Memory::InPlace(cache) => CacheRef::InPlace(*cache),
        }
    }
}

impl<'a> Cached<'a> {
    /// A model with the memory of one text, which is gathered to be read.
    pub fn new(model: &'a Model, cache: &'a mut dyn Rewind) -> Self {
        Cached { model, cache: Memory::Gather(cache), rows_projected: 0 }
    }

    /// A model with the memory of one text, which is read as the model's [attention](Model::set_attention) says.
    pub fn in_place(model: &'a Model, cache: &'a mut dyn InPlace) -> Self {
        Cached { model, cache: Memory::InPlace(cache), rows_projected: 0 }
    }

    /// Tokens that went through the model since this was made.
    pub fn rows_projected(&self) -> u64 {
        self.rows_projected
    }
}

// ANCHOR: cached
impl LanguageModel for Cached<'_> {
    fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
        let new_tokens = &tokens[self.cache.len()..];
        let chunk = self.model.chunk_of(new_tokens, self.cache.for_step(), LogitRows::Newest(1))?;
        let logits = self.model.forward(vec![chunk])?;
        self.rows_projected += new_tokens.len() as u64;
        Ok(logits)
    }
}
// ANCHOR_END: cached

/// A language model that answers for several tokens at once and can forget: what speculation asks of a model.
pub trait RewindableModel: LanguageModel {
    /// Tokens that it remembers: so many tokens of the text, from the first.
    fn remembered(&self) -> usize;

    /// Reads the tokens of a text that it does not remember yet, in one pass; returns the logits after each of the last
    /// `n` of them, oldest first: `n` rows of `[vocab_size]`.
    ///
    /// `tokens` is the whole text so far. At least `n` of its tokens are not remembered yet, and at least one: with `n` 0 the
    /// model reads and answers nothing, but it does not read nothing.
    ///
    /// # Errors
    /// [`StepError::NoTokens`] if it remembers all of the text already, also with `n` 0; any other [`StepError`] when the
    /// text cannot be computed, or fewer than `n` tokens are new. Nothing has changed then, except after
    /// [`StepError::NotFinite`]: the tokens have been read.
    fn last_logits(&mut self, tokens: &[u32], n: usize) -> Result<Vec<Vec<f32>>, StepError>;

    /// Forgets the newest `n` tokens that it remembers.
    ///
    /// # Errors
    /// [`CacheError::PastTheStart`] if it remembers fewer; nothing has changed.
    fn rewind(&mut self, n: usize) -> Result<(), CacheError>;
}

// ANCHOR: rewindable
impl RewindableModel for Cached<'_> {
    fn remembered(&self) -> usize {
        self.cache.len()
    }

    fn last_logits(&mut self, tokens: &[u32], n: usize) -> Result<Vec<Vec<f32>>, StepError> {
        let new_tokens = &tokens[self.cache.len()..];
        let chunk = self.model.chunk_of(new_tokens, self.cache.for_step(), LogitRows::Newest(n))?;
        let logits = self.model.forward(vec![chunk])?;
        self.rows_projected += new_tokens.len() as u64;
        Ok(rows(&logits, self.model))
    }

    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        self.cache.cache().rewind(n)
    }
}
// ANCHOR_END: rewindable

/// A model that forgets everything at once can take part too: it computes the whole text for every question.
impl RewindableModel for Recompute<'_> {
    fn remembered(&self) -> usize {
        0
    }

    fn last_logits(&mut self, tokens: &[u32], n: usize) -> Result<Vec<Vec<f32>>, StepError> {
        if n == 0 {
            self.model.check(tokens, 0)?;
            return Ok(Vec::new());
        }
        let logits = self.model.forward(vec![self.model.chunk(tokens, None, LogitRows::Newest(n))?])?;
        self.rows_projected += tokens.len() as u64;
        Ok(rows(&logits, self.model))
    }

    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        if n > 0 { Err(CacheError::PastTheStart { n, len: 0 }) } else { Ok(()) }
    }
}

fn rows(logits: &[f32], model: &Model) -> Vec<Vec<f32>> {
    logits.chunks_exact(model.config().vocab_size).map(<[f32]>::to_vec).collect()
}

/// Guessed tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// The tokens, in the order of the text.
    pub tokens: Vec<u32>,
    /// What each token was drawn from: a row of `[vocab_size]` for each, every row 1 in sum.
    pub probabilities: Vec<Vec<f32>>,
}

impl Draft {
    /// Adds a guess and what it was drawn from: `[vocab_size]`, 1 in sum.
    pub fn push(&mut self, token: u32, probabilities: Vec<f32>) {
        self.tokens.push(token);
        self.probabilities.push(probabilities);
    }

    /// Adds a guess that was not drawn, out of `vocab_size` tokens: all of the probability is its own.
    pub fn push_certain(&mut self, token: u32, vocab_size: usize) {
        let mut probabilities = vec![0.0; vocab_size];
        probabilities[token as usize] = 1.0;
        self.push(token, probabilities);
    }
}

/// Judges a draft by the target's rows, `[vocab_size]` each and one more than drafted tokens: returns the new tokens, at
/// least one.
pub type Accept<'a> = dyn FnMut(&Draft, &[Vec<f32>]) -> Vec<u32> + 'a;

/// Guesses how a text goes on.
pub trait Drafter {
    /// Guesses at most `k` tokens that follow `text`, the whole text so far.
    ///
    /// # Errors
    /// [`StepError`] when the text cannot be computed.
    fn draft(&mut self, text: &[u32], k: usize) -> Result<Draft, StepError>;

    /// Hears what became of its guesses: `text` is all that it should remember now, no more and no less.
    ///
    /// # Errors
    /// [`StepError`] when the text cannot be computed.
    fn settle(&mut self, text: &[u32]) -> Result<(), StepError>;
}

#[cfg(test)]
mod tests {
    #[cfg(not(unstarted = "ch01_recompute"))]
    #[test]
    fn no_text_is_refused_even_if_nothing_is_asked_about_it() {
        use super::*;
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/one-layer-odd");
        let model = Model::open(&folder).expect("a golden checkpoint opens");
        for n in [0, 1] {
            assert_eq!(Recompute::new(&model).last_logits(&[], n), Err(StepError::NoTokens), "{n} rows after no text");
        }
        assert_eq!(Recompute::new(&model).last_logits(&[1], 0), Ok(Vec::new()), "no row after a text");
    }
}
