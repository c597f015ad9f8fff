//! Notices which of the reader's files have a different text than before.
//!
//! It looks at the texts themselves, a dozen short files that the system keeps in memory: that works on every drive,
//! and a file that was only touched hasn't changed. An editor that saves may leave a file empty for a moment, so a
//! change counts when two looks find the same.

use std::fs;
use std::path::{Path, PathBuf};

/// Some files as they were seen last.
pub struct Files {
    root: PathBuf,
    files: Vec<File>,
}

struct File {
    /// From the root of the repository.
    name: String,
    /// What is in it, as far as is known to the caller; None if it can't be read.
    known: Option<Vec<u8>>,
    /// What the last look found.
    last: Option<Vec<u8>>,
}

impl Files {
    /// Files named from the root of the repository.
    pub fn new(root: &Path, names: impl IntoIterator<Item = String>) -> Self {
        let file = |name: String| {
            let known = fs::read(root.join(&name)).ok();
            File { name, last: known.clone(), known }
        };
        Files { root: root.to_path_buf(), files: names.into_iter().map(file).collect() }
    }

    /// Looks at the files. Returns the names of those that have changed, and have stayed the same since the last look.
    pub fn changed(&mut self) -> Vec<String> {
        let mut changed = Vec::new();
        for File { name, known, last } in &mut self.files {
            let now = fs::read(self.root.join(&*name)).ok();
            if now == *last && now != *known {
                known.clone_from(&now);
                changed.push(name.clone());
            }
            *last = now;
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_different_text_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a.rs"), "one").unwrap();
        let mut files = Files::new(folder.path(), ["a.rs".to_string(), "b.rs".to_string()]);
        let mut two_looks = || [files.changed(), files.changed()];
        fs::write(at("a.rs"), "one").unwrap();
        assert_eq!(two_looks(), [[""; 0]; 2], "saved, but the same");
        fs::write(at("new"), "two").unwrap();
        fs::rename(at("new"), at("a.rs")).unwrap();
        assert_eq!(two_looks(), [vec![], vec!["a.rs"]], "replaced, as many editors do");
        assert_eq!(two_looks(), [[""; 0]; 2]);
        fs::write(at("b.rs"), "").unwrap();
        fs::remove_file(at("a.rs")).unwrap();
        assert_eq!(two_looks(), [vec![], vec!["a.rs", "b.rs"]]);
    }
}
