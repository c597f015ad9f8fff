//! vLLM's chain of hashes finds and evicts what the trie of chapter 11 does, on random sequences.

use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::workload::chain::{Chain, EvictionOrder};
use page_by_page::workload::{PageCounters, PageMemory, Pages, Trace, TraceRequest, run};

use grading::oracle::Dice;

fn in_trie(requests: &[TraceRequest], n_pages: usize, page_size: usize, running: usize) -> PageCounters {
    let prefixes = Box::new(PrefixCache::new(page_size).unwrap());
    let mut memory = Pages::new(n_pages, page_size, Some(prefixes)).unwrap();
    run(requests.to_vec(), running, &mut memory, || ()).unwrap()
}

fn in_chain(
    requests: &[TraceRequest],
    n_pages: usize,
    page_size: usize,
    running: usize,
    eviction_order: EvictionOrder,
) -> PageCounters {
    let mut memory = Chain::new(n_pages, page_size, eviction_order).unwrap();
    let counters = run(requests.to_vec(), running, &mut memory, || ()).unwrap();
    assert_eq!(memory.n_in_use(), 0, "a page is not let go of");
    counters
}

/// vLLM's queue, which never searches for the least recently used leaf, gives up the same pages: tables, pages taken
/// and cached tokens are the same. The last token of a prompt is its own, so that no page is held twice; a check below
/// shows what that costs.
#[test]
fn a_queue_of_pages_freed_from_the_end_finds_what_least_recently_used_leaves_leave() {
    for seed in 0..400 {
        let mut dice = Dice::new(seed);
        let requests: Vec<TraceRequest> = (100..)
            .take(dice.roll(1, 59))
            .map(|own| {
                // Few different tokens, so that sequences often begin alike.
                let mut tokens: Vec<u32> = (0..dice.roll(0, 23)).map(|_| dice.roll(0, 1) as u32).collect();
                tokens.push(own);
                let n_prompt = tokens.len();
                tokens.extend(std::iter::repeat_n(own, dice.roll(1, 11)));
                TraceRequest { tokens, n_prompt }
            })
            .collect();
        let (page_size, running) = (dice.roll(1, 4), dice.roll(1, 5));
        let largest = requests.iter().map(|request| request.tokens.len().div_ceil(page_size)).max().unwrap();
        let n_pages = largest + dice.roll(0, 59);
        let chain = in_chain(&requests, n_pages, page_size, running, EvictionOrder::TailsFirst);
        assert_eq!(chain, in_trie(&requests, n_pages, page_size, running), "seed {seed}");
    }
}

/// In pools in which a lot and nothing is evicted.
#[test]
fn on_every_trace_both_count_the_same_and_heads_first_finds_less() {
    for trace in Trace::ALL {
        let requests: Vec<TraceRequest> = trace.requests(trace.n_requests()).collect();
        let needed = requests.iter().map(|request| request.tokens.len().div_ceil(16)).max().unwrap();
        for n_pages in [13, 40, 130, 300, 512, 2000].into_iter().filter(|n_pages| *n_pages >= needed) {
            let run = format!("{} in {n_pages} pages", trace.name());
            let [tails, heads] = [EvictionOrder::TailsFirst, EvictionOrder::HeadsFirst]
                .map(|eviction_order| in_chain(&requests, n_pages, 16, trace.running(), eviction_order));
            assert_eq!(tails, in_trie(&requests, n_pages, 16, trace.running()), "{run}");
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
    let (trie, chain) = (in_trie(&requests, 5, 2, 1), in_chain(&requests, 5, 2, 1, EvictionOrder::TailsFirst));
    assert_eq!((trie.cached_tokens, trie.pages_evicted), (2 + 2 + 2, 0));
    assert_eq!((chain.cached_tokens, chain.pages_evicted), (2 + 2, 2), "the page of 9 9 is gone when it is asked for");
}
