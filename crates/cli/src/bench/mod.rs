//! `bench`: measures the engine against the memory, and the caches against each other.
//!
//! What is counted comes from the engine's `experiments`; here are the times. Each benchmark returns a [`Report`],
//! which is printed and written in one place.

mod attention;
mod batch;
mod disk;
mod engine;
mod experiments;
mod formats;
mod machine;
mod speculation;
mod times;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use page_by_page::experiments::PAGE_SIZE;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::options::ModelOption;
use crate::output::{self, Table, print, thousands};
use times::{Times, turns};

/// Measure the engine and the caches
///
/// Times depend on the machine and on what else it does; ratios are taken within one run. Build with --release.
#[derive(Args)]
pub struct Bench {
    #[command(subcommand)]
    benchmark: Benchmark,
    /// Write the numbers to this file too, as JSON
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Benchmark {
    Engine(engine::EngineBench),
    Machine(machine::MachineBench),
    Batch(batch::BatchBench),
    #[command(flatten)]
    Experiment(experiments::Experiment),
    Attention(attention::AttentionBench),
    Disk(disk::DiskBench),
    Formats(formats::FormatsBench),
    Speculation(speculation::SpeculationBench),
}

/// What a benchmark found: as text, and as the JSON of `--json`.
struct Report {
    text: String,
    json: Value,
}

impl Report {
    fn table(text_columns: usize, group: usize, rows: Vec<Row>) -> Result<Self> {
        Ok(Report { text: table(text_columns, group, &rows), json: numbers(rows) })
    }

    /// The report of one model. `more`: an object, whose fields follow the model's name and the number of threads.
    fn of_model(model: &ModelOption, text: String, more: Value) -> Result<Self> {
        let mut json = json!({
            "model": model.name(), "matmul_dtype": model.matmul_dtype.name(), "threads": rayon::current_num_threads()
        });
        if let (Value::Object(json), Value::Object(more)) = (&mut json, more) {
            json.extend(more);
        }
        Ok(Report { text, json })
    }
}

impl Bench {
    pub fn run(self) -> Result<()> {
        // A file that cannot be written is refused before anything is measured.
        self.json.as_deref().map_or(Ok(()), output::ensure_writable)?;
        let report = match self.benchmark {
            Benchmark::Engine(bench) => bench.run(),
            Benchmark::Machine(bench) => bench.run(),
            Benchmark::Batch(bench) => bench.run(),
            Benchmark::Experiment(bench) => bench.run(),
            Benchmark::Attention(bench) => bench.run(),
            Benchmark::Disk(bench) => bench.run(),
            Benchmark::Formats(bench) => bench.run(),
            Benchmark::Speculation(bench) => bench.run(),
        }?;
        print(&report.text)?;
        self.json.map_or(Ok(()), |file| output::write_file(&file, format!("{:#}\n", report.json).as_bytes()))
    }
}

/// A line of a table. For JSON, the heading of each cell is the key of its number.
#[derive(Default)]
struct Row {
    numbers: Map<String, Value>,
    cells: Vec<(&'static str, String)>,
}

impl Row {
    fn cell(self, heading: &'static str, number: impl Serialize, shown: impl Into<String>) -> Self {
        let mut row = self.number(heading, number);
        row.cells.push((heading, shown.into()));
        row
    }

    /// A number for JSON alone.
    fn number(mut self, key: &'static str, number: impl Serialize) -> Self {
        self.numbers.insert(key.into(), json!(number));
        self
    }

    fn text(self, heading: &'static str, text: impl ToString) -> Self {
        self.cell(heading, text.to_string(), text.to_string())
    }

    fn count(self, heading: &'static str, count: impl TryInto<u64> + Serialize + Copy) -> Self {
        self.cell(heading, count, thousands(count))
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

fn numbers(rows: Vec<Row>) -> Value {
    rows.into_iter().map(|row| row.numbers).collect()
}
