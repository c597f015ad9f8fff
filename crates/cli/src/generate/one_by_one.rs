//! An output by itself: generated with any cache, with drafts or without, from a saved cache or from the start. Where
//! there are no pages to share, several follow each other.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use page_by_page::cache::Rewind;
use page_by_page::cache::attention::AttentionCache;
use page_by_page::cache_kind::{CacheKind, CacheSize};
use page_by_page::disk::saved_cache::SavedCache;
use page_by_page::generation::drafting::{DraftCounters, DraftSource};
use page_by_page::generation::one_sequence::{Generated, Generation};
use page_by_page::generation::read_checker::ReadChecker;
use page_by_page::generation::sampler::Sampler;
use page_by_page::generation::{Draft, StopConditions};
use page_by_page::kernels::KvDtype;
use page_by_page::model::Model;
use page_by_page::model::tokenizer::{TextStream, Tokenizer};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Generate, Mode, OutputRequest, counters, describe_cache, timings, token_ids};
use crate::memory;
use crate::options::PoolSize;
use crate::output::{
    Progress, ReportLines, WordWrap, add, describe_sampling, plural, print, print_json, say_report, thousands,
};
use crate::requirements;

struct SingleSetup<'m> {
    model: &'m Model,
    tokenizer: &'m Tokenizer,
    request: &'m OutputRequest<'m>,
    /// `None`: nothing is kept.
    cache: Option<Box<dyn AttentionCache>>,
    pool: Option<PoolSize>,
    restored: Option<Restored>,
    draft: Option<DraftSource>,
}

/// What a saved cache held, and how many tokens of the prompt it begins with.
#[derive(Clone, Copy, Serialize)]
struct Restored {
    saved: usize,
    kept: usize,
}

#[derive(Serialize)]
struct Saved {
    file: String,
    tokens: usize,
}

struct SingleOutcome {
    generated: Generated,
    /// How long the first step took, which computes the prompt, and all later ones together.
    prefill: Duration,
    decode: Duration,
    drafts: DraftCounters,
    /// Rows that were read under a checker, and how many of them wrongly.
    reads: Option<[u64; 2]>,
}

impl Generate {
    pub(super) fn generate_one_by_one(&self) -> Result<()> {
        // What could only fail after the output is complete is refused now.
        self.cache.save_cache.as_deref().map_or(Ok(()), SavedCache::check_writable)?;
        requirements::ensure_started(&self.chapters())?;
        let (model, tokenizer) = self.model.open_with_tokenizer(self.cache.kv_options, self.kv())?;
        let requests = self.requests(&model, &tokenizer)?;
        for (request, number) in requests.iter().zip(1..) {
            if self.mode() == Mode::One {
                return self.generate_one(request, &model, &tokenizer);
            }
            if !self.json {
                print(&self.heading(number, request))?;
            }
            let generated = self.generate_one(request, &model, &tokenizer);
            generated.with_context(|| format!("sequence {number}"))?;
        }
        Ok(())
    }

    fn generate_one(&self, request: &OutputRequest<'_>, model: &Model, tokenizer: &Tokenizer) -> Result<()> {
        let mut setup = self.set_up(request, model, tokenizer)?;
        let (outcome, text) = self.generate(&mut setup)?;
        // The output is written even if its cache cannot be saved.
        let tokens = [&request.prompt[..], &outcome.generated.tokens].concat();
        let saved = self.save(setup.cache.as_deref(), &tokens, model);
        let (text, in_file) = (text?, saved.as_ref().ok().and_then(Option::as_ref));
        if self.json {
            print_json(&self.to_json(&setup, &outcome, &text, in_file))?;
        } else {
            say_report(None, &self.lines(&setup, &outcome, in_file));
        }
        saved.map(drop).context("the output is complete, but its cache was not saved")
    }

    fn chapters(&self) -> Vec<usize> {
        let of_options = self.cache.kv_options.chapters(self.kv());
        let rewind: &[usize] = if self.cache.load_cache.is_some() { &[7] } else { &[] };
        [self.kv().chapters(), rewind, self.draft.chapters(), &of_options].concat()
    }

    fn set_up<'m>(
        &self,
        request: &'m OutputRequest<'m>,
        model: &'m Model,
        tokenizer: &'m Tokenizer,
    ) -> Result<SingleSetup<'m>> {
        let prompt = &request.prompt;
        let what = format!("computing {}", plural(prompt.len(), "token"));
        memory::ensure(&what, model.step_bytes(prompt.len(), 1), "shorten the prompt")?;
        let tokens = request.max_len();
        let page_size = self.cache.pages.page_size;
        let draft = self.draft.open(model, tokenizer, self.model.weights, self.kv(), tokens, page_size)?;
        let saved = self.cache.load_cache.as_ref().map(|file| SavedCache::load(file, model)).transpose()?;
        // A saved cache is restored whole, and may be longer than prompt and output.
        let most = tokens.max(saved.as_ref().map_or(0, |saved| saved.tokens().len()));
        let pool = self.cache.pages.pool(model.cache_layout(), most.div_ceil(page_size.max(1)))?;
        let size = CacheSize { capacity: self.cache.capacity.unwrap_or(most), page_size, n_pages: pool.n_pages };
        memory::ensure_cache(self.kv(), model.cache_layout(), size)?;
        let mut cache = self.kv().new_cache(model.cache_layout(), size)?;
        let restored = match (&saved, &mut cache) {
            (Some(saved), Some(cache)) => Some(restore(saved, cache.as_mut(), prompt)?),
            _ => None,
        };
        let pool = (self.kv() == CacheKind::Paged).then_some(pool);
        Ok(SingleSetup { model, tokenizer, request, cache, pool, restored, draft })
    }

    /// Writes the file of `--save-cache`, if there is one. `tokens`: begin with those that the cache holds.
    fn save(&self, cache: Option<&dyn AttentionCache>, tokens: &[u32], model: &Model) -> Result<Option<Saved>> {
        let (Some(file), Some(cache)) = (&self.cache.save_cache, cache) else {
            return Ok(None);
        };
        SavedCache::copy(cache, &tokens[..cache.len()]).save(file, model)?;
        Ok(Some(Saved { file: file.display().to_string(), tokens: cache.len() }))
    }

    /// Generates the output, and shows it as it grows unless JSON is asked for. Also returns its characters, if it can.
    fn generate(&self, setup: &mut SingleSetup<'_>) -> Result<(SingleOutcome, Result<String>)> {
        let SingleSetup { model, tokenizer, request, cache, draft, .. } = setup;
        let OutputRequest { prompt_text, prompt, max_new_tokens, sampling } = request;
        let (start, mut prefill, mut drafts) = (Instant::now(), None, DraftCounters::default());
        let mut count_tokens = |draft: &Draft, n| {
            prefill.get_or_insert_with(|| start.elapsed());
            drafts.count(draft, n);
        };
        let is_closed = Cell::new(false);
        let progress = self.json.then(|| Progress::new("generating", *max_new_tokens as u64));
        let (stream, prose) = (tokenizer.stream(), WordWrap::to_stdout_after(0));
        let mut screen = Screen { stream, prose, progress, failure: None, is_closed: &is_closed };
        screen.show(Ok((*prompt_text).into()));
        let end_of_text = &model.config().eos_token_ids;
        let stop = StopConditions { max_new_tokens: *max_new_tokens, end_of_text };
        let checker = self.cache.check_reads.then(|| ReadChecker::new(None));
        let generation = Generation { model, prompt, stop, is_cancelled: Some(&is_closed), checker: checker.as_ref() };
        let mut sampler = Sampler::new(*sampling);
        let cache = cache.as_deref_mut();
        let mut n_wrong = 0;
        let mut on_token = |token| {
            n_wrong += checker.as_ref().map_or(0, |checker| super::say_wrong(checker, n_wrong));
            screen.push(token);
        };
        let generated = match draft {
            None => {
                let mut pick = |logits: &[f32]| {
                    count_tokens(&Draft::default(), 1);
                    sampler.sample(logits)
                };
                generation.run(cache, &mut pick, &mut on_token)
            }
            Some(draft) => {
                let (rule, k) = (self.draft.accept, self.draft.draft_len);
                let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
                    let tokens = rule.accept(draft, rows, &mut sampler);
                    // Tokens after an end of text don't count.
                    let end = tokens.iter().position(|token| end_of_text.contains(token));
                    let n = end.map_or(tokens.len(), |end| end + 1);
                    count_tokens(draft, n);
                    tokens
                };
                draft.with_drafter(rule, *sampling, |drafter| {
                    generation.run_with_drafts(cache, drafter, k, &mut accept, &mut on_token)
                })
            }
        };
        let text = screen.finish();
        let prefill = prefill.unwrap_or_default();
        let decode = start.elapsed() - prefill;
        let reads = checker.map(|checker| [checker.n_reads(), n_wrong]);
        Ok((SingleOutcome { generated: generated?, prefill, decode, drafts, reads }, text))
    }

    fn to_json(&self, setup: &SingleSetup<'_>, outcome: &SingleOutcome, text: &str, saved: Option<&Saved>) -> Value {
        let mut json = json!({
            "prompt": setup.request.prompt_text,
            "text": text,
            "tokens": token_ids(&setup.request.prompt, &outcome.generated.tokens),
            "kv": self.kv().to_string(),
            "counters": counters(outcome.generated.computed_tokens, outcome.generated.usage),
        });
        add(&mut json, "restored", setup.restored);
        add(&mut json, "draft", setup.draft.as_ref().map(|_| outcome.drafts));
        add(&mut json, "reads", outcome.reads);
        add(&mut json, "saved", saved);
        json
    }

    fn lines(&self, setup: &SingleSetup<'_>, outcome: &SingleOutcome, saved: Option<&Saved>) -> ReportLines {
        let SingleOutcome { generated, prefill, decode, drafts, reads } = outcome;
        let dtype = setup.model.kv_dtype;
        let packed = if dtype == KvDtype::F32 { String::new() } else { format!(", rows in {dtype}") };
        // The first step has computed what the cache did not hold of the prompt.
        let kept = setup.restored.map_or(0, |restored| restored.kept);
        let prefilled = if generated.computed_tokens == 0 { 0 } else { setup.request.prompt.len() - kept };
        let decoded = drafts.new_tokens.saturating_sub(1) as usize;
        let mut lines =
            vec![("model", self.describe_model(setup.model)), ("sampling", describe_sampling(setup.request.sampling))];
        let restored = |Restored { saved, kept }| format!("{} of {}", thousands(kept), plural(saved, "saved token"));
        lines.extend(setup.restored.map(|it| ("restored", restored(it))));
        lines.extend(timings((prefilled, *prefill), (decoded, *decode), ["", ""].map(String::from)));
        lines.extend(setup.draft.as_ref().map(|_| ("draft", crate::drafts::describe(*drafts))));
        lines.push(("computed", plural(generated.computed_tokens, "token")));
        lines.push(("cache", describe_cache(self.kv(), &packed, generated.usage)));
        lines.extend(reads.map(|reads| ("read", super::describe_reads(reads))));
        lines.extend(setup.pool.map(|pool| ("KV cache", pool.describe())));
        let describe = |Saved { file, tokens }: &Saved| format!("{} to {file}", plural(*tokens, "token"));
        lines.extend(saved.map(|saved| ("saved", describe(saved))));
        lines.push(("chapters", requirements::describe(&self.chapters())));
        lines
    }
}

/// Restores a saved cache and rewinds the cache to what the prompt has in common with it.
///
/// At least one token of the prompt stays out: the logits of the next one are computed from it.
fn restore(saved: &SavedCache, cache: &mut dyn Rewind, prompt: &[u32]) -> Result<Restored> {
    let n_saved = saved.tokens().len();
    saved.restore(cache).with_context(|| format!("the saved cache holds {}", plural(n_saved, "token")))?;
    let common = saved.tokens().iter().zip(prompt).take_while(|(saved, asked)| saved == asked).count();
    let kept = common.min(prompt.len() - 1);
    cache.rewind(n_saved - kept)?;
    Ok(Restored { saved: n_saved, kept })
}

struct Screen<'a> {
    stream: TextStream<'a>,
    prose: WordWrap,
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
