//! The whole tool from outside: every test runs the program on a small book of its own.

mod check;
mod commands;
mod engine;
#[cfg(unix)]
mod own_copy;
mod publish;
mod serve;
mod style;
mod support;
