//! The tasks of a chapter, which its stub, its grader and its page all number: `todo!("ch06 task 2: …")`, `fn
//! task_2_…`, `### Task 2: …`.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Error, Result};
use page_by_page_course::chapters::{Chapter, todos};
use page_by_page_course::lesson::{Fold, Lesson};
use page_by_page_course::libtest::task_of;

use crate::check::Report;

/// The tasks that a text has a `todo!` for.
pub fn of_stub(chapter: &Chapter, stub: &str) -> BTreeSet<u32> {
    todos(stub, chapter.number).iter().map(|todo| todo.task).collect()
}

pub fn check(root: &Path, chapter: &Chapter, stub: &str, grader: &str, report: &mut Report) -> Result<()> {
    let tasks = of_stub(chapter, stub);
    let exercise = chapter.exercise();
    if !tasks.iter().copied().eq(1..=tasks.len() as u32) || tasks.is_empty() {
        report.add(&exercise, format!("has the tasks {tasks:?}, which are not 1, 2, 3 …"));
    }
    let in_text = stub.matches("todo!(").count();
    let found = todos(stub, chapter.number).len();
    if in_text != found {
        let problem = format!("writes todo!( {in_text} times, and {found} of them name chapter and task");
        report.add(&exercise, problem);
    }
    // `fn task_1_adds() {`, or `task_1_adds = adds,` in a list of `tests_on!`
    let test = |line: &str| task_of(line.trim_start().trim_start_matches("fn ").split(['(', ' ']).next()?);
    let tests: BTreeSet<u32> = grader.lines().filter_map(test).collect();
    for task in tasks.symmetric_difference(&tests) {
        let problem = match tests.contains(task) {
            true => format!("has a test of task {task}, and {exercise} has no such task"),
            false => format!("has no test named task_{task}_…: nothing says that task {task} is done"),
        };
        report.add(chapter.grader(), problem);
    }
    check_page(root, chapter, &tasks, report)
}

/// Each task has its section in the page, with hints; each question has an answer.
fn check_page(root: &Path, chapter: &Chapter, tasks: &BTreeSet<u32>, report: &mut Report) -> Result<()> {
    let file = chapter.page();
    let lesson = Lesson::read(root, &chapter.name).map_err(Error::msg)?;
    let sections: Vec<u32> = lesson.tasks.iter().map(|task| task.number).collect();
    if !sections.iter().eq(tasks) {
        let problem = format!("has sections of the tasks {sections:?}, and {} has {tasks:?}", chapter.exercise());
        report.add(&file, problem);
    }
    let is_empty = |fold: &Fold| fold.summary.is_empty() || fold.body.is_empty();
    for task in &lesson.tasks {
        if task.hints.is_empty() || task.hints.iter().any(is_empty) {
            let problem = "has no hint, or an empty one: fold each, `<details class=\"hint\">`, under its text";
            report.add(format!("{file}:{}", task.line), format!("task {} {problem}", task.number));
        }
    }
    if lesson.questions.is_empty() || lesson.questions.iter().any(is_empty) {
        report.add(&file, "has no question, or an empty one: *Check yourself* folds each answer under its own");
    }
    Ok(())
}
