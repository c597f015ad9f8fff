//! What came from a file or from outside, as a message shows it: nothing that a terminal would obey, and not too long.
//!
//! A file whose text holds an escape sequence could move the cursor, hide a line or change the window's title. So
//! control characters are shown as what they are: `\u{1b}`.

use std::borrow::Cow;

/// Characters of a field that a message shows. What is longer is cut in the middle.
const FIELD: usize = 200;
const MESSAGE: usize = 2_000;
const SHAPE: usize = 8;

/// What a file or a library says, on one line, without control characters, in at most about 200 characters.
pub fn field(text: &str) -> String {
    cut(escaped(text, is_unsafe), FIELD)
}

pub fn quoted(text: &str) -> String {
    format!("\"{}\"", field(text))
}

/// A shape as `[2, 3]`, at most eight numbers of it.
pub fn shape(sizes: &[usize]) -> String {
    if sizes.len() <= SHAPE {
        return format!("{sizes:?}");
    }
    let shown: Vec<String> = sizes[..SHAPE].iter().map(usize::to_string).collect();
    format!("[{}, … {} numbers]", shown.join(", "), sizes.len())
}

/// A message of one line, whatever is in it, of at most about 2,000 characters.
pub fn message(text: &str) -> String {
    cut(escaped(text, is_unsafe), MESSAGE)
}

/// A text of many lines for a terminal: line ends and tabs stay.
pub fn text(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c.is_control() && !matches!(c, '\n' | '\t'))
}

/// Control characters, and those that turn the direction of what follows.
fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

fn escaped(text: &str, is_unsafe: fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return text.into();
    }
    let mut shown = String::new();
    for c in text.chars() {
        if is_unsafe(c) { shown.extend(c.escape_debug()) } else { shown.push(c) }
    }
    shown.into()
}

/// Shortens a text to its first two thirds and its last third: an error ends with its place, or with what to do.
fn cut(text: Cow<'_, str>, most: usize) -> String {
    let len = text.chars().count();
    if len <= most {
        return text.into_owned();
    }
    let tail = most / 3;
    let head = most - tail;
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(len - tail).collect();
    format!("{start} …({} characters left out)… {end}", len - most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_of_it_and_what_people_write_stays() {
        let evil = "\x1b]0;owned\x07\x1b[2J a\rb\u{9b}31m\u{202e}c\nd\te\u{7f}";
        let expected = r"\u{1b}]0;owned\u{7}\u{1b}[2J a\rb\u{9b}31m\u{202e}c\nd\te\u{7f}";
        assert_eq!((field(evil), message(evil)), (expected.into(), expected.into()));
        assert_eq!(quoted("a\0"), r#""a\0""#);
        assert_eq!(text("once\n\tupon\x1b[1m\r"), "once\n\tupon\\u{1b}[1m\\r");
        for harmless in ["", "naïve, 你好, שלום", "👩‍👩‍👧 and 🐉", "C:\\models"] {
            assert_eq!((field(harmless).as_str(), text(harmless)), (harmless, harmless.into()));
        }
    }

    #[test]
    fn what_is_long_keeps_its_ends() {
        let exact = "é".repeat(FIELD);
        assert_eq!(field(&exact), exact);
        let shown = field(&format!("begins{}ends", "x".repeat(1 << 20)));
        assert!(shown.starts_with("begins") && shown.ends_with("ends"), "{shown}");
        assert!(shown.contains("…(1048386 characters left out)…") && shown.chars().count() < 240, "{shown}");
        assert_eq!(shape(&[7; 1000]), "[7, 7, 7, 7, 7, 7, 7, 7, … 1000 numbers]");
    }
}
