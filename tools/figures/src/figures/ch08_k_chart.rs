//! Chapter 8: longer drafts: passes of the target, and draft tokens accepted.

use anyhow::{Result, ensure};
use page_by_page::decode::drafting::AcceptRule;
use page_by_page::experiments::PROMPTS;
use page_by_page::experiments::drafts::Bundled;

use super::Figure;
use crate::chart::Chart;

const LONGEST: usize = 8;

pub fn figure() -> Result<Figure> {
    let mut models = Bundled::open()?;
    let (mut passes, mut accepted) = (Vec::new(), Vec::new());
    for k in 0..=LONGEST {
        let counts = models.stories(0.0, k, AcceptRule::Match)?.counters;
        let is_whole = counts.target_passes + counts.accepted == counts.generated;
        ensure!(is_whole, "a pass gives one token more than it accepts");
        // Halves go to the even number, as in the table of `bench speculation`.
        let per_100 = |some: u64, all: u64| (100.0 * some as f64 / all as f64).round_ties_even();
        passes.push((k as f64, per_100(counts.target_passes, counts.generated)));
        if k > 0 {
            accepted.push((k as f64, per_100(counts.accepted, counts.drafted)));
        }
    }
    let chart = |title, unit, line: &[(f64, f64)]| Chart {
        title,
        across: "draft tokens in a step, k",
        ticks_across: &[0, 2, 4, 6, 8],
        ticks_up: &[0, 25, 50, 75, 100],
        unit,
        lines: vec![("all", line.to_vec())],
    };
    let charts =
        [chart("target passes for 100 new tokens", "", &passes), chart("draft tokens accepted", "%", &accepted)];
    let figure = Figure {
        label: charts.each_ref().map(Chart::label).join(" "),
        message: "The first draft token gains most, because each further one is right only if all before it were."
            .into(),
        setup: format!(
            "Over {} sequences of {} new tokens each, greedy, from the bundled models.",
            PROMPTS.len(),
            Bundled::NEW_TOKENS
        ),
        ..Figure::default()
    };
    Ok(figure.still(|picture| picture.beside(2, |picture, n| charts[n].draw(picture))))
}
