//! The loop around the scheduler: in each step the texts of a plan read their tokens, in one pass of the model.
//!
//! ```text
//!   plan        the scheduler says who reads how many tokens, and has made room for them
//!   forward     the model reads them all in one pass
//!   pick        each text that has read all of its tokens draws the next one, with a sampler of its own
//!   settle      the scheduler adds these tokens, keeps full pages, and takes back the pages of texts that end
//! ```
//!
//! A text draws once for each of its tokens, and its sampler stays with it while it waits. What it reads again after a
//! preemption is what it has drawn already. A row has the same bits in any company, and so a text is the same as when it is
//! told alone, however often it was stopped.
//!
//! Logits that are not finite end the text that they belong to, and no other: the texts of that step are then asked one by
//! one, which gives the same rows again.

use std::collections::HashMap;

use crate::cache::KvCache;
use crate::chapters::ch06_paged::SharedSlab;
use crate::chapters::ch10_fork::ForkCache;
use crate::chapters::ch12_scheduler::{Finished, Reading, Scheduler, Text};
use crate::in_place::CacheRef;
use crate::model::{LogitRows, Model, StepError};
use crate::prefixes::Prefixes;
use crate::sampler::Sampler;
use crate::schedule::{End, Pick, ScheduleError, StepLimits, TextId, Turn};

/// Chosen to end a text that the model has no next token for. No vocabulary is that large.
const STOP: u32 = u32::MAX;

/// Texts that share a model, a slab, a prefix cache and a scheduler.
pub struct Serving<'m> {
    model: &'m Model,
    slab: SharedSlab,
    scheduler: Scheduler,
    limits: StepLimits,
    end_of_text: Vec<u32>,
    tellers: HashMap<TextId, Teller>,
    /// Texts that have ended and were not reported yet.
    told: Vec<Told>,
    totals: Totals,
    stall: Stall,
}

/// What a text has beside its tokens and pages: it keeps this while it waits.
struct Teller {
    sampler: Sampler,
    reached: Reached,
    computed_again: u64,
    /// Whether each step hands out the logits of its token.
    keeps_logits: bool,
    error: Option<StepError>,
}

impl Teller {
    fn new(sampler: Sampler) -> Self {
        Teller { sampler, reached: Reached::default(), computed_again: 0, keeps_logits: false, error: None }
    }
}

/// Tokens that a text has had rows of at the same time, at most.
#[derive(Default)]
pub(crate) struct Reached(usize);

impl Reached {
    /// The text reads its next `n` tokens, and then has the rows of `len`. How many of them it had had before.
    pub(crate) fn read(&mut self, n: usize, len: usize) -> u64 {
        // What the prefix cache has brought, it has had as well.
        let again = self.0.min(len).saturating_sub(len - n);
        self.0 = self.0.max(len);
        again as u64
    }
}

/// Sees that the plans of a scheduler lead somewhere.
#[derive(Default)]
pub(crate) struct Stall {
    /// Steps since a text last got a token or ended.
    idle_steps: usize,
}

impl Stall {
    /// Refuses an empty plan where there is something to do. `expected`: texts that were taken in and have not ended.
    pub(crate) fn check_plan(&self, plan: &[Turn], scheduler: &Scheduler, expected: usize) -> Result<(), ServingError> {
        if plan.is_empty() && expected > 0 {
            let (waiting, running) = (scheduler.waiting().count(), scheduler.running().count());
            return Err(ServingError::EmptyPlan { expected, waiting, running });
        }
        Ok(())
    }

    /// A text needs no more steps than it has tokens to get its next one, if it goes on in each. The oldest does.
    pub(crate) fn check_progress(&mut self, picks: &[Pick], scheduler: &Scheduler) -> Result<(), ServingError> {
        self.idle_steps = if picks.is_empty() { self.idle_steps + 1 } else { 0 };
        let waiting = scheduler.waiting().next().map_or(0, |text| text.tokens.len());
        let tokens = scheduler.running().map(|(text, _)| text.tokens.len()).max().unwrap_or(0).max(waiting);
        if self.idle_steps > tokens {
            return Err(ServingError::NobodyGoesOn { steps: self.idle_steps, tokens });
        }
        Ok(())
    }
}

/// A text that has ended.
pub struct Told {
    /// Its tokens and counters.
    pub text: Text,
    /// Why it ended; an error if the model had no next token for it.
    pub end: Result<End, StepError>,
    /// Of the tokens computed, those whose rows it had had before, and lost when it was preempted.
    pub computed_again: u64,
}

/// What came of a step.
#[derive(Default)]
pub struct Step {
    /// Who read how many tokens: the plan.
    pub turns: Vec<Turn>,
    /// The new tokens, in the order of the plan. Each token of a text is reported once, and no end of text.
    pub new_tokens: Vec<Pick>,
    /// The texts that have ended.
    pub told: Vec<Told>,
    /// The logits that new tokens were chosen from, `[vocab_size]` each, of the texts for which somebody has
    /// [asked](Serving::keep_logits).
    pub logits: HashMap<TextId, Vec<f32>>,
}

/// What was done since the first text came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Passes of the model that a plan asked for.
    pub steps: u64,
    /// Tokens that went through the model.
    pub rows_projected: u64,
    /// Of these, tokens whose rows their text had had before, and lost when it was preempted.
    pub computed_again: u64,
    /// New tokens.
    pub new_tokens: u64,
    /// Texts that lost their pages to an older one and waited again.
    pub preemptions: u64,
    /// Tokens of prompts of texts that have run.
    pub prompt_tokens: u64,
    /// Of these, tokens that the prefix cache held when the text first ran.
    pub found: u64,
    /// Tokens that it held when a text ran again.
    pub found_again: u64,
    /// Texts in one pass, at most.
    pub most_texts: usize,
    /// Pages that texts had at the same time, at most. A page that only the prefix cache keeps is not counted.
    pub peak_pages: usize,
}

/// Why a text was not taken in, or why no step could be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ServingError {
    /// The model cannot read it.
    #[error(transparent)]
    Model(#[from] StepError),
    /// The scheduler refused.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The scheduler's plan has nothing to do, and there is something to do.
    #[error(
        "the plan is empty, but {expected} texts have not ended ({waiting} wait, {running} run): nobody will ever go on; run \
         the checks of chapter 12"
    )]
    EmptyPlan {
        /// Texts that were taken in and have not ended.
        expected: usize,
        /// Texts that wait.
        waiting: usize,
        /// Texts that run.
        running: usize,
    },
    /// The scheduler's plans lead nowhere.
    #[error(
        "in {steps} steps no text has got a token, and the longest has {tokens} to read: the oldest text must go on in every \
         step; run the checks of chapter 12"
    )]
    NobodyGoesOn {
        /// Steps without a new token.
        steps: usize,
        /// Tokens of the longest text.
        tokens: usize,
    },
    /// The scheduler plans a text that it was not handed, that has ended, or that it does not run.
    #[error("text {0} is in the plan, but neither waiting nor running; run the checks of chapter 12")]
    LostText(TextId),
    /// The scheduler has lost a text of its plan.
    #[error("text {0} is in the plan, but not among what there is to read; run the checks of chapter 12")]
    NotAmongReadings(TextId),
}

impl ServingError {
    /// What plan or settle refused: nobody has named a text but the scheduler itself.
    pub(crate) fn of_step(error: ScheduleError) -> Self {
        match error {
            ScheduleError::UnknownText(text) => ServingError::LostText(text),
            error => ServingError::Schedule(error),
        }
    }
}

impl<'m> Serving<'m> {
    /// No texts yet. `prefixes` keeps pages of this slab. `end_of_text`: tokens that end a text; they are not part of it.
    ///
    /// # Errors
    /// [`ScheduleError::NoStep`].
    pub fn new(
        model: &'m Model,
        slab: &SharedSlab,
        prefixes: Box<dyn Prefixes>,
        limits: StepLimits,
        end_of_text: &[u32],
    ) -> Result<Self, ScheduleError> {
        let end_of_text = [end_of_text, &[STOP]].concat();
        let scheduler = Scheduler::new(slab, prefixes, limits, &end_of_text)?;
        Ok(Serving {
            model,
            slab: slab.clone(),
            scheduler,
            limits,
            end_of_text,
            tellers: HashMap::new(),
            told: Vec::new(),
            totals: Totals::default(),
            stall: Stall::default(),
        })
    }

    /// Takes a text in; it waits behind all others. It gets `max_new_tokens` at most.
    ///
    /// # Errors
    /// [`ServingError::Model`] if the model cannot read the prompt or has no positions for so many tokens,
    /// [`ServingError::Schedule`] if the scheduler refuses. Nothing has changed then.
    pub fn submit(
        &mut self,
        prompt: Vec<u32>,
        max_new_tokens: usize,
        sampler: Sampler,
    ) -> Result<TextId, ServingError> {
        self.model.check(&prompt, 0)?;
        let (len, max_positions) = (prompt.len().saturating_add(max_new_tokens), self.model.config().max_positions);
        if len > max_positions {
            return Err(StepError::TooLong { len, max_positions }.into());
        }
        let id = self.scheduler.submit(prompt, max_new_tokens)?;
        self.tellers.insert(id, Teller::new(sampler));
        self.collect();
        Ok(id)
    }

    /// From now on each step hands out the logits that this text's token was chosen from. A text that has ended has none.
    pub fn keep_logits(&mut self, id: TextId) {
        if let Some(teller) = self.tellers.get_mut(&id) {
            teller.keeps_logits = true;
        }
    }

    /// Ends a text that waits or runs. The next [`step`](Self::step) reports it.
    ///
    /// # Errors
    /// [`ScheduleError::UnknownText`].
    pub fn cancel(&mut self, id: TextId) -> Result<(), ScheduleError> {
        self.scheduler.cancel(id)?;
        // Whoever goes in the middle of a prompt takes the steps with it that led to no token.
        self.stall = Stall::default();
        self.collect();
        Ok(())
    }

    /// Ends all texts; returns those that were not reported yet, in no order.
    ///
    /// # Errors
    /// [`ScheduleError`], if the scheduler does not know a text that it has named itself.
    pub fn cancel_all(&mut self) -> Result<Vec<Told>, ScheduleError> {
        let running = self.scheduler.running().map(|(text, _)| text.id);
        let ids: Vec<TextId> = running.chain(self.scheduler.waiting().map(|text| text.id)).collect();
        ids.into_iter().try_for_each(|id| self.cancel(id))?;
        Ok(std::mem::take(&mut self.told))
    }

    /// The scheduler, with the texts that wait and run.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// What a step may hold.
    pub fn limits(&self) -> StepLimits {
        self.limits
    }

    /// What was done so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// True when all texts have ended and were reported.
    pub fn is_done(&self) -> bool {
        self.told.is_empty() && self.tellers.is_empty()
    }

    /// One pass of the model, for the texts that the scheduler's plan names.
    ///
    /// # Errors
    /// [`ServingError`], if the plan cannot be carried out: whoever wrote the scheduler wants to know.
    pub fn step(&mut self) -> Result<Step, ServingError> {
        let plan = self.scheduler.plan().map_err(ServingError::of_step)?;
        self.stall.check_plan(&plan, &self.scheduler, self.tellers.len())?;
        if plan.is_empty() {
            return Ok(Step { told: std::mem::take(&mut self.told), ..Step::default() });
        }
        self.count(&plan);
        let answers = self.compute(&plan)?;

        let (mut picks, mut kept) = (Vec::new(), HashMap::new());
        for (text, answer) in answers {
            let Some(teller) = self.tellers.get_mut(&text) else { return Err(ServingError::LostText(text)) };
            let token = match answer {
                Ok(logits) => {
                    let token = teller.sampler.pick(&logits);
                    if teller.keeps_logits {
                        kept.insert(text, logits);
                    }
                    token
                }
                Err(error) => {
                    teller.error = Some(error);
                    STOP
                }
            };
            picks.push(Pick { text, token });
        }
        self.scheduler.settle(&picks).map_err(ServingError::of_step)?;
        self.collect();
        self.stall.check_progress(&picks, &self.scheduler)?;
        let new_tokens: Vec<Pick> = picks.into_iter().filter(|pick| !self.end_of_text.contains(&pick.token)).collect();
        self.totals.new_tokens += new_tokens.len() as u64;
        Ok(Step { turns: plan, new_tokens, told: std::mem::take(&mut self.told), logits: kept })
    }

    /// Notes what a plan costs.
    fn count(&mut self, plan: &[Turn]) {
        let totals = &mut self.totals;
        totals.steps += 1;
        totals.most_texts = totals.most_texts.max(plan.len());
        let in_use = {
            let slab = self.slab.borrow();
            let pool = slab.pool();
            (pool.n_pages() - pool.n_free()).saturating_sub(self.scheduler.prefixes().n_evictable(pool))
        };
        totals.peak_pages = totals.peak_pages.max(in_use);
    }

    /// The model's answer for each text whose turn is its last, in the order of the plan.
    fn compute(&mut self, plan: &[Turn]) -> Result<Vec<Answer>, ServingError> {
        let mut readings = self.scheduler.readings();
        if let Some((turn, _)) = plan.iter().zip(0..).find(|(turn, n)| readings.get(*n).map(|r| r.turn) != Some(**turn))
        {
            return Err(ServingError::NotAmongReadings(turn.text));
        }
        for Reading { turn, cache, .. } in &readings {
            if let Some(teller) = self.tellers.get_mut(&turn.text) {
                let again = teller.reached.read(turn.tokens, cache.len());
                teller.computed_again += again;
                self.totals.computed_again += again;
            }
        }
        let asked: Vec<TextId> = plan.iter().filter(|turn| turn.is_last).map(|turn| turn.text).collect();
        let vocab_size = self.model.config().vocab_size;
        self.totals.rows_projected += rows(&readings);
        if let Ok(logits) = forward(self.model, &mut readings) {
            let rows = logits.chunks_exact(vocab_size).map(<[f32]>::to_vec);
            return Ok(asked.into_iter().zip(rows.map(Ok)).collect());
        }
        // Whose logits it was is not known: each is asked alone, and gives the same rows again.
        let mut answers = Vec::new();
        for reading in &mut readings {
            self.totals.rows_projected += reading.turn.tokens as u64;
            let answer = forward(self.model, std::slice::from_mut(reading));
            if answer.is_err() {
                // None of its pages is for others to find.
                *reading.cache = ForkCache::new(&self.slab).map_err(ScheduleError::from)?;
            }
            if reading.turn.is_last {
                answers.push((reading.turn.text, answer));
            }
        }
        Ok(answers)
    }

    /// Takes over the texts that have ended.
    fn collect(&mut self) {
        for Finished { text, end } in self.scheduler.take_finished() {
            let Some(teller) = self.tellers.remove(&text.id) else { continue };
            let (totals, counters) = (&mut self.totals, text.counters);
            totals.preemptions += counters.preemptions;
            if counters.computed > 0 {
                totals.prompt_tokens += text.n_prompt as u64;
            }
            totals.found += counters.found as u64;
            totals.found_again += counters.found_again as u64;
            self.told.push(Told {
                text,
                end: teller.error.map_or(Ok(end), Err),
                computed_again: teller.computed_again,
            });
        }
    }
}

/// A text, and the logits after its newest token: `[vocab_size]`.
type Answer = (TextId, Result<Vec<f32>, StepError>);

/// Tokens to read.
fn rows(readings: &[Reading<'_>]) -> u64 {
    readings.iter().map(|reading| reading.turn.tokens as u64).sum()
}

/// One pass for all: the logits of those whose turn is their last, `[texts, vocab_size]`.
fn forward(model: &Model, readings: &mut [Reading<'_>]) -> Result<Vec<f32>, StepError> {
    let chunks = readings.iter_mut().map(|reading| {
        let logits = if reading.turn.is_last { LogitRows::Newest(1) } else { LogitRows::None };
        model.chunk_with_room(reading.tokens, CacheRef::InPlace(reading.cache), logits)
    });
    model.forward(chunks.collect::<Result<_, _>>()?)
}
