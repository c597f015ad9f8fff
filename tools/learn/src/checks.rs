//! What the checks of a chapter said: libtest's output, read and put into the order of the tasks.
//!
//! ```text
//! running 3 tests
//! test checks::task_1_adds ... FAILED
//! test checks::task_2_holds ... ok
//!
//! failures:
//!
//! ---- checks::task_1_adds stdout ----
//! sum of [1, 2]                                   the check's own words: these are shown
//!   expected: 3
//!   …
//! ```
//!
//! A check that ends in the `todo!` of a *later* task says nothing about its own: it waits, and is neither green nor red.

use std::collections::BTreeMap;

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Green,
    /// With its words.
    Red(String),
    /// For what is not written yet.
    Waits(Wait),
    Ignored,
}

/// What a check waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wait {
    pub chapter: usize,
    pub task: u32,
}

/// What a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum About {
    /// Whether what was compiled is what is on disk.
    Code,
    Task(u32),
    /// All tasks together: the transcript, the oracle, the story.
    Whole,
}

/// A check that has run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// As libtest names it: `checks::task_1_adds`.
    pub name: String,
    pub outcome: Outcome,
}

/// The checks of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// By what they are about, in the order of their names.
    pub checks: BTreeMap<About, Vec<Check>>,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InHand {
    /// What was compiled is not what is on disk.
    Code,
    Task(u32),
    /// All tasks are done, but not all is right.
    Whole,
    /// Nothing is red, but some checks wait.
    Waits(Wait),
    /// All is green.
    Nothing,
}

/// So many checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub green: usize,
    pub red: usize,
    pub of: usize,
    /// The latest task that one of them waits for.
    pub waits: usize,
    pub waits_for: Option<Wait>,
}

/// What a run printed.
#[derive(Clone, Debug, Default)]
pub struct Printed {
    /// As far as it came, what each check said; the words of red ones are missing if the run was cut off.
    pub verdict: Verdict,
    /// Checks that have begun, if the run says so.
    pub announced: usize,
    /// Whether the run came to its end.
    pub ended: bool,
}

impl About {
    pub fn of(name: &str) -> About {
        let mut parts = name.split("::");
        if parts.next() == Some("whose_code") {
            return About::Code;
        }
        let last = name.rsplit("::").next().unwrap_or(name);
        let task = last.strip_prefix("task_").and_then(|rest| rest.split('_').next()?.parse().ok());
        task.map_or(About::Whole, About::Task)
    }
}

impl Check {
    /// Its name without the module: `task_1_adds`.
    pub fn short(&self) -> &str {
        self.name.rsplit("::").next().unwrap_or(&self.name)
    }

    pub fn is_red(&self) -> bool {
        matches!(self.outcome, Outcome::Red(_))
    }

    /// Whether it is red because it came to a `todo!`, and said nothing else.
    pub fn is_unwritten(&self) -> bool {
        matches!(&self.outcome, Outcome::Red(words) if waits_for(words).is_some())
    }
}

impl Verdict {
    /// Takes over what a later run said: about a check of the same name it is what counts.
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

    /// All checks but those about which code was compiled.
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

    /// What to do next: the lowest task with a red check comes first.
    pub fn in_hand(&self) -> InHand {
        let red = self.checks.iter().find(|(_, checks)| checks.iter().any(Check::is_red));
        match red {
            Some((About::Code, _)) => InHand::Code,
            Some((About::Task(task), _)) => InHand::Task(*task),
            Some((About::Whole, _)) => InHand::Whole,
            None => match self.checks.keys().filter_map(|about| self.tally(*about).waits_for).max() {
                Some(wait) => InHand::Waits(wait),
                None => InHand::Nothing,
            },
        }
    }

    /// The red checks, what is to be done first before the rest.
    pub fn red(&self) -> impl Iterator<Item = &Check> {
        self.checks.values().flatten().filter(|check| check.is_red())
    }
}

/// Reads what a run of the checks of this chapter printed to standard output.
pub fn read(output: &str, chapter: usize) -> Printed {
    let lines: Vec<&str> = output.lines().map(|line| line.strip_suffix('\r').unwrap_or(line)).collect();
    let mut printed = Printed::default();
    let number = |line: &str| line.strip_prefix("running ")?.split(' ').next()?.parse().ok();
    // A program of checks that are not there runs none.
    let begin = lines.iter().position(|line| number(line).is_some());
    let Some(begin) = begin else { return printed };
    printed.announced = number(lines[begin]).unwrap_or(0);
    printed.ended = lines[begin..].iter().rev().take(8).any(|line| line.starts_with("test result: "));
    // The last list has the names of all that failed, and nothing else.
    let listed = match lines.iter().rposition(|line| *line == "failures:") {
        Some(at) if printed.ended => {
            lines[at + 1..].iter().map_while(|line| line.strip_prefix("    ")).map(str::trim).collect()
        }
        _ => Vec::new(),
    };
    // What the checks print is between the first `failures:` and that list.
    let end_of_results =
        lines[begin..].iter().position(|line| *line == "failures:").map_or(lines.len(), |at| begin + at);
    let mut outcomes: BTreeMap<&str, Outcome> = BTreeMap::new();
    for line in &lines[begin..end_of_results] {
        let Some((name, result)) = result(line) else { continue };
        let outcome = match result {
            "ok" => Outcome::Green,
            "FAILED" => Outcome::Red(String::new()),
            _ if result.starts_with("ignored") => Outcome::Ignored,
            _ => continue,
        };
        // A check that prints such a line cannot make itself green.
        let before = outcomes.get(name);
        if !matches!(before, Some(Outcome::Red(_))) {
            outcomes.insert(name, outcome);
        }
    }
    for name in &listed {
        outcomes.insert(name, Outcome::Red(String::new()));
    }
    let headers: Vec<(usize, &str)> = lines
        .iter()
        .enumerate()
        .skip(end_of_results)
        .filter_map(|(at, line)| Some((at, line.strip_prefix("---- ")?.strip_suffix(" stdout ----")?)))
        .filter(|(_, name)| listed.contains(name))
        .collect();
    let last = lines.iter().rposition(|line| *line == "failures:").unwrap_or(lines.len());
    let mut told: Vec<&str> = Vec::new();
    for (index, (at, name)) in headers.iter().enumerate() {
        // A check may print what looks like the head of another one's words: the first of a name counts.
        if told.contains(name) {
            continue;
        }
        told.push(name);
        let end = headers[index + 1..].iter().find(|(_, next)| !told.contains(next)).map_or(last, |next| next.0);
        let words = words(&lines[(at + 1).min(end)..end]);
        outcomes.insert(name, outcome_of(name, words, chapter));
    }
    for (name, outcome) in outcomes {
        let check = Check { name: name.to_string(), outcome };
        printed.verdict.checks.entry(About::of(name)).or_default().push(check);
    }
    printed
}

/// The check that came to its end when this line was printed, without its module.
pub fn has_ended(line: &str) -> Option<String> {
    let (name, result) = result(line)?;
    let is_end = result == "ok" || result == "FAILED" || result.starts_with("ignored");
    is_end.then(|| name.rsplit("::").next().unwrap_or(name).to_string())
}

/// `test checks::task_1_adds ... ok` → the name and `ok`
fn result(line: &str) -> Option<(&str, &str)> {
    // What a check prints past libtest, without an end of the line, stands before it.
    let from = line.find("test ")?;
    let (name, result) = line[from + "test ".len()..].split_once(" ... ")?;
    let name = name.strip_suffix(" - should panic").unwrap_or(name);
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == ':');
    is_name.then_some((name, result))
}

fn outcome_of(name: &str, words: String, chapter: usize) -> Outcome {
    match (waits_for(&words), About::of(name)) {
        (Some(wait), About::Task(task)) if wait.chapter == chapter && wait.task <= task => Outcome::Red(words),
        (Some(_), About::Code) | (None, _) => Outcome::Red(words),
        (Some(wait), _) => Outcome::Waits(wait),
    }
}

/// The task whose `todo!` a failure came to.
fn waits_for(words: &str) -> Option<Wait> {
    let (_, rest) = words.split_once("not yet implemented: ch")?;
    let (chapter, rest) = rest.split_once(" task ")?;
    let task = rest.split(':').next()?;
    Some(Wait { chapter: chapter.parse().ok()?, task: task.parse().ok()? })
}

/// The words of a failed check, without what libtest, insta and the panic machinery say around them.
fn words(lines: &[&str]) -> String {
    let mut kept: Vec<String> = Vec::new();
    // The first place in a chapter where it panicked, and which line says why.
    let mut place = None;
    let mut in_backtrace = false;
    for line in lines {
        if let Some(at) = panicked_at(line) {
            place = place.or(at.map(|at| (at, kept.len())));
            in_backtrace = false;
            continue;
        }
        in_backtrace |= *line == "stack backtrace:";
        in_backtrace &= !line.starts_with("note: ");
        let is_noise = in_backtrace
            || line.starts_with("note: run with `RUST_BACKTRACE=")
            || line.starts_with("note: Some details are omitted, run with `RUST_BACKTRACE=")
            || is_of_insta(line);
        if !is_noise {
            kept.push(line.to_string());
        }
    }
    let is_said = kept.iter().any(|line| line.contains("panicked ("));
    if let Some((place, why)) = place.filter(|(place, _)| !is_said && place.starts_with("exercises/")) {
        kept.resize(kept.len().max(why + 1), String::new());
        kept[why] = format!("your code panicked ({place}): {}", kept[why]).trim_end_matches([' ', ':']).to_string();
    }
    let text = kept.join("\n");
    let mut paragraphs: Vec<String> = Vec::new();
    for line in text.trim_matches('\n').lines() {
        // The panic repeats what the check has just said of it.
        let is_said = |before: &String| before.ends_with(line) && before.contains("panicked (");
        if line.trim().len() > 3 && paragraphs.iter().any(is_said) {
            continue;
        }
        let is_gap = line.trim().is_empty();
        if !is_gap || paragraphs.last().is_some_and(|before| !before.trim().is_empty()) {
            paragraphs.push(line.to_string());
        }
    }
    paragraphs.join("\n").trim_end().to_string()
}

/// `thread 'checks::task_1' (123) panicked at src/../exercises/ch02_flat.rs:91:9:` → the place, if it is in a chapter
fn panicked_at(line: &str) -> Option<Option<&str>> {
    let rest = line.strip_prefix("thread '")?;
    let (_, at) = rest.split_once(" panicked at ")?;
    let at = at.trim_end_matches(':');
    let chapter = at.find("exercises/").or(at.find("solutions/")).map(|start| &at[start..]);
    // Without the column.
    Some(chapter.map(|at| at.rsplit_once(':').map_or(at, |(at, _)| at)))
}

/// What insta says around a difference. Whatever says what the difference is stays.
fn is_of_insta(line: &str) -> bool {
    let is_rule = !line.is_empty() && line.chars().all(|c| c == '─' || c == '━');
    let heading = line.trim_matches(['━', ' ']);
    is_rule
        || line.starts_with("━") && heading == "Snapshot Summary"
        || ["Snapshot file: ", "Snapshot: ", "Source: ", "Stopped on the first failure.", "snapshot assertion for '"]
            .iter()
            .any(|start| line.starts_with(start))
        || ["-old snapshot", "+new results"].contains(&line)
}

#[cfg(test)]
mod tests;
