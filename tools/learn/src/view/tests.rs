use std::path::Path;
use std::time::Duration;

use crossterm::event::KeyCode;
use page_by_page_course::cargo::Progress;
use page_by_page_course::chapters::{self, State, Todo};
use page_by_page_course::lesson::Lesson;
use page_by_page_course::record::{Record, Tally};
use ratatui_core::backend::TestBackend;
use ratatui_core::style::Modifier;
use ratatui_core::terminal::Terminal;

use super::*;
use crate::checks::Verdict;
use crate::checks::tests::verdict;
use crate::compiler::{Diagnostic, Errors};
use crate::gains::Gains;
use crate::run::{Ending, News, Report};

mod results;

/// The sizes that are looked at: the smallest, the usual, a large one.
const SIZES: [(u16, u16); 3] = [(40, 12), (80, 24), (120, 40)];

fn here() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Chapter 2 of this repository, as if its file were this one. The record and the file are in a folder of their own.
fn app(text: &str) -> App {
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

fn report(checks: &[(&str, &str)]) -> Report {
    Report { ending: Ending::Checks, verdict: verdict(checks), n_warnings: 1 }
}

const LONG: &str = "rows copied in all after extend(3) on 0 tokens: a token counts once, although its rows are copied in \
                    every layer of the model\n  expected: 0\n  yours:    3";

fn red_app() -> App {
    let mut app = app("task 2, task 3");
    let third = "gather\n  your code panicked (x): not yet implemented: ch02 task 3: store";
    let second = "gather(0) of 3 tokens\n  your code panicked (x): not yet implemented: ch02 task 2: lend";
    app.current.take(
        report(&[
            ("task_1_extend_holds_more_tokens", ""),
            ("task_1_rows_copied_are_the_tokens_held_before", LONG),
            ("task_2_gather_lends", second),
            ("task_2_keys_once_write_is_there", third),
            ("whole_story", third),
        ]),
        true,
    );
    app
}

fn green_app() -> App {
    let mut app = app("all done");
    app.current.take(report(&[("task_1_a", ""), ("task_2_a", ""), ("task_3_a", ""), ("whole_story", "")]), true);
    app.gained.lines = vec!["rows projected for a story of 200 tokens: 20,900 → 204".into()];
    app
}

fn draw(app: &mut App, (columns, rows): (u16, u16)) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| super::draw(app, frame)).unwrap();
    terminal
}

/// The screen as it is seen.
fn seen(app: &mut App, size: (u16, u16)) -> String {
    let terminal = draw(app, size);
    let cells = terminal.backend().buffer().content().chunks(size.0.into());
    cells.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_string() + "\n").collect()
}

#[track_caller]
fn holds(app: &mut App, size: (u16, u16), words: &[&str]) {
    let seen = seen(app, size);
    let flat = seen.split_whitespace().collect::<Vec<_>>().join(" ");
    for word in words {
        assert!(flat.contains(word), "{size:?} lacks {word:?}:\n{seen}");
    }
}

fn press(app: &mut App, keys: &str) {
    keys.chars().for_each(|key| app.pressed(KeyCode::Char(key)));
}

#[test]
fn an_untouched_chapter_says_where_to_begin() {
    for size in SIZES {
        let words = ["2 · The flat cache", "Not started.", "exercises/ch02_flat.rs", "▸ 1", "Task 1: make room"];
        holds(&mut app(""), size, &words);
        holds(&mut app(""), size, &["t task", "? keys", "q quit"]);
    }
    holds(&mut app(""), (80, 24), &["Task 1: make room todo in exercises/ch02_flat.rs:52 copy into a new tensor"]);
    let mut app = app("");
    press(&mut app, "a");
    assert_eq!(app.view, View::Main);
    holds(&mut app, (80, 24), &["nothing is red yet: edit exercises/ch02_flat.rs to begin"]);
}

#[test]
fn a_red_chapter_shows_its_first_failure_and_no_other() {
    for size in SIZES {
        let mut app = red_app();
        holds(&mut app, size, &["▸ 1", "1/2", "✗ task_1_rows_copied", "h hint", "q quit"]);
        assert!(!seen(&mut app, size).contains("your code panicked"), "only the first failure");
        // The rest can be scrolled to.
        app.pressed(KeyCode::End);
        holds(&mut app, size, &["1 more red check not shown (a shows it)", "1 warning in"]);
    }
    let expected = "\
2 · The flat cache
▸ 1 make room 1/2  · 2 gather 0/2  · 3 write the new rows  · whole 0/1
────────────────────────────────────────────────────────────────────────────────
Task 1: make room
1 of 2 checks green

✗ task_1_rows_copied_are_the_tokens_held_before
rows copied in all after extend(3) on 0 tokens: a token counts once, although
its rows are copied in every layer of the model
  expected: 0
  yours:    3

1 more red check not shown (a shows it)

1 warning in exercises/ch02_flat.rs; `cargo check` shows them
";
    let screen = seen(&mut red_app(), (80, 24));
    assert!(screen.starts_with(expected), "{screen}\n{expected}");
}

/// The failure is what a small terminal has room for, and no name is broken in the middle of a word.
#[test]
fn the_smallest_terminal_shows_the_failure_itself() {
    let expected = "\
2 · The flat cache
▸ 1 make room 1/2  · 2 0/2  · 3  · whole
✗ task_1_rows_copied_are_the_tokens_
  held_before
rows copied in all after extend(3) on 0
tokens: a token counts once, although
its rows are copied in every layer of
the model
  expected: 0
  yours:    3
────────────────────── ↓ 5 more lines ──
h hint  a all  t task  ? keys  q quit
";
    let mut app = red_app();
    let screen = seen(&mut app, (40, 12));
    let of = |text: &str| text.lines().skip(2).map(String::from).collect::<Vec<_>>();
    assert_eq!(of(&screen), of(expected), "{screen}");
}

#[test]
fn all_failures_are_a_key_away() {
    let mut app = red_app();
    press(&mut app, "a");
    let words = [
        "Task 1: make room",
        "1 check reaches a todo! of this task",
        "1 waits for task 3",
        "Task 2: gather 0 of 2 checks green",
    ];
    holds(&mut app, (120, 40), &words);
    let seen = seen(&mut app, (120, 40));
    assert!(!seen.contains("✗ whole_story") && !seen.contains("panicked"), "what waits or isn't written is no failure");
    app.pressed(KeyCode::Esc);
    assert_eq!(app.view, View::Main);
}

#[test]
fn hints_come_one_by_one_from_the_page() {
    for size in SIZES {
        let mut app = red_app();
        press(&mut app, "h");
        holds(&mut app, size, &["1 of 2 hints", "Hint 1", "h next hint"]);
        assert!(!seen(&mut app, (size.0, 60)).contains("Hint 2"));
        press(&mut app, "h");
        holds(&mut app, size, &["Hint 2", "before you change len"]);
        assert!(!seen(&mut app, size).contains("next hint"));
        press(&mut app, "h");
        holds(&mut app, size, &["that was the last hint"]);
        app.pressed(KeyCode::Esc);
        holds(&mut app, size, &["h hint 2/2"]);
    }
    // A narrow terminal keeps the title of the current task, and the key for it.
    holds(&mut red_app(), (45, 18), &["h hint a all t task"]);
    assert!(seen(&mut red_app(), (60, 24)).contains("▸ 1 make room 1/2  · 2 0/2"));
}

#[test]
fn the_reference_and_the_questions_come_when_all_is_green() {
    let mut app = red_app();
    press(&mut app, "v");
    holds(&mut app, (40, 12), &["the reference is shown once all is green; 1 of 5 checks are"]);
    press(&mut app, "c");
    holds(&mut app, (80, 24), &["questions come once all is green"]);
    for size in SIZES {
        let mut app = green_app();
        assert!(app.current.is_green());
        holds(
            &mut app,
            size,
            &["✓ 1", "✓ 3", "✓ whole", "Chapter 2 is done: all 4 checks are green.", "n next chapter"],
        );
        press(&mut app, "c");
        holds(&mut app, size, &["Question 1 of 5", "Why keep keys and values, but not queries?", "Think first"]);
        app.pressed(KeyCode::Enter);
        holds(&mut app, size, &["The query of a token is used once", "enter next question"]);
        app.pressed(KeyCode::Enter);
        holds(&mut app, size, &["Question 2 of 5", "What if a vector grew by doubling"]);
        app.pressed(KeyCode::Esc);
        press(&mut app, "v");
        // It opens at the first difference.
        holds(&mut app, size, &["between yours and the reference", "all done"]);
    }
}

#[test]
fn a_green_chapter_says_what_it_gains_and_where_to_read_on() {
    let mut app = green_app();
    holds(&mut app, (80, 24), &["What it gains rows projected for a story of 200 tokens: 20,900 → 204"]);
    let text = std::fs::read_to_string(here().join("book/src/ch02_flat.md")).unwrap();
    let line = text.lines().position(|line| line == "## Look at it").unwrap() + 1;
    holds(&mut app, (80, 24), &["Read on from “Look at it” (o)", &format!("book/src/ch02_flat.md:{line}")]);
    app.book.port = Some(3000);
    holds(&mut app, (80, 24), &["page http://127.0.0.1:3000/ch02_flat.html#look-at-it"]);
    // Half an address leads nowhere.
    holds(&mut app, (45, 24), &[&format!("page book/src/ch02_flat.md:{line}")]);
    std::fs::remove_file(app.current.root.join(app.current.chapter.page())).unwrap();
    holds(&mut app, (80, 24), &["Read on from “What it bought”"]);
}

#[test]
fn the_whole_page_can_be_read_here() {
    let mut app = red_app();
    press(&mut app, "t");
    holds(&mut app, (80, 24), &["t whole page"]);
    press(&mut app, "t");
    holds(&mut app, (80, 24), &["Task 1: make room"]);
    let all = seen(&mut app, (80, 900));
    for words in ["The problem, measured", "The idea", "What must hold", "(Figure", "Why keep keys and values"] {
        assert!(all.contains(words), "{words}:\n{all}");
    }
    assert!(!all.contains("Hint 1") && !all.contains("{{#") && !all.contains("before you change len"));
}

#[test]
fn without_keys_none_is_named() {
    for mut app in [app(""), red_app(), green_app()] {
        app.current.has_keys = false;
        let text: String = verdict::lines(&app.current, false).iter().map(|line| line.text() + "\n").collect();
        for key in ["(a shows", "(o", "(t)", "(c)", "(n)"] {
            assert!(!text.contains(key), "{key}:\n{text}");
        }
    }
}

#[test]
fn a_page_that_cannot_be_read_hides_nothing() {
    let mut app = red_app();
    app.current.lesson = Err("book/src/ch02_flat.md cannot be read".into());
    holds(&mut app, (80, 24), &["✗ task_1_rows_copied", "▸ 1 1/2", "book/src/ch02_flat.md"]);
    for key in ["t", "h", "a", "c", "?"] {
        press(&mut app, key);
        seen(&mut app, (40, 12));
    }
}

#[test]
fn every_view_fits_every_terminal() {
    for mut app in [app(""), red_app(), green_app()] {
        for columns in [1, 20, 39, 40, 41, 57, 80, 109, 110, 200] {
            for rows in [1, 2, 11, 12, 15, 16, 24, 60] {
                for key in ["h", "a", "t", "?", "v", "c"] {
                    press(&mut app, key);
                    let rows_drawn = screen(&mut app, columns.into(), rows.into());
                    assert!(rows_drawn.iter().all(|row| row.width() <= columns.into()), "{columns}×{rows} {key}");
                    if (columns, rows) == (57, 11) {
                        holds(&mut app, (columns, rows), &["cargo learn needs 40×12"]);
                    }
                    app.pressed(KeyCode::PageDown);
                    app.pressed(KeyCode::Esc);
                }
            }
        }
    }
}

#[test]
fn scrolling_ends_where_the_text_does() {
    let mut app = red_app();
    press(&mut app, "t");
    seen(&mut app, (40, 12));
    let (body, room) = app.extent;
    assert!(body > room, "the section is longer than this terminal");
    (0..2 * body).for_each(|_| app.pressed(KeyCode::Down));
    assert_eq!(app.scroll, body - room);
    holds(&mut app, (40, 12), &["↑ more above"]);
    app.pressed(KeyCode::Home);
    assert_eq!(app.scroll, 0);
    // A larger terminal shows all of it.
    app.pressed(KeyCode::End);
    seen(&mut app, (120, 60));
    assert_eq!(app.scroll, 0);
}

/// The page that explains the companion shows a screen of it, which is drawn here from the same results.
#[test]
fn the_screen_in_the_book_is_what_is_drawn() {
    let page = std::fs::read_to_string(here().join("book/src/how_to_use.md")).unwrap().replace("\r\n", "\n");
    let start = page.find("```text\n2 · The flat cache").expect("the screen is there") + "```text\n".len();
    let shown = &page[start..start + page[start..].find("```").unwrap()];
    let grader = std::fs::read_to_string(here().join("tests/ch02_flat.rs")).unwrap();
    // `grown` is written with Vec::resize; nothing else is.
    let todo = "x\n  your code panicked (x): not yet implemented: ch02 task 1: make room";
    let more = "numbers allocated for grown(&[1.0; 5], 1)\n  expected: 6\n  yours:    10";
    let mut app = app("");
    app.current.grader = grader.clone();
    let message = |name: &str| match name {
        "task_1_a_grown_tensor_is_the_old_one_then_zeros" => "",
        "task_1_a_grown_tensor_takes_no_more_than_it_needs" => more,
        _ => todo,
    };
    let checks: Vec<(&str, &str)> = app.current.all_checks().into_iter().map(|name| (name, message(name))).collect();
    let report = Report { n_warnings: 0, ..report(&checks) };
    let Ok(exercise) = &mut app.current.exercise else { panic!() };
    exercise.state = State::Begun;
    let line = shown.split("exercises/ch02_flat.rs:").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
    exercise.todos[0].line = line.expect("the line of the todo");
    app.current.take(report, true);
    let seconds = shown.split(" · ").nth(2).and_then(|rest| rest.split(' ').next()?.parse().ok());
    app.checking.took = Some(Duration::from_secs_f64(seconds.expect("how long it took")));
    assert_eq!(seen(&mut app, (80, shown.lines().count() as u16)), shown);
}
