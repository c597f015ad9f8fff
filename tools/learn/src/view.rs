//! What is on the screen: a head, one thing, and the keys. Nothing here changes anything but where the screen is scrolled to.

use std::time::Duration;

use crate::app::{App, Jump, Outcome, Shown, View};
use crate::beside;
use crate::book;
use crate::checks::{self, About, Check, InHand, Tally};
use crate::compile::{Diagnostic, Errors};
use crate::course;
use crate::lesson::Task;
use crate::markdown;
use crate::runs::Stage;
use crate::text::{self, BOLD, CYAN, Colour, DIM, GREEN, Line, PLAIN, RED, Style, Wrap, YELLOW, count};

/// The smallest terminal that can be used.
pub const LEAST: (usize, usize) = (40, 12);

/// The rows of the screen, all of them.
pub fn screen(app: &mut App, columns: usize, rows: usize) -> Vec<Line> {
    if columns < LEAST.0 || rows < LEAST.1 {
        let mut lines = Line::plain(format!(
            "This terminal is {columns}×{rows}; cargo learn needs {}×{}. q quits.",
            LEAST.0, LEAST.1
        ))
        .rows(columns);
        lines.resize(rows, Line::default());
        return lines;
    }
    let mut screen = vec![head(app, columns), strip(&app.shown, columns), rule("", columns)];
    let foot = foot(app, columns);
    let room = rows - screen.len() - foot.len() - 1;
    let (body, first_difference) = body(app, columns);
    let body = text::rows(&body, columns);
    app.extent = (body.len(), room);
    let last = body.len().saturating_sub(room);
    app.scroll = match app.jump.take() {
        Some(Jump::End) => last,
        // With some of what is the same above it.
        Some(Jump::FirstDifference) => first_difference.saturating_sub(room / 3),
        None => app.scroll,
    }
    .min(last);
    let shown = body.iter().skip(app.scroll).take(room);
    screen.extend(shown.cloned());
    screen.resize(rows - foot.len() - 1, Line::default());
    let below = last - app.scroll;
    screen.push(match (app.scroll, below) {
        (0, 0) => rule("", columns),
        (_, 0) => rule("↑ more above", columns),
        (_, below) => rule(&format!("↓ {} more", count(below, "line")), columns),
    });
    screen.extend(foot);
    screen.iter().map(|line| line.cut(columns)).collect()
}

/// A line across the screen, with a word in it.
fn rule(word: &str, columns: usize) -> Line {
    let word = if word.is_empty() { String::new() } else { format!(" {word} ──") };
    let width = Line::plain(&word).width();
    Line::new("─".repeat(columns.saturating_sub(width)), DIM).and(word, DIM)
}

/// The chapter, and what is going on.
fn head(app: &App, columns: usize) -> Line {
    let chapter = &app.shown.chapter;
    let left = Line::new(format!("{} · {}", chapter.number, chapter.title), BOLD);
    let seconds = |duration: Duration| match duration.as_secs() {
        0..60 => format!("{:.1} s", duration.as_secs_f64()),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    };
    let right = match app.running {
        Some((stage, since)) => {
            let what = match stage {
                Stage::Compiling => format!("compiling{}", app.compiling),
                Stage::Waiting => "waiting for another cargo".into(),
                Stage::Checking => "checking".into(),
            };
            Line::new(format!("{what} … {}", seconds(since.elapsed())), YELLOW)
        }
        None => match (&app.shown.outcome, app.took) {
            (Outcome::NotRun, _) | (_, None) => Line::default(),
            (Outcome::CutOff(_), Some(took)) => Line::new("stopped", RED).and(format!(" · {}", seconds(took)), DIM),
            (Outcome::Errors(_), Some(took)) => {
                Line::new("does not compile", RED).and(format!(" · {}", seconds(took)), DIM)
            }
            (_, Some(took)) if app.shown.is_green() => {
                Line::new("all green", GREEN).and(format!(" · {}", seconds(took)), DIM)
            }
            (_, Some(took)) => {
                let total = app.shown.verdict.total();
                let words = format!("{} of {} green", total.green, total.of);
                Line::new(words, PLAIN).and(format!(" · {}", seconds(took)), DIM)
            }
        },
    };
    let room = columns.saturating_sub(right.width() + 2);
    let mut line = left.fit(room).and("  ", PLAIN);
    line.pieces.extend(right.pieces);
    line
}

/// The tasks of the chapter, as much of each as there is room for.
fn strip(shown: &Shown, columns: usize) -> Line {
    let in_hand = shown.task_in_hand();
    // Of a run that was cut off, what has not come to its end tells nothing.
    let is_cut_off = matches!(shown.outcome, Outcome::CutOff(_));
    // Where the reader's file is not what is wrong, nothing of it can be checked.
    let is_blocked = matches!(&shown.outcome, Outcome::Errors(errors) if !errors.in_file);
    let left_out: Vec<About> = match is_cut_off {
        true => shown.all_checks().into_iter().filter(|name| !is_told(shown, name)).map(About::of).collect(),
        false => Vec::new(),
    };
    // The titles: of all tasks, of the one in hand, of none.
    let build = |titles: bool, in_hand_too: bool| {
        let mut line = Line::default();
        for (about, name, title) in parts(shown) {
            let mut tally = shown.verdict.tally(about);
            if is_cut_off && (shown.all_checks().is_empty() || left_out.contains(&about)) {
                tally = Tally::default();
            }
            let is_in_hand = match about {
                About::Task(task) => in_hand == Some(task),
                _ => shown.is_whole && shown.verdict.in_hand() == InHand::Whole,
            };
            let (sign, style) = match () {
                () if is_in_hand => ("▸", YELLOW),
                () if tally.of > 0 && tally.green == tally.of && !is_blocked => ("✓", GREEN),
                () => ("·", DIM),
            };
            line.push(if line.pieces.is_empty() { "" } else { "  " }, PLAIN);
            line.push(format!("{sign} {name}"), style);
            let text = if is_in_hand { BOLD } else { DIM };
            if (titles || is_in_hand && in_hand_too) && !title.is_empty() {
                line.push(format!(" {title}"), text);
            }
            if tally.of > 0 && tally.green < tally.of {
                line.push(format!(" {}/{}", tally.green, tally.of), text);
            }
        }
        line
    };
    let fits = |line: &Line| line.width() <= columns;
    let long = [build(true, true), build(false, true)].into_iter().find(fits);
    long.unwrap_or_else(|| build(false, false).cut(columns))
}

/// Whether the runs since the last save have said how a check ended.
fn is_told(shown: &Shown, name: &str) -> bool {
    shown.fresh.checks.values().flatten().any(|check| check.short() == name)
}

/// What the checks are about, each with a short name and its title.
fn parts(shown: &Shown) -> Vec<(About, String, String)> {
    let mut parts: Vec<(About, String, String)> = match &shown.lesson {
        Ok(lesson) => {
            let of = |task: &Task| (About::Task(task.number), task.number.to_string(), plain(&task.title));
            lesson.tasks.iter().map(of).collect()
        }
        Err(_) => Vec::new(),
    };
    // A page that cannot be read must not hide what the checks said.
    for about in shown.verdict.checks.keys() {
        if let About::Task(task) = about
            && parts.iter().all(|(known, ..)| known != about)
        {
            parts.push((*about, task.to_string(), String::new()));
        }
    }
    parts.sort_by_key(|(about, ..)| *about);
    parts.push((About::Whole, "whole".into(), String::new()));
    parts
}

/// Markdown without its signs.
fn plain(markdown: &str) -> String {
    markdown::line(markdown, PLAIN).text()
}

/// The section of a task in the page.
pub fn task(shown: &Shown, number: u32) -> Option<&Task> {
    shown.lesson.as_ref().ok()?.tasks.iter().find(|task| task.number == number)
}

/// The section of the page that speaks of what is in hand: its anchor, and its line in the source.
pub fn place_in_page(shown: &Shown) -> (String, usize) {
    let page =
        std::fs::read_to_string(shown.root.join(format!("book/src/{}.md", shown.chapter.name))).unwrap_or_default();
    let section = |heading: &str| page.lines().position(|line| line == heading).map_or(1, |at| at + 1);
    let (anchor, line) = match shown.task_in_hand().and_then(|number| task(shown, number)) {
        Some(task) => (task.anchor.as_str(), task.line),
        None if shown.is_green() && page.contains("\n## Look at it\n") => ("look-at-it", section("## Look at it")),
        None if shown.is_green() => ("what-it-bought", section("## What it bought")),
        None => ("build", section("## Build")),
    };
    (anchor.to_string(), line)
}

/// Where the page speaks of what is in hand.
pub fn link(shown: &Shown) -> String {
    let (anchor, line) = place_in_page(shown);
    book::link(&shown.root, shown.port, &shown.chapter.name, &anchor, line)
}

/// The same in the source of the page: `book/src/ch02_flat.md:99`.
pub fn source(shown: &Shown) -> String {
    format!("book/src/{}.md:{}", shown.chapter.name, place_in_page(shown).1)
}

/// Where the page is, what there is to say, and the keys.
fn foot(app: &App, columns: usize) -> Vec<Line> {
    let mut foot = Vec::new();
    match (&app.note, &app.opening) {
        (Some(note), _) => {
            let rows = Line::new(note, YELLOW).rows(columns);
            foot.extend(rows.into_iter().take(4));
        }
        (None, Some(doing)) => {
            let doing = if doing.is_empty() { String::new() } else { format!(" ({doing})") };
            foot.push(
                Line::new(format!("the book is being built; the first time takes a minute{doing}"), YELLOW)
                    .cut(columns),
            );
        }
        (None, None) => {
            let address = link(&app.shown);
            let short = Line::new("page  ", DIM).and(&address, CYAN);
            let short = match short.width() <= columns {
                true => short,
                false => Line::new("page  ", DIM).and(source(&app.shown), CYAN),
            };
            let mut line = short.cut(columns);
            line.link = Some(address).filter(|address| address.contains("://"));
            foot.push(line);
        }
    }
    foot.push(keys(app, columns));
    foot
}

/// The keys that make sense now; those that there is no room for are left out, and `?` names them all.
fn keys(app: &App, columns: usize) -> Line {
    let shown = &app.shown;
    let hint = shown.task_in_hand().and_then(|number| {
        let n_hints = task(shown, number)?.hints.len();
        let seen = app.hints.get(&number).copied().unwrap_or(0).min(n_hints);
        (n_hints > 0).then(|| if seen == 0 { "hint".to_string() } else { format!("hint {seen}/{n_hints}") })
    });
    let mut keys: Vec<(&str, String)> = Vec::new();
    let mut add = |key, word: &str| keys.push((key, word.to_string()));
    match &app.view {
        View::Reset(_) => {
            add("y", "reset");
            add("any other", "leave it");
        }
        View::Question(_, is_open) => {
            add("enter", if *is_open { "next question" } else { "answer" });
            add("esc", "back");
        }
        View::Story => {
            add("esc", if app.story.as_ref().is_some_and(|story| story.has_ended) { "back" } else { "stop" })
        }
        View::Hints => {
            let is_last = shown.task_in_hand().is_some_and(|number| {
                let n_hints = task(shown, number).map_or(0, |task| task.hints.len());
                app.hints.get(&number).is_some_and(|seen| *seen >= n_hints)
            });
            if !is_last {
                add("h", "next hint");
            }
            add("t", "task");
            add("esc", "back");
        }
        View::Task => {
            add("t", "whole page");
            if let Some(hint) = hint {
                add("h", &hint);
            }
            add("esc", "back");
        }
        View::Main => {
            if shown.is_green() {
                add("n", "next chapter");
                add("c", "check yourself");
                add("v", "the reference beside yours");
                add("s", "story");
            } else {
                if let Some(hint) = hint {
                    add("h", &hint);
                }
                if shown.is_started() {
                    add("a", "all failures");
                }
                add("t", "task");
                add("s", "story");
                add("o", "open page");
            }
        }
        _ => add("esc", "back"),
    }
    keys.push(("?", "keys".into()));
    keys.push(if app.view == View::Main { ("q", "quit".into()) } else { ("^C", "quit".into()) });
    let line = |keys: &[(&str, String)]| {
        let mut line = Line::default();
        for (key, word) in keys {
            line.push(if line.pieces.is_empty() { "" } else { "  " }, PLAIN);
            line.push(key, BOLD);
            line.push(format!(" {word}"), DIM);
        }
        line
    };
    // Shorter words before fewer keys.
    if line(&keys).width() > columns {
        for (_, word) in &mut keys {
            match word.as_str() {
                "all failures" => *word = "all".into(),
                "open page" => *word = "page".into(),
                "the reference beside yours" => *word = "the reference".into(),
                _ => {}
            }
        }
    }
    while line(&keys).width() > columns && keys.len() > 3 {
        keys.remove(keys.len() - 3);
    }
    line(&keys)
}

/// What there is to read, and the row of it where something differs.
fn body(app: &App, columns: usize) -> (Vec<Line>, usize) {
    let shown = &app.shown;
    let mut lines = match &app.view {
        // What is there is about the file before it was saved.
        View::Main if app.is_stale() => verdict(shown).into_iter().map(|line| line.all(DIM)).collect(),
        View::Main => verdict(shown),
        View::Failures => failures(shown),
        View::Hints => hints(app),
        View::Task => section(shown),
        View::Page => return page(shown, columns),
        View::Help => help(),
        View::Reset(lost) => {
            let file = shown.chapter.exercise();
            vec![
                Line::new(format!("Reset {file}?"), YELLOW),
                Line::default(),
                Line::plain(format!(
                    "{} of yours would be gone from it: it becomes the stub that was handed out.",
                    count(*lost, "line")
                )),
                Line::plain("A copy is put into .page-by-page/ first."),
                Line::default(),
                Line::new("y", BOLD).and(" resets it, any other key leaves it as it is.", PLAIN),
            ]
        }
        View::Question(at, is_open) => question(shown, *at, *is_open),
        View::Story => story(app),
        View::Beside => {
            let Ok(exercise) = &shown.exercise else { return (Vec::new(), 0) };
            let Ok(solution) = crate::stub::read(&shown.root, &shown.chapter.solution()) else {
                return (vec![Line::new(format!("{} cannot be read", shown.chapter.solution()), RED)], 0);
            };
            let mine = beside::as_read(&exercise.text);
            let theirs = beside::as_read(&solution);
            let (mut lines, first) = beside::lines(&mine, &theirs, columns);
            let names = match columns >= beside::WIDE {
                true => Line::new("yours", BOLD).fit((columns - 3) / 2).and(" │ ", DIM).and("the reference", BOLD),
                false => Line::new("yours and the reference, one after the other where they differ", BOLD),
            };
            lines.insert(0, names);
            let before = text::rows(&lines[..=first], columns).len();
            return (lines, before);
        }
    };
    if app.view == View::Main
        && let Some((first, others)) = app.still_running().split_first()
    {
        let (names, are) = match others.len() {
            0 => (first.to_string(), "is"),
            n => (format!("{first} and {}", count(n, "other")), "are"),
        };
        let words = format!("{names} {are} still running: a loop that never ends?");
        lines.splice(0..0, [Line::new(words, YELLOW), Line::default()]);
    }
    (lines, 0)
}

/// One thing: what to look at next.
pub fn verdict(shown: &Shown) -> Vec<Line> {
    if let Err(problem) = &shown.exercise {
        let is_gone = !shown.root.join(shown.chapter.exercise()).exists();
        let mut lines = vec![Line::new(problem, RED)];
        if is_gone && shown.has_keys {
            lines.push(Line::plain("x puts it back as it was handed out."));
        }
        return lines;
    }
    if !shown.is_started() {
        return begin(shown);
    }
    let mut lines = Vec::new();
    match &shown.outcome {
        Outcome::NotRun => {
            lines.extend(title(shown));
            lines.push(Line::default());
            let wait = match shown.is_first {
                true => "The first build takes a minute or two; after that, a verdict takes seconds.",
                false => "Your file is being checked.",
            };
            lines.push(Line::new(wait, DIM));
        }
        Outcome::Refused(words) => {
            lines.push(Line::new("Nothing could be compiled.", RED));
            lines.push(Line::default());
            lines.extend(words.lines().map(Line::plain));
        }
        Outcome::Errors(errors) => lines.extend(compile_errors(shown, errors, 1)),
        Outcome::CutOff(why) => {
            lines.extend(cut_off(shown, why, 1));
        }
        Outcome::Checks if shown.is_green() => lines.extend(done(shown)),
        Outcome::Checks => lines.extend(red(shown)),
    }
    if shown.n_warnings > 0 && matches!(shown.outcome, Outcome::Checks) {
        lines.push(Line::default());
        let warnings = count(shown.n_warnings, "warning");
        lines.push(Line::new(format!("{warnings} about {}: cargo check shows them", shown.chapter.exercise()), DIM));
    }
    lines
}

/// The task in hand, and where it is to be done.
fn title(shown: &Shown) -> Vec<Line> {
    let Some(number) = shown.task_in_hand() else { return Vec::new() };
    let title = task(shown, number).map_or(String::new(), |task| format!(": {}", plain(&task.title)));
    let mut line = Line::new(format!("Task {number}{title}"), BOLD);
    if let Some(place) = place(shown, number) {
        let is_left =
            shown.exercise.as_ref().is_ok_and(|exercise| exercise.todos.iter().any(|todo| todo.task == number));
        line.push(if is_left { "   todo in " } else { "   " }, DIM);
        line.push(place, CYAN);
    }
    vec![line]
}

/// `exercises/ch02_flat.rs:53`
fn place(shown: &Shown, task: u32) -> Option<String> {
    let exercise = shown.exercise.as_ref().ok()?;
    let line = course::place_of(task, exercise, shown.handed_out.as_deref(), shown.chapter.number)?;
    Some(format!("{}:{line}", shown.chapter.exercise()))
}

/// Words that name a key, where there are keys.
fn key<'w>(shown: &Shown, words: &'w str) -> &'w str {
    if shown.has_keys { words } else { "" }
}

/// `19 more red checks not shown (a shows them)`
fn not_shown(shown: &Shown, n: usize, what: &str) -> Line {
    let way = if n == 1 { " (a shows it)" } else { " (a shows them)" };
    Line::new(format!("{} not shown{}", count(n, what), key(shown, way)), DIM)
}

/// What to do in a chapter that nobody has begun.
fn begin(shown: &Shown) -> Vec<Line> {
    let file = shown.chapter.exercise();
    let edit = Line::new("Not started. ", BOLD).and("Edit ", PLAIN).and(&file, CYAN);
    let mut lines = vec![edit.and(" to begin: each time you save it, the checks run here.", PLAIN), Line::default()];
    lines.extend(title(shown));
    let first = shown.exercise.as_ref().ok().and_then(|exercise| exercise.todos.first());
    if let Some(todo) = first {
        lines.push(Line::plain(format!("  {}", todo.what)));
    }
    lines.push(Line::default());
    let (open, alone) = (key(shown, " (o opens it)"), key(shown, " (t)"));
    let read = format!(
        "Read the page as far as its first task{open}, or the task alone{alone}. Until you change the file, the finished one \
         in solutions/ is used in its place."
    );
    lines.push(Line::new(read, DIM));
    lines
}

/// `5 of 9 checks green, 1 waits for task 3`
fn told(shown: &Shown, tally: Tally) -> String {
    let mut words = format!("{} of {} green", tally.green, count(tally.of, "check"));
    if let Some(wait) = tally.waits_for {
        let verb = if tally.waits == 1 { "waits" } else { "wait" };
        let chapter = match wait.chapter == shown.chapter.number {
            true => String::new(),
            false => format!("chapter {}, ", wait.chapter),
        };
        words += &format!(", {} {verb} for {chapter}task {}", tally.waits, wait.task);
    }
    words
}

/// The first red check, in its own words.
fn red(shown: &Shown) -> Vec<Line> {
    let in_hand = shown.verdict.in_hand();
    let mut lines = Vec::new();
    let about = match (in_hand, shown.task_in_hand()) {
        (InHand::Code, _) => About::Code,
        (InHand::Whole, None) => {
            lines.push(Line::new("All tasks are green; the chapter as a whole is not.", BOLD));
            About::Whole
        }
        (InHand::Waits(wait), _) if wait.chapter != shown.chapter.number => {
            lines.push(Line::new("Nothing is red.", BOLD));
            let tally = shown.verdict.total();
            let verb = if tally.waits == 1 { "waits" } else { "wait" };
            lines.push(Line::plain(format!(
                "{} {verb} for task {} of chapter {}, which you have begun: this chapter stands on it. Finish that one \
                 first (cargo learn {}), or reset it there{}, and the reference stands in again.",
                count(tally.waits, "check"),
                wait.task,
                wait.chapter,
                wait.chapter,
                key(shown, " (x)")
            )));
            return lines;
        }
        (_, Some(task)) => About::Task(task),
        (_, None) => About::Whole,
    };
    if let About::Task(_) = about {
        lines.extend(title(shown));
    }
    let tally = shown.verdict.tally(about);
    if about != About::Code {
        lines.push(Line::new(told(shown, tally), DIM));
    }
    if let About::Task(task) = about
        && shown.is_whole
    {
        lines.extend(left_behind(shown, task));
    }
    lines.push(Line::default());
    // What is written comes before what is not.
    let (unwritten, of_it): (Vec<&Check>, Vec<&Check>) =
        shown.red(about).into_iter().partition(|check| check.is_unwritten());
    let first = of_it.first().or(unwritten.first()).copied();
    match first {
        Some(check) if check.is_unwritten() => lines.extend(unwritten_yet(shown, about, check)),
        Some(check) => lines.extend(failure(check)),
        None if !shown.is_whole && tally.of > 0 => {
            let all = if tally.waits == 0 {
                "All of this task is green."
            } else {
                "What can be checked of this task is green."
            };
            lines.push(Line::new(all, GREEN).and(" The other checks are running …", DIM));
        }
        None if tally.of == 0 => lines.push(Line::new("The other checks are running …", DIM)),
        None => {}
    }
    let others = shown.verdict.red().count().saturating_sub(usize::from(first.is_some()));
    if others > 0 && shown.is_whole {
        lines.push(Line::default());
        lines.push(not_shown(shown, others, "more red check"));
    }
    lines
}

/// What is missing in the tasks before this one: their checks that wait.
fn left_behind(shown: &Shown, task: u32) -> Vec<Line> {
    let before = (1..task).filter_map(|number| {
        let tally = shown.verdict.tally(About::Task(number));
        let wait = tally.waits_for.filter(|wait| wait.chapter == shown.chapter.number)?;
        let verb = if tally.waits == 1 { "waits" } else { "wait" };
        let words = format!("{} of task {number} {verb} for task {}.", count(tally.waits, "check"), wait.task);
        Some(Line::new(words, DIM))
    });
    before.collect()
}

/// A task of which nothing is red but what is not written yet.
fn unwritten_yet(shown: &Shown, about: About, check: &Check) -> Vec<Line> {
    let checks::Outcome::Red(words) = &check.outcome else { return Vec::new() };
    let what = words.split_once("not yet implemented: ").map_or("", |(_, what)| what);
    let what = what.lines().next().and_then(|what| what.split_once(": ")).map_or("", |(_, what)| what);
    let mut lines = Vec::new();
    if let About::Task(task) = about {
        let is_before = |number: &u32| shown.verdict.tally(About::Task(*number)).of > 0;
        if let Some(before) = (1..task).rev().find(is_before) {
            let tally = shown.verdict.tally(About::Task(before));
            if tally.red > 0 {
                return vec![Line::plain(format!("Not written yet: {what}"))];
            }
            let all = if tally.green == tally.of { "is green" } else { "is green as far as it can be checked" };
            lines.push(Line::new(format!("Task {before} {all}."), GREEN).and(format!(" Next: task {task}."), BOLD));
        }
    }
    lines.push(Line::plain(format!("Not written yet: {what}")));
    lines.push(Line::new(format!("The page says what it must do{}.", key(shown, " (t shows it here)")), DIM));
    lines
}

/// Why a run was cut off, and the first `most` checks that had failed before, what is to be done first before the rest.
fn cut_off(shown: &Shown, why: &str, most: usize) -> Vec<Line> {
    let mut lines = vec![Line::new("The checks did not come to their end.", RED)];
    let mut failed: Vec<Check> = Vec::new();
    // Whether a line goes on with what was said of a check.
    let mut is_failed = false;
    for line in why.lines() {
        let named = line.strip_prefix("failed: ").and_then(|rest| rest.split_once(": "));
        is_failed = named.is_some() || is_failed && !line.starts_with("error: ");
        match (named, failed.last_mut()) {
            (Some((name, words)), _) => {
                failed.push(Check { name: name.into(), outcome: checks::Outcome::Red(words.into()) });
            }
            (None, Some(Check { outcome: checks::Outcome::Red(words), .. })) if is_failed => {
                words.push('\n');
                words.push_str(line);
            }
            _ if line.trim().is_empty() => {}
            _ => {
                let line = line.strip_prefix("error: ").unwrap_or(line);
                lines.push(words_of(line.strip_prefix("checks::").unwrap_or(line)));
            }
        }
    }
    let left_out = shown.left_out();
    if !left_out.is_empty() {
        lines.push(Line::default());
        let named = left_out[..left_out.len().min(if most == 1 { 3 } else { most })].join(", ");
        let more = left_out.len().saturating_sub(3);
        let more = if most == 1 && more > 0 { format!(" and {more} more (a shows them)") } else { String::new() };
        let these = if left_out.len() == 1 { "This one" } else { "These" };
        lines.push(Line::new(format!("{these} did not finish: {named}{more}"), DIM));
    }
    failed.sort_by_key(|check| (About::of(&check.name), shown.place_in_grader(check)));
    for check in failed.iter_mut().take(most) {
        if let checks::Outcome::Red(words) = &mut check.outcome {
            *words = words.trim_end().to_string();
        }
        lines.push(Line::default());
        lines.extend(failure(check));
    }
    let others = failed.len().saturating_sub(most);
    if others > 0 {
        lines.push(Line::default());
        lines.push(not_shown(shown, others, "more red check"));
    }
    lines
}

/// A failed check: its name, and its words.
fn failure(check: &Check) -> Vec<Line> {
    let checks::Outcome::Red(words) = &check.outcome else { return Vec::new() };
    let mut lines = vec![Line::code(format!("✗ {}", check.short()), RED)];
    lines.extend(words.lines().map(words_of));
    if words.is_empty() {
        lines.push(Line::new("(it was cut off before it could say why)", DIM));
    }
    lines
}

/// A line of a check's words. What was expected is green, what is there instead red, in differences and below questions.
fn words_of(line: &str) -> Line {
    let is_code = line.contains('│') || line.contains('┬') || line.contains('┴') || line.trim_start() != line;
    let side = line.split_once('│').map_or("", |(_, side)| side);
    let colour = match () {
        () if side.starts_with('-') || line.trim_start().starts_with("expected:") => Colour::Green,
        () if side.starts_with('+') || line.trim_start().starts_with("yours:") => Colour::Red,
        () => Colour::Plain,
    };
    let wrap = if is_code && line.contains('│') { Wrap::Anywhere } else { Wrap::Words };
    Line { wrap, ..Line::new(line, Style { colour, ..PLAIN }) }
}

/// The other chapter of the reader's in which an error lies, and where: 1, `exercises/ch01_recompute.rs:61`.
fn other_chapter(shown: &Shown, error: &Diagnostic) -> Option<(usize, String)> {
    let file = error.file.as_deref()?;
    let file = &file[file.find("exercises/ch")?..];
    let number = file.strip_prefix("exercises/ch")?.split('_').next()?.parse().ok()?;
    let line = error.line.map_or(String::new(), |line| format!(":{line}"));
    (number != shown.chapter.number).then(|| (number, format!("{file}{line}")))
}

/// The compiler's words, the first `most` errors.
fn compile_errors(shown: &Shown, errors: &Errors, most: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut all: Vec<&Diagnostic> = errors.shown.iter().collect();
    let is_of_a_chapter = |error: &&Diagnostic| other_chapter(shown, error).is_some();
    all.sort_by_key(|error| !is_of_a_chapter(error));
    if !errors.in_file && shown.exercise.as_ref().is_ok_and(|exercise| exercise.text.trim().is_empty()) {
        lines.push(Line::new(format!("{} is empty.", shown.chapter.exercise()), BOLD));
        let how = match shown.has_keys {
            true => "x".into(),
            false => format!("`git checkout {}`", shown.chapter.exercise()),
        };
        lines.push(Line::new(format!("{how} makes it the stub again. Or bring your text back in the editor."), DIM));
        if most == 1 {
            return lines;
        }
        lines.push(Line::default());
    } else if let Some((number, place)) = all.first().and_then(|error| other_chapter(shown, error)) {
        let key = match () {
            () if shown.has_keys && number + 1 == shown.chapter.number => "p goes there".into(),
            () if shown.has_keys && number == shown.chapter.number + 1 => "n goes there".into(),
            () => format!("`cargo learn {number}` goes there"),
        };
        lines.push(Line::new(format!("Chapter {number} does not compile: "), BOLD).and(place, CYAN));
        lines.push(Line::new(format!("It is compiled together with this one. {key}."), DIM));
        lines.push(Line::default());
    } else if !errors.in_file {
        lines.push(Line::new(
            format!("Nothing in {} is marked, and yet something does not compile.", shown.chapter.exercise()),
            BOLD,
        ));
        lines.push(Line::new(
            "Has a name or a signature changed that others use? Or is another chapter of yours unfinished?",
            DIM,
        ));
        lines.push(Line::default());
    }
    for error in all.into_iter().take(most) {
        // The reader's file, by the name that it has for the reader.
        let rendered = error.rendered.replace("src/../", "").replace("src\\..\\", "");
        lines.extend(text::from_ansi(rendered.trim_end()));
        lines.push(Line::default());
    }
    let others = errors.shown.len().saturating_sub(most);
    if others > 0 {
        lines.push(not_shown(shown, others, "more error"));
    }
    if errors.elsewhere > 0 && others == 0 {
        lines.push(Line::new(format!("{} elsewhere, perhaps because of this", count(errors.elsewhere, "error")), DIM));
    }
    lines
}

/// A chapter that is done.
fn done(shown: &Shown) -> Vec<Line> {
    let total = shown.verdict.total();
    let number = shown.chapter.number;
    let mut lines = vec![
        Line::new(format!("Chapter {number} is done: all {} are green.", count(total.of, "check")), GREEN),
        Line::default(),
    ];
    if !shown.bought.is_empty() || shown.is_counting {
        lines.push(Line::new("What it bought", BOLD));
        if shown.is_counting {
            lines.push(Line::new("  it is being counted on your code …", DIM));
        }
        lines.extend(shown.bought.iter().map(|line| Line::plain(format!("  {line}"))));
        lines.push(Line::default());
    }
    let [o, c, n] = [" (o)", " (c)", " (n)"].map(|name| key(shown, name));
    let section = if place_in_page(shown).0 == "look-at-it" { "Look at it" } else { "What it bought" };
    lines.push(Line::plain(format!(
        "Now the page from {section} on{o}, and its questions{c}. Then the next chapter{n}."
    )));
    lines
}

/// All that is red, or all errors.
fn failures(shown: &Shown) -> Vec<Line> {
    match &shown.outcome {
        Outcome::Errors(errors) => return compile_errors(shown, errors, usize::MAX),
        Outcome::CutOff(why) => return cut_off(shown, why, usize::MAX),
        Outcome::Checks => {}
        _ => return verdict(shown),
    }
    let mut lines = Vec::new();
    for about in shown.verdict.checks.keys() {
        let red = shown.red(*about);
        let tally = shown.verdict.tally(*about);
        let name = match about {
            About::Code => continue,
            About::Task(number) => {
                let title = task(shown, *number).map_or(String::new(), |task| format!(": {}", plain(&task.title)));
                format!("Task {number}{title}")
            }
            About::Whole => "The chapter as a whole".into(),
        };
        if red.is_empty() && tally.waits == 0 {
            continue;
        }
        lines.push(Line::new(name, BOLD).and(format!("   {}", told(shown, tally)), DIM));
        lines.push(Line::default());
        let (unwritten, red): (Vec<&Check>, Vec<&Check>) = red.into_iter().partition(|check| check.is_unwritten());
        for check in red {
            lines.extend(failure(check));
            lines.push(Line::default());
        }
        if !unwritten.is_empty() {
            let come = if unwritten.len() == 1 { "check comes" } else { "checks come" };
            let words = format!("{} {come} to what is not written yet.", unwritten.len());
            lines.push(Line::new(words, DIM));
            lines.push(Line::default());
        }
    }
    if lines.is_empty() {
        lines.push(Line::plain("No check is red."));
    }
    lines
}

/// What each task has come to, a line each: where there is no screen.
pub fn tallies(shown: &Shown) -> Vec<Line> {
    let chapter = &shown.chapter;
    let mut lines = vec![Line::plain(format!("Chapter {}, {}: {}", chapter.number, chapter.title, chapter.exercise()))];
    if !shown.is_started() {
        return lines;
    }
    for (about, name, title) in parts(shown) {
        let tally = shown.verdict.tally(about);
        if tally.of > 0 {
            let name = match about {
                About::Task(_) => format!("task {name}, {title}"),
                _ => name,
            };
            lines.push(Line::plain(format!("  {name}: {}", told(shown, tally))));
        }
    }
    lines
}

fn hints(app: &App) -> Vec<Line> {
    let Some(task) = app.shown.task_in_hand().and_then(|number| task(&app.shown, number)) else { return Vec::new() };
    let seen = app.hints.get(&task.number).copied().unwrap_or(0).min(task.hints.len());
    let mut lines = vec![
        Line::new(format!("Task {}: {}", task.number, plain(&task.title)), BOLD)
            .and(format!("   {seen} of {}", count(task.hints.len(), "hint")), DIM),
        Line::default(),
    ];
    for hint in &task.hints[..seen] {
        lines.push(markdown::line(&hint.summary, YELLOW));
        lines.extend(markdown::lines(&hint.body));
        lines.push(Line::default());
    }
    lines
}

/// What the page says of the task in hand, or of the first one.
fn section(shown: &Shown) -> Vec<Line> {
    let lesson = match &shown.lesson {
        Ok(lesson) => lesson,
        Err(problem) => return vec![Line::new(problem, RED)],
    };
    let in_hand = shown.task_in_hand().and_then(|number| task(shown, number));
    let Some(task) = in_hand.or(lesson.tasks.first()) else {
        return vec![Line::plain("The page has no tasks.")];
    };
    let mut lines = vec![Line::new(format!("Task {}: {}", task.number, plain(&task.title)), BOLD)];
    if let Some(place) = place(shown, task.number) {
        lines.push(Line::new(place, CYAN));
    }
    lines.push(Line::default());
    lines.extend(markdown::lines(&task.text));
    lines
}

/// The whole page as text, and the row at which the task in hand begins. Hints and answers stay folded, figures are left out.
fn page(shown: &Shown, columns: usize) -> (Vec<Line>, usize) {
    let folder = shown.root.join("book/src");
    let Ok(text) = std::fs::read_to_string(folder.join(format!("{}.md", shown.chapter.name))) else {
        return (vec![Line::new(format!("{} cannot be read", source(shown)), RED)], 0);
    };
    let (mut kept, mut at) = (String::new(), 0);
    let (_, wanted) = place_in_page(shown);
    let mut is_folded = false;
    for (line, number) in text.lines().zip(1..) {
        if number == wanted {
            at = kept.len();
        }
        is_folded |= line.starts_with("<details");
        let include = line.strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}"));
        match include {
            _ if is_folded => {
                let summary = line.strip_prefix("<summary>").map(|rest| rest.trim_end_matches("</summary>"));
                if let Some(summary) = summary.filter(|summary| !summary.starts_with("Hint")) {
                    kept.push_str(&format!("**{summary}** (folded)\n\n"));
                }
            }
            Some(what) if what.starts_with("figures/") => {
                kept.push_str("*(Here is a figure: the browser shows it.)*\n")
            }
            Some(what) => kept.push_str(&format!("({})\n", what.trim_start_matches("../"))),
            None => {
                kept.push_str(line);
                kept.push('\n');
            }
        }
        is_folded &= !line.starts_with("</details>");
    }
    let before = text::rows(&markdown::lines(&kept[..at]), columns).len();
    (markdown::lines(&kept), before)
}

fn question(shown: &Shown, at: usize, is_open: bool) -> Vec<Line> {
    let Ok(lesson) = &shown.lesson else { return Vec::new() };
    let Some(question) = lesson.questions.get(at) else { return Vec::new() };
    let mut lines = vec![
        Line::new(format!("Question {} of {}", at + 1, lesson.questions.len()), DIM),
        Line::default(),
        markdown::line(&question.question, BOLD),
        Line::default(),
    ];
    match is_open {
        true => lines.extend(markdown::lines(&question.answer)),
        false => lines.push(Line::new("Think first; enter shows the answer.", DIM)),
    }
    lines
}

fn story(app: &App) -> Vec<Line> {
    let Some(story) = &app.story else { return Vec::new() };
    let mut lines = vec![Line::new(format!("$ page-by-page {}", story.command), DIM), Line::default()];
    let told = |line: &str| Line { wrap: Wrap::Words, ..Line::plain(line) };
    lines.extend(story.told.lines().map(told));
    if !story.says.is_empty() {
        lines.push(Line::default());
        lines.extend(story.says.lines().map(|line| Line::new(line, DIM)));
    }
    if !story.has_ended && story.told.is_empty() {
        let what = match story.compiling.as_str() {
            "" => "on its way".to_string(),
            name => format!("compiling {name}"),
        };
        let seconds = story.since.map_or(0, |since| since.elapsed().as_secs());
        lines.push(Line::new(format!("{what} … {seconds} s"), YELLOW));
        if !story.compiling.is_empty() {
            lines.push(Line::new("The first time, compiling takes a minute or two.", DIM));
        }
    }
    lines
}

fn help() -> Vec<Line> {
    const KEYS: [(&str, &str); 14] = [
        ("h", "the hints of the task in hand, one by one; they are the page's"),
        ("a", "all that is red, not only the first"),
        ("t", "what the page says of the task, here; once more, the whole page"),
        ("o", "open the page in the browser, where it speaks of the task; the book is served if it is not yet"),
        ("s", "run the page's command on the code as it is: mostly a story"),
        ("r", "run the checks again"),
        ("x", "reset the file to the stub; asks first, and keeps a copy"),
        ("v", "the reference beside yours, once all is green"),
        ("c", "the chapter's questions, once all is green"),
        ("n  p", "next chapter, previous chapter"),
        ("↓ ↑  j k", "scroll; space and b, page up and down, home and end"),
        ("esc", "back to the verdict"),
        ("^Z", "out to the shell; fg comes back"),
        ("q  ^C", "quit; where you are is kept"),
    ];
    let mut lines = vec![Line::new("Keys", BOLD), Line::default()];
    for (key, what) in KEYS {
        // Words wrap under the words, not under the keys.
        lines.push(Line { hang: 9, ..Line::new(format!("{key:<9}"), BOLD).and(what, PLAIN) });
    }
    lines.push(Line::default());
    lines.push(Line::plain(
        "Edit the chapter's file in your own editor. On each save the checks of the task in hand run first, \
                            then all others. The task in hand is the lowest one with a red check.",
    ));
    lines.push(Line::plain("A check that needs a later task waits for it: it is neither green nor red."));
    lines
}

#[cfg(test)]
mod tests;
