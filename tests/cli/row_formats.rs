//! `--kv-dtype` and `bench formats`: bytes are reported as they are taken, and saved caches keep their format.

use std::fs;

use page_by_page::chapters::ch14_half_the_bytes::token_bytes;
use page_by_page::kernels::RowFormat;
use serde_json::Value;

use crate::program::{ok, run};

#[test]
fn the_bytes_that_are_said_are_those_that_are_taken() {
    for (format, bytes) in [("f32", 3_072), ("f16", 1_536), ("bf16", 1_536), ("int8", 864)] {
        for kv in ["flat", "contiguous", "paged"] {
            let dtype = format!("--kv-dtype={format}");
            let story = ok(&["generate", "--kv", kv, &dtype, "--max-new-tokens=9", "--json"]).json();
            let counters = &story["counters"];
            assert_eq!(counters["bytes"], counters["slots"].as_u64().unwrap() * bytes, "{kv}, {format}");
            assert_eq!(story["kv_dtype"], format);
        }
    }
    let report = ok(&["generate", "--kv-dtype=int8", "--kv=paged", "--max-new-tokens=9"]).stderr;
    assert!(report.contains("paged, rows in int8: "), "{report}");
}

#[test]
fn the_commands_save_and_refuse() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("some.cache");
    let file = file.to_str().unwrap();
    let story = |more: &[&str]| {
        run(&[&["generate", "Once upon a time", "--kv=paged", "--max-new-tokens=8", "--json"], more].concat())
    };
    let saved = story(&["--kv-dtype=f16", "--save-cache", file]);
    assert_eq!(saved.code, Some(0), "{}", saved.stderr);
    let again = story(&["--kv-dtype=f16", "--load-cache", file]);
    assert_eq!(again.json()["text"], saved.json()["text"]);
    assert!(again.json()["restored"]["kept"].as_u64().unwrap() > 0);
    for (more, here) in [(&["--kv-dtype=bf16"][..], "bf16"), (&[], "f32"), (&["--kv-dtype=int8"], "int8")] {
        let refused = story(&[more, &["--load-cache", file]].concat());
        let says = format!("rows in f16, and here rows are kept in {here}; ask for --kv-dtype f16, or save");
        assert!(refused.code == Some(1) && refused.stderr.contains(&says), "{}", refused.stderr);
    }
    let lines = folder.path().join("lines.jsonl");
    let long = "Once upon a time there was a king who had three sons and a golden bird in his garden";
    fs::write(&lines, format!("{{\"prompt\": \"{long}\", \"max_new_tokens\": 9}}\n")).unwrap();
    let batch = |more: &[&str]| run(&[&["batch", lines.to_str().unwrap(), "--json"], more].concat());
    let pages = folder.path().join("pages").display().to_string();
    let first = batch(&["--kv-dtype=int8", "--page-file", &pages]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let again = batch(&["--kv-dtype=int8", "--page-file", &pages]);
    assert_eq!(again.json()["outputs"][0]["text"], first.json()["outputs"][0]["text"]);
    assert!(again.json()["counters"]["cached"].as_u64().unwrap() > 0, "{}", again.stdout);
    let refused = batch(&["--kv-dtype=f16", "--page-file", &pages]);
    let says = "rows in int8, and here rows are kept in f16; ask for --kv-dtype int8, or give";
    assert!(refused.code == Some(1) && refused.stderr.contains(says), "{}", refused.stderr);
}

#[test]
fn bench_formats_says_what_the_formats_do() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let arguments = ["bench", "formats", "--prompts", "The king", "--max-new-tokens", "20", "--json", path];
    let table = ok(&arguments).stdout;
    let numbers: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert_eq!(numbers["tokens"], 344, "tokens of the passage");
    let layout = page_by_page::cache::KvLayout { n_layers: 6, n_kv_heads: 2, head_dim: 32 };
    let formats = numbers["formats"].as_array().unwrap();
    assert_eq!(formats.len(), 4);
    for ((measured, format), texts) in formats.iter().zip(RowFormat::ALL).zip([26, 52, 52, 93]) {
        assert_eq!(measured["format"], format.name());
        let bytes = token_bytes(format, layout);
        assert_eq!(measured["bytes_a_token"], bytes);
        assert_eq!(measured["pages"], (16 << 20) / (16 * bytes));
        assert_eq!(measured["texts"], texts, "texts of 200 tokens, in 13 pages each");
    }
    let number = |place: usize, name: &str| formats[place][name].as_f64().unwrap();
    assert_eq!((number(0, "largest_logit_difference"), number(0, "loss_above_f32")), (0.0, 0.0));
    assert!((number(0, "loss") - 3.534).abs() < 0.001, "{numbers}");
    let differences = [1, 2, 3].map(|place| number(place, "largest_logit_difference"));
    assert!(0.0 < differences[0] && differences.is_sorted(), "{differences:?}");
    assert!(table.lines().count() == 5 && table.contains("texts in 16 MiB"), "{table}");
    let refused = run(&["bench", "formats", "--max-new-tokens", "5000", "--prompts", "a"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("ask for fewer"), "{}", refused.stderr);
}
