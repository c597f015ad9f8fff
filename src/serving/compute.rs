//! One pass of the model for a plan, and what it gives: the logits that tokens are chosen from, and the scores of
//! prompts.

use std::collections::{BTreeMap, HashMap};

use super::{ActiveSequence, Engine, EngineError, MIN_LOGIT_ROWS};
use crate::cache::attention::AttentionCache;
use crate::chapters::ch10_fork::ForkCache;
use crate::generation::logprobs::PromptLogprobs;
use crate::generation::read_checker::ReadChecker;
use crate::model::{Model, StepError};
use crate::serving::schedule::{ChunkInput, ScheduleError, ScheduledChunk, SequenceId, StepLimits};

/// What the model has computed in a step.
#[derive(Default)]
pub(super) struct Computed {
    /// The logits after the newest token of each sequence that has caught up, `[vocab_size]`, and the errors of all
    /// that failed. In the order of the plan.
    pub(super) logits: Vec<Newest>,
    /// Forks of the caches that have computed a prompt, one for each of its other samples.
    pub(super) forks: HashMap<SequenceId, Vec<ForkCache>>,
}

/// The logits after the newest token of a sequence, or why there are none.
type Newest = (SequenceId, Result<Vec<f32>, StepError>);

impl Engine<'_> {
    /// Computes the tokens of a plan. The scores of the prompts that are complete now go to their sequences' output.
    pub(super) fn compute(&mut self, plan: &[ScheduledChunk]) -> Result<Computed, EngineError> {
        let StepLimits { token_budget, max_running } = self.limits();
        let at_once = max_running.min(token_budget).max(MIN_LOGIT_ROWS);
        let mut inputs = self.scheduler.inner.inputs();
        let mut computed = Computed::default();
        let checker = self.checker.as_deref();
        if let Ok(newest) = forward(self.model, checker, &mut self.active, at_once, &mut inputs) {
            computed.logits = newest;
        } else {
            // Which sequence's logits failed is not known: each is computed alone, and gives the same rows again.
            for input in &mut inputs {
                self.scheduler.totals.tokens_computed += input.chunk.n_tokens as u64;
                match forward(self.model, checker, &mut self.active, at_once, std::slice::from_mut(input)) {
                    Ok(newest) => computed.logits.extend(newest),
                    Err(error) => {
                        let sequence = input.chunk.sequence;
                        // The prefix cache must not get any of its pages.
                        *input.cache = ForkCache::new(&self.slab).map_err(ScheduleError::from)?;
                        if let Some(state) = self.active.get_mut(&sequence) {
                            state.prompt_logprobs = None;
                        }
                        computed.logits.push((sequence, Err(error)));
                    }
                }
            }
        }
        for ChunkInput { chunk, cache, .. } in inputs.iter().filter(|input| input.chunk.caught_up) {
            let samples = self.active.get(&chunk.sequence).map_or(0, |state| state.samples.len());
            let forks = (0..samples).map(|_| cache.fork()).collect::<Result<_, _>>().map_err(ScheduleError::from)?;
            computed.forks.insert(chunk.sequence, forks);
        }
        for chunk in plan.iter().filter(|chunk| chunk.caught_up) {
            let state = self.state(chunk.sequence)?;
            state.delta.prompt_logprobs = state.prompt_logprobs.take().map(PromptLogprobs::into_scores);
        }
        Ok(computed)
    }
}

/// One pass for all: returns the logits of those that have caught up. If the whole pass succeeds, the rows that had no
/// score yet have one. At most `at_once` rows of logits are there at the same time, beside those that are returned.
fn forward(
    model: &Model,
    checker: Option<&ReadChecker>,
    active: &mut BTreeMap<SequenceId, ActiveSequence<'_>>,
    at_once: usize,
    inputs: &mut [ChunkInput<'_>],
) -> Result<Vec<Newest>, StepError> {
    let scoring_of = |sequence| active.get(&sequence)?.prompt_logprobs.as_ref();
    // For each row of logits: its sequence, its number there, and whether the next token is chosen from it.
    let mut wanted = Vec::new();
    let mut chunks = Vec::new();
    let (mut plain, mut checked) = (Vec::new(), Vec::new());
    for ChunkInput { chunk, sequence, tokens, cache } in inputs {
        match checker {
            Some(checker) => checked.push((*chunk, *tokens, checker.checked(chunk.sequence.0, sequence, *cache))),
            None => plain.push((*chunk, *tokens, &mut **cache)),
        }
    }
    let plain = plain.into_iter().map(|(chunk, tokens, cache)| (chunk, tokens, cache as &mut dyn AttentionCache));
    let checked = checked.iter_mut().map(|(chunk, tokens, cache)| (*chunk, *tokens, cache as &mut dyn AttentionCache));
    for (chunk, tokens, cache) in plain.chain(checked) {
        let ScheduledChunk { sequence, n_tokens: n, caught_up } = chunk;
        let len = cache.len();
        let first = match scoring_of(sequence) {
            // What is recomputed is not scored again.
            Some(scoring) => (len - n).max(scoring.rows()).min(len - usize::from(caught_up)),
            None => len - usize::from(caught_up),
        };
        wanted.extend((first..len).map(|row| (sequence, row, caught_up && row + 1 == len)));
        chunks.push(model.chunk_with_room(tokens, cache, len - first)?);
    }
    let (mut newest, mut scores) = (Vec::new(), Vec::new());
    model.forward_in_parts(chunks, at_once, &mut |index, logits| {
        let (sequence, row, is_newest) = wanted[index];
        if let Some(scoring) = scoring_of(sequence).filter(|scoring| scoring.wants(row)) {
            scores.push((sequence, scoring.score(row, logits)));
        }
        if is_newest {
            newest.push((sequence, Ok(logits.to_vec())));
        }
    })?;
    for (sequence, score) in scores {
        if let Some(scoring) = active.get_mut(&sequence).and_then(|state| state.prompt_logprobs.as_mut()) {
            scoring.push(score);
        }
    }
    Ok(newest)
}
