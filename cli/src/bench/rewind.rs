//! `bench rewind`: forgetting the newest tokens, against copying all the others.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::cache::KvLayout;
use page_by_page::cache::kind::{CacheKind, CacheSize};
use page_by_page::experiments::{append, rewind, rows};

use super::{KINDS, PAGE_SIZE, Report, Row, Times, bundled_layout, filled, turns};
use crate::output::{rate, thousands};
use crate::require;

/// Forget the newest tokens of sequences, and compare that with copying the others
///
/// A cache that could not rewind would have to be replaced by a new one, to which the rows that stay are written. From
/// each sequence, 4 tokens are forgotten, and half of them. Rewinding and copying take turns, and the medians count. The
/// memory of the new cache is there before, but for the flat cache, which takes its own.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page bench rewind --tokens 1024,32768")]
pub struct Rewinding {
    /// Tokens in each sequence, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1024,8192,32768")]
    tokens: Vec<usize>,
}

/// Tokens forgotten: a few, as when a draft of this length was wrong.
const FEW: usize = 4;
const TURNS: usize = 7;

impl Rewinding {
    pub fn run(self) -> Result<Report> {
        require::chapters(&[2, 3, 4, 5, 6, 7])?;
        let layout = bundled_layout()?;
        let mut costs = Vec::new();
        for tokens in &self.tokens {
            ensure!(*tokens >= FEW, "a sequence of {tokens} tokens: expected at least {FEW}, as {FEW} are forgotten");
            // Two caches, and tensors that grow are there twice.
            require::slots(layout, CacheSize::for_tokens(*tokens, PAGE_SIZE)?.slots().saturating_mul(4))?;
        }
        for tokens in &self.tokens {
            for kind in KINDS {
                for forgotten in [FEW, tokens / 2] {
                    costs.push(measure(kind, layout, *tokens, forgotten)?);
                }
            }
        }
        Report::table(1, 2 * KINDS.len(), &costs)
    }
}

/// Forgets tokens of one sequence in both ways, in turns.
fn measure(kind: CacheKind, layout: KvLayout, tokens: usize, forgotten: usize) -> Result<Row> {
    let size = CacheSize::for_tokens(tokens, PAGE_SIZE)?;
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
        (rows_copied, slots_returned) = (after.rows_copied - before.rows_copied, before.slots - after.slots);
        append(cache.as_mut(), &again)?;
    }
    let pages = (kind == CacheKind::Paged).then_some(slots_returned / PAGE_SIZE);
    let [rewind, copy] = [&rewinds, &copies].map(|times| times.median() * 1e6);
    let over_rewind = copy / rewind.max(1e-3);
    Ok(Row::default()
        .text("cache", kind)
        .count("tokens", tokens)
        .count("forgotten", forgotten)
        .cell("pages returned", pages, pages.map_or("–".into(), thousands))
        .count("rows copied", rows_copied)
        .cell("µs", rewind, rate(rewind))
        .count("rows to copy instead", rows_to_copy)
        .cell("µs instead", copy, rate(copy))
        .cell("× rewind", over_rewind, rate(over_rewind)))
}
