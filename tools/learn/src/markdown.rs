//! Markdown as paragraphs for the terminal: prose to be wrapped, code and tables as they are written.

use crossterm::style::Attribute;
use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use crate::text::{BOLD, CYAN, DIM, PLAIN, Paragraph, blank, code, plain, prose};

pub fn lines(markdown: &str) -> Vec<Paragraph> {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_SMART_PUNCTUATION;
    let mut page = Page { style: PLAIN, ..Page::default() };
    let mut events = Parser::new_ext(markdown, options).into_offset_iter();
    while let Some((event, range)) = events.next() {
        match event {
            Event::Start(Tag::Table(_)) => {
                page.gap();
                page.lines.extend(markdown[range].lines().map(plain));
                events.find(|(event, _)| *event == Event::End(TagEnd::Table));
            }
            event => page.take(event),
        }
    }
    page.end_line();
    page.lines
}

/// A line of Markdown without its signs.
pub fn line(markdown: &str) -> String {
    lines(markdown).iter().map(Paragraph::text).collect::<Vec<_>>().join(" ")
}

#[derive(Default)]
struct Page {
    lines: Vec<Paragraph>,
    line: Paragraph,
    /// For each open list the number of its next item; None if it has none.
    lists: Vec<Option<u64>>,
    style: crossterm::style::ContentStyle,
    in_code: bool,
}

impl Page {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) if self.in_code => {
                let indent = "  ".repeat(self.lists.len() + 1);
                self.lines.extend(text.lines().map(|line| code(format!("{indent}{line}"), CYAN)));
            }
            Event::Text(text) => self.add(&text),
            Event::Code(text) => self.line = std::mem::take(&mut self.line).and(text, CYAN),
            Event::SoftBreak => self.add(" "),
            Event::HardBreak => self.end_line(),
            Event::Rule => {
                self.gap();
                self.lines.push(prose("───", DIM));
            }
            _ => {}
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { level, .. } => {
                self.gap();
                self.style = if level <= HeadingLevel::H4 { BOLD } else { PLAIN };
            }
            Tag::Paragraph if self.lists.is_empty() => self.gap(),
            Tag::CodeBlock(_) => {
                self.gap();
                self.in_code = true;
            }
            Tag::List(first) => {
                self.end_line();
                if self.lists.is_empty() {
                    self.gap();
                }
                self.lists.push(first);
            }
            Tag::Item => {
                self.end_line();
                let indent = "  ".repeat(self.lists.len().saturating_sub(1));
                let sign = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        *number += 1;
                        format!("{indent}{}. ", *number - 1)
                    }
                    _ => format!("{indent}- "),
                };
                self.line = plain(sign);
            }
            Tag::Emphasis => self.style.attributes.set(Attribute::Italic),
            Tag::Strong => self.style.attributes.set(Attribute::Bold),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(_) => {
                self.end_line();
                self.style = PLAIN;
            }
            TagEnd::Paragraph | TagEnd::Item => self.end_line(),
            TagEnd::CodeBlock => self.in_code = false,
            TagEnd::List(_) => {
                self.end_line();
                self.lists.pop();
            }
            TagEnd::Emphasis => self.style.attributes.unset(Attribute::Italic),
            TagEnd::Strong => self.style.attributes.unset(Attribute::Bold),
            _ => {}
        }
    }

    fn add(&mut self, text: &str) {
        self.line = std::mem::take(&mut self.line).and(text, self.style);
    }

    fn end_line(&mut self) {
        if self.line != blank() {
            self.lines.push(std::mem::take(&mut self.line));
        }
    }

    /// A blank line, unless there is one.
    fn gap(&mut self) {
        self.end_line();
        if self.lines.last().is_some_and(|line| *line != blank()) {
            self.lines.push(blank());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_lines_without_signs() {
        let markdown = "Look at `vec![0; len]`,\n*not* at [this](x.md).\n\n```rust\nlet a = 1;\n\n    b\n```\n\n- \
                        one\n  line\n- two\n\n1. first\n2. **second**\n";
        let found: String = lines(markdown).iter().map(|line| line.text() + "\n").collect();
        let expected = "Look at vec![0; len], not at this.\n\n  let a = 1;\n  \n      b\n\n- one line\n- two\n\n1. \
                        first\n2. second\n";
        assert_eq!(found, expected);
    }
}
