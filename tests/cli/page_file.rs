//! `batch --page-file`, on chapter 16: a second run finds what the first has computed, and whatever happens to the file, the
//! output is the same.

use std::fs;
use std::path::PathBuf;

use page_by_page::disk::file_disk::FileDisk;
use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Run, limited, ok, run, spawn};

/// A file of pages, and the folder that goes away with it.
struct PageFile {
    path: PathBuf,
    option: String,
    _folder: TempDir,
}

impl PageFile {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.pages");
        PageFile { option: format!("--page-file={}", path.display()), path, _folder: folder }
    }

    /// Four prompts that begin with the same page of a tale, in pages of 4, greedily.
    fn arguments<'a>(&'a self, prompts: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        [&["batch", prompts, "--json", "--page-size=4", &self.option], more].concat()
    }

    #[track_caller]
    fn json(&self, more: &[&str]) -> Value {
        ok(&self.arguments(&prompts(), more)).json()
    }
}

fn prompts() -> String {
    crate::support::root().join("assets/key.jsonl").to_str().unwrap().into()
}

/// The outputs where no file is read or written.
fn expected() -> Vec<String> {
    outputs(&ok(&["batch", &prompts(), "--json", "--page-size=4"]).json())
}

fn outputs(run: &Value) -> Vec<String> {
    run["outputs"].as_array().unwrap().iter().map(|output| output["text"].as_str().unwrap().into()).collect()
}

fn counter(run: &Value, name: &str) -> u64 {
    run["counters"][name].as_u64().unwrap()
}

fn of_file(run: &Value, name: &str) -> u64 {
    run["page_file"][name].as_u64().unwrap()
}

#[test]
fn a_second_run_reads_what_the_first_has_computed() {
    let file = PageFile::new();
    let [first, second] = [file.json(&[]), file.json(&[])];
    assert_eq!([outputs(&first), outputs(&second)], [expected(), expected()]);
    assert_eq!((of_file(&first, "read"), of_file(&second, "written")), (0, 0));
    assert_eq!(of_file(&first, "written"), of_file(&first, "pages"));
    assert_eq!(of_file(&second, "brought_back"), of_file(&second, "read"));
    let (rows, computed) = (counter(&first, "rows_projected"), counter(&second, "rows_projected"));
    // Of each prompt at most a page and a token are left, and the new tokens.
    let new = counter(&second, "generated_tokens");
    assert!(computed <= new + 4 * 4 && computed < rows, "{computed} of {rows} rows again, {new} new tokens");
    assert!(counter(&second, "cached") + 4 * 4 >= counter(&second, "prompt_tokens"), "{second}");
}

#[test]
fn pages_come_back_in_every_format_to_a_small_pool_and_from_a_small_file() {
    // One sequence at a time, and hardly a page more than it needs; and a file of a MiB.
    for more in [&["--kv-dtype=f16"][..], &["--kv-dtype=int8"], &["--running=1", "--pages=60"], &["--page-file-mib=1"]]
    {
        let file = PageFile::new();
        let is_small = more == ["--page-file-mib=1"];
        if is_small {
            // 85 pages fit; each of the two runs has fewer, both together have more.
            let stories = crate::support::root().join("assets/stories.jsonl");
            ok(&file.arguments(stories.to_str().unwrap(), more));
        }
        let [first, second] = [file.json(more), file.json(more)];
        assert_eq!(outputs(&first), outputs(&second), "{more:?}");
        assert!(of_file(&second, "brought_back") > 0 && of_file(&second, "written") == 0, "{more:?}: {second}");
        let (rows, computed) = (counter(&first, "rows_projected"), counter(&second, "rows_projected"));
        assert!(is_small || computed < rows / 2, "{more:?}: {computed} of {rows} rows in the second run");
        if is_small {
            assert!(fs::metadata(&file.path).unwrap().len() <= 1 << 20);
            assert_eq!((of_file(&first, "pages"), of_file(&first, "most_pages")), (85, 85), "{first}");
        }
    }
}

#[test]
fn a_damaged_file_changes_no_text() {
    let (file, expected) = (PageFile::new(), expected());
    file.json(&[]);
    let good = fs::read(&file.path).unwrap();
    for place in [0, 10, 64, 80, 100, 1_000, 5_000, good.len() / 2, good.len() - 1] {
        fs::write(&file.path, &good[..place]).unwrap();
        assert_eq!(outputs(&file.json(&[])), expected, "cut off after {place} bytes");
        if place >= 64 {
            let mut bytes = good.clone();
            bytes[place] ^= 0x40;
            fs::write(&file.path, &bytes).unwrap();
            assert_eq!(outputs(&file.json(&[])), expected, "byte {place} has changed");
        }
    }
}

#[test]
fn a_file_of_other_pages_is_refused_and_left_alone() {
    let (file, prompts) = (PageFile::new(), prompts());
    file.json(&[]);
    let pages = fs::read(&file.path).unwrap();
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
        fs::write(&file.path, content).unwrap();
        let run = run(&[&["batch", &prompts, &file.option], &options[..]].concat());
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{options:?}");
        assert!(run.stderr.contains(says) && run.stderr.contains("key.pages: "), "{options:?}: {}", run.stderr);
        assert!(fs::read(&file.path).unwrap() == *content, "{options:?}: the file is as it was");
    }
}

#[test]
fn two_programs_do_not_share_a_file() {
    let file = PageFile::new();
    let disk = FileDisk::open(&file.path).unwrap();
    let refused = run(&file.arguments(&prompts(), &[]));
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("a different program has this file at the moment"), "{}", refused.stderr);
    drop(disk);
    file.json(&[]);
}

/// A limit on the length of files stands in for a disk that is full.
#[cfg(unix)]
#[test]
fn a_disk_that_is_full_changes_no_text() {
    let (file, expected) = (PageFile::new(), expected());
    let first = Run::of(limited("-f 100").args(file.arguments(&prompts(), &[])).output().unwrap());
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let first = first.json();
    assert_eq!(outputs(&first), expected);
    let says = first["page_file"]["error"].as_str().unwrap();
    assert!(says.starts_with("a page cannot be written at byte "), "{says}");
    let pages = of_file(&first, "pages");
    assert!(pages > 0, "{first}");
    // When there is room again, the next run finds those, and writes the others.
    let second = file.json(&[]);
    assert_eq!(outputs(&second), expected);
    assert!(second["page_file"]["error"].is_null() && of_file(&second, "written") > 0, "{second}");
    assert_eq!(of_file(&second, "brought_back"), pages, "{second}");
}

#[test]
fn a_program_that_is_killed_leaves_a_file_that_opens() {
    let (file, expected) = (PageFile::new(), expected());
    for milliseconds in [30, 60, 90, 120] {
        let mut child = spawn(&file.arguments(&prompts(), &["--budget=8"]));
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(outputs(&file.json(&[])), expected, "killed after {milliseconds} ms");
        fs::remove_file(&file.path).unwrap();
    }
}
