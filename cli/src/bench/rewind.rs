//! `bench rewind`: forgetting the newest tokens, against copying all the others.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::cache::kind::{CacheKind, CacheSize};
use page_by_page::cache::{CacheError, KvLayout, Rewind};
use page_by_page::model::ModelConfig;
use serde::Serialize;

use super::{KINDS, Output, append, filled, median, require_little_memory, rows};
use crate::output::{Progress, Table, print, rate, thousands};
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
    #[command(flatten)]
    output: Output,
}

/// Tokens forgotten: a few, as when a guess of so many tokens was wrong.
const FEW: usize = 4;
const TURNS: usize = 7;

/// What it costs to forget, both ways.
#[derive(Serialize)]
struct Cost {
    kv: String,
    tokens: usize,
    tokens_forgotten: usize,
    rewind: Way,
    /// `None` where there are no pages.
    pages_returned: Option<usize>,
    copy: Way,
    copy_over_rewind: f64,
}

/// One way to forget.
#[derive(Serialize)]
struct Way {
    rows_copied: u64,
    seconds: f64,
}

impl Rewinding {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        self.output.check()?;
        require::chapters(&[2, 3, 4, 5, 6, 7])?;
        let layout = ModelConfig::open(&model_dir(&self.model))?.kv_layout();
        for tokens in &self.tokens {
            ensure!(*tokens >= FEW, "a text of {tokens} tokens: expected at least {FEW}, as so many are forgotten");
            require_little_memory(layout, CacheSize::for_tokens(*tokens, self.page_size)?.slots().saturating_mul(2))?;
        }
        let work = |tokens: usize| tokens as u64;
        let progress = Progress::new("forgetting", self.tokens.iter().map(|tokens| 6 * work(*tokens)).sum());
        let mut costs = Vec::new();
        for tokens in &self.tokens {
            for kv in KINDS {
                for forgotten in [FEW, tokens / 2] {
                    costs.push(self.measure(kv, layout, *tokens, forgotten)?);
                    progress.advance(work(*tokens));
                }
            }
        }
        drop(progress);
        print(&table(&costs).render())?;
        self.output.write(&costs)
    }

    /// Forgets tokens of one text in both ways, in turns.
    fn measure(&self, kv: CacheKind, layout: KvLayout, tokens: usize, forgotten: usize) -> Result<Cost> {
        let room = CacheSize::for_tokens(tokens, self.page_size)?;
        let left = tokens - forgotten;
        let mut cache = filled(kv, layout, tokens, room)?;
        let mut other = filled(kv, layout, tokens, room)?;
        let again = rows(layout, forgotten);
        let (mut rewinds, mut copies) = (Vec::new(), Vec::new());
        let (mut rows_copied, mut rows_to_copy, mut slots_returned) = (0, 0, 0);
        for _ in 0..TURNS {
            other.rewind(other.len())?;
            let start = Instant::now();
            rows_to_copy = copy(cache.as_ref(), left, other.as_mut())?;
            copies.push(start.elapsed());

            let before = cache.usage();
            let start = Instant::now();
            cache.rewind(forgotten)?;
            rewinds.push(start.elapsed());
            let after = cache.usage();
            rows_copied = after.rows_copied - before.rows_copied;
            slots_returned = before.slots - after.slots;
            append(cache.as_mut(), &again)?;
        }
        let rewind = Way { rows_copied, seconds: median(&rewinds) };
        let copy = Way { rows_copied: rows_to_copy, seconds: median(&copies) };
        Ok(Cost {
            kv: kv.to_string(),
            tokens,
            tokens_forgotten: forgotten,
            pages_returned: (kv == CacheKind::Paged).then(|| slots_returned / self.page_size),
            copy_over_rewind: copy.seconds / rewind.seconds.max(1e-9),
            rewind,
            copy,
        })
    }
}

/// Writes the first `len` tokens of a cache to an empty one; returns the rows that this copies, those of a gather that has
/// to bring rows together included.
fn copy(from: &dyn Rewind, len: usize, to: &mut dyn Rewind) -> Result<u64, CacheError> {
    to.extend(len)?;
    let mut gathered = 0;
    let layout = from.layout();
    let numbers = len * layout.kv_width();
    for layer in 0..layout.n_layers {
        let (k, v) = from.gather(layer);
        to.write(layer, &k[..numbers], &v[..numbers]);
        if let Cow::Owned(rows) = &k {
            gathered = rows.len() / layout.kv_width();
        }
    }
    Ok((gathered + len) as u64)
}

fn table(costs: &[Cost]) -> Table {
    let heading = [
        "cache",
        "tokens",
        "forgotten",
        "pages returned",
        "rows copied",
        "µs",
        "rows to copy instead",
        "µs",
        "× rewind",
    ];
    let mut table = Table::new(1, &heading);
    for (i, cost) in costs.iter().enumerate() {
        if i > 0 && cost.tokens != costs[i - 1].tokens {
            table.line([""]);
        }
        table.line([
            cost.kv.clone(),
            thousands(cost.tokens as u64),
            thousands(cost.tokens_forgotten as u64),
            cost.pages_returned.map_or("–".into(), |pages| thousands(pages as u64)),
            thousands(cost.rewind.rows_copied),
            rate(cost.rewind.seconds * 1e6),
            thousands(cost.copy.rows_copied),
            rate(cost.copy.seconds * 1e6),
            rate(cost.copy_over_rewind),
        ]);
    }
    table
}
