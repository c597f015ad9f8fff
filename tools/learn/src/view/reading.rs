//! What there is to read: hints, the page, questions, keys.

use std::collections::BTreeMap;

use crate::current::Current;
use crate::markdown;
use crate::text::{self, BOLD, CYAN, DIM, PLAIN, Paragraph, RED, YELLOW, blank, count, plain, prose};

/// The hints that the reader has asked for.
pub fn hints(current: &Current, seen: &BTreeMap<u32, usize>) -> Vec<Paragraph> {
    let Some(task) = current.current_task().and_then(|number| current.section(number)) else { return Vec::new() };
    let seen = seen.get(&task.number).copied().unwrap_or(0).min(task.hints.len());
    let mut lines = vec![
        prose(format!("Task {}: {}", task.number, markdown::line(&task.title)), BOLD)
            .and(format!("   {seen} of {}", count(task.hints.len(), "hint")), DIM),
        blank(),
    ];
    for hint in &task.hints[..seen] {
        lines.push(prose(markdown::line(&hint.summary), YELLOW));
        lines.extend(markdown::lines(&hint.body));
        lines.push(blank());
    }
    lines
}

/// The page's section about the current task, or about the first.
pub fn task(current: &Current) -> Vec<Paragraph> {
    let lesson = match &current.lesson {
        Ok(lesson) => lesson,
        Err(problem) => return vec![prose(problem, RED)],
    };
    let task = current.current_task().and_then(|number| current.section(number));
    let Some(task) = task.or(lesson.tasks.first()) else { return vec![plain("The page has no tasks.")] };
    let mut lines = vec![prose(format!("Task {}: {}", task.number, markdown::line(&task.title)), BOLD)];
    lines.extend(current.place(task.number).map(|place| prose(place, CYAN)));
    lines.push(blank());
    lines.extend(markdown::lines(&task.text));
    lines
}

/// The whole page, and the row at which the current task begins. Hints and answers stay folded, figures are left out.
pub fn page(current: &Current, columns: usize) -> (Vec<Paragraph>, usize) {
    let Ok(text) = std::fs::read_to_string(current.root.join(current.chapter.page())) else {
        return (vec![prose(format!("{} cannot be read", current.chapter.page()), RED)], 0);
    };
    let (mut kept, mut at, mut is_folded) = (String::new(), 0, false);
    let (_, wanted) = current.place_in_page();
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
                    kept += &format!("**{summary}** (folded)\n\n");
                }
            }
            Some(file) if file.starts_with("figures/") => kept += "*(Figure: see the browser.)*\n",
            Some(file) => kept += &format!("({})\n", file.trim_start_matches("../")),
            None => kept += &format!("{line}\n"),
        }
        is_folded &= !line.starts_with("</details>");
    }
    let before = text::rows(&markdown::lines(&kept[..at]), columns).len();
    (markdown::lines(&kept), before)
}

/// A question of the page, and its answer if it is open.
pub fn question(current: &Current, at: usize, is_open: bool) -> Vec<Paragraph> {
    let Ok(lesson) = &current.lesson else { return Vec::new() };
    let Some(question) = lesson.questions.get(at) else { return Vec::new() };
    let mut lines = vec![
        prose(format!("Question {} of {}", at + 1, lesson.questions.len()), DIM),
        blank(),
        prose(markdown::line(&question.question), BOLD),
        blank(),
    ];
    match is_open {
        true => lines.extend(markdown::lines(&question.answer)),
        false => lines.push(prose("Think first; enter shows the answer.", DIM)),
    }
    lines
}

/// What a reset would do.
pub fn reset(current: &Current, lost: usize) -> Vec<Paragraph> {
    vec![
        prose(format!("Reset {}?", current.chapter.exercise()), YELLOW),
        blank(),
        plain(format!("It becomes the stub again, and loses {} of yours.", count(lost, "line"))),
        plain("A copy is put into .page-by-page/ first."),
        blank(),
        prose("y", BOLD).and(" resets it, any other key leaves it as it is.", PLAIN),
    ]
}

const KEYS: [(&str, &str); 14] = [
    ("h", "the hints for the current task, one by one"),
    ("a", "all failures, not only the first"),
    ("t", "the task's section of the page; press it again for the whole page"),
    ("o", "open the page in the browser at the current task; if the book isn't served yet, it is built first"),
    ("s", "run the page's command with your code: in most chapters it generates a story"),
    ("r", "run the checks again"),
    ("x", "reset the file to the stub; asks first, and keeps a copy"),
    ("v", "compare your code with the reference, once all is green"),
    ("c", "the chapter's questions, once all is green"),
    ("n  p", "next chapter, previous chapter"),
    ("↓ ↑  j k", "scroll; space and b by a page, home and end"),
    ("esc", "back to the verdict"),
    ("^Z", "suspend; fg in the shell comes back"),
    ("q  ^C", "quit; your place is kept"),
];

/// All keys.
pub fn help() -> Vec<Paragraph> {
    let mut lines = vec![prose("Keys", BOLD), blank()];
    lines.extend(KEYS.map(|(key, what)| prose(format!("{key:<10}"), BOLD).and(what, PLAIN).hanging(10)));
    lines.push(blank());
    lines.push(plain(
        "Edit the chapter's file in your own editor. On each save the checks of the current task run first, then all others. \
         The current task is the first one with a red check.",
    ));
    lines.push(plain("A check that needs a later task waits for it: it is neither green nor red."));
    lines
}
