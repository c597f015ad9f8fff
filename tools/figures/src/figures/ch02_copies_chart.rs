//! Chapters 2 and 3: rows projected and rows copied, by a cache that grows and by one that is reserved.

use anyhow::Result;
use page_by_page::cache::Rewind;
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::decode::Cached;

use super::Figure;
use super::ch01_rows_chart::generate_any;
use crate::chart::Chart;
use crate::models::{DRAFT, model};

const LENGTHS: [usize; 9] = [1, 4, 8, 12, 16, 20, 24, 28, 32];

fn record() -> Result<Vec<[u64; 4]>> {
    let model = model(DRAFT)?;
    let layout = model.config().kv_layout();
    let counts = |cache: &mut dyn Rewind, new_tokens| -> Result<(u64, u64)> {
        let mut cached = Cached::new(&model, cache);
        generate_any(&mut cached, new_tokens)?;
        let projected = cached.rows_projected();
        Ok((projected, cache.usage().rows_copied))
    };
    let frame = |new_tokens| {
        let (projected, flat) = counts(&mut FlatCache::new(layout), new_tokens)?;
        let (too, contiguous) = counts(&mut ContiguousCache::new(layout, new_tokens), new_tokens)?;
        anyhow::ensure!(projected == too, "the caches make the model project {projected} and {too} rows");
        Ok([new_tokens as u64, flat, projected, contiguous])
    };
    LENGTHS.into_iter().map(frame).collect()
}

pub fn figure() -> Result<Figure> {
    let points = record()?;
    let [n, flat, projected, contiguous] = points[points.len() - 1];
    let line = |column: usize| points.iter().map(|point| (point[0] as f64, point[column] as f64)).collect();
    let chart = Chart {
        title: "rows",
        across: "new tokens, n",
        ticks_across: &[0, 8, 16, 24, 32],
        ticks_up: &[0, 100, 200, 300, 400, 500],
        unit: "",
        lines: vec![
            ("copied, flat: n(n−1)/2", line(1)),
            ("projected, both: n", line(2)),
            ("copied, contiguous: 0", line(3)),
        ],
    };
    let message = "A cache that grows by copying only moves the square elsewhere.";
    let setup = format!(
        "For {n} new tokens after a prompt of one, both caches project {projected} rows; the flat cache copies {flat}, and the \
             contiguous cache of chapter 3 copies {contiguous}."
    );
    Ok(chart.figure(message, setup))
}
