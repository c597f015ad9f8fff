//! Chapter 16: what lies in a file of four places, from text to text and from run to run.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use anyhow::{Result, ensure};
use page_by_page::cache::{KvCache, KvLayout};
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::chapters::ch10_fork::ForkCache;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::chapters::ch16_pages_on_disk::{PageFile, decode};
use page_by_page::disk::record::decode_head;
use page_by_page::disk::{Disk, PageShape};
use page_by_page::kernels::RowFormat;
use serde::Serialize;

use crate::fragment::Drawing;
use crate::svg::{Anchor, Area, Kind, Svg};

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

#[derive(Serialize)]
pub struct Trace {
    page_size: usize,
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Frame {
    operation: String,
    text: &'static str,
    /// How many pages were written or brought back.
    pages: usize,
    places: Vec<Option<Record>>,
}

/// What lies at a place.
#[derive(Clone, PartialEq, Serialize)]
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

/// A file, and a memory that knows nothing of it yet.
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

    fn keep(&mut self, text: &str) -> Result<usize> {
        let mut cache = ForkCache::new(&self.slab)?;
        cache.extend(tokens(text).len())?;
        Ok(self.file.keep(&tokens(text), cache.table(), &self.slab.borrow())?)
    }

    /// How many pages came back, and the places that were read.
    fn bring_back(&mut self, text: &str) -> Result<(usize, Vec<usize>)> {
        let wanted = self.file.wanted(&tokens(text), &mut self.trie, &self.slab)?;
        let places = wanted.iter().map(|wanted| wanted.place).collect();
        let read: Vec<_> = wanted.into_iter().map(|wanted| self.file.read(wanted)).collect();
        Ok((self.file.bring_back(&tokens(text), &read, &mut self.trie, &self.slab)?, places))
    }

    fn places(&self, read: &[usize]) -> Vec<Option<Record>> {
        let bytes = self.disk.0.borrow();
        let mut known = Vec::new();
        for operation in OPERATIONS {
            if let Operation::Keep(text) = operation {
                known.extend(self.file.find(&tokens(text)));
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

pub fn record() -> Result<Trace> {
    let mut run = Run::open(Memory::default())?;
    let mut frames = Vec::new();
    for operation in OPERATIONS {
        let mut read = Vec::new();
        let (operation, text, pages) = match operation {
            Operation::Keep(text) => ("keep".into(), text, run.keep(text)?),
            Operation::Restart => {
                run = Run::open(run.disk)?;
                ("another run".into(), "", run.file.n_records())
            }
            Operation::BringBack(text) | Operation::BringBackAnew(text) => {
                if matches!(operation, Operation::BringBackAnew(_)) {
                    run = Run::open(run.disk)?;
                }
                let (pages, places) = run.bring_back(text)?;
                read = places;
                ("read".into(), text, pages)
            }
            Operation::Flip(place) => {
                let byte = SHAPE.offset(place) as usize + SHAPE.record_bytes() - 1;
                run.disk.0.borrow_mut()[byte] ^= 1;
                (format!("a byte changes at place {place}"), "", 0)
            }
        };
        frames.push(Frame { operation, text, pages, places: run.places(&read) });
    }
    ensure!(frames[4].pages == 2 && frames[7].pages == 0, "two pages come back, and none that is damaged");
    Ok(Trace { page_size: SHAPE.page_size, frames })
}

const WIDTH: f64 = 85.0;
const HEIGHT: f64 = 42.0;
const TITLE: f64 = 27.0;
const GAP: f64 = 12.0;

pub fn draw(trace: &Trace) -> Drawing {
    let frames = &trace.frames;
    let top = |step: usize| 4.0 + step as f64 * (TITLE + HEIGHT + GAP);
    let bottom = top(frames.len());
    let mut svg = Svg::new(bottom + 48.0);
    for (step, frame) in frames.iter().enumerate() {
        let before = step.checked_sub(1).map(|before| &frames[before]);
        svg.step(step, |svg| draw_file(svg, top(step), frame, before));
    }
    svg.legend(Kind::New, 0.0, bottom, "written now");
    svg.legend(Kind::Shared, 130.0, bottom, "read now");
    svg.legend(Kind::Reused, 240.0, bottom, "can be found");
    svg.legend(Kind::Wasted, 0.0, bottom + 24.0, "damaged");
    svg.legend(Kind::Stale, 130.0, bottom + 24.0, "cannot be found");
    let told: Vec<String> = frames.iter().map(told).collect();
    Drawing {
        svg,
        label: format!(
            "A file with {PLACES} places after each of {} operations, page size {}: {}.",
            frames.len(),
            trace.page_size,
            told.join("; ")
        ),
        caption: format!(
            "What lies in a file of {PLACES} places. Page size {}; 2 ◂ 1: record 2 follows record 1. Recorded from \
             <code>PageFile</code>.",
            trace.page_size
        ),
        steps: (0..frames.len()).map(|step| step_text(frames, step)).collect(),
    }
}

/// `keep once upon a king: 1 page`
fn told(frame: &Frame) -> String {
    let places: Vec<String> = frame
        .places
        .iter()
        .map(|record| record.as_ref().map_or("nothing".into(), |record| format!("{} {}", record.number, record.words)))
        .collect();
    let text = if frame.text.is_empty() { String::new() } else { format!(" {}", frame.text) };
    format!("{}{text}: {}", frame.operation, places.join(", "))
}

fn draw_file(svg: &mut Svg, top: f64, frame: &Frame, before: Option<&Frame>) {
    svg.bold(0.0, top + 17.0, Anchor::Start, &frame.operation);
    svg.text(360.0, top + 17.0, Anchor::End, frame.text);
    for (place, record) in frame.places.iter().enumerate() {
        let area = Area { x: 2.0 + place as f64 * (WIDTH + 5.0), y: top + TITLE, width: WIDTH, height: HEIGHT };
        let Some(record) = record else {
            svg.cell(Kind::Stale, area, "", "");
            continue;
        };
        let number = |frame: &Frame| frame.places[place].as_ref().map(|record| record.number);
        let kind = match record {
            _ if before.and_then(number) != Some(record.number) => Kind::New,
            Record { is_whole: false, .. } => Kind::Wasted,
            Record { is_known: false, .. } => Kind::Stale,
            Record { is_read: true, .. } => Kind::Shared,
            _ => Kind::Reused,
        };
        svg.cell(kind, area, &format!("record-{}", record.number), "");
        let middle = area.x + WIDTH / 2.0;
        svg.text(middle, area.y + 17.0, Anchor::Middle, &record.words);
        let parent = if record.parent == 0 { String::new() } else { format!(" ◂ {}", record.parent) };
        svg.text(middle, area.y + 35.0, Anchor::Middle, &format!("{}{parent}", record.number));
    }
}

fn step_text(frames: &[Frame], step: usize) -> String {
    let frame = &frames[step];
    let pages = |n: usize| if n == 1 { "1 page".into() } else { format!("{n} pages") };
    match (frame.operation.as_str(), frame.pages) {
        ("keep", n) => {
            let before = step.checked_sub(1).map(|before| &frames[before]);
            let places = before.into_iter().flat_map(|frame| &frame.places);
            let gone = places.zip(&frame.places).filter(|(old, new)| old.is_some() && old != new);
            let gone = gone
                .filter_map(|(old, _)| old.as_ref())
                .filter(|old| frame.places.iter().flatten().all(|record| record.number != old.number));
            let room: String =
                gone.map(|old| format!(" Record {}, which was used longest ago, makes room.", old.number)).collect();
            format!("“{}” was told: <code>keep</code> writes {}.{room}", frame.text, pages(n))
        }
        ("another run", n) => format!("The program ends, and another opens the file: {} can be found.", pages(n)),
        ("read", 0) => format!(
            "In another run “{}” is asked for. The first page is read, and its checksum is another: no page is brought \
             back, and the file forgets that record and the one that follows it.",
            frame.text
        ),
        ("read", n) => format!("“{}” is asked for: {} are read, checked and brought back.", frame.text, pages(n)),
        (other, _) => format!("On the disk, {other}. Nobody notices yet."),
    }
}
