//! Notices which of the reader's files have a different text than before.
//!
//! The system reports changes at once where it can. A look each second finds the others, such as those on a network drive.
//! Only the text counts: a file that was touched hasn't changed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use page_by_page_course::stub;

/// An editor that saves makes several events; a change is complete when none has come for this long.
pub const QUIET: Duration = Duration::from_millis(50);

/// Calls `on_event` for each event in `exercises/` while it lives; `None` where watching is impossible.
pub fn watch(root: &Path, on_event: impl Fn() + Send + 'static) -> Option<RecommendedWatcher> {
    let handler = move |event: notify::Result<Event>| {
        if event.is_ok_and(|event| !matches!(event.kind, EventKind::Access(_))) {
            on_event();
        }
    };
    let mut watcher = notify::recommended_watcher(handler).ok()?;
    watcher.watch(&root.join("exercises"), RecursiveMode::NonRecursive).ok()?;
    Some(watcher)
}

/// The texts of some files, as fingerprints. A file that can't be read has none.
pub struct Files {
    root: PathBuf,
    seen: BTreeMap<String, Option<String>>,
}

impl Files {
    /// Files named from the root of the repository.
    pub fn new(root: &Path, files: impl IntoIterator<Item = String>) -> Self {
        let seen = files.into_iter().map(|file| (file.clone(), look(root, &file))).collect();
        Files { root: root.to_path_buf(), seen }
    }

    /// The files that have changed since the last call.
    pub fn changed(&mut self) -> Vec<String> {
        let mut changed = Vec::new();
        for (file, seen) in &mut self.seen {
            let now = look(&self.root, file);
            if now != *seen {
                changed.push(file.clone());
                *seen = now;
            }
        }
        changed
    }
}

fn look(root: &Path, file: &str) -> Option<String> {
    let bytes = fs::read(root.join(file)).ok()?;
    Some(stub::fingerprint(&String::from_utf8_lossy(&bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_different_text_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a.rs"), "one").unwrap();
        let mut files = Files::new(folder.path(), ["a.rs".to_string(), "b.rs".to_string()]);
        assert!(files.changed().is_empty());
        fs::write(at("a.rs"), "one").unwrap();
        assert!(files.changed().is_empty(), "saved, but the same");
        fs::write(at("new"), "two").unwrap();
        fs::rename(at("new"), at("a.rs")).unwrap();
        assert_eq!(files.changed(), ["a.rs"], "replaced, as many editors do");
        assert!(files.changed().is_empty());
        fs::write(at("b.rs"), "").unwrap();
        fs::remove_file(at("a.rs")).unwrap();
        assert_eq!(files.changed(), ["a.rs", "b.rs"]);
    }
}
