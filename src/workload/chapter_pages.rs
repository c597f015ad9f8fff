//! The chapters' pool, page tables and prefix cache as the page memory of a run.

use crate::cache::{CacheError, PageId};
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::PageTable;
use crate::prefixes::Prefixes;
use crate::workload::PageMemory;

/// A pool, a page table for each sequence, and a prefix cache, or none.
pub struct Pages {
    pool: PagePool,
    prefixes: Option<Box<dyn Prefixes>>,
    page_size: usize,
    in_use: InUse,
    evicted: u64,
    /// The pages of a table, before the prefix cache may change some.
    before: Vec<PageId>,
}

/// How many running sequences have each page: unlike the pool's count, without the prefix cache.
struct InUse {
    /// `[n_pages]`
    users: Vec<u32>,
    /// Pages that have users.
    n_used: usize,
}

impl Pages {
    /// A pool of `n_pages` free pages. `prefixes` is empty.
    pub fn new(n_pages: usize, page_size: usize, prefixes: Option<Box<dyn Prefixes>>) -> Result<Self, CacheError> {
        let pool = PagePool::new(n_pages)?;
        if page_size == 0 {
            return Err(CacheError::NoSlots);
        }
        let in_use = InUse { users: vec![0; n_pages], n_used: 0 };
        Ok(Pages { pool, prefixes, page_size, in_use, evicted: 0, before: Vec::new() })
    }
}

impl InUse {
    /// One more sequence has these pages.
    fn add(&mut self, pages: &[PageId]) {
        for page in pages {
            let users = &mut self.users[page.index()];
            self.n_used += usize::from(*users == 0);
            *users += 1;
        }
    }

    /// One sequence fewer has these pages.
    fn remove(&mut self, pages: &[PageId]) {
        for page in pages {
            let users = &mut self.users[page.index()];
            *users -= 1;
            self.n_used -= usize::from(*users == 0);
        }
    }
}

impl PageMemory for Pages {
    type Table = PageTable;

    fn begin(&mut self, prompt: &[u32]) -> Result<(PageTable, usize), CacheError> {
        let table = match &mut self.prefixes {
            Some(prefixes) => prefixes.lookup(prompt, &mut self.pool)?,
            None => PageTable::new(self.page_size)?,
        };
        self.in_use.add(table.pages());
        let found = table.len();
        Ok((table, found))
    }

    fn grow(&mut self, table: &mut PageTable, n: usize) -> Result<usize, CacheError> {
        let (had, needed) = (table.pages().len(), table.pages_needed(n));
        if let Some(prefixes) = &mut self.prefixes
            && needed > self.pool.n_free()
        {
            self.evicted += prefixes.evict(needed - self.pool.n_free(), &mut self.pool)? as u64;
        }
        let free = self.pool.n_free();
        table.grow(n, &mut self.pool)?;
        self.in_use.add(&table.pages()[had..]);
        Ok(free - self.pool.n_free())
    }

    fn insert(&mut self, tokens: &[u32], table: &mut PageTable) -> Result<(), CacheError> {
        let Some(prefixes) = &mut self.prefixes else { return Ok(()) };
        self.before.clear();
        self.before.extend_from_slice(table.pages());
        prefixes.insert(tokens, table, &mut self.pool)?;
        if self.before != table.pages() {
            self.in_use.add(table.pages());
            self.in_use.remove(&self.before);
        }
        Ok(())
    }

    fn end(&mut self, mut table: PageTable) -> Result<(), CacheError> {
        self.in_use.remove(table.pages());
        table.release(&mut self.pool)
    }

    fn page_size(&self) -> usize {
        self.page_size
    }

    fn n_pages(&self) -> usize {
        self.pool.n_pages()
    }

    fn n_in_use(&self) -> usize {
        self.in_use.n_used
    }

    fn n_evicted(&self) -> u64 {
        self.evicted
    }
}
