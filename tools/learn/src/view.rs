//! Draws the screen: a header, one thing, and the keys. Drawing changes nothing except where the body is scrolled to.

pub mod reading;
pub mod verdict;

use std::time::Duration;

use crate::app::{App, View};
use crate::current::Current;
use crate::keys;
use crate::markdown;
use crate::run::{RunResult, Stage};
use crate::text::{BOLD, CYAN, DIM, GREEN, PLAIN, Paragraph, RED, YELLOW, blank, plain, plural, prose};
use crate::verdict::Part;
use crate::view::verdict::Layout;

/// The smallest terminal that can be used.
const MIN_SIZE: (usize, usize) = (40, 12);

/// Terminals with fewer rows show the failure first, and leave out what the header already says.
const COMPACT: usize = 16;

pub fn screen(app: &mut App, (columns, rows): (usize, usize)) -> Vec<Paragraph> {
    if columns < MIN_SIZE.0 || rows < MIN_SIZE.1 {
        let words =
            format!("This terminal is {columns}×{rows}; cargo learn needs {}×{}. q quits.", MIN_SIZE.0, MIN_SIZE.1);
        let mut screen = plain(words).rows(columns);
        screen.resize(rows, blank());
        return screen;
    }
    let layout = if rows < COMPACT { Layout::Compact } else { Layout::Full };
    let mut screen = vec![head(app, columns), strip(&app.current, columns)];
    if layout == Layout::Full {
        screen.push(rule("", columns));
    }
    let foot = foot(app, columns, layout);
    let n_rows = rows - screen.len() - foot.len() - 1;
    let body: Vec<Paragraph> = body(app, layout).iter().flat_map(|line| line.rows(columns)).collect();
    app.extent = (body.len(), n_rows);
    let last = body.len().saturating_sub(n_rows);
    app.scroll = app.scroll.min(last);
    screen.extend(body.into_iter().skip(app.scroll).take(n_rows));
    screen.resize(rows - foot.len() - 1, blank());
    screen.push(match (app.scroll, last - app.scroll) {
        (0, 0) => rule("", columns),
        (_, 0) => rule(" ↑ more above ──", columns),
        (_, below) => rule(&format!(" ↓ {} ──", plural(below, "more line")), columns),
    });
    screen.extend(foot);
    screen.into_iter().map(|line| line.cut(columns)).collect()
}

/// A line across the screen that ends in a word.
fn rule(word: &str, columns: usize) -> Paragraph {
    prose("─".repeat(columns - plain(word).width()) + word, DIM)
}

fn head(app: &App, columns: usize) -> Paragraph {
    let seconds = |duration: Duration| format!("{:.1} s", duration.as_secs_f64());
    let right = match (&app.checking.stage, app.checking.took) {
        (Some(stage), _) => {
            let words = match stage {
                Stage::Compiling(_) => "compiling …",
                Stage::Waiting => "waiting for another cargo …",
                Stage::Checking => "checking …",
            };
            prose(words, YELLOW).and(format!(" {}", seconds(app.elapsed())), DIM)
        }
        (None, Some(took)) => result(&app.current).and(format!(" · {}", seconds(took)), DIM),
        (None, None) => blank(),
    };
    let title = format!("{} · {}", app.current.chapter.number, app.current.chapter.title);
    let mut line = prose(title, BOLD).cut(columns.saturating_sub(right.width() + 2));
    let gap = columns.saturating_sub(right.width() + line.width());
    line.spans.push((" ".repeat(gap), PLAIN));
    line.spans.extend(right.spans);
    line
}

fn result(current: &Current) -> Paragraph {
    let total = current.verdict().total();
    match &current.result {
        RunResult::CutOff(_) => prose("stopped", RED),
        RunResult::CompileErrors(_) | RunResult::Refused(_) => prose("does not compile", RED),
        _ if current.is_green() => prose("all green", GREEN),
        _ => plain(format!("{} of {} green", total.green, total.of)),
    }
}

/// The tasks of the chapter: with all titles, with that of the current task, or with none, as there is room.
fn strip(current: &Current, columns: usize) -> Paragraph {
    let fitting = [|_| true, |is_current| is_current].map(|has_title| strip_of(current, has_title));
    fitting.into_iter().find(|strip| strip.width() <= columns).unwrap_or_else(|| strip_of(current, |_| false))
}

fn strip_of(current: &Current, has_title: fn(bool) -> bool) -> Paragraph {
    let mut line = blank();
    for (part, name, title) in parts(current) {
        let tally = current.verdict().tally_of(part);
        let is_current = match part {
            Part::Task(number) => current.task == Some(number),
            _ => current.task.is_none() && matches!(current.result, RunResult::Finished(_)) && !current.is_green(),
        };
        let (sign, style) = match (is_current, tally.all_green()) {
            (true, _) => ("▸", YELLOW),
            (_, true) => ("✓", GREEN),
            _ => ("·", DIM),
        };
        let gap = if line == blank() { "" } else { "  " };
        line = line.and(gap, PLAIN).and(format!("{sign} {name}"), style);
        let style = if is_current { BOLD } else { DIM };
        if has_title(is_current) && !title.is_empty() {
            line = line.and(format!(" {title}"), style);
        }
        if tally.of > 0 && tally.green < tally.of {
            line = line.and(format!(" {}/{}", tally.green, tally.of), style);
        }
    }
    line
}

/// The parts of the chapter, each with a short name and a title.
fn parts(current: &Current) -> Vec<(Part, String, String)> {
    let tasks = current.lesson.iter().flat_map(|lesson| &lesson.tasks);
    let tasks = tasks.map(|task| (Part::Task(task.number), task.number.to_string(), markdown::line(&task.title)));
    tasks.chain([(Part::Whole, "whole".into(), String::new())]).collect()
}

/// A note or the place in the page, and the keys.
fn foot(app: &App, columns: usize, layout: Layout) -> Vec<Paragraph> {
    let mut foot = match &app.note {
        Some(note) => prose(note, YELLOW).rows(columns).into_iter().take(4).collect(),
        None if app.book.is_opening => {
            let doing = &app.book.last_line;
            vec![prose(format!("building the book, which takes a minute the first time ({doing})"), YELLOW)]
        }
        None if layout == Layout::Compact => Vec::new(),
        None => {
            let served = app.current.link(app.book.port);
            // Half an address leads nowhere.
            let link = if served.len() + 6 <= columns { served } else { app.current.link(None) };
            vec![prose("page  ", DIM).and(link, CYAN)]
        }
    };
    foot.push(keys(app, columns));
    foot
}

/// The keys that are useful now. Those without room are left out; `?` names them all.
fn keys(app: &App, columns: usize) -> Paragraph {
    let mut keys = keys_of_view(app);
    keys.push(("?", "keys".into()));
    keys.push(if app.view == View::Main { ("q", "quit".into()) } else { ("^C", "quit".into()) });
    loop {
        let line = keys.iter().fold(blank(), |line, (key, word)| {
            let gap = if line == blank() { "" } else { "  " };
            line.and(gap, PLAIN).and(key, BOLD).and(format!(" {word}"), DIM)
        });
        if line.width() <= columns || keys.len() <= 3 {
            return line;
        }
        keys.remove(keys.len() - 3);
    }
}

fn keys_of_view(app: &App) -> Vec<(&'static str, String)> {
    let current = &app.current;
    let (seen, n_hints) = (app.hints_seen(), current.n_hints());
    let hint = match (seen, n_hints) {
        (_, 0) => None,
        (0, _) => Some(("h", "hint".to_string())),
        (seen, _) => Some(("h", format!("hint {seen}/{n_hints}"))),
    };
    let key = |key, word: &str| (key, word.to_string());
    match &app.view {
        View::Reset => vec![key("y", "reset"), key("any other", "leave it")],
        View::Question(_, is_open) => {
            vec![key("enter", if *is_open { "next question" } else { "answer" }), key("esc", "back")]
        }
        View::Program if app.program.as_ref().is_some_and(|program| !program.has_ended) => vec![key("esc", "stop")],
        View::Hints if seen < n_hints => vec![key("h", "next hint"), key("t", "task"), key("esc", "back")],
        View::Hints => vec![key("t", "task"), key("esc", "back")],
        View::Task => [key("t", "whole page"), key("esc", "back")].into_iter().chain(hint).collect(),
        View::Main if current.exercise.is_err() => vec![key("x", "the stub again")],
        View::Main if current.is_green() => vec![
            key("n", "next chapter"),
            key("c", "check yourself"),
            key("v", "compare with the reference"),
            key("s", "start"),
        ],
        View::Main => {
            let failures = current.is_started().then(|| key("a", "all failures"));
            let rest = [key("t", "task"), key("s", "start"), key("o", "open page")];
            hint.into_iter().chain(failures).chain(rest).collect()
        }
        _ => vec![key("esc", "back")],
    }
}

fn body(app: &App, layout: Layout) -> Vec<Paragraph> {
    let current = &app.current;
    match app.view {
        View::Main => main(app, layout),
        View::Overlay(key) => keys::shown(app, key),
        View::Hints => reading::hints(current, app.hints_seen()),
        View::Task => reading::task(current),
        View::Page => reading::page(current),
        View::Reset => reading::reset(current),
        View::Question(at, is_open) => reading::question(current, at, is_open),
        View::Program => app.program.iter().flat_map(|program| program.paragraphs()).collect(),
    }
}

/// The verdict; while checks run, what there is to say about that.
fn main(app: &App, layout: Layout) -> Vec<Paragraph> {
    let (current, checking) = (&app.current, &app.checking);
    if let (true, Some(Stage::Compiling(Some(progress)))) = (checking.is_first_build, &checking.stage) {
        // Everything is compiled: an older verdict would be minutes old.
        return vec![
            prose(format!("Compiling {} of {} packages: {}", progress.done, progress.of, progress.crates), DIM),
            plain("This happens once, and takes a minute or two. After that a verdict takes seconds."),
        ];
    }
    let mut lines = verdict::lines(current, layout);
    if checking.counting.is_some() {
        lines.extend([blank(), prose("What it gains is being counted on your code …", DIM)]);
    } else if !checking.gains.is_empty() {
        lines.extend([blank(), prose("What it gains", BOLD)]);
        lines.extend(checking.gains.iter().map(|line| plain(format!("  {}", line.trim_start()))));
    }
    if checking.is_stale && !matches!(current.result, RunResult::NotRun) {
        lines = lines.iter().map(|line| Paragraph { is_code: line.is_code, ..prose(line.text(), DIM) }).collect();
        lines.insert(0, prose("Before this save:", DIM));
    }
    lines
}

#[cfg(test)]
mod tests;
