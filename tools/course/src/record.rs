//! The record of hashes: which text is a stub as it was handed out.
//!
//! `build.rs` reads the record to tell a chapter that the reader has started from one that is untouched. A stub that is
//! edited here without a new record would count as started for everybody.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::course::{Chapter, Course, RECORD};
use crate::finding::Report;
use crate::stub::fingerprint;
use crate::{leak, tasks};

const HEADER: &str =
    "# Hashes of the stubs as they are handed out; `cargo run -p course-tool -- record` writes this file.\n";

/// Writes the record anew; says what has changed. With `fewer_tasks`, a stub may have lost a `todo!`.
///
/// # Errors
/// If a file in `exercises/` is not a stub, but somebody's work: it would count as untouched, and the reference would be
/// graded in its place. The record is then as it was.
pub fn record(course: &Course, fewer_tasks: bool) -> Result<String> {
    let before = course.read(RECORD)?;
    for (_, name) in before.lines().filter_map(|line| line.split_once("  ")) {
        let chapter = Chapter { name: name.into() };
        if !course.has(&chapter.stub()) && course.has(&chapter.solution()) {
            let (stub, solution) = (chapter.stub(), chapter.solution());
            bail!("{stub} is missing, though {solution} is there; restore it with `git checkout {stub}`");
        }
    }
    let mut text = HEADER.to_string();
    for chapter in course.chapters()? {
        let stub = course.read(&chapter.stub())?;
        let parsed = parsed(&chapter.stub(), &stub)?;
        if let Some(problem) = someones_work(course, &chapter, &parsed, &before, fewer_tasks)? {
            bail!(
                "{} {problem}: it is somebody's work, not a stub, and would count as untouched; record in a clone that \
                 holds only stubs",
                chapter.stub()
            );
        }
        text.push_str(&format!("{}  {}\n", fingerprint(&stub), chapter.name));
    }
    if before == text {
        return Ok(format!("{RECORD} is up to date"));
    }
    let changed: Vec<&str> =
        text.lines().filter(|line| !before.lines().any(|old| old == *line) && !line.starts_with('#')).collect();
    std::fs::write(course.root.join(RECORD), &text).with_context(|| format!("cannot write {RECORD}"))?;
    Ok(format!(
        "{RECORD} written; new or changed: {}",
        if changed.is_empty() { "none".into() } else { changed.join(", ") }
    ))
}

fn parsed(file: &str, text: &str) -> Result<syn::File> {
    syn::parse_file(text).with_context(|| format!("{file} is not Rust"))
}

/// Why a file is no stub, if it is none.
fn someones_work(
    course: &Course,
    chapter: &Chapter,
    stub: &syn::File,
    record: &str,
    fewer_tasks: bool,
) -> Result<Option<String>> {
    let todos = |file: &syn::File| tasks::todos(file).iter().filter(|todo| todo.name == "todo").count();
    if todos(stub) == 0 {
        return Ok(Some("has no todo!(…) left".into()));
    }
    if course.has(&chapter.grader()) {
        let grader = parsed(&chapter.grader(), &course.read(&chapter.grader())?)?;
        if let Some(task) = tasks::graded(&grader).difference(&tasks::numbers(stub)).next() {
            return Ok(Some(format!("has no todo!(…) of task {task} left, which {} checks", chapter.grader())));
        }
    }
    if course.has(&chapter.solution()) {
        let solution = parsed(&chapter.solution(), &course.read(&chapter.solution())?)?;
        if let Some(function) = leak::written(stub, &solution).first() {
            return Ok(Some(format!("has a `{function}` without todo!(…) that is not as in {}", chapter.solution())));
        }
    }
    // An answer that was copied from the solution passes for given code. The stub as it was recorded knows better.
    let recorded = last_commit(course, &chapter.stub())
        .filter(|text| record.contains(&format!("{}  {}\n", fingerprint(text), chapter.name)))
        .and_then(|text| syn::parse_file(&text).ok());
    if let Some(recorded) = recorded.filter(|_| !fewer_tasks) {
        let (now, before) = (todos(stub), todos(&recorded));
        if now < before {
            return Ok(Some(format!(
                "has {now} of the {before} todo!(…) that were recorded (if the chapter is to ask for less: \
                 `cargo course record --fewer-tasks`)"
            )));
        }
    }
    Ok(None)
}

/// A file as the last commit has it; `None` without git.
fn last_commit(course: &Course, file: &str) -> Option<String> {
    let mut git = Command::new("git");
    let output = git.arg("-C").arg(&course.root).arg("show").arg(format!("HEAD:./{file}")).output().ok()?;
    if output.status.success() { String::from_utf8(output.stdout).ok() } else { None }
}

/// Compares the record with the stubs.
pub fn check(course: &Course, report: &mut Report) -> Result<()> {
    let mut recorded = BTreeMap::new();
    let text = course.read(RECORD)?;
    let mut last = "";
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if line.starts_with('#') {
            continue;
        }
        let Some((hash, chapter)) = line.split_once("  ") else {
            report.add(RECORD, number, format!("`{line}` is not `hash  chapter`: the build would stop here"));
            continue;
        };
        if chapter < last {
            report.add(RECORD, number, format!("{chapter} is out of order; `course-tool record` sorts"));
        }
        last = chapter;
        if recorded.insert(chapter, (hash, number)).is_some() {
            report.add(RECORD, number, format!("{chapter} is recorded twice"));
        }
    }
    for chapter in course.chapters()? {
        let hash = fingerprint(&course.read(&chapter.stub())?);
        match recorded.remove(chapter.name.as_str()) {
            None => report.add(RECORD, 0, format!("{} is not recorded; run `course-tool record`", chapter.stub())),
            Some((old, line)) if old != hash => report.add(
                RECORD,
                line,
                format!(
                    "{} has the hash {hash}, recorded is {old}: every reader would seem to have started it; \
                     run `course-tool record`, or restore the stub",
                    chapter.stub()
                ),
            ),
            Some(_) => {}
        }
    }
    for (chapter, (_, line)) in recorded {
        report.add(RECORD, line, format!("{chapter} is recorded, but exercises/{chapter}.rs is missing"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    #[test]
    fn a_wrong_hash_is_found_and_recorded_anew() {
        let sample = Sample::new();
        sample.replace("exercises/untouched.txt", &sample.hash("ch01_sum"), "0123456789abcdef");
        sample.expect("exercises/untouched.txt:2: exercises/ch01_sum.rs has the hash");

        assert!(record(&sample.course, false).unwrap().contains("ch01_sum"));
        sample.expect_nothing();
        assert_eq!(record(&sample.course, false).unwrap(), "exercises/untouched.txt is up to date");
    }

    #[test]
    fn stubs_and_record_name_the_same_chapters() {
        let sample = Sample::new();
        sample.append("exercises/untouched.txt", "0123456789abcdef  ch09_gone\n");
        sample.expect("exercises/untouched.txt:4: ch09_gone is recorded, but exercises/ch09_gone.rs is missing");

        let sample = Sample::new();
        sample.replace("exercises/untouched.txt", "  ch02_double", "  ch02_other");
        sample.expect("exercises/ch02_double.rs is not recorded");
    }

    /// What `record` refuses, and that it has changed nothing.
    #[track_caller]
    fn refused(sample: &Sample) -> String {
        let before = sample.course.read(RECORD).unwrap();
        let refusal = record(&sample.course, false).unwrap_err().to_string();
        assert_eq!(sample.course.read(RECORD).unwrap(), before);
        refusal
    }

    #[test]
    fn a_solution_is_not_recorded() {
        let sample = Sample::new();
        let solution = sample.course.read("solutions/ch01_sum.rs").unwrap();
        sample.write("exercises/ch01_sum.rs", &format!("// Once there was a todo!(\"ch01 task 1: …\").\n{solution}"));
        assert!(refused(&sample).starts_with("exercises/ch01_sum.rs has no todo!(…) left: it is somebody's work"));
    }

    #[test]
    fn half_a_solution_is_not_recorded() {
        let sample = Sample::new();
        sample.replace("exercises/ch01_sum.rs", "todo!(\"ch01 task 1: add the numbers\")", "numbers.iter().sum()");
        let says = "exercises/ch01_sum.rs has no todo!(…) of task 1 left, which tests/ch01_sum.rs checks: ";
        assert!(refused(&sample).starts_with(says), "{}", refused(&sample));

        let sample = Sample::new();
        sample.replace("exercises/ch01_sum.rs", "        self.of\n", "        self.of + 1\n");
        let says =
            "exercises/ch01_sum.rs has a `Total::get` without todo!(…) that is not as in solutions/ch01_sum.rs: ";
        assert!(refused(&sample).starts_with(says), "{}", refused(&sample));

        let sample = Sample::new();
        sample.remove("exercises/ch02_double.rs");
        let says = "exercises/ch02_double.rs is missing, though solutions/ch02_double.rs is there; restore it with";
        assert!(refused(&sample).starts_with(says), "{}", refused(&sample));
    }

    #[test]
    fn a_task_that_was_recorded_does_not_vanish_unasked() {
        let sample = Sample::new();
        sample.append("exercises/ch02_double.rs", "\nfn more() {\n    todo!(\"ch02 task 1: more\")\n}\n");
        sample.append("solutions/ch02_double.rs", "\nfn more() {}\n");
        sample.record();
        sample.commit();
        sample.replace("exercises/ch02_double.rs", "{\n    todo!(\"ch02 task 1: more\")\n}", "{}");
        let says = "exercises/ch02_double.rs has 1 of the 2 todo!(…) that were recorded ";
        assert!(refused(&sample).starts_with(says), "{}", refused(&sample));
        assert!(record(&sample.course, true).unwrap().contains("ch02_double"));
        sample.expect_nothing();
    }
}
