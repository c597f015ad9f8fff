//! `workload serving`: requests that arrive at random, and a scheduler that is busy in time that is counted.

use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::prefix_cache::PrefixCacheKind;
use page_by_page::serving::EngineError;
use page_by_page::serving::schedule::StepLimits;
use page_by_page::workload::TraceRequest;
use page_by_page::workload::arrivals::{
    Arrival, ArrivalReport, LAYOUT, LatencyTarget, RequestTimes, StepCost, poisson, simulate_arrivals,
};

fn arrival(at: u64, first_token: u32, prompt: usize, written: usize) -> Arrival {
    let text = (first_token..).take(prompt + written).collect();
    Arrival { at, request: TraceRequest { tokens: text, n_prompt: prompt } }
}

fn served(
    arrivals: &[Arrival],
    n_pages: usize,
    limits: (usize, usize),
    keeps: bool,
) -> Result<ArrivalReport, EngineError> {
    let slab = PageSlab::new(LAYOUT, 16, n_pages).unwrap();
    let kind = if keeps { PrefixCacheKind::Trie } else { PrefixCacheKind::None };
    let prefix_cache = kind.new_cache(16).unwrap();
    let mut ended = 0;
    let limits = StepLimits { token_budget: limits.0, max_running: limits.1 };
    let served = simulate_arrivals(arrivals, &slab, prefix_cache, limits, StepCost::BOOK, || ended += 1)?;
    assert_eq!(ended, arrivals.len());
    Ok(served)
}

/// The example of the module, counted by hand.
#[test]
fn a_step_is_as_late_as_all_before_it_have_cost() {
    let arrivals = [arrival(0, 0, 100, 3), arrival(25_000, 1000, 50, 1), arrival(900_000, 2000, 10, 2)];
    let served = served(&arrivals, 20, (200, 8), false).unwrap();
    // 100 tokens take 30 ms; 51 take 20.2; the last of the first sequence 10.2. Then there is none until 900 ms.
    let expected = [
        RequestTimes { first_token: 30_000, rest: 30_400, tokens: 3 },
        RequestTimes { first_token: 25_200, rest: 0, tokens: 1 },
        RequestTimes { first_token: 12_000, rest: 10_200, tokens: 2 },
    ];
    assert_eq!(served.requests, expected);
    assert_eq!((served.elapsed, served.busy), (922_200, 30_000 + 20_200 + 10_200 + 12_000 + 10_200));
    assert_eq!(expected.map(|times| times.per_token()), [Some(15_200.0), None, Some(10_200.0)]);
    let counters = served.totals;
    assert_eq!(
        (counters.steps, counters.computed_tokens, counters.new_tokens, counters.peak_sequences),
        (5, 163, 6, 2)
    );
    assert_eq!((counters.peak_pages, counters.preemptions, served.waste), (7 + 4, 0, 0.0));
    assert_eq!(served.utilisation, (7.0 + 11.0 + 7.0 + 1.0 + 1.0) / 20.0 / 5.0);
    let in_time = |first_token, per_token| {
        served.requests.iter().filter(move |times| times.meets(LatencyTarget { first_token, per_token })).count()
    };
    assert_eq!([in_time(30_000, 15_200), in_time(29_999, 15_200), in_time(30_000, 15_199)], [3, 2, 2]);
}

#[test]
fn every_request_is_served_whatever_the_pool_and_every_count_adds_up() {
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
                }
                assert_eq!(counters.new_tokens, served.requests.iter().map(|times| times.tokens).sum::<u64>(), "{run}");
                assert_eq!(
                    served.busy,
                    counters.steps * StepCost::BOOK.step + counters.computed_tokens * StepCost::BOOK.token,
                    "{run}"
                );
                // The newest token of a sequence is never computed.
                let rows = counters.prompt_tokens + counters.new_tokens - 60;
                let first = counters.cached_tokens + counters.computed_tokens - counters.recomputed_tokens;
                assert!(first <= rows && first + counters.cached_after_preemption >= rows, "{run}");
                assert!(keeps || counters.cached_tokens + counters.cached_after_preemption == 0, "{run}");
                assert!(counters.peak_pages <= n_pages && counters.peak_sequences <= limits.1, "{run}");
                preempted += counters.preemptions;
                found += counters.cached_tokens;
            }
        }
    }
    assert!(preempted > 100 && found > 1000, "{preempted} {found}");
}
