//! `workload` and `workload serving`: counters that are the same on every machine, and what is refused.

use std::process::Command;

use serde_json::{Value, json};

/// The program with these arguments: exit code, standard output, standard error.
fn program(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(crate::program::PROGRAM).arg("workload").args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_table_has_a_line_for_each_pool() {
    let (code, stdout, stderr) = program(&["chats", "--pages", "100,500"]);
    let table = "\
chats: 120 requests, at most 1 at a time, pages of 16 slots, with the prefix cache

pages   allocated   evicted    found       of   hit rate   utilisation   fragmentation   steps
  100       1,451     1,238    8,176   27,473     29.8 %        14.8 %           3.5 %   3,062
  500         512         0   23,200   27,473     84.4 %         3.0 %           3.5 %   3,062
";
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, table, ""));
}

#[test]
fn json_holds_the_same_counters() {
    let (code, stdout, _) = program(&["shared", "--json"]);
    assert_eq!(code, 0);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((report["trace"].as_str(), report["requests"].as_u64()), (Some("shared"), Some(300)));
    let run = &report["runs"][0];
    let number = |name: &str| run[name].as_u64();
    assert_eq!((number("pages"), number("pages_allocated"), number("steps")), (Some(512), Some(1643), Some(1049)));
    assert_eq!((number("cached_tokens"), number("prompt_tokens")), (Some(19_136), Some(27_382)));
    assert_eq!(run["hit_rate"].as_f64(), Some(19_136.0 / 27_382.0));
    let (_, stdout, _) = program(&["unique", "--no-prefix-cache", "--requests", "20", "--running", "3", "--json"]);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((report["prefix_cache"].as_bool(), report["running"].as_u64()), (Some(false), Some(3)));
    assert_eq!(report["runs"][0]["requests"].as_u64(), Some(20));
}

#[test]
fn what_makes_no_sense_is_refused_in_words() {
    let says = [
        (
            &["shared", "--pages", "12"] as &[&str],
            "request 46 needs 13 pages for its 199 tokens, and the pool has 12; give the pool at least 13 pages",
        ),
        (&["shared", "--requests", "0"], "--requests is 0; a workload takes from 1 to 1,000,000"),
        (&["unique", "--requests", "1000001"], "--requests is 1,000,001; a workload takes from 1 to 1,000,000"),
        (&["chats", "--pages", "100,0"], "--pages is 0; a pool takes from 1 to 10,000,000"),
        (&["documents", "--page-size", "0"], "--page-size is 0; a page takes from 1 to 1,000,000"),
        (
            &["unique", "--running", "0"],
            "with 0 sequences running at a time no request is ever served: let at least 1 run",
        ),
    ];
    for (arguments, message) in says {
        let expected = (1, String::new(), format!("error: {message}\n"));
        assert_eq!(program(arguments), expected, "{arguments:?}");
    }
    let (code, stdout, stderr) = program(&["lectures"]);
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(stderr.starts_with("error: unrecognized subcommand 'lectures'"), "{stderr}");
}

#[test]
fn documents_are_never_found_where_their_heads_go_first() {
    let (code, stdout, _) = program(&["documents", "--evict", "heads", "--json"]);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, report["evict"].as_str()), (0, Some("heads")));
    assert_eq!(report["runs"][0]["hit_rate"].as_f64(), Some(0.0));
}

/// What a command prints with `--json`.
fn serving_report(arguments: &[&str]) -> Value {
    let (code, stdout, stderr) = program(&[&["serving"], arguments, &["--json"]].concat());
    assert_eq!((code, stderr.as_str()), (0, ""), "{arguments:?}");
    serde_json::from_str(&stdout).unwrap()
}

#[test]
fn the_numbers_are_the_same_on_every_machine() {
    for (arguments, expected) in [
        (
            &[] as &[&str],
            json!({ "steps": 2586, "computed": 69572, "computed_again": 5356, "found": 8352, "preemptions": 80, "peak_pages": 128, "elapsed_ms": 39774.4, "p99": 1721.252, "in_time": 230 }),
        ),
        (
            &["--rate", "4"],
            json!({ "steps": 5969, "computed": 64628, "computed_again": 124, "found": 8064, "preemptions": 3, "peak_pages": 128, "elapsed_ms": 77179.651, "p99": 110.84, "in_time": 300 }),
        ),
        (
            &["--no-prefix-cache", "--pages", "64"],
            json!({ "steps": 5314, "computed": 91130, "computed_again": 18562, "found": 0, "preemptions": 104, "peak_pages": 64, "elapsed_ms": 71366.0, "p99": 31857.359, "in_time": 11 }),
        ),
        (
            &["--trace", "b"],
            json!({ "steps": 406, "computed": 10661, "computed_again": 0, "found": 0, "preemptions": 0, "peak_pages": 26, "elapsed_ms": 6192.2, "p99": 4881.4, "in_time": 4 }),
        ),
    ] {
        let report = serving_report(arguments);
        let found: Value = json!({
            "steps": report["steps"], "computed": report["computed"], "computed_again": report["computed_again"],
            "found": report["found"], "preemptions": report["preemptions"], "peak_pages": report["peak_pages"],
            "elapsed_ms": report["elapsed_ms"], "p99": report["first_token_ms"]["p99"],
            "in_time": report["goodput"]["requests"],
        });
        assert_eq!(found, expected, "{arguments:?}");
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    for (arguments, says) in [
        (&["--rate", "0"] as &[&str], "error: --rate is 0; requests come from 0.001 to 1,000,000 times a second\n"),
        (&["--rate", "-3"], "error: --rate is -3; "),
        (&["--rate", "nan"], "error: --rate is NaN; "),
        (&["--requests", "0"], "error: --requests is 0; a workload takes from 1 to 100,000\n"),
        (
            &["--trace", "b", "--seed", "3"],
            "error: trace b has its own 16 requests, all there at the start; leave out ",
        ),
        (&["--budget", "0"], "error: a step of 0 tokens and 16 sequences computes nothing: "),
        (&["--pages", "3"], "error: a prompt of "),
    ] {
        let (code, stdout, stderr) = program(&[&["serving"], arguments].concat());
        assert_eq!((code, stdout.as_str()), (1, ""), "{arguments:?}");
        assert!(stderr.starts_with(says), "{arguments:?}: {stderr}");
    }
}
