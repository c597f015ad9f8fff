//! `bench waste`: what reservations cost when nobody knows how long a text will be.

use anyhow::{Result, bail};
use clap::Args;
use page_by_page::cache::{KvCache, Usage};
use page_by_page::chapters::ch03_contiguous::{ContiguousCache, wasted_share};
use page_by_page::model::ModelConfig;
use serde_json::json;

use super::Output;
use crate::cli::kv::{require_chapters, require_memory};
use crate::cli::report::{Table, thousands};
use crate::cli::{model_dir, print};

/// Count the slots that contiguous caches waste
///
/// Reserves the same number of slots for each sequence, lets the sequences grow to their lengths, and counts what stays
/// empty.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page bench waste --capacity 1024 --lengths 1024,700,300,224")]
pub struct Waste {
    /// Slots to reserve for each sequence
    #[arg(long, value_name = "N", default_value_t = 1024)]
    capacity: usize,
    /// Tokens in each sequence, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1024,700,300,224")]
    lengths: Vec<usize>,
    #[command(flatten)]
    output: Output,
}

impl Waste {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        require_chapters(&[3])?;
        let layout = ModelConfig::open(&model_dir("storyteller".as_ref()))?.kv_layout();
        require_memory(layout, self.capacity.saturating_mul(self.lengths.len()))?;
        let mut usages = Vec::new();
        for length in &self.lengths {
            let mut cache = ContiguousCache::new(layout, self.capacity);
            if let Err(error) = cache.extend(*length) {
                bail!("a sequence of {length} tokens: {error}");
            }
            usages.push(cache.usage());
        }

        let mut table = Table::new(1, &["sequence", "slots reserved", "used", "wasted", "share"]);
        for (number, usage) in (1..).zip(&usages) {
            table.line(line(number.to_string(), &[*usage]));
        }
        table.line(line("all".into(), &usages));
        print(&table.render())?;
        let of = |usage: &Usage| json!({ "slots": usage.slots, "used": usage.tokens, "wasted": usage.wasted() });
        let sequences: Vec<_> = usages.iter().map(of).collect();
        self.output.write(&json!({
            "capacity": self.capacity, "sequences": sequences, "wasted_share": wasted_share(&usages)
        }))
    }
}

fn line(name: String, usages: &[Usage]) -> [String; 5] {
    let sum = |of: fn(&Usage) -> usize| thousands(usages.iter().map(of).sum::<usize>() as u64);
    let share = format!("{:.1} %", 100.0 * wasted_share(usages));
    [name, sum(|usage| usage.slots), sum(|usage| usage.tokens), sum(Usage::wasted), share]
}
