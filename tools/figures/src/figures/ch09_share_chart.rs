//! Chapter 9: draft tokens accepted by the match rule and by the sample rule, and how many the latter should accept. The
//! stories are by `chapters::ch08_speculative` and `chapters::ch09_chance`, over caches that rewind by `chapters::ch07_rewind`.

use anyhow::{Context, Result, ensure};
use page_by_page::caches::{CacheKind, CacheSize};
use page_by_page::decode::drafting::{AcceptRule, DraftSource};
use page_by_page::experiments::PROMPTS;
use page_by_page::experiments::drafts::{Drafted, Drafts, Stories};

use super::Figure;
use crate::chart::Chart;
use crate::models::{DRAFT, STORYTELLER, model, tokenizer};

const LENGTHS: [usize; 6] = [1, 2, 3, 4, 6, 8];
const TEMPERATURE: f32 = 0.8;
const NEW_TOKENS: usize = 100;
/// Of each prompt, each with a seed of its own: so many that the shares of neighbours hardly overlap.
const SEQUENCES_EACH: usize = 4;
const PAGE_SIZE: usize = 16;

/// Generates all sequences with drafts of `k` tokens.
fn drafted(k: usize, accept: AcceptRule) -> Result<Drafted> {
    let (target, tokenizer) = (model(STORYTELLER)?, tokenizer()?);
    let prompts = PROMPTS.map(|prompt| tokenizer.encode(prompt)).into_iter().collect::<Result<Vec<_>, _>>()?;
    let prompts: Vec<Vec<u32>> = prompts.iter().cycle().take(PROMPTS.len() * SEQUENCES_EACH).cloned().collect();
    let longest = prompts.iter().map(Vec::len).max().context("no prompts")?;
    let size = CacheSize::for_tokens(longest + NEW_TOKENS, PAGE_SIZE)?;
    let source = &mut DraftSource::model(model(DRAFT)?, &target, CacheKind::Contiguous, size)?;
    let stories = Stories {
        target: &target,
        cache: CacheKind::Contiguous,
        prompts: &prompts,
        new_tokens: NEW_TOKENS,
        temperature: TEMPERATURE,
    };
    stories.generate(Some(Drafts { source, k, accept }))
}

pub fn figure() -> Result<Figure> {
    let share = |some: f64, all: u64| (100.0 * some / all as f64).round_ties_even();
    let [mut sampled, mut expected, mut matched] = [const { Vec::new() }; 3];
    // The longest of all recordings: 8 s of work in a debug build, shared by the processor's cores.
    let runs: Vec<Result<(Drafted, Drafted)>> = std::thread::scope(|scope| {
        let run = |k| scope.spawn(move || Ok((drafted(k, AcceptRule::Sample)?, drafted(k, AcceptRule::Match)?)));
        let running: Vec<_> = LENGTHS.map(run).into_iter().collect();
        running.into_iter().map(|run| run.join().expect("a panic has been printed")).collect()
    });
    for (k, run) in LENGTHS.into_iter().zip(runs) {
        let (sample, matching) = run?;
        let (k, all) = (k as f64, sample.counters.drafted);
        sampled.push((k, share(sample.counters.accepted as f64, all)));
        expected.push((k, share(sample.to_expect, all)));
        matched.push((k, share(matching.counters.accepted as f64, matching.counters.drafted)));
    }
    ensure!(sampled.iter().zip(&matched).all(|(one, other)| one.1 > other.1), "the sample rule accepts more");
    let chart = Chart {
        title: "draft tokens accepted",
        across: "draft tokens in a step, k",
        ticks_across: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        ticks_up: &[0, 20, 40, 60, 80],
        unit: "%",
        lines: vec![("sample rule", sampled), ("match rule", matched), ("expected", expected)],
        hollow: Some(2),
    };
    let message =
        "With these models at temperature 0.8, the sample rule accepts more draft tokens than the match rule.";
    let setup = format!(
        "Over {} sequences of {NEW_TOKENS} new tokens at temperature {TEMPERATURE}, top-p 0.95; <em>expected</em>, the circles, is what \
             <code>share_to_expect</code> returns for the sample rule.",
        PROMPTS.len() * SEQUENCES_EACH
    );
    Ok(chart.figure(message, setup))
}
