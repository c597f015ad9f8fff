//! A made-up world for schedulers, in which a seed decides everything. Chapter 15 looks at it and breaks them.
//!
//! ```text
//!   seed ──► Case ──► World ──► Transition, Transition …      what each event did, seen from outside
//!            events     │
//!                       └── a SchedulerUnderTest: the scheduler of chapter 12, or one with a bug
//! ```
//!
//! Requests arrive, are cancelled and finish, and strangers take pages and give them back, when the [events](Event) say
//! so. Time is the number of steps. There is no model, but something that behaves like one ([`run_alone`]): its output
//! depends on every row that a sequence has, so a page that isn't the sequence's own changes it.
//!
//! [`search`](fn@search) tries seeds until a rule is broken and [shrinks](Shrinking) the case; its
//! [event log](fn@event_log) says what happened. [`examples`] are a few cases as one writes them by hand, and [`buggy_scheduler`] has
//! schedulers with a bug each that an engine had.

pub mod buggy_scheduler;
mod draw_case;
mod event_log;
pub mod examples;
mod scheduler_under_test;
mod search;
mod shrinking;
mod stand_in_model;
mod world;

pub use draw_case::smaller;
pub use event_log::{describe_plan, event_log};
pub use scheduler_under_test::{SchedulerFactory, SchedulerUnderTest, new_scheduler};
pub use search::{Counterexample, Passed, rule_broken, search};
pub use shrinking::{Candidate, Shrinking};
pub use stand_in_model::{END_OF_TEXT, FIRST_NEW, LAYOUT, prompt, run_alone, run_alone_until};
pub use world::{CacheCalls, MAX_SEQUENCES, World, heartbeat, in_scheduler_call, record_calls};

use crate::cache::PageId;
use crate::serving::schedule::{FinishReason, ScheduledChunk, SequenceCounters, SequenceId, StepLimits, max_rows};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    pub page_size: usize,
    pub n_pages: usize,
    pub limits: StepLimits,
    /// With the prefix cache of chapter 11, or with none.
    pub keeps_prefixes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request arrives. It is turned away if [`MAX_SEQUENCES`] are there already.
    Arrive {
        /// The client's name for it, by which it is cancelled. The scheduler never hears it.
        name: u32,
        /// Prompts with the same one begin alike, as far as both go.
        prefix_id: u32,
        /// Tokens of its prompt, at least 1.
        prompt: usize,
        max_new_tokens: usize,
    },
    /// The client cancels the request of this name. If it isn't there, nothing happens.
    Cancel { name: u32 },
    /// Strangers take this many pages of the pool, or all that are free.
    Take { pages: usize },
    /// Strangers give this many pages back, or all that they have.
    GiveBack { pages: usize },
    /// The scheduler plans, the planned chunks are computed, the scheduler settles.
    Step,
}

/// A world and what happens in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    pub setup: Setup,
    pub events: Vec<Event>,
}

/// A sequence, seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceState {
    pub id: SequenceId,
    pub n_prompt: usize,
    /// Prompt and generated tokens so far.
    pub n_tokens: usize,
    pub max_new_tokens: usize,
    /// Tokens that its page table holds; 0 while it waits.
    pub n_held: usize,
    /// The pages of its table, in order; none while it waits.
    pub pages: Vec<PageId>,
    pub counters: SequenceCounters,
}

impl SequenceState {
    /// Pages that it needs beyond its own, for its tokens and the next one, as far as that will ever be computed.
    pub fn pages_needed(&self, page_size: usize) -> usize {
        let rows = max_rows(self.n_prompt, self.max_new_tokens).min(self.n_tokens + 1);
        rows.div_ceil(page_size).saturating_sub(self.pages.len())
    }
}

/// The world at one moment, as far as it can be seen from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorldState {
    /// The reference count of each page of the pool: `[n_pages]`.
    pub owners: Vec<u32>,
    /// Pages of the free list.
    pub n_free: usize,
    /// The pages of the prefix cache, by their numbers.
    pub cached: Vec<PageId>,
    /// The pages of *strangers*, owners outside the scheduler.
    pub strangers: Vec<PageId>,
    /// The running sequences, as the scheduler lists them.
    pub running: Vec<SequenceState>,
    /// The waiting sequences, as the scheduler lists them.
    pub waiting: Vec<SequenceState>,
    /// The sequences that the scheduler has accepted and not reported as finished, in order of arrival.
    pub alive: Vec<SequenceId>,
}

impl WorldState {
    pub fn find_running(&self, id: SequenceId) -> Option<&SequenceState> {
        self.running.iter().find(|sequence| sequence.id == id)
    }

    /// Pages that are free, and those that only the prefix cache owns, which can be evicted.
    pub fn available(&self) -> usize {
        let alone = |page: &&PageId| self.owners.get(page.index()) == Some(&1);
        self.n_free + self.cached.iter().filter(alone).count()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedRequest {
    pub id: SequenceId,
    pub prompt: Vec<u32>,
    pub max_new_tokens: usize,
    /// The tokens generated while it ran, in this order, without an end of text: what the client has received.
    pub received: Vec<u32>,
    /// Prompt and generated tokens, as the scheduler hands them out in the end.
    pub tokens: Vec<u32>,
    pub reason: FinishReason,
}

/// A plan, and the world before anything of it is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStep {
    pub chunks: Vec<ScheduledChunk>,
    /// After `plan` and before `settle`.
    pub state: WorldState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    pub before: WorldState,
    /// In a step, the plan.
    pub planned: Option<PlannedStep>,
    pub after: WorldState,
    pub finished: Vec<FinishedRequest>,
}

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A page has as many owners as there are tables, cache entries and strangers with it.
    Pages,
    /// Every sequence is there once, in order of arrival; those that wait arrived after those that run.
    Order,
    /// A plan keeps the limits, and each of its chunks can be computed.
    Plan,
    /// The budget is used, oldest sequence first, and the oldest advances.
    Progress,
    /// An admitted sequence finds pages for all of its tokens and the next.
    Fits,
    /// A sequence's output is the same as when it runs alone, and the client receives each token once.
    Output,
    /// When no more requests arrive, every sequence finishes.
    Ends,
    /// The scheduler answers: it neither panics nor refuses without a reason. The world checks this one.
    Stopped,
}

impl Rule {
    /// The violation of this rule, with what was seen: `page 3: 1 owners, 0 known`.
    pub fn broken(self, message: impl Into<String>) -> Violation {
        Violation { rule: self, message: message.into() }
    }

    /// The violation of this rule with this message, unless it holds.
    pub fn ensure(self, holds: bool, message: impl FnOnce() -> String) -> Result<(), Violation> {
        if holds { Ok(()) } else { Err(self.broken(message())) }
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// A rule that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} (rule: {rule})")]
pub struct Violation {
    pub rule: Rule,
    pub message: String,
}

/// The first rule that did not hold in a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The index of the event after which it was seen; the number of events if it was seen after the last one.
    pub event: usize,
    /// Steps made until then, that one included.
    pub step: u64,
    pub violation: Violation,
}
