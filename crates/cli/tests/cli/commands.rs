//! `--help`, `logits` and `synth`.

use std::path::Path;

use page_by_page::model::Model;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::flags::commands;
use crate::program::{LONGEST, eventually, ok, run, spawn};
use crate::script::names;

#[test]
fn help_has_an_example() {
    for (command, _) in commands(Vec::new()) {
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let help = ok(&[&command[..], &["--help"]].concat()).stdout;
        assert!(help.contains("Example") && !help.contains("TODO"), "{command:?}:\n{help}");
    }
}

#[cfg(not(feature = "serve"))]
#[test]
fn what_needs_another_feature_says_which_and_how_to_run_it() {
    for (arguments, says) in [
        (&["serve", "--port", "0"][..], "run cargo serve --port 0\n"),
        (&["serve", "--help"], "run cargo serve --help\n"),
        (&["chat", "--model=DIR"], "run cargo chat --model=DIR\n"),
    ] {
        let refused = run(arguments);
        assert_eq!((refused.code, &refused.stdout[..]), (Some(1), ""));
        let begins = format!("error: this program was built without the feature `serve`, which {} needs", arguments[0]);
        assert!(refused.stderr.starts_with(&begins) && refused.stderr.ends_with(says), "{}", refused.stderr);
    }
}

#[test]
fn logits_are_the_librarys_to_the_last_bit_with_any_number_of_threads() {
    let model = Model::open(&grading::root().join("assets/storyteller-draft")).unwrap();
    let tokens = [0, 500, 37, 4095];
    let expected = model.forward(vec![model.prepare_chunk(&tokens, None, tokens.len()).unwrap()]).unwrap();
    let expected: Vec<Vec<u32>> = expected.chunks(4096).map(|row| row.iter().map(|x| x.to_bits()).collect()).collect();
    let bits = |numbers: &Value| -> Vec<u32> {
        // Through text, as a program in another language would read it.
        let numbers = numbers.as_array().expect("an array").iter();
        numbers.map(|number| number.to_string().parse::<f32>().unwrap().to_bits()).collect()
    };
    let logits = ["logits", "--tokens=0,500,37,4095", "--model=storyteller-draft"];
    let last = ok(&[&logits[..], &["--threads=1"]].concat()).json();
    assert_eq!((&last["tokens"], bits(&last["logits"])), (&json!(tokens), expected[3].clone()));
    let all = ok(&[&logits[..], &["--threads=3", "--all"]].concat()).json();
    assert_eq!(all["logits"].as_array().unwrap().iter().map(bits).collect::<Vec<_>>(), expected);
}

// Random weights

fn new_folder() -> (TempDir, String) {
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("model").to_str().unwrap().into();
    (parent, out)
}

fn synth(shape: &str, out: &str, more: &[&str]) {
    ok(&[&["synth", "--shape", shape, "--out", out], more].concat());
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
fn synth_removes_what_a_killed_run_left_and_nothing_that_is_in_use() {
    let (parent, out) = new_folder();
    let mut large = spawn(&["synth", "--shape", "qwen3-0.6b", "--out", &out, "--threads", "1"]);
    let config = parent.path().join("model.partial/config.json");
    let begun = || std::fs::metadata(&config).ok().filter(|config| config.len() > 0);
    eventually(LONGEST, begun).expect("it takes seconds");
    let refused = run(&["synth", "--shape", "tiny", "--out", &out]);
    assert!(refused.stderr.contains("another program is writing there at the moment"), "{}", refused.stderr);
    assert!(large.try_wait().unwrap().is_none() && config.exists(), "it goes on");
    large.kill().unwrap();
    large.wait().unwrap();
    assert_eq!(names(parent.path()), ["model.partial"], "nothing has removed it yet");
    // An empty folder is no harm.
    std::fs::create_dir(&out).unwrap();
    synth("tiny", &out, &[]);
    assert_eq!(names(parent.path()), ["model"]);
    assert_eq!(names(&out), ["config.json", "model.safetensors"]);
}
