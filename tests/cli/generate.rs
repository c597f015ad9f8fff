//! `generate` with one prompt: what it prints where, what it counts; and the benchmarks of chapters 1 to 6.

use std::process::Command;

use serde_json::{Value, json};

use crate::checkpoints::Folder;
use crate::commands::{json_of, whose};
use crate::program::{PROGRAM, ok, run};

const CACHES: [&str; 4] = ["recompute", "flat", "contiguous", "paged"];

fn generated(more: &[&str]) -> Value {
    json_of(&[&["generate", "--json", "--max-new-tokens", "30"], more].concat())
}

#[test]
fn standard_output_holds_the_text_and_nothing_else() {
    for kv in CACHES {
        let run = ok(&["generate", "The king had", "--max-new-tokens", "30", "--kv", kv]);
        let json = json_of(&["generate", "The king had", "--max-new-tokens", "30", "--json"]);
        assert_eq!(run.stdout, format!("The king had{}\n", json["text"].as_str().unwrap()));
    }
}

#[test]
fn the_report_says_what_ran_and_what_it_cost() {
    let report = ok(&["generate", "--max-new-tokens", "30", "--kv", "flat"]).stderr;
    let line = |name: &str| {
        let line = report.lines().find(|line| line.starts_with(name)).expect(name);
        line[name.len()..].trim_start().to_string()
    };
    assert_eq!(line("model"), "storyteller, 6 layers, 6.00 MiB of weights");
    assert_eq!(line("sampling"), "temperature 0.8, top-p 0.95, seed 23");
    assert!(line("prefill").starts_with("5 tokens in "));
    assert!(line("decode").starts_with("29 tokens in ") && line("decode").ends_with(" tokens/s"));
    assert_eq!(line("projected"), "34 rows");
    assert_eq!(line("cache"), "flat: 34 tokens in 34 slots, 0 wasted, 0.10 MiB; 551 rows copied");
    assert_eq!(line("chapters"), format!("1 {}, 2 {}", whose(1), whose(2)));
}

#[test]
fn counters_follow_the_formulas_of_the_chapters() {
    let counters = |kv: &str| generated(&["--kv", kv])["counters"].clone();
    // The prompt has 5 tokens; the model is asked 30 times, with 5 to 34 tokens.
    let asked = 5..35;
    let recomputed: u64 = asked.clone().sum();
    let copied: u64 = asked.clone().skip(1).map(|len| len - 1).sum();
    // 2 tensors, 6 layers, 64 numbers of 4 bytes.
    let bytes = |slots: u64| slots * 2 * 6 * 64 * 4;
    let usage = |rows: u64, copied: u64, tokens: u64, slots: u64| {
        json!({
            "rows_projected": rows, "rows_copied": copied, "tokens": tokens, "slots": slots, "bytes": bytes(slots)
        })
    };
    assert_eq!(counters("recompute"), usage(recomputed, 0, 0, 0));
    assert_eq!(counters("flat"), usage(34, copied, 34, 34));
    assert_eq!(counters("contiguous"), usage(34, 0, 34, 35));
    assert_eq!(generated(&["--capacity", "100"])["counters"], usage(34, 0, 34, 100));
    assert_eq!(generated(&["--kv", "basic"])["kv"], "flat");
}

#[test]
fn json_tells_all_that_is_needed_to_repeat_the_run() {
    let json = generated(&["--seed", "11", "--top-k", "40"]);
    assert_eq!(json["prompt"], "Once upon a time");
    assert_eq!(json["kv"], "contiguous");
    assert_eq!(json["model"], "storyteller");
    assert_eq!(json["seed"], 11);
    assert_eq!(json["sampling"].to_string(), r#"{"temperature":0.8,"top_k":40,"top_p":0.95}"#);
    assert_eq!(json["tokens"]["prompt"].as_array().unwrap().len(), 5);
    for timing in ["prefill_seconds", "prefill_tokens_per_second", "decode_seconds", "decode_tokens_per_second"] {
        assert!(json["timings"][timing].as_f64().unwrap() > 0.0, "{timing}");
    }
    assert_eq!(generated(&["--seed", "11", "--top-k", "40"])["text"], json["text"]);
    assert_ne!(generated(&["--seed", "12", "--top-k", "40"])["text"], json["text"]);
}

#[test]
fn a_model_that_asks_for_nothing_is_sampled_with_our_defaults() {
    let folder = Folder::copy_of("storyteller-draft");
    std::fs::remove_file(folder.file("generation_config.json")).unwrap();
    let sampling = |folder: &Folder| generated(&["--model", folder.path()])["sampling"].to_string();
    assert_eq!(sampling(&folder), r#"{"temperature":0.8,"top_k":0,"top_p":0.95}"#);
    folder.write("generation_config.json", r#"{"temperature": 0.5, "top_k": 20, "top_p": 1.0}"#);
    assert_eq!(sampling(&folder), r#"{"temperature":0.5,"top_k":20,"top_p":1.0}"#);
}

#[test]
fn a_text_ends_where_the_model_says_so() {
    let story = generated(&[]);
    let third = story["tokens"]["generated"][2].clone();
    let folder = Folder::copy_of("storyteller");
    folder.set("generation_config.json", "eos_token_id", json!([0, third]));
    let short = generated(&["--model", folder.path()]);
    assert_eq!(
        short["tokens"]["generated"].as_array().unwrap()[..],
        story["tokens"]["generated"].as_array().unwrap()[..2]
    );
}

#[test]
fn more_tokens_than_positions_are_cut_with_a_note() {
    let folder = Folder::copy_of("storyteller");
    folder.set("config.json", "max_position_embeddings", json!(16));
    for kv in CACHES {
        let run = ok(&["generate", "--kv", kv, "--model", folder.path()]);
        let note = "note: at most 11 new tokens, because the model has 16 positions and the prompt takes 5\n";
        assert!(run.stderr.starts_with(note), "{}", run.stderr);
        assert!(run.stderr.contains("\ndecode     10 tokens"), "{}", run.stderr);
    }
}

#[test]
fn a_small_reservation_keeps_what_was_written() {
    let whole = ok(&["generate", "--max-new-tokens", "30"]).stdout;
    let cut = run(&["generate", "--max-new-tokens", "30", "--capacity", "12"]);
    assert_eq!(cut.code, Some(1));
    let text = cut.stdout.strip_suffix('\n').unwrap();
    assert!(text.len() > "Once upon a time".len() && whole.starts_with(text), "{text}");
    assert!(cut.stderr.starts_with("error: the cache has no room for 1 more tokens: 0 of its 12 slots are free"));
}

#[test]
fn nobody_left_to_read_is_no_failure() {
    use std::io::Read;
    use std::process::Stdio;
    let arguments = ["generate", "--kv", "recompute", "--max-new-tokens", "300"];
    let mut child =
        Command::new(PROGRAM).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut start = [0; 20];
    child.stdout.take().unwrap().read_exact(&mut start).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(start, *b"Once upon a time the");
    assert!(output.status.success() && !stderr.contains("panicked") && !stderr.contains("error"), "{stderr}");
}

#[test]
fn waste_of_four_unequal_texts() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let waste = ok(&["bench", "waste", "--capacity", "1024", "--lengths", "1024,700,300,224", "--json", path]).stdout;
    let last: Vec<&str> = waste.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(last, ["all", "4,096", "2,248", "1,848", "45.1"]);
    let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(json["wasted_share"], 1848.0 / 4096.0);
    assert_eq!(json["texts"][3], json!({ "slots": 1024, "used": 224, "wasted": 800 }));
    assert_eq!(ok(&["bench", "waste"]).stdout, waste, "these are the defaults");
    let same_sum = ok(&["bench", "waste", "--lengths", "1000,800,400,48"]).stdout;
    assert_eq!(same_sum.lines().last(), waste.lines().last());
}

#[test]
fn caches_are_compared_over_the_same_texts() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let table = ok(&["bench", "caches", "--tokens", "8,16", "--json", path]).stdout;
    let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let rows: Vec<_> = json
        .as_array()
        .unwrap()
        .iter()
        .map(|cost| {
            [&cost["tokens"], &cost["rows_projected"], &cost["rows_copied"]].map(|number| number.as_u64().unwrap())
        })
        .collect();
    let of = |n, recomputed, copied| [[n, recomputed, 0], [n, n, copied], [n, n, 0], [n, n, 0]];
    assert_eq!(rows, [of(8, 36, 28), of(16, 136, 120)].concat());
    assert!(table.contains("× fastest") && table.lines().count() == 10, "{table}");
    assert_eq!(run(&["bench", "caches", "--tokens", "1024"]).code, Some(1));
}

#[test]
fn a_page_size_changes_no_token() {
    let expected = generated(&["--kv", "recompute"])["tokens"].clone();
    for page_size in ["1", "3", "16", "64"] {
        let json = generated(&["--kv", "paged", "--page-size", page_size]);
        assert_eq!(json["tokens"], expected, "--page-size {page_size}");
        let (slots, size) = (json["counters"]["slots"].as_u64().unwrap(), page_size.parse::<u64>().unwrap());
        assert_eq!(slots, 34u64.div_ceil(size) * size, "slots of the pages for 34 tokens");
    }
}

#[test]
fn too_few_pages_end_the_text_with_an_error() {
    let run = run(&["generate", "--kv", "paged", "--page-size", "4", "--pages", "2"]);
    assert_eq!(run.code, Some(1));
    assert!(run.stdout.starts_with("Once upon a time"), "what was written stays: {}", run.stdout);
    assert!(run.stderr.contains("pages needed: 1, free: 0"), "{}", run.stderr);
    for (flag, says) in [("--page-size", "the page size is 0"), ("--pages", "a pool needs at least one page")] {
        let run = self::run(&["generate", "--kv", "paged", flag, "0"]);
        assert_eq!(run.code, Some(1));
        assert!(run.stderr.contains(says), "{}", run.stderr);
    }
}

#[test]
fn pages_take_what_gaps_refuse() {
    let shown = ok(&["bench", "fragmentation"]).stdout;
    assert!(shown.contains("850 slots are free, in gaps of 200, 650"), "{shown}");
    assert!(shown.contains("800 slots in a row are needed; 850 are free, but the longest gap has 650"), "{shown}");
    let shown = ok(&["bench", "fragmentation", "--page-size", "16"]).stdout;
    assert!(shown.contains("52 pages are free\n800 tokens: 50 pages taken, 2 left"), "{shown}");
    let shown = ok(&["bench", "fragmentation", "--page-size", "16", "--request", "840"]).stdout;
    assert!(shown.contains("840 tokens: pages needed: 53, free: 52"), "{shown}");
    let waste = ok(&["bench", "waste", "--page-size", "16"]).stdout;
    let last: Vec<&str> = waste.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(last, ["all", "2,256", "2,248", "8", "0.4"]);
}

#[test]
fn the_engine_is_measured_against_the_memory() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let arguments = ["bench", "engine", "--model", "storyteller-draft", "--seconds", "0", "--json", path];
    let shown = ok(&arguments).stdout;
    assert!(shown.contains("each token reads 1,179,648 bytes of weights"), "{shown}");
    let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let median = |name: &str| json[name]["median"].as_f64().unwrap();
    let share = median("decode_gb_per_second") / median("sum_gb_per_second");
    assert!((median("decode_share_of_sum") / share - 1.0).abs() < 1e-9);
    let gigabytes = median("decode_tokens_per_second") * 1_179_648.0 / 1e9;
    assert!((median("decode_gb_per_second") / gigabytes - 1.0).abs() < 1e-9);
    assert_eq!((json["prefill_tokens"].as_u64(), json["prefills"].as_u64()), (Some(512), Some(3)));
}
