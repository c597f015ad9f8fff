//! `batch --page-file`, on chapter 16, where something is wrong with the file: it is refused, or the output is the same.
//! What a second run finds of the first is in `scripts/page_file.snap`.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Run, limited, ok, run};

/// A place for a file of pages, its name, and the option with it.
fn page_file() -> (TempDir, PathBuf, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key.pages");
    let option = format!("--page-file={}", file.display());
    (folder, file, option)
}

/// Four prompts that begin with the same page of a tale.
fn prompts() -> String {
    grading::root().join("assets/key.jsonl").to_str().unwrap().into()
}

fn texts(run: &Run) -> Vec<Value> {
    run.json_lines().iter().map(|result| result["text"].clone()).collect()
}

/// What a report says of the page file; and the pages brought back, read, written and in the file.
#[track_caller]
fn report(run: &Run) -> (&str, [u64; 4]) {
    let (_, report) = run.stderr.split_once("\npage file").expect("a page file");
    let (report, _) = report.split_once("\nchapters").expect("the last line");
    let words = report.split_whitespace();
    let pages: Vec<u64> = words.filter_map(|word| word.replace([',', ';'], "").parse().ok()).take(4).collect();
    (report, pages.try_into().unwrap_or_else(|_| panic!("{report}")))
}

#[test]
fn a_file_of_other_pages_is_refused_and_left_alone() {
    let ((_place, file, option), prompts) = (page_file(), prompts());
    ok(&["batch", &prompts, "--page-size=4", &option]);
    let pages = fs::read(&file).unwrap();
    let story = b"Once upon a time".to_vec();
    for (content, options, says) in [
        (
            &pages,
            ["--kv-dtype=bf16", "--page-size=4"],
            "rows in f32, and here rows are kept in bf16; ask for --kv-dtype f32",
        ),
        (&pages, ["--kv-dtype=f32", "--page-size=8"], "pages of 4 slots, and these have 8; ask for --page-size 4"),
        (&pages, ["--model=storyteller-draft", "--page-size=4"], "the model makes rows of"),
        (&story, ["--kv-dtype=f32", "--page-size=4"], "this is no file of pages"),
    ] {
        fs::write(&file, content).unwrap();
        let run = run(&[&["batch", &prompts, &option], &options[..]].concat());
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{options:?}");
        assert!(run.stderr.contains(says) && run.stderr.contains("key.pages: "), "{options:?}: {}", run.stderr);
        assert!(fs::read(&file).unwrap() == *content, "{options:?}: the file is as it was");
    }
}

/// A limit on the length of files stands in for a disk that is full.
#[cfg(unix)]
#[test]
fn a_full_disk_changes_no_output() {
    let ((_place, _, option), prompts) = (page_file(), prompts());
    let arguments = ["batch", &prompts, "--page-size=4", &option];
    let expected = texts(&ok(&arguments[..3]));
    let full = Run::of(limited("-f 100").args(arguments).output().unwrap());
    assert_eq!((full.code, texts(&full)), (Some(0), expected.clone()), "{}", full.stderr);
    let (says, [.., held]) = report(&full);
    assert!(says.contains("then no more: a page cannot be written at byte ") && held > 0, "{says}");
    // When there is room again, the next run finds those, and writes the others.
    let next = ok(&arguments);
    let (says, [restored, _, written, _]) = report(&next);
    assert_eq!((texts(&next), restored), (expected, held), "{says}");
    assert!(written > 0 && !says.contains("no more"), "{says}");
}
