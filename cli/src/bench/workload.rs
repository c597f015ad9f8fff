//! `bench workload`: what the linear searches of chapter 11's prefix cache cost, at the size of a pool.

use std::hint::black_box;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::prefixes::Prefixes;

use super::{PAGE_SIZE, Report, Row, Times, turns};
use crate::output::rate;
use crate::require;

/// Measure what it costs to evict a page, and to count those that could be evicted, where more and more pages are held
///
/// Chapter 11 looks at every page for each page that it evicts, and the scheduler asks for the count at each admission.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page bench workload
  page-by-page bench workload --pages 1000,10000")]
pub struct Workload {
    /// Pages held, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1000,10000,100000")]
    pages: Vec<usize>,
}

const CALLS: usize = 10;
/// Turns, of which the median counts.
const TURNS: usize = 11;
const MOST_PAGES: u64 = 1_000_000;

impl Workload {
    pub fn run(self) -> Result<Report> {
        require::chapters(&[4, 5, 11])?;
        for pages in &self.pages {
            require::in_range(*pages as u64, MOST_PAGES, "--pages", "this benchmark")?;
        }
        let costs = self.pages.iter().map(|pages| cost(*pages)).collect::<Result<Vec<_>>>()?;
        Report::table(0, costs.len(), &costs)
    }
}

/// Fills the free pages with sequences of ten pages, and leaves them to the prefix cache.
fn fill(pool: &mut PagePool, prefixes: &mut PrefixCache, next: &mut u32) -> Result<()> {
    while pool.n_free() > 0 {
        let n_tokens = PAGE_SIZE * pool.n_free().min(10);
        let tokens: Vec<u32> = (*next..*next + n_tokens as u32).collect();
        *next += n_tokens as u32;
        let mut table = PageTable::new(PAGE_SIZE)?;
        table.grow(n_tokens, pool)?;
        prefixes.insert(&tokens, &mut table, pool)?;
        table.release(pool)?;
    }
    Ok(())
}

fn cost(pages_held: usize) -> Result<Row> {
    let (mut pool, mut prefixes, mut next) = (PagePool::new(pages_held)?, PrefixCache::new(PAGE_SIZE)?, 0);
    let (mut counting, mut evicting) = (Times::default(), Times::default());
    for _ in turns("evicting", TURNS..TURNS, Duration::ZERO) {
        fill(&mut pool, &mut prefixes, &mut next)?;
        counting.of(|| (0..CALLS).map(|_| black_box(prefixes.n_evictable(&pool))).max());
        evicting.of(|| (0..CALLS).try_for_each(|_| prefixes.evict(1, &mut pool).map(|_| ())))?;
    }
    let [count, evict] = [counting, evicting].map(|times| times.median() / CALLS as f64 * 1e6);
    Ok(Row::default().count("pages held", pages_held).cell("evict one, µs", evict, rate(evict)).cell(
        "count evictable, µs",
        count,
        rate(count),
    ))
}
