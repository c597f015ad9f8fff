//! `bench machine`: what a step of a model costs on this machine, in four divisions.
//!
//! A step reads each weight once, whoever takes part in it, and then computes each token. So the memory says how long a
//! step takes at the least, the processor how long each token adds, and the one divided by the other how many tokens a
//! step can carry before it takes twice as long. How many conversations there's room for is another division.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use page_by_page::kernels::{MatmulDtype, peak_multiply_adds};
use rayon::prelude::*;
use serde_json::json;

use super::times::Times;
use super::{Report, turns};
use crate::memory;
use crate::output::{Table, mib, plural, rate, thousands};
use crate::synth;

/// Divide this machine's memory and arithmetic by what models need
///
/// Adds up as many bytes as the weights take, as often as it can, and runs a plain loop of multiply-adds. No model is
/// loaded. Times depend on what else the machine does.
#[derive(Args)]
#[command(after_help = "\
Example:
  cargo page bench machine")]
pub struct MachineBench {
    /// How long to measure, for each model
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=3600))]
    seconds: u64,
    /// Tokens of a conversation
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    tokens: u64,
}

const SHAPES: [&str; 2] = ["storyteller", "qwen3-0.6b"];
/// Bytes that are added up at most. More take longer, and no longer for each.
const MOST_BYTES: usize = 1 << 28;
/// Rounds of the plain loop in a turn: some milliseconds.
const LOOP: usize = 1 << 20;

impl MachineBench {
    pub fn run(self) -> Result<Report> {
        let available = memory::available();
        let (mut columns, mut numbers) = (Vec::new(), Vec::new());
        for name in SHAPES {
            let shape = synth::shape(name);
            let (weights, token) = (shape.bytes(), memory::slot_bytes(shape.layout(), 1)?);
            memory::ensure("what is added up", weights.min(MOST_BYTES), "close something first")?;
            let [bytes_per_second, multiply_adds_per_second] = self.measure(weights.min(MOST_BYTES));
            let left = available.map(|available| available.saturating_sub(weights));
            let step = weights as f64 / bytes_per_second;
            let one_more = shape.weights() as f64 / multiply_adds_per_second;
            let room = left.map(|left| left / (token * self.tokens as usize));
            columns.push([
                format!("{} MB", thousands(weights / 1_000_000)),
                format!("{} GB/s", rate(bytes_per_second / 1e9)),
                milliseconds(step),
                format!("{} million/s", thousands((multiply_adds_per_second / 1e6) as u64)),
                milliseconds(one_more),
                format!("{:.1}", step / one_more),
                room.map_or("unknown".into(), thousands),
            ]);
            numbers.push(json!({
                "model": name, "weights": weights, "bytes_per_second": bytes_per_second, "step": step,
                "multiply_adds_per_second": multiply_adds_per_second, "token": one_more,
                "tokens_per_step": step / one_more, "conversations": room,
            }));
        }
        let mut table = Table::new(1, &[&[""], &SHAPES[..]].concat());
        for (line, what) in WHAT.into_iter().enumerate() {
            table.line(std::iter::once(what).chain(columns.iter().map(|column| column[line].as_str())));
        }
        let text = format!(
            "{}; {} of memory free; a conversation has {}\n\n{}",
            plural(rayon::current_num_threads(), "thread"),
            available.map_or("an unknown amount".into(), mib),
            plural(self.tokens, "token"),
            table.render(),
        );
        Ok(Report { text, json: numbers.into() })
    }

    /// Bytes and multiply-adds in a second, in turns.
    fn measure(&self, bytes: usize) -> [f64; 2] {
        let memory = vec![1u64; bytes / 8];
        let (mut sums, mut loops, mut in_loop) = (Times::default(), Times::default(), 0);
        for _ in turns("measuring", 3..usize::MAX, Duration::from_secs(self.seconds)) {
            sums.measure(|| std::hint::black_box(sum(&memory)));
            in_loop =
                loops.measure(|| rayon::broadcast(|_| peak_multiply_adds(MatmulDtype::F32, LOOP)).into_iter().sum());
        }
        [sums.rates(bytes as f64).best, loops.rates(in_loop as f64).best]
    }
}

const WHAT: [&str; 7] = [
    "weights",
    "memory is read at",
    "1  so a step takes at least",
    "the processor multiplies",
    "2  so each token adds",
    "3  1 ÷ 2: tokens that a step carries",
    "4  conversations in the memory",
];

fn sum(memory: &[u64]) -> u64 {
    let add = |sum: u64, number: &u64| sum.wrapping_add(*number);
    memory.par_chunks(1 << 17).map(|numbers| numbers.iter().fold(0, add)).reduce(|| 0, u64::wrapping_add)
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.2} ms", 1e3 * seconds)
}
