//! How much memory a command takes and how much there is. What doesn't fit is refused in numbers, before anything is
//! computed.

use anyhow::{Result, bail};
use page_by_page::cache::{CacheError, KvLayout};
use page_by_page::cache_kind::{CacheKind, CacheSize};

use crate::output::{mib, plural, thousands};

/// Refuses to go on without this much memory. `advice`: what to do then.
pub fn ensure(what: &str, bytes: usize, advice: &str) -> Result<()> {
    if let Some(available) = available().filter(|available| bytes > *available) {
        bail!("{what} takes {}, and {} of memory are available; {advice}", mib(bytes), mib(available));
    }
    if Vec::<u8>::new().try_reserve_exact(bytes).is_err() {
        bail!("{what} takes {}, more memory than the system gives; {advice}", mib(bytes));
    }
    Ok(())
}

pub fn ensure_slots(layout: KvLayout, slots: usize) -> Result<()> {
    let bytes = slot_bytes(layout, slots)?;
    let what = format!("a cache of {}, {} each,", plural(slots, "slot"), plural(bytes / slots.max(1), "byte"));
    ensure(&what, bytes, "reserve fewer")
}

/// Refuses more pages than can be numbered, or than this machine has memory for.
pub fn ensure_pages(layout: KvLayout, page_size: usize, n_pages: usize) -> Result<()> {
    if n_pages > u32::MAX as usize {
        bail!("{} pages are more than the {} that a pool can number", thousands(n_pages), thousands(u32::MAX));
    }
    ensure_slots(layout, n_pages.saturating_mul(page_size))
}

pub fn ensure_cache(kind: CacheKind, layout: KvLayout, size: CacheSize) -> Result<()> {
    match kind {
        CacheKind::Recompute | CacheKind::Flat => Ok(()),
        CacheKind::Contiguous => ensure_slots(layout, size.capacity),
        CacheKind::Paged => ensure_pages(layout, size.page_size, size.n_pages),
    }
}

/// Bytes of the keys and values of these slots, in all layers.
pub fn slot_bytes(layout: KvLayout, slots: usize) -> Result<usize, CacheError> {
    Ok(2 * layout.n_numbers(slots)? * size_of::<f32>())
}

/// Bytes of memory that are free without taking them from other programs; `None` where the system does not say.
pub fn available() -> Option<usize> {
    let of_the_machine = bytes_in("/proc/meminfo", "MemAvailable:")?;
    Some(of_the_container().map_or(of_the_machine, |bytes| bytes.min(of_the_machine)))
}

/// Bytes of memory that this program has; `None` where the system does not say.
pub fn held() -> Option<usize> {
    bytes_in("/proc/self/status", "VmRSS:")
}

/// The amount in a line such as `MemAvailable:  4711 kB`.
fn bytes_in(file: &str, name: &str) -> Option<usize> {
    let lines = std::fs::read_to_string(file).ok()?;
    let kib = lines.lines().find_map(|line| line.strip_prefix(name))?.trim().strip_suffix(" kB")?;
    Some(kib.parse::<usize>().ok()? << 10)
}

/// The memory left in the program's container, if that has a limit. File cache is given back when memory runs short.
fn of_the_container() -> Option<usize> {
    let read = |file: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/memory.{file}")).ok();
    let number = |text: String| text.trim().parse::<usize>().ok();
    let (limit, used, stat) = (number(read("max")?)?, number(read("current")?)?, read("stat")?);
    let cache =
        stat.lines().filter_map(|line| line.strip_prefix("inactive_file ").or(line.strip_prefix("active_file ")));
    let cache: usize = cache.filter_map(|bytes| bytes.parse::<usize>().ok()).sum();
    Some(limit.saturating_sub(used.saturating_sub(cache)))
}

/// Whether the system gives large pages to a program that asks for them.
pub fn large_pages() -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    enabled.is_ok_and(|enabled| !enabled.contains("[never]"))
}
