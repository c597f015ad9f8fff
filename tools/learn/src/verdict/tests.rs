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

/// `messages.txt` has what a check printed, and after it what is shown: a panic that repeats the check's words, a
/// transcript of which only the difference stays, and a panic that no check caught.
#[test]
fn a_failure_shows_only_what_the_check_printed() {
    for case in include_str!("messages.txt").trim_end().split("\n====\n") {
        let (printed, expected) = case.split_once("\n----\n").expect("what is printed and what is shown");
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
