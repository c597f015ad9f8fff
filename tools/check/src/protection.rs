//! What keeps a wrong answer red: two files that stop insta from accepting it, and snapshots that a test reads.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::files::{names, read};
use crate::finding::Report;

const INSTA: &str = ".config/insta.yaml";
const CARGO: &str = ".cargo/config.toml";
pub const SNAPSHOTS: &str = "tests/snapshots";

pub fn check(root: &Path, report: &mut Report) -> Result<()> {
    check_insta(root, report)?;
    check_cargo(root, report)?;
    check_snapshots(root, report)
}

/// `behavior:` with `update: no` below it.
fn check_insta(root: &Path, report: &mut Report) -> Result<()> {
    let text = if root.join(INSTA).is_file() { read(root, INSTA)? } else { String::new() };
    let mut section = "";
    let mut holds = false;
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        if !line.trim().is_empty() && !line.starts_with(' ') {
            section = line.trim_end();
        } else if section == "behavior:" {
            holds |= line.trim().strip_prefix("update:").is_some_and(|value| value.trim().trim_matches('"') == "no");
        }
    }
    if !holds {
        let problem = "must hold `behavior:` with `update: no`: otherwise a wrong run leaves a snapshot to accept";
        report.add(INSTA, 0, problem);
    }
    Ok(())
}

/// What `.cargo/config.toml` forces, and what would happen without.
pub const FORCED: [(&str, &str, &str); 6] = [
    ("INSTA_UPDATE", "no", ACCEPTED),
    ("INSTA_FORCE_PASS", "0", ACCEPTED),
    ("INSTA_FORCE_UPDATE", "0", ACCEPTED),
    ("INSTA_FORCE_UPDATE_SNAPSHOTS", "0", ACCEPTED),
    ("PAGE_BY_PAGE_SNAPSHOTS", "kept", "the checks would take this file for one that does not count"),
    ("RUST_BACKTRACE", "0", "a backtrace would bury what a check says"),
];
const ACCEPTED: &str = "the environment makes wrong work pass";

/// All variables, forced.
fn check_cargo(root: &Path, report: &mut Report) -> Result<()> {
    let text = if root.join(CARGO).is_file() { read(root, CARGO)? } else { String::new() };
    let config: toml::Table = text.parse().with_context(|| format!("{CARGO} is not TOML"))?;
    for (name, value, otherwise) in FORCED {
        let set = config.get("env").and_then(|env| env.get(name));
        let holds = set.and_then(|set| set.get("value")?.as_str()) == Some(value)
            && set.and_then(|set| set.get("force")?.as_bool()) == Some(true);
        if !holds {
            let line = format!("{name} = {{ value = \"{value}\", force = true }}");
            report.add(CARGO, 0, format!("must hold `{line}` under [env]: otherwise {otherwise}"));
        }
    }
    Ok(())
}

/// No snapshot that waits to be accepted, and none that no test reads.
fn check_snapshots(root: &Path, report: &mut Report) -> Result<()> {
    for file in files(root)? {
        if file.ends_with(".snap.new") || file.ends_with(".pending-snap") {
            report.add(file, 0, "a snapshot that waits to be accepted does not belong here: delete it");
        }
    }
    let mut tests = String::new();
    for test in names(root, "tests", ".rs")? {
        tests.push_str(&read(root, &format!("tests/{test}.rs"))?);
    }
    for name in names(root, SNAPSHOTS, ".snap")? {
        if !tests.contains(&format!("\"{name}\"")) {
            report.add(format!("{SNAPSHOTS}/{name}.snap"), 0, format!("no test in tests/ names \"{name}\""));
        }
    }
    Ok(())
}

/// What git keeps, or would: tracked files, and new ones that are not ignored, from the root. Without git, what lies
/// in tests/snapshots.
fn files(root: &Path) -> Result<Vec<String>> {
    match listed_by_git(root) {
        Some(files) => Ok(files),
        None => Ok(names(root, SNAPSHOTS, "")?.into_iter().map(|file| format!("{SNAPSHOTS}/{file}")).collect()),
    }
}

/// Tracked files, and new ones that are not ignored; None if git does not know the folder.
pub fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]);
    let output = git.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut files: Vec<String> = text.split('\0').filter(|file| !file.is_empty()).map(String::from).collect();
    files.sort();
    files.dedup();
    Some(files)
}
