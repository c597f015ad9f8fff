//! What a scheduler and the loop around it tell each other. Chapter 12 builds the scheduler.
//!
//! ```text
//!   submit ──► waiting ──► running ──► finished
//!                 ▲           │
//!                 └─ preempt ─┘        cancel: from either, to finished
//! ```
//!
//! A step of the loop: [`plan`] says which texts read how many tokens, the model reads them in one pass, and [`settle`]
//! hands each text that has read all of its tokens the next one.
//!
//! [`plan`]: crate::chapters::ch12_scheduler::Scheduler::plan
//! [`settle`]: crate::chapters::ch12_scheduler::Scheduler::settle

use crate::cache::CacheError;

/// Names a text of a scheduler: the first is 0, and each later arrival has a higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextId(pub u64);

impl std::fmt::Display for TextId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// How much a step may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Tokens that the texts of a step read together, at most: the budget.
    pub tokens: usize,
    /// Texts that run at the same time, at most.
    pub texts: usize,
}

/// A text's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The text.
    pub text: TextId,
    /// Tokens that it reads: the next that its cache does not hold, at least one.
    pub tokens: usize,
    /// Whether it has then read all that it has, and is to get its next token.
    pub is_last: bool,
}

/// The next token of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The text.
    pub text: TextId,
    /// The token.
    pub token: u32,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model chose an end of text.
    EndOfText,
    /// It has all the new tokens that were asked for.
    Limit,
    /// Somebody did not want it any more.
    Cancelled,
}

/// What a text has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tokens of the prompt that the prefix cache held when the text first ran.
    pub found: usize,
    /// Tokens that it held when the text ran again after a preemption.
    pub found_again: usize,
    /// Tokens that were computed, whether for the first time or again.
    pub computed: u64,
    /// How often it was preempted.
    pub preemptions: u64,
}

/// Why a scheduler refused. Nothing has changed, unless it was [`Cache`](ScheduleError::Cache).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// A step in which nobody can take part.
    #[error("a step of {} tokens and {} texts tells nothing: both must be 1 or more", .0.tokens, .0.texts)]
    NoStep(StepLimits),
    /// A text without a beginning.
    #[error("the prompt has no tokens: a text needs at least one; give a prompt")]
    NoPrompt,
    /// A text that could not even run alone.
    #[error(
        "a prompt of {prompt} tokens and {max_new_tokens} new ones need {needed} pages, and the pool has {n_pages}; \
         ask for fewer tokens, or give the pool more pages"
    )]
    NeverFits {
        /// Tokens of the prompt.
        prompt: usize,
        /// New tokens that it may get.
        max_new_tokens: usize,
        /// Pages that all but the newest of these tokens need.
        needed: usize,
        /// Pages of the pool.
        n_pages: usize,
    },
    /// The step before has no answer yet.
    #[error("turns of the last plan that are not settled: {turns}; hand their tokens to settle before the next plan")]
    NotSettled {
        /// Turns of the last plan.
        turns: usize,
    },
    /// The tokens are not those that the plan asked for.
    #[error("the plan asks for tokens of the texts {wanted:?}, in this order; there are tokens of {given:?}")]
    WrongPicks {
        /// Texts that were to get a token.
        wanted: Vec<TextId>,
        /// Texts that a token was given for.
        given: Vec<TextId>,
    },
    /// Nobody knows this text, or it has ended.
    #[error("text {0} is neither waiting nor running")]
    UnknownText(TextId),
    /// The caches refused for another reason than a lack of pages: the prefix cache keeps those of another pool, say. The step
    /// may then be half planned or half settled; use another scheduler.
    #[error(transparent)]
    Cache(#[from] CacheError),
}
