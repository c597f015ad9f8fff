//! A copy of the repository in which files may be changed: the reader's work, right and wrong, is played there.
//!
//! The copy stays between runs and only what differs is written: cargo sees by the time of a file what to build again.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::protection::{SNAPSHOTS, listed_by_git};

/// The copy.
pub struct Workshop {
    pub root: PathBuf,
    /// The files that were changed, as they were.
    originals: RefCell<BTreeMap<String, Vec<u8>>>,
}

impl Workshop {
    /// Brings the copy in `root` up to date with `repository`: what git tracks there, and new files not ignored.
    pub fn open(repository: &Path, root: &Path) -> Result<Self> {
        let repository = repository.canonicalize().context("cannot find the repository")?;
        let files = listed_by_git(&repository).context("`git ls-files` does not list the files of the repository")?;
        fs::create_dir_all(root).with_context(|| format!("cannot make the folder {}", root.display()))?;
        let root = root.canonicalize()?;
        let mut kept = BTreeSet::new();
        for file in files {
            // A tracked file may have been deleted and a new one may be gone by now.
            let Ok(content) = fs::read(repository.join(&file)) else { continue };
            write_if_different(&root.join(&file), &content)?;
            kept.insert(file);
        }
        for file in files_below(&root, "")? {
            if !kept.contains(&file) {
                fs::remove_file(root.join(&file)).with_context(|| format!("cannot remove {file} from the copy"))?;
            }
        }
        Ok(Workshop { root, originals: RefCell::default() })
    }

    /// Puts a text in place of a file.
    pub fn put(&self, file: &str, text: impl AsRef<[u8]>) -> Result<()> {
        self.keep(file)?;
        write_if_different(&self.root.join(file), text.as_ref())
    }

    /// Puts a text in place of a file, with a date of its own.
    pub fn put_dated(&self, file: &str, text: impl AsRef<[u8]>, date: SystemTime) -> Result<()> {
        self.put(file, text)?;
        let opened = fs::File::options().write(true).open(self.root.join(file))?;
        opened.set_modified(date).with_context(|| format!("cannot set the date of {file}"))
    }

    /// The date of a file.
    pub fn date(&self, file: &str) -> Result<SystemTime> {
        Ok(fs::metadata(self.root.join(file)).and_then(|metadata| metadata.modified())?)
    }

    /// Takes a file away.
    pub fn remove(&self, file: &str) -> Result<()> {
        self.keep(file)?;
        fs::remove_file(self.root.join(file)).with_context(|| format!("cannot remove {file}"))
    }

    /// Remembers a file as it was before its first change.
    fn keep(&self, file: &str) -> Result<()> {
        let mut originals = self.originals.borrow_mut();
        if !originals.contains_key(file) {
            let content = fs::read(self.root.join(file)).with_context(|| format!("cannot read {file}"))?;
            originals.insert(file.into(), content);
        }
        Ok(())
    }

    /// Makes the changes of one file undone.
    pub fn restore_file(&self, file: &str) -> Result<()> {
        match self.originals.borrow_mut().remove(file) {
            Some(content) => write_if_different(&self.root.join(file), &content),
            None => Ok(()),
        }
    }

    /// Makes all changes undone.
    pub fn restore(&self) -> Result<()> {
        for (file, content) in self.originals.take() {
            write_if_different(&self.root.join(file), &content)?;
        }
        Ok(())
    }

    /// All that a snapshot test could have written: the snapshots, and any that wait to be accepted, wherever they are.
    pub fn snapshots(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        let mut found = BTreeMap::new();
        for file in files_below(&self.root, "")? {
            if file.starts_with(SNAPSHOTS) || file.ends_with(".snap.new") || file.ends_with(".pending-snap") {
                found.insert(file.clone(), fs::read(self.root.join(&file))?);
            }
        }
        Ok(found)
    }

    /// Brings the snapshots back to what they were.
    pub fn reset_snapshots(&self, before: &BTreeMap<String, Vec<u8>>) -> Result<()> {
        for file in self.snapshots()?.into_keys().filter(|file| !before.contains_key(file)) {
            fs::remove_file(self.root.join(file))?;
        }
        before.iter().try_for_each(|(file, content)| write_if_different(&self.root.join(file), content))
    }
}

fn write_if_different(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|found| found == content) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// The files below a folder, named from it, with forward slashes.
fn files_below(folder: &Path, prefix: &str) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            files.extend(files_below(&entry.path(), &format!("{name}/"))?);
        } else {
            files.push(name);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let init = std::process::Command::new("git").arg("-C").arg(folder.path()).args(["init", "-q"]).status();
        assert!(init.unwrap().success());
        for (file, text) in [(".gitignore", "/target\n"), ("a.rs", "a"), ("b/c.rs", "c"), ("target/x", "x")] {
            write_if_different(&folder.path().join(file), text.as_bytes()).unwrap();
        }
        folder
    }

    #[test]
    fn the_copy_holds_what_git_would_keep() {
        let repository = repository();
        let copy = repository.path().join("target/copy");
        Workshop::open(repository.path(), &copy).unwrap();
        let mut files = files_below(&copy, "").unwrap();
        files.sort();
        assert_eq!(files, [".gitignore", "a.rs", "b/c.rs"]);

        fs::remove_file(repository.path().join("b/c.rs")).unwrap();
        write_if_different(&repository.path().join("a.rs"), b"new").unwrap();
        Workshop::open(repository.path(), &copy).unwrap();
        assert_eq!(fs::read_to_string(copy.join("a.rs")).unwrap(), "new");
        assert!(!copy.join("b/c.rs").exists());
    }

    #[test]
    fn changes_are_undone() {
        let repository = repository();
        let copy = repository.path().join("target/copy");
        let workshop = Workshop::open(repository.path(), &copy).unwrap();
        workshop.put("a.rs", "mine").unwrap();
        workshop.put("a.rs", "mine again").unwrap();
        assert_eq!(fs::read_to_string(copy.join("a.rs")).unwrap(), "mine again");
        workshop.remove("b/c.rs").unwrap();
        workshop.restore_file("b/c.rs").unwrap();
        assert_eq!(fs::read_to_string(copy.join("b/c.rs")).unwrap(), "c");
        assert_eq!(fs::read_to_string(copy.join("a.rs")).unwrap(), "mine again");
        workshop.restore().unwrap();
        assert_eq!(fs::read_to_string(copy.join("a.rs")).unwrap(), "a");
        workshop.put_dated("a.rs", "old", SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(workshop.date("a.rs").unwrap(), SystemTime::UNIX_EPOCH);
    }

    #[test]
    fn a_snapshot_that_was_accepted_is_seen_and_reset() {
        let repository = repository();
        let copy = repository.path().join("target/copy");
        write_if_different(&repository.path().join("tests/snapshots/x.snap"), b"right").unwrap();
        let workshop = Workshop::open(repository.path(), &copy).unwrap();
        let before = workshop.snapshots().unwrap();
        fs::write(copy.join("tests/snapshots/x.snap"), "wrong").unwrap();
        fs::write(copy.join("tests/.x.rs.pending-snap"), "wrong").unwrap();
        assert_ne!(workshop.snapshots().unwrap(), before);
        workshop.reset_snapshots(&before).unwrap();
        assert_eq!(workshop.snapshots().unwrap(), before);
    }
}
