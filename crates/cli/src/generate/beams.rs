//! `--beams`: the likeliest output, and those that came close.

use anyhow::{Context, Result, anyhow};
use page_by_page::cache::CacheError;
use page_by_page::cache_kind::CacheKind;
use page_by_page::generation::StopConditions;
use page_by_page::generation::beams::{Continuation, LENGTH_PENALTY, SearchCounters, search};
use page_by_page::model::{Model, StepError};
use serde_json::{Value, json};

use super::{Generate, one_line, pages_of_forks, timings, token_ids};
use crate::memory;
use crate::options::PoolSize;
use crate::output::{Progress, ReportLines, Table, plural, print, print_json, say_report, thousands};
use crate::requirements;

/// The pages, forks and beams.
const CHAPTERS: [usize; 1] = [10];
const MAX_LINES: usize = 20;
const MAX_TEXT: usize = 40;

impl Generate {
    pub(super) fn search_beams(&self, width: usize) -> Result<()> {
        requirements::ensure_started(&CHAPTERS)?;
        let prompt_text = &self.prompt[0];
        let (model, tokenizer) = self.model.open_with_tokenizer(self.cache.kv_options, CacheKind::Paged)?;
        let (prompt, max_new_tokens) = self.encode("", prompt_text, &model, &tokenizer)?;
        ensure_memory(&model, prompt.len(), width)?;
        let page_size = self.cache.pages.page_size.max(1);
        let always_enough = pages_of_forks(prompt.len(), max_new_tokens, width, page_size);
        let pool = self.cache.pages.pool(model.cache_layout(), always_enough)?;
        let slab = pool.slab()?;

        let progress = Progress::new("searching", max_new_tokens as u64);
        let stop = StopConditions { max_new_tokens, end_of_text: &model.config().eos_token_ids };
        let searched = search(&model, &slab, &prompt, width, stop, &mut |_| progress.advance(1));
        drop(progress);
        let (found, counters) = searched.map_err(|error| match error {
            StepError::Cache(CacheError::OutOfPages { needed, free }) => anyhow!(
                "the beams need more pages than the pool has: pages needed: {needed}, free: {free} of {}; give it more, \
                 {} are always enough (--pages), or follow fewer beams",
                thousands(pool.n_pages),
                thousands(always_enough)
            ),
            error => error.into(),
        })?;
        let in_characters = |found: Continuation| tokenizer.decode(&found.tokens).map(|text| (found, text));
        let found = found.into_iter().map(in_characters).collect::<Result<Vec<_>, _>>()?;
        let (_, best) = found.first().context("the search has found no text")?;
        if self.json {
            return print_json(&to_json(&prompt, &found, counters));
        }
        print(&format!("{prompt_text}{best}\n"))?;
        say_report(Some(&table(&found, max_new_tokens)), &self.lines_of_beams(&model, prompt.len(), pool, counters));
        Ok(())
    }

    fn lines_of_beams(&self, model: &Model, n_prompt: usize, pool: PoolSize, counters: SearchCounters) -> ReportLines {
        let width = self.sequences.beams.unwrap_or(0);
        let steps = format!("{}, ", plural(counters.steps.saturating_sub(1), "step"));
        let computed = counters.computed_tokens as usize;
        let prefill = (computed.min(n_prompt), counters.prefill);
        let [prefill, decode] = timings(prefill, (computed - prefill.0, counters.decode), [String::new(), steps]);
        let (peak, copied) = (pool.mib(counters.peak_pages), plural(counters.copied_tokens, "token"));
        let chapters = [&CHAPTERS[..], &self.cache.kv_options.chapters(CacheKind::Paged)].concat();
        vec![
            ("model", self.describe_model(model)),
            ("beams", format!("{width}; score: log-probability / tokens^{LENGTH_PENALTY:?}")),
            prefill,
            decode,
            ("computed", plural(counters.computed_tokens, "token")),
            ("cache", format!("paged: {peak} at the peak, {copied} copied")),
            ("pages", pool.describe_peak(counters.peak_pages)),
            ("KV cache", pool.describe()),
            ("chapters", requirements::describe(&chapters)),
        ]
    }
}

/// Refuses a search that there is no memory for; what the pages take is not in it.
fn ensure_memory(model: &Model, n_prompt: usize, width: usize) -> Result<()> {
    let vocab_size = model.config().vocab_size;
    let advice = "give fewer beams, or a shorter prompt";
    let what = format!("reading {}", plural(n_prompt.max(width), "token"));
    memory::ensure(&what, model.step_bytes(n_prompt.max(width), width), advice)?;
    // Each token of each beam: its log-probability, and a candidate.
    let bytes = width.saturating_mul(vocab_size).saturating_mul(size_of::<f32>() + 24);
    let what = format!("choosing among {} of {}", plural(vocab_size, "token"), plural(width, "beam"));
    memory::ensure(&what, bytes, advice)
}

fn to_json(prompt: &[u32], found: &[(Continuation, String)], counters: SearchCounters) -> Value {
    let output = |(found, text): &(Continuation, String)| {
        let tokens = token_ids(prompt, &found.tokens);
        json!({ "text": text, "tokens": tokens, "log_probability": found.log_probability, "score": found.score })
    };
    let outputs: Vec<Value> = found.iter().map(output).collect();
    json!({ "outputs": outputs, "computed_tokens": counters.computed_tokens, "peak_pages": counters.peak_pages })
}

fn table(found: &[(Continuation, String)], max_new_tokens: usize) -> Table {
    let mut table = Table::new(3, &["sequence", "", "ended", "tokens", "log-probability", "score"]);
    for ((found, text), number) in found.iter().zip(1..=MAX_LINES) {
        let end = match found.has_ended {
            true => "by itself".into(),
            false => format!("after {} new", thousands(max_new_tokens)),
        };
        table.line([
            number.to_string(),
            one_line(text.trim_start(), MAX_TEXT),
            end,
            thousands(found.tokens.len()),
            format!("{:.3}", found.log_probability),
            format!("{:.4}", found.score),
        ]);
    }
    table
}
