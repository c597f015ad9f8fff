//! What is wrong with a request, as OpenAI's protocol says it: a status, and an object that names what and why.
//!
//! ```text
//!   {"error": {"message": "temperature is 3000, …", "type": "invalid_request_error", "param": "temperature", "code": null}}
//! ```

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use serde_json::{Value, json};

/// A request that gets no text, or a text that has failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The status of the answer.
    pub status: StatusCode,
    /// What to do now, in words.
    pub message: String,
    /// The field of the request that is wrong.
    pub param: Option<&'static str>,
    /// What is wrong, for programs.
    pub code: Option<&'static str>,
    /// Seconds after which it may be worth another try.
    pub retry_after: Option<u32>,
}

impl Refusal {
    /// A refusal with this status.
    pub fn new(status: StatusCode, code: Option<&'static str>, message: impl Into<String>) -> Self {
        Refusal { status, message: message.into(), param: None, code, retry_after: None }
    }

    /// A field of the request is wrong.
    pub fn of_field(param: &'static str, message: impl Into<String>) -> Self {
        Refusal { param: Some(param), ..Self::new(StatusCode::BAD_REQUEST, None, message) }
    }

    /// The text can never fit. `param`: what asks for so much.
    pub fn too_long(param: &'static str, message: impl Into<String>) -> Self {
        Refusal { code: Some("context_length_exceeded"), ..Self::of_field(param, message) }
    }

    /// There is no room now.
    pub fn full(message: impl Into<String>, retry_after: u32) -> Self {
        let refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, Some("rate_limit_exceeded"), message);
        Refusal { retry_after: Some(retry_after), ..refusal }
    }

    /// The server is about to end.
    pub fn stopping() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            Some("server_stopping"),
            "the server is about to stop; ask again later",
        )
    }

    /// The text took longer than it may.
    pub fn too_slow() -> Self {
        let message = "the text was not written within the time that this server gives a request; ask for fewer tokens";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, Some("time_limit"), message)
    }

    /// What is not the client's fault.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, Some("server_error"), message)
    }

    /// The engine is no more.
    pub fn engine_gone() -> Self {
        Self::failed("the engine has stopped after a fault; the server's log says which")
    }

    /// The object that the protocol has for it.
    pub fn object(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.object().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
