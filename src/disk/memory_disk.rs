//! A disk in memory.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Disk;

/// More bytes than this do not fit.
const MOST_BYTES: usize = 1 << 30;

/// A disk in memory. A clone is the same disk.
#[derive(Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<Vec<u8>>>);

impl MemoryDisk {
    /// All bytes, from the first on.
    pub fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk for MemoryDisk {
    fn len(&mut self) -> io::Result<u64> {
        Ok(self.bytes().len() as u64)
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let disk = self.bytes();
        let from = usize::try_from(offset).ok().and_then(|from| disk.get(from..)?.get(..bytes.len()));
        bytes.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.bytes();
        let end = usize::try_from(offset).ok().and_then(|from| from.checked_add(bytes.len()));
        let end = end.filter(|end| *end <= MOST_BYTES).ok_or(io::ErrorKind::StorageFull)?;
        if disk.len() < end {
            disk.resize(end, 0);
        }
        disk[end - bytes.len()..end].copy_from_slice(bytes);
        Ok(())
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.bytes().truncate(usize::try_from(len).unwrap_or(usize::MAX));
        Ok(())
    }
}
