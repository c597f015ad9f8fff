//! A course of two chapters in a temporary folder, in order as it is made, for tests to break.

use std::fs;

use tempfile::TempDir;

use crate::check;
use crate::course::{Course, RECORD};
use crate::protection;
use crate::record;
use crate::stub::fingerprint;

const STUB_1: &str = r#"//! Chapter 1: sums.
//!
//! Check your work with `cargo test`.

/// Adds numbers → their sum.
pub fn sum(numbers: &[u32]) -> u32 {
    todo!("ch01 task 1: add the numbers")
}

/// Holds numbers.
pub struct Total {
    of: u32,
}

impl Total {
    /// Of these numbers.
    pub fn new(numbers: &[u32]) -> Self {
        todo!("ch01 task 2: hold the total")
    }

    /// The total.
    pub fn get(&self) -> u32 {
        self.of
    }
}
"#;

const SOLUTION_1: &str = r#"//! Chapter 1: sums.

/// Adds numbers → their sum.
// ANCHOR: sum
pub fn sum(numbers: &[u32]) -> u32 {
    // In any order.

    let mut total = 0;
    for number in numbers.iter() {
        total += number % 7;
    }
    total
}
// ANCHOR_END: sum

/// Holds numbers.
pub struct Total {
    of: u32,
}

impl Total {
    /// Of these numbers.
    pub fn new(numbers: &[u32]) -> Self {
        Total { of: sum(numbers) }
    }

    /// The total.
    pub fn get(&self) -> u32 {
        self.of
    }
}
"#;

const GRADER_1: &str = r#"//! Grader of chapter 1.

#[cfg(unstarted = "ch01_sum")]
#[test]
#[ignore = "not started: edit exercises/ch01_sum.rs"]
fn ch01_sum() {}

#[cfg(not(unstarted = "ch01_sum"))]
mod checks {
    use sample::chapters::ch01_sum::{Total, sum};

    #[test]
    fn task_1_adds() {
        assert_eq!(sum(&[1, 2]), 3);
        assert_transcript("ch01_sums", "");
    }

    /// Task 2
    #[test]
    fn task_2_holds_the_total() {
        assert_eq!(Total::new(&[1, 2]).get(), 3);
    }
}

#[cfg(not(unstarted = "ch01_sum"))]
whose_code! { ch01_sum = "ch01_sum" }
"#;

const STUB_2: &str = r#"//! Chapter 2: twice.

/// Twice a number.
pub fn double(number: u32) -> u32 {
    todo!("ch02 task 1: take it twice")
}
"#;

const SOLUTION_2: &str = r#"//! Chapter 2: twice.

/// Twice a number.
pub fn double(number: u32) -> u32 {
    number + number
}
"#;

const GRADER_2: &str = r#"//! Grader of chapter 2.

#[cfg(unstarted = "ch02_double")]
#[test]
#[ignore = "not started: edit exercises/ch02_double.rs"]
fn ch02_double() {}

#[test]
fn task_1_doubles() {}

#[cfg(not(unstarted = "ch02_double"))]
whose_code! { ch02_double = "ch02_double" }
"#;

const PAGE_1: &str = r#"# 1. Sums

## Build

### Task 1: add

Add them.

<details class="hint">
<summary>Hint 1</summary>

Begin with nothing.

</details>

### Task 2: the total

Hold it.

<details class="hint">
<summary>Hint</summary>

Add first.

</details>

## What it bought

A sum.

## Check yourself

<details class="answer">
<summary>Why seven?</summary>

So that it is short.

</details>
"#;

const PAGE_2: &str = r#"# 2. Twice

### Task 1: double

Once more.

<details class="hint">
<summary>Hint</summary>

A number and itself.

</details>

## What it bought

Two for one.

## Check yourself

<details class="answer">
<summary>Why twice?</summary>

Once is not enough.

</details>
"#;

const CHAPTERS: &str = r#"//! The course.
#[cfg_attr(reference = "ch01_sum", path = "../solutions/ch01_sum.rs")]
#[cfg_attr(not(reference = "ch01_sum"), path = "../exercises/ch01_sum.rs")]
#[cfg_attr(not(reference = "ch01_sum"), allow(unused_variables, dead_code))]
pub mod ch01_sum;
#[cfg_attr(reference = "ch02_double", path = "../solutions/ch02_double.rs")]
#[cfg_attr(not(reference = "ch02_double"), path = "../exercises/ch02_double.rs")]
#[cfg_attr(not(reference = "ch02_double"), allow(unused_variables, dead_code))] pub mod ch02_double;

const CHAPTERS: [Chapter; 2] = [
    Chapter {
        number: 1,
        title: "Sums",
        name: "ch01_sum",
        source: source(cfg!(reference = "ch01_sum"), cfg!(unstarted = "ch01_sum")),
        exercise: include_str!("../exercises/ch01_sum.rs"),
    },
    // The next begins on line 19.
    Chapter {
        number: 2,
        title: "Twice",
        name: "ch02_double",
        source: source(cfg!(reference = "ch02_double"), cfg!(unstarted = "ch02_double")),
        exercise: include_str!("../exercises/ch02_double.rs"),
    },
];
"#;

pub struct Sample {
    pub course: Course,
    _folder: TempDir,
}

impl Sample {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sample = Sample { course: Course { root: folder.path().to_path_buf() }, _folder: folder };
        let forced = |name: &str, value: &str| format!("{name} = {{ value = \"{value}\", force = true }}\n");
        let forced: String = protection::FORCED.iter().map(|(name, value, _)| forced(name, value)).collect();
        let cargo = format!("[env]\n{forced}");
        let mistakes = |find: &str, mark: &str| -> String {
            let one =
                |n: usize| format!("[[mutation]]\nname = \"mistake {n}\"\nfind = \"{find}\"\nreplace = \"{n}\"\n");
            (0..6).map(one).collect::<String>() + mark
        };
        for (file, text) in [
            ("exercises/ch01_sum.rs", STUB_1),
            ("exercises/ch02_double.rs", STUB_2),
            ("exercises/untouched.txt", ""),
            ("solutions/ch01_sum.rs", SOLUTION_1),
            ("solutions/ch02_double.rs", SOLUTION_2),
            ("tests/ch01_sum.rs", GRADER_1),
            ("tests/ch02_double.rs", GRADER_2),
            ("tests/snapshots/ch01_sums.snap", "---\n---\n3\n"),
            ("book/src/ch01_sum.md", PAGE_1),
            ("book/src/ch02_double.md", PAGE_2),
            ("src/chapters.rs", CHAPTERS),
            (".config/insta.yaml", "# Readers are graded.\nbehavior:\n  update: no\n"),
            (".cargo/config.toml", &cargo),
            ("tools/course/mutations/ch01_sum.toml", &mistakes("number % 7", "transcript = true\n")),
            ("tools/course/mutations/ch02_double.toml", &mistakes("number + number", "")),
        ] {
            sample.write(file, text);
        }
        sample.record();
        sample
    }

    pub fn write(&self, file: &str, text: &str) {
        let path = self.course.root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn append(&self, file: &str, text: &str) {
        self.write(file, &(self.course.read(file).unwrap() + text));
    }

    pub fn replace(&self, file: &str, find: &str, replace: &str) {
        let text = self.course.read(file).unwrap();
        assert!(text.contains(find), "{file} does not hold {find}");
        self.write(file, &text.replace(find, replace));
    }

    pub fn remove(&self, file: &str) {
        fs::remove_file(self.course.root.join(file)).unwrap();
    }

    /// Records the stubs as they are now.
    pub fn record(&self) {
        record::record(&self.course, false).unwrap();
    }

    /// Records the hash of a stub of chapter 1 that `record` refuses.
    pub fn record_anyway(&self) {
        let hash = fingerprint(&self.course.read("exercises/ch01_sum.rs").unwrap());
        self.replace(RECORD, &self.hash("ch01_sum"), &hash);
    }

    /// Puts everything under git.
    pub fn commit(&self) {
        for arguments in [&["init", "-q"][..], &["add", "."], &["commit", "-q", "-m", "The sample"]] {
            let mut git = std::process::Command::new("git");
            git.arg("-C").arg(&self.course.root).args([
                "-c",
                "user.name=Sample",
                "-c",
                "user.email=sample@example.com",
            ]);
            assert!(git.args(["-c", "commit.gpgsign=false"]).args(arguments).status().unwrap().success());
        }
    }

    /// The recorded hash of a chapter.
    pub fn hash(&self, chapter: &str) -> String {
        let record = self.course.read(RECORD).unwrap();
        record.lines().find(|line| line.ends_with(chapter)).unwrap()[..16].to_string()
    }

    #[track_caller]
    pub fn expect(&self, problem: &str) {
        let report = check::check(&self.course).unwrap();
        let found = report.findings.iter().any(|finding| finding.to_string().contains(problem));
        assert!(found, "not found: {problem}\n{report}");
    }

    #[track_caller]
    pub fn expect_nothing(&self) {
        let report = check::check(&self.course).unwrap();
        assert!(report.findings.is_empty() && report.notes.is_empty(), "{report}");
    }
}
