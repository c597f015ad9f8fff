//! What a command needs before it begins: memory, chapters that are started, files that can be written. What is missing is
//! refused in numbers, before anything is computed.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use page_by_page::cache::kind::{CacheKind, CacheSize};
use page_by_page::cache::{CacheError, KvLayout};
use page_by_page::chapters::{Source, all, chapter};
use page_by_page::files;

use crate::output::{mib, thousands};

/// Refuses to go on without this much memory. `advice`: what to do then.
pub fn memory(what: &str, bytes: usize, advice: &str) -> Result<()> {
    if let Some(available) = available().filter(|available| bytes > *available) {
        bail!("{what} takes {}, and {} of memory are available; {advice}", mib(bytes), mib(available));
    }
    if Vec::<u8>::new().try_reserve_exact(bytes).is_err() {
        bail!("{what} takes {}, more memory than the system gives; {advice}", mib(bytes));
    }
    Ok(())
}

pub fn slots(layout: KvLayout, slots: usize) -> Result<()> {
    let bytes = slot_bytes(layout, slots)?;
    let what = format!("a cache of {} slots, {} bytes each,", thousands(slots), thousands(bytes / slots.max(1)));
    memory(&what, bytes, "reserve fewer")
}

/// Refuses more pages than can be numbered, or than this machine has memory for.
pub fn pages(layout: KvLayout, page_size: usize, n_pages: usize) -> Result<()> {
    if n_pages > u32::MAX as usize {
        bail!("{} pages are more than the {} that a pool can number", thousands(n_pages), thousands(u32::MAX));
    }
    slots(layout, n_pages.saturating_mul(page_size))
}

pub fn cache(kind: CacheKind, layout: KvLayout, size: CacheSize) -> Result<()> {
    match kind {
        CacheKind::Recompute | CacheKind::Flat => Ok(()),
        CacheKind::Contiguous => slots(layout, size.capacity),
        CacheKind::Paged => pages(layout, size.page_size, size.n_pages),
    }
}

/// Bytes of the keys and values of these slots, in all layers.
pub fn slot_bytes(layout: KvLayout, slots: usize) -> Result<usize, CacheError> {
    Ok(2 * layout.numbers(slots)? * size_of::<f32>())
}

/// Bytes of memory that are free without taking them from other programs; `None` where the system does not say.
pub fn available() -> Option<usize> {
    let memory = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?.trim().strip_suffix(" kB")?;
    let of_the_machine = kib.parse::<usize>().ok()? << 10;
    Some(of_the_container().map_or(of_the_machine, |bytes| bytes.min(of_the_machine)))
}

/// The same of the container that the program runs in, if it has a limit. File cache is given back when memory runs short.
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

/// Refuses a number below 1, or above what there is any use for.
pub fn in_range(number: u64, most: u64, option: &str, what: &str) -> Result<()> {
    let (shown, most_shown) = (thousands(number), thousands(most));
    ensure!((1..=most).contains(&number), "{option} is {shown}; {what} takes from 1 to {most_shown}");
    Ok(())
}

/// The scheduler, and what it stands on: the pool, its tables and slab, forks, the prefix cache.
pub const SCHEDULER: [usize; 6] = [4, 5, 6, 10, 11, 12];
/// The same with greedy choice.
pub const ENGINE: [usize; 7] = [1, 4, 5, 6, 10, 11, 12];

pub fn chapters(numbers: &[usize]) -> Result<()> {
    for chapter in numbers.iter().map(|number| chapter(*number)) {
        if chapter.source == Source::Unstarted {
            bail!(
                "chapter {} ({}) is not started: edit exercises/{}.rs, or add --features solution",
                chapter.number,
                chapter.title,
                chapter.name
            );
        }
    }
    Ok(())
}

/// Whose code the chapters are that a command runs: `1 yours, 3 reference`.
pub fn whose_chapters(needed: &[usize]) -> String {
    let needed = all().iter().filter(|chapter| needed.contains(&chapter.number));
    let chapters: Vec<String> = needed.map(|chapter| format!("{} {}", chapter.number, whose(chapter.source))).collect();
    chapters.join(", ")
}

pub fn whose(source: Source) -> &'static str {
    match source {
        Source::Yours => "yours",
        Source::Reference => "reference",
        Source::Unstarted => "not started",
    }
}

pub fn writable(file: &Path) -> Result<()> {
    let checked = if is_stream(file) { Ok(()) } else { files::check_writable(file) };
    checked.with_context(|| format!("cannot write {}", file.display()))
}

/// Writes results to a file, whole or not at all; to standard output or another stream as they come.
pub fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    let written = if is_stream(file) { std::fs::write(file, bytes) } else { files::write_whole(file, bytes) };
    written.with_context(|| format!("cannot write {}", file.display()))
}

/// A file in /dev takes bytes as they come: standard output, or what a shell puts in place of `>(command)`.
fn is_stream(file: &Path) -> bool {
    file.starts_with("/dev") && !file.is_dir()
}
