//! Chapter 1: rows projected for *n* new tokens, without a cache and with one.

use page_by_page::chapters::ch01_recompute::{Recompute, generate};
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::generation::{CachedModel, LanguageModel, Limits};

use super::prelude::*;

const LENGTHS: [usize; 9] = [1, 32, 64, 96, 128, 160, 192, 224, 256];

/// Rows that chapter 1 projects for `n` tokens after a prompt, and those that the flat cache lets the model project and
/// copies. Which tokens does not matter.
pub fn counted(prompt: usize, n: usize) -> Result<[u64; 3]> {
    let model = model(DRAFT)?;
    let run = |model: &mut dyn LanguageModel| {
        let limits = Limits { max_new_tokens: n, end_of_text: &[] };
        generate(model, &vec![0; prompt], limits, &mut |_| 1, &mut |_| {})
    };
    let mut recompute = Recompute::new(&model);
    run(&mut recompute)?;
    let mut cache = FlatCache::new(model.config().kv_layout());
    let mut cached = CachedModel::new(&model, &mut cache);
    run(&mut cached)?;
    let projected = cached.rows_projected();
    Ok([recompute.rows_projected(), projected, cache.usage().rows_copied])
}

pub fn figure() -> Result<Figure> {
    let counts = LENGTHS.into_iter().map(|n| counted(1, n)).collect::<Result<Vec<_>>>()?;
    let [recompute, cached, _] = counts[counts.len() - 1].map(grouped);
    let n = LENGTHS[LENGTHS.len() - 1];
    let line = |column: usize| LENGTHS.iter().zip(&counts).map(|(n, rows)| (*n as f64, rows[column] as f64)).collect();
    let chart = Chart {
        title: "rows projected",
        across: "new tokens, n",
        ticks_across: &[0, 64, 128, 192, 256],
        ticks_up: &[0, 10_000, 20_000, 30_000],
        lines: vec![("without a cache: n(n+1)/2", line(0)), ("with a cache: n", line(1))],
        ..Chart::default()
    };
    let message = "Without a cache, the work grows with the square of the length.";
    let setup = format!(
        "For {n} new tokens after a prompt of one, the model projects {recompute} rows without a cache and {cached} \
         with one."
    );
    Ok(chart.figure(message, setup))
}
