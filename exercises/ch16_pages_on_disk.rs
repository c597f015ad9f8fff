//! Chapter 16: pages on disk, which one run computes and the next one reads.
//!
//! A page file has a header and places for *records*, all of one length. A record holds a page's
//! tokens, its rows in all layers, and the id of its *parent*, the record of the page before it.
//! Later records have higher ids, and no two whole records share one.
//!
//! ```text
//!   page size 2; "once upon a time" was generated, then "once upon a king"
//!
//!   header | place 0     | place 1     | place 2     |
//!            id 1          id 2          id 3
//!            parent 0      parent 1      parent 1       0: sequences begin with it
//!            once upon     a time        a king
//!            rows          rows          rows
//! ```
//!
//! Given in `src/disk` are the file (`mod.rs`), the bytes of a record (`record.rs`), and the index
//! of what is at which place (`index.rs`). Opening the file reads it from the records' headers.
//!
//! Check your work with `cargo test --features solution --test ch16_pages_on_disk`.

use crate::cache::{CacheError, KvCache, PageId};
use crate::chapters::ch05_page_table::PageTable;
use crate::chapters::ch06_paged::{PageSlab, SharedSlab};
use crate::chapters::ch10_fork::ForkCache;
use crate::disk::record::{PageRows, RecordError, RecordHeader, decode_header, encode};
use crate::disk::{PageFile, PageFileError, PageFormat, PageOnDisk, PageRead};
use crate::prefix_cache::{PrefixCache, held_tokens};

/// Reads a record, as the inverse of [`encode`]. `bytes` has as many bytes as a record.
///
/// # Errors
/// [`RecordError::WrongLength`] if they are fewer or more, [`RecordError::DamagedRows`], and
/// the errors of [`decode_header`].
pub fn decode(format: &PageFormat, bytes: &[u8]) -> Result<(RecordHeader, PageRows), RecordError> {
    todo!("ch16 task 1: check the length, then the header, then the rows, and read them")
}

impl PageFile {
    /// Returns the places of the pages that `tokens` begins with, in order, as far as the file has
    /// them. Tokens after the last full page are ignored.
    ///
    /// In the file above, `once upon a king` → `0 2` and `a king` → nothing.
    pub fn find(&self, tokens: &[u32]) -> Vec<usize> {
        todo!("ch16 task 2: follow the tokens from record to record")
    }

    /// Notes that the pages of a sequence are used now. `places` is in the order of the sequence.
    /// Its first page counts as used last, so a page is never older than one that follows it, and
    /// nothing follows the oldest page of all.
    fn touch(&mut self, places: &[usize]) {
        todo!("ch16 task 3: the first page is used last")
    }

    /// Returns a place for a record, taken from the free places. If none is free, the page that was
    /// used longest ago is first forgotten, which makes its place free. Returns `None` if every page
    /// was used after `before`.
    fn make_room(&mut self, before: u64) -> Option<usize> {
        if let Some(place) = self.index.alloc_place() {
            return Some(place);
        }
        todo!("ch16 task 4: the place of the page that was used longest ago")
    }

    /// Writes a page to a place from [`make_room`](Self::make_room). `rows` are its keys and its
    /// values. The page can be found only after it is written. If the write fails, the place is
    /// given back, and the id is not used again.
    fn write(&mut self, place: usize, parent: u64, tokens: &[u32], rows: [&[f32]; 2]) -> Result<(), PageFileError> {
        todo!("ch16 task 3: write the page, and only then let it be found")
    }

    /// Writes the full pages of a sequence that the file lacks, in the order of the sequence, and
    /// returns how many. All its pages are used now. `table` and `slab` hold their computed rows,
    /// and `tokens` begins with the tokens that the table holds.
    ///
    /// # Errors
    /// [`PageFileError::Unwritable`]. The pages written before are stored, and are used now. The
    /// record at the place is forgotten, because it can be half overwritten.
    ///
    /// # Panics
    /// If the table holds more tokens than `tokens` has, or has pages of a different size.
    pub fn store(&mut self, tokens: &[u32], table: &PageTable, slab: &PageSlab) -> Result<usize, PageFileError> {
        let held = held_tokens(tokens, table, self.format.page_size);
        todo!("ch16 task 3: write what is missing between one touch and another")
    }

    /// Writes the pages that follow those at `places`, in order, and adds the places that they get.
    ///
    /// If the file is full, the pages that were used longest ago make room, but never one that was
    /// used after `before`. So if a sequence is longer than the file, its beginning is stored.
    fn write_missing(
        &mut self,
        places: &mut Vec<usize>,
        before: u64,
        tokens: &[u32],
        table: &PageTable,
        slab: &PageSlab,
    ) -> Result<(), PageFileError> {
        todo!("ch16 task 3: page by page, until there is no room or a write fails")
    }

    /// Returns the pages of a sequence that the file has and `prefix_cache` lacks, in the order of the
    /// sequence. At least one token is left to compute, so a last page that holds it is left out.
    /// All pages of the sequence that the file has are used now, also those that are in memory. No
    /// page gains an owner.
    ///
    /// # Errors
    /// The error of [`PrefixCache::lookup`].
    pub fn pages_to_load(
        &mut self,
        tokens: &[u32],
        prefix_cache: &mut dyn PrefixCache,
        slab: &SharedSlab,
    ) -> Result<Vec<PageOnDisk>, CacheError> {
        let held = ForkCache::with_prefix(slab, prefix_cache, tokens)?.table().pages().len();
        let places = self.find(&tokens[..tokens.len().saturating_sub(1)]);
        self.touch(&places);
        let missing = places.into_iter().enumerate().skip(held);
        Ok(missing.map(|(index, place)| PageOnDisk { index, place, id: self.index.header(place).id }).collect())
    }

    /// Returns the rows of a page that was read, if its record is still in the file. If that record
    /// cannot be read, is damaged, or its header differs from the one in the index, it is forgotten.
    fn accept(&mut self, read: &PageRead) -> Option<PageRows> {
        todo!("ch16 task 5: the rows, if they are those of the page that was asked for")
    }

    /// Gives pages that were read to `prefix_cache`, and returns how many. `read` holds those of the
    /// [`pages_to_load`](Self::pages_to_load), in their order. Some can be missing, even in the
    /// middle, because they are being read for a different sequence.
    ///
    /// Suppose memory now holds the first `held` pages of the sequence. A page that was read and
    /// comes before them is skipped. The next must be page `held`, then `held + 1`, and so on. The
    /// prefix ends at the first gap, and at the first page that cannot be read, is damaged, or has
    /// left the file since. What comes after that is recomputed.
    ///
    /// The rows go to free pages of the slab. If there are too few, others are evicted, but none of
    /// this sequence. If that is not enough, only the first pages are loaded. Afterwards
    /// `prefix_cache` is the only owner of the new pages.
    ///
    /// # Errors
    /// The errors of [`PrefixCache`]: the slab is not the one that its pages came from.
    pub fn load(
        &mut self,
        tokens: &[u32],
        read: &[PageRead],
        prefix_cache: &mut dyn PrefixCache,
        slab: &SharedSlab,
    ) -> Result<usize, CacheError> {
        todo!("ch16 task 5: hold what is there, make room, copy, insert")
    }
}

impl PageSlab {
    /// Writes the rows of a page, in all layers.
    fn write_page(&mut self, page: PageId, rows: &PageRows) {
        let start = page.index() * rows.k.len();
        self.k[start..][..rows.k.len()].copy_from_slice(&rows.k);
        self.v[start..][..rows.v.len()].copy_from_slice(&rows.v);
    }
}
