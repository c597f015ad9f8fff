//! Chapter 8: longer drafts: passes of the target, and draft tokens accepted.

use anyhow::{Result, ensure};
use page_by_page::decode::drafting::AcceptRule;
use page_by_page::experiments::PROMPTS;
use page_by_page::experiments::drafts::Bundled;

use super::Figure;
use crate::chart::{Chart, line};
use crate::svg::Kind;

pub const LONGEST: usize = 8;

/// Of 100. Halves go to the even number, as in the table of `bench speculation`.
pub fn per_100(some: f64, all: u64) -> f64 {
    (100.0 * some / all as f64).round_ties_even()
}

/// How the drafts of both charts were made.
pub fn made() -> String {
    format!(
        "Counted for {} sequences of {} new tokens with <code>storyteller</code> as target and <code>storyteller-draft</code> as \
         draft model",
        PROMPTS.len(),
        Bundled::NEW_TOKENS
    )
}

pub fn figure() -> Result<Figure> {
    let mut models = Bundled::open()?;
    let mut point = |k| {
        let counts = models.stories(0.0, k, AcceptRule::Match)?.counters;
        let is_whole = counts.target_passes + counts.accepted == counts.generated;
        ensure!(is_whole, "a pass gives one token more than it accepts");
        let mut point = vec![k as f64, per_100(counts.target_passes as f64, counts.generated)];
        if k > 0 {
            point.push(per_100(counts.accepted as f64, counts.drafted));
        }
        Ok(point)
    };
    let points: Vec<Vec<f64>> = (0..=LONGEST).map(&mut point).collect::<Result<_>>()?;
    let accepted = points[1][2];
    Ok(Chart {
        points,
        title: "for every 100",
        across: "draft tokens, k",
        x: "<em>k</em>",
        ticks_across: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        ticks_up: &[0, 25, 50, 75, 100],
        below: 0.0,
        lines: vec![
            line("passes of the target for 100 new tokens", Kind::New, &["passes of the target", "for 100 new tokens"], (8.0, 0.0, -14.0)),
            line("of 100 draft tokens accepted", Kind::Wasted, &["accepted", "of 100 draft tokens"], (8.0, accepted, 14.0)),
        ],
    }
    .figure(format!(
        "<strong>The first draft token gains most, since each further one is right only if all before it were.</strong> {}, greedy.",
        made()
    )))
}
