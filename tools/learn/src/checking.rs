//! The checks of the current chapter: run on each save, first those of the current task; then what the chapter gains.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use page_by_page_course::cargo::Running;
use page_by_page_course::chapters::Chapter;
use page_by_page_course::record::{LastRun, Record, Standing};

use crate::app::{App, Event, View};
use crate::checks::{Check, Verdict};
use crate::current::Current;
use crate::gains::{self, Gains};
use crate::run::{Ending, News, Order, Report, Run, Stage};

/// Checks that run longer are named on the screen.
const SLOW: Duration = Duration::from_secs(5);

/// A build with more crates left than this builds dependencies, and takes minutes rather than seconds. After a save it is fewer
/// than ten.
const MANY_CRATES: usize = 15;

/// The run of the checks for the last save.
#[derive(Default)]
pub struct Checking {
    run: Option<Run>,
    pub number: usize,
    pub stage: Option<Stage>,
    /// The time of the save.
    since: Option<Instant>,
    /// From the save to the newest result.
    pub took: Option<Duration>,
    /// The filter for the checks that follow those of the current task.
    rest: Option<Vec<String>>,
    /// Since when this run's checks run, and which of them have ended.
    began: Option<Instant>,
    finished: BTreeSet<String>,
    /// Whether the verdict on the screen is about the file before this save.
    pub is_stale: bool,
    /// Whether dependencies are being compiled.
    pub is_first_build: bool,
}

/// What the chapter gains, once it is green.
#[derive(Default)]
pub struct Gained {
    pub lines: Vec<String>,
    pub counting: Option<Running>,
}

impl Gained {
    pub fn is_counting(&self) -> bool {
        self.counting.is_some()
    }
}

impl App {
    pub fn stop_checking(&mut self) {
        self.checking = Checking { number: self.checking.number + 1, ..Checking::default() };
    }

    /// Begins to check: first the current task, then the others. An older run is ended.
    pub fn check(&mut self, since: Instant) {
        let task = self.current.current_task();
        let filter: Vec<String> = task.iter().map(|task| format!("task_{task}_")).collect();
        let rest = task.map(|task| vec!["--skip".into(), format!("task_{task}_")]);
        self.current.task = task;
        self.current.fresh = Verdict::default();
        self.current.is_whole = false;
        self.checking = Checking { number: self.checking.number, rest, is_stale: true, ..Checking::default() };
        self.start(filter, since);
    }

    fn start(&mut self, filter: Vec<String>, since: Instant) {
        self.gained = Gained::default();
        let checking = &mut self.checking;
        (checking.run, checking.began, checking.finished) = (None, None, BTreeSet::new());
        checking.number += 1;
        let (number, Some(sender)) = (checking.number, self.sender.clone()) else { return };
        let Current { root, chapter, .. } = &self.current;
        let order = Order { root: root.clone(), chapter: chapter.clone(), filter, limit: self.limit };
        match Run::start(order, move |news| drop(sender.send(Event::Run(number, news)))) {
            Ok(run) => {
                (checking.run, checking.stage, checking.since) = (Some(run), Some(Stage::Compiling(None)), Some(since));
            }
            Err(problem) => {
                self.current.ending = Ending::Refused(problem);
                self.stop_checking();
            }
        }
    }

    /// From the save to now.
    pub fn elapsed(&self) -> Duration {
        self.checking.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Takes an event of the run.
    pub fn heard(&mut self, news: News) {
        match news {
            News::Stage(stage) => {
                if let Stage::Compiling(Some(progress)) = &stage {
                    self.checking.is_first_build |= progress.of.saturating_sub(progress.done) > MANY_CRATES;
                }
                if stage == Stage::Checking {
                    self.checking.began = Some(Instant::now());
                    self.checking.is_first_build = false;
                }
                self.checking.stage = Some(stage);
            }
            News::Finished(name) => drop(self.checking.finished.insert(name)),
            News::Ended(report) => self.ended(report),
        }
    }

    fn ended(&mut self, report: Report) {
        let since = self.checking.since.unwrap_or_else(Instant::now);
        let goes_on = matches!(report.ending, Ending::Checks);
        let rest = self.checking.rest.take();
        self.current.take(report, rest.is_none());
        let checking = &mut self.checking;
        (checking.run, checking.stage, checking.took) = (None, None, Some(since.elapsed()));
        (checking.is_stale, checking.is_first_build) = (false, false);
        if self.view == View::Main {
            self.scroll = 0;
        }
        match rest {
            Some(filter) if goes_on => self.start(filter, since),
            _ => self.checked(),
        }
    }

    /// All checks of the chapter have run, as far as they can.
    fn checked(&mut self) {
        let mut fresh = Record::default();
        let name = self.current.chapter.name.clone();
        if self.current.write(&mut fresh)
            && let Some(ran) = fresh.chapters.remove(&name)
        {
            self.current.is_first = false;
            self.keep(|record| {
                let hints = std::mem::take(&mut record.chapter_mut(&name).hints);
                record.chapters.insert(name, LastRun { hints, ..ran });
            });
        }
        if self.current.is_green() {
            self.count_gains();
        }
    }

    /// The checks that haven't ended, once they take longer than any should.
    pub fn still_running(&self) -> Vec<&str> {
        let is_slow = self.checking.began.is_some_and(|since| since.elapsed() > SLOW);
        if !is_slow || self.checking.stage != Some(Stage::Checking) {
            return Vec::new();
        }
        let before = self.current.fresh.all().map(Check::short);
        let finished = self.checking.finished.iter().map(String::as_str);
        self.current.unfinished(self.checking.rest.is_none(), before.chain(finished))
    }

    fn count_gains(&mut self) {
        let Some(sender) = self.sender.clone() else { return };
        let name = self.current.chapter.name.clone();
        let send = move |gains| drop(sender.send(Event::Gains(name.clone(), gains)));
        self.gained.counting = gains::count(&self.current.root, self.current.chapter.number, send).ok();
    }

    /// Takes the numbers, with a warning for each chapter that they depend on and that isn't green.
    pub fn has_gained(&mut self, gains: Gains) {
        self.gained = Gained { lines: gains.lines, counting: None };
        let own = self.current.chapter.number;
        let others = |chapter: &&Chapter| chapter.number != own && gains.yours.contains(&chapter.number);
        for chapter in self.chapters.iter().filter(others) {
            let Ok(exercise) = chapter.read(&self.current.root) else { continue };
            let ran = self.record.chapters.get(&chapter.name);
            let doubt = match self.record.standing(&chapter.name, &exercise.fingerprint) {
                Standing::Current if ran.is_some_and(|ran| ran.checks().all_green()) => continue,
                Standing::Current => "is red now",
                Standing::Changed => "has changed since its checks ran",
                Standing::NoRun => "has not been checked",
            };
            let number = chapter.number;
            let way = if number + 1 == own { "p".into() } else { format!("cargo learn {number}") };
            self.gained
                .lines
                .push(format!("Chapter {number} {doubt} ({way} opens it), so its part in these numbers may be wrong."));
        }
    }
}
