//! What some mistakes cost: counters of the right code, and of a few lines that do the same work wrongly.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};

use super::bundled;
use crate::cache::{KvCache, Rewind};
use crate::cache_kind::{CacheKind, CacheSize};
use crate::chapters::ch01_recompute::argmax;
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch06_paged::{PageSlab, PagedCache};
use crate::chapters::ch08_speculative::DraftModel;
use crate::chapters::ch09_rejection::residual;
use crate::english::{plural, thousands};
use crate::generation::drafting::{AcceptRule, DraftCounters};
use crate::generation::one_sequence::Generation;
use crate::generation::sampler::{Sampler, SamplingParams};
use crate::generation::{CachedModel, Draft, Drafter, RewindableModel, StopConditions};
use crate::model::tokenizer::Tokenizer;
use crate::model::{Model, StepError};
use crate::prefix_cache::NoPrefixCache;
use crate::serving::schedule::{NextToken, StepLimits};
use crate::simulation::buggy_scheduler::{Bug, Policy, with_bug, with_policy};
use crate::simulation::{LAYOUT, SchedulerFactory, event_log, new_scheduler, search};

/// The right lines, then those of the mistake.
type Cost = Result<[Vec<String>; 2]>;

/// Chapter 4: calls for 7 pages of a pool that has 6. The wrong one takes two at a time before it gives up.
pub(super) fn refused_calls() -> Cost {
    let after = |take: &dyn Fn(&mut PagePool) -> bool| -> Result<Vec<String>> {
        let mut pool = PagePool::new(6)?;
        let mut lines = vec![format!("{} free", pool.n_free())];
        for _ in 0..3 {
            ensure!(!take(&mut pool), "7 pages of 6");
            lines.push(format!("refused, {} free", pool.n_free()));
        }
        Ok(lines)
    };
    let wrong = |pool: &mut PagePool| (0..7).all(|taken| taken < 2 && pool.alloc().is_ok());
    Ok([after(&|pool| pool.alloc_n(7).is_ok())?, after(&wrong)?])
}

/// Chapter 7: a sequence of 30 tokens in pages of 8 slots forgets 14 of them and grows again, and that four times. The wrong
/// one's pages get an owner that never gives them back.
pub(super) fn rewinds() -> Cost {
    let after = |frees: bool| -> Result<Vec<String>> {
        let slab = PageSlab::new(LAYOUT, 8, 12)?;
        let mut cache = PagedCache::new(&slab)?;
        let mut lines = Vec::new();
        for n in [30, 14, 14, 14, 14] {
            cache.rewind(cache.len().min(14))?;
            cache.extend(n)?;
            let pages = cache.table().pages();
            lines.push(format!("{} pages owned, {} free", pages.len(), slab.borrow().pool().n_free()));
            for page in pages.iter().skip(2).filter(|_| !frees) {
                slab.borrow_mut().pool.share(*page)?;
            }
        }
        Ok(lines)
    };
    Ok([after(true)?, after(false)?])
}

/// Drafts after what it has drafted itself: rejected tokens stay where they are.
pub struct StubbornDrafter<'a> {
    pub model: &'a mut dyn RewindableModel,
    /// All that it has in its cache; empty at first.
    pub tokens: &'a mut Vec<u32>,
}

impl Drafter for StubbornDrafter<'_> {
    fn draft(&mut self, tokens: &[u32], k: usize) -> Result<Draft, StepError> {
        match self.tokens.is_empty() {
            true => self.tokens.extend(tokens),
            false => self.tokens.extend(tokens.last()),
        }
        let mut draft = Draft::default();
        for _ in 0..k {
            let logits = self.model.next_logits(self.tokens)?;
            self.tokens.push(argmax(&logits));
            draft.push_certain(argmax(&logits), logits.len());
        }
        Ok(draft)
    }

    fn sync_cache(&mut self, _: &[u32]) -> Result<(), StepError> {
        Ok(())
    }
}

/// Chapter 8: a greedy story of 100 tokens with drafts of four.
pub(super) fn drafts() -> Cost {
    let [target, small] = ["storyteller", "storyteller-draft"].map(|name| Model::open(&bundled(name)));
    let (target, small) = (target?, small?);
    let prompt = Tokenizer::open(&bundled("storyteller"))?.encode("Once upon a time")?;
    let size = CacheSize::for_tokens(1000, 16)?;
    let cache = |model: &Model| CacheKind::Contiguous.new_cache(model.cache_layout(), size)?.context("a cache");
    let generate = |is_stubborn: bool| -> Result<(Vec<u32>, DraftCounters)> {
        let (mut target_cache, mut draft_cache) = (cache(&target)?, cache(&small)?);
        let (mut counters, mut sampler) = (DraftCounters::default(), Sampler::new(SamplingParams::GREEDY));
        let mut accept = |draft: &Draft, rows: &[Vec<f32>]| {
            let new_tokens = AcceptRule::Match.accept(draft, rows, &mut sampler);
            counters.count(draft, new_tokens.len());
            new_tokens
        };
        let (mut model, mut held) = (CachedModel::new(&small, draft_cache.as_mut()), Vec::new());
        let stop = StopConditions { max_new_tokens: 100, end_of_text: &[] };
        let generation = Generation { model: &target, prompt: &prompt, stop, is_cancelled: None, checker: None };
        let mut drafter: Box<dyn Drafter + '_> = match is_stubborn {
            true => Box::new(StubbornDrafter { model: &mut model, tokens: &mut held }),
            false => Box::new(DraftModel::new(&mut model)),
        };
        let generated =
            generation.run_with_drafts(Some(target_cache.as_mut()), &mut *drafter, 4, &mut accept, &mut |_| {})?;
        Ok((generated.tokens, counters))
    };
    let ((right, counters), (wrong, bill)) = (generate(false)?, generate(true)?);
    ensure!(right == wrong, "drafts change the output");
    let lines = |counters: DraftCounters| {
        let (drafted, accepted) = (counters.drafted, counters.accepted);
        vec![
            "the same 100 tokens".into(),
            format!("{} of {} accepted", accepted, plural(drafted, "draft token")),
            format!("{} passes of the target", counters.target_passes),
        ]
    };
    Ok([lines(counters), lines(bill)])
}

/// Chapter 9: three tokens, of which the target likes the first and the draft model the last.
pub(super) fn rejections() -> Cost {
    let (p, q) = ([0.5, 0.3, 0.2_f32], [0.25, 0.25, 0.5_f32]);
    let accepted: Vec<f32> = p.iter().zip(&q).map(|(p, q)| p.min(*q)).collect();
    let rejected = 1.0 - accepted.iter().sum::<f32>();
    let lines = |after_rejection: &[f32]| {
        let sum: f32 = after_rejection.iter().sum();
        let shares = accepted.iter().zip(after_rejection).map(|(accepted, after)| accepted + rejected * after / sum);
        let lines = shares.zip(&p).zip(["first", "second", "third"]);
        lines
            .map(|((share, p), name)| {
                format!("the {name}: {:.1} %, and the target's is {:.1} %", 100.0 * share, 100.0 * p)
            })
            .collect()
    };
    Ok([lines(&residual(&p, &q)), lines(&p)])
}

/// Chapter 12: two requests of 500 and 450 tokens in 80 pages of 16 slots.
pub(super) fn victims() -> Cost {
    let limits = StepLimits { token_budget: 128, max_running: 8 };
    let lines = |factory: &SchedulerFactory<'_>| -> Result<Vec<String>> {
        let requests = [(500, 450), (500, 450)];
        let [steps, computed, preemptions, _] = count_schedule(factory, 80, limits, &requests, 2)?;
        let computed = format!("{} tokens computed for 1,898", thousands(computed));
        Ok(vec![computed, plural(preemptions, "preemption"), plural(steps, "step")])
    };
    Ok([lines(&new_scheduler)?, lines(&with_policy(Policy::OldestVictim))?])
}

/// Chapter 15: which engine had a bug, the rule that it breaks, and the events to which a simulation shrinks it.
pub fn shrunk_events(bug: Bug) -> String {
    let factory = with_bug(Some(bug));
    let Err(found) = search(&*factory, 0..1000, 100, || {}) else {
        return "no rule is broken in 1,000 worlds\n".into();
    };
    let (message, rule) = (&found.failure.violation.message, found.failure.violation.rule);
    let log = event_log(&*factory, &found.case, &found.shrunk);
    format!("reported  {}\nrule      {rule}: {message}\n\n{log}", bug.reported_in())
}

/// Schedules all requests, as (prompt, new tokens), to their end, `batch` of them at first and as many when these have
/// finished; there is no prefix cache and no model. Returns steps, tokens computed, preemptions, and the most tokens that
/// were computed between two new tokens of a sequence.
pub fn count_schedule(
    factory: &SchedulerFactory<'_>,
    n_pages: usize,
    limits: StepLimits,
    requests: &[(usize, usize)],
    batch: usize,
) -> Result<[usize; 4]> {
    let slab = PageSlab::new(LAYOUT, 16, n_pages)?;
    let mut scheduler = factory(&slab, Box::new(NoPrefixCache::new(16)?), limits)?;
    let mut batches = requests.chunks(batch);
    let [mut steps, mut computed, mut preemptions, mut longest_wait, mut unfinished] = [0; 5];
    // Tokens that were computed when a sequence got its newest one.
    let mut at_newest = HashMap::new();
    loop {
        if unfinished == 0 {
            let Some(batch) = batches.next() else { return Ok([steps, computed, preemptions, longest_wait]) };
            for (n_prompt, max_new_tokens) in batch {
                scheduler.submit(vec![1; *n_prompt], *max_new_tokens)?;
            }
            unfinished = batch.len();
        }
        steps += 1;
        ensure!(steps < 200_000, "this policy never ends");
        let plan = scheduler.plan()?;
        computed += plan.iter().map(|chunk| chunk.n_tokens).sum::<usize>();
        let mut next = Vec::new();
        for chunk in plan.iter().filter(|chunk| chunk.caught_up) {
            next.push(NextToken { sequence_id: chunk.sequence_id, token: 1 });
            let before = at_newest.insert(chunk.sequence_id, computed).unwrap_or(computed);
            longest_wait = longest_wait.max(computed - before);
        }
        scheduler.settle(&next)?;
        for finished in scheduler.as_scheduler_mut().take_finished() {
            unfinished -= 1;
            preemptions += finished.sequence.counters.preemptions as usize;
        }
    }
}
