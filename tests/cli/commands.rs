//! The command line as people use it: what it prints where, and with which exit code.

use std::path::Path;
use std::process::Command;

use crate::program::{PROGRAM, ok, run, run_in};
use page_by_page::chapters::Source;
use page_by_page::model::{LogitRows, Model};
use serde_json::{Value, json};

#[track_caller]
fn json_of(arguments: &[&str]) -> Value {
    ok(arguments).json()
}

/// Whose code of a chapter runs, as the commands say it.
fn whose(number: usize) -> &'static str {
    match page_by_page::chapters::chapter(number).source {
        Source::Yours => "yours",
        Source::Reference => "reference",
        Source::Unstarted => "not started",
    }
}

fn bundled(model: &str) -> Model {
    Model::open(&crate::support::root().join("assets").join(model)).unwrap()
}

/// A folder in a temporary place, which does not exist yet.
fn new_folder(parent: &tempfile::TempDir) -> String {
    parent.path().join("model").to_str().unwrap().into()
}

#[test]
fn help_has_an_example_and_every_option_a_word() {
    let commands: &[&[&str]] = &[
        &[],
        &["generate"],
        &["story"],
        #[cfg(feature = "serve")]
        &["chat"],
        &["batch"],
        #[cfg(feature = "serve")]
        &["serve"],
        &["logits"],
        &["synth"],
        &["bought"],
        &["status"],
        &["bench"],
        &["bench", "engine"],
        &["bench", "caches"],
        &["bench", "disk"],
        &["bench", "waste"],
        &["bench", "append"],
        &["bench", "attention"],
        &["bench", "batch"],
        &["bench", "rewind"],
        &["bench", "samples"],
        &["bench", "formats"],
        &["bench", "speculation"],
        &["bench", "workload"],
        &["workload"],
        &["workload", "shared"],
        &["workload", "unique"],
        &["workload", "chats"],
        &["workload", "documents"],
        &["workload", "serving"],
        &["simulate"],
    ];
    for &command in commands {
        let help = ok(&[command, &["--help"]].concat()).stdout;
        let lists_commands = command == ["bench"] || command == ["workload"];
        assert!(lists_commands || help.contains("Example"), "{command:?}:\n{help}");
        assert!(!help.contains("TODO"), "{command:?}:\n{help}");
        let short = ok(&[command, &["-h"]].concat()).stdout;
        assert!(short.lines().all(|line| line.chars().count() <= 100), "lines are wrapped:\n{short}");
        let mut lines = short.lines().peekable();
        while let Some(line) = lines.next() {
            // An option, and what it does beside it or below it.
            let is_option =
                line.trim_start().starts_with('-') && line.starts_with("  ") && !line.starts_with("          ");
            let goes_on =
                lines.peek().is_some_and(|next| next.starts_with("          ") && !next.trim().starts_with('-'));
            assert!(
                !is_option || line.trim().contains("  ") || goes_on,
                "{command:?}: an option without a word: {line}"
            );
        }
    }
    let all = ok(&["--help"]).stdout;
    let place = |heading: &str| all.find(heading).unwrap_or_else(|| panic!("{heading} in:\n{all}"));
    assert!(
        place("While you read and build:") < place("\n  status ")
            && place("\n  status ") < place("Measuring and checking:")
    );
    let help = ok(&["generate", "--help"]).stdout;
    for option in [
        "--kv",
        "--model",
        "--max-new-tokens",
        "--temperature",
        "--top-k",
        "--top-p",
        "--seed",
        "--capacity",
        "-n, --samples",
        "--beams",
        "\nSampling:\n",
        "\nCache:\n",
        "\nSeveral outputs:\n",
        "\nSpeculative decoding:\n",
    ] {
        assert!(help.contains(option), "{option}");
    }
}

#[test]
fn nothing_can_be_saved_or_loaded_where_nothing_is_kept() {
    for option in ["--save-cache", "--load-cache"] {
        let run = run(&["generate", "--kv", "recompute", option, "no/such/file"]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
        let says = "error: --kv recompute keeps nothing that could be saved or loaded; use flat, contiguous or paged\n";
        assert_eq!(run.stderr, says);
    }
}

#[test]
fn a_place_that_cannot_be_written_is_refused_before_anything_is_computed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    for file in [folder, &format!("{folder}/no/such/folder")] {
        let run = run(&["generate", "--save-cache", file]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
        let hint = "to save a cache, name a file in a folder that exists and may be written to\n";
        assert!(run.stderr.starts_with(&format!("error: {file}: ")) && run.stderr.ends_with(hint), "{}", run.stderr);
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

/// A repository in which nothing but the record counts.
fn with_record(record: Option<&str>) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for folder in ["exercises", ".page-by-page", "deeper/still"] {
        std::fs::create_dir_all(root.path().join(folder)).unwrap();
    }
    std::fs::write(root.path().join("exercises/untouched.txt"), "").unwrap();
    if let Some(record) = record {
        std::fs::write(root.path().join(".page-by-page/record.json"), record).unwrap();
    }
    root
}

#[test]
fn status_lists_the_chapters_and_says_what_is_next() {
    let root = with_record(None);
    let status = run_in(root.path(), &["status"]);
    assert_eq!((status.code, status.stderr.as_str()), (Some(0), ""));
    let status = status.stdout;
    let lines: Vec<&str> = status.lines().collect();
    assert!(lines[0].starts_with("chapter"), "{status}");
    for chapter in page_by_page::chapters::all() {
        let title = format!("{:2}  {}", chapter.number, chapter.title);
        let line = lines.iter().find(|line| line.starts_with(&title)).expect(&title);
        assert!(line.contains(whose(chapter.number)), "{line}");
        if whose(chapter.number) == "yours" {
            assert!(line.contains("no recorded run; `cargo learn --once "), "{line}");
        }
    }
    assert!(lines[lines.len() - 1].starts_with("Next: "), "{status}");
}

#[test]
fn status_counts_what_is_left_of_an_untouched_chapter() {
    let root = with_record(None);
    let status = run_in(root.path(), &["status"]).stdout;
    let line = status.lines().find(|line| line.contains("Recompute everything")).unwrap();
    assert!(line.contains("reference") && line.ends_with("3 tasks to write"), "{line}");
    assert!(status.contains("Next: "), "{status}");
}

#[test]
fn status_is_an_object_too() {
    let record = r#"{"version":1,"at":"ch02_flat","chapters":{"ch02_flat":{"fingerprint":"0","ran":7,
        "tasks":{"1":{"green":9,"of":9}},"whole":{"green":0,"of":3}}}}"#;
    let root = with_record(Some(record));
    // The record of the repository is found from any of its folders.
    let status = run_in(&root.path().join("deeper/still"), &["status", "--json"]);
    assert_eq!((status.code, status.stderr.as_str()), (Some(0), ""));
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!((&status["at"], &status["note"]), (&json!("ch02_flat"), &json!(null)));
    assert!(status["next"]["text"].as_str().unwrap().starts_with("Next: "), "{status}");
    let chapters = status["chapters"].as_array().unwrap();
    assert_eq!(chapters.len(), page_by_page::chapters::all().len());
    for (object, chapter) in chapters.iter().zip(page_by_page::chapters::all()) {
        assert_eq!((&object["number"], &object["name"]), (&json!(chapter.number), &json!(chapter.name)));
        assert_eq!(object["title"], chapter.title);
        let yours = whose(chapter.number) == "yours";
        assert_eq!(object["source"] == "yours", yours, "{object}");
        let left: usize = object["tasks"].as_array().unwrap().iter().map(|t| t["left"].as_array().unwrap().len()).sum();
        assert_eq!(left, chapter.tasks_left().len(), "{object}");
        // No file has the fingerprint 0.
        let expected = if yours && chapter.name == "ch02_flat" { "changed" } else { "none" };
        assert_eq!(object["last_run"], expected, "{object}");
    }
}

#[test]
fn a_record_that_cannot_be_used_is_said_and_no_failure() {
    let root = with_record(Some("{\"version\": 1, \"chapters\": "));
    let status = run_in(root.path(), &["status"]);
    assert_eq!(status.code, Some(0));
    let says = "note: .page-by-page/record.json is damaged (";
    assert!(status.stderr.starts_with(says) && status.stderr.contains("so it is ignored"), "{}", status.stderr);
    assert!(status.stdout.contains("Next: "), "{}", status.stdout);
    let object = run_in(root.path(), &["status", "--json"]);
    assert_eq!((object.code, object.stderr.as_str()), (Some(0), ""));
    let object: Value = serde_json::from_str(&object.stdout).unwrap();
    assert!(object["note"].as_str().unwrap().contains("is damaged ("), "{object}");
}

#[test]
fn logits_are_the_librarys_to_the_last_bit() {
    let model = bundled("storyteller-draft");
    let tokens = [0, 500, 37, 4095];
    let expected = model.forward(vec![model.chunk(&tokens, None, LogitRows::All).unwrap()]).unwrap();
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

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn synth_removes_what_a_killed_run_left_and_nothing_that_is_in_use() {
    let parent = tempfile::tempdir().unwrap();
    let out = new_folder(&parent);
    let mut large = Command::new(PROGRAM)
        .args(["synth", "--shape", "qwen3-0.6b", "--out", &out, "--threads", "1"])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let partial = format!("model.{}.partial", large.id());
    let config = parent.path().join(&partial).join("config.json");
    while std::fs::metadata(&config).map_or(0, |config| config.len()) == 0 {
        assert!(large.try_wait().unwrap().is_none(), "it takes seconds");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    ok(&["synth", "--shape", "tiny", "--out", &out]);
    assert_eq!(names(parent.path()), ["model", &partial], "the other is still writing");
    large.kill().unwrap();
    large.wait().unwrap();
    assert_eq!(names(parent.path()), ["model", &partial], "nobody was left to remove it");
    std::fs::remove_dir_all(&out).unwrap();
    for other in ["model.partial", "model.x.partial", "other.1.partial"] {
        std::fs::create_dir(parent.path().join(other)).unwrap();
    }
    ok(&["synth", "--shape", "tiny", "--out", &out]);
    assert_eq!(names(parent.path()), ["model", "model.partial", "model.x.partial", "other.1.partial"]);
}

#[test]
fn a_file_for_numbers_that_cannot_be_written_is_refused_before_anything_is_measured() {
    for what in ["engine", "caches", "waste", "fragmentation", "append", "rewind", "samples", "speculation"] {
        let run = run(&["bench", what, "--json", "no/such/folder/numbers.json"]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{what}");
        assert!(run.stderr.starts_with("error: cannot write no/such/folder/numbers.json: "), "{what}: {}", run.stderr);
    }
    if cfg!(all(target_os = "linux", written = "ch03_contiguous")) {
        let both = ok(&["bench", "waste", "--json", "/dev/stdout"]).stdout;
        assert!(both.contains("wasted") && both.contains("\"wasted_share\""), "{both}");
    }
}

/// What needs the code of chapters 1 to 6. A chapter with a todo! in it fails its own checks, not these.
mod with_caches {
    use super::*;
    use crate::checkpoints::Folder;

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
        let waste =
            ok(&["bench", "waste", "--capacity", "1024", "--lengths", "1024,700,300,224", "--json", path]).stdout;
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
}

/// What needs the code of chapter 7 too.
mod with_rewind {
    use super::*;
    use crate::checkpoints::Folder;
    #[cfg(unix)]
    use crate::program::Run;

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
            let continued =
                json_of(&[&["generate", &text, "--json", "--load-cache", &place.file()], &more[..]].concat());
            assert_eq!((&continued["text"], &continued["tokens"]), (&plain["text"], &plain["tokens"]), "{kv}");
            assert_eq!(
                format!("{}{}", start["text"].as_str().unwrap(), continued["text"].as_str().unwrap()),
                long["text"]
            );
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
        let names =
            ["/kv", "/tokens", "/tokens_forgotten", "/rewind/rows_copied", "/pages_returned", "/copy/rows_copied"];
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
            (
                ["append", "--tokens", "1000000"],
                "1,000,016 slots of 3,072 bytes are needed at once, 2,930 MiB of at most",
            ),
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
}

mod with_drafts {
    use super::*;
    use crate::checkpoints::Folder;

    const SHORT: [&str; 4] = ["generate", "--max-new-tokens", "40", "--json"];
    const DRAFT: [&str; 2] = ["--draft", "storyteller-draft"];

    #[test]
    fn guesses_are_counted() {
        let story = json_of(&[&SHORT[..], &DRAFT, &["--temperature", "0"]].concat());
        let draft = &story["draft"];
        let number = |name: &str| draft[name].as_u64().unwrap();
        assert_eq!(draft["model"], "storyteller-draft");
        assert_eq!((number("draft_len"), number("generated")), (4, 40));
        assert_eq!(number("accepted") + number("target_passes"), 40, "each pass adds the accepted tokens and one more");
        assert!(number("accepted") > 0 && number("accepted") < number("drafted"), "{draft}");
        let rate = number("accepted") as f64 / number("drafted") as f64;
        assert_eq!(draft["acceptance_rate"].as_f64(), Some(rate));
        assert_eq!(draft["target_passes_per_token"].as_f64(), Some(number("target_passes") as f64 / 40.0));
        // A pass over the prompt, and then over the newest token, and with each the guesses.
        let prompt = story["tokens"]["prompt"].as_array().unwrap().len() as u64;
        let projected = prompt + number("target_passes") - 1 + number("drafted");
        assert_eq!(story["counters"]["rows_projected"].as_u64(), Some(projected));

        let told = ok(&[&["generate", "--max-new-tokens", "40", "--temperature", "0"], &DRAFT[..]].concat()).stderr;
        let line = told.lines().find(|line| line.starts_with("draft ")).expect("a line about guesses");
        let start = format!("{} of {} draft tokens accepted", number("accepted"), number("drafted"));
        assert!(line.contains(&start) && line.contains("passes of the target for 40 tokens"), "{line}");
    }

    #[test]
    fn a_draft_model_that_cannot_draft_is_refused_before_anything_is_written() {
        let other_words = Folder::copy_of("storyteller-draft");
        let tokenizer = String::from_utf8(other_words.read("tokenizer.json")).unwrap();
        let mut tokenizer: Value = serde_json::from_str(&tokenizer).unwrap();
        let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        let words: Vec<String> = vocab.keys().cloned().collect();
        let two = words.iter().filter(|word| word.len() > 3).take(2).cloned().collect::<Vec<_>>();
        let (a, b) = (vocab[&two[0]].clone(), vocab[&two[1]].clone());
        (vocab[&two[0]], vocab[&two[1]]) = (b, a);
        other_words.write("tokenizer.json", tokenizer.to_string());
        let few_positions = Folder::copy_of("storyteller-draft");
        few_positions.set("config.json", "max_position_embeddings", json!(30));
        let golden = crate::support::root().join("tests/golden/bf16-gqa3");
        for (draft, says) in [
            (other_words.path(), "'s vocabulary differs from the model's: token id "),
            (few_positions.path(), "more than the draft model's 30 positions"),
            (golden.to_str().unwrap(), "has a vocabulary of "),
            ("no/such/model", "no/such/model"),
        ] {
            let run = run(&["generate", "--max-new-tokens", "40", "--draft", draft]);
            assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{draft}");
            assert!(run.stderr.contains(says), "{}", run.stderr);
        }
        for alone in [["--draft-len", "3"], ["--accept", "sample"]] {
            assert_eq!(run(&[&["generate"], &alone[..]].concat()).code, Some(2), "{alone:?} without --draft");
        }
    }

    #[test]
    fn a_saved_cache_and_a_draft_go_together() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("story.cache").to_str().unwrap().to_string();
        let alone = json_of(&SHORT);
        let saved = json_of(&[&SHORT[..], &DRAFT, &["--save-cache", &file]].concat());
        assert_eq!(saved["saved"]["tokens"], alone["counters"]["tokens"], "no guess is saved");
        let loaded = json_of(&[&SHORT[..], &DRAFT, &["--load-cache", &file, "--kv", "paged"]].concat());
        assert_eq!(loaded["text"], alone["text"]);
    }

    #[test]
    fn guessing_ahead_is_compared_with_not_guessing() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("numbers.json");
        let arguments =
            ["bench", "speculation", "--max-new-tokens", "12", "--draft-lens", "1,3", "--prompts", "The king"];
        let table = ok(&[&arguments[..], &["--json", file.to_str().unwrap()]].concat()).stdout;
        let numbers: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let runs = numbers["runs"].as_array().unwrap();
        let column = |name: &str| runs.iter().map(|run| run[name].as_u64().unwrap()).collect::<Vec<_>>();
        assert_eq!(column("draft_len"), [0, 1, 3]);
        assert_eq!(column("generated"), [12; 3]);
        assert_eq!((column("target_passes")[0], column("drafted")[0]), (12, 0));
        for (passes, accepted) in column("target_passes").iter().zip(column("accepted")) {
            assert_eq!(passes + accepted, 12);
        }
        assert_eq!(runs[0]["share_of_time"], 1.0);
        assert_eq!(numbers["passes"][0], json!([1, 1.0]));
        assert!(table.contains("passes per token") && table.contains("1 token, draft model"), "{table}");
    }
}

mod with_chance {
    use super::*;

    const SHORT: [&str; 4] = ["generate", "--max-new-tokens", "40", "--json"];
    const DRAFT: [&str; 2] = ["--draft", "storyteller-draft"];

    #[test]
    fn sampled_guesses_are_accepted_by_chance() {
        let run = |seed: &str| json_of(&[&SHORT[..], &DRAFT, &["--accept", "sample", "--seed", seed]].concat());
        assert_eq!(run("5")["text"], run("5")["text"], "the same seed draws the same");
        assert_ne!(run("5")["text"], run("6")["text"]);
        assert_eq!(run("5")["draft"]["accept"], "sample");
        let greedy = [&SHORT[..], &["--temperature", "0"]].concat();
        let sampled = json_of(&[&greedy[..], &DRAFT, &["--accept", "sample"]].concat());
        assert_eq!(sampled["text"], json_of(&greedy)["text"], "greedy leaves nothing to chance");
    }

    #[test]
    fn guesses_of_the_text_itself_are_accepted_by_chance_too() {
        let lookup = ["--draft", "prompt-lookup", "--accept", "sample", "--kv", "paged"];
        let run = |more: &[&str]| json_of(&[&SHORT[..], &lookup, more].concat());
        assert_eq!(run(&["--seed", "5"])["text"], run(&["--seed", "5"])["text"], "the same seed draws the same");
        let greedy = ["--temperature", "0"];
        assert_eq!(run(&greedy)["text"], json_of(&[&SHORT[..], &greedy].concat())["text"]);
    }

    #[test]
    fn the_share_accepted_stands_beside_the_share_to_expect() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("numbers.json");
        // Of one text: enough to tell the rules apart, and the seed fixes what is counted.
        let text = ["--prompts", "Once upon a time", "--max-new-tokens", "100"];
        let bench = [&["bench", "speculation", "--draft-lens", "2", "--temperature", "0.8"], &text[..]].concat();
        let numbers = |rule: &str| -> (String, Value) {
            let more = ["--accept", rule, "--json", file.to_str().unwrap()];
            let table = ok(&[&bench[..], &more].concat()).stdout;
            (table, serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap())
        };
        let (table, sampled) = numbers("sample");
        let run = &sampled["runs"][1];
        let [share, to_expect] = ["acceptance_rate", "rate_to_expect"].map(|name| run[name].as_f64().unwrap());
        assert!(share > 0.2 && (share - to_expect).abs() < 0.08, "{share} accepted, {to_expect} to expect");
        assert!(table.contains("to expect") && table.contains(&format!("{:.1} %", 100.0 * to_expect)), "{table}");
        let (table, matched) = numbers("match");
        assert!(!table.contains("to expect") && matched["runs"][1].get("rate_to_expect").is_none(), "{table}");
        assert!(matched["runs"][1]["acceptance_rate"].as_f64().unwrap() < share, "the sample rule accepts more");
    }

    #[test]
    fn chapter_9_is_needed_for_the_sample_rule_only() {
        for (rule, needed) in [("match", false), ("sample", true)] {
            let told = ok(&[&["generate", "--max-new-tokens", "3", "--accept", rule], &DRAFT[..]].concat()).stderr;
            let line = told.lines().find(|line| line.starts_with("chapters ")).expect("a line about chapters");
            let says = |number: usize| line.contains(&format!("{number} {}", whose(number)));
            assert!(says(8) && says(9) == needed, "{line}");
        }
    }
}

#[cfg(not(feature = "serve"))]
#[test]
fn what_needs_another_feature_says_which_and_how_to_run_it() {
    for (arguments, says) in [
        (&["serve", "--port", "0"][..], "serve -- serve --port 0\n"),
        (&["serve", "--help"], "serve -- serve --help\n"),
        (&["chat", "--system=Be brief."], "serve -- chat '--system=Be brief.'\n"),
    ] {
        let refused = run(arguments);
        assert_eq!((refused.code, &refused.stdout[..]), (Some(1), ""));
        let begins = format!("error: this program was built without the feature `serve`, which {} needs", arguments[0]);
        assert!(refused.stderr.starts_with(&begins) && refused.stderr.ends_with(says), "{}", refused.stderr);
    }
}
