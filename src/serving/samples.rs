//! Samples of one prompt, from the logits after it to sequences of their own.

use super::{Companion, Serving, ServingError, Step};
use crate::decode::sampler::Sampler;
use crate::model::StepError;
use crate::serving::schedule::{FinishReason, NextToken, SequenceId};

/// Samples whose first tokens are drawn: they begin when the step is settled.
pub(super) struct Samples {
    first: SequenceId,
    prompt: Vec<u32>,
    max_new_tokens: usize,
    /// Their samplers, and the first token of each.
    drawn: Vec<(Sampler, Result<u32, StepError>)>,
}

impl Serving<'_> {
    /// Draws a first token for each of the other samples of a prompt, and asks for a fork for each that goes on.
    pub(super) fn draw_samples(
        &mut self,
        first: SequenceId,
        logits: &Result<Vec<f32>, StepError>,
    ) -> Result<Option<Samples>, ServingError> {
        let samplers = std::mem::take(&mut self.companion(first)?.samples);
        if samplers.is_empty() {
            return Ok(None);
        }
        let found = self.scheduler().running().find(|(sequence, _)| sequence.id == first);
        let (sequence, _) = found.ok_or(ServingError::UnknownSequence(first))?;
        let (prompt, max_new_tokens) = (sequence.tokens.clone(), sequence.max_new_tokens);
        let draw = |mut sampler: Sampler| {
            let token = logits.as_ref().map(|row| sampler.pick(row)).map_err(Clone::clone);
            (sampler, token)
        };
        let drawn: Vec<_> = samplers.into_iter().map(draw).collect();
        let goes_on = |token: &u32| max_new_tokens > 1 && !self.end_of_text.contains(token);
        let n_forks = drawn.iter().filter(|(_, token)| token.as_ref().is_ok_and(goes_on)).count();
        if n_forks > 0 {
            self.forks.borrow_mut().wanted.push((prompt.clone(), n_forks));
        }
        Ok(Some(Samples { first, prompt, max_new_tokens, drawn }))
    }

    /// Hands the samples to the scheduler, with their first tokens, and notes these in the step.
    pub(super) fn begin_samples(&mut self, samples: Samples, step: &mut Step) -> Result<(), ServingError> {
        let Samples { first, prompt, max_new_tokens, drawn } = samples;
        for (sampler, token) in drawn {
            let (mut tokens, n_prompt, mut left) = (prompt.clone(), Some(prompt.len()), 0);
            let ends = token.as_ref().is_ok_and(|token| self.end_of_text.contains(token));
            let end = match &token {
                Err(error) => Some(Err(error.clone())),
                Ok(_) if ends => Some(Ok(FinishReason::EndOfText)),
                Ok(token) => {
                    tokens.push(*token);
                    left = max_new_tokens - 1;
                    None
                }
            };
            let sample =
                self.take_in(tokens, left, Companion { n_prompt, end, drawn: 1, ..Companion::new(sampler) })?;
            self.forked.push((first, sample));
            if let Ok(token) = token {
                let drawn = if ends { &mut step.ends } else { &mut step.new_tokens };
                drawn.push(NextToken { sequence: sample, token });
            }
        }
        Ok(())
    }
}
