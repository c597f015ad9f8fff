//! The loop that serves many sequences in pages: in each step the scheduled sequences compute their tokens, in one pass of the
//! model.
//!
//! ```text
//!   plan        the scheduler decides which sequences compute how many tokens, and has made room for them
//!   forward     the model computes them all in one pass
//!   pick        each sequence that has computed all of its tokens draws the next one, with a sampler of its own
//!   settle      the scheduler adds these tokens, keeps full pages, and takes back the pages of sequences that finish
//! ```
//!
//! A sequence draws once for each of its tokens, and its sampler stays with it while it waits, so what it recomputes after a
//! preemption is what it has drawn already. A row has the same bits in any company. So a sequence gets the same tokens as when it
//! is generated alone.
//!
//! Samples of one prompt compute it once, and the others [fork](Serving::submit_samples) the cache of the first. A prompt that is
//! [scored](Serving::submit_scored) asks for the logits of all of its rows, each once. Logits that are not finite end the sequence
//! that they belong to, and no other, because the sequences of that step are then computed one by one.

mod compute;
mod error;
mod lookups;
mod samples;
pub mod schedule;
pub mod side_by_side;
mod steps;
mod stop_rules;
pub mod view;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::chapters::ch06_paged::SharedSlab;
use crate::chapters::ch12_scheduler::Scheduler;
use crate::decode::sampler::Sampler;
use crate::decode::scoring::{Likely, Scoring, Scorings};
use crate::model::{Model, StepError};
use crate::prefixes::Prefixes;
use crate::serving::schedule::{
    FinishReason, Finished, NextToken, ScheduleError, ScheduledChunk, Sequence, SequenceId, StepLimits,
};
use compute::Computed;
use lookups::{Forks, Lookups};
pub(crate) use steps::Steps;

pub use error::ServingError;
pub use steps::Held;
pub use stop_rules::StopRules;

/// Handed to the scheduler to end a sequence. No vocabulary is that large.
const STOP: u32 = u32::MAX;
/// Rows of logits that a step with prompts to score has at the same time, at most, where fewer sequences than that can run.
pub const SCORED_AT_ONCE: usize = 16;

/// Sequences that share a model, a slab, a prefix cache and a scheduler.
pub struct Serving<'m> {
    model: &'m Model,
    slab: SharedSlab,
    steps: Steps,
    limits: StepLimits,
    end_of_text: Vec<u32>,
    companions: HashMap<SequenceId, Companion>,
    /// The prompts that are not scored to their ends.
    scorings: Scorings,
    forks: Rc<RefCell<Forks>>,
    /// Samples that were not reported yet, after the sequences whose prompt they share.
    forked: Vec<(SequenceId, SequenceId)>,
    /// Sequences that have finished and were not reported yet.
    generated: Vec<Generated>,
}

/// What the loop knows of a sequence, beside its tokens and pages.
struct Companion {
    sampler: Sampler,
    stop_rules: StopRules,
    /// Tokens drawn so far: those it has generated.
    drawn: usize,
    /// Whether each step hands out the logits of its token.
    keeps_logits: bool,
    /// Whether it ends when its prompt is scored.
    only_scored: bool,
    /// The other samples of its prompt, until it has computed that.
    samples: Vec<Sampler>,
    /// Tokens of a forked sample's prompt, because the scheduler counts its first token as one of them.
    n_prompt: Option<usize>,
    /// Why it ends, if the scheduler has a different reason.
    end: Option<Result<FinishReason, StepError>>,
}

impl Companion {
    fn new(sampler: Sampler) -> Self {
        let (stop_rules, drawn, keeps_logits, only_scored, samples, n_prompt, end) = Default::default();
        Companion { sampler, stop_rules, drawn, keeps_logits, only_scored, samples, n_prompt, end }
    }
}

/// A sequence that has finished.
pub struct Generated {
    /// Its tokens and counters.
    pub sequence: Sequence,
    /// Why it ended; an error if the model had no next token for it.
    pub end: Result<FinishReason, StepError>,
    /// What it held at its end, and what it had computed twice.
    pub held: Held,
}

/// The result of a step.
#[derive(Default)]
pub struct Step {
    /// Which sequences computed how many tokens: the plan.
    pub chunks: Vec<ScheduledChunk>,
    /// The new tokens, in the order of the plan, and of samples that begin. Each token of a sequence is reported once, and no
    /// end of text.
    pub new_tokens: Vec<NextToken>,
    /// The tokens that ended their sequences: these are not part of them.
    pub ends: Vec<NextToken>,
    /// The samples that begin, after the sequence whose prompt they share, in the order of their samplers.
    pub forked: Vec<(SequenceId, SequenceId)>,
    /// The scores of the prompts that are complete now: for each token but the first.
    pub scores: HashMap<SequenceId, Vec<Likely>>,
    /// The sequences that have finished.
    pub generated: Vec<Generated>,
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
    /// Tokens of the prompts of finished sequences that have run.
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
    /// No sequences yet. `prefixes` keeps pages of this slab. `end_of_text`: tokens that end a sequence; they are not part of it.
    pub fn new(
        model: &'m Model,
        slab: &SharedSlab,
        prefixes: Box<dyn Prefixes>,
        limits: StepLimits,
        end_of_text: &[u32],
    ) -> Result<Self, ScheduleError> {
        let (scorings, forks) = (Scorings::default(), Rc::new(RefCell::new(Forks::default())));
        let lookups = Lookups { inner: prefixes, scorings: scorings.clone(), forks: forks.clone() };
        let steps = Steps::new(slab, Box::new(lookups), limits, &[STOP])?;
        let (companions, forked, generated) = Default::default();
        let (slab, end_of_text) = (slab.clone(), end_of_text.to_vec());
        Ok(Serving { model, slab, steps, limits, end_of_text, companions, scorings, forks, forked, generated })
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
        self.take_in(prompt, max_new_tokens, Companion::new(sampler))
    }

    /// Takes in a sequence for each of these samplers, at least one, all of one prompt, which is computed once. Returns the first;
    /// the others begin in the step that computes the prompt, and are reported then, as [`Step::forked`]. They choose their
    /// first tokens from the same logits as the first, and share the pages of the prompt. If the first is cancelled before that,
    /// they never begin.
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit).
    pub fn submit_samples(
        &mut self,
        prompt: Vec<u32>,
        max_new_tokens: usize,
        samplers: Vec<Sampler>,
    ) -> Result<SequenceId, ServingError> {
        self.check(&prompt, max_new_tokens)?;
        let mut samplers = samplers.into_iter();
        let first = Companion::new(samplers.next().expect("at least one sampler"));
        if max_new_tokens > 0 {
            return self.take_in(prompt, max_new_tokens, Companion { samples: samplers.collect(), ..first });
        }
        // There is nothing to compute, and no logits to wait for.
        let first = self.take_in(prompt.clone(), 0, first)?;
        for sampler in samplers {
            let sample = self.take_in(prompt.clone(), 0, Companion::new(sampler))?;
            self.forked.push((first, sample));
        }
        Ok(first)
    }

    /// Takes a sequence in, and scores its prompt: how likely each of its tokens was after those before it, and the `top`
    /// likeliest there. The step in which the prompt is complete hands all of that out, as [`Step::scores`]. A sequence that
    /// is to get no new token ends then. All of the prompt is computed, whatever the prefix cache has of it.
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
        let companion = Companion { only_scored: max_new_tokens == 0, ..Companion::new(sampler) };
        // Where there is no new token to come, the scheduler has nothing to do: it gets an end of text in its place.
        let id = self.take_in(prompt.clone(), max_new_tokens.max(1), companion)?;
        self.scorings.borrow_mut().insert(id, Scoring::new(prompt, top));
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

    fn take_in(
        &mut self,
        prompt: Vec<u32>,
        max_new_tokens: usize,
        companion: Companion,
    ) -> Result<SequenceId, ServingError> {
        let id = self.steps.submit(prompt, max_new_tokens)?;
        self.companions.insert(id, companion);
        self.collect();
        Ok(id)
    }

    /// From now on each step hands out the logits that this sequence's token was chosen from. One that has finished has none.
    pub fn keep_logits(&mut self, id: SequenceId) {
        if let Some(companion) = self.companions.get_mut(&id) {
            companion.keeps_logits = true;
        }
    }

    /// From now on this sequence ends by these rules.
    pub fn set_stop_rules(&mut self, id: SequenceId, stop_rules: StopRules) {
        if let Some(companion) = self.companions.get_mut(&id) {
            companion.stop_rules = stop_rules;
        }
    }

    /// Ends a sequence that waits or runs. The next [`step`](Self::step) reports it.
    pub fn cancel(&mut self, id: SequenceId) -> Result<(), ScheduleError> {
        self.steps.cancel(id)?;
        self.collect();
        self.release_forks()
    }

    /// Ends all sequences; returns those that were not reported yet, in no order. An error is the scheduler's fault.
    pub fn cancel_all(&mut self) -> Result<Vec<Generated>, ScheduleError> {
        let running = self.scheduler().running().map(|(sequence, _)| sequence.id);
        let ids: Vec<SequenceId> = running.chain(self.scheduler().waiting().map(|sequence| sequence.id)).collect();
        ids.into_iter().try_for_each(|id| self.cancel(id))?;
        Ok(std::mem::take(&mut self.generated))
    }

    fn release_forks(&self) -> Result<(), ScheduleError> {
        Ok(self.forks.borrow_mut().release(&mut self.slab.borrow_mut().pool)?)
    }

    /// Tokens of the prompt of a forked sample, whose first token the scheduler counts as one more of them; `None` for all other
    /// sequences.
    pub fn forked_prompt(&self, sequence: &Sequence) -> Option<usize> {
        self.companions.get(&sequence.id).and_then(|companion| companion.n_prompt)
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
        self.generated.is_empty() && self.forked.is_empty() && self.companions.is_empty()
    }

    /// One pass of the model, for the sequences that the scheduler's plan names.
    ///
    /// # Errors
    /// [`ServingError`], if the plan cannot be carried out: the scheduler is wrong then.
    pub fn step(&mut self) -> Result<Step, ServingError> {
        let chunks = self.plan()?;
        if chunks.is_empty() {
            return Ok(self.report(Step::default()));
        }
        let Computed { answers, scores, failed } = self.compute(&chunks)?;
        let mut step = Step { chunks, scores, ..Step::default() };
        let (mut tokens, mut samples) = (Vec::new(), Vec::new());
        for (sequence, answer) in answers {
            samples.extend(self.draw_samples(sequence, &answer)?);
            let token = self.draw(sequence, answer, &mut step)?;
            tokens.push(NextToken { sequence, token });
        }
        self.steps.settle(&tokens)?;
        for (sequence, error) in failed {
            self.companion(sequence)?.end = Some(Err(error));
            self.steps.scheduler.cancel(sequence).map_err(ServingError::of_step)?;
        }
        self.collect();
        self.steps.check_progress()?;
        for sample in samples {
            self.begin_samples(sample, &mut step)?;
        }
        self.steps.totals.new_tokens += step.new_tokens.len() as u64;
        Ok(self.report(step))
    }

    /// The next plan. Samples that it does not begin hold no pages of their prompt while they wait.
    fn plan(&mut self) -> Result<Vec<ScheduledChunk>, ServingError> {
        let had_forks = !self.forks.borrow().is_empty();
        let plan = self.steps.plan();
        self.release_forks()?;
        match plan {
            // The forks had the pages that the next sequence needs.
            Err(ServingError::EmptyPlan { .. }) if had_forks => self.steps.plan(),
            plan => plan,
        }
    }

    fn companion(&mut self, sequence: SequenceId) -> Result<&mut Companion, ServingError> {
        self.companions.get_mut(&sequence).ok_or(ServingError::UnknownSequence(sequence))
    }

    /// Draws a sequence's next token, and notes it in the step. Returns it, or [`STOP`] in place of one that ends the sequence.
    fn draw(
        &mut self,
        sequence: SequenceId,
        answer: Result<Vec<f32>, StepError>,
        step: &mut Step,
    ) -> Result<u32, ServingError> {
        // Not `companion`, which would borrow all of the loop.
        let companion = self.companions.get_mut(&sequence).ok_or(ServingError::UnknownSequence(sequence))?;
        let row = match answer {
            Ok(_) if companion.only_scored => return Ok(STOP),
            Ok(row) => row,
            Err(error) => {
                companion.end = Some(Err(error));
                return Ok(STOP);
            }
        };
        let Companion { sampler, stop_rules, drawn, .. } = companion;
        let (token, ends) = stop_rules.draw(sampler, &row, *drawn, &self.end_of_text);
        *drawn += 1;
        if companion.keeps_logits {
            step.logits.insert(sequence, row);
        }
        let drawn = if ends { &mut step.ends } else { &mut step.new_tokens };
        drawn.push(NextToken { sequence, token });
        Ok(if ends { STOP } else { token })
    }

    fn report(&mut self, step: Step) -> Step {
        let (forked, generated) = (std::mem::take(&mut self.forked), std::mem::take(&mut self.generated));
        Step { forked, generated, ..step }
    }

    /// Takes over the sequences that have finished.
    fn collect(&mut self) {
        for (mut finished, held) in self.steps.take_finished() {
            let id = finished.sequence.id;
            self.scorings.borrow_mut().remove(&id);
            let Some(companion) = self.companions.remove(&id) else { continue };
            finished.sequence.n_prompt = companion.n_prompt.unwrap_or(finished.sequence.n_prompt);
            self.steps.totals.add(&finished);
            let Finished { sequence, reason } = finished;
            let end = match reason {
                FinishReason::EndOfText if companion.only_scored => FinishReason::Limit,
                reason => reason,
            };
            self.generated.push(Generated { sequence, end: companion.end.unwrap_or(Ok(end)), held });
        }
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        // The slab may be used after this; the page table's error would be the scheduler's, and it has been reported.
        let _ = self.release_forks();
    }
}
