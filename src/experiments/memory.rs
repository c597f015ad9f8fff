//! Chapters 3 to 6: the slots that reservations, regions and pages take, and how many of them stay empty.

use anyhow::{Context, Result, anyhow, ensure};

use super::SMALL;
use super::first_fit::{FirstFit, Fragmented};
use crate::cache::{CacheError, CacheUsage, KvCache, KvLayout};
use crate::chapters::ch03_contiguous::ContiguousCache;
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::PageTable;
use crate::chapters::ch06_paged::{PageSlab, PagedCache};
use crate::english::plural;

/// What is left of contiguous memory when sequences took regions of it and the first has finished.
pub struct FreeSlots {
    pub free: usize,
    pub gaps: Vec<usize>,
    /// Whether a new sequence got a region of its length.
    pub outcome: Result<(), Fragmented>,
}

pub struct FreePages {
    pub n_pages: usize,
    pub held: Vec<usize>,
    /// Free pages, before the new sequence comes.
    pub free: usize,
    pub needed: usize,
    /// Pages left after it has taken them.
    pub outcome: Result<usize, CacheError>,
}

/// Sequences of these lengths take regions of `capacity` slots; the first finishes, and one of `request` tokens comes.
pub fn free_in_regions(capacity: usize, lengths: &[usize], request: usize) -> Result<FreeSlots> {
    let mut memory = FirstFit::new(capacity);
    let regions = lengths.iter().map(|length| memory.reserve(*length)).collect::<Result<Vec<_>, _>>()?;
    memory.release(regions.first().context("no sequence can finish")?);
    let gaps = memory.gaps().iter().map(|gap| gap.len()).collect();
    Ok(FreeSlots { free: memory.free(), gaps, outcome: memory.reserve(request).map(drop) })
}

/// As [`free_in_regions`], in the pages of a pool that is as large as the memory there.
pub fn free_in_pages(capacity: usize, page_size: usize, lengths: &[usize], request: usize) -> Result<FreePages> {
    ensure!(page_size > 0, CacheError::NoSlots);
    let mut pool = PagePool::new(capacity / page_size)?;
    let held: Vec<usize> = lengths.iter().map(|length| length.div_ceil(page_size)).collect();
    let pages = held.iter().map(|n| pool.alloc_n(*n)).collect::<Result<Vec<_>, _>>()?;
    for page in pages.into_iter().next().context("no sequence can finish")? {
        pool.free(page)?;
    }
    let (n_pages, free, needed) = (pool.n_pages(), pool.n_free(), request.div_ceil(page_size));
    let outcome = pool.alloc_n(needed).map(|_| pool.n_free());
    Ok(FreePages { n_pages, held, free, needed, outcome })
}

/// Reserves a cache for each sequence and lets it grow. `sequences`: the slots of each, and its length.
pub fn usage_if_reserved(
    layout: KvLayout,
    sequences: impl IntoIterator<Item = (usize, usize)>,
) -> Result<Vec<CacheUsage>> {
    let usage = |(capacity, length)| grown(&mut ContiguousCache::new(layout, capacity), length);
    sequences.into_iter().map(usage).collect()
}

/// Lets sequences of these lengths take pages of one pool, which has enough of them.
pub fn usage_of_caches(layout: KvLayout, page_size: usize, lengths: &[usize]) -> Result<Vec<CacheUsage>> {
    let pages = lengths.iter().map(|length| length.div_ceil(page_size.max(1)));
    let slab = PageSlab::new(layout, page_size, pages.fold(0, usize::saturating_add).max(1))?;
    // All stay alive to the end, because they share the pages.
    let mut caches = lengths.iter().map(|_| PagedCache::new(&slab)).collect::<Result<Vec<_>, _>>()?;
    caches.iter_mut().zip(lengths).map(|(cache, length)| grown(cache, *length)).collect()
}

fn grown(cache: &mut dyn KvCache, length: usize) -> Result<CacheUsage> {
    cache.extend(length).map_err(|error| anyhow!("a sequence of {}: {error}", plural(length, "token")))?;
    Ok(cache.usage())
}

/// Lets page tables grow to these lengths without caches, each with enough pages of its own.
pub fn usage_of_tables(page_size: usize, lengths: impl IntoIterator<Item = usize>) -> Result<Vec<CacheUsage>> {
    let usage = |length: usize| {
        let mut pool = PagePool::new(length.max(1))?;
        let mut table = PageTable::new(page_size)?;
        table.grow(length, &mut pool)?;
        Ok(CacheUsage { tokens: table.len(), slots: table.slots(), ..CacheUsage::default() })
    };
    lengths.into_iter().map(usage).collect()
}

/// How many sequences of these lengths, again and again in this order, fit in a pool at the same time.
pub fn sequences_that_fit(n_pages: usize, page_size: usize, lengths: &[usize]) -> Result<usize> {
    let slab = PageSlab::new(SMALL, page_size, n_pages)?;
    let mut caches = Vec::new();
    // More sequences than pages never fit.
    for length in lengths.iter().cycle().take(n_pages + 1) {
        let mut cache = PagedCache::new(&slab)?;
        match cache.extend(*length) {
            Ok(()) => caches.push(cache),
            Err(CacheError::OutOfPages { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(caches.len())
}
