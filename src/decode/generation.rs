//! One sequence generated with any cache, or with none, and with drafts or without; and what that cost.

use super::{Accept, Cached, Drafter, Limits, RewindableModel};
use crate::cache::Usage;
use crate::cache::in_place::InPlace;
use crate::chapters::ch01_recompute::{Recompute, generate};
use crate::chapters::ch08_speculative::Speculation;
use crate::model::{Model, StepError};

/// One sequence to generate.
#[derive(Clone, Copy)]
pub struct Generation<'a> {
    /// The model.
    pub model: &'a Model,
    /// The tokens to continue.
    pub prompt: &'a [u32],
    /// When to stop.
    pub limits: Limits<'a>,
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
        cache: Option<&mut (dyn InPlace + 'static)>,
        pick: &mut dyn FnMut(&[f32]) -> u32,
        on_token: &mut dyn FnMut(u32),
    ) -> Result<Generated, StepError> {
        self.with_cache(cache, |model| generate(model, self.prompt, self.limits, pick, on_token))
    }

    /// Continues the prompt with drafts of at most `k` tokens, of which `accept` keeps some.
    pub fn run_with_drafts(
        self,
        cache: Option<&mut (dyn InPlace + 'static)>,
        drafter: &mut dyn Drafter,
        k: usize,
        accept: &mut Accept<'_>,
        on_token: &mut dyn FnMut(u32),
    ) -> Result<Generated, StepError> {
        self.with_cache(cache, |target| {
            Speculation { target, drafter, accept }.generate(self.prompt, self.limits, k, on_token)
        })
    }

    /// Lets a model with this cache generate, or one without.
    fn with_cache(
        self,
        cache: Option<&mut (dyn InPlace + 'static)>,
        generate: impl FnOnce(&mut dyn RewindableModel) -> Result<Vec<u32>, StepError>,
    ) -> Result<Generated, StepError> {
        let Some(cache) = cache else {
            let mut model = Recompute::new(self.model);
            let tokens = generate(&mut model)?;
            return Ok(Generated { tokens, rows_projected: model.rows_projected(), usage: Usage::default() });
        };
        let mut model = Cached::new(self.model, cache);
        let tokens = generate(&mut model)?;
        let rows_projected = model.rows_projected();
        Ok(Generated { tokens, rows_projected, usage: cache.usage() })
    }
}
