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
    let mut report = Report { chapters: chapters.len(), ..Report::default() };
    for (chapter, number) in chapters.iter().zip(1..) {
        if chapter.number != number {
            report.add(chapters::UNTOUCHED, 0, format!("{} is chapter {number} in order", chapter.name));
        }
        check_chapter(root, &chapters, chapter, &mut report)?;
    }
    for folder in ["exercises", "solutions", "tests", "tools/check/mistakes"] {
        for name in [names(root, folder, ".rs")?, names(root, folder, ".toml")?].concat() {
            if Chapter::named(&name, "").is_some() && !chapters.iter().any(|chapter| chapter.name == name) {
                report.add(folder, 0, format!("has a file of {name}, which is no chapter: run `cargo course stubs`"));
            }
        }
    }
    protection::check(root, &mut report)?;
    Ok(report)
}

/// What can be seen in the files of one chapter.
fn check_chapter(root: &Path, chapters: &[Chapter], chapter: &Chapter, report: &mut Report) -> Result<()> {
    let mut text_of = |file: String| read(root, &file).inspect_err(|error| report.add(file, 0, error.to_string())).ok();
    let (Some(solution), Some(grader)) = (text_of(chapter.solution()), text_of(chapter.grader())) else {
        return Ok(());
    };
    if let Some((line, problem)) = stub::refused(&solution) {
        report.add(chapter.solution(), line, problem);
    }
    graders::check_module(root, chapter, report)?;
    graders::check(root, chapters, chapter, &grader, report);
    mistakes::check(root, chapter, &solution, report);
    if let Some(stub) = stubs::check(root, chapter, report) {
        tasks::check(root, chapter, &stub, &grader, report);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;
    use crate::protection::FORCED;

    const SOLUTION: &str = "solutions/ch02_flat.rs";
    const GRADER: &str = "tests/ch02_flat.rs";
    /// A page without includes.
    const PAGE: &str = "book/src/ch04_page_pool.md";

    /// This repository's course in a folder of its own, to be broken.
    struct Copy(TempDir);

    impl Copy {
        fn new() -> Self {
            let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
            let copy = Copy(tempfile::tempdir().unwrap());
            let folders = [
                "exercises",
                "solutions",
                "tests",
                "tests/snapshots",
                "book/src",
                "tools/check/mistakes",
                ".cargo",
                ".config",
            ];
            for folder in folders {
                fs::create_dir_all(copy.root().join(folder)).unwrap();
                for entry in fs::read_dir(repository.join(folder)).unwrap().map(|entry| entry.unwrap()) {
                    if entry.file_type().unwrap().is_file() {
                        fs::copy(entry.path(), copy.root().join(folder).join(entry.file_name())).unwrap();
                    }
                }
            }
            fs::create_dir(copy.root().join("src")).unwrap();
            fs::copy(repository.join("src/chapters.rs"), copy.root().join("src/chapters.rs")).unwrap();
            copy
        }

        fn root(&self) -> &Path {
            self.0.path()
        }

        /// Breaks a file.
        fn replaced(file: &str, find: &str, replace: &str) -> Self {
            let copy = Copy::new();
            let text = read(copy.root(), file).unwrap();
            assert!(text.contains(find), "{file} does not hold {find}");
            fs::write(copy.root().join(file), text.replace(find, replace)).unwrap();
            copy
        }

        #[track_caller]
        fn expect(&self, problem: &str) {
            // What pages include lies outside.
            let found: Vec<String> = check(self.root()).unwrap().findings.iter().map(ToString::to_string).collect();
            assert!(found.iter().any(|finding| finding.contains(problem)), "not found: {problem}\n{found:#?}");
        }
    }

    #[test]
    fn a_file_too_few_or_too_many_is_found() {
        for (file, problem) in [
            (SOLUTION, "solutions/ch02_flat.rs: solutions/ch02_flat.rs is missing"),
            (GRADER, "tests/ch02_flat.rs: tests/ch02_flat.rs is missing"),
            ("tools/check/mistakes/ch02_flat.toml", "has 0 mistakes; at least 12 are wanted"),
        ] {
            let copy = Copy::new();
            fs::remove_file(copy.root().join(file)).unwrap();
            copy.expect(problem);
        }
        let copy = Copy::new();
        fs::write(copy.root().join("tests/ch17_more.rs"), "").unwrap();
        copy.expect("tests: has a file of ch17_more, which is no chapter");
    }

    #[test]
    fn a_solution_that_changed_without_its_stub_is_found_and_mended() {
        let copy = Copy::replaced(SOLUTION, "task 1: copy into", "task 1: move into");
        copy.expect("exercises/untouched.txt: solutions/ch02_flat.rs gives a stub that is not the recorded one");
        let written = stubs::write(copy.root()).unwrap();
        assert_eq!(written, "written: exercises/ch02_flat.rs, exercises/untouched.txt");
        assert!(read(copy.root(), "exercises/ch02_flat.rs").unwrap().contains("todo!(\"ch02 task 1: move into"));
        assert_eq!(stubs::write(copy.root()).unwrap(), "all stubs are current");
    }

    #[test]
    fn a_readers_work_is_noted_and_never_overwritten() {
        let copy = Copy::replaced("exercises/ch02_flat.rs", "todo!(\"ch02 task 2", "let mine = 1; todo!(\"ch02 task 2");
        let report = check(copy.root()).unwrap();
        assert!(report.notes.iter().any(|note| note.to_string().contains("a reader has started it")), "{report}");
        assert!(stubs::write(copy.root()).unwrap_err().to_string().contains("it would be lost"));
        assert!(read(copy.root(), "exercises/ch02_flat.rs").unwrap().contains("let mine"));
    }

    #[test]
    fn stub_grader_and_page_have_the_same_tasks() {
        Copy::replaced(GRADER, "fn task_3_", "fn whole_").expect("tests/ch02_flat.rs: has no test named task_3_");
        Copy::replaced(GRADER, "fn task_3_", "fn task_8_")
            .expect("has a test of task 8, and exercises/ch02_flat.rs has no");
        Copy::replaced(PAGE, "### Task 2: ", "### Another: ")
            .expect("has sections of the tasks [1, 3], and exercises/ch04");
    }

    #[test]
    fn a_grader_that_does_not_say_whose_code_ran_is_found() {
        Copy::replaced(GRADER, "whose_code! {", "my_code! {").expect("tests/ch02_flat.rs: should have `whose_code! {");
        Copy::replaced(GRADER, "#[ignore = ", "#[should_panic = ")
            .expect("tests/ch02_flat.rs: lacks #[ignore = \"not started");
        Copy::replaced("src/chapters.rs", "../solutions/ch02_flat.rs", "../solutions/ch01_recompute.rs")
            .expect("src/chapters.rs: lacks these lines:");
    }

    #[test]
    fn code_that_ends_the_checks_is_found() {
        Copy::replaced(SOLUTION, "use std::borrow::Cow;", "use std::process;")
            .expect("a chapter may not use std::process");
    }

    #[test]
    fn unprotected_snapshots_are_found() {
        Copy::replaced(".config/insta.yaml", "update: no", "update: always").expect(".config/insta.yaml: must hold");
        for (name, value, _) in FORCED {
            let held = format!("{name} = {{ value = \"{value}\", force = true }}");
            Copy::replaced(".cargo/config.toml", &held, "").expect(&format!(".cargo/config.toml: must hold `{held}`"));
        }
        for (file, problem) in
            [("ch01_old.snap", "no test in tests/ names \"ch01_old\""), ("a.snap.new", "a snapshot that waits")]
        {
            let copy = Copy::new();
            fs::write(copy.root().join("tests/snapshots").join(file), "").unwrap();
            copy.expect(problem);
        }
    }
}
