//! What the checks have to say. They collect findings instead of stopping at the first: one run shows them all.

use std::collections::BTreeSet;
use std::fmt;

/// All that one run found: `file:line: what is wrong and what to do about it`.
#[derive(Debug, Default)]
pub struct Report {
    pub findings: BTreeSet<String>,
    /// What was looked at, for the last line.
    pub chapters: usize,
}

impl Report {
    /// `file`: from the root of the repository. `line`: from 1; 0 for the file as a whole.
    pub fn add(&mut self, file: impl fmt::Display, line: usize, problem: impl fmt::Display) {
        let line = if line == 0 { String::new() } else { format!(":{line}") };
        self.findings.insert(format!("{file}{line}: {problem}"));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        match self.findings.len() {
            0 => write!(f, "{} chapters in order", self.chapters),
            n => write!(f, "{n} problems in the course"),
        }
    }
}
