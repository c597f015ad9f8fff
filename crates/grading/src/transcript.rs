//! A transcript: one line for each operation, with what it did to the cache, held by a snapshot.

use std::fmt::Write as _;

use page_by_page::cache::{CacheError, KvCache, PageId};

use crate::calls::in_call;
use crate::oracle;
use crate::rows::{self, KINDS};
use crate::snapshot_guard::assert_snapshots_are_kept;
use crate::words::plural;

#[derive(Default)]
pub struct Transcript {
    lines: String,
}

impl Transcript {
    pub fn line(&mut self, line: impl AsRef<str>) {
        writeln!(self.lines, "{}", line.as_ref().trim_end()).unwrap();
    }

    /// Extends a cache and notes what it says of itself.
    pub fn extend(&mut self, cache: &mut dyn KvCache, n: usize) {
        let question = format!("extend({n}) on {}, in the transcript", plural(cache.len(), "token"));
        let outcome = outcome(&in_call(question, || cache.extend(n)));
        let usage = cache.usage();
        let (held, slots) = (plural(usage.tokens, "token"), plural(usage.slots, "slot"));
        let (call, copied) = (format!("extend({n})"), plural(usage.copied_tokens, "token"));
        self.line(format!("{call:<12} {outcome}: {held} in {slots}, {copied} copied"));
    }

    pub fn write(&mut self, cache: &mut dyn KvCache, tokens: &[usize]) {
        oracle::write(cache, tokens);
        let names: Vec<String> = tokens.iter().map(|token| format!("t{token}")).collect();
        self.line(format!("{:<12} {}", "write", names.join(" ")));
    }

    /// Gathers every layer and names each row.
    pub fn gather(&mut self, cache: &dyn KvCache) {
        let layout = cache.layout();
        for layer in 0..layout.n_layers {
            let question = format!("gather({layer}) of {}, in the transcript", plural(cache.len(), "token"));
            let (k, v) = in_call(question, || cache.gather(layer));
            for (kind, found) in KINDS.into_iter().zip([k, v]) {
                let names: Vec<String> =
                    found.chunks(layout.kv_width()).map(|row| rows::name(layout, row, layer, kind)).collect();
                self.line(format!("{:<12} {kind} {}", format!("gather({layer})"), names.join(" ")));
            }
        }
    }
}

/// Compares a transcript with the snapshot of this name in `tests/snapshots/`.
#[track_caller]
pub fn assert_transcript(name: &str, transcript: &Transcript) {
    assert_snapshots_are_kept();
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(crate::root().join("tests/snapshots"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.set_description("In a difference, lines with - are expected and lines with + are what your code did.");
    settings.bind(|| insta::assert_snapshot!(name, transcript.lines));
}

/// How a call went, in a few words: `done`, or why it was refused.
pub fn outcome(result: &Result<(), CacheError>) -> String {
    match result {
        Ok(()) => "done".into(),
        Err(error) => in_short(error),
    }
}

/// A refusal in a few words, for a line of a transcript.
pub fn in_short(error: &CacheError) -> String {
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
pub fn page_list(pages: &[PageId]) -> String {
    match pages {
        [] => "no pages".into(),
        pages => format!("pages {}", pages.iter().map(PageId::to_string).collect::<Vec<_>>().join(" ")),
    }
}
