//! `bench samples`: several texts of one prompt, in caches apart, restored from a snapshot, forked.

use std::borrow::Cow;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::cache::snapshot::Snapshot;
use page_by_page::cache::{CacheError, KvCache, KvLayout, Usage};
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};
use page_by_page::chapters::ch10_fork::ForkCache;
use page_by_page::model::ModelConfig;
use serde::Serialize;

use super::{Output, require_little_memory, rows};
use crate::generate::MOST_SEQUENCES;
use crate::output::{Table, print, thousands};
use crate::{model_dir, require};

/// Count what several texts of one prompt cost, apart and shared
///
/// Three ways to keep them, all in pages: each in a cache of its own that reads the prompt; the prompt read once and its rows
/// restored into each; the prompt read once and its cache forked. Then the texts grow by turns, a token each. No model
/// computes: the rows are those that it would have computed. All but the newest token of a text are read.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page bench samples
  page-by-page bench samples --samples 32 --prompt-tokens 2000")]
pub struct Samples {
    /// Texts, at most 256
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=MOST_SEQUENCES as i64))]
    samples: u16,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 900)]
    prompt_tokens: usize,
    /// New tokens of each text
    #[arg(long, value_name = "N", default_value_t = 100)]
    new_tokens: usize,
    /// Slots in a page
    #[arg(long, value_name = "P", default_value_t = 16)]
    page_size: usize,
    /// Model folder, or a bundled model: whose rows are kept
    #[arg(long, value_name = "DIR", default_value = "storyteller")]
    model: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// What a way to keep the texts costs.
#[derive(Serialize)]
struct Cost {
    way: &'static str,
    rows_computed: u64,
    /// That had an owner when all texts had all their tokens.
    pages_held: usize,
    rows_copied: u64,
}

impl Samples {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        self.output.check()?;
        require::chapters(&[4, 5, 6, 10])?;
        ensure!(self.prompt_tokens > 0, "a prompt of 0 tokens: give it at least one (--prompt-tokens)");
        ensure!(self.new_tokens > 0, "texts of 0 new tokens: ask for at least one (--new-tokens)");
        ensure!(self.page_size > 0, CacheError::NoSlots);
        let layout = ModelConfig::open(&model_dir(&self.model))?.kv_layout();
        let most = self.prompt_tokens.saturating_add(self.new_tokens - 1);
        let n_pages = most.div_ceil(self.page_size).saturating_mul(usize::from(self.samples));
        // The snapshot holds the prompt once more.
        require_little_memory(layout, n_pages.saturating_mul(self.page_size).saturating_add(self.prompt_tokens))?;
        let slab = || PageSlab::new(layout, self.page_size, n_pages);
        let costs = [self.apart(&slab()?)?, self.restored(&slab()?)?, self.forked(&slab()?)?];
        print(&table(&costs).render())?;
        self.output.write(&costs)
    }

    fn apart(&self, slab: &SharedSlab) -> Result<Cost> {
        let mut rows_computed = 0;
        let mut texts = Vec::new();
        for _ in 0..self.samples {
            let mut text = Counted::new(PagedCache::new(slab)?);
            rows_computed += text.append(self.prompt_tokens)?;
            texts.push(text);
        }
        rows_computed += self.grow(&mut texts)?;
        Ok(cost("caches apart", rows_computed, 0, &texts, slab))
    }

    fn restored(&self, slab: &SharedSlab) -> Result<Cost> {
        let mut first = Counted::new(PagedCache::new(slab)?);
        let mut rows_computed = first.append(self.prompt_tokens)?;
        let snapshot = Snapshot::freeze(&first, &vec![0; self.prompt_tokens]);
        let mut rows_restored = 0;
        let mut texts = vec![first];
        for _ in 1..self.samples {
            let mut text = Counted::new(PagedCache::new(slab)?);
            snapshot.restore(&mut text)?;
            rows_restored += text.rows_written;
            texts.push(text);
        }
        rows_computed += self.grow(&mut texts)?;
        Ok(cost("restored from a snapshot", rows_computed, rows_restored, &texts, slab))
    }

    fn forked(&self, slab: &SharedSlab) -> Result<Cost> {
        let mut first = Counted::new(ForkCache::new(slab)?);
        let mut rows_computed = first.append(self.prompt_tokens)?;
        let mut texts = Vec::new();
        for _ in 1..self.samples {
            texts.push(Counted::new(first.cache.fork()?));
        }
        texts.insert(0, first);
        rows_computed += self.grow(&mut texts)?;
        Ok(cost("forked", rows_computed, 0, &texts, slab))
    }

    /// Gives all texts their new tokens, by turns; returns the rows that this writes. The last new token is never read.
    fn grow<C: KvCache>(&self, texts: &mut [Counted<C>]) -> Result<u64, CacheError> {
        let mut written = 0;
        for _ in 1..self.new_tokens {
            for text in &mut *texts {
                written += text.append(1)?;
            }
        }
        Ok(written)
    }
}

fn cost<C: KvCache>(
    way: &'static str,
    rows_computed: u64,
    rows_restored: u64,
    texts: &[Counted<C>],
    slab: &SharedSlab,
) -> Cost {
    let slab = slab.borrow();
    let pages_held = slab.pool().n_pages() - slab.pool().n_free();
    let rows_copied = rows_restored + texts.iter().map(|text| text.usage().rows_copied).sum::<u64>();
    Cost { way, rows_computed, pages_held, rows_copied }
}

/// A cache, and the tokens whose rows were written to it.
struct Counted<C> {
    cache: C,
    rows_written: u64,
}

impl<C: KvCache> Counted<C> {
    fn new(cache: C) -> Self {
        Counted { cache, rows_written: 0 }
    }

    /// Makes room for new tokens and writes their rows in every layer; returns for how many tokens rows were written.
    fn append(&mut self, tokens: usize) -> Result<u64, CacheError> {
        let before = self.rows_written;
        let rows = rows(self.layout(), tokens);
        self.extend(tokens)?;
        for layer in 0..self.layout().n_layers {
            self.write(layer, &rows, &rows);
        }
        Ok(self.rows_written - before)
    }
}

impl<C: KvCache> KvCache for Counted<C> {
    fn layout(&self) -> KvLayout {
        self.cache.layout()
    }

    fn len(&self) -> usize {
        self.cache.len()
    }

    fn extend(&mut self, n: usize) -> Result<(), CacheError> {
        self.cache.extend(n)
    }

    fn write(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        // All layers are written alike.
        if layer == 0 {
            self.rows_written += self.layout().rows(k, v) as u64;
        }
        self.cache.write(layer, k, v);
    }

    fn gather(&self, layer: usize) -> (Cow<'_, [f32]>, Cow<'_, [f32]>) {
        self.cache.gather(layer)
    }

    fn usage(&self) -> Usage {
        self.cache.usage()
    }
}

fn table(costs: &[Cost]) -> Table {
    let mut table = Table::new(1, &["texts", "rows computed", "pages held", "rows copied"]);
    for cost in costs {
        table.line([
            cost.way.to_string(),
            thousands(cost.rows_computed),
            thousands(cost.pages_held as u64),
            thousands(cost.rows_copied),
        ]);
    }
    table
}
