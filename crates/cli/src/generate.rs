//! `generate`: continues a prompt, or several together, and says what that cost; or searches for the likeliest output.

mod beams;
mod one;
mod outputs;
mod report;
mod several;
mod terminal;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use clap::Args;
use page_by_page::cache::Usage;
use page_by_page::caches::CacheKind;
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::drafts::DraftOptions;
use crate::input;
use crate::options::{ModelOption, PageOptions, RowOptions, SamplingOptions, where_weights_lie};
use crate::output::{count, mib, per_second, rate, say, thousands, time};

/// Generate text, and say what its cache cost
///
/// Continues a prompt, token by token. The output goes to standard output as it is generated, and what it cost follows
/// on standard error. The same seed gives the same output with every cache. Only the costs differ.
///
/// Several prompts are generated together, one pass of the model for all in each step, with their pages in one pool.
/// With another --kv than paged they follow each other. The output of each is what it is alone. On a terminal they grow
/// side by side; otherwise they follow each other.
///
/// --samples generates several outputs of one prompt in the same way. The prompt is computed once, and they share its
/// pages. --beams looks for the likeliest output instead: it follows several beginnings at once and keeps the best.
#[derive(Args)]
#[command(after_help = "\
Examples:
  page-by-page generate
  page-by-page generate \"The king had\" --kv flat --seed 7
  page-by-page generate \"The king had\" \"An old woman\" \"One day\"
  page-by-page generate --prompts beginnings.txt --pages 40
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
    /// PROMPT as an option, which is how other programs take it
    #[arg(long = "prompt", value_name = "PROMPT", hide = true, conflicts_with_all = ["prompt", "prompts"])]
    prompt_option: Vec<String>,
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
    #[command(flatten, next_help_heading = "Several outputs")]
    sequences: SequenceOptions,
    #[command(flatten, next_help_heading = "Speculative decoding")]
    draft: DraftOptions,
}

fn help_of_kv() -> String {
    let names = CacheKind::ALL.map(|kind| kind.to_string()).join(", ");
    format!(
        "The cache: {names}; the first keeps nothing [default: contiguous, or paged for several outputs and where \
         --kv-memory or --pages is given]"
    )
}

/// The cache: its kind, its memory, its rows, and the files that it is saved to and loaded from.
#[derive(Args)]
struct CacheOptions {
    #[arg(long, value_name = "CACHE", help = help_of_kv())]
    kv: Option<CacheKind>,
    /// Slots that the contiguous cache reserves [default: enough for prompt and output]
    #[arg(long, value_name = "N")]
    capacity: Option<usize>,
    #[command(flatten)]
    pages: PageOptions,
    #[command(flatten)]
    rows: RowOptions,
    /// When the output is complete, save the cache to this file, for --load-cache
    #[arg(long, value_name = "FILE")]
    save_cache: Option<PathBuf>,
    /// Start from a saved cache: what it holds of the prompt is not recomputed. Any --kv but recompute can load it
    #[arg(long, value_name = "FILE")]
    load_cache: Option<PathBuf>,
}

/// Several prompts, or several outputs of one.
#[derive(Args)]
struct SequenceOptions {
    /// Take a prompt from each line of this file, - for standard input; empty lines are skipped
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompts: Option<PathBuf>,
    /// Generate N outputs of one prompt, at most 256: the first with --seed, the second with the next number, and so on
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MOST_SEQUENCES as i64),
          conflicts_with_all = EXCLUDED_BY_SAMPLES_AND_BEAMS)]
    samples: Option<u16>,
    /// Look for the likeliest output with K beams, at most 256: they grow side by side, and the best go on. It draws
    /// nothing
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..=MOST_SEQUENCES as i64),
          conflicts_with_all = EXCLUDED_BY_SAMPLES_AND_BEAMS, conflicts_with_all = ["samples", "temperature", "top_k", "top_p"])]
    beams: Option<u16>,
    /// While outputs grow side by side, generate at most N tokens a second for each; 0 is no limit
    #[arg(long, value_name = "N", default_value_t = 40)]
    pace: u32,
}

const PROMPT: &str = "Once upon a time";
/// Options for several prompts, or for one output alone.
const EXCLUDED_BY_SAMPLES_AND_BEAMS: [&str; 4] = ["prompts", "drafter", "save_cache", "load_cache"];
pub const MOST_SEQUENCES: usize = 256;
/// Tokens of an output at most, unless a command or a request says otherwise.
pub const MAX_NEW_TOKENS: usize = 200;

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    One,
    Prompts,
    Samples(u16),
    Beams(u16),
}

impl Generate {
    pub fn run(mut self) -> Result<()> {
        self.prompt.append(&mut self.prompt_option);
        self.refuse_contradictions()?;
        if let Some(file) = &self.sequences.prompts {
            self.prompt = input::read_prompts(file)?;
        } else if self.prompt.is_empty() {
            self.prompt.push(PROMPT.into());
        }
        match self.mode() {
            Mode::One => self.generate_one(&self.prompt[0]),
            Mode::Prompts => self.generate_several(None),
            Mode::Samples(n_samples) => self.generate_several(Some(n_samples.into())),
            Mode::Beams(width) => self.search_beams(width.into()),
        }
    }

    fn mode(&self) -> Mode {
        match &self.sequences {
            SequenceOptions { beams: Some(width), .. } => Mode::Beams(*width),
            SequenceOptions { samples: Some(n_samples), .. } => Mode::Samples(*n_samples),
            SequenceOptions { prompts: None, .. } if self.prompt.len() < 2 => Mode::One,
            _ => Mode::Prompts,
        }
    }

    fn kv(&self) -> CacheKind {
        let has_pages = self.mode() != Mode::One || self.cache.pages.is_given();
        self.cache.kv.unwrap_or(if has_pages { CacheKind::Paged } else { CacheKind::Contiguous })
    }

    /// What clap cannot refuse: rules that depend on values, or on how many prompts there are.
    fn refuse_contradictions(&self) -> Result<()> {
        let (mode, kv) = (self.mode(), self.kv());
        let has_several_prompts = mode == Mode::Prompts;
        let is_saved = self.cache.save_cache.is_some() || self.cache.load_cache.is_some();
        ensure!(
            !has_several_prompts || self.draft.drafter.is_none(),
            "--draft drafts for one output, and several were asked for; give one prompt"
        );
        ensure!(
            !has_several_prompts || !is_saved,
            "--save-cache and --load-cache are for the cache of one output, and several were asked for; give one prompt"
        );
        ensure!(
            has_several_prompts || self.prompt.len() < 2,
            "--samples and --beams are for one prompt, and several were given; give one prompt, or leave out the option"
        );
        for (option, is_given) in [
            ("--beams shares", matches!(mode, Mode::Beams(_))),
            ("--kv-memory and --pages are for", self.cache.pages.is_given()),
        ] {
            ensure!(
                !is_given || kv == CacheKind::Paged,
                "{option} pages, and --kv {kv} has none; leave out --kv, or give --kv paged"
            );
        }
        ensure!(
            kv != CacheKind::Recompute || !is_saved,
            "--kv recompute keeps nothing that could be saved or loaded; use flat, contiguous or paged"
        );
        Ok(())
    }

    /// The tokens of a prompt, and what the model's positions leave of `--max-new-tokens`. `which`: begins a message
    /// about one of several prompts.
    fn encode(&self, which: &str, prompt: &str, model: &Model, tokenizer: &Tokenizer) -> Result<(Vec<u32>, usize)> {
        ensure!(
            !prompt.is_empty(),
            "{which}the prompt is empty; give the text a beginning, such as \"Once upon a time\""
        );
        let tokens = tokenizer.encode(prompt)?;
        model.check(&tokens, 0).map_err(|error| anyhow!("{which}{error}"))?;
        let (n_prompt, positions) = (tokens.len(), model.config().max_positions);
        let fit = positions - n_prompt;
        if self.max_new_tokens > fit {
            say(&format!(
                "note: {which}at most {}, because the model has {} and the prompt takes {}",
                count(fit, "new token"),
                count(positions, "position"),
                thousands(n_prompt)
            ));
        }
        Ok((tokens, self.max_new_tokens.min(fit)))
    }

    fn describe_model(&self, model: &Model) -> String {
        let (weights, place) = (mib(model.weight_bytes()), where_weights_lie(model));
        format!("{}, {} layers, {weights} of weights{place}", self.model.name(), model.config().n_layers)
    }
}

pub fn token_ids(prompt: &[u32], generated: &[u32]) -> Value {
    json!({ "prompt": prompt, "generated": generated })
}

/// What was counted, in a report. `usage`: what the caches held at the end.
fn counters(rows_projected: u64, usage: Usage) -> Value {
    let Usage { rows_copied, tokens, slots, .. } = usage;
    json!({ "rows_projected": rows_projected, "rows_copied": rows_copied, "tokens": tokens, "slots": slots })
}

/// Tokens and how long they took, those of the prompts first, then all that followed. `steps` stands before the time of
/// each. It is a number of steps, such as `3 steps, `, or nothing.
fn timings(prefill: (usize, Duration), decode: (usize, Duration), steps: [String; 2]) -> [(&'static str, String); 2] {
    let [prefill_steps, decode_steps] = steps;
    let speed = rate(per_second(decode.0, decode.1));
    [
        ("prefill", format!("{} in {prefill_steps}{}", count(prefill.0, "token"), time(prefill.1))),
        ("decode", format!("{} in {decode_steps}{}, {speed} tokens/s", count(decode.0, "token"), time(decode.1))),
    ]
}

/// What a cache holds at the end, in a line. `rows`: how its rows are stored, if that is worth saying.
fn describe_cache(kv: CacheKind, rows: &str, usage: Usage) -> String {
    if kv == CacheKind::Recompute {
        return "none, everything is recomputed".into();
    }
    let (held, slots, copied) =
        (count(usage.tokens, "token"), count(usage.slots, "slot"), count(usage.rows_copied, "row"));
    let wasted = thousands(usage.wasted());
    format!("{kv}{rows}: {held} in {slots}, {wasted} wasted, {}; {copied} copied", mib(usage.bytes))
}

/// Pages that are always enough for `n` sequences that share the full pages of their prompt.
fn pages_of_forks(n_prompt: usize, max_new_tokens: usize, n: usize, page_size: usize) -> usize {
    let shared = n_prompt / page_size;
    let each = (n_prompt + max_new_tokens).div_ceil(page_size);
    shared.saturating_add((each - shared).saturating_mul(n))
}

fn one_line(text: &str, width: usize) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(width + 1).collect();
    if line.chars().count() <= width { line } else { line.chars().take(width - 1).chain(['…']).collect() }
}
