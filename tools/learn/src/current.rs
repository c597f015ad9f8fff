//! The chapter that the reader is in: its page, the reader's file, and what the checks have found.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use page_by_page_course::chapters::{Chapter, Exercise, State};
use page_by_page_course::lesson::{Lesson, Task};
use page_by_page_course::record::{Record, Tally};

use crate::book;
use crate::checks::{About, Check, Next, Verdict};
use crate::compiler::Errors;
use crate::places;
use crate::reset;
use crate::run::{Ending, Report};

/// The current chapter.
pub struct Current {
    pub root: PathBuf,
    pub chapter: Chapter,
    pub exercise: Result<Exercise, String>,
    /// The stub as it was handed out.
    pub stub: Option<String>,
    pub lesson: Result<Lesson, String>,
    /// The grader's text: its checks go from the plain to the hard.
    pub grader: String,
    /// How the last run ended.
    pub ending: Ending,
    pub verdict: Verdict,
    /// The part of the verdict that is about the file as it was saved last.
    pub fresh: Verdict,
    /// The tasks whose checks were all green when all of them last ran.
    pub done: BTreeSet<u32>,
    /// Whether the verdict covers all checks of the chapter as it is now, and not only those of one task.
    pub is_whole: bool,
    pub n_warnings: usize,
    /// The current task of the last run.
    pub task: Option<u32>,
    /// Whether there is a keyboard. Without one no key is named.
    pub has_keys: bool,
    /// Whether no checks have run in this clone yet, as far as the record knows.
    pub is_first: bool,
}

impl Current {
    pub fn new(root: &Path, chapter: &Chapter) -> Self {
        Current {
            root: root.to_path_buf(),
            chapter: chapter.clone(),
            exercise: chapter.read(root),
            stub: reset::handed_out(root, chapter).ok(),
            lesson: Lesson::read(root, &chapter.name),
            grader: std::fs::read_to_string(root.join(chapter.grader())).unwrap_or_default(),
            ending: Ending::NotRun,
            verdict: Verdict::default(),
            fresh: Verdict::default(),
            done: BTreeSet::new(),
            is_whole: false,
            n_warnings: 0,
            task: None,
            has_keys: true,
            is_first: false,
        }
    }

    /// The chapter's title without its number: `The flat cache`.
    pub fn title(&self) -> String {
        let title = self.lesson.as_ref().map_or(self.chapter.name.as_str(), |lesson| lesson.title.as_str());
        let (number, rest) = title.split_once(". ").unwrap_or(("", title));
        if number.bytes().all(|byte| byte.is_ascii_digit()) { rest.to_string() } else { title.to_string() }
    }

    /// The page's section about a task.
    pub fn section(&self, number: u32) -> Option<&Task> {
        self.lesson.as_ref().ok()?.tasks.iter().find(|task| task.number == number)
    }

    pub fn n_hints(&self, task: u32) -> usize {
        self.section(task).map_or(0, |task| task.hints.len())
    }

    pub fn n_questions(&self) -> usize {
        self.lesson.as_ref().map_or(0, |lesson| lesson.questions.len())
    }

    /// The red checks about something, in the grader's order.
    pub fn red(&self, about: About) -> Vec<&Check> {
        let checks = self.verdict.checks.get(&about).into_iter().flatten();
        let mut red: Vec<&Check> = checks.filter(|check| check.is_red()).collect();
        red.sort_by_key(|check| self.place_in_grader(check));
        red
    }

    pub fn place_in_grader(&self, check: &Check) -> usize {
        self.all_checks().iter().position(|name| *name == check.short()).unwrap_or(usize::MAX)
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

    /// The names of the chapter's checks, in the grader's order. Each stands at the head of a line, as a function of its own
    /// or in a list of `tests_on!`.
    pub fn all_checks(&self) -> Vec<&str> {
        self.grader.lines().filter_map(check_named).collect()
    }

    /// The checks of a run that are not among those that have `ended`.
    pub fn unfinished<'a>(&'a self, is_whole: bool, ended: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
        let is_asked = |name: &&str| is_whole || self.task.is_none_or(|task| About::of(name) == About::Task(task));
        let ended: BTreeSet<&str> = ended.collect();
        self.all_checks().into_iter().filter(|name| is_asked(name) && !ended.contains(name)).collect()
    }

    /// The checks that the last run, which was cut off, left without a result.
    pub fn left_out(&self) -> Vec<&str> {
        self.unfinished(self.is_whole, self.fresh.all().map(Check::short))
    }

    /// The current task: that of the verdict, else the last one, else the first that wasn't green before.
    pub fn current_task(&self) -> Option<u32> {
        let lowest = || {
            let left = self.exercise.iter().flat_map(|exercise| &exercise.todos).map(|todo| todo.task);
            let all = self.lesson.iter().flat_map(|lesson| &lesson.tasks).map(|task| task.number);
            left.chain(all.filter(|task| !self.done.contains(task))).min()
        };
        match (&self.ending, self.verdict.next()) {
            (Ending::Checks, Next::Task(task)) if self.is_whole || Some(task) == self.task => Some(task),
            (Ending::Checks, Next::Waits(wait)) if wait.chapter == self.chapter.number => Some(wait.task),
            (Ending::Checks, Next::Whole | Next::Nothing) if self.is_whole => None,
            _ => self.task.or_else(lowest),
        }
    }

    /// Where a task is in the reader's file: `exercises/ch02_flat.rs:53`.
    pub fn place(&self, task: u32) -> Option<String> {
        let exercise = self.exercise.as_ref().ok()?;
        let line = places::place_of(task, exercise, self.stub.as_deref(), self.chapter.number)?;
        Some(format!("{}:{line}", self.chapter.exercise()))
    }

    /// The part of the page to read next: its anchor, and its line in the source.
    pub fn place_in_page(&self) -> (String, usize) {
        let page = std::fs::read_to_string(self.root.join(self.chapter.page())).unwrap_or_default();
        let section = |heading: &str| page.lines().position(|line| line == heading).map_or(1, |at| at + 1);
        let (anchor, line) = match self.current_task().and_then(|number| self.section(number)) {
            Some(task) => (task.anchor.as_str(), task.line),
            None if self.is_green() && page.contains("\n## Look at it\n") => ("look-at-it", section("## Look at it")),
            None if self.is_green() => ("what-it-bought", section("## What it bought")),
            None => ("build", section("## Build")),
        };
        (anchor.to_string(), line)
    }

    /// The same as an address.
    pub fn link(&self, port: Option<u16>) -> String {
        let (anchor, line) = self.place_in_page();
        book::link(&self.root, port, &self.chapter.name, &anchor, line)
    }

    /// The same in the source of the page: `book/src/ch02_flat.md:99`.
    pub fn source(&self) -> String {
        format!("{}:{}", self.chapter.page(), self.place_in_page().1)
    }

    /// Takes over the result of a run of all checks, or of those of one task.
    pub fn take(&mut self, report: impl Into<Report>, is_whole: bool) {
        let Report { ending, verdict, n_warnings } = report.into();
        self.fresh.update(verdict.clone());
        match &ending {
            // The task with the error is the one being worked on.
            Ending::Errors(errors) => self.task = self.task_of(errors).or(self.task),
            Ending::Checks => {
                self.verdict.update(verdict);
                (self.n_warnings, self.is_whole) = (n_warnings, is_whole);
            }
            Ending::CutOff(why) => {
                // Results about an earlier text no longer count.
                (self.verdict, self.is_whole) = (self.fresh.clone(), is_whole);
                let named = why.lines().find_map(|line| line.strip_prefix("error: ")?.split(' ').next());
                let about = named.or(self.left_out().first().copied()).map(About::of);
                if let Some(About::Task(task)) = about {
                    self.task = Some(task);
                }
            }
            Ending::NotRun | Ending::Refused(_) => {}
        }
        self.ending = ending;
        if is_whole && matches!(self.ending, Ending::Checks) {
            self.task = match self.verdict.next() {
                Next::Task(task) => Some(task),
                Next::Waits(wait) if wait.chapter == self.chapter.number => Some(wait.task),
                _ => None,
            };
            let is_done = |about: &About| self.verdict.tally(*about).green == self.verdict.tally(*about).of;
            let tasks = self.verdict.checks.keys().copied().filter(is_done);
            self.done =
                tasks.filter_map(|about| if let About::Task(task) = about { Some(task) } else { None }).collect();
        }
    }

    /// The task in whose function the first error is.
    fn task_of(&self, errors: &Errors) -> Option<u32> {
        let line = errors.shown.first().filter(|_| errors.in_file)?.line?;
        places::task_at(line, self.exercise.as_ref().ok()?, self.stub.as_deref(), self.chapter.number)
    }

    /// Forgets all results.
    pub fn forget(&mut self) {
        (self.ending, self.verdict, self.is_whole, self.task) = (Ending::NotRun, Verdict::default(), false, None);
        self.done.clear();
    }

    /// Writes the verdict into the record; false if there is none about all checks.
    pub fn write(&self, record: &mut Record) -> bool {
        record.at = Some(self.chapter.name.clone());
        let (Ok(exercise), true, Ending::Checks) = (&self.exercise, self.is_whole, &self.ending) else {
            return false;
        };
        let tally = |about| {
            let tally = self.verdict.tally(about);
            Tally { green: tally.green, of: tally.of }
        };
        let ran = record.chapter_mut(&self.chapter.name);
        ran.fingerprint = exercise.fingerprint.clone();
        ran.ran = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        ran.tasks.clear();
        for about in self.verdict.checks.keys() {
            if let About::Task(task) = about {
                ran.tasks.insert(*task, tally(*about));
            }
        }
        ran.whole = tally(About::Whole);
        true
    }
}

/// `    fn task_1_adds() {` and `    task_1_adds = adds,` → `task_1_adds`
fn check_named(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let (name, _) = match line.strip_prefix("fn ") {
        Some(function) => function.split_once('(')?,
        None => line.split_once(" = ")?,
    };
    ["task_", "whole_", "given_"].iter().any(|start| name.starts_with(start)).then_some(name)
}
