//! What is typed, line by line, read beside the work.

use std::io::{self, BufRead, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::interrupt::Interrupt;
use crate::line::read_line;

/// How long Ctrl-C may go unnoticed.
const BLINK: Duration = Duration::from_millis(20);

/// A line without its end; or why it cannot be read.
type Line = Result<String, String>;

/// Lines on their way.
pub struct Keyboard {
    receiver: Receiver<io::Result<Line>>,
    /// Whether whoever types is told when it is their turn.
    has_prompt: bool,
}

/// What comes next.
pub enum Next {
    /// A line.
    Line(Line),
    /// No more lines.
    End,
    /// Ctrl-C.
    Interrupt,
}

impl Keyboard {
    /// Standard input.
    pub fn start(has_prompt: bool) -> Result<Self> {
        let (sender, receiver) = sync_channel(1);
        let read = move || send(io::stdin().lock(), &sender);
        thread::Builder::new().name("keyboard".into()).spawn(read)?;
        Ok(Keyboard { receiver, has_prompt })
    }

    /// Waits for a line, for the end of all lines, or for Ctrl-C.
    ///
    /// # Errors
    /// If standard input cannot be read.
    pub fn next(&self, interrupt: &Interrupt) -> Result<Next> {
        self.write("> ");
        let next = loop {
            match self.receiver.recv_timeout(BLINK) {
                Ok(line) => return Ok(Next::Line(line.context("standard input")?)),
                Err(RecvTimeoutError::Disconnected) => break Next::End,
                Err(RecvTimeoutError::Timeout) if interrupt.is_asked() => break Next::Interrupt,
                Err(RecvTimeoutError::Timeout) => {}
            }
        };
        self.write("\n");
        Ok(next)
    }

    /// Beside the answers, so that they can go to a file.
    fn write(&self, text: &str) {
        if self.has_prompt {
            let _ = io::stderr().write_all(text.as_bytes());
        }
    }
}

/// Sends the lines, up to the end or to an error, as long as anybody wants them.
fn send(mut input: impl BufRead, sender: &SyncSender<io::Result<Line>>) {
    for number in 1_u64.. {
        let line = match read_line(&mut input) {
            Ok(None) => return,
            Ok(Some(bytes)) => Ok(text(number, bytes)),
            Err(error) => Err(error),
        };
        let is_error = line.is_err();
        if sender.send(line).is_err() || is_error {
            return;
        }
    }
}

fn text(number: u64, bytes: Result<Vec<u8>, String>) -> Line {
    let refused = |problem: String| format!("line {number}: {problem}");
    let text = String::from_utf8(bytes.map_err(refused)?).map_err(|_| refused("it is not UTF-8".into()))?;
    // Some editors begin a file with a mark that is no part of it.
    Ok(if number == 1 { text.strip_prefix('\u{FEFF}').unwrap_or(&text).into() } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_comes_also_an_empty_one() {
        let (sender, receiver) = sync_channel(9);
        send(&b"\xEF\xBB\xBFa\r\n\n b\nc\xFF\nd"[..], &sender);
        drop(sender);
        let lines: Vec<Line> = receiver.into_iter().map(Result::unwrap).collect();
        let text = |text: &str| Ok(text.to_string());
        let refused = Err("line 4: it is not UTF-8".to_string());
        assert_eq!(lines, [text("a\r"), text(""), text(" b"), refused, text("d")]);
    }
}
