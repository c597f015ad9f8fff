//! Draws the screen: a header, one thing, and the keys. Drawing changes nothing except where the body is scrolled to.

pub mod reading;
pub mod verdict;

use std::time::Duration;

use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::terminal::Frame;
use ratatui_core::text::Line;

use crate::app::{App, Jump, View};
use crate::checks::{About, Next, Tally};
use crate::compare;
use crate::current::Current;
use crate::markdown;
use crate::run::{Ending, Stage};
use crate::text::{self, BOLD, CYAN, DIM, GREEN, PLAIN, Paragraph, RED, YELLOW, blank, count, cut, plain, prose};

/// The smallest terminal that can be used.
pub const LEAST: (usize, usize) = (40, 12);

/// Terminals with fewer rows show the failure first, and leave out what the header already says.
const COMPACT: usize = 16;

/// Draws everything.
pub fn draw(app: &mut App, frame: &mut Frame<'_>) {
    let area = frame.area();
    let rows = screen(app, area.width.into(), area.height.into());
    for (row, y) in rows.into_iter().zip(area.y..area.bottom()) {
        frame.render_widget(row, Rect { y, height: 1, ..area });
    }
}

/// All rows of the screen.
fn screen(app: &mut App, columns: usize, rows: usize) -> Vec<Line<'static>> {
    if columns < LEAST.0 || rows < LEAST.1 {
        let words = format!("This terminal is {columns}×{rows}; cargo learn needs {}×{}. q quits.", LEAST.0, LEAST.1);
        return plain(words).rows(columns);
    }
    let is_compact = rows < COMPACT;
    let mut screen = vec![head(app, columns), strip(&app.current, columns)];
    if !is_compact {
        screen.push(rule("", columns));
    }
    let foot = foot(app, columns, is_compact);
    let room = rows - screen.len() - foot.len() - 1;
    let (body, mark) = body(app, columns, is_compact);
    let body = text::rows(&body, columns);
    app.extent = (body.len(), room);
    let last = body.len().saturating_sub(room);
    app.scroll = match app.jump.take() {
        Some(Jump::End) => last,
        // With a little of what is above it.
        Some(Jump::Mark) => mark.saturating_sub(room / 3),
        None => app.scroll,
    }
    .min(last);
    screen.extend(body.into_iter().skip(app.scroll).take(room));
    screen.resize(rows - foot.len() - 1, Line::default());
    screen.push(match (app.scroll, last - app.scroll) {
        (0, 0) => rule("", columns),
        (_, 0) => rule("↑ more above", columns),
        (_, below) => rule(&format!("↓ {}", count(below, "more line")), columns),
    });
    screen.extend(foot);
    screen.into_iter().map(|line| cut(line, columns)).collect()
}

/// A line across the screen, with a word in it.
fn rule(word: &str, columns: usize) -> Line<'static> {
    let word = if word.is_empty() { String::new() } else { format!(" {word} ──") };
    let width = plain(&word).line.width();
    prose("─".repeat(columns.saturating_sub(width)), DIM).and(word, DIM).line
}

/// The chapter, and what is going on.
fn head(app: &App, columns: usize) -> Line<'static> {
    let number = app.current.chapter.number;
    let left = prose(format!("{number} · {}", app.current.title()), BOLD).line;
    let right = match (&app.checking.stage, app.checking.took) {
        (Some(stage), _) => running(app, stage),
        (None, Some(took)) => result(&app.current, took),
        (None, None) => blank(),
    };
    let room = columns.saturating_sub(right.line.width() + 2);
    let left = cut(left, room);
    let gap = " ".repeat(room.saturating_sub(left.width()) + 2);
    let mut line = Paragraph { line: left, ..blank() }.and(gap, PLAIN).line;
    line.spans.extend(right.line.spans);
    line
}

fn seconds(duration: Duration) -> String {
    match duration.as_secs() {
        0..60 => format!("{:.1} s", duration.as_secs_f64()),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

fn running(app: &App, stage: &Stage) -> Paragraph {
    let what = match stage {
        Stage::Compiling(Some(progress)) if app.checking.is_first_build => {
            format!("compiling {} of {}", progress.done, progress.of)
        }
        Stage::Compiling(_) => "compiling".into(),
        Stage::Waiting => "waiting for another cargo".into(),
        Stage::Checking => "checking".into(),
    };
    prose(format!("{what} … {}", seconds(app.elapsed())), YELLOW)
}

fn result(current: &Current, took: Duration) -> Paragraph {
    let total = current.verdict.total();
    let (words, style) = match &current.ending {
        Ending::NotRun => return blank(),
        Ending::CutOff(_) => ("stopped".into(), RED),
        Ending::Errors(_) => ("does not compile".into(), RED),
        _ if current.is_green() => ("all green".into(), GREEN),
        _ => (format!("{} of {} green", total.green, total.of), PLAIN),
    };
    prose(words, style).and(format!(" · {}", seconds(took)), DIM)
}

/// The tasks of the chapter, with as many titles as there is room for.
fn strip(current: &Current, columns: usize) -> Line<'static> {
    let fits = |line: &Line<'_>| line.width() <= columns;
    let long = [(true, true), (false, true)].map(|(titles, title)| strip_of(current, titles, title));
    long.into_iter().find(fits).unwrap_or_else(|| cut(strip_of(current, false, false), columns))
}

/// With all titles, with that of the current task, or with none.
fn strip_of(current: &Current, titles: bool, title_of_current: bool) -> Line<'static> {
    let task = current.current_task();
    // After a run that was cut off, checks without a result say nothing.
    let is_cut_off = matches!(current.ending, Ending::CutOff(_));
    let has_result = |name: &&str| current.fresh.all().any(|check| check.short() == *name);
    let left_out: Vec<About> = match is_cut_off {
        true => current.all_checks().into_iter().filter(|name| !has_result(name)).map(About::of).collect(),
        false => Vec::new(),
    };
    // If an error elsewhere blocks the build, nothing is known.
    let is_blocked = matches!(&current.ending, Ending::Errors(errors) if !errors.in_file);
    let mut line = blank();
    for (about, name, title) in parts(current) {
        let mut tally = current.verdict.tally(about);
        if is_cut_off && (current.all_checks().is_empty() || left_out.contains(&about)) {
            tally = Tally::default();
        }
        let is_current = match about {
            About::Task(number) => task == Some(number),
            _ => current.is_whole && current.verdict.next() == Next::Whole,
        };
        let is_green = tally.of > 0 && tally.green == tally.of && !is_blocked;
        let (sign, style) = match (is_current, is_green) {
            (true, _) => ("▸", YELLOW),
            (_, true) => ("✓", GREEN),
            _ => ("·", DIM),
        };
        let gap = if line.is_blank() { "" } else { "  " };
        line = line.and(gap, PLAIN).and(format!("{sign} {name}"), style);
        let style = if is_current { BOLD } else { DIM };
        if (titles || is_current && title_of_current) && !title.is_empty() {
            line = line.and(format!(" {title}"), style);
        }
        if tally.of > 0 && tally.green < tally.of {
            line = line.and(format!(" {}/{}", tally.green, tally.of), style);
        }
    }
    line.line
}

/// The parts of the chapter, each with a short name and a title.
fn parts(current: &Current) -> Vec<(About, String, String)> {
    let of = |task: &page_by_page_course::lesson::Task| {
        (About::Task(task.number), task.number.to_string(), markdown::line(&task.title))
    };
    let mut parts: Vec<_> = current.lesson.iter().flat_map(|lesson| &lesson.tasks).map(of).collect();
    // Without the page, the checks still name the tasks.
    for about in current.verdict.checks.keys() {
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

/// A note or the place in the page, and the keys.
fn foot(app: &App, columns: usize, is_compact: bool) -> Vec<Line<'static>> {
    let mut foot = Vec::new();
    match (&app.note, &app.book.opening) {
        (Some(note), _) => foot.extend(prose(note, YELLOW).rows(columns).into_iter().take(4)),
        (None, Some(doing)) => {
            let doing = if doing.is_empty() { String::new() } else { format!(" ({doing})") };
            foot.push(prose(format!("building the book, which takes a minute the first time{doing}"), YELLOW).line);
        }
        (None, None) if is_compact => {}
        (None, None) => {
            let link = prose("page  ", DIM).and(app.current.link(app.book.port), CYAN).line;
            foot.push(match link.width() <= columns {
                true => link,
                // Half an address leads nowhere.
                false => prose("page  ", DIM).and(app.current.source(), CYAN).line,
            });
        }
    }
    foot.push(keys(app, columns));
    foot
}

/// The keys that are useful now. Those without room are left out; `?` names them all.
fn keys(app: &App, columns: usize) -> Line<'static> {
    let mut keys = keys_of_view(app);
    keys.push(("?", "keys".into()));
    keys.push(if app.view == View::Main { ("q", "quit".into()) } else { ("^C", "quit".into()) });
    let line = |keys: &[(&str, String)]| {
        let key = |line: Paragraph, (key, word): &(&str, String)| {
            let gap = if line.is_blank() { "" } else { "  " };
            line.and(gap, PLAIN).and(key, BOLD).and(format!(" {word}"), DIM)
        };
        keys.iter().fold(blank(), key).line
    };
    // Shorter words before fewer keys.
    if line(&keys).width() > columns {
        for (_, word) in &mut keys {
            let short = [("all failures", "all"), ("open page", "page"), ("compare with the reference", "compare")];
            if let Some((_, short)) = short.iter().find(|(long, _)| long == word) {
                *word = short.to_string();
            }
        }
    }
    while line(&keys).width() > columns && keys.len() > 3 {
        keys.remove(keys.len() - 3);
    }
    line(&keys)
}

fn keys_of_view(app: &App) -> Vec<(&'static str, String)> {
    let current = &app.current;
    let n_hints = current.current_task().map_or(0, |task| current.n_hints(task));
    let seen = current.current_task().and_then(|task| app.hints.get(&task)).map_or(0, |seen| (*seen).min(n_hints));
    let hint = (n_hints > 0).then(|| match seen {
        0 => ("h", "hint".to_string()),
        seen => ("h", format!("hint {seen}/{n_hints}")),
    });
    let key = |key, word: &str| (key, word.to_string());
    let is_last_hint = seen >= n_hints;
    match &app.view {
        View::Reset(_) => vec![key("y", "reset"), key("any other", "leave it")],
        View::Question(_, is_open) => {
            vec![key("enter", if *is_open { "next question" } else { "answer" }), key("esc", "back")]
        }
        View::Story => {
            let has_ended = app.story.as_ref().is_some_and(|story| story.has_ended);
            vec![key("esc", if has_ended { "back" } else { "stop" })]
        }
        View::Hints if is_last_hint => vec![key("t", "task"), key("esc", "back")],
        View::Hints => vec![key("h", "next hint"), key("t", "task"), key("esc", "back")],
        View::Task => [Some(key("t", "whole page")), hint, Some(key("esc", "back"))].into_iter().flatten().collect(),
        View::Main if current.is_green() => vec![
            key("n", "next chapter"),
            key("c", "check yourself"),
            key("v", "compare with the reference"),
            key("s", "story"),
        ],
        View::Main => {
            let failures = current.is_started().then(|| key("a", "all failures"));
            let rest = [key("t", "task"), key("s", "story"), key("o", "open page")];
            hint.into_iter().chain(failures).chain(rest).collect()
        }
        _ => vec![key("esc", "back")],
    }
}

/// The body, and the row of it to scroll to.
fn body(app: &App, columns: usize, is_compact: bool) -> (Vec<Paragraph>, usize) {
    let current = &app.current;
    let lines = match &app.view {
        View::Main => main(app, is_compact),
        View::Failures => verdict::failures(current),
        View::Hints => reading::hints(current, &app.hints),
        View::Task => reading::task(current),
        View::Page => return reading::page(current, columns),
        View::Help => reading::help(),
        View::Reset(lost) => reading::reset(current, *lost),
        View::Question(at, is_open) => reading::question(current, *at, *is_open),
        View::Story => app.story.iter().flat_map(crate::story::Story::lines).collect(),
        View::Compare => {
            let solution = page_by_page_course::stub::read(&current.root, &current.chapter.solution());
            match (&current.exercise, &solution) {
                (Ok(exercise), Ok(solution)) => {
                    compare::lines(&compare::as_read(&exercise.text), &compare::as_read(solution), columns)
                }
                (_, Err(problem)) | (Err(problem), _) => vec![prose(problem, RED)],
            }
        }
    };
    (lines, 0)
}

/// The verdict; while checks run, what there is to say about that.
fn main(app: &App, is_compact: bool) -> Vec<Paragraph> {
    let current = &app.current;
    if app.checking.is_first_build {
        return first_build(app);
    }
    let mut lines = verdict::lines(current, is_compact);
    if current.is_green() {
        lines.extend(verdict::gains(app));
    }
    if app.checking.is_stale && !matches!(current.ending, Ending::NotRun) {
        lines = lines.iter().map(|line| line.all(DIM)).collect();
        lines.splice(0..0, [prose("Before this save:", DIM)]);
    }
    if let Some((first, others)) = app.still_running().split_first() {
        let (names, are) = match others.len() {
            0 => (first.to_string(), "is"),
            n => (format!("{first} and {}", count(n, "other")), "are"),
        };
        let words = format!("{names} {are} still running. Is there a loop that doesn't end?");
        lines.splice(0..0, [prose(words, YELLOW), blank()]);
    }
    lines
}

/// Dependencies are compiled: how far that is, and how long it takes. An older verdict is dropped: it is minutes old then.
fn first_build(app: &App) -> Vec<Paragraph> {
    let mut lines = verdict::title(&app.current);
    lines.push(blank());
    if let Some(Stage::Compiling(Some(progress))) = &app.checking.stage {
        let done = 30 * progress.done / progress.of.max(1);
        let bar = format!("{}{}", "█".repeat(done), "░".repeat(30 - done));
        lines.push(prose(bar, Style::new()).and(format!("  {} of {}", progress.done, progress.of), DIM));
        lines.push(prose(format!("compiling {}", progress.crates), DIM));
        lines.push(blank());
    }
    lines.push(plain(
        "Everything the checks need is compiled once, which takes a minute or two. After that a verdict takes seconds.",
    ));
    lines
}

#[cfg(test)]
mod tests;
