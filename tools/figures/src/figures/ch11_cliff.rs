//! Chapter 11: how many people are served on time, against how many arrive in a second.

use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::prefix_cache::PrefixCacheKind;
use page_by_page::serving::schedule::StepLimits;
use page_by_page::workload::arrivals::{LAYOUT, LatencyTarget, StepCost, poisson, simulate_arrivals};

use super::prelude::*;

const PEOPLE: usize = 300;
const RATES: std::ops::RangeInclusive<u32> = 1..=12;

/// As `cargo page workload serving --rate RATE` counts them by default, with the prefix cache or without.
fn on_time(rate: u32, prefix_cache: PrefixCacheKind) -> Result<(f64, f64)> {
    let (slab, limits) = (PageSlab::new(LAYOUT, 16, 128)?, StepLimits { token_budget: 256, max_running: 16 });
    let arrivals = poisson(rate.into(), 23, PEOPLE);
    let served = simulate_arrivals(&arrivals, &slab, prefix_cache.new_cache(16)?, limits, StepCost::BOOK, || ())?;
    let n = served.requests.iter().filter(|times| times.meets(LatencyTarget::BOOK)).count();
    Ok((rate.into(), n as f64))
}

pub fn figure() -> Result<Figure> {
    let line = |prefix_cache| RATES.map(|rate| on_time(rate, prefix_cache)).collect::<Result<Vec<_>>>();
    let (with, without) = (line(PrefixCacheKind::Trie)?, line(PrefixCacheKind::None)?);
    let at = |points: &[(f64, f64)], rate: u32| points[(rate - RATES.start()) as usize].1;
    let setup = format!(
        "{PEOPLE} simulated people, with <code>workload serving --rate</code> from {} to {}.",
        RATES.start(),
        RATES.end()
    );
    let chart = Chart {
        title: "people on time",
        across: "requests a second",
        ticks_across: &[0, 2, 4, 6, 8, 10, 12],
        ticks_up: &[0.0, 100.0, 200.0, 300.0],
        note: Some(((8.0, at(&with, 8)), format!("{} of {PEOPLE}", at(&with, 8)))),
        lines: vec![("with a prefix cache", with), ("without", without)],
        ..Chart::default()
    };
    Ok(chart.figure("Not a slope but a cliff, and the cache moves it.", setup))
}
