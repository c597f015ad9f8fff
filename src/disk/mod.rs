//! Pages of a prefix cache in a file. Chapter 16 writes and finds them; here is what it needs.
//!
//! ```text
//!   a sequence arrives ── which pages does the file have, and memory not? ── read them, on a thread of their own
//!        │                                                                     │  meanwhile others compute
//!        └────── the sequence runs, and finds its pages in the trie ◄── checked, and copied into free pages
//!
//!   a page is full ── written at once, so that whatever is evicted later lies in the file already
//! ```
//!
//! [`record`] is a page as it is written, [`index`] says what lies at which place, [`reader`] is the thread that reads,
//! and [`disk_tier`](crate::serving::disk_tier) joins the file, the thread and a prefix cache for a loop that serves
//! sequences. The cache of one sequence has a file of its own, a [`saved_cache`].

#[cfg(any(unix, windows))]
pub mod file_disk;
pub mod index;
pub mod memory_disk;
pub mod reader;
pub mod record;
pub mod saved_cache;

use std::io;
use std::ops::Range;

use self::index::PageFileIndex;
use crate::cache::{KvLayout, PageId};
use crate::kernels::{KvDtype, MatmulDtype};
use crate::model::Model;

/// Bytes that can be read and written at any offset, such as those of a file.
///
/// Its calls return what the system says. A write that fails, or is cut off, may have written some of its bytes.
pub trait Disk {
    fn len(&mut self) -> io::Result<u64>;

    fn is_empty(&mut self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `bytes` with those from `offset` on; [`io::ErrorKind::UnexpectedEof`] if there are fewer.
    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes `bytes` from `offset` on. Between the end so far and `offset` zeros are put.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Removes all bytes from `len` on.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
}

/// Bytes that a file of pages begins with: its [`PageFormat`].
pub const FILE_HEADER_BYTES: usize = 64;

const MAGIC: [u8; 8] = *b"pbppages";

/// Goes up when the meaning of a file changes. A different arithmetic gives its models different fingerprints.
const VERSION: u32 = 1;

/// What all pages of a file have in common. Rows mean something only where all of it is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFormat {
    /// The [fingerprint](Model::fingerprint) of the model that makes the rows.
    pub fingerprint: u32,
    pub kv_dtype: KvDtype,
    /// How the model that makes the rows multiplies.
    pub matmul_dtype: MatmulDtype,
    /// The shape of the rows as caches see them: of words, if they are packed.
    pub layout: KvLayout,
    pub page_size: usize,
}

impl PageFormat {
    /// What this model's pages have in common. Reads all weights once, for the fingerprint.
    pub fn for_model(model: &Model, page_size: usize) -> Self {
        let (kv_dtype, matmul_dtype, layout) = (model.kv_dtype, model.matmul_dtype, model.cache_layout());
        PageFormat { fingerprint: model.fingerprint(), kv_dtype, matmul_dtype, layout, page_size }
    }

    /// Numbers that the keys of a page take in all layers; its values take as many again.
    pub fn n_numbers(&self) -> usize {
        self.layout.n_layers * self.page_size * self.layout.kv_width()
    }

    /// Where the numbers of a page lie in a slab's `k` and in its `v`: those of all layers side by side.
    pub fn range_of(&self, page: PageId) -> Range<usize> {
        page.index() * self.n_numbers()..(page.index() + 1) * self.n_numbers()
    }

    /// The first bytes of a file of such pages.
    ///
    /// ```text
    ///   0   "pbppages"
    ///   8   version, model, KV dtype + 256 * matmul dtype       u32 each
    ///   20  page size, layers, key/value heads, head dimension  u64 each
    ///   52  zeros
    ///   60  CRC-32 of what is before                            u32
    /// ```
    pub fn file_header(&self) -> [u8; FILE_HEADER_BYTES] {
        let kv_dtype = KvDtype::ALL.iter().position(|dtype| *dtype == self.kv_dtype);
        let matmul_dtype = MatmulDtype::ALL.iter().position(|dtype| *dtype == self.matmul_dtype);
        let numbers = kv_dtype.expect("one of all") + 256 * matmul_dtype.expect("one of all");
        let KvLayout { n_layers, n_kv_heads, head_dim } = self.layout;
        let mut bytes = MAGIC.to_vec();
        for number in [VERSION, self.fingerprint, numbers as u32] {
            bytes.extend(number.to_le_bytes());
        }
        for number in [self.page_size, n_layers, n_kv_heads, head_dim] {
            bytes.extend((number as u64).to_le_bytes());
        }
        bytes.resize(FILE_HEADER_BYTES - size_of::<u32>(), 0);
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes.try_into().expect("as many bytes as a header has")
    }

    /// The inverse of [`file_header`](Self::file_header).
    ///
    /// # Errors
    /// [`PageFileError::NotAPageFile`], [`PageFileError::DamagedHeader`], [`PageFileError::UnknownVersion`].
    pub fn from_file_header(header: &[u8; FILE_HEADER_BYTES]) -> Result<Self, PageFileError> {
        if header[..MAGIC.len()] != MAGIC {
            return Err(PageFileError::NotAPageFile);
        }
        let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let (content, _) = header.split_at(FILE_HEADER_BYTES - size_of::<u32>());
        let (stored, computed) = (u32_at(content.len()), crc32fast::hash(content));
        if stored != computed {
            return Err(PageFileError::DamagedHeader { stored, computed });
        }
        let version = u32_at(8);
        if version != VERSION {
            return Err(PageFileError::UnknownVersion { version });
        }
        let u64_at = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        let number = |at: usize| usize::try_from(u64_at(at)).unwrap_or(usize::MAX);
        let (kv_dtype, matmul_dtype) = (u32_at(16) as usize % 256, u32_at(16) as usize / 256);
        let kv_dtype = KvDtype::ALL.get(kv_dtype).copied().ok_or(PageFileError::NotAPageFile)?;
        let matmul_dtype = MatmulDtype::ALL.get(matmul_dtype).copied().ok_or(PageFileError::NotAPageFile)?;
        let layout = KvLayout { n_layers: number(28), n_kv_heads: number(36), head_dim: number(44) };
        Ok(PageFormat { fingerprint: u32_at(12), kv_dtype, matmul_dtype, layout, page_size: number(20) })
    }

    /// Refuses a file whose pages have the format `found`, unless it is this one.
    ///
    /// # Errors
    /// [`PageFileError::WrongFormat`].
    fn check_same(&self, found: &PageFormat) -> Result<(), PageFileError> {
        if found == self { Ok(()) } else { Err(PageFileError::WrongFormat { found: *found, expected: *self }) }
    }

    /// The first that differs of matmul dtype, KV dtype, layout, model and page size, in words.
    fn difference(&self, expected: &PageFormat) -> String {
        let PageFormat { fingerprint, kv_dtype, matmul_dtype, layout, page_size } = self;
        if *matmul_dtype != expected.matmul_dtype {
            let [made, here] = [matmul_dtype, &expected.matmul_dtype].map(|dtype| dtype.name());
            format!("rows made with products in {made}, and here products are in {here}; ask for --matmul-dtype {made}")
        } else if *kv_dtype != expected.kv_dtype {
            let here = expected.kv_dtype;
            format!("rows in {kv_dtype}, and here rows are kept in {here}; ask for --kv-dtype {kv_dtype}")
        } else if *layout != expected.layout {
            let here = expected.layout;
            format!("rows of {layout:?}, the model makes rows of {here:?}; use the model that made them")
        } else if *fingerprint != expected.fingerprint {
            let whose = format!("its fingerprint is {fingerprint:08x}, this model's {:08x}", expected.fingerprint);
            format!("the rows were made by a different model: {whose}; use the model that made them")
        } else {
            let here = expected.page_size;
            format!("pages of {page_size} slots, and these have {here}; ask for --page-size {page_size}")
        }
    }
}

/// A page of a sequence that memory lacks, and where the file has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageOnDisk {
    /// Which page of its sequence it is, from 0.
    pub index: usize,
    /// Where its record lies in the file, from 0.
    pub place: usize,
    pub id: u64,
}

/// A page that was read, or could not be.
#[derive(Debug)]
pub struct PageRead {
    pub page: PageOnDisk,
    /// The bytes at its place, as many as a record has, whatever they are.
    pub bytes: io::Result<Vec<u8>>,
}

impl PageOnDisk {
    fn read(self, disk: &mut dyn Disk, format: &PageFormat) -> PageRead {
        let mut bytes = vec![0; format.record_bytes()];
        let read = disk.read(format.offset(self.place), &mut bytes);
        PageRead { page: self, bytes: read.map(|()| bytes) }
    }
}

/// A file of pages, found by the tokens of their sequences. When it is full, the least recently used are overwritten.
pub struct PageFile {
    pub(crate) disk: Box<dyn Disk>,
    pub(crate) format: PageFormat,
    /// What lies at which place, by id, parent and tokens, and when it was last used.
    pub(crate) index: PageFileIndex,
}

impl PageFile {
    /// Opens a file of pages of this format, and finds what is in it. `max_bytes`: what the file is allowed to have.
    ///
    /// # Errors
    /// The errors of [`PageFileIndex::open`].
    pub fn open(mut disk: Box<dyn Disk>, format: PageFormat, max_bytes: u64) -> Result<Self, PageFileError> {
        let index = PageFileIndex::open(&mut *disk, &format, max_bytes)?;
        Ok(PageFile { disk, format, index })
    }

    pub fn index(&self) -> &PageFileIndex {
        &self.index
    }

    /// Reads the bytes at a place from [`pages_to_load`](Self::pages_to_load), for [`load`](Self::load) to check.
    pub fn read(&mut self, page: PageOnDisk) -> PageRead {
        page.read(&mut *self.disk, &self.format)
    }
}

/// Why a file of pages was not opened, or a page not written.
#[derive(Debug, thiserror::Error)]
pub enum PageFileError {
    #[error("{0}; give a file of pages, or one that is not there yet")]
    Unreadable(io::Error),
    #[error("a page cannot be written at byte {offset}: {error}; make room, or do without the file")]
    Unwritable { offset: u64, error: io::Error },
    #[error("the model's weights were written over while it used them; start again with the files as they are now")]
    WeightsChanged,
    #[error("this is no file of pages; give a different name, and it is left as it is")]
    NotAPageFile,
    #[error(
        "the first {FILE_HEADER_BYTES} bytes are damaged: their checksum is {computed:08x}, and they say {stored:08x}; \
         remove the file: its pages are computed again"
    )]
    DamagedHeader { stored: u32, computed: u32 },
    #[error("a file of pages of version {version}, and this program reads version {VERSION}; give a different name")]
    UnknownVersion { version: u32 },
    #[error("{}, or give a different file", found.difference(expected))]
    WrongFormat { found: PageFormat, expected: PageFormat },
    #[error("a file of {max_bytes} bytes at most has no room for a page: it takes {needed}; allow more")]
    TooSmall { max_bytes: u64, needed: u64 },
}
