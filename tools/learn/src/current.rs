//! The chapter that the reader is in: its page, the reader's file, and what the checks have found.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use page_by_page_course::chapters::{self, Chapter, Exercise, ExerciseState};
use page_by_page_course::lesson::{Lesson, Task};
use page_by_page_course::libtest::task_of;
use page_by_page_course::record::Record;

use crate::run::RunResult;
use crate::verdict::{Part, Verdict};

pub struct Current {
    pub root: PathBuf,
    pub chapter: Chapter,
    pub is_last: bool,
    pub exercise: Result<Exercise, String>,
    pub lesson: Result<Lesson, String>,
    pub result: RunResult,
    /// Whether the result is about all checks of the chapter, and not only those of one task.
    pub is_whole: bool,
    /// The current task; None once all are green.
    pub task: Option<u32>,
}

impl Current {
    pub fn new(root: &Path, chapter: &Chapter) -> Self {
        let mut current = Current {
            root: root.to_path_buf(),
            chapter: chapter.clone(),
            is_last: chapters::all(root).is_ok_and(|all| all.last().is_some_and(|last| last.name == chapter.name)),
            exercise: chapter.read(root),
            lesson: Lesson::read(root, &chapter.name),
            result: RunResult::NotRun,
            is_whole: false,
            task: None,
        };
        current.task = current.first_left();
        current
    }

    /// The task of the first `todo!` that is left, else the first of the page.
    pub fn first_left(&self) -> Option<u32> {
        let left = self.exercise.iter().flat_map(|exercise| &exercise.todos).map(|todo| todo.task).min();
        left.or_else(|| Some(self.lesson.as_ref().ok()?.tasks.first()?.number))
    }

    /// The task of the first `todo!` that is left, else the first that wasn't green in the last run.
    pub fn task_on_record(&self, record: &Record) -> Option<u32> {
        let has_todos = self.exercise.as_ref().is_ok_and(|exercise| !exercise.todos.is_empty());
        let ran = record.chapters.get(&self.chapter.name).filter(|_| !has_todos);
        let red = ran.and_then(|ran| ran.tasks.iter().find(|(_, tally)| !tally.all_green()));
        red.map(|(task, _)| *task).or_else(|| self.first_left())
    }

    /// The page's section about the current task.
    pub fn section(&self) -> Option<&Task> {
        self.lesson.as_ref().ok()?.tasks.iter().find(|task| Some(task.number) == self.task)
    }

    pub fn n_hints(&self) -> usize {
        self.section().map_or(0, |task| task.hints.len())
    }

    pub fn n_questions(&self) -> usize {
        self.lesson.as_ref().map_or(0, |lesson| lesson.questions.len())
    }

    pub fn is_started(&self) -> bool {
        matches!(&self.exercise, Ok(exercise) if exercise.state != ExerciseState::Untouched)
    }

    /// The verdict of the last run; empty unless all its checks ran.
    pub fn verdict(&self) -> &Verdict {
        static NONE: Verdict = Verdict(BTreeMap::new());
        match &self.result {
            RunResult::Finished(verdict) => verdict,
            _ => &NONE,
        }
    }

    pub fn is_green(&self) -> bool {
        self.is_whole && self.is_started() && self.verdict().is_green()
    }

    /// Where a `todo!` of the current task is: `exercises/ch02_flat.rs:53`.
    pub fn place(&self) -> Option<String> {
        let exercise = self.exercise.as_ref().ok()?;
        let todo = exercise.todos.iter().find(|todo| Some(todo.task) == self.task)?;
        Some(format!("{}:{}", self.chapter.exercise(), todo.line))
    }

    /// Where to read on, at the current task or else the last: in the book if it is served, else in the page's source.
    pub fn link(&self, port: Option<u16>) -> String {
        let last = self.lesson.as_ref().ok().and_then(|lesson| lesson.tasks.last());
        match (self.section().or(last), port) {
            // The host that `cargo book` opens: the browser keeps the reader's ticks by host.
            (Some(task), Some(port)) => format!("http://127.0.0.1:{port}/{}.html#{}", self.chapter.name, task.anchor),
            (Some(task), None) => format!("{}:{}", self.chapter.page(), task.line),
            (None, _) => self.chapter.page(),
        }
    }

    /// Takes over the result of a run of all checks, of those of the current task, or then of the others.
    pub fn take(&mut self, mut result: RunResult, is_whole: bool) {
        if let RunResult::Finished(Verdict(others)) = &mut result
            && is_whole
            && !self.is_whole
        {
            let mut checks = self.verdict().0.clone();
            checks.append(others);
            *others = checks;
        }
        (self.result, self.is_whole) = (result, is_whole);
        match &self.result {
            RunResult::Finished(verdict) if is_whole => {
                self.task = verdict.next_task(self.chapter.number);
            }
            // It begins with the name of a check.
            RunResult::CutOff(why) => {
                if let Some(task) = why.split(' ').next().and_then(task_of) {
                    self.task = Some(task);
                }
            }
            _ => {}
        }
    }

    /// Writes the verdict into the record if it is about all checks.
    pub fn write(&self, record: &mut Record) {
        let (Ok(exercise), true, RunResult::Finished(verdict)) = (&self.exercise, self.is_whole, &self.result) else {
            return;
        };
        let ran = record.chapter_mut(&self.chapter.name);
        ran.fingerprint = exercise.fingerprint.clone();
        ran.ran = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        ran.whole = verdict.tally_of(Part::Whole);
        ran.tasks.clear();
        for (part, _) in verdict.0.keys() {
            if let Part::Task(task) = part {
                ran.tasks.insert(*task, verdict.tally_of(*part));
            }
        }
    }
}
