//! The lines of a file, or of standard input, read beside the work; and what a line asks for.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use page_by_page::escape;
use page_by_page::files;
use serde::Deserialize;

use crate::interrupt::Interrupt;
use crate::line::read_line;

/// Lines that are read ahead of the work.
const AHEAD: usize = 16;
/// How long Ctrl-C may go unnoticed while there is nothing to do but to wait for a line.
const BLINK: Duration = Duration::from_millis(50);

/// A line that is not empty.
#[derive(Debug, PartialEq)]
pub struct Line {
    /// Its number in the file, from 1.
    pub number: usize,
    /// Without its end; or why it cannot be read.
    pub text: Result<String, String>,
}

/// Lines on their way.
pub struct Lines {
    receiver: Receiver<io::Result<Line>>,
    /// A file gives its next line at once. Who writes to standard input may take their time.
    pub is_file: bool,
}

/// What there is to read.
pub enum Next {
    /// A line.
    Line(Line),
    /// Nothing yet.
    Nothing,
    /// Nothing any more.
    End,
}

impl Lines {
    /// The lines of a file, or of standard input if it is `-`.
    pub fn of(file: &Path) -> Result<Self> {
        let is_file = file.as_os_str() != "-";
        let input: Box<dyn Read + Send> = if is_file {
            let open = files::open(file);
            Box::new(open.with_context(|| {
                format!("{}: name a file with one JSON object a line, or - for standard input", file.display())
            })?)
        } else {
            Box::new(io::stdin())
        };
        let (sender, receiver) = sync_channel(AHEAD);
        thread::Builder::new().name("lines".into()).spawn(move || send(BufReader::new(input), &sender))?;
        Ok(Lines { receiver, is_file })
    }

    /// The next line. `wait`: until there is one, or until Ctrl-C.
    pub fn next(&self, wait: bool, interrupt: &Interrupt) -> io::Result<Next> {
        loop {
            let received = if wait {
                self.receiver.recv_timeout(BLINK).map_err(|error| error == RecvTimeoutError::Disconnected)
            } else {
                self.receiver.try_recv().map_err(|error| error == TryRecvError::Disconnected)
            };
            match received {
                Ok(line) => return Ok(Next::Line(line?)),
                Err(is_end) if is_end => return Ok(Next::End),
                Err(_) if wait && !interrupt.is_asked() => {}
                Err(_) => return Ok(Next::Nothing),
            }
        }
    }
}

/// Sends the lines, up to the end or to an error, as long as anybody wants them.
fn send(mut input: impl BufRead, sender: &SyncSender<io::Result<Line>>) {
    for number in 1.. {
        let line = match read_line(&mut input) {
            Ok(None) => return,
            Ok(Some(bytes)) => line(number, bytes).map(Ok),
            Err(error) => Some(Err(error)),
        };
        let is_error = matches!(line, Some(Err(_)));
        if line.is_some_and(|line| sender.send(line).is_err()) || is_error {
            return;
        }
    }
}

/// `None`: there is nothing in it.
fn line(number: usize, bytes: Result<Vec<u8>, String>) -> Option<Line> {
    let text =
        bytes.and_then(|bytes| String::from_utf8(bytes).map_err(|_| "it is not UTF-8; save the file as UTF-8".into()));
    let text = match text {
        // Some editors begin a file with a mark that is no part of it.
        Ok(text) if number == 1 => Ok(text.strip_prefix('\u{FEFF}').unwrap_or(&text).to_string()),
        text => text,
    };
    let is_empty = text.as_ref().is_ok_and(|text| text.trim().is_empty());
    (!is_empty).then_some(Line { number, text })
}

/// What a line asks for. All but the prompt may be missing.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    /// How the text begins.
    pub prompt: String,
    /// New tokens at most.
    pub max_new_tokens: Option<usize>,
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// 0 is no limit.
    pub top_k: Option<usize>,
    /// 1 is no limit.
    pub top_p: Option<f32>,
    /// Same seed, same text.
    pub seed: Option<u64>,
}

impl Wish {
    /// Reads a line; or says what is wrong with it, in a few words without control characters.
    pub fn read(line: &str) -> Result<Self, String> {
        // Else a list of values would pass for an object.
        if !line.trim_start().starts_with('{') {
            return Err("it is not a JSON object; write one, such as {\"prompt\": \"Once upon a time\"}".into());
        }
        let wish: Wish = serde_json::from_str(line).map_err(|error| {
            let (column, text) = (error.column(), error.to_string());
            // It counts the lines of what it was given: always one.
            let problem = text.rsplit_once(" at line ").map_or(text.as_str(), |(problem, _)| problem);
            format!("column {column}: {}", escape::field(problem))
        })?;
        if wish.prompt.is_empty() {
            return Err("the prompt is empty; give the text a beginning, such as \"Once upon a time\"".into());
        }
        Ok(wish)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::MOST_BYTES;

    fn lines(input: &[u8]) -> Vec<Line> {
        // A buffer of one byte: every line comes in pieces.
        let (sender, receiver) = sync_channel(100);
        send(BufReader::with_capacity(1, input), &sender);
        drop(sender);
        receiver.into_iter().map(Result::unwrap).collect()
    }

    fn read(number: usize, text: &str) -> Line {
        Line { number, text: Ok(text.into()) }
    }

    #[test]
    fn lines_keep_their_numbers_and_empty_ones_are_left_out() {
        assert_eq!(lines(b""), []);
        assert_eq!(lines("\u{FEFF}a\r\n\n  \nb b\nc".as_bytes()), [read(1, "a\r"), read(4, "b b"), read(5, "c")]);
        assert_eq!(lines(b"a\n"), [read(1, "a")]);
        let found = lines(b"a\n\xFF\nb");
        assert_eq!((&found[0], &found[2]), (&read(1, "a"), &read(3, "b")));
        assert!(found[1].text.as_ref().unwrap_err().contains("not UTF-8"), "{found:?}");
    }

    #[test]
    fn a_line_that_is_too_long_is_passed_over() {
        for (len, is_read) in [(MOST_BYTES, true), (MOST_BYTES + 1, false), (3 * MOST_BYTES, false)] {
            for end in ["\n", ""] {
                let input = format!("a\n{}{end}", "x".repeat(len));
                let (sender, receiver) = sync_channel(100);
                send(BufReader::new(input.as_bytes()), &sender);
                drop(sender);
                let found: Vec<Line> = receiver.into_iter().map(Result::unwrap).collect();
                assert_eq!((found.len(), found[1].number), (2, 2));
                assert_eq!(found[1].text.as_ref().is_ok_and(|text| text.len() == len), is_read, "{len}");
            }
        }
        let input = format!("{}\nb", "x".repeat(2 * MOST_BYTES));
        assert_eq!(lines(input.as_bytes())[1], read(2, "b"));
    }

    #[test]
    fn a_line_is_an_object_with_known_fields() {
        let line = r#" {"prompt": "a\nb", "max_new_tokens": 3, "temperature": 0.5, "top_k": 4, "top_p": 1, "seed": 18446744073709551615}"#;
        let all = Wish {
            prompt: "a\nb".into(),
            max_new_tokens: Some(3),
            temperature: Some(0.5),
            top_k: Some(4),
            top_p: Some(1.0),
            seed: Some(u64::MAX),
        };
        assert_eq!(Wish::read(line), Ok(all));
        assert_eq!(Wish::read("{\"prompt\": \"a\"}\r"), Ok(Wish { prompt: "a".into(), ..Wish::default() }));
        for (line, says) in [
            ("", "it is not a JSON object"),
            ("[\"a\", 3]", "it is not a JSON object"),
            ("\"a\"", "it is not a JSON object"),
            ("{\"prompt\": \"a\"} {}", "column 17: trailing characters"),
            ("{\"prompt\": \"a\"", "column 14: EOF while parsing an object"),
            ("{\"prompt\": 3}", "column 12: invalid type: integer `3`, expected a string"),
            ("{}", "column 2: missing field `prompt`"),
            ("{\"prompt\": \"\"}", "the prompt is empty"),
            ("{\"prompt\": \"a\", \"prompt\": \"b\"}", "column 24: duplicate field `prompt`"),
            ("{\"prompt\": \"a\", \"max_new_tokens\": -1}", "column 36: invalid value: integer `-1`, expected usize"),
            ("{\"prompt\": \"a\", \"tempreature\": 1}", "column 29: unknown field `tempreature`, expected one of"),
        ] {
            let problem = Wish::read(line).unwrap_err();
            assert!(problem.starts_with(says), "{line}: {problem}");
        }
        let evil = Wish::read("{\"prompt\": \"a\", \"\\u001b[2J\": 1}").unwrap_err();
        assert!(!evil.contains(char::is_control), "{evil:?}");
    }
}
