//! Notices that the book, or the code that it shows, has been edited.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use walkdir::WalkDir;

use crate::own_copy::COPY_FOLDER;
use crate::publish::BUILD_FOLDER;

/// The book itself and the folders that its pages include from.
const WATCHED: [&str; 5] = ["book", "src", "solutions", "tests", "assets"];
/// Edits there show in the reader's own copy only.
const EXERCISES: &str = "exercises";
/// How often to look. An editor that saves can change a file several times; a change is over when two looks find the
/// same.
const LOOK: Duration = Duration::from_millis(200);

pub struct Watch {
    root: PathBuf,
    folders: Vec<&'static str>,
    seen: Files,
}

/// Files, from the root of the repository: when each was written, and how many bytes it has.
type Files = BTreeMap<PathBuf, (Option<SystemTime>, u64)>;

impl Watch {
    /// Starts watching the repository at `root`; no edit from now on is missed. Exercises are watched if they show.
    pub fn start(root: &Path, shows_exercises: bool) -> Self {
        let folders: Vec<&str> = WATCHED.into_iter().chain(shows_exercises.then_some(EXERCISES)).collect();
        Self { root: root.to_path_buf(), seen: look(root, &folders), folders }
    }

    /// Calls `on_change` with the names of the changed files whenever some have changed.
    pub fn each_change(mut self, mut on_change: impl FnMut(&[String])) -> ! {
        let mut before = self.seen.clone();
        loop {
            thread::sleep(LOOK);
            let now = look(&self.root, &self.folders);
            if now == before && now != self.seen {
                let files: BTreeSet<&PathBuf> = now.keys().chain(self.seen.keys()).collect();
                let changed = files.into_iter().filter(|file| now.get(*file) != self.seen.get(*file));
                on_change(&changed.map(|file| file.display().to_string()).collect::<Vec<_>>());
                self.seen.clone_from(&now);
            }
            before = now;
        }
    }
}

/// The files in some folders. What rendering itself writes is left out: that is no edit.
fn look(root: &Path, folders: &[&str]) -> Files {
    let built = [BUILD_FOLDER, COPY_FOLDER].map(|folder| root.join(folder));
    let entries = folders.iter().flat_map(|folder| {
        let all = WalkDir::new(root.join(folder)).into_iter();
        all.filter_entry(|entry| !built.iter().any(|built| entry.path() == built)).flatten()
    });
    let files = entries.filter(|entry| !entry.file_type().is_dir()).filter_map(|entry| {
        let name = entry.path().strip_prefix(root).ok()?.to_path_buf();
        let metadata = entry.metadata().ok()?;
        Some((name, (metadata.modified().ok(), metadata.len())))
    });
    files.collect()
}
