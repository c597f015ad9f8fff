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

#[cfg(not(unstarted = "ch15_simulation"))]
mod checks {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;
    use std::rc::Rc;

    use page_by_page::cache::PageId;
    use page_by_page::chapters::ch06_paged::SharedSlab;
    use page_by_page::chapters::ch15_simulation::{
        check, check_fits, check_order, check_output, check_pages, check_plan, check_progress, run, shrink,
    };
    use page_by_page::prefixes::Prefixes;
    use page_by_page::serving::schedule::{
        ChunkInput, FinishReason, Finished, NextToken, ScheduleError, ScheduledChunk, SequenceCounters, SequenceId,
        StepLimits,
    };
    use page_by_page::simulation::planted::{Bug, Planted};
    use page_by_page::simulation::{
        Case, END_OF_TEXT, Ended, Event, FIRST_NEW, Failure, Found, Make, Rule, Seen, SeenSequence, Setup, Subject,
        Violation, World, alone, chapter_12, in_words, prompt, rule_broken, search, smaller,
    };

    use crate::support::asking::asking;
    use crate::support::limits::{alive, once};
    use crate::support::oracle::{Dice, seeds};
    use crate::support::transcript::{Transcript, assert_transcript};
    use crate::support::words::count;

    // Moments made by hand

    /// Pages of 4, a budget of 8, at most 3 sequences.
    const SETUP: Setup =
        Setup { page_size: 4, n_pages: 10, limits: StepLimits { tokens: 8, sequences: 3 }, keeps_prefixes: true };

    fn pages(numbers: &[u32]) -> Vec<PageId> {
        numbers.iter().copied().map(PageId).collect()
    }

    /// A sequence of `n_tokens` tokens, the first of them its prompt, whose table holds `held` of them; it is far from finished.
    fn sequence(id: u64, n_tokens: usize, held: usize) -> SeenSequence {
        let (id, pages, counters) = (SequenceId(id), Vec::new(), SequenceCounters::default());
        SeenSequence { id, n_prompt: 1, n_tokens, max_new_tokens: 1000, held, pages, counters }
    }

    fn with_pages(sequence: SeenSequence, numbers: &[u32]) -> SeenSequence {
        SeenSequence { pages: pages(numbers), ..sequence }
    }

    /// The chunks of a plan, each as (sequence, tokens, caught up).
    fn plan_of(chunks: &[(u64, usize, bool)]) -> Vec<ScheduledChunk> {
        let chunk = |(id, tokens, caught_up)| ScheduledChunk { sequence: SequenceId(id), tokens, caught_up };
        chunks.iter().copied().map(chunk).collect()
    }

    /// Sequences that run and wait, and all of them alive, by their numbers. No pages at all.
    fn sequences(running: Vec<SeenSequence>, waiting: Vec<SeenSequence>) -> Seen {
        let mut alive: Vec<SequenceId> = running.iter().chain(&waiting).map(|sequence| sequence.id).collect();
        alive.sort();
        alive.dedup();
        Seen { running, waiting, alive, ..Seen::default() }
    }

    /// Sequences that run, each as (sequence, tokens, tokens that its table holds).
    fn running(sequences_: &[(u64, usize, usize)]) -> Seen {
        sequences(sequences_.iter().map(|(id, n_tokens, held)| sequence(*id, *n_tokens, *held)).collect(), vec![])
    }

    /// What a check must answer: that all is well, or that its rule is broken, in words that name this number, if any.
    #[derive(Clone, Copy)]
    enum Expected {
        Holds,
        Broken(&'static str),
    }
    use Expected::{Broken, Holds};

    /// Asks a check, and compares its answer.
    #[track_caller]
    fn ask(rule: Rule, what: &str, expected: Expected, check: impl FnOnce() -> Result<(), Violation>) {
        let question = asking(what);
        let found = check();
        drop(question);
        match (expected, found) {
            (Holds, Ok(())) => {}
            (Holds, found) => panic!("{what}\n  expected: Ok(()), nothing is broken\n  yours:    {found:?}"),
            (Broken(names), Err(violation)) if violation.rule == rule => {
                let words = violation.words;
                let names_it = words.split(|c: char| !c.is_ascii_digit()).any(|number| number == names);
                assert!(
                    names.is_empty() || names_it,
                    "{what}\n  expected: words that name {names}\n  yours:    {words:?}"
                );
            }
            (_, found) => panic!("{what}\n  expected: Err, the rule {rule:?} is broken\n  yours:    {found:?}"),
        }
    }

    // Task 1: pages, and the order

    #[track_caller]
    fn check_pages_of(what: &str, expected: Expected, seen: &Seen) {
        ask(Rule::Pages, &format!("check_pages: {what}"), expected, || check_pages(seen));
    }

    #[test]
    fn task_1_a_owners_of_pages() {
        let pool = |owners: &[u32], n_free| Seen { owners: owners.to_vec(), n_free, ..Seen::default() };
        let table = |numbers: &[u32]| vec![with_pages(sequence(0, 4, 4), numbers)];
        // The example of the stub: four pages, and all that can own one.
        let shared = |owners: &[u32], n_free| Seen {
            cached: pages(&[0]),
            running: vec![with_pages(sequence(0, 8, 8), &[0, 1]), with_pages(sequence(1, 8, 8), &[0, 2])],
            ..pool(owners, n_free)
        };
        let cached = pages(&[0, 2]);
        let strangers = pages(&[2, 1]);
        let far = "a pool with pages 0 and 1";
        for (what, expected, seen) in [
            ("3 free pages", Holds, pool(&[0; 3], 3)),
            ("page 1 is that of a sequence", Holds, Seen { running: table(&[1]), ..pool(&[0, 1], 1) }),
            ("page 1 has an owner, and is in no table", Broken("1"), pool(&[0, 1], 1)),
            (
                "a sequence has page 1, which has no owner",
                Broken("1"),
                Seen { running: table(&[1]), ..pool(&[0; 2], 2) },
            ),
            ("two sequences and a prefix cache share page 0", Holds, shared(&[3, 1, 1, 0], 1)),
            ("three have page 0, and its owners are 2, one too few", Broken("0"), shared(&[2, 1, 1, 0], 1)),
            ("three have page 0, and its owners are 4, one too many", Broken("0"), shared(&[4, 1, 1, 0], 1)),
            ("three have page 0, and it has no owner", Broken("0"), shared(&[0, 1, 1, 0], 1)),
            ("an owner of page 0 is counted at page 1", Broken(""), shared(&[2, 2, 1, 0], 1)),
            ("the prefix cache has 0 and 2", Holds, Seen { cached: cached.clone(), ..pool(&[1, 0, 1], 1) }),
            ("page 2 is cached, and free", Broken("2"), Seen { cached, ..pool(&[1, 0, 0], 2) }),
            ("strangers have pages 2 and 1", Holds, Seen { strangers: strangers.clone(), ..pool(&[0, 1, 1], 1) }),
            ("strangers have page 2, and it is free", Broken("2"), Seen { strangers, ..pool(&[0, 1, 0], 2) }),
            (
                "a table has page 1 twice, and it has one owner",
                Broken("1"),
                Seen { running: table(&[1, 1]), ..pool(&[0, 1], 1) },
            ),
            (&format!("a table has page 2 of {far}"), Broken("2"), Seen { running: table(&[2]), ..pool(&[0; 2], 2) }),
            (&format!("page 2 is cached, of {far}"), Broken("2"), Seen { cached: pages(&[2]), ..pool(&[0; 2], 2) }),
            (
                &format!("a stranger has page {}, of {far}", u32::MAX),
                Broken("4294967295"),
                Seen { strangers: pages(&[u32::MAX]), ..pool(&[0; 2], 2) },
            ),
            ("one page has no owner, and the free list has 0", Broken(""), shared(&[3, 1, 1, 0], 0)),
            ("one page has no owner, and the free list has 2", Broken(""), shared(&[3, 1, 1, 0], 2)),
        ] {
            check_pages_of(what, expected, &seen);
        }
    }

    #[test]
    fn task_1_i_more_pages_than_16_bits_count() {
        let n = 70_000;
        let mut seen =
            Seen { owners: vec![1; n as usize], cached: pages(&(0..n).collect::<Vec<_>>()), ..Seen::default() };
        once("check_pages of 70,000 pages", || check_pages_of("70,000 pages", Holds, &seen));
        seen.owners[65_536] = 2;
        check_pages_of("page 65536 has an owner too many", Broken("65536"), &seen);
        let running: Vec<_> = (0..u64::from(n)).map(|id| with_pages(sequence(id, 4, 4), &[0])).collect();
        let mut seen = Seen { owners: vec![n], running, ..Seen::default() };
        check_pages_of("70,000 sequences share page 0", Holds, &seen);
        seen.owners[0] -= 65_536;
        check_pages_of("page 0 has 65,536 owners too few", Broken("0"), &seen);
    }

    #[test]
    fn task_1_j_order_of_arrival() {
        type Ids = &'static [u64];
        let cases: [(Expected, Ids, Ids, Ids); 18] = [
            (Holds, &[], &[], &[]),
            (Holds, &[0], &[], &[0]),
            (Holds, &[], &[0], &[0]),
            (Holds, &[4, 7], &[8, 9], &[4, 7, 8, 9]),
            (Holds, &[], &[0, 1, 2], &[0, 1, 2]),
            (Holds, &[3, 5_000_000_000], &[5_000_000_001], &[3, 5_000_000_000, 5_000_000_001]),
            // Overtaken, by one that runs, in the queue, among those that run.
            (Broken(""), &[4, 8], &[7, 9], &[4, 7, 8, 9]),
            (Broken(""), &[4], &[8, 7, 9], &[4, 7, 8, 9]),
            (Broken(""), &[7, 4], &[8], &[4, 7, 8]),
            (Broken(""), &[9], &[4, 7], &[4, 7, 9]),
            // Lost: one of those that wait, that run, the last of all.
            (Broken(""), &[4], &[9], &[4, 7, 9]),
            (Broken(""), &[7], &[9], &[4, 7, 9]),
            (Broken(""), &[4, 7], &[], &[4, 7, 9]),
            (Broken(""), &[], &[], &[0]),
            // There twice.
            (Broken(""), &[4, 7], &[7, 9], &[4, 7, 9]),
            (Broken(""), &[4, 4], &[], &[4]),
            // Not there.
            (Broken(""), &[4], &[9], &[4]),
            (Broken(""), &[3], &[], &[]),
        ];
        for (expected, running, waiting, alive) in cases {
            let what = format!("check_order: {running:?} run, {waiting:?} wait, {alive:?} are there");
            let listed = |ids: &[u64]| ids.iter().map(|id| sequence(*id, 3, 0)).collect();
            let alive = alive.iter().copied().map(SequenceId).collect();
            let seen = Seen { alive, ..sequences(listed(running), listed(waiting)) };
            ask(Rule::Order, &what, expected, || check_order(&seen));
        }
    }

    // Task 2: the plan, and the sequences

    #[test]
    fn task_2_a_plans_that_can_be_computed() {
        let waits = |seen: Seen, id, n_tokens| sequences(seen.running, vec![sequence(id, n_tokens, 0)]);
        let three = waits(running(&[(0, 5, 5), (1, 9, 9), (2, 30, 6)]), 3, 1);
        let (two, left) = (running(&[(0, 5, 5), (1, 8, 8)]), running(&[(6, 5, 2), (7, 5, 6)]));
        let caught_up = running(&[(6, 5, 4), (7, 5, 5)]);
        let gaps = waits(running(&[(0, 5, 5), (2, 5, 5)]), 3, 4);
        let order = running(&[(0, 5, 5), (2, 5, 5), (4, 5, 5)]);
        let budget = running(&[(0, 20, 8), (1, 9, 9)]);
        let many = running(&[(0, 5, 5), (1, 5, 5), (2, 5, 5), (3, 5, 4)]);
        let huge = running(&[(0, usize::MAX, usize::MAX), (1, 9, 9)]);
        let all = &[(0, 1, true), (1, 1, true), (2, 6, false)][..];
        for (what, expected, chunks, seen) in [
            ("no sequence is there", Holds, &[][..], &Seen::default()),
            ("those that are there wait", Holds, &[], &waits(Seen::default(), 0, 3)),
            ("8 of a budget of 8, and 3 of at most 3 sequences", Holds, all, &three),
            ("not all that run have a chunk", Holds, &[(0, 1, true)], &three),
            ("sequence 1 computes nothing", Broken("1"), &[(0, 1, true), (1, 0, true)], &two),
            ("sequence 6 computes 3, and its table holds 2", Broken("6"), &[(6, 3, false)], &left),
            ("sequence 6 computes 2, and its table holds 2", Holds, &[(6, 2, false)], &left),
            ("sequence 7 has 5 tokens, and its table holds 6", Broken("7"), &[(7, 1, true)], &left),
            ("sequence 7 has 5 tokens, and its table holds 6", Broken("7"), &[(7, 1, false)], &left),
            ("sequence 6 has a token left, and is marked as caught up", Broken("6"), &[(6, 1, true)], &caught_up),
            ("sequence 7 has none left, and is not marked as caught up", Broken("7"), &[(7, 1, false)], &caught_up),
            ("sequence 7 is not marked as caught up", Broken("7"), &[(6, 1, false), (7, 1, false)], &caught_up),
            ("sequence 1 is nowhere", Broken("1"), &[(0, 1, true), (1, 1, true)], &gaps),
            ("sequence 3 waits", Broken("3"), &[(0, 1, true), (3, 4, true)], &gaps),
            ("sequence 2 comes before sequence 0", Broken(""), &[(2, 1, true), (0, 1, true)], &order),
            ("sequence 2 has two chunks", Broken(""), &[(2, 1, true), (2, 1, true)], &order),
            ("sequence 4 comes before sequence 2", Broken(""), &[(0, 1, true), (4, 1, true), (2, 1, true)], &order),
            ("the budget is 8", Broken("9"), &[(0, 8, false), (1, 1, true)], &budget),
            ("the budget is 8", Broken("9"), &[(1, 9, true)], &budget),
            ("4 run, and at most 3 may", Broken("4"), &[(0, 1, true)], &many),
            ("4 run, and at most 3 may", Broken("4"), &[], &many),
            ("the budget is 8", Broken(""), &[(0, usize::MAX, true), (1, 9, true)], &huge),
        ] {
            let plan = plan_of(chunks);
            let what = format!("check_plan of {}: {what}", in_words(&plan));
            ask(Rule::Plan, &what, expected, || check_plan(&SETUP, &plan, seen));
        }
        let setup = Setup { limits: StepLimits { tokens: usize::MAX, sequences: 1 }, ..SETUP };
        let (plan, seen) = (plan_of(&[(5_000_000_000, 70_000, true)]), running(&[(5_000_000_000, 70_000, 70_000)]));
        ask(Rule::Plan, "check_plan of a chunk of 70,000 tokens", Holds, || check_plan(&setup, &plan, &seen));
    }

    /// A prompt whose output is `n` tokens long where `most` are wanted, and that output.
    fn output_of(n: usize, most: usize) -> (Vec<u32>, Vec<u32>) {
        let mut prompts = (0..2000).map(|alike| prompt(alike, 3));
        let prompt = prompts.find(|prompt| alone(prompt, most).0.len() == n).expect("one of 2,000 outputs is so long");
        let output = alone(&prompt, most).0;
        (prompt, output)
    }

    fn ended((prompt, output): (Vec<u32>, Vec<u32>), max_new_tokens: usize, reason: FinishReason) -> Ended {
        let tokens = [&prompt[..], &output].concat();
        Ended { id: SequenceId(3), prompt, max_new_tokens, received: output, tokens, reason }
    }

    #[track_caller]
    fn check_output_of(what: &str, expected: Expected, ended: &Ended) {
        ask(Rule::Output, &format!("check_output: {what}"), expected, || check_output(ended));
    }

    #[test]
    fn task_2_h_right_outputs() {
        check_output_of("it has all its 5 tokens", Holds, &ended(output_of(5, 5), 5, FinishReason::Limit));
        check_output_of("it is to get none", Holds, &ended((prompt(0, 4), vec![]), 0, FinishReason::Limit));
        for n in [0, 3] {
            let what = format!("an end of text after {n} tokens");
            check_output_of(&what, Holds, &ended(output_of(n, 50), 50, FinishReason::EndOfText));
        }
        for n in 0..=5 {
            let (prompt, output) = output_of(5, 5);
            let ended = ended((prompt, output[..n].to_vec()), 5, FinishReason::Cancelled);
            check_output_of(&format!("it is cancelled after {n} of 5 tokens"), Holds, &ended);
        }
    }

    #[test]
    fn task_2_i_a_token_that_differs() {
        let (prompt, output) = output_of(5, 5);
        // In the last case, the lower 16 bits are the same.
        let other = |token: u32| if token == FIRST_NEW { FIRST_NEW + 1 } else { FIRST_NEW };
        let changes = (0..5).map(|place| (place, other(output[place]))).chain([(1, output[1] ^ 1 << 16)]);
        for (place, token) in changes {
            let mut output = output.clone();
            output[place] = token;
            for end in [FinishReason::Limit, FinishReason::Cancelled] {
                let what = format!("token {place} of 5 differs from the one alone, and it finished by {end:?}");
                check_output_of(&what, Broken("3"), &ended((prompt.clone(), output.clone()), 5, end));
            }
        }
    }

    #[test]
    fn task_2_j_an_output_that_ends_too_early_or_too_late() {
        let (five, three) = (|| output_of(5, 5), || output_of(3, 50));
        let (prompt, output) = five();
        let with_end = (three().0, [&three().1[..], &[END_OF_TEXT]].concat());
        let (limit, end) = (FinishReason::Limit, FinishReason::EndOfText);
        for (what, output, most, reason) in [
            ("4 of its 5 tokens", (prompt, output[..4].to_vec()), 5, limit),
            ("5 tokens where 4 were wanted", five(), 4, limit),
            ("it had an end of text, and finishes by its limit", three(), 50, limit),
            ("the end of text is one of its tokens", with_end, 50, end),
            ("it has its limit, and finishes by an end of text", five(), 5, end),
            ("cancelled with 6 tokens where 5 were wanted", output_of(6, 6), 5, FinishReason::Cancelled),
        ] {
            check_output_of(what, Broken("3"), &ended(output, most, reason));
        }
    }

    #[test]
    fn task_2_k_each_token_is_received_once() {
        let right = ended(output_of(5, 5), 5, FinishReason::Limit);
        let Ended { tokens, received, .. } = &right;
        let twice = [&received[..3], &received[2..]].concat();
        let other_prompt = [&[tokens[0] + 1], &tokens[1..]].concat();
        let cut = tokens[..7].to_vec();
        for (what, tokens, received, reason) in [
            ("its third token was received twice", tokens, &twice, FinishReason::Limit),
            ("its last token was not received", tokens, &received[..4].to_vec(), FinishReason::Limit),
            ("5 tokens were received, and it has 4 of them", &cut, received, FinishReason::Limit),
            ("5 tokens were received, and it has 4 of them", &cut, received, FinishReason::Cancelled),
            ("its prompt differs in the end", &other_prompt, received, FinishReason::Limit),
            ("its prompt is gone in the end", received, received, FinishReason::Limit),
        ] {
            let (tokens, received) = (tokens.clone(), received.clone());
            check_output_of(what, Broken("3"), &Ended { tokens, received, reason, ..right.clone() });
        }
    }

    // Task 3: who goes on, who is admitted, and the whole run

    #[test]
    fn task_3_a_check_progress() {
        let beside = |seen: Seen, waiting| sequences(seen.running, vec![waiting]);
        let with_strangers = |seen: &Seen| Seen { strangers: pages(&[0]), ..seen.clone() };
        let all = beside(running(&[(0, 5, 5), (1, 3, 3)]), sequence(2, 9, 0));
        let last = running(&[(0, 7, 7), (1, 5, 4)]);
        let full = running(&[(0, 3, 3), (1, 4, 4), (2, 9, 2)]);
        let waits = sequences(vec![], vec![sequence(3, 9, 0), sequence(4, 1, 0)]);
        let overtaken = beside(running(&[(5, 4, 4)]), sequence(3, 9, 0));
        // The example of the stub: 1, 9 and 1 tokens to compute.
        let second = running(&[(0, 5, 5), (1, 9, 0), (2, 4, 4)]);
        for (what, expected, chunks, seen) in [
            ("no sequence is there", Holds, &[][..], Seen::default()),
            ("both catch up, and some budget is left", Holds, &[(0, 1, true), (1, 3, true)], all),
            (
                "the last computes as much as the budget allows",
                Holds,
                &[(0, 1, true), (1, 7, false)],
                running(&[(0, 5, 5), (1, 20, 7)]),
            ),
            ("the first takes the whole budget", Holds, &[(0, 8, false)], running(&[(0, 20, 8), (1, 3, 2)])),
            (
                "the first takes the whole budget and catches up",
                Holds,
                &[(0, 8, true)],
                running(&[(0, 8, 8), (1, 3, 2), (2, 3, 2)]),
            ),
            // None is passed over.
            ("sequence 1 gets nothing, sequence 2 does", Broken("1"), &[(0, 1, true), (2, 1, true)], second),
            (
                "sequence 1 gets nothing, sequence 2 the rest of the budget",
                Broken("1"),
                &[(0, 1, true), (2, 7, true)],
                running(&[(0, 5, 5), (1, 9, 0), (2, 7, 7)]),
            ),
            (
                "sequence 0 gets nothing, sequence 1 does",
                Broken("0"),
                &[(1, 8, true)],
                running(&[(0, 9, 8), (1, 4, 4)]),
            ),
            (
                "sequence 0 has 6 tokens left, and sequence 1 computes 5",
                Broken("0"),
                &[(0, 3, false), (1, 5, true)],
                running(&[(0, 9, 3), (1, 5, 5)]),
            ),
            (
                "sequence 0 has all its tokens and no chunk",
                Broken("0"),
                &[(1, 1, true)],
                running(&[(0, 5, 5), (1, 5, 5)]),
            ),
            // The budget is used.
            (
                "sequence 1 has 14 tokens left, and the budget 1",
                Broken("1"),
                &[(0, 1, true), (1, 6, false)],
                running(&[(0, 5, 5), (1, 20, 6)]),
            ),
            ("sequence 1 has a token to compute, and the budget 1", Broken("1"), &[(0, 7, true)], last.clone()),
            (
                "sequence 1 has no chunk, and the budget 1",
                Broken("1"),
                &[(0, 7, true)],
                running(&[(0, 7, 7), (1, 5, 5)]),
            ),
            // As many as allowed run: that excuses a sequence that waits, and none that runs. Strangers are no excuse either.
            (
                "3 of 3 run, sequence 2 has 7 tokens left, and the budget 4",
                Broken("2"),
                &[(0, 1, true), (1, 1, true), (2, 2, false)],
                full,
            ),
            ("strangers have a page, and the budget 1", Broken("1"), &[(0, 7, true)], with_strangers(&last)),
            // The oldest advances.
            ("sequences wait, and a stranger has a page", Holds, &[], with_strangers(&waits)),
            ("sequence 3 waits alone, and no stranger has a page", Broken("3"), &[], waits),
            ("sequence 3 waits, and sequence 5 computes", Broken("3"), &[(5, 4, true)], overtaken),
        ] {
            let plan = plan_of(chunks);
            let what = format!("check_progress of {}: {what}", in_words(&plan));
            ask(Rule::Progress, &what, expected, || check_progress(&SETUP, &plan, &seen));
        }
    }

    /// Ten pages: so many are free, and so many only the prefix cache has, which also shares one with a sequence.
    fn rooms(n_free: usize, kept_alone: usize, running: Vec<SeenSequence>) -> Seen {
        let mut owners = vec![0; 10];
        let taken: Vec<PageId> = running.iter().flat_map(|sequence| sequence.pages.clone()).collect();
        let mut cached: Vec<PageId> = taken.first().copied().into_iter().collect();
        let others = (0..10).rev().map(PageId).filter(|page| !taken.contains(page));
        cached.extend(others.take(kept_alone));
        taken.iter().chain(&cached).for_each(|page| owners[page.index()] += 1);
        Seen { owners, n_free, cached, ..sequences(running, vec![]) }
    }

    #[test]
    fn task_3_e_check_fits() {
        // 9 tokens and the next: 3 pages, and it has 1.
        let one = vec![with_pages(sequence(0, 9, 4), &[0])];
        for (free, kept) in [(2, 0), (1, 1), (0, 2), (5, 3), (1, 0), (0, 1), (0, 0)] {
            let what = format!("check_fits: sequence 0 needs 2 pages more, {free} are free and {kept} can be evicted");
            let expected = if free + kept < 2 { Broken("0") } else { Holds };
            let seen = rooms(free, kept, one.clone());
            ask(Rule::Fits, &what, expected, || check_fits(&SETUP, &Seen::default(), &seen));
        }
        // 8 tokens and the next: 3 pages, and it has 2. The other needs 2 and has 1.
        let (old, new) = (with_pages(sequence(0, 8, 8), &[0, 1]), with_pages(sequence(1, 7, 4), &[2]));
        let both = vec![old.clone(), new.clone()];
        let before = sequences(vec![old.clone()], vec![sequence(1, 7, 0)]);
        let two_ran = sequences(vec![old.clone(), sequence(1, 7, 0)], vec![sequence(2, 7, 0)]);
        let swapped = vec![old.clone(), SeenSequence { id: SequenceId(2), ..new }];
        // 8 tokens and 1 to come, which is never computed.
        let last = SeenSequence { max_new_tokens: 8, ..old.clone() };
        let none = Seen::default();
        for (what, expected, before, seen) in [
            ("sequences 0 and 1 need a page each, and 2 are free", Holds, &before, rooms(2, 0, both.clone())),
            ("sequences 0 and 1 need a page each, and 1 is free", Broken("1"), &before, rooms(1, 0, both)),
            ("none was admitted: running ones can be preempted later", Holds, &before, rooms(0, 0, vec![old])),
            ("none runs", Holds, &before, Seen::default()),
            // As many run as before, and yet one was admitted.
            (
                "sequence 1 has left and 2 is admitted; 0 and 2 need a page each, and 1 is free",
                Broken("2"),
                &two_ran,
                rooms(1, 0, swapped),
            ),
            ("sequence 0 has all the pages that it will ever need", Holds, &none, rooms(0, 0, vec![last])),
        ] {
            ask(Rule::Fits, &format!("check_fits: {what}"), expected, || check_fits(&SETUP, before, &seen));
        }
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

    /// What a run must come to, by a loop of our own: the steps, or the place of the first event after which a rule is broken.
    fn by_hand(make: &Make<'_>, case: &Case) -> Result<u64, usize> {
        let mut world = World::new(make, case.setup).expect("a world");
        let holds = |world: &mut World, event| world.apply(event).is_ok_and(|scene| check(&case.setup, &scene).is_ok());
        for (place, event) in case.events.iter().enumerate() {
            if !holds(&mut world, *event) {
                return Err(place);
            }
        }
        let mut event = Event::GiveBack { pages: usize::MAX };
        for _ in 0..10_000 {
            if !holds(&mut world, event) {
                break;
            }
            if world.seen().alive.is_empty() {
                return Ok(world.steps());
            }
            event = Event::Step;
        }
        Err(case.events.len())
    }

    #[test]
    fn task_3_h_finish_steps_until_all_have_finished() {
        for (what, n_pages, events) in [
            ("no events", 4, vec![]),
            (
                "sequences that take a while",
                5,
                vec![arrive(1, 5, 4), Event::Step, arrive(2, 9, 3), Event::Take { pages: 2 }, arrive(3, 3, 0)],
            ),
            (
                "a sequence for which strangers leave no page until the end",
                3,
                vec![Event::Take { pages: 1 }, Event::Take { pages: 9 }, arrive(1, 5, 2), Event::Step],
            ),
        ] {
            let (make, case) = (planted(None), Case { setup: setup(n_pages, 4, 2), events });
            let found = run_of(what, &make, &case).map_err(|failure| failure.event);
            same!(found, by_hand(&make, &case), "steps made in a run of {what}, those after the last event included");
        }
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

    /// Shrinks a list, of which just these events must be left.
    #[track_caller]
    fn shrinks_to(
        expected: &[Event],
        what: &str,
        events: &[Event],
        at_most: usize,
        is_broken: impl Fn(&[Event]) -> bool,
    ) {
        same!(shrunk(what, events, at_most, is_broken).0, expected, "shrink of {what}");
    }

    fn has(events: &[Event], name: u32) -> bool {
        events.contains(&Event::Cancel { name })
    }

    #[test]
    fn task_4_a_what_matters_stays() {
        let all = cancels(5);
        shrinks_to(&all, "5 events that all matter", &all, 60, |events| events.len() == 5);
        shrinks_to(&all[..1], "one event that matters", &all[..1], 20, |events| events.len() == 1);
        for place in [0, 4, 6] {
            let what = format!("7 events, of which number {place} matters");
            let expected = [Event::Cancel { name: place }];
            shrinks_to(&expected, &what, &cancels(7), 60, |events| has(events, place));
        }
        let expected = [0, 6].map(|name| Event::Cancel { name });
        let both = |events: &[Event]| has(events, 0) && has(events, 6);
        shrinks_to(&expected, "7 events, of which 0 and 6 matter", &cancels(7), 60, both);
        // Nothing at all breaks the rule.
        shrinks_to(&[], "5 events, none of which matters", &cancels(5), 40, |_| true);
        shrinks_to(&[], "one event that does not matter", &cancels(1), 20, |_| true);
        let question = asking("shrink of no events");
        let none = shrink(&[], &mut |_| panic!("shrink of no events: is_broken is asked, and nothing can be left out"));
        drop(question);
        same!(none, [], "shrink of no events");
    }

    #[test]
    fn task_4_d_large_pieces_go_first() {
        let matter = [17, 480, 999];
        let expected = matter.map(|name| Event::Cancel { name });
        let all = |events: &[Event]| matter.iter().all(|name| has(events, *name));
        shrinks_to(&expected, "1,000 events, of which 3 matter", &cancels(1000), 400, all);
        let last = Event::Cancel { name: 69_999 };
        let what = "70,000 events, of which the last matters";
        shrinks_to(&[last], what, &cancels(70_000), 400, |events| events.last() == Some(&last));
    }

    #[test]
    fn task_4_e_numbers_get_smaller() {
        let arrive = |(alike, prompt, max_new_tokens)| [Event::Arrive { name: 8, alike, prompt, max_new_tokens }];
        // From 70,000 to 65,537 it goes one by one.
        for (from, least) in [((2, 9, 6), (0, 5, 2)), ((1, 2, 1), (1, 2, 1)), ((2, 70_000, 70_000), (0, 1, 65_537))] {
            let is_broken = |events: &[Event]| match events {
                [Event::Arrive { alike, prompt, max_new_tokens, .. }] => {
                    *alike >= least.0 && *prompt >= least.1 && *max_new_tokens >= least.2
                }
                _ => false,
            };
            let what = format!("{from:?} (alike, prompt, new tokens), of which {least:?} are enough");
            shrinks_to(&arrive(least), &what, &arrive(from), 40_000, is_broken);
        }
        let take = |pages| Event::Take { pages };
        let takes = |events: &[Event]| events.iter().any(|event| matches!(event, Event::Take { pages } if *pages >= 3));
        shrinks_to(&[take(3)], "pages taken, of which 3 are enough", &[take(12), Event::Step], 40, takes);
        // The second number matters when the first is small.
        let (what, events) = ("two events whose numbers add up to 5", [take(4), Event::GiveBack { pages: 4 }]);
        let (found, _) = shrunk(what, &events, 80, |events| events.len() == 2 && size(events).1 >= 5);
        same!(size(&found), (2, 5), "events and the sum of their numbers, of two that must add up to 5");
    }

    #[test]
    fn task_4_f_an_event_that_matters_only_at_first() {
        let [c, b, a] = [0, 1, 2].map(|name| Event::Cancel { name });
        let is_broken = |events: &[Event]| events.contains(&a) && (!events.contains(&b) || events.contains(&c));
        let what = "three events, of which the first can be left out when the second is gone";
        shrinks_to(&[a], what, &[c, b, a], 60, is_broken);
        // A chain of them.
        let is_broken = |events: &[Event]| !events.is_empty() && events == cancels(events.len() as u32);
        let what = "12 events that can only be left out from the end";
        shrinks_to(&cancels(1), what, &cancels(12), 200, is_broken);
        // In pairs only.
        shrunk("16 steps of which an even number is broken", &[Event::Step; 16], 200, |events| {
            events.len().is_multiple_of(2) && !events.is_empty()
        });
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
        shrinks_to(&[Event::Take { pages: 1 }], what, &events, 200, is_broken);
    }

    #[test]
    fn task_4_h_the_same_list_gives_the_same_answer() {
        let (what, case) = ("the case of seed 5, of which 7 steps are enough", Case::of_seed(5, 60));
        let is_broken = |events: &[Event]| events.iter().filter(|event| **event == Event::Step).count() >= 7;
        let first = shrunk(what, &case.events, 1000, is_broken);
        same!(
            shrunk(what, &case.events, 1000, is_broken),
            first,
            "(events, questions) of the same list the second time"
        );
        same!(first.0, [Event::Step; 7], "shrink of {what}");
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
            let found = run(&make, &case).map_err(|failure| failure.event);
            same!(
                found,
                by_hand(&make, &case),
                "steps, or the place of the first event after which a rule is broken, {what}"
            );
            if let Err(found) = search(&make, seed..seed + 1, steps, alive) {
                assert_found(&what, &make, &found);
            }
            let right = run(&planted(None), &case);
            assert!(right.is_ok(), "no bug, seed {seed}, {steps} steps: {right:?}");
        }
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
