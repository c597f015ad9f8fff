//! What lies in a page file, kept in memory: the record's header of each place, who follows whom, and the order of use.
//!
//! A page file has a [header](PageFormat::file_header) and, after it, *places* for [records](super::record). Opening one
//! reads that and the headers of all records, but no rows. A record is found from the first page of a sequence, so one
//! whose parent is missing is of no use, and its place is free.

use std::collections::{BTreeMap, HashMap};

use super::record::{RecordHeader, decode_header};
use super::{Disk, FILE_HEADER_BYTES, PageFileError, PageFormat};

/// What lies at each place of a page file.
#[derive(Default)]
pub struct PageFileIndex {
    n_places: usize,
    /// What lies at each place that the file has; `None` if it is free.
    places: Vec<Option<Entry>>,
    /// The places of `places` that are `None`, and are not handed out.
    free: Vec<usize>,
    /// For each record with followers, and for 0: the places of its followers, by their tokens.
    children: HashMap<u64, HashMap<Box<[u32]>, usize>>,
    /// The places in the order of their last use, by the clock's time of it.
    by_use: BTreeMap<u64, usize>,
    clock: u64,
    next_id: u64,
}

struct Entry {
    header: RecordHeader,
    last_used: u64,
}

impl PageFileIndex {
    /// Opens a file of pages of this format, and finds what is in it. `max_bytes`: what the file is allowed to have;
    /// what lies beyond is cut off.
    ///
    /// A file is new, and gets a header, if it is empty or holds only a beginning of the header that it is to get.
    ///
    /// A record is kept if its header is whole, its rows are not cut off, and its parent is kept. If two hold the same
    /// tokens after the same parent, the later one is kept. The file doesn't say which page was used when: records that
    /// were written later count as used later, and with each record those before it.
    ///
    /// # Errors
    /// [`PageFileError::TooSmall`] if there is no room for a page. The errors of [`PageFormat::from_file_header`], and
    /// [`PageFileError::WrongFormat`] if the pages have a different one; the file is then as it was.
    ///
    /// [`PageFileError::Unreadable`] if anything cannot be read, even one record's header: it may be readable tomorrow,
    /// and its id must not be given twice. [`PageFileError::Unwritable`] if the file's header cannot be written or the
    /// file not cut.
    pub fn open(disk: &mut dyn Disk, format: &PageFormat, max_bytes: u64) -> Result<Self, PageFileError> {
        let room = max_bytes.saturating_sub(FILE_HEADER_BYTES as u64) / format.record_bytes() as u64;
        if room == 0 {
            return Err(PageFileError::TooSmall { max_bytes, needed: format.offset(1) });
        }
        let len = read_header(disk, format)?;
        let n_places = usize::try_from(room).unwrap_or(usize::MAX);
        let whole = (len - FILE_HEADER_BYTES as u64) / format.record_bytes() as u64;
        let n_whole = usize::try_from(whole).unwrap_or(usize::MAX).min(n_places);
        if len > max_bytes {
            let offset = format.offset(n_whole);
            disk.truncate(offset).map_err(|error| PageFileError::Unwritable { offset, error })?;
        }
        let mut headers = Vec::new();
        let mut bytes = vec![0; format.record_header_bytes()];
        for place in 0..n_whole {
            disk.read(format.offset(place), &mut bytes).map_err(PageFileError::Unreadable)?;
            if let Ok(header) = decode_header(format, &bytes) {
                headers.push((place, header));
            }
        }
        let places = (0..n_whole).map(|_| None).collect();
        let mut index = PageFileIndex { n_places, places, next_id: 1, ..PageFileIndex::default() };
        index.link(headers);
        index.order();
        Ok(index)
    }

    /// Adds the records that lead back to the beginning of a sequence. All other places are free. The next id is
    /// higher than that of any record, kept or not.
    fn link(&mut self, mut headers: Vec<(usize, RecordHeader)>) {
        headers.sort_by_key(|(_, header)| header.id);
        let mut place_of = HashMap::new();
        // A parent has a lower id, so it comes before its followers.
        for (place, header) in headers {
            self.next_id = header.id + 1;
            let parent: Option<usize> = place_of.get(&header.parent).copied();
            // A parent that was replaced by a later record of the same tokens has left its place in `place_of`.
            if header.parent > 0 && parent.is_none_or(|parent| self.places[parent].is_none()) {
                continue;
            }
            if let Some(earlier) = self.child(header.parent, &header.tokens) {
                self.forget(earlier);
            }
            place_of.insert(header.id, place);
            self.add(place, header);
        }
        let places = (0..self.places.len()).rev();
        self.free = places.filter(|place| self.places[*place].is_none()).collect();
    }

    /// Puts the records in the order of their use: the latest record and those before it were used last, before them
    /// the latest of the others, and so on.
    fn order(&mut self) {
        let entries = self.places.iter().enumerate();
        let place_of: BTreeMap<u64, usize> =
            entries.filter_map(|(place, entry)| Some((entry.as_ref()?.header.id, place))).collect();
        let mut newest_first = Vec::new();
        let mut is_there = vec![false; self.places.len()];
        for place in place_of.values().rev() {
            let mut path = Vec::new();
            let mut next = Some(*place);
            while let Some(place) = next.filter(|place| !is_there[*place]) {
                is_there[place] = true;
                path.push(place);
                next = place_of.get(&self.header(place).parent).copied();
            }
            newest_first.extend(path.into_iter().rev());
        }
        for place in newest_first.into_iter().rev() {
            self.touch(place);
        }
    }

    pub fn n_records(&self) -> usize {
        self.by_use.len()
    }

    /// Records that the file is allowed to have.
    pub fn n_places(&self) -> usize {
        self.n_places
    }

    /// The record at a place; `None` if the place is free.
    pub fn get(&self, place: usize) -> Option<&RecordHeader> {
        Some(&self.places.get(place)?.as_ref()?.header)
    }

    #[track_caller]
    pub fn header(&self, place: usize) -> &RecordHeader {
        self.get(place).unwrap_or_else(|| panic!("place {place} has no record"))
    }

    /// The place of the record that holds `tokens` after the record with the id `parent`.
    pub fn child(&self, parent: u64, tokens: &[u32]) -> Option<usize> {
        self.children.get(&parent)?.get(tokens).copied()
    }

    /// The time: it goes up with each use.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Notes that the record at a place is used now, after all others.
    #[track_caller]
    pub fn touch(&mut self, place: usize) {
        self.header(place);
        let entry = self.places[place].as_mut().expect("a record");
        self.clock += 1;
        self.by_use.remove(&entry.last_used);
        entry.last_used = self.clock;
        self.by_use.insert(self.clock, place);
    }

    /// The place of the record that was used longest ago, and the time when it was.
    pub fn oldest(&self) -> Option<(usize, u64)> {
        self.by_use.first_key_value().map(|(last_used, place)| (*place, *last_used))
    }

    /// Takes a free place, or a new one at the end of the file; `None` if the file is full.
    pub fn alloc_place(&mut self) -> Option<usize> {
        self.free.pop().or_else(|| {
            let is_new = self.places.len() < self.n_places;
            is_new.then(|| {
                self.places.push(None);
                self.places.len() - 1
            })
        })
    }

    /// Gives a place back that was taken, and got no record.
    pub fn free_place(&mut self, place: usize) {
        self.free.push(place);
    }

    /// An id that no whole record of the file has.
    pub fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Adds the record that was written to a place, used now. It can be found from here on.
    pub fn add(&mut self, place: usize, header: RecordHeader) {
        self.clock += 1;
        self.by_use.insert(self.clock, place);
        self.children.entry(header.parent).or_default().insert(header.tokens.clone(), place);
        self.places[place] = Some(Entry { header, last_used: self.clock });
    }

    /// Forgets a record and all that follow it, which cannot be found without it. Their places are free.
    ///
    /// # Panics
    /// If the place is free.
    #[track_caller]
    pub fn forget(&mut self, place: usize) {
        let RecordHeader { parent, tokens, .. } = self.header(place).clone();
        if let Some(children) = self.children.get_mut(&parent) {
            children.remove(&tokens);
            if children.is_empty() {
                self.children.remove(&parent);
            }
        }
        let mut gone = vec![place];
        while let Some(place) = gone.pop() {
            let entry = self.places[place].take().expect("a follower is in the index");
            self.by_use.remove(&entry.last_used);
            self.free.push(place);
            let followers = self.children.remove(&entry.header.id).unwrap_or_default();
            gone.extend(followers.values());
        }
    }
}

/// Reads the header of a file, or gives it one; returns the bytes that the file then has.
fn read_header(disk: &mut dyn Disk, format: &PageFormat) -> Result<u64, PageFileError> {
    let (len, own) = (disk.len().map_err(PageFileError::Unreadable)?, format.file_header());
    let mut header = [0; FILE_HEADER_BYTES];
    let there = &mut header[..len.min(FILE_HEADER_BYTES as u64) as usize];
    disk.read(0, there).map_err(PageFileError::Unreadable)?;
    if there.len() < FILE_HEADER_BYTES && own.starts_with(there) {
        disk.write(0, &own).map_err(|error| PageFileError::Unwritable { offset: 0, error })?;
        return Ok(FILE_HEADER_BYTES as u64);
    }
    format.check_same(&PageFormat::from_file_header(&header)?)?;
    Ok(len)
}
