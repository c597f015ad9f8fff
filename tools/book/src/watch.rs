//! What is watched for edits: the book, and the code that it shows.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use page_by_page_course::watch::Watch;
use walkdir::WalkDir;

use crate::own_copy::COPY_FOLDER;
use crate::publish::BUILD_FOLDER;

/// The book itself and the folders that its pages include from.
const WATCHED: [&str; 5] = ["book", "src", "solutions", "tests", "assets"];

/// When a file was written, and how many bytes it has.
type Written = (Option<SystemTime>, u64);

/// Starts watching the repository at `root`. Edits of exercises show in the reader's own copy only.
pub fn start(root: &Path, shows_exercises: bool) -> Watch<Written, impl Fn() -> BTreeMap<String, Written>> {
    let root = root.to_path_buf();
    let folders: Vec<&str> = WATCHED.into_iter().chain(shows_exercises.then_some("exercises")).collect();
    Watch::start(move || look(&root, &folders))
}

/// The files in some folders. What rendering itself writes is left out: that is no edit.
fn look(root: &Path, folders: &[&str]) -> BTreeMap<String, Written> {
    let built = [BUILD_FOLDER, COPY_FOLDER].map(|folder| root.join(folder));
    let entries = folders.iter().flat_map(|folder| {
        let all = WalkDir::new(root.join(folder)).into_iter();
        all.filter_entry(|entry| !built.iter().any(|built| entry.path() == built)).flatten()
    });
    let files = entries.filter(|entry| !entry.file_type().is_dir()).filter_map(|entry| {
        let name = entry.path().strip_prefix(root).ok()?.display().to_string();
        let metadata = entry.metadata().ok()?;
        Some((name, (metadata.modified().ok(), metadata.len())))
    });
    files.collect()
}
