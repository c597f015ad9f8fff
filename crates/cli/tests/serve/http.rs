//! A client as plain as can be: HTTP/1.1 over a socket, so that a test can send what no library would, and leave when
//! it likes.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// For how long an answer may not come before a test counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Connection(BufReader<TcpStream>);

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// The names in small letters.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Response {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The events of a stream, and whether `[DONE]` is the last.
    #[track_caller]
    pub fn events(&self) -> (Vec<Value>, bool) {
        assert_eq!((self.status, self.header("content-type")), (200, Some("text/event-stream")), "{}", self.body);
        let data = self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
        let mut data: Vec<&str> = data.collect();
        let is_done = data.pop_if(|last| *last == "[DONE]").is_some();
        (data.into_iter().map(|data| serde_json::from_str(data).expect("JSON in an event")).collect(), is_done)
    }
}

impl Connection {
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Connection(BufReader::new(stream)))
    }

    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    /// Sends a request. A body is JSON unless the headers say something else.
    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> io::Result<()> {
        let has = |name: &str| headers.iter().any(|(found, _)| found.eq_ignore_ascii_case(name));
        let (host, length) = (self.0.get_ref().peer_addr()?.to_string(), body.len().to_string());
        let mut all = vec![("host", host.as_str())];
        if !body.is_empty() {
            all.push(("content-type", "application/json"));
            all.extend((!has("transfer-encoding")).then_some(("content-length", length.as_str())));
        }
        all.retain(|(name, _)| !has(name));
        let lines = all.iter().chain(headers).map(|(name, value)| format!("{name}: {value}\r\n"));
        let head = format!("{method} {path} HTTP/1.1\r\n{}", lines.collect::<String>());
        self.send_raw(&[head.as_bytes(), b"\r\n", body].concat())
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().into())
    }

    pub fn read_head(&mut self) -> io::Result<Response> {
        let first = self.line()?;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("{first:?} is no status line")))?;
        let mut headers = Vec::new();
        while let Some((name, value)) = self.line()?.split_once(':') {
            headers.push((name.to_lowercase(), value.trim().to_string()));
        }
        Ok(Response { status, headers, body: String::new() })
    }

    /// Reads the next piece of a body that comes in pieces; nothing at its end.
    pub fn read_chunk(&mut self) -> io::Result<String> {
        let size = usize::from_str_radix(&self.line()?, 16).map_err(io::Error::other)?;
        let mut chunk = vec![0; size + 2];
        self.0.read_exact(&mut chunk)?;
        chunk.truncate(size);
        String::from_utf8(chunk).map_err(io::Error::other)
    }

    pub fn read(&mut self) -> io::Result<Response> {
        let mut response = self.read_head()?;
        if response.header("transfer-encoding") == Some("chunked") {
            loop {
                let chunk = self.read_chunk()?;
                if chunk.is_empty() {
                    return Ok(response);
                }
                response.body += &chunk;
            }
        }
        let mut body = vec![0; response.header("content-length").and_then(|len| len.parse().ok()).unwrap_or(0)];
        self.0.read_exact(&mut body)?;
        response.body = String::from_utf8(body).map_err(io::Error::other)?;
        Ok(response)
    }

    /// All that still comes, up to where the server closes the connection.
    pub fn read_to_end(&mut self) -> io::Result<String> {
        io::read_to_string(&mut self.0)
    }
}

#[track_caller]
pub fn ask(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
    let answer = || {
        let mut connection = Connection::open(address)?;
        connection.send(method, path, headers, body)?;
        connection.read()
    };
    answer().unwrap_or_else(|error: io::Error| panic!("{method} {path}: {error}"))
}
