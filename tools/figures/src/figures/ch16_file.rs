//! Chapter 16: the content of a file of four places, from sequence to sequence and from run to run.

use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::chapters::ch10_fork::ForkCache;
use page_by_page::chapters::ch11_prefix_cache::PrefixTrie;
use page_by_page::chapters::ch16_pages_on_disk::decode;
use page_by_page::disk::memory_disk::MemoryDisk;
use page_by_page::disk::record::{RecordHeader, decode_header};
use page_by_page::disk::{PageFile, PageShape};
use page_by_page::kernels::RowFormat;

use super::prelude::*;

const SHAPE: PageShape = PageShape {
    fingerprint: 16,
    format: RowFormat::F32,
    layout: KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 2 },
    page_size: 2,
};
const PLACES: usize = 4;
const PAGES: usize = 8;
const WORDS: [&str; 12] = ["once", "upon", "a", "time", "king", "the", "fox", "said", "there", "old", "owl", "so"];

/// The sequences that the file holds when the figure starts.
const EARLIER: [&str; 3] = ["once upon a time", "once upon a king", "the fox"];
/// The words of a sequence, and what runs with them. It returns what happened in words; HTML.
const OPERATIONS: [(&str, Operation); 7] = [
    ("", |_, _| {
        let text = "Three sequences have finished, and each of their full pages is a record. Records 2 and 3 both \
                    follow record 1, so its page is in the file only once.";
        Ok(text.into())
    }),
    ("", FileAndTrie::restart),
    ("once upon a time there", FileAndTrie::load),
    ("the owl", |run, words| run.kill(words, SHAPE.record_header_bytes() / 2)),
    ("", FileAndTrie::restart),
    ("the owl", |run, words| run.kill(words, SHAPE.record_header_bytes() + SHAPE.record_bytes() / 4)),
    ("the owl said", |run, words| Ok(run.restart("")? + " " + &run.load(words)?)),
];
type Operation = fn(&mut FileAndTrie, &str) -> Result<String>;

struct FileAndTrie {
    disk: MemoryDisk,
    file: PageFile,
    slab: SharedSlab,
    trie: PrefixTrie,
    /// The ids of the record that is half written and of the one below it.
    torn: (u64, u64),
    /// The places that the last operation has read.
    read: Vec<usize>,
}

impl FileAndTrie {
    fn open(disk: MemoryDisk) -> Result<Self> {
        let file = PageFile::open(Box::new(disk.clone()), SHAPE, SHAPE.offset(PLACES))?;
        let slab = PageSlab::new(SHAPE.layout, SHAPE.page_size, PAGES)?;
        Ok(FileAndTrie { disk, file, slab, trie: PrefixTrie::new(SHAPE.page_size)?, torn: (0, 0), read: Vec::new() })
    }

    fn store(&mut self, words: &str) -> Result<()> {
        let tokens = tokens(words, &WORDS);
        let mut cache = ForkCache::new(&self.slab)?;
        cache.extend(tokens.len())?;
        let rows: Vec<f32> = tokens.iter().flat_map(|token| [*token as f32, 1.0]).collect();
        cache.write(0, &rows, &rows);
        self.file.store(&tokens, cache.table(), &self.slab.borrow())?;
        Ok(())
    }

    /// The process ends, and the next one opens the file.
    fn restart(&mut self, _: &str) -> Result<String> {
        *self = FileAndTrie { torn: self.torn, ..FileAndTrie::open(self.disk.clone())? };
        let found = self.file.index().n_records();
        Ok(match PLACES - found {
            0 => format!("The next run opens the file, reads the headers, and finds all {}.", count(found, "page")),
            free => format!(
                "The next run opens the file. A header fails its checksum, so {} is free, and the other {} are found.",
                count(free, "place"),
                count(found, "page")
            ),
        })
    }

    /// Writes a page, of which only the first `written` bytes reach the file.
    fn kill(&mut self, words: &str, written: usize) -> Result<String> {
        let before = self.disk.bytes().clone();
        self.store(words)?;
        let place = self.file.find(&tokens(words, &WORDS))[0];
        let [start, end] = [place, place + 1].map(|place| SHAPE.offset(place) as usize);
        let mut bytes = self.disk.bytes();
        let id = decode_header(&SHAPE, &bytes[start..end])?.id;
        let over = decode_header(&SHAPE, &before[start..end]).ok().map(|header| header.id);
        let old = over.unwrap_or(self.torn.1);
        let to = over.map_or("again, to the free place".into(), |old| {
            format!("over record {old}, the oldest that this run has not used")
        });
        bytes[start + written..end].copy_from_slice(&before[start + written..end]);
        self.torn = (id, old);
        let part = if written < SHAPE.record_header_bytes() { "header mixes" } else { "rows mix" };
        Ok(format!(
            "Record {id}, \u{201c}{words}\u{201d}, is written {to}. The program is killed after {written} of {} \
             bytes, so the {part} bytes of records {id} and {old}.",
            SHAPE.record_bytes()
        ))
    }

    fn load(&mut self, words: &str) -> Result<String> {
        let tokens = tokens(words, &WORDS);
        let pages = self.file.pages_to_load(&tokens, &mut self.trie, &self.slab)?;
        self.read = pages.iter().map(|page| page.place).collect();
        let read: Vec<_> = pages.into_iter().map(|page| self.file.read(page)).collect();
        Ok(match self.file.load(&tokens, &read, &mut self.trie, &self.slab)? {
            0 => format!(
                "But when \u{201c}{words}\u{201d} is requested, the rows fail their checksum, so the page is \
                 recomputed and its place is free."
            ),
            n => format!(
                "\u{201c}{words}\u{201d} is requested. Its first {} are read, checked and copied into the pool, so \
                 only the last word has to be computed.",
                count(n, "page")
            ),
        })
    }

    /// The header and the rows of each place.
    fn cells(&self) -> Vec<[Cell; 2]> {
        let sequences = EARLIER.into_iter().chain(OPERATIONS.map(|(words, _)| words));
        let known: Vec<usize> = sequences.flat_map(|words| self.file.find(&tokens(words, &WORDS))).collect();
        let bytes = self.disk.bytes();
        let of_place = |place: usize| {
            let Some(record) = bytes.get(SHAPE.offset(place) as usize..SHAPE.offset(place + 1) as usize) else {
                return [free(""), free("")];
            };
            let is_known = known.contains(&place);
            let cell = |(word, is_torn): (String, bool), is_known: bool| match is_torn {
                _ if !is_known => free(word),
                true => again('a', word),
                false => held('a', word).outlined(self.read.contains(&place)),
            };
            let [header, rows] = self.content(record);
            // Nothing leads to the rows below a torn header any more.
            let rows = cell(rows, is_known && !header.1);
            [cell(header, is_known), rows]
        };
        (0..PLACES).map(of_place).collect()
    }

    /// What the header and the rows of a record say, and whether each is only half written.
    fn content(&self, record: &[u8]) -> [(String, bool); 2] {
        let (new, old) = self.torn;
        let torn = format!("parts of\n{new} and {old}");
        let Ok(RecordHeader { id, parent, tokens, .. }) = decode_header(&SHAPE, record) else {
            return [(torn, true), (format!("rows of {old}"), false)];
        };
        let words: Vec<&str> = tokens.iter().map(|token| WORDS[*token as usize]).collect();
        let parent = if parent == 0 { String::new() } else { format!("\nafter {parent}") };
        let header = format!("{}\nrecord {id}{parent}", words.join(" "));
        let rows = decode(&SHAPE, record).map_or((torn, true), |_| (format!("rows of {id}"), false));
        [(header, false), rows]
    }
}

pub fn figure() -> Result<Figure> {
    let mut run = FileAndTrie::open(MemoryDisk::default())?;
    for words in EARLIER {
        run.store(words)?;
    }
    let mut figure = Figure {
        label: format!(
            "A file with {PLACES} places after each of {} operations. A place holds a record: a header, with its words, \
             its id and the record that it follows, and rows.",
            OPERATIONS.len()
        ),
        message: "Pages outlive the process, and a half-written one is never used.".into(),
        setup: format!(
            "A file of {PLACES} places for pages of {} tokens. The program is killed twice while it writes, once in \
             the header and once in the rows.",
            SHAPE.page_size
        ),
        legend: vec![(held('a', ""), "can be found"), (again('a', ""), "half written")],
        outline: Some("read or changed in this step"),
        // The first kill.
        middle: Some(3),
        ..Figure::default()
    };
    for (words, operation) in OPERATIONS {
        run.read.clear();
        let text = operation(&mut run, words)?;
        let cells = run.cells();
        figure.frame(text, |picture| draw(picture, &cells));
    }
    Ok(figure)
}

fn draw(picture: &mut Picture, cells: &[[Cell; 2]]) {
    const HEIGHTS: [f64; 2] = [58.0, 42.0];
    picture.labelled("header");
    let grid = picture.grid(PLACES, PLACES);
    for (place, cells) in cells.iter().enumerate() {
        let area = grid.cell(place);
        picture.text(area.middle(), area.y + 12.0, Anchor::Middle, format!("place {place}"));
        let mut y = area.y + 20.0;
        for (cell, height) in cells.iter().zip(HEIGHTS) {
            picture.cell(Area { y, height, ..area }, cell.clone());
            y += height + 2.0;
        }
    }
    picture.y += 20.0;
    for (name, height) in ["header", "rows"].into_iter().zip(HEIGHTS) {
        picture.text(picture.left, picture.y + height / 2.0 + 4.5, Anchor::Start, name);
        picture.y += height + 2.0;
    }
}
