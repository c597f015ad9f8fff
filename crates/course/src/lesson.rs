//! A chapter's page as data: its tasks with their hints, its questions with their answers.
//!
//! A hint is written once, in the page. `cargo learn` shows it from there, and `cargo course check` reports a task that
//! has none. What is asked of a page is small, and all sixteen have it, at the beginning of a line: a task is a heading
//! `### Task N: …`, a hint in its section is a `<details class="hint">`, a question is a `<details class="answer">`. The
//! finished code, `<details class="compare">`, is no part of its task: who works on it doesn't want to see it.

use std::path::Path;

use crate::includes::{Expanded, Problem};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lesson {
    pub tasks: Vec<Task>,
    /// In the order of the page: *Check yourself*.
    pub questions: Vec<Fold>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub number: u32,
    /// Without its number, as Markdown: `make room`.
    pub title: String,
    /// The id of the heading in the rendered page: `task-1-make-room`.
    pub anchor: String,
    /// The line of the heading in the file of the page, from 1.
    pub line: usize,
    /// The section without heading, hints and finished code, as Markdown.
    pub text: String,
    /// From a nudge to almost-code.
    pub hints: Vec<Fold>,
}

/// A folded part: a hint, or a question with its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fold {
    /// The line that stays visible, as it is written: `Hint 1`.
    pub summary: String,
    /// What is folded, as Markdown.
    pub body: String,
}

impl Lesson {
    /// Reads the page of the chapter `name`, such as `ch02_flat`, of the repository at `root`.
    ///
    /// # Errors
    /// What is missing, in a line: the page, a file that it includes, or the lines asked for.
    pub fn read(root: &Path, name: &str) -> Result<Lesson, String> {
        let file = format!("book/src/{name}.md");
        let page = Expanded::read(root, Path::new(&file)).map_err(|error| format!("{file} cannot be read: {error}"))?;
        match page.problems.first() {
            Some((place, Problem { what, .. })) => Err(format!("{place}: {what}")),
            None => Ok(lesson(&page)),
        }
    }
}

fn lesson(page: &Expanded) -> Lesson {
    let mut lesson = Lesson { tasks: Vec::new(), questions: Vec::new() };
    let (mut at, mut in_code, mut in_task) = (0, false, false);
    // The fold that is open: its class, what is in it, and how many are open, one in the other.
    let mut open: Option<(&str, String, usize)> = None;
    for line in page.text.split_inclusive('\n') {
        let is_fence = line.starts_with("```");
        in_code ^= is_fence;
        let markup = if in_code || is_fence { "" } else { line };
        if let Some((class, inside, depth)) = &mut open {
            *depth += usize::from(markup.starts_with("<details"));
            *depth -= usize::from(markup.starts_with("</details>"));
            match (*depth, lesson.tasks.last_mut().filter(|_| in_task)) {
                (1.., _) => inside.push_str(line),
                (0, Some(task)) if *class == "hint" => task.hints.push(fold(inside)),
                (0, _) if *class == "answer" => lesson.questions.push(fold(inside)),
                _ => {}
            }
            open.take_if(|(.., depth)| *depth == 0);
        } else if let Some(class) =
            ["hint", "answer", "compare"].into_iter().find(|class| markup.starts_with(&tag(class)))
        {
            open = Some((class, String::new(), 1));
        } else if let Some((number, title)) = task(markup) {
            let (anchor, line) = (id_of(markup.trim_start_matches('#')), page.place(at).line);
            let (text, hints) = (String::new(), Vec::new());
            lesson.tasks.push(Task { number, title, anchor, line, text, hints });
            in_task = true;
        } else {
            in_task &= !["# ", "## ", "### "].iter().any(|heading| markup.starts_with(heading));
            if let Some(task) = lesson.tasks.last_mut().filter(|_| in_task) {
                task.text += line;
            }
        }
        at += line.len();
    }
    lesson
}

fn tag(class: &str) -> String {
    format!("<details class=\"{class}\">")
}

/// A fold, from what stands between its tags. The summary may have several lines.
fn fold(inside: &str) -> Fold {
    let (summary, body) = inside.split_once("</summary>").unwrap_or((inside, ""));
    let summary: Vec<&str> = summary.trim().trim_start_matches("<summary>").split_whitespace().collect();
    Fold { summary: summary.join(" "), body: body.trim().to_string() }
}

/// `### Task 2: gather` → (2, `gather`)
fn task(line: &str) -> Option<(u32, String)> {
    let (number, title) = line.strip_prefix("### Task ")?.split_once(": ")?;
    Some((number.parse().ok()?, title.trim().to_string()))
}

/// The id that mdBook 0.5.4 gives a heading (`mdbook-html`, `src/utils.rs`), without Markdown's and all other signs.
fn id_of(text: &str) -> String {
    let id = |c: char| match c {
        c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c),
        c if c.is_whitespace() => Some('-'),
        _ => None,
    };
    text.trim().to_lowercase().chars().filter_map(id).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const PAGE: &str = include_str!("../samples/page.md");

    const SOME: &str = "one\n  two\n\nfour\n// ANCHOR: part\nfive\n// ANCHOR: inner\nsix\n// ANCHOR_END: part\nseven\n";

    fn read(page: &str) -> Result<Lesson, String> {
        let root = tempfile::tempdir().unwrap();
        for folder in ["book/src/figures", "src"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        fs::write(root.path().join("book/src/ch07_x.md"), page).unwrap();
        fs::write(root.path().join("book/src/figures/picture.html"), "<figure>\n</figure>\n").unwrap();
        fs::write(root.path().join("src/some.rs"), SOME).unwrap();
        Lesson::read(root.path(), "ch07_x")
    }

    #[test]
    fn a_page_is_read_as_it_is_written() {
        let lesson = read(PAGE).unwrap();
        let [first, second] = &lesson.tasks[..] else { panic!("{:#?}", lesson.tasks) };
        assert_eq!((first.number, first.title.as_str(), first.line), (1, "don't `stop`", 7));
        let lines: Vec<&str> = first.text.lines().filter(|line| !line.is_empty()).collect();
        let code = ["```rust", "### Task 9: is code", "<details class=\"hint\">", "```"];
        assert_eq!(lines, [&["Do this."], &code[..], &["After the hints.", "#### A heading inside"]].concat());
        let [nudge, almost] = &first.hints[..] else { panic!("{:#?}", first.hints) };
        assert_eq!(nudge.summary, "Hint 1");
        assert!(nudge.body.starts_with("Look at `here`.") && nudge.body.ends_with("More.\n\n</details>"), "{nudge:?}");
        assert_eq!(almost.summary, "What does <code>a</code> say?");
        assert_eq!(almost.body, "```text\n  two\n\n```");
        // The line is that of the page, although what was included before it is longer than the directive.
        assert_eq!((second.text.trim(), second.line, &second.hints[..]), ("five\nsix", 50, &[][..]));
        // Anchors are those that mdBook makes.
        assert_eq!([&first.anchor, &second.anchor], ["task-1-dont-stop", "task-2-über-a_b--x"]);
        let questions: Vec<_> = lesson.questions.iter().map(|q| (q.summary.as_str(), q.body.as_str())).collect();
        assert_eq!(questions, [("Why?", "Because")]);
        assert_eq!(read(&PAGE.replace('\n', "\r\n")).unwrap(), lesson);
    }

    #[test]
    fn an_include_that_finds_nothing_is_an_error() {
        let error = read("# x\n{{#include ../../src/none.rs}}\n").unwrap_err();
        assert_eq!(error, "book/src/ch07_x.md:2: no file `src/none.rs` to include");
        let error = Lesson::read(Path::new("/nowhere/at/all"), "ch01_x").unwrap_err();
        assert!(error.starts_with("book/src/ch01_x.md cannot be read: "), "{error}");
    }
}
