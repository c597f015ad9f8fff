//! Pools, tables and slabs to begin with, and which owners each page must have.
//!
//! This uses chapters 4, 5 and 6. A grader names those of them that it depends on.

use page_by_page::cache::{CacheError, KvLayout, PageId};
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::serving::schedule::StepLimits;
use page_by_page::simulation::Setup;

use crate::calls::{expect_ok, in_call};
use crate::history::{Fact, fact};
use crate::transcript::page_list;
use crate::words::plural;

/// Three numbers that cannot be mistaken for one another, nor for a page size.
pub const LAYOUT: KvLayout = KvLayout { n_layers: 3, n_kv_heads: 2, head_dim: 5 };

/// One number for each token.
pub const ONE_NUMBER: KvLayout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 1 };

/// A pool of pages of 4 for a scheduler, without a prefix cache.
pub const fn setup(n_pages: usize, token_budget: usize, max_running: usize) -> Setup {
    Setup { page_size: 4, n_pages, limits: StepLimits { token_budget, max_running }, keeps_prefixes: false }
}

pub const fn with_prefix_cache(setup: Setup) -> Setup {
    Setup { keeps_prefixes: true, ..setup }
}

/// What is seen of a pool that a call has nothing to do with.
pub fn of_other_pool(pool: &PagePool) -> [Fact; 2] {
    let free = fact("free pages of the other pool", pool.n_free());
    [free, fact("owners of the other pool's pages", owners(pool))]
}

pub fn foreign_page(page: u32, n_pages: usize) -> CacheError {
    CacheError::ForeignPage { page: PageId(page), n_pages }
}

/// The error of a page that is free, where it must have an owner.
pub fn double_free(page: u32) -> CacheError {
    CacheError::DoubleFree(PageId(page))
}

pub fn owners(pool: &PagePool) -> Vec<u32> {
    let (n, owners) = (pool.n_pages() as u32, |page| pool.owners(PageId(page)).unwrap_or(u32::MAX));
    in_call(format!("owners of chapter 4, of each of {n} pages"), || (0..n).map(owners).collect())
}

/// Compares the owners of every page with the tables that have it, and the prefix cache, which is one owner more.
#[track_caller]
pub fn check_owners<'a>(
    owners: &[u32],
    in_tables: impl IntoIterator<Item = &'a PageId>,
    cached: impl IntoIterator<Item = &'a PageId>,
    after: &str,
) {
    let mut expected = vec![(0, 0); owners.len()];
    in_tables.into_iter().for_each(|page| expected[page.index()].0 += 1);
    cached.into_iter().for_each(|page| expected[page.index()].1 += 1);
    for (page, (owners, (tables, cached))) in owners.iter().zip(expected).enumerate() {
        if *owners as usize == tables + cached {
            continue;
        }
        let and_cached = if cached > 0 { " and in the prefix cache" } else { "" };
        let whose = format!("which is in {}{and_cached}", plural(tables, "page table"));
        same!(*owners as usize, tables + cached, "owners of page {page}, {whose}, after {after}");
    }
}

/// Compares a pool with the pages of all tables over it, where there is no prefix cache.
#[track_caller]
pub fn check_pool<'a>(pool: &PagePool, in_tables: impl IntoIterator<Item = &'a PageId>, after: &str) {
    let owners = owners(pool);
    check_owners(&owners, in_tables, [], after);
    let free = owners.iter().filter(|owners| **owners == 0).count();
    same!(pool.n_free(), free, "free pages of {} after {after}", owners.len());
}

pub fn ids(pages: impl IntoIterator<Item = u32>) -> Vec<PageId> {
    pages.into_iter().map(PageId).collect()
}

pub fn page_ids(table: &PageTable) -> Vec<u32> {
    table.pages().iter().map(|page| page.0).collect()
}

#[track_caller]
pub fn pool(n_pages: usize) -> PagePool {
    expect_ok(format!("PagePool::new({n_pages}) of chapter 4"), || PagePool::new(n_pages))
}

/// A pool that has handed out all of its pages but these. The last of them was freed last, so it goes out first.
#[track_caller]
pub fn pool_with_free(n_pages: usize, free: &[u32]) -> PagePool {
    let mut pool = pool(n_pages);
    let pages = pool.alloc_n(n_pages).map(|pages| pages.len());
    same!(pages, Ok(n_pages), "pages that alloc_n({n_pages}) of chapter 4 gives");
    for page in free {
        same!(pool.free(PageId(*page)), Ok(()), "free of chapter 4, of page {page}, which was handed out");
    }
    pool
}

/// A pool in which only these pages have an owner.
#[track_caller]
pub fn pool_with_owned(n_pages: usize, owned: &[u32]) -> PagePool {
    let free: Vec<u32> = (0..n_pages as u32).filter(|page| !owned.contains(page)).collect();
    pool_with_free(n_pages, &free)
}

#[track_caller]
pub fn table(page_size: usize, tokens: usize, pool: &mut PagePool) -> PageTable {
    let mut table = expect_ok(format!("PageTable::new({page_size}) of chapter 5"), || PageTable::new(page_size));
    if tokens > 0 {
        grow(&mut table, tokens, pool);
    }
    table
}

/// Grows a table for which the pool has enough pages, and looks at what both hold then.
#[track_caller]
pub fn grow(table: &mut PageTable, n: usize, pool: &mut PagePool) {
    let (len, size, held, free) = (table.len(), table.page_size(), table.pages().len(), pool.n_free());
    let call = format!("grow({n}) of chapter 5, on {}, page size {size}, {free} pages free", plural(len, "token"));
    same!(table.grow(n, pool), Ok(()), "{call}");
    same!(table.len(), len + n, "tokens held after {call}");
    let pages = (len + n).div_ceil(size);
    same!(table.pages().len(), pages, "pages of the table after {call}");
    same!(pool.n_free(), free + held - pages, "free pages after {call}, {held} pages in the table before");
}

/// Releases a table, which must then be empty.
#[track_caller]
pub fn release(table: &mut PageTable, pool: &mut PagePool) {
    let call = format!("release of a table with {}, by chapter 5", page_list(table.pages()));
    same!(table.release(pool), Ok(()), "{call}: a page of it has lost an owner");
    same!((table.len(), table.pages().len()), (0, 0), "tokens and pages of the table after the {call}");
}

#[track_caller]
pub fn slab_of(layout: KvLayout, page_size: usize, n_pages: usize) -> SharedSlab {
    expect_ok(format!("PageSlab::new of chapter 6, with {n_pages} pages of {page_size} slots"), || {
        PageSlab::new(layout, page_size, n_pages)
    })
}
