//! A web server for one reader on this computer: GET, one request a connection, no bodies. Each connection has a thread
//! and limits of its own, so that a slow or greedy client cannot keep the reader from the next page.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use regex::Regex;

/// The longest request, from its first line to the empty one.
const REQUEST_BYTES: u64 = 16 << 10;
/// The longest that the server waits for the client to send or to take more.
const PATIENCE: Duration = Duration::from_secs(5);
/// How much more of what the client sends is read after the answer, and for how long: a connection that is closed
/// before takes the answer away again.
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
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let request = receive(client)?;
    let Answer { status, content_type, body } = judge(&request).map_or_else(|refusal| refusal, answer);
    let head = format!(
        "HTTP/1.1 {status} \r\n\
         Content-Type: {content_type}\r\n\
         Content-Length: {length}\r\n\
         X-Content-Type-Options: nosniff\r\n\
         Cache-Control: no-cache\r\n\
         Connection: close\r\n\r\n",
        length = body.len(),
    );
    client.write_all(head.as_bytes())?;
    client.write_all(&body)?;
    client.shutdown(Shutdown::Write)?;
    client.set_read_timeout(Some(REST_TIME))?;
    io::copy(&mut client.take(REST_BYTES), &mut io::sink()).map(drop)
}

/// The lines of a request, as far as the empty one or the limit.
fn receive(client: &TcpStream) -> io::Result<String> {
    let mut from = BufReader::new(client.take(REQUEST_BYTES));
    let mut request = Vec::new();
    while from.read_until(b'\n', &mut request)? > 0 && !request.ends_with(b"\r\n\r\n") {}
    Ok(String::from_utf8_lossy(&request).into_owned())
}

/// The names of this computer, with or without a port.
static THIS_COMPUTER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^(?i:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]*)?$").expect("valid pattern"));

/// The address that is asked for, or the refusal.
fn judge(request: &str) -> Result<&str, Answer> {
    let Some((line, headers)) = request.strip_suffix("\r\n\r\n").and_then(|whole| whole.split_once("\r\n")) else {
        return Err(Answer::text(400, format!("not a request, or one of more than {REQUEST_BYTES} bytes")));
    };
    let headers = headers.lines().filter_map(|line| line.split_once(':'));
    let mut hosts = headers.filter(|(name, _)| name.eq_ignore_ascii_case("Host"));
    match (hosts.next(), hosts.next()) {
        (Some((_, host)), None) if THIS_COMPUTER.is_match(host.trim()) => {}
        // A page from elsewhere could give its own name this computer's address and read on as if it were ours.
        (Some(_), None) => {
            let next_step = "only for this computer: open it as http://localhost:PORT/ or http://127.0.0.1:PORT/";
            return Err(Answer::text(403, next_step));
        }
        _ => return Err(Answer::text(400, "a request has one Host header")),
    }
    match line.split(' ').collect::<Vec<_>>()[..] {
        ["GET", address, _] => Ok(address),
        _ => Err(Answer::text(405, "only GET")),
    }
}
