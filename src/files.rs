//! Files that others wrote, read only if they are what they should be; files for others, written whole or not at all.
//!
//! `tests/PROMISES.md` says what this promises, and what it does not.
//!
//! ```text
//!   write_whole("story.cache"):
//!     1. story.cache.4711-0.part   made beside it, locked, with the permissions of the file that is there
//!     2.                           written, and on the disk
//!     3. story.cache               renamed, in one move; then the folder is on the disk too
//! ```
//!
//! A program that is killed in step 2 leaves its part, but not its lock. So the next writer of the same file knows an
//! abandoned part from one that is being written, and removes it.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, Permissions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What is wrong with a file: `config.json: vocab_size is 0, expected 1 to 16777216`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct FileError {
    path: PathBuf,
    problem: String,
}

impl FileError {
    /// `problem`: what is wrong, with the numbers, and what to do.
    pub fn new(path: &Path, problem: impl Into<String>) -> Self {
        FileError { path: path.into(), problem: problem.into() }
    }
}

/// Opens a file to read it. Only a file: a pipe would make us wait, a device might never end.
///
/// # Errors
/// What the system says; [`ErrorKind::IsADirectory`] and [`ErrorKind::InvalidInput`] for what is no file.
pub fn open(path: &Path) -> io::Result<File> {
    // Before it is opened, because opening a pipe waits for a writer.
    must_be_a_file(&fs::metadata(path)?)?;
    let file = File::open(path)?;
    // Again, in case the name has come to mean something else.
    must_be_a_file(&file.metadata()?)?;
    Ok(file)
}

/// Reads a whole file of `at_most` bytes.
///
/// # Errors
/// As [`open`]; [`ErrorKind::FileTooLarge`], with both numbers.
pub fn read(path: &Path, at_most: usize) -> io::Result<Vec<u8>> {
    let too_large = |len: u64| {
        let problem = format!("the file has {len} bytes, at most {at_most} are expected here");
        Err(io::Error::new(ErrorKind::FileTooLarge, problem))
    };
    let file = open(path)?;
    let len = file.metadata()?.len();
    if len > at_most as u64 {
        return too_large(len);
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len as usize)?;
    // The system may be wrong about the length, and a file can grow.
    file.take((at_most as u64).saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() > at_most { too_large(bytes.len() as u64) } else { Ok(bytes) }
}

fn must_be_a_file(found: &Metadata) -> io::Result<()> {
    if found.is_dir() {
        return Err(io::Error::new(ErrorKind::IsADirectory, "this is a folder, not a file"));
    }
    if !found.is_file() {
        return wrong("this is a pipe, a socket or a device, not a file");
    }
    Ok(())
}

fn wrong<T>(problem: impl Into<String>) -> io::Result<T> {
    Err(io::Error::new(ErrorKind::InvalidInput, problem.into()))
}

/// Replaces a file in one move: a reader finds the old content or the new, never half of it.
///
/// A file that is there keeps its permissions; a link stays a link, and what it leads to is replaced.
///
/// # Errors
/// What the system says; [`ErrorKind::InvalidInput`] where no file can be. The file that was there is as it was, unless
/// only the last step has failed: then the new one is there, and may be lost if the power fails now.
pub fn write_whole(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = NewFile::begin(file)?;
    new.write_all(bytes)?;
    new.finish()
}

/// Checks that [`write_whole`] could begin now, and leaves the file as it is.
pub fn check_writable(file: &Path) -> io::Result<()> {
    NewFile::begin(file).map(drop)
}

/// A file that is written piece by piece, and put in its place when it is whole. Dropped before that, it goes away.
pub struct NewFile {
    /// Where the file is to be; never a link.
    file: PathBuf,
    /// Where the file is now, locked.
    part: PathBuf,
    output: File,
    is_in_place: bool,
}

impl NewFile {
    /// Begins to write; the file that is there stays. Removes the parts that were abandoned.
    pub fn begin(file: &Path) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let (file, permissions) = place_of(file)?;
        remove_abandoned(&file);
        loop {
            // A program uses each number once, so that no two of its parts ever have the same name.
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let mut name = file.file_name().unwrap_or_default().to_os_string();
            name.push(format!(".{}-{number}.part", std::process::id()));
            let part = file.with_file_name(name);
            let output = match options(permissions.as_ref()).open(&part) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                output => output?,
            };
            let new = NewFile { file: file.clone(), part, output, is_in_place: false };
            // A different program may have taken it for abandoned before the lock. Without locks, it stays.
            if matches!(new.output.try_lock(), Err(TryLockError::WouldBlock)) || !new.part.exists() {
                continue;
            }
            if let Some(permissions) = permissions {
                new.output.set_permissions(permissions)?;
            }
            return Ok(new);
        }
    }

    /// Puts the file in its place, in one move.
    pub fn finish(mut self) -> io::Result<()> {
        self.output.sync_all()?;
        fs::rename(&self.part, &self.file)?;
        self.is_in_place = true;
        sync_folder(folder_of(&self.file))
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_in_place {
            let _ = fs::remove_file(&self.part);
        }
    }
}

/// Where a file is to be, and the permissions of the one that is there.
fn place_of(file: &Path) -> io::Result<(PathBuf, Option<Permissions>)> {
    if file.file_name().is_none() {
        return wrong("this is not the name of a file");
    }
    let found = match fs::symlink_metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok((file.into(), None)),
        found => found?,
    };
    let file = if found.is_symlink() { link_target(file)? } else { file.into() };
    let found = fs::metadata(&file)?;
    if !found.is_file() {
        return wrong("this is a folder or a device, not a file");
    }
    // Replacing a file takes no right to write to it; a file that is protected must stay.
    File::options().write(true).open(&file)?;
    Ok((file, Some(found.permissions())))
}

/// Never more rights than the file that is there has: what is private stays so from the first byte.
#[cfg_attr(not(unix), expect(unused_variables))]
fn options(permissions: Option<&Permissions>) -> fs::OpenOptions {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if let Some(permissions) = permissions {
        use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
        options.mode(permissions.mode());
    }
    options
}

/// Removes the abandoned parts of a file. A part that cannot be looked at or removed stays.
fn remove_abandoned(file: &Path) {
    let entries = fs::read_dir(folder_of(file)).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file())) {
        if is_part_of(&entry.file_name(), file.file_name().unwrap_or_default()) {
            // Locked until it is removed: a program that has just made it sees the lock, and makes a new one.
            if let Ok(part) = File::options().write(true).open(entry.path())
                && part.try_lock().is_ok()
            {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn link_target(link: &Path) -> io::Result<PathBuf> {
    fs::canonicalize(link).or_else(|error| match (error.kind(), fs::read_link(link)) {
        (ErrorKind::NotFound, Ok(target)) => {
            wrong(format!("this is a link to {}, which does not exist", target.display()))
        }
        _ => Err(error),
    })
}

/// `story.cache.4711-0.part` is a part of `story.cache`.
fn is_part_of(name: &OsStr, file: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    let number = name.strip_prefix(file.as_encoded_bytes()).and_then(|rest| rest.strip_prefix(b"."));
    let Some(number) = number.and_then(|rest| rest.strip_suffix(b".part")) else {
        return false;
    };
    let mut numbers = number.split(|byte| *byte == b'-');
    let mut is_number = || numbers.next().is_some_and(|n| !n.is_empty() && n.iter().all(u8::is_ascii_digit));
    is_number() && is_number() && numbers.next().is_none()
}

/// The folder that a file or a folder is in, or is to be.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| *folder != "").unwrap_or(Path::new("."))
}

/// Waits until the names in a folder are on the disk, as the files are after [`File::sync_all`].
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    // Elsewhere a folder cannot be opened.
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("story.cache");
        (folder, file)
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn only_files_that_are_not_too_long_are_read() {
        let (folder, file) = place();
        assert_eq!(open(&file).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(open(folder.path()).unwrap_err().kind(), ErrorKind::IsADirectory);
        fs::write(&file, [7; 100]).unwrap();
        assert_eq!(read(&file, 100).unwrap(), [7; 100]);
        assert_eq!(read(&file, 99).unwrap_err().to_string(), "the file has 100 bytes, at most 99 are expected here");
    }

    #[cfg(unix)]
    #[test]
    fn a_device_is_not_read_and_a_pipe_does_not_make_us_wait() {
        let (_folder, file) = place();
        let made = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
        assert!(made.success());
        for special in [&file, Path::new("/dev/zero"), Path::new("/dev/null")] {
            let error = read(special, 100).unwrap_err();
            assert_eq!(error.to_string(), "this is a pipe, a socket or a device, not a file", "{}", special.display());
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_file_keeps_its_permissions_and_a_link_stays_a_link() {
        use std::os::unix::fs::PermissionsExt;
        let (folder, file) = place();
        for mode in [0o600, 0o640, 0o666, 0o755] {
            fs::write(&file, "old").unwrap();
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            write_whole(&file, b"new").unwrap();
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, mode);
            // Nor has its part more rights, not even while it is empty.
            let part = folder.path().join("part");
            let permissions = Permissions::from_mode(mode);
            let made = options(Some(&permissions)).open(&part).unwrap().metadata().unwrap();
            assert_eq!(made.permissions().mode() & 0o777 & !mode, 0);
            fs::remove_file(part).unwrap();
        }
        let elsewhere = tempfile::tempdir().unwrap();
        let link = elsewhere.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_whole(&link, b"through the link").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"through the link");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!((names(elsewhere.path()), names(folder.path())), (vec!["link".into()], vec!["story.cache".into()]));

        fs::remove_file(&file).unwrap();
        for refused in [write_whole(&link, b"nowhere"), check_writable(&link)] {
            let says = format!("this is a link to {}, which does not exist", file.display());
            assert_eq!(refused.unwrap_err().to_string(), says);
        }
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn abandoned_parts_are_removed_and_those_in_use_stay() {
        let (folder, file) = place();
        let parts = ["story.cache.1-0.part", "story.cache.4194304-17.part"].map(|name| folder.path().join(name));
        let others = ["other.cache.1-0.part", "story.cache.1-0-2.part", "story.cache.part", "story.cache.x-1.part"];
        for path in parts.iter().cloned().chain(others.map(|name| folder.path().join(name))) {
            fs::write(path, "half of a").unwrap();
        }
        let in_use = File::options().write(true).open(&parts[1]).unwrap();
        in_use.lock().unwrap();
        let mut expected = [&others[..], &["story.cache", "story.cache.4194304-17.part"]].concat();
        expected.sort_unstable();
        write_whole(&file, b"whole").unwrap();
        assert_eq!(names(folder.path()), expected);
        drop(in_use);
        check_writable(&file).unwrap();
        expected.retain(|name| *name != "story.cache.4194304-17.part");
        assert_eq!(names(folder.path()), expected);
    }

    #[test]
    fn many_writers_and_readers_never_see_half_a_file() {
        let (folder, file) = place();
        let content = |writer: u8| vec![writer; 10_000];
        write_whole(&file, &content(0)).unwrap();
        std::thread::scope(|scope| {
            for writer in 1..=4 {
                let file = &file;
                scope.spawn(move || (0..50).for_each(|_| write_whole(file, &content(writer)).unwrap()));
            }
            for _ in 0..500 {
                let found = read(&file, 1 << 20).unwrap();
                assert_eq!(found, content(found[0]));
            }
        });
        assert_eq!(names(folder.path()), ["story.cache"]);
    }
}
