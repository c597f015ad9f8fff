//! Chapters 8 and 9: passes of the target for a few sequences, without drafts and with them, and how many draft tokens
//! are accepted.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{PAGE_SIZE, PROMPTS, bundled};
use crate::cache_kind::{CacheKind, CacheSize};
use crate::chapters::ch09_rejection::expected_acceptance;
use crate::generation::drafting::{AcceptRule, DraftCounters, DraftSource};
use crate::generation::one_sequence::Generation;
use crate::generation::sampler::{Sampler, SamplingParams};
use crate::generation::{Draft, Drafter, StopConditions};
use crate::model::tokenizer::Tokenizer;
use crate::model::{Model, StepError};

/// Sequences to generate with one target.
pub struct Stories<'m> {
    pub target: &'m Model,
    pub cache: CacheKind,
    pub prompts: &'m [Vec<u32>],
    pub new_tokens: usize,
    /// Each sequence has a seed of its own, counted from 0.
    pub temperature: f32,
}

pub struct Drafts<'s> {
    pub source: &'s mut DraftSource,
    /// Tokens of a draft, at most.
    pub k: usize,
    pub accept: AcceptRule,
}

/// What generating the sequences has counted.
#[derive(Default)]
pub struct Drafted {
    pub counters: DraftCounters,
    /// Draft tokens that the sample rule should accept, by the probabilities of those that it examined.
    pub to_expect: f64,
    pub tokens: Vec<Vec<u32>>,
    /// Time in the drafter: for its drafts, and for bringing its cache to the new tokens.
    pub drafting: Duration,
}

struct Timed<'d> {
    drafter: &'d mut dyn Drafter,
    spent: &'d mut Duration,
}

impl Timed<'_> {
    fn time<T>(&mut self, work: impl FnOnce(&mut dyn Drafter) -> T) -> T {
        let start = Instant::now();
        let result = work(self.drafter);
        *self.spent += start.elapsed();
        result
    }
}

impl Drafter for Timed<'_> {
    fn draft(&mut self, tokens: &[u32], k: usize) -> Result<Draft, StepError> {
        self.time(|drafter| drafter.draft(tokens, k))
    }

    fn sync_cache(&mut self, tokens: &[u32]) -> Result<(), StepError> {
        self.time(|drafter| drafter.sync_cache(tokens))
    }
}

impl Stories<'_> {
    /// Generates all of them, one after the other; `None` is without drafts.
    pub fn generate(&self, mut drafts: Option<Drafts<'_>>) -> Result<Drafted> {
        let mut drafted = Drafted::default();
        for (seed, prompt) in (0..).zip(self.prompts) {
            let sampling = SamplingParams { temperature: self.temperature, seed, ..SamplingParams::DEFAULT };
            let size = CacheSize::for_tokens(prompt.len() + self.new_tokens, PAGE_SIZE)?;
            let mut cache = self.cache.new_cache(self.target.cache_layout(), size)?;
            let stop = StopConditions { max_new_tokens: self.new_tokens, end_of_text: &[] };
            let generation = Generation { model: self.target, prompt, stop, is_cancelled: None, checker: None };
            let mut sampler = Sampler::new(sampling);
            let Drafted { counters, to_expect, tokens, drafting } = &mut drafted;
            let generated = match &mut drafts {
                None => {
                    let mut pick = |row: &[f32]| {
                        counters.count(&Default::default(), 1);
                        sampler.sample(row)
                    };
                    generation.run(cache.as_deref_mut(), &mut pick, &mut |_| {})?
                }
                Some(Drafts { source, k, accept }) => {
                    source.clear()?;
                    source.with_drafter(*accept, sampling, |drafter| {
                        let drafter = &mut Timed { drafter, spent: drafting };
                        let mut judge = |draft: &_, rows: &[Vec<f32>]| {
                            let mut seen = |p: &[f32], q: &[f32]| *to_expect += expected_acceptance(p, q);
                            let new_tokens = accept.accept_observed(draft, rows, &mut sampler, &mut seen);
                            counters.count(draft, new_tokens.len());
                            new_tokens
                        };
                        generation.run_with_drafts(cache.as_deref_mut(), drafter, *k, &mut judge, &mut |_| {})
                    })?
                }
            };
            tokens.push(generated.tokens);
        }
        Ok(drafted)
    }
}

/// The bundled models, and the prompts of the book's four stories.
pub struct Bundled {
    target: Model,
    source: DraftSource,
    pub prompts: Vec<Vec<u32>>,
}

impl Bundled {
    pub const NEW_TOKENS: usize = 100;

    pub fn open() -> Result<Self> {
        let [target, draft] = ["storyteller", "storyteller-draft"].map(|name| Model::open(&bundled(name)));
        let (target, tokenizer) = (target?, Tokenizer::open(&bundled("storyteller"))?);
        let prompts = PROMPTS.map(|prompt| tokenizer.encode(prompt)).into_iter().collect::<Result<Vec<_>, _>>()?;
        let longest = prompts.iter().map(Vec::len).max().context("no prompts")?;
        let size = CacheSize::for_tokens(longest + Self::NEW_TOKENS, PAGE_SIZE)?;
        let source = DraftSource::model(draft?, &target, CacheKind::Contiguous, size)?;
        Ok(Bundled { target, source, prompts })
    }

    /// Generates the stories with drafts of `k` tokens, or with `k` 0 without drafts.
    pub fn stories(&mut self, temperature: f32, k: usize, accept: AcceptRule) -> Result<Drafted> {
        let Bundled { target, source, prompts } = self;
        let (cache, new_tokens) = (CacheKind::Contiguous, Self::NEW_TOKENS);
        let drafts = (k > 0).then_some(Drafts { source, k, accept });
        Stories { target, cache, prompts, new_tokens, temperature }.generate(drafts)
    }
}
