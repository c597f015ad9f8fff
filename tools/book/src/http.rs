//! A web server for one reader on this computer: GET and HEAD, one request a connection, no bodies. Everything that a
//! client sends or takes has a limit, so that none, however slow or greedy, keeps the reader from the next page.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How many connections are open at once; a browser takes six. One more, and the oldest is closed: an answer takes
/// milliseconds, so that one is stuck.
const CONNECTIONS: usize = 32;
/// The longest request, from its first line to the empty one.
const REQUEST_BYTES: usize = 16 << 10;
const ADDRESS_BYTES: usize = 4 << 10;
const HEADERS: usize = 64;
/// The whole request must have come by then.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// And by then the client must have taken the whole answer.
const ANSWER_TIME: Duration = Duration::from_secs(15);
/// After the answer: how much more of what the client sends is read, and for how long, so that closing the connection does
/// not take the answer away again.
const REST_BYTES: usize = 64 << 10;
const REST_TIME: Duration = Duration::from_millis(500);

pub struct Answer {
    pub status: u16,
    pub content_type: &'static str,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(status: u16, body: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.into().into_bytes() }
    }
}

/// What is left of a request once it has been found sound.
struct Request {
    /// The address as it was sent: `/ch02_flat.html?highlight=rows`.
    address: String,
    is_head: bool,
}

/// Answers each sound request with what `answer` says to its address, for ever.
pub fn run(listener: &TcpListener, answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> ! {
    let answer = Arc::new(answer);
    let mut open: VecDeque<Weak<TcpStream>> = VecDeque::new();
    loop {
        let Ok((client, _)) = listener.accept() else {
            // Out of file handles, most likely: some come free as connections end.
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        let client = Arc::new(client);
        open.retain(|client| client.strong_count() > 0);
        if open.len() == CONNECTIONS
            && let Some(oldest) = open.pop_front().and_then(|client| client.upgrade())
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        open.push_back(Arc::downgrade(&client));
        let answer = answer.clone();
        // A client that hangs up early has nothing to be told, nor has one for whom there is no thread.
        let _ = thread::Builder::new().spawn(move || converse(&client, &*answer));
    }
}

fn converse(client: &TcpStream, answer: &dyn Fn(&str) -> Answer) -> io::Result<()> {
    let (answer, is_head) = match receive(client)? {
        Ok(request) => (answer(&request.address), request.is_head),
        Err(refusal) => (refusal, false),
    };
    send(client, &answer, is_head)?;
    client.shutdown(Shutdown::Write)?;
    let deadline = Instant::now() + REST_TIME;
    let mut rest = Vec::new();
    while rest.len() < REST_BYTES && read_some(client, &mut rest, deadline)? > 0 {}
    Ok(())
}

/// Reads a request; what is wrong with it comes as the answer to give.
fn receive(client: &TcpStream) -> io::Result<Result<Request, Answer>> {
    let deadline = Instant::now() + REQUEST_TIME;
    let mut text = Vec::new();
    loop {
        match read_some(client, &mut text, deadline) {
            Ok(0) if text.is_empty() => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(0) => return Ok(Err(Answer::text(400, "the request has no end"))),
            Ok(_) if text.len() > REQUEST_BYTES => return Ok(Err(too_long(&text))),
            Ok(_) => {}
            // Without a word from the client there is nothing to answer: browsers open connections ahead of need.
            Err(error) if error.kind() == ErrorKind::TimedOut && !text.is_empty() => {
                let limit = REQUEST_TIME.as_secs();
                return Ok(Err(Answer::text(408, format!("the request took longer than {limit} s"))));
            }
            Err(error) => return Err(error),
        }

        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&text) {
            Ok(httparse::Status::Complete(_)) => return Ok(judge(&request)),
            Ok(httparse::Status::Partial) => {}
            Err(httparse::Error::TooManyHeaders) => {
                return Ok(Err(Answer::text(431, format!("more than {HEADERS} headers"))));
            }
            Err(error) => return Ok(Err(Answer::text(400, format!("not a request: {error}")))),
        }
    }
}

/// Appends what the client sends next and returns how many bytes; 0 when it will send no more.
fn read_some(mut client: &TcpStream, text: &mut Vec<u8>, deadline: Instant) -> io::Result<usize> {
    client.set_read_timeout(Some(time_left(deadline)?))?;
    let mut more = [0; 4096];
    match client.read(&mut more) {
        Ok(read) => {
            text.extend_from_slice(&more[..read]);
            Ok(read)
        }
        // Unix has another name for it.
        Err(error) if error.kind() == ErrorKind::WouldBlock => Err(ErrorKind::TimedOut.into()),
        Err(error) => Err(error),
    }
}

fn too_long(text: &[u8]) -> Answer {
    match text.contains(&b'\n') {
        true => Answer::text(431, format!("a request longer than {REQUEST_BYTES} bytes")),
        false => Answer::text(414, format!("an address longer than {ADDRESS_BYTES} bytes")),
    }
}

fn judge(request: &httparse::Request) -> Result<Request, Answer> {
    let address = request.path.unwrap_or_default();
    if address.len() > ADDRESS_BYTES {
        return Err(Answer::text(414, format!("an address longer than {ADDRESS_BYTES} bytes")));
    }
    let header = |name: &'static str| {
        let headers = request.headers.iter();
        headers.filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    };

    let mut hosts = header("Host");
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if is_this_computer(host) => {}
        (Some(_), None) => {
            // A page from elsewhere may give its own name this computer's address and read on as if it were ours.
            return Err(Answer::text(
                403,
                "only for this computer: open it as http://localhost:PORT/ or http://127.0.0.1:PORT/",
            ));
        }
        _ => return Err(Answer::text(400, "a request has one Host header")),
    }

    let is_head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Err(Answer::text(405, "only GET and HEAD")),
    };
    let has_body =
        header("Transfer-Encoding").next().is_some() || header("Content-Length").any(|length| length != b"0");
    if has_body {
        return Err(Answer::text(400, "a request for a page has no body"));
    }
    Ok(Request { address: address.to_string(), is_head })
}

/// Whether `host` is a name of this computer, with or without a port.
fn is_this_computer(host: &[u8]) -> bool {
    let is_port = |rest: &[u8]| match rest {
        [] => true,
        [b':', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|name| {
        let parts = host.split_at_checked(name.len());
        parts.is_some_and(|(start, rest)| start.eq_ignore_ascii_case(name.as_bytes()) && is_port(rest))
    })
}

fn send(mut client: &TcpStream, answer: &Answer, is_head: bool) -> io::Result<()> {
    let deadline = Instant::now() + ANSWER_TIME;
    let Answer { status, content_type, body } = answer;
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\n\
         Content-Type: {content_type}\r\n\
         Content-Length: {length}\r\n\
         X-Content-Type-Options: nosniff\r\n\
         Cache-Control: no-cache\r\n\
         Connection: close\r\n\r\n",
        reason = reason(*status),
        length = body.len(),
    );
    let mut bytes = head.into_bytes();
    if !is_head {
        bytes.extend_from_slice(body);
    }
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        client.set_write_timeout(Some(time_left(deadline)?))?;
        rest = &rest[client.write(rest)?..];
    }
    Ok(())
}

fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        414 => "URI Too Long",
        431 => "Request Header Fields Too Large",
        _ => "",
    }
}
