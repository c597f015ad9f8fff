//! `simulate`: seeds, planted schedulers, and what it refuses.

use page_by_page::simulation::planted::Bug;
use serde_json::Value;

use crate::program::{ok, run};

#[test]
fn simulate_passes_chapter_12() {
    let run = ok(&["simulate", "--seeds", "30", "--steps", "50"]);
    assert!(run.stdout.starts_with("the scheduler of chapter 12: the reference\n30 seeds, "), "{}", run.stdout);
    assert!(run.stdout.ends_with(" steps: no rule is broken\n") && run.stderr.is_empty(), "{}", run.stdout);
    let json = ok(&["simulate", "--seed", "18446744073709551615", "--steps", "50", "--json"]).json();
    assert_eq!((&json["seeds"], &json["found"]), (&Value::from(1), &Value::Null));
}

#[test]
fn simulate_shows_a_planted_one_dying() {
    let name = Bug::CancelLeaks.name();
    let first = ok(&["simulate", "--planted", name]);
    assert!(
        first.stdout.starts_with("cancel-leaks (sglang-jax#984): loses the pages of a sequence"),
        "{}",
        first.stdout
    );
    let again = first
        .stdout
        .lines()
        .last()
        .unwrap()
        .strip_prefix("again: cargo run --release --features solution -- ")
        .unwrap();
    let second = ok(&again.split(' ').collect::<Vec<_>>());
    assert_eq!(second.stdout, first.stdout, "the seed replays it");
    let json = ok(&["simulate", "--planted", name, "--json"]).json();
    let found = &json["found"];
    assert_eq!((&found["rule"], &json["reported"]), (&Value::from("pages"), &Value::from("sglang-jax#984")));
    assert_eq!(found["shrunk"].as_array().unwrap().len(), found["shrunk_to"].as_u64().unwrap() as usize);
    assert!(first.stdout.contains(found["story"].as_str().unwrap()));
}

#[test]
fn simulate_kills_all_ten() {
    let all = ok(&["simulate", "--planted", "all"]).stdout;
    for bug in Bug::ALL {
        let line = all
            .lines()
            .find(|line| line.starts_with(bug.name()))
            .unwrap_or_else(|| panic!("{} is missing:\n{all}", bug.name()));
        assert!(line.contains(bug.reported()) && !line.contains("none"), "{line}");
    }
    let json = ok(&["simulate", "--planted", "all", "--json"]).json();
    assert_eq!(json.as_array().unwrap().len(), 10);
    let few = run(&["simulate", "--planted", "all", "--seeds", "1", "--steps", "1"]);
    assert_eq!(few.code, Some(1), "in one step nobody dies, and that is a failure");
    assert!(few.stderr.contains("try more seeds, or more steps"), "{}", few.stderr);
}

#[test]
fn simulate_without_rules_sees_little() {
    let blind = ok(&["simulate", "--planted", "cancel-leaks", "--blind", "--steps", "3000"]).stdout;
    assert!(blind.contains("examples right: 9 of 9"), "{blind}");
    let json = ok(&["simulate", "--planted", "cancel-leaks", "--blind", "--steps", "3000", "--json"]).json();
    let days = json["days"].as_array().unwrap();
    assert_eq!((days.len(), &days[5]["steps"], &days[5]["wrong"]), (6, &Value::from(3000), &Value::from(0)));
    assert!(days[5]["pages_lost"].as_u64() > days[0]["pages_lost"].as_u64(), "{days:?}");
}

#[test]
fn simulate_lists_the_planted_ones() {
    let list = ok(&["simulate", "--list"]).stdout;
    assert_eq!(list.lines().count(), 11, "{list}");
    assert_eq!(ok(&["simulate", "--list", "--json"]).json().as_array().unwrap().len(), 10);
}

#[test]
fn simulate_says_what_it_does_not_take() {
    for (arguments, code, says) in [
        (&["simulate", "--seeds", "0"] as &[&str], 1, "--seeds is 0; it takes from 1 to 1,000,000"),
        (&["simulate", "--steps", "1000001"], 1, "--steps is 1,000,001; it takes from 1 to 1,000,000"),
        (&["simulate", "--planted", "nobody"], 2, "possible values: never-fits, next-chunk"),
        (&["simulate", "--seed", "1", "--seeds", "2"], 2, "cannot be used with"),
        (&["simulate", "--planted", "all", "--blind"], 1, "name one of those"),
    ] {
        let run = run(arguments);
        assert_eq!(run.code, Some(code), "{arguments:?}:\n{}", run.stderr);
        assert!(run.stderr.contains(says), "{arguments:?}:\n{}", run.stderr);
    }
}
