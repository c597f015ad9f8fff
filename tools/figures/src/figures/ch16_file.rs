//! Chapter 16: a record byte by byte, of which a killed process has written only a part, and what the next run reads.

use std::ops::Range;

use page_by_page::chapters::ch06_paged::PageSlab;
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
const WORDS: [&str; 8] = ["once", "upon", "a", "time", "king", "the", "queen", "wolf"];
/// The sequences in the file. The first one is asked for again, so the second one's page is overwritten.
const EARLIER: [&str; 3] = ["once upon a time", "once upon a king", "the queen"];
/// What is written to `PLACE`, and after how many bytes the process is killed.
const NEW: &str = "the wolf";
const PLACE: usize = 2;
const KILLS: [usize; 2] = [28, 48];

/// The kinds of fields in a record, and where each field begins and the last one ends.
const NAMES: [(&str, usize); 6] =
    [("checksums", 0), ("id", 8), ("parent", 16), ("words", 24), ("keys", 32), ("values", 48)];
const STARTS: [usize; 10] = [0, 8, 16, 24, 28, 32, 40, 48, 56, 64];

/// What each field holds, checked or not. A row begins with the number of its token.
fn fields(bytes: &[u8]) -> [String; 9] {
    let word = |token: usize| WORDS[token].to_string();
    std::array::from_fn(|field| match (field, &bytes[STARTS[field]..STARTS[field + 1]]) {
        (0, _) => String::new(),
        (1 | 2, id) => id[0].to_string(),
        (3 | 4, token) => word(token[0].into()),
        (_, row) => word(f32::from_le_bytes([row[0], row[1], row[2], row[3]]) as usize),
    })
}

fn open(disk: &MemoryDisk) -> Result<PageFile> {
    Ok(PageFile::open(Box::new(disk.clone()), FORMAT, FORMAT.offset(PLACES))?)
}

fn store(file: &mut PageFile, words: &str) -> Result<usize> {
    let (tokens, slab) = (tokens(words, &WORDS), PageSlab::new(FORMAT.layout, FORMAT.page_size, PLACES)?);
    let mut cache = ForkCache::new(&slab)?;
    cache.extend(tokens.len())?;
    let rows: Vec<f32> = tokens.iter().flat_map(|token| [*token as f32, 1.0]).collect();
    cache.write(0, &rows, &rows);
    Ok(file.store(&tokens, cache.table(), &slab.borrow())?)
}

/// Asks for a sequence that goes on after these words, and returns how many pages were read and are good.
fn load(file: &mut PageFile, words: &str) -> Result<usize> {
    let tokens = [tokens(words, &WORDS), vec![u32::MAX]].concat();
    let slab = PageSlab::new(FORMAT.layout, FORMAT.page_size, PLACES)?;
    let mut trie = PrefixTrie::new(FORMAT.page_size)?;
    let pages = file.pages_to_load(&tokens, &mut trie, &slab)?;
    let read: Vec<_> = pages.into_iter().map(|page| file.read(page)).collect();
    Ok(file.load(&tokens, &read, &mut trie, &slab)?)
}

/// Writes a page into a full file, and then undoes all but the first `written` bytes. Returns the bytes at its place,
/// before and now, and the file.
fn killed(written: usize) -> Result<([Vec<u8>; 2], MemoryDisk)> {
    let disk = MemoryDisk::default();
    let mut file = open(&disk)?;
    EARLIER.into_iter().try_for_each(|words| store(&mut file, words).map(drop))?;
    ensure!(load(&mut file, EARLIER[0])? == 2, "both of its pages are loaded");
    let place = FORMAT.offset(PLACE) as usize..FORMAT.offset(PLACE + 1) as usize;
    let old = disk.bytes()[place.clone()].to_vec();
    store(&mut file, NEW)?;
    disk.bytes()[place.start + written..place.end].copy_from_slice(&old[written..]);
    let now = disk.bytes()[place].to_vec();
    Ok(([old, now], disk))
}

/// What the next run makes of the place, and what it would read without checksums.
fn read(bytes: &[u8], disk: &MemoryDisk) -> Result<[String; 2]> {
    let fails = match decode(&FORMAT, bytes) {
        Err(RecordError::DamagedHeader { .. }) => "header fails",
        Err(RecordError::DamagedRows { .. }) => "rows fail",
        other => anyhow::bail!("not half a record: {other:?}"),
    };
    let mut file = open(disk)?;
    ensure!(load(&mut file, NEW)? == 0 && file.index().get(PLACE).is_none(), "half a page is never loaded");
    let fields = fields(bytes);
    let [words, keys, values] = [3, 5, 7].map(|field| fields[field..field + 2].join(" "));
    let (rows, whose) = if keys == words { ("values", values) } else { ("rows", keys) };
    let read = format!("\u{201c}{words}\u{201d} with {rows} of \u{201c}{whose}\u{201d}");
    Ok([format!("the {fails}: the place is free"), read])
}

pub fn figure() -> Result<Figure> {
    let total = FORMAT.record_bytes();
    let ([old, new], _) = killed(total)?;
    let records = [fields(&old), fields(&new)];
    let [replaced, written] = records.each_ref().map(|fields| format!("\u{201c}{}\u{201d}", fields[3..5].join(" ")));
    let [first, second] = KILLS;
    let mut figure = Figure {
        label: format!(
            "The {total} bytes of a record, and those of the record that is written over it up to a knife: at byte {first} \
             in the header, then at byte {second} in the rows. Below, what the next run reads."
        ),
        headline: "A kill costs the page that was being written, and a half-written page is never used.".into(),
        setup: "One place of the file, over the number of each field\u{2019}s first byte. A row is shown as its word."
            .into(),
        legend: vec![
            (held('a', ""), "old bytes"),
            (held('b', ""), "new bytes"),
            (stale(None, ""), "overwritten"),
            (free(""), "never written"),
            (shared(&['b', 'a'], ""), "half of each"),
        ],
        ..Figure::default()
    };
    let [has, next] = records.each_ref().map(|fields| &fields[1]);
    let text =
        format!("Place {PLACE} has record {has}, {replaced}. Record {next}, {written}, is to be written over it.");
    figure.frame(text, |picture| draw(picture, &records, 0, &[replaced.clone(), replaced.clone()]));
    const CHECKS: [&str; 2] = [
        "in the header. The next run checks all headers, and this one is damaged.",
        "in the rows. The header is whole, and the next run finds the page. Then it reads the rows, and they are damaged.",
    ];
    for (at, check) in KILLS.into_iter().zip(CHECKS) {
        let ([_, bytes], disk) = killed(at)?;
        let read = read(&bytes, &disk)?;
        let text = format!("The process is killed after {at} of {total} bytes, {check}");
        figure.frame(text, |picture| draw(picture, &records, at, &read));
    }
    Ok(figure)
}

/// The old record over the new one, up to the byte at which the process was killed, and what is read of them.
fn draw(picture: &mut Picture, records: &[[String; 9]; 2], written: usize, read: &[String; 2]) {
    picture.labelled("record 5");
    let per_line = if picture.is_wide() { 64 } else { 32 };
    for line in 0..64 / per_line {
        draw_bytes(picture, records, written, line * per_line..(line + 1) * per_line);
    }
    picture.labelled("with checksums");
    let cells = if written == 0 {
        read.each_ref().map(|read| held('a', read))
    } else {
        [part(&read[0]), shared(&['b', 'a'], &read[1])]
    };
    for (name, cell) in ["with checksums", "without"].iter().zip(cells) {
        picture.row(name, "", 1, [cell.outlined(written > 0)]);
    }
}

fn draw_bytes(picture: &mut Picture, records: &[[String; 9]; 2], written: usize, shown: Range<usize>) {
    let (left, top) = (picture.left + picture.labels, picture.y + 38.0);
    let scale = (picture.right() - left) / shown.len() as f64;
    let x = |byte: usize| left + (byte - shown.start) as f64 * scale;
    for (part, start) in [("header", 0), ("rows", FORMAT.record_header_bytes())] {
        if shown.contains(&start) {
            picture.bold(x(start), top - 24.0, Anchor::Start, part);
        }
    }
    for (name, start) in NAMES.iter().filter(|(_, start)| shown.contains(start)) {
        picture.text(x(*start), top - 6.0, Anchor::Start, name);
    }
    for (lane, fields) in records.iter().enumerate() {
        let lane_y = top + 28.0 * lane as f64;
        picture.text(picture.left, lane_y + 17.5, Anchor::Start, format!("record {}", fields[1]));
        for field in (0..fields.len()).filter(|field| shown.contains(&STARTS[*field])) {
            let (start, end, word) = (STARTS[field], STARTS[field + 1], &fields[field]);
            let cell = match (lane, end <= written) {
                (0, true) => stale(Some('a'), word),
                (0, false) => held('a', word),
                (_, true) => held('b', word),
                (_, false) => free(word),
            };
            let area = Area { x: x(start), y: lane_y, width: x(end) - x(start) - 2.5, height: 26.0 };
            picture.cell(area, cell);
            if lane == 1 && (start != written || written == 0) {
                picture.text(area.x, top + 70.0, Anchor::Start, start);
            }
        }
    }
    if written > 0 && shown.contains(&written) {
        let x = x(written) - 1.25;
        picture.path("dots o3", format!("M{x:.1} {:.1}l3 64v14h-6v-14z", top - 6.0));
        picture.text(x, top + 86.0, Anchor::Middle, format!("byte {written}"));
    }
    picture.y = top + 96.0;
}
