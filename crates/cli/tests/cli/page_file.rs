//! `batch --page-file`, on chapter 16: a second run finds what the first has computed, and whatever happens to the
//! file, the output is the same.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Run, limited, ok, run};

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
        [&["batch", prompts, "--page-size=4", &self.option], more].concat()
    }

    #[track_caller]
    fn run(&self, more: &[&str]) -> Ran {
        Ran::of(&ok(&self.arguments(&prompts(), more)))
    }
}

fn prompts() -> String {
    grading::root().join("assets/key.jsonl").to_str().unwrap().into()
}

fn expected() -> Vec<String> {
    Ran::of(&ok(&["batch", &prompts(), "--page-size=4"])).outputs()
}

#[derive(Debug)]
struct Ran {
    results: Vec<Value>,
    of_file: String,
}

impl Ran {
    fn of(run: &Run) -> Self {
        let of_file = run.stderr.find("\npage file").map(|at| &run.stderr[at + 1..]).unwrap_or_default();
        let (first, rest) = of_file.split_once('\n').unwrap_or_default();
        let rest: String = rest.lines().take_while(|line| line.starts_with(' ')).collect();
        Ran { results: run.json_lines(), of_file: format!("{first}{rest}") }
    }

    fn outputs(&self) -> Vec<String> {
        self.results.iter().map(|result| result["text"].as_str().unwrap().into()).collect()
    }

    fn sum(&self, counter: &str) -> u64 {
        self.results.iter().map(|result| result["counters"][counter].as_u64().unwrap()).sum()
    }

    /// Pages brought back, read, written, in the file, and at most.
    fn pages(&self) -> [u64; 5] {
        let words = self.of_file.split_whitespace();
        let numbers: Vec<u64> = words.filter_map(|word| word.replace([',', ';'], "").parse().ok()).take(5).collect();
        numbers.try_into().unwrap_or_else(|_| panic!("{self:?}"))
    }
}

#[test]
fn a_second_run_reads_what_the_first_has_computed() {
    let file = PageFile::new();
    let [first, second] = [file.run(&[]), file.run(&[])];
    assert_eq!([first.outputs(), second.outputs()], [expected(), expected()]);
    let ([_, read, written, held, _], [restored, read_again, written_again, ..]) = (first.pages(), second.pages());
    assert_eq!([read, written, restored, written_again], [0, held, read_again, 0], "{first:?} {second:?}");
    // Of each prompt at most a page is left, and the new tokens but the newest.
    let (computed, new) = (second.sum("computed"), second.sum("generated_tokens"));
    assert!(computed <= new + 4 * (4 - 1) && computed < first.sum("computed"), "{first:?} {second:?}");
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
            let stories = grading::root().join("assets/stories.jsonl");
            ok(&file.arguments(stories.to_str().unwrap(), more));
        }
        let [first, second] = [file.run(more), file.run(more)];
        assert_eq!(first.outputs(), second.outputs(), "{more:?}");
        assert!(second.pages()[0] > 0 && second.pages()[2] == 0, "{more:?}: {second:?}");
        let (rows, computed) = (first.sum("computed"), second.sum("computed"));
        assert!(is_small || computed < rows / 2, "{more:?}: {computed} of {rows} rows in the second run");
        if is_small {
            assert!(fs::metadata(&file.path).unwrap().len() <= 1 << 20);
            assert_eq!((first.pages()[3], first.pages()[4]), (85, 85), "{first:?}");
        }
    }
}

#[test]
fn a_file_of_other_pages_is_refused_and_left_alone() {
    let (file, prompts) = (PageFile::new(), prompts());
    file.run(&[]);
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

/// A limit on the length of files stands in for a disk that is full.
#[cfg(unix)]
#[test]
fn a_full_disk_changes_no_output() {
    let (file, expected) = (PageFile::new(), expected());
    let first = Run::of(limited("-f 100").args(file.arguments(&prompts(), &[])).output().unwrap());
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let first = Ran::of(&first);
    assert_eq!(first.outputs(), expected);
    assert!(first.of_file.contains("then no more: a page cannot be written at byte "), "{first:?}");
    let pages = first.pages()[3];
    assert!(pages > 0, "{first:?}");
    // When there is room again, the next run finds those, and writes the others.
    let second = file.run(&[]);
    assert_eq!(second.outputs(), expected);
    assert!(!second.of_file.contains("no more") && second.pages()[2] > 0, "{second:?}");
    assert_eq!(second.pages()[0], pages, "{second:?}");
}
