//! Chapter 16: the content of a file of four places, from sequence to sequence and from run to run.

use anyhow::Result;
use page_by_page::cache::{KvCache, KvLayout};
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::chapters::ch10_fork::ForkCache;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::chapters::ch16_pages_on_disk::{PageFile, decode};
use page_by_page::disk::PageShape;
use page_by_page::disk::memory_disk::MemoryDisk;
use page_by_page::disk::record::decode_head;
use page_by_page::kernels::RowFormat;

use super::Figure;
use crate::layout::Grid;
use crate::svg::{Area, Cell, Kind, cell};
use crate::words::{count, tokens};

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

/// A file, and a memory that does not hold any of it yet.
struct Run {
    disk: MemoryDisk,
    file: PageFile,
    slab: SharedSlab,
    trie: PrefixCache,
}

impl Run {
    fn open(disk: MemoryDisk) -> Result<Self> {
        let file = PageFile::open(Box::new(disk.clone()), SHAPE, SHAPE.offset(PLACES))?;
        let slab = PageSlab::new(SHAPE.layout, SHAPE.page_size, PAGES)?;
        Ok(Run { disk, file, slab, trie: PrefixCache::new(SHAPE.page_size)? })
    }

    /// Returns how many pages were written, found or brought back, and the places that were read.
    fn apply(&mut self, operation: Operation) -> Result<(usize, Vec<usize>)> {
        let tokens = tokens(operation.name().1, &WORDS);
        let (mut pages, mut places) = (0, Vec::new());
        match operation {
            Operation::Keep(_) => {
                let mut cache = ForkCache::new(&self.slab)?;
                cache.extend(tokens.len())?;
                pages = self.file.keep(&tokens, cache.table(), &self.slab.borrow())?;
            }
            Operation::Restart => {
                *self = Run::open(self.disk.clone())?;
                pages = self.file.n_records();
            }
            Operation::BringBack(_) => {
                let wanted = self.file.wanted(&tokens, &mut self.trie, &self.slab)?;
                places.extend(wanted.iter().map(|wanted| wanted.place));
                let read: Vec<_> = wanted.into_iter().map(|wanted| self.file.read(wanted)).collect();
                pages = self.file.bring_back(&tokens, &read, &mut self.trie, &self.slab)?;
            }
            Operation::BringBackAnew(words) => {
                self.apply(Operation::Restart)?;
                return self.apply(Operation::BringBack(words));
            }
            Operation::Flip(place) => {
                let byte = SHAPE.offset(place) as usize + SHAPE.record_bytes() - 1;
                self.disk.bytes()[byte] ^= 1;
            }
        }
        Ok((pages, places))
    }

    fn places(&self, read: &[usize]) -> Vec<Option<Record>> {
        let bytes = self.disk.bytes();
        let find = |operation: Operation| self.file.find(&tokens(operation.name().1, &WORDS));
        let known: Vec<usize> = OPERATIONS.into_iter().flat_map(find).collect();
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
    let mut run = Run::open(MemoryDisk::default())?;
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
