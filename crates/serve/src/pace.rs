//! The pace: how many steps a second a viewer lets the engine take, so that people can follow them.
//!
//! It concerns the sequences of all clients. So it belongs to the viewer who has set it, and ends when that one leaves.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// What a viewer asks for, and what all viewers are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaceRequest {
    /// Who sets it: the number that the viewer's own views have.
    pub viewer: u64,
    /// 0 for a pause, none for full speed.
    pub steps_per_second: Option<u32>,
    /// Steps to take during a pause.
    #[serde(default)]
    pub steps: u32,
}

#[derive(Default)]
pub struct Pace {
    /// None for full speed.
    pub set: Option<PaceRequest>,
    last_step: Option<Instant>,
}

impl Pace {
    /// How long the next step has to wait.
    pub fn wait(&self) -> Duration {
        let Some(PaceRequest { steps_per_second: Some(rate), steps, .. }) = self.set else { return Duration::ZERO };
        match (rate, self.last_step) {
            (0, _) if steps == 0 => Duration::MAX,
            (0, _) | (_, None) => Duration::ZERO,
            (_, Some(last)) => (Duration::from_secs(1) / rate).saturating_sub(last.elapsed()),
        }
    }

    pub fn note_step(&mut self) {
        self.last_step = Some(Instant::now());
        if let Some(set) = &mut self.set {
            set.steps = set.steps.saturating_sub(1);
        }
    }
}
