//! No flag makes it panic: every option of every command, with every number that was ever trouble.
//!
//! The options are read from `--help`, so that a new one takes part by itself. A new command asks for a line in
//! [`QUICK`].

use std::process::Stdio;

use rayon::prelude::*;
use serde_json::json;

use crate::program::{LONGEST, Run, limited, ok, wait};
use grading::checkpoints::Folder;

const VALUES: [&str; 14] = [
    "0",
    "1",
    "-1",
    // 2^32, 2^40, 2^63 - 1 and 2^64 - 1; a third of 2^64, which wraps to little when it is multiplied; and too much.
    "4294967296",
    "1099511627776",
    "9223372036854775807",
    "18446744073709551615",
    "6148914691236517206",
    "99999999999999999999999999999999999999999",
    "nan",
    "inf",
    "1e-40",
    "",
    "many",
];

/// The names of values that are files or words.
const NO_NUMBERS: [&str; 10] = ["DIR", "FILE", "CACHE", "RULE", "SHAPE", "TYPE", "TEXT", "HOW", "NAME", "MESSAGE"];

/// Options and values with which a command is quick, each line a different way. `SMALL` is a model with few positions.
const QUICK: [(&str, &str); 39] = [
    ("generate", "--model=SMALL --max-new-tokens=3"),
    ("generate", "day king --model=SMALL --max-new-tokens=3"),
    ("generate", "day king --model=SMALL --max-new-tokens=3 --kv=contiguous"),
    ("generate", "a --model=SMALL --max-new-tokens=3 --samples=3"),
    ("generate", "a --model=SMALL --max-new-tokens=3 --samples=2 --kv=contiguous"),
    ("generate", "a --model=SMALL --max-new-tokens=3 --beams=2"),
    ("generate", "--model=SMALL --max-new-tokens=3 --kv=paged --draft=SMALL --accept=sample --draft-len=2"),
    ("story", "a --model=SMALL --max-new-tokens=3"),
    // Without the feature `serve` it says how to get it.
    ("chat", "a --model=SMALL --max-new-tokens=3"),
    ("batch", "SMALL/prompts.jsonl --model=SMALL"),
    ("batch", "SMALL/prompts.jsonl --model=SMALL --page-file=pages"),
    // Each line has two reasons to be refused before it listens, so that one is left when the other is changed.
    ("serve", "--model=SMALL --host=192.0.2.1 --api-key=é"),
    ("serve", "--model=SMALL --host=192.0.2.1 --api-key=é --page-file=pages"),
    ("logits", "--model=SMALL --tokens=1,2"),
    ("synth", "--shape=tiny --out=model"),
    ("gains", "4"),
    ("break", "refused-call-keeps-pages"),
    ("generate", "--model=SMALL --max-new-tokens=3 --check-reads"),
    ("bench engine", "--model=SMALL --seconds=0"),
    ("bench machine", "--seconds=0"),
    ("bench caches", "--tokens=1"),
    ("bench disk", "--model=SMALL"),
    ("bench waste", "--capacity=8 --lengths=8,3"),
    ("bench waste", "--page-size=4 --lengths=8,3"),
    ("bench fragmentation", "--page-size=4"),
    ("bench append", "--tokens=8"),
    ("bench attention", "--model=SMALL --contexts=3 --sequences=2 --seconds=0"),
    ("bench batch", "--model=SMALL --context=3 --seconds=0"),
    ("bench rewind", "--tokens=8"),
    ("bench samples", "--page-size=4"),
    ("bench formats", "--max-new-tokens=2"),
    ("bench speculation", "--model=SMALL --draft=prompt-lookup --max-new-tokens=2 --draft-lens=1 --prompts=a"),
    ("workload shared", "--requests=20"),
    ("workload serving", "--requests=20"),
    ("workload chats", "--pages=200"),
    ("workload documents", "--pages=200"),
    ("simulate", "--seeds=3 --steps=5"),
    ("simulate", "--bug=never-fits --steps=30"),
    ("simulate", "--bug=cancel-leaks --blind --steps=20"),
];

/// An option that takes a value, with the value's name: `--seed`, `S`.
pub type Flag = (String, String);

/// All commands that do something, and the options of each that take a value.
pub fn commands(command: Vec<String>) -> Vec<(Vec<String>, Vec<Flag>)> {
    let help: Vec<&str> = command.iter().map(String::as_str).chain(["-h"]).collect();
    let help = ok(&help).stdout;
    // The commands come first, whatever their headings are: two spaces and a name.
    let listed =
        help.lines().take_while(|line| !line.starts_with("Options:")).filter_map(|line| line.strip_prefix("  "));
    let names = listed.filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    // Without the feature `serve` the last two have no help: they say how to get it.
    let has_help = |name: &&str| *name != "help" && (cfg!(feature = "serve") || !["chat", "serve"].contains(name));
    let names = names.filter_map(|line| line.split_whitespace().next()).filter(has_help);
    let deeper: Vec<_> = names.flat_map(|name| commands([&command[..], &[name.to_string()]].concat())).collect();
    if !deeper.is_empty() {
        return deeper;
    }
    let option = |line: &str| {
        let (name, rest) = line.split_at(line.find("--")?).1.split_once(' ')?;
        let value = rest.strip_prefix('<')?.split_once('>')?.0;
        Some((name.to_string(), value.to_string()))
    };
    let options = help.lines().map(str::trim_start).filter(|line| line.starts_with('-')).filter_map(option).collect();
    vec![(command, options)]
}

fn trouble(arguments: &[String]) -> Option<String> {
    let place = tempfile::tempdir().unwrap();
    let mut command = limited("-v 2097152");
    command.args(arguments).current_dir(place.path()).env("RAYON_NUM_THREADS", "1");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let Some(status) = wait(&mut child) else {
        return Some(format!("still running after {LONGEST:?}"));
    };
    let says = Run::of(child.wait_with_output().unwrap()).stderr;
    let fine = matches!(status.code(), Some(0..=2)) && !says.contains("panicked") && !says.contains("overflow");
    let explained = status.success() || says.starts_with("error: ") || says.contains("\nerror: ");
    (!fine || !explained).then(|| format!("{status}\n{says}"))
}

#[test]
fn no_number_in_any_option_makes_it_panic_or_hang() {
    let small = Folder::copy_of("storyteller-draft");
    // A pass over 80 tokens is the longest that a benchmark takes.
    small.set("config.json", "max_position_embeddings", json!(80));
    small.write("chat_template.jinja", "{{ messages[0].content }}");
    small.write("prompts.jsonl", "{\"prompt\": \"a\", \"max_new_tokens\": 2}\nno\n{\"prompt\": \"The king\"}\n");
    let mut runs = Vec::new();
    for (command, options) in commands(Vec::new()) {
        let lines = QUICK.iter().filter(|(name, _)| *name == command.join(" "));
        assert!(lines.clone().count() > 0, "the command {command:?} is new: QUICK is to say how it runs in no time");
        for (_, line) in lines {
            let line: Vec<String> = line.split_whitespace().map(|word| word.replace("SMALL", small.path())).collect();
            runs.push([&command[..], &line].concat());
            for (option, value_name) in &options {
                let others = line.iter().filter(|argument| argument.split('=').next() != Some(option));
                let others: Vec<String> = others.cloned().collect();
                let no_number = NO_NUMBERS.contains(&value_name.as_str());
                for value in VALUES.iter().filter(|value| !no_number || ["0", ""].contains(value)) {
                    runs.push([&command[..], &others, &[format!("{option}={value}")]].concat());
                }
            }
        }
    }
    assert!(runs.len() > 500, "only {} runs: are the options still found in --help?", runs.len());
    assert!(!VALUES.len().is_multiple_of(5), "of these, every fifth run would always try the same values");
    let whole_grid = std::env::var_os("PAGE_BY_PAGE_GRID").is_some_and(|grid| grid == "whole");
    let runs: Vec<&Vec<String>> = runs.iter().step_by(if whole_grid { 1 } else { 5 }).collect();
    let tried = runs.par_iter().filter_map(|arguments| {
        let trouble = trouble(arguments)?;
        Some(format!("page-by-page {}\n{trouble}", arguments.join(" ")))
    });
    let found: Vec<String> = tried.collect();
    assert!(found.is_empty(), "{} of {} runs:\n\n{}", found.len(), runs.len(), found.join("\n"));
}
