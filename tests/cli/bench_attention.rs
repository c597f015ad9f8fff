//! `bench attention`: what it counts, that its ways agree, what it refuses.

use crate::program::{ok, run};
use serde_json::Value;

const BENCH: [&str; 4] = ["bench", "attention", "--seconds", "0"];

/// The numbers, and the table that was printed.
fn measured(more: &[&str]) -> (Value, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let table = ok(&[&BENCH[..], more, &["--json", file.path().to_str().unwrap()]].concat()).stdout;
    (serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap(), table)
}

#[test]
fn a_gather_copies_every_row_and_nobody_else_any() {
    let all = "gather,paged,plain";
    for page_size in ["3", "16"] {
        let more = ["--contexts", "20,41", "--texts", "2", "--page-size", page_size, "--attention", all];
        let (numbers, table) = measured(&more);
        let steps = numbers["steps"].as_array().unwrap();
        let copied: Vec<(u64, &str, u64)> = steps
            .iter()
            .map(|step| {
                let number = |name: &str| step[name].as_u64().unwrap();
                assert_eq!(number("turns"), 3, "turns at the least: {step}");
                assert!(step["seconds"].as_f64().unwrap() > 0.0, "{step}");
                // The story teller's rows: 4 layers, keys and values of 96 numbers of 4 bytes.
                assert_eq!(number("bytes_copied"), number("rows_copied") * 4 * 2 * 96 * 4, "{step}");
                (number("tokens"), step["way"].as_str().unwrap(), number("rows_copied"))
            })
            .collect();
        let ways = ["side by side", "pages, gathered", "pages, in place", "pages, chapter 13's loops"];
        let expected: Vec<(u64, &str, u64)> = [20, 41]
            .into_iter()
            .flat_map(|tokens| {
                ways.map(|way| (tokens, way, if way == ways[1] { 2 * (tokens + 1) } else { 0 })).into_iter()
            })
            .collect();
        assert_eq!(copied, expected, "page size {page_size}");
        assert!(table.contains("all logits have the same bits"), "{table}");
        assert!(table.contains(&format!("pages of {page_size} slots: a step of 2 texts")), "{table}");
    }
}

#[test]
fn an_online_softmax_has_other_bits_and_nearly_the_same_numbers() {
    let (numbers, _) = measured(&["--contexts", "1,300"]);
    let differences = numbers["online_softmax"].as_array().unwrap();
    assert_eq!(differences.len(), 6);
    for difference in differences {
        let largest = difference["largest"].as_f64().unwrap();
        if difference["tokens"] == 1 {
            assert_eq!((largest, &difference["different"]), (0.0, &Value::from(0)), "one position has the weight 1");
        } else {
            assert!((1e-9..1e-6).contains(&largest), "{difference}");
            assert!(difference["different"].as_u64() > Some(0), "{difference}");
        }
        assert_eq!(difference["numbers"], 192, "the story teller's query heads");
    }
}

#[test]
fn without_a_word_it_takes_the_lengths_that_the_model_has_positions_for() {
    let (numbers, _) = measured(&["--attention", "paged"]);
    let tokens: Vec<u64> =
        numbers["steps"].as_array().unwrap().iter().map(|step| step["tokens"].as_u64().unwrap()).collect();
    assert_eq!(tokens, [256, 256, 1023, 1023]);
    assert_eq!(numbers["page_size"], 16);
    assert_eq!(numbers["texts"], 1);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for (more, code, says) in [
        (
            ["--contexts", "1024"],
            1,
            "the model has 1,024 positions: a text of 1,024 tokens and one token more do not fit; give at most 1,023",
        ),
        (["--contexts", "8,0"], 1, "a text of 0 tokens has nothing to read"),
        (["--page-size", "0"], 2, "0 is not in 1.."),
        (["--texts", "0"], 2, "0 is not in 1..=256"),
        (["--attention", "flash"], 2, "invalid value 'flash'"),
    ] {
        let run = run(&[&BENCH[..], &more].concat());
        assert_eq!((run.code, run.stdout.as_str()), (Some(code), ""), "{more:?}: {}", run.stderr);
        assert!(run.stderr.contains(says), "{more:?}: {}", run.stderr);
    }
}
