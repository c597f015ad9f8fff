//! The book beside the terminal: whether it is served, where a chapter's page is, and the browser.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::Duration;

use crate::runs;

/// Where `cargo book` begins to look for a port, and how many it tries after that.
const PORT: u16 = 3000;
const MORE_PORTS: u16 = 20;

/// How long another program on this computer may take to answer.
const PATIENCE: Duration = Duration::from_millis(300);

/// The port on which the book is served already.
pub fn served() -> Option<u16> {
    (PORT..=PORT + MORE_PORTS).find(|port| is_book(*port))
}

/// Whether it is the book that answers: no other program knows `/.edition`.
fn is_book(port: u16) -> bool {
    let ask = || -> Option<String> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.set_write_timeout(Some(PATIENCE)).ok()?;
        write!(stream, "GET /.edition HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.take(1000).read_to_string(&mut answer).ok()?;
        Some(answer)
    };
    ask().is_some_and(|answer| is_edition(&answer))
}

fn is_edition(answer: &str) -> bool {
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body.trim());
    answer.starts_with("HTTP/1.1 200") && !body.is_empty() && body.bytes().all(|byte| byte.is_ascii_digit())
}

/// Where a section of a chapter's page is: in the book that is served, else in the one that was rendered, else in its source.
pub fn link(root: &Path, port: Option<u16>, name: &str, anchor: &str, line: usize) -> String {
    let rendered = root.join("book/html").join(format!("{name}.html"));
    match port {
        // The same host that `cargo book` opens: the browser keeps the ticks by host.
        Some(port) => format!("http://127.0.0.1:{port}/{name}.html#{anchor}"),
        None if rendered.is_file() => format!("{}#{anchor}", file_url(&rendered)),
        None => format!("book/src/{name}.md:{line}"),
    }
}

fn file_url(file: &Path) -> String {
    let path = file.to_string_lossy().replace('\\', "/");
    let path = path.replace('%', "%25").replace(' ', "%20").replace('#', "%23").replace('?', "%3F");
    format!("file://{}{path}", if path.starts_with('/') { "" } else { "/" })
}

/// What the book that was started says.
#[derive(Debug)]
pub enum News {
    /// What it is doing.
    Doing(String),
    Served(u16),
    /// It has ended, with these words.
    Ended(String),
}

/// The book, served for as long as this lives.
pub struct Served(Child);

impl Served {
    /// Starts `cargo book`; tells how it goes.
    ///
    /// # Errors
    /// If cargo cannot be started.
    pub fn start(root: &Path, tell: impl Fn(News) + Clone + Send + 'static) -> Result<Self, String> {
        let mut cargo = runs::cargo(root);
        cargo.args(["run", "--package", "book-tool", "--", "--no-open"]);
        let mut child = cargo.spawn().map_err(|error| format!("cargo cannot be started: {error}"))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        if let Some(out) = out {
            let tell = tell.clone();
            thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    if let Some(port) = port_of(&line) {
                        tell(News::Served(port));
                    }
                }
            });
        }
        if let Some(err) = err {
            thread::spawn(move || {
                let mut last = String::new();
                for line in BufReader::new(err).lines().map_while(Result::ok) {
                    last = line.trim().to_string();
                    tell(News::Doing(last.clone()));
                }
                tell(News::Ended(last));
            });
        }
        Ok(Served(child))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        runs::end(&mut self.0);
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
    fn only_the_book_is_taken_for_the_book() {
        assert!(is_edition("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n123"));
        for other in ["", "HTTP/1.1 404 x\r\n\r\n123", "HTTP/1.1 200 OK\r\n\r\n<html>", "HTTP/1.1 200 OK\r\n\r\n"] {
            assert!(!is_edition(other), "{other}");
        }
        assert_eq!(port_of("Page by Page is at http://127.0.0.1:3001/ (Ctrl-C stops)"), Some(3001));
        assert_eq!(port_of("Port 3000 is taken; using 3001"), None);
    }

    #[test]
    fn a_page_is_found_served_rendered_or_written() {
        let folder = tempfile::tempdir().unwrap();
        let link = |port| link(folder.path(), port, "ch02_flat", "task-1", 99);
        assert_eq!(link(Some(3000)), "http://127.0.0.1:3000/ch02_flat.html#task-1");
        assert_eq!(link(None), "book/src/ch02_flat.md:99");
        std::fs::create_dir_all(folder.path().join("book/html")).unwrap();
        std::fs::write(folder.path().join("book/html/ch02_flat.html"), "").unwrap();
        let url = link(None);
        assert!(url.starts_with("file:///") && url.ends_with("/book/html/ch02_flat.html#task-1"), "{url}");
        assert_eq!(file_url(Path::new("/a b/100%#.html")), "file:///a%20b/100%25%23.html");
    }
}
