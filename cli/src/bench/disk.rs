//! `bench disk`: what it takes to read a page, and what to compute it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use page_by_page::cache::in_place::CacheRef;
use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::chapters::ch10_fork::ForkCache;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::chapters::ch16_pages_on_disk::PageFile;
use page_by_page::disk::PageShape;
use page_by_page::disk::file_disk::FileDisk;
use page_by_page::experiments::attention::same_bits;
use page_by_page::model::{LogitRows, Model};

use super::{Benchmark, Report, Times, paged_model, turns};
use crate::options::RowOptions;
use crate::output::{Object, Table, count, rate, thousands};
use crate::require;

/// Compare reading pages from a file with computing them
///
/// A text is read by the model, its pages are written to a file, and read back into another slab, where the model goes on: with
/// the same bits, or this fails. All takes turns. The file is still in the system's memory when it is read; so the last
/// line says how slow a disk may be before computing is as quick.
#[derive(Args)]
#[command(after_help = "\
Examples:
  page-by-page bench disk
  page-by-page bench disk --kv-dtype int8 --tokens 1024
  page-by-page bench disk --model /tmp/qwen3-0.6b --tokens 256 --turns 3")]
pub struct Disk {
    /// Model folder, or a bundled model: storyteller, storyteller-draft
    #[arg(long, value_name = "DIR", default_value = "storyteller")]
    model: PathBuf,
    /// Tokens of the text
    #[arg(long, value_name = "N", default_value_t = 512)]
    tokens: usize,
    /// Slots in a page
    #[arg(long, value_name = "P", default_value_t = 16)]
    page_size: usize,
    /// How often to measure
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    turns: u16,
    /// Folder for the file, which is removed again [default: the system's for temporary files]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    #[command(flatten)]
    rows: RowOptions,
}

/// Pool, tables, slab, forks, the prefix cache, and the file.
const CHAPTERS: [usize; 6] = [4, 5, 6, 10, 11, 16];

/// How long each part took.
#[derive(Default)]
struct Parts {
    compute: Times,
    write: Times,
    read: Times,
    check_and_copy: Times,
}

/// Removed when this is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Benchmark for Disk {
    fn run(self) -> Result<Report> {
        require::chapters(&CHAPTERS)?;
        let model = paged_model(&self.model, self.rows, self.page_size)?;
        let positions = model.config().max_positions;
        ensure!(
            self.tokens > self.page_size && self.tokens <= positions,
            "a text of {} in pages of {}: give --tokens from {} to {}, the positions of the model",
            count(self.tokens, "token"),
            thousands(self.page_size),
            thousands((self.page_size as u64).saturating_add(1)),
            thousands(positions)
        );
        let n_pages = self.tokens.div_ceil(self.page_size);
        require::pages(model.kv_layout(), self.page_size, 2 * n_pages)?;
        require::memory("reading the text", model.step_bytes(self.tokens, 1), "give fewer --tokens")?;

        let folder = self.folder.clone().unwrap_or_else(std::env::temp_dir);
        let scratch = Scratch(folder.join(format!("page-by-page-bench-{}.pages", std::process::id())));
        let at = || scratch.0.display().to_string();
        let disk = FileDisk::open(&scratch.0).with_context(at)?;
        if cfg!(unix) {
            // An open file needs no name: however the program ends, nothing is left.
            let _ = std::fs::remove_file(&scratch.0);
        }
        let shape = PageShape::of(&model, self.page_size);
        let vocab_size = model.config().vocab_size;
        let mut parts = Parts::default();
        let n_turns = usize::from(self.turns);
        for turn in turns("measuring", n_turns..n_turns, Duration::ZERO) {
            // Different tokens each time, so that the file has none of them.
            let tokens: Vec<u32> =
                (0..self.tokens).map(|i| ((i * 7919 + turn * 104_729) % vocab_size) as u32).collect();
            let most_bytes = shape.offset(self.full_pages());
            let mut file = PageFile::open(Box::new(disk.clone()), shape, most_bytes).with_context(at)?;
            self.turn(&model, &tokens, &mut file, &mut parts)?;
        }
        self.report(&model, &shape, &parts)
    }
}

impl Disk {
    /// All but the last token are in full pages that can be found.
    fn full_pages(&self) -> usize {
        (self.tokens - 1) / self.page_size
    }

    /// Computes the tokens, writes their pages, reads them back and goes on.
    fn turn(&self, model: &Model, tokens: &[u32], file: &mut PageFile, parts: &mut Parts) -> Result<()> {
        let (n_pages, full) = (tokens.len().div_ceil(self.page_size), self.full_pages());
        let (in_pages, rest) = tokens.split_at(full * self.page_size);
        let slab = PageSlab::new(model.kv_layout(), self.page_size, n_pages)?;
        let mut cache = ForkCache::new(&slab)?;
        parts.compute.of(|| read(model, in_pages, &mut cache, LogitRows::None))?;
        let written = parts.write.of(|| file.keep(in_pages, cache.table(), &slab.borrow()))?;
        let expected = read(model, rest, &mut cache, LogitRows::Newest(1))?;

        let other = PageSlab::new(model.kv_layout(), self.page_size, n_pages)?;
        let mut prefixes = PrefixCache::new(self.page_size)?;
        let wanted = file.wanted(tokens, &mut prefixes, &other)?;
        let pages: Vec<_> = parts.read.of(|| wanted.into_iter().map(|wanted| file.read(wanted)).collect());
        let brought_back = parts.check_and_copy.of(|| file.bring_back(tokens, &pages, &mut prefixes, &other))?;
        ensure!(
            (written, brought_back) == (full, full),
            "of {full} pages {written} were written and {brought_back} brought back; run the checks of chapter 16"
        );

        let mut cache = ForkCache::with_prefix(&other, &mut prefixes, tokens)?;
        let found = read(model, rest, &mut cache, LogitRows::Newest(1))?;
        ensure!(
            same_bits(&found, &expected),
            "the logits after pages that were read are others than after pages that were computed; run the checks of chapter 16"
        );
        Ok(())
    }

    fn report(&self, model: &Model, shape: &PageShape, parts: &Parts) -> Result<Report> {
        let (pages, record_bytes) = (self.full_pages(), shape.record_bytes());
        let row_bytes = 2 * shape.numbers() * size_of::<f32>();
        let ms = |times: &Times| 1e3 * times.median() / pages as f64;
        let Parts { compute, write, read, check_and_copy } = parts;
        let [compute, write, read, check_and_copy] = [compute, write, read, check_and_copy].map(ms);
        let compute_over_read = compute / (read + check_and_copy);
        // A disk that gives this much takes as long to read a page as the model to compute it.
        let break_even = record_bytes as f64 / 1e3 / (compute - check_and_copy).max(1e-9);
        let mut table = Table::new(1, &["a page", "ms"]);
        let mut milliseconds = Object::default();
        let keyed = [("compute", compute), ("write", write), ("read", read), ("check_and_copy", check_and_copy)];
        for (part, ms) in keyed {
            table.line([part.replace('_', " "), format!("{ms:.3}")]);
            milliseconds = milliseconds.with(part, ms);
        }
        let text = format!(
            "{} in {} of {} slots, rows in {}: {} bytes of rows a page, {} in the file\n\n{}\ncomputing takes {} times as \
             long as reading, checking and copying\nreading pays as long as the disk gives more than {} MB/s\n",
            count(self.tokens, "token"),
            count(pages, "page"),
            self.page_size,
            model.row_format().name(),
            thousands(row_bytes),
            thousands(record_bytes),
            table.render(),
            rate(compute_over_read),
            rate(break_even)
        );
        let numbers = Object::default()
            .with("model", self.model.display().to_string())
            .with("threads", rayon::current_num_threads())
            .with("kv_dtype", model.row_format().name())
            .with("tokens", self.tokens)
            .with("page_size", self.page_size)
            .with("pages", pages)
            .with("turns", self.turns)
            .with("row_bytes", row_bytes)
            .with("record_bytes", record_bytes)
            .with("milliseconds_per_page", milliseconds)
            .with("compute_over_read", compute_over_read)
            .with("break_even_mb_per_second", break_even);
        Report::new(text, &numbers)
    }
}

/// The model reads tokens; the logits that are asked for.
fn read(model: &Model, tokens: &[u32], cache: &mut ForkCache, logits: LogitRows) -> Result<Vec<f32>> {
    let chunk = model.chunk_of(tokens, CacheRef::InPlace(cache), logits)?;
    Ok(model.forward(vec![chunk])?)
}
