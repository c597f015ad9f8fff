//! The command line as people use it: what it prints where, and with which exit code.

#[path = "support/checkpoints.rs"]
#[allow(dead_code)]
mod checkpoints;

use std::path::Path;
use std::process::Command;

use page_by_page::model::{LogitRows, Model};
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_page-by-page");

/// What a run left behind.
struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn run(arguments: &[&str]) -> Run {
    let output = Command::new(PROGRAM).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).expect("text in UTF-8");
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A run that must succeed.
#[track_caller]
fn ok(arguments: &[&str]) -> Run {
    let run = run(arguments);
    assert_eq!(run.code, Some(0), "exit code of {arguments:?}:\n{}", run.stderr);
    run
}

#[track_caller]
fn json_of(arguments: &[&str]) -> Value {
    serde_json::from_str(&ok(arguments).stdout).expect("JSON on standard output")
}

fn bundled(model: &str) -> Model {
    Model::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("assets").join(model)).unwrap()
}

/// A folder in a temporary place, which does not exist yet.
fn new_folder(parent: &tempfile::TempDir) -> String {
    parent.path().join("model").to_str().unwrap().into()
}

#[test]
fn help_has_an_example_and_every_option_a_word() {
    let commands: [&[&str]; 9] = [
        &[],
        &["generate"],
        &["logits"],
        &["synth"],
        &["status"],
        &["bench"],
        &["bench", "engine"],
        &["bench", "caches"],
        &["bench", "waste"],
    ];
    for command in commands {
        let help = ok(&[command, &["--help"]].concat()).stdout;
        let lists_commands = command == ["bench"];
        assert!(lists_commands || help.contains("Example"), "{command:?}:\n{help}");
        assert!(!help.contains("TODO"), "{command:?}:\n{help}");
        for line in ok(&[command, &["-h"]].concat()).stdout.lines().filter(|line| line.contains("--")) {
            let described = line.trim().contains("  ") || line.contains("cargo run") || line.contains("page-by-page");
            assert!(described, "an option without a word: {line}");
        }
    }
    for option in ["--kv", "--model", "--max-new-tokens", "--temperature", "--top-k", "--top-p", "--seed", "--capacity"]
    {
        assert!(ok(&["generate", "--help"]).stdout.contains(option));
    }
}

#[test]
fn wrong_usage_has_exit_code_2() {
    for arguments in
        [&["generate", "--no-such-option"] as &[&str], &["sing"], &["logits"], &["generate", "--seed", "x"]]
    {
        let run = run(arguments);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""));
        assert!(run.stderr.starts_with("error: "));
    }
}

#[test]
fn status_lists_the_chapters_and_says_what_is_next() {
    let status = ok(&["status"]).stdout;
    let lines: Vec<&str> = status.lines().collect();
    assert!(lines[0].starts_with("chapter"), "{status}");
    for chapter in page_by_page::chapters::all() {
        let title = format!("{:2}  {}", chapter.number, chapter.title);
        let line = lines.iter().find(|line| line.starts_with(&title)).expect(&title);
        assert!(["yours", "reference", "not started"].iter().any(|whose| line.contains(whose)), "{line}");
    }
    assert!(lines[lines.len() - 1].starts_with("Next: "), "{status}");
}

#[cfg(reference = "ch01_recompute")]
#[test]
fn status_counts_what_is_left_of_an_untouched_chapter() {
    let status = ok(&["status"]).stdout;
    let line = status.lines().find(|line| line.contains("Recompute everything")).unwrap();
    assert!(line.contains("reference") && line.ends_with("all 3 pieces"), "{line}");
    assert!(status.ends_with("edit exercises/ch01_recompute.rs\n"), "{status}");
}

#[test]
fn logits_are_the_librarys_to_the_last_bit() {
    let model = bundled("storyteller-draft");
    let tokens = [0, 500, 37, 4095];
    let expected = model.forward(vec![model.chunk(&tokens, None, LogitRows::All).unwrap()]);
    let bits = |numbers: &Value| -> Vec<u32> {
        // Through the text, as another program would read it.
        let numbers = numbers.as_array().expect("an array").iter();
        numbers.map(|number| number.to_string().parse::<f32>().unwrap().to_bits()).collect()
    };
    let expected: Vec<Vec<u32>> = expected.chunks(4096).map(|row| row.iter().map(|x| x.to_bits()).collect()).collect();

    let last = json_of(&["logits", "--tokens", "0,500,37,4095", "--model", "storyteller-draft"]);
    assert_eq!(last["tokens"], json!(tokens));
    assert_eq!(bits(&last["logits"]), expected[3]);
    let all = json_of(&["logits", "--tokens", "0,500,37,4095", "--model", "storyteller-draft", "--all"]);
    let all: Vec<Vec<u32>> = all["logits"].as_array().unwrap().iter().map(bits).collect();
    assert_eq!(all, expected);
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let logits = |threads: &str| ok(&["logits", "--tokens", "0,435,591", "--threads", threads]).stdout;
    assert_eq!(logits("1"), logits("3"));
}

#[test]
fn synth_writes_what_logits_reads() {
    let parent = tempfile::tempdir().unwrap();
    let out = new_folder(&parent);
    let run = ok(&["synth", "--shape", "tiny", "--out", &out]);
    assert_eq!(run.stdout, "");
    assert!(run.stderr.contains("90,496 weights in 24 tensors"), "{}", run.stderr);
    let logits = json_of(&["logits", "--tokens", "0,255", "--model", &out]);
    let logits = logits["logits"].as_array().unwrap();
    assert_eq!(logits.len(), 256);
    assert!(logits.iter().all(|logit| logit.as_f64().unwrap().abs() > 0.0), "random weights give random logits");

    let config: Value = serde_json::from_slice(&std::fs::read(Path::new(&out).join("config.json")).unwrap()).unwrap();
    assert_eq!((&config["dtype"], &config["torch_dtype"]), (&json!("bfloat16"), &json!("bfloat16")));
    assert_eq!(config["rope_parameters"]["rope_theta"], config["rope_theta"]);
    let left: Vec<_> = std::fs::read_dir(parent.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["model"], "nothing but the finished folder");
}

#[test]
fn synth_repeats_itself_with_the_same_seed_only() {
    let weights = |seed: &str, threads: &str| {
        let parent = tempfile::tempdir().unwrap();
        let out = new_folder(&parent);
        ok(&["synth", "--shape", "storyteller-draft", "--out", &out, "--seed", seed, "--threads", threads]);
        std::fs::read(Path::new(&out).join("model.safetensors")).unwrap()
    };
    assert_eq!(weights("1", "1"), weights("1", "2"));
    assert_ne!(weights("1", "1"), weights("2", "1"));
}

#[test]
fn synth_writes_every_type_and_any_number_of_files() {
    for (dtype, shards, bytes) in [("bf16", "1", 2), ("f16", "24", 2), ("f32", "3", 4)] {
        let parent = tempfile::tempdir().unwrap();
        let out = new_folder(&parent);
        let run = ok(&["synth", "--shape", "tiny", "--out", &out, "--dtype", dtype, "--shards", shards]);
        assert!(run.stderr.contains("90,496 weights"), "{}", run.stderr);
        let model = Model::open(Path::new(&out)).unwrap();
        let matrices: usize = model.weights().map(|weight| weight.bytes().len()).sum();
        // All but the norms: five of 64 numbers, four of 16.
        assert_eq!(matrices, (90_496 - 5 * 64 - 4 * 16) * bytes);
        let names = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name());
        let files = names.filter(|name| name.to_string_lossy().ends_with(".safetensors")).count();
        assert_eq!(files.to_string(), shards);
    }
}

#[test]
fn synth_never_writes_over_anything() {
    let parent = tempfile::tempdir().unwrap();
    let out = new_folder(&parent);
    std::fs::create_dir(&out).unwrap();
    ok(&["synth", "--shape", "tiny", "--out", &out]);
    let before = std::fs::read(Path::new(&out).join("model.safetensors")).unwrap();
    let again = run(&["synth", "--shape", "tiny", "--out", &out, "--seed", "9"]);
    assert_eq!(again.code, Some(1));
    assert!(again.stderr.contains("is not empty; choose another folder"), "{}", again.stderr);
    assert_eq!(std::fs::read(Path::new(&out).join("model.safetensors")).unwrap(), before);
}

/// What needs the code of chapters 1 to 6. A reader's unfinished chapter fails its own checks, not these.
#[cfg(all(
    reference = "ch01_recompute",
    reference = "ch02_flat",
    reference = "ch03_contiguous",
    reference = "ch04_page_pool",
    reference = "ch05_page_table",
    reference = "ch06_paged"
))]
mod with_caches {
    use super::*;
    use checkpoints::Folder;

    const CACHES: [&str; 4] = ["recompute", "flat", "contiguous", "paged"];

    fn generated(more: &[&str]) -> Value {
        json_of(&[&["generate", "--json", "--max-new-tokens", "30"], more].concat())
    }

    #[test]
    fn every_cache_tells_the_same_story() {
        for sampling in [&[] as &[&str], &["--temperature", "0"], &["--top-k", "5", "--seed", "3"]] {
            let stories = CACHES.map(|kv| generated(&[&["--kv", kv], sampling].concat()));
            assert_eq!(stories[0]["tokens"]["new"].as_array().unwrap().len(), 30);
            for story in &stories {
                assert_eq!((&story["text"], &story["tokens"]), (&stories[0]["text"], &stories[0]["tokens"]));
            }
        }
        assert_eq!(generated(&["--kv", "basic"])["kv"], "flat");
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
        assert_eq!(
            line("chapters"),
            "1 reference, 2 reference, 3 not needed, 4 not needed, 5 not needed, 6 not needed"
        );
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
        let third = story["tokens"]["new"][2].clone();
        let folder = Folder::copy_of("storyteller");
        folder.set("generation_config.json", "eos_token_id", json!([0, third]));
        let short = generated(&["--model", folder.path()]);
        assert_eq!(short["tokens"]["new"].as_array().unwrap()[..], story["tokens"]["new"].as_array().unwrap()[..2]);
    }

    #[test]
    fn more_tokens_than_positions_are_cut_with_a_note() {
        let folder = Folder::copy_of("storyteller");
        folder.set("config.json", "max_position_embeddings", json!(16));
        for kv in CACHES {
            let run = ok(&["generate", "--kv", kv, "--model", folder.path()]);
            let note = "note: at most 11 new tokens, as the model has 16 positions and the prompt takes 5\n";
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
        let waste =
            ok(&["bench", "waste", "--capacity", "1024", "--lengths", "1024,700,300,224", "--json", path]).stdout;
        let last: Vec<&str> = waste.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last, ["all", "4,096", "2,248", "1,848", "45.1", "%"]);
        let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!(json["wasted_share"], 1848.0 / 4096.0);
        assert_eq!(json["sequences"][3], json!({ "slots": 1024, "used": 224, "wasted": 800 }));
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
        assert!(shown.contains("800 tokens: 50 pages taken, 2 left"), "{shown}");
        let waste = ok(&["bench", "waste", "--page-size", "16"]).stdout;
        let last: Vec<&str> = waste.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last, ["all", "2,256", "2,248", "8", "0.4", "%"]);
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
}
