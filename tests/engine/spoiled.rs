//! Spoiled files: whatever is wrong with one, the error is one short line that names it and says what to do. Nothing
//! panics, and no length that a file claims is allocated.

use std::fmt::Display;

use page_by_page::model::Model;

use grading::checkpoints::Folder;
use grading::limits::allocated;

/// An error that a terminal shows on a few lines, whatever stands in the file.
#[track_caller]
pub fn assert_is_harmless(error: &str) {
    assert!(error.chars().count() < 1_000 && !error.contains(|c: char| c.is_control() || c == '\u{202e}'), "{error:?}");
}

/// Opens what must be refused, in an error with all of these words.
#[track_caller]
pub fn refused<T, E: Display>(open: impl FnOnce() -> Result<T, E>, words: &[&str]) {
    let (opened, memory) = allocated(|| open().map(drop));
    let error = opened.err().unwrap_or_else(|| panic!("not refused: {words:?}")).to_string();
    assert!(memory < 256 << 20, "{memory} bytes were asked for: {error}");
    assert_is_harmless(&error);
    for word in words {
        assert!(error.contains(word), "{word:?} is missing in:\n{error}");
    }
}

/// Spoils a copy of a golden checkpoint, which must then be refused.
#[track_caller]
pub fn model_refused(golden: &str, spoil: impl FnOnce(&Folder), words: &[&str]) {
    let folder = Folder::copy_of(golden);
    spoil(&folder);
    refused(|| Model::open(folder.path().as_ref()), words);
}
