//! One sequence generated with any cache, or with none, and with drafts or without; and what that cost.

use std::cell::Cell;

use super::read_checker::ReadChecker;
use super::{Accept, CachedModel, Drafter, LanguageModel, RewindableModel, StopConditions};
use crate::cache::attention::AttentionCache;
use crate::cache::{CacheError, CacheUsage};
use crate::chapters::ch01_recompute::{Recompute, generate};
use crate::chapters::ch08_speculative::Speculation;
use crate::model::{Model, StepError};

#[derive(Clone, Copy)]
pub struct Generation<'a> {
    pub model: &'a Model,
    pub prompt: &'a [u32],
    pub stop: StopConditions<'a>,
    /// Set by a caller that wants no more tokens: the sequence then ends with those that it has.
    pub is_cancelled: Option<&'a Cell<bool>>,
    /// Checks what the cache returns, which must be empty at first.
    pub checker: Option<&'a ReadChecker>,
}

/// A finished sequence, and what it cost.
pub struct Generated {
    pub tokens: Vec<u32>,
    pub computed_tokens: u64,
    /// What the cache holds at the end; all zero without one.
    pub usage: CacheUsage,
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
        self.with_cache(cache, on_token, |model, on_token| generate(model, self.prompt, self.stop, pick, on_token))
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
            Speculation { target, drafter, accept }.generate(self.prompt, self.stop, k, on_token)
        })
    }

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
        let (checker, is_cancelled) = (self.checker, self.is_cancelled);
        let mut model = SequenceModel { checker, is_cancelled, ..SequenceModel::new(self.model, cache) };
        match generate(&mut model, &mut on_token) {
            Ok(_) | Err(StepError::Cancelled) => {}
            Err(error) => return Err(error),
        }
        let computed_tokens = model.computed_tokens + model.recompute.computed_tokens();
        let usage = model.cache.map_or_else(CacheUsage::default, |cache| cache.usage());
        Ok(Generated { tokens, computed_tokens, usage })
    }
}

/// A model with the cache of one sequence, or without one: then it recomputes everything.
pub(super) struct SequenceModel<'a> {
    model: &'a Model,
    cache: Option<&'a mut (dyn AttentionCache + 'static)>,
    checker: Option<&'a ReadChecker>,
    /// Once it is set, nothing more is computed.
    is_cancelled: Option<&'a Cell<bool>>,
    /// Computes if there is no cache.
    recompute: Recompute<'a>,
    computed_tokens: u64,
}

impl<'a> SequenceModel<'a> {
    /// A model whose cache nobody checks, and whose sequence nobody cancels.
    pub(super) fn new(model: &'a Model, cache: Option<&'a mut (dyn AttentionCache + 'static)>) -> Self {
        let recompute = Recompute::new(model);
        SequenceModel { model, cache, checker: None, is_cancelled: None, recompute, computed_tokens: 0 }
    }

    /// Puts a question to the model with the cache, or to the recomputing one if there is no cache.
    fn ask<T>(
        &mut self,
        tokens: &[u32],
        question: impl FnOnce(&mut dyn RewindableModel) -> Result<T, StepError>,
    ) -> Result<T, StepError> {
        if self.is_cancelled.is_some_and(Cell::get) {
            return Err(StepError::Cancelled);
        }
        let Some(cache) = self.cache.as_deref_mut() else { return question(&mut self.recompute) };
        let ask_with = |cache: &mut dyn AttentionCache| {
            let mut model = CachedModel::new(self.model, cache);
            let answer = question(&mut model);
            self.computed_tokens += model.computed_tokens();
            answer
        };
        match self.checker {
            Some(checker) => ask_with(&mut checker.checked(0, tokens, cache)),
            None => ask_with(cache),
        }
    }
}

impl LanguageModel for SequenceModel<'_> {
    fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
        self.ask(tokens, |model| model.next_logits(tokens))
    }
}

impl RewindableModel for SequenceModel<'_> {
    fn cached_len(&self) -> usize {
        self.cache.as_ref().map_or(self.recompute.cached_len(), |cache| cache.len())
    }

    fn last_logits(&mut self, tokens: &[u32], n: usize) -> Result<Vec<Vec<f32>>, StepError> {
        self.ask(tokens, |model| model.last_logits(tokens, n))
    }

    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        match &mut self.cache {
            Some(cache) => cache.rewind(n),
            None => self.recompute.rewind(n),
        }
    }
}
