//! The chapters' pool, page tables and prefix cache as the page memory of a run.

use crate::cache::CacheError;
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::PageTable;
use crate::prefixes::Prefixes;
use crate::workload::PageMemory;

/// A pool, a page table for each sequence, and a prefix cache, or none.
pub struct Pages {
    pool: PagePool,
    prefixes: Option<Box<dyn Prefixes>>,
    page_size: usize,
    evicted: u64,
}

impl Pages {
    /// A pool of `n_pages` free pages. `prefixes` is empty.
    pub fn new(n_pages: usize, page_size: usize, prefixes: Option<Box<dyn Prefixes>>) -> Result<Self, CacheError> {
        let pool = PagePool::new(n_pages)?;
        if page_size == 0 {
            return Err(CacheError::NoSlots);
        }
        Ok(Pages { pool, prefixes, page_size, evicted: 0 })
    }
}

impl PageMemory for Pages {
    type Table = PageTable;

    fn begin(&mut self, prompt: &[u32]) -> Result<(PageTable, usize), CacheError> {
        let table = match &mut self.prefixes {
            Some(prefixes) => prefixes.lookup(prompt, &mut self.pool)?,
            None => PageTable::new(self.page_size)?,
        };
        let found = table.len();
        Ok((table, found))
    }

    fn grow(&mut self, table: &mut PageTable, n: usize) -> Result<usize, CacheError> {
        let needed = table.pages_needed(n);
        if let Some(prefixes) = &mut self.prefixes
            && needed > self.pool.n_free()
        {
            self.evicted += prefixes.evict(needed - self.pool.n_free(), &mut self.pool)? as u64;
        }
        let free = self.pool.n_free();
        table.grow(n, &mut self.pool)?;
        Ok(free - self.pool.n_free())
    }

    fn insert(&mut self, tokens: &[u32], table: &mut PageTable) -> Result<(), CacheError> {
        self.prefixes.as_mut().map_or(Ok(()), |prefixes| prefixes.insert(tokens, table, &mut self.pool))
    }

    fn end(&mut self, mut table: PageTable) -> Result<(), CacheError> {
        table.release(&mut self.pool)
    }

    fn page_size(&self) -> usize {
        self.page_size
    }

    fn n_pages(&self) -> usize {
        self.pool.n_pages()
    }

    fn n_in_use(&self) -> usize {
        let evictable = self.prefixes.as_ref().map_or(0, |prefixes| prefixes.n_evictable(&self.pool));
        self.pool.n_pages().saturating_sub(self.pool.n_free() + evictable)
    }

    fn n_evicted(&self) -> u64 {
        self.evicted
    }
}
