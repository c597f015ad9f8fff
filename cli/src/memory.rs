//! Memory that a command is about to take. What there is not enough of is refused in numbers, before anything is computed.

use anyhow::{Result, bail};
use page_by_page::cache::{CacheError, KvLayout};

use super::report::{mib, thousands};

/// Refuses to go on if there is no memory for so many bytes. `advice`: what to do then.
pub fn require(what: &str, bytes: usize, advice: &str) -> Result<()> {
    if let Some(available) = available().filter(|available| bytes > *available) {
        bail!("{what} takes {}, and {} of memory are available; {advice}", mib(bytes), mib(available));
    }
    if Vec::<u8>::new().try_reserve_exact(bytes).is_err() {
        bail!("{what} takes {}, more memory than the system gives; {advice}", mib(bytes));
    }
    Ok(())
}

/// Refuses a reservation that this machine has no memory for.
pub fn require_slots(layout: KvLayout, slots: usize) -> Result<()> {
    let bytes = slot_bytes(layout, slots)?;
    let what = format!("a cache of {} slots, {} bytes each,", thousands(slots), thousands(bytes / slots.max(1)));
    require(&what, bytes, "reserve fewer")
}

/// Refuses more pages than can be numbered, or than this machine has memory for.
pub fn require_pages(layout: KvLayout, page_size: usize, n_pages: usize) -> Result<()> {
    if n_pages > u32::MAX as usize {
        bail!("{} pages are more than the {} that a pool can number", thousands(n_pages), thousands(u32::MAX));
    }
    require_slots(layout, n_pages.saturating_mul(page_size))
}

/// Bytes that the keys and values of so many slots take in all layers.
pub fn slot_bytes(layout: KvLayout, slots: usize) -> Result<usize, CacheError> {
    Ok(2 * layout.numbers(slots)? * size_of::<f32>())
}

/// Bytes of memory that could be had now without taking them from other programs; `None` where the system does not say.
fn available() -> Option<usize> {
    let memory = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?.trim().strip_suffix(" kB")?;
    Some(kib.parse::<usize>().ok()? << 10)
}
