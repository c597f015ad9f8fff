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
// ANCHOR: decode
pub fn decode(format: &PageFormat, bytes: &[u8]) -> Result<(RecordHeader, PageRows), RecordError> {
    // ch16 task 1: check the length, then the header, then the rows, and read them
    let (found, expected) = (bytes.len(), format.record_bytes());
    if found != expected {
        return Err(RecordError::WrongLength { found, expected });
    }
    let header = decode_header(format, bytes)?;
    let rows = &bytes[format.record_header_bytes()..];
    let (stored, computed) = (header.rows_checksum, crc32fast::hash(rows));
    if stored != computed {
        return Err(RecordError::DamagedRows { stored, computed });
    }
    let (k, v) = rows.split_at(rows.len() / 2);
    let [k, v] = [k, v].map(|rows| rows.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect());
    Ok((header, PageRows { k, v }))
}
// ANCHOR_END: decode

impl PageFile {
    /// Returns the places of the pages that `tokens` begins with, in order, as far as the file has
    /// them. Tokens after the last full page are ignored.
    ///
    /// In the file above, `once upon a king` → `0 2` and `a king` → nothing.
    // ANCHOR: find
    pub fn find(&self, tokens: &[u32]) -> Vec<usize> {
        // ch16 task 2: follow the tokens from record to record
        let mut places = Vec::new();
        let mut parent = 0;
        for page in tokens.chunks_exact(self.format.page_size) {
            let Some(place) = self.index.child(parent, page) else { break };
            places.push(place);
            parent = self.index.header(place).id;
        }
        places
    }
    // ANCHOR_END: find

    /// Notes that the pages of a sequence are used now. `places` is in the order of the sequence.
    /// Its first page counts as used last, so a page is never older than one that follows it, and
    /// nothing follows the oldest page of all.
    // ANCHOR: use
    fn touch(&mut self, places: &[usize]) {
        // ch16 task 3: the first page is used last
        for place in places.iter().rev() {
            self.index.touch(*place);
        }
    }
    // ANCHOR_END: use

    /// Returns a place for a record, taken from the free places. If none is free, the page that was
    /// used longest ago is first forgotten, which makes its place free. Returns `None` if every page
    /// was used after `before`.
    // ANCHOR: make_room
    fn make_room(&mut self, before: u64) -> Option<usize> {
        if let Some(place) = self.index.alloc_place() {
            return Some(place);
        }
        // ch16 task 4: the place of the page that was used longest ago
        let (place, last_used) = self.index.oldest()?;
        if last_used > before {
            return None;
        }
        self.index.forget(place);
        self.index.alloc_place()
    }
    // ANCHOR_END: make_room

    /// Writes a page to a place from [`make_room`](Self::make_room). `rows` are its keys and its
    /// values. The page can be found only after it is written. If the write fails, the place is
    /// given back, and the id is not used again.
    // ANCHOR: write
    fn write(&mut self, place: usize, parent: u64, tokens: &[u32], rows: [&[f32]; 2]) -> Result<(), PageFileError> {
        // ch16 task 3: write the page, and only then let it be found
        let id = self.index.take_id();
        let bytes = encode(&self.format, id, parent, tokens, rows[0], rows[1]);
        let offset = self.format.offset(place);
        if let Err(error) = self.disk.write(offset, &bytes) {
            self.index.free_place(place);
            return Err(PageFileError::Unwritable { offset, error });
        }
        let header = decode_header(&self.format, &bytes).expect("a header that was just encoded");
        self.index.add(place, header);
        Ok(())
    }
    // ANCHOR_END: write

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
    // ANCHOR: store
    pub fn store(&mut self, tokens: &[u32], table: &PageTable, slab: &PageSlab) -> Result<usize, PageFileError> {
        let held = held_tokens(tokens, table, self.format.page_size);
        // ch16 task 3: write what is missing between one touch and another
        let before = self.index.clock();
        let mut places = self.find(held);
        let found = places.len();
        self.touch(&places);
        let written = self.write_missing(&mut places, before, held, table, slab);
        self.touch(&places);
        written?;
        Ok(places.len() - found)
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
        // ch16 task 3: page by page, until there is no room or a write fails
        let pages = table.pages().iter().zip(tokens.chunks_exact(self.format.page_size));
        for (page, tokens) in pages.skip(places.len()) {
            let Some(place) = self.make_room(before) else { break };
            let parent = places.last().map_or(0, |place| self.index.header(*place).id);
            let rows = self.format.range_of(*page);
            self.write(place, parent, tokens, [&slab.keys()[rows.clone()], &slab.values()[rows]])?;
            places.push(place);
        }
        Ok(())
    }
    // ANCHOR_END: store

    /// Returns the pages of a sequence that the file has and `prefix_cache` lacks, in the order of the
    /// sequence. At least one token is left to compute, so a last page that holds it is left out.
    /// All pages of the sequence that the file has are used now, also those that are in memory. No
    /// page gains an owner.
    ///
    /// # Errors
    /// The error of [`PrefixCache::lookup`].
    // ANCHOR: pages_to_load
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
    // ANCHOR_END: pages_to_load

    /// Returns the rows of a page that was read, if its record is still in the file. If that record
    /// cannot be read, is damaged, or its header differs from the one in the index, it is forgotten.
    // ANCHOR: accept
    fn accept(&mut self, read: &PageRead) -> Option<PageRows> {
        // ch16 task 5: the rows, if they are those of the page that was asked for
        let PageOnDisk { place, id, .. } = read.page;
        let expected = self.index.get(place).filter(|header| header.id == id)?;
        let bytes = read.bytes.as_ref().ok();
        match bytes.and_then(|bytes| decode(&self.format, bytes).ok()) {
            Some((header, rows)) if header == *expected => Some(rows),
            _ => {
                self.index.forget(place);
                None
            }
        }
    }
    // ANCHOR_END: accept

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
    // ANCHOR: load
    pub fn load(
        &mut self,
        tokens: &[u32],
        read: &[PageRead],
        prefix_cache: &mut dyn PrefixCache,
        slab: &SharedSlab,
    ) -> Result<usize, CacheError> {
        // ch16 task 5: hold what is there, make room, copy, insert
        // As long as this cache lives, the pages that memory has already stay.
        let mut cache = ForkCache::with_prefix(slab, prefix_cache, tokens)?;
        let held = cache.table().pages().len();
        let mut pages = Vec::new();
        for read in read {
            let Some(rows) = self.accept(read) else { break };
            if read.page.index == held + pages.len() {
                pages.push(rows);
            }
        }
        let n_to_evict = pages.len().saturating_sub(slab.borrow().pool().n_free());
        slab.borrow_mut().evict(prefix_cache, n_to_evict)?;
        pages.truncate(slab.borrow().pool().n_free());
        cache.extend(pages.len() * self.format.page_size)?;
        for (page, rows) in cache.table().pages()[held..].iter().zip(&pages) {
            slab.borrow_mut().write_page(*page, rows);
        }
        cache.insert_into(prefix_cache, tokens)?;
        Ok(pages.len())
    }
    // ANCHOR_END: load
}

impl PageSlab {
    /// Writes the rows of a page, in all layers.
    fn write_page(&mut self, page: PageId, rows: &PageRows) {
        let start = page.index() * rows.k.len();
        self.k[start..][..rows.k.len()].copy_from_slice(&rows.k);
        self.v[start..][..rows.v.len()].copy_from_slice(&rows.v);
    }
}
