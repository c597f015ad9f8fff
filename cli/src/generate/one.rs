//! One prompt, one output: generated with any cache, with drafts or without, from a saved cache or from the start.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use page_by_page::cache::Usage;
use page_by_page::cache::in_place::InPlace;
use page_by_page::cache::kind::{CacheKind, CacheSize};
use page_by_page::decode::drafting::{DraftCounters, DraftSource};
use page_by_page::decode::generation::{Generated, Generation};
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::decode::{Draft, Limits};
use page_by_page::kernels::RowFormat;
use page_by_page::model::Model;
use page_by_page::model::tokenizer::{TextStream, Tokenizer};
use serde::Serialize;

use super::{EMPTY_PROMPT, Generate, SamplingUsed, Timings, Tokens};
use crate::drafts::DraftReport;
use crate::options::{Restored, Saved, restore};
use crate::output::{
    Lines, Progress, Prose, count, describe, mib, per_second, print_json, rate, say_report, thousands, time,
};
use crate::require;

/// Chosen when standard output is closed: an end-of-text id that no vocabulary has.
const STOP: u32 = u32::MAX;

/// `None`: nothing is kept.
type Cache = Option<Box<dyn InPlace>>;

/// What generating begins with.
struct Setup {
    model: Model,
    tokenizer: Tokenizer,
    prompt: Vec<u32>,
    max_new_tokens: usize,
    sampling: Sampling,
    cache: Cache,
    restored: Option<Restored>,
    draft: Option<DraftSource>,
}

/// What `--json` prints, and what the report for people is made of.
#[derive(Serialize)]
struct Report<'a> {
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
    draft: Option<DraftReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    saved: Option<Saved>,
    counters: Counters,
    timings: Timings,
    #[serde(skip)]
    clock: Clock,
}

#[derive(Serialize)]
struct Counters {
    rows_projected: u64,
    rows_copied: u64,
    tokens: usize,
    slots: usize,
    bytes: usize,
}

impl Generate {
    /// Generates one output.
    pub(super) fn run_one(&self, prompt: &str) -> Result<()> {
        ensure!(
            !self.several.prefix_cache,
            "--prefix-cache is for several prompts, and one was given; give more, or leave it out"
        );
        self.snapshot.check(self.kv())?;
        require::chapters(&self.chapters())?;
        ensure!(!prompt.is_empty(), EMPTY_PROMPT);
        let mut setup = self.set_up(prompt)?;
        let is_closed = Cell::new(false);
        let progress = self.json.then(|| Progress::new("generating", setup.max_new_tokens as u64));
        let (mut clock, mut drafts) = (Clock::start(), DraftCounters::default());
        let (generated, text) = {
            let Setup { model, tokenizer, prompt: tokens, max_new_tokens, sampling, cache, draft, .. } = &mut setup;
            let mut screen = Screen::new(tokenizer.stream(), progress, &is_closed);
            screen.show(prompt);
            let mut end_of_text = model.config().eos_token_ids.clone();
            end_of_text.push(STOP);
            let limits = Limits { max_new_tokens: *max_new_tokens, end_of_text: &end_of_text };
            let generation = Generation { model, prompt: tokens, limits };
            let cache = cache.as_deref_mut();
            let mut source = Source { sampler: Sampler::new(*sampling), clock: &mut clock, is_closed: &is_closed };
            let mut on_token = |token| screen.push(token);
            let generated = match draft {
                None => generation.run(cache, &mut |logits| source.pick(logits), &mut on_token),
                Some(draft) => {
                    let (accept, k) = (self.draft.accept, self.draft.draft_len);
                    let mut judge = |draft: &Draft, rows: &[Vec<f32>]| {
                        let apply = |sampler: &mut Sampler| accept.apply(draft, rows, sampler);
                        let (tokens, n) = source.accept(apply, &end_of_text);
                        drafts.count(draft, n);
                        tokens
                    };
                    draft.work(accept, *sampling, |drafter| {
                        generation.run_with_drafts(cache, drafter, k, &mut judge, &mut on_token)
                    })
                }
            };
            clock.stop();
            (generated, screen.finish())
        };
        let generated = generated?;
        // The output is written even if its cache cannot be saved.
        let tokens = [&setup.prompt[..], &generated.tokens].concat();
        let saved = self.snapshot.save(setup.cache.as_deref().map(|cache| cache as _), &tokens, &setup.model);
        let (saved, not_saved) = saved.map_or_else(|error| (None, Err(error)), |saved| (saved, Ok(())));
        let text = text?;
        let draft = setup.draft.is_some().then(|| self.draft.report(drafts));
        let report = self.report(&setup, prompt, &text, &generated, clock, (draft, saved));
        if self.json {
            print_json(&report)?;
        } else {
            say_report(None, &self.lines(&setup, &report));
        }
        not_saved.context("the output is complete, but its cache was not saved")
    }

    /// The chapters whose code runs.
    fn chapters(&self) -> Vec<usize> {
        let rows = self.rows.chapters(self.kv());
        [self.kv().chapters(), self.snapshot.chapters(), self.draft.chapters(), &rows].concat()
    }

    fn set_up(&self, prompt: &str) -> Result<Setup> {
        let (model, tokenizer) = self.model.open(self.rows, self.kv())?;
        let sampling = self.sampling.sampling(model.config())?;
        let prompt = tokenizer.encode(prompt)?;
        model.check(&prompt, 0)?;
        let what = format!("computing {}", count(prompt.len(), "token"));
        require::memory(&what, model.step_bytes(prompt.len(), 1), "shorten the prompt")?;
        let max_new_tokens = self.new_tokens_that_fit("", prompt.len(), model.config())?;
        let tokens = prompt.len() + max_new_tokens;
        let draft = self.draft.open(&model, &tokenizer, self.kv(), tokens, self.cache.page_size)?;
        let (cache, restored) = self.cache(&model, &prompt, max_new_tokens)?;
        Ok(Setup { model, tokenizer, prompt, max_new_tokens, sampling, cache, restored, draft })
    }

    /// The cache, and what it holds of a saved one.
    fn cache(&self, model: &Model, prompt: &[u32], max_new_tokens: usize) -> Result<(Cache, Option<Restored>)> {
        let saved = self.snapshot.load(model)?;
        // A saved cache is restored whole, and may be longer than prompt and output.
        let saved_tokens = saved.as_ref().map_or(0, |saved| saved.tokens().len());
        let enough = CacheSize::for_tokens((prompt.len() + max_new_tokens).max(saved_tokens), self.cache.page_size)?;
        let size = CacheSize {
            capacity: self.cache.capacity.unwrap_or(enough.capacity),
            n_pages: self.cache.pages.unwrap_or(enough.n_pages),
            ..enough
        };
        require::cache(self.kv(), model.kv_layout(), size)?;
        let mut cache = self.kv().cache(model.kv_layout(), size)?;
        let restored = match (&saved, &mut cache) {
            (Some(saved), Some(cache)) => Some(restore(saved, cache.as_mut(), prompt)?),
            _ => None,
        };
        Ok((cache, restored))
    }

    fn report<'a>(
        &self,
        setup: &'a Setup,
        prompt: &'a str,
        text: &'a str,
        generated: &'a Generated,
        clock: Clock,
        (draft, saved): (Option<DraftReport>, Option<Saved>),
    ) -> Report<'a> {
        let Usage { tokens, slots, bytes, rows_copied } = generated.usage;
        let rows_projected = generated.rows_projected;
        Report {
            prompt,
            text,
            tokens: Tokens { prompt: &setup.prompt, generated: &generated.tokens },
            kv: self.kv().to_string(),
            kv_dtype: setup.model.row_format().name(),
            model: self.model.name(),
            seed: setup.sampling.seed,
            sampling: setup.sampling.into(),
            restored: setup.restored,
            draft,
            saved,
            counters: Counters { rows_projected, rows_copied, tokens, slots, bytes },
            timings: Timings::new((setup.prefilled(rows_projected), clock.prefill), (clock.steps, clock.decode)),
            clock,
        }
    }

    /// The report for people.
    fn lines(&self, setup: &Setup, report: &Report<'_>) -> Lines {
        let Counters { rows_projected, rows_copied, tokens, slots, bytes } = report.counters;
        let Clock { steps, prefill, decode, .. } = report.clock;
        let format = setup.model.row_format();
        let packed = if format == RowFormat::F32 { String::new() } else { format!(", rows in {format}") };
        let prefilled = count(setup.prefilled(rows_projected), "token");
        let decoded = count(steps, "token");
        let lines = [
            ("model", Some(self.describe_model(&setup.model))),
            ("sampling", Some(describe(setup.sampling))),
            ("restored", report.restored.as_ref().map(Restored::describe)),
            ("prefill", Some(format!("{prefilled} in {}", time(prefill)))),
            ("decode", {
                let speed = rate(per_second(steps, decode));
                Some(format!("{decoded} in {}, {speed} tokens/s", time(decode)))
            }),
            ("draft", report.draft.as_ref().map(DraftReport::describe)),
            ("projected", Some(count(rows_projected, "row"))),
            ("cache", {
                let (held, in_slots, copied) =
                    (count(tokens, "token"), count(slots, "slot"), count(rows_copied, "row"));
                let wasted = thousands(slots - tokens);
                Some(match self.kv() {
                    CacheKind::Recompute => "none, everything is recomputed".into(),
                    kv => {
                        format!("{kv}{packed}: {held} in {in_slots}, {wasted} wasted, {}; {copied} copied", mib(bytes))
                    }
                })
            }),
            ("saved", report.saved.as_ref().map(Saved::describe)),
            ("chapters", Some(require::whose_chapters(&self.chapters()))),
        ];
        lines.into_iter().filter_map(|(name, text)| Some((name, text?))).collect()
    }
}

impl Setup {
    /// Tokens of the prompt that the first step computed.
    fn prefilled(&self, rows_projected: u64) -> usize {
        let kept = self.restored.map_or(0, |restored| restored.kept);
        if rows_projected == 0 { 0 } else { self.prompt.len() - kept }
    }
}

/// Where the tokens come from: the sampler, until standard output is closed.
struct Source<'a> {
    sampler: Sampler,
    clock: &'a mut Clock,
    is_closed: &'a Cell<bool>,
}

impl Source<'_> {
    /// A token, without drafts.
    fn pick(&mut self, logits: &[f32]) -> u32 {
        self.clock.generated(1);
        if self.is_closed.get() { STOP } else { self.sampler.pick(logits) }
    }

    /// The tokens of a step with a draft, and how many of them count.
    fn accept(&mut self, apply: impl FnOnce(&mut Sampler) -> Vec<u32>, end_of_text: &[u32]) -> (Vec<u32>, usize) {
        let tokens = if self.is_closed.get() { vec![STOP] } else { apply(&mut self.sampler) };
        let end = tokens.iter().position(|token| end_of_text.contains(token));
        let n = end.map_or(tokens.len(), |end| end + 1);
        self.clock.generated(n);
        (tokens, n)
    }
}

/// The output on its way to the reader, piece by piece.
struct Screen<'a> {
    stream: TextStream<'a>,
    prose: Prose,
    /// Instead of the text, if only JSON is wanted.
    progress: Option<Progress>,
    failure: Option<anyhow::Error>,
    /// Set as soon as there is a failure.
    is_closed: &'a Cell<bool>,
}

impl<'a> Screen<'a> {
    fn new(stream: TextStream<'a>, progress: Option<Progress>, is_closed: &'a Cell<bool>) -> Self {
        Screen { stream, prose: Prose::to_stdout_after(0), progress, failure: None, is_closed }
    }

    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.fail(error)).ok()
    }

    fn fail(&mut self, error: anyhow::Error) {
        self.is_closed.set(true);
        self.failure.get_or_insert(error);
    }

    fn show(&mut self, text: &str) {
        if self.progress.is_none() && self.failure.is_none() {
            let shown = self.prose.print(text);
            self.note(shown);
        }
    }

    fn push(&mut self, token: u32) {
        if let Some(progress) = &self.progress {
            progress.advance(1);
        }
        let piece = self.stream.push(token).map_err(anyhow::Error::from);
        if let Some(piece) = self.note(piece) {
            self.show(&piece);
        }
    }

    /// The whole text, or why it could not be shown.
    fn finish(mut self) -> Result<String> {
        let piece = self.stream.finish().map_err(anyhow::Error::from);
        if let Some(piece) = self.note(piece) {
            self.show(&(piece + "\n"));
        }
        self.failure.map_or_else(|| Ok(self.stream.text().to_string()), Err)
    }
}

/// Separates the first step, which computes the prompt, from the later ones.
#[derive(Clone, Copy)]
struct Clock {
    start: Instant,
    /// Tokens generated after the first.
    steps: usize,
    prefill: Duration,
    decode: Duration,
}

impl Clock {
    fn start() -> Self {
        Clock { start: Instant::now(), steps: 0, prefill: Duration::ZERO, decode: Duration::ZERO }
    }

    /// A step has generated some tokens.
    fn generated(&mut self, tokens: usize) {
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
