//! Decides, chapter by chapter, whose code is compiled.
//!
//! `exercises/untouched.txt` records a hash of every stub as it is handed out. A stub that still has its hash has not
//! been started. For each such chapter, this script sets
//!
//! - `cfg(reference = "chNN_name")` with `--features solution`: `src/chapters.rs` takes it from `solutions/`;
//! - `cfg(unstarted = "chNN_name")` without: its grader is ignored, with the reason.
//!
//! Where no `todo!` is left in what is compiled, the reader's or the reference's, it sets `cfg(written = "chNN_name")`: what
//! needs several chapters, as the commands do, is tested on them.
//!
//! A file that cannot be compiled fairly stops the build, with a line that says what to do.

use std::path::Path;

use page_by_page_course::chapters::{self, Chapter, State};
use page_by_page_course::stub;

fn main() {
    println!("cargo::rerun-if-changed=exercises");
    println!("cargo::rustc-check-cfg=cfg(reference, values(any()))");
    println!("cargo::rustc-check-cfg=cfg(unstarted, values(any()))");
    println!("cargo::rustc-check-cfg=cfg(written, values(any()))");

    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let root = Path::new(&root);
    let chapters = chapters::all(root).unwrap_or_else(|problem| {
        println!("cargo::error={problem}");
        Vec::new()
    });
    let with_solutions = std::env::var_os("CARGO_FEATURE_SOLUTION").is_some();
    for chapter in chapters {
        let state = match state(root, &chapter) {
            Ok(state) => state,
            Err(problem) => {
                println!("cargo::error={problem}");
                continue;
            }
        };
        let name = &chapter.name;
        match state {
            State::Untouched if with_solutions => println!("cargo::rustc-cfg=reference=\"{name}\""),
            State::Untouched => println!("cargo::rustc-cfg=unstarted=\"{name}\""),
            State::Begun | State::Written => {}
        }
        if state == State::Written || state == State::Untouched && with_solutions {
            println!("cargo::rustc-cfg=written=\"{name}\"");
        }
    }
}

/// How far the reader's file has come, if it may be compiled.
fn state(root: &Path, chapter: &Chapter) -> Result<State, String> {
    let exercise = chapter.read(root)?;
    match stub::refused(&exercise.text) {
        Some((line, problem)) => Err(format!("{}:{line}: {problem}", chapter.exercise())),
        None => Ok(exercise.state),
    }
}
