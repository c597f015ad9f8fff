//! What a scheduler and the loop around it exchange. Chapter 12 builds the scheduler.
//!
//! ```text
//!   submit ──► waiting ──► running ──► finished
//!                 ▲           │
//!                 └─ preempt ─┘        cancel: from either, to finished
//! ```
//!
//! A step of the loop: [`plan`] schedules a chunk of tokens for some of the sequences, the model computes all chunks in
//! one pass, and [`settle`] hands each sequence that has caught up its next token.
//!
//! [`plan`]: crate::chapters::ch12_scheduler::Scheduler::plan
//! [`settle`]: crate::chapters::ch12_scheduler::Scheduler::settle

use crate::cache::{CacheError, CacheUsage, KvCache};
use crate::chapters::ch10_fork::ForkCache;
use crate::english::plural;

/// Names a sequence of a scheduler: the first is 0, and later arrivals have higher numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// Its number, so that a list of them reads `[4, 7]`.
impl std::fmt::Debug for SequenceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::fmt::Display for SequenceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A request and its tokens so far.
#[derive(Clone, Debug)]
pub struct Sequence {
    pub id: SequenceId,
    /// Prompt and generated tokens.
    pub tokens: Vec<u32>,
    pub n_prompt: usize,
    pub max_new_tokens: usize,
    /// Whether it computes all of its tokens, whatever the prefix cache holds of them.
    pub skips_prefix_cache: bool,
    pub counters: SequenceCounters,
}

impl Sequence {
    /// A sequence that has only its prompt; [`ScheduleError::NoPrompt`] if that is empty.
    pub fn new(id: SequenceId, prompt: Vec<u32>, max_new_tokens: usize) -> Result<Self, ScheduleError> {
        if prompt.is_empty() {
            return Err(ScheduleError::NoPrompt);
        }
        let (n_prompt, counters) = (prompt.len(), SequenceCounters::default());
        Ok(Sequence { id, tokens: prompt, n_prompt, max_new_tokens, skips_prefix_cache: false, counters })
    }

    /// The tokens to look up in the prefix cache: all of them, or only the first, which is always computed.
    pub fn lookup_tokens(&self) -> &[u32] {
        if self.skips_prefix_cache { &self.tokens[..1] } else { &self.tokens }
    }

    pub fn new_tokens(&self) -> &[u32] {
        &self.tokens[self.n_prompt..]
    }

    /// The most rows it can ever have: [`max_rows`] of its prompt and new tokens.
    pub fn max_rows(&self) -> usize {
        max_rows(self.n_prompt, self.max_new_tokens)
    }
}

/// The most rows that a sequence can ever have. The last token is generated and never computed: a prompt of 5 and 3 new
/// tokens take 7 rows. Without a new token, none are ever computed.
pub fn max_rows(n_prompt: usize, max_new_tokens: usize) -> usize {
    match max_new_tokens {
        0 => 0,
        new => n_prompt.saturating_add(new - 1),
    }
}

/// A sequence that owns pages: dropping its cache gives them back.
pub(crate) struct Running {
    pub(crate) sequence: Sequence,
    pub(crate) cache: ForkCache,
}

impl Running {
    /// A sequence that runs from now on, with the tokens that `cache` holds.
    pub(crate) fn start(mut sequence: Sequence, cache: ForkCache) -> Self {
        sequence.counters.start(cache.len());
        Running { sequence, cache }
    }

    pub(crate) fn uncomputed(&self) -> usize {
        self.sequence.tokens.len() - self.cache.len()
    }
}

/// How much a step can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// The token budget: tokens computed in one step, at most.
    pub token_budget: usize,
    /// Sequences that run at the same time, at most.
    pub max_running: usize,
}

impl StepLimits {
    /// Refuses limits under which no step can compute anything.
    pub fn validate(self) -> Result<(), ScheduleError> {
        if self.token_budget == 0 || self.max_running == 0 { Err(ScheduleError::NoStep(self)) } else { Ok(()) }
    }
}

/// A sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledChunk {
    pub sequence_id: SequenceId,
    /// Tokens to compute: the next ones that its cache does not hold, at least one.
    pub n_tokens: usize,
    /// Whether the cache then holds all tokens of the sequence, which is due its next token.
    pub caught_up: bool,
}

/// The chunks of a step, from plan to settle; none between steps.
#[derive(Default)]
pub(crate) struct Plan {
    /// At most one for each running sequence, oldest first.
    pub(crate) chunks: Vec<ScheduledChunk>,
}

#[allow(dead_code)] // Chapter 12 calls all of these once it is written.
impl Plan {
    /// Adds `n` tokens of the sequence at `index`. Room for them has been made.
    #[track_caller]
    pub(crate) fn add_chunk(&mut self, running: &mut [Running], index: usize, n: usize) {
        let n_running = running.len();
        assert!(index < n_running, "add_chunk at index {index}, but only {n_running} run");
        let running = &mut running[index];
        let (sequence_id, held) = (running.sequence.id, running.cache.len());
        assert!(n > 0, "add_chunk of 0 tokens of sequence {sequence_id}: a chunk has at least one");
        assert!(n <= held, "add_chunk of {n} tokens of sequence {sequence_id}, with room for {held}: make it first");
        running.sequence.counters.count_scheduled(n, &running.cache);
        let caught_up = running.uncomputed() == 0;
        self.chunks.push(ScheduledChunk { sequence_id, n_tokens: n, caught_up });
    }

    /// What the model has to compute for those of the chunks whose sequences run.
    pub(crate) fn inputs<'a>(&self, running: &'a mut [Running]) -> Vec<ChunkInput<'a>> {
        let mut inputs = Vec::new();
        for Running { sequence, cache } in running {
            let chunk = self.chunks.iter().find(|chunk| chunk.sequence_id == sequence.id);
            let Some(chunk) = chunk.copied() else { continue };
            let end = cache.len();
            inputs.push(ChunkInput {
                chunk,
                tokens_so_far: &sequence.tokens[..end],
                tokens: &sequence.tokens[end - chunk.n_tokens..end],
                cache,
            });
        }
        inputs
    }

    /// Notes that this sequence gets no token in this step.
    pub(crate) fn expect_no_token(&mut self, id: SequenceId) {
        self.chunks.iter_mut().filter(|chunk| chunk.sequence_id == id).for_each(|chunk| chunk.caught_up = false);
    }

    pub(crate) fn check_settled(&self) -> Result<(), ScheduleError> {
        match self.chunks.len() {
            0 => Ok(()),
            chunks => Err(ScheduleError::NotSettled { chunks }),
        }
    }

    /// The tokens must be those of the sequences that have caught up, in the plan's order.
    pub(crate) fn check_tokens(&self, next: &[NextToken]) -> Result<(), ScheduleError> {
        let due = self.chunks.iter().filter(|chunk| chunk.caught_up);
        let expected: Vec<SequenceId> = due.map(|chunk| chunk.sequence_id).collect();
        let given: Vec<SequenceId> = next.iter().map(|next| next.sequence_id).collect();
        if expected == given { Ok(()) } else { Err(ScheduleError::WrongTokens { expected, given }) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextToken {
    pub sequence_id: SequenceId,
    pub token: u32,
}

/// What the model computes for a sequence in a step.
pub struct ChunkInput<'a> {
    pub chunk: ScheduledChunk,
    /// The sequence's tokens, to the last one of the chunk.
    pub tokens_so_far: &'a [u32],
    /// The chunk's tokens: `[chunk.n_tokens]`.
    pub tokens: &'a [u32],
    /// Holds the rows of all tokens before, and has room for the rows of these.
    pub cache: &'a mut ForkCache,
}

/// A sequence that has finished and given its pages back.
pub struct Finished {
    pub sequence: Sequence,
    pub reason: FinishReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FinishReason {
    /// The model chose an end-of-text token, or another that ends the sequence, or a stop string came: `stop`.
    Stop,
    /// It has as many new tokens as were requested: `length`.
    Length,
    /// It was cancelled: `abort`.
    Abort,
    /// The model had no next token for it: `error`.
    Error,
}

impl FinishReason {
    pub const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Abort, Self::Error];

    /// In vLLM's words, for programs: `stop`, `length`, `abort` or `error`. The first two are also OpenAI's.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Abort => "abort",
            FinishReason::Error => "error",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceCounters {
    /// Prompt tokens that the prefix cache held when the sequence first ran.
    pub cached_tokens: usize,
    /// Tokens that it held when the sequence ran again after a preemption.
    pub cached_after_preemption: usize,
    /// Tokens computed, whether for the first time or recomputed.
    pub computed_tokens: u64,
    /// Of these, tokens that were computed a second time after a preemption.
    pub recomputed_tokens: u64,
    pub preemptions: u64,
    /// Prompt tokens that it shares with the sequence that it was forked from.
    pub forked_tokens: usize,
    /// Its cache after the newest step. The copies in a cache that it lost when it was preempted count.
    pub usage: CacheUsage,
    /// Pages of its table after the newest step.
    pub n_pages: usize,
    /// Tokens that it has had rows of at the same time, at most.
    peak_rows: usize,
    /// Tokens copied in caches that it has lost.
    copied_before: u64,
}

impl SequenceCounters {
    /// Notes how many tokens were cached when the sequence started, or started again.
    fn start(&mut self, cached: usize) {
        *(if self.computed_tokens == 0 { &mut self.cached_tokens } else { &mut self.cached_after_preemption }) +=
            cached;
    }

    /// Counts the next `n` tokens that the sequence computes, for which `cache` has room.
    pub(crate) fn count_scheduled(&mut self, n: usize, cache: &ForkCache) {
        let (usage, rows) = (cache.usage(), cache.len());
        self.computed_tokens += n as u64;
        // Rows that the sequence has had before. Say it had 10, lost them to a preemption, and the prefix cache brought 4
        // back: when it has computed 6 more, `rows` is 10, and all 6 were recomputed.
        self.recomputed_tokens += self.peak_rows.min(rows).saturating_sub(rows - n) as u64;
        if rows - n < self.usage.tokens {
            self.copied_before = self.usage.copied_tokens;
        }
        self.usage = CacheUsage { copied_tokens: self.copied_before + usage.copied_tokens, ..usage };
        self.n_pages = cache.table().pages().len();
        self.peak_rows = self.peak_rows.max(rows);
    }
}

/// Why a scheduler refused. Nothing has changed, unless it was [`Cache`](ScheduleError::Cache).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// Limits under which no step can compute anything.
    #[error(
        "a step of {} and {} computes nothing: both must be 1 or more",
        plural(.0.token_budget, "token"), plural(.0.max_running, "sequence")
    )]
    NoStep(StepLimits),
    #[error("the prompt has no tokens: a request needs at least one; give a prompt")]
    NoPrompt,
    /// A request that the pool is too small for, even with no other sequence in it.
    #[error(
        "a prompt of {} and {} need {}, and the pool has {n_pages}; ask for fewer tokens, or give the pool more pages",
        plural(*prompt, "token"), plural(*max_new_tokens, "new one"), plural(*needed, "page")
    )]
    NeverFits {
        prompt: usize,
        max_new_tokens: usize,
        /// Pages that all but the newest of these tokens need.
        needed: usize,
        n_pages: usize,
    },
    #[error("chunks of the last plan that are not settled: {chunks}; hand their tokens to settle before the next plan")]
    NotSettled { chunks: usize },
    #[error("the plan asks for tokens of the sequences {expected:?}, in this order; there are tokens of {given:?}")]
    WrongTokens { expected: Vec<SequenceId>, given: Vec<SequenceId> },
    /// The sequence never came, or has finished.
    #[error("sequence {0} is neither waiting nor running")]
    UnknownSequence(SequenceId),
    /// The caches refused for a reason other than a lack of pages: the prefix cache holds pages of a different pool,
    /// say. The step can then be half planned or half settled; use a new scheduler.
    #[error(transparent)]
    Cache(#[from] CacheError),
}
