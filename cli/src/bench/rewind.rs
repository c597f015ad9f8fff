//! `bench rewind`: forgetting the newest tokens, against copying all the others.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::cache::KvLayout;
use page_by_page::cache::kind::{CacheKind, CacheSize};
use page_by_page::experiments::{append, rewind, rows};
use page_by_page::model::ModelConfig;

use super::{Benchmark, KINDS, Report, Row, Times, filled, require_little_memory, table, turns};
use crate::output::{Object, rate, thousands};
use crate::{model_dir, require};

/// Forget the newest tokens of texts, and compare that with copying the others
///
/// A cache that could not rewind would have to be replaced by another, to which the rows that stay are written. From
/// each text, 4 tokens are forgotten, and half of them. Rewinding and copying take turns, and the medians count. The
/// memory of the other cache is there before, but for the flat cache, which takes its own.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page bench rewind --tokens 1024,32768")]
pub struct Rewinding {
    /// Tokens in each text, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1024,8192,32768")]
    tokens: Vec<usize>,
    /// Model folder, or a bundled model: whose rows are forgotten
    #[arg(long, value_name = "DIR", default_value = "storyteller")]
    model: PathBuf,
    /// Slots in a page of the paged cache
    #[arg(long, value_name = "P", default_value_t = 16)]
    page_size: usize,
}

/// Tokens forgotten: a few, as when a draft of this length was wrong.
const FEW: usize = 4;
const TURNS: usize = 7;

impl Benchmark for Rewinding {
    fn run(self) -> Result<Report> {
        require::chapters(&[2, 3, 4, 5, 6, 7])?;
        let layout = ModelConfig::open(&model_dir(&self.model))?.kv_layout();
        for tokens in &self.tokens {
            ensure!(*tokens >= FEW, "a text of {tokens} tokens: expected at least {FEW}, as so many are forgotten");
            require_little_memory(layout, CacheSize::for_tokens(*tokens, self.page_size)?.slots().saturating_mul(2))?;
        }
        let mut costs = Vec::new();
        for tokens in &self.tokens {
            for kind in KINDS {
                for forgotten in [FEW, tokens / 2] {
                    costs.push(self.measure(kind, layout, *tokens, forgotten)?);
                }
            }
        }
        Report::new(table(1, 2 * KINDS.len(), &costs), &costs)
    }
}

impl Rewinding {
    /// Forgets tokens of one text in both ways, in turns.
    fn measure(&self, kind: CacheKind, layout: KvLayout, tokens: usize, forgotten: usize) -> Result<Row> {
        let size = CacheSize::for_tokens(tokens, self.page_size)?;
        let (mut cache, mut other) = (filled(kind, layout, tokens, size)?, filled(kind, layout, tokens, size)?);
        let again = rows(layout, forgotten);
        let (mut rewinds, mut copies) = (Times::default(), Times::default());
        let (mut rows_copied, mut rows_to_copy, mut slots_returned) = (0, 0, 0);
        for _ in turns("forgetting", TURNS..TURNS, Duration::ZERO) {
            other.rewind(other.len())?;
            rows_to_copy = copies.of(|| rewind::copy(cache.as_ref(), tokens - forgotten, other.as_mut()))?;
            let before = cache.usage();
            rewinds.of(|| cache.rewind(forgotten))?;
            let after = cache.usage();
            rows_copied = after.rows_copied - before.rows_copied;
            slots_returned = before.slots - after.slots;
            append(cache.as_mut(), &again)?;
        }
        let pages = (kind == CacheKind::Paged).then(|| slots_returned / self.page_size);
        let (rewind, copy) = (rewinds.median(), copies.median());
        let way = |rows: u64, seconds: f64| Object::default().with("rows_copied", rows).with("seconds", seconds);
        let over_rewind = copy / rewind.max(1e-9);
        Ok(Row::default()
            .number("kv", kind.to_string())
            .cell("cache", kind.to_string())
            .count("tokens", "tokens", tokens)
            .count("tokens_forgotten", "forgotten", forgotten)
            .number("pages_returned", pages)
            .cell("pages returned", pages.map_or("–".into(), thousands))
            .number("rewind", way(rows_copied, rewind))
            .cell("rows copied", thousands(rows_copied))
            .cell("µs", rate(rewind * 1e6))
            .number("copy", way(rows_to_copy, copy))
            .cell("rows to copy instead", thousands(rows_to_copy))
            .cell("µs", rate(copy * 1e6))
            .number("copy_over_rewind", over_rewind)
            .cell("× rewind", rate(over_rewind)))
    }
}
