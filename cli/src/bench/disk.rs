//! `bench disk`: what it takes to read a page, and what to compute it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use page_by_page::cache::in_place::CacheRef;
use page_by_page::cache::kind::CacheKind;
use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::chapters::ch10_fork::ForkCache;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::chapters::ch16_pages_on_disk::PageFile;
use page_by_page::disk::PageShape;
use page_by_page::disk::file::FileDisk;
use page_by_page::model::{LogitRows, Model};
use serde::Serialize;

use super::{Output, median};
use crate::options::RowOptions;
use crate::output::{Progress, Table, count, print, rate, thousands};
use crate::{model_dir, require};

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
    #[command(flatten)]
    output: Output,
}

/// Pool, tables, slab, forks, the prefix cache, and the file.
const CHAPTERS: [usize; 6] = [4, 5, 6, 10, 11, 16];

#[derive(Serialize)]
struct Numbers {
    model: String,
    threads: usize,
    kv_dtype: &'static str,
    tokens: usize,
    page_size: usize,
    pages: usize,
    turns: usize,
    /// Of keys and values of a page.
    row_bytes: usize,
    /// Of a page in the file.
    record_bytes: usize,
    milliseconds_per_page: Milliseconds,
    /// How many times as long as reading, checking and copying a page.
    compute_over_read: f64,
    /// A disk that gives this much takes as long to read a page as the model to compute it.
    break_even_mb_per_second: f64,
}

#[derive(Serialize)]
struct Milliseconds {
    compute: f64,
    write: f64,
    read: f64,
    check_and_copy: f64,
}

/// How long each part took, once for each turn.
#[derive(Default)]
struct Times {
    compute: Vec<Duration>,
    write: Vec<Duration>,
    read: Vec<Duration>,
    check_and_copy: Vec<Duration>,
}

/// Removed when this is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Disk {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        self.output.check()?;
        require::chapters(&CHAPTERS)?;
        ensure!(self.page_size > 0, "a page needs at least one slot: the page size is 0");
        let mut model = Model::open(&model_dir(&self.model))?;
        self.rows.apply(&mut model, CacheKind::Paged)?;
        let positions = model.config().max_positions;
        ensure!(
            self.tokens > self.page_size && self.tokens <= positions,
            "a text of {} in pages of {}: give --tokens from {} to {}, the positions of the model",
            count(self.tokens, "token"),
            thousands(self.page_size as u64),
            thousands((self.page_size as u64).saturating_add(1)),
            thousands(positions as u64)
        );
        let n_pages = self.tokens.div_ceil(self.page_size);
        require::pages(model.kv_layout(), self.page_size, 2 * n_pages)?;
        require::memory("reading the text", model.step_bytes(self.tokens, 1), "give fewer --tokens")?;

        let folder = self.folder.clone().unwrap_or_else(std::env::temp_dir);
        let scratch = Scratch(folder.join(format!("page-by-page-bench-{}.pages", std::process::id())));
        let at = || scratch.0.display().to_string();
        let disk = FileDisk::open(&scratch.0).with_context(at)?;
        if cfg!(unix) {
            // An open file needs no name: whatever ends the program, nothing is left.
            let _ = std::fs::remove_file(&scratch.0);
        }
        let shape = PageShape::of(&model, self.page_size);
        let vocab_size = model.config().vocab_size;
        // All but the last token are in full pages that can be found.
        let full = (self.tokens - 1) / self.page_size;
        let mut times = Times::default();
        let progress = Progress::new("measuring", u64::from(self.turns));
        for turn in 0..usize::from(self.turns) {
            // Another text each time: the file has none of it.
            let text: Vec<u32> = (0..self.tokens).map(|i| ((i * 7919 + turn * 104_729) % vocab_size) as u32).collect();
            let most_bytes = shape.offset(full);
            let mut file = PageFile::open(Box::new(disk.clone()), shape, most_bytes).with_context(at)?;
            self.turn(&model, &text, &mut file, &mut times)?;
            progress.advance(1);
        }
        drop(progress);
        let numbers = self.numbers(&model, &shape, full, &times);
        print(&numbers.shown())?;
        self.output.write(&numbers)
    }

    /// Computes a text, writes its pages, reads them back and goes on.
    fn turn(&self, model: &Model, text: &[u32], file: &mut PageFile, times: &mut Times) -> Result<()> {
        let n_pages = text.len().div_ceil(self.page_size);
        let slab = PageSlab::new(model.kv_layout(), self.page_size, n_pages)?;
        let mut cache = ForkCache::new(&slab)?;
        let full = (text.len() - 1) / self.page_size;
        let in_pages = full * self.page_size;
        let start = Instant::now();
        read(model, &text[..in_pages], &mut cache, LogitRows::None)?;
        times.compute.push(start.elapsed());
        let start = Instant::now();
        let written = file.keep(&text[..in_pages], cache.table(), &slab.borrow())?;
        times.write.push(start.elapsed());
        let expected = read(model, &text[in_pages..], &mut cache, LogitRows::Newest(1))?;

        let other = PageSlab::new(model.kv_layout(), self.page_size, n_pages)?;
        let mut prefixes = PrefixCache::new(self.page_size)?;
        let wanted = file.wanted(text, &mut prefixes, &other)?;
        let start = Instant::now();
        let pages: Vec<_> = wanted.into_iter().map(|wanted| file.read(wanted)).collect();
        times.read.push(start.elapsed());
        let start = Instant::now();
        let brought_back = file.bring_back(text, &pages, &mut prefixes, &other)?;
        times.check_and_copy.push(start.elapsed());
        ensure!(
            (written, brought_back) == (full, full),
            "of {full} pages {written} were written and {brought_back} brought back; run the checks of chapter 16"
        );

        let mut cache = ForkCache::with_prefix(&other, &mut prefixes, text)?;
        let found = read(model, &text[in_pages..], &mut cache, LogitRows::Newest(1))?;
        let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
        ensure!(
            bits(&found) == bits(&expected),
            "the logits after pages that were read are others than after pages that were computed; run the checks of chapter 16"
        );
        Ok(())
    }

    fn numbers(&self, model: &Model, shape: &PageShape, pages: usize, times: &Times) -> Numbers {
        let per_page = |times: &[Duration]| median(times) * 1e3 / pages as f64;
        let milliseconds = Milliseconds {
            compute: per_page(&times.compute),
            write: per_page(&times.write),
            read: per_page(&times.read),
            check_and_copy: per_page(&times.check_and_copy),
        };
        let Milliseconds { compute, read, check_and_copy, .. } = milliseconds;
        let record_bytes = shape.record_bytes();
        Numbers {
            model: self.model.display().to_string(),
            threads: rayon::current_num_threads(),
            kv_dtype: model.row_format().name(),
            tokens: self.tokens,
            page_size: self.page_size,
            pages,
            turns: usize::from(self.turns),
            row_bytes: 2 * shape.numbers() * size_of::<f32>(),
            record_bytes,
            compute_over_read: compute / (read + check_and_copy),
            break_even_mb_per_second: record_bytes as f64 / 1e3 / (compute - check_and_copy).max(1e-9),
            milliseconds_per_page: milliseconds,
        }
    }
}

/// The model reads tokens; the logits that are asked for.
fn read(model: &Model, tokens: &[u32], cache: &mut ForkCache, logits: LogitRows) -> Result<Vec<f32>> {
    let chunk = model.chunk_of(tokens, CacheRef::InPlace(cache), logits)?;
    Ok(model.forward(vec![chunk])?)
}

impl Numbers {
    fn shown(&self) -> String {
        let Numbers { tokens, pages, page_size, row_bytes, record_bytes, milliseconds_per_page: ms, .. } = self;
        let about = format!(
            "{} in {} of {page_size} slots, rows in {}: {} bytes of rows a page, {} in the file\n",
            count(*tokens, "token"),
            count(*pages, "page"),
            self.kv_dtype,
            thousands(*row_bytes as u64),
            thousands(*record_bytes as u64)
        );
        let mut table = Table::new(1, &["a page", "ms"]);
        for (what, ms) in
            [("compute", ms.compute), ("write", ms.write), ("read", ms.read), ("check and copy", ms.check_and_copy)]
        {
            table.line([what.into(), format!("{ms:.3}")]);
        }
        format!(
            "{about}\n{}\ncomputing takes {} times as long as reading, checking and copying\nreading pays as long as the disk \
             gives more than {} MB/s\n",
            table.render(),
            rate(self.compute_over_read),
            rate(self.break_even_mb_per_second)
        )
    }
}
