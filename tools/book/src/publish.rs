//! Puts a freshly rendered book in the place of the old one, file by file, so that a page can be read at any moment.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use walkdir::WalkDir;

/// Where the rendered book lies, from the repository root. `book.toml` says the same, for stock mdBook.
pub const BUILD_FOLDER: &str = "book/html";

pub fn publish(fresh: &Path, to: &Path) -> Result<()> {
    for entry in WalkDir::new(fresh) {
        let entry = entry?;
        let target = to.join(entry.path().strip_prefix(fresh)?);
        if entry.file_type().is_dir() {
            fs::create_dir_all(&target)
        } else {
            fs::copy(entry.path(), &target).map(drop)
        }
        .with_context(|| format!("writing {}", target.display()))?;
    }
    for entry in WalkDir::new(to).contents_first(true) {
        let entry = entry?;
        let is_stale = !fresh.join(entry.path().strip_prefix(to)?).exists();
        if is_stale {
            if entry.file_type().is_dir() { fs::remove_dir(entry.path()) } else { fs::remove_file(entry.path()) }
                .with_context(|| format!("removing {}", entry.path().display()))?;
        }
    }
    Ok(())
}
