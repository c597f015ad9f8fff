//! `batch --page-file` and `bench disk`, on chapter 16: a second run finds what the first has computed, and whatever happens to
//! the file, the texts are the same.

use std::fs;
use std::path::{Path, PathBuf};

use page_by_page::disk::file::FileDisk;
use serde_json::Value;
use tempfile::TempDir;

use crate::program::{PROGRAM, Run, ok, run, spawn};

/// Four prompts that begin with the same page of a tale.
fn prompts() -> String {
    crate::support::root().join("assets/key.jsonl").to_str().unwrap().into()
}

fn place() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key.pages");
    (folder, file)
}

/// Tells the prompts greedily, in pages of 4.
fn tell(file: &Path, more: &[&str]) -> Run {
    let option = format!("--page-file={}", file.display());
    run(&[&["batch", &prompts(), "--json", "--page-size=4", &option], more].concat())
}

#[track_caller]
fn told(file: &Path, more: &[&str]) -> Value {
    let run = tell(file, more);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    run.json()
}

fn texts(run: &Value) -> Vec<&str> {
    run["outputs"].as_array().unwrap().iter().map(|text| text["text"].as_str().unwrap()).collect()
}

fn counter(run: &Value, name: &str) -> u64 {
    run["counters"][name].as_u64().unwrap()
}

fn of_file(run: &Value, name: &str) -> u64 {
    run["page_file"][name].as_u64().unwrap()
}

#[test]
fn a_second_run_reads_what_the_first_has_computed() {
    let (_folder, file) = place();
    let without = ok(&["batch", &prompts(), "--json", "--page-size=4"]).json();
    let first = told(&file, &[]);
    let second = told(&file, &[]);
    assert_eq!(texts(&first), texts(&without));
    assert_eq!(texts(&second), texts(&without));
    assert_eq!((of_file(&first, "read"), of_file(&second, "written")), (0, 0));
    assert_eq!(of_file(&first, "written"), of_file(&first, "pages"));
    let (rows, computed) = (counter(&first, "rows_projected"), counter(&second, "rows_projected"));
    assert_eq!(of_file(&second, "brought_back"), of_file(&second, "read"));
    // Of each prompt at most a page and a token are left, and the new tokens.
    let new = counter(&second, "generated_tokens");
    assert!(
        computed <= new + 4 * 4 && computed < rows,
        "{computed} of {rows} rows in the second run, {new} new tokens"
    );
    assert!(counter(&second, "cached") + 4 * 4 >= counter(&second, "prompt_tokens"), "{second}");
}

#[test]
fn rows_of_every_format_come_back() {
    let (folder, _) = place();
    for format in ["f16", "bf16", "int8"] {
        let (file, dtype) = (folder.path().join(format), format!("--kv-dtype={format}"));
        let (first, second) = (told(&file, &[&dtype]), told(&file, &[&dtype]));
        assert_eq!(texts(&first), texts(&second), "{format}");
        assert!(of_file(&second, "brought_back") > 0 && of_file(&second, "written") == 0, "{format}: {second}");
    }
}

#[test]
fn a_pool_that_is_too_small_for_all_reads_what_was_evicted() {
    let (_folder, file) = place();
    // One text at a time, and hardly a page more than it needs.
    let small = ["--running=1", "--pages=60"];
    let first = told(&file, &small);
    let second = told(&file, &small);
    assert_eq!(texts(&first), texts(&second));
    let (rows, computed) = (counter(&first, "rows_projected"), counter(&second, "rows_projected"));
    assert!(computed < rows / 2, "{computed} of {rows} rows in the second run");
}

#[test]
fn a_small_file_stays_small() {
    let (_folder, file) = place();
    // 85 pages; each of the two runs has fewer, both together have more.
    let small = ["--page-file-mib=1"];
    let option = format!("--page-file={}", file.display());
    let stories = crate::support::root().join("assets/stories.jsonl");
    ok(&["batch", stories.to_str().unwrap(), "--json", "--page-size=4", &option, small[0]]);
    let (first, second) = (told(&file, &small), told(&file, &small));
    assert_eq!(texts(&first), texts(&second));
    assert!(fs::metadata(&file).unwrap().len() <= 1 << 20);
    assert_eq!((of_file(&first, "pages"), of_file(&first, "most_pages")), (85, 85), "{first}");
    assert!(of_file(&second, "brought_back") > 0 && of_file(&second, "written") == 0, "{second}");
}

#[test]
fn a_damaged_file_changes_no_text() {
    let (_folder, file) = place();
    let first = told(&file, &[]);
    let good = fs::read(&file).unwrap();
    for byte in [64, 80, 100, 5_000, good.len() / 2, good.len() - 1] {
        let mut bytes = good.clone();
        bytes[byte] ^= 0x40;
        fs::write(&file, &bytes).unwrap();
        assert_eq!(texts(&told(&file, &[])), texts(&first), "byte {byte} has changed");
    }
    for len in [0, 10, 64, 1_000, good.len() / 2, good.len() - 1] {
        fs::write(&file, &good[..len]).unwrap();
        assert_eq!(texts(&told(&file, &[])), texts(&first), "cut off after {len} bytes");
    }
}

#[test]
fn a_file_of_other_pages_is_refused_and_left_alone() {
    let (folder, file) = place();
    told(&file, &[]);
    let good = fs::read(&file).unwrap();
    for (option, says) in [
        ("--kv-dtype=bf16", "rows in f32, and here rows are kept in bf16; ask for --kv-dtype f32"),
        ("--page-size=8", "pages of 4 slots, and these have 8; ask for --page-size 4"),
        ("--model=storyteller-draft", "the model makes rows of"),
    ] {
        let prompts = prompts();
        let option_of_file = format!("--page-file={}", file.display());
        let page_size = if option.starts_with("--page-size") { option } else { "--page-size=4" };
        let run =
            run(&["batch", &prompts, &option_of_file, page_size, if option == page_size { "--json" } else { option }]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{option}");
        assert!(run.stderr.contains(says) && run.stderr.contains("key.pages: "), "{option}: {}", run.stderr);
    }
    assert!(fs::read(&file).unwrap() == good, "the file is as it was");
    let story = folder.path().join("story.txt");
    fs::write(&story, "Once upon a time").unwrap();
    let run = tell(&story, &[]);
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains("story.txt: this is no file of pages"), "{}", run.stderr);
    assert_eq!(fs::read(&story).unwrap(), b"Once upon a time");
}

#[test]
fn two_programs_do_not_share_a_file() {
    let (_folder, file) = place();
    let disk = FileDisk::open(&file).unwrap();
    let refused = tell(&file, &[]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("another program has this file at the moment"), "{}", refused.stderr);
    drop(disk);
    told(&file, &[]);
}

/// A limit of the system on the length of files stands in for a disk that is full.
#[cfg(unix)]
#[test]
fn a_disk_that_is_full_changes_no_text() {
    let (_folder, file) = place();
    let expected = ok(&["batch", &prompts(), "--json", "--page-size=4"]).json();
    let option = format!("--page-file={}", file.display());
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 100; exec \"$0\" \"$@\"", PROGRAM]);
    let output = command.args(["batch", &prompts(), "--json", "--page-size=4", &option]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let first: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(texts(&first), texts(&expected));
    let says = first["page_file"]["error"].as_str().unwrap();
    assert!(says.starts_with("a page cannot be written at byte "), "{says}");
    let pages = of_file(&first, "pages");
    assert!(pages > 0, "{first}");
    // When there is room again, the next run finds those, and writes the others.
    let second = told(&file, &[]);
    assert_eq!(texts(&second), texts(&expected));
    assert!(second["page_file"]["error"].is_null() && of_file(&second, "written") > 0, "{second}");
    assert_eq!(of_file(&second, "brought_back"), pages, "{second}");
}

#[test]
fn a_program_that_is_killed_leaves_a_file_that_opens() {
    let (_folder, file) = place();
    let expected = ok(&["batch", &prompts(), "--json", "--page-size=4"]).json();
    let option = format!("--page-file={}", file.display());
    for milliseconds in [30, 60, 90, 120] {
        let mut child = spawn(&["batch", &prompts(), "--json", "--page-size=4", "--budget=8", &option]);
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(texts(&told(&file, &[])), texts(&expected), "killed after {milliseconds} ms");
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn reading_is_compared_with_computing() {
    let (folder, _) = place();
    let json = folder.path().join("numbers.json");
    let (path, in_folder) = (json.to_str().unwrap(), format!("--folder={}", folder.path().display()));
    ok(&["bench", "disk", "--tokens=65", "--turns=2", "--json", path, &in_folder]);
    let numbers: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(numbers["pages"], 4);
    assert_eq!(numbers["row_bytes"], 16 * 3_072);
    assert_eq!(numbers["record_bytes"], 49_240);
    for part in ["compute", "write", "read", "check_and_copy"] {
        assert!(numbers["milliseconds_per_page"][part].as_f64().unwrap() > 0.0, "{numbers}");
    }
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["numbers.json"], "the file of pages is removed");
}
