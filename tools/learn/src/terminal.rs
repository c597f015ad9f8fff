//! The terminal: taken over whole, drawn row by row, and given back as it was, whatever happens.

use std::io::{self, IsTerminal, Write};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::style::{Attribute, Color, Print, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    self, Clear, ClearType, DisableLineWrap, EnableLineWrap, EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{execute, queue};

use crate::text::{Colour, Line, Style};

/// Whether the screen is ours.
static IS_OURS: AtomicBool = AtomicBool::new(false);

/// Whether somebody sits at a terminal that can be drawn on.
pub fn is_there() -> bool {
    let is_dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
    io::stdin().is_terminal() && io::stdout().is_terminal() && !is_dumb
}

/// Whether colours are wanted: see https://no-color.org.
fn has_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Whether the terminal is one of those that are known to follow links; in others their signs could be seen.
fn follows_links() -> bool {
    let has = |name: &str| std::env::var_os(name).is_some();
    let program = std::env::var("TERM_PROGRAM").unwrap_or_default();
    let is_new_vte = std::env::var("VTE_VERSION").is_ok_and(|version| version.parse::<u32>().is_ok_and(|n| n >= 5000));
    let is_known = ["iTerm.app", "WezTerm", "vscode", "ghostty", "zed"].contains(&program.as_str());
    !has("TMUX") && !has("STY") && (is_known || is_new_vte || has("KITTY_WINDOW_ID") || has("WT_SESSION"))
}

/// The screen while it is ours; given back when this is dropped.
pub struct Terminal {
    /// The rows that are on the screen.
    shown: Vec<Line>,
    has_colours: bool,
    follows_links: bool,
}

impl Terminal {
    pub fn take() -> io::Result<Self> {
        static HOOK: std::sync::Once = std::sync::Once::new();
        HOOK.call_once(|| {
            let usual = panic::take_hook();
            let main = thread::current().id();
            panic::set_hook(Box::new(move |panic| {
                give_back();
                usual(panic);
                // Nobody would notice that a thread beside the screen is gone.
                if thread::current().id() != main {
                    std::process::exit(101);
                }
            }));
        });
        let terminal = Terminal { shown: Vec::new(), has_colours: has_colours(), follows_links: follows_links() };
        enter()?;
        Ok(terminal)
    }

    /// Gives the screen back and stops, until the shell says to go on.
    #[cfg(unix)]
    pub fn suspend(&mut self) -> io::Result<()> {
        give_back();
        signal_hook::low_level::raise(signal_hook::consts::SIGSTOP)?;
        self.shown.clear();
        enter()
    }

    #[cfg(not(unix))]
    pub fn suspend(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Columns and rows.
    pub fn size(&self) -> (usize, usize) {
        let (columns, rows) = terminal::size().unwrap_or((80, 24));
        (usize::from(columns), usize::from(rows))
    }

    /// Draws all rows anew.
    pub fn forget(&mut self) {
        self.shown.clear();
    }

    /// Draws what is not there yet.
    pub fn draw(&mut self, rows: Vec<Line>, columns: usize) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.shown.len() != rows.len() {
            queue!(out, Clear(ClearType::All))?;
            self.shown.clear();
        }
        for (y, row) in rows.iter().enumerate().filter(|(y, row)| self.shown.get(*y) != Some(*row)) {
            queue!(out, MoveTo(0, u16::try_from(y).unwrap_or(u16::MAX)))?;
            let link = row.link.as_ref().filter(|_| self.follows_links);
            if let Some(link) = link {
                queue!(out, Print(format!("\x1b]8;;{link}\x1b\\")))?;
            }
            for (text, style) in &row.pieces {
                self.set(&mut out, style)?;
                queue!(out, Print(text))?;
            }
            if link.is_some() {
                queue!(out, Print("\x1b]8;;\x1b\\"))?;
            }
            queue!(out, SetAttribute(Attribute::Reset))?;
            // Behind a row that is full, the cursor still stands on its last character.
            if row.width() < columns {
                queue!(out, Clear(ClearType::UntilNewLine))?;
            }
        }
        out.flush()?;
        self.shown = rows;
        Ok(())
    }

    fn set(&self, out: &mut impl Write, style: &Style) -> io::Result<()> {
        queue!(out, SetAttribute(Attribute::Reset))?;
        let attributes = [
            (style.bold, Attribute::Bold),
            (style.dim, Attribute::Dim),
            (style.italic, Attribute::Italic),
            (style.underlined, Attribute::Underlined),
            (style.reversed, Attribute::Reverse),
        ];
        for (_, attribute) in attributes.into_iter().filter(|(is_set, _)| *is_set) {
            queue!(out, SetAttribute(attribute))?;
        }
        let colour = match style.colour {
            Colour::Plain => return Ok(()),
            Colour::Red => Color::DarkRed,
            Colour::Green => Color::DarkGreen,
            Colour::Yellow => Color::DarkYellow,
            Colour::Blue => Color::DarkBlue,
            Colour::Magenta => Color::DarkMagenta,
            Colour::Cyan => Color::DarkCyan,
            Colour::Grey => Color::DarkGrey,
        };
        if self.has_colours { queue!(out, SetForegroundColor(colour)) } else { Ok(()) }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

fn enter() -> io::Result<()> {
    IS_OURS.store(true, Ordering::SeqCst);
    let taken = terminal::enable_raw_mode()
        .and_then(|()| execute!(io::stdout(), EnterAlternateScreen, DisableLineWrap, Hide, Clear(ClearType::All)));
    if taken.is_err() {
        give_back();
    }
    taken
}

/// Gives the screen back, once.
fn give_back() {
    if IS_OURS.swap(false, Ordering::SeqCst) {
        // There is nobody left to tell.
        let _ = execute!(io::stdout(), SetAttribute(Attribute::Reset), EnableLineWrap, Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}
