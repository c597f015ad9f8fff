//! The server as a browser meets it, and as others do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::Book;

/// The longest that a browser waits without a byte.
const SOON: Duration = Duration::from_secs(3);

pub struct Server {
    pub book: Book,
    process: Child,
    /// `127.0.0.1:PORT`
    host: String,
}

impl Server {
    fn start(book: Book) -> Self {
        Self::run(book, |tool| tool.args(["--port", "0"]))
    }

    /// Starts the tool, on this book and without a browser.
    pub fn run(book: Book, set_up: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let mut process = set_up(&mut Command::new(env!("CARGO_BIN_EXE_book-tool")))
            .arg("--no-open")
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

    /// Opens a connection and sends some bytes as they stand: a client library would tidy them.
    fn connect(&self, bytes: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.host).expect("the server is gone");
        stream.set_read_timeout(Some(SOON)).unwrap();
        // The server may have refused before it has read everything.
        let _ = stream.write_all(bytes.as_bytes());
        stream
    }

    /// Sends some bytes, and reads until the server hangs up.
    fn send(&self, bytes: &str) -> String {
        let mut answer = Vec::new();
        let mut stream = self.connect(bytes);
        let ended = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(ended.is_ok() || !answer.is_empty(), "no answer to {bytes:?}: {ended:?}");
        answer
    }

    fn get(&self, path: &str) -> String {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.host))
    }

    #[track_caller]
    fn still_answers(&self) {
        let answer = self.get("/preface.html");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("</html>\n"), "{answer}");
    }

    /// Asks for `path` until the answer says `text`.
    pub fn wait_for(&self, path: &str, text: &str) {
        self.wait_until(&format!("{path} says {text}"), |server| server.get(path).contains(text));
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !is_so(self) {
            assert!(started.elapsed() < Duration::from_secs(20), "never: {what}");
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
    // `cargo learn` asks where this clone's book is.
    let port = page_by_page_course::served::port(server.book.root()).map(|port| port.to_string());
    assert_eq!(port.as_deref(), server.host.split(':').nth(1));

    for (file, expected) in [
        ("a.css", "text/css; charset=utf-8"),
        ("a.js", "text/javascript; charset=utf-8"),
        ("a.svg", "image/svg+xml"),
        ("a.png", "image/png"),
        ("a.woff2", "font/woff2"),
    ] {
        server.book.write(&format!("book/html/{file}"), "text");
        let answer = server.get(&format!("/{file}"));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains(&format!("Content-Type: {expected}")), "{answer}");
    }
}

#[test]
fn nothing_outside_the_book_is_served() {
    let server = Server::start(Book::good());
    let missing = server.get("/no.html");
    assert!(missing.starts_with("HTTP/1.1 404") && missing.contains("Content-Type: text/html"), "{missing}");
    // But for the stub that a page links to.
    let stub = server.get("/exercises/ch02_flat.rs");
    assert!(stub.starts_with("HTTP/1.1 200") && stub.contains("Content-Type: text/plain"), "{stub}");
    for path in [
        "/exercises/chapters.txt",
        "/exercises/../src/lib.rs",
        "/solutions/ch02_flat.rs",
        "/../../src/lib.rs",
        "/%2e%2e/book.toml",
        "/css/..%2f..%2fbook.toml",
        "/..%5cbook.toml",
        "/%2fetc/passwd",
        "/%00",
        "/%ff",
    ] {
        let answer = server.get(path);
        assert!(!answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
}

#[test]
fn an_edit_shows_and_a_fault_only_at_the_start() {
    let book = Book::good();
    book.write("book/src/preface.md", "# Preface\n\nTODO\n");
    let server = Server::start(book);
    assert!(server.get("/preface.html").contains("TODO"));
    let edition = server.get("/.edition");

    server.book.write("book/src/preface.md", "# Preface\n\nFirst edit.\n");
    server.wait_for("/preface.html", "First edit.");
    server.wait_until("/.edition changes", |server| server.get("/.edition") != edition);

    server.book.write("book/src/preface.md", "# Preface\n\nTODO\n");
    thread::sleep(Duration::from_millis(800));
    assert!(server.get("/preface.html").contains("First edit."));

    server.book.write("book/src/preface.md", "# Preface\n\nSecond edit.\n");
    server.wait_for("/preface.html", "Second edit.");

    // Included code is part of the book.
    server.book.replace("solutions/ch02_flat.rs", "        self.rows = longer;\n", "        self.rows = grown;\n");
    server.wait_for("/ch02_flat.html", "self.rows = grown;");
}

#[test]
fn a_taken_port_is_passed_over() {
    let first = Server::start(Book::good());
    let (_, port) = first.host.split_once(':').unwrap();
    let second = Server::run(Book::good(), |tool| tool.args(["--port", port]));
    assert_ne!(first.host, second.host);
    assert!(second.get("/").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_slow_or_greedy_client_keeps_no_other_waiting() {
    let server = Server::start(Book::good());
    // More than fits between server and client, so that the server is left waiting.
    std::fs::write(server.book.path("book/html/long.txt"), vec![b'.'; 16 << 20]).unwrap();
    let never_read = (0..8).map(|_| server.connect("GET /long.txt HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    let never_end = (0..200).map(|_| server.connect("GET / HTTP/1.1\r\n"));
    let clients: Vec<TcpStream> = never_read.chain(never_end).collect();
    server.still_answers();
    drop(clients);
    server.still_answers();
}

/// A page from elsewhere can give its own name the address 127.0.0.1 and would then read `exercises/` as its own.
#[test]
fn only_requests_for_a_page_by_a_name_of_this_computer_are_answered() {
    let server = Server::start(Book::good());
    let with = |line: &str, headers: &str| format!("{line} HTTP/1.1\r\n{headers}\r\n");
    let local = |line: &str, headers: &str| with(line, &format!("Host: localhost\r\n{headers}"));
    let stub_from = |host: &str| with("GET /exercises/ch02_flat.rs", &format!("Host: {host}\r\n"));
    let ours = ["localhost", "localhost:3000", "LocalHost:8080", "127.0.0.1", "[::1]", "[::1]:3000"];
    let foreign = ["evil.example", "localhost.evil.example", "localhost:3000@evil.example", "0.0.0.0", "127.0.0.2", ""];
    let none_or_two = ["", "Host: localhost\r\nHost: evil.example\r\n", "Host: evil.example\r\nHost: localhost\r\n"];
    let requests = [
        // No body is read, however long it claims to be.
        (local("POST /", "Content-Length: 99999999999\r\n"), 405),
        (local("GET /", "Content-Length: 99999999999\r\n"), 200),
        (local(&format!("GET /{}", "a".repeat(3_000)), ""), 404),
        (local(&format!("GET /{}", "a".repeat(20_000)), ""), 400),
        (local("GET /", &format!("a: {}\r\n", "b".repeat(20_000))), 400),
        ("\0\u{e9}\r\n\r\n".into(), 400),
    ];
    let requests = requests.into_iter().chain(ours.map(|host| (stub_from(host), 200)));
    let requests = requests.chain(foreign.map(|host| (stub_from(host), 403)));
    for (request, status) in requests.chain(none_or_two.map(|hosts| (with("GET /", hosts), 400))) {
        let answer = server.send(&request);
        let shown: String = request.chars().take(80).collect();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status} expected for {shown:?}: {answer}");
        assert!(status != 403 || answer.contains("http://localhost:"), "the next step: {answer}");
        server.still_answers();
    }
}

#[cfg(unix)]
#[test]
fn a_link_out_of_the_book_is_not_followed_and_a_pipe_not_waited_for() {
    use std::os::unix::fs::symlink;

    let server = Server::start(Book::good());
    let path = |file: &str| server.book.path(file);
    let secret = tempfile::tempdir().unwrap();
    std::fs::write(secret.path().join("index.html"), "a secret").unwrap();
    symlink(secret.path().join("index.html"), path("book/html/out.html")).unwrap();
    symlink(secret.path(), path("book/html/folder")).unwrap();
    symlink("../../src/lib.rs", path("book/html/lib.rs")).unwrap();
    symlink(secret.path().join("index.html"), path("exercises/out.rs")).unwrap();
    symlink("ch02_flat.rs", path("exercises/again.rs")).unwrap();
    symlink("preface.html", path("book/html/again.html")).unwrap();
    assert!(Command::new("mkfifo").arg(path("book/html/pipe.html")).status().unwrap().success());

    for out in ["/out.html", "/folder/", "/folder/index.html", "/lib.rs", "/exercises/out.rs", "/pipe.html"] {
        let answer = server.get(out);
        assert!(answer.starts_with("HTTP/1.1 404 ") && !answer.contains("a secret"), "{out}: {answer}");
    }
    for inside in ["/exercises/again.rs", "/again.html"] {
        assert!(server.get(inside).starts_with("HTTP/1.1 200 "), "{inside}");
    }
}
