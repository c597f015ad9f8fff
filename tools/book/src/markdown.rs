//! A page as Markdown that reads by itself: its includes in place, each figure told in words, its links to other pages
//! of the same kind.

use std::ops::Range;

use mdbook_markdown::pulldown_cmark::{Event, Tag};
use mdbook_markdown::{MarkdownOptions, new_cmark_parser};

use crate::html::{self, Piece};

/// `text` has its includes expanded; `link` says where a link leads, if elsewhere than it says.
pub fn plain(text: &str, link: impl Fn(&str) -> Option<String>) -> String {
    let mut edits: Vec<(Range<usize>, String)> = Vec::new();
    for (event, range) in new_cmark_parser(text, &MarkdownOptions::default()).into_offset_iter() {
        let source = &text[range.clone()];
        match event {
            Event::Start(Tag::HtmlBlock) if source.contains("<figure") => edits.push((range, figures(source))),
            // Marks for the eyes: the words in them stay.
            Event::InlineHtml(tag) if tag.starts_with("<span") || tag.starts_with("</span") => {
                edits.push((range, String::new()));
            }
            Event::Start(Tag::Link { dest_url, .. }) => {
                if let Some(target) = link(&dest_url)
                    && let Some(at) = source.rfind(&*dest_url)
                {
                    let start = range.start + at;
                    edits.push((start..start + dest_url.len(), target));
                }
            }
            _ => {}
        }
    }
    let mut plain = String::with_capacity(text.len());
    let mut done = 0;
    for (range, with) in edits {
        if range.start >= done {
            plain += &text[done..range.start];
            plain += &with;
            done = range.end;
        }
    }
    plain + &text[done..]
}

/// What the figures of a piece of HTML show: the words for the picture, what is said of each step, and the caption.
fn figures(html: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut begin = 0;
    // Of a sentence or a caption that is open.
    let mut words: Option<String> = None;
    for (_, piece) in html::pieces(html) {
        match piece {
            Piece::Open(element) => match element.name.as_str() {
                "figure" => begin = lines.len(),
                // All pictures of a figure have the same words, and these come first.
                "svg" => {
                    let shows = element.says("aria-label").map(|shows| format!("Figure: {shows}"));
                    lines.splice(begin..begin, shows.filter(|shows| lines.get(begin) != Some(shows)));
                }
                "figcaption" => words = Some(String::new()),
                "p" if element.attribute("class") == Some("pbp-says") => words = Some(String::new()),
                name => words.iter_mut().for_each(|words| *words += mark(name)),
            },
            Piece::Text(text) => words.iter_mut().for_each(|words| *words += &text),
            Piece::Close(name) => match name.as_str() {
                "p" | "figcaption" => {
                    lines.extend(words.take().map(|words| words.split_whitespace().collect::<Vec<_>>().join(" ")));
                }
                name => words.iter_mut().for_each(|words| *words += mark(name)),
            },
        }
    }
    let quoted: Vec<String> = lines.iter().filter(|line| !line.is_empty()).map(|line| format!("> {line}\n")).collect();
    quoted.join(">\n")
}

/// What stands for a tag in Markdown.
fn mark(tag: &str) -> &'static str {
    match tag {
        "code" => "`",
        "em" => "*",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn md(target: &str) -> Option<String> {
        target.strip_suffix(".md").map(|name| format!("{name}.html.md"))
    }

    /// `pages.txt` has pages, each with its Markdown: a figure in words, links to the other pages, and code as it is.
    #[test]
    fn a_page_reads_by_itself() {
        for case in include_str!("markdown/pages.txt").split("====\n") {
            let (page, told) = case.split_once("----\n").expect("a page and what it becomes");
            assert_eq!(plain(page, md), told);
        }
    }
}
