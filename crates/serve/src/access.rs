//! Access: the checks that every request passes first.
//!
//! - *The key.* A server with a key asks every request except `/health` for it: `Authorization: Bearer KEY`. A browser
//!   can't send that with the first page it opens, so `/` needs no key and shows nothing until the reader types it.
//! - *The host.* A web page can point its own name at 127.0.0.1 and then reach any server on its reader's computer
//!   ([DNS rebinding](https://en.wikipedia.org/wiki/DNS_rebinding)). Its requests carry that name in `Host`. So a
//!   server without a key answers only to the names of the local computer.
//! - *The type.* A body must be declared as JSON, which a web page can't do for a server other than its own.
//! - *The size.* A body has a limited number of bytes and a limited time to arrive.

use std::hint::black_box;
use std::net::IpAddr;

use axum::body::{Body, HttpBody};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use axum::http::{HeaderMap, Request, StatusCode, Uri};
use futures_util::StreamExt;
use tokio::time::timeout;

use crate::api_error::ApiError;
use crate::connections::ClientLimits;

/// A body of up to this many limits is read before it is refused: most clients read no answer before all is sent.
const READ_TO_END: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    Key(String),
    /// Those whose host is a name of the local computer.
    Loopback,
}

impl Access {
    pub(crate) fn authorize(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let Access::Key(key) = self else { return self.check_host(uri, headers) };
        let given = headers.get(AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
        let (scheme, given) = given.split_at_checked(7).unwrap_or_default();
        if scheme.eq_ignore_ascii_case(b"bearer ") && is_same(key.as_bytes(), given) {
            return Ok(());
        }
        let message = "the API key is missing or wrong; send it as Authorization: Bearer KEY";
        Err(ApiError::new(StatusCode::UNAUTHORIZED, Some("invalid_api_key"), message))
    }

    /// Refuses a request for an unknown host. The key isn't asked for.
    pub(crate) fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let in_headers = headers.get(HOST).and_then(|host| host.to_str().ok());
        let host = uri.authority().map(|authority| authority.as_str()).or(in_headers);
        let is_one = headers.get_all(HOST).iter().count() <= 1;
        if matches!(self, Access::Key(_)) || is_one && host.is_some_and(is_local) {
            return Ok(());
        }
        let message = "this server answers to localhost, 127.0.0.1 and [::1] only; start it with --api-key for others";
        Err(ApiError::new(StatusCode::FORBIDDEN, Some("unknown_host"), message))
    }
}

/// Refuses a request from a page of a different site: it couldn't read the answer, but would occupy a viewer's place.
pub(crate) fn check_site(headers: &HeaderMap) -> Result<(), ApiError> {
    // Browsers set this header, and no page can change it.
    let site = headers.get("sec-fetch-site").map_or(&b"none"[..], |site| site.as_bytes());
    if matches!(site, b"none" | b"same-origin") {
        return Ok(());
    }
    let message = "only this server's own page gets this; open the server's address in the browser";
    Err(ApiError::new(StatusCode::FORBIDDEN, Some("another_site"), message))
}

/// Takes the same time wherever the first difference is; only the length can be inferred.
fn is_same(key: &[u8], given: &[u8]) -> bool {
    let differences = key.iter().zip(given).map(|(key, given)| usize::from(key ^ given));
    differences.fold(key.len() ^ given.len(), |all, one| black_box(all | one)) == 0
}

/// Whether a `Host`, with or without a port, names the local computer.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_loopback = |address: IpAddr| address.is_loopback();
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_loopback)
}

/// The body of a request, if it is JSON, has no more bytes than it may, and arrives in time.
pub(crate) async fn body(request: Request<Body>, limits: &ClientLimits) -> Result<Vec<u8>, ApiError> {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        let message = "the body is not declared as JSON; send Content-Type: application/json";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, None, message));
    }
    let read = timeout(limits.body, read(request.into_body(), limits.body_bytes)).await;
    read.unwrap_or_else(|_| {
        let message = format!("the body has not arrived within {} seconds", limits.body.as_secs());
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, None, message))
    })
}

async fn read(body: Body, at_most: usize) -> Result<Vec<u8>, ApiError> {
    let read_to_end = at_most.saturating_mul(READ_TO_END);
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut chunks = body.into_data_stream();
    let (mut bytes, mut len) = (Vec::new(), 0);
    while declared <= read_to_end && len <= read_to_end {
        let Some(chunk) = chunks.next().await else { break };
        let chunk = chunk.map_err(|_| ApiError::new(StatusCode::BAD_REQUEST, None, "the body is incomplete"))?;
        len += chunk.len();
        if len <= at_most {
            bytes.extend_from_slice(&chunk);
        }
    }
    if declared.max(len) > at_most {
        let message =
            format!("the body has more than {at_most} bytes, the limit of this server; send a shorter prompt");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, None, message));
    }
    Ok(bytes)
}
