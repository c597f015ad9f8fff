//! Chapter 15: planted bugs that examples notice and that rules notice, and the events that tell the story of one.

use anyhow::{Context, Result};

use crate::simulation::planted::{Bug, planted};
use crate::simulation::{examples, search};

/// Which of the planted bugs are noticed.
#[derive(Default)]
pub struct Noticed {
    pub by_examples: u64,
    pub by_rules: u64,
    /// Events after which a rule is broken by the bug `cancel-leaks`.
    pub events: usize,
    pub shrunk_events: usize,
}

/// Tries every planted bug in a thousand cases of up to a hundred steps.
pub fn planted_bugs() -> Result<Noticed> {
    const STEPS: u64 = 100;
    const SEEDS: u64 = 1000;
    let mut noticed = Noticed::default();
    let mut events = None;
    for bug in Bug::all() {
        let factory = planted(Some(bug));
        noticed.by_examples += u64::from(examples::pass(&factory).is_err());
        if let Err(found) = search(&factory, 0..=SEEDS - 1, STEPS, || {}) {
            noticed.by_rules += 1;
            if bug.name() == "cancel-leaks" {
                events = Some((found.events, found.case.events.len()));
            }
        }
    }
    (noticed.events, noticed.shrunk_events) = events.context("no rule has noticed the planted bug cancel-leaks")?;
    Ok(noticed)
}
