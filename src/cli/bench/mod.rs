//! `bench`: measures the engine against the memory, and the caches against each other.

mod caches;
mod engine;
mod fragmentation;
mod waste;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde::Serialize;

/// Measure the engine and the caches
///
/// Times depend on the machine and on what else it does; ratios are taken within one run. Build with --release.
#[derive(Args)]
pub struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Engine(engine::Engine),
    Caches(caches::Caches),
    Waste(waste::Waste),
    Fragmentation(fragmentation::Fragmentation),
}

#[derive(Args)]
struct Output {
    /// Write the numbers to this file too, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Bench {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.what {
            What::Engine(command) => command.run(),
            What::Caches(command) => command.run(),
            What::Waste(command) => command.run(),
            What::Fragmentation(command) => command.run(),
        }
    }
}

impl Output {
    fn write(&self, numbers: &impl Serialize) -> Result<()> {
        match &self.json {
            Some(file) => write_json(file, numbers),
            None => Ok(()),
        }
    }
}

fn write_json(file: &Path, numbers: &impl Serialize) -> Result<()> {
    let json = serde_json::to_string_pretty(numbers)?;
    std::fs::write(file, json + "\n").with_context(|| format!("cannot write {}", file.display()))
}
