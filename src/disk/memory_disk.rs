//! A disk in memory.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Disk;

/// A disk in memory. A clone is the same disk.
#[derive(Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<Vec<u8>>>);

impl MemoryDisk {
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
        let found = disk.get(offset as usize..).and_then(|from| from.get(..bytes.len()));
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (mut disk, start) = (self.bytes(), offset as usize);
        let end = start + bytes.len();
        if disk.len() < end {
            disk.resize(end, 0);
        }
        disk[start..end].copy_from_slice(bytes);
        Ok(())
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.bytes().truncate(len as usize);
        Ok(())
    }
}
