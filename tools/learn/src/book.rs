//! The rendered book: whether this clone's is served, serving it, and the browser.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::TryRecvError;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use page_by_page_course::cargo::{self, Environment, Process, Streams};
use page_by_page_course::chapters::clone_id;

/// The ports that `cargo book` tries, in order.
const PORTS: std::ops::RangeInclusive<u16> = 3000..=3020;

/// The longest that another program on this computer may take to answer.
const ANSWER: Duration = Duration::from_millis(300);

/// The port on which the book of this clone is served already.
fn served(root: &Path) -> Option<u16> {
    let id = clone_id(root);
    PORTS.into_iter().find(|port| clone_of(*port).is_some_and(|answer| is_clone(&answer, &id)))
}

/// The answer on this port to the question whose book it is.
fn clone_of(port: u16) -> Option<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, ANSWER).ok()?;
    stream.set_read_timeout(Some(ANSWER)).ok()?;
    stream.set_write_timeout(Some(ANSWER)).ok()?;
    write!(stream, "GET /.clone HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    // A server that keeps the connection open has answered all the same.
    let _ = stream.take(2000).read_to_end(&mut answer);
    Some(String::from_utf8_lossy(&answer).into_owned())
}

fn is_clone(answer: &str, id: &str) -> bool {
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body.trim());
    answer.starts_with("HTTP/1.1 200") && body == id
}

/// The served book.
#[derive(Default)]
pub struct Book {
    pub port: Option<u16>,
    /// Whether the page is to be opened as soon as the book is served.
    pub is_opening: bool,
    /// What `cargo book` said last.
    pub last_line: String,
    /// Looks for a server of this clone that runs already.
    search: Option<JoinHandle<Option<u16>>>,
    server: Option<Process>,
}

impl Book {
    /// Begins to look for a book of this clone that is served already.
    pub fn search(root: PathBuf) -> Self {
        Book { search: Some(thread::spawn(move || served(&root))), ..Book::default() }
    }

    /// Starts `cargo book`, unless it has been. It ends when this is dropped.
    ///
    /// # Errors
    /// If cargo can't be started.
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
    pub fn update(&mut self) -> Option<String> {
        if let Some(search) = self.search.take_if(|search| search.is_finished()) {
            self.port = self.port.or(search.join().ok().flatten());
        }
        loop {
            match self.server.as_ref()?.lines.try_recv() {
                Ok(line) => {
                    self.port = port_of(&line.text).or(self.port);
                    self.last_line = line.text.trim().into();
                }
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => return Some(std::mem::take(self).last_line),
            }
        }
    }
}

/// `Page by Page is at http://127.0.0.1:3000/ (Ctrl-C stops)` → 3000
fn port_of(line: &str) -> Option<u16> {
    line.split_once("http://127.0.0.1:")?.1.split('/').next()?.parse().ok()
}

/// Opens an address in the browser; false where there is no screen for one.
pub fn open_browser(address: &str) -> bool {
    let has = |variable| std::env::var_os(variable).is_some();
    let may_have_screen =
        cfg!(not(target_os = "linux")) || has("DISPLAY") || has("WAYLAND_DISPLAY") || has("WSL_DISTRO_NAME");
    may_have_screen && open::that_detached(address).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_book_of_this_clone_is_taken_for_it() {
        let id = clone_id(Path::new("."));
        assert!(is_clone(&format!("HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n{id}"), &id));
        let other = format!("HTTP/1.1 200 OK\r\n\r\n{}", clone_id(Path::new("/")));
        for other in ["", "HTTP/1.1 404 x\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n123", "HTTP/1.1 200 OK\r\n\r\n", &other] {
            assert!(!is_clone(other, &id), "{other}");
        }
        assert_eq!(port_of("Page by Page is at http://127.0.0.1:3001/ (Ctrl-C stops)"), Some(3001));
        assert_eq!(port_of("Port 3000 is taken; using 3001"), None);
    }
}
