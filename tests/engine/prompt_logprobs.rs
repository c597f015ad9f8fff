//! What scoring a prompt takes of the memory: rows of logits are many numbers each, and only some are there at the same
//! time.

use grading::limits::peak_held;
use grading::pools::{setup, with_prefix_cache};
use grading::story::assets;
use page_by_page::generation::sampler::{Sampler, SamplingParams};
use page_by_page::model::Model;
use page_by_page::serving::{GenerationRequest, MIN_LOGIT_BATCH};

use crate::serving::engine;

/// Tokens of the prompt.
const TOKENS: usize = 500;

/// The most bytes that a step takes which reads a prompt, with scores or without.
fn taken(model: &Model, is_scored: bool) -> usize {
    let (mut engine, _) = engine(model, with_prefix_cache(setup(160, TOKENS, 2)), &[]);
    let prompt = (0..TOKENS as u32).map(|place| 7 * place % 4096).collect();
    let request = GenerationRequest::new(prompt, 1, vec![Sampler::new(SamplingParams::GREEDY)]);
    let logprobs = is_scored.then_some(1);
    engine.submit_request(GenerationRequest { prompt_logprobs: is_scored, logprobs, ..request }).unwrap();
    let (step, taken) = peak_held(|| engine.step().unwrap());
    let scores = &step.deltas[0].1.prompt_logprobs;
    assert_eq!(scores.as_ref().map(Vec::len), is_scored.then_some(TOKENS - 1));
    taken
}

#[test]
fn a_step_that_scores_has_few_rows_of_logits_at_the_same_time() {
    let model = Model::open(&assets().join("storyteller")).unwrap();
    let (plain, scored) = (taken(&model, false), taken(&model, true));
    let (few, all) = (model.step_bytes(0, MIN_LOGIT_BATCH), model.step_bytes(0, TOKENS));
    assert!(scored <= plain + few, "a step takes {scored} bytes with scores, {plain} without; few rows take {few}");
    assert!(all > plain + few, "else this shows nothing: all rows take {all} bytes");
}
