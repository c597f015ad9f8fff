//! The chapters of the course, where their files lie, and how far the reader has come in each.
//!
//! `exercises/chapters.txt` is the one list of chapters: a line each, with the fingerprint of the stub that was handed
//! out, the chapters that its checks depend on, and its title. A file with this fingerprint hasn't been started.
//!
//! `cargo course stubs` writes the list: names and stubs come from `solutions/`, titles from the pages, and what a
//! chapter depends on from [`depends_on`].

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::{marks, source};

/// The list of chapters, from the root of the repository.
pub const LIST: &str = "exercises/chapters.txt";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chapter {
    /// Its number in the book, from 1.
    pub number: usize,
    /// The name of its files, without extension: `ch02_flat`.
    pub name: String,
    /// Fingerprint of the stub as it was handed out, as [`source::fingerprint`] makes it.
    pub handed_out: String,
    /// The numbers of the chapters whose code its checks run, its own last.
    pub depends_on: Vec<usize>,
    pub title: String,
}

/// How far the reader has come in a chapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExerciseState {
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
    pub text: String,
    pub fingerprint: String,
    pub state: ExerciseState,
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
    pub fn named(name: &str) -> Option<Self> {
        let digits = name.strip_prefix("ch")?.split_once('_')?.0;
        let number = digits.parse().ok().filter(|_| digits.len() == 2)?;
        Some(Chapter { number, name: name.into(), ..Chapter::default() })
    }

    /// The chapter's line in the list.
    pub fn line(&self) -> String {
        let depends_on: Vec<String> = self.depends_on.iter().map(usize::to_string).collect();
        format!("{}  {}  {}  {}\n", self.handed_out, self.name, depends_on.join(" "), self.title)
    }

    fn parse(line: &str) -> Option<Self> {
        let (handed_out, rest) = line.split_once("  ")?;
        let mut columns = rest.split("  ");
        let mut chapter = Chapter { handed_out: handed_out.into(), ..Chapter::named(columns.next()?)? };
        for number in columns.next().into_iter().flat_map(str::split_whitespace) {
            chapter.depends_on.push(number.parse().ok()?);
        }
        chapter.title = columns.next().unwrap_or_default().into();
        Some(chapter)
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

    pub fn stub(&self, root: &Path) -> Result<String, String> {
        let file = self.solution();
        let stub = marks::stub_of(&self.name, &source::read(root, &file)?);
        stub.map_err(|(line, problem)| format!("{file}:{line}: {problem}"))
    }

    pub fn read(&self, root: &Path) -> Result<Exercise, String> {
        let text = source::read(root, &self.exercise())?;
        let fingerprint = source::fingerprint(&text);
        let state = match fingerprint == self.handed_out {
            true => ExerciseState::Untouched,
            false if source::code(&text).contains("todo!") => ExerciseState::Begun,
            false => ExerciseState::Written,
        };
        let todos = todos(&text, self.number);
        Ok(Exercise { text, fingerprint, state, todos })
    }
}

/// The `todo!`s of a chapter in a text, in order. Comments don't count.
pub fn todos(text: &str, chapter: usize) -> Vec<Todo> {
    let code = source::code(text);
    let found = code.lines().zip(1..).flat_map(|(text, line)| {
        let labels = text.split("todo!(\"").skip(1).filter_map(task_label);
        labels.filter(|label| label.0 == chapter).map(move |(_, task, what)| {
            let what = what.split("\")").next().unwrap_or(what).trim_end_matches('"').to_string();
            Todo { task, line, what }
        })
    });
    found.collect()
}

/// The chapter, the task and the words of a `todo!`, as its panic repeats them too: `ch02 task 1: copy the rows`.
pub fn task_label(text: &str) -> Option<(usize, u32, &str)> {
    let (chapter, rest) = text.strip_prefix("ch")?.split_once(" task ")?;
    let (task, what) = rest.split_once(": ")?;
    Some((chapter.parse().ok()?, task.parse().ok()?, what))
}

/// All chapters of the repository at `root`, in order.
pub fn all(root: &Path) -> Result<Vec<Chapter>, String> {
    let list = source::read(root, LIST)?;
    let restore = format!("restore the file with `git checkout {LIST}`");
    let mut chapters = Vec::new();
    for line in list.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        chapters.push(Chapter::parse(line).ok_or(format!("{LIST}: `{line}` is not `hash  chapter`: {restore}"))?);
    }
    if chapters.is_empty() { Err(format!("{LIST} names no chapter: {restore}")) } else { Ok(chapters) }
}

/// Files that others share and that name chapters, from the root of the repository.
const SHARED: [&str; 4] = [
    "crates/grading/src/caches.rs",
    "crates/grading/src/paged.rs",
    "tools/figures/src/slab.rs",
    "tools/figures/src/speculation.rs",
];

/// The numbers of the chapters whose code a file runs: those that it names, as in `chapters::ch06_paged`, and those
/// that their solutions name in turn. In order. `file`: from the root of the repository.
///
/// What it reaches through the engine alone, it names in a comment: in the same way, or only as `ch07_rewind` in
/// backticks if what that names in turn isn't run.
pub fn depends_on(root: &Path, file: &str) -> Result<Vec<usize>, String> {
    let (mut found, mut followed) = (BTreeSet::new(), BTreeSet::new());
    let mut to_read = vec![(file.to_string(), source::read(root, file)?)];
    while let Some((file, text)) = to_read.pop() {
        found.extend(named(&text, "`").map(|chapter| chapter.number));
        for chapter in used(&text).filter(|chapter| followed.insert(chapter.number)) {
            let solution = chapter.solution();
            let text = source::code(&source::read(root, &solution)?);
            to_read.push((solution, text));
        }
        for shared in SHARED {
            let (package, module) = shared.split_once("/src/").expect("a module of a package");
            let name = if file.starts_with(package) { "crate" } else { package.rsplit('/').next().unwrap_or_default() };
            if text.contains(&format!("use {name}::{}", module.trim_end_matches(".rs"))) {
                to_read.push((shared.into(), source::read(root, shared)?));
            }
        }
    }
    found.extend(followed);
    Ok(found.into_iter().collect())
}

/// The chapters whose code a text uses, as in `chapters::ch06_paged`, once for each time.
pub fn used(text: &str) -> impl Iterator<Item = Chapter> + use<'_> {
    named(text, "chapters::")
}

/// The chapters that a text names after `sign`.
fn named<'t>(text: &'t str, sign: &str) -> impl Iterator<Item = Chapter> + use<'t> {
    let names = text.split(sign).skip(1).collect::<Vec<_>>().into_iter();
    let names = names.filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next());
    names.filter_map(Chapter::named)
}

/// The root of the repository: the current folder, or the nearest above it that holds `exercises/chapters.txt`.
pub fn root() -> Result<PathBuf, String> {
    let here = std::env::current_dir().map_err(|error| format!("the current folder can't be read: {error}"))?;
    let root = here.ancestors().find(|folder| folder.join(LIST).is_file());
    root.map(Path::to_path_buf)
        .ok_or_else(|| format!("no {LIST} in {} or above it: run this inside the repository", here.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn root_with(list: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("exercises")).unwrap();
        fs::write(root.path().join(LIST), list).unwrap();
        root
    }

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
        let stub = "fn a() {\n    todo!(\"ch02 task 1: copy\")\n}\n";
        let root = root_with(&format!("# Hashes.\n{}  ch02_flat\n", source::fingerprint(stub)));
        let [chapter] = &all(root.path()).unwrap()[..] else { panic!("one chapter") };
        assert_eq!((chapter.number, chapter.name.as_str()), (2, "ch02_flat"));
        for (text, state) in [
            (stub.to_string(), ExerciseState::Untouched),
            (stub.replace('\n', "\r\n"), ExerciseState::Untouched),
            (format!("// mine\n{stub}"), ExerciseState::Begun),
            ("fn a() {} // todo!\n".into(), ExerciseState::Written),
        ] {
            fs::write(root.path().join("exercises/ch02_flat.rs"), &text).unwrap();
            assert_eq!(chapter.read(root.path()).unwrap().state, state, "{text}");
        }
    }

    #[test]
    fn a_list_that_makes_no_sense_is_refused() {
        for (list, says) in [
            ("0123 ch02_flat\n", "exercises/chapters.txt: `0123 ch02_flat` is not `hash  chapter`: restore the file"),
            ("# nothing\n", "exercises/chapters.txt names no chapter"),
        ] {
            let error = all(root_with(list).path()).unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
    }
}
