//! What the checks have to say. They collect findings instead of stopping at the first: one run shows them all.

use std::collections::BTreeSet;
use std::fmt::Display;

/// All that one run found: `file:line: what is wrong and what to do about it`.
#[derive(Debug, Default)]
pub struct Report(pub BTreeSet<String>);

impl Report {
    /// `file`: from the root of the repository. `line`: from 1; 0 for the file as a whole.
    pub fn add(&mut self, file: impl Display, line: usize, problem: impl Display) {
        let line = if line == 0 { String::new() } else { format!(":{line}") };
        self.0.insert(format!("{file}{line}: {problem}"));
    }
}
