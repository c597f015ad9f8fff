//! `generate --save-cache` and `--load-cache`; and the benchmarks of chapter 7.

use std::process::Command;

use serde_json::{Value, json};

use crate::checkpoints::Folder;
use crate::commands::{json_of, whose};
use crate::program::{PROGRAM, Run, ok, run};

const KEEPING: [&str; 3] = ["flat", "contiguous", "paged"];

/// A folder with one file to come.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> String {
        self.0.path().join("story.cache").to_str().unwrap().into()
    }
}

fn generated(more: &[&str]) -> Value {
    json_of(&[&["generate", "--json", "--max-new-tokens", "30"], more].concat())
}

#[test]
fn a_loaded_cache_changes_no_token_and_saves_rows() {
    let whole = generated(&[]);
    for from in KEEPING {
        let place = Place::new();
        let first = generated(&["--kv", from, "--save-cache", &place.file()]);
        // The prompt has 5 tokens; the newest of the 30 new ones has not gone through the model.
        assert_eq!(first["saved"], json!({ "file": place.file(), "tokens": 34 }));
        assert_eq!((&first["tokens"], first.get("restored")), (&whole["tokens"], None));
        for to in KEEPING {
            let again = generated(&["--kv", to, "--load-cache", &place.file()]);
            assert_eq!((&again["text"], &again["tokens"]), (&whole["text"], &whole["tokens"]), "{from} to {to}");
            assert_eq!(again["restored"], json!({ "saved": 34, "kept": 4 }), "{from} to {to}");
            // Without the 4 that were restored.
            assert_eq!(again["counters"]["rows_projected"], 34 - 4, "{from} to {to}");
            assert_eq!(again["counters"]["tokens"], 34, "{from} to {to}");
            assert_eq!(again.get("saved"), None);
        }
    }
}

#[test]
fn a_story_is_continued_where_it_was_left() {
    let place = Place::new();
    let start = generated(&["--temperature", "0", "--kv", "paged", "--save-cache", &place.file()]);
    let text = format!("Once upon a time{}", start["text"].as_str().unwrap());
    let long = json_of(&["generate", "--json", "--temperature", "0", "--max-new-tokens", "45"]);
    for kv in KEEPING {
        // A text is not always cut into tokens as it was written.
        let more = ["--temperature", "0", "--kv", kv, "--max-new-tokens", "15"];
        let plain = json_of(&[&["generate", &text, "--json"], &more[..]].concat());
        let continued = json_of(&[&["generate", &text, "--json", "--load-cache", &place.file()], &more[..]].concat());
        assert_eq!((&continued["text"], &continued["tokens"]), (&plain["text"], &plain["tokens"]), "{kv}");
        assert_eq!(format!("{}{}", start["text"].as_str().unwrap(), continued["text"].as_str().unwrap()), long["text"]);
        assert_eq!(plain["tokens"]["prompt"].as_array().unwrap().len(), 35);
        assert_eq!(continued["restored"], json!({ "saved": 34, "kept": 34 }), "{kv}");
        assert_eq!(plain["counters"]["rows_projected"], 49, "{kv}");
        assert_eq!(continued["counters"]["rows_projected"], 49 - 34, "{kv}");
    }
}

/// A run whose files may have so many blocks of 512 bytes: what is longer is refused, as on a full disk.
#[cfg(unix)]
fn run_with_little_space(blocks: usize, arguments: &[&str]) -> Run {
    let limited = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let output = Command::new("sh").args(["-c", &limited, PROGRAM]).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).expect("text in UTF-8");
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

#[cfg(unix)]
#[test]
fn a_story_is_told_even_if_its_cache_cannot_be_saved() {
    let place = Place::new();
    let whole = generated(&[]);
    std::fs::write(place.file(), "precious").unwrap();
    let story = ["generate", "--max-new-tokens", "30", "--save-cache", &place.file()];
    let says = format!("error: the output is complete, but its cache was not saved: {}: ", place.file());
    for json in [true, false] {
        let run = run_with_little_space(8, &[&story[..], if json { &["--json"] } else { &[] }].concat());
        assert_eq!(run.code, Some(1));
        let told = match json {
            true => serde_json::from_str::<Value>(&run.stdout).expect("a story in JSON")["text"].clone(),
            false => run.stdout.trim_end().strip_prefix("Once upon a time").unwrap().into(),
        };
        assert_eq!(told, whole["text"]);
        let last = run.stderr.lines().last().unwrap();
        assert!(last.starts_with(&says), "{}", run.stderr);
        assert_eq!(json, run.stderr.lines().count() == 1, "the costs are told too: {}", run.stderr);
        let names: Vec<_> = std::fs::read_dir(place.0.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!((names, std::fs::read(place.file()).unwrap()), (vec!["story.cache".into()], b"precious".into()));
    }
}

#[test]
fn another_text_keeps_what_begins_all_texts_and_one_file_serves_both_options() {
    let place = Place::new();
    generated(&["--save-cache", &place.file()]);
    let both = ["--load-cache", &place.file(), "--save-cache", &place.file(), "--kv", "paged"];
    let other = json_of(&[&["generate", "The king had", "--json", "--max-new-tokens", "3"], &both[..]].concat());
    let plain = json_of(&["generate", "The king had", "--json", "--max-new-tokens", "3"]);
    assert_eq!((&other["tokens"], &other["restored"]["kept"]), (&plain["tokens"], &json!(1)));
    let prompt = plain["tokens"]["prompt"].as_array().unwrap().len();
    assert_eq!(other["saved"]["tokens"], prompt + 2);
    let again = json_of(&["generate", "The king had", "--json", "--load-cache", &place.file()]);
    assert_eq!(again["restored"], json!({ "saved": prompt + 2, "kept": prompt - 1 }));
}

#[test]
fn the_report_tells_what_was_saved_and_restored() {
    let place = Place::new();
    let short = ["generate", "--max-new-tokens", "30"];
    let saving = ok(&[&short[..], &["--save-cache", &place.file()]].concat());
    assert!(saving.stderr.contains(&format!("\nsaved      34 tokens to {}\n", place.file())), "{}", saving.stderr);
    assert!(!saving.stderr.contains("restored"), "{}", saving.stderr);
    let loading = ok(&[&short[..], &["--load-cache", &place.file()]].concat());
    assert_eq!(loading.stdout, saving.stdout);
    let report = loading.stderr;
    assert!(report.contains("\nrestored   4 of 34 saved tokens\nprefill    1 token in "), "{report}");
    assert!(report.contains("\nprojected  30 rows\n") && report.contains(&format!("7 {}", whose(7))), "{report}");
}

#[test]
fn a_cache_that_cannot_be_used_is_refused_before_the_text_begins() {
    let place = Place::new();
    let file = place.file();
    generated(&["--save-cache", &file]);
    let refused = |more: &[&str], says: &str| {
        let run = run(&[&["generate", "--load-cache", &file], more].concat());
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{says}");
        assert!(run.stderr.starts_with("error: ") && run.stderr.contains(says), "{says}:\n{}", run.stderr);
    };
    refused(&["--model", "storyteller-draft"], "rows of KvLayout { n_layers: 6, n_kv_heads: 2, head_dim: 32 }");
    refused(&["--capacity", "20"], "the saved cache holds 34 tokens: the cache has no room for 34 more tokens");
    refused(&["--kv", "paged", "--pages", "2"], "the saved cache holds 34 tokens: pages needed: 3, free: 2");

    let other = Folder::copy_of("storyteller");
    other.change_tensor("model.layers.3.self_attn.k_proj.weight", |tensor| tensor.data[100] ^= 1);
    refused(&["--model", other.path()], "the rows were made by another model: its fingerprint is ");

    let whole = std::fs::read(&file).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&file, damaged).unwrap();
    refused(&[], "story.cache: the saved cache is damaged: its bytes have the checksum ");
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    refused(&[], "story.cache: the saved cache is damaged: its header describes tensors that do not end");
    std::fs::write(&file, "Once upon a time").unwrap();
    refused(&[], "story.cache: not a saved cache: ");
    std::fs::remove_file(&file).unwrap();
    refused(&[], "story.cache: ");
}

#[test]
fn a_saved_text_may_be_longer_than_the_next() {
    let place = Place::new();
    generated(&["--save-cache", &place.file()]);
    for kv in KEEPING {
        let short = ["generate", "--json", "--max-new-tokens", "2", "--kv", kv];
        let loaded = json_of(&[&short[..], &["--load-cache", &place.file()]].concat());
        assert_eq!(loaded["tokens"], json_of(&short)["tokens"], "{kv}");
        assert_eq!(loaded["counters"]["tokens"], 6, "{kv}");
    }
}

/// The numbers of a benchmark, and the table that it printed.
fn measured(arguments: &[&str]) -> (Value, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let table = ok(&[&["bench"], arguments, &["--json", file.path().to_str().unwrap()]].concat()).stdout;
    (serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap(), table)
}

fn numbers(costs: &Value, names: &[&str]) -> Vec<Vec<Value>> {
    let costs = costs.as_array().unwrap().iter();
    costs.map(|cost| names.iter().map(|name| cost.pointer(name).unwrap().clone()).collect()).collect()
}

#[test]
fn appending_to_a_long_text_is_compared_with_a_short_one() {
    let (costs, table) = measured(&["append", "--tokens", "64,256", "--page-size", "4"]);
    let found = numbers(&costs, &["/kv", "/tokens", "/tokens_appended", "/rows_copied", "/pages_taken"]);
    // Each of 16 appends copies all rows before it.
    let copied = |tokens: u64| (tokens..tokens + 16).sum::<u64>();
    let expected = [
        json!(["flat", 64, 16, copied(64), null]),
        json!(["flat", 256, 16, copied(256), null]),
        json!(["contiguous", 64, 16, 0, null]),
        json!(["contiguous", 256, 16, 0, null]),
        json!(["paged", 64, 16, 0, 4]),
        json!(["paged", 256, 16, 0, 4]),
    ];
    assert_eq!(json!(found), json!(expected));
    let (one_cache, _) = measured(&["append", "--tokens", "64", "--kv", "paged", "--page-size", "4"]);
    let found = numbers(&one_cache, &["/kv", "/tokens", "/tokens_appended", "/rows_copied", "/pages_taken"]);
    assert_eq!(json!(found), json!([["paged", 64, 16, 0, 4]]), "--kv chooses");
    for pair in costs.as_array().unwrap().chunks(2) {
        let number = |cost: &Value, name: &str| cost[name].as_f64().unwrap();
        let ratio = number(&pair[1], "seconds_per_token") / number(&pair[0], "seconds_per_token");
        assert!((number(&pair[1], "times_the_first") / ratio - 1.0).abs() < 1e-9, "{pair:?}");
        assert_eq!(pair[0]["times_the_first"], 1.0);
    }
    assert!(table.contains("× first") && table.lines().count() == 9, "{table}");
}

#[test]
fn rewinding_is_compared_with_copying() {
    let (costs, table) = measured(&["rewind", "--tokens", "32,64"]);
    let names = ["/kv", "/tokens", "/tokens_forgotten", "/rewind/rows_copied", "/pages_returned", "/copy/rows_copied"];
    let expected = [
        json!(["flat", 32, 4, 0, null, 28]),
        json!(["flat", 32, 16, 0, null, 16]),
        json!(["contiguous", 32, 4, 0, null, 28]),
        json!(["contiguous", 32, 16, 0, null, 16]),
        json!(["paged", 32, 4, 0, 0, 32 + 28]),
        json!(["paged", 32, 16, 0, 1, 32 + 16]),
    ];
    let found = numbers(&costs, &names);
    assert_eq!(json!(found[..6]), json!(expected));
    assert_eq!(json!(found[11]), json!(["paged", 64, 32, 0, 2, 64 + 32]));
    assert!(table.contains("× rewind") && table.lines().count() == 14, "{table}");
}

#[test]
fn lengths_that_cannot_be_measured_are_refused() {
    for (arguments, says) in [
        (["append", "--tokens", "1000000"], "1,000,016 slots of 3,072 bytes are needed at once, 2,930 MiB of at most"),
        (["rewind", "--tokens", "1000000"], "2,000,000 slots of 3,072 bytes are needed at once"),
        (["rewind", "--tokens", "3"], "a text of 3 tokens: expected at least 4"),
        (["append", "--page-size", "0"], "the page size is 0"),
        (["append", "--kv", "recompute"], "recompute keeps no rows to append to"),
        (["rewind", "--page-size", "0"], "the page size is 0"),
    ] {
        let run = run(&[&["bench"], &arguments[..]].concat());
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{arguments:?}");
        assert!(run.stderr.contains(says), "{}", run.stderr);
    }
}
