//! What the requests of a batch cost together.

use std::collections::BTreeMap;
use std::time::Duration;

use page_by_page::serving::Totals;
use serde::Serialize;

use super::results::{self, Outcome};
use crate::output::{Lines, count, per_second, rate, thousands, time};
use crate::page_file::PageFileReport;
use crate::require;

/// What `--json` prints, and what the report for people is made of.
#[derive(Serialize)]
pub struct Report {
    /// With `--json` only; otherwise they are written as they come.
    pub outputs: Vec<Outcome>,
    pub model: String,
    pub counters: Counters,
    pub pages: Pages,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_file: Option<PageFileReport>,
    pub timings: Timings,
}

#[derive(Serialize)]
pub struct Counters {
    steps: u64,
    max_sequences_in_a_step: usize,
    rows_projected: u64,
    recomputed: u64,
    generated_tokens: u64,
    prompt_tokens: u64,
    cached: u64,
    cached_again: u64,
    preemptions: u64,
}

#[derive(Serialize)]
pub struct Pages {
    page_size: usize,
    pages: usize,
    /// Owned by sequences at the same time, at most.
    peak: usize,
    /// Owned by the prefix cache at the end.
    kept: usize,
}

#[derive(Serialize)]
pub struct Timings {
    seconds: f64,
    generated_tokens_per_second: f64,
}

impl From<Totals> for Counters {
    fn from(totals: Totals) -> Self {
        Counters {
            steps: totals.steps,
            max_sequences_in_a_step: totals.most_sequences,
            rows_projected: totals.rows_projected,
            recomputed: totals.recomputed,
            generated_tokens: totals.new_tokens,
            prompt_tokens: totals.prompt_tokens,
            cached: totals.cached,
            cached_again: totals.cached_again,
            preemptions: totals.preemptions,
        }
    }
}

impl Pages {
    /// Of a pool of `pages` pages, of which the prefix cache owns `kept` at the end.
    pub fn new(page_size: usize, pages: usize, kept: usize, totals: Totals) -> Self {
        Pages { page_size, pages, peak: totals.peak_pages, kept }
    }
}

impl Timings {
    /// Of a run that took so long.
    pub fn new(elapsed: Duration, totals: Totals) -> Self {
        let generated_tokens_per_second = per_second(totals.new_tokens as usize, elapsed);
        Timings { seconds: elapsed.as_secs_f64(), generated_tokens_per_second }
    }
}

impl Report {
    /// The report for people. `ends`: how many requests have ended in each way.
    pub fn lines(
        &self,
        n_requests: usize,
        ends: &BTreeMap<&'static str, usize>,
        keeps_prefixes: bool,
        chapters: &[usize],
    ) -> Lines {
        let Report { model, counters, pages, timings, .. } = self;
        let ends: Vec<String> =
            ends.iter().map(|(end, n)| format!("{} {}", thousands(*n), results::describe(end))).collect();
        let mut lines = vec![
            ("model", model.clone()),
            ("requests", {
                let most = counters.max_sequences_in_a_step;
                format!("{}: {}; at most {most} in a step", thousands(n_requests), ends.join(", "))
            }),
            ("steps", {
                let (steps, generated) = (count(counters.steps, "step"), count(counters.generated_tokens, "token"));
                let (elapsed, speed) = (Duration::from_secs_f64(timings.seconds), timings.generated_tokens_per_second);
                format!("{steps}, {generated} generated in {}, {} tokens/s", time(elapsed), rate(speed))
            }),
            ("computed", {
                let (rows, again) = (count(counters.rows_projected, "row"), thousands(counters.recomputed));
                format!("{rows}, {again} of them recomputed after a preemption")
            }),
            ("prefixes", counters.prefixes(keeps_prefixes)),
            ("preempted", count(counters.preemptions, "time")),
            ("pages", {
                let (peak, all, size) = (thousands(pages.peak), thousands(pages.pages), count(pages.page_size, "slot"));
                format!("{peak} of {all} in use at the peak, {size} each; {} kept at the end", thousands(pages.kept))
            }),
        ];
        lines.extend(self.page_file.as_ref().map(|file| ("page file", file.describe())));
        lines.push(("chapters", require::whose_chapters(chapters)));
        lines
    }
}

impl Counters {
    fn prefixes(&self, are_kept: bool) -> String {
        if !are_kept {
            return "none kept".into();
        }
        let share = 100.0 * self.cached as f64 / self.prompt_tokens.max(1) as f64;
        format!(
            "{} of {} cached, {share:.1} %; {} more after a preemption",
            thousands(self.cached),
            count(self.prompt_tokens, "prompt token"),
            thousands(self.cached_again)
        )
    }
}
