//! `/metrics`, in the text format of OpenMetrics, which Prometheus reads.
//!
//! A metric that means the same as in [vLLM](https://github.com/vllm-project/vllm) 0.33.0 has its name there, and the
//! same buckets (`vllm/v1/metrics/loggers.py`, `buckets.py`); one without such a partner begins with `page_by_page:`.
//!
//! Two differ in a detail. `kv_cache_usage_perc` is a share of all pages, where vLLM leaves out one that it never hands
//! out. And the token that ends an output isn't counted among the generated ones, because it isn't part of the output.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use page_by_page::kernels::MatmulDtype;
use page_by_page::serving::disk_tier::TierCounters;
use page_by_page::serving::schedule::FinishReason;
use page_by_page::serving::{EngineTotals, PagesByState};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

/// The format of [`Metrics::render`], as an answer declares it.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper ends of the buckets for the time to the first token, in seconds.
const FIRST_TOKEN: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
/// Upper ends of the buckets for the time from one token to the next, in seconds.
const INTER_TOKEN: [f64; 19] =
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
/// Upper ends of the buckets for the time of a whole request, in seconds.
const REQUEST: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];

type TotalOf = fn(&EngineTotals) -> u64;

type Label = [(&'static str, &'static str); 1];

/// What a server counts. The engine writes it, `/metrics` reads it.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub running: Gauge,
    pub waiting: Gauge,
    usage: Gauge<f64, AtomicU64>,
    pages: Family<Label, Gauge>,
    /// What the engine counts, each with where it is among its totals.
    engine_counters: Vec<(Counter, TotalOf)>,
    /// Requests that were refused because the queue was full.
    pub refused: Counter,
    finished: Family<Label, Counter>,
    pub first_token: Histogram,
    pub inter_token: Histogram,
    request: Histogram,
    page_file: Family<Label, Counter>,
    page_file_failed: Family<[(&'static str, &'static str); 0], Gauge>,
}

impl Metrics {
    /// The metrics of a model of this name. A metric with labels is shown from its first value on.
    pub fn new(model: &str, matmul_dtype: MatmulDtype) -> Self {
        let labels = [("engine".into(), "0".into()), ("model_name".into(), model.to_string().into())];
        let mut all = Registry::with_labels(labels.into_iter());
        let [first_token, inter_token, request] = [
            ("vllm:time_to_first_token_seconds", "Seconds from the request to the first token", &FIRST_TOKEN[..]),
            ("vllm:inter_token_latency_seconds", "Seconds from one token to the next of its sequence", &INTER_TOKEN),
            ("vllm:e2e_request_latency_seconds", "Seconds from the request to the end of a sequence", &REQUEST),
        ]
        .map(|(name, help, buckets)| {
            let metric = Histogram::new(buckets.iter().copied());
            all.register(name, help, metric.clone());
            metric
        });
        let engine_counters: &[(&str, &str, TotalOf)] = &[
            ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache", |totals| {
                totals.looked_up_tokens
            }),
            ("vllm:prefix_cache_hits", "Prompt tokens that the prefix cache held", |totals| totals.cached_tokens),
            ("vllm:num_preemptions", "Sequences that lost their pages and waited again", |totals| totals.preemptions),
            ("vllm:prompt_tokens", "Prompt tokens, computed or cached", |totals| totals.prompt_tokens),
            ("vllm:generation_tokens", "Tokens generated", |totals| totals.new_tokens),
            ("page_by_page:steps", "Passes of the model", |totals| totals.steps),
            ("page_by_page:computed_tokens", "Tokens that went through the model", |totals| totals.computed_tokens),
            ("page_by_page:recomputed_tokens", "Tokens computed again after preemptions", |totals| {
                totals.recomputed_tokens
            }),
        ];
        let mut metrics = Metrics {
            engine_counters: engine_counters
                .iter()
                .map(|(name, help, total)| (add(&mut all, name, help), *total))
                .collect(),
            running: add(&mut all, "vllm:num_requests_running", "Sequences that run"),
            waiting: add(&mut all, "vllm:num_requests_waiting", "Sequences that wait"),
            usage: add(&mut all, "vllm:kv_cache_usage_perc", "Share of the pages that sequences own; 1 is all"),
            finished: add(&mut all, "vllm:request_success", "Sequences that ended, by reason"),
            pages: add(&mut all, "page_by_page:pages", "Pages: free, owned by the prefix cache alone, or by sequences"),
            refused: add(&mut all, "page_by_page:requests_refused", "Requests refused because the queue was full"),
            first_token,
            inter_token,
            request,
            page_file: add(&mut all, "page_by_page:page_file_pages", "Pages of the page file: written, read, restored"),
            page_file_failed: add(&mut all, "page_by_page:page_file_failed", "1 once the page file cannot be written"),
            registry: all,
        };
        let of_dtype: Family<Label, Gauge> =
            add(&mut metrics.registry, "page_by_page:matmul_dtype", "1 for how the model multiplies");
        of_dtype.get_or_create(&[("type", matmul_dtype.name())]).set(1);
        // A reason that has not occurred is shown as 0.
        for reason in FinishReason::ALL {
            drop(metrics.finished.get_or_create(&[("finished_reason", reason.as_str())]));
        }
        metrics
    }

    pub fn set_totals(&self, totals: EngineTotals) {
        self.engine_counters.iter().for_each(|(counter, total)| count_up_to(counter, total(&totals)));
    }

    /// A sequence has ended, with `stop`, `length`, `abort` or `error`, so long after its request arrived.
    pub fn end(&self, reason: FinishReason, after: Duration) {
        self.finished.get_or_create(&[("finished_reason", reason.as_str())]).inc();
        self.request.observe(after.as_secs_f64());
    }

    pub fn set_pages(&self, PagesByState { free, cached, used }: PagesByState) {
        self.usage.set(used as f64 / (free + cached + used).max(1) as f64);
        for (state, pages) in [("free", free), ("cached", cached), ("used", used)] {
            self.pages.get_or_create(&[("state", state)]).set(pages as i64);
        }
    }

    /// What went to the page file and came from it so far.
    pub fn set_page_file(&self, TierCounters { written, read, restored }: TierCounters, has_failed: bool) {
        for (what, total) in [("written", written), ("read", read), ("restored", restored)] {
            count_up_to(&self.page_file.get_or_create(&[("what", what)]), total);
        }
        self.page_file_failed.get_or_create(&[]).set(i64::from(has_failed));
    }

    pub fn render(&self) -> String {
        let mut page = String::new();
        encode(&mut page, &self.registry).expect("a string takes everything that is written to it");
        page
    }
}

fn add<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// Brings a counter up to a total that is counted elsewhere.
fn count_up_to(counter: &Counter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}
