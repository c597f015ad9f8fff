//! The terminal: taken over as a whole, and restored however the program ends.

use std::io::{self, IsTerminal, Write};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::style::{Attribute, PrintStyledContent, SetAttribute};
use crossterm::terminal::{
    self, Clear, ClearType, DisableLineWrap, EnableLineWrap, EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{execute, queue};

use crate::text::Paragraph;

static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Whether input and output are a terminal that can be drawn on.
pub fn is_there() -> bool {
    let is_dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
    io::stdin().is_terminal() && io::stdout().is_terminal() && !is_dumb
}

/// The screen while it is taken over, with the rows that it shows; restored when this is dropped.
pub struct Screen(Vec<Paragraph>);

impl Screen {
    pub fn take() -> io::Result<Self> {
        let usual = panic::take_hook();
        let main = thread::current().id();
        panic::set_hook(Box::new(move |panic| {
            restore();
            usual(panic);
            // The main thread unwinds; any other would leave the program half dead.
            if thread::current().id() != main {
                std::process::exit(101);
            }
        }));
        enter()?;
        Ok(Screen(Vec::new()))
    }

    /// Restores the screen and stops until the shell continues this program.
    pub fn suspend(&mut self) -> io::Result<()> {
        #[cfg(unix)]
        {
            restore();
            signal_hook::low_level::raise(signal_hook::consts::SIGSTOP)?;
            enter()?;
            self.redraw()?;
        }
        Ok(())
    }

    /// Forgets what is on the screen, so that all of it is drawn next.
    pub fn redraw(&mut self) -> io::Result<()> {
        self.0.clear();
        execute!(io::stdout(), Clear(ClearType::All))
    }

    pub fn size(&self) -> (usize, usize) {
        let (columns, rows) = terminal::size().unwrap_or((80, 24));
        (columns.into(), rows.into())
    }

    /// Draws the rows that have changed. crossterm leaves out colours when `NO_COLOR` is set.
    pub fn draw(&mut self, rows: Vec<Paragraph>) -> io::Result<()> {
        let mut out = io::stdout().lock();
        for (y, row) in rows.iter().enumerate().filter(|(y, row)| self.0.get(*y) != Some(*row)) {
            queue!(out, MoveTo(0, y as u16), Clear(ClearType::CurrentLine))?;
            for (text, style) in &row.spans {
                queue!(out, PrintStyledContent(style.apply(text)))?;
            }
        }
        self.0 = rows;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn enter() -> io::Result<()> {
    IS_TAKEN.store(true, Ordering::SeqCst);
    let taken = terminal::enable_raw_mode()
        .and_then(|()| execute!(io::stdout(), EnterAlternateScreen, DisableLineWrap, Hide, Clear(ClearType::All)));
    if taken.is_err() {
        restore();
    }
    taken
}

fn restore() {
    if IS_TAKEN.swap(false, Ordering::SeqCst) {
        // If the terminal is gone there is nothing left to restore.
        let _ = execute!(io::stdout(), SetAttribute(Attribute::Reset), EnableLineWrap, Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}
