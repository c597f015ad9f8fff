//! Notices that a file in `exercises/` says something else than before.
//!
//! The system tells of changes at once, where it can. A look at the dates each second finds those that it does not tell of, as
//! on a network's disk. What counts is the text: a file that was only touched has not changed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};

use crate::stub;

/// An editor that saves makes several events; a change is over when none has come for this long.
pub const QUIET: Duration = Duration::from_millis(50);

/// Calls `on_event` for each event in `exercises/`, as long as it lives; `None` where watching is impossible.
pub fn watch(root: &Path, on_event: impl Fn() + Send + 'static) -> Option<RecommendedWatcher> {
    let told = move |event: notify::Result<Event>| {
        if event.is_ok_and(|event| !matches!(event.kind, EventKind::Access(_))) {
            on_event();
        }
    };
    let mut watcher = notify::recommended_watcher(told).ok()?;
    watcher.watch(&root.join("exercises"), RecursiveMode::NonRecursive).ok()?;
    Some(watcher)
}

/// What the files said when they were last looked at.
pub struct Files {
    root: PathBuf,
    seen: BTreeMap<String, Seen>,
}

#[derive(Clone, PartialEq, Eq)]
struct Seen {
    date: Option<SystemTime>,
    bytes: u64,
    /// None if there is no such file, or no text in it.
    fingerprint: Option<String>,
}

impl Files {
    /// Looks at files named from the root of the repository.
    pub fn new(root: &Path, files: impl IntoIterator<Item = String>) -> Self {
        let seen = files.into_iter().map(|file| (file.clone(), look(root, &file))).collect();
        Files { root: root.to_path_buf(), seen }
    }

    /// The files that say something else than the last time.
    pub fn changed(&mut self) -> Vec<String> {
        let mut changed = Vec::new();
        for (file, seen) in &mut self.seen {
            let now = fs::metadata(self.root.join(file)).ok();
            let date = now.as_ref().and_then(|data| data.modified().ok());
            if (date, now.map_or(0, |data| data.len())) == (seen.date, seen.bytes) {
                continue;
            }
            let fresh = look(&self.root, file);
            if fresh.fingerprint != seen.fingerprint {
                changed.push(file.clone());
            }
            *seen = fresh;
        }
        changed
    }
}

fn look(root: &Path, file: &str) -> Seen {
    let data = fs::metadata(root.join(file)).ok();
    let text = fs::read(root.join(file)).ok();
    Seen {
        date: data.as_ref().and_then(|data| data.modified().ok()),
        bytes: data.map_or(0, |data| data.len()),
        fingerprint: text.map(|bytes| stub::fingerprint(&String::from_utf8_lossy(&bytes))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_text_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a.rs"), "one").unwrap();
        let mut files = Files::new(folder.path(), ["a.rs".to_string(), "b.rs".to_string()]);
        assert!(files.changed().is_empty());
        // Dates as a file system tells them may be coarse.
        let touch = |name: &str, seconds| {
            let date = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            fs::File::options().write(true).open(at(name)).unwrap().set_modified(date).unwrap();
        };
        touch("a.rs", 1_000);
        assert!(files.changed().is_empty(), "touched, and the same");
        fs::write(at("new"), "two").unwrap();
        fs::rename(at("new"), at("a.rs")).unwrap();
        touch("a.rs", 2_000);
        assert_eq!(files.changed(), ["a.rs"], "replaced, as editors do");
        assert!(files.changed().is_empty());
        fs::write(at("b.rs"), "").unwrap();
        fs::remove_file(at("a.rs")).unwrap();
        assert_eq!(files.changed(), ["a.rs", "b.rs"]);
        fs::write(at("a.rs"), "two").unwrap();
        assert_eq!(files.changed(), ["a.rs"]);
    }
}
