//! `generate`: tells a story, and what its cache cost.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::Args;
use page_by_page::cache::Usage;
use page_by_page::chapters::{Source, all};
use page_by_page::engine::Limits;
use page_by_page::model::{Model, ModelConfig};
use page_by_page::sampler::{Sampler, Sampling};
use page_by_page::tokenizer::{TextStream, Tokenizer};
use serde::Serialize;

use super::kv::{Kv, Pages, Writing, Written, require_chapters, require_memory};
use super::progress::Progress;
use super::report::{count, mib, per_second, rate, thousands, time};
use super::{model_dir, print, say};

/// Tell a story
///
/// Continues a text, token by token. The text goes to standard output as it is made; what it cost follows on standard
/// error. The same seed tells the same story with every cache: only the costs differ.
#[derive(Args)]
#[command(after_help = "\
Examples:
  page-by-page generate
  page-by-page generate \"The king had\" --kv flat --seed 7
  page-by-page generate --model path/to/Qwen3-0.6B \"The capital of France is\" --temperature 0")]
pub struct Generate {
    /// How the text begins
    #[arg(default_value = "Once upon a time")]
    prompt: String,
    /// Where keys and values are kept: recompute (nowhere), flat, contiguous or paged
    #[arg(long, value_name = "CACHE", default_value = "contiguous")]
    kv: Kv,
    /// Model folder, or a bundled model: storyteller, storyteller-draft
    #[arg(long, value_name = "DIR", default_value = "storyteller")]
    model: PathBuf,
    /// Stop after this many tokens, if the text has not ended before
    #[arg(long, value_name = "N", default_value_t = 200)]
    max_new_tokens: usize,
    /// Below 1 safer, above 1 wilder, 0 always the likeliest token [default: the model's, or 0.8]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Choose among the K likeliest tokens only, 0 among all [default: the model's, or 0]
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Choose among the likeliest tokens that together reach this probability [default: the model's, or 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Same seed, same story
    #[arg(long, value_name = "S", default_value_t = 23)]
    seed: u64,
    /// Slots that the contiguous cache reserves [default: prompt and new tokens]
    #[arg(long, value_name = "N")]
    capacity: Option<usize>,
    /// Slots in a page of the paged cache
    #[arg(long, value_name = "P", default_value_t = 16)]
    page_size: usize,
    /// Pages that the paged cache may use [default: enough for prompt and new tokens]
    #[arg(long, value_name = "N")]
    pages: Option<usize>,
    /// Print one JSON object instead: text, token ids, counters, timings
    #[arg(long)]
    json: bool,
}

/// Chosen when there is nobody left to write for. No vocabulary is that large.
const STOP: u32 = u32::MAX;

impl Generate {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        require_chapters(self.kv.chapters())?;
        ensure!(
            !self.prompt.is_empty(),
            "the prompt is empty; give the text a beginning, such as \"Once upon a time\""
        );
        let dir = model_dir(&self.model);
        let model = Model::open(&dir)?;
        let tokenizer = Tokenizer::open(&dir)?;
        let sampling = self.sampling(model.config())?;
        let prompt = tokenizer.encode(&self.prompt)?;
        model.check(&prompt, 0)?;
        let max_new_tokens = self.new_tokens_that_fit(prompt.len(), model.config())?;
        let capacity = self.capacity.unwrap_or(prompt.len() + max_new_tokens);
        ensure!(self.page_size > 0, "the page size is 0; a page needs at least one slot");
        let n_pages = self.pages.unwrap_or((prompt.len() + max_new_tokens).div_ceil(self.page_size));
        let pages = Pages { page_size: self.page_size, n_pages };
        match self.kv {
            Kv::Contiguous => require_memory(model.config().kv_layout(), capacity)?,
            Kv::Paged => require_memory(model.config().kv_layout(), n_pages.saturating_mul(self.page_size))?,
            Kv::Recompute | Kv::Flat => {}
        }

        let mut end_of_text = model.config().eos_token_ids.clone();
        end_of_text.push(STOP);
        let limits = Limits { max_new_tokens, end_of_text: &end_of_text };
        let progress = self.json.then(|| Progress::new("writing", max_new_tokens as u64));
        let mut screen = Screen { stream: tokenizer.stream(), progress, failure: None };
        screen.show(&self.prompt);
        let mut sampler = Sampler::new(sampling);
        let mut clock = Clock::start();
        let written = {
            // Two closures need the screen: one to see whether it has failed, one to write.
            let screen = std::cell::RefCell::new(&mut screen);
            let mut pick = |logits: &[f32]| {
                clock.answered();
                if screen.borrow().failure.is_some() { STOP } else { sampler.pick(logits) }
            };
            let mut on_token = |token| screen.borrow_mut().push(token);
            Writing { model: &model, prompt: &prompt, limits, capacity, pages }.run(self.kv, &mut pick, &mut on_token)
        };
        clock.stop();
        screen.finish();
        let written = written?;
        let text = screen.stream.text().to_string();
        screen.into_result()?;

        if self.json {
            let story = self.story(&text, &prompt, sampling, &written, &clock);
            return print(&(serde_json::to_string(&story)? + "\n"));
        }
        self.report(&model, prompt.len(), sampling, &written, &clock);
        Ok(())
    }

    fn sampling(&self, config: &ModelConfig) -> Result<Sampling> {
        let temperature = self.temperature.or(config.sampling.temperature).unwrap_or(0.8);
        let top_k = self.top_k.or(config.sampling.top_k).unwrap_or(0);
        let top_p = self.top_p.or(config.sampling.top_p).unwrap_or(0.95);
        if temperature != 0.0 && !(0.001..=1000.0).contains(&temperature) {
            bail!("the temperature is {temperature}, expected 0 (greedy) or 0.001 to 1000");
        }
        if !(0.0..=1.0).contains(&top_p) {
            bail!("top-p is {top_p}, expected a probability from 0 to 1");
        }
        Ok(Sampling { temperature, top_k, top_p, seed: self.seed })
    }

    fn new_tokens_that_fit(&self, prompt: usize, config: &ModelConfig) -> Result<usize> {
        let positions = config.max_positions;
        if prompt >= positions {
            bail!(
                "the prompt has {} tokens and the model {} positions: no room for a new token; shorten the prompt",
                thousands(prompt as u64),
                thousands(positions as u64)
            );
        }
        let fit = positions - prompt;
        if self.max_new_tokens > fit {
            say(&format!(
                "note: at most {} new tokens, as the model has {} positions and the prompt takes {}",
                thousands(fit as u64),
                thousands(positions as u64),
                thousands(prompt as u64)
            ));
        }
        Ok(self.max_new_tokens.min(fit))
    }

    fn report(&self, model: &Model, prompt: usize, sampling: Sampling, written: &Written, clock: &Clock) {
        let config = model.config();
        let weights = model.weights().map(|weight| weight.bytes().len()).sum();
        let usage = written.usage;
        let cache = if self.kv == Kv::Recompute {
            "none, all is computed again".into()
        } else {
            format!(
                "{}: {} in {}, {} wasted, {}; {} copied",
                self.kv,
                count(usage.tokens, "token"),
                count(usage.slots, "slot"),
                thousands(usage.wasted() as u64),
                mib(usage.bytes),
                count(usage.rows_copied as usize, "row")
            )
        };
        let prefilled = if written.rows_projected == 0 { 0 } else { prompt };
        let prefill = format!("{} in {}", count(prefilled, "token"), time(clock.prefill));
        let decode = format!(
            "{} in {}, {} tokens/s",
            count(clock.steps, "token"),
            time(clock.decode),
            rate(per_second(clock.steps, clock.decode))
        );
        say("");
        for (name, text) in [
            ("model", format!("{}, {} layers, {} of weights", self.model.display(), config.n_layers, mib(weights))),
            ("sampling", describe(sampling)),
            ("prefill", prefill),
            ("decode", decode),
            ("projected", count(written.rows_projected as usize, "row")),
            ("cache", cache),
            ("chapters", whose_chapters(self.kv)),
        ] {
            say(&format!("{name:<9}  {text}"));
        }
    }

    fn story<'a>(
        &'a self,
        text: &'a str,
        prompt: &'a [u32],
        sampling: Sampling,
        written: &'a Written,
        clock: &Clock,
    ) -> Story<'a> {
        let Usage { tokens, slots, bytes, rows_copied } = written.usage;
        Story {
            prompt: &self.prompt,
            text,
            tokens: Tokens { prompt, new: &written.tokens },
            kv: self.kv.to_string(),
            model: self.model.display().to_string(),
            seed: sampling.seed,
            sampling: SamplingUsed { temperature: sampling.temperature, top_k: sampling.top_k, top_p: sampling.top_p },
            counters: Counters { rows_projected: written.rows_projected, rows_copied, tokens, slots, bytes },
            timings: Timings {
                prefill_seconds: clock.prefill.as_secs_f64(),
                prefill_tokens_per_second: per_second(prompt.len(), clock.prefill),
                decode_seconds: clock.decode.as_secs_f64(),
                decode_tokens_per_second: per_second(clock.steps, clock.decode),
            },
        }
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Story<'a> {
    prompt: &'a str,
    text: &'a str,
    tokens: Tokens<'a>,
    kv: String,
    model: String,
    seed: u64,
    sampling: SamplingUsed,
    counters: Counters,
    timings: Timings,
}

#[derive(Serialize)]
struct Tokens<'a> {
    prompt: &'a [u32],
    new: &'a [u32],
}

#[derive(Serialize)]
struct SamplingUsed {
    temperature: f32,
    top_k: usize,
    top_p: f32,
}

#[derive(Serialize)]
struct Counters {
    rows_projected: u64,
    rows_copied: u64,
    tokens: usize,
    slots: usize,
    bytes: usize,
}

#[derive(Serialize)]
struct Timings {
    prefill_seconds: f64,
    prefill_tokens_per_second: f64,
    decode_seconds: f64,
    decode_tokens_per_second: f64,
}

fn describe(sampling: Sampling) -> String {
    if sampling.temperature == 0.0 {
        return "greedy".into();
    }
    let mut text = format!("temperature {}", sampling.temperature);
    if sampling.top_k > 0 {
        text.push_str(&format!(", top-k {}", sampling.top_k));
    }
    if sampling.top_p < 1.0 {
        text.push_str(&format!(", top-p {}", sampling.top_p));
    }
    format!("{text}, seed {}", sampling.seed)
}

fn whose_chapters(kv: Kv) -> String {
    let whose = |source| match source {
        Source::Yours => "yours",
        Source::Reference => "reference",
        Source::Unstarted => "not started",
    };
    let chapters: Vec<String> = all()
        .iter()
        .map(|chapter| {
            let needed = kv.chapters().contains(&chapter.number);
            format!("{} {}", chapter.number, if needed { whose(chapter.source) } else { "not needed" })
        })
        .collect();
    chapters.join(", ")
}

/// The text on its way to the reader, shown piece by piece as it is made.
struct Screen<'t> {
    stream: TextStream<'t>,
    /// Instead of the text, where only JSON is wanted.
    progress: Option<Progress>,
    failure: Option<anyhow::Error>,
}

impl Screen<'_> {
    fn show(&mut self, text: &str) {
        if self.progress.is_none() && self.failure.is_none() {
            self.failure = print(text).err();
        }
    }

    fn push(&mut self, token: u32) {
        if let Some(progress) = &self.progress {
            progress.advance(1);
        }
        match self.stream.push(token) {
            Ok(piece) => self.show(&piece),
            Err(error) => self.failure = Some(error.into()),
        }
    }

    fn finish(&mut self) {
        match self.stream.finish() {
            Ok(piece) => self.show(&(piece + "\n")),
            Err(error) => self.failure = Some(error.into()),
        }
    }

    fn into_result(self) -> Result<()> {
        self.failure.map_or(Ok(()), Err)
    }
}

/// Tells the first step, which computes the prompt, from the later ones, which compute a token each.
struct Clock {
    start: Instant,
    /// Logits asked for after the first.
    steps: usize,
    prefill: Duration,
    decode: Duration,
}

impl Clock {
    fn start() -> Self {
        Clock { start: Instant::now(), steps: 0, prefill: Duration::ZERO, decode: Duration::ZERO }
    }

    /// The model has answered.
    fn answered(&mut self) {
        if self.prefill.is_zero() {
            self.prefill = self.start.elapsed();
        } else {
            self.steps += 1;
        }
    }

    fn stop(&mut self) {
        self.decode = self.start.elapsed() - self.prefill;
    }
}
