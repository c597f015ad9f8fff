//! A thread that reads pages while others compute.

use std::io;
use std::sync::mpsc::TryRecvError::{Disconnected, Empty};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::{Disk, MissingPage, PageRead, PageShape};

/// Reads pages on a thread of its own, in the order in which they are asked for.
pub struct PageReader {
    /// The pages of a sequence are read together.
    jobs: Option<Sender<Vec<MissingPage>>>,
    done: Receiver<Vec<PageRead>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl PageReader {
    /// Starts the thread. `disk` holds a file of pages of this shape.
    pub fn start(mut disk: impl Disk + Send + 'static, shape: PageShape) -> io::Result<Self> {
        let (jobs, to_do) = channel::<Vec<MissingPage>>();
        let (send, done) = channel();
        let work = move || {
            // It ends when the other side is gone.
            for pages in to_do {
                let read = pages.into_iter().map(|page| page.read(&mut disk, &shape)).collect();
                if send.send(read).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("page reader".into()).spawn(work)?;
        Ok(PageReader { jobs: Some(jobs), done, thread: Some(thread) })
    }

    /// Submits pages of one sequence to be read.
    pub fn submit(&mut self, pages: Vec<MissingPage>) {
        if let Some(jobs) = &self.jobs {
            // A thread that has gone answers nothing: see `next`.
            let _ = jobs.send(pages);
        }
    }

    /// The pages of the next sequence, in the order in which they were asked for; with `wait`, as soon as they are
    /// read. Without `wait`, `None` if they are not read yet. Waits for ever if nothing was asked for.
    ///
    /// # Errors
    /// [`io::ErrorKind::BrokenPipe`] if the thread has come to an end.
    pub fn next(&mut self, wait: bool) -> io::Result<Option<Vec<PageRead>>> {
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
