//! Prompts are scored once, token by token, whatever the prefix cache holds of them.

use std::collections::HashMap;

use page_by_page::generation::sampler::{Sampler, Sampling};
use page_by_page::generation::scoring::{TokenLogprobs, token_logprobs};
use page_by_page::model::{Model, StepError};
use page_by_page::serving::{Engine, FinishedSequence, GenerationRequest};

use crate::serving::{
    ASKED, SEEDED, all_alone, ends, engine, overflowing, run_to_end, sampling_of, setting, settings, tiny_model,
    with_prefixes,
};
use grading::checkpoints::Folder;

/// How many of the likeliest tokens the tests ask for.
const TOP: usize = 3;

/// The scores of a prompt, from all of its rows at once.
fn scores_alone(model: &Model, prompt: &[u32]) -> Result<Vec<TokenLogprobs>, StepError> {
    let logits = model.forward(vec![model.chunk(prompt, None, prompt.len())?])?;
    let rows = logits.chunks_exact(model.config().vocab_size);
    Ok(rows.zip(&prompt[1..]).map(|(row, next)| token_logprobs(row, *next, TOP)).collect())
}

/// What came of scored and other sequences that were generated together.
#[derive(Default)]
struct Scored {
    /// In the order of arrival.
    finished: Vec<FinishedSequence>,
    /// By the index of each sequence.
    scores: HashMap<usize, Vec<TokenLogprobs>>,
    /// How often a sequence was seen without pages in the middle of a prompt.
    preempted: usize,
}

/// Generates all sequences and scores those whose index is even, or those whose index is odd.
fn generate_scored(engine: &mut Engine<'_>, sampling: Sampling, odd: bool) -> Scored {
    let mut ids = Vec::new();
    for (index, (prompt, most)) in ASKED.iter().enumerate() {
        let sampler = Sampler::new(sampling_of(index, sampling));
        let request = GenerationRequest::new(prompt.to_vec(), *most, vec![sampler]);
        let scores_prompt = (index % 2 == 1) == odd;
        let request = GenerationRequest { scores_prompt, logprobs: scores_prompt.then_some(TOP), ..request };
        ids.extend(engine.submit_request(request).unwrap());
    }
    let mut scored = Scored::default();
    let finished = run_to_end(engine, |engine, step| {
        let last = step.finished.iter().map(|finished| (&finished.sequence.id, &finished.delta));
        for (id, delta) in step.deltas.iter().map(|(id, delta)| (id, delta)).chain(last) {
            let Some(scores) = delta.scores.clone() else { continue };
            let index = ids.iter().position(|other| other == id).unwrap();
            assert!(scored.scores.insert(index, scores).is_none(), "sequence {index} has its scores twice");
        }
        let waiting = engine.scheduler().waiting();
        scored.preempted += waiting
            .filter(|sequence| sequence.counters.preemptions > 0 && sequence.tokens.len() == sequence.n_prompt)
            .count();
    });
    scored.finished = finished;
    assert_eq!(scored.finished.iter().map(|finished| finished.sequence.id).collect::<Vec<_>>(), ids);
    scored
}

#[test]
fn prompts_are_scored_once_and_as_the_model_does_in_every_setting() {
    let model = tiny_model();
    let ends = ends(&model, SEEDED);
    let alone = all_alone(&model, &ends, SEEDED);
    let (mut preempted, mut found) = (0, 0);
    for setting in settings() {
        let (mut engine, slab) = engine(&model, setting, &ends);
        // The second and the third time the prefix cache has the prompts already.
        for odd in [false, true, false] {
            let scored = generate_scored(&mut engine, SEEDED, odd);
            preempted += scored.preempted;
            for (index, (finished, (tokens, end))) in scored.finished.iter().zip(&alone).enumerate() {
                let (sequence, is_scored) = (&finished.sequence, (index % 2 == 1) == odd);
                assert_eq!((&sequence.tokens, &finished.end), (tokens, end), "{setting:?}, sequence {index}");
                let expected = is_scored.then(|| scores_alone(&model, ASKED[index].0).unwrap());
                assert_eq!(scored.scores.get(&index), expected.as_ref(), "{setting:?}, sequence {index}");
                found += sequence.counters.cached;
            }
        }
        let (free, kept) = (slab.borrow().pool().n_free(), engine.scheduler().prefixes().n_pages());
        assert_eq!(free + kept, setting.n_pages, "{setting:?}");
    }
    // Else this has shown little.
    assert!(preempted > 100 && found > 1000, "{preempted} {found}");
}

#[test]
fn a_prompt_that_cannot_be_scored_ends_its_sequence_and_no_other() {
    let folder = Folder::copy_of("f16-mha-untied");
    let (mut failed, mut sound) = (0, 0);
    for column in 0..8 {
        let model = overflowing(&folder, column);
        let alone = all_alone(&model, &[], SEEDED);
        for tokens in [3, 20] {
            let (mut engine, slab) = engine(&model, with_prefixes(setting(100, tokens, 6)), &[]);
            let scored = generate_scored(&mut engine, SEEDED, false);
            for (index, (finished, (tokens, end))) in scored.finished.iter().zip(&alone).enumerate() {
                match scores_alone(&model, ASKED[index].0) {
                    Err(error) if index % 2 == 0 => {
                        failed += 1;
                        let found = (&finished.end, finished.sequence.new_tokens());
                        assert_eq!(found, (&Err(error.into()), &[][..]), "sequence {index}");
                        assert!(!scored.scores.contains_key(&index));
                    }
                    _ => {
                        sound += 1;
                        assert_eq!((&finished.sequence.tokens, &finished.end), (tokens, end), "sequence {index}");
                    }
                }
            }
            let (free, kept) = (slab.borrow().pool().n_free(), engine.scheduler().prefixes().n_pages());
            assert_eq!(free + kept, 100);
        }
    }
    assert!(failed > 0 && sound > 0, "{failed} {sound}");
}
