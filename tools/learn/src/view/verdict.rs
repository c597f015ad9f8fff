//! The verdict: where to begin, the first error or failure, or what a finished chapter gains.

use ratatui_core::style::{Color, Style};

use crate::app::App;
use crate::checks::{self, About, Check, Next, Tally};
use crate::compiler::{Diagnostic, Errors};
use crate::current::Current;
use crate::markdown;
use crate::run::Ending;
use crate::text::{self, BOLD, CYAN, DIM, GREEN, PLAIN, Paragraph, RED, Wrap, blank, count, plain, prose};

/// The one thing to look at next. In a compact view without what the header says.
pub fn lines(current: &Current, is_compact: bool) -> Vec<Paragraph> {
    if let Err(problem) = &current.exercise {
        let is_gone = !current.root.join(current.chapter.exercise()).exists();
        let mut lines = vec![prose(problem, RED)];
        if is_gone && current.has_keys {
            lines.push(plain("x puts it back as it was handed out."));
        }
        return lines;
    }
    if !current.is_started() {
        return begin(current);
    }
    let mut lines = match &current.ending {
        Ending::NotRun => not_run(current),
        Ending::Refused(words) => {
            let words = words.lines().map(plain);
            [prose("Nothing could be compiled.", RED), blank()].into_iter().chain(words).collect()
        }
        Ending::Errors(errors) => compile_errors(current, errors, 1),
        Ending::CutOff(why) => cut_off(current, why, 1),
        Ending::Checks if current.is_green() => done(current),
        Ending::Checks => red(current, is_compact),
    };
    if current.n_warnings > 0 && matches!(current.ending, Ending::Checks) {
        let warnings = count(current.n_warnings, "warning");
        let words = format!("{warnings} in {}; `cargo check` shows them", current.chapter.exercise());
        lines.extend([blank(), prose(words, DIM)]);
    }
    lines
}

/// What each task has come to, a line each: for output without a screen.
pub fn tallies(current: &Current) -> Vec<Paragraph> {
    let (number, file) = (current.chapter.number, current.chapter.exercise());
    let mut lines = vec![plain(format!("Chapter {number}, {}: {file}", current.title()))];
    if current.is_started() {
        for (about, name, title) in super::parts(current) {
            let tally = current.verdict.tally(about);
            if tally.of > 0 {
                let name = if matches!(about, About::Task(_)) { format!("task {name}, {title}") } else { name };
                lines.push(plain(format!("  {name}: {}", in_words(current, tally))));
            }
        }
    }
    lines
}

/// The current task, and where it is in the file.
pub fn title(current: &Current) -> Vec<Paragraph> {
    let Some(number) = current.current_task() else { return Vec::new() };
    let title = current.section(number).map_or(String::new(), |task| format!(": {}", markdown::line(&task.title)));
    let mut line = prose(format!("Task {number}{title}"), BOLD);
    if let Some(place) = current.place(number) {
        let todos = current.exercise.iter().flat_map(|exercise| &exercise.todos);
        let is_left = todos.into_iter().any(|todo| todo.task == number);
        line = line.and(if is_left { "   todo in " } else { "   " }, DIM).and(place, CYAN);
    }
    vec![line]
}

fn not_run(current: &Current) -> Vec<Paragraph> {
    let wait = match current.is_first {
        true => "The first build takes a minute or two. After that a verdict takes seconds.",
        false => "Your file is being checked.",
    };
    let mut lines = title(current);
    lines.extend([blank(), prose(wait, DIM)]);
    lines
}

/// A key in parentheses, where there are keys.
fn key<'w>(current: &Current, words: &'w str) -> &'w str {
    if current.has_keys { words } else { "" }
}

/// `19 more red checks not shown (a shows them)`
fn not_shown(current: &Current, n: usize, what: &str) -> Paragraph {
    let way = if n == 1 { " (a shows it)" } else { " (a shows them)" };
    prose(format!("{} not shown{}", count(n, what), key(current, way)), DIM)
}

/// What to do in a chapter that isn't started.
fn begin(current: &Current) -> Vec<Paragraph> {
    let edit = prose("Not started. ", BOLD).and("Edit ", PLAIN).and(current.chapter.exercise(), CYAN);
    let mut lines = vec![edit.and(" to begin: each time you save it, the checks run here.", PLAIN), blank()];
    lines.extend(title(current));
    let first = current.exercise.as_ref().ok().and_then(|exercise| exercise.todos.first());
    lines.extend(first.map(|todo| plain(format!("  {}", todo.what))));
    let (open, alone) = (key(current, " (o opens it)"), key(current, " (t)"));
    let read = format!(
        "Read the page as far as its first task{open}, or only the task{alone}. Until you change the file, the reference in \
         solutions/ is used in its place."
    );
    lines.extend([blank(), prose(read, DIM)]);
    lines
}

/// `5 of 9 checks green, 1 waits for task 3`
fn in_words(current: &Current, tally: Tally) -> String {
    let mut words = format!("{} of {} green", tally.green, count(tally.of, "check"));
    if let Some(wait) = tally.waits_for {
        let verb = if tally.waits == 1 { "waits" } else { "wait" };
        let chapter = match wait.chapter == current.chapter.number {
            true => String::new(),
            false => format!("chapter {}, ", wait.chapter),
        };
        words += &format!(", {} {verb} for {chapter}task {}", tally.waits, wait.task);
    }
    words
}

/// The first red check, in its own words.
fn red(current: &Current, is_compact: bool) -> Vec<Paragraph> {
    let about = match (current.verdict.next(), current.current_task()) {
        (Next::Waits(wait), _) if wait.chapter != current.chapter.number => return waits(current, wait),
        (Next::Code, _) => About::Code,
        (_, Some(task)) => About::Task(task),
        (_, None) => About::Whole,
    };
    let tally = current.verdict.tally(about);
    let mut lines = Vec::new();
    if !is_compact {
        match about {
            About::Code => {}
            About::Whole => lines.push(prose("All tasks are green; the chapter as a whole is not.", BOLD)),
            About::Task(_) => lines.extend(title(current)),
        }
        if about != About::Code {
            lines.push(prose(in_words(current, tally), DIM));
        }
        if let (About::Task(task), true) = (about, current.is_whole) {
            lines.extend(waiting_before(current, task));
        }
        lines.push(blank());
    }
    // A failure of written code comes before a `todo!`.
    let (unwritten, failed): (Vec<&Check>, Vec<&Check>) =
        current.red(about).into_iter().partition(|check| check.is_unwritten());
    let first = failed.first().or(unwritten.first()).copied();
    match first {
        Some(check) if check.is_unwritten() => lines.extend(not_written(current, about, check)),
        Some(check) => lines.extend(failure(check)),
        None if !current.is_whole && tally.of > 0 => {
            let all = match tally.waits {
                0 => "All checks of this task are green.",
                _ => "All checks of this task that can run are green.",
            };
            lines.push(prose(all, GREEN).and(" The other checks are running …", DIM));
        }
        None if tally.of == 0 => lines.push(prose("The other checks are running …", DIM)),
        None => {}
    }
    let others = current.verdict.all().filter(|check| check.is_red()).count() - usize::from(first.is_some());
    if others > 0 && current.is_whole {
        lines.extend([blank(), not_shown(current, others, "more red check")]);
    }
    if is_compact && let About::Task(task) = about {
        lines.extend(current.place(task).map(|place| prose(place, CYAN)));
    }
    lines
}

/// Nothing is red, but the chapter depends on one that the reader hasn't finished.
fn waits(current: &Current, wait: checks::Wait) -> Vec<Paragraph> {
    let n = current.verdict.total().waits;
    let verb = if n == 1 { "waits" } else { "wait" };
    let (checks, chapter, task) = (count(n, "check"), wait.chapter, wait.task);
    let reset = key(current, " (x)");
    vec![
        prose("Nothing is red.", BOLD),
        plain(format!(
            "{checks} {verb} for task {task} of chapter {chapter}, which you have begun: this chapter uses it. Finish that one \
             first (cargo learn {chapter}), or reset it there{reset} to use the reference again."
        )),
    ]
}

/// Checks of earlier tasks that wait for a later one.
fn waiting_before(current: &Current, task: u32) -> Vec<Paragraph> {
    let before = (1..task).filter_map(|number| {
        let tally = current.verdict.tally(About::Task(number));
        let wait = tally.waits_for.filter(|wait| wait.chapter == current.chapter.number)?;
        let verb = if tally.waits == 1 { "waits" } else { "wait" };
        let words = format!("{} of task {number} {verb} for task {}.", count(tally.waits, "check"), wait.task);
        Some(prose(words, DIM))
    });
    before.collect()
}

/// A task whose red checks all reach its own `todo!`.
fn not_written(current: &Current, about: About, check: &Check) -> Vec<Paragraph> {
    let checks::Outcome::Red(message) = &check.outcome else { return Vec::new() };
    let what = message.split_once("not yet implemented: ").map_or("", |(_, what)| what);
    let what = what.lines().next().and_then(|what| what.split_once(": ")).map_or("", |(_, what)| what);
    let mut lines = Vec::new();
    if let About::Task(task) = about {
        let has_checks = |number: &u32| current.verdict.tally(About::Task(*number)).of > 0;
        if let Some(before) = (1..task).rev().find(has_checks) {
            let tally = current.verdict.tally(About::Task(before));
            if tally.red > 0 {
                return vec![plain(format!("Not written yet: {what}"))];
            }
            let all = if tally.green == tally.of { "is green" } else { "is green as far as it can be checked" };
            lines.push(prose(format!("Task {before} {all}."), GREEN).and(format!(" Next: task {task}."), BOLD));
        }
    }
    lines.push(plain(format!("Not written yet: {what}")));
    let way = key(current, " (t shows it here)");
    lines.push(prose(format!("The page explains what it must do{way}."), DIM));
    lines
}

/// Why a run was cut off, and the first `most` of the checks that failed before.
fn cut_off(current: &Current, why: &str, most: usize) -> Vec<Paragraph> {
    let (reasons, mut failed) = reasons(why);
    let mut lines = vec![prose("Not all checks came to an end.", RED)];
    lines.extend(reasons);
    let left_out = current.left_out();
    if !left_out.is_empty() {
        let n_named = if most == 1 { left_out.len().min(3) } else { left_out.len() };
        let more = match left_out.len() - n_named {
            0 => String::new(),
            more => format!(" and {more} more{}", key(current, " (a shows them)")),
        };
        let these = if left_out.len() == 1 { "This one" } else { "These" };
        lines
            .extend([blank(), prose(format!("{these} did not finish: {}{more}", left_out[..n_named].join(", ")), DIM)]);
    }
    failed.sort_by_key(|check| (About::of(&check.name), current.place_in_grader(check)));
    for check in failed.iter().take(most) {
        lines.push(blank());
        lines.extend(failure(check));
    }
    let others = failed.len().saturating_sub(most);
    if others > 0 {
        lines.extend([blank(), not_shown(current, others, "more red check")]);
    }
    lines
}

/// The last words of the checks, taken apart: why they stopped, and the checks that had failed by then. A failure is written
/// `failed: checks::task_1_adds: its message`, and goes on until the next one or an `error: `.
fn reasons(why: &str) -> (Vec<Paragraph>, Vec<Check>) {
    let (mut reasons, mut failed) = (Vec::new(), Vec::<(String, String)>::new());
    let mut in_failure = false;
    for line in why.lines() {
        let named = line.strip_prefix("failed: ").and_then(|rest| rest.split_once(": "));
        in_failure = named.is_some() || in_failure && !line.starts_with("error: ");
        match (named, failed.last_mut()) {
            (Some((name, message)), _) => failed.push((name.into(), message.into())),
            (None, Some((_, message))) if in_failure => *message += &format!("\n{line}"),
            _ if line.trim().is_empty() => {}
            _ => {
                let line = line.strip_prefix("error: ").unwrap_or(line);
                reasons.push(message_line(line.strip_prefix("checks::").unwrap_or(line)));
            }
        }
    }
    let check = |(name, message): (String, String)| Check {
        name,
        outcome: checks::Outcome::Red(message.trim_end().to_string()),
    };
    (reasons, failed.into_iter().map(check).collect())
}

/// A failed check: its name and its message.
fn failure(check: &Check) -> Vec<Paragraph> {
    let checks::Outcome::Red(message) = &check.outcome else { return Vec::new() };
    let mut lines = vec![prose(format!("✗ {}", check.short()), RED)];
    lines.extend(message.lines().map(message_line));
    if message.is_empty() {
        lines.push(prose("(the run was cut off before it could print why)", DIM));
    }
    lines
}

/// A line of a message. What was expected is green and what the code did is red, in differences and after `expected:`.
fn message_line(line: &str) -> Paragraph {
    let side = line.split_once('│').map_or("", |(_, side)| side);
    let style = if side.starts_with('-') || line.trim_start().starts_with("expected:") {
        Style::new().fg(Color::Green)
    } else if side.starts_with('+') || line.trim_start().starts_with("yours:") {
        Style::new().fg(Color::Red)
    } else {
        PLAIN
    };
    let wrap = if line.contains('│') { Wrap::Edge } else { Wrap::Words(0) };
    Paragraph { wrap, ..prose(line, style) }
}

/// The reader's other chapter with an error, and the place: 1, `exercises/ch01_recompute.rs:61`.
fn other_chapter(current: &Current, error: &Diagnostic) -> Option<(usize, String)> {
    let file = error.file.as_deref()?;
    let file = &file[file.find("exercises/ch")?..];
    let number = file.strip_prefix("exercises/ch")?.split('_').next()?.parse().ok()?;
    let line = error.line.map_or(String::new(), |line| format!(":{line}"));
    (number != current.chapter.number).then(|| (number, format!("{file}{line}")))
}

/// The first `most` errors of the compiler.
fn compile_errors(current: &Current, errors: &Errors, most: usize) -> Vec<Paragraph> {
    let mut all: Vec<&Diagnostic> = errors.shown.iter().collect();
    all.sort_by_key(|error| other_chapter(current, error).is_none());
    let is_empty = current.exercise.as_ref().is_ok_and(|exercise| exercise.text.trim().is_empty());
    let mut lines = match errors.in_file {
        true => Vec::new(),
        false => why_elsewhere(current, all.first().copied(), is_empty),
    };
    if is_empty && !errors.in_file && most == 1 {
        return lines;
    }
    for error in all.into_iter().take(most) {
        // The reader knows the file by its own name.
        let rendered = error.rendered.replace("src/../", "").replace("src\\..\\", "");
        lines.extend(text::from_ansi(rendered.trim_end()));
        lines.push(blank());
    }
    let others = errors.shown.len().saturating_sub(most);
    if others > 0 {
        lines.push(not_shown(current, others, "more error"));
    } else if errors.elsewhere > 0 {
        lines.push(prose(format!("{} elsewhere, perhaps because of this", count(errors.elsewhere, "error")), DIM));
    }
    lines
}

/// What to do about errors none of which is in this chapter's file.
fn why_elsewhere(current: &Current, first: Option<&Diagnostic>, is_empty: bool) -> Vec<Paragraph> {
    let file = current.chapter.exercise();
    let other = first.and_then(|error| other_chapter(current, error));
    let (what, advice) = if is_empty {
        let way = if current.has_keys { "x".into() } else { format!("`git checkout {file}`") };
        let advice = format!("{way} makes it the stub again. Or bring your text back in the editor.");
        (prose(format!("{file} is empty."), BOLD), advice)
    } else if let Some((number, place)) = other {
        let way = match () {
            () if current.has_keys && number + 1 == current.chapter.number => "p".into(),
            () if current.has_keys && number == current.chapter.number + 1 => "n".into(),
            () => format!("`cargo learn {number}`"),
        };
        let what = prose(format!("Chapter {number} does not compile: "), BOLD).and(place, CYAN);
        (what, format!("It is compiled together with this one. {way} opens it."))
    } else {
        let advice = "Has a name or a signature changed that others use? Or is another chapter of yours unfinished?";
        (prose(format!("The compiler finds no error in {file}, but one elsewhere."), BOLD), advice.into())
    };
    vec![what, prose(advice, DIM), blank()]
}

/// A finished chapter.
fn done(current: &Current) -> Vec<Paragraph> {
    let total = current.verdict.total();
    let [o, c, n] = [" (o)", " (c)", " (n)"].map(|name| key(current, name));
    let section = if current.place_in_page().0 == "look-at-it" { "Look at it" } else { "What it bought" };
    vec![
        prose(
            format!("Chapter {} is done: all {} are green.", current.chapter.number, count(total.of, "check")),
            GREEN,
        ),
        plain(format!(
            "Read on from “{section}”{o}, answer the page's questions{c}, then go on to the next chapter{n}."
        )),
    ]
}

/// What the chapter gains, as far as it is known.
pub fn gains(app: &App) -> Vec<Paragraph> {
    if app.gained.lines.is_empty() && !app.gained.is_counting() {
        return Vec::new();
    }
    let mut lines = vec![blank(), prose("What it gains", BOLD)];
    if app.gained.is_counting() {
        lines.push(prose(
            "  The numbers are being counted on your code. The first time, the program is compiled for that …",
            DIM,
        ));
    }
    lines.extend(app.gained.lines.iter().map(|line| plain(format!("  {line}"))));
    lines
}

/// All failures, or all errors.
pub fn failures(current: &Current) -> Vec<Paragraph> {
    match &current.ending {
        Ending::Errors(errors) => return compile_errors(current, errors, usize::MAX),
        Ending::CutOff(why) => return cut_off(current, why, usize::MAX),
        Ending::Checks => {}
        _ => return lines(current, false),
    }
    let mut lines = Vec::new();
    for about in current.verdict.checks.keys() {
        lines.extend(failures_of(current, *about));
    }
    if lines.is_empty() {
        lines.push(plain("No check is red."));
    }
    lines
}

fn failures_of(current: &Current, about: About) -> Vec<Paragraph> {
    let (red, tally) = (current.red(about), current.verdict.tally(about));
    let name = match about {
        About::Task(number) => {
            let title =
                current.section(number).map_or(String::new(), |task| format!(": {}", markdown::line(&task.title)));
            format!("Task {number}{title}")
        }
        About::Whole => "The chapter as a whole".into(),
        About::Code => return Vec::new(),
    };
    if red.is_empty() && tally.waits == 0 {
        return Vec::new();
    }
    let mut lines = vec![prose(name, BOLD).and(format!("   {}", in_words(current, tally)), DIM), blank()];
    let (unwritten, red): (Vec<&Check>, Vec<&Check>) = red.into_iter().partition(|check| check.is_unwritten());
    for check in red {
        lines.extend(failure(check));
        lines.push(blank());
    }
    if !unwritten.is_empty() {
        let reach = if unwritten.len() == 1 { "check reaches" } else { "checks reach" };
        lines.extend([prose(format!("{} {reach} a todo! of this task.", unwritten.len()), DIM), blank()]);
    }
    lines
}
