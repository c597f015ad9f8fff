//! What there is to see of texts that share a pool: who has each page, and how far each text has come.
//!
//! ```text
//!   owners   2 2 1 1 0 1        text 0  pages 0 1 3      pages 0 and 1: both texts
//!                               text 1  pages 0 1 2      page 4: nobody; page 5: the prefix cache alone
//! ```
//!
//! [`View::of`] asks the pool, the page tables and the scheduler, between two steps, and keeps no record of its own: what is
//! seen is what is there. `serve` shows it in a page, and the book shows a run of it.
//!
//! Nothing is ever copied here, so no copies are counted: these texts share full pages only, which nobody writes into.

use serde::Serialize;

use crate::cache::PageId;
use crate::chapters::ch04_page_pool::PagePool;
use crate::serving::Serving;
use crate::serving::schedule::{ScheduledChunk, Sequence, SequenceCounters};

/// Bytes of a text that are shown, at most: its newest.
const NEWEST: usize = 4096;
/// Tokens of a prompt that are shown, at most: its first.
const FIRST: usize = 96;

/// What was there after a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct View {
    /// Higher than that of every earlier view of the same texts.
    pub version: u64,
    /// Passes of the model so far.
    pub steps: u64,
    /// Slots in a page.
    pub page_size: usize,
    /// How many have each page, as the pool counts them: texts, and the prefix cache. A page with 0 is free.
    pub owners: Vec<u32>,
    /// The texts that run, oldest first; then those that wait, in the order in which they will run.
    pub texts: Vec<TextView>,
    /// Texts that have ended a short time ago, oldest first.
    pub ended: Vec<EndedView>,
    /// Tokens that the texts read together in the last step.
    pub read: usize,
    /// Tokens that they may read together in a step: the budget.
    pub budget: usize,
    /// Texts that may run at the same time.
    pub most_running: usize,
    /// What was counted since the first text came.
    pub counts: Counts,
}

/// A text that runs or waits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TextView {
    /// Its number.
    pub id: u64,
    /// Where it is.
    pub state: State,
    /// Its prompt; if it is long, how it begins, with `…` at the end.
    pub prompt: String,
    /// What was written behind the prompt; if it is long, the newest part, with `…` before it.
    pub text: String,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Tokens that were written.
    pub new_tokens: usize,
    /// Tokens that are written at most.
    pub max_new_tokens: usize,
    /// Tokens that it has rows of.
    pub rows: usize,
    /// Tokens that it read in the last step.
    pub read: usize,
    /// Its pages, in the order of its table.
    pub pages: Vec<u32>,
    /// Tokens of the prompt that the prefix cache held when it first ran.
    pub found: usize,
    /// How often it lost its pages.
    pub preemptions: u64,
}

/// Where a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It has pages, and takes part in steps.
    Running,
    /// It has not had its turn yet.
    Waiting,
    /// It has lost its pages to an older text, and waits to run again.
    Preempted,
}

/// A text that has ended. It has no pages any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EndedView {
    /// Its number.
    pub id: u64,
    /// The version of the first view without it.
    #[serde(skip)]
    pub at: u64,
    /// Its prompt, as in [`TextView`].
    pub prompt: String,
    /// What was written behind it, as in [`TextView`].
    pub text: String,
    /// Tokens that were written.
    pub new_tokens: usize,
    /// Why: `stop`, `length`, `abort` or `error`.
    pub reason: &'static str,
}

/// What was counted since the first text came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Tokens of the prompts of all texts that have run.
    pub looked_for: u64,
    /// Of these, tokens that the prefix cache held. Found of looked for is the hit rate.
    pub found: u64,
    /// Tokens that were written.
    pub new_tokens: u64,
    /// Times that a text lost its pages.
    pub preemptions: u64,
    /// Tokens that were computed once more, as their rows were lost with the pages.
    pub computed_again: u64,
}

/// What a text says, in characters, as far as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// Its [`beginning`].
    pub prompt: String,
    /// The [`newest`] of what was written behind it.
    pub text: String,
}

impl View {
    /// What is there now. `pool`: the one of these texts, of pages with `page_size` slots; `step`: the turns of the last step; `words`: what a text says.
    ///
    /// The cost goes with the pages of the pool and with the characters that are shown. [`version`](Self::version) is 0, and
    /// nothing has [`ended`](Self::ended): whoever looks again and again knows better.
    pub fn of(
        serving: &Serving<'_>,
        pool: &PagePool,
        page_size: usize,
        step: &[ScheduledChunk],
        mut words: impl FnMut(&Sequence) -> Words,
    ) -> Self {
        let (scheduler, totals, limits) = (serving.scheduler(), serving.totals(), serving.limits());
        let owners = (0..pool.n_pages()).map(|page| pool.owners(PageId(page as u32)).unwrap_or(0)).collect();
        let mut counts = Counts {
            looked_for: totals.prompt_tokens,
            found: totals.cached,
            new_tokens: totals.new_tokens,
            preemptions: totals.preemptions,
            computed_again: totals.recomputed,
        };
        let running = scheduler.running().map(|(text, table)| (text, State::Running, table.pages(), table.len()));
        let waiting = scheduler.waiting().map(|text| {
            let state = if text.counters.preemptions > 0 { State::Preempted } else { State::Waiting };
            (text, state, &[][..], 0)
        });
        let texts = running.chain(waiting).map(|(text, state, pages, rows)| {
            counts.add(text);
            let Words { prompt, text: written } = words(text);
            TextView {
                id: text.id.0,
                state,
                prompt,
                text: written,
                n_prompt: text.n_prompt,
                new_tokens: text.new_tokens().len(),
                max_new_tokens: text.max_new_tokens,
                rows,
                read: step.iter().find(|turn| turn.sequence == text.id).map_or(0, |turn| turn.tokens),
                pages: pages.iter().map(|page| page.0).collect(),
                found: text.counters.cached,
                preemptions: text.counters.preemptions,
            }
        });
        let texts = texts.collect();
        View {
            version: 0,
            steps: totals.steps,
            page_size,
            owners,
            texts,
            ended: Vec::new(),
            read: step.iter().map(|turn| turn.tokens).sum(),
            budget: limits.tokens,
            most_running: limits.sequences,
            counts,
        }
    }

    /// The same for somebody who has seen an earlier version: without the texts that had ended then.
    pub fn since(&self, version: u64) -> View {
        let mut view = self.clone();
        view.ended.retain(|ended| ended.at > version);
        view
    }
}

impl Counts {
    /// Counts a text that has not ended, and is in no total yet.
    fn add(&mut self, text: &Sequence) {
        let SequenceCounters { cached, computed, preemptions, .. } = text.counters;
        self.preemptions += preemptions;
        if computed > 0 {
            self.looked_for += text.n_prompt as u64;
            self.found += cached as u64;
        }
    }
}

/// The tokens that a prompt is shown by.
pub fn first(prompt: &[u32]) -> &[u32] {
    &prompt[..prompt.len().min(FIRST)]
}

/// A prompt of `n_prompt` tokens as it is shown. `says`: what its [`first`] tokens say.
pub fn beginning(says: &str, n_prompt: usize) -> String {
    if n_prompt > FIRST { format!("{says}…") } else { says.into() }
}

/// A text as it is shown: its end, in whole characters.
pub fn newest(text: &str) -> String {
    let from = text.len().saturating_sub(NEWEST);
    let from = (from..text.len()).find(|place| text.is_char_boundary(*place)).unwrap_or(text.len());
    if from > 0 { format!("…{}", &text[from..]) } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_is_cut_between_characters() {
        let long = "🐉".repeat(2_000);
        assert_eq!(newest(&format!("a{long}")), format!("…{}", "🐉".repeat(NEWEST / 4)));
        assert_eq!(newest(&format!("{long}a")), format!("…{}a", "🐉".repeat(NEWEST / 4 - 1)));
        assert_eq!((newest(""), newest("é")), (String::new(), "é".into()));
        assert_eq!((first(&[1, 2]), first(&[7; 99]).len()), (&[1, 2][..], FIRST));
        assert_eq!((beginning("a", FIRST), beginning("a", FIRST + 1)), ("a".into(), "a…".into()));
    }
}
