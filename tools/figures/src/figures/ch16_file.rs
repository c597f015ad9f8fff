//! Chapter 16: the content of a file of four places, from sequence to sequence and from run to run.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use anyhow::Result;
use page_by_page::cache::{KvCache, KvLayout};
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::chapters::ch10_fork::ForkCache;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::chapters::ch16_pages_on_disk::{PageFile, decode};
use page_by_page::disk::record::decode_head;
use page_by_page::disk::{Disk, PageShape};
use page_by_page::kernels::RowFormat;

use super::Figure;
use crate::layout::Grid;
use crate::svg::{Area, Cell, Kind, cell};
use crate::words::count;

const SHAPE: PageShape = PageShape {
    model: 16,
    format: RowFormat::F32,
    layout: KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 2 },
    page_size: 2,
};
const PLACES: usize = 4;
const PAGES: usize = 8;
const WORDS: [&str; 12] = ["once", "upon", "a", "time", "king", "the", "fox", "said", "there", "old", "owl", "so"];

const OPERATIONS: [Operation; 8] = [
    Operation::Keep("once upon a time"),
    Operation::Keep("once upon a king"),
    Operation::Keep("the fox"),
    Operation::Restart,
    Operation::BringBack("once upon a time there"),
    Operation::Keep("the owl"),
    Operation::Flip(0),
    Operation::BringBackAnew("once upon a time there"),
];

#[derive(Clone, Copy)]
enum Operation {
    Keep(&'static str),
    /// The process ends, and another opens the file.
    Restart,
    BringBack(&'static str),
    /// The same, in another process.
    BringBackAnew(&'static str),
    /// A byte of the rows at this place changes.
    Flip(usize),
}

impl Operation {
    /// Its name, and the words of its sequence.
    fn name(self) -> (String, &'static str) {
        match self {
            Operation::Keep(words) => ("keep".into(), words),
            Operation::Restart => ("another run".into(), ""),
            Operation::BringBack(words) | Operation::BringBackAnew(words) => ("read".into(), words),
            Operation::Flip(place) => (format!("a byte changes at place {place}"), ""),
        }
    }
}

/// What lies at a place.
#[derive(Clone, PartialEq)]
struct Record {
    number: u64,
    parent: u64,
    words: String,
    is_whole: bool,
    /// Whether the file can find it.
    is_known: bool,
    /// Whether it was read in this step.
    is_read: bool,
}

#[derive(Clone, Default)]
struct Memory(Rc<RefCell<Vec<u8>>>);

impl Disk for Memory {
    fn len(&mut self) -> io::Result<u64> {
        Ok(self.0.borrow().len() as u64)
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        bytes.copy_from_slice(&self.0.borrow()[offset as usize..][..bytes.len()]);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (mut all, end) = (self.0.borrow_mut(), offset as usize + bytes.len());
        let len = all.len().max(end);
        all.resize(len, 0);
        all[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn cut(&mut self, len: u64) -> io::Result<()> {
        self.0.borrow_mut().truncate(len as usize);
        Ok(())
    }
}

fn tokens(words: &str) -> Vec<u32> {
    let place = |word: &str| WORDS.iter().position(|other| *other == word).map(|place| place as u32);
    words.split(' ').filter_map(place).collect()
}

/// A file, and a memory that does not hold any of it yet.
struct Run {
    disk: Memory,
    file: PageFile,
    slab: SharedSlab,
    trie: PrefixCache,
}

impl Run {
    fn open(disk: Memory) -> Result<Self> {
        let file = PageFile::open(Box::new(disk.clone()), SHAPE, SHAPE.offset(PLACES))?;
        let slab = PageSlab::new(SHAPE.layout, SHAPE.page_size, PAGES)?;
        Ok(Run { disk, file, slab, trie: PrefixCache::new(SHAPE.page_size)? })
    }

    /// Returns how many pages were written.
    fn keep(&mut self, words: &str) -> Result<usize> {
        let mut cache = ForkCache::new(&self.slab)?;
        cache.extend(tokens(words).len())?;
        Ok(self.file.keep(&tokens(words), cache.table(), &self.slab.borrow())?)
    }

    /// Returns how many pages came back, and the places that were read.
    fn bring_back(&mut self, words: &str) -> Result<(usize, Vec<usize>)> {
        let wanted = self.file.wanted(&tokens(words), &mut self.trie, &self.slab)?;
        let places = wanted.iter().map(|wanted| wanted.place).collect();
        let read: Vec<_> = wanted.into_iter().map(|wanted| self.file.read(wanted)).collect();
        Ok((self.file.bring_back(&tokens(words), &read, &mut self.trie, &self.slab)?, places))
    }

    /// Returns how many pages were written, found or brought back, and the places that were read.
    fn apply(&mut self, operation: Operation) -> Result<(usize, Vec<usize>)> {
        match operation {
            Operation::Keep(words) => Ok((self.keep(words)?, vec![])),
            Operation::Restart => {
                *self = Run::open(self.disk.clone())?;
                Ok((self.file.n_records(), vec![]))
            }
            Operation::BringBack(words) => self.bring_back(words),
            Operation::BringBackAnew(words) => {
                *self = Run::open(self.disk.clone())?;
                self.bring_back(words)
            }
            Operation::Flip(place) => {
                let byte = SHAPE.offset(place) as usize + SHAPE.record_bytes() - 1;
                self.disk.0.borrow_mut()[byte] ^= 1;
                Ok((0, vec![]))
            }
        }
    }

    fn places(&self, read: &[usize]) -> Vec<Option<Record>> {
        let bytes = self.disk.0.borrow();
        let mut known = Vec::new();
        for operation in OPERATIONS {
            if let Operation::Keep(words) = operation {
                known.extend(self.file.find(&tokens(words)));
            }
        }
        let record = |place: usize| {
            let record = bytes.get(SHAPE.offset(place) as usize..)?.get(..SHAPE.record_bytes())?;
            let head = decode_head(&SHAPE, record).ok()?;
            let words: Vec<&str> = head.tokens.iter().map(|token| WORDS[*token as usize]).collect();
            Some(Record {
                number: head.number,
                parent: head.parent,
                words: words.join(" "),
                is_whole: decode(&SHAPE, record).is_ok(),
                is_known: known.contains(&place),
                is_read: read.contains(&place),
            })
        };
        (0..PLACES).map(record).collect()
    }
}

pub fn figure() -> Result<Figure> {
    let mut run = Run::open(Memory::default())?;
    let mut figure = Figure::default();
    figure.svg.y = 4.0;
    let mut before: Vec<Option<Record>> = vec![None; PLACES];
    for operation in OPERATIONS {
        let (name, words) = operation.name();
        let (pages, read) = run.apply(operation)?;
        let places = run.places(&read);
        figure.step(step_text(operation, pages, &before, &places), |svg| {
            svg.heading(&name, words);
            for (place, (record, before)) in places.iter().zip(&before).enumerate() {
                let content = record.as_ref().map_or(cell(Kind::Free, ""), |record| record.cell(before.as_ref()));
                svg.cell(Area { height: 42.0, ..Grid::across(0.0, PLACES, PLACES).cell(place, svg.y) }, &content);
            }
            svg.y += 42.0;
        });
        figure.svg.y += 12.0;
        before = places;
    }
    figure.svg.legend(&[
        (Kind::New, "written now"),
        (Kind::Shared, "read now"),
        (Kind::Reused, "can be found"),
        (Kind::Wasted, "damaged"),
        (Kind::Stale, "cannot be found"),
    ]);
    figure.label = format!(
        "A file with {PLACES} places after each of {} operations. A place holds a record: its words, its number and the record that \
         it follows.",
        OPERATIONS.len()
    );
    figure.caption = format!(
        "<strong>Pages outlive the process, and a damaged one is never used.</strong> A file of {PLACES} places, page size {}; \
         2 ◂ 1: record 2 follows record 1. Recorded from <code>PageFile</code>.",
        SHAPE.page_size
    );
    Ok(figure)
}

impl Record {
    /// `before`: the record that lay at its place before.
    fn cell(&self, before: Option<&Record>) -> Cell {
        let kind = match self {
            _ if before.is_none_or(|before| before.number != self.number) => Kind::New,
            Record { is_whole: false, .. } => Kind::Wasted,
            Record { is_known: false, .. } => Kind::Stale,
            Record { is_read: true, .. } => Kind::Shared,
            _ => Kind::Reused,
        };
        let Record { number, parent, words, .. } = self;
        let parent = if *parent == 0 { String::new() } else { format!(" ◂ {parent}") };
        cell(kind, format!("{words}\n{number}{parent}")).key(format!("record-{number}"))
    }
}

/// `pages`: how many were written, found or brought back.
fn step_text(operation: Operation, pages: usize, before: &[Option<Record>], places: &[Option<Record>]) -> String {
    let n = count(pages, "page");
    match operation {
        Operation::Keep(words) => {
            let stays = |old: &&Record| places.iter().flatten().any(|record| record.number == old.number);
            let gone = before.iter().flatten().filter(|old| !stays(old));
            let room: String =
                gone.map(|old| format!(" Record {}, which was used longest ago, makes room.", old.number)).collect();
            format!("“{words}” has finished: <code>keep</code> writes {n}.{room}")
        }
        Operation::Restart => format!("The program ends, and another opens the file: {n} can be found."),
        Operation::BringBack(words) | Operation::BringBackAnew(words) if pages > 0 => {
            format!("“{words}” is requested: {n} are read, checked and brought back.")
        }
        Operation::BringBack(words) | Operation::BringBackAnew(words) => format!(
            "In another run “{words}” is requested. The first page is read, and its checksum differs: no page is brought back, and \
             the file forgets that record and the one that follows it."
        ),
        Operation::Flip(place) => format!("On the disk, a byte changes at place {place}. Nothing has noticed yet."),
    }
}
