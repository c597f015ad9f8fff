//! Puts a freshly rendered book in the place of the old one, file by file, so that a page can be read at any moment.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use walkdir::WalkDir;

/// Where the rendered book lies, from the repository root. `book.toml` says the same, for stock mdBook.
pub const BUILD_FOLDER: &str = "book/html";

/// In a folder of the reader's own choice: the files that are the book's, one a line. A later build takes none away but
/// these.
const RECORD: &str = ".page-by-page-files";

/// Publishes in the folder that holds nothing but the book, where everything else is removed.
///
/// # Errors
/// If it is a symbolic link: the folder that it leads to can hold files of other programs.
pub fn publish(fresh: &Path, to: &Path) -> Result<()> {
    if to.is_symlink() {
        bail!("{} is a symbolic link: remove it, or name the folder that it leads to with --out", to.display());
    }
    let files = files_in(fresh)?;
    let old = if to.exists() { files_in(to)? } else { BTreeSet::new() };
    replace(fresh, to, &files, &old)
}

/// A folder named on the command line, for a book to be put in.
pub struct Out {
    folder: PathBuf,
    /// The files that an earlier build has put there.
    old: BTreeSet<PathBuf>,
}

impl Out {
    /// Looks at the folder before anything is rendered, and changes nothing.
    ///
    /// # Errors
    /// Unless the folder is new, empty, or was filled by an earlier build.
    pub fn look_at(root: &Path, folder: &Path) -> Result<Self> {
        let shown = folder.display();
        // Resolved as far as it is there: the rest is new.
        let there = folder.ancestors().find(|part| part.exists()).unwrap_or(Path::new("."));
        let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
        let inside = there.canonicalize().with_context(|| format!("{shown} cannot be reached"))?;
        let rest = folder.strip_prefix(there).unwrap_or(folder);
        if rest.components().any(|part| part == Component::ParentDir) {
            bail!("{shown} climbs out of a folder that is not there: name the folder without `..`");
        }
        let whole = if rest.as_os_str().is_empty() { inside } else { inside.join(rest) };
        if whole.starts_with(root.canonicalize()?.join("book")) {
            bail!("{shown} lies among the book's sources: name a folder outside book/ (without --out: {BUILD_FOLDER})");
        }
        let entries = match fs::read_dir(&whole) {
            Ok(entries) => entries.count(),
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) if whole.is_file() => {
                return Err(error).with_context(|| format!("{shown} is a file: name a folder"));
            }
            Err(error) => return Err(error).with_context(|| format!("{shown} cannot be read")),
        };
        let record = match fs::read_to_string(whole.join(RECORD)) {
            Ok(record) => record,
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("{RECORD} in {shown} cannot be read"));
            }
            Err(_) if entries == 0 => String::new(),
            Err(_) => bail!(
                "{shown} holds {entries} {} and no book that `cargo book build --out` has put there; nothing was changed: \
                 name a new or an empty folder",
                if entries == 1 { "file or folder" } else { "files and folders" }
            ),
        };
        // A path that leads out of the folder is no file of the book, even if the record lists it.
        let is_ours = |file: &Path| file.components().all(|part| matches!(part, Component::Normal(_)));
        let old = record.lines().map(PathBuf::from).filter(|file| is_ours(file)).collect();
        Ok(Self { folder: whole, old })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Puts the book there and takes away what an earlier build has left. Files of others stay.
    pub fn publish(&self, fresh: &Path) -> Result<()> {
        let files = files_in(fresh)?;
        // Written first, so that the next build knows the files of one that was cut off for the book's own.
        fs::create_dir_all(&self.folder).with_context(|| format!("making {}", self.folder.display()))?;
        self.record(files.union(&self.old))?;
        replace(fresh, &self.folder, &files, &self.old)?;
        self.record(files.iter())
    }

    fn record<'a>(&self, files: impl Iterator<Item = &'a PathBuf>) -> Result<()> {
        let lines: String = files.map(|file| format!("{}\n", file.to_string_lossy().replace('\\', "/"))).collect();
        let record = self.folder.join(RECORD);
        let beside = self.folder.join(format!("{RECORD}.new"));
        fs::write(&beside, lines)
            .and_then(|()| fs::rename(&beside, &record))
            .with_context(|| format!("writing {}", record.display()))
    }
}

/// Copies the files of `fresh` to `to`, and takes away those of `old` that are not among them.
fn replace(fresh: &Path, to: &Path, files: &BTreeSet<PathBuf>, old: &BTreeSet<PathBuf>) -> Result<()> {
    let writing = || format!("writing {}", to.display());
    fs::create_dir_all(to).with_context(writing)?;
    // All files first lie on the same disk: if there is no room for them, the old book stays whole.
    let beside = tempfile::Builder::new().prefix(".fresh-").tempdir_in(to).with_context(writing)?;
    for file in files {
        let copy = beside.path().join(file);
        fs::create_dir_all(copy.parent().unwrap_or(to))
            .and_then(|()| fs::copy(fresh.join(file), &copy))
            .with_context(|| format!("writing {}", copy.display()))?;
    }
    for file in files {
        let target = to.join(file);
        fs::create_dir_all(target.parent().unwrap_or(to))
            .and_then(|()| fs::rename(beside.path().join(file), &target))
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
