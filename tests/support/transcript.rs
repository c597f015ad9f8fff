//! A transcript: one line for each operation, with what it did to the cache, held by a snapshot.

use std::collections::HashMap;
use std::fmt::Write as _;

use page_by_page::cache::{CacheError, KvCache, PageId};
use page_by_page::chapters::{self, Chapter, Source};

use super::asking::asking;
use super::keeping::assert_snapshots_are_kept;
use super::oracle;
use super::rows::{self, KINDS};

/// The lines so far.
#[derive(Default)]
pub struct Transcript {
    lines: String,
    /// Beside a line, by its number from 1: what is printed if the transcript differs there.
    notes: HashMap<usize, String>,
}

impl Transcript {
    /// Adds a line.
    pub fn line(&mut self, line: impl AsRef<str>) {
        writeln!(self.lines, "{}", line.as_ref().trim_end()).unwrap();
    }

    /// What to tell beside the last line, if the transcript goes another way there. It is no part of the snapshot.
    pub fn note(&mut self, note: String) {
        self.notes.insert(self.lines.lines().count(), note);
    }

    /// Extends a cache and notes what it says of itself.
    pub fn extend(&mut self, cache: &mut dyn KvCache, n: usize) {
        let asking = asking(format!("extend({n}) on {} tokens, in the transcript", cache.len()));
        let outcome = outcome(&cache.extend(n));
        drop(asking);
        let usage = cache.usage();
        self.line(format!(
            "{:<12} {outcome}: {} tokens in {} slots, {} rows copied",
            format!("extend({n})"),
            usage.tokens,
            usage.slots,
            usage.rows_copied
        ));
    }

    /// Writes the rows of some tokens into every layer.
    pub fn write(&mut self, cache: &mut dyn KvCache, tokens: &[usize]) {
        oracle::write(cache, tokens);
        let names: Vec<String> = tokens.iter().map(|token| format!("t{token}")).collect();
        self.line(format!("{:<12} {}", "write", names.join(" ")));
    }

    /// Gathers every layer and names each row.
    pub fn gather(&mut self, cache: &dyn KvCache) {
        let layout = cache.layout();
        for layer in 0..layout.n_layers {
            let asking = asking(format!("gather({layer}) of {} tokens, in the transcript", cache.len()));
            let (k, v) = cache.gather(layer);
            drop(asking);
            for (kind, found) in KINDS.into_iter().zip([k, v]) {
                let names: Vec<String> =
                    found.chunks(layout.kv_width()).map(|row| rows::name(layout, row, layer, kind)).collect();
                self.line(format!("{:<12} {kind:<7} {}", format!("gather({layer})"), names.join(" ")));
            }
        }
    }
}

impl std::fmt::Display for Transcript {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.lines)
    }
}

/// Compares a transcript with the snapshot of this name in `tests/snapshots/`.
///
/// insta shows the difference; before it stands a line of ours, with the chapter's file and the transcript's line.
#[track_caller]
pub fn assert_transcript(name: &str, transcript: &Transcript) {
    assert_snapshots_are_kept();
    let file = format!("tests/snapshots/{name}.snap");
    let text = transcript.to_string();
    if let Some(line) = first_difference(&file, &text) {
        eprintln!("\n{}: the transcript {file} goes another way at its line {line}", code_of(name));
        if let Some(note) = transcript.notes.get(&line) {
            eprintln!("{note}");
        }
    }
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.set_description("In a difference, lines with - are expected and lines with + are what your code did.");
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// Where a transcript departs from the file of its snapshot: the line's number, from 1. `None` if nowhere, or if there is
/// no such file.
fn first_difference(file: &str, text: &str) -> Option<usize> {
    let snapshot = std::fs::read_to_string(super::root().join(file)).ok()?;
    let snapshot = snapshot.replace("\r\n", "\n");
    let expected = snapshot.splitn(3, "---\n").nth(2)?.trim_end();
    let (mut expected, mut found) = (expected.lines(), text.trim_end().lines());
    (1..).find_map(|line| match (expected.next(), found.next()) {
        (None, None) => Some(None),
        (expected, found) => (expected != found).then_some(Some(line)),
    })?
}

/// The file that the chapter of a transcript was compiled from: `ch06_interleaved` → `exercises/ch06_paged.rs`.
fn code_of(name: &str) -> String {
    let of_chapter = |chapter: &&Chapter| name.starts_with(&chapter.name[..4]);
    chapters::all().iter().find(of_chapter).map_or("your code".into(), |chapter| {
        let folder = if chapter.source == Source::Reference { "solutions" } else { "exercises" };
        format!("{folder}/{}.rs", chapter.name)
    })
}

/// How a call went, in a few words: `done`, or why it was refused.
pub fn outcome(result: &Result<(), CacheError>) -> String {
    match result {
        Ok(()) => "done".into(),
        Err(error) => told(error),
    }
}

/// A refusal in a few words, for a line of a transcript.
pub fn told(error: &CacheError) -> String {
    match error {
        CacheError::OutOfPages { needed, free } => format!("OutOfPages: {needed} needed, {free} free"),
        CacheError::OutOfSlots { needed, free, capacity } => {
            format!("OutOfSlots: {needed} needed, {free} of {capacity} free")
        }
        CacheError::DoubleFree(page) => format!("DoubleFree: page {page}"),
        CacheError::FreePage(page) => format!("FreePage: page {page}"),
        CacheError::ForeignPage { page, n_pages } => format!("ForeignPage: page {page} of {n_pages}"),
        CacheError::PastTheEnd { position, len } => format!("PastTheEnd: position {position} of {len}"),
        CacheError::PastTheStart { n, len } => format!("PastTheStart: {n} of {len}"),
        other => format!("{other:?}"),
    }
}

/// Pages by their numbers, in order: `pages 12 5 3`, `no pages`.
pub fn told_pages(pages: &[PageId]) -> String {
    match pages {
        [] => "no pages".into(),
        pages => format!("pages {}", pages.iter().map(PageId::to_string).collect::<Vec<_>>().join(" ")),
    }
}
