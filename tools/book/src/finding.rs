//! What a check has to say: where, what is wrong, and what to do next. Every check collects findings instead of
//! stopping at the first, so that one run shows them all.

use std::collections::BTreeSet;
use std::fmt;

pub use page_by_page_course::includes::Place;

/// All findings of one run, in order of file and line, each said once: where, what is wrong, and what to do.
#[derive(Default)]
pub struct Findings(BTreeSet<(Place, String, String)>);

impl Findings {
    pub fn add(&mut self, place: Place, problem: impl Into<String>, next_step: impl Into<String>) {
        self.0.insert((place, problem.into(), next_step.into()));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, problem, next_step) in &self.0 {
            writeln!(f, "{place}: {problem}")?;
            if !next_step.is_empty() {
                writeln!(f, "    {next_step}")?;
            }
        }
        match self.0.len() {
            1 => write!(f, "1 problem in the book"),
            n => write!(f, "{n} problems in the book"),
        }
    }
}

/// "did you mean …?" for the candidate most like `name`, or else `otherwise`.
pub fn did_you_mean<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>, otherwise: &str) -> String {
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.85)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| format!("did you mean `{candidate}`?"))
        .unwrap_or_else(|| otherwise.to_string())
}
