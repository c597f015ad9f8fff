//! `cargo course check`: what can be seen in the files, in a second, with nothing compiled. It collects findings
//! instead of stopping at the first: one run shows them all.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;

use anyhow::{Error, Result};
use page_by_page_course::chapters::{self, Chapter};
use page_by_page_course::source::{self, file_names};

use crate::files::read;
use crate::{mistakes, protection, stubs, tasks};

/// All that one run found: `place: what is wrong and what to do about it`.
#[derive(Debug, Default)]
pub struct Report(pub BTreeSet<String>);

impl Report {
    /// `place`: a file, from the root of the repository, and perhaps a line, `solutions/ch02_flat.rs:7`.
    pub fn add(&mut self, place: impl Display, problem: impl Display) {
        self.0.insert(format!("{place}: {problem}"));
    }
}

pub fn check(root: &Path) -> Result<Report> {
    let chapters = chapters::all(root).map_err(Error::msg)?;
    let mut report = Report::default();
    for (chapter, number) in chapters.iter().zip(1..) {
        if chapter.number != number {
            report.add(chapters::LIST, format!("{} is chapter {number} in order", chapter.name));
        }
        if let Err(error) = check_chapter(root, chapter, &mut report) {
            report.add(&chapter.name, format!("{error:#}"));
        }
    }
    for folder in ["exercises", "solutions", "tests", "tools/course/mistakes"] {
        for name in [file_names(root, folder, ".rs"), file_names(root, folder, ".toml")].concat() {
            if Chapter::named(&name).is_some() && !chapters.iter().any(|chapter| chapter.name == name) {
                report.add(folder, format!("has a file of {name}, which is no chapter: run `cargo course stubs`"));
            }
        }
    }
    protection::check(root, &mut report)?;
    Ok(report)
}

fn check_chapter(root: &Path, chapter: &Chapter, report: &mut Report) -> Result<()> {
    let (solution, grader) = (read(root, &chapter.solution())?, read(root, &chapter.grader())?);
    if let Some((line, problem)) = source::refused(&solution) {
        report.add(format!("{}:{line}", chapter.solution()), problem);
    }
    check_module(root, chapter, report)?;
    check_grader(chapter, &grader, report);
    mistakes::check(root, chapter, &solution, &grader, report)?;
    let stub = stubs::check(root, chapter, report)?;
    tasks::check(root, chapter, &stub, &grader, report)
}

const MODULES: &str = "src/chapters.rs";

/// Checks a chapter's module: attributes that name a different chapter's file would compile, and grade that one.
fn check_module(root: &Path, chapter: &Chapter, report: &mut Report) -> Result<()> {
    let name = &chapter.name;
    let module = format!(
        "#[cfg_attr(reference = \"{name}\", path = \"../solutions/{name}.rs\")]\n\
         #[cfg_attr(not(reference = \"{name}\"), path = \"../exercises/{name}.rs\", allow(unused))]\n\
         pub mod {name};\n"
    );
    if !read(root, MODULES)?.contains(&module) {
        report.add(MODULES, format!("lacks these lines:\n{module}"));
    }
    Ok(())
}

/// Checks that a grader is ignored while its chapter is untouched, and says whose code it ran.
fn check_grader(chapter: &Chapter, grader: &str, report: &mut Report) {
    for wanted in ["\ngrading::grader!();\n".into(), format!("\n#[cfg(not(stub = \"{}\"))]\n", chapter.name)] {
        if !grader.contains(&wanted) {
            let problem = format!("lacks `{}`: an untouched chapter would not be ignored", wanted.trim());
            report.add(chapter.grader(), problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;
    use crate::copy::RepositoryCopy;
    use crate::protection::held;

    const SOLUTION: &str = "solutions/ch02_flat.rs";
    const GRADER: &str = "tests/ch02_flat.rs";
    const STUB: &str = "exercises/ch02_flat.rs";
    const MISTAKES: &str = "tools/course/mistakes/ch02_flat.toml";

    /// This repository in a folder of its own, to be broken.
    fn copy() -> (TempDir, RepositoryCopy) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("copy")).unwrap();
        let copy = RepositoryCopy::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), folder.path()).unwrap();
        (folder, copy)
    }

    #[track_caller]
    fn expect(copy: &RepositoryCopy, problem: &str) {
        let found = check(&copy.root).unwrap().0;
        assert!(found.iter().any(|finding| finding.contains(problem)), "not found: {problem}\n{found:#?}");
    }

    /// Expects a problem while a text in a file is replaced; without a text to find, the file is written anew.
    #[track_caller]
    fn expect_when(copy: &RepositoryCopy, file: &str, find: &str, replace: &str, problem: &str) {
        let before = read(&copy.root, file).ok();
        let broken = match &before {
            Some(text) if !find.is_empty() => text.replace(find, replace),
            _ => replace.to_string(),
        };
        assert!(before.as_ref() != Some(&broken), "{file} does not hold {find}");
        copy.put(file, broken).unwrap();
        expect(copy, problem);
        match before {
            Some(text) => copy.put(file, text).unwrap(),
            None => fs::remove_file(copy.root.join(file)).unwrap(),
        }
    }

    #[test]
    fn what_does_not_fit_together_is_found() {
        let (_folder, copy) = copy();
        let page = "book/src/ch04_page_pool.md";
        for (file, find, replace, problem) in [
            ("tests/ch17_more.rs", "", "x", "tests: has a file of ch17_more, which is no chapter"),
            (GRADER, " task_3_", " whole_", "tests/ch02_flat.rs: has no test named task_3_"),
            (GRADER, " task_3_", " task_8_", "has a test of task 8, and exercises/ch02_flat.rs has no"),
            (page, "### Task 2: ", "### Another: ", "has sections of the tasks [1, 3], and exercises/ch04"),
            (GRADER, "grading::grader!", "my::grader!", "tests/ch02_flat.rs: lacks `grading::grader!();`"),
            (GRADER, "not(stub", "not(written", "lacks `#[cfg(not(stub = \"ch02_flat\"))]`: an untouched"),
            (GRADER, "::ch02_flat::{", "::ch04_page_pool::{", "  ch02_flat  4 2  The flat cache`: run `cargo"),
            ("src/chapters.rs", "../solutions/ch02_flat.rs", "x", "src/chapters.rs: lacks these lines:"),
            (SOLUTION, "use std::borrow::Cow;", "use std::process;", "a chapter may not use std::process"),
            ("tests/snapshots/ch01_old.snap", "", "x", "no test in tests/ names \"ch01_old\""),
            (MISTAKES, "", "", "has 0 mistakes; at least 12 are wanted"),
            (MISTAKES, "'self.len as u64'", "'self.length'", "does not find its text, `self.length` …, in"),
            (MISTAKES, "'self.len as u64'", "'self.len'", "finds its text, `self.len` …, "),
            (MISTAKES, "…\n    }", "…\n  }", "not exactly` does not find its text, `fn extend("),
            (MISTAKES, "&self.layers[0];", "&self.layers[layer];", "layer 0` changes nothing in solutions/ch02"),
            (MISTAKES, "the keys twice", "the keys doubled", "expects the word \"doubled\""),
        ] {
            expect_when(&copy, file, find, replace, problem);
        }
        for (file, lines, _) in held() {
            expect_when(&copy, file, &lines, "# gone", &format!("{file}: must hold `{lines}`"));
        }
        fs::remove_file(copy.root.join(GRADER)).unwrap();
        expect(&copy, "ch02_flat: tests/ch02_flat.rs is missing");
    }

    #[test]
    fn stubs_are_mended_and_a_readers_work_is_never_overwritten() {
        let (_folder, copy) = copy();
        let changed = read(&copy.root, SOLUTION).unwrap().replace("task 1: copy into", "task 1: move into");
        copy.put(SOLUTION, changed).unwrap();
        expect(&copy, "exercises/chapters.txt: solutions/ch02_flat.rs gives a stub that is not the recorded one");
        let written = stubs::write(&copy.root).unwrap();
        assert_eq!(written, "written: exercises/ch02_flat.rs, exercises/chapters.txt");
        let stub = read(&copy.root, STUB).unwrap();
        assert!(stub.contains("todo!(\"ch02 task 1: move into"));
        assert_eq!(stubs::write(&copy.root).unwrap(), "all stubs are current");

        copy.put(STUB, stub.replace("todo!(\"ch02 task 2", "let mine = 1; todo!(\"ch02 task 2")).unwrap();
        expect(&copy, "a reader has started it");
        assert!(stubs::write(&copy.root).unwrap_err().to_string().contains("it would be lost"));
        assert!(read(&copy.root, STUB).unwrap().contains("let mine"));
    }
}
