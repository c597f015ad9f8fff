//! `bench samples`: several texts of one prompt, in caches apart, restored from a snapshot, forked.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::cache::CacheError;
use page_by_page::experiments::forks;
use page_by_page::model::ModelConfig;

use super::{Benchmark, Report, Row, require_little_memory, table};
use crate::generate::MOST_SEQUENCES;
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
}

impl Benchmark for Samples {
    fn run(self) -> Result<Report> {
        let Samples { samples, prompt_tokens, new_tokens, page_size, .. } = self;
        require::chapters(&[4, 5, 6, 10])?;
        ensure!(prompt_tokens > 0, "a prompt of 0 tokens: give it at least one (--prompt-tokens)");
        ensure!(new_tokens > 0, "texts of 0 new tokens: ask for at least one (--new-tokens)");
        ensure!(page_size > 0, CacheError::NoSlots);
        let layout = ModelConfig::open(&model_dir(&self.model))?.kv_layout();
        let samples = forks::Samples { samples: samples.into(), prompt_tokens, new_tokens, page_size, layout };
        // The snapshot holds the prompt once more.
        let slots = samples.n_pages().saturating_mul(page_size).saturating_add(prompt_tokens);
        require_little_memory(layout, slots)?;
        let row = |cost: forks::Cost| {
            Row::default()
                .number("way", cost.way)
                .cell("texts", cost.way)
                .count("rows_computed", "rows computed", cost.rows_computed)
                .count("pages_held", "pages held", cost.pages_held)
                .count("rows_copied", "rows copied", cost.rows_copied)
        };
        let costs = [samples.apart()?, samples.restored()?, samples.forked()?].map(row);
        Report::new(table(1, costs.len(), &costs), &costs)
    }
}
