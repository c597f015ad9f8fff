//! Speculative decoding with a choice: what drafts tokens, which of them are accepted, and how many were.

use serde::Serialize;

use super::one_sequence::SequenceModel;
use super::prompt_lookup::PromptLookup;
use super::sampler::{Sampler, SamplingParams};
use super::{Draft, Drafter};
use crate::cache::CacheError;
use crate::cache::attention::AttentionCache;
use crate::cache_kind::{CacheKind, CacheSize};
use crate::chapters::ch08_speculative::{DraftModel, accept_matching};
use crate::chapters::ch09_rejection::{SamplingDraftModel, accept_sampled};
use crate::model::Model;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptRule {
    /// Only tokens that the target would choose itself, so the output is the same as without drafts.
    Match,
    /// At random, with probability min(1, p/q): more are accepted, and each output is as likely as without drafts.
    Sample,
}

impl AcceptRule {
    /// The chapters that have this rule and its draft model.
    pub fn chapters(self) -> &'static [usize] {
        match self {
            AcceptRule::Match => &[7, 8],
            AcceptRule::Sample => &[7, 8, 9],
        }
    }

    /// The new tokens. `rows`: the target's logits, `[vocab_size]` each, one row more than draft tokens.
    pub fn accept(self, draft: &Draft, rows: &[Vec<f32>], sampler: &mut Sampler) -> Vec<u32> {
        self.accept_observed(draft, rows, sampler, &mut |_, _| {})
    }

    /// The new tokens. With the sample rule, `seen` gets the probabilities of the target and of the draft model,
    /// `[vocab_size]` each, for every draft token that was examined.
    pub fn accept_observed(
        self,
        draft: &Draft,
        rows: &[Vec<f32>],
        sampler: &mut Sampler,
        seen: &mut dyn FnMut(&[f32], &[f32]),
    ) -> Vec<u32> {
        if self == AcceptRule::Match {
            return accept_matching(&draft.tokens, rows, &mut |row| sampler.sample(row));
        }
        let rows: Vec<Vec<f32>> = rows.iter().map(|row| sampler.probabilities(row)).collect();
        let new_tokens = accept_sampled(draft, &rows, &mut || sampler.uniform());
        // Each of them but the bonus token stands for a draft token that was examined.
        for (p, q) in rows.iter().zip(&draft.probabilities).take(new_tokens.len()) {
            seen(p, q);
        }
        new_tokens
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DraftCounters {
    pub target_passes: u64,
    pub drafted: u64,
    pub accepted: u64,
    /// New tokens, the target's own among them.
    pub new_tokens: u64,
}

impl DraftCounters {
    pub fn count(&mut self, draft: &Draft, new_tokens: usize) {
        self.target_passes += 1;
        self.drafted += draft.tokens.len() as u64;
        // A rule that gives nothing is wrong, and named where the sequence fails to grow.
        self.accepted += new_tokens.saturating_sub(1) as u64;
        self.new_tokens += new_tokens as u64;
    }

    /// The share of the draft tokens that were accepted, from 0 to 1; 0 if there were none.
    pub fn acceptance_rate(&self) -> f64 {
        self.accepted as f64 / self.drafted.max(1) as f64
    }

    /// Passes of the target for each generated token; 1 without drafts.
    pub fn target_passes_per_token(&self) -> f64 {
        self.target_passes as f64 / self.new_tokens.max(1) as f64
    }
}

pub enum DraftSource {
    /// A model, with a cache of its own, if it has one.
    Model {
        model: Box<Model>,
        /// `None`: it recomputes everything.
        cache: Option<Box<dyn AttentionCache>>,
    },
    /// The sequence itself.
    Lookup(PromptLookup),
}

impl DraftSource {
    /// Newest tokens that a look-up compares, at most.
    const LOOKUP: usize = 3;

    /// Looks drafts up in the sequence. `vocab_size` is the target's.
    pub fn lookup(vocab_size: usize) -> Self {
        DraftSource::Lookup(PromptLookup::new(vocab_size, Self::LOOKUP))
    }

    /// Drafts with this model, which gets an empty cache, and multiplies, keeps and reads rows as the target does.
    pub fn model(mut model: Model, target: &Model, kind: CacheKind, size: CacheSize) -> Result<Self, CacheError> {
        model.attention = target.attention;
        (model.kv_dtype, model.matmul_dtype) = (target.kv_dtype, target.matmul_dtype);
        let cache = kind.new_cache(model.cache_layout(), size)?;
        Ok(DraftSource::Model { model: Box::new(model), cache })
    }

    /// Empties the cache, for the next sequence.
    pub fn clear(&mut self) -> Result<(), CacheError> {
        match self {
            DraftSource::Model { cache: Some(cache), .. } => cache.rewind(cache.len()),
            DraftSource::Model { cache: None, .. } | DraftSource::Lookup(_) => Ok(()),
        }
    }

    /// Runs `work` with a drafter whose cache is empty. A draft token that must match is best the likeliest one; one
    /// that is accepted by its probability must be drawn, by `sampling`, with random numbers of its own.
    pub fn with_drafter<T>(
        &mut self,
        rule: AcceptRule,
        sampling: SamplingParams,
        work: impl FnOnce(&mut dyn Drafter) -> T,
    ) -> T {
        match self {
            DraftSource::Lookup(lookup) => work(lookup),
            DraftSource::Model { model, cache } => {
                let model = &mut SequenceModel::new(model, cache.as_deref_mut());
                match rule {
                    AcceptRule::Match => work(&mut DraftModel::new(model)),
                    AcceptRule::Sample => {
                        let sampling = SamplingParams { seed: sampling.seed.wrapping_add(1), ..sampling };
                        work(&mut SamplingDraftModel::new(model, Sampler::new(sampling)))
                    }
                }
            }
        }
    }
}
