//! The chapters of the course, and how far the reader's file of one has come.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};

use crate::lesson::Lesson;
use crate::stub;

/// Which stubs were handed out, each with its fingerprint; `build.rs` reads the same.
pub const RECORDED: &str = "exercises/untouched.txt";

/// A chapter.
#[derive(Clone, Debug)]
pub struct Chapter {
    pub number: usize,
    /// Of its files, without `.rs`: `ch02_flat`.
    pub name: String,
    /// Without its number: `The flat cache`.
    pub title: String,
    /// Fingerprint of the stub as it was handed out.
    pub stub: String,
}

/// How far a file has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The stub as it was handed out.
    Untouched,
    /// Changed.
    Started,
}

/// A `todo!` that is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Todo {
    pub task: u32,
    /// From 1.
    pub line: usize,
    pub what: String,
}

/// The reader's file of a chapter.
#[derive(Clone, Debug)]
pub struct Exercise {
    pub text: String,
    pub state: State,
    pub fingerprint: String,
    pub todos: Vec<Todo>,
}

impl Chapter {
    /// The reader's file, from the root of the repository.
    pub fn exercise(&self) -> String {
        format!("exercises/{}.rs", self.name)
    }

    pub fn solution(&self) -> String {
        format!("solutions/{}.rs", self.name)
    }

    /// Reads the reader's file.
    ///
    /// # Errors
    /// What is wrong and what to do, in a line.
    pub fn read(&self, root: &Path) -> Result<Exercise, String> {
        let text = stub::read(root, &self.exercise())?;
        let fingerprint = stub::fingerprint(&text);
        let state = if fingerprint == self.stub { State::Untouched } else { State::Started };
        let todos = todos(&text, self.number);
        Ok(Exercise { text, state, fingerprint, todos })
    }

    /// The stub as it was handed out, from git: of the newest commit that has it.
    ///
    /// # Errors
    /// If git is missing, or knows no such file.
    pub fn handed_out(&self, root: &Path) -> Result<String> {
        let file = self.exercise();
        let is_stub = |text: &String| stub::fingerprint(text) == self.stub;
        let show = |commit: &str| git(root, &["show", &format!("{commit}:{file}")]);
        // A branch of somebody's own may hold an earlier state of their work.
        let head = show("HEAD");
        if let Some(text) = head.as_ref().ok().filter(|text| is_stub(text)) {
            return Ok(text.clone());
        }
        let commits =
            git(root, &["log", "--format=%H", "--all", "--", &file]).or_else(|_| head.map(|_| String::new()))?;
        commits.lines().filter_map(|commit| show(commit).ok()).find(is_stub).with_context(|| {
            format!(
                "git has no commit with {file} as it was handed out: fetch the repository's main branch, then try again"
            )
        })
    }
}

/// What git says.
fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(arguments).stdin(Stdio::null()).stderr(Stdio::piped());
    let output = git.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => anyhow!("git is not installed, and the stub would come from it: install git"),
        _ => anyhow!("git cannot be started: {error}"),
    })?;
    if !output.status.success() {
        let says = String::from_utf8_lossy(&output.stderr);
        bail!("git {}: {}", arguments.join(" "), says.lines().next().unwrap_or("it failed without a word").trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The `todo!("ch02 task 1: …")` of a text, in order.
fn todos(text: &str, chapter: usize) -> Vec<Todo> {
    let sign = format!("todo!(\"ch{chapter:02} task ");
    let code = stub::code(text);
    let found = code.lines().zip(1..).filter_map(|(line, number)| {
        let (task, what) = line.split_once(&sign)?.1.split_once(": ")?;
        let what = what.split("\")").next().unwrap_or(what).trim_end_matches('"').to_string();
        Some(Todo { task: task.parse().ok()?, line: number, what })
    });
    found.collect()
}

/// The function around a line, by its words `fn name`.
fn function_around(text: &str, line: usize) -> Option<String> {
    text.lines().take(line).collect::<Vec<_>>().iter().rev().find_map(|line| function(line))
}

/// `    pub fn grown(old: &[f32]` → `fn grown`
fn function(line: &str) -> Option<String> {
    let code = line.split("//").next()?;
    let before = code.find("fn ")?;
    let is_word = code[..before].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && c != '_');
    let name: String =
        code[before + 3..].trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (is_word && !name.is_empty()).then(|| format!("fn {name}"))
}

/// The line where a task is to be done: that of its first `todo!`, else that of the function where the stub has it.
pub fn place_of(task: u32, exercise: &Exercise, handed_out: Option<&str>, chapter: usize) -> Option<usize> {
    if let Some(todo) = exercise.todos.iter().find(|todo| todo.task == task) {
        return Some(todo.line);
    }
    let stub = handed_out?;
    let of_task = todos(stub, chapter).into_iter().filter(|todo| todo.task == task);
    let functions: Vec<String> = of_task.filter_map(|todo| function_around(stub, todo.line)).collect();
    let lines = exercise.text.lines().zip(1..);
    lines
        .filter_map(|(line, number)| Some((function(line)?, number)))
        .find(|(name, _)| functions.contains(name))
        .map(|found| found.1)
}

/// The task in whose function a line of the reader's file is.
pub fn task_at(line: usize, exercise: &Exercise, handed_out: Option<&str>, chapter: usize) -> Option<u32> {
    let name = function_around(&exercise.text, line)?;
    let stub = handed_out?;
    let is_here = |todo: &Todo| function_around(stub, todo.line).as_ref() == Some(&name);
    todos(stub, chapter).into_iter().find(is_here).map(|todo| todo.task)
}

/// All chapters of the repository at `root`, in order.
///
/// # Errors
/// If the list cannot be read, or makes no sense.
pub fn chapters(root: &Path) -> Result<Vec<Chapter>> {
    let record = stub::read(root, RECORDED).map_err(|problem| anyhow!(problem))?;
    let lines = record.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let chapters: Result<Vec<Chapter>> = lines
        .map(|line| {
            let found = line.split_once("  ").and_then(|(hash, name)| {
                let number = name.strip_prefix("ch")?.split('_').next()?.parse().ok()?;
                let title = title(root, name).unwrap_or_else(|| name.to_string());
                Some(Chapter { number, name: name.to_string(), title, stub: hash.to_string() })
            });
            found.with_context(|| {
                format!("{RECORDED}: `{line}` is not `hash  chapter`: restore the file with `git checkout {RECORDED}`")
            })
        })
        .collect();
    let chapters = chapters?;
    if chapters.is_empty() {
        bail!("{RECORDED} names no chapter: restore it with `git checkout {RECORDED}`");
    }
    Ok(chapters)
}

/// The first heading of a chapter's page, without its number.
fn title(root: &Path, name: &str) -> Option<String> {
    let page = fs::read_to_string(root.join(format!("book/src/{name}.md"))).ok()?;
    let heading = page.lines().find_map(|line| line.strip_prefix("# "))?.trim();
    let (number, title) = heading.split_once(". ").unwrap_or(("", heading));
    Some(if number.bytes().all(|byte| byte.is_ascii_digit()) { title.to_string() } else { heading.to_string() })
}

/// The page of a chapter.
pub fn lesson(root: &Path, chapter: &Chapter) -> Result<Lesson, String> {
    Lesson::read(root, &chapter.name)
}

/// The folder that holds `exercises/untouched.txt`: the current one or the nearest above it.
pub fn repository_root() -> Result<PathBuf> {
    let here = std::env::current_dir().context("the current folder is gone")?;
    let root = here.ancestors().find(|folder| folder.join(RECORDED).is_file() && folder.join("Cargo.toml").is_file());
    root.map(Path::to_path_buf)
        .with_context(|| format!("no {RECORDED} in {} or above it: run this inside the repository", here.display()))
}

/// What the page's own command for this chapter's code asks `page-by-page` to do: a story, if there is one.
///
/// It is the first one behind the tasks that tells a story, or else the first one there.
pub fn story(root: &Path, chapter: &Chapter) -> Option<Vec<String>> {
    let page = fs::read_to_string(root.join(format!("book/src/{}.md", chapter.name))).ok()?.replace("\r\n", "\n");
    let tasks = &page[page.find("\n### Task 1")?..];
    let mut commands = tasks.replace("\\\n", " ").lines().filter_map(arguments).collect::<Vec<_>>().into_iter();
    let first = commands.next()?;
    let is_story = |command: &Vec<String>| command.first().is_some_and(|word| word == "generate");
    Some(if is_story(&first) { first } else { commands.find(is_story).unwrap_or(first) })
}

/// `$ cargo run --release --features solution -- generate "One day"` → `generate`, `One day`
fn arguments(line: &str) -> Option<Vec<String>> {
    let (cargo, command) = line.strip_prefix("$ cargo run ")?.split_once(" -- ")?;
    if cargo.contains("serve") {
        return None;
    }
    let mut words = Vec::new();
    for (index, part) in command.split('"').enumerate() {
        match index % 2 {
            0 => words.extend(part.split_whitespace().map(String::from)),
            _ => words.push(part.to_string()),
        }
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "//! todo!(\"ch02 task 9: no\")\r\nfn grown() {\r\n    todo!(\"ch02 task 1: copy\")\r\n}\r\n\
        // fn no()\r\npub fn write(&mut self) {\r\n    todo!(\"ch02 task 3: store (all)\")\r\n}\r\n";

    #[test]
    fn tasks_left_have_their_lines() {
        let found = todos(TEXT, 2);
        let of = |task, line, what: &str| Todo { task, line, what: what.into() };
        assert_eq!(found, [of(1, 3, "copy"), of(3, 7, "store (all)")]);
        assert_eq!(todos(TEXT, 3), []);
    }

    #[test]
    fn a_task_is_found_by_its_function_once_it_is_done() {
        let mine = "\n\nfn grown() {\n    1\n}\n\n    fn  write(&mut self) {\n        2\n    }\n";
        let exercise =
            Exercise { text: mine.into(), state: State::Started, fingerprint: String::new(), todos: todos(mine, 2) };
        assert_eq!(place_of(1, &exercise, Some(TEXT), 2), Some(3));
        assert_eq!(place_of(3, &exercise, Some(TEXT), 2), Some(7));
        assert_eq!(place_of(2, &exercise, Some(TEXT), 2), None);
        assert_eq!(place_of(1, &exercise, None, 2), None);
        let at = |line| task_at(line, &exercise, Some(TEXT), 2);
        assert_eq!([1, 2, 3, 5, 7, 8].map(at), [None, None, Some(1), Some(1), Some(3), Some(3)]);
        assert_eq!(task_at(4, &exercise, None, 2), None);
    }

    /// This repository.
    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn every_chapter_has_a_title_a_page_and_a_story() {
        let chapters = chapters(&root()).unwrap();
        for (chapter, number) in chapters.iter().zip(1..) {
            assert_eq!(chapter.number, number);
            assert!(!chapter.title.contains(['_', '#']), "{chapter:?}");
            let story =
                story(&root(), chapter).unwrap_or_else(|| panic!("{chapter:?} has no command behind its tasks"));
            assert!(story.len() > 1 && story.iter().all(|word| word != "--release" && word != "\\"), "{story:?}");
            let lesson = lesson(&root(), chapter).unwrap();
            assert!(lesson.title.ends_with(&chapter.title.replace('\'', "’")), "{}", lesson.title);
        }
        let second = story(&root(), &chapters[1]).unwrap();
        assert_eq!(second, ["generate", "There was once a tailor", "--kv", "flat", "--max-new-tokens", "60"]);
        let sixth = story(&root(), &chapters[5]).unwrap();
        assert_eq!(sixth[..3], ["generate", "Once upon a time", "The king had"]);
    }

    #[test]
    fn a_command_is_split_into_words() {
        let line = "$ cargo run --release --features solution --  generate \"One day\"  \"\" --kv  flat";
        assert_eq!(arguments(line).unwrap(), ["generate", "One day", "", "--kv", "flat"]);
        assert_eq!(arguments("$ cargo test"), None);
    }
}
