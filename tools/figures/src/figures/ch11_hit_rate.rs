//! Chapter 11: how much of the prompts is cached, against the size of the pool of `chapters::ch11_prefix_cache`.

use page_by_page::experiments::prefixes::replay;
use page_by_page::prefix_cache::{EvictionOrder, PrefixCacheKind};
use page_by_page::workload::Trace;

use super::prelude::*;

const POOLS: [usize; 13] = [50, 100, 105, 110, 115, 120, 125, 130, 135, 140, 160, 180, 200];
const LINES: [(Trace, PrefixCacheKind); 3] = [
    (Trace::Chats, PrefixCacheKind::Trie),
    (Trace::Documents, PrefixCacheKind::Trie),
    (Trace::Documents, PrefixCacheKind::HashChain(EvictionOrder::HeadsFirst)),
];

/// All requests in a pool of one size: cached tokens, of 100 tokens of their prompts, to a tenth.
fn point(pages: usize) -> Result<Vec<f64>> {
    let percent = |(trace, cache)| Ok((1000.0 * replay(trace, pages, cache)?.hit_rate).round() / 10.0);
    [Ok(pages as f64)].into_iter().chain(LINES.map(percent)).collect()
}

pub fn figure() -> Result<Figure> {
    let points: Vec<Vec<f64>> = POOLS.into_iter().map(point).collect::<Result<_>>()?;
    let line = |column: usize| points.iter().map(|point| (point[0], point[column])).collect();
    let chart = Chart {
        title: "cached tokens of the prompts",
        across: "pages in the pool",
        ticks_across: &[0, 50, 100, 150, 200],
        ticks_up: &[0.0, 25.0, 50.0, 75.0, 100.0],
        unit: "%",
        lines: vec![("chats", line(1)), ("documents", line(2)), ("documents, heads first", line(3))],
        ..Chart::default()
    };
    let headline = "When a cache is slightly too small, its eviction order decides how much it helps.";
    let setup = "Two workloads, <code>chats</code> and <code>documents</code>, in pages of 16 slots. Dotted: a \
                 sequence\u{2019}s first page is evicted first (<code>--evict heads</code>)."
        .into();
    Ok(chart.figure(headline, setup))
}
