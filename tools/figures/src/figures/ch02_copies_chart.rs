//! Chapters 2 and 3: rows projected and rows copied, by a cache that grows and by one that is reserved.

use anyhow::Result;
use page_by_page::cache::Rewind;
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::decode::Cached;
use page_by_page::model::Model;
use serde::Serialize;

use crate::chart::{Chart, Dashes, Series};
use crate::fragment::Drawing;
use crate::runs::{bundled, write_tokens};
use crate::svg::{Kind, grouped};

const MODEL: &str = "storyteller-draft";
const LENGTHS: [usize; 9] = [1, 4, 8, 12, 16, 20, 24, 28, 32];

#[derive(Serialize)]
pub struct Trace {
    model: &'static str,
    frames: Vec<Frame>,
}

/// One text, from a prompt of one token.
#[derive(Serialize)]
struct Frame {
    new_tokens: usize,
    flat: Counts,
    contiguous: Counts,
}

#[derive(Serialize)]
struct Counts {
    rows_projected: u64,
    rows_copied: u64,
}

pub fn record() -> Result<Trace> {
    let model = Model::open(&bundled(MODEL))?;
    let layout = model.config().kv_layout();
    let mut frames = Vec::new();
    for new_tokens in LENGTHS {
        frames.push(Frame {
            new_tokens,
            flat: counts(&model, &mut FlatCache::new(layout), new_tokens)?,
            contiguous: counts(&model, &mut ContiguousCache::new(layout, new_tokens), new_tokens)?,
        });
    }
    Ok(Trace { model: MODEL, frames })
}

fn counts(model: &Model, cache: &mut dyn Rewind, new_tokens: usize) -> Result<Counts> {
    let mut cached = Cached::new(model, cache);
    write_tokens(&mut cached, new_tokens)?;
    let rows_projected = cached.rows_projected();
    Ok(Counts { rows_projected, rows_copied: cache.usage().rows_copied })
}

pub fn draw(trace: &Trace) -> Drawing {
    let frames = &trace.frames;
    let last = &frames[frames.len() - 1];
    let (n, flat, contiguous) = (last.new_tokens, &last.flat, &last.contiguous);
    let series = |value: fn(&Frame) -> u64| frames.iter().map(|frame| (frame.new_tokens, value(frame))).collect();
    let chart = Chart {
        title: "rows",
        across: "new tokens, n",
        ticks_across: &[0, 8, 16, 24, 32],
        ticks_up: &[0, 100, 200, 300, 400, 500],
        below: 28.0,
        series: vec![
            Series {
                points: series(|frame| frame.flat.rows_copied),
                kind: Kind::Wasted,
                dashes: Dashes::None,
                labels: vec!["copied, flat:".into(), "n(n−1)/2".into()],
                label_at: (23, 290, 0.0),
            },
            Series {
                points: series(|frame| frame.flat.rows_projected),
                kind: Kind::New,
                dashes: Dashes::Long,
                labels: vec!["projected, both: n".into()],
                label_at: (32, 32, -8.0),
            },
            Series {
                points: series(|frame| frame.contiguous.rows_copied),
                kind: Kind::Reused,
                dashes: Dashes::Short,
                labels: vec!["copied, contiguous: 0".into()],
                label_at: (32, 0, 19.0),
            },
        ],
    };
    Drawing {
        svg: chart.svg(),
        label: format!(
            "Chart of rows against new tokens. Rows copied by the flat cache bend upwards to {} for {n} tokens; rows \
             projected rise in a straight line to {}; rows copied by the contiguous cache stay at {}.",
            flat.rows_copied, flat.rows_projected, contiguous.rows_copied
        ),
        caption: format!(
            "Rows for <em>n</em> new tokens after a prompt of one. At <em>n</em> = {n} both caches project {} rows; \
             the flat one copies {}, the contiguous one of chapter 3 copies {}. Counted by <code>Cached</code> and \
             <code>usage</code> with the bundled draft model.",
            flat.rows_projected, flat.rows_copied, contiguous.rows_copied
        ),
        steps: frames.iter().map(step_text).collect(),
    }
}

fn step_text(frame: &Frame) -> String {
    let counts = |counts: &Counts| {
        format!("projected {}, copied {}", grouped(counts.rows_projected), grouped(counts.rows_copied))
    };
    let (flat, contiguous) = (counts(&frame.flat), counts(&frame.contiguous));
    format!("<em>n</em> = {}: flat {flat}; contiguous {contiguous}.", frame.new_tokens)
}
