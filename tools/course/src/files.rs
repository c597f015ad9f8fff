//! Files of the repository, named from its root.

use std::fs;
use std::path::Path;

use anyhow::{Error, Result};
use page_by_page_course::stub;

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
