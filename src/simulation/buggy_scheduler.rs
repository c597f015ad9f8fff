//! Schedulers that are wrong: each has one bug, and each bug is one that an engine had. And two that are right and
//! wasteful, each with a policy that chapter 12 decides against.
//!
//! Without a bug or a policy, this scheduler plans step by step what that of chapter 12 plans (a test compares them).

use std::cmp::Ordering;

use crate::cache::{CacheError, KvCache};
use crate::chapters::ch05_page_table::PageTable;
use crate::chapters::ch10_fork::ForkCache;
use crate::chapters::ch12_scheduler::Scheduler;
use crate::prefix_cache::available_pages;
use crate::serving::schedule::{
    FinishReason, Finished, NextToken, Running, ScheduleError, ScheduledChunk, Sequence, SequenceId,
};

use super::{END_OF_TEXT, SchedulerFactory, SchedulerUnderTest};

/// A bug that an engine had, and where: [`about`](Bug::about) describes what it does here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// [vllm#35541](https://github.com/vllm-project/vllm/issues/35541): prompts that need 63 blocks of 49 hang, and
    /// so does every request after them.
    NeverFits,
    /// [vllm#37307](https://github.com/vllm-project/vllm/pull/37307): a fifth long prompt beside four that fill the
    /// cache brings the tokens a second from 100 down to 1.5.
    NextChunk,
    /// [vllm#23347](https://github.com/vllm-project/vllm/issues/23347): with priorities, a scheduled request is
    /// preempted by another one in the same step, and the server crashes.
    PlannedVictim,
    /// [vllm#49097](https://github.com/vllm-project/vllm/issues/49097): the victim leaves the list, the index stays,
    /// and the next request gets nothing in this step though a block is free.
    PassedOver,
    /// [nano-vllm#271](https://github.com/GeeeekExplorer/nano-vllm/pull/271): sequences at the end of
    /// a list that is too long starve.
    LimitForgotten,
    /// [nano-vllm#144](https://github.com/GeeeekExplorer/nano-vllm/issues/144): a prompt of whole blocks that are all
    /// cached makes a query of length 0, and attention fails.
    AllFound,
    /// [nano-vllm#208](https://github.com/GeeeekExplorer/nano-vllm/issues/208): a prompt finds blocks of a different
    /// one in the same batch.
    FoundTooEarly,
    /// [sglang-jax#984](https://github.com/sgl-project/sglang-jax/pull/984): abort does not look at requests in the
    /// middle of a chunked prefill, and their slots are lost.
    CancelLeaks,
    /// [sglang-jax#994](https://github.com/sgl-project/sglang-jax/pull/994): the release of a request is spread over
    /// several paths, and the slot of the last decode step is freed in two of them.
    FreedTwice,
    /// [vllm-ascend#11334](https://github.com/vllm-project/vllm-ascend/pull/11334): a request that is resumed is
    /// measured by its prompt, not by all of its tokens.
    PromptLength,
}

/// All of them, each with its name on the command line, where an engine had it, and what it does.
const BUGS: [(Bug, &str, &str, &str); 10] = [
    (Bug::NeverFits, "never-fits", "vllm#35541", "accepts a request that can never fit"),
    (Bug::NextChunk, "next-chunk", "vllm#37307", "admits a request when its next chunk fits"),
    (Bug::PlannedVictim, "planned-victim", "vllm#23347", "preempts a sequence that is in the plan"),
    (Bug::PassedOver, "passed-over", "vllm#49097", "passes a sequence over after a preemption"),
    (Bug::LimitForgotten, "limit-forgotten", "nano-vllm#271", "counts only the sequences admitted in this step"),
    (Bug::AllFound, "all-found", "nano-vllm#144", "finds all tokens cached, and has none to compute"),
    (Bug::FoundTooEarly, "found-too-early", "nano-vllm#208", "caches pages before their rows are computed"),
    (Bug::CancelLeaks, "cancel-leaks", "sglang-jax#984", "loses the pages of a sequence cancelled during its prompt"),
    (Bug::FreedTwice, "freed-twice", "sglang-jax#994", "gives the last page back twice"),
    (Bug::PromptLength, "prompt-length", "vllm-ascend#11334", "takes a resumed sequence for caught up too early"),
];

impl Bug {
    pub fn all() -> [Bug; BUGS.len()] {
        BUGS.map(|(bug, ..)| bug)
    }

    fn row(self) -> &'static (Bug, &'static str, &'static str, &'static str) {
        BUGS.iter().find(|(bug, ..)| *bug == self).expect("a row in BUGS for each bug")
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Where an engine had it: project and number.
    pub fn reported_in(self) -> &'static str {
        self.row().2
    }

    /// What it does, in a line.
    pub fn about(self) -> &'static str {
        self.row().3
    }
}

/// Who computes first, and who gives way. `tests/engine/policies.rs` counts what each costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// A request starts when its next chunk fits, and the oldest sequence gives way. It goes to the end of the queue.
    OldestVictim,
    /// No sequence generates while there are prompts to compute.
    PromptsFirst,
}

pub fn with_bug(bug: Option<Bug>) -> Box<SchedulerFactory<'static>> {
    factory(bug, None)
}

pub fn with_policy(policy: Policy) -> Box<SchedulerFactory<'static>> {
    factory((policy == Policy::OldestVictim).then_some(Bug::NextChunk), Some(policy))
}

fn factory(bug: Option<Bug>, policy: Option<Policy>) -> Box<SchedulerFactory<'static>> {
    Box::new(move |slab, prefix_cache, limits| {
        let inner = Scheduler::new(slab, prefix_cache, limits, &[END_OF_TEXT])?;
        Ok(Box::new(BuggyScheduler { bug, policy, inner, lost: Vec::new() }))
    })
}

/// A scheduler with a bug, or with a wasteful policy, or with neither. It has what chapter 12's has, and makes every
/// decision itself, because the reader's may be wrong.
struct BuggyScheduler {
    bug: Option<Bug>,
    policy: Option<Policy>,
    inner: Scheduler,
    /// Caches that no sequence has any more.
    lost: Vec<ForkCache>,
}

impl BuggyScheduler {
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Starts the first waiting sequence if it fits. `admitted`: so far in this plan; `chunk`: tokens for this step.
    fn admit(&mut self, admitted: usize, chunk: usize) -> Result<bool, CacheError> {
        let counted = if self.has(Bug::LimitForgotten) { admitted } else { self.inner.running.len() };
        if counted >= self.inner.limits.max_running {
            return Ok(false);
        }
        let Some(first) = self.inner.waiting.front() else { return Ok(false) };
        let mut sought = first.tokens.clone();
        if self.has(Bug::AllFound) {
            // A lookup leaves the last token out: let that be one that the sequence does not have.
            sought.push(END_OF_TEXT);
        }
        let cache = ForkCache::with_prefix(&self.inner.slab, &mut *self.inner.prefix_cache, &sought)?;
        let needed = if self.has(Bug::NextChunk) {
            cache.table().pages_needed(chunk.min(first.tokens.len() - cache.len()))
        } else {
            let others =
                self.inner.running.iter().map(|running| pages_needed(&running.sequence, running.cache.table()));
            others.sum::<usize>() + pages_needed(first, cache.table())
        };
        if needed > available_pages(&*self.inner.prefix_cache, &self.inner.slab) {
            return Ok(false);
        }
        let first = self.inner.waiting.pop_front();
        self.inner.running.extend(first.map(|sequence| Running::start(sequence, cache)));
        Ok(true)
    }

    /// Makes room for `n` more tokens of the running sequence at `index`. Returns its index then, `None` if it was
    /// preempted itself, and whether any sequence was.
    fn make_room(&mut self, mut index: usize, n: usize) -> Result<(Option<usize>, bool), CacheError> {
        let mut preempted = false;
        while index < self.inner.running.len() {
            let missing = match self.inner.running[index].cache.extend(n) {
                Ok(()) => return Ok((Some(index), preempted)),
                Err(CacheError::OutOfPages { needed, free }) => needed - free,
                Err(error) => return Err(error),
            };
            let evicted = self.inner.slab.borrow_mut().evict(&mut *self.inner.prefix_cache, missing)?;
            if evicted < missing {
                preempted = true;
                let victim = self.victim(index);
                let mut sequence = self.inner.running.remove(victim).sequence;
                sequence.counters.preemptions += 1;
                if self.policy == Some(Policy::OldestVictim) {
                    self.inner.planned.chunks.retain(|chunk| chunk.sequence_id != sequence.id);
                    self.inner.waiting.push_back(sequence);
                } else {
                    self.inner.waiting.push_front(sequence);
                }
                match victim.cmp(&index) {
                    Ordering::Less => index -= 1,
                    Ordering::Equal => break,
                    Ordering::Greater => {}
                }
            }
        }
        Ok((None, preempted))
    }

    /// The index of the victim if the sequence at `index` finds no page: the newest, unless bug or policy differ.
    fn victim(&self, index: usize) -> usize {
        let newest = self.inner.running.len() - 1;
        if self.policy == Some(Policy::OldestVictim) {
            // The sequence itself only if it runs alone.
            return usize::from(index == 0 && newest > 0);
        }
        if self.has(Bug::PlannedVictim) && newest == index && newest > 0 {
            // Rather than the sequence itself, the one with most pages.
            let n_pages = |index: &usize| (self.inner.running[*index].cache.table().pages().len(), *index);
            return (0..=newest).max_by_key(n_pages).unwrap_or(newest);
        }
        newest
    }

    /// Whether any sequence has a prompt to compute, or could start to.
    fn has_prompts(&self) -> bool {
        let can_start = !self.inner.waiting.is_empty() && self.inner.running.len() < self.inner.limits.max_running;
        can_start || self.inner.running.iter().any(in_its_prompt)
    }

    fn insert_pages(&mut self, index: usize) -> Result<(), CacheError> {
        let Running { sequence, cache } = &mut self.inner.running[index];
        cache.insert_into(&mut *self.inner.prefix_cache, &sequence.tokens)
    }

    fn index_of(&self, id: SequenceId) -> Option<usize> {
        self.inner.running.iter().position(|running| running.sequence.id == id)
    }

    fn finish(&mut self, sequence: Sequence, reason: FinishReason) {
        self.inner.finished.push(Finished { sequence, reason });
    }
}

fn in_its_prompt(running: &Running) -> bool {
    running.uncomputed() > 1 || running.sequence.new_tokens().is_empty()
}

/// Pages that a sequence needs beyond `table` for all of its tokens and the next. It is not chapter 12's function.
fn pages_needed(sequence: &Sequence, table: &PageTable) -> usize {
    let rows = sequence.max_rows().min(sequence.tokens.len() + 1);
    table.pages_needed(rows.saturating_sub(table.len()))
}

impl SchedulerUnderTest for BuggyScheduler {
    fn submit(&mut self, prompt: Vec<u32>, max_new_tokens: usize) -> Result<SequenceId, ScheduleError> {
        let id = SequenceId(self.inner.next_id);
        let sequence = Sequence::new(id, prompt, max_new_tokens)?;
        if max_new_tokens == 0 {
            self.finish(sequence, FinishReason::Length);
        } else {
            let n_pages = self.inner.slab.borrow().pool().n_pages();
            let needed = ForkCache::new(&self.inner.slab)?.table().pages_needed(sequence.max_rows());
            if needed > n_pages && !self.has(Bug::NeverFits) {
                return Err(ScheduleError::NeverFits { prompt: sequence.n_prompt, max_new_tokens, needed, n_pages });
            }
            self.inner.waiting.push_back(sequence);
        }
        self.inner.next_id += 1;
        Ok(id)
    }

    fn cancel(&mut self, id: SequenceId) -> Result<(), ScheduleError> {
        let sequence = if let Some(index) = self.index_of(id) {
            let Running { sequence, cache } = self.inner.running.remove(index);
            if self.has(Bug::CancelLeaks) && cache.len() < sequence.n_prompt {
                self.lost.push(cache);
            }
            sequence
        } else {
            let index = self.inner.waiting.iter().position(|sequence| sequence.id == id);
            index.and_then(|index| self.inner.waiting.remove(index)).ok_or(ScheduleError::UnknownSequence(id))?
        };
        self.finish(sequence, FinishReason::Abort);
        Ok(())
    }

    fn plan(&mut self) -> Result<Vec<ScheduledChunk>, ScheduleError> {
        let mut budget = self.inner.limits.token_budget;
        let mut index = 0;
        let mut admitted = 0;
        let mut has_preempted = false;
        let prompts_only = self.policy == Some(Policy::PromptsFirst) && self.has_prompts();
        while budget > 0 {
            if index >= self.inner.running.len() {
                let in_vain = has_preempted && self.has(Bug::NextChunk);
                if in_vain || !self.admit(admitted, budget)? {
                    break;
                }
                admitted += 1;
                index = self.inner.running.len() - 1;
            }
            if prompts_only && !in_its_prompt(&self.inner.running[index]) {
                index += 1;
                continue;
            }
            let n = self.inner.running[index].uncomputed().min(budget);
            let (index_now, preempted) = self.make_room(index, n)?;
            has_preempted |= preempted;
            let Some(index_now) = index_now else { continue };
            index = index_now;
            let has_caught_up = |sequence: &Sequence, held: usize| match self.bug {
                Some(Bug::PromptLength) if sequence.counters.preemptions > 0 => held >= sequence.n_prompt,
                _ => held == sequence.tokens.len(),
            };
            let Running { sequence, cache } = &mut self.inner.running[index];
            let (id, caught_up) = (sequence.id, has_caught_up(sequence, cache.len()));
            sequence.counters.count_scheduled(n, cache);
            self.inner.planned.chunks.push(ScheduledChunk { sequence_id: id, n_tokens: n, caught_up });
            if self.has(Bug::FoundTooEarly) {
                self.insert_pages(index)?;
            }
            budget -= n;
            index += 1;
            if preempted && self.has(Bug::PassedOver) {
                index += 1;
            }
        }
        Ok(self.inner.planned.chunks.clone())
    }

    fn settle(&mut self, next: &[NextToken]) -> Result<(), ScheduleError> {
        for chunk in std::mem::take(&mut self.inner.planned.chunks) {
            let Some(index) = self.index_of(chunk.sequence_id) else { continue };
            self.insert_pages(index)?;
        }
        for next in next {
            let Some(index) = self.index_of(next.sequence_id) else { continue };
            let sequence = &mut self.inner.running[index].sequence;
            let reason = if next.token == END_OF_TEXT {
                Some(FinishReason::Stop)
            } else {
                sequence.tokens.push(next.token);
                (sequence.new_tokens().len() == sequence.max_new_tokens).then_some(FinishReason::Length)
            };
            if let Some(reason) = reason {
                let Running { sequence, cache } = self.inner.running.remove(index);
                let last = cache.table().pages().last().copied();
                drop(cache);
                if let Some(last) = last.filter(|_| self.has(Bug::FreedTwice)) {
                    // The pool refuses a page without owners. One that others own loses an owner.
                    let _ = self.inner.slab.borrow_mut().pool.free(last);
                }
                self.finish(sequence, reason);
            }
        }
        Ok(())
    }

    fn as_scheduler(&self) -> &Scheduler {
        &self.inner
    }

    fn as_scheduler_mut(&mut self) -> &mut Scheduler {
        &mut self.inner
    }
}
