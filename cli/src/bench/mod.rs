//! `bench`: measures the engine against the memory, and the caches against each other.

mod append;
mod attention;
mod batch;
mod caches;
mod disk;
mod engine;
mod formats;
mod fragmentation;
mod rewind;
mod samples;
mod speculation;
mod waste;
mod workload;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use page_by_page::cache::in_place::InPlace;
use page_by_page::cache::kind::{CacheKind, CacheSize};
use page_by_page::cache::{CacheError, KvLayout, Rewind};
use serde::Serialize;

use crate::output::{mib, thousands};
use crate::require;

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
    Batch(batch::Batch),
    Caches(caches::Caches),
    Disk(disk::Disk),
    Waste(waste::Waste),
    Fragmentation(fragmentation::Fragmentation),
    Append(append::Append),
    Attention(attention::AttentionBench),
    Rewind(rewind::Rewinding),
    Samples(samples::Samples),
    Formats(formats::Formats),
    Speculation(speculation::Speculation),
    Workload(workload::Workload),
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
            What::Batch(command) => command.run(),
            What::Caches(command) => command.run(),
            What::Disk(command) => command.run(),
            What::Waste(command) => command.run(),
            What::Fragmentation(command) => command.run(),
            What::Append(command) => command.run(),
            What::Attention(command) => command.run(),
            What::Rewind(command) => command.run(),
            What::Samples(command) => command.run(),
            What::Formats(command) => command.run(),
            What::Speculation(command) => command.run(),
            What::Workload(command) => command.run(),
        }
    }
}

impl Output {
    /// Refuses, before anything is measured, a file that could not be written.
    fn check(&self) -> Result<()> {
        match &self.json {
            Some(file) => require::writable(file),
            None => Ok(()),
        }
    }

    fn write(&self, numbers: &impl Serialize) -> Result<()> {
        match &self.json {
            Some(file) => require::write(file, (serde_json::to_string_pretty(numbers)? + "\n").as_bytes()),
            None => Ok(()),
        }
    }
}

/// The caches that keep rows, in the order of the book.
const KINDS: [CacheKind; 3] = [CacheKind::Flat, CacheKind::Contiguous, CacheKind::Paged];

/// Bytes of rows that a comparison may take; what it needs on the way is less than as much again.
const MEMORY: usize = 1 << 30;

/// Refuses caches with so many slots in all, if their rows take too much memory to measure in passing.
fn require_little_memory(layout: KvLayout, slots: usize) -> Result<()> {
    let bytes = require::slot_bytes(layout, slots)?;
    ensure!(
        bytes <= MEMORY,
        "{} slots of {} bytes are needed at once, {} of at most {}; give shorter lengths, or smaller pages",
        thousands(slots),
        thousands(bytes / slots.max(1)),
        mib(bytes),
        mib(MEMORY)
    );
    require::slots(layout, slots)
}

/// A cache that holds `tokens` tokens.
fn filled(kv: CacheKind, layout: KvLayout, tokens: usize, room: CacheSize) -> Result<Box<dyn InPlace>> {
    require::cache(kv, layout, room)?;
    let mut cache = kv.cache(layout, room)?.with_context(|| format!("{kv} keeps no rows"))?;
    append(cache.as_mut(), &rows(layout, tokens))?;
    Ok(cache)
}

/// Rows of `tokens` tokens, all the same: no model reads them.
fn rows(layout: KvLayout, tokens: usize) -> Vec<f32> {
    vec![1.0; tokens * layout.kv_width()]
}

/// Makes room for new tokens and writes their rows in every layer, `rows` as keys and as values.
fn append(cache: &mut dyn Rewind, rows: &[f32]) -> Result<(), CacheError> {
    let layout = cache.layout();
    cache.extend(layout.rows(rows, rows))?;
    for layer in 0..layout.n_layers {
        cache.write(layer, rows, rows);
    }
    Ok(())
}

/// The median, in seconds. `times`: at least one.
fn median(times: &[Duration]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort();
    sorted[sorted.len() / 2].as_secs_f64()
}
