//! Workloads: counters that can be counted by hand, and what is refused. What the traces count is in
//! `crates/cli/tests/cli/scripts/workload.snap`.

use page_by_page::cache::CacheError;
use page_by_page::prefix_cache::PrefixCacheKind;
use page_by_page::workload::{Replay, ReplayCounters, TraceRequest, WorkloadError};

fn run(replay: Replay, requests: impl IntoIterator<Item = TraceRequest>) -> Result<ReplayCounters, WorkloadError> {
    replay.run(requests, || ())
}

#[test]
fn a_sequence_that_no_pool_of_this_size_holds_is_refused_by_number() {
    let text = |tokens| TraceRequest { tokens: vec![7; tokens], n_prompt: 2 };
    let two = Replay { n_pages: 2, page_size: 4, max_running: 2, prefix_cache: PrefixCacheKind::Trie };
    let refused = WorkloadError::NeverFits { number: 2, tokens: 9, needed: 3, n_pages: 2 };
    assert_eq!(run(two, [text(8), text(9)]), Err(refused));
    assert_eq!(run(Replay { max_running: 0, ..two }, [text(8)]), Err(WorkloadError::NoneRuns));
    assert_eq!(run(two, []), Ok(ReplayCounters::default()));
    assert_eq!(run(Replay { n_pages: 0, ..two }, []), Err(CacheError::NoPages.into()));
    assert_eq!(run(Replay { page_size: 0, ..two }, []), Err(CacheError::NoSlots.into()));
}

#[test]
fn steps_utilisation_and_fragmentation_by_hand() {
    // Pages of 4, a pool of 5, one text of 3 + 3 tokens: after step 1, 4 tokens in 1 page; 5 in 2; then it has ended.
    let text = TraceRequest { tokens: vec![7; 6], n_prompt: 3 };
    let five = Replay { n_pages: 5, page_size: 4, max_running: 4, prefix_cache: PrefixCacheKind::None };
    let counters = run(five, [text.clone()]).unwrap();
    assert_eq!((counters.steps, counters.pages_allocated, counters.prompt_tokens), (3, 2, 3));
    assert_eq!(counters.utilisation, (1.0 + 2.0 + 0.0) / 3.0 / 5.0);
    assert_eq!(counters.fragmentation, (0.0 + 3.0 / 8.0 + 0.0) / 3.0);

    // Twice, one after the other: of 3 tokens no page is full. The 6 tokens leave a page, a prompt of 5 finds it.
    let longer = TraceRequest { tokens: vec![7; 6], n_prompt: 5 };
    let kept = Replay { max_running: 1, prefix_cache: PrefixCacheKind::Trie, ..five };
    let counters = run(kept, [text, longer]).unwrap();
    assert_eq!((counters.cached_tokens, counters.prompt_tokens, counters.hit_rate), (4, 8, 0.5));
    assert_eq!((counters.steps, counters.pages_allocated, counters.pages_evicted), (4, 3, 0));
}
