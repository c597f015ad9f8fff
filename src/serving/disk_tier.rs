//! Backs the prefix cache with a page file.
//!
//! The loop asks for a sequence's pages before it hands the sequence to the scheduler. A thread reads them while other
//! sequences compute. They then go to the prefix cache, where the scheduler finds them like any others. Because full
//! pages are written after each step, an eviction never waits for a disk.

use std::collections::{HashMap, HashSet, VecDeque};

use super::schedule::SequenceId;
use super::{Engine, FinishedSequence};
use crate::cache::CacheError;
use crate::chapters::ch05_page_table::PageTable;
use crate::chapters::ch10_fork::ForkCache;
use crate::disk::reader::PageReader;
use crate::disk::{Disk, PageFile, PageFileError, PageFormat};
use crate::model::Model;
use crate::model::checkpoint::MappedFiles;

/// A file that takes and returns the pages of an engine's prefix cache.
pub struct DiskTier {
    file: PageFile,
    reader: PageReader,
    /// Sequences whose pages are being read, in the order in which they were asked for.
    pending: VecDeque<(u64, Vec<u32>)>,
    next_ticket: u64,
    /// The ids of the records that are being read.
    reading: HashSet<u64>,
    /// How many full pages of each sequence that runs the file was offered.
    offered: HashMap<SequenceId, usize>,
    counters: TierCounters,
    weights: MappedFiles,
    failed: Option<PageFileError>,
}

/// Pages that moved between the file and the prefix cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierCounters {
    /// Written to the file. Those before a page that could not be written are not counted.
    pub written: u64,
    pub read: u64,
    /// Pages read that the prefix cache got. The others were damaged, found no room, or were there by then.
    pub restored: u64,
}

impl DiskTier {
    /// Opens a file of this model's pages and starts a thread to read it. A clone of `disk` is the same file. Once the
    /// files of the weights have changed, no more pages are written: their rows would be those of a different model.
    ///
    /// # Errors
    /// The errors of [`PageFile::open`]; [`PageFileError::Unreadable`] if there is no thread.
    pub fn open(
        disk: impl Disk + Clone + Send + 'static,
        model: &Model,
        page_size: usize,
        max_bytes: u64,
    ) -> Result<Self, PageFileError> {
        let format = PageFormat::for_model(model, page_size);
        let file = PageFile::open(Box::new(disk.clone()), format, max_bytes)?;
        let reader = PageReader::start(disk, format).map_err(PageFileError::Unreadable)?;
        Ok(DiskTier {
            file,
            reader,
            pending: VecDeque::new(),
            next_ticket: 0,
            reading: HashSet::new(),
            offered: HashMap::new(),
            counters: TierCounters::default(),
            weights: model.mapped().clone(),
            failed: None,
        })
    }

    /// Begins to read the pages that the file has of a sequence and memory has not. Returns the ticket that they come
    /// with; `None` if there is nothing to wait for. Pages that a different sequence has asked for are not read twice:
    /// they come before.
    pub fn prefetch(&mut self, engine: &mut Engine<'_>, tokens: &[u32]) -> Result<Option<u64>, CacheError> {
        let pages = self.file.pages_to_load(tokens, engine.scheduler.prefix_cache_mut(), &engine.slab)?;
        if pages.is_empty() {
            return Ok(None);
        }
        let pages: Vec<_> = pages.into_iter().filter(|page| self.reading.insert(page.id)).collect();
        self.counters.read += pages.len() as u64;
        self.reader.submit(pages);
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.pending.push_back((ticket, tokens.to_vec()));
        Ok(Some(ticket))
    }

    /// Gives the pages that have been read to the prefix cache; returns their tickets, in the order in which they were
    /// asked for. With `wait`, the first that is still being read is waited for.
    pub fn take_loaded(&mut self, engine: &mut Engine<'_>, mut wait: bool) -> Result<Vec<u64>, CacheError> {
        let mut tickets = Vec::new();
        while !self.pending.is_empty()
            && let Some(pages) = self.reader.next(wait)
        {
            let Some((ticket, tokens)) = self.pending.pop_front() else { break };
            wait = false;
            for read in &pages {
                self.reading.remove(&read.page.id);
            }
            let prefix_cache = engine.scheduler.prefix_cache_mut();
            let loaded = self.file.load(&tokens, &pages, prefix_cache, &engine.slab)?;
            self.counters.restored += loaded as u64;
            tickets.push(ticket);
        }
        Ok(tickets)
    }

    /// Writes the pages that are full since this was last called. `finished`: the sequences that have ended since.
    ///
    /// If the file cannot be written, nothing is from then on: see [`failed`](Self::failed).
    pub fn store(&mut self, engine: &mut Engine<'_>, finished: &[FinishedSequence]) -> Result<(), CacheError> {
        for (sequence, table) in engine.scheduler().running() {
            let full = table.len() / table.page_size();
            if self.offered.get(&sequence.id).is_none_or(|offered| *offered < full) {
                self.offered.insert(sequence.id, full);
                self.write(engine, &sequence.tokens, table);
            }
        }
        for FinishedSequence { sequence, .. } in finished {
            self.offered.remove(&sequence.id);
            if self.failed.is_none() {
                // Its table is gone, but the prefix cache has its pages: one token more, so that the last is found too.
                let one_more = [&sequence.tokens[..], &[0]].concat();
                let cache = ForkCache::with_prefix(&engine.slab, engine.scheduler.prefix_cache_mut(), &one_more)?;
                self.write(engine, &one_more, cache.table());
            }
        }
        Ok(())
    }

    fn write(&mut self, engine: &Engine<'_>, tokens: &[u32], table: &PageTable) {
        if self.failed.is_none() {
            let stored = match self.weights.have_changed() {
                true => Err(PageFileError::WeightsChanged),
                false => self.file.store(tokens, table, &engine.slab.borrow()),
            };
            match stored {
                Ok(written) => self.counters.written += written as u64,
                Err(error) => self.failed = Some(error),
            }
        }
    }

    pub fn file(&self) -> &PageFile {
        &self.file
    }

    pub fn counters(&self) -> TierCounters {
        self.counters
    }

    /// Why nothing is written any more, if so.
    pub fn failed(&self) -> Option<&PageFileError> {
        self.failed.as_ref()
    }
}
