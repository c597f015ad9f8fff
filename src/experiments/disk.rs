//! Chapter 16: tokens computed for prompts that begin alike, in a first run and in one that starts with its pages.

use anyhow::{Result, bail, ensure};
use serde::Deserialize;

use super::bundled;
use crate::chapters::ch06_paged::PageSlab;
use crate::chapters::ch11_prefix_cache::PrefixTrie;
use crate::disk::memory_disk::MemoryDisk;
use crate::generation::sampler::{Sampler, SamplingParams};
use crate::model::Model;
use crate::model::tokenizer::Tokenizer;
use crate::serving::disk_tier::DiskTier;
use crate::serving::schedule::StepLimits;
use crate::serving::{Engine, EngineTotals};

/// The four prompts of the chapter, which begin alike.
const PROMPTS: &str = include_str!("../../assets/key.jsonl");

#[derive(Deserialize)]
struct Prompt {
    prompt: String,
    max_new_tokens: usize,
}

/// Generates for the four prompts twice, then with the pages left on the disk, and returns what both runs have counted.
pub fn restart() -> Result<[EngineTotals; 2]> {
    let (model, tokenizer) = (Model::open(&bundled("storyteller"))?, Tokenizer::open(&bundled("storyteller"))?);
    let disk = MemoryDisk::default();
    let (first, tokens) = run_with(&model, &tokenizer, disk.clone())?;
    let (second, again) = run_with(&model, &tokenizer, disk)?;
    ensure!(tokens == again, "the outputs differ when their pages come from the disk");
    Ok([first, second])
}

/// Generates with the pages that this disk has, and writes the new ones there. Returns the tokens of each sequence.
fn run_with(model: &Model, tokenizer: &Tokenizer, disk: MemoryDisk) -> Result<(EngineTotals, Vec<Vec<u32>>)> {
    const PAGE_SIZE: usize = 4;
    const N_PAGES: usize = 1024;
    let slab = PageSlab::new(model.cache_layout(), PAGE_SIZE, N_PAGES)?;
    let prefix_cache = Box::new(PrefixTrie::new(PAGE_SIZE)?);
    let mut tier = DiskTier::open(disk, model, PAGE_SIZE, 1 << 30)?;
    let limits = StepLimits { token_budget: 256, max_running: 16 };
    let mut engine = Engine::new(model, &slab, prefix_cache, limits, &model.config().eos_token_ids)?;
    let (mut prompts, mut waiting) = (Vec::new(), 0_usize);
    for line in PROMPTS.lines() {
        let Prompt { prompt, max_new_tokens } = serde_json::from_str(line)?;
        let prompt = tokenizer.encode(&prompt)?;
        waiting += usize::from(tier.prefetch(&mut engine, &prompt)?.is_some());
        prompts.push((prompt, max_new_tokens));
    }
    // A disk in memory is soon read: wait for all pages before the first request.
    while waiting > 0 {
        waiting = waiting.saturating_sub(tier.take_loaded(&mut engine, true)?.len());
    }
    for (prompt, max_new_tokens) in prompts {
        engine.submit(prompt, max_new_tokens, Sampler::new(SamplingParams::GREEDY))?;
    }
    let mut sequences = Vec::new();
    while !engine.is_done() {
        let step = engine.step()?;
        tier.store(&mut engine, &step.finished)?;
        for finished in step.finished {
            finished.outcome?;
            sequences.push((finished.sequence.id, finished.sequence.tokens));
        }
    }
    if let Some(error) = tier.failed() {
        bail!("the pages cannot be kept: {error}");
    }
    sequences.sort_by_key(|(id, _)| *id);
    Ok((engine.totals(), sequences.into_iter().map(|(_, tokens)| tokens).collect()))
}
