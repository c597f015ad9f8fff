//! Chapter 1: rows projected for *n* new tokens, without a cache and with one.

use anyhow::Result;
use page_by_page::chapters::ch01_recompute::{Recompute, generate};
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::decode::{Cached, LanguageModel, Limits};

use super::Figure;
use crate::chart::Chart;
use crate::models::{DRAFT, model};
use crate::words::grouped;

const LENGTHS: [usize; 9] = [1, 32, 64, 96, 128, 160, 192, 224, 256];

/// Lets a model generate `n` tokens after a prompt, by the loop of chapter 1. Which tokens does not matter.
pub fn generate_any(model: &mut dyn LanguageModel, prompt: usize, n: usize) -> Result<()> {
    let limits = Limits { max_new_tokens: n, end_of_text: &[] };
    generate(model, &vec![0; prompt], limits, &mut |_| 1, &mut |_| {})?;
    Ok(())
}

fn record() -> Result<Vec<[u64; 3]>> {
    let model = model(DRAFT)?;
    let frame = |new_tokens| {
        let mut recompute = Recompute::new(&model);
        generate_any(&mut recompute, 1, new_tokens)?;
        let mut cache = FlatCache::new(model.config().kv_layout());
        let mut cached = Cached::new(&model, &mut cache);
        generate_any(&mut cached, 1, new_tokens)?;
        Ok([new_tokens as u64, recompute.rows_projected(), cached.rows_projected()])
    };
    LENGTHS.into_iter().map(frame).collect()
}

pub fn figure() -> Result<Figure> {
    let points = record()?;
    let [n, recompute, cached] = points[points.len() - 1].map(grouped);
    let line = |column: usize| points.iter().map(|point| (point[0] as f64, point[column] as f64)).collect();
    let chart = Chart {
        title: "rows projected",
        across: "new tokens, n",
        ticks_across: &[0, 64, 128, 192, 256],
        ticks_up: &[0, 10_000, 20_000, 30_000],
        unit: "",
        lines: vec![("without a cache: n(n+1)/2", line(1)), ("with a cache: n", line(2))],
        hollow: None,
    };
    let message = "Without a cache, the work grows with the square of the length.";
    let setup = format!(
        "For {n} new tokens after a prompt of one, the model projects {recompute} rows without a cache and {cached} with one."
    );
    Ok(chart.figure(message, setup))
}
