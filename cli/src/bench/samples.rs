//! `bench samples`: several samples of one prompt, in caches apart, restored from a snapshot, forked.

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::cache::CacheError;
use page_by_page::experiments::forks;

use super::{Report, Row, bundled_layout};
use crate::require;

/// Count what eight samples of one prompt cost, apart and shared
///
/// There are three ways to keep them, all in pages. Each sample has a cache of its own and computes the prompt, or the prompt is
/// computed once and its rows restored into each cache, or the prompt is computed once and its cache forked. The prompt has 900
/// tokens. Then the samples grow by turns, a token each, to 100 new ones. No model computes; the rows are those that it would
/// have computed. All but the newest token of a sample are read.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page bench samples
  page-by-page bench samples --page-size 100")]
pub struct Samples {
    /// Slots in a page
    #[arg(long, value_name = "P", default_value_t = 16)]
    page_size: usize,
}

impl Samples {
    pub fn run(self) -> Result<Report> {
        require::chapters(&[4, 5, 6, 10])?;
        ensure!(self.page_size > 0, CacheError::NoSlots);
        let (page_size, layout) = (self.page_size, bundled_layout()?);
        let samples = forks::Samples { samples: 8, prompt_tokens: 900, new_tokens: 100, page_size, layout };
        // The snapshot holds the prompt once more.
        let slots = samples.n_pages().saturating_mul(page_size).saturating_add(samples.prompt_tokens);
        require::slots(layout, slots)?;
        let row = |cost: forks::Cost| {
            Row::default()
                .text("way", cost.way)
                .count("rows computed", cost.rows_computed)
                .count("pages held", cost.pages_held)
                .count("rows copied", cost.rows_copied)
        };
        Report::table(1, 3, &[samples.apart()?, samples.restored()?, samples.forked()?].map(row))
    }
}
