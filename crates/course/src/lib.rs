//! The course as a library: what build script, program and tools need to know about chapters, stubs and checks.
//!
//! | Module | Answers |
//! |---|---|
//! | [`chapters`] | Which chapters are there, where are their files, how far has the reader come, what depends on what? |
//! | [`marks`] | Which stub does a solution give? |
//! | [`source`] | Is this file the stub that was handed out, and may it be compiled? |
//! | [`figures`] | Which figures are there, and which chapters does each depend on? |
//! | [`watch`] | Which files have been edited since the last look? |
//! | [`includes`] | What does a page say once mdBook has put its includes in? |
//! | [`lesson`] | Which tasks, hints and questions does a chapter's page have? |
//! | [`record`] | What did the last run of each chapter's checks find? (feature `record`) |
//! | [`cargo`] | How is cargo run, followed and ended? (feature `run`) |
//! | [`libtest`] | Which tests ran, how did they end, and what did they print? (feature `run`) |
//! | [`served`] | Where is the book served, and how is a page of it opened? (feature `run`) |
//!
//! An error is a line for the reader: what is wrong, and what to do about it.
//!
//! Without features it uses nothing but the standard library, because the engine's build script depends on it.

#[cfg(feature = "run")]
pub mod cargo;
pub mod chapters;
pub mod figures;
pub mod includes;
pub mod lesson;
#[cfg(feature = "run")]
pub mod libtest;
pub mod marks;
#[cfg(feature = "record")]
pub mod record;
#[cfg(feature = "run")]
pub mod served;
pub mod source;
pub mod watch;
