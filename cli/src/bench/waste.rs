//! `bench waste`: what reservations cost when nobody knows how long a text will be, and what pages cost.

use anyhow::{Result, bail};
use clap::Args;
use page_by_page::cache::{KvCache, KvLayout, Usage};
use page_by_page::chapters::ch03_contiguous::{ContiguousCache, wasted_share};
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};
use page_by_page::model::ModelConfig;
use serde_json::json;

use super::Output;

use crate::output::{Table, print, thousands};
use crate::{model_dir, require};

/// Count the slots that caches waste
///
/// Reserves the same number of slots for each text, or takes pages with --page-size; lets the texts grow to their
/// lengths, and counts what stays empty.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page bench waste --capacity 1024 --lengths 1024,700,300,224
  page-by-page bench waste --page-size 16 --lengths 1024,700,300,224")]
pub struct Waste {
    /// Slots to reserve for each text
    #[arg(long, value_name = "N", default_value_t = 1024)]
    capacity: usize,
    /// Take pages of this many slots instead of reserving
    #[arg(long, value_name = "P", conflicts_with = "capacity")]
    page_size: Option<usize>,
    /// Tokens in each text, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1024,700,300,224")]
    lengths: Vec<usize>,
    #[command(flatten)]
    output: Output,
}

impl Waste {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        self.output.check()?;
        require::chapters(if self.page_size.is_some() { &[3, 4, 5, 6] } else { &[3] })?;
        let usages = match self.page_size {
            None => self.reserve()?,
            Some(page_size) => self.take_pages(page_size)?,
        };

        let mut table = Table::new(1, &["text", "slots reserved", "used", "wasted", "wasted %"]);
        for (number, usage) in (1..).zip(&usages) {
            table.line(line(number.to_string(), &[*usage]));
        }
        table.line(line("all".into(), &usages));
        print(&table.render())?;
        let of = |usage: &Usage| json!({ "slots": usage.slots, "used": usage.tokens, "wasted": usage.wasted() });
        let texts: Vec<_> = usages.iter().map(of).collect();
        self.output.write(&json!({
            "capacity": self.capacity, "page_size": self.page_size, "texts": texts, "wasted_share": wasted_share(&usages)
        }))
    }
}

impl Waste {
    fn reserve(&self) -> Result<Vec<Usage>> {
        let layout = layout()?;
        require::slots(layout, self.capacity.saturating_mul(self.lengths.len()))?;
        let fill = |length: &usize| {
            let mut cache = ContiguousCache::new(layout, self.capacity);
            grow(&mut cache, *length)
        };
        self.lengths.iter().map(fill).collect()
    }

    fn take_pages(&self, page_size: usize) -> Result<Vec<Usage>> {
        let layout = layout()?;
        let pages = self.lengths.iter().map(|length| length.div_ceil(page_size.max(1)));
        let n_pages = pages.fold(0, usize::saturating_add).max(1);
        require::pages(layout, page_size, n_pages)?;
        let slab = PageSlab::new(layout, page_size, n_pages)?;
        // All stay alive to the end: they share the pages.
        let mut caches = Vec::new();
        let mut usages = Vec::new();
        for length in &self.lengths {
            let mut cache = PagedCache::new(&slab)?;
            usages.push(grow(&mut cache, *length)?);
            caches.push(cache);
        }
        Ok(usages)
    }
}

fn layout() -> Result<KvLayout> {
    Ok(ModelConfig::open(&model_dir("storyteller".as_ref()))?.kv_layout())
}

fn grow(cache: &mut dyn KvCache, length: usize) -> Result<Usage> {
    match cache.extend(length) {
        Ok(()) => Ok(cache.usage()),
        Err(error) => bail!("a text of {length} tokens: {error}"),
    }
}

fn line(name: String, usages: &[Usage]) -> [String; 5] {
    let sum = |of: fn(&Usage) -> usize| thousands(usages.iter().map(of).sum::<usize>() as u64);
    let percent = format!("{:.1}", 100.0 * wasted_share(usages));
    [name, sum(|usage| usage.slots), sum(|usage| usage.tokens), sum(Usage::wasted), percent]
}
