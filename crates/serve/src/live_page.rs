//! The page at `/`: the pages of the pool while sequences are generated. It is part of the program and loads nothing
//! from elsewhere.
//!
//! It shows what `/pages` streams. It can send requests and cancel sequences, as any client can.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};

/// The page can load its own style and script and reach its own server. It must not be framed by a different page.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// The files of the page: address, type and content.
pub const FILES: [(&str, &str, &str); 8] = [
    ("/", "text/html; charset=utf-8", include_str!("live_page/page.html")),
    ("/pool.css", "text/css; charset=utf-8", include_str!("live_page/pool.css")),
    ("/page.css", "text/css; charset=utf-8", include_str!("live_page/page.css")),
    ("/controls.js", "text/javascript; charset=utf-8", include_str!("../../../book/controls.js")),
    ("/words.js", "text/javascript; charset=utf-8", include_str!("../../../book/words.js")),
    ("/pool.js", "text/javascript; charset=utf-8", include_str!("live_page/pool.js")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("live_page/page.js")),
    ("/icon.svg", "image/svg+xml", include_str!("live_page/icon.svg")),
];

pub fn headers(kind: &'static str) -> [(HeaderName, &'static str); 5] {
    [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-cache"),
    ]
}
