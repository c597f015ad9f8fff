//! `generate --save-cache` and `--load-cache`, over several runs and where the disk is full.

use serde_json::json;

use crate::program::{Run, limited, ok};

#[test]
fn a_story_is_continued_where_it_was_left() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("story.cache").to_str().unwrap().to_string();
    let generated = |more: &[&str]| ok(&[&["generate", "--json", "--temperature=0"], more].concat()).json();
    let start = generated(&["--max-new-tokens=30", "--kv=paged", "--save-cache", &file]);
    let prompt = format!("Once upon a time{}", start["text"].as_str().unwrap());
    let long = generated(&["--max-new-tokens=45"]);
    for kv in ["flat", "contiguous", "paged"] {
        let more = ["--max-new-tokens=15", "--kv", kv, &prompt];
        let plain = generated(&more);
        let continued = generated(&[&more[..], &["--load-cache", &file]].concat());
        assert_eq!(continued["tokens"], plain["tokens"], "{kv}");
        let both = [&start, &continued].map(|part| part["text"].as_str().unwrap()).concat();
        assert_eq!(both, long["text"], "{kv}");
        assert_eq!(continued["restored"], json!({ "saved": 34, "kept": 34 }), "{kv}");
        let rows = [&plain, &continued].map(|run| run["counters"]["rows_projected"].as_u64().unwrap());
        assert_eq!(rows, [49, 49 - 34], "{kv}");
    }
}

/// A limit on the length of files stands in for a disk that is full.
#[cfg(unix)]
#[test]
fn a_story_is_told_even_if_its_cache_cannot_be_saved() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("story.cache");
    std::fs::write(&file, "precious").unwrap();
    let story = ["generate", "--max-new-tokens", "30"];
    let whole = ok(&story).stdout;
    let says = format!("error: the output is complete, but its cache was not saved: {}: ", file.display());
    for json in [&["--json"][..], &[]] {
        let mut program = limited("-f 8");
        let run = Run::of(program.args(story).args(json).arg("--save-cache").arg(&file).output().unwrap());
        assert_eq!(run.code, Some(1));
        let shown = match json.is_empty() {
            false => format!("Once upon a time{}\n", run.json()["text"].as_str().unwrap()),
            true => run.stdout,
        };
        assert_eq!(shown, whole);
        assert!(run.stderr.lines().last().unwrap().starts_with(&says), "{}", run.stderr);
        assert_eq!(!json.is_empty(), run.stderr.lines().count() == 1, "the costs are reported: {}", run.stderr);
        let names: Vec<_> = std::fs::read_dir(place.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!((names, std::fs::read(&file).unwrap()), (vec!["story.cache".into()], b"precious".into()));
    }
}
