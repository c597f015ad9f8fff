use super::*;

/// The verdict of chapter 2 on these checks, red ones with what they printed.
pub fn verdict(checks: &[(&str, &str)]) -> Verdict {
    let outcome = |printed: &str| match printed {
        "" => libtest::TestOutcome::Passed,
        printed => libtest::TestOutcome::Failed(printed.into()),
    };
    let tests = checks.iter().map(|(name, printed)| (name.to_string(), outcome(printed))).collect();
    Verdict::new(&Suite { tests, ended: true, announced: checks.len(), ..Suite::default() }, 2)
}

#[test]
fn a_failure_shows_only_what_the_check_printed() {
    for (printed, expected) in [
        // The panic repeats what the check has printed.
        (
            "gather(0) of 3 tokens\n  your code panicked (exercises/ch02_flat.rs:96): not yet implemented: ch02 task \
             2: lend\nnote: chapter 1 is yours too: run its checks first\n\nthread 'checks::task_2_lends' (4244) \
             panicked at src/../exercises/ch02_flat.rs:96:9:\nnot yet implemented: ch02 task 2: lend\nnote: run with \
             `RUST_BACKTRACE=1` x",
            "gather(0) of 3 tokens\n  your code panicked (exercises/ch02_flat.rs:96): not yet implemented: ch02 task \
             2: lend\nnote: chapter 1 is yours too: run its checks first",
        ),
        // Of insta's lines only the difference stays.
        (
            "exercises/ch02_flat.rs: the transcript goes another way at its line 1\n━━━━━ Snapshot Summary \
             ━━━━━\nSnapshot file: tests/snapshots/ch02_flat.snap\nSnapshot: ch02_flat\nSource: \
             tests/ch02_flat.rs:333\n──────────\nIn a difference, lines with - are expected\n──────────\n-old \
             snapshot\n+new results\n────┬─────\n  1 │-done\n  1 │+gone\n────┴─────\nStopped on the first failure. Run \
             `cargo insta test` to run all snapshots.\n\nthread 'checks::whole_transcript' (4245) panicked at \
             insta-1.49.0/src/runtime.rs:720:13:\nsnapshot assertion for 'ch02_flat' failed in line 333",
            "exercises/ch02_flat.rs: the transcript goes another way at its line 1\nIn a difference, lines with - are \
             expected\n────┬─────\n  1 │-done\n  1 │+gone\n────┴─────",
        ),
        // A panic that no check caught, with its place.
        (
            "thread 'checks::task_1_a' (1) panicked at src/../exercises/ch02_flat.rs:50:7:\nindex out of \
             bounds\n\n\n\nthird",
            "your code panicked (exercises/ch02_flat.rs:50): index out of bounds\n\nthird",
        ),
    ] {
        assert_eq!(message(printed), expected);
    }
}

#[test]
fn the_lowest_task_with_a_red_check_is_next_and_one_that_reaches_a_later_todo_waits() {
    const SECOND: &str = "gather\n  your code panicked (x): not yet implemented: ch02 task 2: x";
    const THIRD: &str = "not yet implemented: ch02 task 3: x";
    let task = |number| Some(Part::Task(number));
    for (checks, expected) in [
        (&[("checks::task_1_a", "no")][..], task(1)),
        (&[("task_10_a", "no"), ("task_2_a", "no")], task(2)),
        (&[("task_2_a", SECOND), ("task_1_a", SECOND)], task(2)),
        (&[("task_1_a", ""), ("whole_story", "no")], Some(Part::Whole)),
        (&[("task_1_a", "no"), ("whose_code::ch02::is_yours", "old")], Some(Part::Code)),
        (&[("task_1_a", ""), ("whole_story", ""), ("whose_code::a::b", "")], None),
    ] {
        assert_eq!(verdict(checks).red().next().map(|red| red.0), expected, "{checks:?}");
    }
    let waiting = verdict(&[("task_2_a", THIRD), ("task_2_b", SECOND), ("whose_code::a::b", "")]);
    let wait = Wait { chapter: 2, task: 3 };
    assert_eq!((waiting.total(), waiting.waits(|_| true)), (Tally { green: 0, of: 2 }, vec![wait]));
}
