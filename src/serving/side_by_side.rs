//! Sequences with caches of their own, or without any: what pages are compared with.
//!
//! All begin together, as far as a step has room, and each step computes the new tokens of all.

use std::collections::VecDeque;

use super::{SequenceOutput, SequenceStats, Step, Totals};
use crate::cache::in_place::InPlace;
use crate::decode::sampler::Sampler;
use crate::model::{Chunk, Model, StepError};
use crate::serving::schedule::{FinishReason, NextToken, ScheduledChunk, Sequence, SequenceId, StepLimits};

/// Sequences that share a model, and nothing else.
pub struct SideBySide<'m> {
    model: &'m Model,
    limits: StepLimits,
    end_of_text: Vec<u32>,
    submitted: u64,
    waiting: VecDeque<Running>,
    running: Vec<Running>,
    totals: Totals,
}

struct Running {
    sequence: Sequence,
    sampler: Sampler,
    /// `None`: all tokens are computed in each step.
    cache: Option<Box<dyn InPlace>>,
}

impl Running {
    /// The tokens that its cache does not hold, with room made for them.
    fn chunk<'a>(&'a mut self, model: &'a Model) -> Result<(usize, Chunk<'a>), StepError> {
        let tokens = &self.sequence.tokens;
        let tokens = &tokens[self.cache.as_ref().map_or(0, |cache| cache.len())..];
        let cache = self.cache.as_mut().map(|cache| cache.as_mut() as &mut dyn InPlace);
        Ok((tokens.len(), model.chunk(tokens, cache, 1)?))
    }

    fn end(self, end: Result<FinishReason, StepError>) -> SequenceOutput {
        let usage = self.cache.as_ref().map(|cache| cache.usage()).unwrap_or_default();
        SequenceOutput { sequence: self.sequence, end, held: SequenceStats { usage, ..SequenceStats::default() } }
    }
}

impl<'m> SideBySide<'m> {
    /// No sequences yet. `limits`: sequences that run at the same time, and tokens of prompts that begin in the same step. A
    /// longer prompt begins alone. `end_of_text`: tokens that end a sequence, and are not part of it.
    pub fn new(model: &'m Model, limits: StepLimits, end_of_text: &[u32]) -> Self {
        let (waiting, running, totals) = (VecDeque::new(), Vec::new(), Totals::default());
        SideBySide { model, limits, end_of_text: end_of_text.to_vec(), submitted: 0, waiting, running, totals }
    }

    /// Takes a sequence in, with an empty cache or none.
    ///
    /// # Errors
    /// [`StepError`] if the model cannot compute the prompt; nothing has changed.
    pub fn submit(
        &mut self,
        prompt: Vec<u32>,
        max_new_tokens: usize,
        sampler: Sampler,
        cache: Option<Box<dyn InPlace>>,
    ) -> Result<SequenceId, StepError> {
        self.model.check(&prompt, 0)?;
        let id = SequenceId(self.submitted);
        let sequence = Sequence::new(id, prompt, max_new_tokens).expect("a checked prompt has tokens");
        self.waiting.push_back(Running { sequence, sampler, cache });
        self.submitted += 1;
        Ok(id)
    }

    /// What was done so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// True when all sequences have finished.
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// One pass of the model for all sequences that run. One whose cache has no room, or whose logits are not finite, ends with
    /// that error.
    pub fn step(&mut self) -> Step {
        let mut step = Step::default();
        self.begin(&mut step);
        let mut all = std::mem::take(&mut self.running);
        let (mut chunks, mut refused) = (Vec::new(), Vec::new());
        for running in &mut all {
            let sequence = running.sequence.id;
            let chunk = running.chunk(self.model);
            refused.push(chunk.as_ref().err().cloned());
            if let Ok((tokens, chunk)) = chunk {
                step.chunks.push(ScheduledChunk { sequence, tokens, caught_up: true });
                chunks.push(chunk);
            }
        }
        let logits = if chunks.is_empty() { Ok(Vec::new()) } else { self.model.forward(chunks) };
        self.totals.steps += u64::from(!step.chunks.is_empty());
        self.totals.most_sequences = self.totals.most_sequences.max(step.chunks.len());
        self.totals.rows_projected += step.chunks.iter().map(|chunk| chunk.tokens as u64).sum::<u64>();
        let mut rows = logits.as_ref().map(|logits| logits.chunks_exact(self.model.config().vocab_size));
        for (running, refused) in all.into_iter().zip(refused) {
            let row = match (refused, &mut rows) {
                (Some(error), _) => Err(error),
                (None, Ok(rows)) => Ok(rows.next().unwrap_or_default()),
                (None, Err(error)) => Err((*error).clone()),
            };
            self.next_token(running, row, &mut step);
        }
        self.totals.new_tokens += step.new_tokens.len() as u64;
        step
    }

    /// A sequence gets its next token from this row, or finishes.
    fn next_token(&mut self, mut running: Running, row: Result<&[f32], StepError>, step: &mut Step) {
        let sequence = running.sequence.id;
        let token = match row {
            Ok(row) => running.sampler.pick(row),
            Err(error) => return step.generated.push(running.end(Err(error))),
        };
        if self.end_of_text.contains(&token) {
            step.ends.push(NextToken { sequence, token });
            return step.generated.push(running.end(Ok(FinishReason::EndOfText)));
        }
        step.new_tokens.push(NextToken { sequence, token });
        running.sequence.tokens.push(token);
        if running.sequence.new_tokens().len() == running.sequence.max_new_tokens {
            step.generated.push(running.end(Ok(FinishReason::Limit)));
        } else {
            self.running.push(running);
        }
    }

    /// Lets sequences begin in this step, in the order in which they came.
    fn begin(&mut self, step: &mut Step) {
        let mut prompts = 0;
        while let Some(next) = self.waiting.front() {
            let n_prompt = next.sequence.n_prompt;
            if next.sequence.max_new_tokens == 0 {
                step.generated.extend(self.waiting.pop_front().map(|next| next.end(Ok(FinishReason::Limit))));
                continue;
            }
            if self.running.len() == self.limits.sequences || (prompts > 0 && prompts + n_prompt > self.limits.tokens) {
                return;
            }
            prompts += n_prompt;
            self.running.extend(self.waiting.pop_front());
        }
    }
}
