//! Chapter 16: the content of a file of four places, from sequence to sequence and from run to run.

use anyhow::Result;
use page_by_page::cache::{KvCache, KvLayout};
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::chapters::ch10_fork::ForkCache;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::chapters::ch16_pages_on_disk::decode;
use page_by_page::disk::memory_disk::MemoryDisk;
use page_by_page::disk::record::decode_head;
use page_by_page::disk::{PageFile, PageShape};
use page_by_page::kernels::RowFormat;

use super::Figure;
use crate::picture::{Area, Cell, Fate, Picture, again, free, held, stale};
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

/// A name, the words of a sequence, and what runs. That returns what happened in words (HTML), and the places that were read.
const OPERATIONS: [(&str, &str, Operation); 8] = [
    ("keep", "once upon a time", Run::keep),
    ("keep", "once upon a king", Run::keep),
    ("keep", "the fox", Run::keep),
    ("another run", "", Run::restart),
    ("read", "once upon a time there", Run::bring_back),
    ("keep", "the owl", Run::keep),
    ("a byte changes at place 0", "", Run::flip),
    ("read", "once upon a time there", |run, words| {
        run.restart("")?;
        run.bring_back(words)
    }),
];
type Operation = fn(&mut Run, &str) -> Result<(String, Vec<usize>)>;

#[derive(Clone, PartialEq)]
struct Record {
    number: u64,
    parent: u64,
    words: String,
    is_whole: bool,
    is_known: bool,
    is_read: bool,
}

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

    fn keep(&mut self, words: &str) -> Result<(String, Vec<usize>)> {
        let tokens = tokens(words, &WORDS);
        let mut cache = ForkCache::new(&self.slab)?;
        cache.extend(tokens.len())?;
        let pages = count(self.file.keep(&tokens, cache.table(), &self.slab.borrow())?, "page");
        Ok((format!("“{words}” has finished: <code>keep</code> writes {pages}."), vec![]))
    }

    /// The process ends, and another opens the file.
    fn restart(&mut self, _: &str) -> Result<(String, Vec<usize>)> {
        *self = Run::open(self.disk.clone())?;
        let pages = count(self.file.index().n_records(), "page");
        Ok((format!("The program ends, and another opens the file: {pages} can be found."), vec![]))
    }

    fn bring_back(&mut self, words: &str) -> Result<(String, Vec<usize>)> {
        let tokens = tokens(words, &WORDS);
        let wanted = self.file.wanted(&tokens, &mut self.trie, &self.slab)?;
        let places = wanted.iter().map(|wanted| wanted.place).collect();
        let read: Vec<_> = wanted.into_iter().map(|wanted| self.file.read(wanted)).collect();
        let says = match self.file.bring_back(&tokens, &read, &mut self.trie, &self.slab)? {
            0 => format!(
                "In another run “{words}” is requested. The first page is read, and its checksum differs: no page is brought back, \
                 and the file forgets that record and the one that follows it."
            ),
            n => format!("“{words}” is requested: {} are read, checked and brought back.", count(n, "page")),
        };
        Ok((says, places))
    }

    fn flip(&mut self, _: &str) -> Result<(String, Vec<usize>)> {
        self.disk.bytes()[SHAPE.offset(0) as usize + SHAPE.record_bytes() - 1] ^= 1;
        Ok(("On the disk, a byte changes at place 0. Nothing has noticed yet.".into(), vec![]))
    }

    fn places(&self, read: &[usize]) -> Vec<Option<Record>> {
        let bytes = self.disk.bytes();
        let find = |(_, words, _): (&str, &str, Operation)| self.file.find(&tokens(words, &WORDS));
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
    let mut figure = Figure {
        label: format!(
            "A file with {PLACES} places after each of {} operations. A place holds a record: its words, its number and the record \
             that it follows.",
            OPERATIONS.len()
        ),
        message: "Pages outlive the process, and a damaged one is never used.".into(),
        setup: format!("A file of {PLACES} places, {} tokens in a page; each record has a number.", SHAPE.page_size),
        owners: vec![(held('a', ""), "can be found"), (held('b', ""), "read in this step")],
        legend: vec![(Fate::Again, "damaged"), (Fate::Stale, "cannot be found")],
        ..Figure::default()
    };
    let mut before: Vec<Option<Record>> = vec![None; PLACES];
    for (_, words, run_it) in OPERATIONS {
        let (mut says, read) = run_it(&mut run, words)?;
        let places = run.places(&read);
        let stays = |old: &&Record| places.iter().flatten().any(|record| record.number == old.number);
        for gone in before.iter().flatten().filter(|old| !stays(old)) {
            says += &format!(" Record {}, which was used longest ago, makes room.", gone.number);
        }
        figure.frame(says, |picture| draw(picture, &places));
        before = places;
    }
    Ok(figure)
}

fn draw(picture: &mut Picture, places: &[Option<Record>]) {
    const HEIGHT: f64 = 58.0;
    picture.heading("the file", "");
    let grid = picture.grid(PLACES, PLACES);
    for (place, record) in places.iter().enumerate() {
        let area = grid.cell(place);
        picture.text(area.middle(), area.y + 12.0, crate::picture::Anchor::Middle, format!("place {place}"));
        let cell = record.as_ref().map_or(free(""), Record::cell);
        picture.cell(Area { y: area.y + 20.0, height: HEIGHT, ..area }, cell);
    }
    picture.space(20.0 + HEIGHT);
}

impl Record {
    fn cell(&self) -> Cell {
        let look = match self {
            Record { is_whole: false, .. } => again('a', ""),
            Record { is_known: false, .. } => stale(""),
            Record { is_read: true, .. } => held('b', ""),
            _ => held('a', ""),
        };
        let Record { number, parent, words, .. } = self;
        let parent = if *parent == 0 { String::new() } else { format!("\nafter {parent}") };
        look.says(format!("{words}\nrecord {number}{parent}"))
    }
}
