//! Chapter 9: draft tokens accepted by the match rule and by the sample rule, and how many the latter should accept.
//! The stories are by `chapters::ch08_speculative` and `chapters::ch09_rejection`, over caches that rewind by
//! `chapters::ch07_rewind`.

use page_by_page::experiments::PROMPTS;
use page_by_page::experiments::drafts::{Bundled, Drafted};
use page_by_page::generation::drafting::AcceptRule;

use super::prelude::*;

const LENGTHS: [usize; 6] = [1, 2, 3, 4, 6, 8];
const TEMPERATURE: f32 = 0.8;
/// Of each prompt, each with a seed of its own: so many that the shares of neighbours hardly overlap.
const SEQUENCES_EACH: usize = 4;

/// Generates all sequences with drafts of `k` tokens.
fn drafted(k: usize, accept: AcceptRule) -> Result<Drafted> {
    let mut models = Bundled::open()?;
    models.prompts = vec![models.prompts; SEQUENCES_EACH].concat();
    models.stories(TEMPERATURE, k, accept)
}

/// Of 100 draft tokens in drafts of `k`: those that the sample rule accepts, those that the match rule accepts, and
/// those that the sample rule should accept.
fn shares(k: usize) -> Result<[f64; 3]> {
    let [sample, matching] = [drafted(k, AcceptRule::Sample)?, drafted(k, AcceptRule::Match)?];
    let share = |some: f64, of: &Drafted| (100.0 * some / of.counters.drafted as f64).round_ties_even();
    let accepted = |of: &Drafted| share(of.counters.accepted as f64, of);
    Ok([accepted(&sample), accepted(&matching), share(sample.to_expect, &sample)])
}

pub fn figure() -> Result<Figure> {
    // The longest of all recordings: 8 s of work in a debug build, shared by the processor's cores.
    let shares: Vec<[f64; 3]> = std::thread::scope(|scope| {
        let running = LENGTHS.map(|k| scope.spawn(move || shares(k)));
        running.into_iter().map(|run| run.join().expect("a panic has been printed")).collect::<Result<_>>()
    })?;
    ensure!(shares.iter().all(|[sampled, matched, _]| sampled > matched), "the sample rule accepts more");
    let line = |column: usize| LENGTHS.iter().zip(&shares).map(|(k, shares)| (*k as f64, shares[column])).collect();
    let chart = Chart {
        title: "draft tokens accepted",
        across: "draft tokens in a step, k",
        ticks_across: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        ticks_up: &[0, 20, 40, 60, 80],
        unit: "%",
        lines: vec![("sample rule", line(0)), ("match rule", line(1)), ("expected", line(2))],
        hollow: Some(2),
        ..Chart::default()
    };
    let headline =
        "With these models at temperature 0.8, the sample rule accepts more draft tokens than the match rule.";
    let (n, new_tokens) = (PROMPTS.len() * SEQUENCES_EACH, Bundled::NEW_TOKENS);
    let setup = format!(
        "Over {n} sequences of {new_tokens} new tokens at temperature {TEMPERATURE}, top-p 0.95; <em>expected</em>, \
             the circles, is what <code>expected_acceptance</code> returns for the sample rule."
    );
    Ok(chart.figure(headline, setup))
}
