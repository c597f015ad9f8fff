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

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use page_by_page::cache::KvLayout;
use page_by_page::cache::in_place::InPlace;
use page_by_page::cache::kind::{CacheKind, CacheSize};
use page_by_page::experiments::{PAGE_SIZE, append, bundled, rows};
use page_by_page::model::ModelConfig;
use serde::Serialize;

use crate::options::ModelOption;
use crate::output::{Object, Table, pretty_json, print, thousands};
use crate::require;
use times::{Rates, Times, turns};

/// Measure the engine and the caches
///
/// Times depend on the machine and on what else it does; ratios are taken within one run. Build with --release.
#[derive(Args)]
pub struct Bench {
    #[command(subcommand)]
    what: What,
    /// Write the numbers to this file too, as JSON
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
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

struct Report {
    text: String,
    json: String,
}

impl Report {
    fn new(text: String, numbers: &impl Serialize) -> Result<Self> {
        Ok(Report { text, json: pretty_json(numbers)? })
    }

    fn table(text_columns: usize, group: usize, rows: &[Row]) -> Result<Self> {
        Report::new(table(text_columns, group, rows), &rows)
    }
}

impl Bench {
    pub fn run(self) -> Result<()> {
        // A file that cannot be written is refused before anything is measured.
        self.json.as_deref().map_or(Ok(()), require::writable)?;
        let report = match self.what {
            What::Engine(bench) => bench.run(),
            What::Batch(bench) => bench.run(),
            What::Caches(bench) => bench.run(),
            What::Disk(bench) => bench.run(),
            What::Waste(bench) => bench.run(),
            What::Fragmentation(bench) => bench.run(),
            What::Append(bench) => bench.run(),
            What::Attention(bench) => bench.run(),
            What::Rewind(bench) => bench.run(),
            What::Samples(bench) => bench.run(),
            What::Formats(bench) => bench.run(),
            What::Speculation(bench) => bench.run(),
            What::Workload(bench) => bench.run(),
        }?;
        print(&report.text)?;
        self.json.map_or(Ok(()), |file| require::write(&file, report.json.as_bytes()))
    }
}

/// A line of a table. For JSON, the heading of each cell is the key of its number.
#[derive(Default)]
struct Row {
    numbers: Object,
    cells: Vec<(&'static str, String)>,
}

impl Row {
    fn cell(mut self, heading: &'static str, number: impl Serialize, shown: impl Into<String>) -> Self {
        self.numbers = self.numbers.with(heading, number);
        self.cells.push((heading, shown.into()));
        self
    }

    /// A number for JSON alone.
    fn number(mut self, key: &'static str, number: impl Serialize) -> Self {
        self.numbers = self.numbers.with(key, number);
        self
    }

    fn text(self, heading: &'static str, text: impl ToString) -> Self {
        self.cell(heading, text.to_string(), text.to_string())
    }

    fn count(self, heading: &'static str, count: impl TryInto<u64> + Serialize + Copy) -> Self {
        self.cell(heading, count, thousands(count))
    }
}

impl Serialize for Row {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.numbers.serialize(serializer)
    }
}

/// A table of these rows, with an empty line after each `group` of them. The first `text_columns` columns hold text.
fn table(text_columns: usize, group: usize, rows: &[Row]) -> String {
    let heading = rows.iter().take(1).flat_map(|row| &row.cells).map(|(heading, _)| *heading);
    let mut table = Table::new(text_columns, &heading.collect::<Vec<_>>());
    for (i, row) in rows.iter().enumerate() {
        if i > 0 && i % group.max(1) == 0 {
            table.line([""]);
        }
        table.line(row.cells.iter().map(|(_, cell)| cell.as_str()));
    }
    table.render()
}

/// The model of a benchmark, and how many threads compute.
fn named_model(model: &ModelOption) -> Object {
    Object::default().with("model", model.name()).with("threads", rayon::current_num_threads())
}

/// The caches that keep rows, in the order of the book.
const KINDS: [CacheKind; 3] = [CacheKind::Flat, CacheKind::Contiguous, CacheKind::Paged];

fn bundled_layout() -> Result<KvLayout> {
    Ok(ModelConfig::open(&bundled("storyteller"))?.kv_layout())
}

fn filled(kind: CacheKind, layout: KvLayout, tokens: usize, size: CacheSize) -> Result<Box<dyn InPlace>> {
    let mut cache = kind.cache(layout, size)?.with_context(|| format!("{kind} keeps no rows"))?;
    append(cache.as_mut(), &rows(layout, tokens))?;
    Ok(cache)
}
