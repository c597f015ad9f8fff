//! Page by Page: build a paged KV cache in Rust.
//!
//! The crate is a small inference engine that is complete but for its memory: you write that, chapter by chapter, in
//! `exercises/`. The way of a token through the modules:
//!
//! ```text
//!   prompt ── tokenizer ── engine ── model ── kernels        logits ── sampler ── next token
//!                            │         │ reads: checkpoint
//!                            │         └ keeps keys and values in: cache ◄── chapters
//!                            └ the loop itself is chapter 1
//! ```

/// The contract between the model and its memory: [`cache::KvCache`], its shapes, its errors. Start here.
pub mod cache;
/// The course: one module a chapter, the reader's or the reference's.
pub mod chapters;
/// A model folder on disk: memory-mapped safetensors, checked before use, never copied.
pub mod checkpoint;
/// What the generation loop asks of a model, with a cache or without.
pub mod engine;
/// The arithmetic, in one fixed order per sum: the only place with SIMD.
pub mod kernels;
/// Qwen3: tokens in, logits out.
pub mod model;
/// From logits to the next token.
pub mod sampler;
/// Text to tokens and back, whole characters only.
pub mod tokenizer;
