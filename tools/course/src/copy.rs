//! A copy of the repository in which the reader's work, right and wrong, is played.
//!
//! The copy stays between runs, and only what differs is written: cargo sees by a file's date what to build again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use page_by_page_course::cargo::{self, Ended, Environment};
use page_by_page_course::libtest;

use crate::files::files_below;
use crate::protection::SNAPSHOTS;
use crate::run::CargoRun;

/// The longest that a build and its checks can take. Checks that hang stop themselves after a minute of silence.
const TIME_LIMIT: Duration = Duration::from_secs(1800);

pub struct RepositoryCopy {
    pub root: PathBuf,
    target: PathBuf,
}

impl RepositoryCopy {
    /// Brings the copy in `folder` up to date with the repository: what git tracks there, and new files not ignored.
    pub fn open(repository: &Path, folder: &Path) -> Result<Self> {
        let root = folder.join("copy");
        let files = listed_by_git(repository).context("`git ls-files` does not list the files of the repository")?;
        let mut kept = BTreeSet::new();
        for file in files {
            // A tracked file may have been deleted, and a new one may be gone by now.
            let Ok(content) = fs::read(repository.join(&file)) else { continue };
            put(&root.join(&file), &content)?;
            kept.insert(file);
        }
        for file in files_below(&root)?.iter().filter(|file| !kept.contains(*file)) {
            fs::remove_file(root.join(file)).with_context(|| format!("cannot remove {file} from the copy"))?;
        }
        Ok(RepositoryCopy { root: root.canonicalize()?, target: folder.canonicalize()?.join("build") })
    }

    pub fn put(&self, file: &str, content: impl AsRef<[u8]>) -> Result<()> {
        put(&self.root.join(file), content.as_ref())
    }

    /// Writes a file of the copy with the date of yesterday.
    pub fn put_old(&self, file: &str, content: &str) -> Result<()> {
        self.put(file, content)?;
        let opened = fs::File::options().write(true).open(self.root.join(file))?;
        let yesterday = SystemTime::now() - Duration::from_secs(24 * 3600);
        opened.set_modified(yesterday).with_context(|| format!("cannot set the date of {file}"))
    }

    /// All that a snapshot test could have written: the snapshots, and any that wait to be accepted.
    pub fn snapshots(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        let is_one = |file: &String| {
            file.starts_with(SNAPSHOTS) || file.ends_with(".snap.new") || file.ends_with(".pending-snap")
        };
        let files = files_below(&self.root)?.into_iter().filter(is_one);
        files.map(|file| Ok((file.clone(), fs::read(self.root.join(file))?))).collect()
    }

    /// Runs `cargo` with these arguments in a folder, as a reader would who has no variables of ours set but these.
    pub fn cargo(&self, folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Result<CargoRun> {
        let mut cargo = cargo::cargo(folder, Environment::Neutral);
        cargo.args(arguments).envs(variables.iter().copied());
        cargo.env("CARGO_TARGET_DIR", &self.target).env("CARGO_TERM_COLOR", "never").env("NO_COLOR", "1");
        cargo.env("CARGO_INCREMENTAL", "1");
        let Ended { status, output } = cargo::run(cargo, TIME_LIMIT).context("cannot run cargo")?;
        let success = status.is_some_and(|status| status.success());
        Ok(CargoRun { success, hung: status.is_none(), suites: libtest::suites(&output), output })
    }
}

/// Writes a file unless it has this content already.
fn put(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|found| found == content) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Tracked files, and new ones that are not ignored; None if git does not know the folder.
fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]);
    let output = git.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.split('\0').filter(|file| !file.is_empty()).map(String::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_holds_what_git_would_keep() {
        let folder = tempfile::tempdir().unwrap();
        let repository = folder.path();
        let init = Command::new("git").arg("-C").arg(repository).args(["init", "-q"]).status();
        assert!(init.unwrap().success());
        for (file, text) in [(".gitignore", "/target\n"), ("a.rs", "a"), ("b/c.rs", "c"), ("target/x", "x")] {
            put(&repository.join(file), text.as_bytes()).unwrap();
        }
        let open = || RepositoryCopy::open(repository, &repository.join("target/1")).unwrap();
        assert_eq!(files_below(&open().root).unwrap(), [".gitignore", "a.rs", "b/c.rs"]);

        fs::remove_file(repository.join("b/c.rs")).unwrap();
        put(&repository.join("a.rs"), b"new").unwrap();
        let copy = open();
        assert_eq!(fs::read_to_string(copy.root.join("a.rs")).unwrap(), "new");
        assert!(!copy.root.join("b/c.rs").exists());
        copy.put("tests/.x.rs.pending-snap", "wrong").unwrap();
        assert_eq!(copy.snapshots().unwrap().len(), 1);
    }
}
