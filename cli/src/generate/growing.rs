//! Outputs that grow together: in pages that one loop serves, or side by side in caches of their own.

use std::time::{Duration, Instant};

use anyhow::Result;
use page_by_page::cache::in_place::InPlace;
use page_by_page::cache::kind::CacheKind;
use page_by_page::cache::{PageId, Usage};
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::model::Model;
use page_by_page::model::tokenizer::{TextStream, Tokenizer};
use page_by_page::prefixes::Prefixes;
use page_by_page::prefixes::none::NoPrefixes;
use page_by_page::serving::schedule::{NextToken, StepLimits};
use page_by_page::serving::side_by_side::SideBySide;
use page_by_page::serving::{Generated, Serving, Step, Totals};

use super::Generate;
use super::several::{Asked, MOST_TOKENS, Pages};
use crate::generate::MOST_TEXTS;

/// An output on its way.
pub struct Story<'t> {
    /// The new part, in characters.
    pub stream: TextStream<'t>,
    /// New tokens so far.
    pub n_new: usize,
    /// Whether it takes part in steps now.
    pub runs: bool,
    /// The pages that it has now.
    pub pages: Vec<PageId>,
    /// `None` until it has finished.
    pub generated: Option<Generated>,
}

impl Story<'_> {
    /// Whether its prompt was computed, or is not going to be.
    pub fn has_begun(&self) -> bool {
        self.runs || self.n_new > 0 || self.generated.is_some()
    }

    /// What it held at its end.
    pub fn usage(&self) -> Usage {
        self.generated.as_ref().map_or(Usage::default(), |generated| generated.held.usage)
    }

    /// The pages that it had at its end.
    pub fn pages_at_end(&self) -> usize {
        self.generated.as_ref().map_or(0, |generated| generated.held.pages)
    }

    /// Tokens of its prompt that the prefix cache held.
    pub fn cached_tokens(&self) -> usize {
        self.generated.as_ref().map_or(0, |generated| generated.sequence.counters.cached)
    }
}

/// Passes of the model.
#[derive(Clone, Copy, Default)]
pub struct Passes {
    pub steps: u64,
    /// Tokens that they computed.
    pub rows: u64,
    /// Sequences that they answered, each with a new token or its end.
    pub answers: u64,
    pub time: Duration,
}

/// The loop that computes them.
enum Loop<'m> {
    InPages(Box<Serving<'m>>),
    SideBySide(SideBySide<'m>),
}

/// Outputs that grow together. The first has the number 0, which is also its place in the list.
pub struct Growing<'m> {
    steps: Loop<'m>,
    /// Those that begin one by one, each in a step of its own, last first.
    later: Vec<(Vec<u32>, usize, Sampler)>,
    pub stories: Vec<Story<'m>>,
    /// Passes that computed a prompt, whatever else they computed.
    pub prefill: Passes,
    /// All others: they compute the newest token of each text.
    pub decode: Passes,
}

impl<'m> Growing<'m> {
    /// Nothing has begun. `are_forks`: all have the same prompt and share its pages.
    pub fn new(
        options: &Generate,
        asked: &[Asked<'_>],
        (model, tokenizer): (&'m Model, &'m Tokenizer),
        (sampling, pages, are_forks): (Sampling, Option<&Pages>, bool),
    ) -> Result<Self> {
        let end_of_text = &model.config().eos_token_ids;
        let limits = StepLimits { tokens: MOST_TOKENS, sequences: MOST_TEXTS };
        let sampler = |text: &Asked<'_>| Sampler::new(Sampling { seed: text.seed, ..sampling });
        let mut later = Vec::new();
        let steps = match pages {
            Some(pages) => {
                let prefixes: Box<dyn Prefixes> = match options.several.prefix_cache {
                    true => Box::new(PrefixCache::new(pages.page_size)?),
                    false => Box::new(NoPrefixes::new(pages.page_size)?),
                };
                let mut serving = Serving::new(model, &pages.slab, prefixes, limits, end_of_text)?;
                if let Some(Asked { prompt, max_new_tokens, .. }) = asked.first().filter(|_| are_forks) {
                    serving.submit_samples(prompt.clone(), *max_new_tokens, asked.iter().map(sampler).collect())?;
                } else {
                    later = asked.iter().rev().map(|a| (a.prompt.clone(), a.max_new_tokens, sampler(a))).collect();
                }
                // With a prefix cache one sequence starts in a step, and gets the pages of those before it from the cache.
                let at_once = if options.several.prefix_cache { 0 } else { later.len() };
                for (prompt, max_new_tokens, sampler) in later.drain(later.len() - at_once..).rev() {
                    serving.submit(prompt, max_new_tokens, sampler)?;
                }
                Loop::InPages(Box::new(serving))
            }
            None => {
                let mut steps = SideBySide::new(model, limits, end_of_text);
                for text in asked {
                    let cache = options.cache_apart(model, text);
                    steps.submit(text.prompt.clone(), text.max_new_tokens, sampler(text), cache)?;
                }
                Loop::SideBySide(steps)
            }
        };
        let story = || Story { stream: tokenizer.stream(), n_new: 0, runs: false, pages: Vec::new(), generated: None };
        let stories = asked.iter().map(|_| story()).collect();
        Ok(Growing { steps, later, stories, prefill: Passes::default(), decode: Passes::default() })
    }

    pub fn is_done(&self) -> bool {
        self.later.is_empty()
            && match &self.steps {
                Loop::InPages(serving) => serving.is_done(),
                Loop::SideBySide(steps) => steps.is_done(),
            }
    }

    pub fn totals(&self) -> Totals {
        match &self.steps {
            Loop::InPages(serving) => serving.totals(),
            Loop::SideBySide(steps) => steps.totals(),
        }
    }

    /// One pass of the model; how many new tokens there are.
    pub fn step(&mut self) -> Result<usize> {
        let start = Instant::now();
        let step = match &mut self.steps {
            Loop::InPages(serving) => {
                if let Some((prompt, max_new_tokens, sampler)) = self.later.pop() {
                    serving.submit(prompt, max_new_tokens, sampler)?;
                }
                serving.step()?
            }
            Loop::SideBySide(steps) => steps.step(),
        };
        let is_new = |story: &Story<'_>| story.n_new == 0;
        let is_prefill =
            step.chunks.iter().any(|chunk| chunk.tokens > 1 || is_new(&self.stories[chunk.sequence.0 as usize]));
        let passes = if is_prefill { &mut self.prefill } else { &mut self.decode };
        passes.steps += u64::from(!step.chunks.is_empty());
        passes.rows += step.chunks.iter().map(|chunk| chunk.tokens as u64).sum::<u64>();
        passes.answers += (step.new_tokens.len() + step.ends.len()) as u64;
        passes.time += start.elapsed();
        self.note(step)
    }

    fn note(&mut self, step: Step) -> Result<usize> {
        for NextToken { sequence: text, token } in &step.new_tokens {
            let story = &mut self.stories[text.0 as usize];
            story.stream.push(*token)?;
            (story.n_new, story.runs) = (story.n_new + 1, true);
        }
        if let Loop::InPages(serving) = &self.steps {
            self.stories.iter_mut().for_each(|story| (story.runs, story.pages) = (false, Vec::new()));
            for (text, table) in serving.scheduler().running() {
                let story = &mut self.stories[text.id.0 as usize];
                (story.runs, story.pages) = (true, table.pages().to_vec());
            }
        }
        for generated in step.generated {
            let story = &mut self.stories[generated.sequence.id.0 as usize];
            story.stream.finish()?;
            (story.runs, story.generated) = (false, Some(generated));
        }
        Ok(step.new_tokens.len())
    }
}

impl Generate {
    /// A cache that knows nothing of the others; `None` where nothing is kept.
    fn cache_apart(&self, model: &Model, text: &Asked<'_>) -> Option<Box<dyn InPlace>> {
        let layout = model.kv_layout();
        match self.kv() {
            CacheKind::Flat => Some(Box::new(FlatCache::new(layout))),
            CacheKind::Contiguous => {
                Some(Box::new(ContiguousCache::new(layout, self.cache.capacity.unwrap_or(text.most()))))
            }
            CacheKind::Recompute | CacheKind::Paged => None,
        }
    }
}
