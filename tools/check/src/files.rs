//! Files of the repository, named from its root.

use std::fs;
use std::path::Path;

use anyhow::{Context, Error, Result};
use page_by_page_course::stub;

/// The text of a file, with `\n` line ends.
pub fn read(root: &Path, file: &str) -> Result<String> {
    Ok(stub::read(root, file).map_err(Error::msg)?.replace("\r\n", "\n"))
}

/// The names of the files in a folder that end in `extension`, without it, sorted. A missing folder has none.
pub fn names(root: &Path, folder: &str, extension: &str) -> Result<Vec<String>> {
    if !root.join(folder).is_dir() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join(folder)).with_context(|| format!("cannot list {folder}"))? {
        let file = entry?.file_name();
        names.extend(file.to_str().and_then(|file| file.strip_suffix(extension)).map(String::from));
    }
    names.sort();
    Ok(names)
}
