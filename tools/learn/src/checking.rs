//! The checks of the current chapter: run on each save, first those of the current task; then what the chapter gains.

use std::time::{Duration, Instant};

use crate::app::{App, View};
use crate::current::Current;
use crate::program::Program;
use crate::run::{CheckRun, RunResult, Stage};

/// More crates than this to build are dependencies, and take minutes, not seconds. After a save it is fewer than ten.
const MANY_CRATES: usize = 15;

#[derive(Default)]
pub struct Checking {
    run: Option<CheckRun>,
    pub stage: Option<Stage>,
    saved: Option<Instant>,
    /// From the save to the newest result.
    pub took: Option<Duration>,
    /// The filter for the checks that follow those of the current task.
    rest: Option<Vec<String>>,
    /// Whether the verdict on the screen is about the file before this save.
    pub is_stale: bool,
    pub is_first_build: bool,
    /// What the chapter gains, once it is green.
    pub gains: Vec<String>,
    pub counting: Option<Program>,
}

impl App {
    /// Begins to check a chapter that is started: first the current task, then the others. An older run is ended.
    pub fn check(&mut self, saved: Instant) {
        if !self.current.is_started() {
            return;
        }
        let filter = self.current.task.map(|task| format!("task_{task}_"));
        let rest = filter.clone().map(|filter| vec!["--skip".into(), filter]);
        self.checking = Checking { rest, is_stale: true, saved: Some(saved), ..Checking::default() };
        self.start(filter.into_iter().collect());
    }

    fn start(&mut self, filter: Vec<String>) {
        match CheckRun::start(&self.current.root, &self.current.chapter, filter, self.time_limit) {
            Ok(run) => (self.checking.stage, self.checking.run) = (Some(run.stage.clone()), Some(run)),
            Err(problem) => {
                self.checking = Checking::default();
                self.current.result = RunResult::Refused(problem);
            }
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.checking.saved.map_or(Duration::ZERO, |saved| saved.elapsed())
    }

    /// Reads what the run and the count of the gains have printed.
    pub fn update_checking(&mut self) {
        if let Some(counting) = &mut self.checking.counting {
            counting.update();
            if counting.has_ended {
                // The first line is a heading.
                self.checking.gains = counting.output.iter().skip(1).cloned().collect();
                self.checking.counting = None;
            }
        }
        let Some(run) = &mut self.checking.run else { return };
        let result = run.update();
        let stage = run.stage.clone();
        self.show_stage(stage);
        if let Some(result) = result {
            self.show_result(result);
        }
    }

    pub fn show_stage(&mut self, stage: Stage) {
        self.checking.is_first_build = match &stage {
            Stage::Compiling(Some(progress)) if progress.of.saturating_sub(progress.done) > MANY_CRATES => true,
            stage => self.checking.is_first_build && *stage != Stage::Checking,
        };
        self.checking.stage = Some(stage);
    }

    pub fn show_result(&mut self, result: RunResult) {
        let goes_on = matches!(result, RunResult::Finished(_));
        let rest = self.checking.rest.take();
        self.current.take(result, rest.is_none());
        (self.checking.took, self.checking.stage, self.checking.run) = (Some(self.elapsed()), None, None);
        (self.checking.is_stale, self.checking.is_first_build) = (false, false);
        if self.view == View::Main {
            self.scroll = 0;
        }
        match rest {
            Some(filter) if goes_on => self.start(filter),
            _ => self.finish_checking(),
        }
    }

    /// Records a run of all checks, and counts what a green chapter gains.
    fn finish_checking(&mut self) {
        self.record(Current::write);
        if self.current.is_green() {
            let arguments = ["gains".into(), self.current.chapter.number.to_string()];
            self.checking.counting = Program::start(&self.current.root, &arguments).ok();
        }
    }
}
