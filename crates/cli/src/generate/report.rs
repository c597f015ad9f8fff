//! What several outputs cost together: one report, as lines for people and as JSON.

use page_by_page::cache::CacheUsage;
use page_by_page::cache_kind::CacheKind::Paged;
use page_by_page::model::Model;
use page_by_page::serving::schedule::FinishReason;
use page_by_page::serving::{FinishedSequence, SequenceError};
use serde_json::{Value, json};

use super::outputs::{Output, OutputSet};
use super::{Generate, OutputRequest, counters, describe_cache, one_line, timings, token_ids};
use crate::output::{ReportLines, Table, add, describe_sampling, mib, plural, thousands};
use crate::requirements;

const MAX_LINES: usize = 20;
const MAX_NAME: usize = 30;

impl OutputSet<'_> {
    /// What the sequences held at their ends, together: shared pages count for each of their owners.
    fn usage(&self) -> CacheUsage {
        let mut sum = CacheUsage::default();
        for usage in self.outputs.iter().map(Output::usage) {
            sum.tokens += usage.tokens;
            sum.slots += usage.slots;
            sum.bytes += usage.bytes;
            sum.copied_tokens += usage.copied_tokens;
        }
        sum
    }

    /// Pages in the tables of all sequences at their ends, counted in the same way.
    fn pages_at_ends(&self) -> usize {
        self.outputs.iter().map(Output::pages_at_end).sum()
    }

    pub fn to_json(&self) -> Value {
        let mut counters = counters(self.engine.totals().computed_tokens, self.usage());
        add(&mut counters, "steps", Some(self.engine.totals().steps));
        let outputs: Vec<Value> = self.outputs.iter().map(output_to_json).collect();
        let peak_pages = self.engine.totals().peak_pages;
        let mut json =
            json!({ "outputs": outputs, "kv": Paged.to_string(), "counters": counters, "peak_pages": peak_pages });
        add(&mut json, "reads", self.reads());
        json
    }

    /// Rows that were read under a checker, and how many of them wrongly.
    fn reads(&self) -> Option<[u64; 2]> {
        self.checker.as_ref().map(|(checker, n_wrong)| [checker.n_reads(), *n_wrong])
    }

    pub fn lines(&self, options: &Generate, model: &Model) -> ReportLines {
        let (totals, usage) = (self.engine.totals(), self.usage());
        let sampling = self.outputs[0].request.sampling;
        let in_steps = |steps| format!("{}, ", plural(steps, "step"));
        let n_outputs = thousands(self.outputs.len());
        let mut lines = vec![
            ("model", options.describe_model(model)),
            ("sampling", describe_sampling(sampling)),
            (
                if self.are_samples { "samples" } else { "outputs" },
                format!("{n_outputs}, at most {} in a step", totals.peak_sequences),
            ),
        ];
        let (prefill, decode) = (self.prefill, self.decode);
        let (prefilled, decoded) =
            ((prefill.computed_tokens as usize, prefill.time), (decode.new_tokens as usize, decode.time));
        lines.extend(timings(prefilled, decoded, [prefill.steps, decode.steps].map(in_steps)));
        let computed = plural(totals.computed_tokens, "token");
        lines.push(("computed", computed + &self.in_separate_caches(|| plural(usage.tokens, "token"))));
        lines.push(("cache", self.describe_memory()));
        let separate = self.in_separate_caches(|| plural(self.pages_at_ends(), "page"));
        lines.push(("pages", self.pool.describe_peak(totals.peak_pages) + &separate));
        lines.extend(self.reads().map(|reads| ("read", super::describe_reads(reads))));
        lines.push(("KV cache", self.pool.describe()));
        lines.extend(self.room_for().map(|line| ("room for", line)));
        lines.push(("chapters", requirements::describe(&options.chapters_of_scheduler(sampling))));
        lines
    }

    pub fn table(&self) -> Option<Table> {
        if self.outputs.len() > MAX_LINES {
            return None;
        }
        let first = if self.are_samples { "sample" } else { "sequence" };
        let mut table = Table::new(3, &[first, "", "ended", "tokens", "slots", "pages"]);
        for (output, number) in self.outputs.iter().zip(1..) {
            let (request, usage) = (&output.request, output.usage());
            let end = match output.finished.as_ref().map(FinishedSequence::reason) {
                Some(FinishReason::Stop) => "by itself".into(),
                Some(FinishReason::Length) => format!("after {} new", thousands(request.max_new_tokens)),
                Some(FinishReason::Abort) => "cancelled".into(),
                Some(FinishReason::Error) => "failed".into(),
                None => String::new(),
            };
            let numbers = [usage.tokens, usage.slots, output.pages_at_end()];
            let which = match self.are_samples {
                true => format!("seed {}", request.sampling.seed),
                false => one_line(request.prompt_text, MAX_NAME),
            };
            table.line([number.to_string(), which, end].into_iter().chain(numbers.map(thousands)));
        }
        Some(table)
    }

    pub fn failed(&self) -> Vec<String> {
        let failed = self.outputs.iter().zip(1..).filter_map(|(output, number)| {
            let (generated, of) = (thousands(output.n_new), plural(output.request.max_new_tokens, "new token"));
            finish(output).1.map(|error| format!("sequence {number} is cut after {generated} of {of}: {error}"))
        });
        failed.collect()
    }

    /// What as many separate caches would have taken, if the sequences have shared pages.
    ///
    /// Such a cache would have computed all tokens of its sequence, into as many pages as its table has at the end.
    fn in_separate_caches(&self, what: impl Fn() -> String) -> String {
        let caches = plural(self.outputs.len(), "cache");
        if self.are_forks() { format!("; {caches} apart: {}", what()) } else { String::new() }
    }

    /// How many sequences would fit in this memory: with the pages that these had at their ends on average, and with a
    /// reservation each for the longest. `None` if no sequence has taken a page, or if they share pages.
    fn room_for(&self) -> Option<String> {
        if self.are_forks() || self.pages_at_ends() == 0 {
            return None;
        }
        let (pool, outputs) = (self.pool, &self.outputs);
        let n_sequences = outputs.iter().filter(|output| output.pages_at_end() > 0).count();
        let longest = outputs.iter().map(|output| output.request.max_len()).max()?;
        let in_pages = pool.n_pages.saturating_mul(n_sequences) / self.pages_at_ends();
        Some(format!(
            "{} like these in {}; with {} reserved for each: {}",
            plural(in_pages, "sequence"),
            plural(pool.n_pages, "page"),
            plural(longest, "slot"),
            thousands(pool.n_slots() / longest)
        ))
    }

    /// What the caches held. Where pages are shared: all pages that had an owner at the same time, at most.
    fn describe_memory(&self) -> String {
        if !self.are_forks() {
            return describe_cache(Paged, "", self.usage());
        }
        let peak = self.pool.mib(self.engine.totals().peak_pages);
        let copied = plural(self.usage().copied_tokens, "token");
        let separate = self.in_separate_caches(|| format!("{}, nothing copied", mib(self.usage().bytes)));
        format!("{Paged}: {peak} at the peak, {copied} copied{separate}")
    }
}

fn output_to_json(output: &Output<'_>) -> Value {
    let OutputRequest { prompt_text, prompt, sampling, .. } = &output.request;
    let (finish_reason, error) = finish(output);
    let new_tokens = output.finished.as_ref().map_or(&[][..], |finished| finished.sequence.new_tokens());
    let mut json = json!({
        "prompt": prompt_text,
        "seed": sampling.seed,
        "text": output.text,
        "tokens": token_ids(prompt, new_tokens),
        "finish_reason": finish_reason,
    });
    add(&mut json, "error", error.map(ToString::to_string));
    json
}

fn finish<'o>(output: &'o Output<'_>) -> (&'static str, Option<&'o SequenceError>) {
    let Some(finished) = &output.finished else { return ("", None) };
    (finished.reason().as_str(), finished.outcome.as_ref().err())
}
