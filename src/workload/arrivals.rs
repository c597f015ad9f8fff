//! Requests that arrive at random, served by the scheduler in simulated time.
//!
//! There is no model here and no clock. A step [costs](StepCost) a fixed time and a fixed time more for each token that it
//! computes:
//!
//! ```text
//!   a step costs 10 ms, and 0.2 ms for each token
//!
//!   time      0        ms   a arrives with a prompt of 100 tokens: step 1 computes them
//!            30.0      ms   a has its first token; b has arrived with 50 tokens: step 2 computes 1 and 50
//!            50.2      ms   a has its second token, b its first
//! ```
//!
//! The arrivals are a Poisson process: the gaps between them are exponential, and independent of each other.

use std::collections::HashMap;

use super::TraceRequest;
use crate::cache::KvLayout;
use crate::chapters::ch06_paged::SharedSlab;
use crate::dice::Dice;
use crate::prefix_cache::PrefixCache;
use crate::serving::schedule::{NextToken, ScheduledChunk, SequenceId, StepLimits};
use crate::serving::{EngineError, EngineScheduler, EngineTotals};

/// One layer with rows of one number, which are never read.
pub const LAYOUT: KvLayout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 1 };

/// Tokens that half of the drawn requests begin with.
const COMMON: u32 = 64;
/// How many such beginnings there are.
const BEGINNINGS: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Microseconds from the start.
    pub at: u64,
    pub request: TraceRequest,
}

/// What a step costs, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepCost {
    /// However many tokens it computes: the weights are read once.
    pub step: u64,
    /// What each token adds.
    pub token: u64,
}

impl StepCost {
    /// The book's. They are made up: no engine was measured.
    pub const BOOK: StepCost = StepCost { step: 10_000, token: 200 };
}

/// When a request counts as served in time, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyTarget {
    /// From its arrival to its first token, at most.
    pub first_token: u64,
    /// From one token to the next, on average, at most.
    pub per_token: u64,
}

impl LatencyTarget {
    /// The book's: a first token within a second, and the others every 50 ms.
    pub const BOOK: LatencyTarget = LatencyTarget { first_token: 1_000_000, per_token: 50_000 };
}

/// `n` requests, `rate` a second on average, more than 0.
///
/// Every second one, by chance, begins with one of 4 beginnings of 64 tokens, as with the system prompts of 4
/// applications. 16 to 256 tokens of its own follow, and 16 to 128 are generated, each number as likely.
pub fn poisson(rate: f64, seed: u64, n: usize) -> Vec<Arrival> {
    assert!(rate > 0.0, "{rate} requests a second never arrive");
    let mut dice = Dice::new(seed);
    let mut at = 0;
    let arrivals = (0..n as u32).map(|number| {
        at += (exponential(&mut dice) / rate * 1e6) as u64;
        let is_common = dice.roll(0, 1) == 0;
        let beginning = dice.roll(0, BEGINNINGS - 1) as u32;
        let (own, generated) = (dice.roll(16, 256) as u32, dice.roll(16, 128) as u32);
        let mut tokens: Vec<u32> = Vec::new();
        if is_common {
            tokens.extend((0..COMMON).map(|token| beginning * COMMON + token));
        }
        let n_prompt = tokens.len() + own as usize;
        // After the beginnings, no two requests have a token in common.
        tokens.extend((0..own + generated).map(|token| BEGINNINGS as u32 * COMMON + number * 512 + token));
        Arrival { at, request: TraceRequest { tokens, n_prompt } }
    });
    arrivals.collect()
}

/// The 16 requests with which the course [tiny-llm](https://github.com/skyzh/tiny-llm) tries its batches, all there at
/// the start: (tokens of the prompt, tokens generated).
pub const TINY_LLM: [(usize, usize); 16] = [
    (992, 81),
    (804, 95),
    (660, 111),
    (279, 41),
    (199, 102),
    (541, 48),
    (261, 91),
    (226, 80),
    (963, 68),
    (501, 82),
    (986, 58),
    (912, 51),
    (275, 57),
    (427, 74),
    (860, 34),
    (590, 128),
];

/// [`TINY_LLM`] as requests. No two of them share a token.
pub fn tiny_llm() -> Vec<Arrival> {
    let arrivals = TINY_LLM.iter().zip(0..).map(|((n_prompt, generated), number)| {
        let tokens = (0..(n_prompt + generated) as u32).map(|token| number * 2048 + token).collect();
        Arrival { at: 0, request: TraceRequest { tokens, n_prompt: *n_prompt } }
    });
    arrivals.collect()
}

/// What a run measured. Times are in microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ArrivalReport {
    /// The times of each request, in the order of arrival.
    pub requests: Vec<RequestTimes>,
    /// From the first arrival to the last token.
    pub elapsed: u64,
    /// Of that, the time of all steps together.
    pub busy: u64,
    /// What was counted: no model computes, so the tokens computed are those that it would have computed.
    pub totals: EngineTotals,
    /// Tokens that were recomputed, for each that was computed once.
    pub waste: f64,
    /// Pages that sequences have, of the pool's: the mean over all steps, 0 to 1. Pages only cached don't count.
    pub utilisation: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTimes {
    /// From its arrival to its first token.
    pub first_token: u64,
    /// From its first token to its last.
    pub rest: u64,
    pub tokens: u64,
}

impl RequestTimes {
    /// Microseconds from one token to the next, on average; `None` with fewer than two tokens.
    pub fn per_token(&self) -> Option<f64> {
        (self.tokens > 1).then(|| self.rest as f64 / (self.tokens - 1) as f64)
    }

    /// The request gets its next token at `now`; `None` if it has all of them.
    fn next_token(&mut self, Arrival { at, request }: &Arrival, now: u64) -> Option<u32> {
        let token = *request.tokens.get(request.n_prompt + self.tokens as usize)?;
        if self.tokens == 0 {
            self.first_token = now - at;
        }
        self.rest = now - at - self.first_token;
        self.tokens += 1;
        Some(token)
    }

    pub fn meets(&self, limits: LatencyTarget) -> bool {
        let per_token = self.per_token().unwrap_or(0.0);
        self.first_token <= limits.first_token && per_token <= limits.per_token as f64
    }
}

/// Lets requests arrive and be served. `arrivals`: in the order of time. `slab`: of any layout, all of its pages free;
/// its rows stay as they are. `on_end` is called for each request that finishes.
pub fn simulate_arrivals(
    arrivals: &[Arrival],
    slab: &SharedSlab,
    prefix_cache: Box<dyn PrefixCache>,
    limits: StepLimits,
    cost: StepCost,
    mut on_end: impl FnMut(),
) -> Result<ArrivalReport, EngineError> {
    let mut scheduler = EngineScheduler::new(slab, prefix_cache, limits)?;
    let mut served =
        ArrivalReport { requests: vec![RequestTimes::default(); arrivals.len()], ..ArrivalReport::default() };
    // The places of unfinished requests among the arrivals.
    let mut unfinished: HashMap<SequenceId, usize> = HashMap::new();
    let mut coming = arrivals.iter().enumerate().peekable();
    let start = arrivals.first().map_or(0, |arrival| arrival.at);
    let n_pages = slab.borrow().pool().n_pages() as f64;
    let (mut now, mut utilisation) = (start, 0.0);
    loop {
        while let Some((place, arrival)) = coming.next_if(|(_, arrival)| arrival.at <= now || unfinished.is_empty()) {
            // If there is nothing to do, the clock moves on to the next arrival.
            now = now.max(arrival.at);
            let TraceRequest { tokens, n_prompt } = &arrival.request;
            let id = scheduler.submit(tokens[..*n_prompt].to_vec(), tokens.len() - n_prompt)?;
            unfinished.insert(id, place);
        }
        if unfinished.is_empty() {
            break;
        }
        let plan = scheduler.plan(unfinished.len())?;
        utilisation += scheduler.pages_by_state().used as f64 / n_pages;
        let computed = plan.iter().map(|chunk| chunk.n_tokens as u64).sum();
        let took = cost.step.saturating_add(cost.token.saturating_mul(computed));
        now = now.saturating_add(took);
        served.busy = served.busy.saturating_add(took);
        let mut picks = Vec::new();
        for ScheduledChunk { sequence_id: sequence, .. } in plan.into_iter().filter(|chunk| chunk.caught_up) {
            let place = unfinished.get(&sequence);
            let token = place.and_then(|place| served.requests[*place].next_token(&arrivals[*place], now));
            picks
                .push(NextToken { sequence_id: sequence, token: token.ok_or(EngineError::UnknownSequence(sequence))? });
        }
        scheduler.settle(&picks, &[])?;
        for finished in scheduler.take_finished() {
            unfinished.remove(&finished.sequence.id);
            on_end();
        }
    }
    let totals = scheduler.totals();
    let once = totals.computed_tokens.saturating_sub(totals.recomputed_tokens);
    served.totals = totals;
    served.waste = totals.recomputed_tokens as f64 / once.max(1) as f64;
    served.utilisation = utilisation / totals.steps.max(1) as f64;
    served.elapsed = now - start;
    Ok(served)
}

/// An exponential number, 1 on average, by comparing uniform ones ([von Neumann,
/// 1951](https://hazm.at/mox/algorithm/random-sampling/various-techniques-used-in-connection-with-random-digits/index.html)).
///
/// No logarithm, because its last bit may differ between machines. Numbers are drawn as long as each is smaller than
/// the one before: if there is an odd number of them, the first is the fractional part; else the whole part grows by
/// one.
fn exponential(dice: &mut Dice) -> f64 {
    for whole in 0.. {
        let first = dice.uniform();
        let (mut last, mut n) = (first, 1);
        loop {
            let next = dice.uniform();
            if next >= last {
                break;
            }
            (last, n) = (next, n + 1);
        }
        if n % 2 == 1 {
            return f64::from(whole) + first;
        }
    }
    unreachable!("a half of all tries end it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_exponential() {
        let mut dice = Dice::new(7);
        let gaps: Vec<f64> = (0..100_000).map(|_| exponential(&mut dice)).collect();
        for (above, share) in [(0.1, 0.904_837), (0.5, 0.606_531), (1.0, 0.367_879), (2.0, 0.135_335), (5.0, 0.006_738)]
        {
            let found = gaps.iter().filter(|gap| **gap > above).count() as f64 / gaps.len() as f64;
            assert!((found - share).abs() < 0.006, "{found} of all are above {above}, not {share}");
        }
    }
}
