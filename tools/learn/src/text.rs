//! Paragraphs of styled text, wrapped to the width of the terminal.

use crossterm::style::{Attribute, Attributes, Color, ContentStyle as Style};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

pub const PLAIN: Style =
    Style { foreground_color: None, background_color: None, underline_color: None, attributes: Attributes::none() };
pub const BOLD: Style = Style { attributes: PLAIN.attributes.with(Attribute::Bold), ..PLAIN };
pub const DIM: Style = Style { attributes: PLAIN.attributes.with(Attribute::Dim), ..PLAIN };
// These shades are readable on light and on dark.
pub const RED: Style = Style { foreground_color: Some(Color::DarkRed), ..BOLD };
pub const GREEN: Style = Style { foreground_color: Some(Color::DarkGreen), ..BOLD };
pub const YELLOW: Style = Style { foreground_color: Some(Color::DarkYellow), ..BOLD };
pub const CYAN: Style = Style { foreground_color: Some(Color::DarkCyan), ..PLAIN };

/// Pieces of text, each in one style, without control characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paragraph {
    pub spans: Vec<(String, Style)>,
    /// Prose is broken between words, and goes on under its text; code is broken at the edge.
    pub is_code: bool,
}

pub fn prose(text: impl AsRef<str>, style: Style) -> Paragraph {
    Paragraph::default().and(text, style)
}

pub fn code(text: impl AsRef<str>, style: Style) -> Paragraph {
    Paragraph { is_code: true, ..prose(text, style) }
}

pub fn plain(text: impl AsRef<str>) -> Paragraph {
    prose(text, PLAIN)
}

pub fn blank() -> Paragraph {
    Paragraph::default()
}

/// `1 check`, `2 checks`
pub fn plural(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

impl Paragraph {
    pub fn and(mut self, text: impl AsRef<str>, style: Style) -> Self {
        let text: String = text.as_ref().replace('\t', "    ").chars().filter(|c| !c.is_control()).collect();
        if !text.is_empty() {
            self.spans.push((text, style));
        }
        self
    }

    pub fn text(&self) -> String {
        self.spans.iter().map(|(text, _)| text.as_str()).collect()
    }

    pub fn width(&self) -> usize {
        self.spans.iter().map(|(text, _)| text.width()).sum()
    }

    /// The beginning that fits into `width` columns.
    pub fn cut(self, width: usize) -> Paragraph {
        Paragraph { is_code: true, ..self }.rows(width).remove(0)
    }

    /// Rows of at most `width` columns, at least one.
    pub fn rows(&self, width: usize) -> Vec<Paragraph> {
        let width = width.max(1);
        if self.width() <= width {
            return vec![self.clone()];
        }
        let chars: Vec<(char, Style)> =
            self.spans.iter().flat_map(|(text, style)| text.chars().map(|c| (c, *style))).collect();
        let indent = if self.is_code { 0 } else { indent(&self.text()).min(width / 2) };
        let (mut rows, mut from) = (Vec::new(), 0);
        while from < chars.len() {
            let lead = if rows.is_empty() { 0 } else { indent };
            let mut to = from + fitting(&chars[from..], width - lead);
            if !self.is_code && to < chars.len() {
                let has_text_before = |at: &usize| chars[from..*at].iter().any(|(c, _)| *c != ' ');
                let space = (from..=to).rev().find(|at| chars[*at].0 == ' ').filter(has_text_before);
                to = space.unwrap_or(to);
            }
            let row = code(" ".repeat(lead), PLAIN);
            rows.push(chars[from..to].iter().fold(row, |row, (c, style)| row.and(c.to_string(), *style)));
            from = to;
            while !self.is_code && chars.get(from).is_some_and(|(c, _)| *c == ' ') {
                from += 1;
            }
        }
        rows
    }
}

/// How many characters fit into `width` columns. A character wider than that counts as one that does.
fn fitting(chars: &[(char, Style)], width: usize) -> usize {
    let mut used = 0;
    let fits = chars.iter().take_while(|(c, _)| {
        used += c.width().unwrap_or(0);
        used <= width
    });
    fits.count().max(1)
}

/// The column where the text of a line begins, after its spaces and the sign of a list.
fn indent(text: &str) -> usize {
    let trimmed = text.trim_start();
    let spaces = text.len() - trimmed.len();
    let sign = trimmed.split(' ').next().unwrap_or_default();
    let is_number = sign.strip_suffix('.').is_some_and(|n| n.parse::<u32>().is_ok());
    if sign == "-" || is_number { spaces + sign.len() + 1 } else { spaces }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(rows: &[Paragraph]) -> Vec<String> {
        rows.iter().map(Paragraph::text).collect()
    }

    #[test]
    fn words_wrap_under_their_text_and_code_at_the_edge() {
        assert_eq!(texts(&plain("  - one two three four").rows(14)), ["  - one two", "    three four"]);
        assert_eq!(texts(&plain("abcdefgh ij").rows(4)), ["abcd", "efgh", "ij"], "a long word is cut");
        assert_eq!(texts(&plain("    abcdef").rows(6)), ["    ab", "   cde", "   f"]);
        assert_eq!(texts(&plain("").rows(6)), [""]);
        assert_eq!(texts(&code("  let a = b;", PLAIN).rows(5)), ["  let", " a = ", "b;"]);
    }

    #[test]
    fn wide_characters_take_two_columns() {
        let line = plain("龍龍龍");
        assert_eq!((line.width(), line.clone().cut(5).text()), (6, "龍龍".into()));
        assert_eq!(texts(&line.rows(1)), ["龍", "龍", "龍"], "and it ends");
    }

    #[test]
    fn text_controls_no_terminal() {
        assert_eq!(plain("a\x1b[2Jb\tc\r\n\u{9b}d").text(), "a[2Jb    cd");
    }
}
