//! Whatever is wrong with a command: one or two lines that say what, where and what to do; no panic, no huge
//! allocation. What can be wrong with a model's files is in `tests/engine/damaged_models.rs`.

use std::process::Command;

use safetensors::Dtype;
use serde_json::{Value, json};

use crate::program::{PROGRAM, Run, limited, run};
use crate::script::Script;
use grading::checkpoints::Folder;

pub fn changed(model: &str, file: &str, field: &str, value: Value) -> Folder {
    let folder = Folder::copy_of(model);
    folder.set(file, field, value);
    folder
}

fn with_positions(positions: usize) -> Folder {
    changed("storyteller-draft", "config.json", "max_position_embeddings", json!(positions))
}

/// A folder whose weights are finite, and so large that nothing computed with them is.
pub fn overflowing(golden: &str) -> Folder {
    let folder = Folder::copy_of(golden);
    folder.change_tensor("model.norm.weight", |tensor| {
        let numbers = tensor.shape[0];
        tensor.data = match tensor.dtype {
            Dtype::BF16 => half::bf16::MAX.to_le_bytes().repeat(numbers),
            _ => f32::MAX.to_le_bytes().repeat(numbers),
        };
    });
    folder
}

/// A draft model in which two words have changed their ids.
fn other_words() -> Folder {
    let folder = Folder::copy_of("storyteller-draft");
    let mut tokenizer: Value = serde_json::from_slice(&folder.read("tokenizer.json")).unwrap();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let mut words: Vec<String> = vocab.keys().filter(|word| word.len() > 3).cloned().collect();
    words.sort();
    let ids = [vocab[&words[0]].clone(), vocab[&words[1]].clone()];
    [vocab[&words[1]], vocab[&words[0]]] = ids;
    folder.write("tokenizer.json", tokenizer.to_string());
    folder
}

#[test]
fn every_refusal_says_what_is_wrong_and_leaves_nothing_behind() {
    let other_tokenizer = Folder::copy_of("bf16-gqa3");
    other_tokenizer.write("tokenizer.json", Folder::copy_of("storyteller").read("tokenizer.json"));
    let script = Script::new()
        .file("blank.txt", "\n \r\n")
        .model("models/golden", Folder::copy_of("bf16-gqa3"))
        .model("models/other-tokenizer", other_tokenizer)
        .model("models/12-positions", with_positions(12))
        .model("models/30-positions", with_positions(30))
        .model("models/16777216-positions", with_positions(1 << 24))
        .model("models/overflowing", overflowing("bf16-gqa3"))
        .model("models/other-words", other_words())
        .in_a_gibibyte();
    for (command, Run { code, stdout, stderr }) in script.check("refusals") {
        assert!(matches!(code, Some(1 | 2)) && stdout.is_empty(), "{command}: {code:?} {stdout}");
        let is_short = code == Some(2) || stderr.lines().count() <= 2;
        assert!(stderr.starts_with("error: ") && is_short && !stderr.contains("panicked"), "{command}:\n{stderr}");
    }
    assert!(script.files().iter().eq(["blank.txt"]), "{:?}", script.files());
}

#[test]
fn an_argument_is_repeated_harmlessly() {
    for arguments in
        [&["generate", "--load-cache", "\u{1b}[2J"][..], &["logits", "--tokens", "1", "--model", "\u{1b}[2J"]]
    {
        let run = run(arguments);
        assert!(run.code != Some(0) && run.stderr.contains("\\u{1b}[2J"), "{:?}", run.stderr);
        assert!(!run.stderr.contains('\u{1b}'), "{:?}", run.stderr);
    }
}

/// A tokenizer with an escape sequence for a word: a terminal is shown what it is, a file gets it as it is.
#[cfg(target_os = "linux")]
#[test]
fn a_story_gives_no_orders_to_a_terminal() {
    let folder = Folder::copy_of("storyteller-draft");
    let mut tokenizer: Value = serde_json::from_slice(&folder.read("tokenizer.json")).unwrap();
    let model = &mut tokenizer["model"];
    model["merges"].as_array_mut().unwrap().retain(|parts| parts[0] != "," && parts[1] != ",");
    let vocab = model["vocab"].as_object_mut().unwrap();
    let comma = vocab.remove(",").unwrap();
    // Tokens are spelt in letters that stand for bytes; this one stands for an escape.
    vocab.insert("ě[31m".into(), comma);
    folder.write("tokenizer.json", tokenizer.to_string());
    let story = format!("{PROGRAM} generate --temperature 0 --max-new-tokens 20 --model {}", folder.path());
    let plain = Run::of(Command::new("sh").args(["-c", &story]).output().unwrap()).stdout;
    assert!(plain.contains("\u{1b}[31m"), "{plain:?}");
    // `script` gives it a terminal; nearly every Linux has it.
    let Ok(shown) = Command::new("script").args(["-qec", &story, "/dev/null"]).output() else { return };
    let shown = Run::of(shown).stdout;
    let text = plain.trim_end().replace('\u{1b}', "\\u{1b}");
    assert!(shown.starts_with(&text) && !shown.contains('\u{1b}'), "{shown:?}");
}

/// Not in the script, because the sizes depend on what the system grants.
#[cfg(target_os = "linux")]
#[test]
fn what_no_memory_holds_is_not_begun() {
    let (folder, place) = (with_positions(1 << 24), tempfile::tempdir().unwrap());
    let (tokens, out) = (vec!["1"; 60_000].join(","), place.path().join("model"));
    for (arguments, says) in [
        (
            ["logits", "--all", "--tokens", &tokens, "--model", folder.path()].as_slice(),
            ["computing 60,000 tokens takes ", "give fewer tokens"],
        ),
        (&["synth", "--shape", "qwen3-0.6b", "--out", out.to_str().unwrap()], ["the largest tensor takes 297 MiB", ""]),
    ] {
        let run = Run::of(limited("-v 307200").args(arguments).args(["--threads", "1"]).output().unwrap());
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{}", run.stderr);
        assert!(says.iter().all(|words| run.stderr.contains(words)), "{}", run.stderr);
    }
    assert!(!out.exists());
}

/// `--threads`, or the variable that rayon reads: both within reason.
#[test]
fn more_threads_than_the_cores_can_use_are_not_started() {
    let tokens = ["logits", "--tokens", "1", "--model", "storyteller-draft"];
    let run = |variable: &str, option: &[&str]| {
        let mut program = Command::new(PROGRAM);
        let run = Run::of(program.args(tokens).args(option).env("RAYON_NUM_THREADS", variable).output().unwrap());
        (run.code, run.stderr)
    };
    assert_eq!(run("18446744073709551615", &[]), (Some(0), String::new()));
    assert_eq!(run("99999999999", &["--threads", "1"]), (Some(0), String::new()));
    assert_eq!(run("", &["--threads", "1024"]), (Some(0), String::new()));
}
