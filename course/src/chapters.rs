//! The chapters of the course, where their files lie, and how far the reader has come in each.
//!
//! `exercises/untouched.txt` is the one list of chapters: a line each, in order, with the fingerprint of the stub as it was
//! handed out. A file that still has this fingerprint hasn't been started.

use std::path::{Path, PathBuf};

use crate::stub;

/// The list of chapters, from the root of the repository.
pub const UNTOUCHED: &str = "exercises/untouched.txt";

/// A chapter of the course.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chapter {
    /// Its number in the book, from 1.
    pub number: usize,
    /// The name of its files, without extension: `ch02_flat`.
    pub name: String,
    /// Fingerprint of the stub as it was handed out, as [`stub::fingerprint`] makes it.
    pub handed_out: String,
}

/// How far the reader has come in a chapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The stub as it was handed out.
    Untouched,
    /// Changed, with a `todo!` left.
    Begun,
    /// Changed, and no `todo!` is left.
    Written,
}

/// The reader's file of a chapter.
#[derive(Clone, Debug)]
pub struct Exercise {
    /// What is in it.
    pub text: String,
    /// The fingerprint of that content.
    pub fingerprint: String,
    /// How far it has come.
    pub state: State,
    /// The `todo!`s that are left, in the order of the file.
    pub todos: Vec<Todo>,
}

/// A `todo!("ch02 task 1: copy the rows")` in an exercise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Todo {
    /// The task that it belongs to: 1.
    pub task: u32,
    /// Where it stands, from 1.
    pub line: usize,
    /// What is to be done: `copy the rows`.
    pub what: String,
}

impl Chapter {
    /// A chapter by the name of its files; `None` unless the name is of the form `ch02_flat`.
    pub fn named(name: &str, handed_out: &str) -> Option<Self> {
        let digits = name.strip_prefix("ch")?.split_once('_')?.0;
        let number = digits.parse().ok().filter(|_| digits.len() == 2)?;
        Some(Chapter { number, name: name.to_string(), handed_out: handed_out.to_string() })
    }

    /// The reader's file, from the root of the repository.
    pub fn exercise(&self) -> String {
        format!("exercises/{}.rs", self.name)
    }

    /// The reference, from the root of the repository.
    pub fn solution(&self) -> String {
        format!("solutions/{}.rs", self.name)
    }

    /// The grader, from the root of the repository.
    pub fn grader(&self) -> String {
        format!("tests/{}.rs", self.name)
    }

    /// The page, from the root of the repository.
    pub fn page(&self) -> String {
        format!("book/src/{}.md", self.name)
    }

    /// Reads the reader's file.
    ///
    /// # Errors
    /// What is wrong with the file and what to do, in a line.
    pub fn read(&self, root: &Path) -> Result<Exercise, String> {
        let text = stub::read(root, &self.exercise())?;
        let fingerprint = stub::fingerprint(&text);
        let state = match fingerprint == self.handed_out {
            true => State::Untouched,
            false if stub::code(&text).contains("todo!") => State::Begun,
            false => State::Written,
        };
        let todos = todos(&text, self.number);
        Ok(Exercise { text, fingerprint, state, todos })
    }
}

/// The `todo!`s of a chapter in a text, in order. Comments don't count.
pub fn todos(text: &str, chapter: usize) -> Vec<Todo> {
    let sign = format!("todo!(\"ch{chapter:02} task ");
    let code = stub::code(text);
    let found = code.lines().zip(1..).filter_map(|(line, number)| {
        let (task, what) = line.split_once(&sign)?.1.split_once(": ")?;
        let what = what.split("\")").next().unwrap_or(what).trim_end_matches('"').to_string();
        Some(Todo { task: task.parse().ok()?, line: number, what })
    });
    found.collect()
}

/// All chapters of the repository at `root`, in order.
///
/// # Errors
/// If the list can't be read or makes no sense: what to do about it, in a line.
pub fn all(root: &Path) -> Result<Vec<Chapter>, String> {
    let list = stub::read(root, UNTOUCHED)?;
    let restore = format!("restore the file with `git checkout {UNTOUCHED}`");
    let mut chapters = Vec::new();
    for line in list.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let chapter = line.split_once("  ").and_then(|(handed_out, name)| Chapter::named(name, handed_out));
        chapters.push(chapter.ok_or(format!("{UNTOUCHED}: `{line}` is not `hash  chapter`: {restore}"))?);
    }
    if chapters.is_empty() { Err(format!("{UNTOUCHED} names no chapter: {restore}")) } else { Ok(chapters) }
}

/// The root of the repository: the current folder, or the nearest above it that holds `exercises/untouched.txt`.
///
/// # Errors
/// If there is none, in a line.
pub fn root() -> Result<PathBuf, String> {
    let here = std::env::current_dir().map_err(|error| format!("the current folder can't be read: {error}"))?;
    let root = here.ancestors().find(|folder| folder.join(UNTOUCHED).is_file());
    root.map(Path::to_path_buf)
        .ok_or_else(|| format!("no {UNTOUCHED} in {} or above it: run this inside the repository", here.display()))
}

/// Tells this clone from others on the same computer: a hash of its folder. The book's server answers with it, so that
/// `cargo learn` opens the pages of its own clone.
pub fn clone_id(root: &Path) -> String {
    let folder = root.canonicalize().unwrap_or_else(|_| root.to_path_buf());
    stub::fingerprint(&folder.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn todos_have_their_lines() {
        let text = "//! todo!(\"ch02 task 9: no\")\r\nfn grown() {\r\n    todo!(\"ch02 task 1: copy\")\r\n}\r\n\
            // fn no()\r\npub fn write(&mut self) {\r\n    todo!(\"ch02 task 3: store (all)\")\r\n}\r\n";
        let todo = |task, line, what: &str| Todo { task, line, what: what.into() };
        assert_eq!(todos(text, 2), [todo(1, 3, "copy"), todo(3, 7, "store (all)")]);
        assert_eq!(todos(text, 3), []);
    }

    #[test]
    fn a_chapter_is_untouched_begun_or_written() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("exercises")).unwrap();
        let stub = "fn a() {\n    todo!(\"ch02 task 1: copy\")\n}\n";
        fs::write(root.path().join(UNTOUCHED), format!("# Hashes.\n{}  ch02_flat\n", stub::fingerprint(stub))).unwrap();
        let [chapter] = &all(root.path()).unwrap()[..] else { panic!("one chapter") };
        assert_eq!((chapter.number, chapter.name.as_str()), (2, "ch02_flat"));
        for (text, state) in [
            (stub.to_string(), State::Untouched),
            (stub.replace('\n', "\r\n"), State::Untouched),
            (format!("// mine\n{stub}"), State::Begun),
            ("fn a() {} // todo!\n".into(), State::Written),
        ] {
            fs::write(root.path().join("exercises/ch02_flat.rs"), &text).unwrap();
            assert_eq!(chapter.read(root.path()).unwrap().state, state, "{text}");
        }
    }

    #[test]
    fn a_list_that_makes_no_sense_is_refused() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("exercises")).unwrap();
        for (list, says) in [
            ("0123 ch02_flat\n", "exercises/untouched.txt: `0123 ch02_flat` is not `hash  chapter`: restore the file"),
            ("# nothing\n", "exercises/untouched.txt names no chapter"),
        ] {
            fs::write(root.path().join(UNTOUCHED), list).unwrap();
            let error = all(root.path()).unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
    }
}
