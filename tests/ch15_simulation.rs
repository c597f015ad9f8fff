//! Grader of chapter 15: break the scheduler. Its worlds run `chapters::ch12_scheduler` and `chapters::ch11_prefix_cache`, whose
//! caches can rewind, with `ch07_rewind`.

grading::grader!();

#[cfg(not(stub = "ch15_simulation"))]
mod checks {
    use std::cell::Cell;
    use std::collections::BTreeSet;

    use page_by_page::cache::PageId;
    use page_by_page::chapters::ch06_paged::SharedSlab;
    use page_by_page::chapters::ch12_scheduler::Scheduler;
    use page_by_page::chapters::ch15_simulation::{
        check, check_fits, check_order, check_output, check_pages, check_plan, check_progress, run, shrink,
    };
    use page_by_page::serving::schedule::{
        FinishReason, NextToken, ScheduleError, ScheduledChunk, SequenceCounters, SequenceId, StepLimits,
    };
    use page_by_page::simulation::buggy_scheduler::{Bug, with_bug};
    use page_by_page::simulation::{
        Case, Counterexample, END_OF_TEXT, Event, Failure, FinishedRequest, Rule, SchedulerFactory, SchedulerUnderTest,
        SequenceState, Setup, Violation, World, WorldState, describe_plan, new_scheduler, prompt, rule_broken,
        run_alone, search, smaller,
    };

    use grading::limits::heartbeat;
    use grading::prelude::*;

    // Moments made by hand

    /// Pages of 5, a budget of 8, at most 3 sequences.
    const SETUP: Setup = Setup {
        page_size: 5,
        n_pages: 10,
        limits: StepLimits { token_budget: 8, max_running: 3 },
        keeps_prefixes: true,
    };

    fn pages(numbers: &[u32]) -> Vec<PageId> {
        numbers.iter().copied().map(PageId).collect()
    }

    /// A sequence of `n_tokens` tokens, the first of them its prompt, whose table holds `held` of them; it is far from finished.
    fn sequence(id: u64, n_tokens: usize, held: usize) -> SequenceState {
        let (id, pages, counters) = (SequenceId(id), Vec::new(), SequenceCounters::default());
        SequenceState { id, n_prompt: 1, n_tokens, max_new_tokens: 1000, n_held: held, pages, counters }
    }

    fn with_pages(sequence: SequenceState, numbers: &[u32]) -> SequenceState {
        SequenceState { pages: pages(numbers), ..sequence }
    }

    /// The chunks of a plan, each as (sequence, tokens, caught up).
    fn plan_of(chunks: &[(u64, usize, bool)]) -> Vec<ScheduledChunk> {
        let chunk =
            |(id, tokens, caught_up)| ScheduledChunk { sequence_id: SequenceId(id), n_tokens: tokens, caught_up };
        chunks.iter().copied().map(chunk).collect()
    }

    /// Sequences that run and wait, and all of them alive, by their numbers. No pages at all.
    fn sequences(running: Vec<SequenceState>, waiting: Vec<SequenceState>) -> WorldState {
        let mut alive: Vec<SequenceId> = running.iter().chain(&waiting).map(|sequence| sequence.id).collect();
        alive.sort();
        WorldState { running, waiting, alive, ..WorldState::default() }
    }

    /// Sequences that run and wait, each as (sequence, tokens, tokens that its table holds).
    fn there(running: &[(u64, usize, usize)], waiting: &[(u64, usize, usize)]) -> WorldState {
        let [running, waiting] =
            [running, waiting].map(|list| list.iter().map(|(id, all, held)| sequence(*id, *all, *held)).collect());
        sequences(running, waiting)
    }

    /// What a check must answer: that all is well, or that its rule is broken, in words that name this number, if any.
    #[derive(Clone, Copy)]
    enum Expected {
        Holds,
        Broken(&'static str),
    }
    use Expected::{Broken, Holds};

    /// Makes a check of the reader's, and compares what it says.
    #[track_caller]
    fn expect(rule: Rule, what: &str, expected: Expected, check: impl FnOnce() -> Result<(), Violation>) {
        let found = in_call(what, check);
        let (is_right, words) = match (expected, &found) {
            (Holds, found) => (found.is_ok(), "Ok(()), nothing is broken".into()),
            (Broken(""), found) => {
                let is_broken = found.as_ref().is_err_and(|violation| violation.rule == rule);
                (is_broken, format!("Err, the rule {rule:?} is broken"))
            }
            (Broken(number), found) => {
                let names = |words: &str| words.split(|c: char| !c.is_ascii_digit()).any(|word| word == number);
                let is_right = |violation: &Violation| violation.rule == rule && names(&violation.message);
                let words = format!("Err, the rule {rule:?} is broken, in words that name {number}");
                (found.as_ref().is_err_and(is_right), words)
            }
        };
        assert!(is_right, "{what}\n  expected: {words}\n  yours:    {found:?}");
    }

    // Task 1: pages, and the order

    #[test]
    fn task_1_a_owners_of_pages() {
        let pool = |owners: &[u32], n_free| WorldState { owners: owners.to_vec(), n_free, ..WorldState::default() };
        let waits = |numbers, pool| WorldState { waiting: vec![with_pages(sequence(0, 4, 4), numbers)], ..pool };
        let table = |numbers, pool| WorldState { running: vec![with_pages(sequence(0, 4, 4), numbers)], ..pool };
        let cached = |numbers, pool| WorldState { cached: pages(numbers), ..pool };
        let strangers = |numbers, pool| WorldState { strangers: pages(numbers), ..pool };
        // The example of the stub: four pages, and all that can own one.
        let shared = |owners: &[u32], n_free| WorldState {
            running: vec![with_pages(sequence(0, 8, 8), &[0, 1]), with_pages(sequence(1, 8, 8), &[0, 2])],
            ..cached(&[0], pool(owners, n_free))
        };
        // More pages than 8 bits count.
        let (many, mut one_each) = (Vec::from_iter(0..300), [1; 300]);
        one_each[299] = 0;
        for (what, expected, state) in [
            ("3 free pages", Holds, pool(&[0; 3], 3)),
            ("page 1 is that of a sequence", Holds, table(&[1], pool(&[0, 1], 1))),
            ("page 1 has an owner, and is in no table", Broken("1"), pool(&[0, 1], 1)),
            ("page 0 has 256 owners, and is in no table", Broken("0"), pool(&[256], 1)),
            ("page 1 is that of a sequence that waits", Broken("1"), waits(&[1], pool(&[0, 1], 1))),
            ("a sequence has page 1, which has no owner", Broken("1"), table(&[1], pool(&[0; 2], 2))),
            ("two sequences and a prefix cache share page 0", Holds, shared(&[3, 1, 1, 0], 1)),
            ("three have page 0, and its owners are 2, one too few", Broken("0"), shared(&[2, 1, 1, 0], 1)),
            ("three have page 0, and its owners are 4, one too many", Broken("0"), shared(&[4, 1, 1, 0], 1)),
            ("an owner of page 0 is counted at page 1", Broken(""), shared(&[2, 2, 1, 0], 1)),
            ("page 2 is cached, and free", Broken("2"), cached(&[0, 2], pool(&[1, 0, 0], 2))),
            ("strangers have pages 2 and 1", Holds, strangers(&[2, 1], pool(&[0, 1, 1], 1))),
            ("strangers have page 2, and it is free", Broken("2"), strangers(&[2, 1], pool(&[0, 1, 0], 2))),
            ("a table has page 1 twice, and it has one owner", Broken("1"), table(&[1, 1], pool(&[0, 1], 1))),
            ("a table has page 2 of a pool with pages 0 and 1", Broken("2"), table(&[2], pool(&[0; 2], 2))),
            ("page 2 is cached, of a pool with pages 0 and 1", Broken("2"), cached(&[2], pool(&[0; 2], 2))),
            ("strangers have page 2 of a pool with pages 0 and 1", Broken("2"), strangers(&[2], pool(&[0; 2], 2))),
            ("one page has no owner, and the free list has 0", Broken(""), shared(&[3, 1, 1, 0], 0)),
            ("one page has no owner, and the free list has 2", Broken(""), shared(&[3, 1, 1, 0], 2)),
            (
                "a sequence has pages 0 to 299, and page 299 has no owner",
                Broken("299"),
                table(&many, pool(&one_each, 0)),
            ),
        ] {
            expect(Rule::Pages, &format!("check_pages: {what}"), expected, || check_pages(&state));
        }
    }

    #[test]
    fn task_1_b_order_of_arrival() {
        type Ids = &'static [u64];
        let cases: [(Expected, Ids, Ids, Ids); 14] = [
            (Holds, &[], &[], &[]),
            (Holds, &[0], &[], &[0]),
            (Holds, &[4, 7], &[8, 9], &[4, 7, 8, 9]),
            (Holds, &[], &[0, 1, 2], &[0, 1, 2]),
            // Overtaken, by one that runs, in the queue, among those that run.
            (Broken(""), &[4, 8], &[7, 9], &[4, 7, 8, 9]),
            (Broken(""), &[4], &[8, 7, 9], &[4, 7, 8, 9]),
            (Broken(""), &[7, 4], &[8], &[4, 7, 8]),
            // Lost: one of those that wait, the last of all.
            (Broken(""), &[4], &[9], &[4, 7, 9]),
            (Broken(""), &[4, 7], &[], &[4, 7, 9]),
            // There twice.
            (Broken(""), &[4, 7], &[7, 9], &[4, 7, 9]),
            (Broken(""), &[4, 4], &[], &[4]),
            // Not there.
            (Broken(""), &[4], &[8, 9], &[4, 7, 9]),
            (Broken(""), &[4], &[9], &[4]),
            (Broken(""), &[3], &[], &[]),
        ];
        for (expected, running, waiting, alive) in cases {
            let what = format!("check_order: {running:?} run, {waiting:?} wait, {alive:?} are there");
            let listed = |ids: &[u64]| ids.iter().map(|id| sequence(*id, 3, 0)).collect();
            let alive = alive.iter().copied().map(SequenceId).collect();
            let state = WorldState { alive, ..sequences(listed(running), listed(waiting)) };
            expect(Rule::Order, &what, expected, || check_order(&state));
        }
        // More sequences than 8 bits count.
        let alive = (0..299).chain([300]).map(SequenceId).collect();
        let state = WorldState { alive, ..sequences((0..300).map(|id| sequence(id, 3, 0)).collect(), vec![]) };
        let what = "check_order: 0 to 299 run, none waits, 0 to 298 and 300 are there";
        expect(Rule::Order, what, Broken(""), || check_order(&state));
    }

    // Task 2: the plan, and the sequences

    #[test]
    fn task_2_a_plans_that_can_be_computed() {
        let three = there(&[(0, 5, 5), (1, 9, 9), (2, 30, 6)], &[(3, 1, 0)]);
        let two = there(&[(0, 5, 5), (1, 8, 8)], &[]);
        let left = there(&[(6, 5, 2), (7, 5, 6)], &[]);
        let last = there(&[(6, 5, 4), (7, 5, 5)], &[]);
        let gaps = there(&[(0, 5, 5), (2, 5, 5)], &[(3, 4, 4)]);
        let budget = there(&[(0, 20, 8), (1, 9, 9)], &[]);
        let many = there(&[(0, 5, 5), (1, 5, 5), (2, 5, 5), (3, 5, 4)], &[]);
        let huge = there(&[(0, usize::MAX, usize::MAX), (1, 9, 9)], &[]);
        for (what, expected, chunks, state) in [
            ("all that are there wait", Holds, &[][..], &there(&[], &[(0, 3, 0)])),
            ("8 of a budget of 8, and 3 of 3 sequences", Holds, &[(0, 1, true), (1, 1, true), (2, 6, false)], &three),
            ("not all that run have a chunk", Holds, &[(0, 1, true)], &three),
            ("sequence 1 computes nothing", Broken("1"), &[(0, 1, true), (1, 0, true)], &two),
            ("sequence 6 computes 3, and its table holds 2", Broken("6"), &[(6, 3, false)], &left),
            ("sequence 6 computes 2, and its table holds 2", Holds, &[(6, 2, false)], &left),
            ("sequence 7 has 5 tokens, and its table holds 6", Broken("7"), &[(7, 1, true)], &left),
            ("sequence 7 has 5 tokens, and its table holds 6", Broken("7"), &[(7, 1, false)], &left),
            ("sequence 6 has a token left, and is marked as caught up", Broken("6"), &[(6, 1, true)], &last),
            ("sequence 7 has none left, and is not marked as caught up", Broken("7"), &[(7, 1, false)], &last),
            ("sequence 1 is nowhere", Broken("1"), &[(0, 1, true), (1, 1, true)], &gaps),
            ("sequence 3 waits", Broken("3"), &[(0, 1, true), (3, 4, true)], &gaps),
            ("sequence 2 comes before sequence 0", Broken(""), &[(2, 1, true), (0, 1, true)], &gaps),
            ("sequence 2 has two chunks", Broken(""), &[(2, 1, true), (2, 1, true)], &gaps),
            ("the budget is 8", Broken("9"), &[(0, 8, false), (1, 1, true)], &budget),
            ("4 run, and at most 3 may", Broken("4"), &[(0, 1, true)], &many),
            ("the budget is 8", Broken(""), &[(0, usize::MAX, true), (1, 9, true)], &huge),
        ] {
            let plan = plan_of(chunks);
            let what = format!("check_plan of {}: {what}", describe_plan(&plan));
            expect(Rule::Plan, &what, expected, || check_plan(&SETUP, &plan, state));
        }
    }

    /// A prompt whose output is over 300 tokens long, as that of one in 250 million is.
    const ASKS_MANY: [u32; 1] = [595_472_792];

    /// A prompt whose output is `n` tokens long where `most` are wanted, and that output.
    fn output_of(n: usize, most: usize) -> (Vec<u32>, Vec<u32>) {
        let mut outputs = (0..2000).map(|id| prompt(id, 3)).map(|prompt| (run_alone(&prompt, most).0, prompt));
        let (output, prompt) = outputs.find(|(output, _)| output.len() == n).expect("one of 2,000 is so long");
        (prompt, output)
    }

    fn finished(prompt: &[u32], received: &[u32], max_new_tokens: usize, reason: FinishReason) -> FinishedRequest {
        let tokens = [prompt, received].concat();
        let (id, prompt, received) = (SequenceId(3), prompt.into(), received.into());
        FinishedRequest { id, prompt, max_new_tokens, received, tokens, reason }
    }

    #[track_caller]
    fn check_output_of(what: &str, expected: Expected, request: &FinishedRequest) {
        expect(Rule::Output, &format!("check_output: {what}"), expected, || check_output(request));
    }

    #[test]
    fn task_2_b_the_output_is_that_of_the_sequence_alone() {
        let (limit, end, cancelled) = (FinishReason::Length, FinishReason::Stop, FinishReason::Abort);
        let (asks_six, six) = output_of(6, 6);
        let (asks_three, three) = output_of(3, 50);
        let with_end = [&three[..], &[END_OF_TEXT]].concat();
        for (what, expected, prompt, output, most, reason) in [
            ("it has all its 6 tokens", Holds, &asks_six, &six[..], 6, limit),
            ("an end of text after 3 tokens", Holds, &asks_three, &three, 50, end),
            ("it is cancelled after 0 of 6 tokens", Holds, &asks_six, &[], 6, cancelled),
            ("it is cancelled after 4 of 6 tokens", Holds, &asks_six, &six[..4], 6, cancelled),
            ("5 of its 6 tokens", Broken("3"), &asks_six, &six[..5], 6, limit),
            ("6 tokens where 5 were wanted", Broken("3"), &asks_six, &six, 5, limit),
            (
                "it ended with an end of text, and finishes because of its limit",
                Broken("3"),
                &asks_three,
                &three,
                50,
                limit,
            ),
            ("the end of text is one of its tokens", Broken("3"), &asks_three, &with_end, 50, end),
            ("it reached its limit, and finishes because of an end of text", Broken("3"), &asks_six, &six, 6, end),
            ("cancelled with 6 tokens where 5 were wanted", Broken("3"), &asks_six, &six, 5, cancelled),
        ] {
            check_output_of(what, expected, &finished(prompt, output, most, reason));
        }
        let many = run_alone(&ASKS_MANY, 300).0;
        for place in 0..300 {
            let mut output = many.clone();
            output[place] ^= 1 << 16;
            for reason in [limit, cancelled] {
                let what = format!("token {place} of 300 differs from the one alone, and it finished by {reason:?}");
                check_output_of(&what, Broken("3"), &finished(&ASKS_MANY, &output, 300, reason));
            }
        }
    }

    #[test]
    fn task_2_c_each_token_is_received_once() {
        let (prompt, output) = (ASKS_MANY, run_alone(&ASKS_MANY, 300).0);
        let right = finished(&prompt, &output, 300, FinishReason::Length);
        let all = &right.tokens;
        let twice = [&output[..3], &output[2..]].concat();
        let other_prompt = [&[all[0] + 1], &all[1..]].concat();
        let other_output = [&all[..300], &[all[300] + 1]].concat();
        let between = [&prompt[..], &output[..1], &output].concat();
        for (what, tokens, received) in [
            ("its third token was received twice", &all[..], &twice[..]),
            ("its last token was not received", all, &output[..299]),
            ("300 tokens were received, and it has 299 of them", &all[..300], &output),
            ("its prompt differs in the end", &other_prompt, &output),
            ("its prompt is gone in the end", &output, &output),
            ("the last token of its output is another one in the end", &other_output, &output),
            ("a token that was not received lies between its prompt and its output", &between, &output),
        ] {
            for reason in [FinishReason::Length, FinishReason::Abort] {
                let (tokens, received) = (tokens.to_vec(), received.to_vec());
                let what = format!("{what}, and it finished by {reason:?}");
                check_output_of(&what, Broken("3"), &FinishedRequest { tokens, received, reason, ..right.clone() });
            }
        }
    }

    // Task 3: who goes on, who is admitted, and the whole run

    #[test]
    fn task_3_a_check_progress() {
        let with_strangers = |state: WorldState| WorldState { strangers: pages(&[0]), ..state };
        let waits = there(&[], &[(3, 9, 0), (4, 1, 0)]);
        let last = there(&[(0, 7, 7), (1, 5, 4)], &[]);
        // Budget 8. The chunks of the plan, as (sequence, tokens).
        for (what, expected, chunks, state) in [
            ("all catch up", Holds, &[(0, 1), (1, 3)][..], there(&[(0, 5, 5), (1, 3, 3)], &[(2, 9, 0)])),
            ("the last has the rest of the budget", Holds, &[(0, 1), (1, 7)], there(&[(0, 5, 5), (1, 20, 7)], &[])),
            ("the first has the budget", Holds, &[(0, 8)], there(&[(0, 20, 8), (1, 3, 2)], &[])),
            ("the first has it and catches up", Holds, &[(0, 8)], there(&[(0, 8, 8), (1, 3, 2), (2, 3, 2)], &[])),
            // None is passed over; the first of these is the example of the stub.
            ("1 gets nothing", Broken("1"), &[(0, 1), (2, 1)], there(&[(0, 5, 5), (1, 9, 0), (2, 4, 4)], &[])),
            ("2 gets all that is left", Broken("1"), &[(0, 1), (2, 7)], there(&[(0, 5, 5), (1, 9, 0), (2, 7, 7)], &[])),
            (
                "1 gets nothing, 2 a part",
                Broken("1"),
                &[(0, 1), (2, 7)],
                there(&[(0, 5, 5), (1, 9, 0), (2, 9, 7)], &[]),
            ),
            ("0 gets nothing, 1 does", Broken("0"), &[(1, 8)], there(&[(0, 9, 8), (1, 4, 4)], &[])),
            ("0 has 6 tokens left", Broken("0"), &[(0, 3), (1, 5)], there(&[(0, 9, 3), (1, 5, 5)], &[])),
            // The budget is used.
            ("1 has 14 tokens left", Broken("1"), &[(0, 1), (1, 6)], there(&[(0, 5, 5), (1, 20, 6)], &[])),
            ("1 has a token left, and the budget 1", Broken("1"), &[(0, 7)], last.clone()),
            ("1 has no chunk, and the budget 1", Broken("1"), &[(0, 7)], there(&[(0, 7, 7), (1, 5, 5)], &[])),
            // As many as allowed run: that excuses a sequence that waits, and none that runs. Strangers are no excuse either.
            ("3 of 3 run", Broken("2"), &[(0, 1), (1, 1), (2, 2)], there(&[(0, 3, 3), (1, 4, 4), (2, 9, 2)], &[])),
            ("strangers have a page, and the budget 1", Broken("1"), &[(0, 7)], with_strangers(last)),
            // The oldest advances.
            ("no sequence is there", Holds, &[], WorldState::default()),
            ("3 waits, and a stranger has a page", Holds, &[], with_strangers(waits.clone())),
            ("3 waits, and no stranger has a page", Broken("3"), &[], waits),
            ("3 waits, and 5 computes", Broken("3"), &[(5, 4)], there(&[(5, 4, 4)], &[(3, 9, 0)])),
        ] {
            let caught_up = |id| state.running.iter().any(|it| it.id.0 == id && it.n_held == it.n_tokens);
            let chunks: Vec<_> = chunks.iter().map(|(id, tokens)| (*id, *tokens, caught_up(*id))).collect();
            let plan = plan_of(&chunks);
            let what = format!("check_progress, budget 8, of {}: {what}", describe_plan(&plan));
            expect(Rule::Progress, &what, expected, || check_progress(&SETUP, &plan, &state));
        }
    }

    /// Ten pages: how many are free, and how many only the prefix cache owns. It also shares one with a sequence.
    fn rooms(n_free: usize, kept_alone: usize, running: Vec<SequenceState>) -> WorldState {
        let mut owners = vec![0; 10];
        let taken: Vec<PageId> = running.iter().flat_map(|sequence| sequence.pages.clone()).collect();
        let mut cached: Vec<PageId> = taken.first().copied().into_iter().collect();
        let others = (0..10).rev().map(PageId).filter(|page| !taken.contains(page));
        cached.extend(others.take(kept_alone));
        taken.iter().chain(&cached).for_each(|page| owners[page.index()] += 1);
        WorldState { owners, n_free, cached, ..sequences(running, vec![]) }
    }

    #[test]
    fn task_3_b_check_fits() {
        // 13 tokens and the next: 3 pages, and it has 1.
        let one = vec![with_pages(sequence(0, 13, 5), &[0])];
        for (free, kept) in [(2, 0), (1, 1), (0, 2), (5, 3), (1, 0), (0, 1), (0, 0)] {
            let what = format!(
                "check_fits: sequence 0, not in `before`, needs 2 more pages, {free} are free, {kept} evictable"
            );
            let expected = if free + kept < 2 { Broken("0") } else { Holds };
            let state = rooms(free, kept, one.clone());
            expect(Rule::Fits, &what, expected, || check_fits(&SETUP, &WorldState::default(), &state));
        }
        // 10 tokens and the next: 3 pages, and it has 2. The other needs 2 and has 1.
        let (old, new) = (with_pages(sequence(0, 10, 10), &[0, 1]), with_pages(sequence(1, 9, 5), &[2]));
        let both = vec![old.clone(), new.clone()];
        let before = sequences(vec![old.clone()], vec![sequence(1, 9, 0)]);
        let two_ran = sequences(vec![old.clone(), sequence(1, 9, 0)], vec![sequence(2, 9, 0)]);
        let swapped = vec![old.clone(), SequenceState { id: SequenceId(2), ..new }];
        // 10 tokens and 1 to come, which is never computed.
        let last = vec![SequenceState { max_new_tokens: 10, ..old.clone() }];
        let replaced = "sequence 1 has left and 2 is admitted; 0 and 2 need a page each, and 1 is free";
        for (what, expected, before, state) in [
            ("sequences 0 and 1 need a page each, and 2 are free", Holds, &before, rooms(2, 0, both.clone())),
            ("sequences 0 and 1 need a page each, and 1 is free", Broken("1"), &before, rooms(1, 0, both)),
            ("none was admitted: running ones can be preempted later", Holds, &before, rooms(0, 0, vec![old])),
            ("none runs", Holds, &before, WorldState::default()),
            // As many run as before, and yet one was admitted.
            (replaced, Broken("2"), &two_ran, rooms(1, 0, swapped)),
            ("sequence 0 has all the pages that it will ever need", Holds, &WorldState::default(), rooms(0, 0, last)),
        ] {
            expect(Rule::Fits, &format!("check_fits: {what}"), expected, || check_fits(&SETUP, before, &state));
        }
    }

    fn setup(n_pages: usize, token_budget: usize, max_running: usize) -> Setup {
        Setup { page_size: 4, n_pages, limits: StepLimits { token_budget, max_running }, keeps_prefixes: true }
    }

    fn arrive(name: u32, prompt: usize, max_new_tokens: usize) -> Event {
        Event::Arrive { name, prefix_id: name, prompt, max_new_tokens }
    }

    /// What a run must come to, by a loop of our own: the steps, or the index of the first event that breaks a rule.
    fn by_hand(factory: &SchedulerFactory<'_>, case: &Case) -> Result<u64, usize> {
        let mut world = World::new(factory, case.setup).expect("a world");
        let end = [Event::GiveBack { pages: usize::MAX }].into_iter().chain(std::iter::repeat_n(Event::Step, 10_000));
        for (index, event) in case.events.iter().copied().chain(end).enumerate() {
            let _call = enter_call(format!("check, after event {index}, {event:?}"));
            if !world.apply(event).is_ok_and(|transition| check(&case.setup, &transition).is_ok()) {
                return Err(index.min(case.events.len()));
            }
            if index >= case.events.len() && world.state().alive.is_empty() {
                return Ok(world.steps());
            }
        }
        Err(case.events.len())
    }

    #[test]
    fn task_3_c_finish_steps_until_all_have_finished() {
        let (two, all) = (Event::Take { pages: 2 }, Event::Take { pages: 9 });
        for (what, n_pages, events) in [
            ("no events", 4, vec![]),
            (
                "sequences that take a while",
                5,
                vec![arrive(1, 5, 4), Event::Step, arrive(2, 9, 3), two, arrive(3, 3, 0)],
            ),
            ("a sequence that strangers leave no page", 3, vec![all, arrive(1, 5, 2), Event::Step]),
        ] {
            let (factory, case) = (with_bug(None), Case { setup: setup(n_pages, 4, 2), events });
            let found = in_call(format!("run of {what}"), || run(&factory, &case)).map_err(|failure| failure.event);
            let expected = by_hand(&factory, &case);
            same!(found, expected, "steps made in a run of {what}, those after the last event included");
        }
    }

    /// The index, the steps and the rule of a failure.
    #[track_caller]
    fn fails(what: &str, factory: &SchedulerFactory<'_>, case: &Case, expected: (usize, u64, Rule)) {
        let found = in_call(format!("run of {what}"), || run(factory, case));
        let (event, step, rule) = expected;
        let is_right = |failure: &Failure| (failure.event, failure.step, failure.violation.rule) == expected;
        assert!(
            found.as_ref().is_err_and(is_right),
            "run of {what}\n  expected: Err, event {event}, step {step}, the rule {rule:?} is broken\n  yours:    {found:?}"
        );
    }

    #[test]
    fn task_3_d_rules_are_checked_after_every_event() {
        // A prompt of 9 in chunks of 4: cancelled after the first, its page is lost at once.
        let events = vec![arrive(1, 9, 2), Event::Step, Event::Cancel { name: 1 }, Event::Step];
        let case = Case { setup: setup(5, 4, 2), events };
        let factory = with_bug(Some(Bug::CancelLeaks));
        fails("a scheduler that loses a page when a sequence is cancelled", &factory, &case, (2, 1, Rule::Pages));
        let case = Case { setup: setup(2, 8, 2), events: vec![arrive(1, 9, 1)] };
        let factory = with_bug(Some(Bug::NeverFits));
        fails("a sequence that never fits", &factory, &case, (1, 1, Rule::Progress));
        let case = Case { setup: setup(5, 0, 2), events: vec![Event::Step] };
        fails("a scheduler whose steps may have no tokens", &with_bug(None), &case, (0, 0, Rule::Stopped));
    }

    /// A scheduler that shows a number of new tokens that was not requested, and no sequence once so many pages are free.
    struct Shows {
        max_new_tokens: usize,
        most_free: usize,
        slab: SharedSlab,
        inner: Box<dyn SchedulerUnderTest>,
    }

    impl SchedulerUnderTest for Shows {
        fn submit(&mut self, prompt: Vec<u32>, max_new_tokens: usize) -> Result<SequenceId, ScheduleError> {
            self.inner.submit(prompt, max_new_tokens)
        }

        fn cancel(&mut self, id: SequenceId) -> Result<(), ScheduleError> {
            self.inner.cancel(id)
        }

        fn plan(&mut self) -> Result<Vec<ScheduledChunk>, ScheduleError> {
            self.inner.plan()
        }

        fn settle(&mut self, next: &[NextToken]) -> Result<(), ScheduleError> {
            self.inner.settle(next)
        }

        fn running(&self) -> Vec<SequenceState> {
            let mut running = self.inner.running();
            running.iter_mut().for_each(|sequence| sequence.max_new_tokens = self.max_new_tokens);
            running.retain(|_| self.slab.borrow().pool().n_free() < self.most_free);
            running
        }

        fn as_scheduler(&self) -> &Scheduler {
            self.inner.as_scheduler()
        }

        fn as_scheduler_mut(&mut self) -> &mut Scheduler {
            self.inner.as_scheduler_mut()
        }
    }

    #[test]
    fn task_3_e_finish_gives_up() {
        let shows = |max_new_tokens, most_free| -> Box<SchedulerFactory<'static>> {
            Box::new(move |slab, prefix_cache, limits| {
                let (slab, inner) = (slab.clone(), with_bug(None)(slab, prefix_cache, limits)?);
                Ok(Box::new(Shows { max_new_tokens, most_free, slab, inner }))
            })
        };
        let event = Event::Arrive { name: 1, prefix_id: kind(3, 60, &[]), prompt: 3, max_new_tokens: 60 };
        let case = Case { setup: setup(100, 8, 2), events: vec![event, Event::Step, Event::Step] };
        let what = "a sequence of 3 tokens that is to get 3 more and goes on and on, with 2 steps before";
        fails(what, &shows(3, usize::MAX), &case, (3, 2 + 6, Rule::Ends));
        // It has 2 of the 4 pages, and strangers the others until the end.
        let case = Case { setup: setup(4, 8, 2), events: vec![Event::Take { pages: 2 }, arrive(1, 5, 3), Event::Step] };
        let what =
            "a scheduler that hides its sequence when strangers give pages back: a rule is broken before any step";
        fails(what, &shows(3, 1), &case, (3, 1, Rule::Pages));
        // Whatever a scheduler shows: the bound on the steps is a number.
        let case = Case { setup: setup(8, 8, 2), events: vec![arrive(1, 3, 4), Event::Step, arrive(2, 3, 1)] };
        let what = "run of a scheduler that shows usize::MAX new tokens for each request";
        let found = in_call(what, || run(&shows(usize::MAX, usize::MAX), &case));
        assert!(found.is_ok(), "{what}\n  expected: Ok(…)\n  yours:    {found:?}");
    }

    // Task 4: shrinking

    /// Shrinks a list, of which just these events must be left.
    #[track_caller]
    fn shrinks_to(
        expected: &[Event],
        what: &str,
        events: &[Event],
        at_most: usize,
        is_broken: impl Fn(&[Event]) -> bool,
    ) {
        let asked = Cell::new(0);
        let _question = enter_call(format!("shrink of {what}"));
        let found = shrink(events, &mut |candidate| {
            heartbeat();
            asked.set(asked.get() + 1);
            assert!(
                asked.get() <= at_most,
                "shrink of {what}: is_broken was asked more than {at_most} times, which are enough if large pieces go first"
            );
            is_broken(&candidate.events)
        });
        same_list(&found, expected, &format!("events that are left by shrink of {what}"));
    }

    /// A list of events that differ, nothing to make smaller in them.
    fn cancels(n: u32) -> Vec<Event> {
        (0..n).map(|name| Event::Cancel { name }).collect()
    }

    #[test]
    fn task_4_a_what_matters_stays() {
        for (n, matter, at_most) in [
            (5, &[0, 1, 2, 3, 4][..], 60),
            (1, &[0], 20),
            (7, &[0], 60),
            (7, &[4], 60),
            (7, &[6], 60),
            (7, &[0, 6], 60),
            // Nothing at all breaks the rule.
            (5, &[], 40),
            (1, &[], 20),
            (0, &[], 0),
            // Large pieces go first.
            (1000, &[17, 480, 999], 400),
            (70_000, &[69_999], 400),
        ] {
            let expected: Vec<Event> = matter.iter().map(|name| Event::Cancel { name: *name }).collect();
            let all = |events: &[Event]| expected.iter().all(|event| events.contains(event));
            shrinks_to(&expected, &format!("{n} events, of which {matter:?} matter"), &cancels(n), at_most, all);
        }
    }

    /// The example of the page, and a number that gets smaller: which lists are tried first, and what is left.
    #[test]
    fn task_4_a_what_is_tried_first() {
        type Tried = &'static [&'static [usize]];
        let pieces: Tried = &[&[], &[4, 5, 6, 7], &[0, 1, 2, 3], &[2, 3, 4, 5, 6, 7], &[4, 5, 6, 7], &[2, 3, 6, 7]];
        let singles: Tried = &[&[2, 3, 4, 5], &[3, 4, 5], &[2, 4, 5], &[2, 5], &[2]];
        let numbers: Tried = &[&[], &[1], &[6], &[1], &[3], &[1], &[2]];
        let takes = |pages: &[usize]| pages.iter().map(|pages| Event::Take { pages: *pages }).collect::<Vec<_>>();
        for (events, tried, left) in
            [(&[0, 1, 2, 3, 4, 5, 6, 7][..], [pieces, singles].concat(), &[2, 5][..]), (&[12], numbers.to_vec(), &[3])]
        {
            let what = format!("shrink of {events:?} pages taken, of which {left:?} are enough");
            let (mut tried, _question) = (tried.into_iter().enumerate(), enter_call(&what));
            let found = shrink(&takes(events), &mut |kept| {
                if let Some((n, expected)) = tried.next() {
                    same!(kept.events, takes(expected), "list {n} that is tried, from 0: {what}");
                }
                match left {
                    [_, _] => takes(left).iter().all(|event| kept.events.contains(event)),
                    _ => takes(&[3, 6, 12]).iter().any(|event| kept.events.contains(event)),
                }
            });
            same!(found, takes(left), "{what}");
        }
    }

    #[test]
    fn task_4_b_numbers_get_smaller() {
        let arrive = |(prefix_id, prompt, most)| [Event::Arrive { name: 8, prefix_id, prompt, max_new_tokens: most }];
        for (from, least) in [((2, 9, 6), (0, 5, 2)), ((1, 2, 1), (1, 2, 1)), ((2, 70_000, 900), (0, 1, 700))] {
            let is_broken = |events: &[Event]| match events {
                [Event::Arrive { prefix_id, prompt, max_new_tokens, .. }] => {
                    *prefix_id >= least.0 && *prompt >= least.1 && *max_new_tokens >= least.2
                }
                _ => false,
            };
            let what = format!("{from:?} (prefix_id, prompt, new tokens), of which {least:?} are enough");
            shrinks_to(&arrive(least), &what, &arrive(from), 2000, is_broken);
        }
    }

    #[test]
    fn task_4_c_round_after_round() {
        let [c, b, a] = [0, 1, 2].map(|name| Event::Cancel { name });
        let is_broken = |events: &[Event]| events.contains(&a) && (!events.contains(&b) || events.contains(&c));
        let what = "three events, of which the first can be left out when the second is gone";
        shrinks_to(&[a], what, &[c, b, a], 60, is_broken);
        let is_broken = |events: &[Event]| !events.is_empty() && events == cancels(events.len() as u32);
        let what = "12 events that can only be left out from the end";
        shrinks_to(&cancels(1), what, &cancels(12), 200, is_broken);
        // Each event left out lets a number be smaller, and each smaller number lets an event be left out.
        let is_broken = |events: &[Event]| match events {
            [Event::Take { pages }, steps @ ..] => *pages == steps.len() || *pages == steps.len() + 1,
            _ => false,
        };
        let what = "5 pages taken and 5 steps, where one number and then the other can be smaller by 1";
        let events = [&[Event::Take { pages: 5 }][..], &[Event::Step; 5]].concat();
        shrinks_to(&[Event::Take { pages: 1 }], what, &events, 200, is_broken);
        let is_broken = |events: &[Event]| match events {
            [Event::Take { pages }, steps @ ..] => *pages == 1 || !steps.is_empty(),
            _ => false,
        };
        let what = "5 pages taken and a step, which can be left out when only 1 page is taken";
        shrinks_to(&[Event::Take { pages: 1 }], what, &[Event::Take { pages: 5 }, Event::Step], 60, is_broken);
    }

    // All of it together

    /// Steps of a case. Short cases and many seeds find more than the other way round.
    const STEPS: u64 = 60;

    /// What was found is a case in which the same rule is broken, from which nothing can be left out or made smaller.
    #[track_caller]
    fn assert_found(what: &str, factory: &SchedulerFactory<'_>, found: &Counterexample) {
        let rule = found.failure.violation.rule;
        let Case { setup, events } = &found.case;
        same!(found.shrunk.violation.rule, rule, "rule that is broken in what is left of {what}: {events:?}");
        let is_broken = |events: &[Event]| rule_broken(factory, *setup, events) == Some(rule);
        for (index, event) in events.iter().enumerate() {
            let mut other = events.clone();
            for smaller in smaller(*event) {
                other[index] = smaller;
                assert!(!is_broken(&other), "shrink of {what}: {event:?} could be {smaller:?} in {events:?}");
            }
            other.remove(index);
            assert!(!is_broken(&other), "shrink of {what}: {event:?}, number {index} of {events:?}, could be left out");
        }
    }

    #[test]
    fn whole_buggy_schedulers_die() {
        let mut rules = BTreeSet::new();
        for bug in Bug::all() {
            let factory = with_bug(Some(bug));
            let what = format!("{}, which {} ({})", bug.name(), bug.about(), bug.reported_in());
            let _question = enter_call(format!("seeds of {what}"));
            let Err(found) = search(&factory, 0..400, STEPS, heartbeat) else {
                panic!("{what}, passes 400 seeds of {STEPS} steps: none of your rules notices it");
            };
            assert_found(&format!("{what}, seed {}", found.seed), &factory, &found);
            let left = found.case.events.len();
            assert!(left <= 24, "{what}: {left} events are left of {}: is that a story?", found.events);
            rules.insert(found.failure.violation.rule);
        }
        assert!(
            rules.len() >= 4,
            "{} different bugs, and only these rules are ever broken: {rules:?}",
            Bug::all().len()
        );
    }

    /// No rule is broken in cases of this scheduler.
    #[track_caller]
    fn passes(what: &str, factory: &SchedulerFactory<'_>, seeds: u64) {
        let _question = enter_call(format!("seeds of {what}"));
        search(factory, 0..seeds, STEPS, heartbeat).unwrap_or_else(|found| {
            panic!("{what}, seed {}: {}\n{:?}", found.seed, found.shrunk.violation, found.case)
        });
    }

    #[test]
    fn whole_a_right_scheduler_passes() {
        passes("a scheduler without a bug", &with_bug(None), 400);
    }

    /// A kind of prompt whose sequences, at this length, get `n` tokens without an end of text; not one of `but`.
    fn kind(n_prompt: usize, n: usize, but: &[u32]) -> u32 {
        let mut ids = (0..5_000).filter(|id| !but.contains(id));
        ids.find(|id| run_alone(&prompt(*id, n_prompt), n).0.len() == n).expect("one of 5,000 sequences is long")
    }

    /// For each bug a few events in which it shows.
    fn shows(bug: Bug) -> Case {
        let pages_of_4 = |n_pages, tokens, sequences, events| Case { setup: setup(n_pages, tokens, sequences), events };
        let step = Event::Step;
        let mut kinds = Vec::new();
        let mut arrive = |name, prompt, max_new_tokens| {
            let prefix_id = kind(prompt, max_new_tokens, &kinds);
            kinds.push(prefix_id);
            Event::Arrive { name, prefix_id, prompt, max_new_tokens }
        };
        let one = |name, prompt| Event::Arrive { name, prefix_id: kind(prompt, 1, &[]), prompt, max_new_tokens: 1 };
        match bug {
            Bug::NeverFits => pages_of_4(2, 8, 2, vec![arrive(1, 9, 1), step]),
            Bug::NextChunk => pages_of_4(4, 8, 2, vec![arrive(1, 3, 3), step, arrive(2, 9, 1), step]),
            Bug::PlannedVictim => pages_of_4(3, 10, 2, vec![arrive(1, 6, 6), arrive(2, 3, 6), step, step, step]),
            Bug::PassedOver => {
                let three = vec![arrive(1, 4, 3), arrive(2, 2, 3), arrive(3, 1, 3)];
                pages_of_4(4, 8, 3, [three, vec![step, Event::Take { pages: 1 }, step]].concat())
            }
            Bug::LimitForgotten => pages_of_4(4, 8, 1, vec![arrive(1, 3, 3), step, arrive(2, 3, 3), step]),
            Bug::AllFound => pages_of_4(4, 8, 2, vec![one(1, 4), step, one(2, 4), step]),
            Bug::FoundTooEarly => pages_of_4(4, 10, 2, vec![one(1, 5), one(2, 5), step]),
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
        for bug in Bug::all() {
            let Case { setup, events } = shows(bug);
            transcript.line(format!("{}: {}", bug.name(), bug.about()));
            transcript.line(format!("{setup}"));
            for factory in [with_bug(Some(bug)), with_bug(None)] {
                let _question = enter_call(format!("the rules on each event of {}, in the transcript", bug.name()));
                let mut world = World::new(&factory, setup).expect("a world");
                let mut all_hold = true;
                for event in &events {
                    let transition = world.apply(*event).expect("the scheduler does not stop");
                    let what = match (event, &transition.planned) {
                        (Event::Arrive { prompt, max_new_tokens, .. }, _) => {
                            format!("a request arrives: {}, wants {max_new_tokens}", plural(*prompt, "token"))
                        }
                        (Event::Cancel { .. }, _) => "it is cancelled".into(),
                        (Event::Take { .. }, _) => "strangers take a page".into(),
                        (Event::GiveBack { .. }, _) => "strangers give it back".into(),
                        (_, planned) => planned.as_ref().map_or_else(String::new, |it| describe_plan(&it.chunks)),
                    };
                    let broken = check(&setup, &transition).err();
                    all_hold &= broken.is_none();
                    let broken = broken.map_or_else(String::new, |broken| format!("   ✗ {}", broken.rule));
                    transcript.line(format!("  {what}{broken}"));
                }
                transcript.line(if all_hold { "  all rules hold" } else { "without the bug" });
            }
            transcript.line("");
        }
        assert_transcript("ch15_simulation", &transcript);
    }

    #[test]
    fn whole_oracle() {
        for seed in seeds(40) {
            heartbeat();
            let mut rng = TestRng::new(seed);
            let bug = Bug::all()[rng.roll(0, Bug::all().len() - 1)];
            // Other seeds than those of the checks above.
            let (seed, steps) = (1_000_000 + seed, rng.roll(20, 90) as u64);
            let what = format!("{}, seed {seed}, {steps} steps", bug.name());
            let _question = enter_call(what.clone());
            let factory = with_bug(Some(bug));
            let case = Case::from_seed(seed, steps);
            let found = run(&factory, &case).map_err(|failure| failure.event);
            let expected = "steps, or the index of the first event after which a rule is broken";
            same!(found, by_hand(&factory, &case), "{expected}, {what}");
            if let Err(found) = search(&factory, seed..seed + 1, steps, heartbeat) {
                assert_found(&what, &factory, &found);
            }
            let right = run(&with_bug(None), &case);
            assert!(right.is_ok(), "no bug, seed {seed}, {steps} steps: {right:?}");
        }
    }

    #[test]
    fn whole_story() {
        passes("chapter 12 and those before it (if their checks are green, look at the rule)", &new_scheduler, 200);
    }
}
