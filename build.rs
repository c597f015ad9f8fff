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

#[path = "tools/course/src/stub.rs"]
mod stub;

use std::path::Path;

const RECORD: &str = "exercises/untouched.txt";

fn main() {
    println!("cargo::rerun-if-changed=exercises");
    println!("cargo::rustc-check-cfg=cfg(reference, values(any()))");
    println!("cargo::rustc-check-cfg=cfg(unstarted, values(any()))");
    println!("cargo::rustc-check-cfg=cfg(written, values(any()))");

    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let root = Path::new(&root);
    let record = stub::read(root, RECORD).unwrap_or_else(|problem| {
        println!("cargo::error={problem}");
        String::new()
    });
    let with_solutions = std::env::var_os("CARGO_FEATURE_SOLUTION").is_some();
    for line in record.lines().filter(|line| !line.starts_with('#')) {
        let (chapter, state) = match read(root, line) {
            Ok(found) => found,
            Err(problem) => {
                println!("cargo::error={problem}");
                continue;
            }
        };
        match state {
            State::Untouched if with_solutions => println!("cargo::rustc-cfg=reference=\"{chapter}\""),
            State::Untouched => println!("cargo::rustc-cfg=unstarted=\"{chapter}\""),
            State::Begun | State::Written => {}
        }
        if state == State::Written || state == State::Untouched && with_solutions {
            println!("cargo::rustc-cfg=written=\"{chapter}\"");
        }
    }
}

/// How far a reader's file has come.
#[derive(PartialEq)]
enum State {
    /// The stub as it was handed out.
    Untouched,
    /// Changed, with a `todo!` left.
    Begun,
    /// No `todo!` left.
    Written,
}

/// The chapter of a line of the record, and how far the reader's file has come.
fn read<'a>(root: &Path, line: &'a str) -> Result<(&'a str, State), String> {
    let (hash, chapter) = line.split_once("  ").ok_or_else(|| {
        format!("{RECORD}: `{line}` is not `hash  chapter`: restore the file with `git checkout {RECORD}`")
    })?;
    let file = format!("exercises/{chapter}.rs");
    let text = stub::read(root, &file)?;
    if let Some((line, problem)) = stub::refused(&text) {
        return Err(format!("{file}:{line}: {problem}"));
    }
    let state = match stub::fingerprint(&text) == hash {
        true => State::Untouched,
        false if stub::code(&text).contains("todo!") => State::Begun,
        false => State::Written,
    };
    Ok((chapter, state))
}
