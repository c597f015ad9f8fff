//! One prompt, one output: generated with any cache, with drafts or without, from a saved cache or from the start.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use page_by_page::cache::in_place::InPlace;
use page_by_page::cache::kind::CacheSize;
use page_by_page::decode::drafting::{DraftCounters, DraftSource};
use page_by_page::decode::generation::{Generated, Generation};
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::decode::{Draft, Limits};
use page_by_page::kernels::RowFormat;
use page_by_page::model::Model;
use page_by_page::model::tokenizer::{TextStream, Tokenizer};

use super::{Generate, counters, describe_cache, timings, token_ids};
use crate::options::{Restored, Saved, restore};
use crate::output::{Lines, Object, Progress, Prose, count, describe, print_json, say_report};
use crate::require;

/// Chosen when standard output is closed: an end-of-text id that no vocabulary has.
const STOP: u32 = u32::MAX;

/// `None`: nothing is kept.
type Cache = Option<Box<dyn InPlace>>;

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

struct Done {
    generated: Generated,
    clock: Clock,
    elapsed: Duration,
    drafts: DraftCounters,
    saved: Option<Saved>,
}

impl Generate {
    pub(super) fn run_one(&self, prompt: &str) -> Result<()> {
        self.snapshot.check()?;
        require::chapters(&self.chapters())?;
        let mut setup = self.set_up(prompt)?;
        let (mut done, text) = self.generate(&mut setup, prompt)?;
        // The output is written even if its cache cannot be saved.
        let tokens = [&setup.prompt[..], &done.generated.tokens].concat();
        let saved = self.snapshot.save(setup.cache.as_deref().map(|cache| cache as _), &tokens, &setup.model);
        let not_saved;
        (done.saved, not_saved) = saved.map_or_else(|error| (None, Err(error)), |saved| (saved, Ok(())));
        let text = text?;
        if self.json {
            print_json(&self.report(&setup, &done, (prompt, &text)))?;
        } else {
            say_report(None, &self.lines(&setup, &done));
        }
        not_saved.context("the output is complete, but its cache was not saved")
    }

    fn chapters(&self) -> Vec<usize> {
        let rows = self.rows.chapters(self.kv());
        [self.kv().chapters(), self.snapshot.chapters(), self.draft.chapters(), &rows].concat()
    }

    fn set_up(&self, prompt: &str) -> Result<Setup> {
        let (model, tokenizer) = self.model.with_tokenizer(self.rows, self.kv())?;
        let sampling = self.sampling.sampling(model.config())?;
        let (prompt, max_new_tokens) = self.encode("", prompt, &model, &tokenizer)?;
        let what = format!("computing {}", count(prompt.len(), "token"));
        require::memory(&what, model.step_bytes(prompt.len(), 1), "shorten the prompt")?;
        let tokens = prompt.len() + max_new_tokens;
        let draft = self.draft.open(&model, &tokenizer, self.model.weights, self.kv(), tokens, self.cache.page_size)?;
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

    /// Generates the output, and shows it as it grows unless JSON is asked for. Returns it in characters, too, or why these could
    /// not be shown.
    fn generate(&self, setup: &mut Setup, prompt: &str) -> Result<(Done, Result<String>)> {
        let Setup { model, tokenizer, prompt: tokens, max_new_tokens, sampling, cache, draft, .. } = setup;
        let (mut clock, mut drafts) = (Clock::start(), DraftCounters::default());
        let is_closed = Cell::new(false);
        let progress = self.json.then(|| Progress::new("generating", *max_new_tokens as u64));
        let (stream, prose) = (tokenizer.stream(), Prose::to_stdout_after(0));
        let mut screen = Screen { stream, prose, progress, failure: None, is_closed: &is_closed };
        screen.show(Ok(prompt.into()));
        let end_of_text = [&model.config().eos_token_ids[..], &[STOP]].concat();
        let limits = Limits { max_new_tokens: *max_new_tokens, end_of_text: &end_of_text };
        let generation = Generation { model, prompt: tokens, limits };
        let mut sampler = Sampler::new(*sampling);
        let cache = cache.as_deref_mut();
        let mut on_token = |token| screen.push(token);
        let generated = match draft {
            None => {
                let mut pick = |logits: &[f32]| {
                    clock.generated(1);
                    if is_closed.get() { STOP } else { sampler.pick(logits) }
                };
                generation.run(cache, &mut pick, &mut on_token)
            }
            Some(draft) => {
                let (rule, k) = (self.draft.accept, self.draft.draft_len);
                let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
                    let tokens = if is_closed.get() { vec![STOP] } else { rule.apply(draft, rows, &mut sampler) };
                    // Tokens after an end of text don't count.
                    let end = tokens.iter().position(|token| end_of_text.contains(token));
                    let n = end.map_or(tokens.len(), |end| end + 1);
                    clock.generated(n);
                    drafts.count(draft, n);
                    tokens
                };
                draft.work(rule, *sampling, |drafter| {
                    generation.run_with_drafts(cache, drafter, k, &mut accept, &mut on_token)
                })
            }
        };
        let text = screen.finish();
        let elapsed = clock.start.elapsed();
        Ok((Done { generated: generated?, clock, elapsed, drafts, saved: None }, text))
    }

    fn report(&self, setup: &Setup, done: &Done, (prompt, text): (&str, &str)) -> Object {
        Object::default()
            .with("prompt", prompt)
            .with("text", text)
            .with("tokens", token_ids(&setup.prompt, &done.generated.tokens))
            .with("kv", self.kv().to_string())
            .with_some("restored", setup.restored)
            .with_some("draft", setup.draft.as_ref().map(|_| done.drafts))
            .with_some("saved", done.saved.as_ref())
            .with("counters", counters(done.generated.rows_projected, done.generated.usage))
    }

    fn lines(&self, setup: &Setup, done: &Done) -> Lines {
        let Done { generated, clock, .. } = done;
        let format = setup.model.row_format();
        let packed = if format == RowFormat::F32 { String::new() } else { format!(", rows in {format}") };
        // The first step has computed what the cache did not hold of the prompt.
        let kept = setup.restored.map_or(0, |restored| restored.kept);
        let prefilled = if generated.rows_projected == 0 { 0 } else { setup.prompt.len() - kept };
        let decode = (clock.steps, done.elapsed - clock.prefill);
        let mut lines = vec![("model", self.describe_model(&setup.model)), ("sampling", describe(setup.sampling))];
        lines.extend(setup.restored.map(|restored| ("restored", restored.describe())));
        lines.extend(timings((prefilled, clock.prefill), decode, ["", ""].map(String::from)));
        lines.extend(setup.draft.as_ref().map(|_| ("draft", crate::drafts::describe(done.drafts))));
        lines.push(("projected", count(generated.rows_projected, "row")));
        lines.push(("cache", describe_cache(self.kv(), &packed, generated.usage)));
        lines.extend(done.saved.as_ref().map(|saved| ("saved", saved.describe())));
        lines.push(("chapters", require::whose_chapters(&self.chapters())));
        lines
    }
}

struct Screen<'a> {
    stream: TextStream<'a>,
    prose: Prose,
    /// Instead of the text, if only JSON is wanted.
    progress: Option<Progress>,
    failure: Option<anyhow::Error>,
    /// Set as soon as there is a failure.
    is_closed: &'a Cell<bool>,
}

impl Screen<'_> {
    /// Shows a piece; notes the failure if it is none, or if it cannot be shown.
    fn show(&mut self, piece: Result<String>) {
        if self.failure.is_some() {
            return;
        }
        let shown = piece.and_then(|piece| if self.progress.is_none() { self.prose.print(&piece) } else { Ok(()) });
        self.failure = shown.err();
        self.is_closed.set(self.failure.is_some());
    }

    fn push(&mut self, token: u32) {
        if let Some(progress) = &self.progress {
            progress.advance(1);
        }
        let piece = self.stream.push(token);
        self.show(piece.map_err(anyhow::Error::from));
    }

    /// The whole output, or why it could not be shown.
    fn finish(mut self) -> Result<String> {
        let piece = self.stream.finish();
        self.show(piece.map(|piece| piece + "\n").map_err(anyhow::Error::from));
        self.failure.map_or_else(|| Ok(self.stream.text().to_string()), Err)
    }
}

/// Separates the first step, which computes the prompt, from the later ones.
#[derive(Clone, Copy)]
struct Clock {
    start: Instant,
    steps: usize,
    prefill: Duration,
}

impl Clock {
    fn start() -> Self {
        Clock { start: Instant::now(), steps: 0, prefill: Duration::ZERO }
    }

    fn generated(&mut self, tokens: usize) {
        self.steps += tokens;
        if self.prefill.is_zero() {
            self.prefill = self.start.elapsed();
            self.steps -= 1;
        }
    }
}
