//! A chapter's page as data: its tasks with their hints, its questions with their answers, what it bought.
//!
//! A hint is written once, in the page. `cargo learn` shows it from there, and `cargo course check` reports a task that has
//! none. So the page is read in mdBook's way: the same parser with the same options, includes put in first, and a heading's
//! anchor made as mdBook 0.5.4 makes it (`mdbook-html`, `src/html/tree.rs` and `src/utils.rs`). What is asked of a
//! page is small, and all sixteen have it: a task is a heading `### Task N: …`, a hint is a `<details class="hint">` in its
//! section, a question is a `<details class="answer">`.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use crate::includes::{Expanded, Problem};

/// A chapter's page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lesson {
    /// From the root of the repository: `book/src/ch02_flat.md`.
    pub file: String,
    /// With its number: `2. The flat cache`.
    pub title: String,
    /// In the order of the page.
    pub tasks: Vec<Task>,
    /// In the order of the page: *Check yourself*.
    pub questions: Vec<Question>,
    /// The section *What it bought* without its heading, as Markdown; None if the page has no such section.
    pub bought: Option<String>,
}

/// The section of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// From 1.
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
    pub hints: Vec<Hint>,
}

/// What is folded under a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The line that stays visible, as Markdown: `Hint 1`.
    pub summary: String,
    /// What is folded, as Markdown.
    pub body: String,
    /// Where it begins, from 1, in the file of the page.
    pub line: usize,
}

/// A question of *Check yourself*.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// As Markdown.
    pub question: String,
    /// As Markdown.
    pub answer: String,
    /// Where it begins, from 1, in the file of the page.
    pub line: usize,
}

impl Lesson {
    /// Reads the page of the chapter `name`, such as `ch02_flat`, of the repository at `root`.
    ///
    /// # Errors
    /// What is missing, in a line: the page, a file that it includes, or the lines asked for.
    pub fn read(root: &Path, name: &str) -> Result<Lesson, String> {
        let file = format!("book/src/{name}.md");
        // Figures are HTML: there is nothing in them to read as text.
        let page = Expanded::read(root, Path::new(&file), &|path| !path.ends_with(".html"));
        let source = Source(page.map_err(|error| format!("{file} cannot be read: {error}"))?);
        if let Some(Problem { place, what, .. }) = source.0.problems.first() {
            return Err(format!("{place}: {what}"));
        }
        Ok(source.lesson(file))
    }
}

/// The text of a page, includes put in.
struct Source(Expanded);

impl Source {
    /// The line of the page in which the byte `offset` of the text was written.
    fn line(&self, offset: usize) -> usize {
        self.0.place(offset).line
    }

    fn lesson(&self, file: String) -> Lesson {
        let Outline { headings, folds } = Outline::of(&self.0.text);
        let title = headings.iter().find(|heading| heading.level == HeadingLevel::H1);
        let mut lesson = Lesson {
            file,
            title: title.map(|heading| heading.text.clone()).unwrap_or_default(),
            tasks: Vec::new(),
            questions: Vec::new(),
            bought: None,
        };
        for (index, heading) in headings.iter().enumerate() {
            let next = headings[index + 1..].iter().find(|next| next.level <= heading.level);
            let section = heading.range.end..next.map_or(self.0.text.len(), |next| next.range.start);
            if let Some((number, title)) = task(heading) {
                let inside = || folds.iter().filter(|fold| fold.class == "hint" && section.contains(&fold.whole.start));
                let mut text = String::new();
                let mut from = section.start;
                for fold in inside() {
                    text.push_str(&self.0.text[from..fold.whole.start]);
                    from = fold.whole.end;
                }
                text.push_str(&self.0.text[from.min(section.end)..section.end]);
                let hint = |fold: &Fold| Hint {
                    summary: fold.summary.clone(),
                    body: self.0.text[fold.body.clone()].trim().to_string(),
                    line: self.line(fold.whole.start),
                };
                lesson.tasks.push(Task {
                    number,
                    title,
                    anchor: heading.anchor.clone(),
                    line: self.line(heading.range.start),
                    text: without_gaps(&text),
                    hints: inside().map(hint).collect(),
                });
            }
            if heading.level == HeadingLevel::H2 && heading.text == "What it bought" {
                lesson.bought = Some(self.0.text[section].trim().to_string());
            }
        }
        let questions = folds.iter().filter(|fold| fold.class == "answer").map(|fold| Question {
            question: fold.summary.clone(),
            answer: self.0.text[fold.body.clone()].trim().to_string(),
            line: self.line(fold.whole.start),
        });
        lesson.questions = questions.collect();
        lesson
    }
}

/// `### Task 2: gather` → (2, `gather`)
fn task(heading: &Heading) -> Option<(u32, String)> {
    let (number, title) = heading.text.strip_prefix("Task ")?.split_once(": ")?;
    let is_task = heading.level == HeadingLevel::H3 && number.bytes().all(|byte| byte.is_ascii_digit());
    Some((number.parse().ok().filter(|_| is_task)?, title.trim().to_string()))
}

/// Where something was taken out, one blank line is left of several. Code keeps its own.
fn without_gaps(text: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut in_code = false;
    for line in text.trim().lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        let follows_a_gap = kept.last().is_none_or(|line| line.is_empty());
        if in_code || !line.trim().is_empty() || !follows_a_gap {
            kept.push(line.trim_end());
        }
    }
    kept.join("\n")
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
struct Fold {
    class: String,
    summary: String,
    /// From its first tag to its last.
    whole: Range<usize>,
    /// From the end of its summary to its last tag.
    body: Range<usize>,
}

/// The headings and the folded parts of a page.
#[derive(Default)]
struct Outline {
    headings: Vec<Heading>,
    folds: Vec<Fold>,
}

impl Outline {
    fn of(text: &str) -> Self {
        let mut outline = Outline::default();
        let mut used = HashSet::new();
        let mut open = Vec::new();
        // The heading or the term that is being read: its text, and an id that it was given.
        let mut within: Option<(String, Option<String>)> = None;
        for (event, range) in Parser::new_ext(text, options()).into_offset_iter() {
            match event {
                Event::Start(Tag::Heading { id, .. }) => within = Some((String::new(), id.map(|id| id.to_string()))),
                Event::Start(Tag::DefinitionListTitle) => within = Some((String::new(), None)),
                Event::Text(part) | Event::Code(part) => {
                    if let Some((text, _)) = &mut within {
                        text.push_str(&part);
                    }
                }
                Event::SoftBreak => {
                    if let Some((text, _)) = &mut within {
                        text.push('\n');
                    }
                }
                Event::End(TagEnd::Heading(level)) => {
                    let Some((text, id)) = within.take() else { continue };
                    let anchor = id.unwrap_or_else(|| unique(id_of(&text), &mut used));
                    outline.headings.push(Heading { level, text: text.trim().to_string(), anchor, range });
                }
                // Its id may be one that a heading would have.
                Event::End(TagEnd::DefinitionListTitle) => {
                    let Some((text, _)) = within.take() else { continue };
                    unique(id_of(&text), &mut used);
                }
                Event::Html(html) => outline.tags(text, &html, range.start, &mut open),
                _ => {}
            }
        }
        outline.folds.sort_by_key(|fold| fold.whole.start);
        outline
    }

    /// Reads the tags in a piece of HTML that begins at the byte `start`. `open` are the details that are not closed yet.
    fn tags(&mut self, text: &str, html: &str, start: usize, open: &mut Vec<Fold>) {
        for (at, _) in html.match_indices('<') {
            let rest = &html[at..];
            let end = start + at + rest.find('>').map_or(rest.len(), |end| end + 1);
            if rest.starts_with("<details") {
                let class = rest.split('>').next().and_then(|tag| tag.split("class=\"").nth(1)?.split('"').next());
                let class = class.unwrap_or_default().to_string();
                open.push(Fold { class, whole: start + at..end, body: end..end, ..Fold::default() });
            } else if rest.starts_with("<summary")
                && let Some(fold) = open.last_mut()
            {
                // It may go on in the next line, which is the next piece.
                let to = text[end..].find("</summary>").map_or(text.len(), |length| end + length);
                fold.summary = as_markdown(&text[end..to]);
                fold.body.start = (to + "</summary>".len()).min(text.len());
            } else if rest.starts_with("</details")
                && let Some(mut fold) = open.pop()
            {
                fold.whole.end = end;
                fold.body.end = (start + at).max(fold.body.start);
                self.folds.push(fold);
            }
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

/// The id, with a number behind it if it is taken.
fn unique(id: String, used: &mut HashSet<String>) -> String {
    let numbered = (1..).map(|number| format!("{id}-{number}"));
    let found = [id.clone()].into_iter().chain(numbered).find(|id| !used.contains(id)).unwrap_or(id);
    used.insert(found.clone());
    found
}

/// The inline HTML of a summary as Markdown: `the <code>k</code>` → the `k`.
fn as_markdown(html: &str) -> String {
    let mut text = String::new();
    let mut rest = html.trim();
    while let Some((before, from)) = rest.split_once('<') {
        text.push_str(before);
        let (tag, after) = from.split_once('>').unwrap_or((from, ""));
        text.push_str(match tag.trim_start_matches('/') {
            "code" => "`",
            "em" | "i" => "*",
            "strong" | "b" => "**",
            _ => "",
        });
        rest = after;
    }
    text.push_str(rest);
    let plain = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&amp;", "&")];
    let text = plain.iter().fold(text, |text, (entity, c)| text.replace(entity, c));
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const PAGE: &str = r##"# 7. A *page* of `its` own

{{#include figures/picture.html}}

## Build

### Task 1: don't `stop`

Do this with [it](other.md).

```rust
### Task 9: is code
<details class="hint">


fn two_blank_lines() {}
```

<details class="hint">
<summary>Hint 1</summary>

Look at `here`.

- first

      indented

</details>
<details class="hint">
<summary>What does <code>a &lt; b</code>
say, and <em>k</em>?</summary>

It says

```text
{{#include ../../src/some.rs:2:3}}
```

</details>

And what stands behind the hints.

#### A heading inside

Still the task.

### Task 2: don't "stop"

{{#include ../../src/some.rs:part}}

### Between the tasks

<details class="hint">
<summary>Nobody's</summary>

x

</details>

## What it bought

12 rows, not \{{#include escaped.rs}}.

### And more

13.

## Check yourself

<details class="answer">
<summary>Why?</summary>

Because

</details>
<details class="answer">
<summary>Why not?</summary>
</details>
"##;

    const SOME: &str = "one\n  two\n\nfour\n// ANCHOR: part\nfive\n// ANCHOR: inner\nsix\n// ANCHOR_END: part\nseven\n";

    /// A page in a repository of its own.
    fn read(page: &str) -> Result<Lesson, String> {
        let root = tempfile::tempdir().unwrap();
        for folder in ["book/src", "src"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        fs::write(root.path().join("book/src/ch07_x.md"), page).unwrap();
        fs::write(root.path().join("src/some.rs"), SOME).unwrap();
        Lesson::read(root.path(), "ch07_x")
    }

    #[test]
    fn a_page_is_read_as_it_is_written() {
        let lesson = read(PAGE).unwrap();
        assert_eq!((lesson.file.as_str(), lesson.title.as_str()), ("book/src/ch07_x.md", "7. A page of its own"));
        let [first, second] = &lesson.tasks[..] else { panic!("{:#?}", lesson.tasks) };
        assert_eq!((first.number, first.title.as_str(), first.line), (1, "don’t stop", 7));
        assert_eq!(
            first.text,
            "Do this with [it](other.md).\n\n```rust\n### Task 9: is code\n<details class=\"hint\">\n\n\nfn \
             two_blank_lines() {}\n```\n\nAnd what stands behind the hints.\n\n#### A heading inside\n\nStill the task."
        );
        let [nudge, almost] = &first.hints[..] else { panic!("{:#?}", first.hints) };
        let expected =
            Hint { summary: "Hint 1".into(), body: "Look at `here`.\n\n- first\n\n      indented".into(), line: 19 };
        assert_eq!(nudge, &expected);
        assert_eq!((almost.summary.as_str(), almost.line), ("What does `a < b` say, and *k*?", 29));
        assert_eq!(almost.body, "It says\n\n```text\n  two\n\n```");
        // The line is that of the page, although what was included before it is longer than the directive.
        assert_eq!((second.number, second.text.as_str(), second.line), (2, "five\nsix", 47));
        assert_eq!(second.hints, []);
        assert_eq!(lesson.bought.as_deref(), Some("12 rows, not {{#include escaped.rs}}.\n\n### And more\n\n13."));
        let questions: Vec<_> = lesson.questions.iter().map(|q| (q.question.as_str(), q.answer.as_str())).collect();
        assert_eq!(questions, [("Why?", "Because"), ("Why not?", "")]);
        assert_eq!(lesson.questions[1].line, 76);
    }

    #[test]
    fn an_anchor_is_the_one_that_mdbook_makes() {
        let lesson = read(PAGE).unwrap();
        // The sign between the words is gone, and the second one of a name is counted.
        let anchors: Vec<_> = lesson.tasks.iter().map(|task| task.anchor.as_str()).collect();
        assert_eq!(anchors, ["task-1-dont-stop", "task-2-dont-stop"]);
        let anchors = |page: &str| read(page).unwrap().tasks.into_iter().map(|task| task.anchor).collect::<Vec<_>>();
        let twice = "### Task 1: Über `a_b` – x--y\n\n#### Task 1: z\n\n### Task 1: z\n\n### Task 1: w {#own}\n";
        assert_eq!(anchors(twice), ["task-1-über-a_b--xy", "task-1-z-1", "own"]);
        assert_eq!(anchors("Task 2: a\n: b\n\n### Task 2: a\n"), ["task-2-a-1"]);
    }

    #[test]
    fn what_is_no_task_is_none() {
        for heading in
            ["## Task 1: x", "### Task: x", "### Task one: x", "### Task 1 x", "### The Task 1: x", "### Task +1: x"]
        {
            assert_eq!(read(&format!("{heading}\n")).unwrap().tasks, [], "{heading}");
        }
    }

    #[test]
    fn a_fold_in_a_fold_ends_by_itself() {
        let lesson = read(
            "### Task 3: x\n\n<details class=\"hint\">\n<summary>out</summary>\n\na\n\n<details>\n<summary>in</summary>\n\nb\n\n\
             </details>\n\nc\n\n</details>\n\nd\n",
        )
        .unwrap();
        let [task] = &lesson.tasks[..] else { panic!("{lesson:#?}") };
        assert_eq!((task.text.as_str(), task.hints.len()), ("d", 1));
        assert!(task.hints[0].body.starts_with('a') && task.hints[0].body.ends_with('c'), "{:?}", task.hints[0].body);
    }

    #[test]
    fn line_ends_do_not_count() {
        assert_eq!(read(&PAGE.replace('\n', "\r\n")).unwrap(), read(PAGE).unwrap());
    }

    #[test]
    fn an_include_that_finds_nothing_is_an_error() {
        for (include, says) in [
            ("../../src/none.rs", "book/src/ch07_x.md:2: no file `src/none.rs` to include"),
            ("../../src/some.rs:99:", "book/src/ch07_x.md:2: `{{#include ../../src/some.rs:99:}}` yields nothing"),
            ("../../src/some.rs:none", "`src/some.rs`: no anchor `none`"),
            ("../../src/some.rs:inner", "`src/some.rs`: anchor `inner` is never closed"),
            ("ch07_x.md", "includes go round in a circle"),
        ] {
            let error = read(&format!("# x\n{{{{#include {include}}}}}\n")).unwrap_err();
            assert!(error.contains(says), "{include}: {error}");
        }
        let error = Lesson::read(Path::new("/nowhere/at/all"), "ch01_x").unwrap_err();
        assert!(error.starts_with("book/src/ch01_x.md cannot be read: "), "{error}");
    }
}
