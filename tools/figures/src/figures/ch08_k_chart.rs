//! Chapter 8: longer drafts, and passes of the target. The stories are by `chapters::ch08_speculative` and
//! `chapters::ch09_rejection`, over caches that rewind by `chapters::ch07_rewind`.

use page_by_page::experiments::PROMPTS;
use page_by_page::experiments::drafts::Bundled;
use page_by_page::generation::drafting::AcceptRule;

use super::prelude::*;

const MAX_K: usize = 8;
/// Longer drafts gain little.
const KNEE: usize = 2;
/// Draft tokens, and what `bench speculation` says that it takes to verify them and to make them, for each pass, in
/// times of a token without drafts: the page's table.
const COSTS: [(usize, f64, f64); 3] = [(0, 1.0, 0.0), (2, 1.5, 0.6), (4, 2.3, 1.0)];

pub fn figure() -> Result<Figure> {
    let mut models = Bundled::open()?;
    let mut passes = Vec::new();
    for k in 0..=MAX_K {
        let counts = models.stories(0.0, k, AcceptRule::Match)?.counters;
        let is_whole = counts.target_passes + counts.accepted == counts.generated;
        ensure!(is_whole, "a pass gives one token more than it accepts");
        // Halves go to the even number, as in the table of `bench speculation`.
        let per_100 = (100.0 * counts.target_passes as f64 / counts.generated as f64).round_ties_even();
        passes.push((k as f64, per_100));
    }
    let knee = passes[KNEE];
    let times = COSTS.map(|(k, verify, draft)| (k as f64, (passes[k].1 * (verify + draft)).round()));
    let chart = Chart {
        title: "for 100 new tokens, in passes over one token",
        across: "draft tokens in a step, k",
        ticks_across: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        ticks_up: &[0, 25, 50, 75, 100, 125],
        lines: vec![("passes", passes), ("time", times.into())],
        note: Some((knee, format!("k = {KNEE}: {} passes", knee.1))),
        ..Chart::default()
    };
    let headline = "Longer drafts save passes and cost time: each further draft token counts only if all before it were \
                   right, and its pass is paid for anyway.";
    let (n, new_tokens) = (PROMPTS.len(), Bundled::NEW_TOKENS);
    let setup = format!(
        "Over {n} sequences of {new_tokens} new tokens each, greedy, from the bundled models. The time is calculated."
    );
    Ok(chart.figure(headline, setup))
}
