//! Files of the repository, named from its root.

use std::fs;
use std::path::Path;

use anyhow::{Error, Result};
use page_by_page_course::stub;
use walkdir::WalkDir;

/// The text of a file, with `\n` line ends.
pub fn read(root: &Path, file: &str) -> Result<String> {
    stub::read(root, file).map_err(Error::msg)
}

/// The names of the files in a folder that end in `extension`, without it, sorted. A missing folder has none.
pub fn names(root: &Path, folder: &str, extension: &str) -> Vec<String> {
    let files = fs::read_dir(root.join(folder)).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut names: Vec<String> =
        files.filter_map(|file| Some(file.to_str()?.strip_suffix(extension)?.to_string())).collect();
    names.sort();
    names
}

/// The files below a folder, named from it, with forward slashes.
pub fn files_below(folder: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in WalkDir::new(folder).sort_by_file_name() {
        let entry = entry?;
        if entry.file_type().is_file() {
            files.push(entry.path().strip_prefix(folder)?.to_string_lossy().replace('\\', "/"));
        }
    }
    Ok(files)
}
