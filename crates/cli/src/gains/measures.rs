//! What is counted for each chapter, once without it and once with it. The pages quote the same numbers
//! (`crates/cli/tests/cli/gains.rs`).

use anyhow::{Context, Result, ensure};
use page_by_page::cache::CacheUsage;
use page_by_page::cache_kind::CacheKind;
use page_by_page::chapters::ch01_recompute::argmax;
use page_by_page::chapters::ch03_contiguous::{cache_bytes, wasted_share};
use page_by_page::chapters::ch14_kv_quantization::token_bytes;
use page_by_page::experiments::drafts::Bundled;
use page_by_page::experiments::forks::Samples;
use page_by_page::experiments::prefixes::{replay, steps_for_tiny_llm};
use page_by_page::experiments::{PAGE_SIZE, SMALL, bundled, disk, generation, memory, paged_attention, rewind};
use page_by_page::generation::drafting::{AcceptRule, DraftCounters};
use page_by_page::generation::one_sequence::Generated;
use page_by_page::kernels::KvDtype;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::model::{Model, ModelConfig};
use page_by_page::prefix_cache::PrefixCacheKind;
use page_by_page::serving::schedule::StepLimits;
use page_by_page::simulation::buggy_scheduler::{Bug, with_bug};
use page_by_page::simulation::{examples, search};
use page_by_page::workload::Trace;

use super::limits::Measure;
use crate::output::{percent, thousands};
use crate::requirements::{SCHEDULER, SIMULATION};

/// What a chapter gains, and how to count it.
pub struct Gain {
    pub number: usize,
    /// The way without it, and the chapters whose code that runs.
    pub before: (&'static str, &'static [usize]),
    /// The way with it, and the chapters whose code that runs.
    pub after: (&'static str, &'static [usize]),
    pub measure: Measure,
}

/// `passes for each token: 1.00 → 0.47`
fn line<N>(what: &str, numbers: [N; 2], shown: impl Fn(N) -> String) -> String {
    let [before, after] = numbers.map(shown);
    format!("{what}: {before} → {after}")
}

fn counts(what: &str, numbers: [impl TryInto<u64>; 2]) -> String {
    line(what, numbers, thousands)
}

fn passes_per_token(counters: DraftCounters) -> String {
    format!("{:.2}", counters.target_passes_per_token())
}

pub fn gain(number: usize) -> Gain {
    let gain = |before, after, measure| Gain { number, before, after, measure };
    match number {
        1 => gain(("the first of 200 tokens", &[1]), ("the last of them", &[1]), recompute),
        2 => gain(("the whole sequence again for each token", &[1]), ("the flat cache", &[1, 2]), flat),
        3 => gain(("the flat cache", &[1, 2]), ("the contiguous cache", &[1, 3]), contiguous),
        4 => gain(("contiguous regions", &[]), ("pages of 16 slots", &[4]), pool),
        5 => gain(("reservations of 4,096 slots", &[3]), ("pages of 16 slots", &[5]), table),
        6 => gain(("reservations of 405 slots", &[3]), ("pages of 16 slots", &[6]), paged),
        7 => gain(("the other tokens copied to a new cache", &[6]), ("rewind", &[6, 7]), forget),
        8 => gain(("a pass for each token", &[1, 3]), ("drafts of two", &[1, 3, 7, 8]), drafts),
        9 => gain(("the match rule", &[3, 7, 8]), ("the sample rule", &[3, 7, 8, 9]), chance),
        10 => gain(("restored from a saved cache", &[6]), ("forks", &[10]), forks),
        11 => gain(("pages freed with their sequence", &[5]), ("the prefix cache", &[11]), prefixes),
        12 => gain(("one request after the other", &SCHEDULER), ("up to eight in a step", &SCHEDULER), scheduler),
        13 => gain(("rows gathered", &[6, 7]), ("rows read in their pages", &[6, 7, 13]), in_pages),
        14 => gain(("rows in f32", &[3, 14]), ("rows in fewer bits", &[14]), bits),
        15 => gain(
            ("examples, and the events as they came", &SCHEDULER),
            ("rules, and the events shrunk", &SIMULATION),
            planted_bugs,
        ),
        16 => gain(("started anew", &SCHEDULER), ("started with the pages of the run before", &[11, 12, 16]), restart),
        _ => unreachable!("a chapter without a measure"),
    }
}

/// The first `new_tokens` tokens of the story of chapters 1 to 3, by the small model: any model has the same counts.
fn story(kind: CacheKind, new_tokens: usize) -> Result<Generated> {
    let dir = bundled("storyteller-draft");
    let (model, prompt) = (Model::open(&dir)?, Tokenizer::open(&dir)?.encode("Once upon a time")?);
    generation::generate(&model, (kind, prompt.len() + new_tokens), &prompt, new_tokens, &mut argmax)
}

fn recompute() -> Result<Vec<String>> {
    let computed = |new_tokens| Ok::<_, anyhow::Error>(story(CacheKind::Recompute, new_tokens)?.computed_tokens);
    let (first, but_last, all) = (computed(1)?, computed(199)?, computed(200)?);
    Ok(vec![
        counts("tokens computed for one token", [first, all.saturating_sub(but_last)]),
        format!("tokens computed for the story of 200 tokens: {}", thousands(all)),
        "Nothing yet, on purpose: this is the price that the next chapters bring down.".into(),
    ])
}

fn flat() -> Result<Vec<String>> {
    let (recompute, flat) = (story(CacheKind::Recompute, 200)?, story(CacheKind::Flat, 200)?);
    Ok(vec![
        counts("tokens computed for a story of 200 tokens", [recompute.computed_tokens, flat.computed_tokens]),
        counts("tokens copied for it", [0, flat.usage.copied_tokens]),
    ])
}

fn contiguous() -> Result<Vec<String>> {
    let copied = |kind| Ok::<_, anyhow::Error>(story(kind, 200)?.usage.copied_tokens);
    let tokens = [copied(CacheKind::Flat)?, copied(CacheKind::Contiguous)?];
    Ok(vec![counts("tokens copied for a story of 200 tokens", tokens)])
}

fn pool() -> Result<Vec<String>> {
    const LENGTHS: [usize; 3] = [200, 1000, 150];
    let gaps = memory::free_in_regions(2000, &LENGTHS, 0)?.gaps;
    let pages = memory::free_in_pages(2000, PAGE_SIZE, &LENGTHS, 832)?;
    let slots = pages.outcome.map_or(0, |_| pages.needed * PAGE_SIZE);
    Ok(vec![counts("slots that one new sequence can have", [gaps.into_iter().max().unwrap_or(0), slots])])
}

fn wasted(usages: &[CacheUsage]) -> usize {
    usages.iter().map(CacheUsage::wasted).sum()
}

fn table() -> Result<Vec<String>> {
    const LENGTHS: [usize; 4] = [1024, 700, 300, 224];
    let reserved = memory::usage_if_reserved(SMALL, LENGTHS.map(|length| (4096, length)))?;
    let paged = memory::usage_of_tables(PAGE_SIZE, LENGTHS)?;
    let slots: usize = paged.iter().map(|usage| usage.slots).sum();
    let shares = [wasted_share(&reserved), wasted(&paged) as f64 / slots.max(1) as f64];
    Ok(vec![
        counts("slots wasted by sequences of 1,024, 700, 300 and 224 tokens", [wasted(&reserved), wasted(&paged)]),
        line("of the slots that they take", shares, percent),
    ])
}

fn paged() -> Result<Vec<String>> {
    /// The tokens of each prompt, and of the whole story. Up to 400 new ones were allowed.
    const STORIES: [(usize, usize); 4] = [(5, 404), (4, 139), (4, 112), (4, 133)];
    const PAGES: usize = 104;
    let reserved = memory::usage_if_reserved(SMALL, STORIES.map(|(prompt, length)| (prompt + 400, length)))?;
    let largest = reserved.iter().map(|usage| usage.slots).max().unwrap_or(0).max(1);
    let lengths = STORIES.map(|(_, length)| length);
    let fitting = memory::sequences_that_fit(PAGES, PAGE_SIZE, &lengths)?;
    ensure!(fitting >= STORIES.len(), "only {fitting} of {} stories fit in {PAGES} pages", STORIES.len());
    let paged = memory::usage_of_caches(SMALL, PAGE_SIZE, &lengths)?;
    Ok(vec![
        counts("sequences like these that fit in 104 pages of memory", [PAGES * PAGE_SIZE / largest, fitting]),
        counts("slots wasted by four stories of up to 400 new tokens", [wasted(&reserved), wasted(&paged)]),
    ])
}

fn forget() -> Result<Vec<String>> {
    Ok(vec![
        counts("tokens copied to forget 4 of 32,768 tokens", rewind::copied_to_forget(32_768, 4)?),
        counts("tokens copied to forget 16,384 of them", rewind::copied_to_forget(32_768, 16_384)?),
    ])
}

fn drafts() -> Result<Vec<String>> {
    let mut models = Bundled::open()?;
    let (alone, drafted) = (models.stories(0.0, 0, AcceptRule::Match)?, models.stories(0.0, 2, AcceptRule::Match)?);
    ensure!(drafted.tokens == alone.tokens, "with drafts the sequences are others than without");
    let counters = [alone.counters, drafted.counters];
    let passes = counters.map(|counters| counters.target_passes);
    Ok(vec![
        counts("passes of the target for four stories of 100 tokens", passes),
        line("passes for each token", counters, passes_per_token),
    ])
}

fn chance() -> Result<Vec<String>> {
    let mut models = Bundled::open()?;
    let mut counted = |rule| anyhow::Ok(models.stories(0.8, 2, rule)?.counters);
    let counters = [counted(AcceptRule::Match)?, counted(AcceptRule::Sample)?];
    let accepted = |counters: DraftCounters| percent(counters.acceptance_rate());
    Ok(vec![
        line("draft tokens accepted, at temperature 0.8", counters, accepted),
        line("passes of the target for each token", counters, passes_per_token),
    ])
}

fn forks() -> Result<Vec<String>> {
    let samples = Samples { samples: 8, prompt_tokens: 900, new_tokens: 100, page_size: PAGE_SIZE, layout: SMALL };
    let (restored, forked) = (samples.restored()?, samples.forked()?);
    Ok(vec![
        counts("pages held by eight endings of one prompt of 900 tokens", [restored.pages_held, forked.pages_held]),
        counts("tokens copied for them", [restored.copied_tokens, forked.copied_tokens]),
    ])
}

fn prefixes() -> Result<Vec<String>> {
    let run = |prefix_cache| replay(Trace::Shared, Trace::Shared.defaults().n_pages, prefix_cache);
    let (without, with) = (run(PrefixCacheKind::None)?, run(PrefixCacheKind::Trie)?);
    Ok(vec![
        line("prompt tokens found, where 300 requests begin alike", [without.hit_rate, with.hit_rate], percent),
        counts("pages taken from the pool", [without.pages_allocated, with.pages_allocated]),
    ])
}

fn scheduler() -> Result<Vec<String>> {
    // Each prompt in one step: the longest has 992 tokens.
    let alone = steps_for_tiny_llm(1000, StepLimits { token_budget: 1024, max_running: 1 })?;
    let eight = StepLimits { token_budget: 128, max_running: 8 };
    Ok(vec![
        counts("passes of a model for sixteen requests", [alone, steps_for_tiny_llm(1000, eight)?]),
        counts("passes in 150 pages, too few for eight at once", [alone, steps_for_tiny_llm(150, eight)?]),
    ])
}

fn in_pages() -> Result<Vec<String>> {
    let mut model = Model::open(&bundled("storyteller"))?;
    let mut copied = |tokens| paged_attention::copied_tokens(&mut model, 8, tokens);
    Ok(vec![
        counts("tokens copied in a step of eight sequences of 256 tokens", copied(256)?),
        counts("tokens copied in a step of eight sequences of 1,023", copied(1023)?),
    ])
}

fn bits() -> Result<Vec<String>> {
    const POOL: usize = 16 << 20;
    let layout = ModelConfig::open(&bundled("storyteller"))?.kv_layout();
    let sequences = |dtype| POOL / (token_bytes(dtype, layout) * PAGE_SIZE).max(1) / 200_usize.div_ceil(PAGE_SIZE);
    let plain = cache_bytes(layout, 1, size_of::<f32>());
    Ok(vec![
        counts("bytes of a token's rows, in f16", [plain, token_bytes(KvDtype::F16, layout)]),
        counts("sequences of 200 tokens in 16 MiB, in int8", [KvDtype::F32, KvDtype::Int8].map(sequences)),
    ])
}

fn planted_bugs() -> Result<Vec<String>> {
    const STEPS: u64 = 100;
    const SEEDS: u64 = 1000;
    let (mut by_examples, mut by_rules, mut events) = (0_u64, 0_u64, None);
    for bug in Bug::all() {
        let factory = with_bug(Some(bug));
        by_examples += u64::from(examples::pass(&factory).is_err());
        if let Err(found) = search(&factory, 0..=SEEDS - 1, STEPS, || {}) {
            by_rules += 1;
            if bug == Bug::CancelLeaks {
                events = Some([found.events, found.case.events.len()]);
            }
        }
    }
    let events = events.context("no rule has noticed the planted bug cancel-leaks")?;
    Ok(vec![
        counts(&format!("planted bugs that are noticed, of {}", Bug::all().len()), [by_examples, by_rules]),
        counts("events that tell the story of cancel-leaks", events),
    ])
}

fn restart() -> Result<Vec<String>> {
    let runs = disk::restart()?;
    Ok(vec![
        counts("tokens computed for four prompts that begin alike", runs.map(|totals| totals.computed_tokens)),
        counts("tokens of the prompts found, of 791", runs.map(|totals| totals.cached_tokens)),
    ])
}
