//! `--help`, `status`, `logits` and `synth`.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use page_by_page::chapters::{self, Source};
use page_by_page::model::{LogitRows, Model};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::flags::commands;
use crate::program::{PROGRAM, Run, ok, run, run_in};
use crate::script::names;

#[test]
fn help_has_an_example() {
    for (command, _) in commands(Vec::new()) {
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        // Without the feature `serve` these two say how to get it.
        if !cfg!(feature = "serve") && ["chat", "serve"].contains(&command[0]) {
            continue;
        }
        let help = ok(&[&command[..], &["--help"]].concat()).stdout;
        assert!(help.contains("Example") && !help.contains("TODO"), "{command:?}:\n{help}");
    }
}

/// The command's help explains each key of the JSON object that it has printed.
#[track_caller]
pub fn keys_are_documented(command: &str, printed: &Run) {
    let help = ok(&[command, "--help"]).stdout;
    let documented = help.split_once("What the JSON object holds:").expect("a list of keys").1;
    let words: Vec<&str> = documented.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let keys = printed.stdout.lines().filter_map(|line| line.trim().strip_prefix('"')?.split_once("\": "));
    let keys: Vec<&str> = keys.map(|(key, _)| key).collect();
    assert!(keys.len() > 12, "{keys:?}");
    keys.iter().for_each(|key| assert!(words.contains(key), "{key} is not in the help:{documented}"));
}

#[cfg(not(feature = "serve"))]
#[test]
fn what_needs_another_feature_says_which_and_how_to_run_it() {
    for (arguments, says) in [
        (&["serve", "--port", "0"][..], "serve -- serve --port 0\n"),
        (&["serve", "--help"], "serve -- serve --help\n"),
        (&["chat", "--model=DIR"], "serve -- chat --model=DIR\n"),
    ] {
        let refused = run(arguments);
        assert_eq!((refused.code, &refused.stdout[..]), (Some(1), ""));
        let begins = format!("error: this program was built without the feature `serve`, which {} needs", arguments[0]);
        assert!(refused.stderr.starts_with(&begins) && refused.stderr.ends_with(says), "{}", refused.stderr);
    }
}

/// A repository in which only the record counts.
fn with_record(record: &str) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for folder in ["exercises", ".page-by-page", "deeper/still"] {
        std::fs::create_dir_all(root.path().join(folder)).unwrap();
    }
    std::fs::write(root.path().join("exercises/untouched.txt"), "").unwrap();
    std::fs::write(root.path().join(".page-by-page/record.json"), record).unwrap();
    root
}

#[test]
fn status_lists_the_chapters_and_says_what_is_next() {
    // No file has the fingerprint 0.
    let record = r#"{"version":1,"at":"ch02_flat","chapters":{"ch02_flat":{"fingerprint":"0","ran":7,
        "tasks":{"1":{"green":9,"of":9}},"whole":{"green":0,"of":3}}}}"#;
    let root = with_record(record);
    // The record of the repository is found from any of its folders.
    let folder = root.path().join("deeper/still");
    let (table, object) = (run_in(&folder, &["status"]), run_in(&folder, &["status", "--json"]));
    for status in [&table, &object] {
        assert_eq!((status.code, status.stderr.as_str()), (Some(0), ""));
    }
    keys_are_documented("status", &object);
    let object = object.json();
    let (at, note, next) = (&object["at"], &object["note"], object["next"]["text"].as_str().unwrap());
    assert_eq!((at, note), (&json!("ch02_flat"), &json!(null)));
    assert!(next.starts_with("Next: ") && table.stdout.ends_with(&format!("\n{next}\n")), "{}", table.stdout);
    let listed = object["chapters"].as_array().unwrap();
    assert_eq!(listed.len(), chapters::all().len());
    for (object, chapter) in listed.iter().zip(chapters::all()) {
        let (source, says, last_run) = match chapter.source {
            Source::Yours if chapter.name == "ch02_flat" => ("yours", "changed since that run", "changed"),
            Source::Yours => ("yours", "no recorded run; `cargo learn --once ", "none"),
            Source::Reference => ("reference", "reference", "none"),
            Source::Unstarted => ("unstarted", "not started", "none"),
        };
        assert_eq!((&object["name"], &object["source"]), (&json!(chapter.name), &json!(source)));
        assert_eq!(object["last_run"], last_run, "{object}");
        let title = format!("{:2}  {}", chapter.number, chapter.title);
        let line = table.stdout.lines().find(|line| line.starts_with(&title)).expect(&title);
        assert!(line.contains(says), "{line}");
    }
}

#[test]
fn a_record_that_cannot_be_used_is_said_and_no_failure() {
    let root = with_record("{\"version\": 1, \"chapters\": ");
    let status = run_in(root.path(), &["status"]);
    let says = "note: .page-by-page/record.json is damaged (";
    assert!(status.stderr.starts_with(says) && status.stderr.contains("so it is ignored"), "{}", status.stderr);
    assert!(status.code == Some(0) && status.stdout.contains("Next: "), "{}", status.stdout);
    let object = run_in(root.path(), &["status", "--json"]).json();
    assert!(object["note"].as_str().unwrap().contains("is damaged ("), "{object}");
}

#[test]
fn logits_are_the_librarys_to_the_last_bit_with_any_number_of_threads() {
    let model = Model::open(&crate::support::root().join("assets/storyteller-draft")).unwrap();
    let tokens = [0, 500, 37, 4095];
    let expected = model.forward(vec![model.chunk(&tokens, None, LogitRows::All).unwrap()]).unwrap();
    let expected: Vec<Vec<u32>> = expected.chunks(4096).map(|row| row.iter().map(|x| x.to_bits()).collect()).collect();
    let bits = |numbers: &Value| -> Vec<u32> {
        // Through text, as a program in another language would read it.
        let numbers = numbers.as_array().expect("an array").iter();
        numbers.map(|number| number.to_string().parse::<f32>().unwrap().to_bits()).collect()
    };
    for threads in ["1", "3"] {
        let logits = ["logits", "--tokens=0,500,37,4095", "--model=storyteller-draft", "--threads", threads];
        let last = ok(&logits).json();
        assert_eq!((&last["tokens"], bits(&last["logits"])), (&json!(tokens), expected[3].clone()));
        let all = ok(&[&logits[..], &["--all"]].concat()).json();
        let all: Vec<Vec<u32>> = all["logits"].as_array().unwrap().iter().map(bits).collect();
        assert_eq!(all, expected, "{threads} threads");
    }
}

// Random weights

fn new_folder() -> (TempDir, String) {
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("model").to_str().unwrap().into();
    (parent, out)
}

fn synth(shape: &str, out: &str, more: &[&str]) -> String {
    ok(&[&["synth", "--shape", shape, "--out", out], more].concat()).stderr
}

#[test]
fn synth_writes_what_logits_reads() {
    let (parent, out) = new_folder();
    let says = synth("tiny", &out, &[]);
    assert!(says.contains("90,496 weights in 24 tensors"), "{says}");
    assert_eq!(names(parent.path()), ["model"]);
    let logits = ok(&["logits", "--tokens", "0,255", "--model", &out]).json();
    let logits = logits["logits"].as_array().unwrap();
    assert_eq!(logits.len(), 256);
    assert!(logits.iter().all(|logit| logit.as_f64().unwrap().abs() > 0.0), "random weights give random logits");
}

#[test]
fn synth_repeats_itself_with_the_same_seed_only() {
    let weights = |seed: &str, threads: &str| {
        let (_parent, out) = new_folder();
        synth("storyteller-draft", &out, &["--seed", seed, "--threads", threads]);
        std::fs::read(Path::new(&out).join("model.safetensors")).unwrap()
    };
    assert_eq!(weights("1", "1"), weights("1", "2"));
    assert_ne!(weights("1", "1"), weights("2", "1"));
}

#[test]
fn synth_never_writes_over_anything() {
    let (_parent, out) = new_folder();
    std::fs::create_dir(&out).unwrap();
    synth("tiny", &out, &[]);
    let before = std::fs::read(Path::new(&out).join("model.safetensors")).unwrap();
    let again = run(&["synth", "--shape", "tiny", "--out", &out, "--seed", "9"]);
    assert_eq!(again.code, Some(1));
    assert!(again.stderr.contains("is not empty; choose another folder"), "{}", again.stderr);
    assert_eq!(std::fs::read(Path::new(&out).join("model.safetensors")).unwrap(), before);
}

#[test]
fn synth_removes_what_a_killed_run_left_and_nothing_that_is_in_use() {
    let (parent, out) = new_folder();
    let large = ["synth", "--shape", "qwen3-0.6b", "--out", &out, "--threads", "1"];
    let mut large: Child = Command::new(PROGRAM).args(large).stderr(Stdio::null()).spawn().unwrap();
    let config = parent.path().join("model.partial/config.json");
    while std::fs::metadata(&config).map_or(0, |config| config.len()) == 0 {
        assert!(large.try_wait().unwrap().is_none(), "it takes seconds");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let refused = run(&["synth", "--shape", "tiny", "--out", &out]);
    assert!(refused.stderr.contains("another program is writing there at the moment"), "{}", refused.stderr);
    assert!(large.try_wait().unwrap().is_none() && config.exists(), "it goes on");
    large.kill().unwrap();
    large.wait().unwrap();
    assert_eq!(names(parent.path()), ["model.partial"], "nothing has removed it yet");
    synth("tiny", &out, &[]);
    assert_eq!(names(parent.path()), ["model"]);
    assert_eq!(names(&out), ["config.json", "model.safetensors"]);
}
