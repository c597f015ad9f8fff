//! The verdict: where to begin, the first error or failure, or that the chapter is finished.

use crate::compiler::Diagnostic;
use crate::current::Current;
use crate::markdown;
use crate::run::RunResult;
use crate::text::{BOLD, CYAN, DIM, GREEN, PLAIN, Paragraph, RED, blank, code, plain, plural, prose};
use crate::verdict::{Part, Wait, reached_todo};

/// How much of a verdict is shown, and where.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// On a screen, with keys to press.
    Full,
    /// On a small one: without what the header says.
    Compact,
    /// As plain lines, where no key does anything.
    Plain,
}

impl Layout {
    /// The key to press, such as ` (o)`, where there are keys.
    fn key(self, key: &str) -> String {
        if self == Layout::Plain { String::new() } else { format!(" ({key})") }
    }
}

/// The one thing to look at next.
pub fn lines(current: &Current, layout: Layout) -> Vec<Paragraph> {
    if let Err(problem) = &current.exercise {
        return vec![prose(problem, RED)];
    }
    if !current.is_started() {
        return begin(current, layout);
    }
    match &current.result {
        RunResult::NotRun => vec![
            plain("Your file is being checked."),
            prose("The first time, everything is compiled, which takes a minute or two.", DIM),
        ],
        RunResult::Refused(words) => {
            let words = words.lines().map(plain);
            [prose("Nothing could be compiled.", RED), blank()].into_iter().chain(words).collect()
        }
        RunResult::CompileErrors(errors) => compile_errors(current, errors, layout),
        RunResult::CutOff(why) => {
            let why = why.lines().map(message_line);
            [prose("Not all checks came to an end.", RED)].into_iter().chain(why).collect()
        }
        RunResult::Finished(_) if current.is_green() => done(current, layout),
        RunResult::Finished(_) => red(current, layout),
    }
}

/// What each task has come to, a line each: for output without a screen.
pub fn tallies(current: &Current) -> Vec<Paragraph> {
    let (number, file) = (current.chapter.number, current.chapter.exercise());
    let mut lines = vec![plain(format!("Chapter {number}, {}: {file}", current.chapter.title))];
    for (part, name, title) in super::parts(current) {
        if current.verdict().tally_of(part).of > 0 {
            let name = if part == Part::Whole { name } else { format!("task {name}, {title}") };
            lines.push(plain(format!("  {name}: {}", in_words(current, part))));
        }
    }
    lines.push(blank());
    lines
}

/// The current task, and where its `todo!` is in the file.
fn title(current: &Current) -> Option<Paragraph> {
    let number = current.task?;
    let title = current.section().map_or(String::new(), |task| format!(": {}", markdown::line(&task.title)));
    let line = prose(format!("Task {number}{title}"), BOLD);
    Some(match current.place() {
        Some(place) => line.and("   todo in ", DIM).and(place, CYAN),
        None => line,
    })
}

/// `19 more red checks not shown (a shows them)`
fn not_shown(n: usize, what: &str, layout: Layout) -> Paragraph {
    let key = layout.key(if n == 1 { "a shows it" } else { "a shows them" });
    prose(format!("{} not shown{key}", plural(n, what)), DIM)
}

/// What to do in a chapter that isn't started.
fn begin(current: &Current, layout: Layout) -> Vec<Paragraph> {
    let edit = prose("Not started. ", BOLD).and("Edit ", PLAIN).and(current.chapter.exercise(), CYAN);
    let (checked, read) = match layout {
        Layout::Plain => (" to begin.", "Read the page as far as its first task."),
        _ => (
            " to begin: each time you save it, the checks run here.",
            "Read the page as far as its first task, or only the task (t).",
        ),
    };
    let mut lines = vec![edit.and(checked, PLAIN), blank()];
    lines.extend(title(current));
    let first = current.exercise.as_ref().ok().and_then(|exercise| exercise.todos.first());
    lines.extend(first.map(|todo| plain(format!("  {}", todo.what))));
    let read = format!("{read} Until you change the file, the reference in solutions/ is used in its place.");
    lines.extend([blank(), prose(read, DIM)]);
    lines
}

/// `5 of 9 checks green, 1 waits for task 3`
fn in_words(current: &Current, part: Part) -> String {
    let (tally, waits) = (current.verdict().tally_of(part), current.verdict().waits(|it| it == part));
    let words = format!("{} of {} green", tally.green, plural(tally.of, "check"));
    let Some(wait) = waits.iter().max() else { return words };
    let verb = if waits.len() == 1 { "waits" } else { "wait" };
    let of = if wait.chapter == current.chapter.number { "" } else { &format!("chapter {}, ", wait.chapter) };
    format!("{words}, {} {verb} for {of}task {}", waits.len(), wait.task)
}

/// The first red check, in its own words.
fn red(current: &Current, layout: Layout) -> Vec<Paragraph> {
    let verdict = current.verdict();
    let part = match (verdict.red().next(), verdict.waits(|_| true).iter().max(), current.task) {
        (None, Some(wait), _) if wait.chapter != current.chapter.number => return waits(current, *wait),
        (Some((Part::Code, ..)), ..) => Part::Code,
        (.., Some(task)) => Part::Task(task),
        (.., None) => Part::Whole,
    };
    let mut lines = Vec::new();
    if layout != Layout::Compact && part != Part::Code {
        lines.push(title(current).unwrap_or(prose("All tasks are green; the chapter as a whole is not.", BOLD)));
        lines.push(prose(in_words(current, part), DIM));
        lines.push(blank());
    }
    // A failure of written code comes before a `todo!`.
    let mut red: Vec<_> = verdict.red().filter(|red| red.0 == part).collect();
    red.sort_by_key(|(.., message)| reached_todo(message).is_some());
    match red.first().map(|(_, name, message)| (name, message, reached_todo(message))) {
        Some((.., Some((_, what)))) => {
            let key = layout.key("t shows it here");
            lines.push(plain(format!("Not written yet: {what}")));
            lines.push(prose(format!("The page explains what it must do{key}."), DIM));
        }
        Some((name, message, None)) => lines.extend(failure(name, message)),
        None if current.is_whole => {}
        None => lines.push(prose("The other checks are running …", DIM)),
    }
    let others = verdict.red().count() - red.len().min(1);
    if others > 0 && current.is_whole {
        lines.extend([blank(), not_shown(others, "more red check", layout)]);
    }
    lines
}

/// Nothing is red, but the chapter depends on one that the reader hasn't finished.
fn waits(current: &Current, Wait { chapter, task }: Wait) -> Vec<Paragraph> {
    let n = current.verdict().waits(|_| true).len();
    let (checks, verb) = (plural(n, "check"), if n == 1 { "waits" } else { "wait" });
    vec![
        prose("Nothing is red.", BOLD),
        plain(format!(
            "{checks} {verb} for task {task} of chapter {chapter}, which you have begun: this chapter uses it. Finish \
             that one first (cargo learn {chapter}), or reset it there to use the reference again."
        )),
    ]
}

fn failure(name: &str, message: &str) -> Vec<Paragraph> {
    let message = message.lines().map(message_line);
    [code(format!("✗ {name}"), RED)].into_iter().chain(message).collect()
}

/// A line of a message. What was expected is green and what the code did is red, in differences and after `expected:`.
fn message_line(line: &str) -> Paragraph {
    let side = line.split_once('│').map_or("", |(_, side)| side);
    let style = if side.starts_with('-') || line.trim_start().starts_with("expected:") {
        GREEN
    } else if side.starts_with('+') || line.trim_start().starts_with("yours:") {
        RED
    } else {
        PLAIN
    };
    Paragraph { is_code: line.contains('│'), ..prose(line, style) }
}

/// The first error of the compiler, or all for plain lines, which have room for them.
fn compile_errors(current: &Current, errors: &[Diagnostic], layout: Layout) -> Vec<Paragraph> {
    let mut lines = Vec::new();
    if !errors[0].is_in_file {
        let file = current.chapter.exercise();
        let advice = "Has a name or a signature changed that others use? Or does another chapter of yours not compile? \
                      It is compiled together with this one.";
        lines.push(prose(format!("The compiler finds no error in {file}, but one elsewhere."), BOLD));
        lines.extend([prose(advice, DIM), blank()]);
    }
    let most = if layout == Layout::Plain { errors.len() } else { 1 };
    for error in errors.iter().take(most) {
        let (first, rest) = error.rendered.split_once('\n').unwrap_or((&error.rendered, ""));
        lines.push(code(first, RED));
        lines.extend(rest.lines().map(|line| code(line, PLAIN)));
        lines.push(blank());
    }
    if errors.len() > most {
        lines.push(not_shown(errors.len() - most, "more error", layout));
    }
    lines
}

fn done(current: &Current, layout: Layout) -> Vec<Paragraph> {
    let (number, checks) = (current.chapter.number, plural(current.verdict().total().of, "check"));
    let [page, questions, next] = ["o", "c", "n"].map(|key| layout.key(key));
    let go_on = match current.is_last {
        true => format!(
            ". That was the last chapter: start `cargo serve`, and the engine that answers is yours wherever you wrote \
             it{}.",
            layout.key("l")
        ),
        false => format!(", then go on to the next chapter{next}."),
    };
    let next = format!("Read on in the page after its last task{page}, answer its questions{questions}{go_on}");
    vec![prose(format!("Chapter {number} is done: all {checks} are green."), GREEN), plain(next)]
}

pub fn failures(current: &Current) -> Vec<Paragraph> {
    match &current.result {
        RunResult::CompileErrors(errors) => return compile_errors(current, errors, Layout::Plain),
        RunResult::Finished(_) => {}
        _ => return lines(current, Layout::Full),
    }
    let parts = super::parts(current).into_iter().map(|(part, name, title)| match part {
        Part::Task(_) => (part, format!("Task {name}: {title}")),
        _ => (part, "The chapter as a whole".into()),
    });
    let mut lines = Vec::new();
    for (part, name) in parts {
        let (red, tally) = (current.verdict().red().filter(|red| red.0 == part), current.verdict().tally_of(part));
        if tally.green < tally.of {
            lines.extend([prose(name, BOLD).and(format!("   {}", in_words(current, part)), DIM), blank()]);
        }
        let (unwritten, written): (Vec<_>, Vec<_>) = red.partition(|(.., message)| reached_todo(message).is_some());
        for (_, name, message) in written {
            lines.extend(failure(name, message));
            lines.push(blank());
        }
        if !unwritten.is_empty() {
            let reach = if unwritten.len() == 1 { "reaches" } else { "reach" };
            let words = format!("{} {reach} a todo! of this task.", plural(unwritten.len(), "check"));
            lines.extend([prose(words, DIM), blank()]);
        }
    }
    if lines.is_empty() {
        lines.push(plain("No check is red."));
    }
    lines
}
