//! The book's figures: which chapters' code each runs, and the line under it that says whose code it was recorded from.
//!
//! The tool for figures records them, the book's tool puts those of the reader's code into the reader's copy.

use std::path::Path;

use crate::{chapters, source};

/// The code of the figures, a file each, from the root of the repository.
pub const CODE: &str = "tools/figures/src/figures";

/// The names of all figures, sorted.
pub fn all(root: &Path) -> Vec<String> {
    source::file_names(root, CODE, ".rs")
}

pub fn depends_on(root: &Path, figure: &str) -> Result<Vec<usize>, String> {
    chapters::depends_on(root, &format!("{CODE}/{figure}.rs"))
}

/// A fragment with a line under its caption. `note`: HTML, on one line.
pub fn with_note(fragment: &str, note: &str) -> String {
    const CAPTION_END: &str = "</figcaption>\n";
    let Some(at) = fragment.find(CAPTION_END).map(|at| at + CAPTION_END.len()) else {
        return fragment.to_string();
    };
    let (before, after) = fragment.split_at(at);
    format!("{before}<p class=\"pbp-whose\">{note}</p>\n{after}")
}

/// `chapter 5`, `chapters 5 and 6`
pub fn chapters(numbers: &[usize]) -> String {
    let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
    match &numbers[..] {
        [one] => format!("chapter {one}"),
        [first @ .., last] => format!("chapters {} and {last}", first.join(", ")),
        [] => "no chapter".into(),
    }
}

/// The text as HTML, for running text and attributes.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;").replace('>', "&gt;")
}
