//! The checks that only read: seconds, nothing compiled.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::course::{Chapter, Course};
use crate::finding::Report;
use crate::surface::Surface;
use crate::{leak, listing, mutation, pages, protection, record, standing, stub, surface, tasks};

/// Looks at everything.
pub fn check(course: &Course) -> Result<Report> {
    let chapters = course.chapters()?;
    let mut report = Report { chapters: chapters.len(), ..Report::default() };
    record::check(course, &mut report)?;
    check_files(course, &chapters, &mut report)?;
    listing::check(course, &chapters, &mut report)?;
    standing::check(course, &chapters, &mut report)?;
    for chapter in &chapters {
        check_chapter(course, chapter, &mut report)?;
    }
    protection::check(course, &mut report)?;
    mutation::check(course, &chapters, &mut report)?;
    Ok(report)
}

/// Each stub has a solution and a grader, and nothing is left over.
fn check_files(course: &Course, chapters: &[Chapter], report: &mut Report) -> Result<()> {
    let stubs: BTreeSet<&str> = chapters.iter().map(|chapter| chapter.name.as_str()).collect();
    for chapter in chapters {
        for file in [chapter.solution(), chapter.grader()] {
            if !course.has(&file) {
                report.add(file, 0, format!("is missing: {} needs it", chapter.stub()));
            }
        }
    }
    for name in course.names("solutions", ".rs")? {
        if !stubs.contains(name.as_str()) {
            report.add(format!("solutions/{name}.rs"), 0, format!("has no stub exercises/{name}.rs"));
        }
    }
    for name in course.names("tests", ".rs")? {
        let chapter = Chapter { name };
        if chapter.number().is_some() && !stubs.contains(chapter.name.as_str()) {
            report.add(chapter.grader(), 0, format!("has no stub {}", chapter.stub()));
        }
    }
    Ok(())
}

/// What can be seen in the files of one chapter.
fn check_chapter(course: &Course, chapter: &Chapter, report: &mut Report) -> Result<()> {
    let mut read = |file: String| -> Result<Option<(String, syn::File)>> {
        if !course.has(&file) {
            return Ok(None);
        }
        let text = course.read(&file)?;
        if let Some((line, problem)) = stub::refused(&text).filter(|_| file != chapter.grader()) {
            report.add(&file, line, problem);
        }
        match syn::parse_file(&text) {
            Ok(parsed) => Ok(Some((text, parsed))),
            Err(error) => {
                report.add(file, error.span().start().line, format!("is not Rust: {error}"));
                Ok(None)
            }
        }
    };
    let (stub, solution, grader) = (read(chapter.stub())?, read(chapter.solution())?, read(chapter.grader())?);
    if let Some((text, parsed)) = &stub {
        tasks::check(chapter, text, parsed, grader.as_ref().map(|(_, parsed)| parsed), report);
    }
    pages::check(course, chapter, stub.as_ref().map(|(_, parsed)| parsed), report);
    if let Some((_, parsed)) = &solution {
        tasks::check_solution(chapter, parsed, report);
    }
    if let (Some((stub_text, stub)), Some((solution_text, solution))) = (&stub, &solution) {
        surface::check(chapter, &Surface::of(stub), &Surface::of(solution), report);
        leak::check(chapter, (stub_text, stub), (solution_text, solution), report);
        for function in leak::written(stub, solution) {
            let problem = format!("`{function}` has no todo!, but is not as in {}", chapter.solution());
            report.add(chapter.stub(), 0, problem);
        }
    }
    if let Some((text, _)) = &grader {
        let name = &chapter.name;
        for wanted in [format!("#[cfg(unstarted = \"{name}\")]"), "#[ignore = \"not started: ".into()] {
            if !text.contains(&wanted) {
                report.add(chapter.grader(), 0, format!("lacks {wanted}: an untouched chapter would not be ignored"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::sample::Sample;

    #[test]
    fn the_sample_is_in_order() {
        Sample::new().expect_nothing();
    }

    #[test]
    fn missing_and_left_over_files_are_found() {
        for (file, problem) in [
            ("solutions/ch01_sum.rs", "solutions/ch01_sum.rs: is missing: exercises/ch01_sum.rs needs it"),
            ("tests/ch01_sum.rs", "tests/ch01_sum.rs: is missing: exercises/ch01_sum.rs needs it"),
            ("exercises/ch01_sum.rs", "solutions/ch01_sum.rs: has no stub exercises/ch01_sum.rs"),
            ("exercises/ch01_sum.rs", "tests/ch01_sum.rs: has no stub exercises/ch01_sum.rs"),
        ] {
            let sample = Sample::new();
            sample.remove(file);
            sample.expect(problem);
        }
    }

    #[test]
    fn a_grader_that_is_never_ignored_is_found() {
        let sample = Sample::new();
        sample.replace("tests/ch01_sum.rs", "#[ignore = ", "#[should_panic = ");
        sample.expect("tests/ch01_sum.rs: lacks #[ignore = \"not started: ");
    }

    #[test]
    fn code_that_ends_the_checks_is_found() {
        let sample = Sample::new();
        sample.replace("solutions/ch02_double.rs", "number + number\n", "std::process::exit(0)\n");
        sample.expect("solutions/ch02_double.rs:5: a chapter may not use std::process");
    }

    #[test]
    fn a_file_that_is_not_rust_is_named() {
        let sample = Sample::new();
        sample.replace("solutions/ch02_double.rs", "-> u32 {", "-> u32 }");
        sample.expect("solutions/ch02_double.rs:4: is not Rust");
    }
}
