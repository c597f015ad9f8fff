//! `bench fragmentation`: free memory in pieces, or the same memory in pages.

use anyhow::Result;
use clap::Args;
use page_by_page::experiments::memory::{in_pages, in_regions};

use super::Report;
use crate::output::{count, thousands};
use crate::require;

/// Show free memory that a sequence cannot use, or pages that it can
///
/// In 2,000 slots, sequences of 200, 1,000 and 150 tokens take contiguous regions one after the other. The first one ends, and
/// one of 800 tokens comes. With --page-size the same happens in the same memory cut into pages.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page bench fragmentation
  page-by-page bench fragmentation --page-size 16")]
pub struct Fragmentation {
    /// Take pages of this many slots instead of regions
    #[arg(long, value_name = "P")]
    page_size: Option<usize>,
}

const CAPACITY: usize = 2000;
const LENGTHS: [usize; 3] = [200, 1000, 150];
const REQUEST: usize = 800;

impl Fragmentation {
    pub fn run(self) -> Result<Report> {
        let Some(page_size) = self.page_size else {
            let left = in_regions(CAPACITY, &LENGTHS, REQUEST)?;
            let text = format!(
                "{}, sequences of {} tokens\nthe first finishes: {} are free, in gaps of {}\na request for {} arrives:\n{}\n",
                count(CAPACITY, "slot"),
                listed(&LENGTHS),
                thousands(left.free),
                listed(&left.gaps),
                count(REQUEST, "token"),
                left.outcome.as_ref().map_or_else(|error| error.to_string().replace("; ", ";\n"), |()| "taken".into()),
            );
            return Report::new(text, &left);
        };
        require::chapters(&[4])?;
        let left = in_pages(CAPACITY, page_size, &LENGTHS, REQUEST)?;
        let taken = |n_left: &usize| format!("{} taken, {} left", count(left.needed, "page"), thousands(*n_left));
        let text = format!(
            "{} of {}, sequences of {} pages\nthe first finishes: {} are free\na request for {} arrives:\n{}\n",
            count(left.n_pages, "page"),
            count(page_size, "slot"),
            listed(&left.held),
            count(left.free, "page"),
            count(REQUEST, "token"),
            left.outcome.as_ref().map_or_else(ToString::to_string, taken),
        );
        Report::new(text, &left)
    }
}

fn listed(numbers: &[usize]) -> String {
    numbers.iter().map(|number| thousands(*number)).collect::<Vec<_>>().join(", ")
}
