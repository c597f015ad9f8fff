//! The rendered book: whether this clone's is served, and serving it.

use std::io;
use std::path::Path;
use std::sync::mpsc::TryRecvError;

use page_by_page_course::cargo::{self, Environment, Process, Streams};
use page_by_page_course::served;

#[derive(Default)]
pub struct Book {
    pub port: Option<u16>,
    /// Whether the page is to be opened as soon as the book is served.
    pub is_opening: bool,
    /// What `cargo book` said last.
    pub last_line: String,
    server: Option<Process>,
}

impl Book {
    /// Looks for a server of this clone's book that somebody else has started.
    pub fn look(&mut self, root: &Path) {
        if self.server.is_none() {
            self.port = served::port(root);
        }
    }

    /// Starts `cargo book`, unless it has been. It ends when this is dropped.
    pub fn serve(&mut self, root: &Path) -> io::Result<()> {
        if self.server.is_none() {
            let mut cargo = cargo::cargo(root, Environment::Shell);
            cargo.args(["run", "--package", "book-tool", "--", "--no-open"]);
            self.server = Some(cargo::start(cargo, Streams::Apart)?);
            (self.is_opening, self.last_line) = (true, "starting".into());
        }
        Ok(())
    }

    /// Reads what came since the last call. Returns the last line of a server that has ended.
    pub fn update(&mut self, root: &Path) -> Option<String> {
        loop {
            match self.server.as_ref()?.lines.try_recv() {
                Ok(line) => {
                    self.port = served::port(root);
                    self.last_line = line.text.trim().into();
                }
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => return Some(std::mem::take(self).last_line),
            }
        }
    }
}
