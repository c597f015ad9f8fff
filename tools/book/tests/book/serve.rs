//! The server as a browser meets it, and as others do.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::Book;

pub struct Server {
    pub book: Book,
    process: Child,
    /// `127.0.0.1:PORT`
    host: String,
}

impl Server {
    fn start(book: Book) -> Self {
        Self::start_on(book, "0")
    }

    fn start_on(book: Book, port: &str) -> Self {
        let mut tool = Command::new(env!("CARGO_BIN_EXE_book-tool"));
        tool.args(["--port", port]);
        Self::run(book, tool)
    }

    /// Starts the tool, on this book and without a browser.
    pub fn run(book: Book, mut tool: Command) -> Self {
        let mut process = tool
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

    /// Sends `bytes`, then reads until the server hangs up. None: it has not within `limit`.
    fn send(&self, bytes: &[u8], limit: Duration) -> Option<String> {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        // The server may have refused before it has read everything.
        let _ = stream.write_all(bytes);
        hung_up(stream, limit)
    }

    fn still_answers(&self) {
        let mut stream = TcpStream::connect(&self.host).expect("the server is gone");
        write!(stream, "GET /preface.html HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.host).unwrap();
        let answer = hung_up(stream, Duration::from_secs(3)).expect("the server no longer answers");
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

/// What the server says before it hangs up, if it does within `limit`.
fn hung_up(mut stream: TcpStream, limit: Duration) -> Option<String> {
    let deadline = Instant::now() + limit;
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    loop {
        let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        stream.set_read_timeout(Some(left)).unwrap();
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&part[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return None,
            Err(_) => break,
        }
    }
    Some(String::from_utf8_lossy(&answer).into_owned())
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
    // `cargo learn` asks whose book this is.
    let clone = page_by_page_course::chapters::clone_id(server.book.root());
    assert!(server.get("/.clone").ends_with(&clone));

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
    server.wait_until("/.edition changes", |server| server.get("/.edition") != edition);

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

const SOON: Duration = Duration::from_secs(3);

#[test]
fn a_body_is_refused_however_long_it_claims_to_be() {
    let server = Server::start(Book::good());
    for (length, status) in [
        ("99999999999", 400),
        ("18446744073709551615", 400),
        ("99999999999999999999999999", 400),
        ("-1", 400),
        ("0x10", 400),
        ("many", 400),
        ("", 400),
        ("0", 200),
    ] {
        let request = format!("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\nsome of it");
        let answer = server.send(request.as_bytes(), SOON).unwrap_or_else(|| panic!("Content-Length: {length} hangs"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "Content-Length: {length}: {answer}");
        server.still_answers();
    }
    let chunks = "GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n";
    assert!(server.send(chunks.as_bytes(), SOON).unwrap().starts_with("HTTP/1.1 400 "));
    server.still_answers();

    let request = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n";
    assert!(server.send(request.as_bytes(), SOON).unwrap().starts_with("HTTP/1.1 405 "));
    server.still_answers();
}

#[test]
fn clients_that_never_read_hold_up_nobody_and_are_given_up() {
    // More than fits between server and client, so that the server is left waiting.
    const LONG: usize = 16 << 20;
    let server = Server::start(Book::good());
    std::fs::write(server.book.path("book/html/long.txt"), vec![b'.'; LONG]).unwrap();
    let never_read: Vec<TcpStream> = (0..8)
        .map(|_| {
            let mut stream = TcpStream::connect(&server.host).unwrap();
            stream.write_all(b"GET /long.txt HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            stream
        })
        .collect();
    thread::sleep(Duration::from_millis(300));
    server.still_answers();

    thread::sleep(Duration::from_secs(16));
    for stream in never_read {
        let answer = hung_up(stream, SOON).expect("the server still waits for a client that has read nothing in 16 s");
        assert!(answer.len() < LONG, "the server has waited 16 s for a client that read nothing");
    }
    let whole = server.get("/long.txt");
    assert!(whole.len() > LONG, "{} bytes came", whole.len());
}

#[test]
fn a_request_that_never_ends_is_ended() {
    let server = Server::start(Book::good());
    let mut stream = TcpStream::connect(&server.host).unwrap();
    let mut drips = stream.try_clone().unwrap();
    let dripping = thread::spawn(move || {
        let _ = drips.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n");
        while drips.write_all(b"a: b\r\n").is_ok() {
            thread::sleep(Duration::from_millis(300));
        }
    });
    let mut status = [0; 12];
    stream.set_read_timeout(Some(Duration::from_secs(9))).unwrap();
    stream.read_exact(&mut status).expect("the server listens to a dripping request for ever");
    assert_eq!(&status, b"HTTP/1.1 408");
    server.still_answers();
    drop(stream);
    dripping.join().unwrap();
}

#[test]
fn one_connection_too_many_ends_the_oldest() {
    let server = Server::start(Book::good());
    let mut waiting: VecDeque<TcpStream> = VecDeque::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(&server.host).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        waiting.push_back(stream);
    }
    server.still_answers();
    let oldest = waiting.pop_front().unwrap();
    assert!(hung_up(oldest, SOON).is_some(), "200 open connections and the oldest is still waited for");
}

#[test]
fn a_request_has_a_longest_length() {
    let server = Server::start(Book::good());
    let request = |line: &str, headers: &str| format!("{line} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
    for (bytes, status) in [
        (request(&format!("GET /{}", "a".repeat(3_000)), ""), 404),
        (request(&format!("GET /{}", "a".repeat(5_000)), ""), 414),
        (format!("GET /{}", "a".repeat(1_000_000)), 414),
        (request("GET /", &"a: b\r\n".repeat(50)), 200),
        (request("GET /", &"a: b\r\n".repeat(100)), 431),
        (request("GET /", &format!("a: {}\r\n", "b".repeat(10_000))), 200),
        (request("GET /", &format!("a: {}\r\n", "b".repeat(20_000))), 431),
    ] {
        let answer = server.send(bytes.as_bytes(), SOON).unwrap_or_else(|| panic!("{} bytes hang", bytes.len()));
        // A client that goes on sending after the answer may lose it to a reset; that is its affair.
        let is_cut = answer.is_empty() && bytes.len() > 100_000;
        assert!(is_cut || answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status} expected: {answer}");
    }
    server.still_answers();
}

/// A page from elsewhere can give its own name the address 127.0.0.1 and would then read `exercises/` as its own.
#[test]
fn only_names_of_this_computer_are_answered() {
    let server = Server::start(Book::good());
    let asked_as = |host: &str| {
        let request = format!("GET /exercises/ch02_flat.rs HTTP/1.1\r\n{host}\r\n");
        server.send(request.as_bytes(), SOON).expect("an answer")
    };
    for host in ["localhost", "localhost:3000", "LocalHost:8080", "127.0.0.1", "127.0.0.1:3000", "[::1]", "[::1]:3000"]
    {
        let answer = asked_as(&format!("Host: {host}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
    }
    for host in [
        "evil.example",
        "evil.example:3000",
        "localhost.evil.example",
        "127.0.0.1.evil.example:3000",
        "localhost:3000@evil.example",
        "notlocalhost",
        "0.0.0.0",
        "127.0.0.2",
        "[::2]",
        "localhost:x",
        "\u{e9}",
        "",
    ] {
        let answer = asked_as(&format!("Host: {host}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 403 "), "{host}: {answer}");
        assert!(answer.contains("http://localhost:"), "the next step: {answer}");
    }
    for none_or_two in ["", "Host: localhost\r\nHost: evil.example\r\n", "Host: evil.example\r\nHost: localhost\r\n"] {
        let answer = asked_as(none_or_two);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{none_or_two}: {answer}");
    }
    // An address with a name in it asks for no file of this book.
    let whole = "GET http://evil.example/preface.html HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert!(server.send(whole.as_bytes(), SOON).unwrap().starts_with("HTTP/1.1 404 "));
}

#[cfg(unix)]
#[test]
fn a_link_out_of_the_book_is_not_followed() {
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

    for out in ["/out.html", "/folder", "/folder/", "/folder/index.html", "/lib.rs", "/exercises/out.rs"] {
        let answer = server.get(out);
        assert!(answer.starts_with("HTTP/1.1 404 "), "{out}: {answer}");
        assert!(!answer.contains("a secret"), "{out}: {answer}");
    }
    for inside in ["/exercises/again.rs", "/again.html"] {
        assert!(server.get(inside).starts_with("HTTP/1.1 200 "), "{inside}");
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_in_the_book_is_not_waited_for() {
    let server = Server::start(Book::good());
    let pipe = server.book.path("book/html/pipe.html");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let answer = server.send(b"GET /pipe.html HTTP/1.1\r\nHost: localhost\r\n\r\n", SOON);
    assert!(answer.expect("the server waits for the pipe").starts_with("HTTP/1.1 404 "));
}

/// Requests put together from parts that are nearly right.
#[test]
fn four_thousand_odd_requests() {
    const PARTS: &[&str] = &[
        "GET ",
        "GET ",
        "GET /",
        "HEAD /",
        "POST /",
        "PUT ",
        "/preface.html",
        "/exercises/ch02_flat.rs",
        "/.edition",
        "/%00",
        "/%",
        "/%ff",
        "/../",
        "..%2f",
        "?#",
        " HTTP/1.1\r\n",
        " HTTP/1.1\r\n",
        " HTTP/1.0\r\n",
        " HTTP/9.9\r\n",
        " HTTP/1.1\n",
        "Host: localhost\r\n",
        "Host: localhost\r\n",
        "Host: evil.example\r\n",
        "Host:\r\n",
        "Content-Length: 99999999999\r\n",
        "Content-Length: 3\r\n",
        "Content-Length: x\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Expect: 100-continue\r\n",
        "Connection: keep-alive\r\n",
        "Upgrade: websocket\r\n",
        "Range: bytes=0-0,-1\r\n",
        " folded\r\n",
        ": \r\n",
        "\0",
        "\u{e9}",
        "\r\n",
        "\r\n\r\n",
        "\n",
        "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz",
    ];
    let server = Server::start(Book::good());
    let mut state = 1u64;
    let mut below = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    let mut pages = 0;
    let started = Instant::now();
    for number in 0..4_000 {
        let sound = "GET /preface.html HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let mut request: Vec<u8> = match below(2) {
            0 => (0..1 + below(12)).flat_map(|_| PARTS[below(PARTS.len())].bytes()).collect(),
            _ => sound.into(),
        };
        for _ in 0..below(4) {
            let at = below(request.len());
            request[at] = below(256) as u8;
        }
        let mut stream = TcpStream::connect(&server.host).unwrap_or_else(|_| panic!("gone before request {number}"));
        let _ = stream.write_all(&request);
        let _ = stream.shutdown(Shutdown::Write);
        let shown = String::from_utf8_lossy(&request);
        let answer = hung_up(stream, SOON).unwrap_or_else(|| panic!("request {number} hangs: {shown:?}"));
        let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
        let is_known = matches!(status, Some("200" | "400" | "403" | "404" | "405" | "414" | "431"));
        assert!(is_known, "request {number}, {shown:?}: {answer}");
        pages += usize::from(status == Some("200"));
    }
    assert!(pages > 400, "only {pages} requests were sound: nothing is tried");
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    server.still_answers();
}
