//! The loop that serves many sequences in pages: in each step the scheduled sequences compute their tokens, in one pass
//! of the model.
//!
//! ```text
//!   plan        the scheduler decides which sequences compute how many tokens, and has made room for them
//!   forward     the model computes them all in one pass
//!   pick        each sequence that has computed all of its tokens draws the next one, with a sampler of its own
//!   settle      the scheduler adds these tokens, keeps full pages, and takes back the pages of sequences that finish
//! ```
//!
//! A sequence draws once for each of its tokens, and its sampler stays with it while it waits, so what it recomputes
//! after a preemption is what it has drawn already. A row has the same bits in any company. So a sequence gets the same
//! tokens as when it is generated alone.
//!
//! Samples of one prompt compute it once, and the others [fork](Serving::submit_samples) the cache of the first. A prompt that is
//! [scored](Serving::submit_scored) asks for the logits of all of its rows, each once, so the prefix cache is not asked for them. Logits that are not finite end the sequence
//! that they belong to, and no other, because the sequences of that step are then computed one by one.

mod compute;
mod error;
pub mod schedule;
mod scheduler;
pub mod side_by_side;
mod steps;
mod stop_rules;
pub mod view;

use std::collections::{BTreeMap, HashMap};

use crate::chapters::ch06_paged::SharedSlab;
use crate::chapters::ch10_fork::ForkCache;
use crate::chapters::ch12_scheduler::Scheduler;
use crate::decode::sampler::Sampler;
use crate::decode::scoring::{Scoring, TokenLogprobs};
use crate::model::{Model, StepError};
use crate::prefixes::Prefixes;
use crate::serving::schedule::{
    FinishReason, Finished, NextToken, ScheduleError, ScheduledChunk, Sequence, SequenceId, StepLimits,
};
use compute::Computed;
pub(crate) use steps::Steps;

pub use error::ServingError;
pub use steps::SequenceStats;
pub use stop_rules::StopRules;

/// Rows of logits that a step with prompts to score has at the same time, at most, where fewer sequences than that can
/// run.
pub const SCORED_AT_ONCE: usize = 16;

/// Sequences that share a model, a slab, a prefix cache and a scheduler.
pub struct Serving<'m> {
    model: &'m Model,
    slab: SharedSlab,
    steps: Steps,
    limits: StepLimits,
    end_of_text: Vec<u32>,
    /// The sequences that have not finished.
    states: BTreeMap<SequenceId, State>,
    /// The prompts that are not scored to their ends.
    scorings: BTreeMap<SequenceId, Scoring>,
    /// Sequences that have finished and were not reported yet.
    generated: Vec<SequenceOutput>,
}

/// What the loop knows of a sequence, beside its tokens and pages.
struct State {
    sampler: Sampler,
    stop_rules: StopRules,
    max_new_tokens: usize,
    /// Tokens drawn so far: those it has generated.
    drawn: usize,
    /// Whether each step hands out the logits of its token.
    keeps_logits: bool,
    /// The other samples of its prompt, until it has computed that.
    samples: Vec<Sequence>,
    /// Why it failed, if it did.
    error: Option<StepError>,
}

impl State {
    fn new(sampler: Sampler, max_new_tokens: usize) -> Self {
        let stop_rules = StopRules::default();
        State { sampler, stop_rules, max_new_tokens, drawn: 0, keeps_logits: false, samples: Vec::new(), error: None }
    }
}

/// What a sequence's logits lead to: its next token, or its end.
enum Next {
    Token(u32),
    End(Result<FinishReason, StepError>),
}

/// A sequence that has finished.
pub struct SequenceOutput {
    /// Its tokens and counters.
    pub sequence: Sequence,
    /// Why it ended; an error if the model had no next token for it.
    pub end: Result<FinishReason, StepError>,
    /// What it held at its end, and what it had computed twice.
    pub held: SequenceStats,
}

/// The result of a step.
#[derive(Default)]
pub struct Step {
    /// Which sequences computed how many tokens: the plan.
    pub chunks: Vec<ScheduledChunk>,
    /// The new tokens, in the order of the plan, those of samples after the first of theirs. Each token of a sequence
    /// is reported once, and no end of text.
    pub new_tokens: Vec<NextToken>,
    /// The tokens that ended their sequences: these are not part of them.
    pub ends: Vec<NextToken>,
    /// The scores of the prompts that are complete now: for each token but the first.
    pub scores: HashMap<SequenceId, Vec<TokenLogprobs>>,
    /// The sequences that have finished.
    pub generated: Vec<SequenceOutput>,
    /// The logits that new tokens and ends were chosen from, `[vocab_size]` each, of the sequences that
    /// [keep](Serving::keep_logits) them.
    pub logits: HashMap<SequenceId, Vec<f32>>,
}

/// What was done since the first sequence came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Passes of the model that a plan asked for.
    pub steps: u64,
    /// Tokens that went through the model.
    pub rows_projected: u64,
    /// Of these, tokens that were computed a second time after a preemption.
    pub recomputed: u64,
    /// New tokens.
    pub new_tokens: u64,
    /// Sequences that lost their pages to an older one and waited again.
    pub preemptions: u64,
    /// Tokens of the prompts of finished sequences that have run. A prompt that was forked is one of the first sample
    /// alone.
    pub prompt_tokens: u64,
    /// Of these, tokens that the prefix cache held when the sequence first ran.
    pub cached: u64,
    /// Tokens that it held when a sequence ran again.
    pub cached_again: u64,
    /// Sequences in one pass, at most.
    pub most_sequences: usize,
    /// Pages that sequences had at the same time, at most. A page that only the prefix cache owns is not counted.
    pub peak_pages: usize,
}

impl<'m> Serving<'m> {
    /// No sequences yet. `prefixes` keeps pages of this slab. `end_of_text`: tokens that end a sequence; they are not
    /// part of it.
    pub fn new(
        model: &'m Model,
        slab: &SharedSlab,
        prefixes: Box<dyn Prefixes>,
        limits: StepLimits,
        end_of_text: &[u32],
    ) -> Result<Self, ScheduleError> {
        let steps = Steps::new(slab, prefixes, limits, &[])?;
        let (states, scorings, generated) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let (slab, end_of_text) = (slab.clone(), end_of_text.to_vec());
        Ok(Serving { model, slab, steps, limits, end_of_text, states, scorings, generated })
    }

    /// Takes a sequence in; it waits after all others. It gets `max_new_tokens` at most.
    ///
    /// # Errors
    /// [`ServingError::Model`] if the model cannot compute the prompt or has too few positions for prompt and new tokens,
    /// [`ServingError::Schedule`] if the scheduler refuses. Nothing has changed then.
    pub fn submit(
        &mut self,
        prompt: Vec<u32>,
        max_new_tokens: usize,
        sampler: Sampler,
    ) -> Result<SequenceId, ServingError> {
        self.check(&prompt, max_new_tokens)?;
        let id = self.steps.submit(prompt, max_new_tokens)?;
        self.states.insert(id, State::new(sampler, max_new_tokens));
        self.collect()?;
        Ok(id)
    }

    /// Takes in a sequence for each of these samplers, all of one prompt, which the first computes. The others are
    /// forked from it then: they choose their first tokens from the same logits, and share the pages of the prompt. If
    /// the first is cancelled before that, the next one takes its place.
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit).
    pub fn submit_samples(
        &mut self,
        prompt: Vec<u32>,
        max_new_tokens: usize,
        samplers: Vec<Sampler>,
    ) -> Result<Vec<SequenceId>, ServingError> {
        if max_new_tokens == 0 {
            // There is nothing to compute, and nothing to share.
            return samplers.into_iter().map(|sampler| self.submit(prompt.clone(), 0, sampler)).collect();
        }
        let (mut ids, mut samples) = (Vec::new(), Vec::new());
        for sampler in samplers {
            if ids.is_empty() {
                ids.push(self.submit(prompt.clone(), max_new_tokens, sampler)?);
                continue;
            }
            let id = self.steps.scheduler.reserve_id();
            samples.push(Sequence::new(id, prompt.clone(), max_new_tokens)?);
            self.states.insert(id, State::new(sampler, max_new_tokens));
            ids.push(id);
        }
        if let Some(first) = ids.first().and_then(|first| self.states.get_mut(first)) {
            first.samples = samples;
        }
        Ok(ids)
    }

    /// Takes a sequence in, and scores its prompt: how likely each of its tokens was after those before it, and the
    /// `top` likeliest there. The step in which the prompt is complete hands all of that out, as [`Step::scores`]. A
    /// sequence that is to get no new token ends then. All of the prompt is computed, whatever the prefix cache has of
    /// it.
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit).
    pub fn submit_scored(
        &mut self,
        prompt: Vec<u32>,
        max_new_tokens: usize,
        sampler: Sampler,
        top: usize,
    ) -> Result<SequenceId, ServingError> {
        self.check(&prompt, max_new_tokens)?;
        // A scheduler finishes a sequence without a new token at once. This one ends when its prompt is scored.
        let id = self.steps.submit_without_lookup(prompt.clone(), max_new_tokens.max(1))?;
        self.states.insert(id, State::new(sampler, max_new_tokens));
        self.scorings.insert(id, Scoring::new(prompt, top));
        Ok(id)
    }

    fn check(&self, prompt: &[u32], max_new_tokens: usize) -> Result<(), StepError> {
        self.model.check(prompt, 0)?;
        let (len, max_positions) = (prompt.len().saturating_add(max_new_tokens), self.model.config().max_positions);
        if len > max_positions {
            return Err(StepError::TooLong { len, max_positions });
        }
        Ok(())
    }

    /// From now on each step hands out the logits that this sequence's token was chosen from. One that has finished has
    /// none.
    pub fn keep_logits(&mut self, id: SequenceId) {
        if let Some(state) = self.states.get_mut(&id) {
            state.keeps_logits = true;
        }
    }

    /// From now on this sequence ends by these rules.
    pub fn set_stop_rules(&mut self, id: SequenceId, stop_rules: StopRules) {
        if let Some(state) = self.states.get_mut(&id) {
            state.stop_rules = stop_rules;
        }
    }

    /// Ends a sequence that waits or runs. The next [`step`](Self::step) reports it.
    pub fn cancel(&mut self, id: SequenceId) -> Result<(), ScheduleError> {
        let mut families = self.states.values_mut().map(|state| &mut state.samples);
        let sample = families.find_map(|samples| {
            let place = samples.iter().position(|sample| sample.id == id)?;
            Some(samples.remove(place))
        });
        match sample {
            Some(sequence) => self.note_end(sequence, Ok(FinishReason::Cancelled)),
            None => self.steps.cancel(id)?,
        }
        self.collect()
    }

    /// Ends all sequences; returns those that were not reported yet, in no order. An error is the scheduler's fault.
    pub fn cancel_all(&mut self) -> Result<Vec<SequenceOutput>, ScheduleError> {
        let ids: Vec<SequenceId> = self.states.keys().copied().collect();
        ids.into_iter().try_for_each(|id| self.cancel(id))?;
        Ok(std::mem::take(&mut self.generated))
    }

    /// The sequences that wait, in the order in which they will run, and then the samples whose prompt is not computed
    /// yet.
    pub fn waiting(&self) -> impl Iterator<Item = &Sequence> {
        self.scheduler().waiting().chain(self.states.values().flat_map(|state| &state.samples))
    }

    /// The scheduler, with the sequences that wait and run.
    pub fn scheduler(&self) -> &Scheduler {
        &self.steps.scheduler
    }

    /// What a step may hold.
    pub fn limits(&self) -> StepLimits {
        self.limits
    }

    /// What was done so far.
    pub fn totals(&self) -> Totals {
        self.steps.totals
    }

    /// True when all sequences have finished and were reported.
    pub fn is_done(&self) -> bool {
        self.generated.is_empty() && self.states.is_empty()
    }

    /// One pass of the model, for the sequences that the scheduler's plan names.
    ///
    /// # Errors
    /// [`ServingError`], if the plan cannot be carried out: the scheduler is wrong then.
    pub fn step(&mut self) -> Result<Step, ServingError> {
        let chunks = self.steps.plan()?;
        let mut step = Step { chunks, ..Step::default() };
        if step.chunks.is_empty() {
            step.generated = std::mem::take(&mut self.generated);
            return Ok(step);
        }
        let Computed { logits, forks, scores } = self.compute(&step.chunks)?;
        step.scores = scores;
        let (mut tokens, mut ends, mut samples) = (Vec::new(), Vec::new(), Vec::new());
        for (sequence, logits) in logits {
            match self.draw(sequence, &logits, &mut step)? {
                Next::Token(token) => tokens.push(NextToken { sequence, token }),
                Next::End(end) => ends.push((sequence, end)),
            }
            for sample in std::mem::take(&mut self.state(sequence)?.samples) {
                let next = self.draw(sample.id, &logits, &mut step)?;
                samples.push((sequence, sample, next));
            }
        }
        self.settle(&tokens, ends)?;
        self.begin_samples(samples, forks)?;
        self.steps.check_progress()?;
        self.steps.totals.new_tokens += step.new_tokens.len() as u64;
        step.generated = std::mem::take(&mut self.generated);
        Ok(step)
    }

    fn state(&mut self, sequence: SequenceId) -> Result<&mut State, ServingError> {
        self.states.get_mut(&sequence).ok_or(ServingError::UnknownSequence(sequence))
    }

    /// Draws a sequence's next token, and notes it in the step.
    fn draw(
        &mut self,
        sequence: SequenceId,
        logits: &Result<Vec<f32>, StepError>,
        step: &mut Step,
    ) -> Result<Next, ServingError> {
        // Not `state`, which would borrow all of the loop.
        let state = self.states.get_mut(&sequence).ok_or(ServingError::UnknownSequence(sequence))?;
        let row = match logits {
            Ok(row) => row,
            Err(error) => return Ok(Next::End(Err(error.clone()))),
        };
        if state.drawn == state.max_new_tokens {
            // Its prompt was to be scored, and that is all.
            return Ok(Next::End(Ok(FinishReason::Limit)));
        }
        let (token, ends) = state.stop_rules.draw(&mut state.sampler, row, state.drawn, &self.end_of_text);
        state.drawn += 1;
        if state.keeps_logits {
            step.logits.insert(sequence, row.clone());
        }
        let drawn = if ends { &mut step.ends } else { &mut step.new_tokens };
        drawn.push(NextToken { sequence, token });
        Ok(if ends { Next::End(Ok(FinishReason::EndOfText)) } else { Next::Token(token) })
    }

    /// Hands the tokens of a step to the scheduler, and ends the sequences that get none.
    fn settle(
        &mut self,
        tokens: &[NextToken],
        ends: Vec<(SequenceId, Result<FinishReason, StepError>)>,
    ) -> Result<(), ServingError> {
        let mut reasons = Vec::new();
        for (sequence, end) in ends {
            reasons.push((sequence, *end.as_ref().unwrap_or(&FinishReason::Failed)));
            self.state(sequence)?.error = end.err();
        }
        self.steps.settle(tokens, &reasons)?;
        Ok(self.collect()?)
    }

    /// Lets samples go on with their first tokens, each with a fork of the cache that has computed their prompt.
    fn begin_samples(
        &mut self,
        samples: Vec<(SequenceId, Sequence, Next)>,
        mut forks: HashMap<SequenceId, Vec<ForkCache>>,
    ) -> Result<(), ScheduleError> {
        for (first, mut sample, next) in samples {
            let end = match next {
                Next::Token(token) => {
                    sample.tokens.push(token);
                    (sample.max_new_tokens == 1).then_some(Ok(FinishReason::Limit))
                }
                Next::End(end) => Some(end),
            };
            if let Some(end) = end {
                sample.counters.forked = sample.n_prompt;
                self.note_end(sample, end);
            } else {
                let fork = forks.get_mut(&first).and_then(Vec::pop);
                self.steps.submit_fork(sample, fork)?;
            }
        }
        Ok(())
    }

    /// Takes over the sequences that have finished.
    fn collect(&mut self) -> Result<(), ScheduleError> {
        for (finished, held) in self.steps.take_finished() {
            let Finished { sequence, reason } = finished;
            self.scorings.remove(&sequence.id);
            let Some(state) = self.states.remove(&sequence.id) else { continue };
            self.steps.totals.add(&sequence);
            let end = state.error.clone().map_or(Ok(reason), Err);
            // Its samples wait for a prompt that it has not computed.
            let mut samples = state.samples.into_iter();
            if let Some(error) = state.error {
                samples.for_each(|sample| self.note_end(sample, Err(error.clone())));
            } else if let Some(next) = samples.next() {
                if let Some(state) = self.states.get_mut(&next.id) {
                    state.samples = samples.collect();
                }
                self.steps.submit_fork(next, None)?;
            }
            self.generated.push(SequenceOutput { sequence, end, held });
        }
        Ok(())
    }

    /// Notes the end of a sequence that the scheduler does not have.
    fn note_end(&mut self, sequence: Sequence, end: Result<FinishReason, StepError>) {
        self.states.remove(&sequence.id);
        self.generated.push(SequenceOutput { sequence, end, held: SequenceStats::default() });
    }
}
