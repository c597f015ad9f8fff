//! A target and a draft model over caches of every kind, for the graders of speculation. Both rewind, with
//! `ch07_rewind`.

use page_by_page::cache::KvLayout;
use page_by_page::cache::attention::AttentionCache;
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::generation::{CachedModel, RewindableModel};
use page_by_page::model::Model;

use crate::paged::cache;
use crate::pools::slab_of;
use crate::story::{Storyteller, assets};

type NewCache = fn(KvLayout) -> Box<dyn AttentionCache>;

/// Empty caches with room for 64 tokens at least, and what they are called.
const CACHES: [(&str, NewCache); 4] = [
    ("flat cache", |layout| Box::new(FlatCache::new(layout))),
    ("contiguous cache", |layout| Box::new(ContiguousCache::new(layout, 64))),
    ("paged cache, page size 3", |layout| Box::new(cache(&slab_of(layout, 3, 64)))),
    ("paged cache, page size 16", |layout| Box::new(cache(&slab_of(layout, 16, 64)))),
];

/// Has a target and a draft model generate a story of 16 tokens, drafts of k = 0 to 8 tokens, the caches by turns:
/// `generate(told, target, small, k)`. Each must be `expected`, and both caches then hold all but its newest token. If
/// `is_greedy`, the target also drafts for itself, and rejects nothing.
pub fn assert_stories(
    storyteller: &Storyteller,
    is_greedy: bool,
    (prompt, expected): (&[u32], &[u32]),
    mut generate: impl FnMut(&str, &mut dyn RewindableModel, &mut dyn RewindableModel, usize) -> Vec<u32>,
) {
    let draft_model = Model::open(&assets().join("storyteller-draft")).expect("the bundled draft model opens");
    for (k, is_its_own) in (0..=8).map(|k| (k, false)).chain(is_greedy.then_some((4, true))) {
        let models = [&storyteller.model, if is_its_own { &storyteller.model } else { &draft_model }];
        let (name, new_cache) = CACHES[k % CACHES.len()];
        let [mut of_target, mut of_small] = models.map(|model| new_cache(model.config().kv_layout()));
        let told = format!("a story of {} tokens, {name}, k = {k}", expected.len());
        let mut target = CachedModel::new(models[0], &mut *of_target);
        let mut small = CachedModel::new(models[1], &mut *of_small);
        let story = generate(&told, &mut target, &mut small, k);
        storyteller.assert_same_story(&story, expected);
        let all_but_one = prompt.len() + expected.len() - 1;
        let lengths = (target.cached_len(), small.cached_len());
        same!(lengths, (all_but_one, all_but_one), "tokens in the caches of target and draft model, {told}");
        if is_its_own {
            let why = "which drafts for itself: no draft token is rejected, so it reads each token once";
            same!(target.computed_tokens(), all_but_one as u64, "tokens that the target computes, {why}; {told}");
        }
    }
}
