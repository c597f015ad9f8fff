//! Puts a freshly rendered book in the place of the old one, file by file, so that a page can be read at any moment.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use walkdir::WalkDir;

/// Where the rendered book lies, from the repository root. `book.toml` says the same, for stock mdBook.
pub const BUILD_FOLDER: &str = "book/html";

/// In a folder of the reader's choice: the book's files, one a line. A later build takes only these away.
const RECORD: &str = ".page-by-page-files";

/// Publishes in the folder that holds nothing but the book, where everything else is removed. A symbolic link is refused:
/// the folder that it leads to can hold files of other programs.
pub fn publish(fresh: &Path, to: &Path) -> Result<()> {
    if to.is_symlink() {
        bail!("{} is a symbolic link: remove it, or name the folder that it leads to with --out", to.display());
    }
    let old = if to.exists() { files_in(to)? } else { BTreeSet::new() };
    replace(fresh, to, &files_in(fresh)?, &old)
}

/// Publishes in a folder named on the command line, and takes away what an earlier build has left there. Other files
/// stay: it must be new, empty, or filled by an earlier build.
pub fn publish_into(fresh: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("{} is no folder to write into", to.display()))?;
    let record = to.join(RECORD);
    let old = match fs::read_to_string(&record) {
        Ok(list) => list.lines().map(PathBuf::from).collect(),
        Err(_) if fs::read_dir(to)?.next().is_none() => BTreeSet::new(),
        Err(_) => bail!(
            "{} holds files that `cargo book build --out` has not put there; nothing was changed: name a new or an empty folder",
            to.display()
        ),
    };
    // A path that leads out of the folder is no file of the book, even if the record lists it.
    let is_inside = |file: &PathBuf| file.components().all(|part| matches!(part, Component::Normal(_)));
    let old = old.into_iter().filter(is_inside).collect();
    let files = files_in(fresh)?;
    let list = |files: &mut dyn Iterator<Item = &PathBuf>| -> Result<()> {
        let lines: String = files.map(|file| format!("{}\n", file.to_string_lossy().replace('\\', "/"))).collect();
        fs::write(&record, lines).with_context(|| format!("writing {}", record.display()))
    };
    // Also written first, so that the next build knows the files of one that was cut off for the book's own.
    list(&mut files.union(&old))?;
    replace(fresh, to, &files, &old)?;
    list(&mut files.iter())
}

/// Copies the files of `fresh` to `to`, and takes away those of `old` that are not among them.
fn replace(fresh: &Path, to: &Path, files: &BTreeSet<PathBuf>, old: &BTreeSet<PathBuf>) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("writing {}", to.display()))?;
    let beside = tempfile::Builder::new().prefix(".fresh-").tempdir_in(to)?;
    let whole = beside.path().join("file");
    for file in files {
        let target = to.join(file);
        fs::copy(fresh.join(file), &whole)
            .and_then(|_| fs::create_dir_all(target.parent().unwrap_or(to)))
            .and_then(|()| fs::rename(&whole, &target))
            .with_context(|| format!("writing {}", target.display()))?;
    }
    for stale in old.difference(files) {
        match fs::remove_file(to.join(stale)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("removing {}", to.join(stale).display()));
            }
            _ => {}
        }
        // The folders that it leaves empty go, too; one that is not empty does not.
        for folder in stale.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty()) {
            if fs::remove_dir(to.join(folder)).is_err() {
                break;
            }
        }
    }
    Ok(())
}

/// The files in a folder and the folders in it that have this extension.
pub fn files_ending(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let files = files_in(folder)?.into_iter();
    Ok(files.filter(|file| file.extension().is_some_and(|end| end == extension)).collect())
}

/// The files in a folder and the folders in it.
pub fn files_in(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut files = BTreeSet::new();
    for entry in WalkDir::new(folder) {
        let entry = entry?;
        if !entry.file_type().is_dir() {
            files.insert(entry.path().strip_prefix(folder)?.to_path_buf());
        }
    }
    Ok(files)
}
