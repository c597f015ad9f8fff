//! `bought`: what a chapter bought, counted there and then on the code that is compiled.

mod measures;
mod watched;

use anyhow::{Result, bail};
use clap::Args;
use page_by_page::chapters::{Chapter, Source, all, chapter};
use serde::Serialize;

use crate::output::{print, thousands};
use measures::{Bought, Number};
use watched::watched;

/// Show what a chapter bought: its number without it and with it, counted on your code
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
  cargo run --features solution -- bought 2
  cargo run --features solution -- bought
  cargo run --features solution -- bought 6 --json

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
pub struct BoughtCommand {
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
    lines: Vec<LineReport>,
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

#[derive(Serialize)]
struct LineReport {
    what: &'static str,
    before: Option<NumberReport>,
    after: NumberReport,
}

#[derive(Serialize)]
struct NumberReport {
    value: f64,
    is: &'static str,
    shown: String,
}

impl BoughtCommand {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let chapters: Vec<Bought> = match self.chapter {
            Some(number) => vec![one(number)?],
            None => all().iter().map(|chapter| measures::of(chapter.number)).filter(is_written).collect(),
        };
        if chapters.is_empty() {
            bail!(
                "no chapter is written from its beginning to its end: write exercises/{}.rs, or add --features solution",
                chapter(1).name
            );
        }
        let mut reports = Vec::new();
        let mut shown = Vec::new();
        for bought in chapters {
            let report = ChapterReport::of(bought)?;
            match self.json {
                true => reports.push(report),
                false => {
                    print(&format!("{}{}", if shown.is_empty() { "" } else { "\n" }, report.shown()))?;
                    shown.push(report.number);
                }
            }
        }
        match self.json {
            true => print(&(serde_json::to_string_pretty(&Report { chapters: reports })? + "\n")),
            false => Ok(()),
        }
    }
}

/// The measures of a chapter; refuses one that the book does not have, or whose code is not written.
fn one(number: usize) -> Result<Bought> {
    let last = all().len();
    if !(1..=last).contains(&number) {
        bail!("there is no chapter {}; the book has 1 to {last}", thousands(number));
    }
    let bought = measures::of(number);
    for chapter in needed(&bought) {
        let Chapter { number, title, name, .. } = chapter;
        match (chapter.source, chapter.tasks_left().first()) {
            (Source::Unstarted, _) => {
                bail!("chapter {number} ({title}) is not started: edit exercises/{name}.rs, or add --features solution")
            }
            (Source::Yours, Some(task)) => {
                bail!("chapter {number} ({title}) is not written yet: {task} is left in exercises/{name}.rs")
            }
            (Source::Yours, None) | (Source::Reference, _) => {}
        }
    }
    Ok(bought)
}

/// The chapters whose code runs, on either side, in order.
fn needed(bought: &Bought) -> impl Iterator<Item = &'static Chapter> {
    all().iter().filter(|chapter| [bought.before.1, bought.after.1].concat().contains(&chapter.number))
}

/// True if nothing is left to write in any chapter that it needs.
fn is_written(bought: &Bought) -> bool {
    needed(bought).all(|chapter| match chapter.source {
        Source::Yours => chapter.tasks_left().is_empty(),
        Source::Reference => true,
        Source::Unstarted => false,
    })
}

impl ChapterReport {
    /// Measures.
    fn of(bought: Bought) -> Result<Self> {
        let chapter = chapter(bought.number);
        let yours: Vec<&Chapter> = needed(&bought).filter(|chapter| chapter.source == Source::Yours).collect();
        let lines = watched(chapter, &yours, bought.measure)?;
        let lines = lines.into_iter().map(|line| LineReport {
            what: line.what,
            before: line.before.map(NumberReport::of),
            after: NumberReport::of(line.after),
        });
        let side =
            |(way, chapters): (&'static str, &[usize])| Side { way, code: chapters.iter().map(Code::of).collect() };
        Ok(ChapterReport {
            number: chapter.number,
            title: chapter.title,
            name: chapter.name,
            before: side(bought.before),
            after: side(bought.after),
            lines: lines.collect(),
            note: bought.note,
        })
    }

    /// Lines for people.
    fn shown(&self) -> String {
        let mut text = format!("chapter {}, {}\n", self.number, self.title);
        for LineReport { what, before, after } in &self.lines {
            let before = before.as_ref().map_or(String::new(), |before| format!("{} → ", before.shown));
            text.push_str(&format!("  {what}: {before}{}\n", after.shown));
        }
        if let Some(note) = self.note {
            text.push_str(&format!("  {note}\n"));
        }
        for (name, Side { way, code }) in [("before", &self.before), ("after", &self.after)] {
            let code = whose(code);
            text.push_str(&format!("  {name:<6}  {way} ({code})\n"));
        }
        text
    }
}

impl Code {
    fn of(number: &usize) -> Self {
        let source = match chapter(*number).source {
            Source::Yours => "yours",
            Source::Reference => "reference",
            Source::Unstarted => "unstarted",
        };
        Code { chapter: *number, source }
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

impl NumberReport {
    fn of(number: Number) -> Self {
        let (value, is) = match number {
            Number::Count(count) => (count as f64, "count"),
            Number::Share(share) => (share, "share"),
            Number::Ratio(ratio) => (ratio, "ratio"),
        };
        NumberReport { value, is, shown: number.shown() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chapter_has_a_measure_that_runs_its_code() {
        for chapter in all() {
            let bought = measures::of(chapter.number);
            assert_eq!(bought.number, chapter.number);
            assert!(bought.after.1.contains(&chapter.number), "{}", chapter.title);
            let is_older = |side: &[usize]| side.is_sorted() && side.iter().all(|number| *number <= chapter.number);
            assert!(is_older(bought.before.1) && is_older(bought.after.1), "{}", chapter.title);
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

    #[test]
    fn every_key_is_documented() {
        use clap::Args as _;
        let help = BoughtCommand::augment_args(clap::Command::new("bought")).render_long_help().to_string();
        let documented = help.split_once("What the JSON object holds:").expect("a list of keys").1;
        let number = || NumberReport::of(Number::Count(1));
        let side = || Side { way: "", code: vec![Code { chapter: 1, source: "yours" }] };
        let lines = vec![LineReport { what: "", before: Some(number()), after: number() }];
        let chapter =
            ChapterReport { number: 1, title: "", name: "", before: side(), after: side(), lines, note: None };
        let object = serde_json::to_value(Report { chapters: vec![chapter] }).unwrap();
        let mut keys = std::collections::BTreeSet::new();
        collect(&object, &mut keys);
        assert!(keys.len() > 12, "{keys:?}");
        for key in keys {
            let is_named = documented.split(|c: char| !c.is_alphanumeric()).any(|word| word == key);
            assert!(is_named, "{key} is not in the help:{documented}");
        }
    }

    fn collect(value: &serde_json::Value, keys: &mut std::collections::BTreeSet<String>) {
        match value {
            serde_json::Value::Object(object) => {
                for (key, value) in object {
                    keys.insert(key.clone());
                    collect(value, keys);
                }
            }
            serde_json::Value::Array(values) => values.iter().for_each(|value| collect(value, keys)),
            _ => {}
        }
    }
}
