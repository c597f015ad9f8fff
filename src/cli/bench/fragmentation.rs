//! `bench fragmentation`: free memory in pieces, against the same memory in pages.

use anyhow::{Result, bail, ensure};
use clap::Args;
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::regions::Regions;
use serde_json::json;

use super::Output;
use crate::cli::kv::require_chapters;
use crate::cli::print;
use crate::cli::report::{count, thousands};

/// Show free memory that a text cannot use, and pages that it can
///
/// Texts take contiguous regions one behind the other, the first one ends, and another text comes. The same happens in
/// the same memory cut into pages.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page bench fragmentation --capacity 2000 --lengths 200,1000,150 --request 800")]
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
    /// Slots in a page
    #[arg(long, value_name = "P", default_value_t = 16)]
    page_size: usize,
    #[command(flatten)]
    output: Output,
}

impl Fragmentation {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        require_chapters(&[4])?;
        ensure!(self.page_size > 0, "the page size is 0; a page needs at least one slot");
        let request = count(self.request, "token");
        let lengths: Vec<String> = self.lengths.iter().map(|length| thousands(*length as u64)).collect();

        let mut memory = Regions::new(self.capacity);
        let mut regions = Vec::new();
        for length in &self.lengths {
            regions.push(memory.reserve(*length)?);
        }
        let Some(first) = regions.first() else {
            bail!("there is no text that could end; give at least one length");
        };
        memory.release(first);
        let gaps: Vec<String> = memory.gaps().iter().map(|gap| thousands(gap.len() as u64)).collect();
        let (free, outcome) = (memory.free(), memory.reserve(self.request));
        let mut lines = vec![
            format!("regions   {}; texts of {}; the first one ends", count(self.capacity, "slot"), lengths.join(", ")),
            format!("          {} are free, in gaps of {}", count(free, "slot"), gaps.join(", ")),
            match &outcome {
                Ok(_) => format!("          {request}: taken"),
                Err(refused) => format!("          {request}: {refused}"),
            },
        ];

        let pages_of = |tokens: usize| tokens.div_ceil(self.page_size);
        let mut pool = PagePool::new(self.capacity / self.page_size)?;
        let mut held = Vec::new();
        for length in &self.lengths {
            held.push(pool.alloc_n(pages_of(*length))?);
        }
        for page in held.swap_remove(0) {
            pool.free(page)?;
        }
        let pages: Vec<String> = self.lengths.iter().map(|length| thousands(pages_of(*length) as u64)).collect();
        let (n_free, needed) = (pool.n_free(), pages_of(self.request));
        lines.push(format!(
            "pages     {} of {}; texts of {}; the first one ends",
            count(pool.n_pages(), "page"),
            count(self.page_size, "slot"),
            pages.join(", ")
        ));
        lines.push(format!("          {} are free", count(n_free, "page")));
        let paged = pool.alloc_n(needed);
        lines.push(match &paged {
            Ok(_) => format!(
                "          {request}: {} taken, {} left",
                count(needed, "page"),
                thousands(pool.n_free() as u64)
            ),
            Err(refused) => format!("          {request}: {refused}"),
        });
        print(&(lines.join("\n") + "\n"))?;
        self.output.write(&json!({
            "regions": { "free": free, "taken": outcome.is_ok() },
            "pages": { "free": n_free, "needed": needed, "taken": paged.is_ok() },
        }))
    }
}
