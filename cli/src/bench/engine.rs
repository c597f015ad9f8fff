//! `bench engine`: is the model as fast as the memory lets it be?
//!
//! A decode step uses every weight once, so it cannot be faster than reading them. The yardstick is the plainest way to
//! read them: adding the same bytes up, with the same threads, in turns with the decode steps, so that whatever else
//! the machine does hits both. Prefills, which compute many rows with each weight, take turns with them too. They cannot be
//! faster than the arithmetic: their yardstick is a plain loop of multiply-adds.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::cache::KvCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::kernels::multiply_adds;
use page_by_page::model::Model;
use page_by_page::model::checkpoint::Weight;
use rayon::prelude::*;
use serde::Serialize;

use super::{Output, append};

use crate::output::{Progress, Table, count, print, rate, thousands};
use crate::{model_dir, require};

/// Compare the model's speed with the memory's
///
/// A decode step reads all weights once. The same bytes are added up plainly in the same run: the share of that speed
/// which decoding reaches is the number to look at. Prefill computes many rows for each time the weights are read; a plain
/// loop of multiply-adds says what the processor could compute at most.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page synth --shape qwen3-0.6b --out /tmp/qwen3-0.6b
  page-by-page bench engine --model /tmp/qwen3-0.6b --threads 2")]
pub struct Engine {
    /// Model folder, or a bundled model: storyteller, storyteller-draft
    #[arg(long, value_name = "DIR", default_value = "storyteller")]
    model: PathBuf,
    /// Tokens before the step in the lines on long texts, if the model has as many positions: a list
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [4096])]
    contexts: Vec<usize>,
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

/// Tokens of a small pass, as a verified draft of two guesses has.
const SMALL: usize = 3;
/// Rounds of the plain loop in a turn: some milliseconds.
const LOOP: usize = 1 << 20;

/// Durations of the same work.
#[derive(Default)]
pub(super) struct Times(Vec<f64>);

impl Times {
    /// How many.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, start: Instant) {
        self.0.push(start.elapsed().as_secs_f64());
    }

    /// How much of `amount` is done in a second, at best and at the median.
    pub(super) fn rates(&self, amount: f64) -> Rates {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        Rates { best: amount / sorted[0], median: amount / sorted[sorted.len() / 2] }
    }
}

/// So much a second.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Rates {
    pub(super) best: f64,
    pub(super) median: f64,
}

impl Rates {
    pub(super) fn over(self, other: Rates) -> Rates {
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
    loop_gmac_per_second: Rates,
    prefill_share_of_loop: Rates,
    small_pass_tokens: usize,
    /// Times as long as a decode step.
    small_pass_over_decode: Rates,
    contexts: Vec<Context>,
}

/// Decode steps on a long text.
#[derive(Serialize)]
struct Context {
    tokens: usize,
    bytes_of_rows: usize,
    decode_steps: usize,
    decode_tokens_per_second: Rates,
    /// Against adding up the bytes of all weights and rows once.
    decode_share_of_sum: Rates,
}

impl Engine {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        self.output.check()?;
        require::chapters(&[3])?;
        let model = Model::open(&model_dir(&self.model))?;
        let config = model.config();
        let positions = config.max_positions;
        ensure!(positions > 2 * PROMPT, "the model has {positions} positions, too few to measure it");
        let (prefill, steps) = (PREFILL.min(positions), STEPS.min(positions - PROMPT));
        require::slots(config.kv_layout(), 2 * (PROMPT + steps) + prefill)?;
        let text: Vec<u32> = (0..prefill.max(PROMPT + steps)).map(|i| (i * 7919 % config.vocab_size) as u32).collect();
        let cache = |slots| ContiguousCache::new(config.kv_layout(), slots);

        // The first reading fetches the weights from the disk.
        sum(&model);
        let (mut sums, mut decodes, mut prefills) = (Times::default(), Times::default(), Times::default());
        let (mut small, mut loops) = (Times::default(), Times::default());
        let patience = Duration::from_secs(self.seconds);
        let mut in_loop = 0;
        let progress = Progress::new("measuring", patience.as_millis() as u64);
        let start = Instant::now();
        while prefills.0.len() < 3 || start.elapsed() < patience {
            let turn = Instant::now();
            model.step(&text[..prefill], Some(&mut cache(prefill)))?;
            prefills.push(turn);
            let prefill_time = turn.elapsed();
            let turn = Instant::now();
            in_loop = rayon::broadcast(|_| multiply_adds(LOOP)).into_iter().sum();
            loops.push(turn);

            let turn = Instant::now();
            let (mut cache, mut beside) = (cache(PROMPT + steps), cache(PROMPT + steps));
            model.step(&text[..PROMPT], Some(&mut cache))?;
            model.step(&text[..PROMPT], Some(&mut beside))?;
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
                // The same texts, three tokens at a time, until there is no more room.
                let at = PROMPT + SMALL * step;
                if at + SMALL <= PROMPT + steps {
                    let before = Instant::now();
                    model.step(&text[at..at + SMALL], Some(&mut beside))?;
                    small.push(before);
                }
            }
            progress.reach(start.elapsed().as_millis() as u64);
        }
        drop(progress);
        let contexts = self.contexts.iter().filter(|tokens| **tokens < positions);
        let contexts = contexts.map(|tokens| self.context(&model, *tokens)).collect::<Result<Vec<_>>>()?;

        let bytes_per_token = model.weights().map(|weight| weight.bytes().len()).sum::<usize>();
        let gigabytes = bytes_per_token as f64 / 1e9;
        let decode = decodes.rates(1.0);
        let prefill_rows = prefills.rates(prefill as f64);
        let loops = loops.rates(in_loop as f64);
        let in_prefill = prefills.rates(multiply_adds_of_prefill(&model, prefill));
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
            loop_gmac_per_second: Rates { best: loops.best / 1e9, median: loops.median / 1e9 },
            prefill_share_of_loop: in_prefill.over(loops),
            small_pass_tokens: SMALL,
            small_pass_over_decode: decode.over(small.rates(1.0)),
            contexts,
        };
        print(&numbers.render())?;
        self.output.write(&numbers)
    }

    /// Decode steps on a text of so many tokens. Their rows are made up: what they hold makes no difference to the time.
    fn context(&self, model: &Model, tokens: usize) -> Result<Context> {
        const STEPS: usize = 5;
        let layout = model.config().kv_layout();
        let most = (STEPS * 20).min(model.config().max_positions - tokens);
        require::slots(layout, tokens + most)?;
        let mut cache = ContiguousCache::new(layout, tokens + most);
        let rows: Vec<f32> = (0..layout.kv_width()).map(|i| (i % 13) as f32 / 13.0 - 0.5).collect();
        for _ in 0..tokens {
            append(&mut cache, &rows)?;
        }
        let (mut sums, mut steps) = (Times::default(), Times::default());
        let patience = Duration::from_secs(self.seconds) / 2;
        let progress = Progress::new("measuring long texts", most as u64);
        let start = Instant::now();
        for step in 0..most {
            if step >= STEPS && start.elapsed() > patience {
                break;
            }
            let before = Instant::now();
            sum_all(model, &cache);
            sums.push(before);
            let before = Instant::now();
            model.step(&[step as u32 % model.config().vocab_size as u32], Some(&mut cache))?;
            steps.push(before);
            progress.advance(1);
        }
        Ok(Context {
            tokens,
            bytes_of_rows: tokens * 2 * layout.n_layers * layout.kv_width() * size_of::<f32>(),
            decode_steps: steps.count(),
            decode_tokens_per_second: steps.rates(1.0),
            decode_share_of_sum: steps.rates(1.0).over(sums.rates(1.0)),
        })
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
        line("  a plain loop of multiply-adds", self.loop_gmac_per_second, &rate, "thousand million/s");
        line("  prefill reaches", self.prefill_share_of_loop, &percent, "of that");
        let slower = |ratio: f64| format!("{ratio:.2} ×");
        line(
            &format!("a pass over {}", self.small_pass_tokens),
            self.small_pass_over_decode,
            &slower,
            "as long as over 1",
        );
        for context in &self.contexts {
            let name = format!("decode at {}", thousands(context.tokens as u64));
            line(&name, context.decode_tokens_per_second, &rate, "tokens/s");
            line("  weights and rows summed", context.decode_share_of_sum, &percent, "of that speed");
        }
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

/// Multiply-adds of a pass over the first tokens of a text, with the logits after the last of them.
fn multiply_adds_of_prefill(model: &Model, tokens: usize) -> f64 {
    let config = model.config();
    let sizes: Vec<usize> = model.weights().map(Weight::numbers).collect();
    let output = sizes[sizes.len() - 1];
    let weights = tokens * (sizes.iter().sum::<usize>() - output) + output;
    // Each query meets the keys and the values of its position and of those before it.
    let positions = tokens * (tokens + 1) / 2;
    (weights + 2 * positions * config.n_layers * config.n_heads * config.head_dim) as f64
}

/// Reads all weights and does as little as possible with them.
fn sum(model: &Model) {
    let pieces: Vec<&[u8]> = model.weights().flat_map(|weight| weight.bytes().chunks(1 << 20)).collect();
    let sum = pieces.into_par_iter().map(sum_of_bytes).reduce(|| 0, u64::wrapping_add);
    std::hint::black_box(sum);
}

/// The same with the rows of a cache.
fn sum_all(model: &Model, cache: &ContiguousCache) {
    sum(model);
    let layers: Vec<_> = (0..cache.layout().n_layers).map(|layer| cache.gather(layer)).collect();
    let pieces: Vec<&[f32]> = layers.iter().flat_map(|(k, v)| k.chunks(1 << 18).chain(v.chunks(1 << 18))).collect();
    let sum = pieces.into_par_iter().map(sum_of_bits).reduce(|| 0, u64::wrapping_add);
    std::hint::black_box(sum);
}

fn sum_of_bits(numbers: &[f32]) -> u64 {
    numbers.iter().fold(0, |sum: u64, number| sum.wrapping_add(number.to_bits().into()))
}

fn sum_of_bytes(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let words = words.iter().fold(0, |sum: u64, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    rest.iter().fold(words, |sum, byte| sum.wrapping_add((*byte).into()))
}
