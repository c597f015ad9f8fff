//! Chapter 1: tokens computed for *n* new tokens, without a cache and with one.

use page_by_page::chapters::ch01_recompute::{Recompute, generate};
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::generation::{CachedModel, LanguageModel, StopConditions};

use super::prelude::*;

/// As in the page's story.
const PROMPT: usize = 5;
const LENGTHS: [usize; 9] = [1, 25, 50, 75, 100, 125, 150, 175, 200];

/// Rows that chapter 1 projects for `n` tokens after a prompt, and those that the flat cache lets the model project and
/// copies. Which tokens does not matter.
pub fn counted(prompt: usize, n: usize) -> Result<[u64; 3]> {
    let model = model(DRAFT)?;
    let run = |model: &mut dyn LanguageModel| {
        let stop = StopConditions { max_new_tokens: n, end_of_text: &[] };
        generate(model, &vec![0; prompt], stop, &mut |_| 1, &mut |_| {})
    };
    let mut recompute = Recompute::new(&model);
    run(&mut recompute)?;
    let mut cache = FlatCache::new(model.config().kv_layout());
    let mut cached = CachedModel::new(&model, &mut cache);
    run(&mut cached)?;
    let computed = cached.tokens_computed();
    Ok([recompute.tokens_computed(), computed, cache.usage().tokens_copied])
}

pub fn figure() -> Result<Figure> {
    let counts = LENGTHS.into_iter().map(|n| counted(PROMPT, n)).collect::<Result<Vec<_>>>()?;
    let [recompute, cached, _] = counts[counts.len() - 1];
    let n = LENGTHS[LENGTHS.len() - 1];
    let last_word = recompute - counted(PROMPT, n - 1)?[0];
    ensure!(last_word == cached, "the last word alone costs what the story costs with a cache");
    let line = |column: usize| LENGTHS.iter().zip(&counts).map(|(n, rows)| (*n as f64, rows[column] as f64)).collect();
    let ends = [("without a cache", recompute), ("with a cache", cached)]
        .map(|(name, tokens)| format!("{name}: {}", grouped(tokens)));
    let chart = Chart {
        title: "tokens computed",
        across: "new tokens, n",
        ticks_across: &[0, 50, 100, 150, 200],
        ticks_up: &[0, 5_000, 10_000, 15_000, 20_000],
        lines: vec![(&ends[0], line(0)), (&ends[1], line(1))],
        ..Chart::default()
    };
    let headline =
        format!("Without a cache, {cached} tokens are computed for the last word; with one, for the whole story.");
    Ok(chart.figure(&headline, format!("Up to {n} new tokens after a prompt of {PROMPT}.")))
}
