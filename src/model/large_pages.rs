//! Memory that the operating system is asked to map in large pages.
//!
//! A program's addresses are virtual, and the processor looks each of them up in page tables. With pages of 4 KiB, the
//! weights of a large model take more of them than the processor remembers, and it spends its time looking up. A large
//! page has 2 MiB, so there are 512 times fewer. Linux uses large pages for anonymous memory if a program advises it
//! to, and seldom for a mapped file. On other systems, or when Linux has none to give, the memory lies in ordinary
//! pages.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use memmap2::MmapMut;
use rayon::prelude::*;

use super::checkpoint::{Memory, Part};

/// Bytes of a large page.
const LARGE_PAGE: usize = 2 << 20;
/// Each copy begins with a cache line.
const LINE: usize = 64;

/// Copies some pieces of memory, with all threads, into one memory for which large pages are asked.
///
/// # Errors
/// What the system says if it has no room.
pub(super) fn copy(pieces: &[&[u8]]) -> io::Result<Vec<Part>> {
    let total: usize = pieces.iter().map(|piece| piece.len().next_multiple_of(LINE)).sum();
    // Larger by one page, so that the first piece can begin where a page does.
    let mut map = MmapMut::map_anon(total + LARGE_PAGE)?;
    // A system without large pages refuses the advice. Without them the memory is slower, and otherwise the same.
    #[cfg(target_os = "linux")]
    drop(map.advise(memmap2::Advice::HugePage));
    let mut end = map.as_ptr().align_offset(LARGE_PAGE);
    let mut ranges = Vec::new();
    for piece in pieces {
        let range = end..end + piece.len();
        let pages = map[range.clone()].par_chunks_mut(LARGE_PAGE);
        pages.zip(piece.par_chunks(LARGE_PAGE)).for_each(|(to, from)| to.copy_from_slice(from));
        end = range.end.next_multiple_of(LINE);
        ranges.push(range);
    }
    let memory: Memory = Arc::new(map);
    Ok(ranges.into_iter().map(|range| Part { memory: memory.clone(), range }).collect())
}

/// How many of these bytes lie in large pages; `None` where the system does not say. It says so of whole areas of the
/// program's memory, and theirs hold little else:
///
/// ```text
///   7f2c00000000-7f2c47200000 rw-p 00000000 00:00 0
///   AnonHugePages:   1165312 kB
/// ```
pub(super) fn in_large_pages<'a>(memory: impl Iterator<Item = &'a [u8]>) -> Option<usize> {
    let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let parts: Vec<Range<usize>> = memory.map(|part| part.as_ptr().addr()..part.as_ptr().addr() + part.len()).collect();
    let address = |text| usize::from_str_radix(text, 16).ok();
    let (mut bytes, mut is_theirs) = (0, false);
    for line in maps.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if let Some(ends) = word.split_once('-')
            && let (Some(start), Some(end)) = (address(ends.0), address(ends.1))
        {
            is_theirs = parts.iter().any(|part| part.start < end && start < part.end);
        } else if is_theirs && word == "AnonHugePages:" {
            let kib = rest.trim().strip_suffix(" kB").and_then(|kib| kib.parse::<usize>().ok());
            bytes += kib.unwrap_or(0) << 10;
        }
    }
    Some(bytes.min(parts.iter().map(Range::len).sum()))
}
