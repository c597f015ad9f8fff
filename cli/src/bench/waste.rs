//! `bench waste`: what reservations cost when the length of a sequence is unknown, and what pages cost.

use anyhow::Result;
use clap::Args;
use page_by_page::cache::Usage;
use page_by_page::chapters::ch03_contiguous::wasted_share;
use page_by_page::experiments::memory::{paged, reserved};

use super::{Report, Row, bundled_layout};
use crate::require;

/// Count the slots that caches waste
///
/// Reserves the same number of slots for each sequence, or takes pages with --page-size; lets the sequences grow to their
/// lengths, and counts what stays empty.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page bench waste --capacity 1024 --lengths 1024,700,300,224
  page-by-page bench waste --page-size 16 --lengths 1024,700,300,224")]
pub struct Waste {
    /// Slots to reserve for each sequence
    #[arg(long, value_name = "N", default_value_t = 1024)]
    capacity: usize,
    /// Take pages of this many slots instead of reserving
    #[arg(long, value_name = "P", conflicts_with = "capacity")]
    page_size: Option<usize>,
    /// Tokens in each sequence, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1024,700,300,224")]
    lengths: Vec<usize>,
}

impl Waste {
    pub fn run(self) -> Result<Report> {
        require::chapters(if self.page_size.is_some() { &[3, 4, 5, 6] } else { &[3] })?;
        let layout = bundled_layout()?;
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
        let mut rows: Vec<Row> = usages.iter().zip(1..).map(|(usage, number)| row(number, &[*usage])).collect();
        rows.push(row("all", &usages));
        Report::table(1, rows.len(), &rows)
    }
}

fn row(name: impl ToString, usages: &[Usage]) -> Row {
    let sum = |of: fn(&Usage) -> usize| usages.iter().map(of).sum::<usize>();
    let percent = 100.0 * wasted_share(usages);
    Row::default()
        .text("sequence", name)
        .count("slots reserved", sum(|usage| usage.slots))
        .count("used", sum(|usage| usage.tokens))
        .count("wasted", sum(Usage::wasted))
        .cell("wasted %", percent, format!("{percent:.1}"))
}
