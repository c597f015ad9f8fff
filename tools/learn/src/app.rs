//! The state of the companion, and its loop.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use crossterm::event::Event;
use page_by_page_course::chapters::Chapter;
use page_by_page_course::record::{self, Record};
use page_by_page_course::served;
use page_by_page_course::watch::Watch;

use crate::book::Book;
use crate::checking::Checking;
use crate::current::Current;
use crate::program::{self, Program};
use crate::run::RunResult;
use crate::terminal::Screen;
use crate::view;

/// How often the screen is drawn, and how often the files are looked at.
const TICK: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Main,
    Overlay(char),
    Hints,
    Task,
    Page,
    Reset,
    /// A question, and whether its answer is shown.
    Question(usize, bool),
    Program,
}

pub struct App {
    pub current: Current,
    pub view: View,
    /// Rows of the body above the screen; `usize::MAX` scrolls to its end.
    pub scroll: usize,
    /// Rows of the body, and the room for them, when it was drawn last.
    pub extent: (usize, usize),
    pub note: Option<String>,
    pub checking: Checking,
    pub program: Option<Program>,
    pub book: Book,
    pub chapters: Vec<Chapter>,
    pub at: usize,
    pub record: Record,
    pub time_limit: Duration,
    pub is_over: bool,
}

impl App {
    pub fn new(root: PathBuf, chapters: Vec<Chapter>, at: usize, time_limit: Duration, record: Record) -> Self {
        App {
            current: Current::new(&root, &chapters[at]),
            view: View::Main,
            scroll: 0,
            extent: (0, 0),
            note: None,
            checking: Checking::default(),
            program: None,
            book: Book::default(),
            chapters,
            at,
            record,
            time_limit,
            is_over: false,
        }
    }

    /// Takes over the terminal and stays until the reader quits.
    pub fn run(mut self) -> Result<ExitCode> {
        let signal = Arc::new(AtomicUsize::new(0));
        #[cfg(unix)]
        for number in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP, signal_hook::consts::SIGINT] {
            signal_hook::flag::register_usize(number, signal.clone(), number as usize)
                .context("signals cannot be watched for")?;
        }
        let mut screen =
            Screen::take().context("the terminal cannot be drawn on; `cargo learn --once` prints plain lines")?;
        self.book.look(&self.current.root);
        self.open_chapter(self.at);
        self.run_loop(&mut screen, &signal).context("the terminal cannot be drawn on")?;
        drop(screen);
        let task = self.current.task.map_or(String::new(), |task| format!(", task {task}"));
        let number = self.current.chapter.number;
        // The terminal can be gone.
        let _ = writeln!(io::stdout(), "Chapter {number}{task}: `cargo learn` continues there.");
        // A shell reports a program that a signal has ended like this.
        Ok(match signal.load(Ordering::Relaxed) {
            0 => ExitCode::SUCCESS,
            signal => ExitCode::from(128 + signal as u8),
        })
    }

    fn run_loop(&mut self, screen: &mut Screen, signal: &AtomicUsize) -> io::Result<()> {
        let input = input();
        let exercises: Vec<String> = self.chapters.iter().map(Chapter::exercise).collect();
        let root = self.current.root.clone();
        let text = |name: &String| Some((name.clone(), fs::read(root.join(name)).ok()?));
        let mut files = Watch::start(|| exercises.iter().filter_map(text).collect());
        let mut last_look = Instant::now();
        while !self.is_over && signal.load(Ordering::Relaxed) == 0 {
            screen.draw(view::screen(self, screen.size()))?;
            match input.recv_timeout(TICK) {
                Ok(Event::Key(key)) => self.key(key, screen)?,
                Ok(Event::Resize(..)) => screen.redraw()?,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.update_checking();
            self.update_program();
            self.update_book();
            if last_look.elapsed() >= TICK {
                self.files_saved(&files.changed());
                last_look = Instant::now();
            }
        }
        Ok(())
    }

    pub fn open_chapter(&mut self, at: usize) {
        self.at = at;
        self.current = Current::new(&self.current.root, &self.chapters[at]);
        self.checking = Checking::default();
        self.show(View::Main);
        self.record(|current, record| record.at = Some(current.chapter.name.clone()));
        self.check(Instant::now());
    }

    pub fn show(&mut self, view: View) {
        if view != View::Program {
            self.program = None;
        }
        (self.view, self.scroll) = (view, 0);
    }

    /// Changes the record, in memory and on disk.
    pub fn record(&mut self, change: impl FnOnce(&Current, &mut Record)) {
        let App { current, record, .. } = self;
        if let Err(error) = record.update(&current.root, |record| change(current, record)) {
            self.note = Some(format!("{} cannot be written ({error}), so your place is forgotten", record::FILE));
        }
    }

    fn files_saved(&mut self, files: &[String]) {
        let Some(last) = files.last() else { return };
        let saved = Instant::now();
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
                return self.open_chapter(other);
            }
            let number = self.chapters[other].number;
            self.note = Some(format!("{last} was saved; `cargo learn {number}` opens chapter {number}"));
        }
        self.read_exercise();
        self.check(saved);
    }

    /// Reads the reader's file. Results about a file that was started no longer count for one that isn't.
    pub fn read_exercise(&mut self) {
        self.current.exercise = self.current.chapter.read(&self.current.root);
        if self.view != View::Program {
            self.show(View::Main);
        }
        if !self.current.is_started() {
            self.checking = Checking::default();
            self.current.result = RunResult::NotRun;
        }
        if matches!(self.current.result, RunResult::NotRun) {
            self.current.task = self.current.first_left();
        }
    }

    fn update_book(&mut self) {
        if let Some(last_line) = self.book.update(&self.current.root) {
            self.note = Some(format!("the book is no longer served: {last_line}"));
        }
        if self.book.is_opening && self.book.port.is_some() {
            self.book.is_opening = false;
            self.open_page();
        }
    }

    /// Opens the page at the current task. The book is served first if it isn't.
    pub fn open_page(&mut self) {
        self.book.look(&self.current.root);
        if self.book.port.is_some() {
            let address = self.current.link(self.book.port);
            self.note = Some(match served::open_browser(&address) {
                true => format!("opened: {address}"),
                false => format!("no browser could be opened. Read the page here (t, then t again), or open {address}"),
            });
        } else if let Err(error) = self.book.serve(&self.current.root) {
            self.note = Some(format!("cargo cannot be started: {error}"));
        }
    }

    pub fn start_program(&mut self) {
        let Some(arguments) = program::arguments(&self.current.root, &self.current.chapter) else {
            self.note = Some("the page has no command for this chapter".into());
            return;
        };
        match Program::start(&self.current.root, &arguments) {
            Ok(program) => {
                self.show(View::Program);
                self.program = Some(program);
            }
            Err(error) => self.note = Some(format!("cargo cannot be started: {error}")),
        }
    }

    fn update_program(&mut self) {
        if let Some(program) = &mut self.program
            && !program.has_ended
        {
            program.update();
            // A reader at the end stays there.
            if self.scroll.saturating_add(self.extent.1) >= self.extent.0 {
                self.scroll = usize::MAX;
            }
        }
    }
}

/// Reads the keyboard in a thread of its own, because reading doesn't return once the terminal is gone.
fn input() -> Receiver<Event> {
    let (sender, input) = channel();
    thread::spawn(move || {
        while let Ok(event) = crossterm::event::read()
            && sender.send(event).is_ok()
        {}
    });
    input
}
