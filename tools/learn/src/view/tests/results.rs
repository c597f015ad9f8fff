//! What the screen shows of errors, failures, and runs that were cut off or are under way.

use super::*;

fn error(rendered: &str, file: &str, line: usize) -> Diagnostic {
    Diagnostic { rendered: rendered.into(), is_in_file: true, file: Some(file.into()), line: Some(line) }
}

fn cut_off(checks: &[(&str, &str)], why: &str) -> Report {
    Report { verdict: verdict(checks), ..Ending::CutOff(why.into()).into() }
}

#[test]
fn the_first_error_of_the_compiler_comes_first() {
    let shown = vec![error("\x1b[91merror\x1b[0m: one", "x", 1), error("error: two", "x", 1)];
    let errors = Errors { shown, elsewhere: 3, in_file: true };
    for size in SIZES {
        let mut app = app("task 1");
        app.current.take(Ending::Errors(errors.clone()), false);
        holds(&mut app, size, &["error: one", "1 more error not shown (a shows it)"]);
        assert!(!seen(&mut app, size).contains("two"));
        press(&mut app, "a");
        holds(&mut app, size, &["error: one", "error: two", "3 errors elsewhere"]);
        app.current.take(Ending::Errors(Errors { in_file: false, ..errors.clone() }), false);
        app.pressed(KeyCode::Esc);
        holds(&mut app, size, &["finds no error in exercises/ch02_flat.rs"]);
    }
}

#[test]
fn an_error_elsewhere_leaves_nothing_green() {
    let mut app = green_app();
    let shown = vec![
        error("error: in a solution", "solutions/ch07_rewind.rs", 61),
        error("error: in chapter 1", "exercises/ch01_recompute.rs", 61),
    ];
    app.current.take(Ending::Errors(Errors { shown, elsewhere: 0, in_file: false }), false);
    let words = "Chapter 1 does not compile: exercises/ch01_recompute.rs:61 It is compiled together with this one. p opens it. \
                 error: in chapter 1 1 more error not shown (a shows it)";
    holds(&mut app, (80, 24), &[words]);
    assert!(!seen(&mut app, (80, 24)).contains('✓'));
    app.current.has_keys = false;
    let text: String = verdict::lines(&app.current, false).iter().map(|line| line.text() + "\n").collect();
    assert!(text.contains("together with this one. `cargo learn 1` opens it.\n"), "{text}");
}

#[test]
fn a_run_that_was_cut_off_shows_why_and_the_first_failure() {
    for size in SIZES {
        let mut app = app("task 1");
        let why = "still running after 9 seconds";
        app.current.take(cut_off(&[("task_1_a", "")], why), true);
        holds(&mut app, size, &["Not all checks came to an end", "still running after 9 seconds", "▸ 1", "· 2"]);
        assert!(!app.current.is_green());
    }
    let why = "failed: checks::task_2_b: later\n  expected: 1\n\nfailed: checks::task_1_a: does the loop end?\n  yours: 2\n\n\
               error: checks::task_2_c asks for 9 bytes more,\nand more";
    let mut app = app("task 1");
    app.current.take(Ending::CutOff(why.into()), true);
    let words = "Not all checks came to an end. task_2_c asks for 9 bytes more, and more ✗ task_1_a does the loop end? \
                 yours: 2 1 more red check not shown (a shows it)";
    holds(&mut app, (80, 24), &[words]);
    press(&mut app, "a");
    holds(&mut app, (80, 24), &["yours: 2 ✗ task_2_b later expected: 1"]);
}

#[test]
fn results_before_a_run_that_was_cut_off_no_longer_count() {
    let why = "error: checks::task_2_gather_lends has given no sign of life for a minute";
    for is_whole in [false, true] {
        let mut app = red_app();
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
    let mut app = green_app();
    assert_eq!((app.current.current_task(), app.current.done.len()), (None, 3));
    app.current.stub = Some("fn a() {\n    todo!(\"ch02 task 2: lend\")\n}\n".into());
    let Ok(exercise) = &mut app.current.exercise else { panic!() };
    exercise.text = "use x;\nfn a() {\n    1\n}\n".into();
    let errors =
        |line| Ending::Errors(Errors { shown: vec![error("error: x", "x", line)], elsewhere: 0, in_file: true });
    app.current.take(errors(1), false);
    assert_eq!(app.current.current_task(), None);
    app.current.take(errors(3), false);
    holds(&mut app, (80, 24), &["▸ 2 gather", "h hint"]);
}

#[test]
fn checks_that_wait_are_named() {
    let third = "gather\n  your code panicked (x): not yet implemented: ch02 task 3: store";
    let mut third_app = app("task 3");
    let checks = [("task_1_a", ""), ("task_2_a", ""), ("task_2_b", third), ("task_3_a", third)];
    third_app.current.take(report(&checks), true);
    let words = "0 of 1 check green 1 check of task 2 waits for task 3. Task 2 is green as far as it can be checked. Next: task 3. \
                 Not written yet: store";
    holds(&mut third_app, (80, 24), &["2 gather 1/2 ▸ 3 write the new rows 0/1", words]);
    let mut app = app("all done");
    let first = "x\n  your code of chapter 1 panicked (exercises/ch01.rs:9): not yet implemented: ch01 task 2: loop";
    app.current.take(report(&[("task_1_a", ""), ("task_2_a", first), ("task_3_a", first)]), true);
    holds(&mut app, (80, 24), &["2 checks wait for task 2 of chapter 1, which you have begun"]);
    assert!(!app.current.is_green());
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
fn written_code_comes_before_a_todo() {
    let mut app = app("task 1");
    let todo = "x\n  your code panicked (x): not yet implemented: ch02 task 1: copy";
    app.current.take(report(&[("task_1_a", todo), ("task_1_b", "wrong\n  yours:    2"), ("task_1_c", todo)]), true);
    holds(&mut app, (80, 24), &["✗ task_1_b wrong yours: 2 2 more red checks not shown (a shows them)"]);
    press(&mut app, "a");
    holds(&mut app, (80, 24), &["✗ task_1_b wrong yours: 2 2 checks reach a todo! of this task."]);
}

#[test]
fn while_the_others_run_only_the_current_task_counts() {
    let mut app = red_app();
    let checks = [("task_1_extend_holds_more_tokens", ""), ("task_1_rows_copied_are_the_tokens_held_before", "")];
    app.current.take(report(&checks), false);
    holds(&mut app, (80, 24), &["▸ 1 make room", "All checks of this task are green. The other checks are running"]);
    assert!(!app.current.is_green());
}

#[test]
fn a_verdict_from_before_the_save_is_marked_and_a_first_build_shows_its_progress() {
    let mut app = red_app();
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
