//! A page as mdBook sees it, with every include in place, that still knows where each line came from.

use std::path::{Path, PathBuf};

use page_by_page_course::includes::Expanded;

use crate::contents::Contents;
use crate::finding::{Findings, Place};

pub struct Page {
    /// The Markdown file, from the repository root: `book/src/ch02.md`.
    pub file: PathBuf,
    pub expanded: Expanded,
    pub contents: Contents,
}

impl Page {
    pub fn read(root: &Path, file: &Path, findings: &mut Findings) -> std::io::Result<Self> {
        let expanded = Expanded::read(root, file)?;
        for (place, problem) in &expanded.problems {
            findings.add(place.clone(), &problem.what, &problem.next_step);
        }
        Ok(Self { file: file.to_path_buf(), contents: Contents::read(&expanded.text), expanded })
    }

    /// The place of a line (counted from 1) of the expanded text.
    pub fn place_of_line(&self, line: usize) -> Place {
        let before = self.expanded.text.split_inclusive('\n').take(line.saturating_sub(1));
        self.expanded.place(before.map(str::len).sum())
    }
}
