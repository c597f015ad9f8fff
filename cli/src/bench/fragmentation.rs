//! `bench fragmentation`: free memory in pieces, or the same memory in pages.

use anyhow::{Result, bail, ensure};
use clap::Args;
use page_by_page::cache::regions::Regions;
use page_by_page::chapters::ch04_page_pool::PagePool;
use serde_json::json;

use super::Output;

use crate::output::{count, print, thousands};
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
    #[command(flatten)]
    output: Output,
}

/// Pages of a pool that is made in passing.
const MOST_PAGES: usize = 10_000_000;

impl Fragmentation {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        self.output.check()?;
        if self.lengths.is_empty() {
            bail!("there is no text that could end; give at least one length");
        }
        match self.page_size {
            None => self.take_regions(),
            Some(page_size) => self.take_pages(page_size),
        }
    }

    fn take_regions(&self) -> Result<()> {
        let mut memory = Regions::new(self.capacity);
        let mut regions = Vec::new();
        for length in &self.lengths {
            regions.push(memory.reserve(*length)?);
        }
        memory.release(&regions[0]);
        let gaps = memory.gaps().iter().map(|gap| gap.len()).collect::<Vec<_>>();
        let (free, outcome) = (memory.free(), memory.reserve(self.request));
        let request = count(self.request, "token");
        let last = match &outcome {
            Ok(_) => format!("{request}: taken"),
            Err(refused) => format!("{request}: {refused}"),
        };
        show(&[
            format!("{}; texts of {} tokens; the first one ends", count(self.capacity, "slot"), listed(&self.lengths)),
            format!("{} are free, in gaps of {}", count(free, "slot"), listed(&gaps)),
            last,
        ])?;
        self.output.write(&json!({ "regions": { "free": free, "gaps": gaps, "taken": outcome.is_ok() } }))
    }

    fn take_pages(&self, page_size: usize) -> Result<()> {
        require::chapters(&[4])?;
        ensure!(page_size > 0, "the page size is 0; a page needs at least one slot");
        let pages_of = |tokens: usize| tokens.div_ceil(page_size);
        let n_pages = self.capacity / page_size;
        ensure!(
            n_pages <= MOST_PAGES,
            "{} slots are {} pages, and this comparison takes at most {}; give fewer slots, or larger pages",
            thousands(self.capacity),
            thousands(n_pages),
            thousands(MOST_PAGES)
        );
        let mut pool = PagePool::new(n_pages)?;
        let mut held = Vec::new();
        for length in &self.lengths {
            held.push(pool.alloc_n(pages_of(*length))?);
        }
        for page in held.swap_remove(0) {
            pool.free(page)?;
        }
        let pages: Vec<usize> = self.lengths.iter().map(|length| pages_of(*length)).collect();
        let (free, needed) = (pool.n_free(), pages_of(self.request));
        let outcome = pool.alloc_n(needed);
        let request = count(self.request, "token");
        let last = match &outcome {
            Ok(_) => format!("{request}: {} taken, {} left", count(needed, "page"), thousands(pool.n_free() as u64)),
            Err(refused) => format!("{request}: {refused}"),
        };
        let size = count(page_size, "slot");
        show(&[
            format!(
                "{} of {size}; texts of {} pages; the first one ends",
                count(pool.n_pages(), "page"),
                listed(&pages)
            ),
            format!("{} are free", count(free, "page")),
            last,
        ])?;
        self.output.write(&json!({ "pages": { "free": free, "needed": needed, "taken": outcome.is_ok() } }))
    }
}

fn show(lines: &[String]) -> Result<()> {
    print(&(lines.join("\n") + "\n"))
}

fn listed(numbers: &[usize]) -> String {
    numbers.iter().map(|number| thousands(*number as u64)).collect::<Vec<_>>().join(", ")
}
