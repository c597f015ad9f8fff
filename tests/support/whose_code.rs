//! Whose code the checks ran on, said by the names in the list of green checks; and that it is the code on disk.

use std::fs;

use page_by_page::chapters::{self, Chapter, Source};

/// A check for each chapter that a grader stands on, its own last. Its name says whose code that is; it fails if the
/// reader's file is no longer what was compiled.
///
/// `whose_code! { ch04_page_pool = "ch04_page_pool", ch05_page_table = "ch05_page_table" }`: the name of a module and a
/// `cfg` cannot be made from one another, so each is written out. `cargo course check` compares them.
macro_rules! whose_code {
    ($($chapter:ident = $name:literal),+ $(,)?) => {
        mod whose_code {
            /// The chapters that these checks stand on, their own last.
            pub const STANDS_ON: &[&str] = &[$($name),+];

            $(mod $chapter {
                #[cfg(not(any(reference = $name, unstarted = $name)))]
                #[test]
                #[cfg_attr(miri, ignore = "Miri reads no files")]
                fn is_yours() {
                    crate::support::whose_code::assert_as_on_disk($name);
                }

                #[cfg(reference = $name)]
                #[test]
                #[cfg_attr(miri, ignore = "Miri reads no files")]
                fn is_the_reference_not_yours() {
                    crate::support::whose_code::assert_as_on_disk($name);
                }

                #[cfg(unstarted = $name)]
                #[test]
                fn is_not_started() {
                    crate::support::whose_code::refuse_a_stub($name);
                }
            })+
        }
    };
}

/// Compares the reader's file of a chapter with the text that was compiled.
pub fn assert_as_on_disk(name: &str) {
    let chapter = chapters::all().iter().find(|chapter| chapter.name == name).expect("a chapter of the book");
    let file = format!("exercises/{name}.rs");
    let on_disk = fs::read(super::root().join(&file));
    match on_disk {
        Ok(text) if text == chapter.exercise.as_bytes() => {}
        Ok(_) => panic!(
            "the checks ran on older code: {file} is no longer what was compiled\n\
             cargo looks at dates, and does not see a file that came with an old one, by `cp -p` or out of an archive\n\
             next: `touch {file}`, then run the checks again"
        ),
        Err(error) => panic!("{file} was compiled, but cannot be read now: {error}"),
    }
}

/// A note for the end of a failure: which of the chapters that the grader stands on are the reader's own. A mistake in one
/// of them may show here first. `None` if all are the reference's.
pub fn yours_too() -> Option<String> {
    note_on(crate::whose_code::STANDS_ON, env!("CARGO_CRATE_NAME"), chapters::all())
}

/// The same for a grader of this name that stands on these chapters.
pub fn note_on(stands_on: &[&str], name: &str, chapters: &[Chapter]) -> Option<String> {
    let is_listed = |chapter: &&Chapter| stands_on.contains(&chapter.name);
    let is_yours = |chapter: &&Chapter| chapter.source == Source::Yours && chapter.name != name;
    let numbers: Vec<String> =
        chapters.iter().filter(is_listed).filter(is_yours).map(|chapter| chapter.number.to_string()).collect();
    match &numbers[..] {
        [] => None,
        [number] => Some(format!("chapter {number} is yours too: if its checks are not green, start there")),
        [others @ .., last] => {
            let others = others.join(", ");
            Some(format!("chapters {others} and {last} are yours too: if their checks are not green, start there"))
        }
    }
}

/// Says why checks fail that need a chapter which is an untouched stub.
pub fn refuse_a_stub(name: &str) {
    panic!(
        "this chapter stands on {name}, which is not started: whatever needs it ends in a todo!\n\
         next: write exercises/{name}.rs first, or add `--features solution` to run on the reference there"
    );
}
