//! What keeps a wrong answer red: two files that stop insta from accepting it, and snapshots that a test reads.

use std::path::Path;

use anyhow::Result;

use crate::check::Report;
use crate::files::{names, read};

pub const SNAPSHOTS: &str = "tests/snapshots";

const ACCEPTED: &str = "the environment makes wrong work pass";

/// Lines that a file must hold, and what would happen without.
pub const HELD: [(&str, &str, &str); 7] = [
    (".config/insta.yaml", "behavior:\n  update: no", "a wrong run leaves a snapshot to accept"),
    (".cargo/config.toml", "INSTA_UPDATE = { value = \"no\", force = true }", ACCEPTED),
    (".cargo/config.toml", "INSTA_FORCE_PASS = { value = \"0\", force = true }", ACCEPTED),
    (".cargo/config.toml", "INSTA_FORCE_UPDATE = { value = \"0\", force = true }", ACCEPTED),
    (".cargo/config.toml", "INSTA_FORCE_UPDATE_SNAPSHOTS = { value = \"0\", force = true }", ACCEPTED),
    (
        ".cargo/config.toml",
        "PAGE_BY_PAGE_SNAPSHOTS = { value = \"kept\", force = true }",
        "the checks would take this file for one that does not count",
    ),
    (
        ".cargo/config.toml",
        "RUST_BACKTRACE = { value = \"0\", force = true }",
        "a backtrace would bury what a check says",
    ),
];

pub fn check(root: &Path, report: &mut Report) -> Result<()> {
    for (file, lines, otherwise) in HELD {
        let text = read(root, file).unwrap_or_default();
        if !format!("\n{text}").contains(&format!("\n{lines}\n")) {
            report.add(file, format!("must hold `{lines}`: otherwise {otherwise}"));
        }
    }
    let mut tests = String::new();
    for folder in ["tests", "tests/engine"] {
        for test in names(root, folder, ".rs") {
            tests.push_str(&read(root, &format!("{folder}/{test}.rs"))?);
        }
    }
    for name in names(root, SNAPSHOTS, ".snap") {
        if !tests.contains(&format!("\"{name}\"")) {
            report.add(format!("{SNAPSHOTS}/{name}.snap"), format!("no test in tests/ names \"{name}\""));
        }
    }
    Ok(())
}
