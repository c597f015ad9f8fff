//! The bundled models.

use anyhow::Result;
use page_by_page::experiments::bundled;
use page_by_page::generation::sampler::{Sampler, SamplingParams};
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;

pub const STORYTELLER: &str = "storyteller";
pub const DRAFT: &str = "storyteller-draft";

pub fn model(name: &str) -> Result<Model> {
    Ok(Model::open(&bundled(name))?)
}

/// The sampling of `generate` by default.
pub fn sampler(seed: u64) -> Sampler {
    Sampler::new(SamplingParams { seed, ..SamplingParams::DEFAULT })
}

/// Both bundled models have it.
pub fn tokenizer() -> Result<Tokenizer> {
    Ok(Tokenizer::open(&bundled(STORYTELLER))?)
}
