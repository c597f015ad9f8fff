//! Decides, chapter by chapter, whose code is compiled.
//!
//! `exercises/untouched.txt` records a hash of every stub as it is handed out. A stub that still has its hash has not
//! been started. For each such chapter, this script sets
//!
//! - `cfg(reference = "chNN_name")` with `--features solution`: `src/chapters.rs` takes it from `solutions/`;
//! - `cfg(unstarted = "chNN_name")` without: its grader is ignored, with the reason.

use std::fs;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=exercises");
    println!("cargo::rustc-check-cfg=cfg(reference, values(any()))");
    println!("cargo::rustc-check-cfg=cfg(unstarted, values(any()))");

    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let exercises = Path::new(&root).join("exercises");
    let record = fs::read_to_string(exercises.join("untouched.txt"))
        .expect("exercises/untouched.txt is missing: restore it with `git checkout exercises/untouched.txt`");
    let with_solutions = std::env::var_os("CARGO_FEATURE_SOLUTION").is_some();
    for line in record.lines().filter(|line| !line.starts_with('#')) {
        let (hash, chapter) = line.split_once("  ").expect("a line of untouched.txt is `hash  chapter`");
        let stub = fs::read_to_string(exercises.join(format!("{chapter}.rs"))).unwrap_or_else(|_| {
            panic!("exercises/{chapter}.rs is missing: restore it with `git checkout exercises/{chapter}.rs`")
        });
        if fingerprint(&stub) == hash {
            let cfg = if with_solutions { "reference" } else { "unstarted" };
            println!("cargo::rustc-cfg={cfg}=\"{chapter}\"");
        }
    }
}

/// FNV-1a, 64 bits, of the text with `\n` line ends: git may have changed those.
fn fingerprint(text: &str) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in text.replace("\r\n", "\n").bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    format!("{hash:016x}")
}
