//! Chapter 16: pages on disk. What one run has computed, the next one reads.
//!
//! A file of *records*, all of one length, behind a header. A record is a page: its tokens,
//! its rows in all layers, and the record of the page before it. Every record has a *number*;
//! one that is written later has a higher one, and no number is used twice.
//!
//! ```text
//!   page size 2; "once upon a time" was told, then "once upon a king"
//!
//!   header | place 0     | place 1     | place 2     |
//!            number 1      number 2      number 3
//!            parent 0      parent 1      parent 1       0: texts begin with it
//!            once upon     a time        a king
//!            rows          rows          rows
//! ```
//!
//! A record in bytes. The first checksum is over the file's header, without the checksum that
//! it ends with, and what is between 4 and the end of the tokens; the second over the rows.
//!
//! ```text
//!   0    checksum of the head   u32
//!   4    checksum of the rows   u32
//!   8    number, parent         u64 each
//!   24   tokens                 u32 × page size
//!   ..   keys, then values      f32 × layers × page size × row, each; as they lie in the slab
//! ```
//!
//! Checksums are CRC-32, numbers have their lowest byte first.
//!
//! What a disk can do, and the errors, stand in `src/disk/mod.rs`.
//!
//! Check your work with `cargo test --features solution --test ch16_pages_on_disk`.

use std::collections::{BTreeMap, HashMap};

use crate::cache::{CacheError, KvCache, PageId};
use crate::chapters::ch05_page_table::PageTable;
use crate::chapters::ch06_paged::{PageSlab, SharedSlab};
use crate::chapters::ch10_fork::ForkCache;
use crate::disk::{Disk, HEADER, PageFileError, PageShape, Read, RecordError, Wanted};
use crate::prefixes::Prefixes;

/// Where the tokens of a record begin.
const TOKENS: usize = 24;

/// A record without its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its number, from 1.
    pub number: u64,
    /// The number of the record before it: a lower one; 0 if texts begin with this page.
    pub parent: u64,
    /// The tokens whose rows it holds: `[page_size]`.
    pub tokens: Box<[u32]>,
    /// The checksum of the rows.
    pub rows_checksum: u32,
}

/// The rows of a page, as they lie in the slab.
#[derive(Clone, Debug, PartialEq)]
pub struct PageRows {
    /// `[n_layers, page_size, kv_width]`, row-major.
    pub k: Vec<f32>,
    /// `[n_layers, page_size, kv_width]`, row-major.
    pub v: Vec<f32>,
}

/// Bytes of a record up to the end of its tokens.
pub fn head_bytes(shape: &PageShape) -> usize {
    TOKENS + shape.page_size * size_of::<u32>()
}

/// Bytes of a record.
///
/// Pages of 16 slots, 6 layers and rows of 64 numbers: 88 + 2 · 4 · 6,144 = 49,240 bytes.
pub fn record_bytes(shape: &PageShape) -> usize {
    todo!("ch16 task 1: the head, and the keys and values of a page")
}

/// Where the record at `place` begins in the file. A file may have many more bytes than 32
/// bits can count.
pub fn offset(shape: &PageShape, place: usize) -> u64 {
    todo!("ch16 task 1: behind the header, one record after the other")
}

/// A record in bytes. `tokens`: `[page_size]`; `k` and `v`: `[n_layers, page_size, kv_width]`.
/// Every bit of the rows is kept, whatever number it makes.
pub fn encode(shape: &PageShape, number: u64, parent: u64, tokens: &[u32], k: &[f32], v: &[f32]) -> Vec<u8> {
    todo!("ch16 task 1: lay the record out, then its two checksums")
}

/// The checksum of a head: over the file's header without the checksum that it ends with, and
/// the head without its own.
fn head_checksum(shape: &PageShape, bytes: &[u8]) -> u32 {
    todo!("ch16 task 1: over the file's header and the head behind its first four bytes")
}

/// Reads the head of a record. `bytes`: those of a record, or its first ones.
///
/// # Errors
/// [`RecordError::WrongLength`] if they are too few for a head, [`RecordError::DamagedHead`],
/// [`RecordError::WrongParent`].
pub fn decode_head(shape: &PageShape, bytes: &[u8]) -> Result<Head, RecordError> {
    todo!("ch16 task 1: check, then read; say what is wrong")
}

/// Reads a record. `bytes`: as many as a record has.
///
/// # Errors
/// [`RecordError::WrongLength`] if they are fewer or more, [`RecordError::DamagedRows`], and
/// the errors of [`decode_head`].
pub fn decode(shape: &PageShape, bytes: &[u8]) -> Result<(Head, PageRows), RecordError> {
    todo!("ch16 task 1: the head, then the rows, each by its checksum")
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn f32_of(bytes: &[u8]) -> f32 {
    f32::from_bits(u32_at(bytes, 0))
}

/// A file of pages, found by the tokens of their texts. It never has more bytes than allowed:
/// the pages that were used longest ago are overwritten.
pub struct PageFile {
    disk: Box<dyn Disk>,
    shape: PageShape,
    /// Records that the file may have.
    n_places: usize,
    /// What lies at each place that the file has; `None` if nothing that is of use.
    places: Vec<Option<Entry>>,
    /// The places of `places` that are `None`.
    free: Vec<usize>,
    /// For each record that others follow, and for 0: their places, by their tokens.
    children: HashMap<u64, HashMap<Box<[u32]>, usize>>,
    /// The places in the order of their last use, by what the clock said then.
    by_use: BTreeMap<u64, usize>,
    clock: u64,
    next_number: u64,
}

/// A record of the file.
struct Entry {
    head: Head,
    last_used: u64,
}

impl PageFile {
    /// Opens a file of pages of this shape, and finds what is in it. Of each record the head
    /// is read, not the rows. `most_bytes`: what the file may have; what lies behind is cut
    /// off.
    ///
    /// An empty file gets a header, as does one that is shorter than a header and has only
    /// bytes that `shape.header()` begins with. Whatever else is as short is refused, as
    /// [`PageFileError::NotAPageFile`] or [`PageFileError::DamagedHeader`].
    ///
    /// A record is kept if its head is whole, its rows are not cut off, and its parent is
    /// kept. If two hold the same tokens behind the same parent, the later one is.
    ///
    /// Nobody knows any more which page was used when. Records that were written later count
    /// as used later, and with each record those before it.
    ///
    /// # Errors
    /// [`PageFileError::TooSmall`] if there is no room for a page. The errors of
    /// [`PageShape::read`]. [`PageFileError::WrongFormat`], [`PageFileError::WrongLayout`],
    /// [`PageFileError::OtherModel`] and [`PageFileError::WrongPageSize`], looked for in this
    /// order, if the pages have another shape. The file is then as it was.
    ///
    /// [`PageFileError::Unreadable`] and [`PageFileError::Unwritable`] if the disk fails, even
    /// for one head: it may be there again tomorrow, and its number must not be given twice.
    pub fn open(mut disk: Box<dyn Disk>, shape: PageShape, most_bytes: u64) -> Result<Self, PageFileError> {
        let room = most_bytes.saturating_sub(HEADER as u64) / record_bytes(&shape) as u64;
        if room == 0 {
            return Err(PageFileError::TooSmall { most: most_bytes, needed: offset(&shape, 1) });
        }
        let len = read_header(&mut *disk, &shape)?;
        let mut file = PageFile {
            disk,
            shape,
            n_places: usize::try_from(room).unwrap_or(usize::MAX),
            places: Vec::new(),
            free: Vec::new(),
            children: HashMap::new(),
            by_use: BTreeMap::new(),
            clock: 0,
            next_number: 1,
        };
        let heads = file.scan(len, most_bytes)?;
        file.link(heads);
        file.order();
        Ok(file)
    }

    /// Makes a place for each record that is not cut off, and reads the heads: those that are
    /// whole, each with its place. `len`: bytes of the file. If they are more than allowed, the
    /// file is cut off, at `most_bytes` or behind the last record that fits: either will do.
    fn scan(&mut self, len: u64, most_bytes: u64) -> Result<Vec<(usize, Head)>, PageFileError> {
        todo!("ch16 task 2: read the head at each place")
    }

    /// Takes the records that were found, as far as each leads back to the beginning of a
    /// text. All other places are free. The next number is higher than any that was found.
    fn link(&mut self, mut heads: Vec<(usize, Head)>) {
        todo!("ch16 task 2: keep what leads back to the beginning of a text")
    }

    /// Puts the records that were found in the order of their use: the latest record and those
    /// before it were used last, before them the latest of the others, and so on.
    fn order(&mut self) {
        let mut place_of = BTreeMap::new();
        for (place, entry) in self.places.iter().enumerate() {
            if let Some(entry) = entry {
                place_of.insert(entry.head.number, place);
            }
        }
        let mut newest_first = Vec::new();
        let mut is_there = vec![false; self.places.len()];
        for place in place_of.values().rev() {
            let mut path = Vec::new();
            let mut next = Some(*place);
            while let Some(place) = next.filter(|place| !is_there[*place]) {
                is_there[place] = true;
                path.push(place);
                next = place_of.get(&self.head(place).parent).copied();
            }
            newest_first.extend(path.into_iter().rev());
        }
        self.touch(&newest_first);
    }

    /// Records that can be found.
    pub fn n_records(&self) -> usize {
        self.by_use.len()
    }

    /// Records that the file may have.
    pub fn n_places(&self) -> usize {
        self.n_places
    }

    /// What all pages have in common.
    pub fn shape(&self) -> &PageShape {
        &self.shape
    }

    /// Reads the record at a place, whatever is there: [`wanted`](Self::wanted) says which are
    /// to be read, and [`bring_back`](Self::bring_back) looks at what came of it.
    pub fn read(&mut self, wanted: Wanted) -> Read {
        let mut bytes = vec![0; record_bytes(&self.shape)];
        let read = self.disk.read(offset(&self.shape, wanted.place), &mut bytes);
        Read { wanted, bytes: read.map(|()| bytes) }
    }

    /// The record at a place that has one.
    fn head(&self, place: usize) -> &Head {
        &self.places[place].as_ref().expect("a record that can be found").head
    }

    /// Where the record lies that holds `tokens` behind the record with the number `parent`.
    fn child(&self, parent: u64, tokens: &[u32]) -> Option<usize> {
        self.children.get(&parent)?.get(tokens).copied()
    }

    /// The places of the pages that `text` begins with, in its order, as far as the file has
    /// them. Tokens behind the last full page are not looked at.
    ///
    /// In the file above: `once upon a king` → `0 2`, `a king` → nothing.
    pub fn find(&self, text: &[u32]) -> Vec<usize> {
        todo!("ch16 task 2: follow the text from record to record")
    }

    /// Notes that the pages of a text are used now. `places`: in the order of the text. Its
    /// first page counts as used last: so a page is never older than one that follows it, and
    /// the oldest of all is one that nothing follows.
    fn touch(&mut self, places: &[usize]) {
        todo!("ch16 task 2: the first page is used last")
    }

    /// Adds a record, used now.
    fn add(&mut self, place: usize, head: Head) {
        self.clock += 1;
        self.by_use.insert(self.clock, place);
        self.children.entry(head.parent).or_default().insert(head.tokens.clone(), place);
        self.places[place] = Some(Entry { head, last_used: self.clock });
    }

    /// Forgets a record and all that follow it: without it, nobody finds them. Their places
    /// are free.
    fn forget(&mut self, place: usize) {
        let Head { parent, tokens, .. } = self.head(place).clone();
        if let Some(children) = self.children.get_mut(&parent) {
            children.remove(&tokens);
            if children.is_empty() {
                self.children.remove(&parent);
            }
        }
        let mut gone = vec![place];
        while let Some(place) = gone.pop() {
            let entry = self.places[place].take().expect("a record that can be found");
            self.by_use.remove(&entry.last_used);
            self.free.push(place);
            let followers = self.children.remove(&entry.head.number).unwrap_or_default();
            gone.extend(followers.values());
        }
    }

    /// Writes the full pages of a text that the file has not yet, in the order of the text,
    /// and returns how many. All its pages are used now. `table` and `slab` have their rows,
    /// computed; `text` begins with the tokens that the table holds.
    ///
    /// If the file is full, the pages that were used longest ago make room, but never one of
    /// this text: of a text that is longer than the file, the beginning is kept.
    ///
    /// # Errors
    /// [`PageFileError::Unwritable`]. The pages that were written before are kept; what lay at
    /// the place is forgotten, as it may be half overwritten. The number that the page was to
    /// have is used up: its head may lie there whole.
    ///
    /// # Panics
    /// If the table holds more tokens than `text` has, or has pages of another size.
    pub fn keep(&mut self, text: &[u32], table: &PageTable, slab: &PageSlab) -> Result<usize, PageFileError> {
        todo!("ch16 task 3: write what is missing, in the order of the text")
    }

    /// A place for a record: one that is free, or that of the page that was used longest ago,
    /// which is forgotten. `None` if there are only pages that were used after `before`.
    fn make_room(&mut self, before: u64) -> Option<usize> {
        todo!("ch16 task 3: a free place, a new one, or that of the oldest page")
    }

    /// Writes a page to a place that nobody has. It can be found only when it is written. If
    /// the write fails, the place is free, and the number is not given again.
    fn put(
        &mut self,
        place: usize,
        parent: u64,
        tokens: &[u32],
        slab: &PageSlab,
        page: PageId,
    ) -> Result<(), PageFileError> {
        // The fields `k` and `v` of a slab can be read here: they are open to the chapters.
        todo!("ch16 task 3: write the page, and only then let it be found")
    }

    /// The pages of a text that the file has and `prefixes` has not, in the order of the text;
    /// at least one token of the text is left to compute. The pages of the text that the file
    /// has are used now, those in memory included, but not a last page that would leave no
    /// token. Nobody owns a page more than before.
    ///
    /// # Errors
    /// The error of [`Prefixes::lookup`].
    pub fn wanted(
        &mut self,
        text: &[u32],
        prefixes: &mut dyn Prefixes,
        slab: &SharedSlab,
    ) -> Result<Vec<Wanted>, CacheError> {
        todo!("ch16 task 4: what the file has and the prefix cache has not")
    }

    /// The rows of a page that was read, if the file still has the record that was wanted. If
    /// what was read is another one, or damaged, or if nothing could be read, the file forgets
    /// the record.
    fn accept(&mut self, read: &Read) -> Option<PageRows> {
        todo!("ch16 task 4: the rows, if they are those that were wanted")
    }

    /// Gives pages of a text that were read to `prefixes`, and returns how many. `read`: what
    /// came of reading the pages that were [`wanted`](Self::wanted), in their order. Some may
    /// be missing, also in the middle, as they are being read for another text: what is behind
    /// a gap is not brought back.
    ///
    /// The pages go to free pages of the slab; where there are too few, others are evicted,
    /// but none of this text. If that is not enough either, the first ones are brought back. A
    /// page that cannot be read, or is damaged, or that the file has lost since, ends the
    /// prefix: it and those behind it are computed again. Pages that `prefixes` has by now are
    /// passed over; if it has lost one that was not wanted, nothing is brought back.
    ///
    /// Nobody but `prefixes` owns a page more than before.
    ///
    /// # Errors
    /// The errors of [`Prefixes`]: the slab is another one than its pages came from.
    pub fn bring_back(
        &mut self,
        text: &[u32],
        read: &[Read],
        prefixes: &mut dyn Prefixes,
        slab: &SharedSlab,
    ) -> Result<usize, CacheError> {
        // The fields `k` and `v` of a slab can be written here.
        todo!("ch16 task 4: hold what is there, make room, copy, insert")
    }
}

/// Reads the header of a file, or gives it one; returns the bytes that the file then has.
fn read_header(disk: &mut dyn Disk, shape: &PageShape) -> Result<u64, PageFileError> {
    todo!("ch16 task 2: a new file gets a header, another shape is refused")
}

/// Where the rows of a page lie in a slab's `k` and in its `v`: all of them side by side.
fn whole(shape: &PageShape, page: PageId) -> std::ops::Range<usize> {
    page.index() * shape.numbers()..(page.index() + 1) * shape.numbers()
}
