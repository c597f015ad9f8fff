use std::path::Path;
use std::time::Duration;

use crossterm::event::KeyCode;
use page_by_page_course::cargo::Progress;
use page_by_page_course::chapters::{self, State, Todo};
use page_by_page_course::record::Tally;
use ratatui_core::backend::TestBackend;
use ratatui_core::style::Modifier;
use ratatui_core::terminal::Terminal;
use states::*;

use super::*;
use crate::checks::Verdict;
use crate::gains::Gains;
use crate::run::{Ending, News, Report};

mod states;

/// The sizes that are looked at: the smallest, the usual, a large one.
const SIZES: [(u16, u16); 3] = [(40, 12), (80, 24), (120, 40)];

fn here() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
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

/// Presses keys, each on the screen that the one before has left. \x1b is escape, \n enter.
fn press(app: &mut App, size: (u16, u16), keys: &str) {
    for key in keys.chars() {
        draw(app, size);
        app.pressed(match key {
            '\x1b' => KeyCode::Esc,
            '\n' => KeyCode::Enter,
            key => KeyCode::Char(key),
        });
    }
}

/// A state, the keys that are pressed in it, and what the screen must show then, or must not show after a `!`.
type Case<'c> = (fn() -> App, &'c str, &'c str);

fn are_shown(sizes: &[(u16, u16)], cases: &[Case<'_>]) {
    for (size, (made, keys, words)) in sizes.iter().flat_map(|size| cases.iter().map(move |case| (*size, case))) {
        let mut app = made();
        press(&mut app, size, keys);
        let (absent, words): (Vec<&str>, Vec<&str>) = words.split(" | ").partition(|word| word.starts_with('!'));
        holds(&mut app, size, &words);
        let seen = seen(&mut app, size);
        let found = absent.iter().find(|word| seen.contains(&word[1..]));
        assert_eq!(found, None, "{size:?} {keys:?}:\n{seen}");
    }
}

#[test]
fn each_state_shows_one_thing_and_the_keys_for_the_rest() {
    let begin = "2 · The flat cache | Not started. | exercises/ch02_flat.rs | ▸ 1 | Task 1: make room | t task | ? keys | q quit";
    let done = "✓ 1 | ✓ 3 | ✓ whole | Chapter 2 is done: all 4 checks are green. | n next chapter";
    let cases: [Case<'_>; 15] = [
        (untouched, "", begin),
        // Only the first failure; the rest can be scrolled to.
        (red, "", "▸ 1 | 1/2 | ✗ task_1_rows_copied | h hint | q quit | !your code panicked"),
        (red, "G", "1 more red check not shown (a shows it) | 1 warning in"),
        // Hints come one by one.
        (red, "h", "1 of 2 hints | Hint 1 | h next hint | !Hint 2"),
        (red, "hh", "Hint 2 | before you change len | !next hint"),
        (red, "hhh", "that was the last hint"),
        (red, "hhh\x1b", "h hint 2/2"),
        (green, "", done),
        (green, "c", "Question 1 of 5 | Why keep keys and values, but not queries? | Think first"),
        (green, "c\n", "The query of a token is used once | enter next question"),
        (green, "c\n\n", "Question 2 of 5 | What if a vector grew by doubling"),
        // It opens at the first difference.
        (green, "v", "between yours and the reference | all done"),
        (two_errors, "", "error: one | 1 more error not shown (a shows it) | !two"),
        (two_errors, "a", "error: one | error: two | 3 errors elsewhere"),
        (stopped, "", "Not all checks came to an end | task_2_c asks for 9 bytes more | ▸ 2"),
    ];
    are_shown(&SIZES, &cases);
}

#[test]
fn what_there_is_to_know_about_each_state_is_in_words() {
    let elsewhere = "Chapter 1 does not compile: exercises/ch01_recompute.rs:61 It is compiled together with this one. p opens it. \
                     error: in chapter 1 1 more error not shown (a shows it) | !✓";
    let stop = "Not all checks came to an end. task_2_c asks for 9 bytes more, and more ✗ task_1_a does the loop end? \
                yours: 2 1 more red check not shown (a shows it)";
    let third = "2 gather 1/2 ▸ 3 write the new rows 0/1 | 0 of 1 check green 1 check of task 2 waits for task 3. Task 2 is \
                 green as far as it can be checked. Next: task 3. Not written yet: store";
    let cases: [Case<'_>; 18] = [
        (untouched, "", "Task 1: make room todo in exercises/ch02_flat.rs:52 copy into a new tensor"),
        (untouched, "a", "Not started. | nothing is red yet: edit exercises/ch02_flat.rs to begin"),
        (red, "v", "the reference is shown once all is green; 1 of 5 checks are"),
        (red, "c", "questions come once all is green"),
        (red, "t", "t whole page"),
        (red, "tt", "Task 1: make room"),
        (red, "a\x1b", "1 more red check not shown"),
        (green, "", "What it gains rows projected for a story of 200 tokens: 20,900 → 204"),
        (without_page, "", "✗ task_1_rows_copied | ▸ 1 1/2 | book/src/ch02_flat.md"),
        (error_somewhere, "", "finds no error in exercises/ch02_flat.rs"),
        (error_in_chapter_1, "", elsewhere),
        (stopped, "", stop),
        (stopped, "a", "yours: 2 ✗ task_2_b later expected: 1"),
        (waiting_for_task_3, "", third),
        (waiting_for_chapter_1, "", "2 checks wait for task 2 of chapter 1, which you have begun"),
        // Written code comes before a `todo!`.
        (one_written, "", "✗ task_1_b wrong yours: 2 2 more red checks not shown (a shows them)"),
        (one_written, "a", "✗ task_1_b wrong yours: 2 2 checks reach a todo! of this task."),
        (others_running, "", "▸ 1 make room | All checks of this task are green. The other checks are running"),
    ];
    are_shown(&[(80, 24)], &cases);
    // What waits or isn't written is no failure.
    let all = "Task 1: make room | 1 check reaches a todo! of this task | 1 waits for task 3 | Task 2: gather 0 of 2 checks \
               green | !✗ whole_story | !panicked";
    are_shown(&[(120, 40)], &[(red, "a", all)]);
    // A narrow terminal keeps the title of the current task, and the key for it.
    are_shown(&[(45, 18)], &[(red, "", "h hint a all t task")]);
    are_shown(&[(60, 24)], &[(red, "", "▸ 1 make room 1/2 · 2 0/2")]);
    let states = [green, error_in_chapter_1, stopped, waiting_for_chapter_1, others_running];
    assert_eq!(states.map(|made| made().current.is_green()), [true, false, false, false, false]);
}

#[test]
fn a_red_chapter_is_drawn_like_this() {
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
    let screen = seen(&mut red(), (80, 24));
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
    let mut app = red();
    let screen = seen(&mut app, (40, 12));
    let of = |text: &str| text.lines().skip(2).map(String::from).collect::<Vec<_>>();
    assert_eq!(of(&screen), of(expected), "{screen}");
}

#[test]
fn a_green_chapter_says_where_to_read_on() {
    let mut app = green();
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
    let mut app = red();
    press(&mut app, (80, 24), "tt");
    let all = seen(&mut app, (80, 900));
    for words in ["The problem, measured", "The idea", "What must hold", "(Figure", "Why keep keys and values"] {
        assert!(all.contains(words), "{words}:\n{all}");
    }
    assert!(!all.contains("Hint 1") && !all.contains("{{#") && !all.contains("before you change len"));
}

#[test]
fn without_keys_none_is_named() {
    for mut app in [untouched(), red(), green(), error_in_chapter_1()] {
        app.current.has_keys = false;
        let text: String = verdict::lines(&app.current, false).iter().map(|line| line.text() + "\n").collect();
        for key in ["(a shows", "(o", "(t)", "(c)", "(n)", "p opens"] {
            assert!(!text.contains(key), "{key}:\n{text}");
        }
    }
}

#[test]
fn every_view_fits_every_terminal() {
    for mut app in [untouched(), red(), green(), without_page()] {
        for columns in [1, 20, 39, 40, 41, 57, 80, 109, 110, 200] {
            for rows in [1, 2, 11, 12, 15, 16, 24, 60] {
                for key in ["h", "a", "t", "?", "v", "c"] {
                    press(&mut app, (columns, rows), key);
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
    let mut app = red();
    press(&mut app, (40, 12), "t");
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

#[test]
fn results_before_a_run_that_was_cut_off_no_longer_count() {
    let why = "error: checks::task_2_gather_lends has given no sign of life for a minute";
    for is_whole in [false, true] {
        let mut app = red();
        app.current.grader =
            "#[test]\nfn task_1_a() {}\n#[test]\n#[ignore]\nfn task_2_gather_lends() {}\n#[test]\nfn whole_story() {}"
                .into();
        (app.current.task, app.current.fresh) = (Some(2), Verdict::default());
        app.checking.took = Some(Duration::from_secs(61));
        app.current.take(cut_off(&[("task_1_a", "")], why), is_whole);
        let names = match is_whole {
            true => "These did not finish: task_2_gather_lends, whole_story",
            false => "This one did not finish: task_2_gather_lends",
        };
        for key in [KeyCode::Esc, KeyCode::Char('a')] {
            app.pressed(key);
            let why = "came to an end. task_2_gather_lends has given no sign of life for a minute";
            holds(&mut app, (80, 24), &["✓ 1 make room ▸ 2 gather", names, why, "stopped · 1 min 1 s"]);
            let seen = seen(&mut app, (80, 24));
            assert!(!seen.contains("yours:") && !seen.contains("green") && !seen.contains("/2"), "{seen}");
        }
    }
}

#[test]
fn a_task_stays_current_until_its_checks_are_green() {
    // The first save of a file whose first `todo!` is gone.
    let mut app = app("fn grown() {}");
    let Ok(exercise) = &mut app.current.exercise else { panic!() };
    exercise.todos = vec![Todo { task: 2, line: 9, what: "lend".into() }];
    assert_eq!(app.current.current_task(), Some(1));
    app.current.done = [1, 3].into();
    assert_eq!(app.current.current_task(), Some(2));
    app.current.done = [1, 2].into();
    assert_eq!(app.current.current_task(), Some(2), "its todo is there again");
    // In a green chapter, the task of the function with the error.
    let mut app = green();
    assert_eq!((app.current.current_task(), app.current.done.len()), (None, 3));
    app.current.stub = Some("fn a() {\n    todo!(\"ch02 task 2: lend\")\n}\n".into());
    let Ok(exercise) = &mut app.current.exercise else { panic!() };
    exercise.text = "use x;\nfn a() {\n    1\n}\n".into();
    let at_line = |line| {
        let Ending::Errors(mut errors) = errors(&[("error: x", "x")], 0, true) else { panic!() };
        errors.shown[0].line = Some(line);
        Ending::Errors(errors)
    };
    app.current.take(at_line(1), false);
    assert_eq!(app.current.current_task(), None);
    app.current.take(at_line(3), false);
    holds(&mut app, (80, 24), &["▸ 2 gather", "h hint"]);
}

#[test]
fn the_checks_of_every_grader_are_found() {
    let mut app = app("task 1");
    for chapter in chapters::all(here()).unwrap() {
        app.current.grader = std::fs::read_to_string(here().join(chapter.grader())).unwrap();
        app.current.chapter = chapter.clone();
        // One `#[test]` more says whose code the chapter is.
        let functions = app.current.grader.matches("#[test]").count() - 1;
        let found = app.current.all_checks();
        assert!(found.len() >= functions.max(6), "{}: {found:?}", chapter.name);
        let is_listed = found.contains(&"task_3_a_row_lands_in_its_layer_only");
        assert!(is_listed || chapter.name != "ch02_flat", "the tests of `tests_on!`: {found:?}");
    }
}

#[test]
fn a_verdict_from_before_the_save_is_marked_and_a_first_build_shows_its_progress() {
    let mut app = red();
    app.checking.is_stale = true;
    app.heard(News::Stage(Stage::Compiling(None)));
    holds(&mut app, (80, 24), &["compiling … 0.0 s", "Before this save: Task 1", "yours: 3"]);
    let terminal = draw(&mut app, (80, 24));
    let cells = terminal.backend().buffer().content();
    assert!(cells[3 * 80..10 * 80].iter().all(|cell| cell.symbol() == " " || cell.modifier.contains(Modifier::DIM)));
    let progress = |done| Progress { done, of: 145, crates: "serde, tokenizers".into() };
    for (done, bar) in [(29, "██████░░░"), (144, "█████████░")] {
        app.heard(News::Stage(Stage::Compiling(Some(progress(done)))));
        let words = [&format!("compiling {done} of 145"), bar, "compiling serde, tokenizers", "takes a minute or two"];
        holds(&mut app, (80, 24), &words);
        assert!(!seen(&mut app, (80, 24)).contains("yours"), "it is minutes old");
    }
    app.heard(News::Stage(Stage::Checking));
    holds(&mut app, (80, 24), &["checking …", "Before this save:"]);
    app.heard(News::Ended(report(&[("task_1_a", ""), ("whole_story", "no")])));
    assert!(!seen(&mut app, (80, 24)).contains("Before this save"));
}

#[test]
fn numbers_are_doubted_where_another_chapter_is_not_green() {
    let mut app = app("all done");
    let first = app.chapters[0].clone();
    std::fs::write(app.current.root.join(first.exercise()), "// mine\n").unwrap();
    let mut lines = |fingerprint: &str, green| {
        let ran = app.record.chapter_mut(&first.name);
        ran.fingerprint = fingerprint.into();
        ran.tasks.insert(1, Tally { green, of: 3 });
        app.has_gained(Gains { lines: vec!["rows".into()], yours: vec![1, 1, 2] });
        app.gained.lines.clone()
    };
    let mine = page_by_page_course::stub::fingerprint("// mine\n");
    assert_eq!(lines(&mine, 3), ["rows"]);
    let red = "Chapter 1 is red now (p opens it), so its part in these numbers may be wrong.";
    assert_eq!(lines(&mine, 2), ["rows", red]);
    assert!(lines("other", 3)[1].starts_with("Chapter 1 has changed since its checks ran (p opens it)"));
    assert!(lines("", 3)[1].starts_with("Chapter 1 has not been checked"));
}
