//! `--draft`: what drafts tokens ahead, and which of them are accepted.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};
use page_by_page::cache::in_place::InPlace;
use page_by_page::chapters::ch01_recompute::Recompute;
use page_by_page::chapters::ch08_speculative::{DraftModel, accept_matching};
use page_by_page::chapters::ch09_chance::{SamplingDraftModel, accept_sampled};
use page_by_page::decode::prompt_lookup::PromptLookup;
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::decode::{Cached, Draft, Drafter, RewindableModel};
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use serde::Serialize;

use crate::caches::{Kv, Room};
use crate::output::{count, thousands};
use crate::{model_dir, require};

/// Speculative decoding: what drafts, and how.
#[derive(Args)]
pub struct DraftOptions {
    /// Let a smaller model draft tokens for the model to check: a folder, storyteller-draft, or prompt-lookup, which copies
    /// what followed the newest tokens before
    #[arg(long = "draft", value_name = "DIR")]
    pub drafter: Option<PathBuf>,
    /// Tokens of a draft, at most
    #[arg(long, value_name = "K", default_value_t = 4, requires = "drafter")]
    pub draft_len: usize,
    /// Which draft tokens are accepted
    #[arg(long, value_name = "RULE", value_enum, default_value_t = AcceptRule::Match, requires = "drafter")]
    pub accept: AcceptRule,
}

/// Which draft tokens are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum AcceptRule {
    /// Those that the model chooses itself: the output is the same as without drafts
    Match,
    /// At random, with probability min(1, p/q): more are accepted, and each output is as likely as without drafts
    Sample,
}

/// Draft tokens, and how many were accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DraftCounters {
    /// Passes of the target.
    pub target_passes: u64,
    /// Draft tokens.
    pub drafted: u64,
    /// Draft tokens that were accepted.
    pub accepted: u64,
    /// Generated tokens, the target's own among them.
    pub generated: u64,
}

impl DraftCounters {
    /// Counts a draft, and the tokens that were generated with it.
    pub fn count(&mut self, draft: &Draft, generated: usize) {
        self.target_passes += 1;
        self.drafted += draft.tokens.len() as u64;
        self.accepted += generated as u64 - 1;
        self.generated += generated as u64;
    }

    /// The share of the draft tokens that were accepted, from 0 to 1; 0 if there were none.
    pub fn acceptance_rate(&self) -> f64 {
        self.accepted as f64 / self.drafted.max(1) as f64
    }

    /// Passes of the target for each generated token; 1 without drafts.
    pub fn target_passes_per_token(&self) -> f64 {
        self.target_passes as f64 / self.generated.max(1) as f64
    }
}

/// Drafts of one run, for a report.
#[derive(Serialize)]
pub struct DraftReport {
    /// What drafted.
    model: String,
    draft_len: usize,
    accept: AcceptRule,
    #[serde(flatten)]
    counters: DraftCounters,
    acceptance_rate: f64,
    target_passes_per_token: f64,
}

impl AcceptRule {
    /// The chapters that have this rule and its draft model.
    pub fn chapters(self) -> &'static [usize] {
        match self {
            AcceptRule::Match => &[7, 8],
            AcceptRule::Sample => &[7, 8, 9],
        }
    }

    /// The tokens that are generated.
    pub fn apply(self, draft: &Draft, rows: &[Vec<f32>], sampler: &mut Sampler) -> Vec<u32> {
        self.judge(draft, rows, sampler, &mut |_, _| {})
    }

    /// The tokens that are generated. With the sample rule, `seen` gets the probabilities of the target and of the draft
    /// model, `[vocab_size]` each, for every draft token that was examined.
    pub fn judge(
        self,
        draft: &Draft,
        rows: &[Vec<f32>],
        sampler: &mut Sampler,
        seen: &mut dyn FnMut(&[f32], &[f32]),
    ) -> Vec<u32> {
        if self == AcceptRule::Match {
            return accept_matching(&draft.tokens, rows, &mut |row| sampler.pick(row));
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

/// What drafts, opened and checked.
pub enum DraftSource {
    /// A model, with a cache of its own, if it has one.
    Model {
        /// The model.
        model: Box<Model>,
        /// `None`: it recomputes everything.
        cache: Option<Box<dyn InPlace>>,
    },
    /// The sequence itself.
    Lookup(PromptLookup),
}

/// Newest tokens that a look-up compares, at most.
const LOOKUP: usize = 3;

impl DraftOptions {
    /// The chapters whose code it runs.
    pub fn chapters(&self) -> &'static [usize] {
        if self.drafter.is_some() { self.accept.chapters() } else { &[] }
    }

    /// For a report.
    pub fn report(&self, counters: DraftCounters) -> DraftReport {
        DraftReport {
            model: self.drafter.as_ref().map(|name| name.display().to_string()).unwrap_or_default(),
            draft_len: self.draft_len,
            accept: self.accept,
            counters,
            acceptance_rate: counters.acceptance_rate(),
            target_passes_per_token: counters.target_passes_per_token(),
        }
    }

    /// Opens the drafter, if there is one, with room for `tokens`; refuses one that cannot draft for this target.
    pub fn open(
        &self,
        target: &Model,
        tokenizer: &Tokenizer,
        kv: Kv,
        tokens: usize,
        page_size: usize,
    ) -> Result<Option<DraftSource>> {
        let Some(name) = &self.drafter else {
            return Ok(None);
        };
        let vocab_size = target.config().vocab_size;
        // The target's rows and the draft's, and what is made of both on the way.
        let drafted = self.draft_len.min(tokens);
        let row_bytes = vocab_size * size_of::<f32>();
        let what = format!("drafting {} ahead", count(drafted, "token"));
        require::memory(&what, (drafted + 1).saturating_mul(4 * row_bytes), "give a shorter --draft-len")?;
        if name.as_os_str() == "prompt-lookup" {
            return Ok(Some(DraftSource::Lookup(PromptLookup::new(vocab_size, LOOKUP))));
        }
        let dir = model_dir(name);
        let mut model = Model::open(&dir)?;
        let config = model.config();
        if config.vocab_size != vocab_size {
            bail!(
                "the draft model {} has a vocabulary of {} tokens, the model one of {}: both must have the same; draft \
                 with a smaller model of the same family",
                name.display(),
                thousands(config.vocab_size as u64),
                thousands(vocab_size as u64)
            );
        }
        if let Some(token) = tokenizer.first_difference(&Tokenizer::open(&dir)?) {
            bail!(
                "the draft model {}'s vocabulary differs from the model's: token id {token} is not the same in both; \
                 draft with a smaller model of the same family",
                name.display()
            );
        }
        ensure!(
            tokens <= config.max_positions,
            "prompt and output are {} tokens, more than the draft model's {} positions; ask for fewer tokens, or draft with \
             a different model",
            thousands(tokens as u64),
            thousands(config.max_positions as u64)
        );
        model.set_attention(target.attention());
        model.set_row_format(target.row_format());
        let cache = kv.cache(model.kv_layout(), Room::for_tokens(tokens, page_size)?)?;
        Ok(Some(DraftSource::Model { model: Box::new(model), cache }))
    }
}

impl DraftReport {
    /// In a line.
    pub fn describe(&self) -> String {
        let DraftCounters { target_passes, drafted, accepted, generated } = self.counters;
        let passes = if target_passes == 1 { "1 pass".into() } else { format!("{} passes", thousands(target_passes)) };
        format!(
            "{} of {} accepted, {:.1} %; {passes} of the target for {}, {:.2} each",
            thousands(accepted),
            count(drafted, "draft token"),
            100.0 * self.acceptance_rate,
            count(generated, "token"),
            self.target_passes_per_token
        )
    }
}

impl DraftSource {
    /// Runs `work` with a drafter whose cache is empty. A draft token that must match is best the likeliest one; one that is
    /// accepted by its probability must be drawn, as `sampling` says, with random numbers of its own.
    pub fn work<T>(&mut self, rule: AcceptRule, sampling: Sampling, work: impl FnOnce(&mut dyn Drafter) -> T) -> T {
        match self {
            DraftSource::Lookup(lookup) => work(lookup),
            DraftSource::Model { model, cache } => {
                let (mut cached, mut recompute);
                let model: &mut dyn RewindableModel = match cache {
                    Some(cache) => {
                        cached = Cached::in_place(model, cache.as_mut());
                        &mut cached
                    }
                    None => {
                        recompute = Recompute::new(model);
                        &mut recompute
                    }
                };
                match rule {
                    AcceptRule::Match => work(&mut DraftModel::new(model)),
                    AcceptRule::Sample => {
                        let sampling = Sampling { seed: sampling.seed.wrapping_add(1), ..sampling };
                        work(&mut SamplingDraftModel::new(model, Sampler::new(sampling)))
                    }
                }
            }
        }
    }
}
