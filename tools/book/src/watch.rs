//! Notices that the book, or the code that it shows, has been edited.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};

use crate::mine::COPY_FOLDER;
use crate::publish::BUILD_FOLDER;

/// The book itself, the folders that its pages include from, and what the reader writes.
const WATCHED: [&str; 6] = ["book", "src", "solutions", "tests", "assets", EXERCISES];
/// Edits there show in the reader's own copy only.
const EXERCISES: &str = "exercises";
/// An editor that saves makes several events; a change is over when none has come for this long.
const QUIET: Duration = Duration::from_millis(200);

pub struct Watch {
    /// Names of changed files.
    changes: Receiver<Vec<String>>,
    /// Changes come as long as it lives. Where watching is impossible the book is served without.
    _watcher: Option<RecommendedWatcher>,
}

impl Watch {
    /// Starts watching the repository at `root`; no edit from now on is missed. Exercises are watched if they show.
    pub fn start(root: &Path, shows_exercises: bool) -> Result<Self> {
        // Events carry resolved paths.
        let root = root.canonicalize()?;
        let folders = WATCHED.map(|folder| root.join(folder));
        let (sender, changes) = mpsc::channel();
        let on_event = move |event: notify::Result<Event>| {
            let names = event.map_or(Vec::new(), |event| changed_files(&root, &event));
            if !names.is_empty() {
                let _ = sender.send(names);
            }
        };
        let watcher = notify::recommended_watcher(on_event).and_then(|mut watcher| {
            let watched = |folder: &&PathBuf| folder.is_dir() && (shows_exercises || !folder.ends_with(EXERCISES));
            for folder in folders.iter().filter(watched) {
                watcher.watch(folder, RecursiveMode::Recursive)?;
            }
            Ok(watcher)
        });
        if let Err(error) = &watcher {
            eprintln!("Edits will not show by themselves ({error}): start again to see them");
        }
        Ok(Self { changes, _watcher: watcher.ok() })
    }

    /// Calls `on_change` with the names of the changed files whenever some have changed.
    pub fn each_change(self, mut on_change: impl FnMut(&[String])) -> ! {
        while let Ok(first) = self.changes.recv() {
            let mut names = BTreeSet::from_iter(first);
            while let Ok(more) = self.changes.recv_timeout(QUIET) {
                names.extend(more);
            }
            on_change(&Vec::from_iter(names));
        }
        loop {
            thread::park();
        }
    }
}

/// The files that the event has changed. Reading is no change, nor is what rendering itself writes: a page that is
/// served or published must not look like an edit.
fn changed_files(root: &Path, event: &Event) -> Vec<String> {
    if matches!(event.kind, EventKind::Access(_)) {
        return Vec::new();
    }
    let built = [BUILD_FOLDER, COPY_FOLDER].map(|folder| root.join(folder));
    let paths = event.paths.iter().filter(|path| !built.iter().any(|built| path.starts_with(built)));
    let names = paths.map(|path| path.strip_prefix(root).unwrap_or(path));
    names.map(|name| name.display().to_string()).collect()
}
