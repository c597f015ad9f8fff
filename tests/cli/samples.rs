//! `generate --samples` and `--beams`, and `bench samples`: what they print, what they count, what they refuse.

use crate::program::{ok, run};
use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::decode::Limits;
use page_by_page::decode::beams::search;
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use serde_json::{Value, json};

#[track_caller]
fn refused(arguments: &[&str], says: &str) {
    let run = run(arguments);
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{arguments:?}: {}", run.stderr);
    assert_eq!(run.stderr, format!("error: {says}\n"), "{arguments:?}");
}

fn line(report: &str, name: &str) -> String {
    let line = report.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {report}"));
    line[name.len()..].trim_start().to_string()
}

const ASKED: [&str; 4] = ["generate", "The king had", "--max-new-tokens", "40"];

fn asked<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&ASKED[..], more].concat()
}

/// What `--samples 4` should print: each text as it is told alone, with its seed.
fn told_alone(first_seed: u64, more: &[&str]) -> String {
    let mut texts = String::new();
    for sample in 0..4 {
        let seed = first_seed.wrapping_add(sample);
        let alone = ok(&asked(&[&["--seed", &seed.to_string()], more].concat())).stdout;
        let gap = if sample == 0 { "" } else { "\n" };
        texts.push_str(&format!("{gap}sequence {}, seed {seed}\n{alone}", sample + 1));
    }
    texts
}

#[test]
fn each_sample_is_the_text_that_its_seed_tells_alone() {
    let memories: [&[&str]; 9] = [
        &[],
        &["--page-size", "1"],
        &["--page-size", "3"],
        &["--page-size", "256"],
        // Samples are preempted: 4 tokens of the prompt and up to 39 of their own in pages of 3.
        &["--page-size", "3", "--pages", "16"],
        &["--page-size", "3", "--pages", "30"],
        &["--kv", "flat"],
        &["--kv", "contiguous"],
        &["--kv", "recompute"],
    ];
    let expected = told_alone(23, &[]);
    for memory in memories {
        assert_eq!(ok(&asked(&[&["--samples", "4"], memory].concat())).stdout, expected, "{memory:?}");
    }
    assert_eq!(ok(&asked(&["-n", "4", "--seed", "7"])).stdout, told_alone(7, &[]));
    assert_eq!(ok(&asked(&["-n4", "--top-k", "5"])).stdout, told_alone(23, &["--top-k", "5"]));
    let last = u64::MAX.to_string();
    assert_eq!(ok(&asked(&["-n4", "--seed", &last])).stdout, told_alone(u64::MAX, &[]), "behind the last seed is 0");
}

#[test]
fn one_sample_is_the_text_alone() {
    let one = ok(&asked(&["--samples", "1"]));
    assert_eq!(one.stdout, format!("sequence 1, seed 23\n{}", ok(&ASKED).stdout));
    let nothing = ok(&["generate", "One day", "--samples", "2", "--max-new-tokens", "0"]).stdout;
    assert_eq!(nothing, "sequence 1, seed 23\nOne day\n\nsequence 2, seed 24\nOne day\n");
    let default = ok(&["generate", "--samples", "2", "--max-new-tokens", "3"]).stdout;
    assert!(default.starts_with("sequence 1, seed 23\nOnce upon a time"), "{default}");
    let greedy = ok(&asked(&["-n", "2", "--temperature", "0"]));
    assert!(greedy.stderr.starts_with("note: at temperature 0 nothing is drawn"), "{}", greedy.stderr);
}

#[test]
fn the_report_compares_samples_with_caches_apart() {
    let report = ok(&asked(&["--samples", "4"])).stderr;
    // 4 tokens in the prompt, 39 of 40 new ones are read; 43 tokens are 3 pages of 16, the first of which is copied.
    assert_eq!(line(&report, "samples"), "4, at most 4 in a step");
    assert!(line(&report, "prefill").starts_with("4 tokens in 1 step, "), "{report}");
    assert!(line(&report, "decode").starts_with("156 tokens in 39 steps, "), "{report}");
    assert_eq!(line(&report, "projected"), "160 rows; 4 caches apart: 172 rows");
    assert_eq!(
        line(&report, "cache"),
        "paged: 0.56 MiB at the peak, 12 rows copied; 4 caches apart: 0.56 MiB, nothing copied"
    );
    assert_eq!(line(&report, "pages"), "12 of 12 at the peak, 16 slots each; 4 caches apart: 12 pages");
    let chapters = line(&report, "chapters");
    assert_eq!(
        chapters,
        "4 reference, 5 reference, 6 reference, 10 reference, 11 reference, 12 reference, 13 reference"
    );
    assert!(!report.contains("\nroom for"), "{report}");
    assert!(report.lines().any(|line| line.starts_with("3        seed 25   after 40 new")), "{report}");
    let shared = ok(&asked(&["--samples", "4", "--page-size", "2"])).stderr;
    assert_eq!(line(&shared, "pages"), "82 of 82 at the peak, 2 slots each; 4 caches apart: 88 pages");
    // Caches that share nothing say nothing about it.
    let flat = ok(&asked(&["--samples", "4", "--kv", "flat"])).stderr;
    assert_eq!(line(&flat, "projected"), "172 rows");
    assert!(!flat.contains("apart") && !line(&flat, "chapters").contains("10"), "{flat}");
    let greedy = ok(&asked(&["--samples", "2", "--temperature", "0"])).stderr;
    assert!(line(&greedy, "chapters").starts_with("1 reference"), "argmax is chapter 1's: {greedy}");
}

#[test]
fn json_lists_the_samples() {
    let all = ok(&asked(&["--samples", "4", "--json"])).json();
    for (sample, text) in all["outputs"].as_array().unwrap().iter().enumerate() {
        let seed = (23 + sample).to_string();
        let alone = ok(&asked(&["--seed", &seed, "--json"])).json();
        for key in ["prompt", "text", "tokens", "seed"] {
            assert_eq!(text[key], alone[key], "{key} of sample {sample}");
        }
    }
    assert_eq!(all["outputs"].as_array().unwrap().len(), 4);
    let page = 16 * 2 * 6 * 64 * 4;
    let counters = json!({
        "steps": 40, "max_sequences_in_a_step": 4, "rows_projected": 160, "rows_copied": 12, "peak_bytes": 12 * page
    });
    assert_eq!(all["counters"], counters);
    assert_eq!(all["apart"], json!({ "rows_projected": 172, "rows_copied": 0, "pages": 12, "bytes": 12 * page }));
    assert_eq!(all["pages"], json!({ "page_size": 16, "pages": 12, "peak": 12 }));
    let flat = ok(&asked(&["--samples", "2", "--json", "--kv", "flat"])).json();
    assert_eq!((&flat["apart"], &flat["counters"]["tokens"]), (&Value::Null, &json!(86)));
}

#[test]
fn what_samples_cannot_do_is_refused_in_words() {
    refused(
        &asked(&["--samples", "8", "--page-size", "4", "--pages", "1"]),
        "sequence 1: a prompt of 4 tokens and 40 new ones need 11 pages, and the pool has 1; ask for fewer tokens, or give the pool \
         more pages (--pages)",
    );
    refused(
        &["generate", "One day", "The king had", "--samples", "2"],
        "--samples is for one prompt, and several were given; give one prompt, or leave out --samples",
    );
    refused(
        &["generate", "--prompts", "no/such/file", "--beams", "2"],
        "--beams is for one prompt, and several were given; give one prompt, or leave out --beams",
    );
    for option in ["--samples", "--beams"] {
        let why = if option == "--samples" { "--samples asks for several" } else { "--beams follows several" };
        refused(
            &asked(&[option, "2", "--draft", "prompt-lookup"]),
            &format!("--draft drafts for one output, and {why}: use one or the other"),
        );
        for saved in ["--save-cache", "--load-cache"] {
            let files = "--save-cache and --load-cache are for the cache of one output";
            refused(
                &asked(&[option, "2", saved, "no/such/file"]),
                &format!("{files}, and {why}: use one or the other"),
            );
        }
        refused(
            &["generate", "", option, "2"],
            "the prompt is empty; give the text a beginning, such as \"Once upon a time\"",
        );
        for wrong in ["0", "257", "-1", "many"] {
            let run = run(&asked(&[&format!("{option}={wrong}")]));
            assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{option} {wrong}");
            assert!(run.stderr.starts_with(&format!("error: invalid value '{wrong}' for '{option}")), "{}", run.stderr);
        }
    }
    refused(
        &asked(&["--samples", "2", "--beams", "2"]),
        "--beams looks for the likeliest output, --samples draws several at random: use one or the other",
    );
    for (option, value) in [("--temperature", "0.8"), ("--top-k", "3"), ("--top-p", "0.5")] {
        refused(
            &asked(&["--beams", "2", option, value]),
            "--beams draws nothing: it takes the probabilities as the model gives them; leave out --temperature, --top-k and \
             --top-p",
        );
    }
    for kv in ["recompute", "flat", "contiguous"] {
        refused(
            &asked(&["--beams", "2", "--kv", kv]),
            &format!(
                "--beams follows sequences that share their pages, and --kv {kv} has none; leave out --kv, or give --kv paged"
            ),
        );
    }
    refused(
        &asked(&["--beams", "2", "--page-size", "4", "--pages", "1"]),
        "the prompt of 4 tokens needs 2 pages of 4 slots, and the pool has 1; give it more (--pages), or shorten the prompt",
    );
}

// Beams

#[test]
fn the_command_prints_the_best_text_and_lists_the_others() {
    let run = ok(&asked(&["--beams", "4"]));
    let all = ok(&asked(&["--beams", "4", "--json"])).json();
    assert_eq!(run.stdout, format!("The king had{}\n", all["text"].as_str().unwrap()));
    let dir = crate::support::root().join("assets/storyteller");
    let (model, tokenizer) = (Model::open(&dir).unwrap(), Tokenizer::open(&dir).unwrap());
    let prompt = tokenizer.encode("The king had").unwrap();
    let limits = Limits { max_new_tokens: 40, end_of_text: &model.config().eos_token_ids };
    let slab = PageSlab::new(model.config().kv_layout(), 16, 100).unwrap();
    let (expected, _) = search(&model, &slab, &prompt, 4, limits, &mut || ()).unwrap();
    assert_eq!(all["tokens"], json!({ "prompt": prompt, "generated": expected[0].tokens }));
    let texts = all["outputs"].as_array().unwrap();
    assert_eq!(texts.len(), expected.len());
    for (text, expected) in texts.iter().zip(&expected) {
        assert_eq!(text["generated"], json!(expected.tokens));
        // Written in full and read again, a number may differ in its last bit.
        for (key, expected) in [("score", expected.score), ("log_probability", expected.log_probability)] {
            assert!((text[key].as_f64().unwrap() - expected).abs() < 1e-9, "{key}: {text} {expected}");
        }
        assert_eq!(text["finish_reason"], if expected.has_ended { "stop" } else { "length" });
    }
    assert_eq!((&all["beams"], &all["length_penalty"], &all["kv"]), (&json!(4), &json!(1.0), &json!("paged")));

    let report = &run.stderr;
    assert_eq!(line(report, "beams"), "4; score: log-probability / tokens^1.0");
    assert_eq!(line(report, "projected"), format!("{} rows", all["counters"]["rows_projected"]));
    let best = report.lines().find(|line| line.starts_with("1 ")).expect(report);
    assert!(best.ends_with(&format!("{:.4}", expected[0].score)), "{report}");
    let chapters = line(report, "chapters");
    assert_eq!(chapters, "4 reference, 5 reference, 6 reference, 10 reference, 13 reference");
    assert!(
        ok(&asked(&["--beams", "4", "--temperature", "0", "--kv", "paged", "--page-size", "1"])).stdout == run.stdout
    );
    // One beam is the greedy text.
    assert_eq!(ok(&asked(&["--beams", "1"])).stdout, ok(&asked(&["--temperature", "0"])).stdout);
    assert_eq!(ok(&["generate", "One day", "--beams", "3", "--max-new-tokens", "0"]).stdout, "One day\n");

    let few = crate::program::run(&asked(&["--beams", "4", "--page-size", "2", "--pages", "9"]));
    assert_eq!((few.code, few.stdout.as_str()), (Some(1), ""));
    let says = few.stderr.starts_with("error: the beams need more pages than the pool has: pages needed: ");
    assert!(says && few.stderr.contains(" of 9; give it more, 82 are always enough (--pages)"), "{}", few.stderr);
}

// Bench

#[test]
fn the_benchmark_counts_the_three_ways() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("numbers.json");
    let file = file.to_str().unwrap();
    let found = ok(&["bench", "samples", "--json", file]).stdout;
    let expected = "\
texts                      rows computed   pages held   rows copied
caches apart                       7,992          504             0
restored from a snapshot           1,692          504         6,300
forked                             1,692          112            28
";
    assert_eq!(found, expected);
    let numbers: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let last = json!({ "way": "forked", "rows_computed": 1692, "pages_held": 112, "rows_copied": 28 });
    assert_eq!(numbers[2], last);
    let other =
        ok(&["bench", "samples", "--samples", "3", "--prompt-tokens", "10", "--new-tokens", "4", "--page-size", "4"]);
    let counts = |line: &str| line.split_whitespace().rev().take(3).map(str::to_string).collect::<Vec<_>>();
    let lines: Vec<_> = other.stdout.lines().skip(1).map(counts).collect();
    // 13 tokens are 4 pages; the two full ones are shared, and two rows of the third are copied twice.
    assert_eq!(lines, [["0", "12", "39"], ["20", "12", "19"], ["4", "8", "19"]]);
}
