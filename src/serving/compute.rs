//! One pass of the model for a plan, and what it gives: the logits that tokens are chosen from, and the scores of
//! prompts.

use std::collections::{BTreeMap, HashMap};

use super::{ActiveSequence, Engine, EngineError, MIN_LOGIT_BATCH};
use crate::cache::attention::AttentionCache;
use crate::chapters::ch10_fork::ForkCache;
use crate::generation::logprobs::PromptLogprobs;
use crate::generation::read_checker::ReadChecker;
use crate::model::{Model, StepError};
use crate::serving::schedule::{ChunkInput, ScheduleError, ScheduledChunk, SequenceId, StepLimits};

#[derive(Default)]
pub(super) struct Computed {
    /// For each sequence that has caught up or failed, in the order of the plan.
    pub(super) logits: Vec<Newest>,
    /// Forks of the caches that have computed a prompt, one for each sibling.
    pub(super) forks: HashMap<SequenceId, Vec<ForkCache>>,
}

/// The logits after the newest token of a sequence, `[vocab_size]`, or why there are none.
type Newest = (SequenceId, Result<Vec<f32>, StepError>);

impl Engine<'_> {
    /// Computes the tokens of a plan. The scores of the prompts that are complete now go to their sequences' output.
    pub(super) fn compute(&mut self, plan: &[ScheduledChunk]) -> Result<Computed, EngineError> {
        let StepLimits { token_budget, max_running } = self.limits();
        let at_once = max_running.min(token_budget).max(MIN_LOGIT_BATCH);
        let mut inputs = self.scheduler.inputs();
        let (mut computed, mut again) = (Computed::default(), 0);
        let checker = self.checker.as_deref();
        if let Ok(newest) = forward(self.model, checker, &mut self.active, at_once, &mut inputs) {
            computed.logits = newest;
        } else {
            // Which sequence's logits failed is not known: each is computed alone, and gives the same rows again.
            for input in &mut inputs {
                again += input.chunk.n_tokens;
                match forward(self.model, checker, &mut self.active, at_once, std::slice::from_mut(input)) {
                    Ok(newest) => computed.logits.extend(newest),
                    Err(error) => {
                        let sequence = input.chunk.sequence_id;
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
            let siblings = self.active.get(&chunk.sequence_id).map_or(0, |state| state.siblings.len());
            let forks = (0..siblings).map(|_| cache.fork()).collect::<Result<_, _>>().map_err(ScheduleError::from)?;
            computed.forks.insert(chunk.sequence_id, forks);
        }
        self.scheduler.count_computed(again);
        for chunk in plan.iter().filter(|chunk| chunk.caught_up) {
            let state = self.state(chunk.sequence_id)?;
            state.delta.prompt_logprobs = state.prompt_logprobs.take().map(PromptLogprobs::into_token_logprobs);
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
    let logprobs_of = |id| active.get(&id)?.prompt_logprobs.as_ref();
    // For each row of logits: its sequence, its number there, and whether the next token is chosen from it.
    let mut wanted = Vec::new();
    let mut chunks = Vec::new();
    let (mut plain, mut checked) = (Vec::new(), Vec::new());
    for ChunkInput { chunk, tokens_so_far, tokens, cache } in inputs {
        match checker {
            Some(checker) => {
                checked.push((*chunk, *tokens, checker.checked(chunk.sequence_id.0, tokens_so_far, *cache)))
            }
            None => plain.push((*chunk, *tokens, &mut **cache)),
        }
    }
    let plain = plain.into_iter().map(|(chunk, tokens, cache)| (chunk, tokens, cache as &mut dyn AttentionCache));
    let checked = checked.iter_mut().map(|(chunk, tokens, cache)| (*chunk, *tokens, cache as &mut dyn AttentionCache));
    for (chunk, tokens, cache) in plain.chain(checked) {
        let ScheduledChunk { sequence_id: id, n_tokens: n, caught_up } = chunk;
        let len = cache.len();
        let first = match logprobs_of(id) {
            // What is recomputed is not scored again.
            Some(logprobs) => (len - n).max(logprobs.rows()).min(len - usize::from(caught_up)),
            None => len - usize::from(caught_up),
        };
        wanted.extend((first..len).map(|row| (id, row, caught_up && row + 1 == len)));
        chunks.push(model.chunk_with_room(tokens, cache, len - first)?);
    }
    let (mut newest, mut prompt_logprobs) = (Vec::new(), Vec::new());
    model.forward_in_parts(chunks, at_once, &mut |index, logits| {
        let (id, row, is_newest) = wanted[index];
        if let Some(logprobs) = logprobs_of(id).filter(|logprobs| logprobs.wants(row)) {
            prompt_logprobs.push((id, logprobs.compute(row, logits)));
        }
        if is_newest {
            newest.push((id, Ok(logits.to_vec())));
        }
    })?;
    for (id, row) in prompt_logprobs {
        if let Some(logprobs) = active.get_mut(&id).and_then(|state| state.prompt_logprobs.as_mut()) {
            logprobs.push(row);
        }
    }
    Ok(newest)
}
