//! Pages of a prefix cache in a file. Chapter 16 writes and finds them; here is what it stands on.
//!
//! ```text
//!   a sequence arrives ── which pages does the file have, and memory not? ── read them, on a thread of their own
//!        │                                                                     │  meanwhile others compute
//!        └────── the sequence runs, and finds its pages in the trie ◄── checked, and copied into free pages
//!
//!   a page is full ── written at once, so that whatever is evicted later lies in the file already
//! ```
//!
//! - [`Disk`]: bytes at places, a [file](file_disk::FileDisk) or what a test puts in its place.
//! - [`PageShape`]: what all pages of a file have in common; the file begins with it.
//! - [`record`]: a page as it is written; [`index`]: what lies at which place.
//! - [`Wanted`] and [`Read`]: pages asked for, and the bytes that were read.
//! - [`reader`]: the thread that reads; [`tier`]: the file, the thread and a prefix cache, for a loop that serves sequences.

pub mod file_disk;
pub mod index;
pub mod memory_disk;
pub mod reader;
pub mod record;
pub mod tier;

use std::io;
use std::ops::Range;

use crate::cache::{KvLayout, PageId};
use crate::kernels::RowFormat;
use crate::model::Model;

/// Bytes that can be read and written at any place, and are still there tomorrow.
///
/// A write that fails, or is cut off, may have written some of its bytes.
pub trait Disk {
    /// Bytes in all.
    ///
    /// # Errors
    /// What the system says.
    fn len(&mut self) -> io::Result<u64>;

    /// Whether there are no bytes at all.
    ///
    /// # Errors
    /// As [`len`](Self::len).
    fn is_empty(&mut self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `bytes` with those from `offset` on.
    ///
    /// # Errors
    /// What the system says; [`io::ErrorKind::UnexpectedEof`] if there are not as many.
    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes `bytes` from `offset` on. Between the end so far and `offset` zeros are put.
    ///
    /// # Errors
    /// What the system says.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Takes away all bytes from `len` on.
    ///
    /// # Errors
    /// What the system says.
    fn cut(&mut self, len: u64) -> io::Result<()>;
}

/// Bytes that a file of pages begins with: its [`PageShape`].
pub const HEADER: usize = 64;

/// The first bytes of a file of pages.
const MAGIC: [u8; 8] = *b"pbppages";

/// Goes up when the meaning of a file changes, the arithmetic that makes the rows included.
const VERSION: u32 = 1;

/// What all pages of a file have in common. Rows mean something only where all of it is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageShape {
    /// The [fingerprint](Model::fingerprint) of the model that makes the rows.
    pub model: u32,
    /// How their numbers are stored.
    pub format: RowFormat,
    /// The shape of the rows as caches see them: of words, if they are packed.
    pub layout: KvLayout,
    /// Slots in a page.
    pub page_size: usize,
}

impl PageShape {
    /// What this model's pages have in common. Reads all weights once, for the fingerprint.
    pub fn of(model: &Model, page_size: usize) -> Self {
        let (format, layout) = (model.row_format(), model.kv_layout());
        PageShape { model: model.fingerprint(), format, layout, page_size }
    }

    /// Numbers that the keys of a page take in all layers; its values take as many again.
    pub fn numbers(&self) -> usize {
        self.layout.n_layers * self.page_size * self.layout.kv_width()
    }

    /// Where the numbers of a page lie in a slab's `k` and in its `v`: those of all layers side by side.
    pub(crate) fn range_of(&self, page: PageId) -> Range<usize> {
        page.index() * self.numbers()..(page.index() + 1) * self.numbers()
    }

    /// The first bytes of a file of such pages.
    ///
    /// ```text
    ///   0   "pbppages"
    ///   8   version, model, row format                          u32 each
    ///   20  page size, layers, key/value heads, head dimension  u64 each
    ///   52  zeros
    ///   60  CRC-32 of what is before                            u32
    /// ```
    pub fn header(&self) -> [u8; HEADER] {
        let place = RowFormat::ALL.iter().position(|format| *format == self.format);
        let KvLayout { n_layers, n_kv_heads, head_dim } = self.layout;
        let mut bytes = MAGIC.to_vec();
        for number in [VERSION, self.model, place.expect("a format is one of all") as u32] {
            bytes.extend(number.to_le_bytes());
        }
        for number in [self.page_size, n_layers, n_kv_heads, head_dim] {
            bytes.extend((number as u64).to_le_bytes());
        }
        bytes.resize(HEADER - size_of::<u32>(), 0);
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes.try_into().expect("as many bytes as a header has")
    }

    /// Reads what [`header`](Self::header) has made.
    ///
    /// # Errors
    /// [`PageFileError::NotAPageFile`], [`PageFileError::NewerVersion`], [`PageFileError::DamagedHeader`].
    pub fn read(header: &[u8; HEADER]) -> Result<Self, PageFileError> {
        if header[..MAGIC.len()] != MAGIC {
            return Err(PageFileError::NotAPageFile);
        }
        let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let (found, expected) = (u32_at(HEADER - 4), crc32fast::hash(&header[..HEADER - 4]));
        if found != expected {
            return Err(PageFileError::DamagedHeader { found, expected });
        }
        let version = u32_at(8);
        if version != VERSION {
            return Err(PageFileError::NewerVersion { found: version, supported: VERSION });
        }
        let u64_at = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        let number = |at: usize| usize::try_from(u64_at(at)).unwrap_or(usize::MAX);
        let format = RowFormat::ALL.get(u32_at(16) as usize).copied().ok_or(PageFileError::NotAPageFile)?;
        let layout = KvLayout { n_layers: number(28), n_kv_heads: number(36), head_dim: number(44) };
        Ok(PageShape { model: u32_at(12), format, layout, page_size: number(20) })
    }
}

/// A page that is to be read from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which page of its sequence it is, from 0.
    pub page: usize,
    /// Where its record lies in the file, from 0.
    pub place: usize,
    /// The record's number.
    pub number: u64,
}

/// What came of reading a page.
#[derive(Debug)]
pub struct Read {
    /// The page.
    pub wanted: Wanted,
    /// The bytes at its place, as many as a record has.
    pub bytes: io::Result<Vec<u8>>,
}

impl Read {
    /// Reads the `record_bytes` bytes from `offset` on, whatever is there.
    pub(crate) fn of(wanted: Wanted, disk: &mut dyn Disk, offset: u64, record_bytes: usize) -> Self {
        let mut bytes = vec![0; record_bytes];
        let read = disk.read(offset, &mut bytes);
        Read { wanted, bytes: read.map(|()| bytes) }
    }
}

/// Why a file of pages was not opened, or a page not written.
#[derive(Debug, thiserror::Error)]
pub enum PageFileError {
    /// It cannot be read.
    #[error("{error}; give a file of pages, or one that is not there yet")]
    Unreadable {
        /// What the system said.
        error: io::Error,
    },
    /// It cannot be written.
    #[error("a page cannot be written at byte {offset}: {error}; make room, or do without the file")]
    Unwritable {
        /// Where the page was to be.
        offset: u64,
        /// What the system said.
        error: io::Error,
    },
    /// It is something else.
    #[error("this is no file of pages; give another name, and it is left as it is")]
    NotAPageFile,
    /// A later version of this program has written it.
    #[error("a file of pages of version {found}, up to {supported} can be read; give another name")]
    NewerVersion {
        /// Its version.
        found: u32,
        /// The newest that can be read.
        supported: u32,
    },
    /// Its first bytes have changed.
    #[error(
        "the first {HEADER} bytes are damaged: their checksum is {expected:08x}, and they say {found:08x}; remove the file: \
         its pages are computed again"
    )]
    DamagedHeader {
        /// What they say.
        found: u32,
        /// What they have.
        expected: u32,
    },
    /// The rows are stored in another format.
    #[error("rows in {found}, and here rows are kept in {expected}; ask for --kv-dtype {found}, or give another file")]
    WrongFormat {
        /// The file's.
        found: RowFormat,
        /// What is asked for.
        expected: RowFormat,
    },
    /// The rows have another shape.
    #[error("rows of {found:?}, the model makes rows of {expected:?}; use the model that made them, or another file")]
    WrongLayout {
        /// The file's.
        found: KvLayout,
        /// What is asked for.
        expected: KvLayout,
    },
    /// The rows were made by another model, of the same shape.
    #[error(
        "the rows were made by another model: its fingerprint is {found:08x}, this model's {expected:08x}; use the model \
         that made them, or another file"
    )]
    OtherModel {
        /// The fingerprint of the model that made the rows.
        found: u32,
        /// The fingerprint of this model.
        expected: u32,
    },
    /// The pages have another size.
    #[error("pages of {found} slots, and these have {expected}; ask for --page-size {found}, or give another file")]
    WrongPageSize {
        /// Slots in a page of the file.
        found: usize,
        /// Slots in a page here.
        expected: usize,
    },
    /// The file may not even hold one page.
    #[error("a file of {most} bytes at most has no room for a page: it takes {needed}; allow more")]
    TooSmall {
        /// Bytes that it may have.
        most: u64,
        /// Bytes of a file with one page.
        needed: u64,
    },
}
