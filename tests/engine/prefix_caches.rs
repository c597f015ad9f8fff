//! vLLM's chain of hashes finds and evicts what the trie of chapter 11 does, on random sequences.

use page_by_page::prefix_cache::EvictionOrder::{HeadsFirst, TailsFirst};
use page_by_page::prefix_cache::PrefixCacheKind::{self, HashChain, Trie};
use page_by_page::workload::{Replay, ReplayCounters, Trace, TraceDefaults, TraceRequest};

use grading::oracle::TestRng;

/// `pool`: its pages, their slots, and the sequences that run at the same time, at most.
fn replayed(requests: &[TraceRequest], pool: (usize, usize, usize), prefix_cache: PrefixCacheKind) -> ReplayCounters {
    let (n_pages, page_size, max_running) = pool;
    Replay { n_pages, page_size, max_running, prefix_cache }.run(requests.to_vec(), || ()).unwrap()
}

/// Pages in the order of their last use, without a search for leaves, are evicted as leaves are: pages taken, evicted
/// and found are the same. The last token of a prompt is its own, so that no page is held twice; a check below
/// shows what that costs.
#[test]
fn pages_evicted_from_the_end_of_each_sequence_are_the_least_recently_used_leaves() {
    for seed in 0..400 {
        let mut rng = TestRng::new(seed);
        let requests: Vec<TraceRequest> = (100..)
            .take(rng.roll(1, 59))
            .map(|own| {
                // Few different tokens, so that sequences often begin alike.
                let mut tokens: Vec<u32> = (0..rng.roll(0, 23)).map(|_| rng.roll(0, 1) as u32).collect();
                tokens.push(own);
                let n_prompt = tokens.len();
                tokens.extend(std::iter::repeat_n(own, rng.roll(1, 11)));
                TraceRequest { tokens, n_prompt }
            })
            .collect();
        let (page_size, running) = (rng.roll(1, 4), rng.roll(1, 5));
        let largest = requests.iter().map(|request| request.tokens.len().div_ceil(page_size)).max().unwrap();
        let pool = (largest + rng.roll(0, 59), page_size, running);
        let [chain, trie] = [HashChain(TailsFirst), Trie].map(|cache| replayed(&requests, pool, cache));
        assert_eq!(chain, trie, "seed {seed}");
    }
}

/// In pools in which a lot and nothing is evicted.
#[test]
fn on_every_trace_both_count_the_same_and_heads_first_finds_less() {
    for trace in Trace::ALL {
        let TraceDefaults { name, n_requests, max_running, .. } = trace.defaults();
        let requests: Vec<TraceRequest> = trace.requests(n_requests).collect();
        let needed = requests.iter().map(|request| request.tokens.len().div_ceil(16)).max().unwrap();
        for n_pages in [13, 40, 130, 300, 512, 2000].into_iter().filter(|n_pages| *n_pages >= needed) {
            let run = format!("{} in {n_pages} pages", name);
            let pool = (n_pages, 16, max_running);
            let [trie, tails, heads] = [Trie, HashChain(TailsFirst), HashChain(HeadsFirst)]
                .map(|prefix_cache| replayed(&requests, pool, prefix_cache));
            assert_eq!(tails, trie, "{run}");
            assert!(heads.cached_tokens <= tails.cached_tokens, "{run}: {heads:?} and {tails:?}");
        }
    }
}

/// Where the chain differs: of a prompt that it holds whole, the last page is computed again. The trie swaps the new
/// page for the one that it has; the chain, as vLLM, keeps both, and a different sequence's page goes for it.
#[test]
fn a_page_that_is_held_twice_costs_the_chain_another() {
    let sequences: [&[u32]; 5] = [&[9, 9, 0], &[1, 2, 3, 4, 0], &[1, 2, 3, 4, 0], &[1, 2, 3, 4, 0], &[9, 9, 7, 0]];
    let requests = sequences.map(|tokens| TraceRequest { tokens: tokens.to_vec(), n_prompt: tokens.len() - 1 });
    let [trie, chain] = [Trie, HashChain(TailsFirst)].map(|cache| replayed(&requests, (5, 2, 1), cache));
    assert_eq!((trie.cached_tokens, trie.pages_evicted), (2 + 2 + 2, 0));
    assert_eq!((chain.cached_tokens, chain.pages_evicted), (2 + 2, 2), "the page of 9 9 is gone when it is asked for");
}
