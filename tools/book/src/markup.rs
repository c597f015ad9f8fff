//! What a page must have so that every reader can read it: one heading at the top and no level skipped, words for every
//! picture, and hand-written HTML that is whole.

use std::sync::LazyLock;

use regex::Regex;

use crate::contents::Contents;
use crate::finding::Findings;
use crate::html::{Element, Piece};
use crate::page::Page;

static UNFINISHED: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b(TODO|FIXME)\b").expect("valid pattern"));

pub fn check(page: &Page, contents: &Contents, findings: &mut Findings) {
    check_unfinished(page, findings);
    check_headings(page, contents, findings);
    for (line, alt) in &contents.images {
        if alt.trim().is_empty() {
            findings.add(
                page.place_of_line(*line),
                "the image has no alternative text",
                "say between the brackets what it shows: `![four pages, one of them free](…)`",
            );
        }
    }
    check_html(page, contents, findings);
}

fn check_unfinished(page: &Page, findings: &mut Findings) {
    for (line, text) in (1..).zip(page.text.lines()) {
        if let Some(mark) = UNFINISHED.find(text) {
            findings.add(
                page.place_of_line(line),
                format!("the page still says {}", mark.as_str()),
                "finish the passage or take it out",
            );
        }
    }
}

fn check_headings(page: &Page, contents: &Contents, findings: &mut Findings) {
    let mut titles = contents.headings.iter().filter(|(_, level)| *level == 1);
    if titles.next().is_none() {
        findings.add(page.place_of_line(1), "the page has no title", "begin it with one `# Title`");
    }
    for (line, _) in titles {
        findings.add(
            page.place_of_line(*line),
            "the page has a second title",
            "a page has one `#` heading; use `##` here",
        );
    }
    let mut above = 0;
    for (line, level) in &contents.headings {
        // Without a title every heading would count as a skip: that has been said once.
        if *level > above + 1 && above > 0 {
            findings.add(
                page.place_of_line(*line),
                format!("the heading skips from level {above} to level {level}"),
                format!("use {} here", "#".repeat(above as usize + 1)),
            );
        }
        above = *level;
    }
}

/// Elements that hold whole passages. Their two tags must lie at one depth of lists and quotes.
const BLOCKS: &[&str] = &["details", "div", "figure", "section", "svg", "table"];

/// An element that is open while the HTML is read.
struct Open<'a> {
    line: usize,
    element: &'a Element,
    /// Whether a `<summary>` (in details) or a `<title>` (in svg) has been seen.
    is_named: bool,
}

fn check_html(page: &Page, contents: &Contents, findings: &mut Findings) {
    let mut stack: Vec<Open> = Vec::new();
    for (line, piece) in &contents.html {
        match piece {
            Piece::Open(element) => {
                check_element(page, *line, element, &stack, findings);
                if let Some(parent) = stack.last_mut() {
                    let (parent_name, name) = (parent.element.name.as_str(), element.name.as_str());
                    parent.is_named |= matches!((parent_name, name), ("details", "summary") | ("svg", "title"));
                }
                if !element.is_void() && !element.self_closing {
                    stack.push(Open { line: *line, element, is_named: false });
                }
            }
            Piece::Close(name) => {
                let Some(index) = stack.iter().rposition(|open| open.element.name == *name) else {
                    findings.add(
                        page.place_of_line(*line),
                        format!("`</{name}>` closes nothing"),
                        "take it out, or open the element before it",
                    );
                    continue;
                };
                for unclosed in stack.drain(index + 1..).collect::<Vec<_>>() {
                    report_unclosed(page, &unclosed, findings);
                }
                if let Some(closed) = stack.pop() {
                    if BLOCKS.contains(&name.as_str()) && contents.container(closed.line) != contents.container(*line) {
                        findings.add(
                            page.place_of_line(closed.line),
                            format!("`<{name}>` and `</{name}>` lie at different depths"),
                            format!(
                                "`</{name}>` is at {}: indent both alike, in or out of the list or quote",
                                page.place_of_line(*line)
                            ),
                        );
                    }
                    check_closed(page, &closed, *line, !inside_svg(&stack), findings);
                }
            }
            Piece::Text(text) => check_text(page, *line, text, &stack, findings),
        }
    }
    for unclosed in &stack {
        report_unclosed(page, unclosed, findings);
    }
}

/// Markdown does not look inside a block of HTML: what is written there is shown as it stands.
fn check_text(page: &Page, line: usize, text: &str, stack: &[Open], findings: &mut Findings) {
    let is_verbatim = |open: &Open| matches!(open.element.name.as_str(), "script" | "style" | "pre" | "code");
    let looks_like_markdown = ["`", "**", "](", "\n- "].iter().any(|mark| text.contains(mark));
    if looks_like_markdown && !stack.iter().any(is_verbatim) {
        findings.add(
            page.place_of_line(line),
            "Markdown inside HTML is shown as it is written",
            "leave a blank line between the tag and the text; in `<summary>` and `<figcaption>` write <code> and <em>",
        );
    }
}

fn inside_svg(stack: &[Open]) -> bool {
    stack.iter().any(|open| open.element.name == "svg")
}

fn check_element(page: &Page, line: usize, element: &Element, stack: &[Open], findings: &mut Findings) {
    let name = element.name.as_str();
    if name == "img" && element.says("alt").is_none() {
        findings.add(page.place_of_line(line), "the image has no alternative text", "say in `alt=\"…\"` what it shows");
    }
    if name == "svg" || inside_svg(stack) {
        let follows = |value: &str| value.contains("url(#");
        let refers = element.attribute_values().any(follows)
            || element.attribute("aria-labelledby").is_some()
            || (name == "use" && element.attribute("href").is_some());
        if refers {
            findings.add(
                page.place_of_line(line),
                format!("`<{name}>` in a figure refers to an id"),
                "the print page renames ids: draw the shape in place, style by class, name the figure by `aria-label`",
            );
        }
    }
}

/// Checks that need to know what an element held. `outermost`: it is in no other svg.
fn check_closed(page: &Page, open: &Open, end: usize, outermost: bool, findings: &mut Findings) {
    match open.element.name.as_str() {
        "details" if !open.is_named => findings.add(
            page.place_of_line(open.line),
            "`<details>` has no `<summary>`",
            "begin it with the line that stays visible: `<summary>Hint 1</summary>`",
        ),
        "svg" if outermost => {
            let is_hidden = open.element.attribute("aria-hidden") == Some("true");
            let is_image = open.element.attribute("role") == Some("img");
            let is_named = open.is_named || open.element.says("aria-label").is_some();
            if !(is_hidden || is_image && is_named) {
                findings.add(
                    page.place_of_line(open.line),
                    "the figure has no words for those who cannot see it",
                    "give the `<svg>` role=\"img\" and aria-label=\"what it shows\" (or a `<title>`)",
                );
            }
            if let Some(blank) = blank_line(page, open.line, end) {
                report_blank(page, blank, open.line, findings);
            }
        }
        _ => {}
    }
}

fn report_unclosed(page: &Page, open: &Open, findings: &mut Findings) {
    let name = &open.element.name;
    // A blank line ends the HTML, as Markdown sees it: then the end tag is there but was not read as one.
    let after: usize = page.text.split_inclusive('\n').take(open.line).map(str::len).sum();
    let end = page.text[after..].find(&format!("</{name}>"));
    if name == "svg"
        && let Some(end) = end
    {
        let end_line = open.line + 1 + page.text[after..after + end].matches('\n').count();
        if let Some(blank) = blank_line(page, open.line, end_line) {
            return report_blank(page, blank, open.line, findings);
        }
    }
    findings.add(
        page.place_of_line(open.line),
        format!("`<{name}>` is not closed"),
        format!("add `</{name}>` at the same depth of lists and quotes"),
    );
}

fn report_blank(page: &Page, blank: usize, start: usize, findings: &mut Findings) {
    findings.add(
        page.place_of_line(blank),
        "a blank line inside an inline `<svg>` ends it: the rest is shown as text",
        format!("take the blank line out; the figure starts at {}", page.place_of_line(start)),
    );
}

fn blank_line(page: &Page, start: usize, end: usize) -> Option<usize> {
    let lines = (1..).zip(page.text.lines()).take(end).skip(start);
    lines.into_iter().find(|(_, text)| text.trim().is_empty()).map(|(line, _)| line)
}
