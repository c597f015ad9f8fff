//! `bench engine`: is the model as fast as the memory lets it be?
//!
//! A decode step uses every weight once, so it cannot be faster than reading them. The yardstick is the plainest way to
//! read them, which is to add the same bytes up, in the same memory and with the same threads, in turns with the decode
//! steps, so that whatever else the machine does hits both. Prefills, which compute many rows with each weight, take
//! turns with them too. They cannot be faster than the arithmetic: their yardstick is a plain loop of multiply-adds.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::cache::KvCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::kernels::peak_multiply_adds;
use page_by_page::model::Model;
use page_by_page::model::checkpoint::Weight;
use rayon::prelude::*;
use serde_json::json;

use super::attention::filled;
use super::times::{Rates, Times};
use super::{Report, turns};
use crate::memory;
use crate::model_dir;
use crate::options::{ModelOption, Weights, notes_on_weights};
use crate::output::{Table, plural, rate, thousands};
use crate::requirements;

/// Compare the model's speed with the memory's
///
/// A decode step reads all weights once. The same bytes are added up plainly in the same run: the share of that speed
/// which decoding reaches is the number to look at. Prefill computes many rows for each time the weights are read; a
/// plain loop of multiply-adds says what the processor could compute at most.
#[derive(Args)]
#[command(after_help = "\
Example:
  cargo page synth --shape qwen3-0.6b --out /tmp/qwen3-0.6b
  cargo page bench engine --model /tmp/qwen3-0.6b --threads 2")]
pub struct EngineBench {
    #[command(flatten)]
    model: ModelOption,
    /// Tokens before the step in the lines on long sequences, if the model has as many positions: a list
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [4096])]
    contexts: Vec<usize>,
    /// How long to measure; three turns are taken at least
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(0..=3600))]
    seconds: u64,
}

const PROMPT: usize = 8;
/// Tokens of a prefill, if the model has as many positions.
const PREFILL: usize = 512;
const STEPS: usize = 100;
/// Tokens of a small pass, as of one that verifies a draft of two tokens.
const SMALL: usize = 3;
/// Rounds of the plain loop in a turn: some milliseconds.
const LOOP: usize = 1 << 20;

#[derive(Default)]
struct Measured {
    sums: Times,
    /// Sums of the weights in their files, if the model's are copies.
    sums_in_files: Times,
    decodes: Times,
    prefills: Times,
    small: Times,
    loops: Times,
    /// Multiply-adds of a plain loop.
    in_loop: usize,
}

/// A rate as it is printed: its name, how, and in what.
struct Line(String, Rates, fn(f64) -> String, &'static str);

impl EngineBench {
    pub fn run(self) -> Result<Report> {
        requirements::ensure_started(&[3])?;
        let model = self.model.open()?;
        let config = model.config();
        let positions = config.max_positions;
        ensure!(positions > 2 * PROMPT, "the model has {positions} positions, too few to measure it");
        let (prefill, steps) = (PREFILL.min(positions), STEPS.min(positions - PROMPT));
        memory::ensure_slots(config.kv_layout(), 2 * (PROMPT + steps) + prefill)?;
        let tokens: Vec<u32> =
            (0..prefill.max(PROMPT + steps)).map(|i| (i * 7919 % config.vocab_size) as u32).collect();

        // Weights that were copied are summed where they lay before, too.
        let is_copied = model.weights().any(Weight::is_copied);
        let in_files = is_copied.then(|| Weights::Mapped.open(&model_dir(&self.model.dir))).transpose()?;
        // The first reading fetches the weights from the disk.
        [Some(&model), in_files.as_ref()].into_iter().flatten().for_each(sum);
        let mut measured = Measured::default();
        for _ in turns("measuring", 3..usize::MAX, Duration::from_secs(self.seconds)) {
            measured.turn(&model, in_files.as_ref(), &tokens[..prefill], &tokens[..PROMPT + steps])?;
        }
        let mut lines = measured.lines(&model, prefill);
        for tokens in self.contexts.iter().filter(|tokens| **tokens < positions) {
            lines.extend(self.context(&model, *tokens)?);
        }
        self.report(&model, &measured, &lines)
    }

    /// Decode steps on a sequence of this many tokens.
    fn context(&self, model: &Model, tokens: usize) -> Result<[Line; 2]> {
        const STEPS: usize = 5;
        let layout = model.config().kv_layout();
        let most = (STEPS * 20).min(model.config().max_positions - tokens);
        memory::ensure_slots(layout, tokens + most)?;
        let mut cache = filled(ContiguousCache::new(layout, tokens + most), tokens, model, 0)?;
        let (mut sums, mut steps) = (Times::default(), Times::default());
        let patience = Duration::from_secs(self.seconds) / 2;
        for step in turns("measuring long sequences", STEPS.min(most)..most, patience) {
            sums.measure(|| sum_all(model, &cache));
            steps.measure(|| model.step(&[step as u32 % model.config().vocab_size as u32], Some(&mut cache)))?;
        }
        let of_sum = steps.rates(1.0).over(sums.rates(1.0));
        Ok([
            Line(format!("decode at {}", thousands(tokens)), steps.rates(1.0), rate, "tokens/s"),
            Line("  weights and rows summed".into(), of_sum, percent, "of that speed"),
        ])
    }

    fn report(&self, model: &Model, measured: &Measured, lines: &[Line]) -> Result<Report> {
        let mut table = Table::new(1, &["", "best", "median", ""]);
        let mut numbers = Vec::new();
        for Line(name, rates, show, unit) in lines {
            table.line([name, &show(rates.best), &show(rates.median), *unit]);
            let Rates { best, median, mean } = rates;
            numbers.push(json!({ "what": name.trim(), "best": best, "median": median, "mean": mean, "unit": unit }));
        }
        let text = format!(
            "{}, {}: each token reads\n{} bytes of weights{}\n\n{}\n{} and as many sums, {}, in turns\n",
            self.model.name(),
            plural(rayon::current_num_threads(), "thread"),
            thousands(model.weight_bytes()),
            notes_on_weights(model),
            table.render(),
            plural(measured.decodes.count(), "decode step"),
            plural(measured.prefills.count(), "prefill"),
        );
        Report::of_model(&self.model, text, json!({ "rates": numbers }))
    }
}

impl Measured {
    /// A prefill, the plain loop, and for as long as the prefill took decode steps in turns with sums and small passes.
    fn turn(&mut self, model: &Model, in_files: Option<&Model>, prefill: &[u32], decode: &[u32]) -> Result<()> {
        let cache = |slots| ContiguousCache::new(model.config().kv_layout(), slots);
        let start = Instant::now();
        self.prefills.measure(|| model.step(prefill, Some(&mut cache(prefill.len()))))?;
        let prefill_time = start.elapsed();
        self.in_loop =
            self.loops.measure(|| rayon::broadcast(|_| peak_multiply_adds(model.matmul_dtype, LOOP)).into_iter().sum());

        let start = Instant::now();
        let (mut cache, mut beside) = (cache(decode.len()), cache(decode.len()));
        model.step(&decode[..PROMPT], Some(&mut cache))?;
        model.step(&decode[..PROMPT], Some(&mut beside))?;
        // The same tokens three at a time, until there are no more.
        let mut threes = decode[PROMPT..].chunks_exact(SMALL);
        for (step, token) in decode[PROMPT..].iter().enumerate() {
            if step >= 5 && start.elapsed() > prefill_time {
                break;
            }
            self.sums.measure(|| sum(model));
            if let Some(model) = in_files {
                self.sums_in_files.measure(|| sum(model));
            }
            self.decodes.measure(|| model.step(std::slice::from_ref(token), Some(&mut cache)))?;
            if let Some(three) = threes.next() {
                self.small.measure(|| model.step(three, Some(&mut beside)))?;
            }
        }
        Ok(())
    }

    fn lines(&self, model: &Model, prefill: usize) -> Vec<Line> {
        let Measured { sums, sums_in_files, decodes, prefills, small, loops, in_loop } = self;
        let (decode, gigabytes) = (decodes.rates(1.0), model.weight_bytes() as f64 / 1e9);
        let prefilled = prefills.rates(prefill as f64);
        let in_prefill = prefills.rates(multiply_adds_of_prefill(model, prefill));
        let (of_sum, pass) = (decode.over(sums.rates(1.0)), decode.over(small.rates(1.0)));
        let of_loop = in_prefill.over(loops.rates(*in_loop as f64));
        let in_loops = loops.rates(*in_loop as f64 / 1e9);
        let line = |name: &str, rates, show: fn(f64) -> String, unit| Line(name.into(), rates, show, unit);
        let mut lines = vec![
            line("decode", decode, rate, "tokens/s"),
            line("  weights read", decodes.rates(gigabytes), rate, "GB/s"),
            line("  the same bytes summed", sums.rates(gigabytes), rate, "GB/s"),
            line("  decode reaches", of_sum, percent, "of that"),
        ];
        if sums_in_files.count() > 0 {
            lines.push(line("  summed in their files", sums_in_files.rates(gigabytes), rate, "GB/s"));
        }
        lines.extend([
            line(&format!("prefill of {prefill}"), prefilled, rate, "tokens/s"),
            line("  against decode", prefilled.over(decode), |ratio| format!("{ratio:.1} ×"), ""),
            line("  a plain loop of multiply-adds", in_loops, rate, "thousand million/s"),
            line("  prefill reaches", of_loop, percent, "of that"),
            line(&format!("a pass over {SMALL}"), pass, |ratio| format!("{ratio:.2} ×"), "as long as over 1"),
        ]);
        lines
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Multiply-adds of a pass over the first tokens of a sequence, with the logits after the last of them.
fn multiply_adds_of_prefill(model: &Model, tokens: usize) -> f64 {
    let config = model.config();
    let sizes: Vec<usize> = model.weights().map(Weight::n_numbers).collect();
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

fn sum_all(model: &Model, cache: &ContiguousCache) {
    sum(model);
    let layers: Vec<_> = (0..cache.layout().n_layers).map(|layer| cache.gather(layer)).collect();
    let pieces: Vec<&[f32]> = layers.iter().flat_map(|(k, v)| k.chunks(1 << 18).chain(v.chunks(1 << 18))).collect();
    let add = |sum: u64, number: &f32| sum.wrapping_add(number.to_bits().into());
    let sum = pieces.into_par_iter().map(|numbers| numbers.iter().fold(0, add)).reduce(|| 0, u64::wrapping_add);
    std::hint::black_box(sum);
}

fn sum_of_bytes(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let words = words.iter().fold(0, |sum: u64, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    rest.iter().fold(words, |sum, byte| sum.wrapping_add((*byte).into()))
}
