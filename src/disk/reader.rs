//! A thread that reads pages while others compute.

use std::io;
use std::sync::mpsc::TryRecvError::{Disconnected, Empty};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::{Disk, PageFormat, PageOnDisk, PageRead};

/// Reads pages on a thread of its own, in the order in which they are asked for.
pub struct PageReader {
    /// The pages of a sequence are read together.
    jobs: Option<Sender<Vec<PageOnDisk>>>,
    done: Receiver<Vec<PageRead>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl PageReader {
    /// Starts the thread. `disk` holds a file of pages of this format.
    pub fn start(mut disk: impl Disk + Send + 'static, format: PageFormat) -> io::Result<Self> {
        let (jobs, to_do) = channel::<Vec<PageOnDisk>>();
        let (send, done) = channel();
        let work = move || {
            // It ends when the other side is gone.
            for pages in to_do {
                let read = pages.into_iter().map(|page| page.read(&mut disk, &format)).collect();
                if send.send(read).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("page reader".into()).spawn(work)?;
        Ok(PageReader { jobs: Some(jobs), done, thread: Some(thread) })
    }

    pub fn submit(&mut self, pages: Vec<PageOnDisk>) {
        let jobs = self.jobs.as_ref().expect("open until this is dropped");
        jobs.send(pages).expect(RUNS);
    }

    /// The pages of the next sequence, in the order in which they were submitted; with `wait`, as soon as they are
    /// read. Without `wait`, `None` if they are not read yet. Waits for ever if nothing was submitted.
    pub fn next(&mut self, wait: bool) -> Option<Vec<PageRead>> {
        match self.done.try_recv() {
            Ok(pages) => Some(pages),
            Err(Empty) if wait => Some(self.done.recv().expect(RUNS)),
            Err(Empty) => None,
            Err(Disconnected) => panic!("{RUNS}"),
        }
    }
}

const RUNS: &str = "the thread that reads pages runs until this is dropped";

impl Drop for PageReader {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
