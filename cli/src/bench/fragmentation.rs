//! `bench fragmentation`: free memory in pieces, or the same memory in pages.

use anyhow::{Result, bail, ensure};
use clap::Args;
use page_by_page::experiments::memory::{in_pages, in_regions};

use super::{Benchmark, Report};
use crate::output::{Object, count, thousands};
use crate::require;

/// Show free memory that a text cannot use, or pages that it can
///
/// Texts take contiguous regions one behind the other, the first one ends, and another text comes. With --page-size the
/// same happens in the same memory cut into pages.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page bench fragmentation --capacity 2000 --lengths 200,1000,150 --request 800
  page-by-page bench fragmentation --page-size 16")]
pub struct Fragmentation {
    /// Slots in all
    #[arg(long, value_name = "N", default_value_t = 2000)]
    capacity: usize,
    /// Tokens of the texts that come first, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "200,1000,150")]
    lengths: Vec<usize>,
    /// Tokens of the text that comes when the first one has ended
    #[arg(long, value_name = "N", default_value_t = 800)]
    request: usize,
    /// Take pages of this many slots instead of regions
    #[arg(long, value_name = "P")]
    page_size: Option<usize>,
}

/// Pages of a pool that is made in passing.
const MOST_PAGES: usize = 10_000_000;

impl Benchmark for Fragmentation {
    fn run(self) -> Result<Report> {
        if self.lengths.is_empty() {
            bail!("there is no text that could end; give at least one length");
        }
        match self.page_size {
            None => self.take_regions(),
            Some(page_size) => self.take_pages(page_size),
        }
    }
}

impl Fragmentation {
    fn take_regions(&self) -> Result<Report> {
        let left = in_regions(self.capacity, &self.lengths, self.request)?;
        let outcome = left.outcome.as_ref().map_or_else(ToString::to_string, |()| "taken".into());
        let text = format!(
            "{}; texts of {} tokens; the first one ends\n{} are free, in gaps of {}\n{}: {outcome}\n",
            count(self.capacity, "slot"),
            listed(&self.lengths),
            count(left.free, "slot"),
            listed(&left.gaps),
            count(self.request, "token"),
        );
        Report::new(text, &Object::default().with("regions", left))
    }

    fn take_pages(&self, page_size: usize) -> Result<Report> {
        require::chapters(&[4])?;
        ensure!(page_size > 0, "the page size is 0; a page needs at least one slot");
        let n_pages = self.capacity / page_size;
        ensure!(
            n_pages <= MOST_PAGES,
            "{} slots are {} pages, and this comparison takes at most {}; give fewer slots, or larger pages",
            thousands(self.capacity),
            thousands(n_pages),
            thousands(MOST_PAGES)
        );
        let left = in_pages(self.capacity, page_size, &self.lengths, self.request)?;
        let taken = |n_left: &usize| format!("{} taken, {} left", count(left.needed, "page"), thousands(*n_left));
        let text = format!(
            "{} of {}; texts of {} pages; the first one ends\n{} are free\n{}: {}\n",
            count(left.n_pages, "page"),
            count(page_size, "slot"),
            listed(&left.held),
            count(left.free, "page"),
            count(self.request, "token"),
            left.outcome.as_ref().map_or_else(ToString::to_string, taken),
        );
        Report::new(text, &Object::default().with("pages", left))
    }
}

fn listed(numbers: &[usize]) -> String {
    numbers.iter().map(|number| thousands(*number)).collect::<Vec<_>>().join(", ")
}
