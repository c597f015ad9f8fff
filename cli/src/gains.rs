//! `gains`: what a chapter gains, counted at once on the code that is compiled.

mod chapters;
mod watched;

use anyhow::{Result, bail};
use clap::Args;
use page_by_page::chapters::{Chapter, Source, all, chapter};
use serde::Serialize;

use crate::output::{print, print_pretty_json, thousands};
use crate::{options, require};
use chapters::{Gain, Line};
use watched::watched;

/// Show what a chapter gains: its number without it and with it, counted on your code
///
/// Each chapter ends with a number: rows that are not computed any more, slots that are not wasted. This counts it, once
/// without the chapter's code and once with it. Both run here and now: on your code where you have started, on the reference
/// elsewhere, if the program was built with --features solution. What is counted is the same on every machine; no time is
/// measured.
///
/// Without a number all chapters are shown whose code is written.
#[derive(Args)]
#[command(after_help = "\
Example:
  cargo run --features solution -- gains 2
  cargo run --features solution -- gains
  cargo run --features solution -- gains 6 --json

What the JSON object holds:
  chapters          one object for each chapter that was measured:
    number, title   as in the book
    name            its file: exercises/NAME.rs
    before, after   without the chapter, and with it:
      way           what that is, in words
      code          the chapters whose code ran: number and source (yours or reference)
    lines           what was counted:
      what          in words
      before        the number without the chapter; null if there is none to compare with
      after         the number with it
    note            what else there is to say; null if nothing
  A number has value, is (count, share: 0 to 1, or ratio) and shown, as it is printed.")]
pub struct GainsCommand {
    /// The chapter, 1 to 16 [default: all whose code is written]
    #[arg(value_name = "CHAPTER")]
    chapter: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    chapters: Vec<ChapterReport>,
}

#[derive(Serialize)]
struct ChapterReport {
    number: usize,
    title: &'static str,
    name: &'static str,
    before: Side,
    after: Side,
    lines: Vec<Line>,
    note: Option<&'static str>,
}

/// One of the two ways that are compared.
#[derive(Serialize)]
struct Side {
    way: &'static str,
    code: Vec<Code>,
}

#[derive(Serialize)]
struct Code {
    chapter: usize,
    source: &'static str,
}

impl GainsCommand {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let gains: Vec<Gain> = match self.chapter {
            Some(number) => vec![one(number)?],
            None => all().iter().map(|chapter| chapters::of(chapter.number)).filter(is_written).collect(),
        };
        if gains.is_empty() {
            bail!(
                "no chapter is written from its beginning to its end: write exercises/{}.rs, or add --features solution",
                chapter(1).name
            );
        }
        let mut reports = Vec::new();
        for gain in gains {
            let report = ChapterReport::of(gain)?;
            if !self.json {
                print(&format!("{}{}", if reports.is_empty() { "" } else { "\n" }, report.describe()))?;
            }
            reports.push(report);
        }
        if self.json { print_pretty_json(&Report { chapters: reports }) } else { Ok(()) }
    }
}

/// The gain of a chapter; refuses one that the book does not have, or whose code is not written.
fn one(number: usize) -> Result<Gain> {
    let last = all().len();
    if !(1..=last).contains(&number) {
        bail!("there is no chapter {}; the book has 1 to {last}", thousands(number));
    }
    let gain = chapters::of(number);
    for Chapter { number, title, name, source, .. } in needed(&gain) {
        require::chapters(&[*number])?;
        if let (Source::Yours, Some(task)) = (source, chapter(*number).tasks_left().first()) {
            bail!("chapter {number} ({title}) is not written yet: {task} is left in exercises/{name}.rs");
        }
    }
    Ok(gain)
}

/// The chapters whose code runs, on either side, in order.
fn needed(gain: &Gain) -> impl Iterator<Item = &'static Chapter> {
    all().iter().filter(|chapter| [gain.before.1, gain.after.1].concat().contains(&chapter.number))
}

/// True if nothing is left to write in any chapter that it needs.
fn is_written(gain: &Gain) -> bool {
    needed(gain).all(options::is_written)
}

impl ChapterReport {
    /// Measures.
    fn of(gain: Gain) -> Result<Self> {
        let Chapter { number, title, name, .. } = *chapter(gain.number);
        let yours: Vec<&Chapter> = needed(&gain).filter(|chapter| chapter.source == Source::Yours).collect();
        let lines = watched(number, &yours, gain.measure)?;
        let side =
            |(way, chapters): (&'static str, &[usize])| Side { way, code: chapters.iter().map(Code::of).collect() };
        let (before, after) = (side(gain.before), side(gain.after));
        Ok(ChapterReport { number, title, name, before, after, lines, note: gain.note })
    }

    /// Lines for people.
    fn describe(&self) -> String {
        let mut text = format!("chapter {}, {}\n", self.number, self.title);
        for Line { what, before, after } in &self.lines {
            let before = before.as_ref().map_or(String::new(), |before| format!("{} → ", before.shown));
            text.push_str(&format!("  {what}: {before}{}\n", after.shown));
        }
        if let Some(note) = self.note {
            text.push_str(&format!("  {note}\n"));
        }
        for (name, Side { way, code }) in [("before", &self.before), ("after", &self.after)] {
            text.push_str(&format!("  {name:<6}  {way} ({})\n", whose(code)));
        }
        text
    }
}

impl Code {
    fn of(number: &usize) -> Self {
        Code { chapter: *number, source: require::whose(chapter(*number).source) }
    }
}

/// `yours: chapter 6; reference: chapters 4, 5`
fn whose(code: &[Code]) -> String {
    let of = |source: &str| {
        let chapters = code.iter().filter(|code| code.source == source);
        let chapters: Vec<String> = chapters.map(|code| code.chapter.to_string()).collect();
        let plural = if chapters.len() == 1 { "" } else { "s" };
        (!chapters.is_empty()).then(|| format!("{source}: chapter{plural} {}", chapters.join(", ")))
    };
    let whose: Vec<String> = ["yours", "reference"].into_iter().filter_map(of).collect();
    if whose.is_empty() { "no chapter's code".into() } else { whose.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chapter_has_a_measure_that_runs_its_code() {
        for chapter in all() {
            let gain = chapters::of(chapter.number);
            assert_eq!(gain.number, chapter.number);
            assert!(gain.after.1.contains(&chapter.number), "{}", chapter.title);
            let is_older = |side: &[usize]| side.is_sorted() && side.iter().all(|number| *number <= chapter.number);
            assert!(is_older(gain.before.1) && is_older(gain.after.1), "{}", chapter.title);
        }
    }

    #[test]
    fn it_says_whose_code_ran() {
        let code = |chapter, source| Code { chapter, source };
        let mixed = [code(4, "reference"), code(5, "yours"), code(6, "reference")];
        assert_eq!(whose(&mixed), "yours: chapter 5; reference: chapters 4, 6");
        assert_eq!(whose(&mixed[1..2]), "yours: chapter 5");
        assert_eq!(whose(&[]), "no chapter's code");
    }
}
