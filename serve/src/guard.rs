//! Who may ask, and how much: the checks that every request passes first.
//!
//! - *The key.* Where there is one, each request but `/health` has to bring it: `Authorization: Bearer KEY`. A browser cannot
//!   do that for the first page that it opens; so `/` comes without, and nothing is in it before somebody types the key.
//! - *The name.* A web page can give its own name the address 127.0.0.1, and then ask any server on the computer of whoever
//!   reads it ([DNS rebinding](https://en.wikipedia.org/wiki/DNS_rebinding)). Its requests bear that name. So a server without a
//!   key answers only to the names of this computer.
//! - *The kind.* A body has to be declared as JSON. A web page cannot do that unasked for another server than its own.
//! - *The size.* A body may have so many bytes, and take so long to come.

use std::future::poll_fn;
use std::hint::black_box;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use axum::http::{HeaderMap, Request, StatusCode, Uri};
use tokio::time::timeout;

use super::refusal::Refusal;

/// How many times as large as a body may be is one that is refused when it has come, and not before.
const LISTENED_TO: usize = 32;

/// Who may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Whoever has this key.
    Key(String),
    /// Whoever asks for this computer by a name of its own.
    ThisComputer,
}

impl Guard {
    /// Refuses a request that may not be answered.
    ///
    /// # Errors
    /// [`Refusal`]: 401 for a key that is missing or wrong, 403 for a name that is not this computer's.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        match self {
            Guard::Key(key) => {
                let given = headers.get(AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
                let (scheme, given) = given.split_at_checked(7).unwrap_or_default();
                if scheme.eq_ignore_ascii_case(b"bearer ") && is_same(key.as_bytes(), given) {
                    return Ok(());
                }
                let message = "the API key is missing or wrong; send it as Authorization: Bearer KEY";
                Err(Refusal::new(StatusCode::UNAUTHORIZED, Some("invalid_api_key"), message))
            }
            Guard::ThisComputer => self.check_name(uri, headers),
        }
    }

    /// The same without the key: only whether the name is right that the request bears.
    ///
    /// # Errors
    /// [`Refusal`]: 403.
    pub fn check_name(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        match self {
            Guard::Key(_) => Ok(()),
            Guard::ThisComputer => {
                let in_headers = headers.get(HOST).and_then(|host| host.to_str().ok());
                let host = uri.authority().map(|authority| authority.as_str()).or(in_headers);
                if host.is_some_and(is_this_computer) && headers.get_all(HOST).iter().count() <= 1 {
                    return Ok(());
                }
                let message =
                    "this server answers to localhost, 127.0.0.1 and [::1] only; start it with --api-key for others";
                Err(Refusal::new(StatusCode::FORBIDDEN, Some("unknown_host"), message))
            }
        }
    }
}

/// Refuses what a page of another site has asked for: it could not read the answer, but take a place that is there for few.
///
/// # Errors
/// [`Refusal`]: 403.
pub fn check_site(headers: &HeaderMap) -> Result<(), Refusal> {
    // Browsers say so, and no page can say otherwise.
    let site = headers.get("sec-fetch-site").map_or(&b"none"[..], |site| site.as_bytes());
    if matches!(site, b"none" | b"same-origin") {
        return Ok(());
    }
    let message = "this is shown to the page of this server only; open the server's address in the browser";
    Err(Refusal::new(StatusCode::FORBIDDEN, Some("another_site"), message))
}

/// Takes as long whatever the first difference is. That they differ in length may be seen.
fn is_same(key: &[u8], given: &[u8]) -> bool {
    let mut difference = key.len() ^ given.len();
    for (place, byte) in key.iter().enumerate() {
        difference |= usize::from(byte ^ given.get(place).copied().unwrap_or(!byte));
        difference = black_box(difference);
    }
    difference == 0
}

/// Whether a `Host` with or without a port is a name that only this computer has.
fn is_this_computer(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_local = |address: IpAddr| address.is_loopback();
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_local)
}

/// The body of a request, if it is JSON, of at most so many bytes, and there in time.
///
/// # Errors
/// [`Refusal`]: 415, 413, 408; 400 if it does not come whole.
pub async fn body(request: Request<Body>, at_most: usize, within: Duration) -> Result<Vec<u8>, Refusal> {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        let message = "the body is not declared as JSON; send Content-Type: application/json";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, None, message));
    }
    let read = timeout(within, read(request.into_body(), at_most)).await;
    read.unwrap_or_else(|_| {
        let message = format!("the body has not come within {} seconds", within.as_secs());
        Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, None, message))
    })
}

async fn read(mut body: Body, at_most: usize) -> Result<Vec<u8>, Refusal> {
    // Most clients hear an answer only when they have sent all. What is too large for that, too, ends here.
    let listened_to = at_most.saturating_mul(LISTENED_TO);
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let (mut bytes, mut len) = (Vec::new(), 0);
    while declared <= listened_to && len <= listened_to {
        let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await else { break };
        let broken = |_| Refusal::new(StatusCode::BAD_REQUEST, None, "the body has not come whole");
        if let Ok(data) = frame.map_err(broken)?.into_data() {
            len += data.len();
            if len <= at_most {
                bytes.extend_from_slice(&data);
            }
        }
    }
    if declared.max(len) > at_most {
        let message = format!("the body has more than the {at_most} bytes that are read; send a shorter prompt");
        return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, None, message));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(guard: &Guard, uri: &str, headers: &[(&'static str, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        guard.check(&uri.parse().unwrap(), &map).map_or_else(|refusal| refusal.status.as_u16(), |()| 200)
    }

    #[test]
    fn only_the_names_of_this_computer_are_answered_to() {
        let guard = Guard::ThisComputer;
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:80", "127.1.2.3", "[::1]:8080", "[::1]"] {
            assert_eq!(checked(&guard, "/", &[("host", host)]), 200, "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "10.0.0.1",
            "[::2]",
            "",
            "::1",
            "[127.0.0.1.nip.io]",
        ] {
            assert_eq!(checked(&guard, "/", &[("host", host)]), 403, "{host}");
        }
        assert_eq!(checked(&guard, "/", &[]), 403, "no name is not one of these");
        assert_eq!(checked(&guard, "/", &[("host", "localhost"), ("host", "evil.example")]), 403);
        // The name in the request's first line counts before the header.
        assert_eq!(checked(&guard, "http://evil.example/", &[("host", "localhost")]), 403);
        assert_eq!(checked(&guard, "http://localhost:1/", &[]), 200);
    }

    #[test]
    fn the_key_is_asked_for_whole() {
        let guard = Guard::Key("sesame".into());
        let status = |value: &str| checked(&guard, "/", &[("authorization", value), ("host", "evil.example")]);
        assert_eq!(status("Bearer sesame"), 200);
        assert_eq!(status("bearer sesame"), 200);
        for wrong in [
            "Bearer sesam",
            "Bearer sesame2",
            "Bearer ",
            "Bearer",
            "",
            "Basic sesame",
            "sesame",
            "Bearer  sesame",
            "Bearer Sesame",
        ] {
            assert_eq!(status(wrong), 401, "{wrong}");
        }
        assert_eq!(checked(&guard, "/", &[]), 401);
        assert!(is_same(b"", b"") && !is_same(b"", b"a") && !is_same(b"a", b""));
    }
}
