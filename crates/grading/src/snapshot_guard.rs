//! Snapshots stay as they are, wherever the checks are run from.
//!
//! insta accepts a difference if a variable of the environment says so. `.cargo/config.toml` holds these variables at
//! harmless values, whatever the shell has; but cargo reads it only inside the repository. The file sets one variable
//! more, [`KEPT`]. Where that is missing, the others are looked at here.

use std::ffi::OsString;

/// Set by `.cargo/config.toml`, and so only where that file counts.
pub const KEPT: &str = "PAGE_BY_PAGE_SNAPSHOTS";

/// What makes insta accept a difference, each with the value that does not.
const ACCEPTING: [(&str, &str); 4] = [
    ("INSTA_UPDATE", "no"),
    ("INSTA_FORCE_PASS", "0"),
    ("INSTA_FORCE_UPDATE", "0"),
    ("INSTA_FORCE_UPDATE_SNAPSHOTS", "0"),
];

/// Panics if this environment would turn a wrong transcript green.
#[track_caller]
pub fn assert_snapshots_are_kept() {
    if let Some(problem) = accepting(|name| std::env::var_os(name)) {
        panic!("{problem}");
    }
}

/// What would turn a wrong transcript green, and what to do about it.
pub fn accepting(variable: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    if variable(KEPT).is_some() {
        return None;
    }
    ACCEPTING.iter().find_map(|(name, harmless)| {
        let value = variable(name).filter(|value| !value.is_empty() && value != harmless)?;
        Some(format!(
            "{name}={} in your environment tells insta to accept a wrong transcript; inside the repository, \
             .cargo/config.toml keeps it from that, but cargo was run from elsewhere\n\
             next: run cargo inside the repository, or `unset {name}`",
            value.to_string_lossy()
        ))
    })
}
