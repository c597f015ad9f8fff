//! A step of greedy speculative decoding with the bundled models, and what each model computes and forgets in it, by
//! `chapters::ch07_rewind`.

use page_by_page::chapters::ch01_recompute::argmax;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch08_speculative::{DraftModel, Speculation, accept_matching};
use page_by_page::generation::{CachedModel, Draft, RewindableModel};
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;

use crate::figures::prelude::*;

const PROMPT: &str = "The king lived in a great castle";
pub const K: usize = 3;

pub struct Step {
    pub text: String,
    pub tokens: Vec<String>,
    pub drafted: Vec<String>,
    /// The target's token for each of its rows, one more than drafted.
    pub choices: Vec<String>,
    pub new_tokens: Vec<String>,
    pub target: Memory,
    pub draft: Memory,
}

/// The tokens that a model computes in a step.
pub struct Memory {
    pub computed: Vec<String>,
    /// How many of them are in its cache after the step. It has forgotten the others.
    pub kept: usize,
}

impl Step {
    pub fn accepted(&self) -> usize {
        self.new_tokens.len() - 1
    }

    pub fn newest(&self) -> &String {
        &self.tokens[self.tokens.len() - 1]
    }
}

/// A step after the first, which computes the prompt. They are counted from 0.
pub fn step(place: usize) -> Result<Step> {
    let (models, tokenizer) = ([model(STORYTELLER)?, model(DRAFT)?], tokenizer()?);
    let words = |tokens: &[u32]| tokens.iter().map(|token| word(&tokenizer, *token)).collect::<Result<Vec<_>>>();
    let mut tokens = tokenizer.encode(PROMPT)?;
    let room = tokens.len() + (place + 1) * (K + 1);
    let cache = |model: &Model| ContiguousCache::new(model.config().kv_layout(), room);
    let [mut target_cache, mut draft_cache] = models.each_ref().map(cache);
    let mut target = CachedModel::new(&models[0], &mut target_cache);
    let mut draft = CachedModel::new(&models[1], &mut draft_cache);
    let mut steps = Vec::new();
    for _ in 0..=place {
        let (mut drafted, mut choices) = (Vec::new(), Vec::new());
        let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
            drafted = draft.tokens.clone();
            choices = rows.iter().map(|row| argmax(row)).collect();
            accept_matching(&draft.tokens, rows, &mut argmax)
        };
        let before = [&target, &draft].map(|model| (model.cached_len(), model.computed_tokens()));
        let mut drafter = DraftModel::new(&mut draft);
        let mut speculation = Speculation { target: &mut target, drafter: &mut drafter, accept: &mut accept };
        let new_tokens = speculation.step(&tokens, K, &[])?;
        let all = [&tokens[..], &drafted].concat();
        let memory = |model: &CachedModel, (held, before): (usize, u64)| -> Result<Memory> {
            let is_in_step = model.cached_len() == tokens.len() + new_tokens.len() - 1;
            ensure!(is_in_step, "both models hold all but the newest token");
            let computed = words(&all[held..held + (model.computed_tokens() - before) as usize])?;
            Ok(Memory { computed, kept: model.cached_len() - held })
        };
        steps.push(Step {
            text: tokenizer.decode(&tokens)?,
            tokens: words(&tokens)?,
            drafted: words(&drafted)?,
            choices: words(&choices)?,
            new_tokens: words(&new_tokens)?,
            target: memory(&target, before[0])?,
            draft: memory(&draft, before[1])?,
        });
        tokens.extend(new_tokens);
    }
    let step = steps.swap_remove(place);
    ensure!(step.target.computed.len() == K + 1, "the target computes the draft and the newest token only");
    Ok(step)
}

/// A token without the space before it. Pieces of words are refused, because they would look like words.
fn word(tokenizer: &Tokenizer, token: u32) -> Result<String> {
    let text = tokenizer.decode(&[token])?;
    let is_sign = text.chars().all(|sign| sign.is_ascii_punctuation());
    ensure!(is_sign || text.starts_with(|c: char| c == ' ' || c.is_uppercase()), "{text:?} is no whole word");
    Ok(text.trim_start().to_owned())
}

pub fn italic(words: &[String]) -> String {
    format!("<em>{}</em>", joined(words, " "))
}
