//! Whatever is wrong with a command: one or two lines that say what, where and what to do; no panic, no huge allocation.
//! What can be wrong with a model's files is in `tests/engine/damaged_models.rs`.

use std::process::Command;

use crate::checkpoints::Folder;
use crate::program::PROGRAM;
use safetensors::Dtype;
use serde_json::json;

/// Runs the program with at most 1 GiB of address space, where the system can limit it.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = if cfg!(target_os = "linux") {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -v 1048576; exec \"$0\" \"$@\"", PROGRAM]);
        shell
    } else {
        Command::new(PROGRAM)
    };
    let output = command.args(arguments).args(["--threads", "1"]).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// The program fails with this exit code and says all of this, briefly.
#[track_caller]
fn fails(arguments: &[&str], code: i32, says: &[&str]) {
    let (found, stderr) = run(arguments);
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(found, Some(code), "exit code of {arguments:?}:\n{stderr}");
    assert!(stderr.starts_with("error: ") && (1..=2).contains(&lines.len()), "one or two lines:\n{stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("backtrace"), "no panic:\n{stderr}");
    for word in says {
        assert!(stderr.contains(word), "{word:?} is missing in:\n{stderr}");
    }
}

fn folder() -> Folder {
    Folder::copy_of("bf16-gqa3")
}

/// A draft model with so many positions.
fn with_positions(positions: usize) -> Folder {
    let folder = Folder::copy_of("storyteller-draft");
    folder.set("config.json", "max_position_embeddings", json!(positions));
    folder
}

/// A folder whose weights are finite, and so large that nothing computed with them is.
fn overflowing(golden: &str) -> Folder {
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

#[test]
fn a_model_folder_that_cannot_be_read_ends_the_command_in_a_line() {
    fails(&["logits", "--tokens", "1", "--model", "no/such/folder"], 1, &["config.json: ", "a model folder holds"]);
    let cut = folder();
    cut.write("model.safetensors", &cut.read("model.safetensors")[..100]);
    fails(&["logits", "--tokens", "1,2", "--model", cut.path()], 1, &["model.safetensors", "100 in all", "download"]);
    fails(&["generate", "--model", folder().path()], 1, &["tokenizer.json: ", "came with the model"]);
    let none = Folder::copy_of("storyteller-draft");
    none.write("tokenizer.json", "{}");
    fails(&["generate", "--model", none.path()], 1, &["tokenizer.json: "]);
    let other = folder();
    other.write("tokenizer.json", Folder::copy_of("storyteller").read("tokenizer.json"));
    let says = ["token id ", "outside the vocabulary: ids go from 0 to 96"];
    fails(&["generate", "--model", other.path()], 1, &says);
}

#[test]
fn an_argument_is_repeated_harmlessly() {
    for arguments in [&["generate", "--kv", "\u{1b}[2J"][..], &["logits", "--tokens", "1", "--model", "\u{1b}[2J"]] {
        let (code, stderr) = run(arguments);
        assert!(code != Some(0) && stderr.contains("\\u{1b}[2J"), "{stderr:?}");
        assert!(!stderr.contains('\u{1b}'), "{stderr:?}");
    }
}

#[test]
fn tokens_and_prompts_that_the_model_cannot_take() {
    let folder = folder();
    let long = vec!["1"; 129].join(",");
    for (tokens, says) in [
        ("1,97", "token id 97 is outside the vocabulary: ids go from 0 to 96"),
        ("4294967295", "token id 4294967295"),
        (&long, "129 tokens are more than the model's 128 positions"),
    ] {
        fails(&["logits", "--tokens", tokens, "--model", folder.path()], 1, &[says]);
    }
    fails(&["generate", ""], 1, &["the prompt is empty", "Once upon a time"]);
    let (folder, prompt) = (with_positions(12), "the king ".repeat(20));
    fails(&["generate", &prompt, "--model", folder.path()], 1, &["tokens", "12 positions", "shorten the prompt"]);
    let says = "error: unknown kv cache \"pagd\" (supported: recompute, flat, contiguous, paged)\n";
    assert_eq!(run(&["generate", "--kv", "pagd"]), (Some(2), says.into()));
}

/// A tokenizer with an escape sequence for a word: a terminal is shown what it is, a file gets it as it is.
#[cfg(target_os = "linux")]
#[test]
fn a_story_gives_no_orders_to_a_terminal() {
    let folder = Folder::copy_of("storyteller-draft");
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&folder.read("tokenizer.json")).unwrap();
    let model = &mut tokenizer["model"];
    model["merges"].as_array_mut().unwrap().retain(|parts| parts[0] != "," && parts[1] != ",");
    let vocab = model["vocab"].as_object_mut().unwrap();
    let comma = vocab.remove(",").unwrap();
    // Tokens are spelt in letters that stand for bytes; this one stands for an escape.
    vocab.insert("ě[31m".into(), comma);
    folder.write("tokenizer.json", tokenizer.to_string());
    let story = format!("{PROGRAM} generate --temperature 0 --max-new-tokens 20 --model {}", folder.path());
    let plain = Command::new("sh").args(["-c", &story]).output().unwrap();
    let plain = String::from_utf8(plain.stdout).unwrap();
    assert!(plain.contains("\u{1b}[31m"), "{plain:?}");
    // `script` gives it a terminal; nearly every Linux has it.
    let Ok(shown) = Command::new("script").args(["-qec", &story, "/dev/null"]).output() else { return };
    let shown = String::from_utf8(shown.stdout).unwrap();
    let text = plain.trim_end().replace('\u{1b}', "\\u{1b}");
    assert!(shown.starts_with(&text) && !shown.contains('\u{1b}'), "{shown:?}");
}

#[test]
fn a_reservation_larger_than_the_machine() {
    let takes = "a cache of 1,000,000,000,000 slots, 3,072 bytes each, takes 2,929,687,500 MiB";
    let none_holds = "no memory holds 18446744073709551615 slots";
    for (options, says) in [
        (&["--capacity", "1000000000000"][..], takes),
        (&["--capacity", "18446744073709551615"], none_holds),
        (&["--kv", "paged", "--pages", "1", "--page-size", "1000000000000"], takes),
        (&["--kv", "paged", "--pages", "1", "--page-size", "18446744073709551615"], none_holds),
        (
            &["--kv", "paged", "--pages", "4294967296"],
            "4,294,967,296 pages are more than the 4,294,967,295 that a pool",
        ),
    ] {
        fails(&[&["generate"], options].concat(), 1, &[says]);
    }
    let waste = ["bench", "waste", "--capacity", "1000000000000", "--lengths", "1,1,1"];
    fails(&waste, 1, &["a cache of 3,000,000,000,000 slots", "reserve fewer"]);
}

#[test]
fn sampling_that_makes_no_sense() {
    for (option, value) in [("--temperature", "-1"), ("--temperature", "NaN"), ("--temperature", "1e-30")] {
        fails(&["generate", option, value], 1, &["the temperature is", "0 (greedy) or 0.000001 to 1000"]);
    }
    for value in ["1.5", "-0.1", "nan"] {
        fails(&["generate", "--top-p", value], 1, &["top-p is", "a probability from 0 to 1"]);
    }
    // Rounded to 32 bits, these would be infinite, or 0, which is greedy.
    for value in ["1e308", "-1e308", "1e-320", "1e-60"] {
        let (code, stderr) = run(&["generate", "--temperature", value]);
        assert!(code == Some(2) && stderr.contains(&format!("{value} is out of the range")), "{stderr}");
    }
    for value in ["-1", "nan", "inf", "1e-40"] {
        let says = format!("the temperature is {}", value.parse::<f32>().unwrap());
        for rule in ["match", "sample"] {
            let bench = ["bench", "speculation", "--temperature", value, "--accept", rule];
            fails(&bench, 1, &[&says, "0 (greedy) or 0.000001 to 1000"]);
        }
    }
}

#[test]
fn logits_that_are_not_finite_are_never_printed() {
    let folder = overflowing("bf16-gqa3");
    for (more, position) in [(&[][..], "position 2 (token id 7)"), (&["--all"], "position 0 (token id 1)")] {
        let logits = ["logits", "--tokens", "1,2,7", "--model", folder.path()];
        fails(&[&logits, more].concat(), 1, &[&format!("the logits after {position} are not finite")]);
    }
}

#[test]
fn a_story_that_cannot_be_computed_is_not_told() {
    let folder = overflowing("storyteller-draft");
    for kv in ["recompute", "flat", "contiguous"] {
        let says = ["the logits after position 4 (token id ", "are not finite"];
        fails(&["generate", "--kv", kv, "--model", folder.path()], 1, &says);
    }
    let (code, stderr) = run(&["generate", "--kv", "flat", "The king", "The queen", "--model", folder.path()]);
    assert!(code == Some(1) && stderr.contains("are not finite") && !stderr.contains("panicked"), "{stderr}");
}

#[test]
fn a_text_longer_than_the_reservation() {
    fails(
        &["generate", "--max-new-tokens", "50", "--capacity", "20"],
        1,
        &["no room for 1 more", "0 of its 20 slots are free", "reserve more"],
    );
    fails(&["generate", "--capacity", "3"], 1, &["no room for 5 more tokens: 3 of its 3 slots are free"]);
    fails(&["bench", "waste", "--capacity", "8", "--lengths", "9"], 1, &["a text of 9 tokens", "8 slots"]);
}

const HUGE: &str = "9223372036854775807";
const WRAPS: &str = "6148914691236517206";
const TEBI: &str = "1099511627776";

#[test]
fn a_drafts_cache_is_checked_like_the_targets() {
    let draft = |page_size, says: &str| {
        let draft = ["generate", "--draft", "storyteller-draft", "--kv", "paged", "--page-size", page_size];
        fails(&draft, 1, &[says]);
    };
    draft("0", "the page size is 0");
    draft(HUGE, "no memory holds 9223372036854775807 slots");
    draft(WRAPS, "no memory holds 6148914691236517206 slots");
    draft(TEBI, "a cache of 1,099,511,627,776 slots, 512 bytes each, takes 536,870,912 MiB");
}

#[test]
fn guesses_that_no_memory_holds() {
    let folder = with_positions(1 << 24);
    let ahead = ["--max-new-tokens", "1000000", "--capacity", "10", "--draft-len", "1000000"];
    let says = ["drafting 1,000,000 tokens ahead takes 62,500 MiB", "give a shorter --draft-len"];
    fails(&[&["generate", "--draft", "prompt-lookup", "--model", folder.path()], &ahead[..]].concat(), 1, &says);
}

#[test]
fn benches_of_pages_that_no_memory_holds() {
    for (arguments, says) in [
        (["append", "--page-size", TEBI], "2,199,023,255,552 slots of 3,072 bytes are needed at once"),
        (["append", "--page-size", WRAPS], "no memory holds "),
        (["append", "--tokens", HUGE], "no memory holds "),
        (["rewind", "--page-size", TEBI], "slots of 3,072 bytes are needed at once"),
        (["rewind", "--page-size", HUGE], "no memory holds "),
        (["rewind", "--tokens", HUGE], "no memory holds "),
        (["waste", "--page-size", TEBI], "a cache of 4,398,046,511,104 slots"),
        (["waste", "--page-size", WRAPS], "no memory holds "),
        (["waste", "--page-size", "0"], "the page size is 0"),
        (["caches", "--tokens", HUGE], "expected 1 to 1023"),
        (["speculation", "--max-new-tokens", "18446744073709551615"], "more than the model's 1024 positions"),
    ] {
        fails(&[&["bench"], &arguments[..]].concat(), 1, &[says]);
    }
    let lengths = ["bench", "waste", "--page-size", "1", "--lengths", "18446744073709551615,18446744073709551615"];
    fails(&lengths, 1, &["18,446,744,073,709,551,615 pages are more than the 4,294,967,295 that a pool can number"]);
    let pages = ["bench", "fragmentation", "--page-size", "1", "--capacity", HUGE];
    fails(&pages, 1, &["slots are 9,223,372,036,854,775,807 pages", "at most 10,000,000"]);
    let (code, stderr) = run(&["bench", "engine", "--seconds", "4294967296"]);
    assert!(code == Some(2) && stderr.contains("4294967296 is not in 0..=3600"), "{code:?} {stderr}");
}

#[test]
fn a_tensor_that_no_memory_holds_is_not_written() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("model");
    let synth = ["synth", "--shape", "qwen3-4b", "--dtype", "f32", "--out", out.to_str().unwrap()];
    if cfg!(target_os = "linux") {
        fails(&synth, 1, &["the largest tensor takes 1,484 MiB"]);
    }
    assert!(!out.exists());
}

#[test]
fn logits_that_no_memory_holds() {
    let folder = with_positions(1 << 24);
    let tokens = vec!["1"; 60_000].join(",");
    let all = ["logits", "--all", "--tokens", &tokens, "--model", folder.path()];
    if cfg!(target_os = "linux") {
        fails(&all, 1, &["computing 60,000 tokens takes ", "give fewer tokens"]);
    }
}

/// `--threads`, or the variable that rayon reads: both within reason.
#[test]
fn more_threads_than_the_cores_can_use_are_not_started() {
    let tokens = ["logits", "--tokens", "1", "--model", "storyteller-draft"];
    let cores = std::thread::available_parallelism().unwrap().get();
    let run = |variable: &str, option: &[&str]| {
        let output =
            Command::new(PROGRAM).args(tokens).args(option).env("RAYON_NUM_THREADS", variable).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let note =
        |asked: &str| format!("note: computing with {} threads, not {asked}: this machine has {cores} core", 4 * cores);
    for (variable, asked) in [("99999999999", "99,999,999,999"), ("18446744073709551615", "18,446,744,073,709,551,615")]
    {
        let (code, stderr) = run(variable, &[]);
        assert!(code == Some(0) && stderr.starts_with(&note(asked)), "{variable}: {code:?} {stderr}");
        assert_eq!(run(variable, &["--threads", "1"]), (Some(0), String::new()), "the option counts");
    }
    if 4 * cores < 1024 {
        let (code, stderr) = run("1", &["--threads", "1024"]);
        assert!(code == Some(0) && stderr.starts_with(&note("1,024")), "{code:?} {stderr}");
    }
    for variable in ["", "0", "1", "many", "-1", "99999999999999999999"] {
        assert_eq!(run(variable, &[]), (Some(0), String::new()), "RAYON_NUM_THREADS={variable:?}");
    }
}
