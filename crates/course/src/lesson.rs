//! A chapter's page as data: its tasks with their hints, its questions with their answers.
//!
//! A hint is written once, in the page. `cargo learn` shows it from there, and `cargo course check` reports a task that
//! has none. So the page is read in mdBook's way, with the same parser and options, includes put in first, and a
//! heading's anchor made as mdBook 0.5.4 makes it (`mdbook-html`, `src/html/tree.rs` and `src/utils.rs`). What is asked
//! of a page is small, and all sixteen have it. A task is a heading `### Task N: …`, a hint in its section is a
//! `<details class="hint">`, a question is a `<details class="answer">`.

use std::ops::Range;
use std::path::Path;

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use crate::includes::{Expanded, Problem};

/// A chapter's page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lesson {
    pub tasks: Vec<Task>,
    /// In the order of the page: *Check yourself*.
    pub questions: Vec<Fold>,
}

/// The section of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub number: u32,
    /// Without its number: `make room`.
    pub title: String,
    /// Of the heading in the rendered page: `task-1-make-room`.
    pub anchor: String,
    /// Of the heading, from 1, in the file of the page.
    pub line: usize,
    /// The section without heading and hints, as Markdown.
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
    let text = &page.text;
    let (headings, folds) = outline(text);
    let fold = |details: &Details| {
        let body = text[details.body.clone()].trim().to_string();
        Fold { summary: details.summary.clone(), body }
    };
    let mut tasks = Vec::new();
    for (index, heading) in headings.iter().enumerate() {
        let Some((number, title)) = task(heading) else { continue };
        let next = headings[index + 1..].iter().find(|next| next.level <= heading.level);
        let end = next.map_or(text.len(), |next| next.range.start);
        let mut task = Task {
            number,
            title,
            anchor: heading.anchor.clone(),
            line: page.place(heading.range.start).line,
            text: String::new(),
            hints: Vec::new(),
        };
        let section = heading.range.end..end;
        let mut from = section.start;
        for details in folds.iter().filter(|it| it.class == "hint" && section.contains(&it.whole.start)) {
            task.text += &text[from..details.whole.start];
            from = details.whole.end;
            task.hints.push(fold(details));
        }
        task.text += &text[from.min(end)..end];
        tasks.push(task);
    }
    Lesson { tasks, questions: folds.iter().filter(|details| details.class == "answer").map(fold).collect() }
}

/// `### Task 2: gather` → (2, `gather`)
fn task(heading: &Heading) -> Option<(u32, String)> {
    let (number, title) = heading.text.strip_prefix("Task ")?.split_once(": ")?;
    let is_task = heading.level == HeadingLevel::H3 && number.bytes().all(|byte| byte.is_ascii_digit());
    Some((number.parse().ok().filter(|_| is_task)?, title.trim().to_string()))
}

/// A heading and where it stands.
struct Heading {
    level: HeadingLevel,
    text: String,
    anchor: String,
    range: Range<usize>,
}

/// A `<details>` of a page.
#[derive(Default)]
struct Details {
    class: String,
    summary: String,
    /// From its first tag to its last.
    whole: Range<usize>,
    /// From the end of its summary to its last tag.
    body: Range<usize>,
}

/// The headings and the folded parts of a page.
fn outline(text: &str) -> (Vec<Heading>, Vec<Details>) {
    let (mut headings, mut folds, mut open) = (Vec::new(), Vec::new(), Vec::new());
    let mut heading: Option<String> = None;
    for (event, range) in Parser::new_ext(text, options()).into_offset_iter() {
        match (event, &mut heading) {
            (Event::Start(Tag::Heading { .. }), _) => heading = Some(String::new()),
            (Event::Text(part) | Event::Code(part), Some(text)) => text.push_str(&part),
            (Event::End(TagEnd::Heading(level)), _) => {
                let text = heading.take().unwrap_or_default();
                headings.push(Heading { level, anchor: id_of(&text), text, range });
            }
            (Event::Html(_), _) => read_tags(text, range, &mut open, &mut folds),
            _ => {}
        }
    }
    folds.sort_by_key(|fold| fold.whole.start);
    (headings, folds)
}

/// Reads the tags in a piece of HTML. `open` are the details that are not closed yet.
fn read_tags(text: &str, html: Range<usize>, open: &mut Vec<Details>, folds: &mut Vec<Details>) {
    for (at, _) in text[html.clone()].match_indices('<') {
        let start = html.start + at;
        let tag = text[start..].split_inclusive('>').next().unwrap_or_default();
        let end = start + tag.len();
        if tag.starts_with("<details") {
            let class = tag.split("class=\"").nth(1).and_then(|class| class.split('"').next()).unwrap_or_default();
            open.push(Details { class: class.into(), whole: start..end, body: end..end, ..Details::default() });
        } else if tag.starts_with("<summary")
            && let Some(fold) = open.last_mut()
        {
            // It may go on in the next line, which is the next piece.
            let summary = text[end..].split("</summary>").next().unwrap_or_default();
            fold.summary = summary.split_whitespace().collect::<Vec<_>>().join(" ");
            fold.body.start = (end + summary.len() + "</summary>".len()).min(text.len());
        } else if tag.starts_with("</details")
            && let Some(mut fold) = open.pop()
        {
            fold.whole.end = end;
            fold.body.end = start.max(fold.body.start);
            folds.push(fold);
        }
    }
}

/// Those of `mdbook-markdown`, as `book/book.toml` leaves them.
fn options() -> Options {
    Options::ENABLE_TABLES
        | Options::ENABLE_FOOTNOTES
        | Options::ENABLE_STRIKETHROUGH
        | Options::ENABLE_TASKLISTS
        | Options::ENABLE_HEADING_ATTRIBUTES
        | Options::ENABLE_SMART_PUNCTUATION
        | Options::ENABLE_DEFINITION_LIST
        | Options::ENABLE_GFM
}

/// The id that mdBook makes from the words of a heading.
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

    const PAGE: &str = r##"# 7. A *page* of `its` own

{{#include figures/picture.html}}

## Build

### Task 1: don't `stop`

Do this.

```rust
### Task 9: is code
<details class="hint">
```

<details class="hint">
<summary>Hint 1</summary>

Look at `here`.

<details>
<summary>in it</summary>

More.

</details>

</details>
<details class="hint">
<summary>What does <code>a</code>
say?</summary>

```text
{{#include ../../src/some.rs:2:3}}
```

</details>

After the hints.

#### A heading inside

### Task 2: Über `a_b` – x

{{#include ../../src/some.rs:part}}

### Task: no number

<details class="hint">
<summary>Of no task</summary>
</details>

## Check yourself

<details class="answer">
<summary>Why?</summary>

Because

</details>
"##;

    const SOME: &str = "one\n  two\n\nfour\n// ANCHOR: part\nfive\n// ANCHOR: inner\nsix\n// ANCHOR_END: part\nseven\n";

    /// A page in a repository of its own.
    fn read(page: &str) -> Result<Lesson, String> {
        let root = tempfile::tempdir().unwrap();
        for folder in ["book/src/figures", "src"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        fs::write(root.path().join("book/src/ch07_x.md"), page).unwrap();
        fs::write(root.path().join("book/src/figures/picture.html"), "<figure>\n### Task 8: no\n</figure>\n").unwrap();
        fs::write(root.path().join("src/some.rs"), SOME).unwrap();
        Lesson::read(root.path(), "ch07_x")
    }

    #[test]
    fn a_page_is_read_as_it_is_written() {
        let lesson = read(PAGE).unwrap();
        let [first, second] = &lesson.tasks[..] else { panic!("{:#?}", lesson.tasks) };
        assert_eq!((first.number, first.title.as_str(), first.line), (1, "don’t stop", 7));
        let lines: Vec<&str> = first.text.lines().filter(|line| !line.is_empty()).collect();
        let code = ["```rust", "### Task 9: is code", "<details class=\"hint\">", "```"];
        assert_eq!(lines, [&["Do this."], &code[..], &["After the hints.", "#### A heading inside"]].concat());
        let [nudge, almost] = &first.hints[..] else { panic!("{:#?}", first.hints) };
        assert_eq!(nudge.summary, "Hint 1");
        assert!(nudge.body.starts_with("Look at `here`.") && nudge.body.ends_with("More.\n\n</details>"), "{nudge:?}");
        assert_eq!(almost.summary, "What does <code>a</code> say?");
        assert_eq!(almost.body, "```text\n  two\n\n```");
        // The line is that of the page, although what was included before it is longer than the directive.
        assert_eq!((second.text.trim(), second.line, &second.hints[..]), ("five\nsix", 43, &[][..]));
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
