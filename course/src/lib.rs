//! The course as a library: what build script, program and tools need to know about chapters, stubs and checks.
//!
//! | Module | Answers |
//! |---|---|
//! | [`chapters`] | Which chapters are there, where do their files lie, and how far has the reader come? |
//! | [`marks`] | Which stub does a solution give? |
//! | [`stub`] | Is this file the stub that was handed out, and may it be compiled? |
//! | [`lesson`] | Which tasks, hints and questions does a chapter's page have? (feature `lesson`) |
//!
//! Without features it uses nothing but the standard library, because the engine's build script depends on it.

pub mod chapters;
#[cfg(feature = "lesson")]
pub mod lesson;
pub mod marks;
pub mod stub;
