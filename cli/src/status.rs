//! `status`: how far the reader has come.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use page_by_page::chapters::{Chapter, Source, all};
use page_by_page_course::record::{LastRun, Record, Standing};
use page_by_page_course::stub;
use serde::Serialize;

use crate::output::{Object, Table, count, pretty_json, print, say};
use crate::require;

/// Show the chapters: whose code runs, what the last run found, what is left to write
///
/// A chapter is yours as soon as its file in exercises/ has changed. Until then the reference from solutions/ stands
/// in, if the program was built with --features solution.
///
/// `cargo learn` keeps a record of its runs, in .page-by-page/record.json; `cargo test` keeps none. Under each chapter that you
/// have started this says what the last recorded run found, and whether the file has changed since.
#[derive(Args)]
#[command(after_help = "\
Example:
  cargo run -- status
  cargo run -- status --json

What the JSON object holds:
  chapters            one object for each chapter, in order:
    number, title     as in the book
    name              its file: exercises/NAME.rs, tests/NAME.rs, book/src/NAME.md
    source            whose code runs: yours, reference or unstarted
    last_run          none, changed (the file differs since) or current; always none for a file that is not yours
    ran               when that was, in seconds since 1970; null if never
    tasks             one object for each task that is left or was checked:
      number          of the task
      left            what is left to write, one text for each todo!()
      green, of       its checks in the last run; null if there was none
    whole             green and of, of the checks of the chapter as a whole; null if there was no run
  at                  the chapter that `cargo learn` is at, by its name; null if none
  next                what to do next: chapter, task (null if none is left) and text
  note                why the record cannot be used; null if it can")]
pub struct Status {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Next {
    chapter: Option<usize>,
    task: Option<u32>,
    text: String,
}

/// A chapter, and what the record says of its file as it was compiled.
struct Progress<'a> {
    chapter: &'a Chapter,
    /// What is left to write, such as `task 2: gather …`.
    left: Vec<&'static str>,
    /// The last recorded run, and whether the file is still as it was then. `None` for a chapter that was not started.
    ran: Option<(&'a LastRun, bool)>,
}

impl Status {
    pub fn run(self) -> Result<()> {
        let (record, note) = Record::read(&repository());
        let chapters: Vec<Progress<'_>> = all().iter().map(|chapter| Progress::of(chapter, &record)).collect();
        let next = next_step(&chapters);
        if self.json {
            let chapters: Vec<Object> = chapters.iter().map(Progress::report).collect();
            let report = Object::default().with("chapters", chapters).with("at", &record.at);
            return print(&pretty_json(&report.with("next", next).with("note", note))?);
        }
        let mut table = Table::new(3, &["chapter", "code", "how far"]);
        for progress in &chapters {
            let title = format!("{:2}  {}", progress.chapter.number, progress.chapter.title);
            let code = require::whose(progress.chapter.source);
            let lines = progress.how_far();
            table.line([title.as_str(), code, lines.first().map_or("", String::as_str)]);
            lines.iter().skip(1).for_each(|line| table.line(["", "", line.as_str()]));
        }
        if let Some(note) = note {
            say(&format!("note: {note}"));
        }
        print(&format!("{}\n{}\n", table.render(), next.text))
    }
}

/// The repository whose record counts: the one around the current folder, or the one that this program was built from.
fn repository() -> PathBuf {
    let built_from = || Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).to_path_buf();
    page_by_page_course::chapters::root().unwrap_or_else(|_| built_from())
}

impl<'a> Progress<'a> {
    fn of(chapter: &'a Chapter, record: &'a Record) -> Self {
        let standing = match chapter.source {
            Source::Yours => record.standing(chapter.name, &stub::fingerprint(chapter.exercise)),
            Source::Reference | Source::Unstarted => Standing::NoRun,
        };
        let ran = record.chapters.get(chapter.name).filter(|_| standing != Standing::NoRun);
        Progress { chapter, left: chapter.tasks_left(), ran: ran.map(|ran| (ran, standing == Standing::Current)) }
    }

    fn is_started(&self) -> bool {
        self.chapter.source == Source::Yours
    }

    /// The last run and the tasks left, one by one, of a chapter that was started; else how many there are.
    fn how_far(&self) -> Vec<String> {
        if !self.is_started() {
            let tasks: BTreeSet<u32> = self.left.iter().filter_map(|task| number(task)).collect();
            return vec![format!("{} to write", count(tasks.len(), "task"))];
        }
        let last_run = match self.ran {
            Some((ran, true)) => in_words(ran),
            Some((ran, false)) => format!("{}; changed since that run", in_words(ran)),
            None => format!("no recorded run; `cargo learn --once {}` makes one", self.chapter.number),
        };
        let left = if self.left.is_empty() { &["nothing left to write"] } else { &self.left[..] };
        [last_run].into_iter().chain(left.iter().map(|left| left.to_string())).collect()
    }

    fn report(&self) -> Object {
        let ran = self.ran.map(|(ran, _)| ran);
        let checked = ran.iter().flat_map(|ran| ran.tasks.keys().copied());
        let numbers: BTreeSet<u32> = self.left.iter().filter_map(|task| number(task)).chain(checked).collect();
        let task = |task: u32| {
            let tally = ran.and_then(|ran| ran.tasks.get(&task));
            let of_task = self.left.iter().filter(|text| number(text) == Some(task));
            let left: Vec<&str> = of_task.map(|text| text.split_once(": ").map_or(*text, |(_, what)| what)).collect();
            let object = Object::default().with("number", task).with("left", left);
            object.with("green", tally.map(|tally| tally.green)).with("of", tally.map(|tally| tally.of))
        };
        let source = match self.chapter.source {
            Source::Yours => "yours",
            Source::Reference => "reference",
            Source::Unstarted => "unstarted",
        };
        let last_run = match self.ran {
            None => "none",
            Some((_, false)) => "changed",
            Some((_, true)) => "current",
        };
        Object::default()
            .with("number", self.chapter.number)
            .with("title", self.chapter.title)
            .with("name", self.chapter.name)
            .with("source", source)
            .with("last_run", last_run)
            .with("ran", ran.map(|ran| ran.ran))
            .with("tasks", numbers.into_iter().map(task).collect::<Vec<_>>())
            .with("whole", ran.map(|ran| ran.whole))
    }
}

fn in_words(ran: &LastRun) -> String {
    let (tasks, checks) = (ran.tasks_green(), ran.checks());
    if checks.all_green() {
        return format!("all {} green", count(checks.of, "check"));
    }
    format!("{} of {} green, {} of {}", tasks.green, count(tasks.of, "task"), checks.green, count(checks.of, "check"))
}

/// `task 2: gather …` → 2
fn number(task: &str) -> Option<u32> {
    task.strip_prefix("task ")?.split(':').next()?.parse().ok()
}

fn next_step(chapters: &[Progress<'_>]) -> Next {
    let started = || chapters.iter().filter(|progress| progress.is_started());
    let next = |progress: &Progress<'_>, task, text| Next { chapter: Some(progress.chapter.number), task, text };
    if let Some(progress) = started().find(|progress| !progress.left.is_empty()) {
        let task = progress.left[0];
        return next(progress, number(task), format!("Next: {task} in exercises/{}.rs", progress.chapter.name));
    }
    // Nothing is left to write, but the recorded run wasn't all green, or is about an earlier text. The command must be one
    // that records: `cargo test` would leave this answer as it is.
    for progress in started() {
        let why = match progress.ran {
            Some((_, false)) => "the file has changed since the recorded run",
            Some((ran, true)) if !ran.checks().all_green() => "not all of its checks are green",
            _ => continue,
        };
        return next(progress, None, format!("Next: cargo learn --once {}; {why}", progress.chapter.number));
    }
    match chapters.iter().find(|progress| !progress.is_started()) {
        Some(progress) => {
            let Chapter { number, title, name, .. } = progress.chapter;
            let text = format!("Next: read chapter {number}, {title} (cargo book), and edit exercises/{name}.rs");
            next(progress, None, text)
        }
        None => {
            let text = "Next: cargo test --features solution, to see whether all of it is right".into();
            Next { chapter: None, task: None, text }
        }
    }
}

#[cfg(test)]
mod tests {
    use page_by_page_course::record::Tally;

    use super::*;

    const STUB: &str = "todo!(\"ch02 task 1: grow\") todo!(\"ch02 task 3: write\") todo!(\"ch02 task 3: again\")";

    fn chapter(source: Source, exercise: &'static str) -> Chapter {
        Chapter { number: 2, title: "The flat cache", name: "ch02_flat", source, exercise }
    }

    fn record(exercise: &str, tasks: &[(u32, usize, usize)], whole: (usize, usize)) -> Record {
        let mut record = Record::default();
        let ran = record.chapter_mut("ch02_flat");
        (ran.fingerprint, ran.ran) = (stub::fingerprint(exercise), 1_795_335_000);
        ran.tasks = tasks.iter().map(|(task, green, of)| (*task, Tally { green: *green, of: *of })).collect();
        ran.whole = Tally { green: whole.0, of: whole.1 };
        record
    }

    #[test]
    fn a_started_chapter_says_what_the_last_run_found() {
        let red = record(STUB, &[(1, 9, 9), (2, 1, 3), (3, 0, 1)], (0, 3));
        let left = ["task 1: grow", "task 3: write", "task 3: again"];
        let lines = |chapter: Chapter, record: &Record| Progress::of(&chapter, record).how_far();
        let yours = || chapter(Source::Yours, STUB);
        assert_eq!(lines(yours(), &red), [&["1 of 3 tasks green, 10 of 16 checks"], &left[..]].concat());
        let older = record("other", &[(1, 1, 1)], (0, 1));
        let says = "1 of 1 task green, 1 of 2 checks; changed since that run";
        assert_eq!(lines(yours(), &older), [&[says], &left[..]].concat());
        assert_eq!(lines(yours(), &Record::default())[0], "no recorded run; `cargo learn --once 2` makes one");
        let done = record("fn f() {}", &[(1, 9, 9)], (3, 3));
        let solved = chapter(Source::Yours, "fn f() {}");
        assert_eq!(lines(solved, &done), ["all 12 checks green", "nothing left to write"]);
        // A record of a chapter that was reset says nothing.
        assert_eq!(lines(chapter(Source::Reference, STUB), &red), ["2 tasks to write"]);
        assert_eq!(lines(chapter(Source::Unstarted, STUB), &red), ["2 tasks to write"]);
    }

    #[test]
    fn the_object_has_the_tasks_that_are_left_and_those_that_were_checked() {
        let red = record(STUB, &[(2, 1, 3), (3, 0, 1)], (0, 3));
        let yours = chapter(Source::Yours, STUB);
        let expected = serde_json::json!([
            { "number": 1, "left": ["grow"], "green": null, "of": null },
            { "number": 2, "left": [], "green": 1, "of": 3 },
            { "number": 3, "left": ["write", "again"], "green": 0, "of": 1 },
        ]);
        assert_eq!(serde_json::to_value(Progress::of(&yours, &red).report()).unwrap()["tasks"], expected);
    }

    /// `cargo test` records nothing. The command must be one that does, or this would ask for it again and again.
    #[test]
    fn a_changed_chapter_is_sent_to_the_command_that_records() {
        let chapters = [chapter(Source::Yours, "fn f() {}"), Chapter { number: 3, ..chapter(Source::Reference, "") }];
        let next = |record: &Record| next_step(&chapters.each_ref().map(|chapter| Progress::of(chapter, record))).text;
        let changed = next(&record("other", &[(1, 1, 1)], (1, 1)));
        assert_eq!(changed, "Next: cargo learn --once 2; the file has changed since the recorded run");
        let red = next(&record("fn f() {}", &[(1, 0, 1)], (1, 1)));
        assert_eq!(red, "Next: cargo learn --once 2; not all of its checks are green");
        for goes_on in [record("fn f() {}", &[(1, 1, 1)], (1, 1)), Record::default()] {
            assert!(next(&goes_on).starts_with("Next: read chapter 3"), "{}", next(&goes_on));
        }
    }
}
