//! The state of the companion, and the loop that turns events into it.

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
use page_by_page_course::cargo::{Line, Process};
use page_by_page_course::chapters::Chapter;
use page_by_page_course::record::{self, Record};

use crate::book;
use crate::checking::Checking;
use crate::current::Current;
use crate::run::{Ending, News};
use crate::story::Story;
use crate::terminal::Screen;
use crate::view;
use crate::watch::Files;

/// How often the screen is drawn, and how often the files are looked at.
const BLINK: Duration = Duration::from_millis(100);

/// What fills the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Main,
    /// What this key shows.
    Shown(char),
    Hints,
    Task,
    /// The whole page.
    Page,
    /// Asks whether to reset.
    Reset,
    /// A question, and whether its answer is shown.
    Question(usize, bool),
    Story,
}

/// The served book.
#[derive(Default)]
pub struct Book {
    pub port: Option<u16>,
    served: Option<Process>,
    /// What `cargo book` is doing until the page can be opened.
    pub opening: Option<String>,
}

/// The whole state.
pub struct App {
    pub current: Current,
    pub view: View,
    /// Rows of the body above the screen; `usize::MAX` scrolls to its end.
    pub scroll: usize,
    /// Rows of the body, and the room for them, when it was drawn last.
    pub extent: (usize, usize),
    pub note: Option<String>,
    pub checking: Checking,
    pub story: Option<Story>,
    n_stories: usize,
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
    Book(book::News),
    Gains(usize, Vec<String>),
    /// The terminal is gone.
    Gone,
}

impl App {
    pub fn new(
        root: PathBuf,
        chapters: Vec<Chapter>,
        at: usize,
        limit: Duration,
        record: Record,
        note: Option<String>,
    ) -> Self {
        App {
            current: Current::new(&root, &chapters[at]),
            view: View::Main,
            scroll: 0,
            extent: (0, 0),
            note,
            checking: Checking::default(),
            story: None,
            n_stories: 0,
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
        let root = self.current.root.clone();
        let served = move || book::served(&root).map(|port| sender.send(Event::Book(book::News::Served(port))));
        thread::spawn(served);
        self.go_to(self.at);
        self.follow(&events, &mut screen, &signal)?;
        drop(screen);
        let task = self.current.task.map_or(String::new(), |task| format!(", task {task}"));
        let number = self.current.chapter.number;
        // The terminal can be gone.
        let _ = writeln!(std::io::stdout(), "Chapter {number}{task}: `cargo learn` continues there.");
        // A shell reports a program that a signal has ended like this.
        Ok(match signal.load(Ordering::Relaxed) {
            0 => ExitCode::SUCCESS,
            signal => ExitCode::from(128 + signal as u8),
        })
    }

    fn follow(&mut self, events: &Receiver<Event>, screen: &mut Screen, signal: &AtomicUsize) -> Result<()> {
        let mut files = Files::new(&self.current.root, self.chapters.iter().map(Chapter::exercise));
        let mut looked = Instant::now();
        while !self.is_over && signal.load(Ordering::Relaxed) == 0 {
            let rows = view::screen(self, screen.size());
            screen.draw(rows).context("the terminal cannot be drawn on")?;
            match events.recv_timeout(BLINK) {
                Ok(event) => self.happened(event, screen).context("the terminal cannot be drawn on")?,
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

    fn happened(&mut self, event: Event, screen: &mut Screen) -> std::io::Result<()> {
        match event {
            Event::Key(key) => self.key(key, screen)?,
            Event::Resized => screen.redraw()?,
            Event::Run(number, news) if number == self.checking.number => self.heard(news),
            Event::Gains(number, gains) if number == self.checking.number => {
                (self.checking.gains, self.checking.counting) = (gains, None);
            }
            // Of an older run.
            Event::Run(..) | Event::Gains(..) => {}
            Event::Story(number, line) => self.heard_story(number, line),
            Event::Book(news) => self.of_the_book(news),
            Event::Gone => self.is_over = true,
        }
        Ok(())
    }

    /// Opens a chapter.
    pub fn go_to(&mut self, at: usize) {
        self.at = at;
        self.current = Current::new(&self.current.root, &self.chapters[at]);
        self.stop_checking();
        self.turn_to(View::Main);
        self.keep(|current, record| record.at = Some(current.chapter.name.clone()));
        if self.current.is_started() {
            self.check(Instant::now());
        }
    }

    pub fn turn_to(&mut self, view: View) {
        if view != View::Story {
            self.story = None;
        }
        (self.view, self.scroll) = (view, 0);
    }

    /// Changes the record, in memory and on disk.
    pub fn keep(&mut self, change: impl FnOnce(&Current, &mut Record)) {
        let App { current, record, .. } = self;
        if let Err(error) = record.update(&current.root, |record| change(current, record)) {
            self.note = Some(format!("{} cannot be written ({error}), so your place is forgotten", record::FILE));
        }
    }

    /// Files of the reader that have changed.
    fn saved(&mut self, files: &[String]) {
        let Some(last) = files.last() else { return };
        let since = Instant::now();
        let mine = self.current.chapter.exercise();
        let fresh = self.current.chapter.read(&self.current.root);
        let is_same = matches!((&fresh, &self.current.exercise), (Ok(a), Ok(b)) if a.fingerprint == b.fingerprint);
        if is_same && files == [mine.clone()] {
            // It was just reset.
            return;
        }
        self.note = None;
        if !files.contains(&mine)
            && let Some(other) = self.chapters.iter().position(|chapter| chapter.exercise() == *last)
        {
            // With nothing to do here, the reader has gone on to that chapter.
            if !self.current.is_started() || self.current.is_green() {
                return self.go_to(other);
            }
            let number = self.chapters[other].number;
            self.note = Some(format!("{last} was saved; `cargo learn {number}` opens chapter {number}"));
        }
        self.read_again();
        if self.current.is_started() {
            self.check(since);
        }
    }

    /// Reads the reader's file. Results about a file that was started no longer count for one that isn't.
    pub fn read_again(&mut self) {
        self.current.exercise = self.current.chapter.read(&self.current.root);
        if self.view != View::Story {
            self.turn_to(View::Main);
        }
        if !self.current.is_started() {
            self.stop_checking();
            self.current.ending = Ending::NotRun;
        }
        if matches!(self.current.ending, Ending::NotRun) {
            self.current.task = self.current.first_left();
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
            book::News::Doing(what) => self.book.opening = self.book.opening.take().map(|_| what),
            book::News::Ended(words) => {
                self.book = Book::default();
                self.note = Some(format!("the book is no longer served: {words}"));
            }
        }
    }

    /// Opens the page at the current task. The book is served first if it isn't.
    pub fn open(&mut self) {
        if self.book.port.is_some() {
            let address = self.current.link(self.book.port);
            self.note = Some(match book::open_browser(&address) {
                true => format!("opened: {address}"),
                false => format!("no browser could be opened. Read the page here (t, then t again), or open {address}"),
            });
            return;
        }
        let (None, Some(sender)) = (&self.book.served, self.sender.clone()) else { return };
        match book::serve(&self.current.root, move |news| drop(sender.send(Event::Book(news)))) {
            Ok(served) => (self.book.served, self.book.opening) = (Some(served), Some("starting".into())),
            Err(error) => self.note = Some(format!("cargo cannot be started: {error}")),
        }
    }

    /// Runs the command of the page.
    pub fn start_story(&mut self) {
        let Some(arguments) = crate::story::arguments(&self.current.root, &self.current.chapter) else {
            self.note = Some("the page has no command for this chapter".into());
            return;
        };
        self.n_stories += 1;
        let (number, Some(sender)) = (self.n_stories, self.sender.clone()) else { return };
        let send = move |line| drop(sender.send(Event::Story(number, line)));
        match Story::start(&self.current.root, &arguments, number, send) {
            Ok(story) => {
                self.turn_to(View::Story);
                self.story = Some(story);
            }
            Err(error) => self.note = Some(format!("cargo cannot be started: {error}")),
        }
    }

    fn heard_story(&mut self, number: usize, line: Option<Line>) {
        let Some(story) = self.story.as_mut().filter(|story| story.number == number) else { return };
        story.take(line);
        // A reader at the end stays there.
        if self.scroll.saturating_add(self.extent.1) >= self.extent.0 {
            self.scroll = usize::MAX;
        }
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
                Err(_) => return drop(sender.send(Event::Gone)),
            };
            if sender.send(event).is_err() {
                return;
            }
        }
    });
}
