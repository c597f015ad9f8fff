//! vLLM's pool as a [`PageMemory`], so that a trace can be replayed with vLLM's prefix cache as well as with chapter 11's.

use crate::cache::{CacheError, PageId};
use crate::prefixes::chain::Chain;
use crate::workload::PageMemory;

/// The pages of a sequence in the order of its tokens, and how many tokens they hold.
pub struct ChainTable {
    pages: Vec<PageId>,
    len: usize,
}

impl PageMemory for Chain {
    type Table = ChainTable;

    fn begin(&mut self, prompt: &[u32]) -> Result<(ChainTable, usize), CacheError> {
        let pages = self.lookup(prompt);
        let len = pages.len() * Chain::page_size(self);
        Ok((ChainTable { pages, len }, len))
    }

    fn grow(&mut self, table: &mut ChainTable, n: usize) -> Result<usize, CacheError> {
        let needed = (table.len + n).div_ceil(Chain::page_size(self)) - table.pages.len();
        table.pages.extend(self.alloc(needed)?);
        table.len += n;
        Ok(needed)
    }

    fn insert(&mut self, tokens: &[u32], table: &mut ChainTable) -> Result<(), CacheError> {
        Chain::insert(self, tokens, &table.pages);
        Ok(())
    }

    fn end(&mut self, table: ChainTable) -> Result<(), CacheError> {
        self.free(table.pages);
        Ok(())
    }

    fn page_size(&self) -> usize {
        Chain::page_size(self)
    }

    fn n_pages(&self) -> usize {
        Chain::n_pages(self)
    }

    fn n_in_use(&self) -> usize {
        Chain::n_pages(self) - self.n_free()
    }

    fn n_evicted(&self) -> u64 {
        Chain::n_evicted(self)
    }
}
