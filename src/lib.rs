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
//!
//! - [`cache`]: the contract between the model and its memory, its shapes and its errors. Start here.
//! - [`chapters`]: the course, one module a chapter, yours or the reference's.
//! - [`beams`]: the likeliest texts, looked for side by side.
//! - [`engine`]: what the generation loop asks of a model, with a cache or without.
//! - [`model`]: Qwen3, tokens in and logits out.
//! - [`kernels`]: the arithmetic, in one fixed order for every sum; the only place with SIMD.
//! - [`prefixes`] and [`schedule`]: what a prefix cache does, and what a scheduler and the loop around it tell each other.
//! - [`workload`]: texts that come and go in a pool of pages, counted without a model.
//! - [`scoring`]: how likely tokens were, those of a prompt, too.
//! - [`serving`]: the loop around the scheduler: many texts in the pages of one slab, each with a sampler of its own.

//! - [`view`]: what there is to see of these texts: who has each page, and how far each text has come.
//! - [`simulation`]: a made-up world for schedulers, in which a seed decides everything. Chapter 15 breaks them in it.
//! - [`checkpoint`]: a model folder on disk, memory-mapped, checked before use, never copied.
//! - [`disk`]: pages of a prefix cache in a file, read on a thread of its own.
//! - [`snapshot`]: a cache as a file, for any cache to go on from.
//! - [`files`]: files read only if they are what they should be, written whole or not at all; [`shown`]: what came from
//!   one, in a message.
//! - [`regions`]: contiguous regions in one memory, first fit: what pages replace.
//! - [`in_place`]: a cache's rows where they lie, for attention to read without a copy.
//! - [`page_metadata`]: page tables as the arrays that other engines' kernels read.
//! - [`lookup`]: drafts for speculation without a second model.
//! - [`tokenizer`] and [`sampler`]: from text to tokens and back, and from logits to the next token.

pub mod beams;
pub mod cache;
pub mod chapters;
pub mod checkpoint;
pub mod disk;
pub mod engine;
pub mod files;
pub mod in_place;
pub mod lookup;
pub mod model;
pub mod page_metadata;
pub mod prefixes;
pub mod regions;
pub mod sampler;
pub mod schedule;
pub mod scoring;
pub mod serving;
pub mod shown;
pub mod simulation;
pub mod snapshot;
pub mod tokenizer;
pub mod view;
pub mod workload;

pub use page_by_page_kernels as kernels;
