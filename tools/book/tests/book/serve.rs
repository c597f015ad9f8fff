//! The server as a browser meets it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::Book;

struct Server {
    book: Book,
    process: Child,
    /// `127.0.0.1:PORT`
    host: String,
}

impl Server {
    fn start(book: Book) -> Self {
        Self::start_on(book, "0")
    }

    fn start_on(book: Book, port: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_book-tool"))
            .args(["--no-open", "--port", port])
            .current_dir(book.root())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let host = line
            .split("http://")
            .nth(1)
            .and_then(|rest| rest.split('/').next())
            .unwrap_or_else(|| panic!("no address in {line:?}"))
            .to_string();
        Self { book, process, host }
    }

    /// Sends a request as it stands: a client library would tidy the path.
    fn ask(&self, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.host).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn get(&self, path: &str) -> String {
        self.ask("GET", path)
    }

    /// Asks for `path` until the answer says `text`.
    fn wait_for(&self, path: &str, text: &str) {
        let started = Instant::now();
        while !self.get(path).contains(text) {
            assert!(started.elapsed() < Duration::from_secs(20), "{path} never says {text}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn pages_and_their_parts_have_their_types() {
    let server = Server::start(Book::good());
    let page = server.get("/ch02_flat.html?highlight=rows");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    assert!(page.contains("Content-Type: text/html; charset=utf-8"));
    assert!(page.contains("The flat cache"));
    assert!(page.contains("/.edition"), "a served page follows the edits");
    assert!(!server.book.read("book/html/ch02_flat.html").contains("/.edition"), "a rendered page does not");
    assert!(server.get("/").contains("Preface"));

    let mut types = Vec::new();
    for entry in walkdir::WalkDir::new(server.book.path("book/html")) {
        let entry = entry.unwrap();
        let Some(extension) = entry.path().extension().and_then(|it| it.to_str()) else {
            continue;
        };
        let name = entry.path().strip_prefix(server.book.path("book/html")).unwrap();
        let expected = match extension {
            "css" => "text/css; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "svg" => "image/svg+xml",
            "png" => "image/png",
            "woff2" => "font/woff2",
            _ => continue,
        };
        let answer = server.ask("HEAD", &format!("/{}", name.display()));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains(&format!("Content-Type: {expected}")), "{answer}");
        types.push(extension.to_string());
    }
    for extension in ["css", "js", "svg", "woff2"] {
        assert!(types.iter().any(|it| it == extension), "no {extension} in the book");
    }
}

#[test]
fn what_is_not_there_is_404() {
    let server = Server::start(Book::good());
    let answer = server.get("/no.html");
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    assert!(answer.contains("Content-Type: text/html"));
    assert!(server.ask("POST", "/").starts_with("HTTP/1.1 405"));
}

#[test]
fn the_file_that_a_page_links_to_is_served() {
    let server = Server::start(Book::good());
    let answer = server.get("/exercises/ch02_flat.rs");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("Content-Type: text/plain"), "{answer}");
    for other in ["/exercises/untouched.txt", "/exercises/../src/lib.rs", "/solutions/ch02_flat.rs"] {
        assert!(!server.get(other).starts_with("HTTP/1.1 200"), "{other}");
    }
}

#[test]
fn nothing_outside_the_book_is_served() {
    let server = Server::start(Book::good());
    for path in [
        "/../book.toml",
        "/../../src/lib.rs",
        "/%2e%2e/book.toml",
        "/css/..%2f..%2fbook.toml",
        "/..%5cbook.toml",
        "//etc/passwd",
        "/%2fetc/passwd",
        "/./preface.html/../../book.toml",
    ] {
        let answer = server.get(path);
        assert!(!answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
}

#[test]
fn an_edit_shows_and_a_fault_does_not() {
    let server = Server::start(Book::good());
    let edition = server.get("/.edition");

    server.book.write("book/src/preface.md", "# Preface\n\nFirst edit.\n");
    server.wait_for("/preface.html", "First edit.");
    server.wait_for("/.edition", "\r\n\r\n");
    assert_ne!(server.get("/.edition"), edition);

    server.book.write("book/src/preface.md", "# Preface\n\nTODO\n");
    thread::sleep(Duration::from_millis(800));
    assert!(server.get("/preface.html").contains("First edit."));

    server.book.write("book/src/preface.md", "# Preface\n\nSecond edit.\n");
    server.wait_for("/preface.html", "Second edit.");
}

#[test]
fn an_edit_of_included_code_shows() {
    let server = Server::start(Book::good());
    server.book.replace("solutions/ch02_flat.rs", "        self.rows = longer;\n", "        self.rows = grown;\n");
    server.wait_for("/ch02_flat.html", "self.rows = grown;");
}

#[test]
fn a_book_with_faults_is_shown_all_the_same() {
    let book = Book::good();
    book.write("book/src/preface.md", "# Preface\n\nTODO\n");
    let server = Server::start(book);
    assert!(server.get("/preface.html").contains("TODO"));
}

#[test]
fn a_taken_port_is_passed_over() {
    let first = Server::start(Book::good());
    let (_, port) = first.host.split_once(':').unwrap();
    let second = Server::start_on(Book::good(), port);
    assert_ne!(first.host, second.host);
    assert!(second.get("/").starts_with("HTTP/1.1 200"));
}
