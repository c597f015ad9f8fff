use std::path::Path;
use std::time::Duration;

use crossterm::event::KeyCode;

use super::*;
use crate::checks::{self, Verdict};
use crate::compile::Diagnostic;
use crate::course::{State, Todo};
use crate::record::Record;
use crate::runs::Report;

/// The sizes that are looked at: the smallest, the usual, a large one.
const SIZES: [(usize, usize); 3] = [(40, 12), (80, 24), (120, 40)];

/// Chapter 2 of this repository, as if its file were this one. The record and the file are in a folder of their own.
fn app(text: &str) -> App {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let chapters = course::chapters(&here).unwrap();
    let root = tempfile::tempdir().unwrap().keep();
    for file in [chapters[1].exercise(), chapters[1].solution()] {
        let to = root.join(&file);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(here.join(&file), to).unwrap();
    }
    let mut app = App::new(root, chapters, 1, Record::default(), None, Duration::from_secs(9));
    app.shown.lesson = course::lesson(&here, &app.shown.chapter);
    let Ok(exercise) = &mut app.shown.exercise else { panic!("the stub is there") };
    // Whatever is in the reader's file while these tests run.
    exercise.todos.clear();
    match text {
        "" => {
            exercise.state = State::Untouched;
            let what = "copy into a new tensor".to_string();
            exercise.todos.push(Todo { task: 1, line: 52, what });
        }
        text => (exercise.state, exercise.text) = (State::Started, text.into()),
    }
    app
}

/// A run of these checks of chapter 2, red ones with their words.
fn report(checks: &[(&str, &str)]) -> Report {
    let mut output = format!("running {} tests\n", checks.len());
    let red = || checks.iter().filter(|(_, words)| !words.is_empty());
    for (name, words) in checks {
        output += &format!("test checks::{name} ... {}\n", if words.is_empty() { "ok" } else { "FAILED" });
    }
    output += "\nfailures:\n\n";
    red().for_each(|(name, words)| output += &format!("---- checks::{name} stdout ----\n{words}\n\n"));
    output += "\nfailures:\n";
    red().for_each(|(name, _)| output += &format!("    checks::{name}\n"));
    output += "\ntest result: x\n";
    Report::Checks { printed: checks::read(&output, 2), n_warnings: 1, program: None }
}

const LONG: &str = "rows copied in all after extend(3) on 0 tokens: a token counts once, although its rows are copied in \
                    every layer of the model\n  expected: 0\n  yours:    3";

fn red_app() -> App {
    let mut app = app("task 2, task 3");
    let third = "gather\n  your code panicked (x): not yet implemented: ch02 task 3: store";
    let second = "gather(0) of 3 tokens\n  your code panicked (x): not yet implemented: ch02 task 2: lend";
    app.shown.take(
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

/// The screen as it is seen. It is as large as the terminal, whatever is on it.
fn seen(app: &mut App, columns: usize, rows: usize) -> String {
    let screen = screen(app, columns, rows);
    assert_eq!(screen.len(), rows);
    for line in &screen {
        assert!(line.width() <= columns, "{} of {columns} columns: {:?}", line.width(), line.text());
    }
    screen.iter().map(|line| line.text().trim_end().to_string() + "\n").collect()
}

#[track_caller]
fn holds(app: &mut App, (columns, rows): (usize, usize), words: &[&str]) {
    let seen = seen(app, columns, rows);
    let flat = seen.split_whitespace().collect::<Vec<_>>().join(" ");
    for word in words {
        assert!(flat.contains(word), "{columns}×{rows} lacks {word:?}:\n{seen}");
    }
}

#[test]
fn an_untouched_chapter_says_where_to_begin() {
    for size in SIZES {
        let words = [
            "2 · The flat cache",
            "Not started.",
            "exercises/ch02_flat.rs",
            "▸ 1",
            "Task 1: make room",
            "t task",
            "? keys",
            "q quit",
        ];
        holds(&mut app(""), size, &words);
    }
    holds(&mut app(""), (80, 24), &["Task 1: make room todo in exercises/ch02_flat.rs:52 copy into a new tensor"]);
}

#[test]
fn a_red_chapter_shows_its_first_failure_and_no_other() {
    for size in SIZES {
        let mut app = red_app();
        holds(&mut app, size, &["▸ 1", "1 of 2 checks green", "✗ task_1_rows_copied_are", "h hint", "q quit"]);
        assert!(!seen(&mut app, size.0, size.1).contains("your code panicked"), "only the first failure");
        // What does not fit can be reached.
        app.pressed(KeyCode::End);
        holds(&mut app, size, &["1 more red check not shown (a shows it)", "1 warning about"]);
    }
    let screen = seen(&mut red_app(), 80, 24);
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

1 warning about exercises/ch02_flat.rs: cargo check shows them
";
    assert!(screen.starts_with(expected), "{screen}\n{expected}");
}

#[test]
fn all_failures_are_a_key_away() {
    let mut app = red_app();
    app.pressed(KeyCode::Char('a'));
    let words = [
        "Task 1: make room",
        "1 check comes to what is not written yet",
        "1 waits for task 3",
        "Task 2: gather 0 of 2 checks green",
    ];
    holds(&mut app, (120, 40), &words);
    assert!(!seen(&mut app, 120, 40).contains("✗ whole_story"), "what waits is not red");
    assert!(!seen(&mut app, 120, 40).contains("panicked"), "what is not written yet is no failure");
    app.pressed(KeyCode::Esc);
    assert_eq!(app.view, View::Main);
}

#[test]
fn hints_come_one_by_one_from_the_page() {
    for size in SIZES {
        let mut app = red_app();
        app.pressed(KeyCode::Char('h'));
        holds(&mut app, size, &["1 of 2 hints", "Hint 1"]);
        assert!(!seen(&mut app, size.0, 60).contains("Hint 2"));
        app.pressed(KeyCode::Char('h'));
        holds(&mut app, size, &["Hint 2", "before you change len"]);
        app.pressed(KeyCode::Char('h'));
        holds(&mut app, size, &["that was the last hint"]);
        app.pressed(KeyCode::Esc);
        holds(&mut app, size, &["h hint 2/2"]);
    }
}

#[test]
fn what_is_left_before_the_reference_is_said() {
    let mut app = red_app();
    app.pressed(KeyCode::Char('v'));
    holds(&mut app, (40, 12), &["the reference is shown once all is green; 1 of 5 checks are"]);
    app.pressed(KeyCode::Char('c'));
    holds(&mut app, (80, 24), &["questions come once all is green"]);
}

fn green_app() -> App {
    let mut app = app("all done");
    app.shown.take(report(&[("task_1_a", ""), ("task_2_a", ""), ("task_3_a", ""), ("whole_story", "")]), true);
    app.shown.bought = vec!["rows projected for a story of 200 tokens: 20,900 → 204".into()];
    app
}

#[test]
fn a_chapter_that_is_done_says_what_it_bought() {
    for size in SIZES {
        let mut app = green_app();
        assert!(app.shown.is_green());
        holds(
            &mut app,
            size,
            &["✓ 1", "✓ 3", "✓ whole", "Chapter 2 is done: all 4 checks are green.", "n next chapter"],
        );
        holds(&mut app, size, &["rows projected for a story of 200 tokens: 20,900 → 204"]);
        app.pressed(KeyCode::Char('c'));
        holds(&mut app, size, &["Question 1 of 5", "Why keep keys and values, but not queries?", "Think first"]);
        app.pressed(KeyCode::Enter);
        holds(&mut app, size, &["The query of a token is used once", "enter next question"]);
        app.pressed(KeyCode::Enter);
        holds(&mut app, size, &["Question 2 of 5", "What if a vector grew by doubling"]);
        app.pressed(KeyCode::Esc);
        app.pressed(KeyCode::Char('v'));
        holds(&mut app, size, &["the reference"]);
    }
}

#[test]
fn what_it_bought_has_its_place_before_it_is_there() {
    let mut app = green_app();
    app.shown.bought.clear();
    app.shown.is_counting = true;
    holds(&mut app, (80, 24), &["What it bought it is being counted on your code …"]);
    app.shown.has_keys = false;
    let told: Vec<String> = verdict(&app.shown).iter().map(Line::text).collect();
    assert!(
        told.contains(&"Now the page from What it bought on, and its questions. Then the next chapter.".into()),
        "{told:?}"
    );
}

#[test]
fn the_page_goes_on_where_the_link_leads() {
    let mut app = green_app();
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = app.shown.root.join("book/src/ch02_flat.md");
    std::fs::create_dir_all(page.parent().unwrap()).unwrap();
    std::fs::copy(here.join("book/src/ch02_flat.md"), &page).unwrap();
    let text = std::fs::read_to_string(&page).unwrap();
    let line = text.lines().position(|line| line == "## Look at it").unwrap() + 1;
    holds(&mut app, (80, 24), &["Now the page from Look at it on (o)", &format!("book/src/ch02_flat.md:{line}")]);
    app.shown.port = Some(3000);
    holds(&mut app, (80, 24), &["page http://127.0.0.1:3000/ch02_flat.html#look-at-it"]);
    // Half an address leads nowhere.
    holds(&mut app, (45, 24), &[&format!("page book/src/ch02_flat.md:{line}")]);
}

#[test]
fn the_whole_page_can_be_read_here() {
    let mut app = red_app();
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = app.shown.root.join("book/src/ch02_flat.md");
    std::fs::create_dir_all(page.parent().unwrap()).unwrap();
    std::fs::copy(here.join("book/src/ch02_flat.md"), &page).unwrap();
    app.pressed(KeyCode::Char('t'));
    holds(&mut app, (80, 24), &["t whole page"]);
    app.pressed(KeyCode::Char('t'));
    holds(&mut app, (80, 24), &["Task 1: make room"]);
    let all = seen(&mut app, 80, 900);
    for words in ["The problem, measured", "The idea", "What must hold", "Here is a figure", "Why keep keys and values"]
    {
        assert!(all.contains(words), "{words}:\n{all}");
    }
    assert!(!all.contains("Hint 1") && !all.contains("{{#") && !all.contains("before you change len"));
}

#[test]
fn without_keys_none_is_named() {
    for mut app in [app(""), red_app(), green_app()] {
        app.shown.has_keys = false;
        let told: String = verdict(&app.shown).iter().map(|line| line.text() + "\n").collect();
        for key in ["(a shows", "(o", "(t)", "(c)", "(n)"] {
            assert!(!told.contains(key), "{key}:\n{told}");
        }
    }
}

#[test]
fn the_last_hint_has_no_next_and_a_narrow_terminal_has_the_task() {
    let mut app = red_app();
    holds(&mut app, (45, 14), &["h hint a all t task"]);
    app.pressed(KeyCode::Char('h'));
    holds(&mut app, (80, 24), &["h next hint"]);
    app.pressed(KeyCode::Char('h'));
    assert!(!seen(&mut app, 80, 24).contains("next hint"));
    // Without room for all titles, that of the task in hand stays.
    assert!(seen(&mut red_app(), 60, 24).contains("▸ 1 make room 1/2  · 2 0/2"));
}

#[test]
fn nothing_is_red_before_it_is_begun() {
    let mut app = app("");
    app.pressed(KeyCode::Char('a'));
    assert_eq!(app.view, View::Main);
    holds(&mut app, (80, 24), &["nothing is red yet: edit exercises/ch02_flat.rs to begin"]);
}

#[test]
fn a_page_that_cannot_be_read_hides_nothing() {
    let mut app = red_app();
    app.shown.lesson = Err("book/src/ch02_flat.md cannot be read".into());
    holds(&mut app, (80, 24), &["✗ task_1_rows_copied", "▸ 1 1/2", "book/src/ch02_flat.md"]);
    for key in ['t', 'h', 'a', 'c', '?'] {
        app.pressed(KeyCode::Char(key));
        seen(&mut app, 40, 12);
    }
}

#[test]
fn errors_are_the_compilers_and_the_first_comes_first() {
    let error = |rendered: &str| Diagnostic { rendered: rendered.into(), is_in_file: true, file: None, line: None };
    let errors =
        Errors { shown: vec![error("\x1b[91merror\x1b[0m: one"), error("error: two")], elsewhere: 3, in_file: true };
    for size in SIZES {
        let mut app = app("task 1");
        app.shown.take(Report::Errors(errors.clone()), false);
        holds(&mut app, size, &["error: one", "1 more error not shown (a shows it)"]);
        assert!(!seen(&mut app, size.0, size.1).contains("two"));
        app.pressed(KeyCode::Char('a'));
        holds(&mut app, size, &["error: one", "error: two", "3 errors elsewhere"]);
        app.shown.take(Report::Errors(Errors { in_file: false, ..errors.clone() }), false);
        app.pressed(KeyCode::Esc);
        holds(&mut app, size, &["Nothing in exercises/ch02_flat.rs is marked"]);
    }
}

#[test]
fn a_run_that_was_cut_off_says_why() {
    for size in SIZES {
        let mut app = app("task 1");
        let printed = checks::read("running 2 tests\ntest checks::task_1_a ... ok\n", 2);
        app.shown.take(Report::CutOff { printed, why: "the checks were still running after 9 seconds".into() }, true);
        holds(&mut app, size, &["did not come to their end", "still running after 9 seconds", "▸ 1", "· 2"]);
        assert!(!app.shown.is_green());
    }
}

#[test]
fn of_a_run_that_was_cut_off_the_first_failure_is_shown() {
    let why = "failed: checks::task_2_b: later\n  expected: 1\n\nfailed: checks::task_1_a: does the loop end?\n  yours: 2\n\n\
               error: checks::task_2_c asks for 9 bytes more,\nand more";
    let mut app = app("task 1");
    let printed = checks::read("running 2 tests\n", 2);
    app.shown.take(Report::CutOff { printed, why: why.into() }, true);
    let words = "The checks did not come to their end. task_2_c asks for 9 bytes more, and more ✗ task_1_a does the loop \
                 end? yours: 2 1 more red check not shown (a shows it)";
    holds(&mut app, (80, 24), &[words]);
    app.pressed(KeyCode::Char('a'));
    holds(&mut app, (80, 24), &["yours: 2 ✗ task_2_b later expected: 1"]);
}

#[test]
fn what_was_said_before_a_run_was_cut_off_counts_no_more() {
    let cut_off = |printed: &str| Report::CutOff {
        printed: checks::read(printed, 2),
        why: "error: checks::task_2_gather_lends has given no sign of life for a minute".into(),
    };
    for is_whole in [false, true] {
        let mut app = red_app();
        app.shown.grader =
            "#[test]\nfn task_1_a() {}\n#[test]\n#[ignore]\nfn task_2_gather_lends() {}\n#[test]\nfn whole_story() {}"
                .into();
        app.shown.task = Some(2);
        app.shown.fresh = Verdict::default();
        app.took = Some(Duration::from_secs(61));
        app.shown.take(cut_off("running 3 tests\ntest checks::task_1_a ... ok\n"), is_whole);
        let (first, names) = match is_whole {
            true => ("✓ 1 make room ▸ 2 gather", "These did not finish: task_2_gather_lends, whole_story"),
            false => ("✓ 1 make room ▸ 2 gather", "This one did not finish: task_2_gather_lends"),
        };
        let why = "come to their end. task_2_gather_lends has given no sign of life for a minute";
        for key in [KeyCode::Esc, KeyCode::Char('a')] {
            app.pressed(key);
            holds(&mut app, (80, 24), &[first, names, why, "stopped · 1 min 1 s"]);
            let seen = seen(&mut app, 80, 24);
            assert!(!seen.contains("yours:") && !seen.contains("green") && !seen.contains("/2"), "{seen}");
        }
    }
}

#[test]
fn the_task_in_hand_stays_until_its_checks_are_green() {
    // The first save of a file whose first `todo!` is gone.
    let mut app = app("fn grown() {}");
    let Ok(exercise) = &mut app.shown.exercise else { panic!() };
    exercise.todos = vec![Todo { task: 2, line: 9, what: "lend".into() }];
    assert_eq!(app.shown.task_in_hand(), Some(1));
    app.shown.done = [1, 3].into();
    assert_eq!(app.shown.task_in_hand(), Some(2));
    app.shown.done = [1, 2].into();
    assert_eq!(app.shown.task_in_hand(), Some(2), "its todo is there again");
    // In a chapter that is done, the task of the function with the error.
    let mut app = green_app();
    assert_eq!((app.shown.task_in_hand(), app.shown.done.len()), (None, 3));
    app.shown.handed_out = Some("fn a() {\n    todo!(\"ch02 task 2: lend\")\n}\n".into());
    let Ok(exercise) = &mut app.shown.exercise else { panic!() };
    exercise.text = "use x;\nfn a() {\n    1\n}\n".into();
    let error = |line| Diagnostic { rendered: "error: x".into(), is_in_file: true, file: None, line: Some(line) };
    let errors = |line| Report::Errors(Errors { shown: vec![error(line)], elsewhere: 0, in_file: true });
    app.shown.take(errors(1), false);
    assert_eq!(app.shown.task_in_hand(), None);
    app.shown.take(errors(3), false);
    holds(&mut app, (80, 24), &["▸ 2 gather", "h hint"]);
}

#[test]
fn a_task_that_is_left_with_checks_that_wait_says_so() {
    let mut app = app("task 3");
    let third = "gather\n  your code panicked (x): not yet implemented: ch02 task 3: store";
    app.shown.take(report(&[("task_1_a", ""), ("task_2_a", ""), ("task_2_b", third), ("task_3_a", third)]), true);
    let words = "0 of 1 check green 1 check of task 2 waits for task 3. Task 2 is green as far as it can be checked. Next: task 3. \
                 Not written yet: store";
    holds(&mut app, (80, 24), &["2 gather 1/2 ▸ 3 write the new rows 0/1", words]);
}

#[test]
fn an_error_elsewhere_leaves_nothing_green() {
    let mut app = green_app();
    let error = |file: &str| Diagnostic {
        rendered: format!("error: in {file}"),
        is_in_file: false,
        file: Some(file.into()),
        line: Some(61),
    };
    let shown = vec![error("solutions/ch07_rewind.rs"), error("exercises/ch01_recompute.rs")];
    app.shown.take(Report::Errors(Errors { shown, elsewhere: 0, in_file: false }), false);
    let words = "Chapter 1 does not compile: exercises/ch01_recompute.rs:61 It is compiled together with this one. p goes there. \
                 error: in exercises/ch01_recompute.rs 1 more error not shown (a shows it)";
    holds(&mut app, (80, 24), &[words]);
    assert!(!seen(&mut app, 80, 24).contains('✓'));
    app.shown.has_keys = false;
    let told: String = verdict(&app.shown).iter().map(|line| line.text() + "\n").collect();
    assert!(told.contains("together with this one. `cargo learn 1` goes there.\n"), "{told}");
}

#[test]
fn the_checks_of_every_grader_are_found() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut app = app("task 1");
    for chapter in course::chapters(&here).unwrap() {
        app.shown.grader = std::fs::read_to_string(here.join(format!("tests/{}.rs", chapter.name))).unwrap();
        app.shown.chapter = chapter.clone();
        let n_of = |words: &str| app.shown.grader.matches(words).count();
        // Beside them, one says whose code the chapter is.
        assert_eq!(app.shown.all_checks().len(), n_of("#[test]") - 1, "{}", chapter.name);
        assert!(app.shown.all_checks().len() > 5, "{}", chapter.name);
    }
}

#[test]
fn what_is_written_comes_before_what_is_not() {
    let mut app = app("task 1");
    let todo = "x\n  your code panicked (x): not yet implemented: ch02 task 1: copy";
    app.shown.take(report(&[("task_1_a", todo), ("task_1_b", "wrong\n  yours:    2"), ("task_1_c", todo)]), true);
    holds(&mut app, (80, 24), &["✗ task_1_b wrong yours: 2 2 more red checks not shown (a shows them)"]);
    app.pressed(KeyCode::Char('a'));
    holds(&mut app, (80, 24), &["✗ task_1_b wrong yours: 2 2 checks come to what is not written yet."]);
}

#[test]
fn a_chapter_of_their_own_that_others_stand_on_is_named() {
    let mut app = app("all done");
    let first = "x\n  your code of chapter 1 panicked (exercises/ch01.rs:9): not yet implemented: ch01 task 2: loop";
    app.shown.take(report(&[("task_1_a", ""), ("task_2_a", first), ("task_3_a", first)]), true);
    holds(&mut app, (80, 24), &["2 checks wait for task 2 of chapter 1, which you have begun"]);
    assert!(!app.shown.is_green());
}

#[test]
fn while_the_others_run_only_the_task_in_hand_counts() {
    let mut app = red_app();
    app.shown.take(
        report(&[("task_1_extend_holds_more_tokens", ""), ("task_1_rows_copied_are_the_tokens_held_before", "")]),
        false,
    );
    holds(&mut app, (80, 24), &["▸ 1 make room", "All of this task is green. The other checks are running"]);
    assert!(!app.shown.is_green());
}

#[test]
fn every_view_fits_every_terminal() {
    for mut app in [app(""), red_app(), green_app()] {
        for columns in [1, 20, 39, 40, 41, 57, 80, 109, 110, 200] {
            for rows in [1, 2, 11, 12, 13, 24, 60] {
                for key in ['h', 'a', 't', '?', 'v', 'c'] {
                    app.pressed(KeyCode::Char(key));
                    let seen = seen(&mut app, columns, rows);
                    if (columns < LEAST.0 || rows < LEAST.1) && columns > 30 && rows > 3 {
                        let flat = seen.split_whitespace().collect::<Vec<_>>().join(" ");
                        assert!(flat.contains("cargo learn needs 40×12"), "{seen}");
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
    app.pressed(KeyCode::Char('t'));
    seen(&mut app, 40, 12);
    let (body, room) = app.extent;
    assert!(body > room, "the section is longer than this terminal");
    for _ in 0..2 * body {
        app.pressed(KeyCode::Down);
    }
    assert_eq!(app.scroll, body - room);
    holds(&mut app, (40, 12), &["↑ more above"]);
    app.pressed(KeyCode::Home);
    assert_eq!(app.scroll, 0);
    // A larger terminal shows all of it.
    app.pressed(KeyCode::End);
    seen(&mut app, 120, 60);
    assert_eq!(app.scroll, 0);
}

/// The page that explains the companion shows a screen of it. It is drawn here once more, from what the checks said then.
#[test]
fn the_screen_in_the_book_is_what_is_drawn() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(here.join("book/src/how_to_use.md")).unwrap().replace("\r\n", "\n");
    let start = page.find("```text\n2 · The flat cache").expect("the screen is there") + "```text\n".len();
    let shown = &page[start..start + page[start..].find("```").unwrap()];
    let grader = std::fs::read_to_string(here.join("tests/ch02_flat.rs")).unwrap();
    let name = |line: &str| {
        let name = line.trim().strip_prefix("fn ")?.split('(').next()?;
        (name.starts_with("task_") || name.starts_with("whole_")).then(|| name.to_string())
    };
    let names: Vec<String> = grader.lines().filter_map(name).collect();
    // `grown` is written with Vec::resize; nothing else is.
    let todo = "x\n  your code panicked (x): not yet implemented: ch02 task 1: make room";
    let more = "numbers allocated for grown(&[1.0; 5], 1)\n  expected: 6\n  yours:    10";
    let words = |name: &str| match name {
        "task_1_a_grown_tensor_is_the_old_one_then_zeros" => "",
        "task_1_a_grown_tensor_takes_no_more_than_it_needs" => more,
        _ => todo,
    };
    let checks: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), words(name))).collect();
    let mut app = app("");
    let Ok(exercise) = &mut app.shown.exercise else { panic!() };
    exercise.state = State::Started;
    let line = shown.split("exercises/ch02_flat.rs:").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
    exercise.todos[0].line = line.expect("the line of the todo");
    app.shown.grader = grader;
    let Report::Checks { printed, .. } = report(&checks) else { panic!() };
    app.shown.take(Report::Checks { printed, n_warnings: 0, program: None }, true);
    let seconds = shown.split(" · ").nth(2).and_then(|rest| rest.split(' ').next()?.parse().ok());
    app.took = Some(Duration::from_secs_f64(seconds.expect("how long it took")));
    assert_eq!(seen(&mut app, 80, shown.lines().count()), shown);
}
