//! A record: a page as it is written to a page file.
//!
//! All records of a file are equally long, since the model, the layout and the page size are fixed. The first checksum
//! covers the file's header, without the checksum at its end, and the head from byte 4; the second covers the rows.
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

use super::{HEADER, PageShape};

/// A record's number at most: enough follow it for as long as a file is written.
const MOST_NUMBER: u64 = 1 << 63;

/// Where the tokens of a record begin.
const TOKENS: usize = 24;

/// A record without its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its number, from 1. No two whole records share one, and a record written later has a higher one.
    pub number: u64,
    /// The number of the record before it, which is lower; 0 if sequences begin with this page.
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

/// Why bytes are not the record that they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The messages say what each one means.
pub enum RecordError {
    #[error("a record of {expected} bytes, and {found} are there: the file was cut short")]
    WrongLength { found: usize, expected: usize },
    /// The head is damaged, or no record was ever written there.
    #[error("the head's bytes have the checksum {expected:08x}, the head says {found:08x}")]
    DamagedHead { found: u32, expected: u32 },
    #[error("the rows' bytes have the checksum {expected:08x}, the head says {found:08x}")]
    DamagedRows { found: u32, expected: u32 },
    #[error("record {number} follows record {parent}, and should follow an earlier one")]
    WrongParent { number: u64, parent: u64 },
    #[error("record {number} has a number that no file gets to, {MOST_NUMBER} at most")]
    WrongNumber { number: u64 },
}

impl PageShape {
    /// Bytes of a record up to the end of its tokens.
    pub fn head_bytes(&self) -> usize {
        TOKENS + self.page_size * size_of::<u32>()
    }

    /// Bytes of a record.
    ///
    /// Pages of 16 slots, 6 layers and rows of 64 numbers: 88 + 2 · 4 · 6,144 = 49,240 bytes.
    pub fn record_bytes(&self) -> usize {
        self.head_bytes() + 2 * self.numbers() * size_of::<f32>()
    }

    /// Where the record at `place` begins in the file, which can have more bytes than 32 bits count.
    pub fn offset(&self, place: usize) -> u64 {
        HEADER as u64 + place as u64 * self.record_bytes() as u64
    }
}

// ANCHOR: encode
/// A record in bytes. `tokens`: `[page_size]`; `k` and `v`: `[n_layers, page_size, kv_width]`. Every bit of the rows is
/// kept, whatever number it makes.
pub fn encode(shape: &PageShape, number: u64, parent: u64, tokens: &[u32], k: &[f32], v: &[f32]) -> Vec<u8> {
    // The checksums come last: zeros in their place until then.
    let mut bytes = vec![0; 8];
    bytes.extend(number.to_le_bytes());
    bytes.extend(parent.to_le_bytes());
    bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    bytes.extend(k.iter().chain(v).flat_map(|number| number.to_le_bytes()));
    let rows = crc32fast::hash(&bytes[shape.head_bytes()..]);
    bytes[4..8].copy_from_slice(&rows.to_le_bytes());
    let head = head_checksum(shape, &bytes);
    bytes[..4].copy_from_slice(&head.to_le_bytes());
    bytes
}

/// The checksum of a head. It covers the file's header, so a record from a file of a different model or layout is
/// rejected. The header's own checksum is left out, because bytes followed by their CRC have the same CRC whatever they
/// are.
fn head_checksum(shape: &PageShape, bytes: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&shape.header()[..HEADER - 4]);
    sum.update(&bytes[4..shape.head_bytes()]);
    sum.finalize()
}
// ANCHOR_END: encode

/// Reads the head of a record. `bytes`: a record, or its first bytes.
///
/// # Errors
/// [`RecordError::WrongLength`] if they are too few for a head, [`RecordError::DamagedHead`],
/// [`RecordError::WrongParent`], [`RecordError::WrongNumber`].
pub fn decode_head(shape: &PageShape, bytes: &[u8]) -> Result<Head, RecordError> {
    let (found, expected) = (bytes.len(), shape.head_bytes());
    if found < expected {
        return Err(RecordError::WrongLength { found, expected });
    }
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let (found, expected) = (u32_at(0), head_checksum(shape, bytes));
    if found != expected {
        return Err(RecordError::DamagedHead { found, expected });
    }
    let (number, parent) = (u64_at(8), u64_at(16));
    if parent >= number {
        return Err(RecordError::WrongParent { number, parent });
    }
    if number > MOST_NUMBER {
        return Err(RecordError::WrongNumber { number });
    }
    let tokens = (0..shape.page_size).map(|slot| u32_at(TOKENS + 4 * slot)).collect();
    Ok(Head { number, parent, tokens, rows_checksum: u32_at(4) })
}
