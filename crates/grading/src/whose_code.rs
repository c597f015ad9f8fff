//! Whose code the checks ran on, said by the names in the list of green checks; and that it is the code on disk.

use std::fs;

use page_by_page::chapters::{self, CompiledChapter, Source};
use page_by_page::english::listed;

/// The chapter whose grader this program is, by its file, `target/debug/deps/ch07_rewind-0b1c2d`; `None` if it is none.
pub fn grader() -> Option<&'static CompiledChapter> {
    let program = std::env::current_exe().ok()?;
    let name = program.file_stem()?.to_str()?.rsplit_once('-')?.0;
    chapters::all().iter().find(|chapter| chapter.name == name)
}

/// Compares the reader's file of a chapter with the text that was compiled.
pub fn assert_as_on_disk(name: &str) {
    let chapter = chapters::all().iter().find(|chapter| chapter.name == name).expect("a chapter of the book");
    let file = format!("exercises/{name}.rs");
    let on_disk = fs::read(crate::root().join(&file));
    match on_disk {
        Ok(text) if text == chapter.exercise.as_bytes() => {
            if chapter.source == Source::Yours {
                crate::green_record::note_at_end(chapter);
                refuse_work_in_debug_assert(chapter);
            }
        }
        Ok(_) => panic!(
            "the checks ran on older code: {file} is no longer what was compiled\n\
             cargo looks at dates, and does not see a file that came with an old one, by `cp -p` or out of an archive\n\
             next: `touch {file}`, then run the checks again"
        ),
        Err(error) => panic!("{file} was compiled, but cannot be read now: {error}"),
    }
}

/// Fails if a call does its work within a `debug_assert!` of the reader: `debug_assert_eq!(pool.free(page), Ok(()))`.
/// Looked for are the methods with `&mut self` of this chapter and of those that it depends on, but for `insert` and
/// `remove`: an assertion may have a set of its own.
fn refuse_work_in_debug_assert(chapter: &CompiledChapter) {
    let (name, text) = (chapter.name, chapter.exercise);
    let is_listed = |other: &&CompiledChapter| chapter.depends_on.contains(&other.number);
    let functions = chapters::all().iter().filter(is_listed).flat_map(|other| other.exercise.split("fn ").skip(1));
    let works: Vec<&str> = functions
        .filter(|function| !function.split('{').next().unwrap_or_default().contains("-> &mut"))
        .filter_map(|function| function.split_once("(&mut self").map(|(name, _)| name))
        .filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_') && !["insert", "remove"].contains(name))
        .collect();
    for (at, _) in text.match_indices("debug_assert") {
        let (line, assertion) = (text[..at].lines().count(), text[at..].split(';').next().unwrap_or_default());
        let is_comment = text[..at].lines().last().is_some_and(|line| line.contains("//"));
        if let Some(work) = works.iter().find(|work| !is_comment && assertion.contains(&format!(".{work}("))) {
            panic!(
                "exercises/{name}.rs:{line}: a `debug_assert!` calls `{work}`, and a release build leaves it out\n\
                 next: make the call before it, and assert what came of it"
            );
        }
    }
}

/// A note for the end of a failure: which of the chapters that this grader depends on are the reader's own. A mistake in
/// one of them may show here first. `None` if all are the reference's.
pub fn yours_too() -> Option<String> {
    note_on(grader()?, chapters::all())
}

pub fn note_on(grader: &CompiledChapter, chapters: &[CompiledChapter]) -> Option<String> {
    let is_listed = |chapter: &&CompiledChapter| grader.depends_on.contains(&chapter.number);
    let is_yours = |chapter: &&CompiledChapter| chapter.source == Source::Yours && chapter.number != grader.number;
    let numbers: Vec<usize> =
        chapters.iter().filter(is_listed).filter(is_yours).map(|chapter| chapter.number).collect();
    match &numbers[..] {
        [] => None,
        [number] => Some(format!("chapter {number} is yours too: if its checks are not green, start there")),
        several => {
            let several = listed(several);
            Some(format!("chapters {several} are yours too: if their checks are not green, start there"))
        }
    }
}

/// Says why checks fail that need a chapter which is an untouched stub.
pub fn refuse_a_stub(name: &str) {
    panic!(
        "this chapter depends on {name}, which is not started: whatever needs it ends in a todo!\n\
         next: write exercises/{name}.rs first, or add `--features solution` to run on the reference there"
    );
}
