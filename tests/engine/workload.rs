//! Workloads: counters that can be counted by hand, and what is refused. What the traces count is in
//! `crates/cli/tests/cli/scripts/workload.snap`.

use page_by_page::cache::CacheError;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::prefixes::Prefixes;
use page_by_page::workload::{PageCounters, Pages, TraceRequest, WorkloadError, run};

/// With the prefix cache of chapter 11, or with none.
fn pages(n_pages: usize, page_size: usize, with_prefixes: bool) -> Pages {
    let prefixes = with_prefixes.then(|| Box::new(PrefixCache::new(page_size).unwrap()) as Box<dyn Prefixes>);
    Pages::new(n_pages, page_size, prefixes).unwrap()
}

#[test]
fn a_sequence_that_no_pool_of_this_size_holds_is_refused_by_number() {
    let text = |tokens| TraceRequest { tokens: vec![7; tokens], n_prompt: 2 };
    let refused = run([text(8), text(9)], 2, &mut pages(2, 4, true), || ());
    assert_eq!(refused, Err(WorkloadError::NeverFits { number: 2, tokens: 9, needed: 3, n_pages: 2 }));
    assert_eq!(run([text(8)], 0, &mut pages(2, 4, true), || ()), Err(WorkloadError::NoneRuns));
    assert_eq!(run([], 1, &mut pages(2, 4, true), || ()), Ok(PageCounters::default()));
    assert_eq!(Pages::new(0, 4, None).err(), Some(CacheError::NoPages));
    assert_eq!(Pages::new(4, 0, None).err(), Some(CacheError::NoSlots));
}

#[test]
fn steps_utilisation_and_fragmentation_by_hand() {
    // Pages of 4, a pool of 5, one text of 3 + 3 tokens: after the first step 4 tokens in 1 page, after the second 5 in
    // 2, after the third it has ended.
    let text = TraceRequest { tokens: vec![7; 6], n_prompt: 3 };
    let counters = run([text.clone()], 4, &mut pages(5, 4, false), || ()).unwrap();
    assert_eq!((counters.steps, counters.pages_allocated, counters.prompt_tokens), (3, 2, 3));
    assert_eq!(counters.utilisation, (1.0 + 2.0 + 0.0) / 3.0 / 5.0);
    assert_eq!(counters.fragmentation, (0.0 + 3.0 / 8.0 + 0.0) / 3.0);

    // Twice, one after the other: of 3 tokens no page is full. The 6 tokens leave a page, a prompt of 5 finds it.
    let longer = TraceRequest { tokens: vec![7; 6], n_prompt: 5 };
    let counters = run([text, longer], 1, &mut pages(5, 4, true), || ()).unwrap();
    assert_eq!((counters.cached_tokens, counters.prompt_tokens, counters.hit_rate), (4, 8, 0.5));
    assert_eq!((counters.steps, counters.pages_allocated, counters.pages_evicted), (4, 3, 0));
}
