//! The state of the companion, and the loop that turns events into it.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use crossterm::event::{Event as Input, KeyEvent};
use page_by_page_course::cargo::{Line, Running};
use page_by_page_course::chapters::{Chapter, Exercise};
use page_by_page_course::record::Record;

use crate::book;
use crate::checking::{Checking, Gained};
use crate::current::Current;
use crate::gains::Gains;
use crate::run::News;
use crate::story::Story;
use crate::terminal::Screen;
use crate::view;
use crate::watch::Files;

/// How often the screen is drawn, and how often the files are looked at.
const BLINK: Duration = Duration::from_millis(100);

/// What fills the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum View {
    #[default]
    Main,
    Failures,
    Hints,
    Task,
    /// The whole page, opened at the current task.
    Page,
    Help,
    /// Asks whether to reset, which would lose this many lines.
    Reset(usize),
    Compare,
    /// A question, and whether its answer is shown.
    Question(usize, bool),
    Story,
}

/// Where to scroll when the screen is drawn next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jump {
    End,
    /// To the row that the view marks.
    Mark,
}

/// The served book.
#[derive(Default)]
pub struct Book {
    pub port: Option<u16>,
    served: Option<Running>,
    /// What `cargo book` is doing until the page can be opened.
    pub opening: Option<String>,
    /// The page to open then, wherever the reader is by that time: name, anchor, line.
    wanted: Option<(String, String, usize)>,
}

/// The whole state.
pub struct App {
    pub current: Current,
    pub view: View,
    pub scroll: usize,
    pub jump: Option<Jump>,
    /// Rows of the body, and the room for them, when it was drawn last.
    pub extent: (usize, usize),
    pub note: Option<String>,
    pub checking: Checking,
    /// Hints seen, by task.
    pub hints: BTreeMap<u32, usize>,
    pub story: Option<Story>,
    n_stories: usize,
    pub gained: Gained,
    pub book: Book,
    pub chapters: Vec<Chapter>,
    pub at: usize,
    pub record: Record,
    pub limit: Duration,
    pub sender: Option<Sender<Event>>,
    pub is_over: bool,
}

/// Something that the loop answers.
pub enum Event {
    Key(KeyEvent),
    Resized,
    Run(usize, News),
    Story(usize, Option<Line>),
    Port(Option<u16>),
    Book(book::News),
    /// What a chapter gains, by its name.
    Gains(String, Gains),
    /// The terminal is gone.
    Gone,
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
        let current = Current::new(&root, &chapters[at]);
        let hints = record.chapters.get(&chapters[at].name).map(|ran| ran.hints.clone()).unwrap_or_default();
        App {
            current,
            view: View::Main,
            scroll: 0,
            jump: None,
            extent: (0, 0),
            note,
            checking: Checking::default(),
            hints,
            story: None,
            n_stories: 0,
            gained: Gained::default(),
            book: Book::default(),
            chapters,
            at,
            record,
            limit,
            sender: None,
            is_over: false,
        }
    }

    /// Takes over the terminal and stays until the reader quits.
    pub fn run(mut self) -> Result<ExitCode> {
        let (sender, events) = channel();
        self.sender = Some(sender.clone());
        let signal = Arc::new(AtomicUsize::new(0));
        #[cfg(unix)]
        for number in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP, signal_hook::consts::SIGINT] {
            signal_hook::flag::register_usize(number, signal.clone(), number as usize)
                .context("signals cannot be watched for")?;
        }
        let mut screen =
            Screen::take().context("the terminal cannot be drawn on; `cargo learn --once` prints plain lines")?;
        listen(sender.clone());
        let files = Files::new(&self.current.root, self.chapters.iter().map(Chapter::exercise));
        let root = self.current.root.clone();
        thread::spawn(move || sender.send(Event::Port(book::served(&root))));
        self.go_to(self.at);
        self.follow(&events, files, &mut screen, &signal)?;
        self.stop_story();
        drop(screen);
        let task = self.current.current_task().map_or(String::new(), |task| format!(", task {task}"));
        let number = self.current.chapter.number;
        // The terminal can be gone.
        let _ = writeln!(std::io::stdout(), "Chapter {number}{task}: `cargo learn` continues there.");
        // A shell reports a program that a signal has ended like this.
        let code = match signal.load(Ordering::Relaxed) {
            0 => 0,
            signal => 128 + signal,
        };
        Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
    }

    fn follow(
        &mut self,
        events: &Receiver<Event>,
        mut files: Files,
        screen: &mut Screen,
        signal: &AtomicUsize,
    ) -> Result<()> {
        let mut looked = Instant::now();
        while !self.is_over && signal.load(Ordering::Relaxed) == 0 {
            screen.draw(|frame| view::draw(self, frame)).context("the terminal cannot be drawn on")?;
            match events.recv_timeout(BLINK) {
                Ok(event) => self.happened(event, screen)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if looked.elapsed() >= BLINK {
                self.saved(&files.changed());
                looked = Instant::now();
            }
        }
        Ok(())
    }

    fn happened(&mut self, event: Event, screen: &mut Screen) -> Result<()> {
        match event {
            Event::Key(key) => self.key(key, screen)?,
            Event::Resized => screen.redraw()?,
            Event::Run(number, news) if number == self.checking.number => self.heard(news),
            Event::Run(..) => {}
            Event::Story(number, line) => self.heard_story(number, line),
            Event::Port(port) => self.book.port = self.book.port.or(port),
            Event::Book(news) => self.of_the_book(news),
            Event::Gains(name, gains) if name == self.current.chapter.name => self.has_gained(gains),
            Event::Gains(..) => {}
            Event::Gone => self.is_over = true,
        }
        Ok(())
    }

    /// Opens a chapter.
    pub fn go_to(&mut self, at: usize) {
        self.stop_checking();
        self.gained = Gained::default();
        self.at = at;
        let is_first = self.record.chapters.values().all(|ran| ran.fingerprint.is_empty());
        self.current = Current { is_first, ..Current::new(&self.current.root, &self.chapters[at]) };
        self.turn_to(View::Main);
        let name = self.current.chapter.name.clone();
        self.keep(|record| record.at = Some(name));
        let ran = self.record.chapters.get(&self.current.chapter.name);
        self.hints = ran.map(|ran| ran.hints.clone()).unwrap_or_default();
        if self.current.is_started() {
            let tasks = ran.iter().flat_map(|ran| &ran.tasks);
            self.current.done = tasks.filter(|(_, tally)| tally.green == tally.of).map(|(task, _)| *task).collect();
            self.check(Instant::now());
        }
    }

    pub fn turn_to(&mut self, view: View) {
        self.view = view;
        (self.scroll, self.jump) = (0, None);
    }

    /// Changes the record, in memory and on disk.
    pub fn keep(&mut self, change: impl FnOnce(&mut Record)) {
        match Record::update(&self.current.root, change) {
            Ok(record) => self.record = record,
            Err(error) => {
                let file = page_by_page_course::record::FILE;
                self.note = Some(format!("{file} cannot be written ({error}), so your place is forgotten"));
            }
        }
    }

    /// Files of the reader that have changed.
    fn saved(&mut self, files: &[String]) {
        let Some(last) = files.last() else { return };
        let since = Instant::now();
        let mine = self.current.chapter.exercise();
        let fingerprint = |exercise: &Result<Exercise, String>| exercise.as_ref().ok().map(|e| e.fingerprint.clone());
        let fresh = self.current.chapter.read(&self.current.root);
        if files == [mine.clone()]
            && fingerprint(&fresh).is_some()
            && fingerprint(&fresh) == fingerprint(&self.current.exercise)
        {
            // It was just reset, or is as it was.
            return;
        }
        self.note = None;
        if !files.contains(&mine) {
            let other = self.chapters.iter().position(|chapter| chapter.exercise() == *last);
            let is_idle = !self.current.is_started() || self.current.is_green();
            match other {
                // With nothing to do here, the reader has gone on to that chapter.
                Some(other) if is_idle => return self.go_to(other),
                Some(other) => {
                    let number = self.chapters[other].number;
                    self.note = Some(format!("{last} was saved; `cargo learn {number}` opens chapter {number}"));
                }
                None => {}
            }
        }
        self.current.exercise = fresh;
        if self.view != View::Story {
            self.turn_to(View::Main);
        }
        match self.current.is_started() {
            true => self.check(since),
            false => {
                self.stop_checking();
                self.current.forget();
            }
        }
    }

    fn of_the_book(&mut self, news: book::News) {
        match news {
            book::News::Served(port) => {
                self.book.port = Some(port);
                if self.book.opening.take().is_some() {
                    self.open();
                }
            }
            book::News::Doing(what) if self.book.opening.is_some() => self.book.opening = Some(what),
            book::News::Doing(_) => {}
            book::News::Ended(words) if self.book.served.is_some() => {
                self.book = Book::default();
                self.note = Some(format!("the book is no longer served: {words}"));
            }
            book::News::Ended(_) => {}
        }
    }

    /// Opens the page at the current task. The book is served first if it isn't.
    pub fn open(&mut self) {
        let (anchor, line) = self.current.place_in_page();
        let here = (self.current.chapter.name.clone(), anchor, line);
        if self.book.port.is_some() {
            let (name, anchor, line) = self.book.wanted.take().unwrap_or(here);
            let address = book::link(&self.current.root, self.book.port, &name, &anchor, line);
            self.note = Some(match book::open_browser(&address) {
                true => format!("opened: {address}"),
                false => format!(
                    "no browser could be opened. Read the page here (t, then t again), in book/src/{name}.md:{line}, or open \
                     {address}"
                ),
            });
            return;
        }
        self.book.wanted = Some(here);
        if self.book.served.is_some() {
            return;
        }
        let Some(sender) = self.sender.clone() else { return };
        match book::serve(&self.current.root, move |news| drop(sender.send(Event::Book(news)))) {
            Ok(served) => (self.book.served, self.book.opening) = (Some(served), Some(String::new())),
            Err(problem) => self.note = Some(problem),
        }
    }

    /// Runs the command of the page.
    pub fn start_story(&mut self) {
        let Some(arguments) = crate::story::arguments(&self.current.root, &self.current.chapter) else {
            self.note = Some("the page has no command for this chapter".into());
            return;
        };
        self.stop_story();
        let (number, Some(sender)) = (self.n_stories, self.sender.clone()) else { return };
        match Story::start(&self.current.root, &arguments, move |line| drop(sender.send(Event::Story(number, line)))) {
            Ok(story) => self.story = Some(story),
            Err(error) => self.note = Some(format!("cargo cannot be started: {error}")),
        }
        if self.story.is_some() {
            self.turn_to(View::Story);
        }
    }

    fn heard_story(&mut self, number: usize, line: Option<Line>) {
        let Some(story) = self.story.as_mut().filter(|_| number == self.n_stories) else { return };
        let is_at_end = self.scroll + self.extent.1 >= self.extent.0;
        story.take(line);
        if self.view == View::Story && is_at_end {
            self.jump = Some(Jump::End);
        }
    }

    pub fn stop_story(&mut self) {
        self.n_stories += 1;
        self.story = None;
    }
}

/// Reads the keyboard in a thread of its own.
fn listen(sender: Sender<Event>) {
    thread::spawn(move || {
        loop {
            let event = match crossterm::event::read() {
                Ok(Input::Key(key)) => Event::Key(key),
                Ok(Input::Resize(..)) => Event::Resized,
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
