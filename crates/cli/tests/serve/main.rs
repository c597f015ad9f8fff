//! The server's tests: clients of every kind, one server each. `cargo test-server` runs them.

mod hostile_templates;
mod http;
mod live_pages;
#[path = "../program.rs"]
#[allow(dead_code)]
mod program;
mod prompt_logprobs;
mod protocol;
mod refusals;
mod service;
mod serving;
mod stop_params;
mod under_load;
