//! What a command reads: lines of a file or of standard input, read on a thread of their own while the command works.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use crate::interrupt::Interrupt;

/// Bytes of a line, at most. A prompt of 40,000 tokens has about a fifth of that.
const MAX_LINE: usize = 1 << 20;
const AHEAD: usize = 16;
/// How long Ctrl-C may go unnoticed.
const POLL: Duration = Duration::from_millis(20);

#[derive(Debug, PartialEq)]
pub struct Line {
    pub number: usize,
    pub text: Result<String, String>,
}

pub struct LineReader(Receiver<io::Result<Line>>);

pub enum Next {
    Line(Line),
    /// Nothing yet, or Ctrl-C.
    Nothing,
    End,
}

impl LineReader {
    pub fn read(input: impl Read + Send + 'static) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(AHEAD);
        thread::Builder::new().name("lines".into()).spawn(move || send(BufReader::new(input), &sender))?;
        Ok(LineReader(receiver))
    }

    /// The next line. `wait`: until there is one, or until Ctrl-C.
    ///
    /// # Errors
    /// If the input cannot be read.
    pub fn next(&self, wait: bool, interrupt: &Interrupt) -> io::Result<Next> {
        loop {
            let received = if wait {
                self.0.recv_timeout(POLL).map_err(|error| error == RecvTimeoutError::Disconnected)
            } else {
                self.0.try_recv().map_err(|error| error == TryRecvError::Disconnected)
            };
            match received {
                Ok(line) => return Ok(Next::Line(line?)),
                Err(is_end) if is_end => return Ok(Next::End),
                Err(_) if wait && !interrupt.is_pressed() => {}
                Err(_) => return Ok(Next::Nothing),
            }
        }
    }
}

/// Sends the lines up to the end or to an error, as long as the command wants them.
fn send(mut input: impl BufRead, sender: &SyncSender<io::Result<Line>>) {
    for number in 1.. {
        let Some(line) = read_line(&mut input, number).transpose() else { return };
        let is_error = line.is_err();
        if sender.send(line).is_err() || is_error {
            return;
        }
    }
}

/// A line without its end; `None` at the end of the input. Nothing is kept of a line that is too long.
fn read_line(input: &mut impl BufRead, number: usize) -> io::Result<Option<Line>> {
    let mut line = Vec::new();
    if input.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() > MAX_LINE {
        input.skip_until(b'\n')?;
        let text = Err(format!("it has more than {MAX_LINE} bytes; shorten its prompt"));
        return Ok(Some(Line { number, text }));
    }
    // Some editors begin a file with a byte order mark.
    let start = if number == 1 && line.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 };
    let text = str::from_utf8(&line[start..]).map(String::from);
    Ok(Some(Line { number, text: text.map_err(|_| "it is not UTF-8; save the file as UTF-8".into()) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_with_their_numbers_and_one_that_cannot_be_read_stops_no_other() {
        let long = "x".repeat(MAX_LINE + 1);
        let input = [b"\xEF\xBB\xBFa\r\n\n b\nc\xFF\n", long.as_bytes(), b"\n", &long.as_bytes()[1..], b"\nd"].concat();
        // A buffer of seven bytes: a line comes in pieces.
        let (sender, receiver) = sync_channel(99);
        send(BufReader::with_capacity(7, &input[..]), &sender);
        drop(sender);
        let lines: Vec<Line> = receiver.into_iter().map(Result::unwrap).collect();
        let refused = |problem: &str| Err(problem.to_string());
        let expected = [
            Ok("a\r".to_string()),
            Ok("".into()),
            Ok(" b".into()),
            refused("it is not UTF-8; save the file as UTF-8"),
            refused("it has more than 1048576 bytes; shorten its prompt"),
            Ok(long[1..].into()),
            Ok("d".into()),
        ];
        assert_eq!(lines.iter().map(|line| line.number).collect::<Vec<_>>(), (1..8).collect::<Vec<_>>());
        assert!(lines.iter().map(|line| &line.text).eq(&expected));
    }
}
