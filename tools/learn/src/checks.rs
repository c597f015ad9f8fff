//! The verdict on a chapter: how its checks ended, in the order of the tasks.
//!
//! A check that ends in the `todo!` of a *later* task says nothing about its own: it waits, and is neither green nor red.

use std::collections::BTreeMap;

use page_by_page_course::libtest::{self, Suite};

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Green,
    /// With its message.
    Red(String),
    /// On something that isn't written yet.
    Waits(Wait),
    Ignored,
}

/// The task that a check waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wait {
    pub chapter: usize,
    pub task: u32,
}

/// What a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum About {
    /// Whether the compiled code is the one on disk.
    Code,
    Task(u32),
    /// All tasks together: the transcript, the oracle, the story.
    Whole,
}

/// A check that has run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// libtest's name for it: `checks::task_1_adds`.
    pub name: String,
    pub outcome: Outcome,
}

/// The checks of one or more runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// In the order of their names.
    pub checks: BTreeMap<About, Vec<Check>>,
}

/// What to work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The compiled code isn't the one on disk.
    Code,
    Task(u32),
    /// All tasks are green, but the chapter as a whole isn't.
    Whole,
    /// Nothing is red, but some checks wait.
    Waits(Wait),
    /// All is green.
    Nothing,
}

/// Numbers of checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub green: usize,
    pub red: usize,
    pub of: usize,
    pub waits: usize,
    /// The latest task that one of them waits for.
    pub waits_for: Option<Wait>,
}

impl About {
    pub fn of(name: &str) -> About {
        if name.starts_with("whose_code::") {
            return About::Code;
        }
        let task = short(name).strip_prefix("task_").and_then(|rest| rest.split('_').next()?.parse().ok());
        task.map_or(About::Whole, About::Task)
    }
}

/// `checks::task_1_adds` → `task_1_adds`
pub fn short(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}

impl Check {
    pub fn short(&self) -> &str {
        short(&self.name)
    }

    pub fn is_red(&self) -> bool {
        matches!(self.outcome, Outcome::Red(_))
    }

    /// Whether it is red only because it reached a `todo!`.
    pub fn is_unwritten(&self) -> bool {
        matches!(&self.outcome, Outcome::Red(message) if waits_for(message).is_some())
    }
}

impl Verdict {
    /// The verdict of a run of the checks of this chapter.
    pub fn of(suite: &Suite, chapter: usize) -> Self {
        let mut verdict = Verdict::default();
        for (name, outcome) in &suite.tests {
            let outcome = match outcome {
                libtest::Outcome::Passed => Outcome::Green,
                libtest::Outcome::Ignored(_) => Outcome::Ignored,
                libtest::Outcome::Failed(printed) => failed(name, message(printed), chapter),
            };
            verdict.checks.entry(About::of(name)).or_default().push(Check { name: name.clone(), outcome });
        }
        verdict
    }

    /// Replaces the checks that ran again, and adds those that ran for the first time.
    pub fn update(&mut self, newer: Verdict) {
        for (about, checks) in newer.checks {
            let mine = self.checks.entry(about).or_default();
            mine.retain(|old| checks.iter().all(|new| new.name != old.name));
            mine.extend(checks);
            mine.sort_by(|a, b| a.name.cmp(&b.name));
        }
    }

    pub fn tally(&self, about: About) -> Tally {
        let mut tally = Tally::default();
        for check in self.checks.get(&about).into_iter().flatten() {
            match &check.outcome {
                Outcome::Green => tally.green += 1,
                Outcome::Red(_) => tally.red += 1,
                Outcome::Waits(wait) => {
                    tally.waits += 1;
                    tally.waits_for = tally.waits_for.max(Some(*wait));
                }
                Outcome::Ignored => continue,
            }
            tally.of += 1;
        }
        tally
    }

    /// All checks except those about which code was compiled.
    pub fn total(&self) -> Tally {
        let all = self.checks.keys().filter(|about| **about != About::Code).map(|about| self.tally(*about));
        all.fold(Tally::default(), |sum, next| Tally {
            green: sum.green + next.green,
            red: sum.red + next.red,
            of: sum.of + next.of,
            waits: sum.waits + next.waits,
            waits_for: sum.waits_for.max(next.waits_for),
        })
    }

    /// The lowest task with a red check comes first.
    pub fn next(&self) -> Next {
        let red = self.checks.iter().find(|(_, checks)| checks.iter().any(Check::is_red));
        match red {
            Some((About::Code, _)) => Next::Code,
            Some((About::Task(task), _)) => Next::Task(*task),
            Some((About::Whole, _)) => Next::Whole,
            None => match self.checks.keys().filter_map(|about| self.tally(*about).waits_for).max() {
                Some(wait) => Next::Waits(wait),
                None => Next::Nothing,
            },
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &Check> {
        self.checks.values().flatten()
    }
}

fn failed(name: &str, message: String, chapter: usize) -> Outcome {
    match (waits_for(&message), About::of(name)) {
        (Some(wait), About::Task(task)) if wait.chapter == chapter && wait.task <= task => Outcome::Red(message),
        (Some(_), About::Code) | (None, _) => Outcome::Red(message),
        (Some(wait), _) => Outcome::Waits(wait),
    }
}

/// The task whose `todo!` a failure reached.
fn waits_for(message: &str) -> Option<Wait> {
    let (_, rest) = message.split_once("not yet implemented: ch")?;
    let (chapter, rest) = rest.split_once(" task ")?;
    let task = rest.split(':').next()?;
    Some(Wait { chapter: chapter.parse().ok()?, task: task.parse().ok()? })
}

/// The message of a failed check, without what libtest, insta and the panic machinery print around it.
fn message(printed: &str) -> String {
    let mut kept: Vec<String> = Vec::new();
    // The first place in a chapter where it panicked, and the line with the reason.
    let mut place = None;
    let mut in_backtrace = false;
    for line in printed.lines() {
        if let Some(at) = panicked_at(line) {
            place = place.or(at.map(|at| (at, kept.len())));
            in_backtrace = false;
            continue;
        }
        in_backtrace |= line == "stack backtrace:";
        in_backtrace &= !line.starts_with("note: ");
        let is_noise = in_backtrace
            || line.starts_with("note: run with `RUST_BACKTRACE=")
            || line.starts_with("note: Some details are omitted, run with `RUST_BACKTRACE=")
            || is_of_insta(line);
        if !is_noise {
            kept.push(line.to_string());
        }
    }
    let is_located = kept.iter().any(|line| line.contains("panicked ("));
    if let Some((place, why)) = place.filter(|(place, _)| !is_located && place.starts_with("exercises/")) {
        kept.resize(kept.len().max(why + 1), String::new());
        kept[why] = format!("your code panicked ({place}): {}", kept[why]).trim_end_matches([' ', ':']).to_string();
    }
    let text = kept.join("\n");
    let mut lines: Vec<&str> = Vec::new();
    for line in text.trim_matches('\n').lines() {
        // The panic repeats what the check has just printed.
        let is_repeated = |before: &&str| before.ends_with(line) && before.contains("panicked (");
        if line.trim().len() > 3 && lines.iter().any(is_repeated) {
            continue;
        }
        if !line.trim().is_empty() || lines.last().is_some_and(|before| !before.trim().is_empty()) {
            lines.push(line);
        }
    }
    lines.join("\n").trim_end().to_string()
}

/// `thread 'checks::task_1' (123) panicked at src/../exercises/ch02_flat.rs:91:9:` → the place, if it is in a chapter
fn panicked_at(line: &str) -> Option<Option<&str>> {
    let (_, at) = line.strip_prefix("thread '")?.split_once(" panicked at ")?;
    let at = at.trim_end_matches(':');
    let chapter = at.find("exercises/").or(at.find("solutions/")).map(|start| &at[start..]);
    // Without the column.
    Some(chapter.map(|at| at.rsplit_once(':').map_or(at, |(at, _)| at)))
}

/// Whether insta printed this line around a difference. The lines of the difference stay.
fn is_of_insta(line: &str) -> bool {
    let is_rule = !line.is_empty() && line.chars().all(|c| c == '─' || c == '━');
    let heading = line.trim_matches(['━', ' ']);
    is_rule
        || line.starts_with('━') && heading == "Snapshot Summary"
        || ["Snapshot file: ", "Snapshot: ", "Source: ", "Stopped on the first failure.", "snapshot assertion for '"]
            .iter()
            .any(|start| line.starts_with(start))
        || ["-old snapshot", "+new results"].contains(&line)
}

#[cfg(test)]
pub mod tests;
