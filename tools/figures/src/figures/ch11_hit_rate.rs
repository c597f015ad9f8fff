//! Chapter 11: how much of the prompts is cached, against the size of the pool.

use anyhow::Result;
use page_by_page::experiments::prefixes::{Keep, Requests};
use page_by_page::workload::Trace;

use super::Figure;
use crate::chart::{Chart, line};
use crate::svg::Kind;

const POOLS: [usize; 13] = [50, 100, 110, 120, 130, 140, 160, 200, 250, 300, 350, 400, 500];
const LINES: [(Trace, Keep); 3] =
    [(Trace::Chats, Keep::TailsLonger), (Trace::Documents, Keep::TailsLonger), (Trace::Documents, Keep::HeadsFirst)];

/// All requests in a pool of one size: cached tokens, of 100 tokens of their prompts, to a tenth.
fn point(pages: usize) -> Result<Vec<f64>> {
    let percent = |(trace, keep)| {
        let counters = Requests::of(trace, keep).run(pages, || ())?;
        Ok((1000.0 * counters.hit_rate).round() / 10.0)
    };
    [Ok(pages as f64)].into_iter().chain(LINES.map(percent)).collect()
}

pub fn figure() -> Result<Figure> {
    let caption =
        "<strong>A cache that is only a little too small can be of no use at all.</strong> Page size 16; counted by the \
         code of <code>workload chats</code> and <code>workload documents</code>, the last line with <code>--evict heads</code>."
        .into();
    Ok(Chart {
        points: POOLS.into_iter().map(point).collect::<Result<_>>()?,
        title: "cached tokens, of 100 in prompts",
        across: "pages in the pool",
        x: "pages",
        ticks_across: &[0, 100, 200, 300, 400, 500],
        ticks_up: &[0, 25, 50, 75, 100],
        below: 6.0,
        lines: vec![
            line("% in chats", Kind::New, &["chats"], (375.0, 50.0, 0.0)),
            line("% in documents", Kind::Reused, &["documents,", "tails first"], (278.0, 72.0, 0.0)),
            line("% in documents with heads first", Kind::Wasted, &["documents,", "heads first"], (278.0, 8.0, 0.0)),
        ],
    }
    .figure(caption))
}
