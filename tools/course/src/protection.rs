//! What keeps a wrong answer red: two files that stop insta from accepting it, and snapshots that a test reads.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::course::Course;
use crate::finding::Report;

const INSTA: &str = ".config/insta.yaml";
const CARGO: &str = ".cargo/config.toml";
pub const SNAPSHOTS: &str = "tests/snapshots";

pub fn check(course: &Course, report: &mut Report) -> Result<()> {
    check_insta(course, report)?;
    check_cargo(course, report)?;
    check_snapshots(course, report)
}

/// `behavior:` with `update: no` below it.
fn check_insta(course: &Course, report: &mut Report) -> Result<()> {
    let text = if course.has(INSTA) { course.read(INSTA)? } else { String::new() };
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
fn check_cargo(course: &Course, report: &mut Report) -> Result<()> {
    let text = if course.has(CARGO) { course.read(CARGO)? } else { String::new() };
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
fn check_snapshots(course: &Course, report: &mut Report) -> Result<()> {
    for file in files(course)? {
        if file.ends_with(".snap.new") || file.ends_with(".pending-snap") {
            report.add(file, 0, "a snapshot that waits to be accepted does not belong here: delete it");
        }
    }
    let mut tests = String::new();
    for test in course.names("tests", ".rs")? {
        tests.push_str(&course.read(&format!("tests/{test}.rs"))?);
    }
    for name in course.names(SNAPSHOTS, ".snap")? {
        if !tests.contains(&format!("\"{name}\"")) {
            report.add(format!("{SNAPSHOTS}/{name}.snap"), 0, format!("no test in tests/ names \"{name}\""));
        }
    }
    Ok(())
}

/// What git keeps, or would: tracked files, and new ones that are not ignored, from the root. Without git, what lies
/// in tests/snapshots.
fn files(course: &Course) -> Result<Vec<String>> {
    match listed_by_git(&course.root) {
        Some(files) => Ok(files),
        None => Ok(course.names(SNAPSHOTS, "")?.into_iter().map(|file| format!("{SNAPSHOTS}/{file}")).collect()),
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

#[cfg(test)]
mod tests {
    use crate::sample::Sample;

    #[test]
    fn unprotected_snapshots_are_found() {
        let sample = Sample::new();
        sample.replace(".config/insta.yaml", "update: no", "update: always");
        sample.expect(".config/insta.yaml: must hold");

        let sample = Sample::new();
        sample.replace(
            ".cargo/config.toml",
            "INSTA_UPDATE = { value = \"no\", force = true }",
            "INSTA_UPDATE = \"no\"",
        );
        sample.expect(".cargo/config.toml: must hold `INSTA_UPDATE = { value = \"no\", force = true }`");

        let sample = Sample::new();
        sample.remove(".cargo/config.toml");
        for (name, value, _) in super::FORCED {
            sample.expect(&format!(".cargo/config.toml: must hold `{name} = {{ value = \"{value}\", force = true }}`"));
        }
    }

    #[test]
    fn a_snapshot_that_nobody_reads_is_found() {
        let sample = Sample::new();
        sample.write("tests/snapshots/ch01_old.snap", "");
        sample.expect("tests/snapshots/ch01_old.snap: no test in tests/ names \"ch01_old\"");
    }

    #[test]
    fn a_snapshot_that_waits_is_found() {
        let sample = Sample::new();
        sample.write("tests/snapshots/ch01_sums.snap.new", "");
        sample.expect("tests/snapshots/ch01_sums.snap.new: a snapshot that waits");
    }
}
