//! Turns that are taken for a while, how long each part of them took, and how much that is in a second.

use std::ops::Range;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::output::Progress;

/// Turns at least as many as the range begins with; more until `patience` is over, but fewer than the range ends with.
pub fn turns(what: &'static str, range: Range<usize>, patience: Duration) -> impl Iterator<Item = usize> {
    const STEPS: f64 = 1e3;
    let (progress, start) = (Progress::new(what, STEPS as u64), Instant::now());
    (0..range.end.max(range.start)).take_while(move |turn| {
        let of_least = *turn as f64 / range.start.max(1) as f64;
        let of_time = start.elapsed().as_secs_f64() / patience.as_secs_f64().max(1e-9);
        progress.reach((STEPS * of_least.min(of_time).min(1.0)) as u64);
        *turn < range.start || start.elapsed() < patience
    })
}

/// How long the same work took in each turn, in seconds.
#[derive(Default)]
pub struct Times(Vec<f64>);

impl Times {
    pub fn measure<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.0.push(start.elapsed().as_secs_f64());
        result
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The time of the turn in the middle; infinite if there was none.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::INFINITY)
    }

    /// The shortest time; infinite if there was none.
    pub fn best(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// All times together, divided by how many there were; infinite if there was none.
    pub fn mean(&self) -> f64 {
        if self.0.is_empty() { f64::INFINITY } else { self.0.iter().sum::<f64>() / self.0.len() as f64 }
    }

    pub fn rates(&self, amount: f64) -> Rates {
        Rates { best: amount / self.best(), median: amount / self.median(), mean: amount / self.mean() }
    }
}

/// An amount in a second, or how two of them compare.
#[derive(Clone, Copy, Serialize)]
pub struct Rates {
    pub best: f64,
    pub median: f64,
    pub mean: f64,
}

impl Rates {
    pub fn over(self, other: Rates) -> Rates {
        Rates { best: self.best / other.best, median: self.median / other.median, mean: self.mean / other.mean }
    }
}
