//! The command line as people use it: what it prints where, and with which exit code.

use std::path::Path;
use std::process::Command;

use crate::program::{PROGRAM, ok, run, run_in};
use page_by_page::chapters::Source;
use page_by_page::model::{LogitRows, Model};
use serde_json::{Value, json};

#[track_caller]
pub fn json_of(arguments: &[&str]) -> Value {
    ok(arguments).json()
}

/// Whose code of a chapter runs, as the commands say it.
pub fn whose(number: usize) -> &'static str {
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
        &["gains"],
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
