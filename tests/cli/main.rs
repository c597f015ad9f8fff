//! The program's tests: each starts it as people do. `cargo test --package page-by-page-cli --features solution --test cli`.

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
mod bench_attention;

mod commands;
mod drafts;
mod errors;
mod flags;
mod gains;
mod generate;
mod page_file;
mod row_formats;
mod samples;
mod saved_cache;
mod several;
mod simulation;
mod stories;
mod talking;
mod workload;

/// These tests run on the reference: they stand on no chapter of a reader's.
mod whose_code {
    pub const STANDS_ON: &[&str] = &[];
}
