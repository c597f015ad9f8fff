//! A thread that reads pages while others compute.

use std::io;
use std::sync::mpsc::TryRecvError::{Disconnected, Empty};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::{Disk, MissingPage, Read};

/// Pages of a sequence that are read together, each with the offset of its first byte in the file, and the bytes of a
/// record.
type Job = (Vec<(MissingPage, u64)>, usize);

/// Reads pages on a thread of its own, in the order in which they are asked for.
pub struct PageReader {
    jobs: Option<Sender<Job>>,
    done: Receiver<Vec<Read>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl PageReader {
    /// Starts the thread. `disk`: where it reads.
    pub fn start(mut disk: impl Disk + Send + 'static) -> io::Result<Self> {
        let (jobs, to_do) = channel::<Job>();
        let (send, done) = channel();
        let work = move || {
            // It ends when the other side is gone.
            for (pages, record_bytes) in to_do {
                let read = |(missing, offset)| Read::at(missing, &mut disk, offset, record_bytes);
                if send.send(pages.into_iter().map(read).collect()).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("page reader".into()).spawn(work)?;
        Ok(PageReader { jobs: Some(jobs), done, thread: Some(thread) })
    }

    /// Submits pages of one sequence to be read, each with the place of its first byte.
    pub fn submit(&mut self, pages: Vec<(MissingPage, u64)>, record_bytes: usize) {
        if let Some(jobs) = &self.jobs {
            // A thread that has gone answers nothing: see `next`.
            let _ = jobs.send((pages, record_bytes));
        }
    }

    /// The pages of the next sequence, in the order in which they were asked for; with `wait`, as soon as they are
    /// read. Without `wait`, `None` if they are not read yet. Waits for ever if nothing was asked for.
    ///
    /// # Errors
    /// [`io::ErrorKind::BrokenPipe`] if the thread has come to an end.
    pub fn next(&mut self, wait: bool) -> io::Result<Option<Vec<Read>>> {
        let read = if wait { self.done.recv().map_err(|_| Disconnected) } else { self.done.try_recv() };
        match read {
            Ok(pages) => Ok(Some(pages)),
            Err(Empty) => Ok(None),
            Err(Disconnected) => {
                Err(io::Error::new(io::ErrorKind::BrokenPipe, "the thread that reads pages has ended"))
            }
        }
    }
}

impl Drop for PageReader {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::memory_disk::MemoryDisk;

    #[test]
    fn pages_come_in_the_order_in_which_they_were_asked_for() {
        let disk = MemoryDisk::default();
        disk.bytes().extend(0..100);
        let mut reader = PageReader::start(disk).unwrap();
        let missing = |place| MissingPage { page: place, place, number: 1 + place as u64 };
        reader.submit(vec![(missing(4), 40), (missing(2), 20), (missing(9), 97)], 4);
        reader.submit(vec![], 4);
        let first = reader.next(true).unwrap().unwrap();
        let bytes: Vec<_> = first.iter().map(|read| (read.missing.place, read.bytes.as_ref().ok())).collect();
        assert_eq!(bytes, [(4, Some(&vec![40, 41, 42, 43])), (2, Some(&vec![20, 21, 22, 23])), (9, None)]);
        assert_eq!(reader.next(true).unwrap().map(|pages| pages.len()), Some(0));
        assert!(reader.next(false).unwrap().is_none());
    }
}
