//! A web server for one reader on this computer: GET and HEAD, one request a connection, no bodies. Each connection has a
//! thread and limits of its own, so that a slow or greedy client cannot keep the reader from the next page.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The longest request, from its first line to the empty one.
const REQUEST_BYTES: u64 = 16 << 10;
const HEADERS: usize = 64;
/// The whole request must have come by then.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// The longest that the server waits for the client to take more of the answer.
const ANSWER_TIME: Duration = Duration::from_secs(15);
/// How much more of what the client sends is read after the answer, and for how long: a connection that is closed before
/// takes the answer away again.
const REST_BYTES: u64 = 64 << 10;
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

/// Answers each sound request with what `answer` says to its address, `/ch02_flat.html?highlight=rows`, for ever.
pub fn run(listener: &TcpListener, answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> ! {
    let answer = Arc::new(answer);
    loop {
        match listener.accept() {
            Ok((client, _)) => {
                let answer = answer.clone();
                // A client that hangs up early needs no answer, nor does one for which there is no thread.
                let _ = thread::Builder::new().spawn(move || converse(&client, &*answer));
            }
            // Out of file handles, most likely: some come free as connections end.
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn converse(mut client: &TcpStream, answer: &dyn Fn(&str) -> Answer) -> io::Result<()> {
    let (Answer { status, content_type, body }, is_head) = match receive(client)? {
        Ok((address, is_head)) => (answer(&address), is_head),
        Err(refusal) => (refusal, false),
    };
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\n\
         Content-Type: {content_type}\r\n\
         Content-Length: {length}\r\n\
         X-Content-Type-Options: nosniff\r\n\
         Cache-Control: no-cache\r\n\
         Connection: close\r\n\r\n",
        reason = reason(status),
        length = body.len(),
    );
    client.set_write_timeout(Some(ANSWER_TIME))?;
    client.write_all(head.as_bytes())?;
    client.write_all(if is_head { &[] } else { &body })?;
    client.shutdown(Shutdown::Write)?;
    client.set_read_timeout(Some(REST_TIME))?;
    io::copy(&mut client.take(REST_BYTES), &mut io::sink()).map(drop)
}

/// Reads a request: its address, and whether only the head of the answer is wanted. What is wrong with it comes as the
/// answer to give.
fn receive(client: &TcpStream) -> io::Result<Result<(String, bool), Answer>> {
    let deadline = Instant::now() + REQUEST_TIME;
    let mut from = client.take(REQUEST_BYTES);
    let mut text = Vec::new();
    let mut more = [0; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        client.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let read = from.read(&mut more)?;
        text.extend_from_slice(&more[..read]);
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&text) {
            Ok(httparse::Status::Complete(_)) => return Ok(judge(&request)),
            Ok(httparse::Status::Partial) if read > 0 => {}
            Ok(httparse::Status::Partial) => {
                return Ok(Err(Answer::text(400, format!("the request has no end within {REQUEST_BYTES} bytes"))));
            }
            Err(error) => return Ok(Err(Answer::text(400, format!("not a request: {error}")))),
        }
    }
}

fn judge(request: &httparse::Request) -> Result<(String, bool), Answer> {
    let mut hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("Host"));
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if is_this_computer(host.value) => {}
        // A page from elsewhere could give its own name this computer's address and read on as if it were ours.
        (Some(_), None) => {
            let next_step = "only for this computer: open it as http://localhost:PORT/ or http://127.0.0.1:PORT/";
            return Err(Answer::text(403, next_step));
        }
        _ => return Err(Answer::text(400, "a request has one Host header")),
    }
    let is_head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Err(Answer::text(405, "only GET and HEAD")),
    };
    Ok((request.path.unwrap_or_default().to_string(), is_head))
}

/// Whether `host` is a name of this computer, with or without a port.
fn is_this_computer(host: &[u8]) -> bool {
    let host = str::from_utf8(host).unwrap_or_default().to_ascii_lowercase();
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|name| match host.strip_prefix(name) {
        Some("") => true,
        Some(rest) => rest.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit())),
        None => false,
    })
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        _ => "",
    }
}
