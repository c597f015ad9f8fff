//! Chapter 11: how much of the prompts is found, against the size of the pool.

use anyhow::Result;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::prefixes::chain::{Chain, FirstOut};
use page_by_page::workload::{PageCounters, Pages, Trace as Workload, run};
use serde::Serialize;

use crate::chart::{Chart, Dashes, Series};
use crate::fragment::Drawing;
use crate::svg::Kind;

const PAGE_SIZE: usize = 16;
const POOLS: [usize; 13] = [50, 100, 110, 120, 130, 140, 160, 200, 250, 300, 350, 400, 500];

#[derive(Serialize)]
pub struct Trace {
    page_size: usize,
    frames: Vec<Frame>,
}

/// All texts in a pool of one size: of 100 tokens of their prompts, so many were found.
#[derive(Serialize)]
struct Frame {
    pages: usize,
    chats: f64,
    documents: f64,
    /// With the chain, which then takes the first pages of a text before the last.
    documents_heads_first: f64,
}

pub fn record() -> Result<Trace> {
    let frames: Result<Vec<Frame>> = POOLS.into_iter().map(frame).collect();
    Ok(Trace { page_size: PAGE_SIZE, frames: frames? })
}

fn frame(pages: usize) -> Result<Frame> {
    let trie = |trace| -> Result<f64> {
        let mut memory = Pages::new(pages, PAGE_SIZE, Some(Box::new(PrefixCache::new(PAGE_SIZE)?)))?;
        let requests = trace_of(trace);
        Ok(percent(run(requests, trace.running(), &mut memory, || ())?))
    };
    let mut chain = Chain::new(pages, PAGE_SIZE, FirstOut::Heads)?;
    let heads = run(trace_of(Workload::Documents), Workload::Documents.running(), &mut chain, || ())?;
    Ok(Frame {
        pages,
        chats: trie(Workload::Chats)?,
        documents: trie(Workload::Documents)?,
        documents_heads_first: percent(heads),
    })
}

fn trace_of(trace: Workload) -> impl Iterator<Item = page_by_page::workload::Request> {
    trace.requests(trace.n_requests())
}

/// To a tenth, as `workload` prints it.
fn percent(counters: PageCounters) -> f64 {
    (1000.0 * counters.hit_rate).round() / 10.0
}

pub fn draw(trace: &Trace) -> Drawing {
    let frames = &trace.frames;
    let points = |value: fn(&Frame) -> f64| -> Vec<(usize, u64)> {
        frames.iter().map(|frame| (frame.pages, value(frame).round() as u64)).collect()
    };
    let chart = Chart {
        title: "tokens found, of 100 in prompts",
        across: "pages in the pool",
        ticks_across: &[0, 100, 200, 300, 400, 500],
        ticks_up: &[0, 25, 50, 75, 100],
        below: 6.0,
        series: vec![
            Series {
                points: points(|frame| frame.chats),
                kind: Kind::New,
                dashes: Dashes::None,
                labels: vec!["chats".into()],
                label_at: (375, 50, 0.0),
            },
            Series {
                points: points(|frame| frame.documents),
                kind: Kind::Reused,
                dashes: Dashes::Long,
                labels: vec!["documents,".into(), "tails first".into()],
                label_at: (278, 72, 0.0),
            },
            Series {
                points: points(|frame| frame.documents_heads_first),
                kind: Kind::Wasted,
                dashes: Dashes::Short,
                labels: vec!["documents,".into(), "heads first".into()],
                label_at: (278, 8, 0.0),
            },
        ],
    };
    let at = |pages| frames.iter().find(|frame| frame.pages == pages).unwrap_or(&frames[0]);
    let (small, middle, large) = (at(100), at(300), at(400));
    let tight = at(130);
    Drawing {
        svg: chart.svg(),
        label: format!(
            "Chart of the hit rate against the pages of the pool. Chats: {} percent with {} pages, {} with {}, {} with {}. \
             Documents with {} pages: {} percent if tails are evicted first, {} if heads are.",
            small.chats,
            small.pages,
            middle.chats,
            middle.pages,
            large.chats,
            large.pages,
            tight.pages,
            tight.documents,
            tight.documents_heads_first,
        ),
        caption: format!(
            "A cache that is a little too small can find as little as none at all. Page size {}; counted by the code of \
             <code>workload chats</code> and <code>workload documents</code>, the last line with <code>--evict heads</code>.",
            trace.page_size
        ),
        steps: frames
            .iter()
            .map(|frame| {
                format!(
                    "{} pages: chats {:.1} %, documents {:.1} %, heads first {:.1} %.",
                    frame.pages, frame.chats, frame.documents, frame.documents_heads_first
                )
            })
            .collect(),
    }
}
