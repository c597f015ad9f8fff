//! The states that the screen is drawn in: chapter 2 untouched, red, green, and after each way that a run can end.

use std::time::Duration;

use page_by_page_course::chapters::{self, State, Todo};
use page_by_page_course::lesson::Lesson;
use page_by_page_course::record::Record;

use super::here;
use crate::app::App;
use crate::checks::tests::verdict;
use crate::compiler::{Diagnostic, Errors};
use crate::run::{Ending, Report};

/// Chapter 2 of this repository, as if its file were this one. The record and the file are in a folder of their own.
pub fn app(text: &str) -> App {
    let chapters = chapters::all(here()).unwrap();
    let root = tempfile::tempdir().unwrap().keep();
    for file in [chapters[1].exercise(), chapters[1].solution(), chapters[1].page()] {
        let to = root.join(&file);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(here().join(&file), to).unwrap();
    }
    let mut app = App::new(root, chapters, 1, Record::default(), None, Duration::from_secs(9));
    app.current.lesson = Lesson::read(here(), &app.current.chapter.name);
    // Whatever is in the reader's file while these tests run.
    let Ok(exercise) = &mut app.current.exercise else { panic!("the stub is there") };
    exercise.todos.clear();
    match text {
        "" => {
            exercise.state = State::Untouched;
            exercise.todos.push(Todo { task: 1, line: 52, what: "copy into a new tensor".into() });
        }
        text => (exercise.state, exercise.text) = (State::Begun, text.into()),
    }
    app
}

/// The same after a run of all checks.
pub fn after(text: &str, report: impl Into<Report>) -> App {
    let mut app = app(text);
    app.current.take(report, true);
    app
}

pub fn report(checks: &[(&str, &str)]) -> Report {
    Report { ending: Ending::Checks, verdict: verdict(checks), n_warnings: 1 }
}

pub fn cut_off(checks: &[(&str, &str)], why: &str) -> Report {
    Report { verdict: verdict(checks), ..Ending::CutOff(why.into()).into() }
}

/// Errors of the compiler: what it prints and the file, at line 61.
pub fn errors(shown: &[(&str, &str)], elsewhere: usize, in_file: bool) -> Ending {
    let error = |(rendered, file): &(&str, &str)| Diagnostic {
        rendered: rendered.to_string(),
        is_in_file: true,
        file: Some(file.to_string()),
        line: Some(61),
    };
    Ending::Errors(Errors { shown: shown.iter().map(error).collect(), elsewhere, in_file })
}

const LONG: &str = "rows copied in all after extend(3) on 0 tokens: a token counts once, although its rows are copied in \
                    every layer of the model\n  expected: 0\n  yours:    3";
const SECOND: &str = "gather(0) of 3 tokens\n  your code panicked (x): not yet implemented: ch02 task 2: lend";
const THIRD: &str = "gather\n  your code panicked (x): not yet implemented: ch02 task 3: store";

pub fn untouched() -> App {
    app("")
}

pub fn red() -> App {
    let checks = [
        ("task_1_extend_holds_more_tokens", ""),
        ("task_1_rows_copied_are_the_tokens_held_before", LONG),
        ("task_2_gather_lends", SECOND),
        ("task_2_keys_once_write_is_there", THIRD),
        ("whole_story", THIRD),
    ];
    after("task 2, task 3", report(&checks))
}

pub fn green() -> App {
    let checks = [("task_1_a", ""), ("task_2_a", ""), ("task_3_a", ""), ("whole_story", "")];
    let mut app = after("all done", report(&checks));
    app.gained.lines = vec!["rows projected for a story of 200 tokens: 20,900 → 204".into()];
    app
}

pub fn without_page() -> App {
    let mut app = red();
    app.current.lesson = Err("book/src/ch02_flat.md cannot be read".into());
    app
}

pub fn two_errors() -> App {
    after("task 1", errors(&[("\x1b[91merror\x1b[0m: one", "x"), ("error: two", "x")], 3, true))
}

pub fn error_in_chapter_1() -> App {
    let mut app = green();
    let shown =
        [("error: in a solution", "solutions/ch07_rewind.rs"), ("error: in chapter 1", "exercises/ch01_recompute.rs")];
    app.current.take(errors(&shown, 0, false), false);
    app
}

pub fn error_somewhere() -> App {
    after("task 1", errors(&[("error: one", "x")], 0, false))
}

pub fn stopped() -> App {
    let why = "failed: checks::task_2_b: later\n  expected: 1\n\nfailed: checks::task_1_a: does the loop end?\n  yours: 2\n\n\
               error: checks::task_2_c asks for 9 bytes more,\nand more";
    after("task 1", cut_off(&[], why))
}

pub fn waiting_for_task_3() -> App {
    after("task 3", report(&[("task_1_a", ""), ("task_2_a", ""), ("task_2_b", THIRD), ("task_3_a", THIRD)]))
}

pub fn waiting_for_chapter_1() -> App {
    let first = "x\n  your code of chapter 1 panicked (exercises/ch01.rs:9): not yet implemented: ch01 task 2: loop";
    after("all done", report(&[("task_1_a", ""), ("task_2_a", first), ("task_3_a", first)]))
}

pub fn one_written() -> App {
    let todo = "x\n  your code panicked (x): not yet implemented: ch02 task 1: copy";
    after("task 1", report(&[("task_1_a", todo), ("task_1_b", "wrong\n  yours:    2"), ("task_1_c", todo)]))
}

pub fn others_running() -> App {
    let mut app = red();
    let checks = [("task_1_extend_holds_more_tokens", ""), ("task_1_rows_copied_are_the_tokens_held_before", "")];
    app.current.take(report(&checks), false);
    app
}
