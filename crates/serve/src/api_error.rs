//! Errors in OpenAI's protocol: a status, and an object that names the field and the reason.
//!
//! ```text
//!   {"error": {"message": "temperature is 3000, …", "type": "invalid_request_error", "param": "temperature", "code": null}}
//! ```

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use serde_json::{Value, json};

/// A request that is refused, or a sequence that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub status: StatusCode,
    /// What is wrong and what to do, in words.
    pub message: String,
    pub param: Option<&'static str>,
    /// What is wrong, for programs.
    pub code: Option<&'static str>,
    /// Seconds after which a retry makes sense.
    pub retry_after: Option<u32>,
}

impl ApiError {
    pub fn new(status: StatusCode, code: Option<&'static str>, message: impl Into<String>) -> Self {
        ApiError { status, message: message.into(), param: None, code, retry_after: None }
    }

    pub fn of_field(param: &'static str, message: impl Into<String>) -> Self {
        ApiError { param: Some(param), ..Self::new(StatusCode::BAD_REQUEST, None, message) }
    }

    /// The sequence can never fit. `param`: the field that asks for too much.
    pub fn too_long(param: &'static str, message: impl Into<String>) -> Self {
        ApiError { code: Some("context_length_exceeded"), ..Self::of_field(param, message) }
    }

    pub fn too_many_requests(message: impl Into<String>, retry_after: u32) -> Self {
        let refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, Some("rate_limit_exceeded"), message);
        ApiError { retry_after: Some(retry_after), ..refusal }
    }

    pub fn stopping() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, Some("server_stopping"), "the server is stopping; try again later")
    }

    pub fn timed_out() -> Self {
        let message = "the request ran into the time-out of this server; ask for fewer tokens";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, Some("time_limit"), message)
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, Some("server_error"), message)
    }

    pub fn engine_gone() -> Self {
        Self::failed("the engine has stopped after a fault; the server's log says which")
    }

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

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let body = self.object().to_string();
        let mut response = (self.status, [(CONTENT_TYPE, "application/json")], body).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
