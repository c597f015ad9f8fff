//! A page as mdBook sees it, with every include in place, that still knows where each line came from.

use std::path::{Path, PathBuf};

use page_by_page_course::includes::Expanded;

use crate::contents::Contents;
use crate::finding::{Findings, Place};

pub struct Page {
    /// The Markdown file, from the repository root: `book/src/ch02.md`.
    pub file: PathBuf,
    /// Includes expanded.
    pub text: String,
    pub contents: Contents,
    /// The files that the page includes, from the repository root.
    pub includes: Vec<PathBuf>,
    expanded: Expanded,
}

impl Page {
    pub fn read(root: &Path, file: &Path, findings: &mut Findings) -> std::io::Result<Self> {
        let mut expanded = Expanded::read(root, file)?;
        for (place, problem) in &expanded.problems {
            findings.add(place.clone(), &problem.what, &problem.next_step);
        }
        let (text, includes) = (std::mem::take(&mut expanded.text), std::mem::take(&mut expanded.files));
        Ok(Self { file: file.to_path_buf(), contents: Contents::read(&text), text, includes, expanded })
    }

    /// Where the byte `offset` of the expanded text was written.
    pub fn place(&self, offset: usize) -> Place {
        let place = self.expanded.place(offset);
        if place.file.as_os_str().is_empty() { Place::new(&self.file, 1) } else { place }
    }

    /// The place of a line (counted from 1) of the expanded text.
    pub fn place_of_line(&self, line: usize) -> Place {
        let before = self.text.split_inclusive('\n').take(line.saturating_sub(1));
        self.place(before.map(str::len).sum())
    }

    /// Where `needle` last occurs; the first line of the page if it does not.
    pub fn find_last(&self, needle: &str) -> Place {
        self.place(self.text.rfind(needle).unwrap_or(0))
    }
}
