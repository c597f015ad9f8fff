//! Paragraphs of styled text, wrapped to the width of the terminal.

use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};
use unicode_width::UnicodeWidthChar;

pub const PLAIN: Style = Style::new();
pub const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
pub const DIM: Style = Style::new().add_modifier(Modifier::DIM);
pub const RED: Style = BOLD.fg(Color::Red);
pub const GREEN: Style = BOLD.fg(Color::Green);
pub const YELLOW: Style = BOLD.fg(Color::Yellow);
pub const CYAN: Style = Style::new().fg(Color::Cyan);

/// Characters after which a name or a path is broken when it doesn't fit on a row.
const BREAKS: &str = "_/:.,-=";

/// What happens to a paragraph that is wider than the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrap {
    /// It is broken between words. The next rows begin under its text, or at this column if that is further in.
    Words(usize),
    /// It is broken at the edge: code, tables, differences.
    Edge,
}

/// A line of text before it is wrapped. It holds no control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paragraph {
    pub line: Line<'static>,
    pub wrap: Wrap,
}

/// Prose in one style.
pub fn prose(text: impl AsRef<str>, style: Style) -> Paragraph {
    Paragraph { line: Line::default(), wrap: Wrap::Words(0) }.and(text, style)
}

/// Code in one style.
pub fn code(text: impl AsRef<str>, style: Style) -> Paragraph {
    Paragraph { wrap: Wrap::Edge, ..prose(text, style) }
}

pub fn plain(text: impl AsRef<str>) -> Paragraph {
    prose(text, PLAIN)
}

pub fn blank() -> Paragraph {
    plain("")
}

/// `1 check`, `2 checks`
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Text without tabs, and without characters that could control the terminal.
pub fn clean(text: &str) -> String {
    text.replace('\t', "    ").chars().filter(|c| !c.is_control()).collect()
}

/// The beginning of a line that fits into `width` columns, with `…` if something is cut off.
pub fn cut(line: Line<'static>, width: usize) -> Line<'static> {
    if line.width() <= width {
        return line;
    }
    let (mut kept, mut used) = (prose("", PLAIN), 0);
    for (c, style) in chars(&line) {
        used += c.width().unwrap_or(0);
        if used + 1 > width {
            return kept.and("…", style).line;
        }
        kept = kept.and(c.encode_utf8(&mut [0; 4]), style);
    }
    kept.line
}

fn chars(line: &Line<'static>) -> Vec<(char, Style)> {
    line.spans.iter().flat_map(|span| span.content.chars().map(|c| (c, span.style))).collect()
}

impl Paragraph {
    /// The same paragraph with more text.
    pub fn and(mut self, text: impl AsRef<str>, style: Style) -> Self {
        let text = clean(text.as_ref());
        match self.line.spans.last_mut() {
            _ if text.is_empty() => {}
            Some(last) if last.style == style => last.content.to_mut().push_str(&text),
            _ => self.line.spans.push(Span::styled(text, style)),
        }
        self
    }

    /// With further rows indented to this column.
    pub fn hanging(self, column: usize) -> Self {
        Paragraph { wrap: Wrap::Words(column), ..self }
    }

    /// The same text in one style.
    pub fn all(&self, style: Style) -> Self {
        Paragraph { wrap: self.wrap, ..prose(self.text(), style) }
    }

    pub fn text(&self) -> String {
        self.line.spans.iter().map(|span| span.content.as_ref()).collect()
    }

    pub fn is_blank(&self) -> bool {
        self.line.spans.is_empty()
    }

    /// Rows of at most `width` columns, at least one.
    pub fn rows(&self, width: usize) -> Vec<Line<'static>> {
        let width = width.max(1);
        if self.line.width() <= width {
            return vec![self.line.clone()];
        }
        let chars = chars(&self.line);
        let indent = match self.wrap {
            Wrap::Edge => 0,
            Wrap::Words(hang) => indent(&self.text()).max(hang).min(width / 2),
        };
        let (mut rows, mut from) = (Vec::new(), 0);
        while from < chars.len() {
            let lead = if rows.is_empty() { 0 } else { indent };
            let mut to = from + fitting(&chars[from..], width - lead);
            if self.wrap != Wrap::Edge && to < chars.len() {
                to = from + break_before(&chars[from..], to - from);
            }
            let end =
                (from..to).rev().find(|at| chars[*at].0 != ' ' || self.wrap == Wrap::Edge).map_or(to, |at| at + 1);
            let row = chars[from..end]
                .iter()
                .fold(plain(" ".repeat(lead)), |row, (c, style)| row.and(c.encode_utf8(&mut [0; 4]), *style));
            rows.push(row.line);
            from = to;
            while self.wrap != Wrap::Edge && chars.get(from).is_some_and(|(c, _)| *c == ' ') {
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

/// Where to break text of which `most` characters fit: at the last space, or inside a long name after one of its signs.
fn break_before(chars: &[(char, Style)], most: usize) -> usize {
    let has_text = |at: &usize| chars[..*at].iter().any(|(c, _)| *c != ' ');
    let space = (1..=most).rev().find(|at| chars[*at].0 == ' ').filter(has_text);
    let sign = (1..=most).rev().find(|at| BREAKS.contains(chars[*at - 1].0)).filter(has_text);
    match (space, sign) {
        // A space near the beginning would leave the row empty.
        (Some(space), Some(sign)) if space * 3 < most && sign > space => sign,
        (Some(space), _) => space,
        (None, sign) => sign.unwrap_or(most),
    }
}

/// The column where the text of a line begins, after its spaces and the sign of a list.
fn indent(text: &str) -> usize {
    let trimmed = text.trim_start();
    let spaces = text.len() - trimmed.len();
    let (sign, rest) = trimmed.split_once(' ').unwrap_or((trimmed, ""));
    let is_number = sign.strip_suffix('.').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    let is_sign = ["-", "✗"].contains(&sign) || is_number;
    if is_sign { spaces + sign.chars().count() + 1 + (rest.len() - rest.trim_start().len()) } else { spaces }
}

/// The rows of several paragraphs.
pub fn rows(paragraphs: &[Paragraph], width: usize) -> Vec<Line<'static>> {
    paragraphs.iter().flat_map(|paragraph| paragraph.rows(width)).collect()
}

/// Text with ANSI colours, as the compiler writes it. Other escape sequences are left out.
pub fn from_ansi(text: &str) -> Vec<Paragraph> {
    let mut style = PLAIN;
    let line = |line: &str| {
        let mut parsed = code("", PLAIN);
        let mut rest = line;
        while let Some((before, sequence)) = rest.split_once('\x1b') {
            parsed = parsed.and(before, style);
            rest = match sequence.strip_prefix('[') {
                Some(sequence) => {
                    let end = sequence.find(|c: char| ('@'..='~').contains(&c)).unwrap_or(sequence.len());
                    if sequence[end..].starts_with('m') {
                        style = styled(style, &sequence[..end]);
                    }
                    sequence.get(end + 1..).unwrap_or("")
                }
                // A link or a title ends with BEL, or with the backslash of ST.
                None if sequence.starts_with(']') => {
                    &sequence[sequence.find(['\x07', '\\']).map_or(sequence.len(), |end| end + 1)..]
                }
                None => sequence,
            };
        }
        parsed.and(rest, style)
    };
    text.lines().map(line).collect()
}

/// The style after a sequence such as `1;38;5;9`.
fn styled(mut style: Style, codes: &str) -> Style {
    use Color::{Blue, Cyan, DarkGray, Green, Magenta, Red, Reset, Yellow};
    const COLOURS: [Color; 8] = [DarkGray, Red, Green, Yellow, Blue, Magenta, Cyan, Reset];
    let mut codes = codes.split(';').map(|code| code.parse::<usize>().unwrap_or(0));
    while let Some(code) = codes.next() {
        style = match code {
            0 => PLAIN,
            1 => style.add_modifier(Modifier::BOLD),
            2 => style.add_modifier(Modifier::DIM),
            3 => style.add_modifier(Modifier::ITALIC),
            4 => style.add_modifier(Modifier::UNDERLINED),
            22 => style.remove_modifier(Modifier::BOLD | Modifier::DIM),
            30..=37 => style.fg(COLOURS[code - 30]),
            90..=97 => style.fg(COLOURS[code - 90]),
            39 => style.fg(Reset),
            38 | 48 => {
                // 5;n is one of 256 colours, 2;r;g;b any. Backgrounds are left out.
                let colour = match codes.next() {
                    Some(5) => codes.next().map(|n| COLOURS[if n < 16 { n % 8 } else { 7 }]),
                    _ => codes.nth(2).and(None),
                };
                if code == 38 { style.fg(colour.unwrap_or(Reset)) } else { style }
            }
            _ => style,
        };
    }
    style
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(rows: &[Line<'_>]) -> Vec<String> {
        rows.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn words_wrap_under_their_text() {
        assert_eq!(texts(&plain("  - one two three four").rows(14)), ["  - one two", "    three four"]);
        assert_eq!(texts(&plain("ab  cd").rows(3)), ["ab", "cd"]);
        assert_eq!(texts(&plain("abcdefgh ij").rows(4)), ["abcd", "efgh", "ij"], "a word without a sign is cut");
        assert_eq!(texts(&plain("    abcdef").rows(6)), ["    ab", "   cde", "   f"]);
        assert_eq!(texts(&plain("").rows(6)), [""]);
        assert_eq!(texts(&plain("key  one two").hanging(5).rows(10)), ["key  one", "     two"]);
    }

    #[test]
    fn names_are_broken_after_their_signs() {
        let name = plain("✗ task_1_rows_copied_are_the_tokens_held");
        assert_eq!(texts(&name.rows(20)), ["✗ task_1_rows_", "  copied_are_the_", "  tokens_held"]);
        assert_eq!(texts(&plain("see exercises/ch02_flat.rs:52").rows(18)), ["see exercises/", "ch02_flat.rs:52"]);
    }

    #[test]
    fn code_wraps_at_the_edge_and_loses_nothing() {
        assert_eq!(texts(&code("  let a = b;", PLAIN).rows(5)), ["  let", " a = ", "b;"]);
    }

    #[test]
    fn wide_characters_take_two_columns() {
        let line = plain("龍龍龍");
        assert_eq!((line.line.width(), cut(line.line.clone(), 5).to_string()), (6, "龍龍…".into()));
        assert_eq!(texts(&line.rows(5)), ["龍龍", "龍"]);
        assert_eq!(texts(&line.rows(1)), ["龍", "龍", "龍"], "and it ends");
    }

    #[test]
    fn text_controls_no_terminal() {
        assert_eq!(plain("a\x1b[2Jb\tc\r\n\u{9b}d").text(), "a[2Jb    cd");
    }

    #[test]
    fn colours_of_the_compiler_are_kept() {
        let lines = from_ansi("\x1b[1m\x1b[91merror\x1b[0m\x1b[1m: no\x1b[0m\n\x1b[38;5;12m |\x1b[0m x\x1b[2K\n");
        let text = |lines: &[Paragraph]| lines.iter().map(Paragraph::text).collect::<Vec<_>>();
        assert_eq!(text(&lines), ["error: no", " | x"]);
        let styles: Vec<Style> = lines.iter().flat_map(|line| line.line.spans.iter().map(|span| span.style)).collect();
        assert_eq!(styles[..3], [RED, BOLD, Style::new().fg(Color::Blue)]);
        let link = "\x1b]8;;https://a\x1b\\E0308\x1b]8;;\x1b\\ x \x1b[38;2;1;2;3my";
        assert_eq!(text(&from_ansi(link)), ["E0308 x y"]);
        for broken in ["\x1b", "\x1b[", "\x1b[1", "\x1b[38m", "\x1b[38;5m", "\x1b]8;;", "\x1b[;m"] {
            assert_eq!(text(&from_ansi(&format!("a{broken}"))), ["a"], "{broken:?}");
        }
    }
}
