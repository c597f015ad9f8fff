//! The program's tests: each starts it as people do. Most are scripts, see `script.rs`.
//!
//! `cargo test --package page-by-page-cli --features solution --test cli`.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/checkpoints.rs"]
#[allow(dead_code)]
mod checkpoints;
#[path = "../support/hostile.rs"]
#[allow(dead_code)]
mod hostile;
#[path = "../support/program.rs"]
#[allow(dead_code)]
mod program;

mod batch;
mod commands;
mod flags;
mod gains;
mod page_file;
mod refusals;
mod reports;
mod script;
mod stories;
mod talking;

/// These tests run on the reference: they stand on no chapter of a reader's.
mod whose_code {
    pub const STANDS_ON: &[&str] = &[];
}
