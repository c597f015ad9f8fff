//! `bench caches`: the same texts through every cache.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::cache::kind::CacheKind;
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::experiments::generation::generate;
use page_by_page::model::Model;
use serde::Serialize;

use super::{Benchmark, Report, Times, table, turns};
use crate::output::thousands;
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

/// What one cache cost for one text.
#[derive(Serialize)]
struct Cost {
    tokens: usize,
    kv: String,
    rows_projected: u64,
    rows_copied: u64,
    bytes_held: usize,
    bytes_reserved: usize,
    seconds: f64,
    times_the_fastest: f64,
}

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
        let table = table(
            1,
            &costs,
            |cost| cost.tokens,
            &[
                ("cache", |cost| cost.kv.clone()),
                ("tokens", |cost| thousands(cost.tokens)),
                ("rows projected", |cost| thousands(cost.rows_projected)),
                ("rows copied", |cost| thousands(cost.rows_copied)),
                ("MiB held", |cost| in_mib(cost.bytes_held)),
                ("MiB reserved", |cost| in_mib(cost.bytes_reserved)),
                ("ms", |cost| format!("{:.1}", cost.seconds * 1e3)),
                ("× fastest", |cost| format!("{:.1}", cost.times_the_fastest)),
            ],
        );
        Report::new(table, &costs)
    }
}

fn in_mib(bytes: usize) -> String {
    format!("{:.2}", bytes as f64 / (1 << 20) as f64)
}

/// Writes a text with each cache, in turns.
fn compare(model: &Model, tokens: usize) -> Result<Vec<Cost>> {
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
        costs.push(Cost {
            tokens,
            kv: kind.to_string(),
            rows_projected: run.rows_projected,
            rows_copied: run.usage.rows_copied,
            bytes_held: run.usage.bytes / run.usage.slots.max(1) * run.usage.tokens,
            bytes_reserved: run.usage.bytes,
            seconds: times.best(),
            times_the_fastest: times.best() / shortest,
        });
    }
    Ok(costs)
}
