//! The checks of the current chapter: run on each save, first those of the current task; then what the chapter gains.

use std::time::{Duration, Instant};

use page_by_page_course::cargo::Process;

use crate::app::{App, Event, View};
use crate::checks::Verdict;
use crate::current::Current;
use crate::run::{self, Ending, News, Order, Stage};
use crate::story;

/// A build with more crates left than this builds dependencies, and takes minutes rather than seconds. After a save it is fewer
/// than ten.
const MANY_CRATES: usize = 15;

/// The run of the checks for the last save.
#[derive(Default)]
pub struct Checking {
    run: Option<Process>,
    pub number: usize,
    pub stage: Option<Stage>,
    /// The time of the save.
    since: Option<Instant>,
    /// From the save to the newest result.
    pub took: Option<Duration>,
    /// The filter for the checks that follow those of the current task.
    rest: Option<Vec<String>>,
    /// Whether the verdict on the screen is about the file before this save.
    pub is_stale: bool,
    /// Whether dependencies are being compiled.
    pub is_first_build: bool,
    /// What the chapter gains, once it is green.
    pub gains: Vec<String>,
    pub counting: Option<Process>,
}

impl App {
    pub fn stop_checking(&mut self) {
        self.checking = Checking { number: self.checking.number + 1, ..Checking::default() };
    }

    /// Begins to check: first the current task, then the others. An older run is ended.
    pub fn check(&mut self, since: Instant) {
        self.stop_checking();
        let filter = self.current.task.map(|task| format!("task_{task}_"));
        self.checking.rest = filter.clone().map(|filter| vec!["--skip".into(), filter]);
        self.checking.is_stale = true;
        self.start(filter.into_iter().collect(), since);
    }

    fn start(&mut self, filter: Vec<String>, since: Instant) {
        let (number, Some(sender)) = (self.checking.number, self.sender.clone()) else { return };
        let Current { root, chapter, .. } = &self.current;
        let order = Order { root: root.clone(), chapter: chapter.clone(), filter, limit: self.limit };
        match run::start(order, move |news| drop(sender.send(Event::Run(number, news)))) {
            Ok(run) => {
                let checking = &mut self.checking;
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
                self.checking.is_first_build = match &stage {
                    Stage::Compiling(Some(progress)) if progress.of.saturating_sub(progress.done) > MANY_CRATES => true,
                    stage => self.checking.is_first_build && *stage != Stage::Checking,
                };
                self.checking.stage = Some(stage);
            }
            News::Ended(ending, verdict) => self.ended(ending, verdict),
        }
    }

    fn ended(&mut self, ending: Ending, verdict: Verdict) {
        let since = self.checking.since.unwrap_or_else(Instant::now);
        let goes_on = matches!(ending, Ending::Checks);
        let rest = self.checking.rest.take();
        self.current.take(ending, verdict, rest.is_none());
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
        self.keep(Current::write);
        if let (true, Some(sender)) = (self.current.is_green(), self.sender.clone()) {
            let number = self.checking.number;
            let send = move |gains| drop(sender.send(Event::Gains(number, gains)));
            self.checking.counting = story::count_gains(&self.current.root, self.current.chapter.number, send).ok();
        }
    }
}
