//! A file as a [`Disk`], for one program at a time.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use super::Disk;
use crate::files;

/// A file that only this program has. Its clones are the same file, for other threads.
#[derive(Clone)]
pub struct FileDisk {
    file: Arc<LockedFile>,
}

/// A file whose lock ends with it. Closing alone doesn't end a lock while a new process has a copy of the handle.
struct LockedFile(File);

impl Drop for LockedFile {
    fn drop(&mut self) {
        // An error could be told to nobody: the file is closed in any case.
        drop(self.0.unlock());
    }
}

impl FileDisk {
    /// Opens a file, or makes an empty one, which only its owner may read: pages say what was asked.
    ///
    /// # Errors
    /// What the system says; [`ErrorKind::InvalidInput`] and [`ErrorKind::IsADirectory`] for what is no file;
    /// [`ErrorKind::ResourceBusy`] if a different program has it.
    pub fn open(path: &Path) -> io::Result<Self> {
        // A pipe would make us wait, and a device is no place for pages.
        match files::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            opened => drop(opened?),
        }
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path)?;
        // Two programs would overwrite each other's pages, and each would take the other's for its own.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(io::Error::new(ErrorKind::ResourceBusy, "a different program has this file at the moment"));
        }
        Ok(FileDisk { file: Arc::new(LockedFile(file)) })
    }
}

// Each call takes an offset, because clones share one cursor.

#[cfg(unix)]
use std::os::unix::fs::FileExt;

#[cfg(windows)]
trait FileExt {
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
}

#[cfg(windows)]
impl FileExt for File {
    fn read_exact_at(&self, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match std::os::windows::fs::FileExt::seek_read(self, bytes, offset)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                n => (bytes, offset) = (&mut bytes[n..], offset + n as u64),
            }
        }
        Ok(())
    }

    fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match std::os::windows::fs::FileExt::seek_write(self, bytes, offset)? {
                0 => return Err(ErrorKind::WriteZero.into()),
                n => (bytes, offset) = (&bytes[n..], offset + n as u64),
            }
        }
        Ok(())
    }
}

impl Disk for FileDisk {
    fn len(&mut self) -> io::Result<u64> {
        Ok(self.file.0.metadata()?.len())
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.0.read_exact_at(bytes, offset)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.0.write_all_at(bytes, offset)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.file.0.set_len(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lie_where_they_were_put_also_beyond_four_gib() {
        let folder = tempfile::tempdir().unwrap();
        let mut disk = FileDisk::open(&folder.path().join("pages")).unwrap();
        assert!(disk.is_empty().unwrap());
        let far = (5 << 30) + 3;
        disk.write(far, b"page").unwrap();
        disk.write(2, b"head").unwrap();
        assert_eq!(disk.len().unwrap(), far + 4);
        let mut bytes = [0; 4];
        disk.clone().read(far, &mut bytes).unwrap();
        assert_eq!(&bytes, b"page");
        disk.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0\0he");
        assert_eq!(disk.read(far + 1, &mut bytes).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        disk.truncate(4).unwrap();
        assert_eq!(disk.len().unwrap(), 4);
    }

    #[test]
    fn a_file_belongs_to_one_program_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pages");
        let disk = FileDisk::open(&path).unwrap();
        let says = FileDisk::open(&path).map(drop).unwrap_err();
        assert_eq!(says.to_string(), "a different program has this file at the moment");
        drop(disk);
        FileDisk::open(&path).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "what was asked is for its owner to read");
        }
        assert_eq!(FileDisk::open(folder.path()).map(drop).unwrap_err().kind(), ErrorKind::IsADirectory);
        assert!(FileDisk::open(&folder.path().join("none/pages")).is_err());
    }

    #[test]
    fn the_lock_ends_with_the_last_clone_whoever_has_the_handle() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.pages");
        let disk = FileDisk::open(&path).unwrap();
        let (clone, handle) = (disk.clone(), disk.file.0.try_clone().unwrap());
        drop(disk);
        assert_eq!(FileDisk::open(&path).err().map(|error| error.kind()), Some(ErrorKind::ResourceBusy));
        drop(clone);
        assert!(FileDisk::open(&path).is_ok(), "although a copy of the handle is open");
        drop(handle);
    }
}
