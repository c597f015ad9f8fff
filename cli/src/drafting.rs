//! `--draft`: who guesses ahead, and how the guesses are judged.

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

use super::kv::{Kv, Room};
use super::report::{count, thousands};
use super::{memory, model_dir};

/// Who guesses ahead.
#[derive(Args)]
pub struct Drafting {
    /// Let a smaller model guess ahead, for the model to check: a folder, storyteller-draft, or prompt-lookup for
    /// guesses from the text itself
    #[arg(long = "draft", value_name = "DIR")]
    pub drafter: Option<PathBuf>,
    /// Tokens to guess ahead, at most
    #[arg(long, value_name = "K", default_value_t = 4, requires = "drafter")]
    pub draft_len: usize,
    /// Which guesses are kept
    #[arg(long, value_name = "RULE", value_enum, default_value_t = Rule::Match, requires = "drafter")]
    pub accept: Rule,
}

/// Which guesses are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// Those that the model chooses itself: the text is the same as without guesses
    Match,
    /// By chance, min(1, p/q): more are kept, each text is as likely as without guesses
    Sample,
}

/// Guesses and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Guesses {
    /// Passes of the target.
    pub target_passes: u64,
    /// Tokens guessed.
    pub drafted: u64,
    /// Tokens guessed and kept.
    pub accepted: u64,
    /// New tokens, the target's own among them.
    pub new_tokens: u64,
}

impl Guesses {
    /// Takes note of a draft and of how many new tokens it led to.
    pub fn note(&mut self, draft: &Draft, new_tokens: usize) {
        self.target_passes += 1;
        self.drafted += draft.tokens.len() as u64;
        self.accepted += new_tokens as u64 - 1;
        self.new_tokens += new_tokens as u64;
    }

    /// The share of the guesses that were kept, from 0 to 1; 0 if there were none.
    pub fn acceptance_rate(&self) -> f64 {
        self.accepted as f64 / self.drafted.max(1) as f64
    }

    /// Passes of the target for each new token; 1 without guesses.
    pub fn target_passes_per_token(&self) -> f64 {
        self.target_passes as f64 / self.new_tokens.max(1) as f64
    }
}

/// Guesses as `--json` tells them.
#[derive(Serialize)]
pub struct Drafted {
    /// Who guessed.
    model: String,
    draft_len: usize,
    accept: Rule,
    #[serde(flatten)]
    guesses: Guesses,
    acceptance_rate: f64,
    target_passes_per_token: f64,
}

impl Rule {
    /// The chapters that have this rule and its draft model.
    pub fn chapters(self) -> &'static [usize] {
        match self {
            Rule::Match => &[7, 8],
            Rule::Sample => &[7, 8, 9],
        }
    }

    /// The new tokens.
    pub fn apply(self, draft: &Draft, rows: &[Vec<f32>], sampler: &mut Sampler) -> Vec<u32> {
        self.judge(draft, rows, sampler, &mut |_, _| {})
    }

    /// The new tokens. Where guesses are judged by their probabilities, `seen` is shown those of the target and those of
    /// the draft model, `[vocab_size]` each, for every guess that was looked at.
    pub fn judge(
        self,
        draft: &Draft,
        rows: &[Vec<f32>],
        sampler: &mut Sampler,
        seen: &mut dyn FnMut(&[f32], &[f32]),
    ) -> Vec<u32> {
        if self == Rule::Match {
            return accept_matching(&draft.tokens, rows, &mut |row| sampler.pick(row));
        }
        let rows: Vec<Vec<f32>> = rows.iter().map(|row| sampler.probabilities(row)).collect();
        let new_tokens = accept_sampled(draft, &rows, &mut || sampler.uniform());
        // Each new token but the bonus token stands for a guess that was looked at.
        for (p, q) in rows.iter().zip(&draft.probabilities).take(new_tokens.len()) {
            seen(p, q);
        }
        new_tokens
    }
}

/// Whoever guesses, opened and checked.
pub enum Guesser {
    /// A model, with a cache of its own, if it has one.
    Model {
        /// The model.
        model: Box<Model>,
        /// `None`: it computes everything again.
        cache: Option<Box<dyn InPlace>>,
    },
    /// The text itself.
    Lookup(PromptLookup),
}

/// Newest tokens that a look-up compares, at most.
const LOOKUP: usize = 3;

impl Drafting {
    /// The chapters whose code it runs.
    pub fn chapters(&self) -> &'static [usize] {
        if self.drafter.is_some() { self.accept.chapters() } else { &[] }
    }

    /// The guesses in a line.
    pub fn describe(&self, guesses: Guesses) -> String {
        format!(
            "{} of {} accepted, {:.1} %; {} of the target for {}, {:.2} each",
            thousands(guesses.accepted),
            count(guesses.drafted as usize, "token"),
            100.0 * guesses.acceptance_rate(),
            passes(guesses.target_passes),
            count(guesses.new_tokens as usize, "token"),
            guesses.target_passes_per_token()
        )
    }

    /// The guesses for `--json`.
    pub fn tell(&self, guesses: Guesses) -> Drafted {
        let model = self.drafter.as_ref().map(|name| name.display().to_string()).unwrap_or_default();
        Drafted {
            model,
            draft_len: self.draft_len,
            accept: self.accept,
            guesses,
            acceptance_rate: guesses.acceptance_rate(),
            target_passes_per_token: guesses.target_passes_per_token(),
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
    ) -> Result<Option<Guesser>> {
        let Some(name) = &self.drafter else {
            return Ok(None);
        };
        let vocab_size = target.config().vocab_size;
        // The target's rows and the draft's, and what is made of both on the way.
        let guesses = self.draft_len.min(tokens);
        let row_bytes = vocab_size * size_of::<f32>();
        let what = format!("guessing {} ahead", count(guesses, "token"));
        memory::require(&what, (guesses + 1).saturating_mul(4 * row_bytes), "give a shorter --draft-len")?;
        if name.as_os_str() == "prompt-lookup" {
            return Ok(Some(Guesser::Lookup(PromptLookup::new(vocab_size, LOOKUP))));
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
                "the draft model {} has another vocabulary than the model: token id {token} is not the same in both; \
                 draft with a smaller model of the same family",
                name.display()
            );
        }
        ensure!(
            tokens <= config.max_positions,
            "prompt and new tokens are {} tokens, more than the draft model's {} positions; ask for fewer new tokens, or \
             draft with another model",
            thousands(tokens as u64),
            thousands(config.max_positions as u64)
        );
        model.set_attention(target.attention());
        model.set_row_format(target.row_format());
        let cache = kv.cache(model.kv_layout(), Room::for_tokens(tokens, page_size)?)?;
        Ok(Some(Guesser::Model { model: Box::new(model), cache }))
    }
}

fn passes(number: u64) -> String {
    if number == 1 { "1 pass".into() } else { format!("{} passes", thousands(number)) }
}

impl Guesser {
    /// Lets a drafter work that begins with an empty memory. A guess that must match is best the likeliest token; one
    /// that is judged by its probability must be drawn, as `sampling` says, with random numbers of its own.
    pub fn work<T>(&mut self, rule: Rule, sampling: Sampling, work: impl FnOnce(&mut dyn Drafter) -> T) -> T {
        match self {
            Guesser::Lookup(lookup) => work(lookup),
            Guesser::Model { model, cache } => {
                let (mut cached, mut forgetful);
                let model: &mut dyn RewindableModel = match cache {
                    Some(cache) => {
                        cached = Cached::in_place(model, cache.as_mut());
                        &mut cached
                    }
                    None => {
                        forgetful = Recompute::new(model);
                        &mut forgetful
                    }
                };
                match rule {
                    Rule::Match => work(&mut DraftModel::new(model)),
                    Rule::Sample => {
                        let sampling = Sampling { seed: sampling.seed.wrapping_add(1), ..sampling };
                        work(&mut SamplingDraftModel::new(model, Sampler::new(sampling)))
                    }
                }
            }
        }
    }
}
