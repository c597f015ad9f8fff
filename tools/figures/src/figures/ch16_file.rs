//! Chapter 16: a record byte by byte, of which a killed process has written only a part, and what the next run finds.

use std::ops::Range;

use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::chapters::ch10_fork::ForkCache;
use page_by_page::chapters::ch11_prefix_cache::PrefixTrie;
use page_by_page::chapters::ch16_pages_on_disk::decode;
use page_by_page::disk::memory_disk::MemoryDisk;
use page_by_page::disk::record::RecordError;
use page_by_page::disk::{PageFile, PageFormat};
use page_by_page::kernels::{KvDtype, MatmulDtype};

use super::prelude::*;

const FORMAT: PageFormat = PageFormat {
    fingerprint: 16,
    kv_dtype: KvDtype::F32,
    matmul_dtype: MatmulDtype::F32,
    layout: KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 2 },
    page_size: 2,
};
const PLACES: usize = 4;
const PAGES: usize = 8;
const WORDS: [&str; 8] = ["once", "upon", "a", "time", "king", "the", "queen", "wolf"];
/// The sequences that the file holds when the figure starts. The next run asks for the first one.
const EARLIER: [&str; 3] = ["once upon a time", "once upon a king", "the queen"];
/// What is written to `PLACE`, where, and after how many bytes the process is killed.
const NEW: &str = "the wolf";
const PLACE: usize = 2;
const KILLS: [(&str, usize); 2] = [("over record 3", 28), ("again, to the free place", 48)];
const PARTS: [&str; 2] = ["header", "rows"];
/// Bytes of each part, by the format.
const PART: usize = 32;

/// The fields of a record: what each is, its bytes, and how they are read.
const FIELDS: [(&str, Range<usize>, Read); 9] = [
    ("checksums", 0..8, |_| String::new()),
    ("id", 8..16, |bytes| bytes[0].to_string()),
    ("parent", 16..24, |bytes| bytes[0].to_string()),
    ("words", 24..28, word),
    ("", 28..32, word),
    ("keys", 32..40, row),
    ("", 40..48, row),
    ("values", 48..56, row),
    ("", 56..64, row),
];
type Read = fn(&[u8]) -> String;

fn word(bytes: &[u8]) -> String {
    WORDS[usize::from(bytes[0])].into()
}

/// A row begins with the token's number.
fn row(bytes: &[u8]) -> String {
    WORDS[f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize].into()
}

struct FileAndTrie {
    disk: MemoryDisk,
    file: PageFile,
    slab: SharedSlab,
    trie: PrefixTrie,
}

impl FileAndTrie {
    fn open(disk: MemoryDisk) -> Result<Self> {
        let file = PageFile::open(Box::new(disk.clone()), FORMAT, FORMAT.offset(PLACES))?;
        let slab = PageSlab::new(FORMAT.layout, FORMAT.page_size, PAGES)?;
        Ok(FileAndTrie { disk, file, slab, trie: PrefixTrie::new(FORMAT.page_size)? })
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

    /// Asks for a sequence that goes on after these words, and returns how many pages were read and are good.
    fn load(&mut self, words: &str) -> Result<usize> {
        let tokens = [tokens(words, &WORDS), vec![u32::MAX]].concat();
        let pages = self.file.pages_to_load(&tokens, &mut self.trie, &self.slab)?;
        let read: Vec<_> = pages.into_iter().map(|page| self.file.read(page)).collect();
        Ok(self.file.load(&tokens, &read, &mut self.trie, &self.slab)?)
    }

    /// What is at the place, and what can be found in the file.
    fn state(&self, written: usize) -> Result<State> {
        let bytes = self.disk.bytes()[FORMAT.offset(PLACE) as usize..FORMAT.offset(PLACE + 1) as usize].to_vec();
        let fails = match decode(&FORMAT, &bytes) {
            Ok(_) => None,
            Err(RecordError::DamagedRows { .. }) => Some(1),
            Err(_) => Some(0),
        };
        let found = std::array::from_fn(|place| {
            let tokens = &self.file.index().get(place)?.tokens;
            Some(joined(&tokens.iter().map(|token| WORDS[*token as usize]).collect::<Vec<_>>(), " "))
        });
        let fields = FIELDS.iter().map(|(_, range, read)| read(&bytes[range.clone()])).collect();
        Ok(State { fields, written, fails, found })
    }

    /// Writes a page, of which only the first `written` bytes reach the file, and starts again.
    fn kill(&mut self, written: usize) -> Result<State> {
        let before = self.disk.bytes().clone();
        self.store(NEW)?;
        ensure!(self.file.find(&tokens(NEW, &WORDS)) == [PLACE], "it is written to place {PLACE}");
        let rest = FORMAT.offset(PLACE) as usize + written..FORMAT.offset(PLACE + 1) as usize;
        self.disk.bytes()[rest.clone()].copy_from_slice(&before[rest]);
        *self = FileAndTrie::open(self.disk.clone())?;
        ensure!(self.load(NEW)? == 0, "half a page is never loaded");
        self.state(written)
    }
}

/// A record after a kill, or before any.
struct State {
    /// What each of the fields holds, checked or not.
    fields: Vec<String>,
    /// How many bytes the killed process has written.
    written: usize,
    /// The part that fails its checksum.
    fails: Option<usize>,
    /// The words of each place whose page is found.
    found: [Option<String>; PLACES],
}

impl State {
    /// Without checksums: the words of the page, and which of its rows are of other words.
    fn unchecked(&self) -> [String; 2] {
        let [words, keys, values] = [3, 5, 7].map(|field| self.fields[field..field + 2].join(" "));
        let others = if keys == words { format!("values of\n{values}") } else { format!("rows of\n{keys}") };
        [words, others]
    }
}

pub fn figure() -> Result<Figure> {
    let mut run = FileAndTrie::open(MemoryDisk::default())?;
    EARLIER.into_iter().try_for_each(|words| run.store(words))?;
    run = FileAndTrie::open(run.disk)?;
    ensure!(run.load(EARLIER[0])? == 2, "both of its pages are loaded");
    let total = FORMAT.record_bytes();
    let mut figure = Figure {
        label: format!(
            "The {total} bytes of a record, field by field, before and after two kills, and the {PLACES} places of the \
             file with what the next run finds in them, with checksums and without."
        ),
        headline: "A kill costs the page that was being written, and a half-written page is never used.".into(),
        setup: format!(
            "A file of {PLACES} places for pages of {} tokens. Above, the bytes of one place, each field over the number of its first byte. Wrong is a run that checks no checksum.",
            FORMAT.page_size
        ),
        legend: vec![
            (held('a', ""), "written earlier"),
            (held('b', ""), "written before the kill"),
            (again('a', ""), "fails its checksum"),
            (shared(&['b', 'a'], ""), "parts of both"),
        ],
        opens: 1,
        ..Figure::default()
    };
    let state = run.state(0)?;
    let [old, _] = state.unchecked();
    let text = format!(
        "Place {PLACE} holds record {}, \u{201c}{old}\u{201d}. No page was used longer ago, so the next one will be written \
         over it.",
        state.fields[1]
    );
    figure.frame(text, |picture| draw(picture, &state));
    for (place, written) in KILLS {
        let state = run.kill(written)?;
        let [words, others] = state.unchecked();
        let check = match state.fails.context("every check passes")? {
            0 => "The next run reads all headers. This one fails its checksum, so the place is free.",
            _ => {
                "The next run finds the page, whose header is whole. But when it reads the rows, they fail, and the place \
                  is free again."
            }
        };
        let text = format!(
            "\u{201c}{NEW}\u{201d} is written {place}, and the process is killed after {written} of {total} bytes. {check} \
             The kill costs \u{201c}{NEW}\u{201d}; the page in its place had already been given up. Without checksums, \u{201c}{words}\u{201d} would be found, with \
             {}\u{201d}.",
            others.replace('\n', " \u{201c}")
        );
        figure.frame(text, |picture| draw(picture, &state));
    }
    Ok(figure)
}

fn draw(picture: &mut Picture, state: &State) {
    picture.beside(PARTS.len(), |picture, part| draw_part(picture, state, part));
    picture.heading("what the next run finds", "");
    picture.labelled("wrong");
    for place in 0..PLACES {
        let middle = picture.grid(PLACES, PLACES).middle(place);
        picture.text(middle, picture.y + 10.0, Anchor::Middle, format!("place {place}"));
    }
    picture.y += 18.0;
    for (label, height) in [("right", CELL), ("wrong", 56.0)] {
        let is_wrong = label == "wrong";
        picture.text(picture.left, picture.y + height / 2.0 + 4.5, Anchor::Start, label);
        for (place, words) in state.found.iter().enumerate() {
            let cell = match words {
                Some(words) => held('a', words),
                None if is_wrong => shared(&['b', 'a'], state.unchecked().join("\n")),
                None => free(""),
            };
            let area = picture.grid(PLACES, PLACES).cell(place);
            picture.cell(Area { height, ..area }, cell);
        }
        picture.y += height + 6.0;
    }
    picture.labels = 0.0;
}

/// The header or the rows, field by field, and the byte at which the process was killed.
fn draw_part(picture: &mut Picture, state: &State, part: usize) {
    let first = part * PART;
    let note = match state.fails {
        Some(fails) if fails == part => "checksum fails",
        Some(fails) if fails < part => "not even read",
        _ => "checksum holds",
    };
    picture.heading(&format!("place {PLACE}: {}", PARTS[part]), note);
    let (scale, left, top) = ((picture.width - 2.0) / PART as f64, picture.left + 1.0, picture.y + 18.0);
    let x = |byte: usize| left + (byte - first) as f64 * scale;
    for ((name, range, _), word) in FIELDS.iter().zip(&state.fields) {
        if range.start / PART != part {
            continue;
        }
        let owner = if range.end <= state.written { 'b' } else { 'a' };
        let cell = if state.fails == Some(part) { again(owner, word) } else { held(owner, word) };
        picture.cell(Area { x: x(range.start), y: top, width: range.len() as f64 * scale - 2.5, height: CELL }, cell);
        for (y, text) in [(top - 6.0, name.to_string()), (top + CELL + 15.0, range.start.to_string())] {
            picture.text(x(range.start), y, Anchor::Start, text);
        }
    }
    if state.written.checked_sub(first).is_some_and(|written| (1..=PART).contains(&written)) {
        let at = x(state.written) - 1.25;
        picture.path("mark", format!("M{at:.1} {:.1}v{:.1}", top - 4.0, CELL + 40.0));
        picture.text(at + 1.0, top + CELL + 34.0, Anchor::End, format!("killed after {} bytes", state.written));
    }
    picture.y = top + CELL + 44.0;
}
