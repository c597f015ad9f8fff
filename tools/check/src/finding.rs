//! What the checks have to say. They collect findings instead of stopping at the first: one run shows them all.

use std::collections::BTreeSet;
use std::fmt;

/// Something that is wrong, where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// From the root of the repository.
    pub file: String,
    /// From 1; 0 for the file as a whole.
    pub line: usize,
    pub problem: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.problem),
            line => write!(f, "{}:{line}: {}", self.file, self.problem),
        }
    }
}

/// All that one run found, in order of file and line.
#[derive(Debug, Default)]
pub struct Report {
    pub findings: BTreeSet<Finding>,
    /// Worth knowing, but nothing to mend.
    pub notes: BTreeSet<Finding>,
    /// What was looked at, for the last line.
    pub chapters: usize,
}

impl Report {
    pub fn add(&mut self, file: impl Into<String>, line: usize, problem: impl Into<String>) {
        self.findings.insert(Finding { file: file.into(), line, problem: problem.into() });
    }

    pub fn note(&mut self, file: impl Into<String>, line: usize, problem: impl Into<String>) {
        self.notes.insert(Finding { file: file.into(), line, problem: problem.into() });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        match (self.findings.len(), self.chapters) {
            (0, 1) => write!(f, "1 chapter in order"),
            (0, chapters) => write!(f, "{chapters} chapters in order"),
            (1, _) => write!(f, "1 problem in the course"),
            (n, _) => write!(f, "{n} problems in the course"),
        }
    }
}
