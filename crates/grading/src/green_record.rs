//! A run of `cargo test` in which all checks of a chapter are green leaves the reader's file, as it was compiled, in
//! `.page-by-page/green/`: `cargo learn list` counts it. A run in which one is red takes it away.
//!
//! Each grader writes a file of its own, so that several can run at once. That a file can't be written fails no check.

use std::fs;
use std::sync::Once;

use page_by_page::chapters::CompiledChapter;

use crate::{calls, limits};

/// What `cargo test` can be given after `--` without leaving out a check.
const ALL_THE_SAME: [&str; 5] = ["--nocapture", "--no-capture", "--show-output", "--quiet", "-q"];

/// Has the result of this program noted when it ends, if it is the grader of this chapter and runs all of its checks.
pub fn note_at_end(chapter: &CompiledChapter) {
    static NOTED: Once = Once::new();
    calls::listen();
    let is_whole = std::env::args().skip(1).all(|given| ALL_THE_SAME.contains(&given.as_str()));
    let is_own = crate::whose_code::grader().is_some_and(|grader| grader.number == chapter.number);
    if is_own && is_whole && !cfg!(miri) {
        NOTED.call_once(|| {
            // SAFETY: a function of the C library that std is linked with, on every system; `at_end` does not unwind.
            let _ = unsafe { atexit(at_end) };
        });
    }
}

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> i32;
}

/// Runs after libtest's last line, but not if the program was aborted: then nothing is known of the other checks.
extern "C" fn at_end() {
    let Some(chapter) = crate::whose_code::grader() else { return };
    let folder = crate::root().join(".page-by-page/green");
    let file = folder.join(format!("{}.rs", chapter.name));
    if limits::has_failed() {
        let _ = fs::remove_file(file);
    } else {
        let beside = folder.join(format!("{}.{}.new", chapter.name, std::process::id()));
        let written = fs::create_dir_all(&folder).and_then(|()| fs::write(&beside, chapter.exercise));
        let _ = written.and_then(|()| fs::rename(&beside, file)).map_err(|_| fs::remove_file(beside));
    }
}
