//! A few steps of greedy speculative decoding with the bundled models, and what each model computes and forgets in them, by
//! `chapters::ch07_rewind`.

use anyhow::{Result, ensure};
use page_by_page::cache::CacheError;
use page_by_page::chapters::ch01_recompute::argmax;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch08_speculative::{DraftModel, Speculation, accept_matching};
use page_by_page::decode::{Cached, Draft, LanguageModel, RewindableModel};
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::model::{Model, StepError};

use crate::models::{DRAFT, STORYTELLER, model, tokenizer};
use crate::words::joined;

pub const PROMPT: &str = "The king lived in a great castle";
pub const K: usize = 3;

pub struct Step {
    /// The tokens of the sequence before it.
    pub tokens: Vec<String>,
    pub drafted: Vec<String>,
    /// The target's token for each of its rows, one more than drafted.
    pub choices: Vec<String>,
    pub new_tokens: Vec<String>,
    pub target: Memory,
    pub draft: Memory,
}

/// What a model did with its cache in a step.
pub struct Memory {
    pub passes: Vec<usize>,
    pub forgotten: Vec<String>,
}

/// A step after the first, which computes the prompt.
pub fn step(place: usize) -> Result<Step> {
    let step = steps(place + 1)?.swap_remove(place);
    ensure!(step.target.passes == [K + 1], "the target computes the draft and the newest token only");
    Ok(step)
}

impl Step {
    pub fn accepted(&self) -> usize {
        self.new_tokens.len() - 1
    }

    pub fn newest(&self) -> &String {
        &self.tokens[self.tokens.len() - 1]
    }
}

pub fn italic(words: &[String]) -> String {
    format!("<em>{}</em>", joined(words, " "))
}

pub fn passes(n: usize) -> String {
    if n == 1 { "1 pass".into() } else { format!("{n} passes") }
}

pub fn text(words: &[String]) -> String {
    let mut text = String::new();
    for word in words {
        if !text.is_empty() && word.chars().any(char::is_alphanumeric) {
            text.push(' ');
        }
        text.push_str(word);
    }
    text
}

pub fn steps(n: usize) -> Result<Vec<Step>> {
    let (models, tokenizer) = ([model(STORYTELLER)?, model(DRAFT)?], tokenizer()?);
    let words = |tokens: &[u32]| tokens.iter().map(|token| word(&tokenizer, *token)).collect::<Result<Vec<_>>>();
    let mut tokens = tokenizer.encode(PROMPT)?;
    let room = tokens.len() + n * (K + 1);
    let cache = |model: &Model| ContiguousCache::new(model.config().kv_layout(), room);
    let [mut target_cache, mut draft_cache] = [&models[0], &models[1]].map(cache);
    let mut target = Watched::new(Cached::new(&models[0], &mut target_cache));
    let mut small = Watched::new(Cached::new(&models[1], &mut draft_cache));
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
        let new_tokens = speculation.step(&tokens, K, &[])?;
        let memory = |model: &mut Watched| -> Result<Memory> {
            let forgotten = words(&std::mem::take(&mut model.forgotten))?;
            Ok(Memory { passes: std::mem::take(&mut model.passes), forgotten })
        };
        steps.push(Step {
            tokens: words(&tokens)?,
            drafted: words(&drafted)?,
            choices: words(&choices)?,
            new_tokens: words(&new_tokens)?,
            target: memory(&mut target)?,
            draft: memory(&mut small)?,
        });
        tokens.extend(new_tokens);
        let held = &tokens[..tokens.len() - 1];
        ensure!(target.tokens == held && small.tokens == held, "both models hold all but the newest token");
    }
    Ok(steps)
}

/// A token without the space before it. Pieces of words are refused, because they would look like words.
fn word(tokenizer: &Tokenizer, token: u32) -> Result<String> {
    let text = tokenizer.decode(&[token])?;
    let is_sign = text.chars().all(|sign| sign.is_ascii_punctuation());
    ensure!(is_sign || text.starts_with(|c: char| c == ' ' || c.is_uppercase()), "{text:?} is no whole word");
    Ok(text.trim_start().to_owned())
}

/// A model that notes what it computes and forgets.
struct Watched<'a> {
    model: Cached<'a>,
    /// Those in its cache.
    tokens: Vec<u32>,
    /// Since the step began: the tokens of each pass, and the tokens that were forgotten.
    passes: Vec<usize>,
    forgotten: Vec<u32>,
}

impl<'a> Watched<'a> {
    fn new(model: Cached<'a>) -> Self {
        Watched { model, tokens: Vec::new(), passes: Vec::new(), forgotten: Vec::new() }
    }
}

impl LanguageModel for Watched<'_> {
    fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
        Ok(self.last_logits(tokens, 1)?.remove(0))
    }
}

impl RewindableModel for Watched<'_> {
    fn cached_len(&self) -> usize {
        self.model.cached_len()
    }

    fn last_logits(&mut self, tokens: &[u32], n: usize) -> Result<Vec<Vec<f32>>, StepError> {
        let rows = self.model.last_logits(tokens, n)?;
        self.passes.push(tokens.len() - self.tokens.len());
        self.tokens = tokens.to_vec();
        Ok(rows)
    }

    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        self.model.rewind(n)?;
        let forgotten = self.tokens.split_off(self.tokens.len() - n);
        self.forgotten.splice(0..0, forgotten);
        Ok(())
    }
}
