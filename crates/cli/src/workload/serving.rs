//! `workload serving`: the scheduler under requests that arrive at random. Time is counted, not measured.

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::prefix_cache::PrefixCacheKind;
use page_by_page::serving::schedule::StepLimits;
use page_by_page::workload::arrivals::{
    ArrivalReport, LAYOUT, LatencyTarget, RequestTimes, StepCost, poisson, simulate_arrivals,
};

use super::{MAX_PAGE_SIZE, MAX_PAGES};
use crate::memory;
use crate::options::{SEED, ensure_in_range};
use crate::output::{Progress, ReportLines, Table, named_lines, percent, plural, print, prompts_cached, thousands};
use crate::requirements::{self, SCHEDULER};

/// More requests than this repeat what a hundred thousand show.
const MAX_REQUESTS: u64 = 100_000;
const MS: f64 = 1e3;

/// Serve requests that arrive at random: how many are on time, and how long they wait
///
/// Requests arrive at random, R a second on average. Half of them begin with one of 4 beginnings of 64 tokens, followed
/// by 16 to 256 tokens of their own, and each asks for 16 to 128 new ones. All of that is drawn from the seed.
///
/// There is no model and no clock. A step costs 10 ms, and 0.2 ms for each token that it computes, so the numbers are
/// the same on every machine. A request is on time if its first token comes within 1,000 ms and the others every 50 ms
/// on average.
#[derive(Args)]
#[command(after_help = "\
Example:
  cargo page workload serving --rate 6
  cargo page workload serving --rate 6 --pages 64 --no-prefix-cache")]
pub struct Serving {
    /// Requests a second, on average
    #[arg(long, value_name = "R", default_value_t = 8.0)]
    rate: f64,
    /// Same seed, same requests at the same times
    #[arg(long, value_name = "S", default_value_t = SEED)]
    seed: u64,
    /// Requests in all, at most 100,000
    #[arg(long, value_name = "N", default_value_t = 300)]
    requests: usize,
    /// Pages of the pool
    #[arg(long, value_name = "N", default_value_t = 128)]
    pages: usize,
    /// Slots in a page
    #[arg(long, value_name = "P", default_value_t = 16)]
    page_size: usize,
    /// Tokens that a step computes, at most
    #[arg(long, value_name = "B", default_value_t = 256)]
    token_budget: usize,
    /// Sequences that run at the same time, at most
    #[arg(long, value_name = "K", default_value_t = 16)]
    max_running: usize,
    /// Compute every prompt, whatever others have computed before
    #[arg(long)]
    no_prefix_cache: bool,
}

impl Serving {
    pub fn run(self) -> Result<()> {
        requirements::ensure_started(&SCHEDULER)?;
        let Serving { rate, seed, requests, pages, page_size, token_budget, max_running, no_prefix_cache } = self;
        ensure!(
            (0.001..=1e6).contains(&rate),
            "--rate is {rate}; requests come from 0.001 to 1,000,000 times a second"
        );
        ensure_in_range(requests as u64, MAX_REQUESTS, "--requests", "a workload")?;
        ensure_in_range(page_size as u64, MAX_PAGE_SIZE, "--page-size", "a page")?;
        ensure_in_range(pages as u64, MAX_PAGES, "--pages", "a pool")?;
        memory::ensure_pages(LAYOUT, page_size, pages)?;
        let slab = PageSlab::new(LAYOUT, page_size, pages)?;
        let limits = StepLimits { token_budget, max_running };
        let kind = if no_prefix_cache { PrefixCacheKind::None } else { PrefixCacheKind::Trie };
        let prefix_cache = kind.new_cache(page_size)?;
        let progress = Progress::new("counting", requests as u64);
        let arrivals = poisson(rate, seed, requests);
        let served = simulate_arrivals(&arrivals, &slab, prefix_cache, limits, StepCost::BOOK, || progress.advance(1))?;
        drop(progress);
        let mut table = Table::new(1, &["ms", "mean", "p50", "p99"]);
        table.line(spread("to the first token", served.requests.iter().map(|times| times.first_token as f64)));
        table.line(spread("per token", served.requests.iter().filter_map(RequestTimes::per_token)));
        print(&format!(
            "serving: {}, {rate} a second at random (seed {seed}), at most {} at a time and {} a step\na step costs {} ms \
             and {} ms a token; time is counted, not measured\n\n{}\n{}",
            plural(requests, "request"),
            thousands(max_running),
            plural(token_budget, "token"),
            StepCost::BOOK.step as f64 / MS,
            StepCost::BOOK.token as f64 / MS,
            table.render(),
            named_lines(&lines(pages, page_size, &served))
        ))
    }
}

fn lines(pages: usize, page_size: usize, served: &ArrivalReport) -> ReportLines {
    let ArrivalReport { requests, totals, .. } = served;
    let in_time = requests.iter().filter(|times| times.meets(LatencyTarget::BOOK)).count();
    let share = percent(in_time as f64 / requests.len().max(1) as f64);
    let (in_time, requests) = (thousands(in_time), thousands(requests.len()));
    let [first, others] =
        [LatencyTarget::BOOK.first_token, LatencyTarget::BOOK.per_token].map(|limit| thousands(limit / 1000));
    let [elapsed, busy] = [served.elapsed, served.busy].map(|time| time as f64 / 1e6);
    let speed = totals.new_tokens as f64 / elapsed.max(1e-6);
    let (steps, most) = (thousands(totals.steps), plural(totals.peak_sequences, "sequence"));
    let (tokens, again) = (plural(totals.computed_tokens, "token"), thousands(totals.recomputed_tokens));
    let [waste, on_average] = [served.waste, served.utilisation].map(percent);
    let (peak, pages, size) = (thousands(totals.peak_pages), thousands(pages), plural(page_size, "slot"));
    vec![
        (
            "on time",
            format!("{in_time} of {requests}, {share}; first token within {first} ms, then one every {others} ms"),
        ),
        ("time", format!("{elapsed:.1} s, {busy:.1} s of them busy; {speed:.1} tokens/s")),
        ("steps", format!("{steps}, at most {most} in one")),
        ("prefixes", prompts_cached(totals)),
        ("computed", format!("{tokens}; {again} of them recomputed after a preemption, {waste}")),
        ("preempted", plural(totals.preemptions, "time")),
        ("pages", format!("{peak} of {pages} owned by sequences at the peak, {on_average} on average; {size} each")),
    ]
}

/// A line of the table, in milliseconds: mean, median and 99th percentile of these microseconds. All are 0 without any.
fn spread(name: &str, numbers: impl Iterator<Item = f64>) -> [String; 4] {
    let mut numbers: Vec<f64> = numbers.map(|number| number / MS).collect();
    numbers.sort_by(f64::total_cmp);
    let n = numbers.len();
    // The smallest value that this percentage of all values do not exceed.
    let at = |percent: usize| numbers.get((n * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0);
    let [mean, p50, p99] = [numbers.iter().sum::<f64>() / n.max(1) as f64, at(50), at(99)]
        .map(|ms| if ms < 1000.0 { format!("{ms:.1}") } else { thousands(ms.round() as u64) });
    [name.into(), mean, p50, p99]
}
