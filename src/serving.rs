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
//! A text whose prompt is [scored](Serving::submit_scored) asks for the logits of all rows of its prompt, each once: what the
//! prefix cache has found has no logits, and what is read again after a preemption has its scores already. Only so many rows of
//! logits as [`SCORED_AT_ONCE`] says, or as texts may run, are there at the same time.
//!
//! Logits that are not finite end the text that they belong to, and no other: the texts of that step are then asked one by
//! one, which gives the same rows again.

use std::collections::{BTreeMap, HashMap};

use crate::cache::KvCache;
use crate::chapters::ch06_paged::SharedSlab;
use crate::chapters::ch10_fork::ForkCache;
use crate::chapters::ch12_scheduler::{Finished, Reading, Scheduler, Text};
use crate::in_place::CacheRef;
use crate::model::{LogitRows, Model, StepError};
use crate::prefixes::Prefixes;
use crate::sampler::Sampler;
use crate::schedule::{End, Pick, ScheduleError, StepLimits, TextId, Turn};
use crate::scoring::{Likely, ScoredPrefixes, Scoring, Scorings};

/// Chosen to end a text that the model has no next token for. No vocabulary is that large.
const STOP: u32 = u32::MAX;
/// Rows of logits that a step with prompts to score has at the same time, at most, where fewer texts than that may run.
pub const SCORED_AT_ONCE: usize = 16;

/// Texts that share a model, a slab, a prefix cache and a scheduler.
pub struct Serving<'m> {
    model: &'m Model,
    slab: SharedSlab,
    scheduler: Scheduler,
    limits: StepLimits,
    end_of_text: Vec<u32>,
    tellers: HashMap<TextId, Teller>,
    /// The prompts that are not scored to their ends.
    scorings: Scorings,
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
    /// Whether it ends when its prompt is scored.
    only_scored: bool,
    error: Option<StepError>,
}

impl Teller {
    fn new(sampler: Sampler) -> Self {
        Teller {
            sampler,
            reached: Reached::default(),
            computed_again: 0,
            keeps_logits: false,
            only_scored: false,
            error: None,
        }
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
    /// The ends of texts that were chosen: these are no part of their texts.
    pub ends: Vec<Pick>,
    /// The scores of the prompts that are complete now: for each token but the first.
    pub scores: HashMap<TextId, Vec<Likely>>,
    /// The texts that have ended.
    pub told: Vec<Told>,
    /// The logits that new tokens and ends were chosen from, `[vocab_size]` each, of the texts for which somebody has
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
    /// The prefix cache has found more of a text than it was asked for.
    #[error(
        "text {text} begins with {found} tokens of the prefix cache, and was to find {most} at most: a lookup must leave one \
         token to compute; run the checks of chapter 11"
    )]
    FoundTooMuch {
        /// The text.
        text: TextId,
        /// Tokens that were found.
        found: usize,
        /// Tokens that there were to find.
        most: usize,
    },
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
        let scorings = Scorings::default();
        let prefixes = Box::new(ScoredPrefixes::new(prefixes, scorings.clone()));
        let scheduler = Scheduler::new(slab, prefixes, limits, &end_of_text)?;
        Ok(Serving {
            model,
            slab: slab.clone(),
            scheduler,
            limits,
            end_of_text,
            tellers: HashMap::new(),
            scorings,
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
        self.check(&prompt, max_new_tokens)?;
        let id = self.scheduler.submit(prompt, max_new_tokens)?;
        self.tellers.insert(id, Teller::new(sampler));
        self.collect();
        Ok(id)
    }

    /// The same, and the prompt is scored: how likely each of its tokens was behind those before it, and the `top` likeliest there.
    /// The step in which it is complete hands all of that out, as [`Step::scores`]. A text that is to get no new token ends
    /// then.
    ///
    /// All of the prompt is computed, whatever the prefix cache has of it.
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit).
    pub fn submit_scored(
        &mut self,
        prompt: Vec<u32>,
        max_new_tokens: usize,
        sampler: Sampler,
        top: usize,
    ) -> Result<TextId, ServingError> {
        self.check(&prompt, max_new_tokens)?;
        // Where there is no new token to come, the scheduler has nothing to do: it gets an end of text in its place.
        let id = self.scheduler.submit(prompt.clone(), max_new_tokens.max(1))?;
        self.tellers.insert(id, Teller { only_scored: max_new_tokens == 0, ..Teller::new(sampler) });
        self.scorings.borrow_mut().insert(id, Scoring::new(prompt, top));
        Ok(id)
    }

    /// Refuses what the model cannot read.
    fn check(&self, prompt: &[u32], max_new_tokens: usize) -> Result<(), StepError> {
        self.model.check(prompt, 0)?;
        let (len, max_positions) = (prompt.len().saturating_add(max_new_tokens), self.model.config().max_positions);
        if len > max_positions {
            return Err(StepError::TooLong { len, max_positions });
        }
        Ok(())
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
        let Computed { answers, scores, failed } = self.compute(&plan)?;

        let (mut picks, mut kept) = (Vec::new(), HashMap::new());
        for (text, answer) in answers {
            let Some(teller) = self.tellers.get_mut(&text) else { return Err(ServingError::LostText(text)) };
            let token = match answer {
                Ok(_) if teller.only_scored => STOP,
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
        for (text, error) in failed {
            let Some(teller) = self.tellers.get_mut(&text) else { return Err(ServingError::LostText(text)) };
            teller.error = Some(error);
            self.scheduler.cancel(text).map_err(ServingError::of_step)?;
        }
        self.collect();
        self.stall.check_progress(&picks, &self.scheduler)?;
        let (ends, new_tokens): (Vec<Pick>, Vec<Pick>) =
            picks.into_iter().partition(|pick| self.end_of_text.contains(&pick.token));
        let ends = ends.into_iter().filter(|pick| pick.token != STOP).collect();
        self.totals.new_tokens += new_tokens.len() as u64;
        Ok(Step { turns: plan, new_tokens, ends, scores, told: std::mem::take(&mut self.told), logits: kept })
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

    /// The model's answer for each text whose turn is its last, in the order of the plan; and the scores of prompts.
    fn compute(&mut self, plan: &[Turn]) -> Result<Computed, ServingError> {
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
        check_found(&readings, &self.scorings.borrow())?;
        let at_once = self.limits.texts.min(self.limits.tokens).max(SCORED_AT_ONCE);
        let mut computed = Computed::default();
        self.totals.rows_projected += rows(&readings);
        let pass = forward(self.model, &self.scorings.borrow(), at_once, &mut readings);
        if let Ok(pass) = pass {
            pass.note(&mut computed, &mut self.scorings.borrow_mut());
        } else {
            // Whose logits it was is not known: each is asked alone, and gives the same rows again.
            for reading in &mut readings {
                self.totals.rows_projected += reading.turn.tokens as u64;
                let pass = forward(self.model, &self.scorings.borrow(), at_once, std::slice::from_mut(reading));
                match pass {
                    Ok(pass) => pass.note(&mut computed, &mut self.scorings.borrow_mut()),
                    Err(error) => {
                        let Turn { text, is_last, .. } = reading.turn;
                        // None of its pages is for others to find.
                        *reading.cache = ForkCache::new(&self.slab).map_err(ScheduleError::from)?;
                        self.scorings.borrow_mut().remove(&text);
                        if is_last {
                            computed.answers.push((text, Err(error)));
                        } else {
                            computed.failed.push((text, error));
                        }
                    }
                }
            }
        }
        for turn in plan.iter().filter(|turn| turn.is_last) {
            let complete = self.scorings.borrow_mut().remove(&turn.text);
            computed.scores.extend(complete.map(|scoring| (turn.text, scoring.into_scores())));
        }
        Ok(computed)
    }

    /// Takes over the texts that have ended.
    fn collect(&mut self) {
        for Finished { text, end } in self.scheduler.take_finished() {
            self.scorings.borrow_mut().remove(&text.id);
            let Some(teller) = self.tellers.remove(&text.id) else { continue };
            let end = if teller.only_scored && end == End::EndOfText { End::Limit } else { end };
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

/// What the model has said in a step.
#[derive(Default)]
struct Computed {
    answers: Vec<Answer>,
    /// Of prompts that are complete now.
    scores: HashMap<TextId, Vec<Likely>>,
    /// Texts that have failed in the middle of their prompts.
    failed: Vec<(TextId, StepError)>,
}

/// What a pass of the model has said.
#[derive(Default)]
struct Pass {
    newest: Vec<(TextId, Vec<f32>)>,
    scores: Vec<(TextId, Likely)>,
}

impl Pass {
    /// Notes what counts of it, now that all of it is right.
    fn note(self, computed: &mut Computed, scorings: &mut BTreeMap<TextId, Scoring>) {
        for (text, score) in self.scores {
            if let Some(scoring) = scorings.get_mut(&text) {
                scoring.keep([score]);
            }
        }
        computed.answers.extend(self.newest.into_iter().map(|(text, logits)| (text, Ok(logits))));
    }
}

/// Tokens to read.
fn rows(readings: &[Reading<'_>]) -> u64 {
    readings.iter().map(|reading| reading.turn.tokens as u64).sum()
}

/// Refuses a text whose prompt would get no score for some of its tokens.
fn check_found(readings: &[Reading<'_>], scorings: &BTreeMap<TextId, Scoring>) -> Result<(), ServingError> {
    for Reading { turn: Turn { text, tokens, .. }, cache, .. } in readings {
        let (found, text) = (cache.len() - tokens, *text);
        if let Some(most) = scorings.get(&text).map(Scoring::rows).filter(|most| *most < found) {
            return Err(ServingError::FoundTooMuch { text, found, most });
        }
    }
    Ok(())
}

/// One pass for all: the logits of those whose turn is their last, and the scores of the rows that have none yet. At most
/// `at_once` rows of logits are there at the same time, beside those that are returned.
fn forward(
    model: &Model,
    scorings: &BTreeMap<TextId, Scoring>,
    at_once: usize,
    readings: &mut [Reading<'_>],
) -> Result<Pass, StepError> {
    // For each row of logits its text, its place in it, and whether the next token is chosen from it.
    let mut wanted = Vec::new();
    let mut chunks = Vec::new();
    for reading in readings {
        let Turn { text, tokens, is_last } = reading.turn;
        let len = reading.cache.len();
        let first = match scorings.get(&text) {
            // What is read again is not scored again.
            Some(scoring) => (len - tokens).max(scoring.rows()).min(len - usize::from(is_last)),
            None => len - usize::from(is_last),
        };
        wanted.extend((first..len).map(|row| (text, row, is_last && row + 1 == len)));
        let logits = if first == len { LogitRows::None } else { LogitRows::Newest(len - first) };
        chunks.push(model.chunk_with_room(reading.tokens, CacheRef::InPlace(reading.cache), logits)?);
    }
    let mut pass = Pass::default();
    model.forward_in_parts(chunks, at_once, &mut |place, logits| {
        let (text, row, is_newest) = wanted[place];
        if let Some(scoring) = scorings.get(&text).filter(|scoring| scoring.wants(row)) {
            pass.scores.push((text, scoring.score(row, logits)));
        }
        if is_newest {
            pass.newest.push((text, logits.to_vec()));
        }
    })?;
    Ok(pass)
}
