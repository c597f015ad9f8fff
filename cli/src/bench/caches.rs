//! `bench caches`: the same texts through every cache.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::cache::kind::CacheKind;
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::experiments::generation::generate;
use page_by_page::model::Model;

use super::{Benchmark, Report, Row, Times, table, turns};
use crate::{model_dir, require};

/// Write the same texts with every cache, and compare what that costs
///
/// The story teller writes each text from nothing but the token that begins all texts. The contiguous cache reserves
/// room for the longest text that the model can write, as one must who does not know when it ends.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page bench caches --tokens 64,256")]
pub struct Caches {
    /// Tokens in each text, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "64,128,256,512")]
    tokens: Vec<usize>,
}

/// A text is written again until this much time was spent on it, and the fastest counts.
const PATIENCE: Duration = Duration::from_millis(500);

impl Benchmark for Caches {
    fn run(self) -> Result<Report> {
        require::chapters(&[1, 2, 3, 4, 5, 6])?;
        let model = Model::open(&model_dir("storyteller".as_ref()))?;
        let positions = model.config().max_positions;
        for tokens in &self.tokens {
            ensure!((1..positions).contains(tokens), "a text of {tokens} tokens: expected 1 to {}", positions - 1);
        }
        let mut costs = Vec::new();
        for tokens in &self.tokens {
            costs.extend(compare(&model, *tokens)?);
        }
        Report::new(table(1, CacheKind::ALL.len(), &costs), &costs)
    }
}

fn in_mib(bytes: usize) -> String {
    format!("{:.2}", bytes as f64 / (1 << 20) as f64)
}

/// Writes a text with each cache, in turns.
fn compare(model: &Model, tokens: usize) -> Result<Vec<Row>> {
    let config = model.config();
    // The token that ends a text also begins the next. No text is cut short here: all are compared at one length.
    let prompt = &config.eos_token_ids[..1];
    let mut times = CacheKind::ALL.map(|_| Times::default());
    let mut runs = Vec::new();
    for _ in turns("writing", 1..usize::MAX, PATIENCE) {
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
        let first = CacheKind::ALL[0];
        ensure!(
            run.tokens == runs[0].tokens,
            "{kind} writes another text than {first}: its cache does not hold what was written to it"
        );
        let bytes_held = run.usage.bytes / run.usage.slots.max(1) * run.usage.tokens;
        let (seconds, over_fastest) = (times.best(), times.best() / shortest);
        costs.push(
            Row::default()
                .number("kv", kind.to_string())
                .cell("cache", kind.to_string())
                .count("tokens", "tokens", tokens)
                .count("rows_projected", "rows projected", run.rows_projected)
                .count("rows_copied", "rows copied", run.usage.rows_copied)
                .number("bytes_held", bytes_held)
                .cell("MiB held", in_mib(bytes_held))
                .number("bytes_reserved", run.usage.bytes)
                .cell("MiB reserved", in_mib(run.usage.bytes))
                .number("seconds", seconds)
                .cell("ms", format!("{:.1}", seconds * 1e3))
                .number("times_the_fastest", over_fastest)
                .cell("× fastest", format!("{over_fastest:.1}")),
        );
    }
    Ok(costs)
}
