//! Where the parts of the course lie, and which chapters there are.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, bail};

use crate::stub;

/// The record of untouched stubs, from the root of the repository: where it lies is the repository.
pub const RECORD: &str = "exercises/untouched.txt";

/// The repository.
pub struct Course {
    pub root: PathBuf,
}

/// A chapter, by the name of its files: `ch06_paged`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chapter {
    pub name: String,
}

impl Chapter {
    /// The number in its name: `ch06_paged` → 6. None if the name is not of this form.
    pub fn number(&self) -> Option<usize> {
        let digits = self.name.strip_prefix("ch")?.split_once('_')?.0;
        if digits.len() == 2 { digits.parse().ok() } else { None }
    }

    /// The short name for lists: `ch06_paged` → `ch06`.
    pub fn short(&self) -> &str {
        self.name.split('_').next().unwrap_or(&self.name)
    }

    pub fn stub(&self) -> String {
        format!("exercises/{}.rs", self.name)
    }

    pub fn solution(&self) -> String {
        format!("solutions/{}.rs", self.name)
    }

    pub fn grader(&self) -> String {
        format!("tests/{}.rs", self.name)
    }

    pub fn page(&self) -> String {
        format!("book/src/{}.md", self.name)
    }
}

impl Course {
    /// The course in `root`, or in the nearest folder from here upwards.
    pub fn find(root: Option<PathBuf>) -> Result<Self> {
        let has_record = |folder: &Path| folder.join(RECORD).is_file();
        if let Some(root) = root {
            if !has_record(&root) {
                bail!("{} has no {}: it is not the repository", root.display(), RECORD);
            }
            return Ok(Course { root });
        }
        let here = std::env::current_dir().context("the current folder is gone")?;
        let root = here.ancestors().find(|folder| has_record(folder));
        let root = root.with_context(|| {
            format!(
                "no {} in {} or above it: run this inside the repository, or name it with --root",
                RECORD,
                here.display()
            )
        })?;
        Ok(Course { root: root.to_path_buf() })
    }

    /// The text of a file, named from the root, with `\n` line ends.
    pub fn read(&self, file: &str) -> Result<String> {
        let text = stub::read(&self.root, file).map_err(Error::msg)?;
        Ok(text.replace("\r\n", "\n"))
    }

    pub fn has(&self, file: &str) -> bool {
        self.root.join(file).is_file()
    }

    /// The names of the files in a folder that end in `extension`, without it, sorted. A missing folder has none.
    pub fn names(&self, folder: &str, extension: &str) -> Result<Vec<String>> {
        let path = self.root.join(folder);
        if !path.is_dir() {
            return Ok(Vec::new());
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(&path).with_context(|| format!("cannot list {folder}"))? {
            let file = entry?.file_name();
            if let Some(name) = file.to_str().and_then(|file| file.strip_suffix(extension)) {
                names.push(name.to_string());
            }
        }
        names.sort();
        Ok(names)
    }

    /// The chapters that have a stub, in order.
    pub fn chapters(&self) -> Result<Vec<Chapter>> {
        Ok(self.names("exercises", ".rs")?.into_iter().map(|name| Chapter { name }).collect())
    }
}
