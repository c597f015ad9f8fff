//! What Prometheus asks for: `/metrics`, in its text format.
//!
//! A number that means the same as in [vLLM](https://github.com/vllm-project/vllm) 0.33.0 has its name there, and the same
//! buckets (`vllm/v1/metrics/loggers.py`, `buckets.py`); one that has no such partner begins with `page_by_page:`.
//!
//! Two differ in a detail. `kv_cache_usage_perc` is of all pages, where vLLM leaves out one that it never hands out. And the
//! token that ends a text is not counted among the generated ones, as it is no part of the text.

use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use page_by_page::disk::tier::Counters;
use page_by_page::serving::Totals;

/// Upper ends of the buckets for the time to the first token, in seconds.
const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
/// From one token to the next, in seconds.
const INTER_TOKEN: &[f64] =
    &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
/// A whole request, in seconds.
const REQUEST: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];

/// How a text can end, as vLLM names it.
const ENDS: [&str; 4] = ["stop", "length", "abort", "error"];

/// The numbers of a server, written by the engine and read by whoever asks.
pub struct Metrics {
    model: String,
    numbers: Mutex<Numbers>,
}

/// Pages by what they are there for. Together they are the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagesNow {
    /// Nobody has them.
    pub free: usize,
    /// Only the prefix cache has them: they can be evicted.
    pub cached: usize,
    /// Texts have them.
    pub used: usize,
}

/// What the engine counts.
#[derive(Default)]
pub struct Numbers {
    /// Texts that run.
    pub running: usize,
    /// Texts that wait.
    pub waiting: usize,
    /// The pool.
    pub pages: PagesNow,
    /// What was done so far.
    pub totals: Totals,
    /// Tokens of prompts of the texts that have begun, and were looked up.
    pub queries: u64,
    /// Of these, tokens that the prefix cache held.
    pub hits: u64,
    /// Tokens of prompts that were read to their ends.
    pub prompt_tokens: u64,
    /// Tokens that were written.
    pub generation_tokens: u64,
    /// Times that a text lost its pages.
    pub preemptions: u64,
    /// Requests that were refused as the queue was full.
    pub refused: u64,
    /// What went to a file of pages and came from it, and whether it could not be written.
    pub page_file: Option<(Counters, bool)>,
    ends: [u64; ENDS.len()],
    first_token: Histogram,
    inter_token: Histogram,
    request: Histogram,
}

impl Numbers {
    /// A text has ended: `stop`, `length`, `abort` or `error`, so long after it came.
    pub fn end(&mut self, end: &str, after: Duration) {
        if let Some(place) = ENDS.iter().position(|known| *known == end) {
            self.ends[place] += 1;
        }
        self.request.note(REQUEST, after);
    }

    /// A text has got its first token, so long after it came.
    pub fn first_token(&mut self, after: Duration) {
        self.first_token.note(FIRST_TOKEN, after);
    }

    /// A text has got another token, so long after the one before.
    pub fn next_token(&mut self, after: Duration) {
        self.inter_token.note(INTER_TOKEN, after);
    }
}

/// How many times were how long.
#[derive(Default)]
struct Histogram {
    /// For each bucket those that are in no smaller one; the last has no upper end.
    counts: Vec<u64>,
    seconds: f64,
}

impl Histogram {
    fn note(&mut self, bounds: &[f64], time: Duration) {
        self.counts.resize(bounds.len() + 1, 0);
        let seconds = time.as_secs_f64();
        self.counts[bounds.partition_point(|bound| *bound < seconds)] += 1;
        self.seconds += seconds;
    }
}

impl Metrics {
    /// Of a model that is known by this name.
    pub fn new(model: &str) -> Self {
        Metrics { model: model.into(), numbers: Mutex::default() }
    }

    /// The numbers, to be changed.
    pub fn numbers(&self) -> MutexGuard<'_, Numbers> {
        // Numbers are only ever added: a panic elsewhere leaves them right.
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them, as Prometheus reads them.
    pub fn render(&self) -> String {
        let numbers = self.numbers();
        let mut page =
            Page { text: String::new(), labels: format!("engine=\"0\",model_name=\"{}\"", label(&self.model)) };
        let n = &*numbers;
        page.gauge("vllm:num_requests_running", "Texts that run.", n.running as f64);
        page.gauge("vllm:num_requests_waiting", "Texts that wait.", n.waiting as f64);
        let PagesNow { free, cached, used } = n.pages;
        let all = (free + cached + used).max(1);
        page.gauge(
            "vllm:kv_cache_usage_perc",
            "Pages that texts have, of all pages. 1 is all.",
            used as f64 / all as f64,
        );
        page.counter(
            "vllm:prefix_cache_queries",
            "Tokens of prompts that were looked for in the prefix cache.",
            n.queries,
        );
        page.counter("vllm:prefix_cache_hits", "Tokens of prompts that the prefix cache held.", n.hits);
        page.counter("vllm:num_preemptions", "Times that a text lost its pages and waited again.", n.preemptions);
        page.counter("vllm:prompt_tokens", "Tokens of prompts that were read.", n.prompt_tokens);
        page.counter("vllm:generation_tokens", "Tokens that were written.", n.generation_tokens);
        page.head("vllm:request_success_total", "Texts that have ended, by their reason.", "counter");
        for (end, count) in ENDS.iter().zip(n.ends) {
            page.line("vllm:request_success_total", &format!(",finished_reason=\"{end}\""), count as f64);
        }
        let first = "From the request to the first token of a text, in seconds.";
        page.histogram("vllm:time_to_first_token_seconds", first, FIRST_TOKEN, &n.first_token);
        let next = "From a token to the next one of its text, in seconds.";
        page.histogram("vllm:inter_token_latency_seconds", next, INTER_TOKEN, &n.inter_token);
        let whole = "From the request to the end of a text, in seconds.";
        page.histogram("vllm:e2e_request_latency_seconds", whole, REQUEST, &n.request);
        page.head(
            "page_by_page:pages",
            "Pages of the pool: free, kept by the prefix cache alone, or with texts.",
            "gauge",
        );
        for (state, pages) in [("free", free), ("cached", cached), ("used", used)] {
            page.line("page_by_page:pages", &format!(",state=\"{state}\""), pages as f64);
        }
        page.counter("page_by_page:steps", "Passes of the model.", n.totals.steps);
        page.counter("page_by_page:rows_projected", "Tokens that went through the model.", n.totals.rows_projected);
        let again = "Of these, tokens whose rows were lost when their text was preempted.";
        page.counter("page_by_page:computed_again", again, n.totals.recomputed);
        page.counter("page_by_page:requests_refused", "Requests that were refused as the queue was full.", n.refused);
        if let Some((Counters { written, read, brought_back }, failed)) = n.page_file {
            let name = "page_by_page:page_file_pages_total";
            page.head(
                name,
                "Pages written to the file, read from it, and of these given to the prefix cache.",
                "counter",
            );
            for (what, pages) in [("written", written), ("read", read), ("brought_back", brought_back)] {
                page.line(name, &format!(",what=\"{what}\""), pages as f64);
            }
            let failed = f64::from(u8::from(failed));
            page.gauge(
                "page_by_page:page_file_failed",
                "1 if it could not be written, and nothing is any more.",
                failed,
            );
        }
        page.text
    }
}

/// The text of `/metrics`.
struct Page {
    text: String,
    labels: String,
}

impl Page {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn line(&mut self, name: &str, more_labels: &str, value: f64) {
        let labels = &self.labels;
        let _ = writeln!(self.text, "{name}{{{labels}{more_labels}}} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help, "gauge");
        self.line(name, "", value);
    }

    /// Prometheus has counters end so.
    fn counter(&mut self, name: &str, help: &str, value: u64) {
        let name = format!("{name}_total");
        self.head(&name, help, "counter");
        self.line(&name, "", value as f64);
    }

    fn histogram(&mut self, name: &str, help: &str, bounds: &[f64], histogram: &Histogram) {
        self.head(name, help, "histogram");
        let ends = bounds.iter().map(f64::to_string).chain(["+Inf".into()]);
        let mut sum = 0;
        for (place, end) in ends.enumerate() {
            sum += histogram.counts.get(place).copied().unwrap_or(0);
            self.line(&format!("{name}_bucket"), &format!(",le=\"{end}\""), sum as f64);
        }
        self.line(&format!("{name}_sum"), "", histogram.seconds);
        self.line(&format!("{name}_count"), "", sum as f64);
    }
}

/// A label's value.
fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_as_prometheus_reads_it() {
        let metrics = Metrics::new("a\"b");
        {
            let mut numbers = metrics.numbers();
            (numbers.running, numbers.pages) = (2, PagesNow { free: 5, cached: 1, used: 2 });
            (numbers.queries, numbers.hits) = (100, 64);
            numbers.first_token(Duration::from_millis(5));
            numbers.first_token(Duration::from_millis(6));
            numbers.first_token(Duration::from_secs(4_000));
            numbers.end("length", Duration::from_secs(1));
        }
        let page = metrics.render();
        for line in [
            "# TYPE vllm:num_requests_running gauge",
            "vllm:num_requests_running{engine=\"0\",model_name=\"a\\\"b\"} 2",
            "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"a\\\"b\"} 0.25",
            "# TYPE vllm:prefix_cache_hits_total counter",
            "vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"a\\\"b\"} 64",
            "vllm:request_success_total{engine=\"0\",model_name=\"a\\\"b\",finished_reason=\"length\"} 1",
            "vllm:time_to_first_token_seconds_bucket{engine=\"0\",model_name=\"a\\\"b\",le=\"0.001\"} 0",
            "vllm:time_to_first_token_seconds_bucket{engine=\"0\",model_name=\"a\\\"b\",le=\"0.005\"} 1",
            "vllm:time_to_first_token_seconds_bucket{engine=\"0\",model_name=\"a\\\"b\",le=\"0.01\"} 2",
            "vllm:time_to_first_token_seconds_bucket{engine=\"0\",model_name=\"a\\\"b\",le=\"2560\"} 2",
            "vllm:time_to_first_token_seconds_bucket{engine=\"0\",model_name=\"a\\\"b\",le=\"+Inf\"} 3",
            "vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"a\\\"b\"} 3",
            "vllm:inter_token_latency_seconds_count{engine=\"0\",model_name=\"a\\\"b\"} 0",
            "page_by_page:pages{engine=\"0\",model_name=\"a\\\"b\",state=\"cached\"} 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        let names: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let mut once = names.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), names.len(), "each name is described once");
    }
}
