//! The command `batch`: what it prints, what it writes, what it refuses.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::checkpoints::Folder;
use crate::hostile::hostile_json;
use crate::program::{PROGRAM, Run, run_with, spawn};
use crate::support::oracle::{Dice, seeds};

/// A run of `batch -` with these lines; its exit code must be 0, or 1.
#[track_caller]
fn batch(lines: &[Value], more: &[&str], code: i32) -> Run {
    let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let run = run_with(&[&["batch", "-"], more].concat(), input.as_bytes());
    assert_eq!(run.code, Some(code), "{more:?}: {}", run.stderr);
    run
}

fn file(contents: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompts.jsonl");
    std::fs::write(&path, contents).unwrap();
    (folder, path)
}

fn stories() -> Vec<Value> {
    vec![
        json!({ "prompt": "Once upon a time there was a king who had three sons", "max_new_tokens": 40 }),
        json!({ "prompt": "Once upon a time there was a king who had three sons", "max_new_tokens": 30, "seed": 7 }),
        json!({ "prompt": "The 🐉", "max_new_tokens": 20, "temperature": 0 }),
        json!({ "prompt": "Once upon a time there was a king who had a horse", "max_new_tokens": 25, "top_k": 40,
                "top_p": 0.5, "seed": 1 }),
        json!({ "prompt": "One day", "max_new_tokens": 0 }),
        json!({ "prompt": "One day", "max_new_tokens": 12, "temperature": 1.5, "top_p": 1 }),
    ]
}

/// What `generate` says of a line.
fn generated(line: &Value) -> Value {
    let mut arguments = vec!["generate".to_string(), line["prompt"].as_str().unwrap().into(), "--json".into()];
    for field in ["max_new_tokens", "temperature", "top_k", "top_p", "seed"] {
        if let Some(value) = line.get(field) {
            arguments.push(format!("--{}={value}", field.replace('_', "-")));
        }
    }
    let output = Command::new(PROGRAM).args(arguments).output().unwrap();
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn the_command_tells_what_generate_tells() {
    let lines = stories();
    let expected: Vec<Value> = lines.iter().map(generated).collect();
    let mut preempted = 0;
    let settings: [&[&str]; 5] = [
        &[],
        &["--pages=5"],
        &["--pages=5", "--no-prefix-cache", "--budget=8"],
        &["--pages=18", "--page-size=3", "--budget=5", "--running=3"],
        &["--pages=55", "--page-size=1", "--budget=1", "--running=1"],
    ];
    for setting in settings {
        let run = batch(&lines, setting, 0);
        let results = run.json_lines();
        assert_eq!(results.len(), lines.len());
        for (place, (result, expected)) in results.iter().zip(&expected).enumerate() {
            assert_eq!(result["line"], json!(place + 1), "{setting:?}");
            for field in ["prompt", "text", "tokens"] {
                assert_eq!(result[field], expected[field], "{setting:?}: {field} of line {}", place + 1);
            }
            for field in ["temperature", "top_k", "top_p"] {
                assert_eq!(result["sampling"][field], expected["sampling"][field], "{setting:?}");
            }
            assert_eq!(result["sampling"]["seed"], expected["seed"]);
            let counters = &result["counters"];
            preempted += counters["preemptions"].as_u64().unwrap();
            let (n_prompt, n_new) =
                (expected["tokens"]["prompt"].as_array().unwrap(), expected["tokens"]["generated"].as_array().unwrap());
            assert_eq!(counters["prompt_tokens"], json!(n_prompt.len()));
            assert_eq!(counters["generated_tokens"], json!(n_new.len()));
            let has_first = counters["steps_to_first_token"].as_u64().is_some_and(|steps| steps > 0);
            assert_eq!(has_first, !n_new.is_empty(), "{setting:?}: {result}");
            assert_eq!(result["timings"]["first_token_ms"].is_number(), has_first);
            assert_eq!(result["timings"]["ms_per_token"].is_number(), n_new.len() > 1);
        }
    }
    assert!(preempted > 5, "{preempted} preemptions: this has shown little");
}

#[test]
fn the_report_adds_up() {
    let run = batch(&stories(), &["--pages=14", "--page-size=4", "--running=2"], 0);
    let sum = |field: &str| -> u64 {
        let numbers = run.json_lines().into_iter().map(|result| result["counters"][field].as_u64().unwrap());
        numbers.sum()
    };
    let (prompts, found, new) = (sum("prompt_tokens") - 3, sum("cached"), sum("generated_tokens"));
    let says = &run.stderr;
    assert!(found > 0, "{says}");
    assert!(says.contains(&format!("{found} of {prompts} prompt tokens cached")), "{says}");
    assert!(says.contains(&format!(" steps, {new} tokens generated in ")), "{says}");
    let (rows, again) = (sum("computed"), sum("recomputed"));
    assert!(says.contains(&format!("{rows} rows, {again} of them recomputed after a preemption")), "{says}");
    assert!(says.contains(&format!("\npreempted  {} times\n", sum("preemptions"))), "{says}");
    assert!(says.contains("14 of 14 in use at the peak, 4 slots each; "), "{says}");
    assert!(says.contains("12 reference"), "{says}");

    let all = batch(&stories(), &["--pages=14", "--page-size=4", "--running=2", "--json"], 0);
    let all: Value = serde_json::from_str(&all.stdout).unwrap();
    assert_eq!(all["outputs"].as_array().unwrap().len(), 6);
    assert_eq!(all["counters"]["rows_projected"], json!(rows));
    assert_eq!(all["counters"]["generated_tokens"], json!(new));
    assert_eq!(all["pages"]["peak"], json!(14));
}

#[test]
fn a_bad_line_has_its_number_and_reason_and_the_others_go_on() {
    let long = "king ".repeat(1100);
    let good = "{\"prompt\": \"One day\", \"max_new_tokens\": 3}";
    let input = [
        good.to_string(),
        String::new(),
        "not JSON".into(),
        "{\"prompt\": 7}".into(),
        good.into(),
        "{\"prompt\": \"One day\", \"max_new_token\": 3}".into(),
        "{\"prompt\": \"One day\", \"temperature\": -1}".into(),
        "{\"prompt\": \"\"}".into(),
        format!("{{\"prompt\": \"{long}\"}}"),
        "{\"prompt\": \"One day\", \"max_new_tokens\": 100}".into(),
        format!("{{\"prompt\": \"{}\"}}", "x".repeat(1 << 20)),
        good.into(),
    ];
    let mut input = input.join("\n").into_bytes();
    input.extend_from_slice(b"\n{\"prompt\": \"\xFF\"}\n");
    let run = run_with(&["batch", "-", "--pages=4"], &input);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.stderr.ends_with("error: 9 of 12 requests not completed: the results say why\n"), "{}", run.stderr);
    let results = run.json_lines();
    let expected = [
        (1, ""),
        (3, "it is not a JSON object; write one, such as "),
        (4, "column 12: invalid type: integer `7`, expected a string"),
        (5, ""),
        (6, "column 37: unknown field `max_new_token`, expected one of `prompt`, `max_new_tokens`, "),
        (7, "the temperature is -1, expected 0 (greedy) or "),
        (8, "the prompt is empty; "),
        (9, "1102 tokens are more than the model's 1024 positions; shorten the prompt"),
        (10, "a prompt of 3 tokens and 100 new ones need 7 pages, and the pool has 4; "),
        (11, "it has more than 1048576 bytes; "),
        (12, ""),
        (13, "it is not UTF-8; "),
    ];
    assert_eq!(results.len(), expected.len());
    for (result, (line, problem)) in results.iter().zip(expected) {
        assert_eq!(result["line"], json!(line));
        if problem.is_empty() {
            assert_eq!((&result["finish_reason"], result.get("error")), (&json!("length"), None), "{result}");
            assert_eq!(result["text"], results[0]["text"]);
            continue;
        }
        assert_eq!(result["finish_reason"], "refused", "{result}");
        let error = result["error"].as_str().unwrap();
        assert!(error.starts_with(&format!("line {line}: {problem}")), "{error}");
        assert!(result.get("text").is_none() && result.get("counters").is_none(), "{result}");
    }
    assert_eq!(results[7]["prompt"], json!(long));
}

#[test]
fn nothing_to_read_is_an_error_that_names_the_file() {
    let (folder, path) = file(b"\n  \r\n");
    let name = path.display().to_string();
    for (arguments, says) in [
        (["batch", &name], format!("error: {name}: there is no line; write one JSON object a line, such as ")),
        (["batch", "-"], "error: standard input: there is no line; ".into()),
        (["batch", folder.path().to_str().unwrap()], format!("error: {}: name a file ", folder.path().display())),
        (["batch", "no/such/file"], "error: no/such/file: name a file with one JSON object a line, ".into()),
    ] {
        let run = run_with(&arguments, b"");
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{arguments:?}");
        assert!(run.stderr.contains(&says), "{arguments:?}: {}", run.stderr);
    }
}

#[test]
fn results_go_to_a_file_but_never_over_the_lines() {
    let line = b"{\"prompt\": \"One day\", \"max_new_tokens\": 3}\n";
    let (folder, path) = file(line);
    let (name, out) = (path.to_str().unwrap(), folder.path().join("out.jsonl"));
    std::fs::write(&out, "old").unwrap();
    let run = run_with(&["batch", name, "--out", out.to_str().unwrap()], b"");
    assert_eq!((run.code, run.stdout.as_str()), (Some(0), ""), "{}", run.stderr);
    let written = std::fs::read_to_string(&out).unwrap();
    let result: Value = serde_json::from_str(&written).unwrap();
    assert_eq!((written.lines().count(), &result["finish_reason"]), (1, &json!("length")));

    let around = folder.path().join(".").join("prompts.jsonl");
    let run = run_with(&["batch", name, "--out", around.to_str().unwrap()], b"");
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains("the lines are read from it; name another file with --out"), "{}", run.stderr);
    assert_eq!(std::fs::read(&path).unwrap(), line);

    let nowhere = folder.path().join("no").join("out.jsonl");
    let run = run_with(&["batch", name, "--out", nowhere.to_str().unwrap()], b"");
    assert!(run.code == Some(1) && run.stderr.contains("name a file in a folder that exists"), "{}", run.stderr);
}

#[test]
fn an_earlier_result_stays_until_all_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.jsonl");
    std::fs::write(&out, "precious").unwrap();
    let mut child = spawn(&["batch", "-", "--out", out.to_str().unwrap()]);
    child.stdin.as_mut().unwrap().write_all(b"{\"prompt\": \"One day\", \"max_new_tokens\": 2}\n").unwrap();
    let is_written = || {
        let entries = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap());
        let mut parts = entries.filter(|entry| entry.file_name() != "out.jsonl");
        parts.any(|part| part.metadata().is_ok_and(|part| part.len() > 0))
    };
    let start = Instant::now();
    while !is_written() {
        assert!(start.elapsed() < Duration::from_secs(60), "the first result is not written");
        std::thread::sleep(Duration::from_millis(5));
    }
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
    let batch = run_with(&["batch", "-", "--out", pipe], b"{\"prompt\": \"One day\"}\n");
    assert!(batch.code == Some(1) && batch.stderr.contains(pipe), "{}", batch.stderr);
    let bench = run_with(&["bench", "waste", "--json", pipe], b"");
    let says = format!("error: cannot write {pipe}: this is a named pipe, which waits for a reader");
    assert!(bench.code == Some(1) && bench.stderr.starts_with(&says), "{}", bench.stderr);
}

#[test]
fn nobody_left_to_read_is_no_failure() {
    let mut child = spawn(&["batch", "-"]);
    drop(child.stdout.take());
    child.stdin.take().unwrap().write_all(b"{\"prompt\": \"One day\", \"max_new_tokens\": 2}\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), b"" as &[u8]));
}

/// Waits for the end of a program that is to end soon.
#[cfg(unix)]
fn wait(child: &mut Child) -> Option<i32> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("still running");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(unix)]
fn press_ctrl_c(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_is_done_and_says_how_far_the_others_are() {
    let long = json!({ "prompt": "The king had", "max_new_tokens": 1000, "temperature": 1.2, "top_p": 1 });
    let mut child = spawn(&["batch", "-", "--running=2"]);
    // Nobody says that these are all: standard input stays open.
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{}", json!({ "prompt": "One day", "max_new_tokens": 5 })).unwrap();
    for _ in 0..3 {
        writeln!(stdin, "{long}").unwrap();
    }
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    // It is there before the others are done, and before there is an end of the lines.
    stdout.read_line(&mut first).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&first).unwrap()["finish_reason"], "length");
    press_ctrl_c(&child);
    assert_eq!(wait(&mut child), Some(1));
    let (mut rest, mut says) = (String::new(), String::new());
    stdout.read_to_string(&mut rest).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut says).unwrap();
    assert!(says.starts_with("interrupted: what is done is kept; "), "{says}");
    assert!(says.contains("error: interrupted: 1 request complete, 3 not, "), "{says}");
    let rest: Vec<Value> = rest.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rest.iter().map(|result| result["line"].clone()).collect::<Vec<_>>(), [2, 3, 4]);
    let whole = generated(&long);
    for result in &rest {
        assert_eq!(result["finish_reason"], "cancelled");
        let (so_far, whole) =
            (result["tokens"]["generated"].as_array().unwrap(), whole["tokens"]["generated"].as_array().unwrap());
        assert!(so_far.len() < whole.len() && whole.starts_with(so_far), "{result}");
    }
    assert!(rest[0]["text"].as_str().unwrap().len() > 1, "the second text was under way: {}", rest[0]);
    drop(stdin);
}

#[cfg(unix)]
#[test]
fn a_second_ctrl_c_ends_it_at_once() {
    let mut child = spawn(&["batch", "-"]);
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::with_capacity(1, child.stdout.take().unwrap());
    writeln!(stdin, "the first").unwrap();
    let mut first = String::new();
    stdout.read_line(&mut first).unwrap();
    // Nobody reads the results of these, and more of them than a pipe holds: it waits for a reader for ever.
    let lines = "x\n".repeat(20_000);
    let writer = std::thread::spawn(move || drop(stdin.write_all(lines.as_bytes())));
    std::thread::sleep(Duration::from_millis(300));
    press_ctrl_c(&child);
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "the first Ctrl-C lets it finish what it is at");
    press_ctrl_c(&child);
    assert_eq!(wait(&mut child), Some(130));
    drop(stdout);
    writer.join().unwrap();
}

/// Lines for `batch`: each has its result, in order, and none stops the others.
#[test]
fn any_line_of_a_batch() {
    let folder = Folder::copy_of("storyteller-draft");
    // A line may ask for as many tokens as there are positions.
    folder.set("config.json", "max_position_embeddings", json!(24));
    let line = json!({ "prompt": "The king had", "max_new_tokens": 3, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "seed": 1 });
    let line = line.to_string().into_bytes();
    let (mut told, mut refused) = (0, 0);
    // Some of the lines hold line ends, and are several.
    const LINES: u64 = 100;
    let last = seeds(400).end.div_ceil(LINES);
    for first in 0..last {
        let mut lines = Vec::new();
        for seed in first * LINES..(first + 1) * LINES {
            let mut dice = Dice::new(seed);
            // Most of what is not changed at all passes.
            lines.extend(if dice.roll(0, 4) == 0 { line.clone() } else { hostile_json(&line, &mut dice) });
            lines.push(b'\n');
        }
        folder.write("lines.jsonl", &lines);
        let expected = lines
            .split(|byte| *byte == b'\n')
            .zip(1..)
            .filter(|(line, _)| std::str::from_utf8(line).map_or(true, |line| !line.trim().is_empty()));
        let expected: Vec<u64> = expected.map(|(_, number)| number).collect();
        let file = folder.file("lines.jsonl");
        let arguments = ["batch", file.to_str().unwrap(), "--model", folder.path(), "--pages=6", "--page-size=5"];
        let run = Command::new(PROGRAM).args(arguments).output().unwrap();
        let (says, out) = (String::from_utf8_lossy(&run.stderr), String::from_utf8(run.stdout).unwrap());
        assert!(matches!(run.status.code(), Some(0 | 1)) && !says.contains("panicked"), "{first}: {says}");
        let results: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let numbers: Vec<u64> = results.iter().map(|result| result["line"].as_u64().unwrap()).collect();
        assert_eq!(numbers, expected, "lines {first}: {says}");
        for result in &results {
            let is_told = ["length", "stop"].contains(&result["finish_reason"].as_str().unwrap());
            (told, refused) = (told + u32::from(is_told), refused + u32::from(!is_told));
            assert_eq!(is_told, result.get("error").is_none(), "{result}");
            if let Some(error) = result["error"].as_str() {
                assert!(error.starts_with(&format!("line {}: ", result["line"])), "{error}");
                assert!(!error.contains(char::is_control) && error.chars().count() < 1_000, "{error:?}");
            }
        }
    }
    println!("{told} told, {refused} refused");
    assert!(told > 20 && refused > 20, "{told} told, {refused} refused");
}
