//! Scripts: commands and what they print, one file each in `scripts/`.
//!
//! ```text
//! # Lines like this one stay as they are.
//! $ story --max-new-tokens 3
//! 0> One day
//! 1> One day a man was
//! 2> error: …
//! $ generate --max-new-tokens 3 --json | counters text
//! ```
//!
//! `$` starts the program, in a folder of the script's own; the other lines are its streams, by their numbers. After
//! `|` stand the first words of the lines to keep; errors are always kept. The exit code is 1 after an error and 0
//! otherwise; where it is not, it has a line `exit N`. Of a wrong usage, `exit 2`, the first lines are kept: clap
//! writes the others. `$ show FILE` prints a file of the script's folder. A test runs every command of its file again
//! and compares. To add a command, write its line and accept the new file: `bash .ci/bless`.
//!
//! What is measured is a `#`: times and rates, and every fraction that a benchmark prints.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{PROGRAM, Run, check_script, finish, limited, start};
use grading::checkpoints::Folder;

/// What stands after a number that is measured.
const UNITS: [&str; 5] = ["ms", "s", "tokens/s", "threads", "thread"];

/// A folder to run commands in, and model folders elsewhere, with their names.
pub struct Script {
    place: TempDir,
    models: Vec<(&'static str, Folder)>,
    is_limited: bool,
}

impl Script {
    pub fn new() -> Self {
        Script { place: tempfile::tempdir().unwrap(), models: Vec::new(), is_limited: false }
    }

    pub fn file(self, name: &str, content: impl AsRef<[u8]>) -> Self {
        std::fs::write(self.place.path().join(name), content).unwrap();
        self
    }

    /// In the script's commands and its output, `name` stands for this folder.
    pub fn model(mut self, name: &'static str, folder: Folder) -> Self {
        self.models.push((name, folder));
        self
    }

    /// Every command gets 1 GiB of address space at most, where the system can limit it, and one thread.
    pub fn in_a_gibibyte(mut self) -> Self {
        self.is_limited = true;
        self
    }

    /// Runs all commands of `scripts/NAME.snap` and compares what they print with the file.
    #[track_caller]
    pub fn check(&self, name: &str) -> Vec<(String, Run)> {
        let mut steps = Vec::new();
        check_script("cli/scripts", name, |script| self.play(script, &mut steps));
        steps
    }

    pub fn files(&self) -> Vec<String> {
        names(self.place.path())
    }

    fn play(&self, script: &str, steps: &mut Vec<(String, Run)>) -> String {
        let mut transcript = String::new();
        let is_output = |line: &str| ["1>", "2>", "exit "].iter().any(|start| line.starts_with(start));
        let mut lines = script.lines().filter(|line| !is_output(line)).peekable();
        while let Some(line) = lines.next() {
            transcript += &format!("{line}\n");
            let Some(command) = line.strip_prefix("$ ") else { continue };
            let (command, kept) = command.split_once(" | ").unwrap_or((command, ""));
            let mut input = String::new();
            while let Some(line) = lines.next_if(|line| line.starts_with("0>")) {
                transcript += &format!("{line}\n");
                input += &format!("{}\n", line[2..].strip_prefix(' ').unwrap_or_default());
            }
            let run = self.run(command, &input);
            transcript += &self.rendered(command, kept, &run);
            steps.push((command.into(), run));
        }
        transcript
    }

    fn run(&self, command: &str, input: &str) -> Run {
        if let Some(file) = command.strip_prefix("show ") {
            let stdout = std::fs::read_to_string(self.place.path().join(file)).expect(file);
            return Run { code: Some(0), stdout, stderr: String::new() };
        }
        let mut program = if self.is_limited { limited("-v 1048576") } else { Command::new(PROGRAM) };
        if self.is_limited {
            program.env("RAYON_NUM_THREADS", "1");
        }
        finish(start(program.current_dir(self.place.path()).args(self.words(command))), input.as_bytes())
    }

    /// The arguments of a command line, as a shell reads them.
    fn words(&self, command: &str) -> Vec<String> {
        let words = shlex::split(command).expect(command).into_iter();
        words
            .map(|word| self.models.iter().fold(word, |word, (name, folder)| word.replace(name, folder.path())))
            .collect()
    }

    /// What a run has printed, without what is never the same twice; of lines that begin with a word, only these.
    fn rendered(&self, command: &str, kept: &str, run: &Run) -> String {
        let is_measured = is_measured(command);
        let mut rendered = String::new();
        for (number, text) in [(1, &run.stdout), (2, &run.stderr)] {
            let mut text = text.replace(self.place.path().to_str().unwrap(), "PLACE");
            for (name, folder) in &self.models {
                text = text.replace(folder.path(), name);
            }
            let mut lines =
                in_json(&text).unwrap_or_else(|| text.lines().map(|line| without_times(line, is_measured)).collect());
            if run.code == Some(2) {
                lines.truncate(lines.iter().position(String::is_empty).unwrap_or(lines.len()));
            }
            if !kept.is_empty() {
                let first = |line: &str| line.trim_start().split([' ', ':']).next().unwrap_or_default().to_string();
                lines.retain(|line| kept.split(' ').chain(["error"]).any(|word| word == first(line)));
            }
            for line in lines {
                rendered += &format!("{}\n", format!("{number}> {line}").trim_end());
            }
        }
        let is_error = run.stderr.lines().any(|line| line.starts_with("error: "));
        if run.code != Some(i32::from(is_error)) {
            rendered += &format!("exit {}\n", run.code.map_or("by a signal".into(), |code| code.to_string()));
        }
        rendered
    }
}

/// Whether fractions that a command prints are times, or come from times.
fn is_measured(command: &str) -> bool {
    let counts_only = ["waste", "fragmentation", "samples", "formats", "workload"];
    let bench = command.strip_prefix("bench ");
    bench.is_some_and(|bench| !counts_only.iter().any(|counted| bench.starts_with(counted)))
}

/// Objects with a line for each of their fields; `None` if this is no JSON.
fn in_json(text: &str) -> Option<Vec<String>> {
    let values: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(text).into_iter().collect();
    let values = values.ok().filter(|values| values.iter().any(|value| value.is_object() || value.is_array()))?;
    let lines = values.into_iter().flat_map(|mut value| {
        steady(&mut value);
        match value {
            Value::Object(fields) => fields.iter().map(|(name, value)| format!("{name}: {value}")).collect(),
            Value::Array(items) => items.iter().map(Value::to_string).collect(),
            other => vec![other.to_string()],
        }
    });
    Some(lines.collect())
}

/// Rounds fractions, and leaves out how many threads this machine has.
fn steady(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| match name.as_str() {
            "threads" => *value = "#".into(),
            _ => steady(value),
        }),
        Value::Array(items) => items.iter_mut().for_each(steady),
        Value::Number(number) if number.is_f64() => *value = format!("{:.4}", number.as_f64().unwrap()).into(),
        _ => {}
    }
}

/// A line with `#` for each number that is measured: those before a unit, and in a benchmark fractions and the last
/// column. On a slow machine milliseconds become seconds, so both are `# s`.
fn without_times(line: &str, is_measured: bool) -> String {
    let is_number = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_digit()) && word.chars().all(|c| c.is_ascii_digit() || ",.e-".contains(c))
    };
    // The width of a measured column is never the same twice either.
    let words: Vec<&str> = match is_measured {
        true => line.split_whitespace().collect(),
        false => line.split(' ').collect(),
    };
    let steady = words.iter().enumerate().map(|(place, word)| {
        let after = words[place + 1..].join(" ");
        let has_unit = after.split([' ', ',', ';']).next().is_some_and(|unit| UNITS.contains(&unit));
        let is_time = has_unit || after.starts_with("MiB of memory are available");
        let is_fraction = is_measured && (word.contains('.') || after.is_empty());
        if is_number(word) && (is_time || is_fraction) { "#" } else { word }
    });
    steady.collect::<Vec<_>>().join(" ").replace("# ms", "# s")
}

/// The names in a folder, in order.
pub fn names(folder: impl AsRef<Path>) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
