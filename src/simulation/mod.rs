//! A made-up world for schedulers, in which everything is decided by a seed. Chapter 15 looks at it and breaks them.
//!
//! ```text
//!   seed ──► Case ──► World ──► Scene, Scene, Scene …      what an event did, seen from outside
//!            events     │
//!                       └── a Subject: the scheduler of chapter 12, or a planted one
//! ```
//!
//! Nothing is left to chance or to the clock: texts come, are cancelled and end, and strangers take pages and give them back,
//! when the [events](Event) say so. Time is the number of steps. There is no model, but something that behaves like one (see
//! [`alone`]): what it says depends on every row that a text has, so a page that is not the text's own changes the text.
//!
//! - [`Case`] and [`Event`]: what happens; [`Case::of_seed`] draws it.
//! - [`World`]: lets it happen to a [`Subject`].
//! - [`Seen`], [`Scene`], [`Ended`]: what can be seen of it. The rules of chapter 15 look at these.
//! - [`planted`]: ten schedulers, each with a bug that an engine had.
//! - [`search`](fn@search): tries seeds until a rule is broken, shrinks the case and tells it as a [`story`](fn@story).
//! - [`examples`]: a few cases of the kind that one writes by hand, none of which finds anything.

pub mod examples;
mod generate;
mod model;
pub mod planted;
mod search;
mod story;
mod subject;
mod world;

pub use generate::smaller;
pub use model::{END_OF_TEXT, FIRST_NEW, LAYOUT, alone, prompt};
pub use search::{Found, Passed, rule_broken, search};
pub use story::{story, told};
pub use subject::{Make, Subject, chapter_12};
pub use world::{MOST_TEXTS, World, is_inside, pulse};

use serde::Serialize;

use crate::cache::PageId;
use crate::schedule::{End, StepLimits, TextId, Turn};

/// How large a world is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Slots in a page.
    pub page_size: usize,
    /// Pages of the pool.
    pub n_pages: usize,
    /// What a step may hold.
    pub limits: StepLimits,
    /// With the prefix cache of chapter 11, or with none.
    pub keeps_prefixes: bool,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// A text comes. It is turned away if [`MOST_TEXTS`] are there already.
    Arrive {
        /// By which it is cancelled. The scheduler never hears it.
        name: u32,
        /// The prompts of texts with the same number here begin alike, as far as both go.
        alike: u32,
        /// Tokens of its prompt, at least 1.
        prompt: usize,
        /// New tokens that it gets at most.
        max_new_tokens: usize,
    },
    /// Nobody wants the text of this name any more. If it is not there, nothing happens.
    Cancel {
        /// The name that it came with.
        name: u32,
    },
    /// Strangers take so many pages of the pool, or as many as are free.
    Take {
        /// Pages.
        pages: usize,
    },
    /// Strangers give back so many pages, or all that they have.
    GiveBack {
        /// Pages.
        pages: usize,
    },
    /// The scheduler plans, the texts of the plan read, the scheduler settles.
    Step,
}

/// A world and what happens in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The world.
    pub setup: Setup,
    /// What happens, in this order.
    pub events: Vec<Event>,
}

/// A text, as it is seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenText {
    /// Its number; those of later arrivals are higher.
    pub id: TextId,
    /// Tokens of its prompt.
    pub n_prompt: usize,
    /// Prompt and new tokens so far.
    pub n_tokens: usize,
    /// New tokens that it gets at most.
    pub max_new_tokens: usize,
    /// Tokens that its page table holds; 0 while it waits.
    pub held: usize,
    /// The pages of its table, in order; none while it waits.
    pub pages: Vec<PageId>,
}

impl SeenText {
    /// Pages that it takes beyond those it has, to read all of its tokens and the one that comes next, if that is ever read.
    pub fn pages_to_go(&self, page_size: usize) -> usize {
        let most = self.n_prompt.saturating_add(self.max_new_tokens).saturating_sub(1);
        let rows = most.min(self.n_tokens + 1);
        rows.div_ceil(page_size).saturating_sub(self.pages.len())
    }
}

/// All that can be seen from outside at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// How many owners each page of the pool has: `[n_pages]`.
    pub owners: Vec<u32>,
    /// Pages of the free list.
    pub n_free: usize,
    /// The pages of the prefix cache, by their numbers.
    pub kept: Vec<PageId>,
    /// The pages that strangers have.
    pub strangers: Vec<PageId>,
    /// The texts that run, as the scheduler lists them.
    pub running: Vec<SeenText>,
    /// The texts that wait, as the scheduler lists them.
    pub waiting: Vec<SeenText>,
    /// The texts that the scheduler has taken in and not reported as ended, in the order in which they came.
    pub alive: Vec<TextId>,
}

impl Seen {
    /// Pages that are free, and those that only the prefix cache has: they can be evicted.
    pub fn room(&self) -> usize {
        let alone = |page: &&PageId| self.owners.get(page.index()) == Some(&1);
        self.n_free + self.kept.iter().filter(alone).count()
    }
}

/// A text that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its number.
    pub id: TextId,
    /// What it came with.
    pub prompt: Vec<u32>,
    /// New tokens that it was to get at most.
    pub max_new_tokens: usize,
    /// The tokens that were drawn for it while it ran, in this order, without an end of text: what its reader has seen.
    pub told: Vec<u32>,
    /// Prompt and new tokens, as the scheduler hands them out in the end.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub end: End,
}

/// A plan, and what is seen of it before anybody reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The turns, in the plan's order.
    pub turns: Vec<Turn>,
    /// All, after `plan` and before `settle`.
    pub seen: Seen,
}

/// What an event did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scene {
    /// All, before the event.
    pub before: Seen,
    /// In a step, the plan.
    pub planned: Option<Planned>,
    /// All, after the event.
    pub after: Seen,
    /// The texts that have ended with it.
    pub ended: Vec<Ended>,
}

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// A page has as many owners as there are those who have it.
    Pages,
    /// Every text is there once, in the order of arrival; those that wait came after those that run.
    Order,
    /// A plan keeps the limits, and each of its turns can be carried out.
    Plan,
    /// The budget is used, oldest text first, and the oldest text goes on.
    Progress,
    /// Who is let in finds room for all of its tokens and the next.
    Fits,
    /// A text is the one told alone, and each of its tokens is told once.
    Text,
    /// When nobody else comes, every text ends.
    Ends,
    /// The scheduler can be asked: it neither panics nor refuses what there is no reason to refuse. The world looks at this one.
    Stopped,
}

impl Rule {
    /// The violation of this rule, in words: `owners of page 3: 1; seen to have it: 0`.
    pub fn broken(self, words: impl Into<String>) -> Violation {
        Violation { rule: self, words: words.into() }
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Rule::Pages => "pages",
            Rule::Order => "order",
            Rule::Plan => "plan",
            Rule::Progress => "progress",
            Rule::Fits => "fits",
            Rule::Text => "text",
            Rule::Ends => "ends",
            Rule::Stopped => "stopped",
        })
    }
}

/// A rule that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{words} (rule: {rule})")]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// What was seen, for people.
    pub words: String,
}

/// The first rule that did not hold in a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The place of the event after which it was seen; the number of all events if it was seen after the last, when nobody
    /// else came.
    pub event: usize,
    /// Steps that were made until then, that one included.
    pub step: u64,
    /// The rule, and what was seen.
    pub violation: Violation,
}
