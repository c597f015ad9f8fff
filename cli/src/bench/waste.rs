//! `bench waste`: what reservations cost when nobody knows how long a text will be, and what pages cost.

use anyhow::Result;
use clap::Args;
use page_by_page::cache::Usage;
use page_by_page::chapters::ch03_contiguous::wasted_share;
use page_by_page::experiments::memory::{paged, reserved};
use page_by_page::model::ModelConfig;

use super::{Benchmark, Report};
use crate::output::{Object, Table, thousands};
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
}

impl Benchmark for Waste {
    fn run(self) -> Result<Report> {
        require::chapters(if self.page_size.is_some() { &[3, 4, 5, 6] } else { &[3] })?;
        let layout = ModelConfig::open(&model_dir("storyteller".as_ref()))?.kv_layout();
        let usages = match self.page_size {
            None => {
                require::slots(layout, self.capacity.saturating_mul(self.lengths.len()))?;
                reserved(layout, self.lengths.iter().map(|length| (self.capacity, *length)))?
            }
            Some(page_size) => {
                let pages = self.lengths.iter().map(|length| length.div_ceil(page_size.max(1)));
                require::pages(layout, page_size, pages.fold(0, usize::saturating_add).max(1))?;
                paged(layout, page_size, &self.lengths)?
            }
        };
        let mut table = Table::new(1, &["text", "slots reserved", "used", "wasted", "wasted %"]);
        for (number, usage) in (1..).zip(&usages) {
            table.line(line(number.to_string(), &[*usage]));
        }
        table.line(line("all".into(), &usages));
        let of = |usage: &Usage| {
            let text = Object::default().with("slots", usage.slots).with("used", usage.tokens);
            text.with("wasted", usage.wasted())
        };
        let numbers = Object::default().with("capacity", self.capacity).with("page_size", self.page_size);
        let texts: Vec<Object> = usages.iter().map(of).collect();
        let numbers = numbers.with("texts", texts).with("wasted_share", wasted_share(&usages));
        Report::new(table.render(), &numbers)
    }
}

fn line(name: String, usages: &[Usage]) -> [String; 5] {
    let sum = |of: fn(&Usage) -> usize| thousands(usages.iter().map(of).sum::<usize>());
    let percent = format!("{:.1}", 100.0 * wasted_share(usages));
    [name, sum(|usage| usage.slots), sum(|usage| usage.tokens), sum(Usage::wasted), percent]
}
