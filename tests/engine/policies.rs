//! What other policies than chapter 12's would cost: the same requests under several of them, only scheduled.
//!
//! The table of the chapter comes from here: `cargo test --features solution --test engine -- --nocapture rules`. There
//! is no prefix cache, so a preempted sequence starts over.

use page_by_page::experiments::count_schedule;
use page_by_page::serving::schedule::{StepLimits, max_rows};
use page_by_page::simulation::buggy_scheduler::{Bug, Policy, with_bug, with_policy};
use page_by_page::simulation::{SchedulerFactory, new_scheduler};
use page_by_page::workload::arrivals::TINY_LLM;

/// More pages than all requests of a table's row need together.
const ENOUGH: usize = 1000;

/// Two that take 60 pages each.
const LARGE: [(usize, usize); 2] = [(500, 450), (500, 450)];

/// Tokens of which each is computed at least once: all but the newest of each request.
fn useful(requests: &[(usize, usize)]) -> usize {
    requests.iter().map(|(n_prompt, max_new_tokens)| max_rows(*n_prompt, *max_new_tokens)).sum()
}

#[test]
fn what_the_rules_of_the_chapter_gain() {
    let (next_chunk, chapter): (_, &SchedulerFactory<'_>) = (&with_bug(Some(Bug::NextChunk)), &new_scheduler);
    let (prompts_first, oldest) = (&with_policy(Policy::PromptsFirst), &with_policy(Policy::OldestVictim));
    let alone = StepLimits { token_budget: usize::MAX, max_running: 1 };
    let eight = StepLimits { token_budget: 128, max_running: 8 };
    // The requests, and how many of them come together.
    let (tiny, large) = ((&TINY_LLM[..], 16), (&LARGE[..], 2));
    // Steps, tokens computed, preemptions, longest wait.
    let rows = [
        ("one after the other, each prompt in one step", chapter, ENOUGH, alone, tiny, [1201, 10_661, 0, 1]),
        ("8 together, the next 8 when all have ended", chapter, ENOUGH, eight, (&TINY_LLM, 8), [302, 10_661, 0, 128]),
        ("the chapter's rules", chapter, ENOUGH, eight, tiny, [264, 10_661, 0, 128]),
        ("prompts first", prompts_first, ENOUGH, eight, tiny, [312, 10_661, 0, 2946]),
        ("150 pages: the chapter's rules", chapter, 150, eight, tiny, [487, 10_661, 0, 128]),
        ("150 pages: admitted by next chunk", next_chunk, 150, eight, tiny, [481, 34_136, 56, 128]),
        ("two large, 80 pages: the chapter's rules", chapter, 80, eight, large, [770, 2534, 1, 946]),
        ("two large, 80 pages: admitted by next chunk", next_chunk, 80, eight, large, [769, 31_998, 76, 30_410]),
        ("two large, 80 pages: the oldest is the victim", oldest, 80, eight, large, [1241, 140_181, 171, 1790]),
    ];
    println!("{} tokens to compute; of the two large ones {}", useful(&TINY_LLM), useful(&LARGE));
    println!("{:<46}{:>6}{:>10}{:>11}{:>14}", "", "steps", "computed", "preempted", "longest wait");
    for (name, factory, n_pages, limits, (requests, batch), expected) in rows {
        let found @ [steps, computed, preemptions, longest_wait] =
            count_schedule(factory, n_pages, limits, requests, batch).unwrap();
        println!("{name:<46}{steps:>6}{computed:>10}{preemptions:>11}{longest_wait:>14}");
        assert_eq!(found, expected, "{name}: steps, tokens computed, preemptions, longest wait");
    }
    assert_eq!((useful(&TINY_LLM), useful(&LARGE)), (10_661, 1898));
}
