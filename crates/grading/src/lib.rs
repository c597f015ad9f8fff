//! What the graders share: rows that can be recognised, an oracle, transcripts, stories.
//!
//! But for [`caches`], [`paged`] and [`pools`], nothing here uses a chapter's code: no grader checks a chapter against
//! itself.

/// Like `assert_eq!(yours, expected, "what is compared")`, but the failure says which is which. It also says what is
/// compared if the learner's code panics instead.
#[macro_export]
macro_rules! same {
    ($yours:expr, $expected:expr, $($what:tt)+) => {{
        let call = $crate::calls::enter_call(format!($($what)+));
        match (&$yours, &$expected) {
            (yours, expected) if yours == expected => {}
            (yours, expected) => {
                let what = format!($($what)+);
                panic!("{what}\n  expected: {expected:?}\n  yours:    {yours:?}")
            }
        }
        drop(call);
    }};
}

/// A test for each name, which makes a value and has a function check it: `tests_on! { &mut cache(); name = check }`.
#[macro_export]
macro_rules! tests_on {
    ($made:expr; $($name:ident = $check:path),+ $(,)?) => {
        $(#[test]
        fn $name() {
            $check($made);
        })+
    };
}

/// The head of a grader. While its chapter is not started, it is one check that is ignored, with the reason. Later it
/// is a check for each chapter that the grader depends on, whose name says whose code that is, and which fails if the
/// reader's file is no longer what was compiled. The build script writes them, in a file with the grader's name.
#[macro_export]
macro_rules! grader {
    () => {
        include!(concat!(env!("OUT_DIR"), "/", env!("CARGO_CRATE_NAME"), ".rs"));
    };
}

pub mod attention;
pub mod caches;
pub mod calls;
pub mod checkpoints;
pub mod disk;
pub mod drafts;
pub mod green_record;
pub mod history;
pub mod hostile;
pub mod in_place;
pub mod limits;
pub mod oracle;
pub mod packed;
pub mod paged;
pub mod pools;
pub mod prelude;
pub mod rows;
pub mod scripted_model;
pub mod snapshot_guard;
pub mod story;
pub mod transcript;
pub mod whose_code;
pub mod words;

use std::path::Path;

/// The repository. A test's own package may be a folder in it.
pub fn root() -> &'static Path {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.find(|folder| folder.join("exercises").is_dir()).expect("a folder with exercises/")
}
