//! A memory in which each sequence takes one contiguous region: what pages replace.
//!
//! A new region goes into the first gap that is long enough (*first fit*). Regions never move.
//!
//! ```text
//!   2,000 slots, after 200, 1,000 and 150 were reserved and the first was released:
//!
//!   0      200                    1,200   1,350               2,000
//!   | free |  taken                | taken | free               |
//! ```

use std::ops::Range;

/// Slots in a row, and the regions that are taken.
pub struct FirstFit {
    capacity: usize,
    /// In the order of their starts; they do not overlap.
    taken: Vec<Range<usize>>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed} slots in a row are needed; {free} are free, but the longest gap has {longest_gap}")]
pub struct Fragmented {
    pub needed: usize,
    pub free: usize,
    pub longest_gap: usize,
}

impl FirstFit {
    pub fn new(capacity: usize) -> Self {
        FirstFit { capacity, taken: Vec::new() }
    }

    /// The gaps between the regions, in order; none is empty.
    pub fn gaps(&self) -> Vec<Range<usize>> {
        let starts = [0].into_iter().chain(self.taken.iter().map(|region| region.end));
        let ends = self.taken.iter().map(|region| region.start).chain([self.capacity]);
        starts.zip(ends).filter(|(start, end)| start < end).map(|(start, end)| start..end).collect()
    }

    /// Slots that no region has.
    pub fn free(&self) -> usize {
        self.gaps().iter().map(Range::len).sum()
    }

    /// Takes `n` slots in a row from the first gap that is long enough.
    pub fn reserve(&mut self, n: usize) -> Result<Range<usize>, Fragmented> {
        let gaps = self.gaps();
        let Some(gap) = gaps.iter().find(|gap| gap.len() >= n) else {
            let longest_gap = gaps.iter().map(Range::len).max().unwrap_or(0);
            return Err(Fragmented { needed: n, free: self.free(), longest_gap });
        };
        let region = gap.start..gap.start + n;
        let at = self.taken.partition_point(|taken| taken.start < region.start);
        self.taken.insert(at, region.clone());
        Ok(region)
    }

    pub fn release(&mut self, region: &Range<usize>) {
        self.taken.retain(|taken| taken != region);
    }
}
