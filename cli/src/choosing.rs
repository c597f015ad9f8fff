//! `--temperature`, `--top-k`, `--top-p` and `--seed`: how a text's tokens are chosen.

use anyhow::Result;
use clap::Args;
use page_by_page::decode::sampler::Sampling;
use page_by_page::model::{ModelConfig, SamplingDefaults};

/// The seed of a text that names none.
pub const SEED: u64 = 23;

/// How tokens are chosen.
#[derive(Args)]
pub struct Choosing {
    /// Below 1 safer, above 1 wilder, 0 always the likeliest token [default: the model's, or 0.8]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Choose among the K likeliest tokens only, 0 among all [default: the model's, or 0]
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Choose among the likeliest tokens that together reach this probability [default: the model's, or 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Same seed, same story
    #[arg(long, value_name = "S", default_value_t = SEED)]
    pub seed: u64,
}

impl Choosing {
    /// What was asked for; else what the model's folder says; else ours.
    pub fn sampling(&self, config: &ModelConfig) -> Result<Sampling> {
        let asked = SamplingDefaults { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p };
        sampling(asked, self.seed, config)
    }
}

/// What was asked for; else what the model's folder says; else ours.
pub fn sampling(asked: SamplingDefaults, seed: u64, config: &ModelConfig) -> Result<Sampling> {
    let ours = Sampling { temperature: 0.8, top_k: 0, top_p: 0.95, seed };
    Ok(asked.over(config.sampling.over(ours)).check()?)
}
