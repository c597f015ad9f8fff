//! What is going on: the chapter in hand, the run under way, what is shown, and what the keys do.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use crossterm::event::{Event as Typed, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::beside;
use crate::book;
use crate::bought;
use crate::checks::{About, Check, InHand, Verdict};
use crate::compile::Errors;
use crate::course::{self, Chapter, Exercise, State};
use crate::lesson::Lesson;
use crate::record::{Record, Standing, Tally};
use crate::reset;
use crate::runs::{self, News, Order, Report, Run, Stage};
use crate::terminal::Terminal;
use crate::view;
use crate::watch::{self, Files};

/// How often a run under way is drawn anew, and how often the files are looked at.
const BLINK: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_secs(1);

/// Checks that run so long are said to do so.
const SLOW: Duration = Duration::from_secs(5);

/// What the last run of the chapter came to.
#[derive(Clone, Debug, Default)]
pub enum Outcome {
    #[default]
    NotRun,
    Errors(Errors),
    Refused(String),
    Checks,
    CutOff(String),
}

/// The chapter in hand, and what is known of it.
pub struct Shown {
    pub root: PathBuf,
    pub chapter: Chapter,
    pub exercise: Result<Exercise, String>,
    /// The stub, if git knows it.
    pub handed_out: Option<String>,
    pub lesson: Result<Lesson, String>,
    pub outcome: Outcome,
    pub verdict: Verdict,
    /// What of it the runs since the last save have said.
    pub fresh: Verdict,
    /// The tasks whose checks were all green when all ran last.
    pub done: BTreeSet<u32>,
    /// Whether the verdict is about all checks of the chapter as it is now, not only about those of the task in hand.
    pub is_whole: bool,
    pub n_warnings: usize,
    /// The task that was in hand last.
    pub task: Option<u32>,
    /// The text of the grader: its checks go from the plain to the hard.
    pub grader: String,
    /// The port of the book, if it is served.
    pub port: Option<u16>,
    /// The program with the reader's code as it was checked last.
    pub program: Option<PathBuf>,
    /// What the chapter bought, once it is green.
    pub bought: Vec<String>,
    /// Whether that is being counted.
    pub is_counting: bool,
    /// Whether there is a keyboard: without one, no key is named.
    pub has_keys: bool,
    /// Whether no checks have ever run here, as far as the record knows.
    pub is_first: bool,
}

/// What fills the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum View {
    #[default]
    Main,
    Failures,
    Hints,
    Task,
    /// The whole page, from the task on, and what stands before it.
    Page,
    Help,
    /// Asks whether to reset; so many lines would be lost.
    Reset(usize),
    Beside,
    /// A question, and whether its answer is shown.
    Question(usize, bool),
    Story,
}

/// Somewhere in what is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jump {
    End,
    FirstDifference,
}

/// A story under way or at its end.
#[derive(Default)]
pub struct Story {
    pub command: String,
    pub told: String,
    pub says: String,
    /// What cargo is compiling for it.
    pub compiling: String,
    pub since: Option<Instant>,
    pub has_ended: bool,
}

impl Story {
    /// Takes a line of standard error: what cargo says of its own work is no part of the story.
    fn said(&mut self, line: &str) {
        let work = line.trim_start();
        if let Some(what) = work.strip_prefix("Compiling ") {
            self.compiling = what.split(' ').next().unwrap_or(what).to_string();
        }
        let is_of_cargo = line.starts_with(' ')
            && ["Compiling ", "Finished ", "Running ", "Blocking "].iter().any(|verb| work.starts_with(verb))
            || line.starts_with("error: process didn't exit successfully");
        if !is_of_cargo {
            // The reader's file, by the name that it has for the reader.
            self.says.push_str(&line.replace("src/../", "").replace("src\\..\\", ""));
            self.says.push('\n');
        }
    }
}

pub struct App {
    pub shown: Shown,
    pub view: View,
    pub scroll: usize,
    /// Where to scroll to when the body is drawn next.
    pub jump: Option<Jump>,
    /// Rows that the body had and the room for them, when it was drawn last.
    pub extent: (usize, usize),
    pub note: Option<String>,
    pub running: Option<(Stage, Instant)>,
    /// What is being compiled, if it is not the reader's own code.
    pub compiling: String,
    /// From the save to the first words about it.
    pub took: Option<Duration>,
    pub hints: BTreeMap<u32, usize>,
    pub story: Option<Story>,
    pub opening: Option<String>,
    /// The page that is to be opened then, wherever the reader is by that time: its name, an anchor, a line.
    wanted: Option<(String, String, usize)>,
    chapters: Vec<Chapter>,
    at: usize,
    record: Record,
    limit: Duration,
    run: Option<Run>,
    n_runs: usize,
    /// Whether the run is about one task, and the others are to follow.
    rest: Option<Vec<String>>,
    telling: Option<Child>,
    /// Counts what the chapter bought.
    asking: Option<Ended>,
    n_stories: usize,
    /// Since when the checks run, and which have come to their end.
    checking: Option<Instant>,
    through: BTreeSet<String>,
    served: Option<book::Served>,
    sender: Option<Sender<Event>>,
    is_over: bool,
}

enum Event {
    Key(KeyEvent),
    Resized,
    /// Something happened in `exercises/`.
    Touched,
    Run(usize, News),
    Story(usize, StoryNews),
    Port(Option<u16>),
    Book(book::News),
    /// What a chapter bought, by its name.
    Bought(String, bought::Bought),
    /// The terminal is gone.
    Gone,
}

/// A program that is ended with all that it has started, when this is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        runs::end(&mut self.0);
    }
}

enum StoryNews {
    Told(String),
    Says(String),
    Ended,
}

/// Changes the record on disk. Another companion may have changed it, so it is read first.
///
/// # Errors
/// If it cannot be written, in a line.
pub fn keep(root: &Path, change: impl FnOnce(&mut Record)) -> Result<Record, String> {
    let (mut record, _) = Record::read(root);
    let before = record.clone();
    change(&mut record);
    if record != before {
        record.write(root).map_err(|error| {
            format!("{} cannot be written ({error}): where you are is forgotten", crate::record::FILE)
        })?;
    }
    Ok(record)
}

impl Shown {
    pub fn new(root: &Path, chapter: &Chapter) -> Self {
        Shown {
            root: root.to_path_buf(),
            chapter: chapter.clone(),
            exercise: chapter.read(root),
            handed_out: chapter.handed_out(root).ok(),
            lesson: course::lesson(root, chapter),
            outcome: Outcome::NotRun,
            verdict: Verdict::default(),
            fresh: Verdict::default(),
            done: BTreeSet::new(),
            is_whole: false,
            n_warnings: 0,
            task: None,
            grader: std::fs::read_to_string(root.join(format!("tests/{}.rs", chapter.name))).unwrap_or_default(),
            port: None,
            program: None,
            bought: Vec::new(),
            is_counting: false,
            has_keys: true,
            is_first: false,
        }
    }

    /// The red checks about something, in the order in which the grader has them.
    pub fn red(&self, about: About) -> Vec<&Check> {
        let checks = self.verdict.checks.get(&about).into_iter().flatten();
        let mut red: Vec<&Check> = checks.filter(|check| check.is_red()).collect();
        red.sort_by_key(|check| self.place_in_grader(check));
        red
    }

    /// Where the grader has a check.
    pub fn place_in_grader(&self, check: &Check) -> usize {
        self.grader.find(&format!("fn {}(", check.short())).unwrap_or(usize::MAX)
    }

    pub fn is_started(&self) -> bool {
        matches!(&self.exercise, Ok(exercise) if exercise.state == State::Started)
    }

    pub fn is_green(&self) -> bool {
        matches!(self.outcome, Outcome::Checks)
            && self.is_whole
            && self.is_started()
            && self.verdict.in_hand() == InHand::Nothing
            && self.verdict.total().of > 0
    }

    /// The names of the chapter's checks, in the order in which the grader has them.
    pub fn all_checks(&self) -> Vec<&str> {
        let after_test = self.grader.split("#[test]").skip(1);
        let name = |text| Some(str::split_once(text, "fn ")?.1.split_once('(')?.0);
        // Another one says whose code the chapter is.
        let is_check = |name: &&str| *name != self.chapter.name;
        after_test.filter_map(name).filter(is_check).collect()
    }

    /// The checks of the run under way, or of the last one, that have not come to their end; `ended` are the names of those that have.
    pub fn unfinished<'a>(&'a self, is_whole: bool, ended: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
        let is_asked = |name: &&str| is_whole || self.task.is_none_or(|task| About::of(name) == About::Task(task));
        let ended: BTreeSet<&str> = ended.collect();
        self.all_checks().into_iter().filter(|name| is_asked(name) && !ended.contains(name)).collect()
    }

    /// The checks that the last run, which was cut off, has left without a result.
    pub fn left_out(&self) -> Vec<&str> {
        self.unfinished(self.is_whole, self.fresh.checks.values().flatten().map(Check::short))
    }

    /// The task to show: that of the verdict, else the last one, else the first that was not green before.
    pub fn task_in_hand(&self) -> Option<u32> {
        let lowest = || {
            let left = self.exercise.iter().flat_map(|exercise| &exercise.todos).map(|todo| todo.task);
            let all = self.lesson.iter().flat_map(|lesson| &lesson.tasks).map(|task| task.number);
            left.chain(all.filter(|task| !self.done.contains(task))).min()
        };
        match (&self.outcome, self.verdict.in_hand()) {
            (Outcome::Checks, InHand::Task(task)) if self.is_whole || Some(task) == self.task => Some(task),
            (Outcome::Checks, InHand::Waits(wait)) if wait.chapter == self.chapter.number => Some(wait.task),
            (Outcome::Checks, InHand::Whole | InHand::Nothing) if self.is_whole => None,
            _ => self.task.or_else(lowest),
        }
    }

    /// The program on the chapter as it is, with these arguments. Cargo builds it anew, unless it was built for the checks.
    fn command(&self, arguments: &[String]) -> Command {
        let is_built = matches!(self.outcome, Outcome::Checks) && self.is_started();
        let program = self.program.as_ref().filter(|program| is_built && program.is_file());
        let mut command = match program {
            Some(program) => runs::command(program.as_os_str(), &self.root),
            None => {
                let mut cargo = runs::cargo(&self.root);
                cargo.args(["run", "--features", "solution", "--"]);
                cargo
            }
        };
        command.args(arguments);
        command
    }

    /// Takes over what a run said. `is_whole`: whether it was about all checks, or about those that were left.
    pub fn take(&mut self, report: Report, is_whole: bool) {
        match report {
            Report::Errors(errors) => {
                // Who mends an error is at work where it is.
                self.task = self.task_of(&errors).or(self.task);
                self.outcome = Outcome::Errors(errors);
            }
            Report::Refused(words) => self.outcome = Outcome::Refused(words),
            Report::Checks { printed, n_warnings, program } => {
                self.program = program;
                self.fresh.update(printed.verdict.clone());
                self.verdict.update(printed.verdict);
                (self.outcome, self.n_warnings, self.is_whole) = (Outcome::Checks, n_warnings, is_whole);
            }
            Report::CutOff { printed, why } => {
                // What was said of the file as it was before counts no more.
                self.fresh.update(printed.verdict);
                self.verdict = self.fresh.clone();
                let named = why.lines().find_map(|line| line.strip_prefix("error: ")?.split(' ').next());
                self.is_whole = is_whole;
                let about = named.or(self.left_out().first().copied()).map(About::of);
                if let Some(About::Task(task)) = about {
                    self.task = Some(task);
                }
                self.outcome = Outcome::CutOff(why);
            }
        }
        if is_whole && matches!(self.outcome, Outcome::Checks) {
            self.task = match self.verdict.in_hand() {
                InHand::Task(task) => Some(task),
                InHand::Waits(wait) if wait.chapter == self.chapter.number => Some(wait.task),
                _ => None,
            };
            let is_done = |about| self.verdict.tally(about).green == self.verdict.tally(about).of;
            let tasks = self.verdict.checks.keys().filter(|about| is_done(**about));
            self.done =
                tasks.filter_map(|about| if let About::Task(task) = about { Some(*task) } else { None }).collect();
        }
    }

    /// The task in whose function the first error lies.
    fn task_of(&self, errors: &Errors) -> Option<u32> {
        let line = errors.shown.first().filter(|_| errors.in_file)?.line?;
        course::task_at(line, self.exercise.as_ref().ok()?, self.handed_out.as_deref(), self.chapter.number)
    }

    /// Writes the verdict into the record.
    pub fn write(&self, record: &mut Record) {
        record.at = Some(self.chapter.name.clone());
        let (Ok(exercise), true, Outcome::Checks) = (&self.exercise, self.is_whole, &self.outcome) else { return };
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
    }
}

impl App {
    pub fn new(
        root: PathBuf,
        chapters: Vec<Chapter>,
        at: usize,
        record: Record,
        note: Option<String>,
        limit: Duration,
    ) -> Self {
        let shown = Shown::new(&root, &chapters[at]);
        let hints = record.chapters.get(&chapters[at].name).map(|ran| ran.hints.clone()).unwrap_or_default();
        App {
            shown,
            view: View::Main,
            scroll: 0,
            jump: None,
            extent: (0, 0),
            note,
            running: None,
            compiling: String::new(),
            took: None,
            hints,
            story: None,
            opening: None,
            wanted: None,
            chapters,
            at,
            record,
            limit,
            run: None,
            n_runs: 0,
            rest: None,
            telling: None,
            asking: None,
            n_stories: 0,
            checking: None,
            through: BTreeSet::new(),
            served: None,
            sender: None,
            is_over: false,
        }
    }

    /// Takes the terminal and stays until the reader has had enough.
    pub fn run(mut self) -> Result<ExitCode> {
        let (sender, events) = channel();
        self.sender = Some(sender.clone());
        let asked = Arc::new(AtomicUsize::new(0));
        #[cfg(unix)]
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP, signal_hook::consts::SIGINT] {
            signal_hook::flag::register_usize(signal, asked.clone(), signal as usize)
                .context("signals cannot be watched for")?;
        }
        let mut terminal =
            Terminal::take().context("the terminal cannot be drawn on; `cargo learn --once` prints plain lines")?;
        listen(sender.clone());
        let told = sender.clone();
        let _watcher = watch::watch(&self.shown.root, move || drop(told.send(Event::Touched)));
        let mut files = Files::new(&self.shown.root, self.chapters.iter().map(Chapter::exercise));
        thread::spawn(move || sender.send(Event::Port(book::served())));
        self.go_to(self.at);
        let mut looked = Instant::now();
        while !self.is_over {
            let (columns, rows) = terminal.size();
            let screen = view::screen(&mut self, columns, rows);
            terminal.draw(screen, columns).context("the terminal cannot be drawn on")?;
            let is_busy = self.running.is_some() || self.story.as_ref().is_some_and(|story| !story.has_ended);
            match events.recv_timeout(if is_busy { BLINK } else { BLINK * 2 }) {
                Ok(Event::Key(key)) => self.key(key, &mut terminal)?,
                Ok(Event::Resized) => terminal.forget(),
                Ok(Event::Touched) => {
                    // Several events make one save. What else comes in the meantime must not get lost.
                    let mut others = Vec::new();
                    let mut last = Instant::now();
                    while let Some(left) = watch::QUIET.checked_sub(last.elapsed()).filter(|left| !left.is_zero()) {
                        match events.recv_timeout(left) {
                            Ok(Event::Touched) => last = Instant::now(),
                            Ok(other) => others.push(other),
                            Err(_) => break,
                        }
                    }
                    self.saved(&files.changed());
                    for other in others {
                        self.happened(other, &mut terminal)?;
                    }
                    looked = Instant::now();
                }
                Ok(other) => self.happened(other, &mut terminal)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if looked.elapsed() >= LOOK {
                self.saved(&files.changed());
                looked = Instant::now();
            }
            if asked.load(Ordering::Relaxed) != 0 {
                break;
            }
        }
        self.stop_story();
        drop(terminal);
        let task = self.shown.task_in_hand().map_or(String::new(), |task| format!(", task {task}"));
        // The terminal may be gone.
        let number = self.shown.chapter.number;
        let _ = writeln!(std::io::stdout(), "Chapter {number}{task}: `cargo learn` goes on there.");
        // As a shell says it of a program that a signal has ended.
        let code = match asked.load(Ordering::Relaxed) {
            0 => 0,
            signal => 128 + signal,
        };
        Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
    }

    fn happened(&mut self, event: Event, terminal: &mut Terminal) -> Result<()> {
        match event {
            Event::Key(key) => self.key(key, terminal)?,
            Event::Resized => terminal.forget(),
            Event::Touched => {}
            Event::Run(number, news) if number == self.n_runs => self.heard(news),
            Event::Run(..) => {}
            Event::Story(number, news) => self.told(number, news),
            Event::Port(port) => self.shown.port = self.shown.port.or(port),
            Event::Book(news) => self.of_the_book(news),
            Event::Bought(name, bought) if name == self.shown.chapter.name => self.has_bought(bought),
            Event::Bought(..) => {}
            Event::Gone => self.is_over = true,
        }
        Ok(())
    }

    /// Whether what is shown is about the file as it was before it was saved.
    pub fn is_stale(&self) -> bool {
        self.running.is_some() && self.took.is_none()
    }

    /// The checks that are not through yet, once they take longer than any should.
    pub fn still_running(&self) -> Vec<&str> {
        let is_slow = self.checking.is_some_and(|since| since.elapsed() > SLOW);
        if !is_slow || !matches!(self.running, Some((Stage::Checking, _))) {
            return Vec::new();
        }
        let before = self.shown.fresh.checks.values().flatten().map(Check::short);
        self.shown.unfinished(self.rest.is_none(), before.chain(self.through.iter().map(String::as_str)))
    }

    fn send(&self) -> Option<Sender<Event>> {
        self.sender.clone()
    }

    /// Takes a chapter in hand.
    fn go_to(&mut self, at: usize) {
        (self.run, self.asking) = (None, None);
        (self.running, self.rest, self.took) = (None, None, None);
        let port = self.shown.port;
        self.at = at;
        let is_first = self.record.chapters.values().all(|ran| ran.fingerprint.is_empty());
        self.shown = Shown { port, is_first, ..Shown::new(&self.shown.root, &self.chapters[at]) };
        self.turn_to(View::Main);
        let name = self.shown.chapter.name.clone();
        self.keep(|record| record.at = Some(name));
        let ran = self.record.chapters.get(&self.shown.chapter.name);
        self.hints = ran.map(|ran| ran.hints.clone()).unwrap_or_default();
        if self.shown.is_started() {
            let tasks = ran.iter().flat_map(|ran| &ran.tasks);
            let done = tasks.filter(|(_, tally)| tally.green == tally.of).map(|(task, _)| *task);
            self.shown.done = done.collect();
            self.check(Instant::now());
        }
    }

    fn turn_to(&mut self, view: View) {
        self.view = view;
        (self.scroll, self.jump) = (0, None);
    }

    fn keep(&mut self, change: impl FnOnce(&mut Record)) {
        match keep(&self.shown.root, change) {
            Ok(record) => self.record = record,
            Err(problem) => self.note = Some(problem),
        }
    }

    /// Files that say something else now.
    fn saved(&mut self, files: &[String]) {
        let Some(last) = files.last() else { return };
        let since = Instant::now();
        let mine = self.shown.chapter.exercise();
        let text =
            |exercise: &Result<Exercise, String>| exercise.as_ref().ok().map(|exercise| exercise.fingerprint.clone());
        let fresh = self.shown.chapter.read(&self.shown.root);
        if files == [mine.clone()] && text(&fresh).is_some() && text(&fresh) == text(&self.shown.exercise) {
            // What was just reset, or came back as it was.
            return;
        }
        self.note = None;
        if !files.contains(&mine) {
            let other = self.chapters.iter().position(|chapter| chapter.exercise() == *last);
            let is_idle = !self.shown.is_started() || self.shown.is_green();
            match other {
                // Whoever has nothing to do here is at work there.
                Some(other) if is_idle => return self.go_to(other),
                Some(other) => {
                    let number = self.chapters[other].number;
                    self.note = Some(format!("{last} was saved, too: `cargo learn {number}` goes to chapter {number}"));
                }
                None => {}
            }
        }
        self.shown.exercise = fresh;
        if self.view != View::Story {
            self.turn_to(View::Main);
        }
        match self.shown.is_started() {
            true => self.check(since),
            false => {
                self.run = None;
                self.running = None;
                self.forget_verdict();
            }
        }
    }

    fn forget_verdict(&mut self) {
        let shown = &mut self.shown;
        (shown.outcome, shown.verdict, shown.is_whole, shown.task) = (Outcome::NotRun, Verdict::default(), false, None);
        shown.done.clear();
    }

    /// Begins to check: first the task in hand, then the others. An older run ends, and tells nothing.
    fn check(&mut self, since: Instant) {
        let task = self.shown.task_in_hand();
        let filter: Vec<String> = task.iter().map(|task| format!("task_{task}_")).collect();
        self.rest = task.map(|task| vec!["--skip".into(), format!("task_{task}_")]);
        self.shown.task = task;
        self.shown.fresh = Verdict::default();
        self.shown.is_whole = false;
        (self.shown.bought, self.shown.is_counting) = (Vec::new(), false);
        self.took = None;
        self.start(filter, since);
    }

    fn start(&mut self, filter: Vec<String>, since: Instant) {
        (self.run, self.asking) = (None, None);
        self.compiling.clear();
        (self.checking, self.through) = (None, BTreeSet::new());
        self.n_runs += 1;
        let (number, Some(sender)) = (self.n_runs, self.send()) else { return };
        let order = Order {
            root: self.shown.root.clone(),
            chapter: self.shown.chapter.number,
            name: self.shown.chapter.name.clone(),
            filter,
            limit: self.limit,
        };
        match Run::start(order, move |news| drop(sender.send(Event::Run(number, news)))) {
            Ok(run) => (self.run, self.running) = (Some(run), Some((Stage::Compiling, since))),
            Err(problem) => (self.shown.outcome, self.running) = (Outcome::Refused(problem), None),
        }
    }

    fn heard(&mut self, news: News) {
        let since = self.running.map_or_else(Instant::now, |(_, since)| since);
        match news {
            News::Stage(stage) => {
                self.running = Some((stage, since));
                self.checking = (stage == Stage::Checking).then(Instant::now);
            }
            News::Through(name) => drop(self.through.insert(name)),
            News::Compiling(what) => {
                self.running = Some((Stage::Compiling, since));
                self.compiling = if what == "page-by-page" { String::new() } else { format!(" {what}") };
            }
            News::Ended(report) => {
                self.took.get_or_insert(since.elapsed());
                let goes_on = matches!(report, Report::Checks { .. });
                let rest = self.rest.take();
                self.shown.take(report, rest.is_none());
                (self.run, self.running) = (None, None);
                if self.view == View::Main {
                    self.scroll = 0;
                }
                match rest {
                    Some(filter) if goes_on => self.start(filter, since),
                    _ => self.checked(),
                }
            }
        }
    }

    /// All checks of the chapter have run, as far as they can.
    fn checked(&mut self) {
        let mut fresh = Record::default();
        self.shown.write(&mut fresh);
        let name = self.shown.chapter.name.clone();
        if let Some(ran) = fresh.chapters.remove(&name) {
            self.shown.is_first = false;
            self.keep(|record| {
                let hints = std::mem::take(&mut record.chapter_mut(&name).hints);
                record.chapters.insert(name, crate::record::LastRun { hints, ..ran });
            });
        }
        if self.shown.is_green() {
            self.ask_what_it_bought();
        }
    }

    /// Asks the program that was just compiled what the chapter bought.
    fn ask_what_it_bought(&mut self) {
        let Some(sender) = self.send() else { return };
        let (name, number) = (self.shown.chapter.name.clone(), self.shown.chapter.number.to_string());
        let mut command = self.shown.command(&["bought".into(), number, "--json".into()]);
        let Ok(mut child) = command.stderr(Stdio::null()).spawn() else { return };
        let out = child.stdout.take();
        thread::spawn(move || {
            let mut json = String::new();
            if out.is_some_and(|mut out| out.read_to_string(&mut json).is_ok()) {
                let _ = sender.send(Event::Bought(name, bought::read(&json)));
            }
        });
        self.asking = Some(Ended(child));
        self.shown.is_counting = true;
    }

    /// What the chapter bought, and which of its numbers are not to be trusted: those of chapters that are not green.
    fn has_bought(&mut self, bought: bought::Bought) {
        self.shown.is_counting = false;
        self.shown.bought = bought.lines;
        let own = self.shown.chapter.number;
        for chapter in
            self.chapters.iter().filter(|chapter| chapter.number != own && bought.yours.contains(&chapter.number))
        {
            let Ok(exercise) = chapter.read(&self.shown.root) else { continue };
            let ran = self.record.chapters.get(&chapter.name);
            let doubt = match self.record.standing(&chapter.name, &exercise.fingerprint) {
                Standing::Current if ran.is_some_and(|ran| ran.checks().all_green()) => continue,
                Standing::Current => "is red now",
                Standing::Changed => "has changed since its checks ran",
                Standing::NoRun => "has not been checked",
            };
            let number = chapter.number;
            let way = if number + 1 == own { "p".into() } else { format!("cargo learn {number}") };
            let line = format!("chapter {number} {doubt} ({way} goes there): its part in these numbers may be wrong");
            self.shown.bought.push(line);
        }
    }

    fn of_the_book(&mut self, news: book::News) {
        match news {
            book::News::Served(port) => {
                self.shown.port = Some(port);
                if self.opening.take().is_some() {
                    self.open();
                }
            }
            book::News::Doing(what) if self.opening.is_some() => self.opening = Some(what),
            book::News::Doing(_) => {}
            book::News::Ended(words) => {
                if self.served.take().is_some() {
                    self.shown.port = None;
                    self.opening = None;
                    self.note = Some(format!("the book is not served any more: {words}"));
                }
            }
        }
    }

    /// Opens the page where it speaks of what is in hand; serves the book first, if nobody does.
    fn open(&mut self) {
        let (anchor, line) = view::place_in_page(&self.shown);
        let here = (self.shown.chapter.name.clone(), anchor, line);
        if self.shown.port.is_some() {
            let (name, anchor, line) = self.wanted.take().unwrap_or(here);
            let address = book::link(&self.shown.root, self.shown.port, &name, &anchor, line);
            self.note = Some(match book::open_browser(&address) {
                true => format!("opened: {address}"),
                false => format!(
                    "no browser could be opened. Read it here (t, then t once more), in book/src/{name}.md:{line}, or open {address}"
                ),
            });
            return;
        }
        self.wanted = Some(here);
        if self.served.is_some() {
            return;
        }
        let Some(sender) = self.send() else { return };
        match book::Served::start(&self.shown.root, move |news| drop(sender.send(Event::Book(news)))) {
            Ok(served) => (self.served, self.opening) = (Some(served), Some(String::new())),
            Err(problem) => self.note = Some(problem),
        }
    }

    fn key(&mut self, key: KeyEvent, terminal: &mut Terminal) -> Result<()> {
        if key.kind == KeyEventKind::Release {
            return Ok(());
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match (key.code, is_control) {
            (KeyCode::Char('c'), true) => self.is_over = true,
            (KeyCode::Char('z'), true) => terminal.suspend().context("the terminal cannot be drawn on")?,
            (KeyCode::Char('l'), true) => terminal.forget(),
            (_, true) => {}
            (code, false) => self.pressed(code),
        }
        Ok(())
    }

    /// What a key does.
    pub fn pressed(&mut self, code: KeyCode) {
        if self.scrolled(code) {
            return;
        }
        self.note = None;
        // A view that has its own use for a key comes first.
        match (self.view.clone(), code) {
            (View::Reset(_), KeyCode::Char('y')) => return self.reset(),
            (View::Reset(_), _) => return self.turn_to(View::Main),
            (View::Question(at, false), KeyCode::Enter | KeyCode::Char('c')) => {
                return self.turn_to(View::Question(at, true));
            }
            (View::Question(at, true), KeyCode::Enter | KeyCode::Char('c')) => {
                let n_questions = self.shown.lesson.as_ref().map_or(0, |lesson| lesson.questions.len());
                let next = at + 1;
                return self.turn_to(if next < n_questions { View::Question(next, false) } else { View::Main });
            }
            (View::Story, KeyCode::Esc | KeyCode::Char('q')) => {
                self.stop_story();
                return self.turn_to(View::Main);
            }
            (View::Main, KeyCode::Char('q')) => self.is_over = true,
            (_, KeyCode::Esc | KeyCode::Char('q')) => return self.turn_to(View::Main),
            _ => {}
        }
        if self.view == View::Story {
            self.stop_story();
        }
        match code {
            KeyCode::Char('h') => self.hint(),
            KeyCode::Char('a') => match self.view {
                _ if !self.shown.is_started() => {
                    self.note = Some(format!("nothing is red yet: edit {} to begin", self.shown.chapter.exercise()));
                }
                View::Failures => self.turn_to(View::Main),
                _ => self.turn_to(View::Failures),
            },
            KeyCode::Char('t') if self.view == View::Task => {
                self.turn_to(View::Page);
                self.jump = Some(Jump::FirstDifference);
            }
            KeyCode::Char('t') => self.turn_to(View::Task),
            KeyCode::Char('s') => self.tell_story(),
            KeyCode::Char('o') => self.open(),
            KeyCode::Char('v') => self.compare(),
            KeyCode::Char('c') => self.question(),
            KeyCode::Char('x') => self.ask_to_reset(),
            KeyCode::Char('n') if self.at + 1 < self.chapters.len() => self.go_to(self.at + 1),
            KeyCode::Char('n') => self.note = Some("this is the last chapter".into()),
            KeyCode::Char('p') if self.at > 0 => self.go_to(self.at - 1),
            KeyCode::Char('p') => self.note = Some("this is the first chapter".into()),
            KeyCode::Char('r') => match self.shown.is_started() {
                true => {
                    // The same file once more: a chapter that is done stays so until the checks say something else.
                    let is_green = self.shown.is_green();
                    self.check(Instant::now());
                    self.shown.is_whole = is_green;
                }
                false => self.note = Some(format!("nothing to check: edit {} to begin", self.shown.chapter.exercise())),
            },
            KeyCode::Char('?') => match self.view {
                View::Help => self.turn_to(View::Main),
                _ => self.turn_to(View::Help),
            },
            _ => {}
        }
    }

    /// Moves through what does not fit on the screen; false if the key is none for that.
    fn scrolled(&mut self, code: KeyCode) -> bool {
        let (rows, room) = self.extent;
        let last = rows.saturating_sub(room);
        let page = room.saturating_sub(1).max(1);
        self.scroll = match code {
            KeyCode::Down | KeyCode::Char('j') => self.scroll + 1,
            KeyCode::Up | KeyCode::Char('k') => self.scroll.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.scroll + page,
            KeyCode::PageUp | KeyCode::Char('b') => self.scroll.saturating_sub(page),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            _ => return false,
        }
        .min(last);
        true
    }

    /// Shows the hints seen so far; there, shows one more.
    fn hint(&mut self) {
        let Some(task) = self.shown.task_in_hand() else {
            self.note = Some(match self.shown.is_green() {
                true => "all is green: there is nothing to hint at".into(),
                false => "hints are for tasks, and each task's checks are green".into(),
            });
            return;
        };
        let n_hints = view::task(&self.shown, task).map_or(0, |task| task.hints.len());
        if n_hints == 0 {
            self.note = Some(format!("the page has no hint for task {task}"));
            return;
        }
        let before = self.hints.get(&task).copied().unwrap_or(0).min(n_hints);
        let now = if before == 0 || self.view == View::Hints { (before + 1).min(n_hints) } else { before };
        if self.view == View::Hints && now == before {
            self.note = Some("that was the last hint; t shows what the page says of the task".into());
        }
        self.turn_to(View::Hints);
        // The newest one is what is wanted.
        self.jump = (now > 1).then_some(Jump::End);
        if now != before {
            self.hints.insert(task, now);
            let name = self.shown.chapter.name.clone();
            self.keep(|record| {
                record.chapter_mut(&name).hints.insert(task, now);
            });
        }
    }

    fn compare(&mut self) {
        if self.shown.is_green() {
            self.turn_to(View::Beside);
            self.jump = Some(Jump::FirstDifference);
            return;
        }
        let total = self.shown.verdict.total();
        self.note = Some(match (&self.shown.outcome, self.shown.is_started()) {
            (_, false) => "the reference is shown beside yours once yours is green; you have not begun".into(),
            (Outcome::Checks, true) if self.shown.is_whole => {
                format!("the reference is shown once all is green; {} of {} checks are", total.green, total.of)
            }
            _ => "the reference is shown once all is green".into(),
        });
    }

    fn question(&mut self) {
        let n_questions = self.shown.lesson.as_ref().map_or(0, |lesson| lesson.questions.len());
        match (self.shown.is_green(), n_questions) {
            (false, _) => {
                self.note = Some("the chapter's questions come once all is green; the page has them, too".into())
            }
            (true, 0) => self.note = Some("the page has no questions".into()),
            (true, _) => self.turn_to(View::Question(0, false)),
        }
    }

    fn ask_to_reset(&mut self) {
        match (&self.shown.exercise, self.shown.chapter.handed_out(&self.shown.root)) {
            (Ok(exercise), _) if exercise.state == State::Untouched => {
                self.note = Some(format!("{} is untouched: there is nothing to reset", self.shown.chapter.exercise()));
            }
            (_, Err(problem)) => self.note = Some(format!("{problem:#}")),
            (Err(_), Ok(stub)) if !self.shown.root.join(self.shown.chapter.exercise()).exists() => {
                self.shown.handed_out = Some(stub);
                self.reset();
            }
            (mine, Ok(stub)) => {
                let lost = mine.as_ref().map_or(0, |mine| beside::lost(&mine.text.replace("\r\n", "\n"), &stub));
                self.shown.handed_out = Some(stub);
                self.turn_to(View::Reset(lost));
            }
        }
    }

    fn reset(&mut self) {
        let Some(stub) = self.shown.handed_out.clone() else { return };
        self.turn_to(View::Main);
        self.note = Some(match reset::reset(&self.shown.root, &self.shown.chapter, &stub) {
            Ok(Some(kept)) => format!("{} is the stub again; what you had is in {kept}", self.shown.chapter.exercise()),
            Ok(None) => format!("{} is back", self.shown.chapter.exercise()),
            Err(problem) => format!("{problem:#}"),
        });
        (self.run, self.running) = (None, None);
        self.forget_verdict();
        self.shown.exercise = self.shown.chapter.read(&self.shown.root);
    }

    fn tell_story(&mut self) {
        let Some(arguments) = course::story(&self.shown.root, &self.shown.chapter) else {
            self.note = Some("the page has no command for this chapter".into());
            return;
        };
        self.stop_story();
        let mut program = self.shown.command(&arguments);
        let quoted =
            |word: &String| if word.contains(' ') || word.is_empty() { format!("\"{word}\"") } else { word.clone() };
        let command = arguments.iter().map(quoted).collect::<Vec<_>>().join(" ");
        let (Some(sender), Ok(mut child)) = (self.send(), program.spawn()) else {
            self.note = Some("cargo cannot be started".into());
            return;
        };
        self.n_stories += 1;
        let number = self.n_stories;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        thread::spawn(move || {
            let says = err.map(|err| {
                let sender = sender.clone();
                thread::spawn(move || {
                    for line in BufReader::new(err).lines().map_while(Result::ok) {
                        let _ = sender.send(Event::Story(number, StoryNews::Says(line)));
                    }
                })
            });
            if let Some(mut out) = out {
                let (mut bytes, mut held) = ([0; 1024], Vec::new());
                while let Ok(n @ 1..) = out.read(&mut bytes) {
                    held.extend_from_slice(&bytes[..n]);
                    // A character may come in two pieces.
                    let whole = match std::str::from_utf8(&held) {
                        Ok(_) => held.len(),
                        Err(error) if error.error_len().is_none() => error.valid_up_to(),
                        Err(_) => held.len(),
                    };
                    let text = String::from_utf8_lossy(&held[..whole]).into_owned();
                    held.drain(..whole);
                    let _ = sender.send(Event::Story(number, StoryNews::Told(text)));
                }
            }
            says.map(|says| says.join());
            let _ = sender.send(Event::Story(number, StoryNews::Ended));
        });
        self.telling = Some(child);
        self.story = Some(Story { command, since: Some(Instant::now()), ..Story::default() });
        self.turn_to(View::Story);
    }

    fn told(&mut self, number: usize, news: StoryNews) {
        let Some(story) = self.story.as_mut().filter(|_| number == self.n_stories) else { return };
        let is_at_end = self.scroll + self.extent.1 >= self.extent.0;
        match news {
            StoryNews::Told(text) => story.told.push_str(&text),
            StoryNews::Says(line) => story.said(&line),
            StoryNews::Ended => {
                story.has_ended = true;
                if let Some(mut child) = self.telling.take() {
                    let _ = child.wait();
                }
            }
        }
        if self.view == View::Story && is_at_end {
            self.jump = Some(Jump::End);
        }
    }

    fn stop_story(&mut self) {
        self.n_stories += 1;
        self.story = None;
        if let Some(mut child) = self.telling.take() {
            runs::end(&mut child);
        }
    }
}

/// Reads the keyboard beside the rest.
fn listen(sender: Sender<Event>) {
    thread::spawn(move || {
        loop {
            let event = match crossterm::event::read() {
                Ok(Typed::Key(key)) => Event::Key(key),
                Ok(Typed::Resize(..)) => Event::Resized,
                Ok(_) => continue,
                Err(_) => Event::Gone,
            };
            let is_gone = matches!(event, Event::Gone);
            if sender.send(event).is_err() || is_gone {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cargo_says_of_its_work_is_no_part_of_a_story() {
        let mut story = Story::default();
        for line in ["   Compiling tokenizers v1.0.0", "    Finished `dev` profile", "     Running `target/x`"] {
            story.said(line);
        }
        assert_eq!((story.compiling.as_str(), story.says.as_str()), ("tokenizers", ""));
        story.said("read     5 tokens");
        story.said("thread 'main' panicked at src/../exercises/ch02_flat.rs:9:5:");
        assert_eq!(story.says, "read     5 tokens\nthread 'main' panicked at exercises/ch02_flat.rs:9:5:\n");
    }

    #[test]
    fn numbers_of_a_chapter_that_is_not_green_are_doubted() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let chapters = course::chapters(&here).unwrap();
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("exercises")).unwrap();
        for chapter in &chapters[..2] {
            std::fs::write(root.path().join(chapter.exercise()), "// mine\n").unwrap();
        }
        let first = chapters[0].clone();
        let mut app = App::new(root.path().into(), chapters, 1, Record::default(), None, Duration::from_secs(9));
        let mut says = |fingerprint: &str, green| {
            let ran = app.record.chapter_mut(&first.name);
            ran.fingerprint = fingerprint.into();
            ran.tasks.insert(1, Tally { green, of: 3 });
            app.has_bought(bought::Bought { lines: vec!["rows".into()], yours: vec![1, 1, 2] });
            app.shown.bought.clone()
        };
        let mine = crate::stub::fingerprint("// mine\n");
        assert_eq!(says(&mine, 3), ["rows"]);
        let red = "chapter 1 is red now (p goes there): its part in these numbers may be wrong";
        assert_eq!(says(&mine, 2), ["rows", red]);
        assert!(says("other", 3)[1].starts_with("chapter 1 has changed since its checks ran (p goes there)"));
        assert!(says("", 3)[1].starts_with("chapter 1 has not been checked"));
    }
}
