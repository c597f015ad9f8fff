//! Wraps the prefix cache for the scheduler. A scored prompt finds only rows whose scores are already known. Further samples of
//! a prompt are submitted with their first tokens, and find a fork of the first sample's pages instead of a cached prefix.

use std::cell::RefCell;
use std::rc::Rc;

use crate::cache::CacheError;
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::PageTable;
use crate::decode::scoring::Scorings;
use crate::prefixes::{HeldPage, Prefixes};

/// Forks of page tables, between the step that computed a prompt and the next one.
#[derive(Default)]
pub(super) struct Forks {
    /// Prompts that this step completes, and how many forks of each are wanted.
    pub(super) wanted: Vec<(Vec<u32>, usize)>,
    /// Prompts, and their forks.
    ready: Vec<(Vec<u32>, Vec<PageTable>)>,
}

impl Forks {
    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Lets go of the forks of samples that could not begin in the step after their prompt: they compute it themselves.
    pub(super) fn release(&mut self, pool: &mut PagePool) -> Result<(), CacheError> {
        let ready = std::mem::take(&mut self.ready);
        ready.into_iter().flat_map(|(_, forks)| forks).try_for_each(|mut fork| fork.release(pool))
    }

    /// The prompt's fork for a sequence that goes on with one token more.
    fn take(&mut self, tokens: &[u32]) -> Option<PageTable> {
        let (_, before) = tokens.split_last()?;
        let (_, forks) = self.ready.iter_mut().find(|(prompt, _)| prompt == before)?;
        let fork = forks.pop();
        self.ready.retain(|(_, forks)| !forks.is_empty());
        fork
    }

    /// Forks the table of a prompt that is complete, if forks of it are wanted.
    fn fork(&mut self, tokens: &[u32], table: &PageTable, pool: &mut PagePool) -> Result<(), CacheError> {
        if table.len() == tokens.len()
            && let Some(place) = self.wanted.iter().position(|(prompt, _)| prompt == tokens)
        {
            let (prompt, n) = self.wanted.swap_remove(place);
            let forks = (0..n).map(|_| table.fork(pool)).collect::<Result<_, _>>()?;
            self.ready.push((prompt, forks));
        }
        Ok(())
    }
}

/// A prefix cache for sequences of which some are scored and some are samples of one prompt. A sequence with the very tokens of one
/// that is being scored finds only the rows whose scores are known.
pub(super) struct Lookups {
    pub(super) inner: Box<dyn Prefixes>,
    pub(super) scorings: Scorings,
    pub(super) forks: Rc<RefCell<Forks>>,
}

impl Prefixes for Lookups {
    fn lookup(&mut self, tokens: &[u32], pool: &mut PagePool) -> Result<PageTable, CacheError> {
        if let Some(fork) = self.forks.borrow_mut().take(tokens) {
            return Ok(fork);
        }
        let known = self.scorings.borrow().values().filter_map(|scoring| scoring.rows_known(tokens)).min();
        // At least one token of what is looked up is left to compute.
        let known = known.map_or(tokens.len(), |rows| tokens.len().min(rows + 1));
        self.inner.lookup(&tokens[..known], pool)
    }

    fn insert(&mut self, tokens: &[u32], table: &mut PageTable, pool: &mut PagePool) -> Result<(), CacheError> {
        self.inner.insert(tokens, table, pool)?;
        self.forks.borrow_mut().fork(tokens, table, pool)
    }

    fn evict(&mut self, n: usize, pool: &mut PagePool) -> Result<usize, CacheError> {
        self.inner.evict(n, pool)
    }

    fn n_pages(&self) -> usize {
        self.inner.n_pages()
    }

    fn n_evictable(&self, pool: &PagePool) -> usize {
        self.inner.n_evictable(pool)
    }

    fn pages(&self) -> Vec<HeldPage<'_>> {
        self.inner.pages()
    }
}
