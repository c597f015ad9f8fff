//! The verdict on a chapter: how its checks ended, in the order of the tasks.
//!
//! A check that ends in the `todo!` of a *later* task says nothing about its own: it waits, neither green nor red.

use std::collections::BTreeMap;

use page_by_page_course::chapters::task_label;
use page_by_page_course::libtest::{self, Suite};
use page_by_page_course::record::Tally;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    Green,
    Red(String),
    /// On something that isn't written yet.
    Waits(Wait),
}

/// The task that a check waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wait {
    pub chapter: usize,
    pub task: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Whether the compiled code is the one on disk.
    Code,
    Task(u32),
    /// All tasks together: the transcript, the oracle, the story.
    Whole,
}

/// How checks ended, by what they are about and their names: `task_1_adds`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict(pub BTreeMap<(Part, String), CheckOutcome>);

impl Part {
    pub fn of_check(name: &str) -> Part {
        if name.starts_with("whose_code::") {
            return Part::Code;
        }
        libtest::task_of(name).map_or(Part::Whole, Part::Task)
    }
}

impl Verdict {
    /// The verdict of a run of the checks of this chapter.
    pub fn new(suite: &Suite, chapter: usize) -> Self {
        let checks = suite.tests.iter().filter_map(|(name, outcome)| {
            let name = name.strip_prefix("checks::").unwrap_or(name);
            let outcome = match outcome {
                libtest::TestOutcome::Passed => CheckOutcome::Green,
                libtest::TestOutcome::Ignored(_) => return None,
                libtest::TestOutcome::Failed(printed) => failed(name, message(printed), chapter),
            };
            Some(((Part::of_check(name), name.to_string()), outcome))
        });
        Verdict(checks.collect())
    }

    fn outcomes(&self, is_counted: impl Fn(Part) -> bool) -> impl Iterator<Item = &CheckOutcome> {
        self.0.iter().filter(move |((part, _), _)| is_counted(*part)).map(|(_, outcome)| outcome)
    }

    fn tally(&self, is_counted: impl Fn(Part) -> bool) -> Tally {
        let green = self.outcomes(&is_counted).filter(|outcome| **outcome == CheckOutcome::Green).count();
        Tally { green, of: self.outcomes(is_counted).count() }
    }

    pub fn tally_of(&self, wanted: Part) -> Tally {
        self.tally(|part| part == wanted)
    }

    /// All checks except those about which code was compiled.
    pub fn total(&self) -> Tally {
        self.tally(|part| part != Part::Code)
    }

    /// The red checks with their messages, those of the lowest task first.
    pub fn red(&self) -> impl Iterator<Item = (Part, &str, &str)> {
        self.0.iter().filter_map(|((part, name), outcome)| match outcome {
            CheckOutcome::Red(message) => Some((*part, name.as_str(), message.as_str())),
            _ => None,
        })
    }

    pub fn is_green(&self) -> bool {
        self.tally(|_| true).all_green()
    }

    /// What the checks that wait need, one for each.
    pub fn waits(&self, is_counted: impl Fn(Part) -> bool) -> Vec<Wait> {
        let waits = self.outcomes(is_counted).filter_map(|outcome| match outcome {
            CheckOutcome::Waits(wait) => Some(*wait),
            _ => None,
        });
        waits.collect()
    }

    /// The task to work on: the lowest with a red check, else the latest that a check waits for.
    pub fn next_task(&self, chapter: usize) -> Option<u32> {
        match (self.red().next(), self.waits(|_| true).iter().max()) {
            (Some((Part::Task(task), ..)), _) => Some(task),
            (None, Some(wait)) if wait.chapter == chapter => Some(wait.task),
            _ => None,
        }
    }
}

fn failed(name: &str, message: String, chapter: usize) -> CheckOutcome {
    let wait = reached_todo(&message).map(|(wait, _)| wait);
    match (wait, Part::of_check(name)) {
        (Some(wait), Part::Task(task)) if wait.chapter == chapter && wait.task <= task => CheckOutcome::Red(message),
        (Some(_), Part::Code) | (None, _) => CheckOutcome::Red(message),
        (Some(wait), _) => CheckOutcome::Waits(wait),
    }
}

/// The task whose `todo!` a failure reached, and what is to be done there.
pub fn reached_todo(message: &str) -> Option<(Wait, &str)> {
    let (_, reached) = message.split_once("not yet implemented: ")?;
    // The place of the `todo!` can follow.
    let (chapter, task, what) = task_label(reached.lines().next()?.split(" (exercises/").next()?)?;
    Some((Wait { chapter, task }, what))
}

/// The message of a failed check, without what libtest, insta and the panic machinery print around it.
fn message(printed: &str) -> String {
    let mut kept: Vec<String> = Vec::new();
    // The first place in an exercise where it panicked, and the line with the reason.
    let mut place = None;
    for line in printed.lines() {
        if let Some((_, at)) = line.strip_prefix("thread '").and_then(|rest| rest.split_once(" panicked at ")) {
            place = place.or(place_of(at).map(|at| (at, kept.len())));
        } else if !is_noise(line) {
            kept.push(line.to_string());
        }
    }
    let is_located = kept.iter().any(|line| line.contains("panicked ("));
    if let Some((place, why)) = place.filter(|(_, why)| !is_located && *why < kept.len()) {
        kept[why] = format!("your code panicked ({place}): {}", kept[why]);
    }
    let mut lines: Vec<&str> = Vec::new();
    for line in &kept {
        // The panic repeats what the check has just printed.
        let is_repeated = |before: &&str| before.ends_with(line.as_str()) && before.contains("panicked (");
        let is_gap = line.trim().is_empty();
        let is_second_gap = is_gap && lines.last().is_none_or(|before| before.trim().is_empty());
        if !is_second_gap && (is_gap || !lines.iter().any(is_repeated)) {
            lines.push(line);
        }
    }
    lines.join("\n").trim_end().to_string()
}

/// `src/../exercises/ch02_flat.rs:91:9:` → `exercises/ch02_flat.rs:91`
fn place_of(at: &str) -> Option<&str> {
    let at = at[at.find("exercises/")?..].trim_end_matches(':');
    at.rsplit_once(':').map(|(at, _column)| at)
}

/// Whether libtest or insta printed this line around a message or a difference.
fn is_noise(line: &str) -> bool {
    const STARTS: [&str; 9] = [
        "note: run with `RUST_BACKTRACE=",
        "━",
        "Snapshot file: ",
        "Snapshot: ",
        "Source: ",
        "Stopped on the first failure.",
        "snapshot assertion for '",
        "-old snapshot",
        "+new results",
    ];
    let is_rule = !line.is_empty() && line.chars().all(|c| c == '─');
    is_rule || STARTS.iter().any(|start| line.starts_with(start))
}

#[cfg(test)]
pub mod tests;
