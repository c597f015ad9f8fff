//! `bench`: measures the engine against the memory, and the caches against each other.
//!
//! What is counted comes from the engine's `experiments`; here are the times. Each benchmark returns a [`Report`], which is
//! printed and written in one place.

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
mod times;
mod waste;
mod workload;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use page_by_page::cache::in_place::InPlace;
use page_by_page::cache::kind::{CacheKind, CacheSize};
use page_by_page::cache::{CacheError, KvLayout};
use page_by_page::experiments::{append, rows};
use page_by_page::model::Model;
use serde::Serialize;

use crate::options::RowOptions;
use crate::output::{Object, Table, mib, pretty_json, print, thousands};
use crate::{model_dir, require};
use times::{Rates, Times, turns};

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
    Engine(Command<engine::Engine>),
    Batch(Command<batch::Batch>),
    Caches(Command<caches::Caches>),
    Disk(Command<disk::Disk>),
    Waste(Command<waste::Waste>),
    Fragmentation(Command<fragmentation::Fragmentation>),
    Append(Command<append::Append>),
    Attention(Command<attention::AttentionBench>),
    Rewind(Command<rewind::Rewinding>),
    Samples(Command<samples::Samples>),
    Formats(Command<formats::Formats>),
    Speculation(Command<speculation::Speculation>),
    Workload(Command<workload::Workload>),
}

#[derive(Args)]
struct Command<B: Args> {
    #[command(flatten)]
    benchmark: B,
    /// Write the numbers to this file too, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One of the benchmarks, with its options.
trait Benchmark {
    /// Measures.
    fn run(self) -> Result<Report>;
}

/// What a benchmark has measured.
struct Report {
    /// For people.
    text: String,
    json: String,
}

impl Report {
    fn new(text: String, numbers: &impl Serialize) -> Result<Self> {
        Ok(Report { text, json: pretty_json(numbers)? })
    }
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

impl<B: Args + Benchmark> Command<B> {
    fn run(self) -> Result<()> {
        // A file that cannot be written is refused before anything is measured.
        self.json.as_deref().map_or(Ok(()), require::writable)?;
        let report = self.benchmark.run()?;
        print(&report.text)?;
        self.json.map_or(Ok(()), |file| require::write(&file, report.json.as_bytes()))
    }
}

/// What was measured in one case. A number has a key in JSON; if the table shows it, there is a cell with a heading.
#[derive(Default)]
struct Row {
    numbers: Object,
    cells: Vec<(String, String)>,
}

impl Row {
    /// The row, with a number that the table does not show.
    fn number(mut self, key: &'static str, value: impl Serialize) -> Self {
        self.numbers = self.numbers.with(key, value);
        self
    }

    /// The row, with a cell of the table.
    fn cell(mut self, heading: impl Into<String>, cell: impl Into<String>) -> Self {
        self.cells.push((heading.into(), cell.into()));
        self
    }

    /// The row, with a count that the table shows with its commas.
    fn count(self, key: &'static str, heading: &str, count: impl TryInto<u64> + Serialize + Copy) -> Self {
        self.number(key, count).cell(heading, thousands(count))
    }
}

impl Serialize for Row {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.numbers.serialize(serializer)
    }
}

/// A table of these rows, with an empty line after each `group` of them. The first `text_columns` columns hold text.
fn table(text_columns: usize, group: usize, rows: &[Row]) -> String {
    let heading = rows.iter().take(1).flat_map(|row| &row.cells).map(|(heading, _)| heading.as_str());
    let mut table = Table::new(text_columns, &heading.collect::<Vec<_>>());
    for (i, row) in rows.iter().enumerate() {
        if i > 0 && i % group.max(1) == 0 {
            table.line([""]);
        }
        table.line(row.cells.iter().map(|(_, cell)| cell.as_str()));
    }
    table.render()
}

/// The caches that keep rows, in the order of the book.
const KINDS: [CacheKind; 3] = [CacheKind::Flat, CacheKind::Contiguous, CacheKind::Paged];

/// Bytes of rows that a comparison may take; what it needs besides is less than as much again.
const MEMORY: usize = 1 << 30;

/// Refuses caches of this many slots in all, if their rows take too much memory for a comparison.
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
fn filled(kind: CacheKind, layout: KvLayout, tokens: usize, size: CacheSize) -> Result<Box<dyn InPlace>> {
    require::cache(kind, layout, size)?;
    let mut cache = kind.cache(layout, size)?.with_context(|| format!("{kind} keeps no rows"))?;
    append(cache.as_mut(), &rows(layout, tokens))?;
    Ok(cache)
}

/// A model whose rows are kept in pages of this size.
fn paged_model(dir: &Path, row_options: RowOptions, page_size: usize) -> Result<Model> {
    ensure!(page_size > 0, CacheError::NoSlots);
    let mut model = Model::open(&model_dir(dir))?;
    row_options.apply(&mut model, CacheKind::Paged)?;
    Ok(model)
}
