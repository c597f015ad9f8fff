//! `generate` with several prompts: each text is the one that it is when generated alone, whatever the memory.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::program::{PROGRAM, Run, ok, run, run_with};

const PROMPTS: [&str; 4] = ["Once upon a time", "The king had", "An old woman", "One day"];

/// `generate` with the four prompts; the third of them ends by itself after 107 new tokens.
fn several<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["generate"], &PROMPTS[..], &["--max-new-tokens", "110"], more].concat()
}

/// What `several` should print: each text as it is told alone.
fn told_alone(more: &[&str]) -> String {
    let mut texts = String::new();
    for (prompt, number) in PROMPTS.iter().zip(1..) {
        let alone = ok(&[&["generate", prompt, "--max-new-tokens", "110"], more].concat()).stdout;
        texts.push_str(&format!("{}sequence {number}\n{alone}", if number == 1 { "" } else { "\n" }));
    }
    texts
}

#[test]
fn the_command_prints_the_texts_that_it_prints_alone() {
    let memories: [&[&str]; 5] = [
        &["--page-size", "3", "--pages", "39"],
        &[],
        &["--page-size", "1"],
        &["--kv", "flat"],
        &["--kv", "contiguous"],
    ];
    for (sampling, memories) in [
        (&[] as &[&str], &memories[..]),
        (&["--temperature", "0"], &memories[..1]),
        (&["--seed", "4", "--top-k", "40"], &memories[..1]),
    ] {
        let expected = told_alone(sampling);
        for memory in memories {
            let run = ok(&several(&[memory, sampling].concat()));
            assert_eq!(run.stdout, expected, "{memory:?} {sampling:?}");
            assert!(!run.stderr.contains('\u{1b}'), "no picture where nobody watches");
        }
    }
    // Recomputing takes its time: shorter texts.
    let short = |kv| ok(&[&["generate"], &PROMPTS[..], &["--max-new-tokens", "12", "--kv", kv]].concat()).stdout;
    assert_eq!(short("recompute"), short("paged"));
}

#[test]
fn the_report_counts_for_all_texts() {
    let report = |more: &[&str]| ok(&several(more)).stderr;
    let line = |report: &str, name: &str| {
        let line = report.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {report}"));
        line[name.len()..].trim_start().to_string()
    };
    let paged = report(&[]);
    // 5, 4, 5 and 3 tokens; 110 new ones, the third text 107 and its end. The last of 110 is not read.
    assert_eq!(line(&paged, "outputs"), "4, at most 4 in a step");
    assert!(line(&paged, "prefill").starts_with("17 tokens in 1 step, "), "{paged}");
    assert!(line(&paged, "decode").starts_with("434 tokens in 109 steps, "), "{paged}");
    assert_eq!(line(&paged, "projected"), "451 rows");
    assert_eq!(line(&paged, "cache"), "paged: 451 tokens in 480 slots, 29 wasted, 1.41 MiB; 0 rows copied");
    assert_eq!(line(&paged, "pages"), "28 of 32 at the peak, 16 slots each");
    assert_eq!(line(&paged, "room for"), "4 sequences like these in 32 pages; with 115 slots reserved for each: 4");
    assert!(line(&paged, "chapters").starts_with("4 reference, 5 reference, 6 reference"));
    assert!(
        paged.lines().any(|line| line.starts_with("3          An old woman") && line.contains("by itself")),
        "{paged}"
    );

    let contiguous = report(&["--kv", "contiguous"]);
    assert_eq!(line(&contiguous, "cache"), "contiguous: 451 tokens in 457 slots, 6 wasted, 1.34 MiB; 0 rows copied");
    assert!(!contiguous.contains("\npages") && !contiguous.contains("\nroom for"), "{contiguous}");
    let greedy = report(&["--temperature", "0"]);
    assert!(line(&greedy, "chapters").starts_with("1 reference"), "argmax is chapter 1's: {greedy}");
}

fn json_of(run: &Run) -> Value {
    serde_json::from_str(&run.stdout).expect("JSON on standard output")
}

#[test]
fn json_is_one_object_with_all_texts() {
    let all = json_of(&ok(&several(&["--json"])));
    for (text, prompt) in all["outputs"].as_array().unwrap().iter().zip(PROMPTS) {
        let alone = json_of(&ok(&["generate", prompt, "--max-new-tokens", "110", "--json"]));
        for key in ["prompt", "text", "tokens"] {
            assert_eq!(text[key], alone[key], "{key} of {prompt}");
        }
    }
    let ends: Vec<&Value> = all["outputs"].as_array().unwrap().iter().map(|text| &text["finish_reason"]).collect();
    assert_eq!(json!(ends), json!(["length", "length", "stop", "length"]));
    assert_eq!(all["outputs"][2]["held"], json!({ "tokens": 112, "slots": 112, "pages": 7 }));
    let counters = json!({
        "steps": 110, "max_sequences_in_a_step": 4, "rows_projected": 451, "rows_copied": 0, "tokens": 451,
        "slots": 480, "wasted": 29, "bytes": 480 * 2 * 6 * 64 * 4
    });
    assert_eq!(all["counters"], counters);
    let room_for = json!({ "in_pages": 4, "reserved": 4, "slots_reserved_for_each": 115 });
    assert_eq!(all["pages"], json!({ "page_size": 16, "pages": 32, "peak": 28, "room_for": room_for }));
    assert!(all["timings"]["decode_tokens_per_second"].as_f64().unwrap() > 0.0);
}

fn file(contents: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompts.txt");
    std::fs::write(&path, contents).unwrap();
    (folder, path)
}

#[test]
fn prompts_come_from_a_file_or_from_standard_input() {
    let expected = ok(&["generate", "The king had", "One day", "--max-new-tokens", "9"]).stdout;
    let lines = b"\xEF\xBB\xBFThe king had\r\n\n   \nOne day";
    let (_folder, path) = file(lines);
    let path = path.to_str().unwrap();
    assert_eq!(ok(&["generate", "--prompts", path, "--max-new-tokens", "9"]).stdout, expected);
    let piped = run_with(&["generate", "--prompts", "-", "--max-new-tokens", "9"], lines);
    assert_eq!((piped.code, piped.stdout), (Some(0), expected));
    // A file with one prompt is a list of one.
    let one = run_with(&["generate", "--prompts", "-", "--max-new-tokens", "9", "--json"], b"One day\n");
    assert_eq!(json_of(&one)["outputs"].as_array().unwrap().len(), 1);
}

#[test]
fn a_file_without_prompts_is_refused_by_name() {
    for (contents, says) in [
        (b"" as &[u8], "no prompt; write one a line"),
        (b"\n \r\n", "no prompt; write one a line"),
        (b"One day\nThe \xFFking\n", "line 2 is not UTF-8; save the file as UTF-8"),
    ] {
        let (_folder, path) = file(contents);
        let run = run(&["generate", "--prompts", path.to_str().unwrap()]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
        assert!(run.stderr.starts_with(&format!("error: {}: {says}", path.display())), "{}", run.stderr);
    }
    let (folder, path) = file(b"");
    for path in [folder.path(), &path.with_file_name("no_such_file")] {
        let run = run(&["generate", "--prompts", path.to_str().unwrap()]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
        let start = format!("error: {}: name a file with one prompt a line, or - for", path.display());
        assert!(run.stderr.starts_with(&start), "{}", run.stderr);
    }
    let both = run(&["generate", "One day", "--prompts", path.to_str().unwrap()]);
    assert_eq!((both.code, both.stdout.as_str()), (Some(2), ""));
}

#[test]
fn what_serves_one_text_is_refused_for_several() {
    for (option, value) in
        [("--draft", "storyteller-draft"), ("--save-cache", "no/such/file"), ("--load-cache", "no/such/file")]
    {
        let run = run(&several(&[option, value]));
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
        let says =
            run.stderr.starts_with("error: --") && run.stderr.contains("several were asked for; give one prompt");
        assert!(says && run.stderr.contains(option), "{}", run.stderr);
    }
    let empty = run(&["generate", "One day", ""]);
    assert_eq!((empty.code, empty.stdout.as_str()), (Some(1), ""));
    assert_eq!(empty.stderr, "error: sequence 2: the prompt is empty; give the text a beginning\n");
    for (arguments, says) in [
        (["--page-size", "0"], "error: a page needs at least one slot"),
        (["--pages", "0"], "error: a pool needs at least one page"),
        (["--pages", "99999999999"], "error: 99,999,999,999 pages are more than"),
    ] {
        let run = run(&several(&arguments));
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
        assert!(run.stderr.starts_with(says), "{}", run.stderr);
    }
}

#[test]
fn a_text_that_no_pool_of_this_size_can_hold_is_refused_before_any_is_written() {
    // Seven pages are 112 tokens: enough for the third text and the fourth, but not for the first.
    for (pages, needed) in [(["--pages", "7", "--page-size", "16"], 8), (["--pages", "1", "--page-size", "4"], 29)] {
        let run = run(&several(&pages));
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
        let says = format!(
            "error: sequence 1: a prompt of 5 tokens and 110 new ones need {needed} pages, and the pool has {}; ask for fewer \
             tokens, or give the pool more pages (--pages)\n",
            pages[1]
        );
        assert_eq!(run.stderr, says);
    }
}

#[test]
fn nobody_left_to_read_is_no_failure() {
    let mut child = Command::new(PROGRAM)
        .args(several(&["--kv", "recompute"]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut start = [0; 31];
    child.stdout.take().unwrap().read_exact(&mut start).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(start, *b"sequence 1\nOnce upon a time the");
    assert!(output.status.success() && !stderr.contains("panicked") && !stderr.contains("error"), "{stderr}");
}

#[test]
fn the_command_tells_the_same_texts_with_a_prefix_cache() {
    let beginning = "Once upon a time there was a king who had a daughter, and the daughter had";
    let prompts =
        [format!("{beginning} a ring"), format!("{beginning} no"), "One day".into(), format!("{beginning} a")];
    let prompts: Vec<&str> = prompts.iter().map(String::as_str).collect();
    let asked = |more: &[&str]| {
        let arguments = [&["generate"], &prompts[..], &["--max-new-tokens", "20"], more].concat();
        ok(&arguments)
    };
    let expected = asked(&[]).stdout;
    for pages in [&[] as &[&str], &["--page-size", "3"], &["--page-size", "1"], &["--page-size", "4", "--pages", "12"]]
    {
        let run = asked(&[pages, &["--prefix-cache"]].concat());
        assert_eq!(run.stdout, expected, "{pages:?}");
    }
    let run = asked(&["--prefix-cache", "--page-size", "4"]);
    let line = |name: &str| run.stderr.lines().find(|line| line.starts_with(name)).expect(name).to_string();
    let all = json_of(&asked(&["--prefix-cache", "--page-size", "4", "--json"]));
    let texts = all["outputs"].as_array().unwrap();
    let found: Vec<u64> = texts.iter().map(|text| text["cached"].as_u64().unwrap()).collect();
    assert!(found[0] == 0 && found[2] == 0 && found[1] >= 16 && found[3] >= 16, "{found:?}");
    let prompts: usize = texts.iter().map(|text| text["tokens"]["prompt"].as_array().unwrap().len()).sum();
    let sum: u64 = found.iter().sum();
    assert_eq!(line("prefixes"), format!("prefixes   {sum} of {prompts} prompt tokens cached"));
    let rows = prompts as u64 + 4 * 19;
    assert_eq!(line("projected"), format!("projected  {} rows; 4 caches apart: {rows} rows", rows - sum));
    assert_eq!(all["apart"]["rows_projected"], rows);
    let chapters = line("chapters");
    assert!(chapters.ends_with("10 reference, 11 reference, 12 reference, 13 reference"), "{chapters}");
}

#[test]
fn a_prefix_cache_that_serves_nobody_is_refused() {
    let refused = |arguments: &[&str], says: &str| {
        let run = run(&[&["generate", "--prefix-cache"], arguments].concat());
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
        assert_eq!(run.stderr, format!("error: {says}\n"));
    };
    refused(&["One day"], "--prefix-cache is for several prompts, and one was given; give more, or leave it out");
    let says = "--prefix-cache is for several prompts, --samples for one: use one or the other";
    refused(&["One day", "--samples", "2"], says);
    refused(&["One day", "--beams", "2"], &says.replace("--samples", "--beams"));
    let says = "--prefix-cache keeps pages, and --kv flat has none; leave out --kv, or give --kv paged";
    refused(&["One day", "The king", "--kv", "flat"], says);
}
