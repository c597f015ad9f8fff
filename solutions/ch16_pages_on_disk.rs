//! Chapter 16: pages on disk, which one run computes and the next one reads.
//!
//! A page file has a header and places for *records*, all of one length. A record holds a page's
//! tokens, its rows in all layers, and the number of its *parent*, the record of the page before
//! it. Later records have higher numbers, and no two whole records share one.
//!
//! ```text
//!   page size 2; "once upon a time" was generated, then "once upon a king"
//!
//!   header | place 0     | place 1     | place 2     |
//!            number 1      number 2      number 3
//!            parent 0      parent 1      parent 1       0: sequences begin with it
//!            once upon     a time        a king
//!            rows          rows          rows
//! ```
//!
//! Given in `src/disk` are the file (`mod.rs`), the bytes of a record (`record.rs`), and the index
//! of what is at which place (`index.rs`), which is read from the heads when the file is opened.

use crate::cache::{CacheError, KvCache, PageId};
use crate::chapters::ch05_page_table::PageTable;
use crate::chapters::ch06_paged::{PageSlab, SharedSlab};
use crate::chapters::ch10_fork::ForkCache;
use crate::disk::record::{Head, PageRows, RecordError, decode_head, encode};
use crate::disk::{MissingPage, PageFile, PageFileError, PageRead, PageShape};
use crate::prefixes::{Prefixes, held_tokens};

// ANCHOR: decode
/// Reads a record, as the inverse of [`encode`]. `bytes` has as many bytes as a record.
///
/// # Errors
/// [`RecordError::WrongLength`] if they are fewer or more, [`RecordError::DamagedRows`], and
/// the errors of [`decode_head`].
pub fn decode(shape: &PageShape, bytes: &[u8]) -> Result<(Head, PageRows), RecordError> {
    // ch16 task 1: check the length, then the head, then the rows, and read them
    let (found, expected) = (bytes.len(), shape.record_bytes());
    if found != expected {
        return Err(RecordError::WrongLength { found, expected });
    }
    let head = decode_head(shape, bytes)?;
    let rows = &bytes[shape.head_bytes()..];
    let (found, expected) = (head.rows_checksum, crc32fast::hash(rows));
    if found != expected {
        return Err(RecordError::DamagedRows { found, expected });
    }
    let (k, v) = rows.split_at(rows.len() / 2);
    let [k, v] = [k, v].map(|rows| rows.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect());
    Ok((head, PageRows { k, v }))
}
// ANCHOR_END: decode

impl PageFile {
    // ANCHOR: find
    /// Returns the places of the pages that `tokens` begins with, in order, as far as the file has
    /// them. Tokens after the last full page are ignored.
    ///
    /// In the file above, `once upon a king` → `0 2` and `a king` → nothing.
    pub fn find(&self, tokens: &[u32]) -> Vec<usize> {
        // ch16 task 2: follow the tokens from record to record
        let mut places = Vec::new();
        let mut parent = 0;
        for page in tokens.chunks_exact(self.shape.page_size) {
            let Some(place) = self.index.child(parent, page) else { break };
            places.push(place);
            parent = self.index.head(place).number;
        }
        places
    }
    // ANCHOR_END: find

    // ANCHOR: use
    /// Notes that the pages of a sequence are used now. `places` is in the order of the sequence.
    /// Its first page counts as used last, so a page is never older than one that follows it, and
    /// nothing follows the oldest page of all.
    fn touch(&mut self, places: &[usize]) {
        // ch16 task 3: the first page is used last
        for place in places.iter().rev() {
            self.index.touch(*place);
        }
    }
    // ANCHOR_END: use

    // ANCHOR: make_room
    /// Returns a place for a record, taken from the free places. If none is free, the page that was
    /// used longest ago is first forgotten, which makes its place free. Returns `None` if every page
    /// was used after `before`.
    fn make_room(&mut self, before: u64) -> Option<usize> {
        // ch16 task 3: a free place, or that of the oldest page
        if let Some(place) = self.index.alloc_place() {
            return Some(place);
        }
        let (place, last_used) = self.index.oldest()?;
        if last_used > before {
            return None;
        }
        self.index.forget(place);
        self.index.alloc_place()
    }
    // ANCHOR_END: make_room

    // ANCHOR: write
    /// Writes a page to a place from [`make_room`](Self::make_room). `rows` are its keys and its
    /// values. The page can be found only after it is written. If the write fails, the place is
    /// given back, and the number is not used again.
    fn write(&mut self, place: usize, parent: u64, tokens: &[u32], rows: [&[f32]; 2]) -> Result<(), PageFileError> {
        // ch16 task 3: write the page, and only then let it be found
        let number = self.index.take_number();
        let bytes = encode(&self.shape, number, parent, tokens, rows[0], rows[1]);
        let offset = self.shape.offset(place);
        if let Err(error) = self.disk.write(offset, &bytes) {
            self.index.free_place(place);
            return Err(PageFileError::Unwritable { offset, error });
        }
        let head = decode_head(&self.shape, &bytes).expect("a head that was just encoded");
        self.index.add(place, head);
        Ok(())
    }
    // ANCHOR_END: write

    // ANCHOR: store
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
        let held = held_tokens(tokens, table, self.shape.page_size);
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
        let pages = table.pages().iter().zip(tokens.chunks_exact(self.shape.page_size));
        for (page, tokens) in pages.skip(places.len()) {
            let Some(place) = self.make_room(before) else { break };
            let parent = places.last().map_or(0, |place| self.index.head(*place).number);
            let rows = self.shape.range_of(*page);
            self.write(place, parent, tokens, [&slab.keys()[rows.clone()], &slab.values()[rows]])?;
            places.push(place);
        }
        Ok(())
    }
    // ANCHOR_END: store

    // ANCHOR: missing
    /// Returns the pages of a sequence that the file has and `prefixes` lacks, in the order of the
    /// sequence. At least one token is left to compute, so a last page that holds it is left out.
    /// All pages of the sequence that the file has are used now, also those that are in memory. No
    /// page gains an owner.
    ///
    /// # Errors
    /// The error of [`Prefixes::lookup`].
    pub fn missing(
        &mut self,
        tokens: &[u32],
        prefixes: &mut dyn Prefixes,
        slab: &SharedSlab,
    ) -> Result<Vec<MissingPage>, CacheError> {
        let held = ForkCache::with_prefix(slab, prefixes, tokens)?.table().pages().len();
        let places = self.find(&tokens[..tokens.len().saturating_sub(1)]);
        self.touch(&places);
        let missing = places.into_iter().enumerate().skip(held);
        Ok(missing.map(|(page, place)| MissingPage { page, place, number: self.index.head(place).number }).collect())
    }
    // ANCHOR_END: missing

    // ANCHOR: accept
    /// Returns the rows of a page that was read, if the file still has the record that was missing.
    /// If that record cannot be read, is damaged, or its head differs from the one in the index, it
    /// is forgotten.
    fn accept(&mut self, read: &PageRead) -> Option<PageRows> {
        // ch16 task 4: the rows, if they are those of the missing page
        let MissingPage { place, number, .. } = read.missing;
        let expected = self.index.get(place).filter(|head| head.number == number)?;
        let bytes = read.bytes.as_ref().ok();
        match bytes.and_then(|bytes| decode(&self.shape, bytes).ok()) {
            Some((head, rows)) if head == *expected => Some(rows),
            _ => {
                self.index.forget(place);
                None
            }
        }
    }
    // ANCHOR_END: accept

    // ANCHOR: load
    /// Gives pages that were read to `prefixes`, and returns how many. `read` holds what was read
    /// for [`missing`](Self::missing), in its order. Some pages can be missing, even in the middle,
    /// because they are being read for a different sequence.
    ///
    /// Suppose memory now holds the first `held` pages of the sequence. A page that was read and
    /// comes before them is skipped. The next must be page `held`, then `held + 1`, and so on. The
    /// prefix ends at the first gap, and at the first page that cannot be read, is damaged, or has
    /// left the file since. What comes after that is recomputed.
    ///
    /// The rows go to free pages of the slab. If there are too few, others are evicted, but none of
    /// this sequence. If that is not enough, only the first pages are loaded. Afterwards
    /// `prefixes` is the only owner of the new pages.
    ///
    /// # Errors
    /// The errors of [`Prefixes`]: the slab is not the one that its pages came from.
    pub fn load(
        &mut self,
        tokens: &[u32],
        read: &[PageRead],
        prefixes: &mut dyn Prefixes,
        slab: &SharedSlab,
    ) -> Result<usize, CacheError> {
        // ch16 task 4: hold what is there, make room, copy, insert
        // As long as this cache lives, the pages before those that are missing stay.
        let mut cache = ForkCache::with_prefix(slab, prefixes, tokens)?;
        let held = cache.table().pages().len();
        let mut pages = Vec::new();
        for read in read {
            let Some(rows) = self.accept(read) else { break };
            if read.missing.page == held + pages.len() {
                pages.push(rows);
            }
        }
        let n_to_evict = pages.len().saturating_sub(slab.borrow().pool().n_free());
        slab.borrow_mut().evict(prefixes, n_to_evict)?;
        pages.truncate(slab.borrow().pool().n_free());
        cache.extend(pages.len() * self.shape.page_size)?;
        for (page, rows) in cache.table().pages()[held..].iter().zip(&pages) {
            slab.borrow_mut().write_page(*page, rows);
        }
        cache.insert_into(prefixes, tokens)?;
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
