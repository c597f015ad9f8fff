use std::path::Path;

use crossterm::event::KeyCode;
use page_by_page_course::cargo::Progress;
use page_by_page_course::chapters::{self, Todo};
use page_by_page_course::lesson::Lesson;
use page_by_page_course::record::Record;

use super::*;
use crate::compiler::Diagnostic;
use crate::verdict::tests::verdict;

fn here() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Chapter 2 of this repository with this text as its file, in a folder of its own; untouched if the text is empty.
fn app(text: &str) -> App {
    let chapters = chapters::all(here()).unwrap();
    let root = tempfile::tempdir().unwrap().keep();
    for file in [chapters[1].exercise(), chapters[1].solution(), chapters[1].page()] {
        let to = root.join(&file);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(here().join(&file), to).unwrap();
    }
    if !text.is_empty() {
        std::fs::write(root.join(chapters[1].exercise()), text).unwrap();
    }
    let mut app = App::new(root, chapters, 1, Duration::from_secs(9), Record::default());
    // The page includes files that are not in that folder.
    app.current.lesson = Lesson::read(here(), &app.current.chapter.name);
    app.current.task = app.current.first_left();
    app
}

/// The app after a run of all checks with this result.
fn after(result: RunResult) -> App {
    let mut app = app("mine");
    app.current.take(result, true);
    app
}

fn after_checks(checks: &[(&str, &str)]) -> App {
    after(RunResult::Finished(verdict(checks)))
}

const LONG: &str = "tokens copied in all after extend(3) on 0 tokens: a token counts once, although its rows are copied \
                    in every layer of the model\n  expected: 0\n  yours:    3";
const FIRST: &str = "x\n  your code panicked (x): not yet implemented: ch02 task 1: copy";
const SECOND: &str = "gather(0) of 3 tokens\n  your code panicked (x): not yet implemented: ch02 task 2: lend";
const THIRD: &str = "gather\n  your code panicked (x): not yet implemented: ch02 task 3: store";
const OTHER: &str =
    "x\n  your code of chapter 1 panicked (exercises/ch01.rs:9): not yet implemented: ch01 task 2: loop";

fn red() -> App {
    let checks = [
        ("task_1_extend_holds_more_tokens", ""),
        ("task_1_rows_copied_are_the_tokens_held_before", LONG),
        ("task_2_gather_lends", SECOND),
        ("task_2_keys_once_write_is_there", THIRD),
        ("whole_story", THIRD),
    ];
    after_checks(&checks)
}

fn green() -> App {
    let mut app = after_checks(&[("task_1_a", ""), ("task_2_a", ""), ("task_3_a", ""), ("whole_story", "")]);
    app.checking.gains = vec!["tokens computed for a story of 200 tokens: 20,900 → 204".into()];
    app
}

fn without_page() -> App {
    let mut app = red();
    app.current.lesson = Err("book/src/ch02_flat.md cannot be read".into());
    app
}

fn does_not_compile(is_in_file: bool) -> App {
    let error = |text: &str| Diagnostic { rendered: text.into(), is_in_file };
    after(RunResult::CompileErrors(vec![error("error: one\n --> x"), error("error: two")]))
}

fn waiting_for_chapter_1() -> App {
    after_checks(&[("task_1_a", ""), ("task_2_a", OTHER), ("task_3_a", OTHER)])
}

fn others_running() -> App {
    let mut app = red();
    app.current.take(RunResult::Finished(verdict(&[("task_1_a", "")])), false);
    app
}

fn seen(app: &mut App, size: (usize, usize)) -> String {
    screen(app, size).iter().map(|row| row.text().trim_end().to_string() + "\n").collect()
}

/// Presses keys, each on the screen that the one before has left. \x1b is escape, \n enter.
fn press(app: &mut App, size: (usize, usize), keys: &str) {
    for key in keys.chars() {
        seen(app, size);
        app.pressed(match key {
            '\x1b' => KeyCode::Esc,
            '\n' => KeyCode::Enter,
            key => KeyCode::Char(key),
        });
    }
}

/// Whether the screen shows these words, or doesn't show those after a `!`.
#[track_caller]
fn holds(app: &mut App, size: (usize, usize), words: &str) {
    let seen = seen(app, size);
    let flat = seen.split_whitespace().collect::<Vec<_>>().join(" ");
    for word in words.split(" | ") {
        let is_there = word.strip_prefix('!').map_or(flat.contains(word), |absent| !flat.contains(absent));
        assert!(is_there, "{size:?}: {word:?}\n{seen}");
    }
}

/// A state, the keys that are pressed in it, and what the screen must show then.
type Case = (fn() -> App, &'static str, &'static str);

#[test]
fn what_there_is_to_know_about_each_state_is_in_words() {
    let third = "▸ 3 write the new rows 0/1 | 0 of 1 check green Not written yet: store";
    let all = "Task 1: make room 1 of 2 checks green ✗ task_1_rows | Task 2: gather 0 of 2 checks green, 1 waits for \
               task 3 1 check reaches a todo! of this task | !✗ whole_story | !panicked";
    let written = || after_checks(&[("task_1_a", FIRST), ("task_1_b", "wrong\n  yours:    2"), ("task_1_c", FIRST)]);
    let cases: [Case; 23] = [
        (
            || app(""),
            "",
            "Not started. Edit exercises/ch02_flat.rs | Task 1: make room todo in exercises/ch02_flat.rs:",
        ),
        (|| app(""), "x", "is untouched: there is nothing to reset"),
        (red, "", "2 · The flat cache | ▸ 1 make room 1/2 · 2 gather 0/2 | 1 more red check not shown (a shows it)"),
        (red, "a", all),
        (red, "v", "the reference and the questions come once all is green"),
        (red, "t", "Task 1: make room | t whole page"),
        (red, "tt", "2. The flat cache"),
        (red, "hh", "2 of 2 hints | t task | !next hint"),
        (red, "?", "h the hints for the current task"),
        (red, "??", "1 more red check not shown"),
        (red, "x", "Reset exercises/ch02_flat.rs? | y reset"),
        (green, "", "all 4 checks are green | What it gains tokens computed for a story of 200 tokens: 20,900 → 204"),
        (green, "c", "Question 1 of | enter answer"),
        (green, "c\n", "enter next question"),
        (green, "v", "Lines with - are yours"),
        (without_page, "", "✗ task_1_rows_copied | Task 1 1 of 2 checks green | book/src/ch02_flat.md"),
        (without_page, "t", "book/src/ch02_flat.md cannot be read"),
        (|| does_not_compile(true), "", "error: one --> x 1 more error not shown (a shows it) | ▸ 1 make room | !✓"),
        (|| does_not_compile(false), "", "finds no error in exercises/ch02_flat.rs, but one elsewhere. | error: one"),
        (|| after_checks(&[("task_1_a", ""), ("task_2_b", THIRD), ("task_3_a", THIRD)]), "", third),
        (waiting_for_chapter_1, "", "2 checks wait for task 2 of chapter 1, which you have begun"),
        // Written code comes before a `todo!`.
        (written, "", "✗ task_1_b wrong yours: 2 2 more red checks not shown (a shows them)"),
        (others_running, "", "▸ 1 make room | The other checks are running"),
    ];
    for (made, keys, words) in cases {
        let mut app = made();
        press(&mut app, (80, 24), keys);
        holds(&mut app, (80, 24), words);
    }
    let states: [fn() -> App; 3] = [green, || does_not_compile(false), waiting_for_chapter_1];
    assert_eq!(states.map(|made| made().current.is_green()), [true, false, false]);
}

/// The failure is what a small terminal has room for.
#[test]
fn the_smallest_terminal_shows_the_failure_itself() {
    let mut app = red();
    let words = "2 · The flat cache | ✗ task_1_rows_copied | the model expected: 0 yours: 3 | ↓ 2 more lines | ? keys";
    holds(&mut app, (40, 12), words);
    press(&mut app, (40, 12), "t");
    seen(&mut app, (40, 12));
    let (body, room) = app.extent;
    assert!(body > room, "the section is longer than this terminal");
    (0..2 * body).for_each(|_| app.pressed(KeyCode::Down));
    assert_eq!(app.scroll, body - room);
    holds(&mut app, (40, 12), "↑ more above");
    // A larger terminal shows all of it.
    seen(&mut app, (120, 60));
    assert_eq!(app.scroll, 0);
}

#[test]
fn every_view_fits_every_terminal() {
    for mut app in [app(""), red(), green(), without_page()] {
        for columns in [1, 39, 40, 57, 80, 200] {
            for rows in [1, 11, 12, 16, 60] {
                for key in ["h", "a", "t", "?", "v", "c", "\x1b"] {
                    press(&mut app, (columns, rows), key);
                    let drawn = screen(&mut app, (columns, rows));
                    assert!(drawn.iter().all(|row| row.width() <= columns), "{columns}×{rows} {key}");
                    assert_eq!(drawn.len(), rows);
                }
            }
        }
    }
}

/// The page that explains the companion shows a screen of it, which is drawn here from the same results.
#[test]
fn the_screen_in_the_book_is_what_is_drawn() {
    let page = std::fs::read_to_string(here().join("book/src/how_to_use.md")).unwrap().replace("\r\n", "\n");
    let start = page.find("```text\n2 · The flat cache").expect("the screen is there") + "```text\n".len();
    let shown = &page[start..start + page[start..].find("```").unwrap()];
    let number = |before: &str, at: usize, end: char| {
        shown.split(before).nth(at).and_then(|rest| rest.split(end).next()?.parse::<f64>().ok()).expect("a number")
    };
    // `grown` is written with Vec::resize; nothing else is.
    let more = "numbers allocated for grown(&[1.0; 5], 1)\n  expected: 6\n  yours:    10";
    let grader = std::fs::read_to_string(here().join("tests/ch02_flat.rs")).unwrap();
    let names = grader.lines().filter_map(|line| line.trim_start().trim_start_matches("fn ").split(['(', ' ']).next());
    let checks = names.filter(|name| name.starts_with("task_") || name.starts_with("whole_")).map(|name| match name {
        "task_1_a_grown_tensor_is_the_old_one_then_zeros" => (name, ""),
        "task_1_a_grown_tensor_takes_no_more_than_it_needs" => (name, more),
        _ => (name, FIRST),
    });
    let checks: Vec<(&str, &str)> = checks.collect();
    let mut app = after_checks(&checks);
    let Ok(exercise) = &mut app.current.exercise else { panic!() };
    let line = number("exercises/ch02_flat.rs:", 1, '\n') as usize;
    exercise.todos = vec![Todo { task: 1, line, what: "make room".into() }];
    app.checking.took = Some(Duration::from_secs_f64(number(" · ", 2, ' ')));
    assert_eq!(seen(&mut app, (60, shown.lines().count())), shown);
}

#[test]
fn a_verdict_from_before_the_save_is_marked_and_a_first_build_shows_its_progress() {
    let mut app = red();
    app.checking.is_stale = true;
    app.show_stage(Stage::Compiling(None));
    holds(&mut app, (80, 24), "compiling … 0.0 s | Before this save: Task 1 | yours: 3");
    for done in [29, 144] {
        let progress = Progress { done, of: 145, crates: "serde, tokenizers".into() };
        app.show_stage(Stage::Compiling(Some(progress)));
        let words = format!("Compiling {done} of 145 packages: serde, tokenizers | takes a minute or two | !yours");
        holds(&mut app, (80, 24), &words);
    }
    app.show_stage(Stage::Checking);
    holds(&mut app, (80, 24), "checking … | Before this save:");
    app.show_result(RunResult::Finished(verdict(&[("task_1_a", ""), ("whole_story", "no")])));
    holds(&mut app, (80, 24), "All tasks are green; the chapter as a whole is not. | !Before this save");
}

#[test]
fn each_part_of_a_run_replaces_what_it_ran_again() {
    let mut app = red();
    let names = |app: &App| app.current.verdict().0.keys().map(|(_, name)| name.clone()).collect::<Vec<_>>();
    let mut take = |checks: &[(&str, &str)], is_whole| {
        app.current.take(RunResult::Finished(verdict(checks)), is_whole);
        (names(&app), app.current.task)
    };
    assert_eq!(take(&[("task_1_a", "")], false), (vec!["task_1_a".into()], Some(1)));
    assert_eq!(take(&[("task_2_a", "no")], true), (vec!["task_1_a".into(), "task_2_a".into()], Some(2)));
    assert_eq!(take(&[("task_2_a", "")], false), (vec!["task_2_a".into()], Some(2)));
    assert_eq!(take(&[("task_1_a", "")], true).1, None);
    app.current.take(RunResult::CompileErrors(Vec::new()), true);
    assert!(!app.current.is_green());
}
