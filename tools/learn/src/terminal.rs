//! The terminal: taken over as a whole, drawn by ratatui, and restored however the program ends.
//!
//! ratatui's own backend for crossterm is a crate whose macros would build another parser of Rust, 15 seconds of processor
//! time before the first screen. The part of it that is needed here is short.

use std::io::{self, IsTerminal, Write};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::style::{Attribute, Color as Shade, Print, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    self, Clear, ClearType as Part, DisableLineWrap, EnableLineWrap, EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{execute, queue};
use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier};
use ratatui_core::terminal::Terminal;

/// Whether the screen is taken over.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Whether input and output are a terminal that can be drawn on.
pub fn is_there() -> bool {
    let is_dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
    io::stdin().is_terminal() && io::stdout().is_terminal() && !is_dumb
}

/// The screen while it is taken over; restored when this is dropped.
pub struct Screen(Terminal<Crossterm>);

impl Screen {
    pub fn take() -> io::Result<Self> {
        static HOOK: std::sync::Once = std::sync::Once::new();
        HOOK.call_once(|| {
            let usual = panic::take_hook();
            let main = thread::current().id();
            panic::set_hook(Box::new(move |panic| {
                restore();
                usual(panic);
                // The main thread unwinds; without another one the program would go on half dead.
                if thread::current().id() != main {
                    std::process::exit(101);
                }
            }));
        });
        enter()?;
        Ok(Screen(Terminal::new(Crossterm)?))
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
        self.0.clear()
    }

    pub fn draw(&mut self, draw: impl FnOnce(&mut ratatui_core::terminal::Frame<'_>)) -> io::Result<()> {
        self.0.draw(draw).map(drop)
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
        .and_then(|()| execute!(io::stdout(), EnterAlternateScreen, DisableLineWrap, Hide, Clear(Part::All)));
    if taken.is_err() {
        restore();
    }
    taken
}

/// Restores the screen, once.
fn restore() {
    if IS_TAKEN.swap(false, Ordering::SeqCst) {
        // If the terminal is gone there is nothing left to restore.
        let _ = execute!(io::stdout(), SetAttribute(Attribute::Reset), EnableLineWrap, Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

/// ratatui's cells on the standard output. crossterm leaves out colours when `NO_COLOR` is set.
struct Crossterm;

const ATTRIBUTES: [(Modifier, Attribute); 4] = [
    (Modifier::BOLD, Attribute::Bold),
    (Modifier::DIM, Attribute::Dim),
    (Modifier::ITALIC, Attribute::Italic),
    (Modifier::UNDERLINED, Attribute::Underlined),
];

/// The shade of a colour that is readable on light and on dark.
fn shade(colour: Color) -> Option<Shade> {
    Some(match colour {
        Color::Red => Shade::DarkRed,
        Color::Green => Shade::DarkGreen,
        Color::Yellow => Shade::DarkYellow,
        Color::Blue => Shade::DarkBlue,
        Color::Magenta => Shade::DarkMagenta,
        Color::Cyan => Shade::DarkCyan,
        Color::DarkGray => Shade::DarkGrey,
        _ => return None,
    })
}

impl Backend for Crossterm {
    type Error = io::Error;

    fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, cells: I) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let (mut next, mut style) = (None, None);
        for (x, y, cell) in cells {
            if next != Some((x, y)) {
                queue!(out, MoveTo(x, y))?;
            }
            next = Some((x + 1, y));
            if style != Some((cell.fg, cell.modifier)) {
                queue!(out, SetAttribute(Attribute::Reset))?;
                for (_, attribute) in ATTRIBUTES.iter().filter(|(modifier, _)| cell.modifier.contains(*modifier)) {
                    queue!(out, SetAttribute(*attribute))?;
                }
                if let Some(shade) = shade(cell.fg) {
                    queue!(out, SetForegroundColor(shade))?;
                }
                style = Some((cell.fg, cell.modifier));
            }
            queue!(out, Print(cell.symbol()))?;
        }
        queue!(out, SetAttribute(Attribute::Reset))
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        execute!(io::stdout(), Hide)
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        execute!(io::stdout(), Show)
    }

    // To ask the terminal would take its answer from the keyboard's input, and nothing here is drawn at the cursor.
    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        execute!(io::stdout(), MoveTo(x, y))
    }

    fn clear(&mut self) -> io::Result<()> {
        execute!(io::stdout(), Clear(Part::All))
    }

    fn clear_region(&mut self, _: ClearType) -> io::Result<()> {
        self.clear()
    }

    fn size(&self) -> io::Result<Size> {
        let (columns, rows) = terminal::size().unwrap_or((80, 24));
        Ok(Size::new(columns, rows))
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}
