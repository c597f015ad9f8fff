//! One sequence generated with any cache, or with none, and with drafts or without; and what that cost.

use std::cell::Cell;

use super::watch::{ReadWatch, WatchedModel};
use super::{Accept, CachedModel, Drafter, LanguageModel, Limits, RewindableModel};
use crate::cache::attention::AttentionCache;
use crate::cache::{CacheError, Usage};
use crate::chapters::ch01_recompute::{Recompute, generate};
use crate::chapters::ch08_speculative::Speculation;
use crate::model::{Model, StepError};

/// One sequence to generate.
#[derive(Clone, Copy)]
#[allow(missing_docs)] // Where the name says it.
pub struct Generation<'a> {
    pub model: &'a Model,
    pub prompt: &'a [u32],
    pub limits: Limits<'a>,
    /// Set by a caller that wants no more tokens: the sequence then ends with those that it has.
    pub is_cancelled: Option<&'a Cell<bool>>,
    /// Watches what the cache returns, which must be empty at first.
    pub watch: Option<&'a ReadWatch>,
}

/// A finished sequence, and what it cost.
pub struct Generated {
    /// The generated tokens.
    pub tokens: Vec<u32>,
    /// Tokens that went through the model.
    pub rows_projected: u64,
    /// What the cache holds at the end; all zero without one.
    pub usage: Usage,
}

impl Generation<'_> {
    /// Continues the prompt with the loop of chapter 1 and this cache, or recomputes everything without one.
    ///
    /// The cache may hold the first tokens of the prompt already, but not all of them.
    pub fn run(
        self,
        cache: Option<&mut (dyn AttentionCache + 'static)>,
        pick: &mut dyn FnMut(&[f32]) -> u32,
        on_token: &mut dyn FnMut(u32),
    ) -> Result<Generated, StepError> {
        self.with_cache(cache, on_token, |model, on_token| generate(model, self.prompt, self.limits, pick, on_token))
    }

    /// Continues the prompt with drafts of at most `k` tokens, of which `accept` keeps some.
    pub fn run_with_drafts(
        self,
        cache: Option<&mut (dyn AttentionCache + 'static)>,
        drafter: &mut dyn Drafter,
        k: usize,
        accept: &mut Accept<'_>,
        on_token: &mut dyn FnMut(u32),
    ) -> Result<Generated, StepError> {
        self.with_cache(cache, on_token, |target, on_token| {
            Speculation { target, drafter, accept }.generate(self.prompt, self.limits, k, on_token)
        })
    }

    /// Lets a model with this cache generate, or one without.
    fn with_cache(
        self,
        cache: Option<&mut (dyn AttentionCache + 'static)>,
        on_token: &mut dyn FnMut(u32),
        generate: impl FnOnce(&mut dyn RewindableModel, &mut dyn FnMut(u32)) -> Result<Vec<u32>, StepError>,
    ) -> Result<Generated, StepError> {
        let mut tokens = Vec::new();
        let mut on_token = |token| {
            tokens.push(token);
            on_token(token);
        };
        let generate = |model: &mut dyn RewindableModel| match generate(
            &mut Cancellable { model, is_cancelled: self.is_cancelled },
            &mut on_token,
        ) {
            Ok(_) | Err(StepError::Cancelled) => Ok(()),
            Err(error) => Err(error),
        };
        let (rows_projected, usage) = match (cache, self.watch) {
            (Some(cache), Some(watch)) => {
                let mut model = WatchedModel::new(self.model, cache, watch, 0);
                generate(&mut model)?;
                (model.rows_projected(), cache.usage())
            }
            (Some(cache), None) => {
                let mut model = CachedModel::new(self.model, cache);
                generate(&mut model)?;
                (model.rows_projected(), cache.usage())
            }
            (None, _) => {
                let mut model = Recompute::new(self.model);
                generate(&mut model)?;
                (model.rows_projected(), Usage::default())
            }
        };
        Ok(Generated { tokens, rows_projected, usage })
    }
}

/// A model that computes nothing more once its sequence was cancelled.
struct Cancellable<'a> {
    model: &'a mut dyn RewindableModel,
    is_cancelled: Option<&'a Cell<bool>>,
}

impl Cancellable<'_> {
    fn model(&mut self) -> Result<&mut dyn RewindableModel, StepError> {
        if self.is_cancelled.is_some_and(Cell::get) { Err(StepError::Cancelled) } else { Ok(self.model) }
    }
}

impl LanguageModel for Cancellable<'_> {
    fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
        self.model()?.next_logits(tokens)
    }
}

impl RewindableModel for Cancellable<'_> {
    fn cached_len(&self) -> usize {
        self.model.cached_len()
    }

    fn last_logits(&mut self, tokens: &[u32], n: usize) -> Result<Vec<Vec<f32>>, StepError> {
        self.model()?.last_logits(tokens, n)
    }

    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        self.model.rewind(n)
    }
}
