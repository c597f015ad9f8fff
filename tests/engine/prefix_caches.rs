//! The prefix caches of `src/prefixes/` find and evict what the trie of chapter 11 does, on random texts.

use page_by_page::cache::{CacheError, PageId};
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::prefixes::Prefixes;
use page_by_page::prefixes::chain::{Chain, FirstOut};
use page_by_page::prefixes::fast::FastPrefixCache;
use page_by_page::prefixes::radix::RadixCache;
use page_by_page::workload::{Counters, Pages, Request, Trace, run};

use crate::support::oracle::Dice;

/// What a user of a prefix cache does.
#[derive(Clone, Debug)]
enum Act {
    /// Looks a text up, makes room for the rest of it, inserts the first part of it.
    Begin { text: Vec<u32>, kept: usize },
    /// A text goes on, is inserted whole, and ends.
    End { which: usize, more: Vec<u32> },
    /// A text ends without another insertion.
    Cancel { which: usize },
    /// Pages are asked back.
    Evict { n: usize },
}

/// Few different tokens, so that sequences often begin alike.
fn tokens(dice: &mut Dice, least: usize, most: usize) -> Vec<u32> {
    (0..dice.roll(least, most)).map(|_| dice.roll(0, 1) as u32).collect()
}

fn act(dice: &mut Dice) -> Act {
    match dice.roll(0, 8) {
        0..4 => Act::Begin { text: tokens(dice, 1, 19), kept: dice.roll(0, 19) },
        4..6 => Act::End { which: dice.roll(0, 99), more: tokens(dice, 0, 5) },
        6 => Act::Cancel { which: dice.roll(0, 99) },
        _ => Act::Evict { n: dice.roll(0, 5) },
    }
}

/// A prefix cache, its pool, and the texts that run.
struct Play {
    pool: PagePool,
    prefixes: Box<dyn Prefixes>,
    texts: Vec<(Vec<u32>, PageTable)>,
}

/// All that can be seen after an act: what it returned, all tables, the owners of all pages, the pages held.
type Seen = (Result<usize, CacheError>, Vec<Vec<PageId>>, Vec<u32>, usize, usize);

impl Play {
    fn new(n_pages: usize, prefixes: impl Prefixes + 'static) -> Self {
        Play { pool: PagePool::new(n_pages).unwrap(), prefixes: Box::new(prefixes), texts: Vec::new() }
    }

    fn act(&mut self, act: &Act) -> Seen {
        let result = self.result_of(act);
        let tables = self.texts.iter().map(|(_, table)| table.pages().to_vec()).collect();
        let owners = (0..self.pool.n_pages() as u32).map(|page| self.pool.owners(PageId(page)).unwrap()).collect();
        (result, tables, owners, self.prefixes.n_pages(), self.prefixes.n_evictable(&self.pool))
    }

    fn result_of(&mut self, act: &Act) -> Result<usize, CacheError> {
        let Play { pool, prefixes, texts } = self;
        match act {
            Act::Begin { text, kept } => {
                let mut table = prefixes.lookup(text, pool)?;
                let found = table.len();
                // Sometimes less than the whole text: what is inserted ends anywhere.
                let len = (*kept).clamp(found, text.len());
                if let Err(refused) = table.grow(len - found, pool) {
                    table.release(pool)?;
                    return Err(refused);
                }
                prefixes.insert(text, &mut table, pool)?;
                texts.push((text[..len].to_vec(), table));
                Ok(found)
            }
            Act::End { which, more } if !texts.is_empty() => {
                let (mut text, mut table) = texts.remove(which % texts.len());
                let grown = table.grow(more.len(), pool);
                if grown.is_ok() {
                    text.extend(more);
                }
                prefixes.insert(&text, &mut table, pool)?;
                table.release(pool)?;
                grown.map(|()| text.len())
            }
            Act::Cancel { which } if !texts.is_empty() => texts.remove(which % texts.len()).1.release(pool).map(|()| 0),
            Act::Evict { n } => prefixes.evict(*n, pool),
            Act::End { .. } | Act::Cancel { .. } => Ok(0),
        }
    }
}

#[test]
fn the_fast_trie_and_the_radix_tree_do_what_the_trie_does() {
    for seed in 0..400 {
        let mut dice = Dice::new(seed);
        let (page_size, n_pages) = (dice.roll(1, 4), dice.roll(1, 39));
        let mut plain = Play::new(n_pages, PrefixCache::new(page_size).unwrap());
        let mut fast = Play::new(n_pages, FastPrefixCache::new(page_size).unwrap());
        let mut radix = Play::new(n_pages, RadixCache::new(page_size).unwrap());
        for _ in 0..dice.roll(1, 59) {
            let act = act(&mut dice);
            let expected = plain.act(&act);
            assert_eq!(fast.act(&act), expected, "seed {seed}, the fast trie, {act:?}");
            assert_eq!(radix.act(&act), expected, "seed {seed}, the radix tree, {act:?}");
        }
    }
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
                Request { text, prompt }
            })
            .collect();
        let (page_size, running) = (dice.roll(1, 4), dice.roll(1, 5));
        let largest = requests.iter().map(|request| request.text.len().div_ceil(page_size)).max().unwrap();
        let n_pages = largest + dice.roll(0, 59);
        let chained = chained(&requests, n_pages, page_size, running, FirstOut::Tails);
        assert_eq!(chained, plain(&requests, n_pages, page_size, running), "seed {seed}");
    }
}

fn plain(requests: &[Request], n_pages: usize, page_size: usize, running: usize) -> Counters {
    let prefixes = Box::new(PrefixCache::new(page_size).unwrap());
    let mut memory = Pages::new(n_pages, page_size, Some(prefixes)).unwrap();
    run(requests.to_vec(), running, &mut memory, || ()).unwrap()
}

fn chained(requests: &[Request], n_pages: usize, page_size: usize, running: usize, first_out: FirstOut) -> Counters {
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
        let needed = requests.iter().map(|request| request.text.len().div_ceil(16)).max().unwrap();
        pools.into_iter().filter(move |pool| *pool >= needed).map(move |pool| (trace, requests.clone(), pool))
    })
}

#[test]
fn all_four_count_the_same_on_every_trace() {
    for (trace, requests, n_pages) in traces() {
        let expected = plain(&requests, n_pages, 16, trace.running());
        let about = format!("{} in {n_pages} pages", trace.name());
        let others: [Box<dyn Prefixes>; 2] =
            [Box::new(FastPrefixCache::new(16).unwrap()), Box::new(RadixCache::new(16).unwrap())];
        for prefixes in others {
            let mut memory = Pages::new(n_pages, 16, Some(prefixes)).unwrap();
            let counters = run(requests.clone(), trace.running(), &mut memory, || ());
            assert_eq!(counters, Ok(expected), "{about}");
        }
        let counters = chained(&requests, n_pages, 16, trace.running(), FirstOut::Tails);
        assert_eq!(counters, expected, "{about}, the chain");
    }
}

#[test]
fn heads_first_finds_less() {
    for (trace, requests, n_pages) in traces() {
        let [tails, heads] = [FirstOut::Tails, FirstOut::Heads]
            .map(|first_out| chained(&requests, n_pages, 16, trace.running(), first_out).tokens_found);
        assert!(heads <= tails, "{} in {n_pages} pages: {heads} and {tails}", trace.name());
    }
}

/// Where the chain differs: of a prompt that it holds whole, the last page is computed again. The trie swaps the new page for
/// the one that it has; the chain, as vLLM, keeps both, and another text's page goes for it.
#[test]
fn a_page_that_is_held_twice_costs_the_chain_another() {
    let texts: [&[u32]; 5] = [&[9, 9, 0], &[1, 2, 3, 4, 0], &[1, 2, 3, 4, 0], &[1, 2, 3, 4, 0], &[9, 9, 7, 0]];
    let requests = texts.map(|text| Request { text: text.to_vec(), prompt: text.len() - 1 });
    let (trie, chain) = (plain(&requests, 5, 2, 1), chained(&requests, 5, 2, 1, FirstOut::Tails));
    assert_eq!((trie.tokens_found, trie.pages_evicted), (2 + 2 + 2, 0));
    assert_eq!((chain.tokens_found, chain.pages_evicted), (2 + 2, 2), "the page of 9 9 is gone when it is asked for");
}

#[test]
fn a_long_text_is_one_run_until_another_one_leaves_it() {
    let (mut pool, mut radix) = (PagePool::new(20).unwrap(), RadixCache::new(2).unwrap());
    let mut insert = |radix: &mut RadixCache, text: &[u32]| {
        let mut table = radix.lookup(text, &mut pool).unwrap();
        table.grow(text.len() - table.len(), &mut pool).unwrap();
        radix.insert(text, &mut table, &mut pool).unwrap();
        table.release(&mut pool).unwrap();
        (radix.n_runs(), radix.n_pages())
    };
    assert_eq!(insert(&mut radix, &[1, 2, 3, 4, 5, 6, 7, 8, 9]), (1, 4));
    assert_eq!(insert(&mut radix, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 9]), (2, 5), "a run behind the run");
    assert_eq!(insert(&mut radix, &[1, 2, 3, 4, 0, 0]), (4, 6), "the first run is split, and has a second way on");
    assert_eq!(insert(&mut radix, &[6, 6]), (5, 7));
    assert_eq!(radix.evict(99, &mut pool), Ok(7));
    assert_eq!((radix.n_runs(), radix.n_pages(), pool.n_free()), (0, 0, 20));
}

#[test]
fn a_foreign_pool_is_refused_and_nothing_has_changed() {
    let kinds: [fn() -> Box<dyn Prefixes>; 2] =
        [|| Box::new(FastPrefixCache::new(2).unwrap()), || Box::new(RadixCache::new(2).unwrap())];
    for same_kind in kinds {
        let mut prefixes = same_kind();
        let (mut pool, mut small, mut unused) =
            (PagePool::new(4).unwrap(), PagePool::new(1).unwrap(), PagePool::new(4).unwrap());
        let text = [1, 2, 3, 4, 5];
        let mut table = PageTable::new(2).unwrap();
        table.grow(5, &mut pool).unwrap();
        prefixes.insert(&text, &mut table, &mut pool).unwrap();
        assert_eq!(prefixes.lookup(&text, &mut unused).err(), Some(CacheError::DoubleFree(PageId(0))));
        assert_eq!(prefixes.insert(&text, &mut table, &mut unused).err(), Some(CacheError::DoubleFree(PageId(0))));
        small.alloc().unwrap();
        let foreign = CacheError::ForeignPage { page: PageId(1), n_pages: 1 };
        assert_eq!(prefixes.lookup(&text, &mut small).err(), Some(foreign.clone()));
        assert_eq!(prefixes.evict(1, &mut small).err(), Some(foreign));
        // The table is the other pool's, what it would be swapped for is not.
        let (mut other, mut its_table) = (PagePool::new(1).unwrap(), PageTable::new(2).unwrap());
        its_table.grow(2, &mut other).unwrap();
        let (mut first, mut later) = (PagePool::new(3).unwrap(), PageTable::new(2).unwrap());
        let mut holds_page_2 = same_kind();
        first.alloc_n(2).unwrap();
        later.grow(2, &mut first).unwrap();
        holds_page_2.insert(&text, &mut later, &mut first).unwrap();
        let foreign = CacheError::ForeignPage { page: PageId(2), n_pages: 1 };
        assert_eq!(holds_page_2.insert(&text, &mut its_table, &mut other).err(), Some(foreign));
        assert_eq!((its_table.pages(), other.owners(PageId(0))), (&[PageId(0)] as &[PageId], Ok(1)));

        table.release(&mut pool).unwrap();
        assert_eq!((prefixes.n_pages(), prefixes.n_evictable(&pool), pool.n_free()), (2, 2, 2));
        assert_eq!(prefixes.lookup(&text, &mut pool).unwrap().len(), 4);
    }
    assert_eq!(FastPrefixCache::new(0).err(), Some(CacheError::NoSlots));
    assert_eq!(RadixCache::new(0).err(), Some(CacheError::NoSlots));
    assert_eq!(Chain::new(0, 1, FirstOut::Tails).err(), Some(CacheError::NoPages));
    assert_eq!(Chain::new(1, 0, FirstOut::Tails).err(), Some(CacheError::NoSlots));
}

#[test]
fn a_chain_hands_out_what_cannot_be_found_first_and_all_or_nothing() {
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
