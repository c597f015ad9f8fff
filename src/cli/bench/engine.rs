//! `bench engine`: is the model as fast as the memory lets it be?
//!
//! A decode step uses every weight once, so it cannot be faster than reading them. The yardstick is the plainest way to
//! read them: adding the same bytes up, with the same threads, in turns with the decode steps, so that whatever else
//! the machine does hits both. Prefills, which compute many rows with each weight, take turns with them too.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::model::Model;
use rayon::prelude::*;
use serde::Serialize;

use super::Output;
use crate::cli::kv::require_chapters;
use crate::cli::progress::Progress;
use crate::cli::report::{Table, count, rate, thousands};
use crate::cli::{memory, model_dir, print};

/// Compare the model's speed with the memory's
///
/// A decode step reads all weights once. The same bytes are added up plainly in the same run: the share of that speed
/// which decoding reaches is the number to look at. Prefill computes many rows for each time the weights are read.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page synth --shape qwen3-0.6b --out /tmp/qwen3-0.6b
  page-by-page bench engine --model /tmp/qwen3-0.6b --threads 2")]
pub struct Engine {
    /// Model folder, or a bundled model: storyteller, storyteller-draft
    #[arg(long, value_name = "DIR", default_value = "storyteller")]
    model: PathBuf,
    /// How long to measure; three turns are taken at least
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(0..=3600))]
    seconds: u64,
    #[command(flatten)]
    output: Output,
}

/// Tokens before the first decode step.
const PROMPT: usize = 8;
/// Tokens of a prefill, if the model has as many positions.
const PREFILL: usize = 512;
/// Decode steps in a turn, at most.
const STEPS: usize = 100;

/// Durations of the same work.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn push(&mut self, start: Instant) {
        self.0.push(start.elapsed().as_secs_f64());
    }

    /// How much of `amount` is done in a second, at best and at the median.
    fn rates(&self, amount: f64) -> Rates {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        Rates { best: amount / sorted[0], median: amount / sorted[sorted.len() / 2] }
    }
}

#[derive(Clone, Copy, Serialize)]
struct Rates {
    best: f64,
    median: f64,
}

impl Rates {
    fn over(self, other: Rates) -> Rates {
        Rates { best: self.best / other.best, median: self.median / other.median }
    }
}

#[derive(Serialize)]
struct Numbers {
    model: String,
    threads: usize,
    bytes_per_token: usize,
    decode_steps: usize,
    decode_tokens_per_second: Rates,
    decode_gb_per_second: Rates,
    sum_gb_per_second: Rates,
    decode_share_of_sum: Rates,
    prefill_tokens: usize,
    prefills: usize,
    prefill_tokens_per_second: Rates,
    prefill_over_decode: Rates,
}

impl Engine {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        self.output.check()?;
        require_chapters(&[3])?;
        let model = Model::open(&model_dir(&self.model))?;
        let config = model.config();
        let positions = config.max_positions;
        ensure!(positions > 2 * PROMPT, "the model has {positions} positions, too few to measure it");
        let (prefill, steps) = (PREFILL.min(positions), STEPS.min(positions - PROMPT));
        memory::require_slots(config.kv_layout(), PROMPT + steps + prefill)?;
        let text: Vec<u32> = (0..prefill.max(PROMPT + steps)).map(|i| (i * 7919 % config.vocab_size) as u32).collect();
        let cache = |slots| ContiguousCache::new(config.kv_layout(), slots);

        // The first reading fetches the weights from the disk.
        sum(&model);
        let (mut sums, mut decodes, mut prefills) = (Times::default(), Times::default(), Times::default());
        let patience = Duration::from_secs(self.seconds);
        let progress = Progress::new("measuring", patience.as_millis() as u64);
        let start = Instant::now();
        while prefills.0.len() < 3 || start.elapsed() < patience {
            let turn = Instant::now();
            model.step(&text[..prefill], Some(&mut cache(prefill)))?;
            prefills.push(turn);
            let prefill_time = turn.elapsed();

            let turn = Instant::now();
            let mut cache = cache(PROMPT + steps);
            model.step(&text[..PROMPT], Some(&mut cache))?;
            for (step, token) in text[PROMPT..PROMPT + steps].iter().enumerate() {
                if step >= 5 && turn.elapsed() > prefill_time {
                    break;
                }
                let before = Instant::now();
                sum(&model);
                sums.push(before);
                let before = Instant::now();
                model.step(std::slice::from_ref(token), Some(&mut cache))?;
                decodes.push(before);
            }
            progress.reach(start.elapsed().as_millis() as u64);
        }
        drop(progress);

        let bytes_per_token = model.weights().map(|weight| weight.bytes().len()).sum::<usize>();
        let gigabytes = bytes_per_token as f64 / 1e9;
        let decode = decodes.rates(1.0);
        let prefill_rows = prefills.rates(prefill as f64);
        let numbers = Numbers {
            model: self.model.display().to_string(),
            threads: rayon::current_num_threads(),
            bytes_per_token,
            decode_steps: decodes.0.len(),
            decode_tokens_per_second: decode,
            decode_gb_per_second: decodes.rates(gigabytes),
            sum_gb_per_second: sums.rates(gigabytes),
            decode_share_of_sum: decode.over(sums.rates(1.0)),
            prefill_tokens: prefill,
            prefills: prefills.0.len(),
            prefill_tokens_per_second: prefill_rows,
            prefill_over_decode: prefill_rows.over(decode),
        };
        print(&numbers.render())?;
        self.output.write(&numbers)
    }
}

impl Numbers {
    fn render(&self) -> String {
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let times = |ratio: f64| format!("{ratio:.1} ×");
        let mut table = Table::new(1, &["", "best", "median", ""]);
        let mut line = |name: &str, rates: Rates, show: &dyn Fn(f64) -> String, unit: &str| {
            table.line([name.into(), show(rates.best), show(rates.median), unit.to_string()]);
        };
        line("decode", self.decode_tokens_per_second, &rate, "tokens/s");
        line("  weights read", self.decode_gb_per_second, &rate, "GB/s");
        line("  the same bytes summed", self.sum_gb_per_second, &rate, "GB/s");
        line("  decode reaches", self.decode_share_of_sum, &percent, "of that");
        line(&format!("prefill of {}", self.prefill_tokens), self.prefill_tokens_per_second, &rate, "tokens/s");
        line("  against decode", self.prefill_over_decode, &times, "");
        format!(
            "{}, {}: each token reads {} bytes of weights\n\n{}\n{} and as many sums, {}, in turns\n",
            self.model,
            count(self.threads, "thread"),
            thousands(self.bytes_per_token as u64),
            table.render(),
            count(self.decode_steps, "decode step"),
            count(self.prefills, "prefill"),
        )
    }
}

/// Reads all weights and does as little as possible with them.
fn sum(model: &Model) {
    let pieces: Vec<&[u8]> = model.weights().flat_map(|weight| weight.bytes().chunks(1 << 20)).collect();
    let sum = pieces.into_par_iter().map(sum_of_bytes).reduce(|| 0, u64::wrapping_add);
    std::hint::black_box(sum);
}

fn sum_of_bytes(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let words = words.iter().fold(0, |sum: u64, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    rest.iter().fold(words, |sum, byte| sum.wrapping_add((*byte).into()))
}
