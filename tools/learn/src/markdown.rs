//! Markdown as paragraphs for the terminal: prose to be wrapped, code and tables as they are.

use pulldown_cmark::{Alignment, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use ratatui_core::style::{Modifier, Style};
use unicode_width::UnicodeWidthStr;

use crate::text::{BOLD, CYAN, DIM, PLAIN, Paragraph, blank, code, plain, prose};

/// The paragraphs of a Markdown text.
pub fn lines(markdown: &str) -> Vec<Paragraph> {
    let mut page = Page::new();
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_SMART_PUNCTUATION;
    for event in Parser::new_ext(markdown, options) {
        page.take(event);
    }
    page.end_line();
    while page.lines.last().is_some_and(Paragraph::is_blank) {
        page.lines.pop();
    }
    page.lines
}

/// A line of Markdown without its signs.
pub fn line(markdown: &str) -> String {
    lines(markdown).iter().map(Paragraph::text).collect::<Vec<_>>().join(" ")
}

struct Page {
    lines: Vec<Paragraph>,
    line: Paragraph,
    /// For each open list the number of its next item; None if it has none.
    lists: Vec<Option<u64>>,
    style: Style,
    in_code: bool,
    table: Option<Table>,
}

#[derive(Default)]
struct Table {
    alignments: Vec<Alignment>,
    rows: Vec<Vec<String>>,
    cell: String,
}

impl Page {
    fn new() -> Self {
        Page { lines: Vec::new(), line: blank(), lists: Vec::new(), style: PLAIN, in_code: false, table: None }
    }

    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) if self.in_code => {
                for line in text.lines() {
                    self.lines.push(code(format!("{}  {line}", self.indent()), CYAN));
                }
            }
            Event::Text(text) => self.text(&text, self.style),
            Event::Code(text) => self.text(&text, self.style.patch(CYAN)),
            Event::SoftBreak => self.text(" ", self.style),
            Event::HardBreak => self.end_line(),
            Event::Rule => self.block(prose("───", DIM)),
            _ => {}
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { level, .. } => {
                self.gap();
                self.style = if level <= HeadingLevel::H4 { BOLD } else { PLAIN };
            }
            Tag::Paragraph if !self.lists.is_empty() => {}
            Tag::Paragraph => self.gap(),
            Tag::CodeBlock(_) => {
                self.end_line();
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
            Tag::Emphasis => self.style = self.style.add_modifier(Modifier::ITALIC),
            Tag::Strong => self.style = self.style.add_modifier(Modifier::BOLD),
            Tag::Table(alignments) => {
                self.gap();
                self.table = Some(Table { alignments, ..Table::default() });
            }
            Tag::TableHead | Tag::TableRow => {
                if let Some(table) = &mut self.table {
                    table.rows.push(Vec::new());
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(_) => {
                self.end_line();
                self.style = PLAIN;
            }
            TagEnd::Paragraph => self.end_line(),
            TagEnd::CodeBlock => self.in_code = false,
            TagEnd::List(_) => {
                self.end_line();
                self.lists.pop();
            }
            TagEnd::Item => self.end_line(),
            TagEnd::Emphasis => self.style.add_modifier -= Modifier::ITALIC,
            TagEnd::Strong => self.style.add_modifier -= Modifier::BOLD,
            TagEnd::TableCell => {
                if let Some(table) = &mut self.table {
                    let cell = std::mem::take(&mut table.cell);
                    if let Some(row) = table.rows.last_mut() {
                        row.push(cell);
                    }
                }
            }
            TagEnd::Table => {
                if let Some(table) = self.table.take() {
                    self.lines.extend(table.lines());
                }
            }
            _ => {}
        }
    }

    fn text(&mut self, text: &str, style: Style) {
        match &mut self.table {
            Some(table) => table.cell.push_str(text),
            None => self.line = std::mem::replace(&mut self.line, blank()).and(text, style),
        }
    }

    /// Spaces under the text of the open item.
    fn indent(&self) -> String {
        "  ".repeat(self.lists.len())
    }

    fn end_line(&mut self) {
        if !self.line.is_blank() {
            self.lines.push(std::mem::replace(&mut self.line, blank()));
        }
    }

    /// A blank line, unless there is one.
    fn gap(&mut self) {
        self.end_line();
        if self.lines.last().is_some_and(|line| !line.is_blank()) {
            self.lines.push(blank());
        }
    }

    fn block(&mut self, line: Paragraph) {
        self.gap();
        self.lines.push(line);
    }
}

impl Table {
    fn lines(&self) -> Vec<Paragraph> {
        let n_columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..n_columns).map(width).collect();
        let cell = |row: &Vec<String>, column: usize| {
            let text = row.get(column).map_or("", String::as_str);
            let room = " ".repeat(widths[column] - text.width());
            match self.alignments.get(column) {
                Some(Alignment::Right) => format!("{room}{text}"),
                _ => format!("{text}{room}"),
            }
        };
        let text = |row: &Vec<String>| (0..n_columns).map(|column| cell(row, column)).collect::<Vec<_>>().join("  ");
        let lines = self
            .rows
            .iter()
            .enumerate()
            .map(|(index, row)| code(text(row).trim_end(), if index == 0 { BOLD } else { PLAIN }));
        lines.filter(|line| !line.is_blank()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_lines_without_signs() {
        let markdown = "Look at `vec![0; len]`,\n*not* at [this](x.md).\n\n```rust\nlet a = 1;\n\n    b\n```\n\n- one\n  line\n- two\n\n1. first\n2. **second**\n";
        let found: Vec<String> = lines(markdown).iter().map(Paragraph::text).collect();
        let expected = [
            "Look at vec![0; len], not at this.",
            "",
            "  let a = 1;",
            "  ",
            "      b",
            "",
            "- one line",
            "- two",
            "",
            "1. first",
            "2. second",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_table_keeps_its_columns() {
        let found: Vec<String> =
            lines("A:\n\n| | rows |\n|---|--:|\n| flat | 9 |\n| *b* | 10 |\n").iter().map(Paragraph::text).collect();
        assert_eq!(found, ["A:", "", "      rows", "flat     9", "b       10"]);
    }
}
