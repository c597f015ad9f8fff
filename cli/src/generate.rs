//! `generate`: continues a prompt, or several together, and says what that cost; or searches for the likeliest output.

mod beams;
mod costs;
mod growing;
mod live;
mod one;
mod several;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Args;
use page_by_page::cache::kind::CacheKind;
use page_by_page::decode::sampler::Sampling;
use page_by_page::model::{Model, ModelConfig};
use serde::Serialize;

use crate::drafts::DraftOptions;
use crate::input;
use crate::options::{ModelOption, RowOptions, SamplingOptions, SnapshotOptions};
use crate::output::{mib, per_second, say, thousands};

/// Generate text, and say what its cache cost
///
/// Continues a prompt, token by token. The text goes to standard output as it is generated; what it cost follows on
/// standard error. The same seed gives the same text with every cache: only the costs differ.
///
/// Several prompts are generated together, one pass of the model for all in each step, with their pages in one pool. The
/// output of each is what it is alone. On a terminal they grow side by side; otherwise they follow each other.
///
/// --samples generates several outputs of one prompt in the same way. The prompt is computed once, and they share its pages.
/// --beams looks for the likeliest output instead: it follows several beginnings at once and keeps the best.
#[derive(Args)]
#[command(after_help = "\
Examples:
  page-by-page generate
  page-by-page generate \"The king had\" --kv flat --seed 7
  page-by-page generate \"The king had\" \"An old woman\" \"One day\"
  page-by-page generate --prompts beginnings.txt --pages 40
  page-by-page generate --prompts beginnings.txt --prefix-cache
  page-by-page generate \"The king had\" --samples 8
  page-by-page generate \"The king had\" --beams 4
  page-by-page generate --draft storyteller-draft --temperature 0
  page-by-page generate --save-cache story.cache
  page-by-page generate --load-cache story.cache --kv paged
  page-by-page generate --model path/to/Qwen3-0.6B \"The capital of France is\" --temperature 0")]
pub struct Generate {
    /// How the text begins; several prompts are generated together [default: "Once upon a time"]
    #[arg(value_name = "PROMPT")]
    prompt: Vec<String>,
    #[command(flatten)]
    model: ModelOption,
    /// Stop after this many tokens, if the text has not ended before
    #[arg(long, value_name = "N", default_value_t = MAX_NEW_TOKENS)]
    max_new_tokens: usize,
    /// Print one JSON object instead: text, token ids, counters, timings; a list of outputs for several of them
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Sampling")]
    sampling: SamplingOptions,
    #[command(flatten, next_help_heading = "Cache")]
    cache: CacheOptions,
    #[command(flatten, next_help_heading = "Cache")]
    rows: RowOptions,
    #[command(flatten, next_help_heading = "Cache")]
    snapshot: SnapshotOptions,
    #[command(flatten, next_help_heading = "Several outputs")]
    several: SeveralOptions,
    #[command(flatten, next_help_heading = "Speculative decoding")]
    draft: DraftOptions,
}

/// The cache, and how much memory it may use.
#[derive(Args)]
struct CacheOptions {
    /// Where keys and values are kept: recompute (nowhere), flat, contiguous or paged [default: contiguous; paged for several
    /// outputs]
    #[arg(long, value_name = "CACHE")]
    kv: Option<CacheKind>,
    /// Slots that the contiguous cache reserves [default: enough for prompt and output]
    #[arg(long, value_name = "N")]
    capacity: Option<usize>,
    /// Slots in a page of the paged cache
    #[arg(long, value_name = "P", default_value_t = 16)]
    page_size: usize,
    /// Pages that the paged cache may use, for all outputs [default: enough for prompts and outputs]
    #[arg(long, value_name = "N")]
    pages: Option<usize>,
}

/// Several prompts, or several outputs of one.
#[derive(Args)]
struct SeveralOptions {
    /// Take a prompt from each line of this file, - for standard input; empty lines are skipped
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompts: Option<PathBuf>,
    /// Let prompts that begin alike share the pages of their beginning: one starts in each step and reuses what those before
    /// it have computed
    #[arg(long)]
    prefix_cache: bool,
    /// Generate N outputs of one prompt, at most 256: the first with --seed, the second with the next number, and so on
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MOST_TEXTS as i64))]
    samples: Option<u16>,
    /// Look for the likeliest output with K beams, at most 256: they grow side by side, and the best go on
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..=MOST_TEXTS as i64))]
    beams: Option<u16>,
    /// While outputs grow side by side, generate at most N tokens a second for each; 0 is no limit
    #[arg(long, value_name = "N", default_value_t = 40)]
    pace: u32,
}

/// The prompt, unless there is another.
const PROMPT: &str = "Once upon a time";
const EMPTY_PROMPT: &str = "the prompt is empty; give the text a beginning, such as \"Once upon a time\"";
/// Sequences of a step, at most.
pub const MOST_TEXTS: usize = 256;
/// Tokens of an output at most, unless a command or a request says otherwise.
pub const MAX_NEW_TOKENS: usize = 200;

impl Generate {
    /// Runs the command.
    pub fn run(mut self) -> Result<()> {
        if let Some(width) = self.several.beams {
            return self.search(usize::from(width));
        }
        if let Some(n_samples) = self.several.samples {
            return self.run_samples(usize::from(n_samples));
        }
        if let Some(file) = &self.several.prompts {
            return self.run_several(&input::read_prompts(file)?);
        }
        match self.prompt.len() {
            0 => self.prompt.push(PROMPT.into()),
            1 => {}
            _ => return self.run_several(&self.prompt),
        }
        self.run_one(&self.prompt[0])
    }

    /// The cache to generate with.
    fn kv(&self) -> CacheKind {
        let is_one = self.gives_one_prompt() && self.several.samples.is_none() && self.several.beams.is_none();
        self.cache.kv.unwrap_or(if is_one { CacheKind::Contiguous } else { CacheKind::Paged })
    }

    fn gives_one_prompt(&self) -> bool {
        self.several.prompts.is_none() && self.prompt.len() < 2
    }

    /// The prompt, for an option that takes only one.
    fn only_prompt(&self, option: &str) -> Result<&str> {
        ensure!(
            self.gives_one_prompt(),
            "{option} is for one prompt, and several were given; give one prompt, or leave out {option}"
        );
        let prompt = self.prompt.first().map_or(PROMPT, String::as_str);
        ensure!(!prompt.is_empty(), EMPTY_PROMPT);
        Ok(prompt)
    }

    /// What the model's positions leave of `--max-new-tokens`. `which`: begins a message about one of several prompts.
    fn new_tokens_that_fit(&self, which: &str, n_prompt: usize, config: &ModelConfig) -> Result<usize> {
        let positions = config.max_positions;
        if n_prompt >= positions {
            bail!(
                "{which}the prompt has {} tokens and the model {} positions: no room for another token; shorten the prompt",
                thousands(n_prompt),
                thousands(positions)
            );
        }
        let fit = positions - n_prompt;
        if self.max_new_tokens > fit {
            say(&format!(
                "note: {which}at most {} new tokens, because the model has {} positions and the prompt takes {}",
                thousands(fit),
                thousands(positions),
                thousands(n_prompt)
            ));
        }
        Ok(self.max_new_tokens.min(fit))
    }

    /// The model in a line.
    fn describe_model(&self, model: &Model) -> String {
        let weights = model.weights().map(|weight| weight.bytes().len()).sum();
        format!("{}, {} layers, {} of weights", self.model.name(), model.config().n_layers, mib(weights))
    }
}

/// Token ids in a report.
#[derive(Serialize)]
struct Tokens<'a> {
    prompt: &'a [u32],
    generated: &'a [u32],
}

/// Sampling in a report; the seed stands beside it.
#[derive(Serialize)]
struct SamplingUsed {
    temperature: f32,
    top_k: usize,
    top_p: f32,
}

impl From<Sampling> for SamplingUsed {
    fn from(Sampling { temperature, top_k, top_p, .. }: Sampling) -> Self {
        SamplingUsed { temperature, top_k, top_p }
    }
}

/// How long the prompts took, and all that followed.
#[derive(Serialize)]
struct Timings {
    prefill_seconds: f64,
    prefill_tokens_per_second: f64,
    decode_seconds: f64,
    decode_tokens_per_second: f64,
}

impl Timings {
    fn new((prefilled, prefill): (usize, Duration), (decoded, decode): (usize, Duration)) -> Self {
        Timings {
            prefill_seconds: prefill.as_secs_f64(),
            prefill_tokens_per_second: per_second(prefilled, prefill),
            decode_seconds: decode.as_secs_f64(),
            decode_tokens_per_second: per_second(decoded, decode),
        }
    }
}
