//! Decides, chapter by chapter, whose code is compiled.
//!
//! `exercises/untouched.txt` records a hash of every stub as it is handed out. A stub that still has its hash has not
//! been started. For each such chapter, this script sets
//!
//! - `cfg(reference = "chNN_name")` with `--features solution`: `src/chapters.rs` takes it from `solutions/`;
//! - `cfg(unstarted = "chNN_name")` without: its grader is ignored, with the reason.
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

    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let root = Path::new(&root);
    let record = stub::read(root, RECORD).unwrap_or_else(|problem| {
        println!("cargo::error={problem}");
        String::new()
    });
    let with_solutions = std::env::var_os("CARGO_FEATURE_SOLUTION").is_some();
    for line in record.lines().filter(|line| !line.starts_with('#')) {
        match is_untouched(root, line) {
            Ok((chapter, true)) if with_solutions => println!("cargo::rustc-cfg=reference=\"{chapter}\""),
            Ok((chapter, true)) => println!("cargo::rustc-cfg=unstarted=\"{chapter}\""),
            Ok((_, false)) => {}
            Err(problem) => println!("cargo::error={problem}"),
        }
    }
}

/// The chapter of a line of the record, and whether its stub is as it was handed out.
fn is_untouched<'a>(root: &Path, line: &'a str) -> Result<(&'a str, bool), String> {
    let (hash, chapter) = line.split_once("  ").ok_or_else(|| {
        format!("{RECORD}: `{line}` is not `hash  chapter`: restore the file with `git checkout {RECORD}`")
    })?;
    let file = format!("exercises/{chapter}.rs");
    let text = stub::read(root, &file)?;
    match stub::refused(&text) {
        Some((line, problem)) => Err(format!("{file}:{line}: {problem}")),
        None => Ok((chapter, stub::fingerprint(&text) == hash)),
    }
}
