//! Lines with colours, cut and wrapped to the width of a terminal.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The colours that every terminal has, in the shades that its owner has chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colour {
    #[default]
    Plain,
    Red,
    Green,
    Yellow,
    Blue,
    Magenta,
    Cyan,
    Grey,
}

/// How a piece of a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    pub colour: Colour,
    pub bold: bool,
    pub dim: bool,
    pub italic: bool,
    pub underlined: bool,
    pub reversed: bool,
}

pub const PLAIN: Style =
    Style { colour: Colour::Plain, bold: false, dim: false, italic: false, underlined: false, reversed: false };
pub const BOLD: Style = Style { bold: true, ..PLAIN };
pub const DIM: Style = Style { dim: true, ..PLAIN };
pub const RED: Style = Style { colour: Colour::Red, bold: true, ..PLAIN };
pub const GREEN: Style = Style { colour: Colour::Green, bold: true, ..PLAIN };
pub const YELLOW: Style = Style { colour: Colour::Yellow, bold: true, ..PLAIN };
pub const CYAN: Style = Style { colour: Colour::Cyan, ..PLAIN };

/// What happens to a line that is wider than the terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wrap {
    /// It is broken between words, and goes on under the beginning of its text.
    #[default]
    Words,
    /// It is broken anywhere: code, tables, differences.
    Anywhere,
}

/// A line: pieces of text, each with its style. No piece holds a control character.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub pieces: Vec<(String, Style)>,
    pub wrap: Wrap,
    /// The column in which its further rows begin at the least.
    pub hang: usize,
    /// Where it leads, on a terminal that can follow links.
    pub link: Option<String>,
}

impl Line {
    pub fn new(text: impl AsRef<str>, style: Style) -> Self {
        Line::default().and(text, style)
    }

    pub fn plain(text: impl AsRef<str>) -> Self {
        Line::new(text, PLAIN)
    }

    /// A line that is broken anywhere.
    pub fn code(text: impl AsRef<str>, style: Style) -> Self {
        Line { wrap: Wrap::Anywhere, ..Line::new(text, style) }
    }

    /// The same line with one more piece.
    pub fn and(mut self, text: impl AsRef<str>, style: Style) -> Self {
        self.push(text, style);
        self
    }

    pub fn push(&mut self, text: impl AsRef<str>, style: Style) {
        let mut clean = String::with_capacity(text.as_ref().len());
        for c in text.as_ref().chars() {
            match c {
                '\t' => clean.push_str("    "),
                // What a check prints must not steer the terminal.
                c if c.is_control() => {}
                c => clean.push(c),
            }
        }
        match self.pieces.last_mut() {
            _ if clean.is_empty() => {}
            Some((last, before)) if *before == style => last.push_str(&clean),
            _ => self.pieces.push((clean, style)),
        }
    }

    pub fn text(&self) -> String {
        self.pieces.iter().map(|(text, _)| text.as_str()).collect()
    }

    /// In columns.
    pub fn width(&self) -> usize {
        self.pieces.iter().map(|(text, _)| text.width()).sum()
    }

    /// The same, in one style.
    pub fn all(mut self, style: Style) -> Self {
        self.pieces.iter_mut().for_each(|(_, before)| *before = style);
        self
    }

    /// The beginning of the line that fits into `width` columns; what is cut off is told by `…`.
    pub fn cut(&self, width: usize) -> Line {
        if self.width() <= width {
            return self.clone();
        }
        let mut kept = Line { link: self.link.clone(), ..Line::default() };
        let mut used = 0;
        for (c, style) in self.chars() {
            used += c.width().unwrap_or(0);
            if used + 1 > width {
                kept.push("…", style);
                break;
            }
            kept.push(c.encode_utf8(&mut [0; 4]), style);
        }
        kept
    }

    /// The line padded with spaces to `width` columns, or cut.
    pub fn fit(&self, width: usize) -> Line {
        let mut line = self.cut(width);
        line.push(" ".repeat(width - line.width().min(width)), PLAIN);
        line
    }

    fn chars(&self) -> impl Iterator<Item = (char, Style)> {
        self.pieces.iter().flat_map(|(text, style)| text.chars().map(|c| (c, *style)))
    }

    /// The line in rows of at most `width` columns: one at least.
    pub fn rows(&self, width: usize) -> Vec<Line> {
        let width = width.max(1);
        if self.width() <= width {
            return vec![self.clone()];
        }
        let chars: Vec<(char, Style)> = self.chars().collect();
        let indent = match self.wrap {
            Wrap::Anywhere => 0,
            Wrap::Words => indent(&self.text()).max(self.hang).min(width / 2),
        };
        let mut rows = Vec::new();
        let mut from = 0;
        while from < chars.len() {
            let lead = if rows.is_empty() { 0 } else { indent };
            let (mut to, mut used) = (from, lead);
            while to < chars.len() && used + chars[to].0.width().unwrap_or(0) <= width {
                used += chars[to].0.width().unwrap_or(0);
                to += 1;
            }
            // A character wider than the whole row is shown all the same.
            to = to.max(from + 1);
            let mut next = to;
            if self.wrap == Wrap::Words && to < chars.len() {
                let space = (from + 1..=to).rev().find(|at| chars[*at].0 == ' ');
                if let Some(space) = space.filter(|at| chars[from..*at].iter().any(|(c, _)| *c != ' ')) {
                    (to, next) = (space, space);
                    while chars.get(next).is_some_and(|(c, _)| *c == ' ') {
                        next += 1;
                    }
                    while chars[to - 1].0 == ' ' {
                        to -= 1;
                    }
                }
            }
            let mut row = Line { wrap: self.wrap, link: self.link.clone(), ..Line::default() };
            row.push(" ".repeat(lead), PLAIN);
            for (c, style) in &chars[from..to] {
                row.push(c.encode_utf8(&mut [0; 4]), *style);
            }
            rows.push(row);
            from = next;
        }
        rows
    }
}

/// Where the text of a line begins: behind its spaces, and behind the sign of a list.
fn indent(text: &str) -> usize {
    let trimmed = text.trim_start();
    let spaces = text.len() - trimmed.len();
    let (sign, rest) = trimmed.split_once(' ').unwrap_or((trimmed, ""));
    let is_number = sign.strip_suffix('.').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    let is_sign = sign == "-" || is_number;
    if is_sign { spaces + sign.len() + 1 + (rest.len() - rest.trim_start().len()) } else { spaces }
}

/// Lines in rows of at most `width` columns.
pub fn rows(lines: &[Line], width: usize) -> Vec<Line> {
    lines.iter().flat_map(|line| line.rows(width)).collect()
}

/// `1 check`, `2 checks`
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A text with the colours of ANSI, as compilers write it; other sequences are left out.
pub fn from_ansi(text: &str) -> Vec<Line> {
    let mut style = PLAIN;
    text.lines()
        .map(|line| {
            let mut parsed = Line { wrap: Wrap::Anywhere, ..Line::default() };
            let mut rest = line;
            while let Some((before, sequence)) = rest.split_once('\x1b') {
                parsed.push(before, style);
                rest = match sequence.strip_prefix('[') {
                    Some(sequence) => {
                        let end = sequence.find(|c: char| ('@'..='~').contains(&c)).unwrap_or(sequence.len());
                        if sequence[end..].starts_with('m') {
                            style = styled(style, &sequence[..end]);
                        }
                        sequence.get(end + 1..).unwrap_or("")
                    }
                    None => {
                        // A link or a title: up to BEL, or up to the backslash of ST.
                        let end = sequence.find(['\x07', '\\']).map_or(sequence.len(), |end| end + 1);
                        if sequence.starts_with(']') { &sequence[end..] } else { sequence }
                    }
                };
            }
            parsed.push(rest, style);
            parsed
        })
        .collect()
}

/// The style after a sequence such as `1;38;5;9`.
fn styled(before: Style, codes: &str) -> Style {
    const COLOURS: [Colour; 8] = [
        Colour::Grey,
        Colour::Red,
        Colour::Green,
        Colour::Yellow,
        Colour::Blue,
        Colour::Magenta,
        Colour::Cyan,
        Colour::Plain,
    ];
    let mut style = before;
    let mut codes = codes.split(';').map(|code| code.parse::<usize>().unwrap_or(0));
    while let Some(code) = codes.next() {
        match code {
            0 => style = PLAIN,
            1 => style.bold = true,
            2 => style.dim = true,
            3 => style.italic = true,
            4 => style.underlined = true,
            7 => style.reversed = true,
            22 => (style.bold, style.dim) = (false, false),
            30..=37 => style.colour = COLOURS[code - 30],
            90..=97 => style.colour = COLOURS[code - 90],
            39 => style.colour = Colour::Plain,
            38 | 48 => {
                // 5;n is one of 256 colours, 2;r;g;b any.
                let colour = match codes.next() {
                    Some(5) => codes.next().and_then(|n| COLOURS.get(if n < 16 { n % 8 } else { 7 })),
                    _ => codes.nth(2).and(None),
                };
                if code == 38 {
                    style.colour = colour.copied().unwrap_or_default();
                }
            }
            _ => {}
        }
    }
    style
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lines: &[Line]) -> Vec<String> {
        lines.iter().map(Line::text).collect()
    }

    #[test]
    fn words_wrap_under_their_beginning() {
        let line = Line::plain("  - one two three four");
        assert_eq!(texts(&line.rows(14)), ["  - one two", "    three four"]);
        assert_eq!(texts(&Line::plain("ab  cd").rows(3)), ["ab", "cd"]);
        assert_eq!(texts(&Line::plain("abcdefgh ij").rows(4)), ["abcd", "efgh", "ij"], "a long word is broken");
        assert_eq!(texts(&Line::plain("    abcdef").rows(6)), ["    ab", "   cde", "   f"]);
        assert_eq!(texts(&Line::plain("").rows(6)), [""]);
    }

    #[test]
    fn code_wraps_anywhere_and_loses_nothing() {
        let line = Line::code("  let a = b;", PLAIN);
        assert_eq!(texts(&line.rows(5)), ["  let", " a = ", "b;"]);
    }

    #[test]
    fn wide_characters_take_two_columns() {
        let line = Line::plain("龍龍龍");
        assert_eq!((line.width(), line.cut(5).text()), (6, "龍龍…".into()));
        assert_eq!(texts(&line.rows(5)), ["龍龍", "龍"]);
        assert_eq!(texts(&line.rows(1)), ["龍", "龍", "龍"], "and never for ever");
        assert_eq!(line.fit(8).text(), "龍龍龍  ");
    }

    #[test]
    fn nothing_that_is_printed_steers_the_terminal() {
        assert_eq!(Line::plain("a\x1b[2Jb\tc\r\n\u{9b}d").text(), "a[2Jb    cd");
    }

    #[test]
    fn colours_of_the_compiler_are_kept() {
        let lines = from_ansi("\x1b[1m\x1b[91merror\x1b[0m\x1b[1m: no\x1b[0m\n\x1b[38;5;12m |\x1b[0m x\x1b[2K\n");
        assert_eq!(texts(&lines), ["error: no", " | x"]);
        assert_eq!(lines[0].pieces[0].1, RED);
        assert_eq!(lines[0].pieces[1].1, BOLD);
        assert_eq!(lines[1].pieces[0].1.colour, Colour::Blue);
        let link = "\x1b]8;;https://a\x1b\\E0308\x1b]8;;\x1b\\ x \x1b[38;2;1;2;3my";
        assert_eq!(texts(&from_ansi(link)), ["E0308 x y"]);
        for broken in ["\x1b", "\x1b[", "\x1b[1", "\x1b[38m", "\x1b[38;5m", "\x1b]8;;", "\x1b[;m"] {
            assert_eq!(texts(&from_ansi(&format!("a{broken}"))), ["a"], "{broken:?}");
        }
    }
}
