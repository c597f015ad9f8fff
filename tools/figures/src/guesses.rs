//! Speculative decoding with the bundled models, and what both of them read and forget meanwhile.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use page_by_page::cache::CacheError;
use page_by_page::chapters::ch01_recompute::argmax;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch08_speculative::{DraftModel, Speculation, accept_matching};
use page_by_page::chapters::ch09_chance::{SamplingDraftModel, accept_sampled, share_to_expect};
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::decode::{Accept, Cached, Draft, Drafter, LanguageModel, Limits, RewindableModel};
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::model::{Model, StepError};
use serde::Serialize;

use crate::runs::bundled;

pub const TARGET: &str = "storyteller";
pub const DRAFT: &str = "storyteller-draft";

/// A step of greedy speculation, in words.
#[derive(Serialize)]
pub struct Step {
    /// The tokens of the text before it.
    pub text: Vec<String>,
    pub drafted: Vec<String>,
    /// What the target would choose from each of its rows, one more than drafted.
    pub choices: Vec<String>,
    pub new_tokens: Vec<String>,
    pub target: Memory,
    pub draft: Memory,
}

/// What a model did with its memory in a step.
#[derive(Default, Serialize)]
pub struct Memory {
    /// Tokens read in each pass, in order.
    pub passes: Vec<usize>,
    /// What it forgot, in the order of the text.
    pub forgotten: Vec<String>,
    /// Tokens that it remembers after the step.
    pub remembered: usize,
}

impl Step {
    /// Guesses that were kept.
    pub fn accepted(&self) -> usize {
        self.new_tokens.len() - 1
    }
}

/// The first `n` steps after a prompt, with `k` guesses in each.
pub fn steps(prompt: &str, k: usize, n: usize) -> Result<Vec<Step>> {
    let models = Models::open()?;
    let words = |tokens: &[u32]| tokens.iter().map(|token| models.word(*token)).collect::<Result<Vec<_>>>();
    let mut text = models.tokenizer.encode(prompt)?;
    let room = text.len() + n * (k + 1);
    let mut caches =
        [&models.target, &models.draft].map(|model| ContiguousCache::new(model.config().kv_layout(), room));
    let [target_cache, draft_cache] = &mut caches;
    let logs = [Log::default(), Log::default()];
    let mut target =
        Watched { model: Cached::new(&models.target, target_cache), text: Vec::new(), log: logs[0].clone() };
    let mut small = Watched { model: Cached::new(&models.draft, draft_cache), text: Vec::new(), log: logs[1].clone() };
    let mut steps = Vec::new();
    for _ in 0..n {
        let (mut drafted, mut choices) = (Vec::new(), Vec::new());
        let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
            drafted = draft.tokens.clone();
            choices = rows.iter().map(|row| argmax(row)).collect();
            accept_matching(&draft.tokens, rows, &mut argmax)
        };
        let mut drafter = DraftModel::new(&mut small);
        let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
        let new_tokens = speculation.step(&text, k, &[])?;
        let memory = |log: &Log, remembered| -> Result<Memory> {
            let (passes, forgotten) = log.take();
            Ok(Memory { passes, forgotten: words(&forgotten)?, remembered })
        };
        steps.push(Step {
            text: words(&text)?,
            drafted: words(&drafted)?,
            choices: words(&choices)?,
            new_tokens: words(&new_tokens)?,
            target: memory(&logs[0], target.remembered())?,
            draft: memory(&logs[1], small.remembered())?,
        });
        text.extend(new_tokens);
        ensure!(target.text == small.text && target.text == text[..text.len() - 1], "both remember all but the newest");
    }
    Ok(steps)
}

/// What a run of speculation counts.
#[derive(Clone, Copy, Default, Serialize)]
pub struct Counts {
    pub passes: u64,
    pub drafted: u64,
    pub accepted: u64,
    pub new_tokens: u64,
}

impl Counts {
    fn note(&mut self, draft: &Draft, new_tokens: &[u32]) {
        self.passes += 1;
        self.drafted += draft.tokens.len() as u64;
        self.accepted += new_tokens.len() as u64 - 1;
        self.new_tokens += new_tokens.len() as u64;
    }
}

/// Writes a text of `n` new tokens after each prompt, greedily, with `k` guesses at a time.
pub fn count(models: &Models, prompts: &[&str], k: usize, n: usize) -> Result<Counts> {
    let mut counts = Counts::default();
    for prompt in prompts {
        let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
            let new_tokens = accept_matching(&draft.tokens, rows, &mut argmax);
            counts.note(draft, &new_tokens);
            new_tokens
        };
        write(models, prompt, k, n, None, &mut accept)?;
    }
    Ok(counts)
}

/// The same by chance, each prompt with a seed of its own, as `bench speculation --temperature` does it: by the match
/// rule, then by the sample rule, with the guesses that the latter is to accept.
pub fn count_by_chance(
    models: &Models,
    prompts: &[&str],
    temperature: f32,
    k: usize,
    n: usize,
) -> Result<(Counts, Counts, f64)> {
    let (mut matched, mut sampled, mut to_expect) = (Counts::default(), Counts::default(), 0.0);
    for (seed, prompt) in (0..).zip(prompts) {
        let sampling = Sampling { temperature, top_k: 0, top_p: 0.95, seed };
        let mut sampler = Sampler::new(sampling);
        let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
            let new_tokens = accept_matching(&draft.tokens, rows, &mut |row| sampler.pick(row));
            matched.note(draft, &new_tokens);
            new_tokens
        };
        write(models, prompt, k, n, None, &mut accept)?;

        let mut sampler = Sampler::new(sampling);
        let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
            let rows: Vec<Vec<f32>> = rows.iter().map(|row| sampler.probabilities(row)).collect();
            let new_tokens = accept_sampled(draft, &rows, &mut || sampler.uniform());
            let looked_at = rows.iter().zip(&draft.probabilities).take(new_tokens.len());
            to_expect += looked_at.map(|(p, q)| share_to_expect(p, q)).sum::<f64>();
            sampled.note(draft, &new_tokens);
            new_tokens
        };
        let guesses = Sampling { seed: seed + 1, ..sampling };
        write(models, prompt, k, n, Some(guesses), &mut accept)?;
    }
    Ok((matched, sampled, to_expect))
}

/// Writes a text of `n` new tokens with the bundled models and empty caches. The draft model guesses its likeliest token,
/// or draws its guesses as `drawn` says.
fn write(
    models: &Models,
    prompt: &str,
    k: usize,
    n: usize,
    drawn: Option<Sampling>,
    accept: &mut Accept<'_>,
) -> Result<()> {
    let prompt = models.tokenizer.encode(prompt)?;
    let mut caches =
        [&models.target, &models.draft].map(|model| ContiguousCache::new(model.config().kv_layout(), prompt.len() + n));
    let [target_cache, draft_cache] = &mut caches;
    let (mut target, mut small) = (Cached::new(&models.target, target_cache), Cached::new(&models.draft, draft_cache));
    let mut generate = |drafter: &mut dyn Drafter| {
        let limits = Limits { max_new_tokens: n, end_of_text: &[] };
        Speculation { target: &mut target, drafter, accept }.generate(&prompt, limits, k, &mut |_| {})
    };
    match drawn {
        None => generate(&mut DraftModel::new(&mut small))?,
        Some(sampling) => generate(&mut SamplingDraftModel::new(&mut small, Sampler::new(sampling)))?,
    };
    Ok(())
}

/// The bundled models.
pub struct Models {
    target: Model,
    draft: Model,
    tokenizer: Tokenizer,
}

impl Models {
    pub fn open() -> Result<Self> {
        let [target, draft] = [TARGET, DRAFT].map(|name| Model::open(&bundled(name)));
        Ok(Models { target: target?, draft: draft?, tokenizer: Tokenizer::open(&bundled(TARGET))? })
    }

    /// A token without the space before it. Pieces of words are refused: nobody could tell them from words.
    fn word(&self, token: u32) -> Result<String> {
        let text = self.tokenizer.decode(&[token])?;
        let is_first = || text.chars().next().is_some_and(char::is_uppercase);
        let is_sign = || text.chars().all(|sign| sign.is_ascii_punctuation());
        let word = text.strip_prefix(' ').or((is_first() || is_sign()).then_some(&text[..]));
        Ok(word.with_context(|| format!("{text:?} is no whole word"))?.to_owned())
    }
}

/// The tokens of each pass, and the tokens forgotten.
#[derive(Clone, Default)]
struct Log(Rc<RefCell<(Vec<usize>, Vec<u32>)>>);

impl Log {
    fn take(&self) -> (Vec<usize>, Vec<u32>) {
        self.0.take()
    }
}

/// A model that notes what it reads and forgets.
struct Watched<'a> {
    model: Cached<'a>,
    /// What it remembers.
    text: Vec<u32>,
    log: Log,
}

impl LanguageModel for Watched<'_> {
    fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
        Ok(self.last_logits(tokens, 1)?.remove(0))
    }
}

impl RewindableModel for Watched<'_> {
    fn remembered(&self) -> usize {
        self.model.remembered()
    }

    fn last_logits(&mut self, tokens: &[u32], n: usize) -> Result<Vec<Vec<f32>>, StepError> {
        let rows = self.model.last_logits(tokens, n)?;
        self.log.0.borrow_mut().0.push(tokens.len() - self.text.len());
        self.text = tokens.to_vec();
        Ok(rows)
    }

    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        self.model.rewind(n)?;
        let forgotten = self.text.split_off(self.text.len() - n);
        self.log.0.borrow_mut().1.splice(0..0, forgotten);
        Ok(())
    }
}
