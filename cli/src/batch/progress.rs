//! How far a run is: a line that changes on a terminal, a line now and then anywhere else.

use std::time::{Duration, Instant};

use console::user_attended_stderr;

use crate::output::{Progress, count, per_second, rate, say, thousands};

/// Between two lines where standard error is no terminal.
const BETWEEN: Duration = Duration::from_secs(10);

/// Says how far a run is.
pub struct BatchProgress {
    start: Instant,
    /// `None`: standard error is no terminal.
    line: Option<Progress>,
    next_line: Duration,
}

impl BatchProgress {
    /// The run begins now.
    pub fn new() -> Self {
        let line = user_attended_stderr().then(Progress::line);
        BatchProgress { start: Instant::now(), line, next_line: BETWEEN }
    }

    /// How long the run has taken so far.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Requests that have ended, requests that wait or run, and generated tokens, so far.
    pub fn show(&mut self, ended: usize, open: usize, new_tokens: u64) {
        let elapsed = self.elapsed();
        if let Some(line) = &self.line {
            line.say(message(ended, open, new_tokens, elapsed));
        } else if elapsed >= self.next_line {
            self.next_line = elapsed + BETWEEN;
            say(&message(ended, open, new_tokens, elapsed));
        }
    }

    /// Says a line that is not overwritten.
    pub fn say(&self, line: &str) {
        self.beside(|| say(line));
    }

    /// Does something that might write to the same terminal.
    pub fn beside<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.line {
            Some(line) => line.beside(write),
            None => write(),
        }
    }
}

fn message(ended: usize, open: usize, new_tokens: u64, elapsed: Duration) -> String {
    let (requests, speed) = (count(ended, "request"), rate(per_second(new_tokens as usize, elapsed)));
    format!("{requests} done, {} under way, {}, {speed} tokens/s", thousands(open), count(new_tokens, "token"))
}
