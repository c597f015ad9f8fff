//! What a page shows of sequences that share a pool: the owners of each page, and the progress of each sequence.
//!
//! ```text
//!   owners   2 2 1 1 0 1        sequence 0  pages 0 1 3      pages 0 and 1: both sequences
//!                               sequence 1  pages 0 1 2      page 4: free; page 5: the prefix cache alone
//! ```
//!
//! [`PoolView::new`] asks pool, page tables and scheduler, between two steps. `serve` shows it in a page, and
//! the book shows a run of it.

use serde::Serialize;

use crate::cache::PageId;
use crate::chapters::ch04_page_pool::PagePool;
use crate::serving::schedule::ScheduledChunk;
use crate::serving::{Engine, EngineTotals, FinishedSequence};

/// Bytes of an output that are shown, at most: the newest.
const PREVIEW_BYTES: usize = 4096;
/// Tokens of a prompt that are shown, at most: the first.
const PREVIEW_TOKENS: usize = 96;

/// The state after a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PoolView {
    /// Higher than that of every earlier view of the same run.
    pub version: u64,
    /// Passes of the model so far.
    pub steps: u64,
    pub page_size: usize,
    /// The reference count of each page: its owners are sequences and the prefix cache. A page with 0 is free.
    pub owners: Vec<u32>,
    /// The running sequences, oldest first; then the waiting ones, in the order in which they will run.
    pub sequences: Vec<SequenceView>,
    /// Sequences that have finished a short time ago, oldest first.
    pub finished: Vec<FinishedView>,
    /// Tokens computed in the last step.
    pub scheduled_tokens: usize,
    pub token_budget: usize,
    pub max_running: usize,
    pub totals: EngineTotals,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SequenceView {
    pub id: u64,
    pub status: SequenceStatus,
    /// Its prompt; if it is long, how it begins, with `…` at the end.
    pub prompt: String,
    /// Its output; if it is long, the newest part, with `…` before it.
    pub text: String,
    pub prompt_tokens: usize,
    pub new_tokens: usize,
    pub max_new_tokens: usize,
    pub held_tokens: usize,
    pub scheduled_tokens: usize,
    /// Its pages, in the order of its table.
    pub pages: Vec<u32>,
    /// Prompt tokens that the prefix cache held when it first ran. A forked sample has them from another sequence.
    pub cached_tokens: usize,
    /// Tokens that the prefix cache held when the sequence ran again.
    pub cached_after_preemption: usize,
    /// Whether it began with a fork of another sequence's cache.
    pub forked: bool,
    pub preemptions: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SequenceStatus {
    /// It has pages, and takes part in steps.
    #[default]
    Running,
    Waiting,
    /// It was preempted, and waits to run again.
    Preempted,
}

/// A sequence that has finished. It has no pages any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FinishedView {
    pub id: u64,
    /// The version of the first view without it.
    #[serde(skip)]
    pub version: u64,
    pub prompt: String,
    pub text: String,
    pub new_tokens: usize,
    /// Why: `stop`, `length`, `abort` or `error`.
    pub reason: &'static str,
}

impl PoolView {
    /// The state now. `step`: the chunks of the last step.
    ///
    /// [`version`](Self::version) is 0, and [`finished`](Self::finished) is empty: the caller fills both in.
    pub fn new(engine: &Engine<'_>, step: &[ScheduledChunk]) -> Self {
        let (scheduler, totals, limits) = (engine.scheduler(), engine.totals(), engine.limits());
        let slab = engine.slab.borrow();
        let running = scheduler
            .running()
            .map(|(sequence, table)| (sequence, SequenceStatus::Running, table.pages(), table.len()));
        let waiting = engine.waiting().map(|sequence| {
            let status =
                if sequence.counters.preemptions > 0 { SequenceStatus::Preempted } else { SequenceStatus::Waiting };
            (sequence, status, &[][..], 0)
        });
        let sequences = running.chain(waiting).map(|(sequence, status, pages, held_tokens)| {
            let (prompt, text) = engine.text(sequence.id);
            SequenceView {
                id: sequence.id.0,
                status,
                prompt: prompt.into(),
                text: output_preview(text),
                prompt_tokens: sequence.n_prompt,
                new_tokens: sequence.new_tokens().len(),
                max_new_tokens: sequence.max_new_tokens,
                held_tokens,
                scheduled_tokens: step
                    .iter()
                    .filter(|chunk| chunk.sequence_id == sequence.id)
                    .map(|chunk| chunk.n_tokens)
                    .sum(),
                pages: pages.iter().map(|page| page.0).collect(),
                cached_tokens: sequence.counters.cached_tokens,
                cached_after_preemption: sequence.counters.cached_after_preemption,
                forked: sequence.counters.forked_tokens > 0,
                preemptions: sequence.counters.preemptions,
            }
        });
        PoolView {
            steps: totals.steps,
            page_size: engine.page_size,
            owners: owners(slab.pool()),
            sequences: sequences.collect(),
            scheduled_tokens: step.iter().map(|chunk| chunk.n_tokens).sum(),
            token_budget: limits.token_budget,
            max_running: limits.max_running,
            totals,
            ..PoolView::default()
        }
    }

    /// This view without the sequences that had finished by `version`.
    pub fn since(&self, version: u64) -> PoolView {
        let finished = self.finished.iter().filter(|finished| finished.version > version).cloned().collect();
        PoolView { finished, ..self.clone() }
    }
}

impl FinishedView {
    pub fn new(finished: &FinishedSequence) -> Self {
        FinishedView {
            id: finished.sequence.id.0,
            version: 0,
            prompt: finished.prompt_preview.clone(),
            text: output_preview(&finished.text),
            new_tokens: finished.sequence.new_tokens().len(),
            reason: finished.reason().as_str(),
        }
    }
}

pub fn owners(pool: &PagePool) -> Vec<u32> {
    (0..pool.n_pages()).map(|page| pool.owners(PageId(page as u32)).unwrap_or(0)).collect()
}

/// The tokens of a prompt that its preview shows.
pub(super) fn previewed_tokens(prompt: &[u32]) -> &[u32] {
    &prompt[..prompt.len().min(PREVIEW_TOKENS)]
}

/// The preview of a prompt of `n_prompt` tokens. `text`: its [`previewed_tokens`] in characters.
pub(super) fn prompt_preview(text: &str, n_prompt: usize) -> String {
    if n_prompt > PREVIEW_TOKENS { format!("{text}…") } else { text.into() }
}

/// The preview of an output: its end, in whole characters.
pub fn output_preview(text: &str) -> String {
    let from = text.len().saturating_sub(PREVIEW_BYTES);
    let from = (from..text.len()).find(|offset| text.is_char_boundary(*offset)).unwrap_or(text.len());
    if from > 0 { format!("…{}", &text[from..]) } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_prompts_and_outputs_are_cut_between_characters() {
        let long = "🐉".repeat(2_000);
        assert_eq!(output_preview(&format!("a{long}")), format!("…{}", "🐉".repeat(PREVIEW_BYTES / 4)));
        assert_eq!(output_preview(&format!("{long}a")), format!("…{}a", "🐉".repeat(PREVIEW_BYTES / 4 - 1)));
        assert_eq!((output_preview(""), output_preview("é")), (String::new(), "é".into()));
        assert_eq!((previewed_tokens(&[1, 2]), previewed_tokens(&[7; 99]).len()), (&[1, 2][..], PREVIEW_TOKENS));
        assert_eq!(
            (prompt_preview("a", PREVIEW_TOKENS), prompt_preview("a", PREVIEW_TOKENS + 1)),
            ("a".into(), "a…".into())
        );
    }
}
