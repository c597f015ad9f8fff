//! What several outputs cost together: one report, as lines for people and as JSON.

use page_by_page::cache::Usage;
use page_by_page::cache::kind::CacheKind;
use page_by_page::decode::sampler::Sampling;
use page_by_page::model::Model;
use page_by_page::serving::schedule::FinishReason;
use serde::Serialize;

use super::growing::{Growing, Story};
use super::several::{Asked, Pages};
use super::{Generate, SamplingUsed, Timings, Tokens};
use crate::output::{Lines, Table, count, describe, mib, per_second, rate, thousands, time};
use crate::require;

/// Outputs that the report lists one by one, at most.
const MAX_LINES: usize = 20;
/// Characters of a prompt that name its output.
const NAME: usize = 30;

/// Outputs that are complete, and what the report needs to know of them.
pub struct Costs<'a> {
    pub sampling: Sampling,
    pub growing: &'a Growing<'a>,
    pub asked: &'a [Asked<'a>],
    pub pages: Option<&'a Pages>,
    /// All have the same prompt.
    pub are_samples: bool,
    /// A page may be owned by several sequences.
    pub share_pages: bool,
    /// They share the pages of what they begin with.
    pub has_prefixes: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
pub struct Report<'a> {
    outputs: Vec<Output<'a>>,
    kv: String,
    model: String,
    seed: u64,
    sampling: SamplingUsed,
    counters: Counters,
    /// What as many separate caches would have taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    apart: Option<Apart>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pages: Option<PagesUsed>,
    timings: Timings,
}

#[derive(Serialize)]
struct Output<'a> {
    prompt: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    text: &'a str,
    tokens: Tokens<'a>,
    /// `stop`, `length` or `failed`.
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Tokens of the prompt that the prefix cache held.
    #[serde(skip_serializing_if = "Option::is_none")]
    cached: Option<usize>,
    /// At its end.
    held: Held,
}

#[derive(Serialize)]
struct Held {
    tokens: usize,
    slots: usize,
    pages: usize,
}

#[derive(Serialize)]
struct Counters {
    steps: u64,
    max_sequences_in_a_step: usize,
    rows_projected: u64,
    rows_copied: u64,
    /// `None` where a page may be owned by several sequences.
    #[serde(flatten)]
    held: Option<HeldByAll>,
    /// Then this counts instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_bytes: Option<usize>,
}

/// By all sequences at their ends, together.
#[derive(Serialize)]
struct HeldByAll {
    tokens: usize,
    slots: usize,
    wasted: usize,
    bytes: usize,
}

#[derive(Serialize)]
struct Apart {
    rows_projected: usize,
    rows_copied: u64,
    pages: usize,
    bytes: usize,
}

#[derive(Serialize)]
struct PagesUsed {
    page_size: usize,
    pages: usize,
    peak: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    room_for: Option<RoomFor>,
}

/// How many sequences would find room in this memory.
#[derive(Clone, Copy, Serialize)]
struct RoomFor {
    /// Sequences like these, with as many pages as these had at their ends, on average.
    in_pages: usize,
    /// Sequences with a reservation each.
    reserved: usize,
    /// Slots of a reservation: what the longest sequence may need.
    slots_reserved_for_each: usize,
}

impl<'a> Costs<'a> {
    /// For `--json`.
    pub fn report(&self, options: &Generate) -> Report<'_> {
        let totals = self.growing.totals();
        let usage = self.usage();
        let Usage { tokens, slots, bytes, rows_copied } = usage;
        let Growing { prefill, decode, .. } = self.growing;
        Report {
            outputs: self
                .growing
                .stories
                .iter()
                .zip(self.asked)
                .map(|(story, asked)| self.output(story, asked))
                .collect(),
            kv: options.kv().to_string(),
            model: options.model.name(),
            seed: self.sampling.seed,
            sampling: self.sampling.into(),
            counters: Counters {
                steps: totals.steps,
                max_sequences_in_a_step: totals.most_sequences,
                rows_projected: totals.rows_projected,
                rows_copied,
                held: (!self.share_pages).then_some(HeldByAll { tokens, slots, wasted: usage.wasted(), bytes }),
                peak_bytes: self.peak_bytes(),
            },
            apart: self.share_pages.then(|| Apart {
                rows_projected: tokens,
                rows_copied: 0,
                pages: self.pages_at_ends(),
                bytes,
            }),
            pages: self.pages.map(|pages| PagesUsed {
                page_size: pages.page_size,
                pages: pages.n_pages,
                peak: totals.peak_pages,
                room_for: self.room_for(),
            }),
            timings: Timings::new((prefill.rows as usize, prefill.time), (decode.answers as usize, decode.time)),
        }
    }

    fn output<'s>(&'s self, story: &'s Story<'_>, asked: &'s Asked<'_>) -> Output<'s> {
        let ((finish_reason, error), usage) = (finish(story), story.usage());
        let generated: &[u32] = story.generated.as_ref().map_or(&[], |generated| generated.sequence.new_tokens());
        Output {
            prompt: asked.beginning,
            seed: self.are_samples.then_some(asked.seed),
            text: story.stream.text(),
            tokens: Tokens { prompt: &asked.prompt, generated },
            finish_reason,
            error,
            cached: self.has_prefixes.then(|| story.cached_tokens()),
            held: Held { tokens: usage.tokens, slots: usage.slots, pages: story.pages_at_end() },
        }
    }

    /// The report for people.
    pub fn lines(&self, options: &Generate, model: &Model, chapters: &[usize]) -> Lines {
        let Growing { prefill, decode, .. } = self.growing;
        let totals = self.growing.totals();
        let mut lines = vec![
            ("model", options.describe_model(model)),
            ("sampling", describe(self.sampling)),
            (
                if self.are_samples { "samples" } else { "outputs" },
                format!("{}, at most {} in a step", thousands(self.asked.len()), totals.most_sequences),
            ),
            ("prefill", {
                let (rows, steps) = (count(prefill.rows, "token"), count(prefill.steps, "step"));
                format!("{rows} in {steps}, {}", time(prefill.time))
            }),
            ("decode", {
                let (tokens, steps) = (count(decode.answers, "token"), count(decode.steps, "step"));
                let speed = rate(per_second(decode.answers as usize, decode.time));
                format!("{tokens} in {steps}, {}, {speed} tokens/s", time(decode.time))
            }),
            ("projected", count(totals.rows_projected, "row") + &self.apart(|apart| count(apart.tokens, "row"))),
            ("cache", self.describe_memory(options.kv())),
        ];
        if let Some(pages) = self.pages {
            let (peak, of) = (thousands(totals.peak_pages), thousands(pages.n_pages));
            let apart = self.apart(|_| count(self.pages_at_ends(), "page"));
            lines
                .push(("pages", format!("{peak} of {of} at the peak, {} each{apart}", count(pages.page_size, "slot"))));
        }
        if self.has_prefixes {
            let prompts: usize = self.asked.iter().map(|asked| asked.prompt.len()).sum();
            let cached: usize = self.growing.stories.iter().map(Story::cached_tokens).sum();
            lines.push(("prefixes", format!("{} of {} cached", thousands(cached), count(prompts, "prompt token"))));
        }
        lines.extend(self.describe_room().map(|room| ("room for", room)));
        lines.push(("chapters", require::whose_chapters(chapters)));
        lines
    }

    /// A line for each output, unless there are too many.
    pub fn table(&self) -> Option<Table> {
        let mut heading = vec![if self.are_samples { "sample" } else { "text" }, "", "ended", "tokens", "slots"];
        heading.extend(self.pages.map(|_| "pages"));
        let mut table = Table::new(3, &heading);
        for ((story, asked), number) in self.growing.stories.iter().zip(self.asked).zip(1..) {
            let usage = story.usage();
            let end = match finish(story).0 {
                "stop" => "by itself".into(),
                "length" => format!("after {} new", thousands(asked.max_new_tokens)),
                other => other.into(),
            };
            let numbers = [usage.tokens, usage.slots].into_iter().chain(self.pages.map(|_| story.pages_at_end()));
            let which = if self.are_samples { format!("seed {}", asked.seed) } else { name(asked.beginning) };
            table.line([number.to_string(), which, end].into_iter().chain(numbers.map(thousands)));
        }
        (self.asked.len() <= MAX_LINES).then_some(table)
    }

    /// A line for each output that failed.
    pub fn failed(&self) -> Vec<String> {
        let outputs = self.growing.stories.iter().zip(self.asked).zip(1..);
        let failed = outputs.filter_map(|((story, asked), number)| {
            let (generated, of) = (thousands(story.n_new), count(asked.max_new_tokens, "new token"));
            finish(story).1.map(|error| format!("text {number} is cut after {generated} of {of}: {error}"))
        });
        failed.collect()
    }

    /// What as many separate caches would have taken, if the sequences have shared pages.
    ///
    /// A separate cache would have computed all tokens of its sequence, into as many pages as its table lists at the end.
    fn apart(&self, what: impl Fn(Usage) -> String) -> String {
        let caches = count(self.asked.len(), "cache");
        if self.share_pages { format!("; {caches} apart: {}", what(self.usage())) } else { String::new() }
    }

    /// Pages in the tables of all sequences at their ends: a shared one counts for each of them.
    fn pages_at_ends(&self) -> usize {
        self.growing.stories.iter().map(Story::pages_at_end).sum()
    }

    /// Bytes of all pages that had an owner at the same time, at most; `None` if no page has several owners.
    fn peak_bytes(&self) -> Option<usize> {
        let pages = self.pages.filter(|_| self.share_pages)?;
        let slots = self.growing.totals().peak_pages * pages.page_size;
        require::slot_bytes(pages.layout, slots).ok()
    }

    /// What the sequences held at their ends, together: shared pages count for each of their owners.
    fn usage(&self) -> Usage {
        let add = |sum: Usage, story: &Story<'_>| {
            let usage = story.usage();
            Usage {
                tokens: sum.tokens + usage.tokens,
                slots: sum.slots + usage.slots,
                bytes: sum.bytes + usage.bytes,
                rows_copied: sum.rows_copied + usage.rows_copied,
            }
        };
        self.growing.stories.iter().fold(Usage::default(), add)
    }

    /// `None` if no sequence has taken a page, or if they share pages.
    fn room_for(&self) -> Option<RoomFor> {
        let pages = self.pages.filter(|_| !self.share_pages)?;
        let taken = self.pages_at_ends();
        let n_sequences = self.growing.stories.iter().filter(|story| story.pages_at_end() > 0).count();
        let slots_reserved_for_each = self.asked.iter().map(Asked::most).max()?;
        (taken > 0).then(|| RoomFor {
            in_pages: pages.n_pages.saturating_mul(n_sequences) / taken,
            reserved: pages.n_pages.saturating_mul(pages.page_size) / slots_reserved_for_each,
            slots_reserved_for_each,
        })
    }

    fn describe_room(&self) -> Option<String> {
        let (pages, room) = (self.pages?, self.room_for()?);
        Some(format!(
            "{} like these in {}; with {} reserved for each: {}",
            count(room.in_pages, "text"),
            count(pages.n_pages, "page"),
            count(room.slots_reserved_for_each, "slot"),
            thousands(room.reserved)
        ))
    }

    fn describe_memory(&self, kv: CacheKind) -> String {
        let usage = self.usage();
        let copied = count(usage.rows_copied, "row");
        if let Some(bytes) = self.peak_bytes() {
            let apart = self.apart(|apart| format!("{}, nothing copied", mib(apart.bytes)));
            return format!("{kv}: {} at the peak, {copied} copied{apart}", mib(bytes));
        }
        if kv == CacheKind::Recompute {
            return "none, everything is recomputed".into();
        }
        let (tokens, slots) = (count(usage.tokens, "token"), count(usage.slots, "slot"));
        let wasted = thousands(usage.wasted());
        format!("{kv}: {tokens} in {slots}, {wasted} wasted, {}; {copied} copied", mib(usage.bytes))
    }
}

/// Why an output has ended, and the error if it failed.
fn finish(story: &Story<'_>) -> (&'static str, Option<String>) {
    match story.generated.as_ref().map(|generated| &generated.end) {
        Some(Ok(FinishReason::EndOfText)) => ("stop", None),
        Some(Ok(FinishReason::Limit)) => ("length", None),
        Some(Err(error)) => ("failed", Some(error.to_string())),
        Some(Ok(FinishReason::Cancelled)) | None => ("", None),
    }
}

/// The beginning of a prompt, in a line.
fn name(beginning: &str) -> String {
    let line: String = beginning.chars().map(|c| if c.is_control() { ' ' } else { c }).take(NAME + 1).collect();
    if line.chars().count() <= NAME { line } else { line.chars().take(NAME - 1).chain(['…']).collect() }
}
