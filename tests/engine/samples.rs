//! Samples of one prompt share its pages.

use std::collections::HashMap;

use page_by_page::cache::CacheError;
use page_by_page::generation::sampler::{Sampler, SamplingParams};
use page_by_page::model::Model;
use page_by_page::serving::schedule::{FinishReason, ScheduleError, SequenceId, StepLimits};
use page_by_page::serving::{Engine, FinishedSequence, GenerationRequest};
use page_by_page::simulation::Setup;

use crate::serving::{ASKED, Ended, SEEDED, alone, engine, note_tokens, run_to_end, tiny_model};
use grading::oracle::TestRng;
use grading::pools::{check_pool, setup};

fn request(prompt: &[u32], most: usize, n: u64) -> GenerationRequest {
    let samplers = (0..n).map(|sample| Sampler::new(SamplingParams { seed: SEEDED.seed + sample, ..SEEDED })).collect();
    GenerationRequest::new(prompt.to_vec(), most, samplers)
}

fn samples_alone(model: &Model, asked: (&[u32], usize), ends: &[u32], n: u64) -> Vec<Ended> {
    (0..n).map(|sample| alone(model, asked, ends, SamplingParams { seed: SEEDED.seed + sample, ..SEEDED })).collect()
}

/// Both lists are in order of arrival, and all that wait arrived after those that run.
fn check_order(engine: &Engine<'_>, run: &str) {
    let running = engine.scheduler().running().map(|(sequence, _)| sequence.id);
    let ids: Vec<SequenceId> = running.chain(engine.scheduler().waiting().map(|sequence| sequence.id)).collect();
    assert!(ids.is_sorted(), "{run}: {ids:?} run and wait, in this order");
}

/// Random families in random pools: each sample is the sequence generated alone, and all pages come back.
#[test]
fn each_sample_is_the_sequence_generated_alone_in_pages_of_any_size_and_number() {
    let model = tiny_model();
    let vocab_size = model.config().vocab_size;
    let mut rng = TestRng::new(1);
    let mut random = |below: usize| rng.roll(0, below - 1);
    let (mut preempted, mut ended, mut copied) = (0, 0, 0);
    for run in 0..150 {
        let page_size = 1 + random(5);
        let ends = [random(vocab_size) as u32];
        let limits = StepLimits { token_budget: 1 + random(30), max_running: 1 + random(9) };
        let (mut least, mut asked) = (1, Vec::new());
        for _ in 0..1 + random(4) {
            let prompt: Vec<u32> = (0..1 + random(11)).map(|_| random(vocab_size) as u32).collect();
            let (most, n) = (random(12), 1 + random(5));
            least = least.max((prompt.len() + most.max(1) - 1).div_ceil(page_size));
            asked.push((prompt, most, n as u64));
        }
        let n_pages = least + random(6);
        let run = format!("run {run}: {asked:?} in {n_pages} pages of {page_size}, {limits:?}");
        let setting = Setup { page_size, n_pages, limits, keeps_prefixes: false };
        let (mut engine, slab) = engine(&model, setting, &ends);
        for (prompt, most, n) in &asked {
            engine.submit_request(request(prompt, *most, *n)).unwrap();
        }
        let mut reported: HashMap<SequenceId, Vec<u32>> = HashMap::new();
        let all = run_to_end(&mut engine, |engine, step| {
            note_tokens(&mut reported, step);
            let in_tables = engine.scheduler().running().flat_map(|(_, table)| table.pages());
            check_pool(slab.borrow().pool(), in_tables, &run);
            check_order(engine, &run);
        });
        assert_eq!(slab.borrow().pool().n_free(), n_pages, "{run}: free pages in the end");
        for FinishedSequence { sequence, .. } in &all {
            assert_eq!(reported.remove(&sequence.id).unwrap_or_default(), sequence.new_tokens(), "{run}");
        }
        let mut found: Vec<Ended> = all.iter().map(|one| (one.sequence.tokens.clone(), one.outcome.clone())).collect();
        for (prompt, most, n) in &asked {
            for expected in samples_alone(&model, (prompt, *most), &ends, *n) {
                let place = found.iter().position(|one| *one == expected);
                drop(found.swap_remove(place.unwrap_or_else(|| panic!("{run}: {expected:?} is missing"))));
            }
        }
        assert!(found.is_empty(), "{run}: {found:?} too many");
        preempted += engine.totals().preemptions;
        ended += all.iter().filter(|finished| finished.outcome == Ok(FinishReason::Stop)).count();
        copied += all.iter().map(|finished| finished.sequence.counters.usage.copied_tokens).sum::<u64>();
    }
    assert!(preempted > 30 && ended > 10 && copied > 200, "{preempted} {ended} {copied}: this has shown little");
}

#[test]
fn samples_share_all_full_pages_and_copy_the_rest_but_once() {
    // 8 samples of 49 tokens, 25 new ones, pages of 16: 3 full pages, and one that is filled in part.
    let model = tiny_model();
    let prompt: Vec<u32> = (0..49).map(|place| 5 + place * 7 % 80).collect();
    let limits = StepLimits { token_budget: 100, max_running: 8 };
    let setting = Setup { page_size: 16, n_pages: 3 + 8 * 2, limits, keeps_prefixes: false };
    let (mut engine, slab) = engine(&model, setting, &[]);
    let n_free = || slab.borrow().pool().n_free();
    engine.submit_request(request(&prompt, 25, 8)).unwrap();
    let step = engine.step().unwrap();
    assert_eq!(step.new_tokens.len(), 8, "all choose their first token from the same logits");
    assert_eq!((engine.totals().computed_tokens, n_free()), (49, 15), "a fork takes no page");
    assert_eq!(engine.step().unwrap().new_tokens.len(), 8, "4 pages, 7 copies of the last");
    assert_eq!(n_free(), 8);
    let finished = run_to_end(&mut engine, |_, _| ());
    let copied: Vec<u64> = finished.iter().map(|finished| finished.sequence.counters.usage.copied_tokens).collect();
    assert_eq!(copied, [1, 1, 1, 1, 1, 1, 1, 0], "the last owner writes in place");
    let totals = engine.totals();
    assert_eq!((totals.steps, totals.peak_pages, totals.peak_sequences), (25, 19, 8));
    assert_eq!(totals.computed_tokens, 49 + 8 * 24, "the prompt is computed once");
    assert_eq!((totals.prompt_tokens, totals.cached_tokens), (49, 0), "a fork is no cache hit");
    assert_eq!(n_free(), 19);
}

/// A prompt of 17 tokens in steps of 6, with samples some of which, the first too, are cancelled before it is computed.
#[test]
fn cancelled_samples_leave_the_others_as_they_are() {
    let model = tiny_model();
    let alone = samples_alone(&model, ASKED[2], &[], 4);
    for (cancelled, steps) in [(vec![0], 1), (vec![0, 1], 2), (vec![2], 0), (vec![3, 0], 1), (vec![1], 5), (vec![0], 5)]
    {
        for keeps_prefixes in [false, true] {
            let run = format!("{cancelled:?} after {steps}, {keeps_prefixes}");
            let (mut engine, slab) = engine(&model, Setup { keeps_prefixes, ..setup(60, 6, 8) }, &[]);
            let ids = engine.submit_request(request(ASKED[2].0, ASKED[2].1, 4)).unwrap();
            assert_eq!(ids, [0, 1, 2, 3].map(SequenceId), "{run}");
            (0..steps).for_each(|_| drop(engine.step().unwrap()));
            let mut all: Vec<_> = cancelled.iter().map(|sample| engine.cancel(ids[*sample]).unwrap()).collect();
            all.extend(run_to_end(&mut engine, |_, _| ()));
            all.sort_by_key(|finished| finished.sequence.id);
            assert_eq!(all.iter().map(|finished| finished.sequence.id).collect::<Vec<_>>(), ids, "{run}");
            for (sample, (finished, (tokens, end))) in all.iter().zip(&alone).enumerate() {
                if cancelled.contains(&sample) {
                    assert_eq!(finished.outcome, Ok(FinishReason::Abort), "{run}");
                    assert!(tokens.starts_with(&finished.sequence.tokens), "{run}");
                } else {
                    assert_eq!((&finished.sequence.tokens, &finished.outcome), (tokens, end), "{run}: sample {sample}");
                }
            }
            let kept = engine.scheduler().prefix_cache().n_pages();
            assert_eq!(slab.borrow().pool().n_free() + kept, 60, "{run}");
        }
    }
}

/// A sequence that is greedy draws the same tokens again, and has just the pages of its tokens.
#[test]
fn tokens_that_are_taken_back_come_again() {
    let model = tiny_model();
    let (tokens, _) = alone(&model, ASKED[2], &[], SamplingParams::GREEDY);
    for keeps_prefixes in [false, true] {
        let (mut engine, slab) = engine(&model, Setup { keeps_prefixes, ..setup(60, 20, 8) }, &[]);
        let id = engine.submit(ASKED[2].0.to_vec(), ASKED[2].1, Sampler::new(SamplingParams::GREEDY)).unwrap();
        while engine.scheduler().running().all(|(sequence, _)| sequence.new_tokens().len() < 5) {
            engine.step().unwrap();
        }
        let refused = CacheError::PastTheStart { n: 6, len: 5 };
        assert_eq!(engine.rewind(id, 6), Err(refused.into()));
        assert_eq!(engine.rewind(SequenceId(7), 1), Err(ScheduleError::UnknownSequence(SequenceId(7))));
        engine.rewind(id, 5).unwrap();
        let (sequence, table) = engine.scheduler().running().next().unwrap();
        assert_eq!((&sequence.tokens[..], table.len()), (ASKED[2].0, ASKED[2].0.len() - 1));
        assert_eq!(run_to_end(&mut engine, |_, _| ())[0].sequence.tokens, tokens, "{keeps_prefixes}");
        assert_eq!(slab.borrow().pool().n_free() + engine.scheduler().prefix_cache().n_pages(), 60);
    }
}

#[test]
fn samples_that_never_begin_leave_no_page() {
    let model = tiny_model();
    let (mut engine, slab) = engine(&model, setup(9, 20, 1), &[]);
    engine.submit_request(request(ASKED[0].0, 5, 3)).unwrap();
    engine.step().unwrap();
    assert_eq!(engine.cancel_all().unwrap().len(), 3);
    assert_eq!(slab.borrow().pool().n_free(), 9);
    engine.submit_request(request(ASKED[0].0, 5, 3)).unwrap();
    engine.step().unwrap();
    drop(engine);
    assert_eq!(slab.borrow().pool().n_free(), 9);
}
