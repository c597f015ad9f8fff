//! `bench caches`: the same texts through every cache.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::Args;
use page_by_page::cache::kind::{CacheKind, CacheSize};
use page_by_page::decode::Limits;
use page_by_page::decode::generation::{Generated, Generation};
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::model::Model;
use serde::Serialize;

use super::Output;
use crate::output::{Progress, Table, print, thousands};
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
    #[command(flatten)]
    output: Output,
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

impl Caches {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        self.output.check()?;
        require::chapters(&[1, 2, 3, 4, 5, 6])?;
        let model = Model::open(&model_dir("storyteller".as_ref()))?;
        let positions = model.config().max_positions;
        for tokens in &self.tokens {
            ensure!((1..positions).contains(tokens), "a text of {tokens} tokens: expected 1 to {}", positions - 1);
        }
        // Recomputing does nearly all of the work.
        let work = |tokens: &usize| (tokens * tokens) as u64;
        let progress = Progress::new("writing", self.tokens.iter().map(work).sum());
        let mut costs = Vec::new();
        for tokens in &self.tokens {
            costs.extend(compare(&model, *tokens)?);
            progress.advance(work(tokens));
        }
        drop(progress);
        print(&table(&costs).render())?;
        self.output.write(&costs)
    }
}

/// Slots in a page: the default of `generate`.
const PAGE_SIZE: usize = 16;

/// Writes a text with each cache, in turns.
fn compare(model: &Model, tokens: usize) -> Result<Vec<Cost>> {
    let mut fastest = [const { None::<(Duration, Generated)> }; CacheKind::ALL.len()];
    let start = Instant::now();
    while fastest[0].is_none() || start.elapsed() < PATIENCE {
        for (kv, fastest) in CacheKind::ALL.into_iter().zip(&mut fastest) {
            let start = Instant::now();
            let written = write(model, kv, tokens)?;
            let time = start.elapsed();
            if fastest.as_ref().is_none_or(|(best, _)| time < *best) {
                *fastest = Some((time, written));
            }
        }
    }
    let runs: Vec<(Duration, Generated)> = fastest.into_iter().flatten().collect();
    let shortest = runs.iter().map(|(time, _)| *time).min().unwrap_or_default();
    let mut costs = Vec::new();
    for (kv, (time, written)) in CacheKind::ALL.into_iter().zip(&runs) {
        if written.tokens != runs[0].1.tokens {
            bail!(
                "{kv} writes another text than {}: its cache does not hold what was written to it",
                CacheKind::ALL[0]
            );
        }
        let usage = written.usage;
        costs.push(Cost {
            tokens,
            kv: kv.to_string(),
            rows_projected: written.rows_projected,
            rows_copied: usage.rows_copied,
            bytes_held: usage.bytes / usage.slots.max(1) * usage.tokens,
            bytes_reserved: usage.bytes,
            seconds: time.as_secs_f64(),
            times_the_fastest: time.as_secs_f64() / shortest.as_secs_f64(),
        });
    }
    Ok(costs)
}

fn write(model: &Model, kv: CacheKind, tokens: usize) -> Result<Generated> {
    let config = model.config();
    // The token that ends a text also begins the next. No text is cut short here: all are compared at one length.
    let prompt = &config.eos_token_ids[..1];
    let limits = Limits { max_new_tokens: tokens, end_of_text: &[] };
    let mut sampler = Sampler::new(Sampling { temperature: 0.8, top_k: 0, top_p: 0.95, seed: 1 });
    let mut cache = kv.cache(config.kv_layout(), CacheSize::for_tokens(config.max_positions, PAGE_SIZE)?)?;
    let writing = Generation { model, prompt, limits };
    Ok(writing.run(cache.as_deref_mut(), &mut |logits| sampler.pick(logits), &mut |_| {})?)
}

fn table(costs: &[Cost]) -> Table {
    let heading = ["cache", "tokens", "rows projected", "rows copied", "MiB held", "MiB reserved", "ms", "× fastest"];
    let mut table = Table::new(1, &heading);
    let mib = |bytes: usize| format!("{:.2}", bytes as f64 / (1 << 20) as f64);
    for (i, cost) in costs.iter().enumerate() {
        if i > 0 && i % CacheKind::ALL.len() == 0 {
            table.line([""]);
        }
        table.line([
            cost.kv.clone(),
            thousands(cost.tokens as u64),
            thousands(cost.rows_projected),
            thousands(cost.rows_copied),
            mib(cost.bytes_held),
            mib(cost.bytes_reserved),
            format!("{:.1}", cost.seconds * 1e3),
            format!("{:.1}", cost.times_the_fastest),
        ]);
    }
    table
}
