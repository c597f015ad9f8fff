//! Chapter 1: rows projected for <em>n</em> new tokens, without a cache and with one.

use anyhow::Result;
use page_by_page::chapters::ch01_recompute::Recompute;
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::decode::Cached;
use page_by_page::model::Model;
use serde::Serialize;

use crate::chart::{Chart, Dashes, Series};
use crate::fragment::Drawing;
use crate::runs::{bundled, write_tokens};
use crate::svg::{Kind, grouped};

const MODEL: &str = "storyteller-draft";
const LENGTHS: [usize; 9] = [1, 32, 64, 96, 128, 160, 192, 224, 256];

#[derive(Serialize)]
pub struct Trace {
    model: &'static str,
    frames: Vec<Frame>,
}

/// One text, from a prompt of one token.
#[derive(Serialize)]
struct Frame {
    new_tokens: usize,
    /// Rows projected without a cache.
    recompute: u64,
    /// Rows projected with a cache.
    cached: u64,
}

pub fn record() -> Result<Trace> {
    let model = Model::open(&bundled(MODEL))?;
    let mut frames = Vec::new();
    for new_tokens in LENGTHS {
        let mut recompute = Recompute::new(&model);
        write_tokens(&mut recompute, new_tokens)?;
        let mut cache = FlatCache::new(model.config().kv_layout());
        let mut cached = Cached::new(&model, &mut cache);
        write_tokens(&mut cached, new_tokens)?;
        frames.push(Frame { new_tokens, recompute: recompute.rows_projected(), cached: cached.rows_projected() });
    }
    Ok(Trace { model: MODEL, frames })
}

pub fn draw(trace: &Trace) -> Drawing {
    let frames = &trace.frames;
    let last = &frames[frames.len() - 1];
    let (n, recompute, cached) = (last.new_tokens, grouped(last.recompute), grouped(last.cached));
    let series = |value: fn(&Frame) -> u64| frames.iter().map(|frame| (frame.new_tokens, value(frame))).collect();
    let chart = Chart {
        title: "rows projected",
        across: "new tokens, n",
        ticks_across: &[0, 64, 128, 192, 256],
        ticks_up: &[0, 10_000, 20_000, 30_000],
        below: 0.0,
        series: vec![
            Series {
                points: series(|frame| frame.recompute),
                kind: Kind::Wasted,
                dashes: Dashes::None,
                labels: vec!["recompute:".into(), "n(n+1)/2".into()],
                label_at: (188, 20_500, 0.0),
            },
            Series {
                points: series(|frame| frame.cached),
                kind: Kind::New,
                dashes: Dashes::Long,
                labels: vec!["with a cache: n".into()],
                label_at: (256, 256, -8.0),
            },
        ],
    };
    Drawing {
        svg: chart.svg(),
        label: format!(
            "Chart of rows projected against new tokens. Without a cache the line bends upwards to {recompute} rows \
             for {n} tokens; with a cache it stays along the bottom, at {cached} rows."
        ),
        caption: format!(
            "Rows projected for <em>n</em> new tokens after a prompt of one. At <em>n</em> = {n}: {recompute} \
             without a cache, {cached} with one. Counted by <code>Recompute</code> and <code>Cached</code> with the \
             bundled draft model."
        ),
        steps: (frames.iter())
            .map(|frame| {
                let (recompute, cached) = (grouped(frame.recompute), grouped(frame.cached));
                format!("<em>n</em> = {}: {recompute} without a cache, {cached} with one.", frame.new_tokens)
            })
            .collect(),
    }
}
