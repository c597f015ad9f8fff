//! The program's tests: each starts it as people do. Most are scripts, see `script.rs`.
//!
//! `cargo test --package page-by-page-cli --features solution --test cli`.

mod batch;
mod commands;
mod flags;
mod gains;
mod page_file;
#[path = "../program.rs"]
#[allow(dead_code)]
mod program;
mod refusals;
mod reports;
mod script;
mod stories;
mod talking;
