//! A record: a page as it is written to a page file.
//!
//! All records of a file are equally long, since the model, the layout and the page size are fixed. The first checksum
//! covers the file's header, without the checksum at its end, and the record's from byte 4; the second covers the rows.
//!
//! ```text
//!   0    checksum of header     u32
//!   4    checksum of rows       u32
//!   8    id, parent             u64 each
//!   24   tokens                 u32 × page size
//!   ..   keys, then values      f32 × layers × page size × row, each; as they lie in the slab
//! ```
//!
//! Checksums are CRC-32, numbers have their lowest byte first.

use super::{FILE_HEADER_BYTES, PageFormat};

/// A record's id at most: enough follow it for as long as a file is written.
const MAX_ID: u64 = 1 << 63;

/// Where the tokens of a record begin.
const TOKENS: usize = 24;

/// A record's header: all of it but the rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Its id, from 1. No two whole records share one, and a record written later has a higher one.
    pub id: u64,
    /// The id of the record before it, which is lower; 0 if sequences begin with this page.
    pub parent: u64,
    /// The tokens whose rows it holds: `[page_size]`.
    pub tokens: Box<[u32]>,
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

/// Why bytes are not the record that they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("a record of {expected} bytes, and {found} are there: the file was cut short")]
    WrongLength { found: usize, expected: usize },
    /// The header is damaged, or no record was ever written there.
    #[error("the header's bytes have the checksum {computed:08x}, the header says {stored:08x}")]
    DamagedHeader { stored: u32, computed: u32 },
    #[error("the rows' bytes have the checksum {computed:08x}, the header says {stored:08x}")]
    DamagedRows { stored: u32, computed: u32 },
    #[error("record {id} follows record {parent}, and should follow an earlier one")]
    WrongParent { id: u64, parent: u64 },
    #[error("record {id} has an id that no file gets to, {MAX_ID} at most")]
    WrongId { id: u64 },
}

impl PageFormat {
    /// Bytes of a record up to the end of its tokens.
    pub fn record_header_bytes(&self) -> usize {
        TOKENS + self.page_size * size_of::<u32>()
    }

    /// Bytes of a record.
    ///
    /// Pages of 16 slots, 6 layers and rows of 64 numbers: 88 + 2 · 4 · 6,144 = 49,240 bytes.
    pub fn record_bytes(&self) -> usize {
        self.record_header_bytes() + 2 * self.n_numbers() * size_of::<f32>()
    }

    /// Where the record at `place` begins in the file, which can have more bytes than 32 bits count.
    pub fn offset(&self, place: usize) -> u64 {
        FILE_HEADER_BYTES as u64 + place as u64 * self.record_bytes() as u64
    }
}

// ANCHOR: encode
/// A record in bytes. `tokens`: `[page_size]`; `k` and `v`: `[n_layers, page_size, kv_width]`. Every bit of the rows is
/// kept, whatever number it makes.
pub fn encode(format: &PageFormat, id: u64, parent: u64, tokens: &[u32], k: &[f32], v: &[f32]) -> Vec<u8> {
    // The checksums come last: zeros in their place until then.
    let mut bytes = vec![0; 8];
    bytes.extend(id.to_le_bytes());
    bytes.extend(parent.to_le_bytes());
    bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    bytes.extend(k.iter().chain(v).flat_map(|number| number.to_le_bytes()));
    let rows = crc32fast::hash(&bytes[format.record_header_bytes()..]);
    bytes[4..8].copy_from_slice(&rows.to_le_bytes());
    let header = header_checksum(format, &bytes);
    bytes[..4].copy_from_slice(&header.to_le_bytes());
    bytes
}

/// The checksum of a record's header. It covers the file's header, so a record from a file of a different model or
/// layout is rejected. The file header's own checksum is left out, because bytes followed by their CRC have the same
/// CRC whatever they are.
fn header_checksum(format: &PageFormat, bytes: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&format.file_header()[..FILE_HEADER_BYTES - 4]);
    sum.update(&bytes[4..format.record_header_bytes()]);
    sum.finalize()
}
// ANCHOR_END: encode

/// Reads the header of a record. `bytes`: a record, or its first bytes.
///
/// # Errors
/// [`RecordError::WrongLength`] if they are too few for a header, [`RecordError::DamagedHeader`],
/// [`RecordError::WrongParent`], [`RecordError::WrongId`].
pub fn decode_header(format: &PageFormat, bytes: &[u8]) -> Result<RecordHeader, RecordError> {
    let (found, expected) = (bytes.len(), format.record_header_bytes());
    if found < expected {
        return Err(RecordError::WrongLength { found, expected });
    }
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let (stored, computed) = (u32_at(0), header_checksum(format, bytes));
    if stored != computed {
        return Err(RecordError::DamagedHeader { stored, computed });
    }
    let (id, parent) = (u64_at(8), u64_at(16));
    if parent >= id {
        return Err(RecordError::WrongParent { id, parent });
    }
    if id > MAX_ID {
        return Err(RecordError::WrongId { id });
    }
    let tokens = (0..format.page_size).map(|slot| u32_at(TOKENS + 4 * slot)).collect();
    Ok(RecordHeader { id, parent, tokens, rows_checksum: u32_at(4) })
}
