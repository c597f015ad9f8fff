//! What there is to read: hints, the page, questions, the reference.

use page_by_page_course::includes::Expanded;
use page_by_page_course::source;

use crate::compare;
use crate::current::Current;
use crate::markdown;
use crate::text::{BOLD, CYAN, DIM, PLAIN, Paragraph, RED, YELLOW, blank, plain, plural, prose};

pub fn hints(current: &Current, seen: usize) -> Vec<Paragraph> {
    let Some(task) = current.section() else { return Vec::new() };
    let mut lines = vec![
        prose(format!("Task {}: {}", task.number, markdown::line(&task.title)), BOLD)
            .and(format!("   {seen} of {}", plural(task.hints.len(), "hint")), DIM),
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
    let Some(task) = current.section().or(lesson.tasks.first()) else { return Vec::new() };
    let mut lines = vec![prose(format!("Task {}: {}", task.number, markdown::line(&task.title)), BOLD)];
    lines.extend(current.place().map(|place| prose(place, CYAN)));
    lines.push(blank());
    lines.extend(markdown::lines(&task.text));
    lines
}

/// The whole page. Hints and answers stay folded, figures are left out.
pub fn page(current: &Current) -> Vec<Paragraph> {
    let page = current.chapter.page();
    let Ok(page) = Expanded::read(&current.root, page.as_ref()) else {
        return vec![prose(format!("{page} cannot be read"), RED)];
    };
    let (mut kept, mut is_folded) = (String::new(), false);
    for line in page.text.split_inclusive('\n') {
        is_folded |= line.starts_with("<details");
        if !is_folded {
            kept += line;
        }
        is_folded &= !line.starts_with("</details>");
    }
    markdown::lines(&kept)
}

/// A question of the page, and its answer if it is open.
pub fn question(current: &Current, at: usize, is_open: bool) -> Vec<Paragraph> {
    let questions = current.lesson.as_ref().map_or(&[][..], |lesson| &lesson.questions);
    let Some(question) = questions.get(at) else { return vec![plain("The page has no questions.")] };
    let mut lines = vec![
        prose(format!("Question {} of {}", at + 1, questions.len()), DIM),
        blank(),
        prose(markdown::line(&question.summary), BOLD),
        blank(),
    ];
    match is_open {
        true => lines.extend(markdown::lines(&question.body)),
        false => lines.push(prose("Think first; enter shows the answer.", DIM)),
    }
    lines
}

pub fn compare(current: &Current) -> Vec<Paragraph> {
    match (&current.exercise, source::read(&current.root, &current.chapter.solution())) {
        (Ok(exercise), Ok(solution)) => compare::lines(&exercise.text, &solution),
        (Err(problem), _) => vec![prose(problem, RED)],
        (_, Err(problem)) => vec![prose(problem, RED)],
    }
}

pub fn reset(current: &Current) -> Vec<Paragraph> {
    vec![
        prose(format!("Reset {}?", current.chapter.exercise()), YELLOW),
        blank(),
        plain("It becomes the stub again. A copy of your text is put into .page-by-page/ first."),
        blank(),
        prose("y", BOLD).and(" resets it, any other key leaves it as it is.", PLAIN),
    ]
}
