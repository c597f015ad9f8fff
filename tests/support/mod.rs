//! What the graders share: rows that can be recognised, an oracle, transcripts, stories.
//!
//! Nothing here uses a chapter's code, so that a grader never checks a chapter against itself.
#![allow(dead_code, unused_macros)]

/// Like `assert_eq!(yours, expected, "what was asked")`, but the failure says which is which. What was asked is told as
/// well if the learner's code panics instead of answering.
macro_rules! same {
    ($yours:expr, $expected:expr, $($what:tt)+) => {{
        let asking = $crate::support::asking::asking(format!($($what)+));
        match (&$yours, &$expected) {
            (yours, expected) if yours == expected => {}
            (yours, expected) => {
                let what = format!($($what)+);
                panic!("{what}\n  expected: {expected:?}\n  yours:    {yours:?}")
            }
        }
        drop(asking);
    }};
}

/// A test for each name, which makes a value and has a function check it: `tests_on! { &mut new_cache(); name = check }`.
macro_rules! tests_on {
    ($made:expr; $($name:ident = $check:path),+ $(,)?) => {
        $(#[test]
        fn $name() {
            $check($made);
        })+
    };
}

pub mod asking;
pub mod attention;
pub mod dense;
pub mod disk;
pub mod drafts;
pub mod in_place;
pub mod keeping;
pub mod limits;
pub mod oracle;
pub mod packed;
pub mod rows;
pub mod script;
pub mod story;
pub mod transcript;
pub mod words;
#[macro_use]
pub mod whose_code;

use std::path::Path;

/// The repository. A test's own package may be a folder in it.
pub fn root() -> &'static Path {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.find(|folder| folder.join("exercises").is_dir()).expect("a folder with exercises/")
}
