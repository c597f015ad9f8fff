//! What scoring a prompt takes of the memory: rows of logits are many numbers each, and only some are there at the same
//! time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::model::Model;
use page_by_page::serving::schedule::StepLimits;
use page_by_page::serving::{Engine, GenerationRequest, SCORED_AT_ONCE};

/// Bytes that are held, and the most that were.
static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with an eye on what it gives.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator as it came; beside it, only counters change.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        MOST.fetch_max(HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `GlobalAlloc::alloc`, and `System` asks for the same ones.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Tokens of the prompt.
const TOKENS: usize = 500;

/// The most bytes that a step takes which reads a prompt, with scores or without.
fn taken(model: &Model, is_scored: bool) -> usize {
    let slab = PageSlab::new(model.kv_layout(), 16, 40).unwrap();
    let (prefixes, limits) = (PrefixCache::new(16).unwrap(), StepLimits { tokens: TOKENS, sequences: 2 });
    let mut engine = Engine::new(model, &slab, Box::new(prefixes), limits, &[]).unwrap();
    let prompt = (0..TOKENS as u32).map(|place| 7 * place % 4096).collect();
    let request = GenerationRequest::new(prompt, 1, vec![Sampler::new(Sampling::GREEDY)]);
    let logprobs = is_scored.then_some(1);
    engine.submit_request(GenerationRequest { scores_prompt: is_scored, logprobs, ..request }).unwrap();
    let before = HELD.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let step = engine.step().unwrap();
    let taken = MOST.load(Ordering::Relaxed) - before;
    let scores = &step.deltas[0].1.scores;
    assert_eq!(scores.as_ref().map(Vec::len), is_scored.then_some(TOKENS - 1));
    taken
}

/// The only test of this program: the counters are those of all its threads.
#[test]
fn a_step_that_scores_has_few_rows_of_logits_at_the_same_time() {
    let model = Model::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/storyteller")).unwrap();
    let (plain, scored) = (taken(&model, false), taken(&model, true));
    let most = plain + model.step_bytes(0, SCORED_AT_ONCE);
    assert!(scored <= most, "a step takes {scored} bytes with scores, {plain} without, and {most} would be right");
    let all_rows = model.step_bytes(0, TOKENS);
    assert!(
        all_rows > most,
        "else this shows nothing: all rows of logits take {all_rows} bytes, and {most} may be taken"
    );
}
