//! `workload serving`: the scheduler under requests that come by chance, in time that is counted.

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::prefixes::Prefixes;
use page_by_page::prefixes::none::NoPrefixes;
use page_by_page::serving::schedule::StepLimits;
use page_by_page::workload::arrivals::{
    Arrival, Cost, InTime, LAYOUT, Served, TINY_LLM, Times, poisson, serve, tiny_llm,
};
use serde::Serialize;

use super::{MOST_PAGES, MOST_SLOTS, percent};
use crate::output::{Lines, Object, Progress, Table, count, named_lines, print, print_pretty_json, thousands};
use crate::require;

/// The pool, its tables and slab, forks, the prefix cache, the scheduler.
const CHAPTERS: [usize; 6] = [4, 5, 6, 10, 11, 12];
/// More requests than this repeat what a hundred thousand show.
const MOST_REQUESTS: u64 = 100_000;
/// Microseconds in a millisecond.
const MS: f64 = 1e3;

/// Requests that come by chance, served by the scheduler: who waits, and for how long
///
/// Requests arrive at random, R a second on average. Half of them begin with one of 4 beginnings of 64 tokens; then come 16 to
/// 256 tokens of their own, and 16 to 128 are written. All of that is drawn from the seed.
///
/// There is no model and no clock. A step costs 10 ms, and 0.2 ms for each token that it reads: time is counted so, and the
/// numbers are the same on every machine. A request is served in time if its first token comes within 1,000 ms and the others
/// every 50 ms on average, unless you say otherwise.
///
/// The trace b is the one with which the course tiny-llm tries its batches: 16 requests, all there at the start.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page workload serving --rate 6
  page-by-page workload serving --rate 6 --pages 64 --no-prefix-cache
  page-by-page workload serving --trace b")]
pub struct Serving {
    /// Which requests come
    #[arg(long, value_name = "TRACE", value_enum, default_value_t = Which::Random)]
    trace: Which,
    /// Requests a second, on average [default: 8]
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    rate: Option<f64>,
    /// Same seed, same requests at the same times [default: 23]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Requests in all, at most 100,000 [default: 300]
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
    /// Pages of the pool [default: 128; 32 for trace b]
    #[arg(long, value_name = "N")]
    pages: Option<usize>,
    /// Slots in a page [default: 16; 128 for trace b]
    #[arg(long, value_name = "P")]
    page_size: Option<usize>,
    /// Tokens that the texts read together in a step, at most [default: 256; 128 for trace b]
    #[arg(long, value_name = "B")]
    budget: Option<usize>,
    /// Texts that run at the same time, at most [default: 16; 4 for trace b]
    #[arg(long, value_name = "K")]
    running: Option<usize>,
    /// Compute every prompt, whatever others have computed before
    #[arg(long)]
    no_prefix_cache: bool,
    /// Microseconds that a step costs, however little it reads
    #[arg(long, value_name = "US", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(..=MOST_MICROSECONDS))]
    step_cost: u64,
    /// Microseconds that each token of a step costs
    #[arg(long, value_name = "US", default_value_t = 200, value_parser = clap::value_parser!(u64).range(..=MOST_MICROSECONDS))]
    token_cost: u64,
    /// In time is a first token within so many milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(..=MOST_MICROSECONDS))]
    first_token_limit: u64,
    /// In time are the other tokens if they come every so many milliseconds on average
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(..=MOST_MICROSECONDS))]
    per_token_limit: u64,
    /// Print the counters as one JSON object
    #[arg(long)]
    json: bool,
}

/// A quarter of an hour, in microseconds.
const MOST_MICROSECONDS: u64 = 1_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Which {
    /// Drawn from the seed
    Random,
    /// 16 requests of tiny-llm
    B,
}

/// What runs.
struct Setting {
    /// Requests a second, and the seed; `None` for trace b.
    random: Option<(f64, u64)>,
    requests: usize,
    pages: usize,
    page_size: usize,
    budget: usize,
    running: usize,
}

#[derive(Serialize)]
struct Spread {
    mean: f64,
    p50: f64,
    p99: f64,
}

/// What was measured, in milliseconds.
struct Measured {
    served: Served,
    elapsed: f64,
    busy: f64,
    first_token: Spread,
    per_token: Spread,
    /// Requests served in time.
    in_time: usize,
    /// The same of all requests, 0 to 1.
    share_in_time: f64,
}

impl Serving {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        require::chapters(&CHAPTERS)?;
        let setting = self.setting()?;
        let Setting { random, requests, pages, page_size, budget, running } = setting;
        let arrivals: Vec<Arrival> = random.map_or_else(tiny_llm, |(rate, seed)| poisson(rate, seed, requests));
        require::pages(LAYOUT, page_size, pages)?;
        let slab = PageSlab::new(LAYOUT, page_size, pages)?;
        let prefixes: Box<dyn Prefixes> = match self.no_prefix_cache {
            true => Box::new(NoPrefixes::new(page_size)?),
            false => Box::new(PrefixCache::new(page_size)?),
        };
        let limits = StepLimits { tokens: budget, sequences: running };
        let cost = Cost { step: self.step_cost, token: self.token_cost };
        let progress = Progress::new("counting", arrivals.len() as u64);
        let served = serve(&arrivals, &slab, prefixes, limits, cost, || progress.advance(1))?;
        drop(progress);
        let measured = self.measured(served);
        match self.json {
            true => print_pretty_json(&self.json(&setting, &measured)),
            false => print(&self.describe(&setting, &measured)),
        }
    }

    fn setting(&self) -> Result<Setting> {
        let is_b = self.trace == Which::B;
        ensure!(
            !is_b || (self.rate, self.seed, self.requests) == (None, None, None),
            "trace b has its own 16 requests, all there at the start; leave out --rate, --seed and --requests"
        );
        let or = |option: Option<usize>, random: usize, b: usize| option.unwrap_or(if is_b { b } else { random });
        let rate = self.rate.unwrap_or(8.0);
        ensure!(
            (0.001..=1e6).contains(&rate),
            "--rate is {rate}; requests come from 0.001 to 1,000,000 times a second"
        );
        let setting = Setting {
            random: (!is_b).then(|| (rate, self.seed.unwrap_or(23))),
            requests: or(self.requests, 300, TINY_LLM.len()),
            pages: or(self.pages, 128, 32),
            page_size: or(self.page_size, 16, 128),
            budget: or(self.budget, 256, 128),
            running: or(self.running, 16, 4),
        };
        require::in_range(setting.requests as u64, MOST_REQUESTS, "--requests", "a workload")?;
        require::in_range(setting.page_size as u64, MOST_SLOTS, "--page-size", "a page")?;
        require::in_range(setting.pages as u64, MOST_PAGES, "--pages", "a pool")?;
        Ok(setting)
    }

    fn measured(&self, served: Served) -> Measured {
        let limits =
            InTime { first_token: self.first_token_limit * MS as u64, per_token: self.per_token_limit * MS as u64 };
        let in_time = served.requests.iter().filter(|times| times.is_in_time(limits)).count();
        Measured {
            elapsed: served.elapsed as f64 / MS,
            busy: served.busy as f64 / MS,
            first_token: Spread::of(served.requests.iter().map(|times| times.first_token as f64)),
            per_token: Spread::of(served.requests.iter().filter_map(Times::per_token)),
            in_time,
            share_in_time: in_time as f64 / served.requests.len().max(1) as f64,
            served,
        }
    }

    /// What `--json` prints.
    fn json(&self, setting: &Setting, measured: &Measured) -> Object {
        let Served { totals, waste, utilisation, .. } = &measured.served;
        let goodput = Object::default()
            .with("first_token_limit_ms", self.first_token_limit)
            .with("per_token_limit_ms", self.per_token_limit)
            .with("requests", measured.in_time)
            .with("share", measured.share_in_time);
        Object::default()
            .with("trace", self.trace)
            .with_some("rate", setting.random.map(|(rate, _)| rate))
            .with_some("seed", setting.random.map(|(_, seed)| seed))
            .with("requests", setting.requests)
            .with("pages", setting.pages)
            .with("page_size", setting.page_size)
            .with("budget", setting.budget)
            .with("running", setting.running)
            .with("prefix_cache", !self.no_prefix_cache)
            .with("step_cost_us", self.step_cost)
            .with("token_cost_us", self.token_cost)
            .with("steps", totals.steps)
            .with("prompt_tokens", totals.prompt_tokens)
            .with("found", totals.cached)
            .with("found_again", totals.cached_again)
            .with("new_tokens", totals.new_tokens)
            .with("computed", totals.rows_projected)
            .with("computed_again", totals.recomputed)
            .with("waste", waste)
            .with("preemptions", totals.preemptions)
            .with("most_texts", totals.most_sequences)
            .with("peak_pages", totals.peak_pages)
            .with("utilisation", utilisation)
            .with("elapsed_ms", measured.elapsed)
            .with("busy_ms", measured.busy)
            .with("first_token_ms", &measured.first_token)
            .with("per_token_ms", &measured.per_token)
            .with("goodput", goodput)
    }

    /// Lines for people.
    fn describe(&self, setting: &Setting, measured: &Measured) -> String {
        let arrivals = match setting.random {
            Some((rate, seed)) => format!("{rate} a second by chance (seed {seed})"),
            None => "all there at the start (trace b)".into(),
        };
        let about = format!(
            "serving: {}, {arrivals}, at most {} at a time and {} a step\na step costs {} ms and {} ms a token; time is \
             counted, not measured\n",
            count(setting.requests, "request"),
            thousands(setting.running),
            count(setting.budget, "token"),
            self.step_cost as f64 / MS,
            self.token_cost as f64 / MS,
        );
        let mut table = Table::new(1, &["ms", "mean", "p50", "p99"]);
        for (name, spread) in [("to the first token", &measured.first_token), ("per token", &measured.per_token)] {
            table.line([name.to_string()].into_iter().chain(spread.cells()));
        }
        about + "\n" + &table.render() + "\n" + &named_lines(&self.lines(setting, measured))
    }

    fn lines(&self, setting: &Setting, measured: &Measured) -> Lines {
        let Served { totals, waste, utilisation, .. } = &measured.served;
        let [elapsed, busy] = [measured.elapsed, measured.busy].map(|ms| ms / 1e3);
        let in_time = format!(
            "{} of {}, {}: first token within {} ms, then one every {} ms",
            thousands(measured.in_time),
            thousands(setting.requests),
            percent(measured.share_in_time),
            thousands(self.first_token_limit),
            thousands(self.per_token_limit)
        );
        let tokens_per_second = totals.new_tokens as f64 / elapsed.max(1e-6);
        let prefixes = format!(
            "{} of {} prompt tokens found, {}; {} more after a preemption",
            thousands(totals.cached),
            thousands(totals.prompt_tokens),
            percent(totals.cached as f64 / totals.prompt_tokens.max(1) as f64),
            thousands(totals.cached_again)
        );
        let computed = format!(
            "{} tokens, {} of them again after a preemption: waste {}",
            thousands(totals.rows_projected),
            thousands(totals.recomputed),
            percent(*waste)
        );
        let pages = format!(
            "{} of {} with texts at the peak, {} on average; {} each",
            thousands(totals.peak_pages),
            thousands(setting.pages),
            percent(*utilisation),
            count(setting.page_size, "slot")
        );
        let most = count(totals.most_sequences, "text");
        vec![
            ("in time", in_time),
            ("time", format!("{elapsed:.1} s, {busy:.1} s of them busy; {tokens_per_second:.1} tokens/s")),
            ("steps", format!("{}, at most {most} in one", thousands(totals.steps))),
            ("prefixes", prefixes),
            ("computed", computed),
            ("preempted", count(totals.preemptions, "time")),
            ("pages", pages),
        ]
    }
}

impl Spread {
    /// Of microseconds, in milliseconds. 0 of nothing.
    fn of(numbers: impl Iterator<Item = f64>) -> Self {
        let mut numbers: Vec<f64> = numbers.map(|number| number / MS).collect();
        numbers.sort_by(f64::total_cmp);
        let n = numbers.len();
        // The least number that this percentage of all do not exceed.
        let at = |percent: usize| numbers.get((n * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0);
        Spread { mean: numbers.iter().sum::<f64>() / n.max(1) as f64, p50: at(50), p99: at(99) }
    }

    fn cells(&self) -> [String; 3] {
        [self.mean, self.p50, self.p99].map(ms)
    }
}

/// Milliseconds with a digit after the point, where there are few.
fn ms(ms: f64) -> String {
    if ms < 1000.0 { format!("{ms:.1}") } else { thousands(ms.round() as u64) }
}
