//! The chapter that the reader is in: its page, the reader's file, and what the checks have found.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use page_by_page_course::chapters::{Chapter, Exercise, State};
use page_by_page_course::lesson::{Lesson, Task};
use page_by_page_course::record::{Record, Tally};

use crate::checks::{About, Next, Verdict};
use crate::run::Ending;

/// The current chapter.
pub struct Current {
    pub root: PathBuf,
    pub chapter: Chapter,
    pub exercise: Result<Exercise, String>,
    pub lesson: Result<Lesson, String>,
    /// How the last run ended.
    pub ending: Ending,
    pub verdict: Verdict,
    /// Whether the verdict is about all checks of the chapter, and not only those of one task.
    pub is_whole: bool,
    /// The current task; None once all are green.
    pub task: Option<u32>,
}

impl Current {
    pub fn new(root: &Path, chapter: &Chapter) -> Self {
        let mut current = Current {
            root: root.to_path_buf(),
            chapter: chapter.clone(),
            exercise: chapter.read(root),
            lesson: Lesson::read(root, &chapter.name),
            ending: Ending::NotRun,
            verdict: Verdict::default(),
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

    /// The chapter's title without its number: `The flat cache`.
    pub fn title(&self) -> &str {
        let title = self.lesson.as_ref().map_or(self.chapter.name.as_str(), |lesson| lesson.title.as_str());
        title.split_once(". ").map_or(title, |(_, title)| title)
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
        matches!(&self.exercise, Ok(exercise) if exercise.state != State::Untouched)
    }

    pub fn is_green(&self) -> bool {
        matches!(self.ending, Ending::Checks)
            && self.is_whole
            && self.is_started()
            && self.verdict.next() == Next::Nothing
            && self.verdict.total().of > 0
    }

    /// Where a `todo!` of the current task is: `exercises/ch02_flat.rs:53`.
    pub fn place(&self) -> Option<String> {
        let exercise = self.exercise.as_ref().ok()?;
        let todo = exercise.todos.iter().find(|todo| Some(todo.task) == self.task)?;
        Some(format!("{}:{}", self.chapter.exercise(), todo.line))
    }

    /// Where to read on: at the current task, or at the last one when all are green. In the book if it is served, else in the
    /// source of the page.
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
    pub fn take(&mut self, ending: Ending, verdict: Verdict, is_whole: bool) {
        match is_whole && !self.is_whole && matches!(ending, Ending::Checks) {
            true => self.verdict.0.extend(verdict.0),
            false => self.verdict = verdict,
        }
        (self.ending, self.is_whole) = (ending, is_whole);
        match (&self.ending, self.verdict.next()) {
            (Ending::Checks, next) if is_whole => {
                self.task = match next {
                    Next::Red(About::Task(task)) => Some(task),
                    Next::Waits(wait) if wait.chapter == self.chapter.number => Some(wait.task),
                    _ => None,
                }
            }
            // It begins with the name of a check.
            (Ending::CutOff(why), _) => {
                if let About::Task(task) = About::of(why) {
                    self.task = Some(task);
                }
            }
            _ => {}
        }
    }

    /// Writes the verdict into the record if it is about all checks.
    pub fn write(&self, record: &mut Record) {
        let (Ok(exercise), true, Ending::Checks) = (&self.exercise, self.is_whole, &self.ending) else { return };
        let tally = |about| {
            let tally = self.verdict.tally_of(about);
            Tally { green: tally.green, of: tally.of }
        };
        let ran = record.chapter_mut(&self.chapter.name);
        ran.fingerprint = exercise.fingerprint.clone();
        ran.ran = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        ran.whole = tally(About::Whole);
        ran.tasks.clear();
        for (about, _) in self.verdict.0.keys() {
            if let About::Task(task) = about {
                ran.tasks.insert(*task, tally(*about));
            }
        }
    }
}
