//! Sequences one after the other, each with a cache of its own or without one: what pages are compared with.

use std::collections::VecDeque;
use std::mem;

use super::state::{Next, SequenceState};
use super::{GenerationRequest, Step};
use crate::cache::in_place::InPlace;
use crate::decode::sampler::Sampler;
use crate::model::tokenizer::Tokenizer;
use crate::model::{Model, StepError};
use crate::serving::schedule::{FinishReason, NextToken, ScheduleError, ScheduledChunk, Sequence, SequenceId};

/// Sequences that share a model, and nothing else.
pub struct OneByOne<'m> {
    model: &'m Model,
    tokenizer: &'m Tokenizer,
    submitted: u64,
    /// Those that have not finished. The first one runs.
    unfinished: VecDeque<Unfinished<'m>>,
}

struct Unfinished<'m> {
    sequence: Sequence,
    state: SequenceState<'m>,
    /// `None`: all tokens are computed in each step.
    cache: Option<Box<dyn InPlace>>,
}

impl<'m> OneByOne<'m> {
    /// No sequences yet.
    pub fn new(model: &'m Model, tokenizer: &'m Tokenizer) -> Self {
        OneByOne { model, tokenizer, submitted: 0, unfinished: VecDeque::new() }
    }

    /// Takes a sequence in, with an empty cache or none.
    ///
    /// # Errors
    /// [`ScheduleError::NoPrompt`] if it is empty.
    pub fn submit(
        &mut self,
        prompt: Vec<u32>,
        max_new_tokens: usize,
        sampler: Sampler,
        cache: Option<Box<dyn InPlace>>,
    ) -> Result<(), ScheduleError> {
        let request = GenerationRequest::new(prompt.clone(), max_new_tokens, Vec::new());
        let state = SequenceState::new(&request, sampler, Some(self.tokenizer));
        let sequence = Sequence::new(SequenceId(self.submitted), prompt, max_new_tokens)?;
        self.unfinished.push_back(Unfinished { sequence, state, cache });
        self.submitted += 1;
        Ok(())
    }

    /// True when all sequences have finished.
    pub fn is_done(&self) -> bool {
        self.unfinished.is_empty()
    }

    /// One pass of the model for the first sequence. If its cache has no room, or its logits are not finite, it ends
    /// with that error.
    pub fn step(&mut self) -> Step {
        let mut step = Step::default();
        let Some(Unfinished { sequence, state, cache }) = self.unfinished.front_mut() else { return step };
        let (id, most) = (sequence.id, sequence.max_new_tokens);
        let Next { token, mut end } = if most == 0 {
            Next::default()
        } else {
            let tokens = &sequence.tokens[cache.as_ref().map_or(0, |cache| cache.len())..];
            let cache = cache.as_mut().map(|cache| cache.as_mut() as &mut dyn InPlace);
            let logits = self.model.step(tokens, cache);
            if !matches!(logits, Err(StepError::Cache(_))) {
                step.chunks.push(ScheduledChunk { sequence: id, tokens: tokens.len(), caught_up: true });
            }
            state.draw(&logits, &self.model.config().eos_token_ids)
        };
        sequence.tokens.extend(token);
        step.new_tokens.extend(token.map(|token| NextToken { sequence: id, token }));
        if end.is_none() {
            step.deltas.push((id, mem::take(&mut state.delta)));
        }
        if end.is_none() && sequence.new_tokens().len() == most {
            end = Some(Ok(FinishReason::Limit));
        }
        if let Some(end) = end {
            sequence.counters.usage = cache.as_ref().map(|cache| cache.usage()).unwrap_or_default();
            let finished = self.unfinished.pop_front();
            step.finished.extend(finished.map(|Unfinished { sequence, state, .. }| state.finish(sequence, end)));
        }
        step
    }
}
