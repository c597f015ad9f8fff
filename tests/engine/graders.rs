//! What the graders share is checked itself: a check that cannot fail is worth nothing.

use std::ffi::OsString;

use grading::calls::whose_panic;
use grading::oracle::runs;
use grading::snapshot_guard::{KEPT, accepting};
use grading::whose_code::note_on;
use page_by_page::chapters::{self, CompiledChapter, Source};

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
fn a_panic_in_an_earlier_chapter_is_not_called_the_readers() {
    let told = |grader, file: &str| {
        let is_grader = |chapter: &&CompiledChapter| chapter.name == grader;
        whose_panic(chapters::all().iter().find(is_grader), file)
    };
    let reference = "the reference of chapter 2 panicked at what your code gave it, or at the state that it left";
    assert_eq!(told("ch07_rewind", "solutions/ch02_flat.rs"), reference);
    let own = "your code of chapter 2 panicked, at what this chapter gave it or at the state that it left";
    assert_eq!(told("ch07_rewind", "exercises/ch02_flat.rs"), own);
    assert_eq!(told("ch07_rewind", "exercises\\ch07_rewind.rs"), "your code panicked");
    assert_eq!(told("ch07_rewind", "solutions/ch07_rewind.rs"), "your code panicked");
    // What is no grader has no chapter of its own.
    assert_eq!(told("batch", "exercises/ch02_flat.rs"), "your code panicked");
    assert_eq!(told("ch07_rewind", "src/generation/sampler.rs"), "the engine panicked at what your code gave it");
    for library in ["/rustc/1f2/library/alloc/src/vec/mod.rs", "library/core/src/slice.rs"] {
        assert_eq!(told("ch07_rewind", library), "your code made Rust's library panic");
    }
}

#[test]
fn chapters_that_are_the_readers_own_are_named() {
    let note = |yours: &[usize]| {
        let of = |chapter: &CompiledChapter| match yours.contains(&chapter.number) {
            true => CompiledChapter { source: Source::Yours, ..*chapter },
            false => CompiledChapter { source: Source::Reference, ..*chapter },
        };
        note_on(chapters::chapter(6), &chapters::all().iter().map(of).collect::<Vec<_>>())
    };
    assert_eq!(note(&[]), None);
    assert_eq!(note(&[6]), None, "the grader's own chapter");
    assert_eq!(note(&[1, 2, 6, 7]), None, "chapters that it does not depend on");
    assert_eq!(note(&[1, 5, 6]).as_deref(), Some("chapter 5 is yours too: if its checks are not green, start there"));
    assert_eq!(
        note(&[4, 5]).as_deref(),
        Some("chapters 4 and 5 are yours too: if their checks are not green, start there")
    );
}
