//! Chapter 5: slots that stay empty in a sequence's last page, against the page size.

use anyhow::Result;
use page_by_page::cache::Usage;
use page_by_page::experiments::memory::in_tables;

use super::Figure;
use crate::chart::Chart;
use crate::words::grouped;

const PAGE_SIZES: [usize; 9] = [1, 8, 16, 32, 48, 64, 80, 96, 128];
/// One sequence of each length up to this.
const LONGEST: usize = 1024;

fn point(page_size: usize) -> Result<Vec<f64>> {
    let empty: Vec<usize> = in_tables(page_size, 1..=LONGEST)?.iter().map(Usage::wasted).collect();
    let most = empty.iter().max().copied().unwrap_or(0);
    Ok(vec![page_size as f64, most as f64, empty.iter().sum::<usize>() as f64 / LONGEST as f64])
}

pub fn figure() -> Result<Figure> {
    let points: Vec<Vec<f64>> = PAGE_SIZES.into_iter().map(point).collect::<Result<_, _>>()?;
    let line = |column: usize| points.iter().map(|point| (point[0], point[column])).collect();
    let chart = Chart {
        title: "empty slots",
        across: "page size",
        ticks_across: &[0, 16, 32, 64, 96, 128],
        ticks_up: &[0, 32, 64, 96, 128],
        unit: "",
        lines: vec![("at most", line(1)), ("on average", line(2))],
    };
    let message = "On average, half a page stays empty at the end of a sequence.";
    let setup = format!("Over one sequence of each length from 1 to {} tokens.", grouped(LONGEST as u64));
    Ok(chart.figure(message, setup))
}
