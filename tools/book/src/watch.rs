//! Notices that the book, or the code that it shows, has been edited.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};

use crate::publish::BUILD_FOLDER;

/// The book itself and the folders that its pages include from.
const WATCHED: [&str; 5] = ["book", "src", "solutions", "tests", "assets"];
/// An editor that saves makes several events; a change is over when none has come for this long.
const QUIET: Duration = Duration::from_millis(200);

pub struct Watch {
    /// Names of changed files.
    changes: Receiver<Vec<String>>,
    /// Changes come as long as it lives. Where watching is impossible the book is served without.
    _watcher: Option<RecommendedWatcher>,
}

impl Watch {
    /// Starts watching the repository at `root`; no edit from now on is missed.
    pub fn start(root: &Path) -> Result<Self> {
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
            for folder in folders.iter().filter(|folder| folder.is_dir()) {
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
    pub fn each_change(self, mut on_change: impl FnMut(&str)) -> ! {
        while let Ok(first) = self.changes.recv() {
            let mut names = BTreeSet::from_iter(first);
            while let Ok(more) = self.changes.recv_timeout(QUIET) {
                names.extend(more);
            }
            on_change(&Vec::from_iter(names).join(", "));
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
    let built = root.join(BUILD_FOLDER);
    let paths = event.paths.iter().filter(|path| !path.starts_with(&built));
    let names = paths.map(|path| path.strip_prefix(root).unwrap_or(path));
    names.map(|name| name.display().to_string()).collect()
}
