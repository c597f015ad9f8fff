//! `bench workload`: what a prefix cache costs a server, the chapter's and the fast one.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::prefixes::Prefixes;
use page_by_page::prefixes::fast::FastPrefixCache;
use page_by_page::workload::{Counters, Pages, Trace, run};
use serde::Serialize;

use super::{Output, median};
use crate::kv::require_chapters;
use crate::print;
use crate::progress::Progress;
use crate::report::{Table, count, rate, thousands};

/// Let many requests come and go, and compare prefix caches: the one of chapter 11 and one as a server would build it
///
/// Both find and evict the same pages. First the whole workloads shared and unique, each the median of several runs. Then
/// more and more requests of shared in one large pool, and what each of them costs. Then what it costs to evict one page
/// where a hundredth of the pool, a tenth and all of it is held: chapter 11 looks at all of them, the fast one
/// knows which is next.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page bench workload
  page-by-page bench workload --requests 1000,10000 --pages 10000")]
pub struct Workload {
    /// Numbers of requests, separated by commas; costs are compared with the first
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "10000,100000,1000000")]
    requests: Vec<usize>,
    /// Pages of the pool in which they come and go
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pages: usize,
    #[command(flatten)]
    output: Output,
}

const PAGE_SIZE: usize = 16;
const RUNNING: usize = 16;
/// Runs of a whole workload, of which the median counts.
const RUNS: usize = 11;
/// Chapter 11 is left out where it would look at more pages than this: that takes longer than a few seconds.
const MOST_LOOKS: u64 = 1_000_000_000;
/// Pages that are evicted in a turn, one by one.
const EVICTIONS: usize = 10;
/// Turns, of which the median counts.
const TURNS: usize = 11;

const MOST_REQUESTS: usize = 10_000_000;
const MOST_PAGES: usize = 1_000_000;

/// A prefix cache.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Chapter,
    Fast,
}

impl Kind {
    const BOTH: [Kind; 2] = [Kind::Chapter, Kind::Fast];

    /// One that holds nothing.
    fn empty(self) -> Result<Box<dyn Prefixes>> {
        Ok(match self {
            Kind::Chapter => Box::new(PrefixCache::new(PAGE_SIZE)?),
            Kind::Fast => Box::new(FastPrefixCache::new(PAGE_SIZE)?),
        })
    }

    /// Tells the requests of a trace in a pool of its own; returns the counters and how long it took.
    fn tell(self, trace: Trace, requests: usize, n_pages: usize, progress: &Progress) -> Result<(Counters, Duration)> {
        let start = Instant::now();
        let mut memory = Pages::new(n_pages, PAGE_SIZE, Some(self.empty()?))?;
        let mut told = 0;
        let on_end = || {
            told += 1;
            if told % 1024 == 0 {
                progress.advance(1024);
            }
        };
        let counters = run(trace.requests(requests), RUNNING, &mut memory, on_end)?;
        Ok((counters, start.elapsed()))
    }
}

#[derive(Serialize)]
struct Whole {
    trace: &'static str,
    prefix_cache: Kind,
    seconds: f64,
    requests_per_second: f64,
}

#[derive(Serialize)]
struct Many {
    requests: usize,
    pages_evicted: u64,
    /// `None` where it would take too long.
    chapter_seconds_each: Option<f64>,
    fast_seconds_each: f64,
    fast_times_the_first: f64,
}

#[derive(Serialize)]
struct Eviction {
    pages_held: usize,
    chapter_seconds: f64,
    fast_seconds: f64,
    factor: f64,
}

impl Workload {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        self.output.check()?;
        require_chapters(&[4, 5, 11])?;
        ensure!(
            (1..=MOST_PAGES).contains(&self.pages),
            "--pages is {}; this benchmark takes from 1 to {}",
            thousands(self.pages),
            thousands(MOST_PAGES)
        );
        for requests in &self.requests {
            ensure!(
                (1..=MOST_REQUESTS).contains(requests),
                "--requests is {}; this benchmark takes from 1 to {}",
                thousands(*requests),
                thousands(MOST_REQUESTS)
            );
        }
        let progress = Progress::new("counting", self.requests.iter().map(|requests| *requests as u64).sum());
        let whole = whole(&progress)?;
        let many = self.many(&progress)?;
        let evictions =
            [100, 10, 1].into_iter().map(|part| eviction(self.pages.div_ceil(part))).collect::<Result<Vec<_>>>()?;
        drop(progress);
        print(&shown(&whole, &many, self.pages, &evictions))?;
        self.output.write(&serde_json::json!({
            "whole": whole, "pages": self.pages, "many": many, "evictions": evictions
        }))
    }

    /// More and more requests in one pool.
    fn many(&self, progress: &Progress) -> Result<Vec<Many>> {
        let mut many: Vec<Many> = Vec::new();
        for requests in &self.requests {
            let (counters, time) = Kind::Fast.tell(Trace::Shared, *requests, self.pages, progress)?;
            let each = |time: Duration| time.as_secs_f64() / *requests as f64;
            let looks = counters.pages_evicted.saturating_mul(self.pages as u64);
            let chapter = match looks <= MOST_LOOKS && *requests <= 100_000 {
                true => Some(each(Kind::Chapter.tell(Trace::Shared, *requests, self.pages, progress)?.1)),
                false => None,
            };
            many.push(Many {
                requests: *requests,
                pages_evicted: counters.pages_evicted,
                chapter_seconds_each: chapter,
                fast_seconds_each: each(time),
                fast_times_the_first: each(time) / many.first().map_or(each(time), |first| first.fast_seconds_each),
            });
        }
        Ok(many)
    }
}

/// The workloads `shared` and `unique` with both, in turns.
fn whole(progress: &Progress) -> Result<Vec<Whole>> {
    let mut lines = Vec::new();
    for trace in [Trace::Shared, Trace::Unique] {
        let mut times = [const { Vec::new() }; 2];
        for _ in 0..RUNS {
            for (kind, times) in Kind::BOTH.into_iter().zip(&mut times) {
                times.push(kind.tell(trace, trace.n_requests(), trace.n_pages(), progress)?.1);
            }
        }
        for (kind, times) in Kind::BOTH.into_iter().zip(&times) {
            let seconds = median(times);
            let requests_per_second = trace.n_requests() as f64 / seconds;
            lines.push(Whole { trace: trace.name(), prefix_cache: kind, seconds, requests_per_second });
        }
    }
    Ok(lines)
}

/// Evicts pages one by one where so many are held.
fn eviction(held: usize) -> Result<Eviction> {
    let mut seconds = [0.0; 2];
    for (kind, seconds) in Kind::BOTH.into_iter().zip(&mut seconds) {
        let (mut pool, mut prefixes) = (PagePool::new(held)?, kind.empty()?);
        let mut next = 0;
        let mut fill = |pool: &mut PagePool, prefixes: &mut dyn Prefixes| -> Result<()> {
            while pool.n_free() > 0 {
                // A text of ten pages, or of what is left.
                let tokens = PAGE_SIZE * pool.n_free().min(10);
                let text: Vec<u32> = (next..next + tokens as u32).collect();
                next += tokens as u32;
                let mut table = PageTable::new(PAGE_SIZE)?;
                table.grow(tokens, pool)?;
                prefixes.insert(&text, &mut table, pool)?;
                table.release(pool)?;
            }
            Ok(())
        };
        let mut times = Vec::new();
        for _ in 0..TURNS {
            fill(&mut pool, prefixes.as_mut())?;
            let start = Instant::now();
            for _ in 0..EVICTIONS {
                black_box(prefixes.evict(1, &mut pool)?);
            }
            times.push(start.elapsed());
        }
        *seconds = median(&times) / EVICTIONS as f64;
    }
    let [chapter_seconds, fast_seconds] = seconds;
    let factor = chapter_seconds / fast_seconds.max(1e-9);
    Ok(Eviction { pages_held: held, chapter_seconds, fast_seconds, factor })
}

fn shown(whole: &[Whole], many: &[Many], pages: usize, evictions: &[Eviction]) -> String {
    let mut first = Table::new(2, &["workload", "prefix cache", "ms", "requests per second"]);
    for line in whole {
        let kind = match line.prefix_cache {
            Kind::Chapter => "chapter 11",
            Kind::Fast => "fast",
        };
        let ms = format!("{:.2}", line.seconds * 1e3);
        first.line([line.trace, kind, &ms, &thousands(line.requests_per_second.round() as u64)]);
    }
    let mut second = Table::new(0, &["requests", "pages evicted", "chapter 11, µs each", "fast, µs each", "× first"]);
    for line in many {
        second.line([
            thousands(line.requests),
            thousands(line.pages_evicted),
            line.chapter_seconds_each.map_or("–".into(), |seconds| rate(seconds * 1e6)),
            rate(line.fast_seconds_each * 1e6),
            format!("{:.2}", line.fast_times_the_first),
        ]);
    }
    let mut third = Table::new(0, &["pages held", "chapter 11, µs each", "fast, µs each", "factor"]);
    for line in evictions {
        third.line([
            thousands(line.pages_held),
            rate(line.chapter_seconds * 1e6),
            rate(line.fast_seconds * 1e6),
            rate(line.factor),
        ]);
    }
    format!(
        "300 requests in 512 pages, the median of {RUNS} runs\n{}\nMore and more requests of shared, in {}\n{}\n\
         Evicting a page\n{}",
        first.render(),
        count(pages, "page"),
        second.render(),
        third.render()
    )
}
