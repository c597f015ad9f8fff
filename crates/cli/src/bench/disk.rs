//! `bench disk`: what it takes to read a page, and what to compute it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use page_by_page::cache_kind::CacheKind;
use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::chapters::ch10_fork::ForkCache;
use page_by_page::chapters::ch11_prefix_cache::PrefixTrie;
use page_by_page::disk::file_disk::FileDisk;
use page_by_page::disk::{PageFile, PageFormat};
use page_by_page::experiments::paged_attention::same_bits;
use page_by_page::model::Model;
use serde_json::json;
use tempfile::NamedTempFile;

use super::{PAGE_SIZE, Report, Row, Times, numbers, table, turns};
use crate::memory;
use crate::options::{KvOptions, ModelOption};
use crate::output::{plural, rate, thousands};
use crate::requirements;

/// Compare reading pages from a file with computing them
///
/// The model reads 512 tokens, or as many as it has positions. Their pages are written to a file, and read back into
/// another slab, where the model goes on: with the same bits, or this fails. All takes turns. The file is still in the
/// system's memory when it is read; so the last line says how slow a disk may be before computing is as quick.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo page bench disk
  cargo page bench disk --kv-dtype int8
  cargo page bench disk --model /tmp/qwen3-0.6b")]
pub struct DiskBench {
    #[command(flatten)]
    model: ModelOption,
    #[command(flatten)]
    kv_options: KvOptions,
}

const TOKENS: usize = 512;
const TURNS: usize = 5;
const PARTS: [&str; 4] = ["compute", "write", "read", "check and copy"];

impl DiskBench {
    pub fn run(self) -> Result<Report> {
        // Pool, tables, slab, forks, the prefix cache, and the file.
        requirements::ensure_started(&[11, 16])?;
        let model = self.model.open_for(self.kv_options, CacheKind::Paged)?;
        let n_tokens = TOKENS.min(model.config().max_positions);
        ensure!(n_tokens > PAGE_SIZE, "the model has {n_tokens} positions, too few to fill a page");
        memory::ensure_pages(model.cache_layout(), PAGE_SIZE, 2 * n_tokens.div_ceil(PAGE_SIZE))?;
        memory::ensure("reading the tokens", model.step_bytes(n_tokens, 1), "take a smaller model")?;

        let scratch = NamedTempFile::new()?;
        let path = scratch.path().to_path_buf();
        let at = || path.display().to_string();
        let disk = FileDisk::open(&path).with_context(at)?;
        // On Unix an open file needs no name: however the program ends, nothing is left.
        let _scratch = (!cfg!(unix)).then_some(scratch);
        let format = PageFormat::for_model(&model, PAGE_SIZE);
        let mut parts = PARTS.map(|_| Times::default());
        for turn in turns("measuring", TURNS..TURNS, Duration::ZERO) {
            // Different tokens each time, so that the file has none of them.
            let token = |i| ((i * 7919 + turn * 104_729) % model.config().vocab_size) as u32;
            let tokens: Vec<u32> = (0..n_tokens).map(token).collect();
            let max_bytes = format.offset(full_pages(n_tokens));
            let mut file = PageFile::open(Box::new(disk.clone()), format, max_bytes).with_context(at)?;
            measure(&model, &tokens, &mut file, &mut parts)?;
        }
        self.report(&model, &format, n_tokens, &parts)
    }

    fn report(&self, model: &Model, format: &PageFormat, n_tokens: usize, parts: &[Times; 4]) -> Result<Report> {
        let (pages, record_bytes) = (full_pages(n_tokens), format.record_bytes());
        let ms = parts.each_ref().map(|times| 1e3 * times.median() / pages as f64);
        let row = |(part, ms)| Row::default().text("a page", part).cell("ms", ms, format!("{ms:.3}"));
        let rows: Vec<Row> = PARTS.into_iter().zip(ms).map(row).collect();
        let [compute, _, read, check_and_copy] = ms;
        // A disk that gives this much takes as long to read a page as the model to compute it.
        let break_even = record_bytes as f64 / 1e3 / (compute - check_and_copy).max(1e-9);
        let text = format!(
            "{} in {} of {PAGE_SIZE} slots, rows in {}: {} bytes of rows a page, {} in the file\n\n{}\ncomputing takes {} times as \
             long as reading, checking and copying\nreading pays as long as the disk gives more than {} MB/s\n",
            plural(n_tokens, "token"),
            plural(pages, "page"),
            model.kv_dtype.name(),
            thousands(2 * format.n_numbers() * size_of::<f32>()),
            thousands(record_bytes),
            table(1, rows.len(), &rows),
            rate(compute / (read + check_and_copy)),
            rate(break_even)
        );
        let more = json!({
            "pages": pages,
            "record_bytes": record_bytes,
            "milliseconds_per_page": numbers(rows),
            "break_even_mb_per_second": break_even,
        });
        Report::of_model(&self.model, text, more)
    }
}

/// All but the last token are in full pages that can be found.
fn full_pages(n_tokens: usize) -> usize {
    (n_tokens - 1) / PAGE_SIZE
}

/// Computes the tokens, writes their pages, reads them back and goes on.
fn measure(model: &Model, tokens: &[u32], file: &mut PageFile, parts: &mut [Times; 4]) -> Result<()> {
    let [compute, write, read_back, check_and_copy] = parts;
    let (n_pages, full) = (tokens.len().div_ceil(PAGE_SIZE), full_pages(tokens.len()));
    let (in_pages, rest) = tokens.split_at(full * PAGE_SIZE);
    let slab = PageSlab::new(model.cache_layout(), PAGE_SIZE, n_pages)?;
    let mut cache = ForkCache::new(&slab)?;
    compute.measure(|| read(model, in_pages, &mut cache, 0))?;
    let written = write.measure(|| file.store(in_pages, cache.table(), &slab.borrow()))?;
    let expected = read(model, rest, &mut cache, 1)?;

    let other = PageSlab::new(model.cache_layout(), PAGE_SIZE, n_pages)?;
    let mut prefix_cache = PrefixTrie::new(PAGE_SIZE)?;
    let pages = file.pages_to_load(tokens, &mut prefix_cache, &other)?;
    let pages: Vec<_> = read_back.measure(|| pages.into_iter().map(|page| file.read(page)).collect());
    let restored = check_and_copy.measure(|| file.load(tokens, &pages, &mut prefix_cache, &other))?;
    ensure!(
        (written, restored) == (full, full),
        "of {full} pages {written} were written and {restored} brought back; run the checks of chapter 16"
    );

    let mut cache = ForkCache::with_prefix(&other, &mut prefix_cache, tokens)?;
    let found = read(model, rest, &mut cache, 1)?;
    ensure!(
        same_bits(&found, &expected),
        "the logits after pages that were read are others than after pages that were computed; run the checks of \
         chapter 16"
    );
    Ok(())
}

fn read(model: &Model, tokens: &[u32], cache: &mut ForkCache, n_logits: usize) -> Result<Vec<f32>> {
    let chunk = model.prepare_chunk(tokens, Some(cache), n_logits)?;
    Ok(model.forward(vec![chunk])?)
}
