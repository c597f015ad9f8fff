use super::*;

/// A run of six checks: two green, four not.
const OUTPUT: &str = "
running 6 tests
test checks::task_1_grows ... ok
test checks::task_1_counts ... FAILED
test checks::task_2_keys_once_write_is_there ... FAILED
test checks::task_2_lends ... FAILED
test whose_code::ch02_flat::is_yours ... ok
test checks::whole_transcript ... FAILED

failures:

---- checks::task_1_counts stdout ----

thread 'checks::task_1_counts' (4242) panicked at tests/ch02_flat.rs:101:13:
rows copied in all after extend(3) on 0 tokens: a token counts once
  expected: 0
  yours:    3
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

---- checks::task_2_keys_once_write_is_there stdout ----

write of 1 row to layer 0
  your code panicked (exercises/ch02_flat.rs:91): not yet implemented: ch02 task 3: store the rows

thread 'checks::task_2_keys_once_write_is_there' (4243) panicked at src/../exercises/ch02_flat.rs:91:9:
not yet implemented: ch02 task 3: store the rows

---- checks::task_2_lends stdout ----

gather(0) of 3 tokens
  your code panicked (exercises/ch02_flat.rs:96): not yet implemented: ch02 task 2: lend
note: chapter 1 is yours too: run its checks first

thread 'checks::task_2_lends' (4244) panicked at src/../exercises/ch02_flat.rs:96:9:
not yet implemented: ch02 task 2: lend

---- checks::whole_transcript stdout ----

exercises/ch02_flat.rs: the transcript tests/snapshots/ch02_grow.snap goes another way at its line 1
━━━━━━━━━━ Snapshot Summary ━━━━━━━━━━
Snapshot file: tests/snapshots/ch02_grow.snap
Snapshot: ch02_grow
Source: tests/ch02_flat.rs:333
──────────────────────────────
In a difference, lines with - are expected and lines with + are what your code did.
──────────────────────────────
-old snapshot
+new results
────────────┬─────────────────
    1       │-extend(3)    done
          1 │+extend(3)    gone
────────────┴─────────────────
Stopped on the first failure. Run `cargo insta test` to run all snapshots.

thread 'checks::whole_transcript' (4245) panicked at /root/.cargo/registry/src/insta-1.49.0/src/runtime.rs:720:13:
snapshot assertion for 'ch02_grow' failed in line 333


failures:
    checks::task_1_counts
    checks::task_2_keys_once_write_is_there
    checks::task_2_lends
    checks::whole_transcript

test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
";

fn verdict(output: &str) -> Verdict {
    Verdict::of(&libtest::suite(output), 2)
}

fn outcome<'v>(verdict: &'v Verdict, name: &str) -> &'v Outcome {
    &verdict.all().find(|check| check.name == name).unwrap_or_else(|| panic!("no {name}")).outcome
}

fn red(verdict: &Verdict, name: &str) -> String {
    match outcome(verdict, name) {
        Outcome::Red(words) => words.clone(),
        other => panic!("{name} is {other:?}"),
    }
}

#[test]
fn a_failure_shows_only_what_the_check_printed() {
    let verdict = verdict(OUTPUT);
    let counts = "rows copied in all after extend(3) on 0 tokens: a token counts once\n  expected: 0\n  yours:    3";
    assert_eq!(red(&verdict, "checks::task_1_counts"), counts);
    assert_eq!(
        red(&verdict, "checks::task_2_lends"),
        "gather(0) of 3 tokens\n  your code panicked (exercises/ch02_flat.rs:96): not yet implemented: ch02 task 2: lend\n\
         note: chapter 1 is yours too: run its checks first"
    );
    assert_eq!(
        red(&verdict, "checks::whole_transcript"),
        "exercises/ch02_flat.rs: the transcript tests/snapshots/ch02_grow.snap goes another way at its line 1\n\
         In a difference, lines with - are expected and lines with + are what your code did.\n\
         ────────────┬─────────────────\n    1       │-extend(3)    done\n          1 │+extend(3)    gone\n\
         ────────────┴─────────────────"
    );
}

#[test]
fn a_check_that_reaches_the_todo_of_a_later_task_waits() {
    let verdict = verdict(OUTPUT);
    let wait = Wait { chapter: 2, task: 3 };
    assert_eq!(outcome(&verdict, "checks::task_2_keys_once_write_is_there"), &Outcome::Waits(wait));
    let tally = verdict.tally(About::Task(2));
    assert_eq!(tally, Tally { green: 0, red: 1, of: 2, waits: 1, waits_for: Some(wait) });
    assert_eq!(verdict.tally(About::Code), Tally { green: 1, of: 1, ..Tally::default() });
    assert_eq!(verdict.total().of, 5, "the check of what was compiled belongs to no task");
}

/// A run that ended, with these checks, red ones with their words.
fn run(checks: &[(&str, Option<&str>)]) -> Verdict {
    let mut output = format!("running {} tests\n", checks.len());
    let failed: Vec<_> = checks.iter().filter_map(|(name, words)| Some((name, (*words)?))).collect();
    for (name, words) in checks {
        output += &format!("test {name} ... {}\n", if words.is_some() { "FAILED" } else { "ok" });
    }
    if !failed.is_empty() {
        output += "\nfailures:\n\n";
        for (name, words) in &failed {
            output +=
                &format!("---- {name} stdout ----\n\nthread '{name}' (1) panicked at tests/x.rs:1:1:\n{words}\n\n");
        }
        output += "\nfailures:\n";
        for (name, _) in &failed {
            output += &format!("    {name}\n");
        }
    }
    output += "\ntest result: FAILED.\n\n";
    verdict(&output)
}

#[test]
fn the_lowest_task_with_a_red_check_is_next() {
    let todo = |task: u32| format!("gather\n  your code panicked (x): not yet implemented: ch02 task {task}: x");
    let (first, second, third) = (todo(1), todo(2), todo(3));
    type Case<'c> = (&'c [(&'c str, Option<&'c str>)], Next);
    let cases: [Case<'_>; 8] = [
        (&[("checks::task_1_a", Some("no"))], Next::Task(1)),
        (
            &[("checks::task_1_a", None), ("checks::task_2_a", Some(&third)), ("checks::task_3_a", Some(&third))],
            Next::Task(3),
        ),
        (&[("checks::task_10_a", Some("no")), ("checks::task_2_a", Some("no"))], Next::Task(2)),
        (&[("checks::task_2_a", Some(&first)), ("checks::task_1_a", Some(&second))], Next::Task(2)),
        (&[("checks::task_1_a", None), ("checks::whole_story", Some("no"))], Next::Whole),
        (
            &[("checks::task_1_a", None), ("checks::whole_story", Some("not yet implemented: ch01 task 2: x"))],
            Next::Waits(Wait { chapter: 1, task: 2 }),
        ),
        (&[("checks::task_1_a", Some("no")), ("whose_code::ch02::is_yours", Some("old"))], Next::Code),
        (&[("checks::task_1_a", None), ("checks::whole_story", None), ("whose_code::a::b", None)], Next::Nothing),
    ];
    for (checks, expected) in cases {
        assert_eq!(run(checks).next(), expected, "{checks:?}");
    }
    assert_eq!(Verdict::default().next(), Next::Nothing);
}

#[test]
fn all_panics_of_a_check_are_shown() {
    let words = "first\nthread '<unnamed>' (7) panicked at src/decode/mod.rs:3:1:\nsecond\n\n\n\nthird";
    assert_eq!(red(&run(&[("checks::task_1_a", Some(words))]), "checks::task_1_a"), "first\nsecond\n\nthird");
}

#[test]
fn a_bare_panic_shows_its_place() {
    let output = "running 1 test\ntest checks::task_1_a ... FAILED\n\nfailures:\n\n---- checks::task_1_a stdout ----\n\n\
        thread 'checks::task_1_a' (1) panicked at src/../exercises/ch02_flat.rs:50:7:\nindex out of bounds\n\n\n\
        failures:\n    checks::task_1_a\n\ntest result: FAILED.\n";
    let expected = "your code panicked (exercises/ch02_flat.rs:50): index out of bounds";
    assert_eq!(red(&verdict(output), "checks::task_1_a"), expected);
    assert_eq!(red(&verdict(&output.replace('\n', "\r\n")), "checks::task_1_a"), expected);
}

#[test]
fn a_later_run_replaces_an_earlier_one() {
    let mut verdict = run(&[("checks::task_1_a", Some("no")), ("checks::task_2_a", None)]);
    verdict.update(run(&[("checks::task_1_a", None), ("checks::task_1_b", None)]));
    assert_eq!(verdict.next(), Next::Nothing);
    assert_eq!((verdict.tally(About::Task(1)).green, verdict.tally(About::Task(2)).green), (2, 1));
}
