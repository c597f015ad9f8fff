//! A thread that reads pages while others compute.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::{Disk, Read, Wanted};

/// Pages of a sequence, to be read together.
struct Job {
    ticket: u64,
    /// Each with the place of its first byte in the file.
    pages: Vec<(Wanted, u64)>,
    record_bytes: usize,
}

/// The pages of a sequence, read.
pub struct Done {
    /// Those of which call of [`PageReader::ask`].
    pub ticket: u64,
    /// The pages, in the order in which they were asked for.
    pub pages: Vec<Read>,
}

/// Reads pages on a thread of its own, in the order in which they are asked for.
pub struct PageReader {
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    thread: Option<thread::JoinHandle<()>>,
    n_asked: u64,
    n_done: u64,
}

impl PageReader {
    /// Starts the thread. `disk`: where it reads.
    ///
    /// # Errors
    /// What the system says if it has no thread.
    pub fn start(mut disk: impl Disk + Send + 'static) -> io::Result<Self> {
        let (jobs, to_do) = channel::<Job>();
        let (tell, done) = channel();
        let work = move || {
            // It ends when the other side is gone.
            for Job { ticket, pages, record_bytes } in to_do {
                let read = |(wanted, offset)| Read::of(wanted, &mut disk, offset, record_bytes);
                if tell.send(Done { ticket, pages: pages.into_iter().map(read).collect() }).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("page reader".into()).spawn(work)?;
        Ok(PageReader { jobs: Some(jobs), done, thread: Some(thread), n_asked: 0, n_done: 0 })
    }

    /// Asks for pages of one sequence; returns the ticket that they come with. `pages`: each with the place of its first byte.
    pub fn ask(&mut self, pages: Vec<(Wanted, u64)>, record_bytes: usize) -> u64 {
        let ticket = self.n_asked;
        self.n_asked += 1;
        if let Some(jobs) = &self.jobs {
            // A thread that has gone answers nothing: see `next`.
            let _ = jobs.send(Job { ticket, pages, record_bytes });
        }
        ticket
    }

    /// The next pages that are read; with `wait`, as soon as they are. `None` if nothing is asked for or, without `wait`, not
    /// read yet.
    ///
    /// # Errors
    /// [`io::ErrorKind::BrokenPipe`] if the thread has come to an end.
    pub fn next(&mut self, wait: bool) -> io::Result<Option<Done>> {
        if self.n_done == self.n_asked {
            return Ok(None);
        }
        use std::sync::mpsc::TryRecvError::{Disconnected, Empty};
        let done = match wait {
            true => self.done.recv().map_err(|_| Disconnected),
            false => self.done.try_recv(),
        };
        match done {
            Ok(done) => {
                self.n_done += 1;
                Ok(Some(done))
            }
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
        assert!(reader.next(true).unwrap().is_none(), "nothing was asked for");
        let wanted = |place| Wanted { page: place, place, number: 1 + place as u64 };
        assert_eq!(reader.ask(vec![(wanted(4), 40), (wanted(2), 20), (wanted(9), 97)], 4), 0);
        assert_eq!(reader.ask(vec![], 4), 1);
        let first = reader.next(true).unwrap().unwrap();
        let bytes: Vec<_> = first.pages.iter().map(|read| (read.wanted.place, read.bytes.as_ref().ok())).collect();
        assert_eq!(first.ticket, 0);
        assert_eq!(bytes, [(4, Some(&vec![40, 41, 42, 43])), (2, Some(&vec![20, 21, 22, 23])), (9, None)]);
        let second = reader.next(true).unwrap().unwrap();
        assert_eq!((second.ticket, second.pages.len()), (1, 0));
        assert!(reader.next(false).unwrap().is_none());
    }
}
