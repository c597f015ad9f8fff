//! The pages of the chapters, as far as the tasks need them: a reader who is stuck unfolds a hint, and `cargo learn` shows
//! the same ones. So each task of a stub has its section in the page, with a hint in it.

use std::collections::BTreeSet;

use crate::course::{Chapter, Course};
use crate::finding::Report;
use crate::lesson::Lesson;
use crate::tasks;

/// Compares a chapter's page with the tasks of its stub.
pub fn check(course: &Course, chapter: &Chapter, stub: Option<&syn::File>, report: &mut Report) {
    let lesson = match Lesson::read(&course.root, &chapter.name) {
        Ok(lesson) => lesson,
        Err(problem) => return report.add(chapter.page(), 0, problem),
    };
    let mut seen = BTreeSet::new();
    for task in &lesson.tasks {
        let number = task.number;
        if !seen.insert(number) {
            report.add(&lesson.file, task.line, format!("has a second section `### Task {number}: …`"));
        }
        if task.hints.is_empty() {
            let problem = format!("task {number} has no hint: fold one, `<details class=\"hint\">`, under its text");
            report.add(&lesson.file, task.line, problem);
        }
        for hint in &task.hints {
            if hint.summary.is_empty() {
                let problem = format!("a hint of task {number} has no `<summary>`: nothing is there to unfold it");
                report.add(&lesson.file, hint.line, problem);
            }
            if hint.body.is_empty() {
                report.add(&lesson.file, hint.line, format!("a hint of task {number} has no text"));
            }
        }
    }
    if let Some(stub) = stub {
        let tasks: BTreeSet<u32> = tasks::numbers(stub).into_iter().filter_map(|task| task.try_into().ok()).collect();
        for missing in tasks.difference(&seen) {
            let problem = format!("has no section `### Task {missing}: …`, and {} has that task", chapter.stub());
            report.add(&lesson.file, 0, problem);
        }
        for task in lesson.tasks.iter().filter(|task| !tasks.contains(&task.number)) {
            let problem = format!("is about task {}, which {} does not have", task.number, chapter.stub());
            report.add(&lesson.file, task.line, problem);
        }
    }
    if !lesson.tasks.is_sorted_by_key(|task| task.number) {
        report.add(&lesson.file, 0, "the tasks are not in order");
    }
    for question in &lesson.questions {
        if question.question.is_empty() {
            report.add(&lesson.file, question.line, "an answer has no `<summary>` with its question");
        }
        if question.answer.is_empty() {
            report.add(&lesson.file, question.line, "a question has no answer: write it behind the `<summary>`");
        }
    }
    if lesson.questions.is_empty() {
        let problem =
            "has no question: *Check yourself* folds each answer, `<details class=\"answer\">`, under its own";
        report.add(&lesson.file, 0, problem);
    }
    if lesson.bought.as_deref().unwrap_or_default().is_empty() {
        report.add(&lesson.file, 0, "has no section `## What it bought`, or nothing in it");
    }
}

#[cfg(test)]
mod tests {
    use crate::sample::Sample;

    const PAGE: &str = "book/src/ch01_sum.md";

    #[test]
    fn a_missing_page_is_found() {
        let sample = Sample::new();
        sample.remove(PAGE);
        sample.expect("book/src/ch01_sum.md: book/src/ch01_sum.md cannot be read: ");
    }

    #[test]
    fn a_task_without_a_section_is_found() {
        let sample = Sample::new();
        sample.replace(PAGE, "### Task 2: the total", "### The total");
        sample.expect("book/src/ch01_sum.md: has no section `### Task 2: …`, and exercises/ch01_sum.rs has that task");
        sample.replace(PAGE, "### The total", "### Task 3: the total");
        sample.expect("book/src/ch01_sum.md:16: is about task 3, which exercises/ch01_sum.rs does not have");
        sample.replace(PAGE, "### Task 3: the total", "### Task 1: the total");
        sample.expect("book/src/ch01_sum.md:16: has a second section `### Task 1: …`");
    }

    #[test]
    fn tasks_out_of_order_are_found() {
        let sample = Sample::new();
        sample.replace(PAGE, "### Task 1:", "### Task 3:");
        sample.replace(PAGE, "### Task 2:", "### Task 1:");
        sample.replace(PAGE, "### Task 3:", "### Task 2:");
        sample.expect("book/src/ch01_sum.md: the tasks are not in order");
    }

    #[test]
    fn a_task_without_a_hint_is_found() {
        let sample = Sample::new();
        sample.replace(PAGE, "<details class=\"hint\">\n<summary>Hint</summary>", "<details>\n<summary>Hint</summary>");
        sample.expect("book/src/ch01_sum.md:16: task 2 has no hint");
    }

    #[test]
    fn a_hint_without_text_is_found() {
        let sample = Sample::new();
        sample.replace(PAGE, "Begin with nothing.\n", "");
        sample.expect("book/src/ch01_sum.md:9: a hint of task 1 has no text");
        sample.replace(PAGE, "<summary>Hint 1</summary>\n", "");
        sample.expect("book/src/ch01_sum.md:9: a hint of task 1 has no `<summary>`");
    }

    #[test]
    fn a_question_without_an_answer_is_found() {
        let sample = Sample::new();
        sample.replace(PAGE, "So that it is short.\n", "");
        sample.expect("book/src/ch01_sum.md:33: a question has no answer");
        sample.replace(PAGE, "<summary>Why seven?</summary>\n", "");
        sample.expect("book/src/ch01_sum.md:33: an answer has no `<summary>`");
        sample.replace(PAGE, "class=\"answer\"", "class=\"other\"");
        sample.expect("book/src/ch01_sum.md: has no question");
    }

    #[test]
    fn a_page_that_bought_nothing_is_found() {
        let sample = Sample::new();
        sample.replace(PAGE, "A sum.\n", "");
        sample.expect("book/src/ch01_sum.md: has no section `## What it bought`, or nothing in it");
    }
}
