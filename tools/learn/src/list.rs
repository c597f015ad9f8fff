//! `cargo learn list`: all chapters, whose code runs in each, what its last run found, and what to do next.

use std::collections::BTreeSet;
use std::path::Path;

use page_by_page_course::chapters::{Chapter, Exercise, ExerciseState};
use page_by_page_course::record::{LastRun, Record, is_green};

use crate::app::App;
use crate::text::{PLAIN, Paragraph, code, plural};

struct ListedChapter<'a> {
    chapter: &'a Chapter,
    exercise: Result<Exercise, String>,
    last_run: String,
    /// Why its checks should run again.
    to_check: Option<&'static str>,
}

/// The table of chapters, and what to do next.
pub fn text(root: &Path, chapters: &[Chapter], record: &Record) -> String {
    let all: Vec<ListedChapter<'_>> =
        chapters.iter().map(|chapter| ListedChapter::read(root, chapter, record)).collect();
    let width = chapters.iter().map(|chapter| chapter.title.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for listed in &all {
        let Chapter { number, title, .. } = listed.chapter;
        let whose = if listed.is_started() { "yours" } else { "reference" };
        for (at, line) in listed.how_far().iter().enumerate() {
            text += &match at {
                0 => format!("{number:2}  {title:width$}  {whose:9}  {line}\n"),
                _ => format!("{:1$}{line}\n", "", width + 17),
            };
        }
    }
    text + "\n" + &next_step(&all) + "\n"
}

pub fn shown(app: &App) -> Vec<Paragraph> {
    text(&app.current.root, &app.chapters, &app.record).lines().map(|line| code(line, PLAIN)).collect()
}

impl<'a> ListedChapter<'a> {
    fn read(root: &Path, chapter: &'a Chapter, record: &Record) -> Self {
        let exercise = chapter.read(root);
        let fingerprint = exercise.as_ref().map_or("", |exercise| &exercise.fingerprint);
        // With a hint shown and no run, there is an entry without a fingerprint.
        let ran = record.chapters.get(&chapter.name).filter(|ran| !ran.fingerprint.is_empty());
        let (last_run, to_check) = match ran {
            _ if is_green(root, &chapter.name, fingerprint, ran.map_or(0, |ran| ran.ran)) => {
                ("all checks green".into(), None)
            }
            Some(ran) if ran.fingerprint == fingerprint => {
                (in_words(ran), (!ran.checks().all_green()).then_some("not all of its checks are green"))
            }
            Some(ran) => (in_words(ran) + "; changed since that run", Some("the file has changed since the last run")),
            None => (format!("not checked yet: cargo learn {}", chapter.number), Some("its checks have not run yet")),
        };
        ListedChapter { chapter, exercise, last_run, to_check }
    }

    /// A file that can't be read isn't the stub.
    fn is_started(&self) -> bool {
        !matches!(&self.exercise, Ok(Exercise { state: ExerciseState::Untouched, .. }))
    }

    /// The last run and the tasks left, one by one, of a chapter that was started; else how many there are.
    fn how_far(&self) -> Vec<String> {
        let todos = match &self.exercise {
            Ok(exercise) => &exercise.todos,
            Err(problem) => return vec![problem.clone()],
        };
        if !self.is_started() {
            let tasks: BTreeSet<u32> = todos.iter().map(|todo| todo.task).collect();
            return vec![format!("{} to write", plural(tasks.len(), "task"))];
        }
        let mut lines = vec![self.last_run.clone()];
        lines.extend(todos.iter().map(|todo| format!("task {}: {}", todo.task, todo.what)));
        if todos.is_empty() {
            lines.push("nothing left to write".into());
        }
        lines
    }
}

fn in_words(ran: &LastRun) -> String {
    let (tasks, checks) = (ran.tasks_green(), ran.checks());
    let (of_tasks, of_checks) = (plural(tasks.of, "task"), plural(checks.of, "check"));
    match checks.all_green() {
        true => format!("all {of_checks} green"),
        false => format!("{} of {of_tasks} green, {} of {of_checks}", tasks.green, checks.green),
    }
}

fn next_step(chapters: &[ListedChapter<'_>]) -> String {
    let started = || chapters.iter().filter(|listed| listed.is_started());
    for ListedChapter { chapter, exercise, .. } in started() {
        let Ok(exercise) = exercise else {
            return format!("Next: cargo learn {}, where x restores the stub", chapter.number);
        };
        if let Some(todo) = exercise.todos.iter().min_by_key(|todo| todo.task) {
            return format!("Next: task {}: {}, {}:{}", todo.task, todo.what, chapter.exercise(), todo.line);
        }
    }
    if let Some((chapter, why)) = started().find_map(|listed| Some((listed.chapter, listed.to_check?))) {
        return format!("Next: cargo learn {}; {why}", chapter.number);
    }
    match chapters.iter().find(|listed| !listed.is_started()) {
        Some(ListedChapter { chapter, .. }) => {
            let file = chapter.exercise();
            format!("Next: read chapter {}, {} (cargo book), and edit {file}", chapter.number, chapter.title)
        }
        None => format!("All {} chapters are yours, and green.", chapters.len()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use page_by_page_course::chapters::{LIST, all};
    use page_by_page_course::record::{Tally, green_copy};
    use page_by_page_course::source::fingerprint;

    use super::*;

    const STUB: &str = "todo!(\"ch01 task 1: grow\")\ntodo!(\"ch01 task 3: write\")\ntodo!(\"ch01 task 3: again\")\n";

    /// The list, its lines joined, for this text of chapter 1; `green` is the text that `cargo test` found green.
    fn list(text: &str, record: &Record, green: &str) -> String {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            fs::create_dir_all(root.path().join(file).parent().unwrap()).unwrap();
            fs::write(root.path().join(file), text).unwrap();
        };
        write(LIST, &format!("{0}  ch01_a  1  One\n{0}  ch02_b  2  Another\n", fingerprint(STUB)));
        write("exercises/ch01_a.rs", text);
        write("exercises/ch02_b.rs", STUB);
        write(&green_copy("ch01_a"), green);
        let text = super::text(root.path(), &all(root.path()).unwrap(), record);
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(" | ")
    }

    fn record(text: &str, first: (usize, usize), whole: (usize, usize)) -> Record {
        let mut record = Record::default();
        let ran = record.chapter_mut("ch01_a");
        (ran.fingerprint, ran.ran) = (fingerprint(text), 7);
        ran.tasks = [(1, Tally { green: first.0, of: first.1 })].into();
        ran.whole = Tally { green: whole.0, of: whole.1 };
        record
    }

    #[test]
    fn each_chapter_says_how_far_it_has_come_and_the_last_line_what_is_next() {
        let (mine, done) = (format!("// mine\n{STUB}"), "fn f() {}\n");
        let green = |text| record(text, (9, 9), (3, 3));
        let read_on = "Next: read chapter 2, Another (cargo book), and edit exercises/ch02_b.rs";
        for (text, record, tested, expected) in [
            (STUB, green(STUB), "", "1 One reference 2 tasks to write | 2 Another reference"),
            (&mine, Record::default(), "", "1 One yours not checked yet: cargo learn 1 | task 1: grow"),
            (&mine, record(&mine, (9, 10), (0, 3)), "", "0 of 1 task green, 9 of 13 checks | task 1: grow"),
            (&mine, green("x"), "", "green; changed since that run | task 1: grow | task 3: write | task 3: again"),
            (done, green(done), "", "1 One yours all 12 checks green | nothing left to write"),
            (done, green(done), "", read_on),
            (done, record(done, (0, 1), (1, 1)), "", "Next: cargo learn 1; not all of its checks are green"),
            (done, green("x"), "", "Next: cargo learn 1; the file has changed since the last run"),
            (done, Record::default(), "", "Next: cargo learn 1; its checks have not run yet"),
            // A run of `cargo test` counts, until the file changes.
            (done, Record::default(), done, "all checks green | nothing left to write | 2 Another"),
            (done, green("x"), done, read_on),
            (done, Record::default(), "fn g() {}\n", "its checks have not run yet"),
        ] {
            let list = list(text, &record, tested);
            assert!(list.contains(expected), "expected {expected:?} in:\n{list}");
        }
        assert!(list(&mine, &Record::default(), "").contains("exercises/ch01_a.rs:2"));
    }
}
