//! Grader of chapter 15: break the scheduler.

#[cfg(unstarted = "ch15_simulation")]
#[test]
#[ignore = "not started: edit exercises/ch15_simulation.rs, or run with --features solution"]
fn ch15_simulation() {}

#[cfg(not(unstarted = "ch15_simulation"))]
#[macro_use]
mod support;

#[cfg(not(unstarted = "ch15_simulation"))]
whose_code! {
    ch04_page_pool = "ch04_page_pool",
    ch05_page_table = "ch05_page_table",
    ch06_paged = "ch06_paged",
    ch07_rewind = "ch07_rewind",
    ch10_fork = "ch10_fork",
    ch11_prefix_cache = "ch11_prefix_cache",
    ch12_scheduler = "ch12_scheduler",
    ch15_simulation = "ch15_simulation",
}

/// Moments made by hand.
#[cfg(not(unstarted = "ch15_simulation"))]
mod made {
    use page_by_page::cache::PageId;
    use page_by_page::serving::schedule::{ScheduledChunk, SequenceCounters, SequenceId, StepLimits};
    use page_by_page::simulation::{Rule, Seen, SeenSequence, Setup, Violation};

    use crate::support::asking::asking;

    pub fn pages(numbers: &[u32]) -> Vec<PageId> {
        numbers.iter().copied().map(PageId).collect()
    }

    /// Pages of 4, a budget of 8, at most 3 sequences.
    pub const SETUP: Setup =
        Setup { page_size: 4, n_pages: 10, limits: StepLimits { tokens: 8, sequences: 3 }, keeps_prefixes: true };

    /// A sequence with so many tokens, 1 of them its prompt, of which its table holds `held`, and no end in sight.
    pub fn sequence(id: u64, n_tokens: usize, held: usize) -> SeenSequence {
        SeenSequence {
            id: SequenceId(id),
            n_prompt: 1,
            n_tokens,
            max_new_tokens: 1000,
            held,
            pages: Vec::new(),
            counters: SequenceCounters::default(),
        }
    }

    pub fn with_pages(sequence: SeenSequence, numbers: &[u32]) -> SeenSequence {
        SeenSequence { pages: pages(numbers), ..sequence }
    }

    pub fn chunk(id: u64, tokens: usize, caught_up: bool) -> ScheduledChunk {
        ScheduledChunk { sequence: SequenceId(id), tokens, caught_up }
    }

    /// Sequences that run and wait, and all of them there, by their numbers. No pages at all.
    pub fn sequences(running: Vec<SeenSequence>, waiting: Vec<SeenSequence>) -> Seen {
        let mut alive: Vec<SequenceId> = running.iter().chain(&waiting).map(|sequence| sequence.id).collect();
        alive.sort();
        alive.dedup();
        Seen { running, waiting, alive, ..Seen::default() }
    }

    /// The check says that all is well.
    #[track_caller]
    pub fn holds(what: &str, check: impl FnOnce() -> Result<(), Violation>) {
        let question = asking(what);
        let found = check();
        drop(question);
        assert!(found.is_ok(), "{what}\n  expected: Ok(()), nothing is broken\n  yours:    {found:?}");
    }

    /// The check says that this rule is broken, and its words name what they must.
    #[track_caller]
    pub fn broken(what: &str, rule: Rule, names: &str, check: impl FnOnce() -> Result<(), Violation>) {
        let question = asking(what);
        let found = check();
        drop(question);
        match found {
            Err(violation) if violation.rule == rule => {
                let words = violation.words;
                let numbers: Vec<&str> = words.split(|c: char| !c.is_ascii_digit()).collect();
                assert!(
                    names.is_empty() || numbers.contains(&names),
                    "{what}\n  expected: words that name {names}\n  yours:    {words:?}"
                );
            }
            found => panic!("{what}\n  expected: Err, the rule {rule:?} is broken\n  yours:    {found:?}"),
        }
    }
}

#[cfg(not(unstarted = "ch15_simulation"))]
mod checks {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;
    use std::rc::Rc;

    use page_by_page::chapters::ch06_paged::SharedSlab;
    use page_by_page::chapters::ch15_simulation::{
        check, check_fits, check_order, check_output, check_pages, check_plan, check_progress, run, shrink,
    };
    use page_by_page::prefixes::Prefixes;
    use page_by_page::serving::schedule::{
        ChunkInput, FinishReason, Finished, NextToken, ScheduleError, ScheduledChunk, SequenceId, StepLimits,
    };
    use page_by_page::simulation::planted::{Bug, Planted};
    use page_by_page::simulation::{
        Case, END_OF_TEXT, Ended, Event, FIRST_NEW, Failure, Found, Make, Rule, Seen, SeenSequence, Setup, Subject,
        Violation, World, alone, chapter_12, in_words, prompt, rule_broken, search, smaller,
    };

    use crate::made::{SETUP, broken, chunk, holds, pages, sequence, sequences, with_pages};
    use crate::support::asking::asking;
    use crate::support::limits::{alive, once};
    use crate::support::oracle::{Dice, seeds};
    use crate::support::transcript::{Transcript, assert_transcript};
    use crate::support::words::count;

    // Task 1: pages, and the order

    fn check_pages_of(seen: &Seen) -> impl FnOnce() -> Result<(), Violation> + '_ {
        move || check_pages(seen)
    }

    /// The example of the stub: four pages, and everybody who can have one.
    fn shared() -> Seen {
        Seen {
            owners: vec![3, 1, 1, 0],
            n_free: 1,
            cached: pages(&[0]),
            running: vec![with_pages(sequence(0, 8, 8), &[0, 1]), with_pages(sequence(1, 8, 8), &[0, 2])],
            ..Seen::default()
        }
    }

    #[test]
    fn task_1_a_pages_without_owners() {
        holds("check_pages of 3 free pages", || {
            check_pages(&Seen { owners: vec![0; 3], n_free: 3, ..Seen::default() })
        });
    }

    #[test]
    fn task_1_b_pages_of_a_sequence() {
        let running = vec![with_pages(sequence(0, 4, 4), &[1])];
        let seen = Seen { owners: vec![0, 1], n_free: 1, running, ..Seen::default() };
        holds("check_pages: page 1 is that of a sequence", check_pages_of(&seen));
        let lost = Seen { running: Vec::new(), ..seen.clone() };
        broken("check_pages: page 1 has an owner, and is in no table", Rule::Pages, "1", check_pages_of(&lost));
        let gone = Seen { owners: vec![0, 0], n_free: 2, ..seen };
        broken("check_pages: a sequence has page 1, and it has no owner", Rule::Pages, "1", check_pages_of(&gone));
    }

    #[test]
    fn task_1_c_pages_that_are_shared() {
        holds("check_pages of two sequences and a prefix cache that share page 0", check_pages_of(&shared()));
        for (owners, what) in [(2, "one too few"), (4, "one too many"), (0, "none")] {
            let seen = Seen { owners: vec![owners, 1, 1, 0], ..shared() };
            let what = format!("check_pages: three have page 0, and its owners are {owners}, {what}");
            broken(&what, Rule::Pages, "0", check_pages_of(&seen));
        }
        // The sum is right, and the pages are not.
        let seen = Seen { owners: vec![2, 2, 1, 0], ..shared() };
        broken("check_pages: an owner of page 0 is counted at page 1", Rule::Pages, "", check_pages_of(&seen));
    }

    #[test]
    fn task_1_d_pages_of_the_prefix_cache_alone() {
        let seen = Seen { owners: vec![1, 0, 1], n_free: 1, cached: pages(&[0, 2]), ..Seen::default() };
        holds("check_pages: pages 0 and 2 are only in the prefix cache", check_pages_of(&seen));
        let freed = Seen { owners: vec![1, 0, 0], n_free: 2, ..seen };
        broken("check_pages: page 2 is in the prefix cache, and free", Rule::Pages, "2", check_pages_of(&freed));
    }

    #[test]
    fn task_1_e_pages_that_strangers_have() {
        let seen = Seen { owners: vec![0, 1, 1], n_free: 1, strangers: pages(&[2, 1]), ..Seen::default() };
        holds("check_pages: strangers have pages 2 and 1", check_pages_of(&seen));
        let freed = Seen { owners: vec![0, 1, 0], n_free: 2, ..seen };
        broken("check_pages: strangers have page 2, and it is free", Rule::Pages, "2", check_pages_of(&freed));
    }

    #[test]
    fn task_1_f_a_page_twice_in_a_table() {
        let running = vec![with_pages(sequence(0, 8, 8), &[1, 1])];
        let seen = Seen { owners: vec![0, 1], n_free: 1, running, ..Seen::default() };
        broken("check_pages: a table has page 1 twice, and it has one owner", Rule::Pages, "1", check_pages_of(&seen));
    }

    #[test]
    fn task_1_h_a_page_that_is_not_in_the_pool() {
        for (page, place) in [(2, "a table"), (2, "the prefix cache"), (u32::MAX, "a stranger")] {
            let mut seen = Seen { owners: vec![0, 0], n_free: 2, ..Seen::default() };
            match place {
                "a table" => seen.running = vec![with_pages(sequence(0, 4, 4), &[page])],
                "the prefix cache" => seen.cached = pages(&[page]),
                _ => seen.strangers = pages(&[page]),
            }
            let what = format!("check_pages: {place} has page {page} of a pool with pages 0 and 1");
            broken(&what, Rule::Pages, &page.to_string(), check_pages_of(&seen));
        }
    }

    #[test]
    fn task_1_g_the_free_list_is_counted() {
        for n_free in [0, 2] {
            let seen = Seen { n_free, ..shared() };
            let what = format!("check_pages: one page has no owner, and the free list has {n_free}");
            broken(&what, Rule::Pages, "", check_pages_of(&seen));
        }
    }

    #[test]
    fn task_1_i_more_pages_than_16_bits_count() {
        let n = 70_000;
        let all: Vec<u32> = (0..n).collect();
        let owners = vec![1; n as usize];
        let seen = Seen { owners, cached: pages(&all), ..Seen::default() };
        once("check_pages of 70,000 pages", || holds("check_pages of 70,000 pages", check_pages_of(&seen)));
        let mut lost = seen;
        lost.owners[65_536] = 2;
        broken("check_pages: page 65536 has an owner too many", Rule::Pages, "65536", check_pages_of(&lost));
        let running: Vec<SeenSequence> = (0..70_000).map(|id| with_pages(sequence(id, 4, 4), &[0])).collect();
        let seen = Seen { owners: vec![70_000], running, ..Seen::default() };
        holds("check_pages: 70,000 sequences share page 0", check_pages_of(&seen));
        let lost = Seen { owners: vec![70_000 - 65_536], ..seen };
        broken("check_pages: page 0 has 65,536 owners too few", Rule::Pages, "0", check_pages_of(&lost));
    }

    /// These run, these wait, these are there.
    fn order(running: &[u64], waiting: &[u64], alive: &[u64]) -> (String, Seen) {
        let listed = |ids: &[u64]| ids.iter().map(|id| sequence(*id, 3, 0)).collect();
        let seen = Seen {
            alive: alive.iter().copied().map(SequenceId).collect(),
            ..sequences(listed(running), listed(waiting))
        };
        (format!("check_order: {running:?} run, {waiting:?} wait, {alive:?} are there"), seen)
    }

    #[test]
    fn task_1_j_order_of_arrival() {
        let cases: [(&[u64], &[u64]); 6] = [
            (&[], &[]),
            (&[0], &[]),
            (&[], &[0]),
            (&[4, 7], &[8, 9]),
            (&[], &[0, 1, 2]),
            (&[3, 5_000_000_000], &[5_000_000_001]),
        ];
        for (running, waiting) in cases {
            let (what, seen) = order(running, waiting, &[running, waiting].concat());
            holds(&what, || check_order(&seen));
        }
    }

    #[test]
    fn task_1_k_out_of_order() {
        let cases: [(&[u64], &[u64], &[u64]); 12] = [
            // Overtaken, by one that runs, in the queue, among those that run.
            (&[4, 8], &[7, 9], &[4, 7, 8, 9]),
            (&[4], &[8, 7, 9], &[4, 7, 8, 9]),
            (&[7, 4], &[8], &[4, 7, 8]),
            (&[9], &[4, 7], &[4, 7, 9]),
            // Lost: one of those that wait, that run, the last of all.
            (&[4], &[9], &[4, 7, 9]),
            (&[7], &[9], &[4, 7, 9]),
            (&[4, 7], &[], &[4, 7, 9]),
            (&[], &[], &[0]),
            // There twice.
            (&[4, 7], &[7, 9], &[4, 7, 9]),
            (&[4, 4], &[], &[4]),
            // Not there.
            (&[4], &[9], &[4]),
            (&[3], &[], &[]),
        ];
        for (running, waiting, alive) in cases {
            let (what, seen) = order(running, waiting, alive);
            broken(&what, Rule::Order, "", || check_order(&seen));
        }
    }

    // Task 2: the plan, and the sequences

    #[track_caller]
    fn plan_holds(what: &str, chunks: &[ScheduledChunk], seen: &Seen) {
        holds(&format!("check_plan of {}: {what}", in_words(chunks)), || check_plan(&SETUP, chunks, seen));
    }

    #[track_caller]
    fn plan_broken(what: &str, names: &str, chunks: &[ScheduledChunk], seen: &Seen) {
        broken(&format!("check_plan of {}: {what}", in_words(chunks)), Rule::Plan, names, || {
            check_plan(&SETUP, chunks, seen)
        });
    }

    #[test]
    fn task_2_a_plans_that_can_be_computed() {
        plan_holds("no sequence is there", &[], &Seen::default());
        plan_holds("those that are there wait", &[], &sequences(vec![], vec![sequence(0, 3, 0)]));
        let seen = sequences(vec![sequence(0, 5, 5), sequence(1, 9, 9), sequence(2, 30, 6)], vec![sequence(3, 1, 0)]);
        plan_holds(
            "8 of a budget of 8, and 3 of at most 3 sequences",
            &[chunk(0, 1, true), chunk(1, 1, true), chunk(2, 6, false)],
            &seen,
        );
        plan_holds("not all that run have a chunk", &[chunk(0, 1, true)], &seen);
        let large = sequences(vec![sequence(5_000_000_000, 70_000, 70_000)], vec![]);
        let setup = Setup { limits: StepLimits { tokens: usize::MAX, sequences: 1 }, ..SETUP };
        holds("check_plan of a chunk of 70,000 tokens", || {
            check_plan(&setup, &[chunk(5_000_000_000, 70_000, true)], &large)
        });
    }

    #[test]
    fn task_2_g_limits() {
        let seen = sequences(vec![sequence(0, 20, 8), sequence(1, 9, 9)], vec![]);
        plan_broken("the budget is 8", "9", &[chunk(0, 8, false), chunk(1, 1, true)], &seen);
        plan_broken("the budget is 8", "9", &[chunk(1, 9, true)], &seen);
        let many = sequences(vec![sequence(0, 5, 5), sequence(1, 5, 5), sequence(2, 5, 5), sequence(3, 5, 4)], vec![]);
        plan_broken("4 run, and at most 3 may", "4", &[chunk(0, 1, true)], &many);
        plan_broken("4 run, and at most 3 may", "4", &[], &many);
        let huge = sequences(vec![sequence(0, usize::MAX, usize::MAX), sequence(1, 9, 9)], vec![]);
        let chunks = [chunk(0, usize::MAX, true), chunk(1, 9, true)];
        broken("check_plan of chunks of usize::MAX and 9 tokens", Rule::Plan, "", || {
            check_plan(&SETUP, &chunks, &huge)
        });
    }

    #[test]
    fn task_2_e_planned_sequences_run() {
        let seen = sequences(vec![sequence(0, 5, 5), sequence(2, 5, 5)], vec![sequence(3, 4, 0)]);
        plan_broken("sequence 1 is nowhere", "1", &[chunk(0, 1, true), chunk(1, 1, true)], &seen);
        plan_broken("sequence 3 waits", "3", &[chunk(0, 1, true), chunk(3, 4, true)], &seen);
    }

    #[test]
    fn task_2_f_oldest_first() {
        let seen = sequences(vec![sequence(0, 5, 5), sequence(2, 5, 5), sequence(4, 5, 5)], vec![]);
        plan_broken("sequence 2 comes before sequence 0", "", &[chunk(2, 1, true), chunk(0, 1, true)], &seen);
        plan_broken("sequence 2 has two chunks", "", &[chunk(2, 1, true), chunk(2, 1, true)], &seen);
        let chunks = [chunk(0, 1, true), chunk(4, 1, true), chunk(2, 1, true)];
        plan_broken("sequence 4 comes before sequence 2", "", &chunks, &seen);
    }

    #[test]
    fn task_2_b_a_chunk_has_tokens() {
        let seen = sequences(vec![sequence(0, 5, 5), sequence(1, 8, 8)], vec![]);
        plan_broken("sequence 1 computes nothing", "1", &[chunk(0, 1, true), chunk(1, 0, true)], &seen);
    }

    #[test]
    fn task_2_c_a_table_holds_the_chunk() {
        let seen = sequences(vec![sequence(6, 5, 2), sequence(7, 5, 6)], vec![]);
        plan_broken("sequence 6 computes 3, and its table holds 2", "6", &[chunk(6, 3, false)], &seen);
        plan_holds("sequence 6 computes 2, and its table holds 2", &[chunk(6, 2, false)], &seen);
        plan_broken("sequence 7 has 5 tokens, and its table holds 6", "7", &[chunk(7, 1, true)], &seen);
        plan_broken("sequence 7 has 5 tokens, and its table holds 6", "7", &[chunk(7, 1, false)], &seen);
    }

    #[test]
    fn task_2_d_caught_up() {
        let seen = sequences(vec![sequence(6, 5, 4), sequence(7, 5, 5)], vec![]);
        plan_broken("sequence 6 has a token left, and is marked as caught up", "6", &[chunk(6, 1, true)], &seen);
        plan_broken("sequence 7 has none left, and is not marked as caught up", "7", &[chunk(7, 1, false)], &seen);
        // The first is right, the second is not.
        plan_broken("sequence 7 is not marked as caught up", "7", &[chunk(6, 1, false), chunk(7, 1, false)], &seen);
    }

    /// A sequence of these prompts that gets at least `n` tokens when it is alone, and does not end before.
    fn long(n: usize) -> (Vec<u32>, Vec<u32>) {
        let longest = (0..2000).map(|alike| prompt(alike, 3)).find(|prompt| alone(prompt, n).0.len() == n);
        let prompt = longest.expect("one of 2,000 sequences is long");
        let told = alone(&prompt, n).0;
        (prompt, told)
    }

    /// A sequence that has an end of text after `n` tokens.
    fn ends_after(n: usize) -> (Vec<u32>, Vec<u32>) {
        let mut prompts = (0..2000).map(|alike| prompt(alike, 3));
        let prompt = prompts.find(|prompt| alone(prompt, 50).0.len() == n).expect("one of 2,000 sequences ends there");
        let told = alone(&prompt, 50).0;
        (prompt, told)
    }

    fn ended((prompt, told): (Vec<u32>, Vec<u32>), max_new_tokens: usize, end: FinishReason) -> Ended {
        let tokens = [&prompt[..], &told].concat();
        Ended { id: SequenceId(3), prompt, max_new_tokens, received: told, tokens, reason: end }
    }

    #[test]
    fn task_2_h_right_outputs() {
        holds("check_output of a sequence with all its 5 tokens", || {
            check_output(&ended(long(5), 5, FinishReason::Limit))
        });
        holds("check_output of a sequence that is to get none", || {
            check_output(&ended((prompt(0, 4), vec![]), 0, FinishReason::Limit))
        });
        for n in [0, 3] {
            let what = format!("check_output of a sequence with an end of text after {n} tokens");
            holds(&what, || check_output(&ended(ends_after(n), 50, FinishReason::EndOfText)));
        }
        for n in 0..=5 {
            let (prompt, mut told) = long(5);
            told.truncate(n);
            let what = format!("check_output of a sequence that is cancelled after {n} of 5 tokens");
            holds(&what, || check_output(&ended((prompt, told), 5, FinishReason::Cancelled)));
        }
    }

    #[track_caller]
    fn output_broken(what: &str, ended: &Ended) {
        broken(&format!("check_output: {what}"), Rule::Output, "3", || check_output(ended));
    }

    #[test]
    fn task_2_i_a_token_that_differs() {
        for place in 0..5 {
            let (prompt, mut told) = long(5);
            told[place] = if told[place] == FIRST_NEW { FIRST_NEW + 1 } else { FIRST_NEW };
            for end in [FinishReason::Limit, FinishReason::Cancelled] {
                let what = format!("token {place} of 5 differs from the one alone, and it finished by {end:?}");
                output_broken(&what, &ended((prompt.clone(), told.clone()), 5, end));
            }
        }
        // The lower 16 bits are the same.
        let (prompt, mut told) = long(2);
        told[1] ^= 1 << 16;
        output_broken("a token differs in its upper half", &ended((prompt, told), 2, FinishReason::Limit));
    }

    #[test]
    fn task_2_j_an_output_that_ends_too_early_or_too_late() {
        let (prompt, told) = long(5);
        let short = (prompt.clone(), told[..4].to_vec());
        output_broken("4 of its 5 tokens", &ended(short, 5, FinishReason::Limit));
        output_broken("5 tokens where 4 were wanted", &ended((prompt, told), 4, FinishReason::Limit));
        let (prompt, mut told) = ends_after(3);
        output_broken(
            "it had an end of text, and finishes by its limit",
            &ended((prompt.clone(), told.clone()), 50, FinishReason::Limit),
        );
        told.push(END_OF_TEXT);
        output_broken("the end of text is one of its tokens", &ended((prompt, told), 50, FinishReason::EndOfText));
        output_broken("it has its limit, and finishes by an end of text", &ended(long(5), 5, FinishReason::EndOfText));
        let (prompt, told) = long(6);
        output_broken(
            "cancelled with 6 tokens where 5 were wanted",
            &ended((prompt, told), 5, FinishReason::Cancelled),
        );
    }

    #[test]
    fn task_2_k_each_token_is_received_once() {
        let right = ended(long(5), 5, FinishReason::Limit);
        let twice = Ended { received: [&right.received[..3], &right.received[2..]].concat(), ..right.clone() };
        output_broken("its third token was received twice", &twice);
        let lost = Ended { received: right.received[..4].to_vec(), ..right.clone() };
        output_broken("its last token was not received", &lost);
        for end in [FinishReason::Limit, FinishReason::Cancelled] {
            let short = Ended { tokens: right.tokens[..7].to_vec(), reason: end, ..right.clone() };
            output_broken("5 tokens were received, and it has 4 of them", &short);
        }
        let mut other = right.clone();
        other.tokens[0] += 1;
        output_broken("its prompt differs in the end", &other);
        let without = Ended { tokens: right.received.clone(), ..right };
        output_broken("its prompt is gone in the end", &without);
    }

    // Task 3: who goes on, who is admitted, and the whole run

    #[track_caller]
    fn progress_holds(what: &str, chunks: &[ScheduledChunk], seen: &Seen) {
        holds(&format!("check_progress of {}: {what}", in_words(chunks)), || check_progress(&SETUP, chunks, seen));
    }

    #[track_caller]
    fn progress_broken(what: &str, names: &str, chunks: &[ScheduledChunk], seen: &Seen) {
        let what = format!("check_progress of {}: {what}", in_words(chunks));
        broken(&what, Rule::Progress, names, || check_progress(&SETUP, chunks, seen));
    }

    #[test]
    fn task_3_a_check_progress_of_right_plans() {
        progress_holds("no sequence is there", &[], &Seen::default());
        let all = sequences(vec![sequence(0, 5, 5), sequence(1, 3, 3)], vec![sequence(2, 9, 0)]);
        progress_holds("both read all, and some budget is left", &[chunk(0, 1, true), chunk(1, 3, true)], &all);
        let part = sequences(vec![sequence(0, 5, 5), sequence(1, 20, 7)], vec![]);
        progress_holds(
            "the last computes as much as the budget allows",
            &[chunk(0, 1, true), chunk(1, 7, false)],
            &part,
        );
        let behind = sequences(vec![sequence(0, 20, 8), sequence(1, 3, 2)], vec![]);
        progress_holds("the first takes the whole budget", &[chunk(0, 8, false)], &behind);
        let exactly = sequences(vec![sequence(0, 8, 8), sequence(1, 3, 2), sequence(2, 3, 2)], vec![]);
        progress_holds("the first takes the whole budget and catches up", &[chunk(0, 8, true)], &exactly);
    }

    #[test]
    fn task_3_b_check_progress_none_is_passed_over() {
        // The example of the stub: 1, 9 and 1 tokens to compute.
        let second = sequences(vec![sequence(0, 5, 5), sequence(1, 9, 0), sequence(2, 4, 4)], vec![]);
        progress_broken(
            "sequence 1 gets nothing, sequence 2 does",
            "1",
            &[chunk(0, 1, true), chunk(2, 1, true)],
            &second,
        );
        let rest = sequences(vec![sequence(0, 5, 5), sequence(1, 9, 0), sequence(2, 7, 7)], vec![]);
        let chunks = [chunk(0, 1, true), chunk(2, 7, true)];
        progress_broken("sequence 1 gets nothing, sequence 2 the rest of the budget", "1", &chunks, &rest);
        let first = sequences(vec![sequence(0, 9, 8), sequence(1, 4, 4)], vec![]);
        progress_broken("sequence 0 gets nothing, sequence 1 does", "0", &[chunk(1, 8, true)], &first);
        let part = sequences(vec![sequence(0, 9, 3), sequence(1, 5, 5)], vec![]);
        let chunks = [chunk(0, 3, false), chunk(1, 5, true)];
        progress_broken("sequence 0 has 6 tokens left, and sequence 1 computes 5", "0", &chunks, &part);
        let ready = sequences(vec![sequence(0, 5, 5), sequence(1, 5, 5)], vec![]);
        progress_broken("sequence 0 has all its tokens and no chunk", "0", &[chunk(1, 1, true)], &ready);
    }

    #[test]
    fn task_3_c_check_progress_the_budget_is_used() {
        let part = sequences(vec![sequence(0, 5, 5), sequence(1, 20, 6)], vec![]);
        let chunks = [chunk(0, 1, true), chunk(1, 6, false)];
        progress_broken("sequence 1 has 14 tokens left, and the budget 1", "1", &chunks, &part);
        let last = sequences(vec![sequence(0, 7, 7), sequence(1, 5, 4)], vec![]);
        progress_broken("sequence 1 has a token to compute, and the budget 1", "1", &[chunk(0, 7, true)], &last);
        let ready = sequences(vec![sequence(0, 7, 7), sequence(1, 5, 5)], vec![]);
        progress_broken("sequence 1 has no chunk, and the budget 1", "1", &[chunk(0, 7, true)], &ready);
        // As many as allowed run: that excuses a sequence that waits, and none that runs.
        let all = sequences(vec![sequence(0, 3, 3), sequence(1, 4, 4), sequence(2, 9, 2)], vec![]);
        let chunks = [chunk(0, 1, true), chunk(1, 1, true), chunk(2, 2, false)];
        progress_broken("3 of 3 run, sequence 2 has 7 tokens left, and the budget 4", "2", &chunks, &all);
        // Strangers are no excuse.
        let strangers = Seen { strangers: pages(&[0]), ..last };
        progress_broken("sequence 1 has a token to compute, and the budget 1", "1", &[chunk(0, 7, true)], &strangers);
    }

    #[test]
    fn task_3_d_check_progress_the_oldest_advances() {
        let waits = sequences(vec![], vec![sequence(3, 9, 0), sequence(4, 1, 0)]);
        progress_broken("sequence 3 waits alone, and no stranger has a page", "3", &[], &waits);
        let strangers = Seen { strangers: pages(&[0]), ..waits };
        progress_holds("sequences wait, and a stranger has a page", &[], &strangers);
        let overtaken = sequences(vec![sequence(5, 4, 4)], vec![sequence(3, 9, 0)]);
        progress_broken("sequence 3 waits, and sequence 5 computes", "3", &[chunk(5, 4, true)], &overtaken);
    }

    /// Ten pages: so many are free, the prefix cache alone has so many, and shares one with a sequence. `taken` are those of sequences.
    fn rooms(n_free: usize, kept_alone: usize, running: Vec<SeenSequence>) -> Seen {
        let mut owners = vec![0; 10];
        let taken = running.iter().flat_map(|sequence| &sequence.pages);
        taken.for_each(|page| owners[page.index()] += 1);
        let mut kept: Vec<u32> =
            running.iter().flat_map(|sequence| sequence.pages.first()).map(|page| page.0).take(1).collect();
        kept.iter().for_each(|page| owners[*page as usize] += 1);
        let alone = (0..10).rev().filter(|page| owners[*page as usize] == 0).take(kept_alone);
        kept.extend(alone.collect::<Vec<u32>>());
        kept.iter().for_each(|page| owners[*page as usize] = owners[*page as usize].max(1));
        Seen { owners, n_free, cached: pages(&kept), ..sequences(running, vec![]) }
    }

    #[track_caller]
    fn fits(before: &Seen, seen: &Seen, what: &str, name: Option<&str>) {
        let what = format!("check_fits: {what}");
        match name {
            None => holds(&what, || check_fits(&SETUP, before, seen)),
            Some(name) => broken(&what, Rule::Fits, name, || check_fits(&SETUP, before, seen)),
        }
    }

    #[test]
    fn task_3_e_check_fits_an_admitted_sequence() {
        let none = Seen::default();
        // 9 tokens and the next: 3 pages, and it has 1.
        let one = vec![with_pages(sequence(0, 9, 4), &[0])];
        for (free, kept) in [(2, 0), (1, 1), (0, 2), (5, 3)] {
            let what = format!("sequence 0 needs 2 pages more, {free} are free and {kept} can be evicted");
            fits(&none, &rooms(free, kept, one.clone()), &what, None);
        }
        for (free, kept) in [(1, 0), (0, 1), (0, 0)] {
            let what = format!("sequence 0 needs 2 pages more, {free} are free and {kept} can be evicted");
            fits(&none, &rooms(free, kept, one.clone()), &what, Some("0"));
        }
    }

    #[test]
    fn task_3_f_check_fits_running_sequences_count() {
        // 8 tokens and the next: 3 pages, and it has 2. The other needs 2 and has 1.
        let old = with_pages(sequence(0, 8, 8), &[0, 1]);
        let new = with_pages(sequence(1, 7, 4), &[2]);
        let before = sequences(vec![old.clone()], vec![sequence(1, 7, 0)]);
        let both = vec![old.clone(), new];
        fits(&before, &rooms(2, 0, both.clone()), "sequences 0 and 1 need a page each, and 2 are free", None);
        fits(&before, &rooms(1, 0, both), "sequences 0 and 1 need a page each, and 1 is free", Some("1"));
        // None was admitted: running ones can be preempted later.
        fits(&before, &rooms(0, 0, vec![old]), "none was admitted", None);
        fits(&before, &Seen::default(), "none runs", None);
    }

    /// As many run as before, and yet one was admitted.
    #[test]
    fn task_3_f_check_fits_one_leaves_and_one_is_admitted() {
        let old = with_pages(sequence(0, 8, 8), &[0, 1]);
        let before = sequences(vec![old.clone(), sequence(1, 7, 0)], vec![sequence(2, 7, 0)]);
        let seen = rooms(1, 0, vec![old, with_pages(sequence(2, 7, 4), &[2])]);
        let what = "sequence 1 has left and 2 is admitted; 0 and 2 need a page each, and 1 is free";
        fits(&before, &seen, what, Some("2"));
    }

    #[test]
    fn task_3_g_check_fits_the_last_token_needs_no_page() {
        // 8 tokens and 1 to come, which is never read.
        let last = SeenSequence { max_new_tokens: 8, ..with_pages(sequence(0, 8, 8), &[0, 1]) };
        fits(&Seen::default(), &rooms(0, 0, vec![last]), "sequence 0 has all the pages that it will ever need", None);
    }

    /// A scheduler that does something else as well.
    struct Changed<F> {
        inner: Box<dyn Subject>,
        change: F,
    }

    /// What is asked of it.
    enum Asked<'a> {
        Submit(&'a mut usize),
        Plan,
        Running(&'a mut Vec<SeenSequence>),
    }

    impl<F: Fn(Asked<'_>)> Subject for Changed<F> {
        fn submit(&mut self, prompt: Vec<u32>, mut max_new_tokens: usize) -> Result<SequenceId, ScheduleError> {
            (self.change)(Asked::Submit(&mut max_new_tokens));
            self.inner.submit(prompt, max_new_tokens)
        }

        fn cancel(&mut self, id: SequenceId) -> Result<(), ScheduleError> {
            self.inner.cancel(id)
        }

        fn plan(&mut self) -> Result<Vec<ScheduledChunk>, ScheduleError> {
            (self.change)(Asked::Plan);
            self.inner.plan()
        }

        fn inputs(&mut self) -> Vec<ChunkInput<'_>> {
            self.inner.inputs()
        }

        fn settle(&mut self, picks: &[NextToken]) -> Result<(), ScheduleError> {
            self.inner.settle(picks)
        }

        fn running(&self) -> Vec<SeenSequence> {
            let mut running = self.inner.running();
            (self.change)(Asked::Running(&mut running));
            running
        }

        fn waiting(&self) -> Vec<SeenSequence> {
            self.inner.waiting()
        }

        fn take_finished(&mut self) -> Vec<Finished> {
            self.inner.take_finished()
        }

        fn prefixes(&self) -> &dyn Prefixes {
            self.inner.prefixes()
        }
    }

    fn planted(bug: Option<Bug>) -> Box<Make<'static>> {
        Box::new(move |slab, prefixes, limits| Planted::subject(bug, slab, prefixes, limits))
    }

    /// A right scheduler with a change.
    fn changed(change: impl Fn(Asked<'_>) + Clone + 'static) -> Box<Make<'static>> {
        Box::new(move |slab: &SharedSlab, prefixes, limits| {
            let inner = Planted::subject(None, slab, prefixes, limits)?;
            Ok(Box::new(Changed { inner, change: change.clone() }))
        })
    }

    fn setup(n_pages: usize, tokens: usize, sequences: usize) -> Setup {
        Setup { page_size: 4, n_pages, limits: StepLimits { tokens, sequences }, keeps_prefixes: true }
    }

    fn arrive(name: u32, prompt: usize, max_new_tokens: usize) -> Event {
        Event::Arrive { name, alike: name, prompt, max_new_tokens }
    }

    /// Asks for a run.
    #[track_caller]
    fn run_of(what: &str, make: &Make<'_>, case: &Case) -> Result<u64, Failure> {
        let _question = asking(format!("run of {what}"));
        run(make, case)
    }

    /// What a run of a right scheduler comes to: steps in the case, and steps until all have ended.
    fn steps_of(make: &Make<'_>, case: &Case) -> u64 {
        let mut world = World::new(make, case.setup).expect("a world");
        case.events.iter().for_each(|event| drop(world.apply(*event).expect("it does not stop")));
        world.apply(Event::GiveBack { pages: usize::MAX }).expect("it does not stop");
        while !world.seen().alive.is_empty() {
            assert!(world.steps() < 1_000_000, "the scheduler of this check never ends");
            world.apply(Event::Step).expect("it does not stop");
        }
        world.steps()
    }

    #[test]
    fn task_3_h_finish_with_nothing_to_do() {
        let case = Case { setup: setup(4, 8, 2), events: vec![] };
        let found = run_of("no events", &planted(None), &case);
        same!(found, Ok(0), "run of no events");
    }

    #[test]
    fn task_3_i_finish_steps_until_all_have_finished() {
        let make = planted(None);
        let events = vec![arrive(1, 5, 4), Event::Step, arrive(2, 9, 3), Event::Take { pages: 2 }, arrive(3, 3, 0)];
        let case = Case { setup: setup(5, 4, 2), events };
        let expected = steps_of(&make, &case);
        assert!(expected > 4, "the sequences of this check take a while: {expected}");
        same!(run_of("two sequences", &make, &case), Ok(expected), "steps made, those after the last event included");
    }

    #[test]
    fn task_3_j_finish_takes_the_pages_of_strangers() {
        let events = vec![Event::Take { pages: 1 }, Event::Take { pages: 9 }, arrive(1, 5, 2), Event::Step];
        let case = Case { setup: setup(3, 8, 2), events };
        let make = planted(None);
        let expected = steps_of(&make, &case);
        let found = run_of("a sequence for which strangers leave no page", &make, &case);
        same!(found, Ok(expected), "run of a sequence for which strangers leave no page until the end");
    }

    /// The place, the steps and the rule of a failure.
    #[track_caller]
    fn fails(what: &str, make: &Make<'_>, case: &Case, expected: (usize, u64, Rule)) {
        let found = run_of(what, make, case);
        let (event, step, rule) = expected;
        match found {
            Err(failure) if (failure.event, failure.step, failure.violation.rule) == expected => {}
            found => panic!(
                "run of {what}\n  expected: Err, event {event}, step {step}, the rule {rule:?} is broken\n  yours:    {found:?}"
            ),
        }
    }

    #[test]
    fn task_3_k_run_checks_after_every_event() {
        // A prompt of 9 in chunks of 4: cancelled after the first, its page is lost at once.
        let mut events = vec![arrive(1, 9, 2), Event::Step, Event::Cancel { name: 1 }, Event::Step];
        let make = planted(Some(Bug::CancelLeaks));
        let case = Case { setup: setup(5, 4, 2), events: events.clone() };
        fails("a scheduler that loses a page when a sequence is cancelled", &make, &case, (2, 1, Rule::Pages));
        events.insert(0, Event::Take { pages: 1 });
        let case = Case { setup: setup(5, 4, 2), events };
        fails("the same, with an event more before", &make, &case, (3, 1, Rule::Pages));
    }

    #[test]
    fn task_3_l_run_checks_the_plan() {
        let events = vec![arrive(1, 3, 1), arrive(2, 3, 1), Event::Step, arrive(3, 3, 2), Event::Step];
        let case = Case { setup: setup(8, 8, 1), events };
        fails("a scheduler that forgets a limit of 1 sequence", &changed_limit(), &case, (2, 1, Rule::Plan));
    }

    /// A scheduler for which twice as many sequences may run.
    fn changed_limit() -> Box<Make<'static>> {
        Box::new(|slab, prefixes, limits| {
            Planted::subject(None, slab, prefixes, StepLimits { sequences: 2 * limits.sequences, ..limits })
        })
    }

    #[test]
    fn task_3_m_finish_checks_every_step() {
        let make = planted(Some(Bug::NeverFits));
        let case = Case { setup: setup(2, 8, 2), events: vec![arrive(1, 9, 1)] };
        fails("a sequence that never fits", &make, &case, (1, 1, Rule::Progress));
        // After 3 steps it has 7 of its 9 tokens and both pages.
        let events = vec![arrive(1, 7, 4), Event::Step, Event::Step, arrive(2, 3, 1)];
        let case = Case { setup: setup(2, 8, 2), events };
        let found = run_of("a sequence that does not fit in the end", &make, &case);
        let Err(failure) = found else { panic!("run of a sequence that does not fit in the end: {found:?}") };
        same!(failure.event, 4, "place of what comes after 4 events");
    }

    #[test]
    fn task_3_n_finish_gives_up() {
        // It is to get 3 tokens, and would go on to 200.
        let alike = (0..100_000).find(|alike| alone(&prompt(*alike, 3), 60).0.len() == 60).expect("a long one");
        let plans = Rc::new(Cell::new(0));
        let change = move |asked: Asked<'_>| match asked {
            Asked::Submit(most) => *most = 200,
            Asked::Plan => {
                plans.set(plans.get() + 1);
                assert!(
                    plans.get() < 50,
                    "50 steps for a sequence of 3 tokens that is to get 3 more: does run never end?"
                );
            }
            Asked::Running(running) => running.iter_mut().for_each(|sequence| sequence.max_new_tokens = 3),
        };
        let event = Event::Arrive { name: 1, alike, prompt: 3, max_new_tokens: 3 };
        let case = Case { setup: setup(100, 8, 2), events: vec![event, Event::Step, Event::Step] };
        let what = "a sequence of 3 tokens that is to get 3 more and goes on and on, with 2 steps before";
        fails(what, &changed(change), &case, (3, 2 + 6, Rule::Ends));
    }

    /// Whatever a scheduler shows: the bound on the steps is a number.
    #[test]
    fn task_3_n_finish_of_huge_requests() {
        let change = |asked: Asked<'_>| {
            if let Asked::Running(running) = asked {
                running.iter_mut().for_each(|sequence| sequence.max_new_tokens = usize::MAX);
            }
        };
        let case = Case { setup: setup(8, 8, 2), events: vec![arrive(1, 3, 4), Event::Step, arrive(2, 3, 1)] };
        let found = run_of("a scheduler that shows usize::MAX new tokens for each request", &changed(change), &case);
        assert!(
            matches!(&found, Ok(_) | Err(Failure { violation: Violation { rule: Rule::Fits, .. }, .. })),
            "run of a scheduler that shows usize::MAX new tokens\n  expected: no overflow\n  yours:    {found:?}"
        );
    }

    #[test]
    fn task_3_o_run_reports_a_panic() {
        let plans = Rc::new(Cell::new(0));
        let change = move |asked: Asked<'_>| {
            if let Asked::Plan = asked {
                plans.set(plans.get() + 1);
                // Nothing is printed: the world catches it.
                if plans.get() == 2 {
                    std::panic::resume_unwind(Box::new("the second plan"));
                }
            }
        };
        let events = vec![arrive(1, 9, 2), Event::Step, Event::Take { pages: 1 }, Event::Step, Event::Step];
        let case = Case { setup: setup(5, 4, 2), events };
        fails("a scheduler that panics in its second plan", &changed(change), &case, (3, 2, Rule::Stopped));
    }

    #[test]
    fn task_3_p_run_of_a_world_that_cannot_be_made() {
        let case = Case { setup: setup(5, 0, 2), events: vec![Event::Step] };
        fails("a scheduler whose steps may have no tokens", &planted(None), &case, (0, 0, Rule::Stopped));
    }

    // Task 4: shrinking

    /// How many events, and all of their numbers together.
    fn size(events: &[Event]) -> (usize, usize) {
        let number = |event: &Event| match event {
            Event::Arrive { alike, prompt, max_new_tokens, .. } => *alike as usize + prompt + max_new_tokens,
            Event::Take { pages } | Event::GiveBack { pages } => *pages,
            Event::Cancel { .. } | Event::Step => 0,
        };
        (events.len(), events.iter().map(number).sum())
    }

    /// Shrinks a list, watches what is asked, and looks at the result from all sides.
    #[track_caller]
    fn shrunk(
        what: &str,
        events: &[Event],
        at_most: usize,
        is_broken: impl Fn(&[Event]) -> bool,
    ) -> (Vec<Event>, usize) {
        assert!(is_broken(events), "{what}: this check begins with a list that is broken");
        let (asked, last) = (Cell::new(0), RefCell::new(events.to_vec()));
        let question = asking(format!("shrink of {what}"));
        let found = shrink(events, &mut |kept| {
            let events = &kept.events[..];
            alive();
            asked.set(asked.get() + 1);
            assert!(
                asked.get() <= at_most,
                "shrink of {what}: is_broken was asked more than {at_most} times: does a loop never end, or does it leave \
                 out one event at a time?"
            );
            let (now, was) = (size(events), size(&last.borrow()));
            assert!(
                now < was,
                "shrink of {what}: is_broken is asked about {} events whose numbers add up to {}, where {} with {} were \
                 broken already: neither shorter nor smaller",
                now.0,
                now.1,
                was.0,
                was.1
            );
            let broken = is_broken(events);
            if broken {
                *last.borrow_mut() = events.to_vec();
            }
            broken
        });
        drop(question);
        let last = last.into_inner();
        let differs = if found.len() == last.len() {
            "the result is not the list of the last question that was answered with true".into()
        } else {
            format!("the result has {} events, and the last list that was broken has {}", found.len(), last.len())
        };
        assert!(found == last, "shrink of {what}: {differs}\n  expected: {last:?}\n  yours:    {found:?}");
        assert_shrunk(what, &found, &is_broken);
        (found, asked.get())
    }

    /// No event can be left out, and none made smaller.
    #[track_caller]
    fn assert_shrunk(what: &str, events: &[Event], is_broken: &dyn Fn(&[Event]) -> bool) {
        for place in 0..events.len() {
            let fewer = [&events[..place], &events[place + 1..]].concat();
            assert!(
                !is_broken(&fewer),
                "shrink of {what}: {:?}, number {place} of {events:?}, could be left out",
                events[place]
            );
            for smaller in smaller(events[place]) {
                let mut other = events.to_vec();
                other[place] = smaller;
                assert!(!is_broken(&other), "shrink of {what}: {:?} could be {smaller:?} in {events:?}", events[place]);
            }
        }
    }

    /// A list of events that differ, nothing to make smaller in them.
    fn cancels(n: u32) -> Vec<Event> {
        (0..n).map(|name| Event::Cancel { name }).collect()
    }

    #[test]
    fn task_4_b_single_events_are_left_out() {
        let has = |events: &[Event], name| events.contains(&Event::Cancel { name });
        for matters in [0, 4, 6] {
            let (found, _) =
                shrunk(&format!("7 events, of which number {matters} matters"), &cancels(7), 60, |e| has(e, matters));
            same!(found, [Event::Cancel { name: matters }], "shrink of 7 events, of which number {matters} matters");
        }
        let (found, _) = shrunk("7 events, of which 0 and 6 matter", &cancels(7), 60, |e| has(e, 0) && has(e, 6));
        same!(found, [0, 6].map(|name| Event::Cancel { name }), "shrink of 7 events, of which 0 and 6 matter");
    }

    #[test]
    fn task_4_a_every_event_matters() {
        let all = cancels(5);
        let (found, _) = shrunk("5 events that all matter", &all, 60, |events| events.len() == 5);
        same!(found, all, "shrink of 5 events that all matter");
        let (found, _) = shrunk("one event that matters", &all[..1], 20, |events| events.len() == 1);
        same!(found, all[..1], "shrink of one event that matters");
    }

    #[test]
    fn task_4_c_no_events() {
        let question = asking("shrink of no events");
        let found =
            shrink(&[], &mut |_| panic!("shrink of no events: is_broken is asked, and there is nothing to leave out"));
        drop(question);
        same!(found, [], "shrink of no events");
        // Nothing at all breaks the rule.
        let (found, _) = shrunk("5 events, none of which matters", &cancels(5), 40, |_| true);
        same!(found, [], "shrink of 5 events, none of which matters");
        let (found, _) = shrunk("one event that does not matter", &cancels(1), 20, |_| true);
        same!(found, [], "shrink of one event that does not matter");
    }

    #[test]
    fn task_4_d_large_pieces_go_first() {
        let matter = [17, 480, 999];
        let is_broken = |events: &[Event]| matter.iter().all(|name| events.contains(&Event::Cancel { name: *name }));
        let (found, asked) = shrunk("1,000 events, of which 3 matter", &cancels(1000), 400, is_broken);
        same!(found, matter.map(|name| Event::Cancel { name }), "shrink of 1,000 events, of which 3 matter");
        assert!(asked >= 3, "at least each of the three was tried");
        let (found, _) = shrunk("70,000 events, of which the last matters", &cancels(70_000), 400, |events| {
            events.last() == Some(&Event::Cancel { name: 69_999 })
        });
        same!(found.len(), 1, "events left of 70,000");
    }

    #[test]
    fn task_4_f_an_event_that_matters_only_at_first() {
        // The first can only be left out when the second is gone.
        let [c, b, a] = [0, 1, 2].map(|name| Event::Cancel { name });
        let is_broken = |events: &[Event]| events.contains(&a) && (!events.contains(&b) || events.contains(&c));
        let what = "three events, of which the first can be left out when the second is gone";
        let (found, _) = shrunk(what, &[c, b, a], 60, is_broken);
        same!(found, [a], "shrink of {what}");
        // A chain of them.
        let is_broken = |events: &[Event]| {
            let names: Vec<u32> =
                events.iter().map(|e| if let Event::Cancel { name } = e { *name } else { 99 }).collect();
            names.iter().copied().eq(0..names.len() as u32) && !names.is_empty()
        };
        let (found, _) = shrunk("12 events that can only be left out from the end", &cancels(12), 200, is_broken);
        same!(found, cancels(1), "shrink of 12 events that can only be left out from the end");
        // In pairs only.
        shrunk("16 steps of which an even number is broken", &[Event::Step; 16], 200, |events| {
            events.len().is_multiple_of(2) && !events.is_empty()
        });
    }

    #[test]
    fn task_4_e_numbers_get_smaller() {
        let arrive = |alike, prompt, max_new_tokens| Event::Arrive { name: 8, alike, prompt, max_new_tokens };
        for (from, at_least) in [((2, 9, 6), (0, 5, 2)), ((1, 2, 1), (1, 2, 1)), ((2, 70_000, 70_000), (0, 1, 65_537))]
        {
            let is_broken = |events: &[Event]| match events {
                [Event::Arrive { alike, prompt, max_new_tokens, .. }] => {
                    *alike >= at_least.0 && *prompt >= at_least.1 && *max_new_tokens >= at_least.2
                }
                _ => false,
            };
            // From 70,000 to 65,537 it goes one by one.
            let what = format!("{from:?} (alike, prompt, new tokens), of which {at_least:?} are enough");
            let (found, _) = shrunk(&what, &[arrive(from.0, from.1, from.2)], 40_000, is_broken);
            same!(found, [arrive(at_least.0, at_least.1, at_least.2)], "shrink of {what}");
        }
        let takes = |events: &[Event]| events.iter().any(|event| matches!(event, Event::Take { pages } if *pages >= 3));
        let (found, _) =
            shrunk("pages taken, of which 3 are enough", &[Event::Take { pages: 12 }, Event::Step], 40, takes);
        same!(found, [Event::Take { pages: 3 }], "shrink of pages taken, of which 3 are enough");
        // The second number matters when the first is small.
        let (found, _) = shrunk(
            "two events whose numbers add up to 5",
            &[Event::Take { pages: 4 }, Event::GiveBack { pages: 4 }],
            80,
            |events| events.len() == 2 && size(events).1 >= 5,
        );
        same!(size(&found), (2, 5), "events and the sum of their numbers, of two that must add up to 5");
    }

    /// Each event left out lets a number be smaller, and each smaller number lets an event be left out.
    #[test]
    fn task_4_g_round_after_round() {
        let is_broken = |events: &[Event]| match events {
            [Event::Take { pages }, steps @ ..] => *pages == steps.len() || *pages == steps.len() + 1,
            _ => false,
        };
        let what = "5 pages taken and 5 steps, where one number and then the other can be smaller by 1";
        let events = [&[Event::Take { pages: 5 }][..], &[Event::Step; 5]].concat();
        let (found, _) = shrunk(what, &events, 200, is_broken);
        same!(found, [Event::Take { pages: 1 }], "shrink of {what}, one round for each");
    }

    #[test]
    fn task_4_h_the_same_list_gives_the_same_answer() {
        let case = Case::of_seed(5, 60);
        let is_broken = |events: &[Event]| events.iter().filter(|event| **event == Event::Step).count() >= 7;
        let first = shrunk("the case of seed 5, of which 7 steps are enough", &case.events, 1000, is_broken);
        let second = shrunk("the case of seed 5, of which 7 steps are enough", &case.events, 1000, is_broken);
        same!(second, first, "(events, questions) of the same list the second time");
        same!(first.0, [Event::Step; 7], "shrink of the case of seed 5, of which 7 steps are enough");
    }

    // All of it together

    /// Steps of a case. Short cases and many seeds find more than the other way round.
    const STEPS: u64 = 60;

    /// Searches, and looks at what was found from all sides.
    #[track_caller]
    fn dies(bug: Bug, tries: u64) -> Found {
        let make = planted(Some(bug));
        let name = bug.name();
        let _question = asking(format!("seeds of {name}, which {}", bug.about()));
        let found = search(&make, 0..tries, STEPS, alive);
        let Err(found) = found else {
            panic!(
                "{name}, which {} ({}), passes {tries} seeds of {STEPS} steps: no rule of yours sees it",
                bug.about(),
                bug.reported()
            );
        };
        assert_found(&format!("{name}, seed {}", found.seed), &make, &found);
        *found
    }

    /// What was found is a case in which the same rule is broken, from which nothing can be left out.
    #[track_caller]
    fn assert_found(what: &str, make: &Make<'_>, found: &Found) {
        let rule = found.failure.violation.rule;
        let Case { setup, events } = &found.case;
        same!(found.shrunk.violation.rule, rule, "rule that is broken in what is left of {what}: {events:?}");
        assert_shrunk(what, events, &|events| rule_broken(make, *setup, events) == Some(rule));
        let bound = 40 * found.events.max(25) as u64;
        assert!(found.runs <= bound, "{what}: {} runs to shrink {} events", found.runs, found.events);
    }

    #[test]
    fn whole_ten_planted_schedulers_die() {
        let mut rules = BTreeSet::new();
        for bug in Bug::ALL {
            let found = dies(bug, 400);
            let (left, name) = (found.case.events.len(), bug.name());
            assert!(left <= 24, "{name}: {left} events are left of {}: is that a story?", found.events);
            rules.insert(found.failure.violation.rule);
        }
        assert!(rules.len() >= 4, "ten different bugs, and only these rules are ever broken: {rules:?}");
    }

    #[test]
    fn whole_a_right_scheduler_passes() {
        let passed = search(&planted(None), 0..400, STEPS, alive);
        let passed = passed.unwrap_or_else(|found| {
            panic!(
                "seed {}: a scheduler without a bug, and yet: {}\n{:?}",
                found.seed, found.shrunk.violation, found.case
            )
        });
        assert!(passed.seeds == 400 && passed.steps >= 400 * STEPS, "{passed:?}");
    }

    #[test]
    fn whole_the_same_seed_gives_the_same_story() {
        let make = planted(Some(Bug::FreedTwice));
        let first = search(&make, 0..400, STEPS, alive).expect_err("it dies");
        let second = search(&make, 0..400, STEPS, alive).expect_err("it dies");
        same!(second, first, "what a second search finds");
        let again = search(&make, first.seed..first.seed + 1, STEPS, alive).expect_err("it dies");
        same!(again.case, first.case, "what the seed alone finds");
    }

    /// A kind of prompt whose sequences, at this length, get `n` tokens without an end of text; not one of `but`.
    fn kind(n_prompt: usize, n: usize, but: &[u32]) -> u32 {
        let mut kinds = (0..5_000).filter(|alike| !but.contains(alike));
        kinds.find(|alike| alone(&prompt(*alike, n_prompt), n).0.len() == n).expect("one of 5,000 sequences is long")
    }

    /// For each bug a few events in which it shows.
    fn shows(bug: Bug) -> Case {
        let pages_of_4 = |n_pages, tokens, sequences, events| Case { setup: setup(n_pages, tokens, sequences), events };
        let step = Event::Step;
        let mut kinds = Vec::new();
        let mut arrive = |name, prompt, max_new_tokens| {
            let alike = kind(prompt, max_new_tokens, &kinds);
            kinds.push(alike);
            Event::Arrive { name, alike, prompt, max_new_tokens }
        };
        let alike = |name, prompt| Event::Arrive { name, alike: kind(prompt, 1, &[]), prompt, max_new_tokens: 1 };
        match bug {
            Bug::NeverFits => pages_of_4(2, 8, 2, vec![arrive(1, 9, 1), step]),
            Bug::NextChunk => pages_of_4(4, 8, 2, vec![arrive(1, 3, 3), step, arrive(2, 9, 1), step]),
            Bug::PlannedVictim => pages_of_4(3, 10, 2, vec![arrive(1, 6, 6), arrive(2, 3, 6), step, step, step]),
            Bug::PassedOver => {
                let three = vec![arrive(1, 4, 3), arrive(2, 2, 3), arrive(3, 1, 3)];
                pages_of_4(4, 8, 3, [three, vec![step, Event::Take { pages: 1 }, step]].concat())
            }
            Bug::LimitForgotten => pages_of_4(4, 8, 1, vec![arrive(1, 3, 3), step, arrive(2, 3, 3), step]),
            Bug::AllFound => pages_of_4(4, 8, 2, vec![alike(1, 4), step, alike(2, 4), step]),
            Bug::FoundTooEarly => pages_of_4(4, 10, 2, vec![alike(1, 5), alike(2, 5), step]),
            Bug::CancelLeaks => pages_of_4(4, 6, 2, vec![arrive(1, 9, 2), step, Event::Cancel { name: 1 }]),
            Bug::FreedTwice => pages_of_4(4, 8, 2, vec![arrive(1, 4, 1), step]),
            Bug::PromptLength => {
                let (take, give) = (Event::Take { pages: 1 }, Event::GiveBack { pages: 1 });
                let events = vec![arrive(1, 2, 6), step, step, step, take, step, give, step];
                let case = pages_of_4(2, 4, 2, events);
                Case { setup: Setup { keeps_prefixes: false, ..case.setup }, ..case }
            }
        }
    }

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        for bug in Bug::ALL {
            let Case { setup, events } = shows(bug);
            transcript.line(format!("{}: {}", bug.name(), bug.about()));
            transcript.line(format!("{setup}"));
            for make in [planted(Some(bug)), planted(None)] {
                let _question = asking(format!("the rules on each event of {}, in the transcript", bug.name()));
                let mut world = World::new(&make, setup).expect("a world");
                let mut all_hold = true;
                for event in &events {
                    let scene = world.apply(*event).expect("the scheduler does not stop");
                    let what = match (event, &scene.planned) {
                        (Event::Arrive { prompt, max_new_tokens, .. }, _) => {
                            format!("a request arrives: {}, wants {max_new_tokens}", count(*prompt, "token"))
                        }
                        (Event::Cancel { .. }, _) => "it is cancelled".into(),
                        (Event::Take { .. }, _) => "strangers take a page".into(),
                        (Event::GiveBack { .. }, _) => "strangers give it back".into(),
                        (_, planned) => planned.as_ref().map_or_else(String::new, |planned| in_words(&planned.chunks)),
                    };
                    let broken = check(&setup, &scene).err();
                    all_hold &= broken.is_none();
                    let broken = broken.map_or_else(String::new, |broken| format!("   ✗ {}", broken.rule));
                    transcript.line(format!("  {what}{broken}"));
                }
                transcript.line(if all_hold { "  all rules hold" } else { "without the bug" });
            }
            transcript.line("");
        }
        assert_transcript("ch15_rules", &transcript);
    }

    #[test]
    fn whole_oracle() {
        for seed in seeds(40) {
            alive();
            let mut dice = Dice::new(seed);
            let bug = Bug::ALL[dice.roll(0, 9)];
            // Other seeds than those of the checks above.
            let (seed, steps) = (1_000_000 + seed, dice.roll(20, 90) as u64);
            let what = format!("{}, seed {seed}, {steps} steps", bug.name());
            let _question = asking(what.clone());
            let make = planted(Some(bug));
            let case = Case::of_seed(seed, steps);
            let by_hand = first_broken(&make, &case);
            let found = run(&make, &case);
            let place = found.as_ref().err().map(|failure| failure.event);
            same!(place, by_hand, "place of the first event after which a rule is broken, {what}");
            if let Err(found) = search(&make, seed..seed + 1, steps, alive) {
                assert_found(&what, &make, &found);
            }
            let right = run(&planted(None), &case);
            assert!(right.is_ok(), "no bug, seed {seed}, {steps} steps: {right:?}");
        }
    }

    /// The place of the first event after which a rule of the reader's is broken, by a loop of our own.
    fn first_broken(make: &Make<'_>, case: &Case) -> Option<usize> {
        let mut world = World::new(make, case.setup).expect("a world");
        let setup = case.setup;
        for (place, event) in case.events.iter().enumerate() {
            match world.apply(*event) {
                Ok(scene) if check(&setup, &scene).is_ok() => {}
                _ => return Some(place),
            }
        }
        let after = Some(case.events.len());
        if world.apply(Event::GiveBack { pages: usize::MAX }).is_err() {
            return after;
        }
        for _ in 0..10_000 {
            if world.seen().alive.is_empty() {
                return None;
            }
            match world.apply(Event::Step) {
                Ok(scene) if check(&setup, &scene).is_ok() => {}
                _ => return after,
            }
        }
        after
    }

    #[test]
    fn whole_story() {
        // The scheduler of chapter 12, on chapters 4 to 11.
        let passed = search(&chapter_12, 0..200, STEPS, alive);
        passed.unwrap_or_else(|found| {
            panic!(
                "chapter 12 and those before it, seed {}: {}\n{:?}\nnext: run their checks; if they are green, look at the \
                 rule",
                found.seed, found.shrunk.violation, found.case
            )
        });
    }
}
