//! `generate`: tells a story, and what its cache cost; or several stories in turns; or looks for the likeliest ones.

mod beams;
mod growing;
mod live;
mod prompts;
mod several;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use page_by_page::cache::Usage;
use page_by_page::cache::in_place::InPlace;
use page_by_page::chapters::{Source, all};
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::decode::{Draft, Limits};
use page_by_page::kernels::RowFormat;
use page_by_page::model::tokenizer::{TextStream, Tokenizer};
use page_by_page::model::{Model, ModelConfig};
use serde::Serialize;

use super::choosing::Choosing;
use super::drafting::{Drafted, Drafting, Guesses};
use super::kv::{Kv, Room, Writing, Written, require_chapters};
use super::progress::Progress;
use super::reading::Reading;
use super::report::{count, mib, per_second, rate, thousands, time};
use super::saved::{Restored, Saved, SavedCache, restore};
use super::{memory, model_dir, print, say};

/// Tell a story
///
/// Continues a text, token by token. The text goes to standard output as it is made; what it cost follows on standard
/// error. The same seed tells the same story with every cache: only the costs differ.
///
/// Several prompts are told in turns, one pass of the model for all in each step, and kept in pages of one memory.
/// Each is the story that it is when told alone. On a terminal they grow side by side; otherwise they follow each other.
///
/// --samples tells several stories of one prompt in the same way. The prompt is read once, and the stories share its pages.
/// --beams looks for the likeliest story instead: it follows several beginnings at once and keeps the best.
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
    /// How the text begins; several prompts are told in turns [default: "Once upon a time"]
    #[arg(value_name = "PROMPT")]
    prompt: Vec<String>,
    /// Tell a text for each line of this file, - for standard input; empty lines are skipped
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompts: Option<PathBuf>,
    /// Tell N texts of one prompt, at most 256: the first with --seed, the second with the next number, and so on
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MOST_TEXTS as i64))]
    samples: Option<u16>,
    /// Look for the likeliest text with K beams, at most 256: texts that grow side by side, the best of which go on
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..=MOST_TEXTS as i64))]
    beams: Option<u16>,
    /// Where keys and values are kept: recompute (nowhere), flat, contiguous or paged [default: contiguous; paged for
    /// several texts]
    #[arg(long, value_name = "CACHE")]
    kv: Option<Kv>,
    /// Model folder, or a bundled model: storyteller, storyteller-draft
    #[arg(long, value_name = "DIR", default_value = "storyteller")]
    model: PathBuf,
    /// Stop after this many tokens, if the text has not ended before
    #[arg(long, value_name = "N", default_value_t = MAX_NEW_TOKENS)]
    max_new_tokens: usize,
    #[command(flatten)]
    choosing: Choosing,
    /// Slots that the contiguous cache reserves [default: enough for prompt and new tokens]
    #[arg(long, value_name = "N")]
    capacity: Option<usize>,
    /// Slots in a page of the paged cache
    #[arg(long, value_name = "P", default_value_t = 16)]
    page_size: usize,
    /// Pages that the paged cache may use, for all texts [default: enough for prompts and new tokens]
    #[arg(long, value_name = "N")]
    pages: Option<usize>,
    /// Let several prompts that begin alike share the pages of their beginning: one text begins in each step and finds what
    /// those before it have computed
    #[arg(long)]
    prefix_cache: bool,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    drafting: Drafting,
    #[command(flatten)]
    saved_cache: SavedCache,
    /// While texts grow side by side, take so many tokens a second for each at most, 0 as many as there are
    #[arg(long, value_name = "N", default_value_t = 40)]
    pace: u32,
    /// Print one JSON object instead: text, token ids, counters, timings; a list of texts for several of them
    #[arg(long)]
    json: bool,
}

/// Texts that take part in a step, at most.
pub const MOST_TEXTS: usize = 256;
/// How a text begins when nothing else is said.
const BEGINNING: &str = "Once upon a time";
const EMPTY_PROMPT: &str = "the prompt is empty; give the text a beginning, such as \"Once upon a time\"";
/// Chosen when there is nobody left to write for. No vocabulary is that large.
const STOP: u32 = u32::MAX;

impl Generate {
    /// Runs the command.
    pub fn run(mut self) -> Result<()> {
        if let Some(width) = self.beams {
            return self.search(usize::from(width));
        }
        if let Some(n_samples) = self.samples {
            return self.tell_samples(usize::from(n_samples));
        }
        if let Some(file) = &self.prompts {
            return self.tell_several(&prompts::read(file)?);
        }
        match self.prompt.len() {
            0 => self.prompt.push(BEGINNING.into()),
            1 => {}
            _ => return self.tell_several(&self.prompt),
        }
        self.tell_one(&self.prompt[0])
    }

    /// The cache to write with.
    fn kv(&self) -> Kv {
        let is_one = self.gives_one_prompt() && self.samples.is_none() && self.beams.is_none();
        self.kv.unwrap_or(if is_one { Kv::Contiguous } else { Kv::Paged })
    }

    fn gives_one_prompt(&self) -> bool {
        self.prompts.is_none() && self.prompt.len() < 2
    }

    /// The prompt, for an option that serves one prompt only.
    fn only_prompt(&self, option: &str) -> Result<&str> {
        ensure!(
            self.gives_one_prompt(),
            "{option} is for one prompt, and several were given; give one prompt, or leave out {option}"
        );
        let beginning = self.prompt.first().map_or(BEGINNING, String::as_str);
        ensure!(!beginning.is_empty(), EMPTY_PROMPT);
        Ok(beginning)
    }

    fn tell_one(&self, beginning: &str) -> Result<()> {
        ensure!(
            !self.prefix_cache,
            "--prefix-cache is for several prompts, and one was given; give more, or leave it out"
        );
        self.saved_cache.check(self.kv())?;
        require_chapters(&self.chapters())?;
        ensure!(!beginning.is_empty(), EMPTY_PROMPT);
        let dir = model_dir(&self.model);
        let mut model = Model::open(&dir)?;
        self.reading.apply(&mut model, self.kv())?;
        let tokenizer = Tokenizer::open(&dir)?;
        let sampling = self.choosing.sampling(model.config())?;
        let prompt = tokenizer.encode(beginning)?;
        model.check(&prompt, 0)?;
        let what = format!("reading {}", count(prompt.len(), "token"));
        memory::require(&what, model.step_bytes(prompt.len(), 1), "shorten the prompt")?;
        let max_new_tokens = self.new_tokens_that_fit("", prompt.len(), model.config())?;
        let tokens = prompt.len() + max_new_tokens;
        let mut guesser = self.drafting.open(&model, &tokenizer, self.kv(), tokens, self.page_size)?;
        let (mut cache, restored) = self.cache(&model, &prompt, max_new_tokens)?;

        let mut end_of_text = model.config().eos_token_ids.clone();
        end_of_text.push(STOP);
        let limits = Limits { max_new_tokens, end_of_text: &end_of_text };
        let progress = self.json.then(|| Progress::new("writing", max_new_tokens as u64));
        let mut screen = Screen { stream: tokenizer.stream(), progress, failure: None };
        screen.show(beginning);
        let mut sampler = Sampler::new(sampling);
        let mut guesses = Guesses::default();
        let mut clock = Clock::start();
        let written = {
            // Two closures need the screen: one to see whether it has failed, one to write.
            let screen = std::cell::RefCell::new(&mut screen);
            let mut on_token = |token| screen.borrow_mut().push(token);
            let failed = || screen.borrow().failure.is_some();
            let writing = Writing { model: &model, prompt: &prompt, limits };
            match &mut guesser {
                None => {
                    let mut pick = |logits: &[f32]| {
                        clock.answered(1);
                        if failed() { STOP } else { sampler.pick(logits) }
                    };
                    writing.run(cache.as_deref_mut(), &mut pick, &mut on_token)
                }
                Some(guesser) => {
                    let Drafting { draft_len, accept, .. } = self.drafting;
                    let mut judge = |draft: &Draft, rows: &[Vec<f32>]| {
                        let new_tokens = if failed() { vec![STOP] } else { accept.apply(draft, rows, &mut sampler) };
                        let end = new_tokens.iter().position(|token| end_of_text.contains(token));
                        let n_new = end.map_or(new_tokens.len(), |end| end + 1);
                        clock.answered(n_new);
                        guesses.note(draft, n_new);
                        new_tokens
                    };
                    guesser.work(accept, sampling, |drafter| {
                        writing.run_ahead(cache.as_deref_mut(), drafter, draft_len, &mut judge, &mut on_token)
                    })
                }
            }
        };
        clock.stop();
        screen.finish();
        let written = written?;
        // A story is told even if its cache cannot be saved.
        let saved = self.saved_cache.save(
            cache.as_deref().map(|cache| cache as _),
            &[&prompt[..], &written.tokens].concat(),
            &model,
        );
        let (saved, not_saved) = saved.map_or_else(|error| (None, Err(error)), |saved| (saved, Ok(())));
        let text = screen.stream.text().to_string();
        screen.into_result()?;

        let guesses = guesser.map(|_| guesses);
        let told = Told { prompt, sampling, restored, guesses, written, saved, clock };
        if self.json {
            print(&(serde_json::to_string(&self.story(&model, beginning, &text, &told))? + "\n"))?;
        } else {
            self.report(&model, &told);
        }
        not_saved.context("the text is whole, its cache is not saved")
    }

    /// The chapters whose code it runs.
    fn chapters(&self) -> Vec<usize> {
        let reading = self.reading.chapters(self.kv());
        [self.kv().chapters(), self.saved_cache.chapters(), self.drafting.chapters(), &reading].concat()
    }

    /// The cache to write with, and what it holds of a saved one.
    fn cache(&self, model: &Model, prompt: &[u32], max_new_tokens: usize) -> Result<(Cache, Option<Restored>)> {
        let saved = self.saved_cache.load(model)?;
        // A saved text is restored whole, and may be longer than what is to be written.
        let saved_tokens = saved.as_ref().map_or(0, |saved| saved.tokens().len());
        let enough = Room::for_tokens((prompt.len() + max_new_tokens).max(saved_tokens), self.page_size)?;
        let room = Room {
            capacity: self.capacity.unwrap_or(enough.capacity),
            n_pages: self.pages.unwrap_or(enough.n_pages),
            ..enough
        };
        let mut cache = self.kv().cache(model.kv_layout(), room)?;
        let restored = match (&saved, &mut cache) {
            (Some(saved), Some(cache)) => Some(restore(saved, cache.as_mut(), prompt)?),
            _ => None,
        };
        Ok((cache, restored))
    }

    /// `text`: which one, to begin a message with.
    fn new_tokens_that_fit(&self, text: &str, prompt: usize, config: &ModelConfig) -> Result<usize> {
        let positions = config.max_positions;
        if prompt >= positions {
            bail!(
                "{text}the prompt has {} tokens and the model {} positions: no room for a new token; shorten the prompt",
                thousands(prompt as u64),
                thousands(positions as u64)
            );
        }
        let fit = positions - prompt;
        if self.max_new_tokens > fit {
            say(&format!(
                "note: {text}at most {} new tokens, as the model has {} positions and the prompt takes {}",
                thousands(fit as u64),
                thousands(positions as u64),
                thousands(prompt as u64)
            ));
        }
        Ok(self.max_new_tokens.min(fit))
    }

    fn report(&self, model: &Model, told: &Told) {
        let Told { written, clock, .. } = told;
        let config = model.config();
        let weights = model.weights().map(|weight| weight.bytes().len()).sum();
        let usage = written.usage;
        let cache = if self.kv() == Kv::Recompute {
            "none, all is computed again".into()
        } else {
            let format = model.row_format();
            let packed = if format == RowFormat::F32 { String::new() } else { format!(", rows in {format}") };
            format!(
                "{}{packed}: {} in {}, {} wasted, {}; {} copied",
                self.kv(),
                count(usage.tokens, "token"),
                count(usage.slots, "slot"),
                thousands(usage.wasted() as u64),
                mib(usage.bytes),
                count(usage.rows_copied as usize, "row")
            )
        };
        let prefill = format!("{} in {}", count(told.prefilled(), "token"), time(clock.prefill));
        let decode = format!(
            "{} in {}, {} tokens/s",
            count(clock.steps, "token"),
            time(clock.decode),
            rate(per_second(clock.steps, clock.decode))
        );
        let restored = told
            .restored
            .map(|Restored { saved, kept }| format!("{} of {}", thousands(kept as u64), count(saved, "saved token")));
        let guesses = told.guesses.map(|guesses| self.drafting.describe(guesses));
        let saved =
            told.saved.as_ref().map(|saved| format!("{} to {}", count(saved.tokens, "token"), saved.file.display()));
        say("");
        for (name, text) in [
            (
                "model",
                Some(format!("{}, {} layers, {} of weights", self.model.display(), config.n_layers, mib(weights))),
            ),
            ("sampling", Some(describe(told.sampling))),
            ("restored", restored),
            ("prefill", Some(prefill)),
            ("decode", Some(decode)),
            ("draft", guesses),
            ("projected", Some(count(written.rows_projected as usize, "row"))),
            ("cache", Some(cache)),
            ("saved", saved),
            ("chapters", Some(whose_chapters(&self.chapters()))),
        ] {
            if let Some(text) = text {
                say(&format!("{name:<9}  {text}"));
            }
        }
    }

    fn story<'a>(&'a self, model: &Model, beginning: &'a str, text: &'a str, told: &'a Told) -> Story<'a> {
        let Told { written, clock, sampling, .. } = told;
        let Usage { tokens, slots, bytes, rows_copied } = written.usage;
        Story {
            prompt: beginning,
            text,
            tokens: Tokens { prompt: &told.prompt, new: &written.tokens },
            kv: self.kv().to_string(),
            kv_dtype: model.row_format().name(),
            model: self.model.display().to_string(),
            seed: sampling.seed,
            sampling: SamplingUsed { temperature: sampling.temperature, top_k: sampling.top_k, top_p: sampling.top_p },
            restored: told.restored,
            draft: told.guesses.map(|guesses| self.drafting.tell(guesses)),
            saved: told.saved.as_ref(),
            counters: Counters { rows_projected: written.rows_projected, rows_copied, tokens, slots, bytes },
            timings: Timings {
                prefill_seconds: clock.prefill.as_secs_f64(),
                prefill_tokens_per_second: per_second(told.prefilled(), clock.prefill),
                decode_seconds: clock.decode.as_secs_f64(),
                decode_tokens_per_second: per_second(clock.steps, clock.decode),
            },
        }
    }
}

/// `None`: nothing is kept.
type Cache = Option<Box<dyn InPlace>>;

/// A story that was told, and what it took.
struct Told {
    prompt: Vec<u32>,
    sampling: Sampling,
    restored: Option<Restored>,
    guesses: Option<Guesses>,
    written: Written,
    saved: Option<Saved>,
    clock: Clock,
}

impl Told {
    /// Tokens of the prompt that went through the model in the first step.
    fn prefilled(&self) -> usize {
        let kept = self.restored.map_or(0, |restored| restored.kept);
        if self.written.rows_projected == 0 { 0 } else { self.prompt.len() - kept }
    }
}

/// New tokens that a text gets at most, unless it says otherwise.
pub(super) const MAX_NEW_TOKENS: usize = 200;

/// What `--json` prints.
#[derive(Serialize)]
struct Story<'a> {
    prompt: &'a str,
    text: &'a str,
    tokens: Tokens<'a>,
    kv: String,
    kv_dtype: &'static str,
    model: String,
    seed: u64,
    sampling: SamplingUsed,
    #[serde(skip_serializing_if = "Option::is_none")]
    restored: Option<Restored>,
    #[serde(skip_serializing_if = "Option::is_none")]
    draft: Option<Drafted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    saved: Option<&'a Saved>,
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

/// Whose code the chapters are that a command runs: `1 yours, 3 reference`.
pub(super) fn whose_chapters(needed: &[usize]) -> String {
    let whose = |source| match source {
        Source::Yours => "yours",
        Source::Reference => "reference",
        Source::Unstarted => "not started",
    };
    let needed = all().iter().filter(|chapter| needed.contains(&chapter.number));
    let chapters: Vec<String> = needed.map(|chapter| format!("{} {}", chapter.number, whose(chapter.source))).collect();
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

    /// The model has answered for so many tokens.
    fn answered(&mut self, tokens: usize) {
        self.steps += tokens;
        if self.prefill.is_zero() {
            self.prefill = self.start.elapsed();
            self.steps -= 1;
        }
    }

    fn stop(&mut self) {
        self.decode = self.start.elapsed() - self.prefill;
    }
}
