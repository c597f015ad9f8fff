use super::*;

/// The verdict of chapter 2 on these checks, red ones with what they printed.
pub fn verdict(checks: &[(&str, &str)]) -> Verdict {
    let outcome = |printed: &str| match printed {
        "" => libtest::Outcome::Passed,
        printed => libtest::Outcome::Failed(printed.into()),
    };
    let tests = checks.iter().map(|(name, printed)| (name.to_string(), outcome(printed))).collect();
    Verdict::of(&Suite { tests, ended: true, announced: checks.len(), ..Suite::default() }, 2)
}

/// What a check prints that reaches the `todo!` of this task.
fn todo(task: u32) -> String {
    format!("gather\n  your code panicked (x): not yet implemented: ch02 task {task}: x")
}

#[test]
fn a_failure_shows_only_what_the_check_printed() {
    for (printed, expected) in [
        // libtest's own lines.
        (
            "thread 'checks::task_1_counts' (4242) panicked at tests/ch02_flat.rs:101:13:\nrows copied after extend(3)\n  \
             expected: 0\n  yours:    3\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
            "rows copied after extend(3)\n  expected: 0\n  yours:    3",
        ),
        // The panic repeats what the check has printed.
        (
            "gather(0) of 3 tokens\n  your code panicked (exercises/ch02_flat.rs:96): not yet implemented: ch02 task 2: lend\n\
             note: chapter 1 is yours too: run its checks first\n\nthread 'checks::task_2_lends' (4244) panicked at \
             src/../exercises/ch02_flat.rs:96:9:\nnot yet implemented: ch02 task 2: lend",
            "gather(0) of 3 tokens\n  your code panicked (exercises/ch02_flat.rs:96): not yet implemented: ch02 task 2: lend\n\
             note: chapter 1 is yours too: run its checks first",
        ),
        // Of insta's lines only the difference stays.
        (
            "exercises/ch02_flat.rs: the transcript goes another way at its line 1\n━━━━━ Snapshot Summary ━━━━━\n\
             Snapshot file: tests/snapshots/ch02_grow.snap\nSnapshot: ch02_grow\nSource: tests/ch02_flat.rs:333\n──────────\n\
             In a difference, lines with - are expected\n──────────\n-old snapshot\n+new results\n────┬─────\n  1 │-done\n  1 │+gone\n\
             ────┴─────\nStopped on the first failure. Run `cargo insta test` to run all snapshots.\n\n\
             thread 'checks::whole_transcript' (4245) panicked at insta-1.49.0/src/runtime.rs:720:13:\n\
             snapshot assertion for 'ch02_grow' failed in line 333",
            "exercises/ch02_flat.rs: the transcript goes another way at its line 1\nIn a difference, lines with - are expected\n\
             ────┬─────\n  1 │-done\n  1 │+gone\n────┴─────",
        ),
        // All panics of a check.
        (
            "first\nthread '<unnamed>' (7) panicked at src/decode/mod.rs:3:1:\nsecond\n\n\n\nthird",
            "first\nsecond\n\nthird",
        ),
        // A panic that no check caught, with its place.
        (
            "thread 'checks::task_1_a' (1) panicked at src/../exercises/ch02_flat.rs:50:7:\nindex out of bounds",
            "your code panicked (exercises/ch02_flat.rs:50): index out of bounds",
        ),
    ] {
        assert_eq!(message(printed), expected);
    }
}

#[test]
fn a_check_that_reaches_the_todo_of_a_later_task_waits() {
    let (second, third) = (todo(2), todo(3));
    let verdict = verdict(&[
        ("checks::task_2_is_there", &third),
        ("checks::task_2_lends", &second),
        ("whose_code::ch02_flat::is_yours", ""),
        ("checks::whole_transcript", "no"),
    ]);
    let wait = Wait { chapter: 2, task: 3 };
    assert_eq!(verdict.tally(About::Task(2)), Tally { green: 0, red: 1, of: 2, waits: 1, waits_for: Some(wait) });
    assert_eq!(verdict.tally(About::Code), Tally { green: 1, of: 1, ..Tally::default() });
    assert_eq!(verdict.total().of, 3, "the check of what was compiled belongs to no task");
}

#[test]
fn the_lowest_task_with_a_red_check_is_next() {
    let (first, second, third) = (todo(1), todo(2), todo(3));
    let cases: [(&[(&str, &str)], Next); 9] = [
        (&[("task_1_a", "no")], Next::Task(1)),
        (&[("task_1_a", ""), ("task_2_a", &third), ("task_3_a", &third)], Next::Task(3)),
        (&[("task_10_a", "no"), ("task_2_a", "no")], Next::Task(2)),
        (&[("task_2_a", &first), ("task_1_a", &second)], Next::Task(2)),
        (&[("task_1_a", ""), ("whole_story", "no")], Next::Whole),
        (
            &[("task_1_a", ""), ("whole_story", "not yet implemented: ch01 task 2: x")],
            Next::Waits(Wait { chapter: 1, task: 2 }),
        ),
        (&[("task_1_a", "no"), ("whose_code::ch02::is_yours", "old")], Next::Code),
        (&[("task_1_a", ""), ("whole_story", ""), ("whose_code::a::b", "")], Next::Nothing),
        (&[], Next::Nothing),
    ];
    for (checks, expected) in cases {
        assert_eq!(verdict(checks).next(), expected, "{checks:?}");
    }
}

#[test]
fn a_later_run_replaces_an_earlier_one() {
    let mut both = verdict(&[("task_1_a", "no"), ("task_2_a", "")]);
    both.update(verdict(&[("task_1_a", ""), ("task_1_b", "")]));
    assert_eq!(both.next(), Next::Nothing);
    assert_eq!((both.tally(About::Task(1)).green, both.tally(About::Task(2)).green), (2, 1));
}
