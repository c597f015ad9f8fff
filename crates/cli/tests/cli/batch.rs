//! The command `batch`: hostile lines, results that stay whole, readers that leave, and Ctrl-C.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::program::{LONGEST, eventually, ok, run_with, spawn};
use crate::script::names;
use grading::checkpoints::Folder;
use grading::hostile::hostile_json;
use grading::oracle::{TestRng, seeds};

#[test]
fn a_prompt_that_is_too_long_is_refused_and_repeated() {
    let long = "king ".repeat(1100);
    let result = run_with(&["batch", "-"], json!({ "prompt": long }).to_string().as_bytes()).json();
    assert_eq!((&result["prompt"], &result["finish_reason"]), (&json!(long), &json!("refused")));
    let says = "line 1: 1102 tokens are more than the model's 1024 positions; shorten the prompt";
    assert!(result["error"].as_str().unwrap().starts_with(says), "{}", result["error"]);
}

#[test]
fn an_earlier_result_stays_until_all_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.jsonl");
    std::fs::write(&out, "precious").unwrap();
    let mut child = spawn(&["batch", "-", "--out", out.to_str().unwrap()]);
    child.stdin.as_mut().unwrap().write_all(b"{\"prompt\": \"One day\", \"max_new_tokens\": 2}\n").unwrap();
    let is_written = |name: &String| std::fs::metadata(folder.path().join(name)).is_ok_and(|file| file.len() > 0);
    let part = || names(folder.path()).into_iter().find(|name| name != "out.jsonl" && is_written(name));
    eventually(LONGEST, part).expect("the first result is not written");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "precious");
}

/// Opening a named pipe would wait for a reader.
#[cfg(unix)]
#[test]
fn results_for_a_named_pipe_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.to_str().unwrap();
    for (arguments, says) in [
        (["batch", "-", "--out", pipe], format!("{pipe}: name a file in a folder that exists")),
        (["bench", "waste", "--json", pipe], format!("cannot write {pipe}: ")),
    ] {
        let run = run_with(&arguments, b"{\"prompt\": \"One day\"}\n");
        assert!(run.code == Some(1) && run.stderr.contains(&says), "{}", run.stderr);
    }
}

#[test]
fn a_closed_output_is_no_failure() {
    const LONG: [&str; 4] = ["--kv", "recompute", "--max-new-tokens", "110"];
    for (arguments, input, start) in [
        ([&["generate"], &LONG[..]].concat(), "", "Once upon a time the"),
        ([&["generate", "Once upon a time", "One day"], &LONG[..]].concat(), "", "sequence 1\nOnce upon a time the"),
        (vec!["batch", "-"], "{\"prompt\": \"One day\", \"max_new_tokens\": 2}\n", ""),
    ] {
        let mut child = spawn(&arguments);
        let mut read = vec![0; start.len()];
        // The last one loses its reader before it has anything to write.
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut read).unwrap();
        drop(stdout);
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((read, output.status.code()), (start.as_bytes().to_vec(), Some(0)), "{arguments:?}: {stderr}");
        assert!(!stderr.contains("panicked") && !stderr.contains("error"), "{arguments:?}: {stderr}");
    }
}

#[cfg(unix)]
mod ctrl_c {
    use super::*;
    use crate::program::{ended, signal};

    #[test]
    fn the_first_keeps_what_is_done_and_says_how_far_the_others_are() {
        let sampling = json!({ "max_new_tokens": 1000, "temperature": 1.2, "top_p": 1, "prompt": "The king had" });
        let mut child = spawn(&["batch", "-", "--max-running=2"]);
        // Standard input stays open, so more lines could follow.
        let mut stdin = child.stdin.take().unwrap();
        writeln!(stdin, "{}", json!({ "prompt": "One day", "max_new_tokens": 5 })).unwrap();
        (0..3).for_each(|_| writeln!(stdin, "{sampling}").unwrap());
        let mut stdout = BufReader::with_capacity(1, child.stdout.as_mut().unwrap());
        let mut first = String::new();
        // It is there before the others are done, and before there is an end of the lines.
        stdout.read_line(&mut first).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&first).unwrap()["finish_reason"], "length");
        signal(&child, "-INT");
        let run = ended(child);
        let (rest, says) = (run.json_lines(), run.stderr);
        assert_eq!(run.code, Some(1));
        assert!(says.starts_with("interrupted: keeping what is done; "), "{says}");
        assert!(says.contains("error: interrupted: 1 request complete, 3 not, "), "{says}");
        assert_eq!(rest.iter().map(|result| result["line"].clone()).collect::<Vec<_>>(), [2, 3, 4]);
        let alone = ["--max-new-tokens=1000", "--temperature=1.2", "--top-p=1", "--json"];
        let whole = ok(&[&["generate", "The king had"], &alone[..]].concat()).json();
        let new_tokens = |result: &Value| result["tokens"]["new"].as_array().unwrap().clone();
        for result in &rest {
            assert_eq!(result["finish_reason"], "abort");
            let (so_far, whole) = (new_tokens(result), new_tokens(&whole));
            assert!(so_far.len() < whole.len() && whole.starts_with(&so_far), "{result}");
        }
        assert!(rest[0]["text"].as_str().unwrap().len() > 1, "the second sequence was running: {}", rest[0]);
        drop(stdin);
    }

    #[test]
    fn the_second_ends_it_at_once() {
        let mut child = spawn(&["batch", "-"]);
        let mut stdin = child.stdin.take().unwrap();
        let mut stdout = BufReader::with_capacity(1, child.stdout.take().unwrap());
        writeln!(stdin, "the first").unwrap();
        let mut first = String::new();
        stdout.read_line(&mut first).unwrap();
        // The results of these fill the pipe, because nothing reads them: it waits for a reader for ever.
        let lines = "x\n".repeat(20_000);
        let writer = std::thread::spawn(move || drop(stdin.write_all(lines.as_bytes())));
        std::thread::sleep(Duration::from_millis(300));
        signal(&child, "-INT");
        std::thread::sleep(Duration::from_millis(300));
        assert!(child.try_wait().unwrap().is_none(), "the first Ctrl-C lets it finish what it is at");
        signal(&child, "-INT");
        assert_eq!(ended(child).code, Some(130));
        drop(stdout);
        writer.join().unwrap();
    }
}

/// Lines for `batch`: each has its result, in order, and none stops the others.
#[test]
fn any_line_of_a_batch() {
    let folder = Folder::copy_of("storyteller-draft");
    // A line can ask for as many tokens as there are positions.
    folder.set("config.json", "max_position_embeddings", json!(24));
    let line = json!({ "prompt": "The king had", "max_new_tokens": 3, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "seed": 1 });
    let line = line.to_string().into_bytes();
    let (mut finished, mut refused) = (0, 0);
    // Some of the lines hold line ends, and are several.
    const LINES: u64 = 100;
    for first in 0..seeds(400).end.div_ceil(LINES) {
        let mut lines = Vec::new();
        for seed in first * LINES..(first + 1) * LINES {
            let mut rng = TestRng::new(seed);
            // Most of what is not changed at all passes.
            lines.extend(if rng.roll(0, 4) == 0 { line.clone() } else { hostile_json(&line, &mut rng) });
            lines.push(b'\n');
        }
        folder.write("lines.jsonl", &lines);
        let is_blank = |line: &[u8]| std::str::from_utf8(line).is_ok_and(|line| line.trim().is_empty());
        let expected = lines.split(|byte| *byte == b'\n').zip(1..).filter(|(line, _)| !is_blank(line));
        let expected: Vec<u64> = expected.map(|(_, number)| number).collect();
        let file = folder.file("lines.jsonl");
        let arguments = ["batch", file.to_str().unwrap(), "--model", folder.path(), "--pages=6", "--page-size=5"];
        let run = run_with(&arguments, b"");
        let (results, stderr) = (run.json_lines(), run.stderr);
        assert!(matches!(run.code, Some(0 | 1)) && !stderr.contains("panicked"), "{first}: {stderr}");
        let numbers: Vec<u64> = results.iter().map(|result| result["line"].as_u64().unwrap()).collect();
        assert_eq!(numbers, expected, "lines {first}: {stderr}");
        for result in &results {
            let is_finished = ["length", "stop"].contains(&result["finish_reason"].as_str().unwrap());
            (finished, refused) = (finished + u32::from(is_finished), refused + u32::from(!is_finished));
            assert_eq!(is_finished, result.get("error").is_none(), "{result}");
            if let Some(error) = result["error"].as_str() {
                assert!(error.starts_with(&format!("line {}: ", result["line"])), "{error}");
                assert!(!error.contains(char::is_control) && error.chars().count() < 1_000, "{error:?}");
            }
        }
    }
    assert!(finished > 20 && refused > 20, "{finished} finished, {refused} refused");
}
