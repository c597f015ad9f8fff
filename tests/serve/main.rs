//! The server's tests: clients of every kind, one server each. `cargo test --package page-by-page-serve --features solution`.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/checkpoints.rs"]
#[allow(dead_code)]
mod checkpoints;
#[path = "../support/http.rs"]
#[allow(dead_code)]
mod http;
#[path = "../support/program.rs"]
#[allow(dead_code)]
mod program;
#[path = "../support/serving.rs"]
#[allow(dead_code)]
mod serving;

mod answers;
mod live_pages;
mod protocol;
mod refusals;
mod scores;
mod service;
mod stop_rules;
mod under_load;

/// These tests run on the reference: they stand on no chapter of a reader's.
mod whose_code {
    pub const STANDS_ON: &[&str] = &[];
}
