//! `workload serving`: requests that come by chance, and a scheduler that is busy in time that is counted.

use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;
use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::prefixes::Prefixes;
use page_by_page::prefixes::none::NoPrefixes;
use page_by_page::serving::ServingError;
use page_by_page::serving::schedule::{ScheduleError, StepLimits};
use page_by_page::workload::Request;
use page_by_page::workload::serving::{
    Arrival, Cost, InTime, LAYOUT, Served, TINY_LLM, Times, poisson, serve, tiny_llm,
};

const COST: Cost = Cost { step: 10_000, token: 200 };

fn arrival(at: u64, first_token: u32, prompt: usize, written: usize) -> Arrival {
    let text = (first_token..).take(prompt + written).collect();
    Arrival { at, request: Request { tokens: text, n_prompt: prompt } }
}

fn served(arrivals: &[Arrival], n_pages: usize, limits: (usize, usize), keeps: bool) -> Result<Served, ServingError> {
    let slab = PageSlab::new(LAYOUT, 16, n_pages).unwrap();
    let prefixes: Box<dyn Prefixes> = match keeps {
        true => Box::new(PrefixCache::new(16).unwrap()),
        false => Box::new(NoPrefixes::new(16).unwrap()),
    };
    let mut ended = 0;
    let limits = StepLimits { tokens: limits.0, sequences: limits.1 };
    let served = serve(arrivals, &slab, prefixes, limits, COST, || ended += 1)?;
    assert_eq!(ended, arrivals.len());
    Ok(served)
}

/// The example of the module, counted by hand.
#[test]
fn a_step_is_as_late_as_all_before_it_have_cost() {
    let arrivals = [arrival(0, 0, 100, 3), arrival(25_000, 1000, 50, 1), arrival(900_000, 2000, 10, 2)];
    let served = served(&arrivals, 20, (200, 8), false).unwrap();
    // 100 tokens take 30 ms; 51 take 20.2; the last of the first text 10.2. Then nobody is there until 900 ms.
    let expected = [
        Times { first_token: 30_000, rest: 30_400, tokens: 3 },
        Times { first_token: 25_200, rest: 0, tokens: 1 },
        Times { first_token: 12_000, rest: 10_200, tokens: 2 },
    ];
    assert_eq!(served.requests, expected);
    assert_eq!((served.elapsed, served.busy), (922_200, 30_000 + 20_200 + 10_200 + 12_000 + 10_200));
    assert_eq!(expected.map(|times| times.per_token()), [Some(15_200.0), None, Some(10_200.0)]);
    let counters = served.totals;
    assert_eq!((counters.steps, counters.rows_projected, counters.new_tokens, counters.most_sequences), (5, 163, 6, 2));
    assert_eq!((counters.peak_pages, counters.preemptions, served.waste), (7 + 4, 0, 0.0));
    assert_eq!(served.utilisation, (7.0 + 11.0 + 7.0 + 1.0 + 1.0) / 20.0 / 5.0);
    let in_time = |first_token, per_token| {
        served.requests.iter().filter(move |times| times.is_in_time(InTime { first_token, per_token })).count()
    };
    assert_eq!(
        [in_time(30_000, 15_200), in_time(29_999, 15_200), in_time(30_000, 15_199), in_time(0, 0)],
        [3, 2, 2, 0]
    );
}

#[test]
fn a_request_that_never_fits_is_refused() {
    let never = ScheduleError::NeverFits { prompt: 30, max_new_tokens: 4, needed: 3, n_pages: 2 };
    assert_eq!(served(&[arrival(0, 0, 30, 4)], 2, (8, 8), true), Err(ServingError::Schedule(never)));
    assert_eq!(served(&[], 2, (8, 8), true), Ok(Served::default()));
}

#[test]
fn everybody_is_served_whatever_the_pool_and_every_count_adds_up() {
    let arrivals = poisson(8.0, 5, 60);
    let (mut preempted, mut found) = (0, 0);
    for n_pages in [28, 31, 50, 128, 1000] {
        for limits in [(1000, 100), (256, 16), (16, 16), (300, 1)] {
            for keeps in [true, false] {
                let run = format!("{n_pages} pages, {limits:?}, {keeps}");
                let served = served(&arrivals, n_pages, limits, keeps).unwrap();
                let counters = served.totals;
                for (times, Arrival { request, .. }) in served.requests.iter().zip(&arrivals) {
                    assert_eq!(times.tokens as usize, request.tokens.len() - request.n_prompt, "{run}");
                    assert!(times.first_token >= COST.step + COST.token, "{run}");
                    assert!(times.rest >= (times.tokens - 1) * (COST.step + COST.token), "{run}");
                }
                assert_eq!(counters.new_tokens, served.requests.iter().map(|times| times.tokens).sum::<u64>(), "{run}");
                assert_eq!(served.busy, counters.steps * COST.step + counters.rows_projected * COST.token, "{run}");
                assert!(served.busy <= served.elapsed, "{run}");
                // The newest token of a text is never read.
                let rows = counters.prompt_tokens + counters.new_tokens - 60;
                let first = counters.cached + counters.rows_projected - counters.recomputed;
                assert!(first <= rows && first + counters.cached_again >= rows, "{run}");
                assert!(counters.preemptions > 0 || counters.recomputed == 0, "{run}");
                assert!(keeps || counters.cached + counters.cached_again == 0, "{run}");
                assert!(counters.peak_pages <= n_pages && served.utilisation <= 1.0, "{run}");
                assert!(counters.most_sequences <= limits.1, "{run}");
                preempted += counters.preemptions;
                found += counters.cached;
            }
        }
    }
    assert!(preempted > 100 && found > 1000, "{preempted} {found}");
}

/// The loop of tiny-llm over the pool and the tables of chapters 4 and 5: a chunk of 128 tokens of one prompt, then a token
/// for each text that has its prompt, at most 4 of them.
#[test]
fn the_trace_of_tiny_llm_counts_what_was_published() {
    const PAGE: usize = 128;
    struct Text {
        table: PageTable,
        unread: usize,
        to_write: usize,
    }
    let mut pool = PagePool::new(64).unwrap();
    let mut coming = TINY_LLM.iter();
    let mut pending: Option<Text> = None;
    let mut slots: Vec<Text> = Vec::new();
    let (mut steps, mut decoded, mut most_active, mut most_pages, mut waste) = (0, 0, 0, 0, (0, 0));
    let (mut used, mut reused) = (vec![false; 64], 0);
    let mut grow = |table: &mut PageTable, n: usize, pool: &mut PagePool| {
        let had = table.pages().len();
        table.grow(n, pool).unwrap();
        for page in &table.pages()[had..] {
            reused += usize::from(std::mem::replace(&mut used[page.index()], true));
        }
    };
    let mut record = |texts: &[&Text], pool: &PagePool| {
        most_active = most_active.max(texts.len());
        most_pages = most_pages.max(pool.n_pages() - pool.n_free());
        let slots: usize = texts.iter().map(|text| text.table.slots()).sum();
        let empty = slots - texts.iter().map(|text| text.table.len()).sum::<usize>();
        if empty > waste.0 {
            waste = (empty, slots);
        }
    };
    loop {
        if pending.is_none() {
            let table = PageTable::new(PAGE).unwrap();
            pending = coming.next().map(|(prompt, written)| Text { table, unread: *prompt, to_write: *written });
        }
        if let Some(text) = &mut pending {
            let n = text.unread.min(PAGE);
            if n > 0 {
                grow(&mut text.table, n, &mut pool);
                text.unread -= n;
                text.to_write -= usize::from(text.unread == 0);
            }
        }
        record(&slots.iter().chain(&pending).collect::<Vec<_>>(), &pool);
        if slots.len() < 4 && pending.as_ref().is_some_and(|text| text.unread == 0) {
            slots.extend(pending.take());
        }
        if slots.is_empty() && pending.is_none() {
            break;
        }
        if slots.is_empty() {
            continue;
        }
        steps += 1;
        for text in &mut slots {
            grow(&mut text.table, 1, &mut pool);
            text.to_write -= 1;
            decoded += 1;
        }
        record(&slots.iter().chain(&pending).collect::<Vec<_>>(), &pool);
        for text in slots.iter_mut().filter(|text| text.to_write == 0) {
            text.table.release(&mut pool).unwrap();
        }
        slots.retain(|text| text.to_write > 0);
    }
    assert_eq!((steps, decoded, most_active, most_pages, waste, reused), (380, 1185, 5, 31, (440, 3712), 61));
}

#[test]
fn the_scheduler_serves_the_trace_of_tiny_llm_in_fewer_steps() {
    let slab = PageSlab::new(LAYOUT, 128, 32).unwrap();
    let prefixes = Box::new(PrefixCache::new(128).unwrap());
    let limits = StepLimits { tokens: 128, sequences: 4 };
    let served = serve(&tiny_llm(), &slab, prefixes, limits, COST, || ()).unwrap();
    let counters = served.totals;
    assert_eq!((counters.new_tokens, counters.prompt_tokens), (1201, 9476));
    assert_eq!(counters.rows_projected - counters.recomputed, 9476 + 1201 - 16);
    // There a chunk of a prompt is a pass of its own, beside 380 that decode.
    let chunks: usize = TINY_LLM.iter().map(|(prompt, _)| prompt.div_ceil(128)).sum();
    assert_eq!((counters.steps, 380 + chunks), (406, 463));
}
