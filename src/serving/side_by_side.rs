//! Sequences with caches of their own, or without any: what pages are compared with.
//!
//! No memory is shared here, so no sequence waits for another's. All begin together, as far as a step has room, each
//! step computes the new tokens of all, and each sequence ends by itself.

use std::collections::VecDeque;

use super::{Generated, Held, Step, Totals};
use crate::cache::in_place::{CacheRef, InPlace};
use crate::decode::sampler::Sampler;
use crate::model::{LogitRows, Model, StepError};
use crate::serving::schedule::{
    self, FinishReason, NextToken, ScheduledChunk, SequenceCounters, SequenceId, StepLimits,
};

/// Sequences that share a model, and nothing else.
pub struct SideBySide<'m> {
    model: &'m Model,
    limits: StepLimits,
    end_of_text: Vec<u32>,
    submitted: u64,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    totals: Totals,
}

struct Sequence {
    text: schedule::Sequence,
    sampler: Sampler,
    /// `None`: all tokens are computed in each step.
    cache: Option<Box<dyn InPlace>>,
}

impl Sequence {
    /// Tokens that the next step computes.
    fn unread(&self) -> usize {
        self.text.tokens.len() - self.cache.as_ref().map_or(0, |cache| cache.len())
    }

    fn end(self, end: Result<FinishReason, StepError>) -> Generated {
        let usage = self.cache.as_ref().map(|cache| cache.usage()).unwrap_or_default();
        Generated { text: self.text, end, held: Held { usage, ..Held::default() } }
    }
}

impl<'m> SideBySide<'m> {
    /// No sequences yet. `limits`: sequences that run at the same time, and tokens of prompts that begin in the same step; a
    /// longer prompt begins alone. `end_of_text`: tokens that end a sequence; they are not part of it.
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
        let (id, n_prompt, counters) = (SequenceId(self.submitted), prompt.len(), SequenceCounters::default());
        let text = schedule::Sequence { id, tokens: prompt, n_prompt, max_new_tokens, counters };
        self.waiting.push_back(Sequence { text, sampler, cache });
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
        let mut sequences = std::mem::take(&mut self.running);
        let (mut chunks, mut refused) = (Vec::new(), vec![None; sequences.len()]);
        for (sequence, refused) in sequences.iter_mut().zip(&mut refused) {
            let unread = sequence.unread();
            let tokens = &sequence.text.tokens[sequence.text.tokens.len() - unread..];
            let cache = sequence.cache.as_mut().map(|cache| CacheRef::InPlace(cache.as_mut()));
            let chunk = match cache {
                Some(cache) => self.model.chunk_of(tokens, cache, LogitRows::Newest(1)),
                None => self.model.chunk(tokens, None, LogitRows::Newest(1)),
            };
            match chunk {
                Ok(chunk) => {
                    step.turns.push(ScheduledChunk { sequence: sequence.text.id, tokens: unread, caught_up: true });
                    chunks.push(chunk);
                }
                Err(error) => *refused = Some(error),
            }
        }
        let logits = if chunks.is_empty() { Ok(Vec::new()) } else { self.model.forward(chunks) };
        self.totals.steps += u64::from(!step.turns.is_empty());
        self.totals.most_texts = self.totals.most_texts.max(step.turns.len());
        self.totals.rows_projected += step.turns.iter().map(|turn| turn.tokens as u64).sum::<u64>();
        let logits = logits.as_ref().map(|logits| logits.chunks_exact(self.model.config().vocab_size));
        let mut rows = logits.map_err(Clone::clone);
        for (mut sequence, refused) in sequences.into_iter().zip(refused) {
            let row = match (refused, &mut rows) {
                (Some(error), _) => Err(error),
                (None, Ok(rows)) => Ok(rows.next().unwrap_or_default()),
                (None, Err(error)) => Err(error.clone()),
            };
            match row.map(|row| sequence.sampler.pick(row)) {
                Err(error) => step.generated.push(sequence.end(Err(error))),
                Ok(token) => {
                    let pick = NextToken { sequence: sequence.text.id, token };
                    if self.end_of_text.contains(&token) {
                        step.ends.push(pick);
                        step.generated.push(sequence.end(Ok(FinishReason::EndOfText)));
                        continue;
                    }
                    step.new_tokens.push(pick);
                    sequence.text.tokens.push(token);
                    if sequence.text.new_tokens().len() == sequence.text.max_new_tokens {
                        step.generated.push(sequence.end(Ok(FinishReason::Limit)));
                    } else {
                        self.running.push(sequence);
                    }
                }
            }
        }
        self.totals.new_tokens += step.new_tokens.len() as u64;
        step
    }

    /// Lets sequences begin in this step, in the order in which they came.
    fn begin(&mut self, step: &mut Step) {
        let mut prompts = 0;
        while let Some(next) = self.waiting.front() {
            let n_prompt = next.text.n_prompt;
            if next.text.max_new_tokens == 0 {
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
