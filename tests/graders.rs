//! What the graders share is checked itself: a check that cannot fail grades nobody.

#[macro_use]
mod support;

use std::ffi::OsString;

use support::keeping::{KEPT, accepting};
use support::oracle::runs;

#[test]
fn a_number_of_runs_is_at_least_one() {
    assert_eq!(runs(None, 20), Ok(0..20));
    assert_eq!(runs(Some("1".into()), 20), Ok(0..1));
    assert_eq!(runs(Some("1000".into()), 20), Ok(0..1000));
    for asked in ["0", "", "-1", "1.5", "many", "99999999999999999999"] {
        let refusal = runs(Some(asked.into()), 20).unwrap_err();
        assert!(refusal.starts_with(&format!("PAGE_BY_PAGE_SEEDS is {asked:?}: ")), "{refusal}");
    }
}

#[test]
fn outside_the_repository_nothing_may_accept_a_transcript() {
    let environment = |set: &'static [(&str, &str)]| {
        move |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| OsString::from(value))
    };
    for set in [
        &[("INSTA_UPDATE", "always")] as &'static [(&str, &str)],
        &[("INSTA_UPDATE", "new")],
        &[("INSTA_UPDATE", "no"), ("INSTA_FORCE_PASS", "1")],
        &[("INSTA_FORCE_UPDATE", "1")],
        &[("INSTA_FORCE_UPDATE_SNAPSHOTS", "1")],
    ] {
        let (name, value) = set[set.len() - 1];
        let problem = accepting(environment(set)).unwrap_or_default();
        assert!(problem.starts_with(&format!("{name}={value} in your environment ")), "{set:?}: {problem}");
        assert!(problem.ends_with(&format!("or `unset {name}`")), "{set:?}: {problem}");
    }
    assert_eq!(accepting(environment(&[])), None);
    assert_eq!(accepting(environment(&[("INSTA_UPDATE", ""), ("INSTA_FORCE_PASS", "0")])), None);
    // There the variables are what `.cargo/config.toml` or a maintainer's `--config` makes them.
    assert_eq!(accepting(environment(&[(KEPT, "kept"), ("INSTA_UPDATE", "always")])), None);
}

#[test]
fn cargo_keeps_the_snapshots_here() {
    support::keeping::assert_snapshots_are_kept();
}
