//! A progress bar for whatever turns out to take longer than two seconds.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const PATIENCE: Duration = Duration::from_secs(2);

/// Counts steps; shows itself on a terminal only, and only after two seconds.
pub struct Progress {
    bar: ProgressBar,
    /// `None` once the bar is on the screen.
    hidden_since: Mutex<Option<Instant>>,
}

impl Progress {
    /// Nothing done of `steps`.
    pub fn new(what: &'static str, steps: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template("{msg} [{bar:40}] {percent} %, {eta} left");
        bar.set_style(style.expect("a valid template").progress_chars("=> "));
        bar.set_message(what);
        Progress { bar, hidden_since: Mutex::new(Some(Instant::now())) }
    }

    /// `steps` more are done.
    pub fn advance(&self, steps: u64) {
        self.bar.inc(steps);
        self.appear_in_time();
    }

    /// `steps` are done in all.
    pub fn reach(&self, steps: u64) {
        self.bar.set_position(steps);
        self.appear_in_time();
    }

    fn appear_in_time(&self) {
        let mut hidden_since = self.hidden_since.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if hidden_since.is_some_and(|start| start.elapsed() > PATIENCE) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            *hidden_since = None;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
