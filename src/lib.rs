//! Page by Page: build a paged KV cache in Rust.
//!
//! The crate is a small inference engine that is complete but for its memory. You write that, chapter by chapter, in
//! `exercises/`. This is the way of a token through the modules:
//!
//! ```text
//!   prompt ── tokenizer ── engine ── model ── kernels        logits ── sampler ── next token
//!                            │         │ reads: checkpoint
//!                            │         └ keeps keys and values in: cache ◄── chapters
//!                            └ the loop itself is chapter 1
//! ```
//!
//! - [`cache`]: the contract between the model and its memory, its shapes and its errors, and a cache's rows [in
//!   place](cache::attention). Start here.
//! - [`cache_kind`]: the caches by name, and the one place where they are made.
//! - [`chapters`]: the course, one module a chapter, yours or the reference's.
//! - [`model`]: Qwen3, tokens in and logits out; its [checkpoint](model::checkpoint) and its
//!   [tokenizer](model::tokenizer).
//! - [`kernels`]: the arithmetic, in one fixed order for every sum; the only place with SIMD.
//! - [`generation`]: what generates one sequence asks of a model; [one sequence](generation::one_sequence) with any
//!   cache, and with [drafts](generation::drafting); how the next token is [chosen](generation::sampler), how
//!   [likely](generation::logprobs) tokens were, drafts by [lookup](generation::prompt_lookup), and
//!   [beams](generation::beams).
//! - [`serving`]: the loop around the scheduler, with many sequences in the pages of one slab. What [scheduler and
//!   loop](serving::schedule) agree on, and what a [page](serving::view) shows of a run.
//! - [`prefix_cache`]: what a scheduler asks of one.
//! - [`disk`]: rows in files. Pages of a prefix cache are read on a thread of their own, [one cache](disk::saved_cache) as
//!   a whole.
//! - [`simulation`]: a made-up world for schedulers, in which a seed decides everything. Chapter 15 breaks them in it.
//! - [`workload`]: requests that come and go in a pool of pages, counted without a model.
//! - [`experiments`]: what the chapters gain, counted on the code that is compiled.
//! - [`files`]: files read only if they are what they should be, written whole or not at all.
//! - [`escape`]: text from a file or a client, made safe for a terminal.
//! - [`english`]: numbers and lists as people read them; [`panics`]: what a panic says.

pub mod cache;
pub mod cache_kind;
pub mod chapters;
mod dice;
pub mod disk;
pub mod english;
pub mod escape;
pub mod experiments;
pub mod files;
pub mod generation;
pub mod model;
pub mod panics;
pub mod prefix_cache;
pub mod serving;
pub mod simulation;
pub mod workload;

pub use page_by_page_kernels as kernels;
