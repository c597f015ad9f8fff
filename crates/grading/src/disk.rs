//! A disk in memory that can be full, unreadable or cut off; and the records of chapter 16, byte by byte.

use std::cell::{RefCell, RefMut};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::rc::Rc;

use page_by_page::disk::memory_disk::MemoryDisk;
use page_by_page::disk::{Disk, FILE_HEADER_BYTES, PageFormat};
use page_by_page::kernels::{KvDtype, MatmulDtype};

use crate::limits;
use crate::pools::LAYOUT;

/// Numbers that cannot be taken for one another: a header has 40 bytes, a record 1,000.
pub const FORMAT: PageFormat = PageFormat {
    fingerprint: 0xC0FF_EE16,
    kv_dtype: KvDtype::F32,
    matmul_dtype: MatmulDtype::F32,
    layout: LAYOUT,
    page_size: 4,
};
pub const RECORD_HEADER: usize = 40;
pub const RECORD: usize = 1000;

/// The tokens `first`, `first + 1` …
pub fn counting(first: u32, n: usize) -> Vec<u32> {
    (first..first + n as u32).collect()
}

/// No check needs a larger file.
const MOST: u64 = 64 << 20;

/// A disk in memory that fails where it is told to. Its clones are the same disk.
#[derive(Clone, Default)]
pub struct FaultyDisk {
    pub memory: MemoryDisk,
    faults: Rc<RefCell<Faults>>,
}

/// What fails, and what was done.
#[derive(Default)]
pub struct Faults {
    /// Bytes that can be written before a write is cut off, once.
    pub room: Option<usize>,
    /// Where the write was that was cut off.
    pub cut_off: Option<u64>,
    pub unreadable: Option<Range<u64>>,
    pub refuses_to_truncate: bool,
    /// Each write: where, and what.
    pub writes: Vec<(u64, Vec<u8>)>,
    /// Each read: where, and how many bytes.
    pub reads: Vec<(u64, usize)>,
}

impl FaultyDisk {
    pub fn with(bytes: Vec<u8>) -> Self {
        let disk = FaultyDisk::default();
        *disk.memory.bytes() = bytes;
        disk
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.memory.bytes().clone()
    }

    pub fn faults(&self) -> RefMut<'_, Faults> {
        self.faults.borrow_mut()
    }
}

/// Puts the first `n` of these bytes to where they were to be written.
pub fn apply(bytes: &mut Vec<u8>, writes: &[(u64, Vec<u8>)], mut n: usize) {
    for (offset, written) in writes {
        let part = &written[..written.len().min(n)];
        n -= part.len();
        let (start, end) = (*offset as usize, *offset as usize + part.len());
        if !part.is_empty() {
            bytes.resize(bytes.len().max(end), 0);
            bytes[start..end].copy_from_slice(part);
        }
    }
}

impl Disk for FaultyDisk {
    fn len(&mut self) -> io::Result<u64> {
        self.memory.len()
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        limits::heartbeat();
        let mut faults = self.faults.borrow_mut();
        faults.reads.push((offset, bytes.len()));
        let end = offset.saturating_add(bytes.len() as u64);
        if faults.unreadable.as_ref().is_some_and(|range| range.start < end && offset < range.end) {
            return Err(io::Error::other("this part of the disk cannot be read"));
        }
        self.memory.read(offset, bytes)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        limits::heartbeat();
        let end = offset.saturating_add(bytes.len() as u64);
        assert!(end <= MOST, "your code writes {} bytes at byte {offset}: no file here is as long", bytes.len());
        let mut faults = self.faults.borrow_mut();
        let fits = faults.room.unwrap_or(usize::MAX).min(bytes.len());
        let is_cut_off = fits < bytes.len();
        faults.room = faults.room.filter(|_| !is_cut_off).map(|room| room - fits);
        faults.cut_off = if is_cut_off { Some(offset) } else { faults.cut_off };
        faults.writes.push((offset, bytes[..fits].to_vec()));
        if fits > 0 {
            self.memory.write(offset, &bytes[..fits])?;
        }
        if is_cut_off { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        if self.faults.borrow().refuses_to_truncate {
            return Err(ErrorKind::PermissionDenied.into());
        }
        let before = self.len()?;
        assert!(len <= before, "your code cuts a file of {before} bytes to {len}");
        self.memory.truncate(len)
    }
}

pub fn lengths(format: &PageFormat) -> (usize, usize) {
    let header = 4 + 4 + 8 + 8 + 4 * format.page_size;
    let row = format.layout.n_kv_heads * format.layout.head_dim;
    (header, header + 2 * 4 * format.layout.n_layers * format.page_size * row)
}

/// The checksum of a header. The header's own checksum is left out: with it, all headers would be alike.
pub fn header_checksum(format: &PageFormat, header: &[u8]) -> u32 {
    crc32fast::hash(&[&format.file_header()[..FILE_HEADER_BYTES - 4], header].concat())
}

pub fn record(format: &PageFormat, id: u64, parent: u64, tokens: &[u32], k: &[f32], v: &[f32]) -> Vec<u8> {
    let rows: Vec<u8> = [k, v].concat().iter().flat_map(|x| x.to_bits().to_le_bytes()).collect();
    let mut header = crc32fast::hash(&rows).to_le_bytes().to_vec();
    header.extend(id.to_le_bytes());
    header.extend(parent.to_le_bytes());
    header.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    let sum = header_checksum(format, &header);
    [sum.to_le_bytes().to_vec(), header, rows].concat()
}

/// What the file has at a place.
#[derive(Clone, Debug)]
pub struct Found {
    pub place: usize,
    pub id: u64,
    pub parent: u64,
    pub tokens: Vec<u32>,
    pub rows_are_whole: bool,
}

/// The records whose header is whole, by their places.
pub fn record_headers(format: &PageFormat, file: &[u8]) -> Vec<Found> {
    let (header_len, len) = lengths(format);
    let mut headers = Vec::new();
    for (place, bytes) in file[FILE_HEADER_BYTES..].chunks_exact(len).enumerate() {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let (id, parent) = (u64_at(8), u64_at(16));
        if u32_at(0) == header_checksum(format, &bytes[4..header_len]) && parent < id {
            let tokens = (0..format.page_size).map(|slot| u32_at(24 + 4 * slot)).collect();
            let rows_are_whole = u32_at(4) == crc32fast::hash(&bytes[header_len..]);
            headers.push(Found { place, id, parent, tokens, rows_are_whole });
        }
    }
    headers
}

/// The prefixes that a file holds, the one to go first at the beginning: each with the record of its last page.
pub fn prefixes(format: &PageFormat, file: &[u8]) -> Vec<(Vec<u32>, Found)> {
    let mut headers = record_headers(format, file);
    headers.sort_by_key(|header| header.id);
    // The latest record of each prefix.
    let mut kept: HashMap<Vec<u32>, Found> = HashMap::new();
    for header in headers {
        let parent = kept.iter().find(|(_, other)| other.id == header.parent);
        let Some(before) = parent.map(|(prefix, _)| &prefix[..]).or((header.parent == 0).then_some(&[])) else {
            continue;
        };
        let prefix = [before, &header.tokens].concat();
        // An earlier record is gone, and with it those that follow it.
        kept.retain(|other, _| !other.starts_with(&prefix));
        kept.insert(prefix, header);
    }
    // As new as the newest that it begins; of those that are equal, the longer one goes first.
    let age =
        |prefix: &[u32]| kept.iter().filter(|(other, _)| other.starts_with(prefix)).map(|(_, header)| header.id).max();
    let mut order: Vec<_> = kept.iter().map(|(prefix, header)| (prefix.clone(), header.clone())).collect();
    order.sort_by_cached_key(|(prefix, _)| (age(prefix), Reverse(prefix.len())));
    order
}
