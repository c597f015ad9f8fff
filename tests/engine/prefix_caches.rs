//! vLLM's chain of hashes finds and evicts what the trie of chapter 11 does, on random sequences.

use page_by_page::cache::{CacheError, PageId};
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::prefixes::chain::{Chain, FirstOut};
use page_by_page::workload::{PageCounters, Pages, Request, Trace, run};

use crate::support::oracle::Dice;

/// Few different tokens, so that sequences often begin alike.
fn tokens(dice: &mut Dice, least: usize, most: usize) -> Vec<u32> {
    (0..dice.roll(least, most)).map(|_| dice.roll(0, 1) as u32).collect()
}

/// vLLM's queue, which never searches for the least recently used leaf, gives up the same pages: tables, pages taken and
/// cached tokens are the same. The last token of a prompt is its own, so that no page is held twice; a check below shows
/// what that costs.
#[test]
fn a_queue_of_pages_freed_from_the_end_finds_what_least_recently_used_leaves_leave() {
    for seed in 0..400 {
        let mut dice = Dice::new(seed);
        let requests: Vec<Request> = (100..)
            .take(dice.roll(1, 59))
            .map(|own| {
                let mut text = tokens(&mut dice, 0, 23);
                text.push(own);
                let prompt = text.len();
                text.extend(std::iter::repeat_n(own, dice.roll(1, 11)));
                Request { tokens: text, n_prompt: prompt }
            })
            .collect();
        let (page_size, running) = (dice.roll(1, 4), dice.roll(1, 5));
        let largest = requests.iter().map(|request| request.tokens.len().div_ceil(page_size)).max().unwrap();
        let n_pages = largest + dice.roll(0, 59);
        let chained = chained(&requests, n_pages, page_size, running, FirstOut::Tails);
        assert_eq!(chained, plain(&requests, n_pages, page_size, running), "seed {seed}");
    }
}

fn plain(requests: &[Request], n_pages: usize, page_size: usize, running: usize) -> PageCounters {
    let prefixes = Box::new(PrefixCache::new(page_size).unwrap());
    let mut memory = Pages::new(n_pages, page_size, Some(prefixes)).unwrap();
    run(requests.to_vec(), running, &mut memory, || ()).unwrap()
}

fn chained(
    requests: &[Request],
    n_pages: usize,
    page_size: usize,
    running: usize,
    first_out: FirstOut,
) -> PageCounters {
    let mut memory = Chain::new(n_pages, page_size, first_out).unwrap();
    let counters = run(requests.to_vec(), running, &mut memory, || ()).unwrap();
    assert_eq!(memory.n_free(), n_pages, "a page is not let go of");
    counters
}

/// All traces, in pools in which a lot and nothing is evicted.
fn traces() -> impl Iterator<Item = (Trace, Vec<Request>, usize)> {
    let pools = [13, 40, 130, 300, 512, 2000];
    let traces = Trace::ALL.into_iter().map(|trace| (trace, trace.requests(trace.n_requests()).collect::<Vec<_>>()));
    traces.flat_map(move |(trace, requests)| {
        let needed = requests.iter().map(|request| request.tokens.len().div_ceil(16)).max().unwrap();
        pools.into_iter().filter(move |pool| *pool >= needed).map(move |pool| (trace, requests.clone(), pool))
    })
}

#[test]
fn both_count_the_same_on_every_trace() {
    for (trace, requests, n_pages) in traces() {
        let expected = plain(&requests, n_pages, 16, trace.running());
        let about = format!("{} in {n_pages} pages", trace.name());
        let counters = chained(&requests, n_pages, 16, trace.running(), FirstOut::Tails);
        assert_eq!(counters, expected, "{about}, the chain");
    }
}

#[test]
fn heads_first_finds_less() {
    for (trace, requests, n_pages) in traces() {
        let [tails, heads] = [FirstOut::Tails, FirstOut::Heads]
            .map(|first_out| chained(&requests, n_pages, 16, trace.running(), first_out).cached_tokens);
        assert!(heads <= tails, "{} in {n_pages} pages: {heads} and {tails}", trace.name());
    }
}

/// Where the chain differs: of a prompt that it holds whole, the last page is computed again. The trie swaps the new page for
/// the one that it has; the chain, as vLLM, keeps both, and another text's page goes for it.
#[test]
fn a_page_that_is_held_twice_costs_the_chain_another() {
    let texts: [&[u32]; 5] = [&[9, 9, 0], &[1, 2, 3, 4, 0], &[1, 2, 3, 4, 0], &[1, 2, 3, 4, 0], &[9, 9, 7, 0]];
    let requests = texts.map(|text| Request { tokens: text.to_vec(), n_prompt: text.len() - 1 });
    let (trie, chain) = (plain(&requests, 5, 2, 1), chained(&requests, 5, 2, 1, FirstOut::Tails));
    assert_eq!((trie.cached_tokens, trie.pages_evicted), (2 + 2 + 2, 0));
    assert_eq!((chain.cached_tokens, chain.pages_evicted), (2 + 2, 2), "the page of 9 9 is gone when it is asked for");
}

#[test]
fn a_chain_hands_out_what_cannot_be_found_first_and_all_or_nothing() {
    assert_eq!(Chain::new(0, 1, FirstOut::Tails).err(), Some(CacheError::NoPages));
    assert_eq!(Chain::new(1, 0, FirstOut::Tails).err(), Some(CacheError::NoSlots));
    let mut chain = Chain::new(6, 4, FirstOut::Tails).unwrap();
    let pages = |numbers: &[u32]| numbers.iter().copied().map(PageId).collect::<Vec<_>>();
    // The picture of its file: a text of 10 tokens.
    let text: Vec<u32> = (0..10).collect();
    assert_eq!(chain.lookup(&text), []);
    let table = chain.alloc(3).unwrap();
    assert_eq!(table, pages(&[0, 1, 2]));
    chain.insert(&text, &table);
    assert_eq!(chain.alloc(4), Err(CacheError::OutOfPages { needed: 4, free: 3 }));
    chain.free(table);
    assert_eq!(chain.n_free(), 6);
    assert_eq!(chain.lookup(&[0, 1, 2, 3, 9]), pages(&[0]), "out of the middle of the queue");
    assert_eq!(chain.alloc(5), Ok(pages(&[2, 3, 4, 5, 1])));
    assert_eq!((chain.n_free(), chain.n_evicted()), (0, 1));
    assert_eq!(chain.lookup(&text), pages(&[0]), "page 1 is forgotten, page 0 has two owners now");
    chain.free(pages(&[0]));
    assert_eq!(chain.n_free(), 0);
    chain.free(pages(&[0]));
    assert_eq!(chain.alloc(1), Ok(pages(&[0])));
}
