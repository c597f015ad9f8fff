//! The record of hashes: which text is a stub as it was handed out.
//!
//! `build.rs` reads the record to tell a chapter that the reader has started from one that is untouched. A stub that is
//! edited here without a new record would count as started for everybody.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use crate::course::{Course, RECORD};
use crate::finding::Report;
use crate::stub::fingerprint;
use crate::tasks;

const HEADER: &str =
    "# Hashes of the stubs as they are handed out; `cargo run -p course-tool -- record` writes this file.\n";

/// Writes the record anew; says what has changed.
///
/// # Errors
/// If a file in `exercises/` is not a stub. The record is then as it was.
pub fn record(course: &Course) -> Result<String> {
    let mut text = HEADER.to_string();
    for chapter in course.chapters()? {
        let file = chapter.stub();
        let stub = course.read(&file)?;
        let parsed = syn::parse_file(&stub).with_context(|| format!("{file} is not Rust"))?;
        if !tasks::todos(&parsed).iter().any(|todo| todo.name == "todo") {
            bail!(
                "{file} has no todo!(…) left: it looks like a solution, not a stub; \
                 restore the stub with `git checkout {file}`"
            );
        }
        text.push_str(&format!("{}  {}\n", fingerprint(&stub), chapter.name));
    }
    let before = course.read(RECORD)?;
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

        assert!(record(&sample.course).unwrap().contains("ch01_sum"));
        sample.expect_nothing();
        assert_eq!(record(&sample.course).unwrap(), "exercises/untouched.txt is up to date");
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

    #[test]
    fn a_solution_is_not_recorded() {
        let sample = Sample::new();
        let before = sample.course.read(RECORD).unwrap();
        let solution = sample.course.read("solutions/ch01_sum.rs").unwrap();
        sample.write("exercises/ch01_sum.rs", &format!("// Once there was a todo!(\"ch01 task 1: …\").\n{solution}"));
        let error = record(&sample.course).unwrap_err().to_string();
        assert!(error.starts_with("exercises/ch01_sum.rs has no todo!"), "{error}");
        assert_eq!(sample.course.read(RECORD).unwrap(), before);
    }
}
