//! Chapter 1: rows projected for *n* new tokens, without a cache and with one.

use anyhow::Result;
use page_by_page::chapters::ch01_recompute::{Recompute, generate};
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::decode::{Cached, LanguageModel, Limits};

use super::Figure;
use crate::chart::{Chart, line};
use crate::models::{DRAFT, model};
use crate::svg::Kind;
use crate::words::grouped;

const LENGTHS: [usize; 9] = [1, 32, 64, 96, 128, 160, 192, 224, 256];

/// Lets a model generate `n` tokens after a prompt of one, by the loop of chapter 1. Which tokens does not matter.
pub fn generate_any(model: &mut dyn LanguageModel, n: usize) -> Result<()> {
    let limits = Limits { max_new_tokens: n, end_of_text: &[] };
    generate(model, &[0], limits, &mut |_| 1, &mut |_| {})?;
    Ok(())
}

fn record() -> Result<Vec<[u64; 3]>> {
    let model = model(DRAFT)?;
    let frame = |new_tokens| {
        let mut recompute = Recompute::new(&model);
        generate_any(&mut recompute, new_tokens)?;
        let mut cache = FlatCache::new(model.config().kv_layout());
        let mut cached = Cached::new(&model, &mut cache);
        generate_any(&mut cached, new_tokens)?;
        Ok([new_tokens as u64, recompute.rows_projected(), cached.rows_projected()])
    };
    LENGTHS.into_iter().map(frame).collect()
}

pub fn figure() -> Result<Figure> {
    let points = record()?;
    let [n, recompute, cached] = points[points.len() - 1].map(grouped);
    let caption = format!(
        "<strong>Without a cache, the work grows with the square of the length.</strong> For {n} new tokens after a prompt of \
         one, {recompute} rows are projected without a cache and {cached} with one. Counted by <code>Recompute</code> and \
         <code>Cached</code> with the bundled draft model."
    );
    Ok(Chart {
        points: points.iter().map(|point| point.map(|n| n as f64).to_vec()).collect(),
        title: "rows projected",
        across: "new tokens, n",
        x: "<em>n</em>",
        ticks_across: &[0, 64, 128, 192, 256],
        ticks_up: &[0, 10_000, 20_000, 30_000],
        below: 0.0,
        lines: vec![
            line("rows without a cache", Kind::Wasted, &["recompute:", "n(n+1)/2"], (188.0, 20_500.0, 0.0)),
            line("with one", Kind::New, &["with a cache: n"], (256.0, 256.0, -8.0)),
        ],
    }
    .figure(caption))
}
