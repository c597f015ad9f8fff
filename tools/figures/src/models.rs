//! The bundled models.

use std::path::{Path, PathBuf};

use anyhow::Result;
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;

pub const STORYTELLER: &str = "storyteller";
pub const DRAFT: &str = "storyteller-draft";

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets").join(name)
}

pub fn model(name: &str) -> Result<Model> {
    Ok(Model::open(&folder(name))?)
}

/// The sampling of `generate` by default.
pub fn sampler(seed: u64) -> Sampler {
    Sampler::new(Sampling { temperature: 0.8, top_k: 0, top_p: 0.95, seed })
}

/// Both bundled models have it.
pub fn tokenizer() -> Result<Tokenizer> {
    Ok(Tokenizer::open(&folder(STORYTELLER))?)
}
