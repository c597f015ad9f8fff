//! What keeps a wrong answer red: two files that stop insta from accepting it, and snapshots that a test reads.

use std::path::Path;

use anyhow::Result;
use page_by_page_course::source::file_names;

use crate::check::Report;
use crate::files::read;

pub const SNAPSHOTS: &str = "tests/snapshots";

/// Variables that `.cargo/config.toml` sets for every run of cargo, with what would happen otherwise.
const VARIABLES: [(&str, &str, &str); 6] = [
    ("INSTA_UPDATE", "no", "the environment makes wrong work pass"),
    ("INSTA_FORCE_PASS", "0", "the environment makes wrong work pass"),
    ("INSTA_FORCE_UPDATE", "0", "the environment makes wrong work pass"),
    ("INSTA_FORCE_UPDATE_SNAPSHOTS", "0", "the environment makes wrong work pass"),
    ("PAGE_BY_PAGE_SNAPSHOTS", "kept", "the checks would take this file for one that does not count"),
    ("RUST_BACKTRACE", "0", "a backtrace would bury what a check says"),
];

/// Files, the lines that each must hold, and what would happen otherwise.
pub fn held() -> Vec<(&'static str, String, &'static str)> {
    let insta = (".config/insta.yaml", "behavior:\n  update: no".into(), "a wrong run leaves a snapshot to accept");
    let variables = VARIABLES.map(|(name, value, otherwise)| {
        (".cargo/config.toml", format!("{name} = {{ value = \"{value}\", force = true }}"), otherwise)
    });
    [insta].into_iter().chain(variables).collect()
}

pub fn check(root: &Path, report: &mut Report) -> Result<()> {
    for (file, lines, otherwise) in held() {
        let text = read(root, file).unwrap_or_default();
        if !format!("\n{text}").contains(&format!("\n{lines}\n")) {
            report.add(file, format!("must hold `{lines}`: otherwise {otherwise}"));
        }
    }
    let mut tests = String::new();
    for folder in ["tests", "tests/engine"] {
        for test in file_names(root, folder, ".rs") {
            tests.push_str(&read(root, &format!("{folder}/{test}.rs"))?);
        }
    }
    for name in file_names(root, SNAPSHOTS, ".snap") {
        if !tests.contains(&format!("\"{name}\"")) {
            report.add(format!("{SNAPSHOTS}/{name}.snap"), format!("no test in tests/ names \"{name}\""));
        }
    }
    Ok(())
}
