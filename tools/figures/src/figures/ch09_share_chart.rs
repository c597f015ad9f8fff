//! Chapter 9: passes of the target over the length of a draft, by the match rule and by the sample rule. The stories are
//! by `chapters::ch08_speculative` and `chapters::ch09_rejection`, over caches that rewind by `chapters::ch07_rewind`.

use page_by_page::experiments::PROMPTS;
use page_by_page::experiments::drafts::Bundled;
use page_by_page::generation::drafting::AcceptRule;

use super::prelude::*;

const LONGEST: usize = 8;
const TEMPERATURE: f32 = 0.8;
const RULES: [(AcceptRule, &str); 2] = [(AcceptRule::Sample, "sample rule"), (AcceptRule::Match, "match rule")];

/// Passes for a token, with drafts of each length.
fn passes(rule: AcceptRule) -> Result<Vec<(f64, f64)>> {
    let mut models = Bundled::open()?;
    let per_token = |k| {
        let counts = models.stories(TEMPERATURE, k, rule)?.counters;
        let per_100 = 100.0 * counts.target_passes as f64 / counts.new_tokens as f64;
        Ok((k as f64, per_100.round_ties_even() / 100.0))
    };
    (0..=LONGEST).map(per_token).collect()
}

pub fn figure() -> Result<Figure> {
    let lines: Vec<Vec<(f64, f64)>> = std::thread::scope(|scope| {
        let running = RULES.map(|(rule, _)| scope.spawn(move || passes(rule)));
        running.into_iter().map(|run| run.join().expect("a panic has been printed")).collect::<Result<_>>()
    })?;
    let names: Vec<String> =
        RULES.iter().zip(&lines).map(|((_, name), line)| format!("{name}: {:.2}", line[LONGEST].1)).collect();
    let chart = Chart {
        title: "passes of the target per token",
        across: "draft tokens in a step, k",
        ticks_across: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        ticks_up: &[0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2],
        note: Some((lines[0][0], "1.00 without drafts".into())),
        lines: names.iter().map(String::as_str).zip(lines).collect(),
        ..Chart::default()
    };
    let headline = "With drafts of every length up to eight, the sample rule needs fewer passes.";
    let setup = format!(
        "The table\u{2019}s {} stories, {} new tokens each, at temperature {TEMPERATURE}. So few stories make a bumpy line.",
        PROMPTS.len(),
        Bundled::NEW_TOKENS
    );
    Ok(chart.figure(headline, setup))
}
