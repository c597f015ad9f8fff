//! Files of the repository, named from its root.

use std::path::Path;

use anyhow::{Error, Result};
use page_by_page_course::source;
use walkdir::WalkDir;

/// The text of a file, with `\n` line ends.
pub fn read(root: &Path, file: &str) -> Result<String> {
    source::read(root, file).map_err(Error::msg)
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
