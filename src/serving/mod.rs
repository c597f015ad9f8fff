//! The loop that serves many sequences in pages, each from its request to the last of its output: in each step the
//! scheduled sequences compute their tokens, in one pass of the model.
//!
//! ```text
//!   plan        the scheduler decides which sequences compute how many tokens, and has made room for them
//!   compute     the model computes them all in one pass
//!   draw        each sequence that has computed all of its tokens draws the next one, with a sampler of its own
//!   settle      the scheduler adds these tokens, keeps full pages, and takes back the pages of sequences that finish
//!   output      their characters, as far as these are whole and cannot be part of a stop string
//! ```
//!
//! A sequence draws once for each of its tokens, and its sampler stays with it while it waits, so what it recomputes
//! after a preemption is what it has drawn already. A row has the same bits in any company. So a sequence gets the same
//! tokens as when it is generated alone.
//!
//! The samples of a [`GenerationRequest`] compute its prompt once: the others fork the cache of the first. A prompt
//! that is scored asks for the logits of all of its rows, each once, so the prefix cache is not asked for them. Logits
//! that are not finite end the sequence that they belong to, and no other, because the sequences of that step are then
//! computed one by one.
//!
//! With a [tokenizer](Engine::with_tokenizer), a step yields the output in characters, and stop strings end sequences.
//!
//! | Who counts | What | Filled by | Printed by |
//! |---|---|---|---|
//! | [`CacheUsage`](crate::cache::CacheUsage) | one cache: tokens, slots, bytes, copies | the cache | `generate` |
//! | [`SequenceCounters`](schedule::SequenceCounters) | a sequence: hits, recomputed | `Plan::add_chunk` | `batch` |
//! | [`EngineTotals`] | all sequences: steps, tokens, hits, peaks | `EngineScheduler`, the loop | `batch`, `/metrics`, live pages |
//! | [`TierCounters`](disk_tier::TierCounters) | pages to and from the page file | `DiskTier` | `batch`, `/metrics` |
//! | [`DraftCounters`](crate::generation::drafting::DraftCounters) | drafts, accepted or not | who accepts | `generate` |
//! | [`SearchCounters`](crate::generation::beams::SearchCounters) | a beam search | `beams::search` | `generate` |
//! | [`ReplayCounters`](crate::workload::ReplayCounters) | a workload without a model | `Replay` | `workload` |

mod active_sequence;
mod compute;
mod detokenizer;
pub mod disk_tier;
mod engine_scheduler;
mod error;
mod output;
pub mod schedule;
mod scheduler_access;
mod stop_params;
mod stop_strings;
mod tier_queue;
pub mod view;

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use crate::chapters::ch06_paged::SharedSlab;
use crate::chapters::ch10_fork::ForkCache;
use crate::chapters::ch12_scheduler::Scheduler;
use crate::generation::read_checker::ReadChecker;
use crate::generation::sampler::Sampler;
use crate::model::tokenizer::Tokenizer;
use crate::model::{Model, StepError};
use crate::prefix_cache::PrefixCache;
use crate::serving::schedule::{
    FinishReason, Finished, NextToken, ScheduleError, Sequence, SequenceId, StepLimits, max_rows,
};
use active_sequence::{ActiveSequence, Next};
use compute::Computed;
pub(crate) use engine_scheduler::EngineScheduler;

pub use active_sequence::GenerationRequest;
pub use engine_scheduler::{EngineTotals, PagesByState};
pub use error::{EngineError, SequenceError};
pub use output::{FinishedSequence, OutputDelta, OutputToken, StepOutput};
pub use stop_params::StopParams;
pub use tier_queue::TierQueue;

/// While prompts are scored, a step has as many rows of logits in memory as sequences can run, but never fewer than this.
pub const MIN_LOGIT_BATCH: usize = 16;

/// Sequences that share a model, a slab, a prefix cache and a scheduler.
pub struct Engine<'m> {
    model: &'m Model,
    tokenizer: Option<&'m Tokenizer>,
    slab: SharedSlab,
    page_size: usize,
    scheduler: EngineScheduler,
    end_of_text: Vec<u32>,
    active: BTreeMap<SequenceId, ActiveSequence<'m>>,
    /// Sequences that have finished and were not reported yet.
    finished: Vec<FinishedSequence>,
    checker: Option<Rc<ReadChecker>>,
}

impl<'m> Engine<'m> {
    /// No sequences yet. `prefix_cache`: of this slab. `end_of_text`: tokens that end a sequence, not part of it.
    pub fn new(
        model: &'m Model,
        slab: &SharedSlab,
        prefix_cache: Box<dyn PrefixCache>,
        limits: StepLimits,
        end_of_text: &[u32],
    ) -> Result<Self, ScheduleError> {
        Ok(Engine {
            model,
            tokenizer: None,
            slab: slab.clone(),
            page_size: ForkCache::new(slab)?.table().page_size(),
            scheduler: EngineScheduler::new(slab, prefix_cache, limits)?,
            end_of_text: end_of_text.to_vec(),
            active: BTreeMap::new(),
            finished: Vec::new(),
            checker: None,
        })
    }

    /// Lets steps yield output in characters, as this tokenizer decodes it.
    pub fn with_tokenizer(self, tokenizer: &'m Tokenizer) -> Self {
        Engine { tokenizer: Some(tokenizer), ..self }
    }

    /// Checks what attention reads. No sequence has been taken in yet.
    pub fn with_read_checker(self, checker: &Rc<ReadChecker>) -> Self {
        Engine { checker: Some(checker.clone()), ..self }
    }

    /// Takes a sequence in; it waits after all others. It gets `max_new_tokens` at most.
    ///
    /// # Errors
    /// Those of [`submit_request`](Self::submit_request).
    pub fn submit(
        &mut self,
        prompt: Vec<u32>,
        max_new_tokens: usize,
        sampler: Sampler,
    ) -> Result<SequenceId, EngineError> {
        Ok(self.submit_request(GenerationRequest::new(prompt, max_new_tokens, vec![sampler]))?[0])
    }

    /// Takes in a request's sequences; they wait after all others. Returns their ids, in the order of its samplers.
    ///
    /// The first computes the prompt. The others are forked from it then: they choose their first tokens from the same
    /// logits, and share the pages of the prompt. If the first is cancelled before that, the next one takes its place.
    ///
    /// If the prompt is to be scored, each sequence computes and scores all of it, whatever the prefix cache has of it,
    /// and hands all scores out together with its first token. One that is to get no new token ends then.
    ///
    /// # Errors
    /// [`EngineError::Model`] if the model cannot compute the prompt or has too few positions for prompt and new
    /// tokens, [`EngineError::Schedule`] if the scheduler refuses. Nothing has changed then.
    pub fn submit_request(&mut self, mut request: GenerationRequest) -> Result<Vec<SequenceId>, EngineError> {
        self.validate(&request)?;
        let samplers = std::mem::take(&mut request.samplers);
        let request = Rc::new(request);
        // Without a new token there is nothing to compute, and nothing to share.
        let are_forks = request.max_new_tokens > 0 && !request.prompt_logprobs;
        let (mut ids, mut siblings) = (Vec::new(), Vec::new());
        for sampler in samplers {
            let (prompt, most) = (request.prompt.clone(), request.max_new_tokens);
            let id = if request.prompt_logprobs {
                // A scheduler finishes a sequence without a new token at once. This one ends when its prompt is scored.
                let id = self.scheduler.submit(prompt, most.max(1))?;
                self.scheduler.skip_lookup(id);
                id
            } else if are_forks && !ids.is_empty() {
                let id = self.scheduler.reserve_id();
                siblings.push(Sequence::new(id, prompt, most)?);
                id
            } else {
                self.scheduler.submit(prompt, most)?
            };
            self.active.insert(id, ActiveSequence::new(&request, sampler, self.tokenizer));
            ids.push(id);
        }
        if let Some(first) = ids.first().and_then(|first| self.active.get_mut(first)) {
            first.siblings = siblings;
        }
        self.collect()?;
        Ok(ids)
    }

    /// Checks that [`submit_request`](Self::submit_request) would take a request in.
    ///
    /// # Errors
    /// Those of `submit_request`.
    pub fn validate(&self, request: &GenerationRequest) -> Result<(), EngineError> {
        self.model.validate(&request.prompt, 0)?;
        let (prompt, max_new_tokens) = (request.prompt.len(), request.max_new_tokens);
        let (len, max_positions) = (prompt.saturating_add(max_new_tokens), self.model.config().max_positions);
        if len > max_positions {
            return Err(StepError::TooLong { len, max_positions }.into());
        }
        let n_pages = self.slab.borrow().pool().n_pages();
        let scored = if request.prompt_logprobs { prompt } else { 0 };
        let needed = max_rows(prompt, max_new_tokens).max(scored).div_ceil(self.page_size);
        if needed > n_pages {
            return Err(ScheduleError::NeverFits { prompt, max_new_tokens, needed, n_pages }.into());
        }
        Ok(())
    }

    /// Ends a sequence that waits or runs, or that has finished and was not reported yet. No step reports it.
    ///
    /// # Errors
    /// [`ScheduleError::UnknownSequence`] if there is no such sequence.
    pub fn cancel(&mut self, id: SequenceId) -> Result<FinishedSequence, ScheduleError> {
        if !self.finished.iter().any(|finished| finished.sequence.id == id) {
            let mut families = self.active.values_mut().map(|state| &mut state.siblings);
            let sibling = families.find_map(|siblings| {
                let index = siblings.iter().position(|sibling| sibling.id == id)?;
                Some(siblings.remove(index))
            });
            match sibling {
                Some(sequence) => self.finish(sequence, Ok(FinishReason::Abort)),
                None => self.scheduler.cancel(id)?,
            }
            self.collect()?;
        }
        let index = self.finished.iter().position(|finished| finished.sequence.id == id);
        Ok(self.finished.remove(index.ok_or(ScheduleError::UnknownSequence(id))?))
    }

    /// Takes back the newest `n` tokens of a running sequence, which draws others in their place.
    ///
    /// # Errors
    /// Those of the scheduler's `rewind`. Nothing has changed then.
    pub fn rewind(&mut self, id: SequenceId, n: usize) -> Result<(), ScheduleError> {
        let kept = self.scheduler.rewind(id, n)?;
        if let Some(state) = self.active.get_mut(&id) {
            state.rewind_to(kept, self.tokenizer);
        }
        Ok(())
    }

    /// Ends all sequences; returns those that were not reported yet, in no order. An error is the scheduler's fault.
    pub fn cancel_all(&mut self) -> Result<Vec<FinishedSequence>, ScheduleError> {
        let ids: Vec<SequenceId> = self.active.keys().copied().collect();
        let cancelled = ids.into_iter().map(|id| self.cancel(id)).collect::<Result<Vec<_>, _>>()?;
        Ok(self.finished.drain(..).chain(cancelled).collect())
    }

    /// The sequences that wait, in the order in which they will run, then the siblings whose prompt is not computed yet.
    pub fn waiting(&self) -> impl Iterator<Item = &Sequence> {
        self.scheduler().waiting().chain(self.active.values().flat_map(|state| &state.siblings))
    }

    /// How the prompt of a sequence begins, and its output so far. Both are empty without a tokenizer.
    pub(crate) fn text(&self, id: SequenceId) -> (&str, &str) {
        self.active.get(&id).map_or(("", ""), ActiveSequence::text)
    }

    pub fn scheduler(&self) -> &Scheduler {
        self.scheduler.scheduler()
    }

    pub fn pages(&self) -> PagesByState {
        self.scheduler.pages_by_state()
    }

    pub fn limits(&self) -> StepLimits {
        self.scheduler().limits
    }

    pub fn totals(&self) -> EngineTotals {
        self.scheduler.totals()
    }

    /// True when all sequences have finished and were reported.
    pub fn is_done(&self) -> bool {
        self.finished.is_empty() && self.active.is_empty()
    }

    /// One pass of the model, for the sequences that the scheduler's plan names.
    ///
    /// # Errors
    /// [`EngineError`], if the plan cannot be carried out: the scheduler is wrong then.
    pub fn step(&mut self) -> Result<StepOutput, EngineError> {
        let siblings: usize = self.active.values().map(|state| state.siblings.len()).sum();
        let chunks = self.scheduler.plan(self.active.len() - siblings)?;
        let mut step = StepOutput { chunks, ..StepOutput::default() };
        if !step.chunks.is_empty() {
            self.compute_and_settle(&mut step)?;
        }
        step.finished = std::mem::take(&mut self.finished);
        Ok(step)
    }

    fn compute_and_settle(&mut self, step: &mut StepOutput) -> Result<(), EngineError> {
        let Computed { logits, forks } = self.compute(&step.chunks)?;
        let (mut tokens, mut ends, mut siblings) = (Vec::new(), Vec::new(), Vec::new());
        for (id, logits) in logits {
            let Next { token, end } = self.sample(id, &logits, step)?;
            tokens.extend(token.map(|token| NextToken { sequence_id: id, token }));
            ends.extend(end.map(|end| (id, end)));
            for sibling in std::mem::take(&mut self.state(id)?.siblings) {
                let next = self.sample(sibling.id, &logits, step)?;
                siblings.push((id, sibling, next));
            }
        }
        self.settle(&tokens, ends)?;
        Ok(self.begin_siblings(siblings, forks)?)
    }

    fn state(&mut self, id: SequenceId) -> Result<&mut ActiveSequence<'m>, EngineError> {
        self.active.get_mut(&id).ok_or(EngineError::UnknownSequence(id))
    }

    /// Samples a sequence's next token, and notes it in the step with its output.
    fn sample(
        &mut self,
        id: SequenceId,
        logits: &Result<Vec<f32>, StepError>,
        step: &mut StepOutput,
    ) -> Result<Next, EngineError> {
        // Not `self.state`, which would borrow all of `self`.
        let state = self.active.get_mut(&id).ok_or(EngineError::UnknownSequence(id))?;
        let next = state.sample(logits, &self.end_of_text);
        step.new_tokens.extend(next.token.map(|token| NextToken { sequence_id: id, token }));
        if next.end.is_none() && !state.delta.is_empty() {
            step.deltas.push((id, std::mem::take(&mut state.delta)));
        }
        Ok(next)
    }

    /// Hands the tokens of a step to the scheduler, and ends the sequences that have an end.
    fn settle(
        &mut self,
        tokens: &[NextToken],
        ends: Vec<(SequenceId, Result<FinishReason, SequenceError>)>,
    ) -> Result<(), EngineError> {
        let mut reasons = Vec::new();
        for (sequence, end) in ends {
            reasons.push((sequence, *end.as_ref().unwrap_or(&FinishReason::Error)));
            self.state(sequence)?.error = end.err();
        }
        self.scheduler.settle(tokens, &reasons)?;
        Ok(self.collect()?)
    }

    /// Lets siblings go on with their first tokens, each with a fork of the cache that has computed their prompt.
    fn begin_siblings(
        &mut self,
        siblings: Vec<(SequenceId, Sequence, Next)>,
        mut forks: HashMap<SequenceId, Vec<ForkCache>>,
    ) -> Result<(), ScheduleError> {
        for (first, mut sibling, Next { token, end }) in siblings {
            sibling.tokens.extend(token);
            self.scheduler.count_new(sibling.new_tokens().len());
            if let Some(end) = end.or((sibling.max_new_tokens == 1).then_some(Ok(FinishReason::Length))) {
                sibling.counters.forked_tokens = sibling.n_prompt;
                self.finish(sibling, end);
            } else {
                let fork = forks.get_mut(&first).and_then(Vec::pop);
                self.scheduler.submit_fork(sibling, fork)?;
            }
        }
        Ok(())
    }

    /// Takes over the sequences that the scheduler has finished.
    fn collect(&mut self) -> Result<(), ScheduleError> {
        for Finished { sequence, reason } in self.scheduler.take_finished() {
            let Some(state) = self.active.get_mut(&sequence.id) else { continue };
            // Its siblings wait for a prompt that it has not computed.
            let (error, mut siblings) = (state.error.take(), std::mem::take(&mut state.siblings).into_iter());
            if let Some(error) = &error {
                siblings.for_each(|sibling| self.finish(sibling, Err(error.clone())));
            } else if let Some(next) = siblings.next() {
                if let Some(state) = self.active.get_mut(&next.id) {
                    state.siblings = siblings.collect();
                }
                self.scheduler.submit_fork(next, None)?;
            }
            self.finish(sequence, error.map_or(Ok(reason), Err));
        }
        Ok(())
    }

    /// Reports the end of a sequence that is not in the scheduler: it has left it, or was never handed to it.
    fn finish(&mut self, sequence: Sequence, end: Result<FinishReason, SequenceError>) {
        let state = self.active.remove(&sequence.id);
        self.finished.extend(state.map(|state| state.finish(sequence, end)));
    }
}
