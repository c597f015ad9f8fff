//! `bench caches`: the same sequences through every cache.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::cache::kind::CacheKind;
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::experiments::bundled;
use page_by_page::experiments::generation::generate;
use page_by_page::model::Model;

use super::{Report, Row, Times, turns};
use crate::require;

/// Generate the same sequences with every cache, and compare what that costs
///
/// The story teller generates each sequence from nothing but the token that begins every document. The contiguous cache reserves
/// room for the longest sequence that the model can generate, as one must who does not know when it ends.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page bench caches --tokens 64,256")]
pub struct Caches {
    /// Tokens in each sequence, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "64,128,256,512")]
    tokens: Vec<usize>,
}

/// A sequence is generated again until this much time was spent on it, and the fastest counts.
const PATIENCE: Duration = Duration::from_millis(500);

impl Caches {
    pub fn run(self) -> Result<Report> {
        require::chapters(&[1, 2, 3, 4, 5, 6])?;
        let model = Model::open(&bundled("storyteller"))?;
        let positions = model.config().max_positions;
        for tokens in &self.tokens {
            require::in_range(*tokens as u64, positions as u64 - 1, "--tokens", "the model")?;
        }
        let mut costs = Vec::new();
        for tokens in &self.tokens {
            costs.extend(compare(&model, *tokens)?);
        }
        Report::table(1, CacheKind::ALL.len(), &costs)
    }
}

fn compare(model: &Model, tokens: usize) -> Result<Vec<Row>> {
    let config = model.config();
    // The token that ends a text also begins the next. No sequence is cut short here: all are compared at one length.
    let prompt = &config.eos_token_ids[..1];
    let mut times = CacheKind::ALL.map(|_| Times::default());
    let mut runs = Vec::new();
    for _ in turns("generating", 1..usize::MAX, PATIENCE) {
        runs.clear();
        for (kind, times) in CacheKind::ALL.into_iter().zip(&mut times) {
            let mut sampler = Sampler::new(Sampling { temperature: 0.8, top_k: 0, top_p: 0.95, seed: 1 });
            let cache = (kind, config.max_positions);
            runs.push(times.of(|| generate(model, cache, prompt, tokens, &mut |logits| sampler.pick(logits)))?);
        }
    }
    let shortest = times.iter().map(Times::best).fold(f64::INFINITY, f64::min);
    let mut costs = Vec::new();
    for ((kind, run), times) in CacheKind::ALL.into_iter().zip(&runs).zip(&times) {
        ensure!(
            run.tokens == runs[0].tokens,
            "{kind} generates other tokens than {}: its cache does not hold what was written to it",
            CacheKind::ALL[0]
        );
        let bytes_held = run.usage.bytes / run.usage.slots.max(1) * run.usage.tokens;
        let [held, reserved] = [bytes_held, run.usage.bytes].map(|bytes| bytes as f64 / (1 << 20) as f64);
        let (ms, over_fastest) = (times.best() * 1e3, times.best() / shortest);
        costs.push(
            Row::default()
                .text("cache", kind)
                .count("tokens", tokens)
                .count("rows projected", run.rows_projected)
                .count("rows copied", run.usage.rows_copied)
                .cell("MiB held", held, format!("{held:.2}"))
                .cell("MiB reserved", reserved, format!("{reserved:.2}"))
                .cell("ms", ms, format!("{ms:.1}"))
                .cell("× fastest", over_fastest, format!("{over_fastest:.1}")),
        );
    }
    Ok(costs)
}
