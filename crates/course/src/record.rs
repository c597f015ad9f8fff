//! The reader's own record: what the last run of each chapter's checks said, and how many hints were shown.
//!
//! `cargo learn` writes it after each run, `cargo learn list` shows it. It is `.page-by-page/record.json` at the root
//! of the repository, which git ignores:
//!
//! ```json
//! {
//!   "version": 1,
//!   "at": "ch02_flat",
//!   "chapters": {
//!     "ch02_flat": {
//!       "fingerprint": "85944171f73967e8",
//!       "ran": 1795335000,
//!       "tasks": { "1": { "green": 9, "of": 9 }, "2": { "green": 2, "of": 3 } },
//!       "whole": { "green": 0, "of": 3 },
//!       "hints": { "1": 2 }
//!     }
//!   }
//! }
//! ```
//!
//! A run of `cargo test` adds to it without this package: a grader whose checks are all green keeps the reader's file
//! as it was compiled, in a folder beside the record.
//!
//! Nothing depends on it: one that is damaged or newer is ignored with a note, and the next run replaces it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::source;

/// Where the record lies, from the root of the repository.
pub const FILE: &str = ".page-by-page/record.json";

/// Where a grader keeps the chapter's file after a run of all its checks in which all were green, from the root of the
/// repository. `crates/grading` writes it there.
pub fn green_copy(name: &str) -> String {
    format!(".page-by-page/green/{name}.rs")
}

/// The version of the format, to be counted up when its meaning changes.
const VERSION: u64 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Record {
    version: u64,
    /// The chapter that `cargo learn` was last in, by the name of its file: `ch02_flat`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The last runs, by the name of the chapter's file.
    #[serde(default)]
    pub chapters: BTreeMap<String, LastRun>,
}

/// Whether `cargo test` found all checks of chapter `name` green on the text with this fingerprint, with no later run
/// of `cargo learn` on record.
pub fn is_green(root: &Path, name: &str, fingerprint: &str, ran: u64) -> bool {
    let file = root.join(green_copy(name));
    let kept = fs::metadata(&file).and_then(|file| file.modified()).ok();
    let kept = kept.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0, |time| time.as_secs());
    kept >= ran && fs::read_to_string(file).is_ok_and(|text| source::fingerprint(&text) == fingerprint)
}

/// The last run of a chapter's checks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct LastRun {
    /// The fingerprint of the exercise's text when its checks ran; empty if they never did.
    #[serde(default)]
    pub fingerprint: String,
    /// When they ran, in seconds since 1970; 0 if they never did.
    #[serde(default)]
    pub ran: u64,
    /// The checks named after a task, by its number.
    #[serde(default)]
    pub tasks: BTreeMap<u32, Tally>,
    /// The checks of the chapter as a whole: transcript, oracle, story.
    #[serde(default)]
    pub whole: Tally,
    /// Hints shown so far, by the number of the task.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hints: BTreeMap<u32, usize>,
}

/// Some checks, and how many of them were green.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Tally {
    pub green: usize,
    pub of: usize,
}

impl Default for Record {
    fn default() -> Self {
        Record { version: VERSION, at: None, chapters: BTreeMap::new() }
    }
}

impl Record {
    /// Reads the record of the repository at `root`. If it can't be used, the result is an empty record and a note that
    /// says why. A record that doesn't exist yet is empty, without a note.
    pub fn read(root: &Path) -> (Record, Option<String>) {
        let problem = match fs::read(root.join(FILE)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return (Record::default(), None),
            Err(error) => format!("cannot be read ({error})"),
            Ok(bytes) => match serde_json::from_slice::<Record>(&bytes) {
                Ok(record) if record.version == VERSION => return (record, None),
                Ok(Record { version, .. }) => format!("is of version {version}, and this is {VERSION}"),
                Err(error) => format!("is damaged ({error})"),
            },
        };
        let note = format!("{FILE} {problem}, so it is ignored; the next run of `cargo learn` replaces it");
        (Record::default(), Some(note))
    }

    /// Writes the record of the repository at `root`: whole, or not at all.
    fn write(&self, root: &Path) -> io::Result<()> {
        let file = root.join(FILE);
        fs::create_dir_all(file.with_file_name(""))?;
        let beside = file.with_file_name(format!("record.{}.new", std::process::id()));
        let written = File::create(&beside).and_then(|mut new| {
            serde_json::to_writer_pretty(&new, self)?;
            new.write_all(b"\n")?;
            new.sync_all()
        });
        let replaced = written.and_then(|()| fs::rename(&beside, &file));
        if replaced.is_err() {
            let _ = fs::remove_file(&beside);
        }
        replaced
    }

    /// Changes the record, on disk and here. It is read first, because a second `cargo learn` may have changed it.
    pub fn update(&mut self, root: &Path, change: impl FnOnce(&mut Record)) -> io::Result<()> {
        let (before, _) = Record::read(root);
        *self = before.clone();
        change(self);
        if *self == before { Ok(()) } else { self.write(root) }
    }

    pub fn chapter_mut(&mut self, name: &str) -> &mut LastRun {
        self.chapters.entry(name.into()).or_default()
    }

    pub fn hints_seen(&self, name: &str, task: u32) -> usize {
        self.chapters.get(name).and_then(|ran| ran.hints.get(&task)).copied().unwrap_or(0)
    }
}

impl LastRun {
    /// The tasks whose checks are all green, of those that have any.
    pub fn tasks_green(&self) -> Tally {
        let checked = || self.tasks.values().filter(|tally| tally.of > 0);
        Tally { green: checked().filter(|tally| tally.all_green()).count(), of: checked().count() }
    }

    /// All checks, including those of the chapter as a whole.
    pub fn checks(&self) -> Tally {
        let add = |sum: Tally, next: Tally| Tally { green: sum.green + next.green, of: sum.of + next.of };
        self.tasks.values().copied().fold(self.whole, add)
    }
}

impl Tally {
    /// Whether there are checks and all of them are green.
    pub fn all_green(&self) -> bool {
        self.of > 0 && self.green == self.of
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example at the head of this file.
    fn example() -> String {
        let docs = include_str!("record.rs").lines().skip_while(|line| *line != "//! ```json").skip(1);
        docs.take_while(|line| *line != "//! ```").map(|line| line.trim_start_matches("//!")).collect()
    }

    fn root_with(text: &[u8]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join(".page-by-page")).unwrap();
        fs::write(root.path().join(FILE), text).unwrap();
        root
    }

    #[test]
    fn the_example_is_read_as_it_is_documented() {
        let (mut record, note) = Record::read(root_with(example().as_bytes()).path());
        assert_eq!((record.at.as_deref(), note), (Some("ch02_flat"), None));
        let ran = &record.chapters["ch02_flat"];
        assert_eq!((ran.ran, ran.hints[&1], ran.tasks[&2]), (1_795_335_000, 2, Tally { green: 2, of: 3 }));
        assert_eq!((ran.tasks_green(), ran.checks()), (Tally { green: 1, of: 2 }, Tally { green: 11, of: 15 }));
        // A hint was shown, but nothing has run.
        record.chapter_mut("ch03_contiguous").hints.insert(1, 1);
        assert!(!record.chapters["ch03_contiguous"].checks().all_green());
    }

    #[test]
    fn a_record_is_written_whole_or_not_at_all() {
        let root = tempfile::tempdir().unwrap();
        let mut record = Record::default();
        let change = |record: &mut Record| {
            record.at = Some("ch03_contiguous".into());
            record.chapter_mut("ch03_contiguous").hints.insert(4, 1);
        };
        record.update(root.path(), change).unwrap();
        assert_eq!(Record::read(root.path()), (record.clone(), None));
        let files = || fs::read_dir(root.path().join(".page-by-page")).unwrap().count();
        assert_eq!(files(), 1, "only the record");
        // A folder cannot be replaced by a file.
        fs::remove_file(root.path().join(FILE)).unwrap();
        fs::create_dir_all(root.path().join(FILE).join("kept")).unwrap();
        assert!(record.update(root.path(), change).is_err());
        assert_eq!((files(), record.at.is_some()), (1, true));
        assert!(Record::read(root.path()).1.unwrap().contains("cannot be read ("));
    }

    #[test]
    fn an_unusable_record_is_ignored_with_a_note_and_replaced() {
        for (text, says) in [
            (&example()[..100], "is damaged (EOF"),
            (r#"{"version":2}"#, "is of version 2, and this is 1"),
            (r#"{"version":1,"chapters":{"a":{"ran":-1}}}"#, "is damaged (invalid value"),
        ] {
            let root = root_with(text.as_bytes());
            let (mut record, note) = Record::read(root.path());
            let note = note.unwrap_or_default();
            assert_eq!(record, Record::default(), "{text:.80}");
            assert!(note.contains(&format!("record.json {says}")) && note.contains("so it is ignored"), "{note}");
            record.update(root.path(), |record| record.at = Some("ch01_x".into())).unwrap();
            assert_eq!(Record::read(root.path()), (record, None));
        }
    }
}
