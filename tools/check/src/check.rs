//! `cargo course check`: what can be seen in the files, in a second, with nothing compiled.

use std::path::Path;

use anyhow::{Error, Result};
use page_by_page_course::chapters::{self, Chapter};
use page_by_page_course::stub;

use crate::files::{names, read};
use crate::finding::Report;
use crate::{graders, mistakes, protection, stubs, tasks};

/// Looks at everything.
pub fn check(root: &Path) -> Result<Report> {
    let chapters = chapters::all(root).map_err(Error::msg)?;
    let mut report = Report::default();
    for (chapter, number) in chapters.iter().zip(1..) {
        if chapter.number != number {
            report.add(chapters::UNTOUCHED, 0, format!("{} is chapter {number} in order", chapter.name));
        }
        check_chapter(root, chapter, &mut report)?;
    }
    for folder in ["exercises", "solutions", "tests", "tools/check/mistakes"] {
        for name in [names(root, folder, ".rs"), names(root, folder, ".toml")].concat() {
            if Chapter::named(&name, "").is_some() && !chapters.iter().any(|chapter| chapter.name == name) {
                report.add(folder, 0, format!("has a file of {name}, which is no chapter: run `cargo course stubs`"));
            }
        }
    }
    protection::check(root, &mut report)?;
    Ok(report)
}

/// What can be seen in the files of one chapter.
fn check_chapter(root: &Path, chapter: &Chapter, report: &mut Report) -> Result<()> {
    let mut text_of = |file: String| read(root, &file).inspect_err(|error| report.add(file, 0, error.to_string())).ok();
    let (Some(solution), Some(grader)) = (text_of(chapter.solution()), text_of(chapter.grader())) else {
        return Ok(());
    };
    if let Some((line, problem)) = stub::refused(&solution) {
        report.add(chapter.solution(), line, problem);
    }
    graders::check_module(root, chapter, report)?;
    graders::check(chapter, &grader, report);
    mistakes::check(root, chapter, &solution, &grader, report)?;
    if let Some(stub) = stubs::check(root, chapter, report) {
        tasks::check(root, chapter, &stub, &grader, report);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;
    use crate::protection::HELD;

    const SOLUTION: &str = "solutions/ch02_flat.rs";
    const GRADER: &str = "tests/ch02_flat.rs";
    const STUB: &str = "exercises/ch02_flat.rs";

    /// This repository's course in a folder of its own, to be broken.
    fn copy() -> TempDir {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let copy = tempfile::tempdir().unwrap();
        for folder in [
            "exercises",
            "solutions",
            "src",
            "crates/grading/src",
            "tests",
            "tests/snapshots",
            "book/src",
            "tools/check/mistakes",
            ".cargo",
            ".config",
        ] {
            fs::create_dir_all(copy.path().join(folder)).unwrap();
            for entry in fs::read_dir(repository.join(folder)).unwrap().map(|entry| entry.unwrap()) {
                if entry.file_type().unwrap().is_file() {
                    fs::copy(entry.path(), copy.path().join(folder).join(entry.file_name())).unwrap();
                }
            }
        }
        copy
    }

    /// Breaks a file. Without a text to find, it is written anew.
    fn broken(file: &str, find: &str, replace: &str) -> TempDir {
        let copy = copy();
        let text = match find {
            "" => replace.to_string(),
            _ => read(copy.path(), file).unwrap().replace(find, replace),
        };
        assert!(read(copy.path(), file).ok().as_ref() != Some(&text), "{file} does not hold {find}");
        fs::write(copy.path().join(file), text).unwrap();
        copy
    }

    #[track_caller]
    fn expect(copy: &TempDir, problem: &str) {
        let found = check(copy.path()).unwrap().0;
        assert!(found.iter().any(|finding| finding.contains(problem)), "not found: {problem}\n{found:#?}");
    }

    #[test]
    fn what_does_not_fit_together_is_found() {
        let page = "book/src/ch04_page_pool.md";
        for (file, find, replace, problem) in [
            ("tests/ch17_more.rs", "", "x", "tests: has a file of ch17_more, which is no chapter"),
            (GRADER, " task_3_", " whole_", "tests/ch02_flat.rs: has no test named task_3_"),
            (GRADER, " task_3_", " task_8_", "has a test of task 8, and exercises/ch02_flat.rs has no"),
            (page, "### Task 2: ", "### Another: ", "has sections of the tasks [1, 3], and exercises/ch04"),
            (GRADER, "grading::grader!", "my::grader!", "tests/ch02_flat.rs: lacks `grading::grader!();`"),
            (GRADER, "not(unstarted", "not(written", "lacks `#[cfg(not(unstarted = \"ch02_flat\"))]`: an untouched"),
            (
                GRADER,
                "::ch02_flat::{",
                "::ch04_page_pool::{",
                "  ch02_flat  4 2  The flat cache`: run `cargo course stubs`",
            ),
            ("src/chapters.rs", "../solutions/ch02_flat.rs", "x", "src/chapters.rs: lacks these lines:"),
            (SOLUTION, "use std::borrow::Cow;", "use std::process;", "a chapter may not use std::process"),
            ("tests/snapshots/ch01_old.snap", "", "x", "no test in tests/ names \"ch01_old\""),
            ("tools/check/mistakes/ch02_flat.toml", "", "", "has 0 mistakes; at least 12 are wanted"),
            (
                "tools/check/mistakes/ch02_flat.toml",
                "the keys twice",
                "the keys doubled",
                "expects the word \"doubled\"",
            ),
        ] {
            expect(&broken(file, find, replace), problem);
        }
        for (file, lines, _) in HELD {
            expect(&broken(file, lines, "# gone"), &format!("{file}: must hold `{lines}`"));
        }
        let copy = copy();
        fs::remove_file(copy.path().join(GRADER)).unwrap();
        expect(&copy, "tests/ch02_flat.rs: tests/ch02_flat.rs is missing");
    }

    #[test]
    fn a_solution_that_changed_without_its_stub_is_found_and_mended() {
        let copy = broken(SOLUTION, "task 1: copy into", "task 1: move into");
        expect(&copy, "exercises/untouched.txt: solutions/ch02_flat.rs gives a stub that is not the recorded one");
        let written = stubs::write(copy.path()).unwrap();
        assert_eq!(written, "written: exercises/ch02_flat.rs, exercises/untouched.txt");
        assert!(read(copy.path(), STUB).unwrap().contains("todo!(\"ch02 task 1: move into"));
        assert_eq!(stubs::write(copy.path()).unwrap(), "all stubs are current");
    }

    #[test]
    fn a_readers_work_is_found_and_never_overwritten() {
        let copy = broken(STUB, "todo!(\"ch02 task 2", "let mine = 1; todo!(\"ch02 task 2");
        expect(&copy, "a reader has started it");
        assert!(stubs::write(copy.path()).unwrap_err().to_string().contains("it would be lost"));
        assert!(read(copy.path(), STUB).unwrap().contains("let mine"));
    }
}
